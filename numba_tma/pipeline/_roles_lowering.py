"""How kernels move registers: the compiled half of `roles`."""

from __future__ import annotations

from typing import Any

from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma._compiler import ObjectType, TypingError, signature
from numba_tma.pipeline.roles import Role
from numba_tma.ptx import TABLE
from numba_tma.ptx._lowering import emit


def _type_set_registers(self: ObjectType) -> Any:
    role = self.static[0]
    if not role.launch_registers:
        raise TypingError(
            f"set_registers of {role}: the roles say nothing of registers; give one of them some "
            "to keep, as in Roles(compute=Warpgroups(2), load=Warpgroups(1, registers=40))"
        )
    compiler.require_architecture("set_registers", "90a")
    return signature(types.void, self)


def _lower_set_registers(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    role = sig.args[0].static[0]
    # ptxas drops setmaxnreg unless it knows the registers at launch.
    compiler.require_launch_bounds(builder, (role.block, 1))
    if role.registers != role.launch_registers:
        row = "setmaxnreg_dec" if role.registers < role.launch_registers else "setmaxnreg_inc"
        emit(TABLE[row], context, builder, {"registers": (types.literal(role.registers), None)})
    return context.get_dummy_value()


compiler.native_method(Role, "set_registers", _type_set_registers, _lower_set_registers)
