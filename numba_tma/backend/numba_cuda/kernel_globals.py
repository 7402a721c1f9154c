"""Global variables that a body declares and its kernel defines: shared memory, and use flags.

All shared variables of a kernel are defined in the kernel's module, in the order of its calls. So
their layout does not depend on the link order of modules.
"""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba.cuda.cudadrv import nvvm

from numba_tma.backend.numba_cuda.facts import facts_of

I8 = ir.IntType(8)


def declare_shared(builder: Any, name: str, nbytes: int, alignment: int, what: str) -> Any:
    """Return a shared variable that the calling kernel defines."""
    facts_of(builder.function).shared.append((name, nbytes, alignment, what))
    return _shared(builder, name, nbytes, alignment)


def define_shared(builder: Any, name: str, nbytes: int, alignment: int, what: str) -> Any:
    """Return a new shared variable; `what` is its name in errors."""
    variable = _shared(builder, name, nbytes, alignment)
    variable.initializer = ir.Constant(variable.type.pointee, ir.Undefined)
    variable.what = what
    return variable


def _shared(builder: Any, name: str, nbytes: int, alignment: int) -> Any:
    kind = ir.ArrayType(I8, nbytes)
    variable = ir.GlobalVariable(builder.module, kind, name, nvvm.ADDRSPACE_SHARED)
    variable.align = alignment
    return variable


_PREFIX = "numba_tma_uses_tiles_"
_BIT = ir.IntType(1)


def load_use_flag(builder: Any) -> Any:
    """Return whether the caller of this body uses tiles, as far as the caller's module shows.

    The flag is a constant of the caller's module, known once the module is complete.
    """
    name = _PREFIX + hashlib.sha256(builder.function.name.encode()).hexdigest()[:16]
    flag = builder.module.globals.get(name)
    if flag is None:
        flag = ir.GlobalVariable(builder.module, _BIT, name)
        flag.global_constant = True
        facts_of(builder.function).use_flags.append(name)
    return builder.load(flag)


def define_use_flags(builder: Any, names: list[str]) -> None:
    """Define the flags of a kernel's, or a user's device function's, callees: not used yet."""
    for name in names:
        flag = ir.GlobalVariable(builder.module, _BIT, name)
        flag.linkage, flag.global_constant = "linkonce_odr", True
        flag.initializer = ir.Constant(_BIT, 0)
        builder.load(flag)  # a linker drops a global that its own module does not use


def set_use_flags(module: Any) -> None:
    """Note that the function reads or writes a tile."""
    for name, flag in module.globals.items():
        if name.startswith(_PREFIX) and flag.initializer is not None:
            flag.initializer = ir.Constant(_BIT, 1)
