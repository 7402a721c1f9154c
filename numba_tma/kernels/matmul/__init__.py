"""Matrix products: plain, grouped, and of block-scaled fp8."""

from numba_tma.kernels.matmul.api import matmul
from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
from numba_tma.kernels.matmul.grouped import grouped_matmul

__all__ = ["block_scaled_matmul", "grouped_matmul", "matmul"]
