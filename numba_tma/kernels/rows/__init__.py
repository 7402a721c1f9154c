"""Row by row: norms, softmax, their gradients, and reductions."""

from numba_tma.host.lazy_names import homes_of, imported_from

# Not by their first use: each stands in a folder of its name, which would take the name's place.
from numba_tma.kernels.rows.layernorm import layernorm as layernorm
from numba_tma.kernels.rows.rmsnorm import rmsnorm as rmsnorm
from numba_tma.kernels.rows.softmax import softmax as softmax

_HOMES = homes_of(__file__)
__getattr__, __dir__ = imported_from(globals(), _HOMES)
__all__ = sorted(_HOMES)
