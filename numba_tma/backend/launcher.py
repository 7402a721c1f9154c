"""The launcher of compiled kernels, taken from the chosen backend."""

from numba_tma.backend.numba_cuda.prepared_launch import CompiledLauncher

__all__ = ["CompiledLauncher"]
