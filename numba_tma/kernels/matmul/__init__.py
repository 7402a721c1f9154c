"""Matmul: dense, grouped, and of block-scaled fp8.

Read `kernel` for the algorithm, `epilogue` for what follows the product, `plan` for tiles and
stages. `swapped_kernel`, `grouped_kernel` and `block_scaled_kernel` are variants with a page each,
`tcgen05_kernel`, `tcgen05_pair_kernel` and `tcgen05_scaled_kernel` are those for Blackwell, and
`mma_kernel` the one for all other GPUs.
"""

from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from numba_tma.kernels.matmul.dense import matmul
from numba_tma.kernels.matmul.grouped import grouped_matmul
from numba_tma.kernels.matmul.plan import Config, MmaConfig, SwappedConfig, Tcgen05Config

__all__ = [
    "Config",
    "MmaConfig",
    "ScaledConfig",
    "SwappedConfig",
    "Tcgen05Config",
    "block_scaled_matmul",
    "grouped_matmul",
    "matmul",
]
