"""What kernels call: shared memory, barriers, waits, vectors, fragments, schedulers, scopes."""
