"""The names that lowerings are written in, taken from the chosen backend.

A lowering imports no other name of a compiler. This module chooses the backend: another backend is
a folder beside `numba_cuda` that offers the same names. A process has one backend, since the types
of two backends are different objects.
"""

from numba_tma.backend import numba_cuda as chosen
from numba_tma.backend.numba_cuda import *  # noqa: F403

#: The package of the chosen backend. Its module `prepared_launch` has the launcher.
BACKEND = chosen.__name__
