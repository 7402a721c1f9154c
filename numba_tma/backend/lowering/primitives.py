"""A body's requirements on its kernel: memory, a cluster, launch bounds; 32-bit arithmetic."""

from __future__ import annotations

import functools
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.primitives import (
    add32,
    allocate_shared,
    kept_in_register,
    quotient,
    require_cluster,
    require_launch_bounds,
    sub32,
    tiles_are_used,
)
from numba_tma.host.architectures import TMA
from numba_tma.ptx import TABLE


def _type_allocate(
    owner: Any, nbytes: Any, alignment: Any, what: Any = None, kind: Any = None
) -> Any:
    given = [t for t in (owner, nbytes, alignment, what, kind) if t is not None]
    value, *_ = (compiler.static_of(typ, "allocate_shared(...)") for typ in given)
    if hasattr(value, "shared_parts"):
        of = compiler.static_of(what, "what") if what is not None else ""
        compiler.check_shared_size(repr(value), value.shared_parts(of))
    return signature(types.uint32, *given)


def _lower_allocate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    owner, nbytes, alignment, *rest = (compiler.static_of(typ, "") for typ in sig.args)
    named = dict(zip(list(sig.pysig.parameters)[3:], rest))
    what = f"{named['what']} of {owner}" if named.get("what") else repr(owner)
    return compiler.allocate_shared(builder, nbytes, alignment, what, named.get("kind", "shared"))


def _type_32(a: Any, b: Any) -> Any:
    return signature(types.uint32, types.uint32, types.uint32)


compiler.instruction_function(
    add32, _type_32, lambda context, builder, sig, args: builder.add(*args)
)
compiler.instruction_function(
    sub32, _type_32, lambda context, builder, sig, args: builder.sub(*args)
)


def _type_quotient(number: Any, divisor: Any) -> Any:
    return signature(types.UniTuple(types.uint32, 2), types.uint32, types.uint32)


def _lower_quotient(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # Numba's own // tests for 0, and LLVM would make two of every loop around it.
    pair = [builder.udiv(*args), builder.urem(*args)]
    return context.make_tuple(builder, sig.return_type, pair)


compiler.instruction_function(quotient, _type_quotient, _lower_quotient)


def _lower_kept(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # ptxas does not recompute the operand of a shuffle.
    given = {"value": (types.uint32, args[0]), "lane": (types.uint32, ir.Constant(I32, 0))}
    return emit(TABLE["shfl_sync_idx_b32"], context, builder, given, in_place=True)


def _type_kept(address: Any) -> Any:
    return signature(types.uint32, types.uint32)


compiler.instruction_function(kept_in_register, _type_kept, _lower_kept)


def _lower_are_used(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return compiler.load_use_flag(builder)


compiler.instruction_function(tiles_are_used, lambda: signature(types.boolean), _lower_are_used)


def _type_require_cluster(owner: Any) -> Any:
    compiler.require_targets(compiler.static_of(owner, "owner").cluster_feature, TMA)
    return signature(types.void, owner)


def _lower_require_cluster(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    owner = compiler.static_of(sig.args[0], "owner")
    compiler.require_cluster(
        builder, owner.cluster, functools.partial(type(owner).cluster_rule, owner)
    )
    return context.get_dummy_value()


def _type_launch_bounds(threads: Any) -> Any:
    compiler.static_of(threads, "require_launch_bounds(threads=...)")
    return signature(types.void, threads)


def _lower_launch_bounds(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    compiler.require_launch_bounds(builder, (compiler.static_of(sig.args[0], "threads"), 1))
    return context.get_dummy_value()


compiler.instruction_function(allocate_shared, _type_allocate, _lower_allocate)
compiler.instruction_function(require_cluster, _type_require_cluster, _lower_require_cluster)
compiler.instruction_function(require_launch_bounds, _type_launch_bounds, _lower_launch_bounds)
