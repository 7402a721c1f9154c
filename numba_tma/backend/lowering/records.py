"""Records in shared tiles: their fields, and copies of whole records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    Conversion,
    ObjectType,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.hooks import Access, accessed
from numba_tma.backend.lowering.shared.tiles import (
    mark_used,
    record_of,
    record_pointer,
    record_type,
)
from numba_tma.device.records import SharedRecord, read_field, record_refusal, write_field
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.records import RecordField, field_of


def _field(record: ObjectType, name: types.Type) -> RecordField:
    try:
        return field_of(record.static[0].numpy, name.literal_value)
    except AttributeError as error:
        raise TypingError(str(error)) from None


def _kind(record: ObjectType, field: RecordField) -> types.Type:
    """Return the Numba type of a field."""
    if field.dtype.names:
        return record_type(as_dtype(field.dtype), field.aligned(record.static[1]))
    return compiler.from_dtype(field.dtype)


def _type_read(record: types.Type, name: types.Type) -> Any:
    return signature(_kind(record, _field(record, name)), record, name)


def _type_write(record: types.Type, name: types.Type, value: types.Type) -> Any:
    field = _field(record, name)
    if field.dtype.names:
        raise TypingError(record_refusal(f"{record.static[0]}.{name.literal_value}"))
    return signature(types.void, record, name, _kind(record, field))


def _pointer(
    context: Context, builder: Builder, sig: Signature, record: Value, access: Access
) -> tuple[Any, Any, int]:
    """Return the data model of a field, its shared pointer, and the pointer's alignment."""
    typ, name = sig.args[:2]
    field = _field(typ, name)
    model = context.data_model_manager[_kind(typ, field)]
    base = get_field(builder, typ, record, "_address")
    address = builder.add(base, ir.Constant(I32, field.offset))
    accessed(context, builder, access, address, field.dtype.itemsize)
    mark_used(builder, typ, record)
    pointer = builder.inttoptr(address, ir.PointerType(model.get_data_type(), 3))
    return model, pointer, min(field.natural, field.aligned(typ.static[1]))


def _lower_read(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    if isinstance(sig.return_type, ObjectType):
        offset = ir.Constant(I32, _field(*sig.args[:2]).offset)
        base, accesses = (
            get_field(builder, sig.args[0], args[0], name) for name in ("_address", "_accesses")
        )
        fields = [builder.add(base, offset), accesses]
        return compiler.make_object(context, builder, sig.return_type, fields)
    model, pointer, align = _pointer(context, builder, sig, args[0], "read")
    return model.load_from_data_pointer(builder, pointer, align)


def _lower_write(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    model, pointer, align = _pointer(context, builder, sig, args[0], "write")
    builder.store(model.as_data(builder, args[2]), pointer, align=align)
    return context.get_dummy_value()


compiler.instruction_function(read_field, _type_read, _lower_read)
compiler.instruction_function(write_field, _type_write, _lower_write)


# ------------------------------------------------------------- copies to other memory


def _converts(record: ObjectType, other: types.Type) -> Any:
    same = isinstance(other, types.Record) and record_of(other) == record.static[0].numpy
    return Conversion.safe if same else None


compiler.describe(SharedRecord).converts = _converts


@compiler.lowering_registry.lower_cast(ObjectType, types.Record)
def _cast_record(
    context: Context, builder: Builder, fromty: ObjectType, toty: types.Record, value: Value
) -> Any:
    address = get_field(builder, fromty, value, "_address")
    accessed(context, builder, "read", address, fromty.static[0].itemsize)
    mark_used(builder, fromty, value)
    shared = record_pointer(builder, fromty, value)
    generic = builder.addrspacecast(shared, ir.PointerType(ir.IntType(8)))
    return builder.bitcast(generic, context.get_value_type(toty))


compiler.LOWERED.add("numba_tma.device.records.SharedRecord")
