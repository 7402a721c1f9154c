"""How kernels take turns: the compiled half of `ordered`."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, ObjectType, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline.memory import (
    U32,
    check_memory,
    constant,
    given_arguments,
    memory_address,
    synchronises,
)
from numba_tma.backend.lowering.pipeline.roles import of_role
from numba_tma.pipeline import ordered
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import TABLE

compiler.device_function(ordered.initialise)


def _type_start(self: ObjectType, barriers: Any = None, sync: Any = None) -> Any:
    value = self.static[0]
    synchronises(sync)
    given = given_arguments(barriers, sync)
    nbytes = 8 * value.num_barriers
    if not check_memory("barriers", barriers or types.none, nbytes, 8):
        compiler.check_shared_size(repr(value), {"barriers": nbytes})
    state = ObjectType(PipelineState, (value.depth,), (U32, U32, U32), True)
    fields = (U32, U32, state, types.boolean)
    return signature(ObjectType(ordered.OrderedSequence, (value,), fields, True), self, *given)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value, result = sig.args[0].static[0], sig.return_type
    if len(args) > 1 and not isinstance(sig.args[1], types.NoneType | types.Omitted):
        base = memory_address(builder, sig.args[1], args[1])
    else:
        # The launch reads from the name how many threads the roles want.
        nbytes, kind = 8 * value.num_barriers, f"ring{value.block}"
        base = compiler.allocate_shared(builder, nbytes, 8, repr(value), kind)
    thread = emit(TABLE["tid_x"], context, builder, {})
    _, group = of_role(context, builder, value.roles, [(i,) for i in range(value.num_groups)])
    initialise = signature(types.void, sig.args[0], U32, U32, types.boolean)
    sync = ir.Constant(ir.IntType(1), synchronises(dict(enumerate(sig.args)).get(2)))
    arguments = [args[0], base, thread, sync]
    compiler.BODIES[ordered.initialise].call(context, builder, initialise, arguments)
    phase = builder.zext(builder.icmp_unsigned("==", group, constant(0)), I32)
    zero = constant(0)
    state = compiler.make_object(context, builder, result.field_types[2], [zero, phase, zero])
    no = ir.Constant(ir.IntType(1), 0)
    return compiler.make_object(context, builder, result, [base, group, state, no])


compiler.native_method(ordered.OrderedSequenceBarrier, "start", _type_start, _lower_start)
