"""The lowerings of natives, under the names of the modules that declare them."""
