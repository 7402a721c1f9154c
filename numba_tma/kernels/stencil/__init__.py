"""Stencils: kernels of any function of an element and its neighbours."""

from numba_tma.host.lazy_names import homes_of, imported_from

_HOMES = homes_of(__file__)
__getattr__, __dir__ = imported_from(globals(), _HOMES)
__all__ = sorted(_HOMES)
