"""What a ``with`` block of a kernel asks of the value that it is given."""

from numba_tma.backend import compiler
from numba_tma.device.scope import RETURNS, WANTED, as_scope

compiler.scopes.register(as_scope, WANTED, RETURNS)
