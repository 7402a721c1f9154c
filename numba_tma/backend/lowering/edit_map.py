"""How kernels edit maps: the compiled half of `template`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Signature,
    TypingError,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.operands import OPERANDS
from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType
from numba_tma.device.edit_map import DESCRIPTOR, build_map, wrong_length, wrong_template
from numba_tma.ptx import TABLE

_SHARED = types.literal("shared::cta")
_ADDRESS, _DIM, _STRIDE = (
    TABLE[f"tensormap_replace_global_{field}"] for field in ("address", "dim", "stride")
)


def _left_out(typ: types.Type) -> bool:
    return typ is types.none or isinstance(typ, types.Omitted)


def _integers(name: str, given: types.Type, element: types.Type) -> types.Type:
    if _left_out(given):
        return given
    if isinstance(given, types.BaseTuple):
        if all(isinstance(types.unliteral(t), types.Integer) for t in given):
            return types.UniTuple(element, len(given))
    raise TypingError(f"edit_map({name}=...) takes a tuple of integers, not {given}")


def _type_build_map(
    scratch: types.Type,
    template: types.Type,
    destination: types.Type,
    address: types.Type,
    shape: types.Type,
    strides: types.Type,
) -> Any:
    for name, typ in (("destination", destination), ("template", template)):
        if not isinstance(typ, TensorMapType) or isinstance(typ, RaggedTensorMapType):
            raise TypingError(f"edit_map({name}=...) takes a TensorMap, not {typ}")
    if template.rank is None:
        raise TypingError(
            f"edit_map: nothing is known of {template}; pass a map of tensor_map(...)"
        )
    if wrong := wrong_template(destination, template):
        raise TypingError(wrong)
    OPERANDS["EditableTensorMap"].accept(destination, "edit_map(destination=...)")
    if getattr(scratch, "static", None) != (DESCRIPTOR,):
        raise TypingError(f"edit_map(scratch=...) takes a shared_tile(DESCRIPTOR), not {scratch}")
    shape = _integers("shape", shape, types.uint32)
    strides = _integers("strides", strides, types.uint64)
    lengths = (None if _left_out(t) else t for t in (shape, strides))
    if wrong := wrong_length(template.rank, *lengths):
        raise TypingError(wrong)
    if not _left_out(address):
        address = OPERANDS["GlobalAddress"].accept(address, "edit_map(address=...)")
    return signature(types.void, scratch, template, destination, address, shape, strides)


def _lower_build_map(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    scratch, template, _, address, shape, strides = zip(sig.args, args)
    where = compiler.get_field(builder, *scratch, "address")
    copied = builder.inttoptr(where, ir.PointerType(ir.ArrayType(I64, 16), 3))
    for i in range(16):
        at = [ir.Constant(I32, 0), ir.Constant(I32, i)]
        word = builder.load(builder.gep(template[1], at))
        builder.store(word, builder.gep(copied, at), align=8)
    inner = template[0].rank - 1
    common = {"tensor_map": scratch, "space": (_SHARED, None)}
    if not _left_out(address[0]):
        value = OPERANDS["GlobalAddress"].lower(context, builder, *address)[0]
        emit(_ADDRESS, context, builder, common | {"address": (types.uint64, value)})
    if not _left_out(shape[0]):
        for axis in range(inner + 1):
            value = types.uint32, builder.extract_value(shape[1], axis)
            ordinal = types.literal(inner - axis), None
            emit(_DIM, context, builder, common | {"ordinal": ordinal, "extent": value})
    if not _left_out(strides[0]):
        for axis in range(inner):
            value = types.uint64, builder.extract_value(strides[1], axis)
            ordinal = types.literal(inner - 1 - axis), None
            emit(_STRIDE, context, builder, common | {"ordinal": ordinal, "stride": value})
    return context.get_dummy_value()


compiler.instruction_function(build_map, _type_build_map, _lower_build_map)
