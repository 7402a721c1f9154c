"""Matmul: dense, grouped, and of block-scaled fp8.

Read `kernel` for the algorithm, `epilogue` for what follows the product, `plan` for tiles and
stages. `stream_k_kernel`, `swapped_kernel`, `unaligned_kernel`, `grouped_kernel` and
`block_scaled_kernel` are variants with a page each, `tcgen05_kernel`, `tcgen05_pair_kernel` and
`tcgen05_scaled_kernel` are those for Blackwell, and `mma_kernel` the one for all other GPUs.
"""

from numba_tma.host.lazy_names import homes_of, imported_from

_HOMES = homes_of(__file__)
__getattr__, __dir__ = imported_from(globals(), _HOMES)
__all__ = sorted(_HOMES)
