"""The Numba types of tensor maps, of arrays of maps, and of tiles."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numba_tma.device.copies  # noqa: F401  # a kernel that takes a map can call its methods
import numba_tma.device.shared  # noqa: F401  # tiles are constants of kernels
from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    Builder,
    Context,
    Conversion,
    Signature,
    TypingError,
    Value,
    ir,
    types,
)
from numba_tma.host.architectures import TMA
from numba_tma.host.backend import typed_by
from numba_tma.host.boxes import Copies, copies_of
from numba_tma.host.host_only import array_refusal, attribute_refusal, is_of_maps
from numba_tma.host.layout import Tile
from numba_tma.host.ragged import (
    NO_SEQUENCE,
    OF_THE_MAP,
    RaggedTensorMap,
)
from numba_tma.host.tensor_map import TensorMap, describe_kind, kind_of
from numba_tma.host.tensor_map_array import TensorMapArray


class TensorMapType(types.CPointer):
    """The Numba type of a `TensorMap`: its rank, its tile and the tile's copies, interleave, mode.

    A map in a `TensorMapArray` is `editable`: it is in global memory, whereas a kernel argument is
    not. `TensorMapType(rank)` without a tile is the generic form: a device function with it in the
    signature takes any map of the rank. cuda.core's own `TensorMapDescriptor`, whose 128 bytes are
    opaque, is `TensorMapType()`.
    """

    #: The attributes that compile-time functions see, beside the class.
    facts: tuple[str, ...] = ("rank", "tile", "interleave", "partial_rows", "copies", "mode")
    host_class: type = TensorMap

    def __init__(
        self,
        rank: int | None = None,
        tile: Tile | None = None,
        interleave: int | None = None,
        partial_rows: str = "",
        copies: Copies | None = None,
        mode: str = "tiled",
        editable: bool = False,
    ) -> None:
        super().__init__(types.uint8)
        self.editable = editable
        self.rank, self.tile, self.interleave = rank, tile, interleave
        self.partial_rows, self.mode = partial_rows, mode
        self.copies = copies_of(tile) if copies is None and tile and mode == "tiled" else copies
        if interleave and self.copies is not None:
            self.copies = replace(self.copies, interleaved=True)
        self.name = f"TensorMap({describe_kind(self)}{', in an array' if editable else ''})"

    @property
    def kind(self) -> tuple[Any, ...]:
        """The kind of the maps; see `TensorMap.kind`."""
        return kind_of(self)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells two of these types apart."""
        return *self.kind, self.editable

    @property
    def mangling_args(self) -> tuple[str, tuple[Any, ...]]:
        """What numba-cuda builds the names of compiled functions from."""
        return "TensorMap", (self.name,)

    def can_convert_to(self, context: Context, other: types.Type) -> Conversion | None:
        """Convert to a more generic type of the same map."""
        if not isinstance(other, TensorMapType) or other.editable:
            return None
        if other.tile is None and self._copies_once and other.rank in (None, self.rank):
            return Conversion.safe
        return Conversion.safe if self.editable and other.kind == self.kind else None

    @property
    def _copies_once(self) -> bool:
        """Whether the rank is enough to copy correctly: by one tiled copy, unfolded."""
        one = self.copies is None or self.copies.is_one_box
        return self.mode == "tiled" and one and not self.interleave

    @property
    def in_array(self) -> TensorMapType:
        """The type of such a map in a `TensorMapArray`, where kernels can edit it."""
        return TensorMapType(
            *(self.rank, self.tile, self.interleave, self.partial_rows, self.copies, self.mode),
            editable=True,
        )


class RaggedTensorMapType(TensorMapType):
    """The Numba type of a `RaggedTensorMap`, with how its copies are clipped."""

    facts = (*TensorMapType.facts, "axis", "encoding", "extent")
    host_class = RaggedTensorMap

    def __init__(
        self, rank: int, tile: Tile, axis: int, encoding: str, extent: int, partial_rows: str = ""
    ) -> None:
        super().__init__(rank, tile, None, partial_rows)
        self.axis, self.encoding, self.extent = axis, encoding, extent
        self.name = f"RaggedTensorMap({describe_kind(self)})"

    @property
    def kind(self) -> tuple[Any, ...]:
        """The kind of the maps; see `RaggedTensorMap.kind`."""
        return *super().kind, self.axis, self.encoding, self.extent

    @property
    def mangling_args(self) -> tuple[str, tuple[Any, ...]]:
        """What numba-cuda builds the names of compiled functions from."""
        return "RaggedTensorMap", (self.name,)

    def can_convert_to(self, context: Context, other: types.Type) -> Conversion | None:
        """Return None: there is no conversion, since without its sequences the tensor differs."""
        return None

    @property
    def in_array(self) -> TensorMapType:
        """The same type: no kernel edits a ragged map."""
        return self


@compiler.register_model(RaggedTensorMapType)
@compiler.register_model(TensorMapType)
class _TensorMapModel(compiler.core_models.PrimitiveModel):
    """A pointer to the 128 bytes of a map, in ``__grid_constant__`` parameter space."""

    def __init__(self, manager: Any, numba_type: types.Type) -> None:
        super().__init__(manager, numba_type, ir.ArrayType(compiler.I64, 16).as_pointer())

    def from_argument(self, builder: Builder, value: Value) -> Any:
        compiler.require_targets("a TensorMap argument", TMA)
        return compiler.grid_constant(value)


def type_of(argument: TensorMap | TensorMapArray | Tile) -> Any:
    """Return the Numba type of a map, of an array of maps, or of a tile."""
    if isinstance(argument, TensorMapArray):
        if argument.numba_type is None:  # a launch asks for it each time
            argument.numba_type = TensorMapArrayType(_type_of_map(argument.maps[0]))
        return argument.numba_type
    if isinstance(argument, Tile):  # in a kernel that is the first to use the library
        return compiler.ObjectType(Tile, (argument,))
    return _type_of_map(argument)


def _type_of_map(tensor_map: TensorMap) -> TensorMapType:
    if tensor_map.numba_type is None and isinstance(tensor_map, RaggedTensorMap):
        tensor_map.numba_type = RaggedTensorMapType(
            *(tensor_map.rank, tensor_map.tile, tensor_map.axis, tensor_map.encoding),
            *(tensor_map.extent, tensor_map.partial_rows),
        )
    elif tensor_map.numba_type is None:
        tensor_map.numba_type = TensorMapType(
            *(tensor_map.rank, tensor_map.tile, tensor_map.interleave, tensor_map.partial_rows),
            copies=tensor_map.copies if tensor_map.mode == "tiled" else None,
            mode=tensor_map.mode,
        )
    return tensor_map.numba_type


typed_by(type_of)


def _accept_descriptors() -> None:
    """Accept cuda.core's own `TensorMapDescriptor` as a kernel argument."""
    from cuda.core._tensor_map import TensorMapDescriptor

    compiler.typeof_impl.register(TensorMapDescriptor)(lambda value, context: TensorMapType())


_accept_descriptors()

# numba-cuda passes a pointer argument to the driver unchanged. The driver takes the 128 bytes of a
# TensorMapDescriptor in its place by value.
compiler.ARGUMENTS[TensorMapType] = lambda argument: getattr(argument, "value", argument)
compiler.ARGUMENTS[RaggedTensorMapType] = compiler.ARGUMENTS[TensorMapType]


@compiler.lowering_registry.lower_cast(TensorMapType, TensorMapType)
def _cast_map(context: Context, builder: Builder, fromty: Any, toty: Any, value: Value) -> Any:
    return value


# ------------------------------------------------------------------- arrays of maps


class TensorMapArrayType(types.Type):
    """The Numba type of a `TensorMapArray`, which has the type of its maps."""

    host_class = TensorMapArray

    def __init__(self, element: TensorMapType) -> None:
        self.element = element
        super().__init__(f"TensorMapArray({element.name})")

    @property
    def key(self) -> Any:
        """What tells two of these types apart."""
        return self.element.kind


@compiler.register_model(TensorMapArrayType)
class _TensorMapArrayModel(compiler.core_models.PrimitiveModel):
    """A pointer to the first map, in global memory."""

    def __init__(self, manager: Any, numba_type: types.Type) -> None:
        super().__init__(manager, numba_type, ir.ArrayType(compiler.I64, 16).as_pointer())


compiler.ARGUMENTS[TensorMapArrayType] = lambda argument: argument.address


@compiler.typing_registry.register_global(operator.getitem)
class _GetMap(compiler.AbstractTemplate):
    key = operator.getitem

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if not isinstance(args[0], TensorMapArrayType):
            return None
        if not isinstance(types.unliteral(args[1]), types.Integer):
            raise TypingError(f"a TensorMapArray is indexed with an integer, not {args[1]}")
        return compiler.signature(args[0].element.in_array, args[0], types.int64)


@compiler.lowering_registry.lower(operator.getitem, TensorMapArrayType, types.Integer)
def _lower_get_map(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    return builder.gep(args[0], [args[1]])


@compiler.typing_registry.register_attr
class _ArrayAttributes(compiler.AttributeTemplate):
    key = types.Array

    def generic_resolve(self, typ: types.Array, attr: str) -> types.Type | None:
        if is_of_maps(attr) and not isinstance(typ.dtype, types.Record):
            raise TypingError(array_refusal(attr))
        return None


#: The methods that kernels can call on a map, by name: the lowerings of `numba_tma.device.copies`.
METHODS: dict[str, compiler.NativeMethod] = {}
#: The methods that kernels can call on a ragged map, beside those `OF_THE_MAP`.
RAGGED_METHODS: dict[str, compiler.NativeMethod] = {}


@compiler.typing_registry.register_attr
class _TensorMapAttributes(compiler.AttributeTemplate):
    key = TensorMapType

    def generic_resolve(self, typ: TensorMapType, attr: str) -> types.Type | None:
        if isinstance(typ, RaggedTensorMapType):
            if attr in RAGGED_METHODS:
                return RAGGED_METHODS[attr].bind(self.context, typ)
            if attr in METHODS and attr not in OF_THE_MAP:
                raise TypingError(f"RaggedTensorMap.{attr}: {NO_SEQUENCE}")
        if attr in TensorMap._of_the_type:
            return _constant_of(typ, attr)[0]
        if attr not in METHODS and not attr.startswith("_") and hasattr(typ.host_class, attr):
            raise TypingError(attribute_refusal(typ.host_class, attr))
        return METHODS[attr].bind(self.context, typ) if attr in METHODS else None


def _constant_of(typ: TensorMapType, name: str) -> tuple[types.Type, Any]:
    """Return the Numba type and the value of a property that the maps' type has, or raise."""
    value = TensorMap._of_the_type[name](typ)
    if value is None:
        raise TypingError(
            f"{typ.host_class.__name__}.{name}: nothing is known of it for {typ}, which stands for "
            "any map: leave the signature of the device function out"
        )
    return compiler.constant_type(value), value


def _lower_constant_of(name: str) -> None:
    @compiler.lowering_registry.lower_getattr(TensorMapType, name)
    def lower(context: Context, builder: Builder, typ: TensorMapType, value: Value) -> Any:
        return compiler.constant_value(context, builder, *_constant_of(typ, name))


for _name in TensorMap._of_the_type:
    _lower_constant_of(_name)
