"""The rule of a kernel's ``with`` block for its value."""

from numba_tma.backend import compiler
from numba_tma.device.scope import RETURNS, WANTED, as_scope

compiler.scopes.register(as_scope, WANTED, RETURNS)
