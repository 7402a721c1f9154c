"""What natives of `numba_tma.pipeline` become in a kernel."""
