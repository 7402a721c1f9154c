"""How kernels find their roles and move registers: the compiled half of `roles`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, ObjectType, TypingError, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.pipeline.roles import Role
from numba_tma.ptx import TABLE


def of_role(
    context: Any, builder: Any, roles: Sequence[Role], values: Sequence[Sequence[int]]
) -> list[Any]:
    """Return the calling thread's index in its role, and what `values` has for that role.

    `values` has integers for each of `roles`. The first role stands for threads that have none; an
    index beyond its last, as unsigned numbers have it, tells them apart.
    """
    # In the entry block all objects that a kernel starts share this, and nothing is left between
    # their initialisations, which then become one.
    with builder.goto_entry_block():
        thread = emit(TABLE["tid_x"], context, builder, {})
        mine: list[Any] = []
        for role, value in zip(roles, values, strict=True):
            own = builder.sub(thread, ir.Constant(I32, role.first))
            its = [own, *(ir.Constant(I32, number) for number in value)]
            if mine:
                # What Role.is_member asks, so that it is asked once.
                after = builder.icmp_unsigned(">=", thread, ir.Constant(I32, role.first))
                before = builder.icmp_unsigned(
                    "<", thread, ir.Constant(I32, role.first + role.members)
                )
                here = builder.and_(after, before)
                its = [builder.select(here, a, b) for a, b in zip(its, mine)]
            mine = its
        return mine


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
