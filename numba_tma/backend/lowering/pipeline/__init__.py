"""The lowerings of natives of `numba_tma.pipeline`."""
