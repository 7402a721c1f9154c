"""The Numba types of what a kernel can take: tensor maps, tiles, and their compile-time facts."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typeconv import Conversion

from numba_tma import _compiler as compiler
from numba_tma._compiler import TypingError
from numba_tma.layout import Tile
from numba_tma.tensor_map import TensorMap, wrong_mode


class TensorMapType(types.CPointer):
    """The Numba type of a `TensorMap`: rank, the tile that one copy moves, interleave, mode.

    `TensorMapType(rank)` without a tile is the generic form: a device function with that in its
    signature takes any map of the rank. cuda.core's own `TensorMapDescriptor`, of which only the
    128 bytes are known, is `TensorMapType()`.
    """

    def __init__(
        self,
        rank: int | None = None,
        tile: Tile | None = None,
        interleave: int | None = None,
        partial_rows: str = "",
        mode: str = "tiled",
    ) -> None:
        super().__init__(types.uint8)
        self.rank, self.tile, self.interleave = rank, tile, interleave
        self.partial_rows, self.mode = partial_rows, mode
        known = [f"{rank}d"] if tile is None and rank else [str(tile)] if tile else []
        known = [f"{mode} {rank}d", *known] if mode != "tiled" else known
        known += [f"interleave={interleave}"] if interleave else []
        why = "rows of partial chunks" if mode == "tiled" else "loads only"
        known += [why] if partial_rows else []
        self.name = f"TensorMap({', '.join(known)})"

    @property
    def key(self) -> tuple[int | None, Tile | None, int | None, bool, str]:
        """What tells two of these types apart."""
        return self.rank, self.tile, self.interleave, bool(self.partial_rows), self.mode

    @property
    def mangling_args(self) -> tuple[str, tuple[Any, ...]]:
        """What numba-cuda builds the names of compiled functions from."""
        return "TensorMap", (self.name,)

    def can_convert_to(self, context: Any, other: types.Type) -> Conversion | None:
        """Convert to a type that knows less of the same map."""
        if isinstance(other, TensorMapType) and other.tile is None:
            if other.rank in (None, self.rank):
                return Conversion.safe
        return None


@compiler.register_model(TensorMapType)
class _TensorMapModel(compiler.core_models.PrimitiveModel):
    """A pointer to the 128 bytes, which live in ``__grid_constant__`` parameter space."""

    def __init__(self, manager: Any, numba_type: types.Type) -> None:
        super().__init__(manager, numba_type, ir.ArrayType(compiler.I64, 16).as_pointer())

    def from_argument(self, builder: Any, value: Any) -> Any:
        compiler.require_architecture("a TensorMap argument", 90)
        return compiler.grid_constant(value)


def type_of(tensor_map: TensorMap) -> TensorMapType:
    """Return the Numba type of a map."""
    if tensor_map.numba_type is None:
        tensor_map.numba_type = TensorMapType(
            tensor_map.rank,
            tensor_map.tile,
            tensor_map.interleave,
            tensor_map.partial_rows,
            tensor_map.mode,
        )
    return tensor_map.numba_type


compiler.typeof_impl.register(TensorMap)(lambda value, context: type_of(value))


def _accept_descriptors() -> None:
    """Accept cuda.core's own `TensorMapDescriptor` as a kernel argument."""
    from cuda.core._tensor_map import TensorMapDescriptor

    compiler.typeof_impl.register(TensorMapDescriptor)(lambda value, context: TensorMapType())


_accept_descriptors()

# numba-cuda hands the driver whatever a launch passes for a pointer; a TensorMapDescriptor there
# is passed by value, all 128 bytes.
compiler.ARGUMENTS[TensorMapType] = lambda argument: getattr(argument, "value", argument)


@compiler.lowering_registry.lower_cast(TensorMapType, TensorMapType)
def _cast_map(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return value


#: The methods that kernels can call on a map, by name.
METHODS: dict[str, compiler.NativeMethod] = {}


@compiler.typing_registry.register_attr
class _TensorMapAttributes(compiler.AttributeTemplate):
    key = TensorMapType

    def generic_resolve(self, typ: TensorMapType, attr: str) -> types.Type | None:
        return METHODS[attr].bind(self.context, typ) if attr in METHODS else None


def check_copy(
    what: str,
    tensor_map: types.Type,
    tile: Tile | None,
    coordinates: types.Type,
    mode: str = "tiled",
) -> None:
    """Raise a TypingError when a tile, a map and literal coordinates cannot go together."""
    rank, box = tensor_map.rank, tensor_map.tile
    if box is not None and tensor_map.mode != mode:
        raise TypingError(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    if rank is not None and rank != len(coordinates):
        raise TypingError(
            f"{what}: {len(coordinates)} coordinates for {tensor_map}, which has rank {rank}; give "
            "one coordinate per axis, in the array's axis order"
        )
    if box is not None and tile is not None and box != tile:
        raise TypingError(
            f"{what}: the map copies {box} but the tile in shared memory is {tile}; make the map "
            f"with {'tensor' if mode == 'tiled' else mode}_map(array, {tile}) or the tile from the "
            "map's box"
        )
    if box is None:
        return
    inner = types.literal(0) if not len(coordinates) else coordinates[len(coordinates) - 1]
    if isinstance(inner, types.IntegerLiteral) and inner.literal_value * box.itemsize % 16:
        step = 16 // box.itemsize
        raise TypingError(
            f"{what}: the innermost coordinate is {inner.literal_value}, which is "
            f"{inner.literal_value * box.itemsize} B into the row; TMA needs a multiple of 16 B "
            f"(on the GPU this is an illegal instruction): use a multiple of {step} elements"
        )


def check_store(what: str, tensor_map: types.Type, coordinates: types.Type) -> None:
    """Raise a TypingError when a store through a map would trap, or spoil what lies beside."""
    if tensor_map.partial_rows:
        raise TypingError(f"{what}: {tensor_map.partial_rows}")
    for axis, coordinate in enumerate(coordinates):
        if isinstance(coordinate, types.IntegerLiteral) and coordinate.literal_value < 0:
            raise TypingError(
                f"{what}: the coordinate of axis {axis} is {coordinate.literal_value}; a store "
                "starts inside or past the tensor, never before it (on the GPU this is an illegal "
                "instruction): move the tile to 0 and store less of it"
            )
