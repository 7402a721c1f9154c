"""Runs TMA kernels on the CPU, under numba's simulator (``NUMBA_ENABLE_CUDASIM=1``).

Threads take turns in a seeded order. Copies land in between, late and in any order. A kernel's
mistakes (a stage touched too early, a missing fence, an endless wait) are reported with the thread,
the bytes and the repair. All functions act for the simulated thread that calls them. Shared
addresses are byte offsets into the block's window.
"""

from numba_tma.host.lazy_names import homes_of, imported_from

_HOMES = homes_of(__file__)
__all__ = sorted(_HOMES)  # noqa: PLE0605
__getattr__, __dir__ = imported_from(globals(), _HOMES)
