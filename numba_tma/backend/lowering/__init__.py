"""What natives become in a kernel, under the names of the modules that declare them."""
