"""Ragged tensor maps: packed sequences of any length; copies are clipped at a sequence's end."""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from numba_tma.host.annotations import DeviceArray, DTypeLike, Integer
from numba_tma.host.array_interface import reading_of
from numba_tma.host.backend import in_kernels
from numba_tma.host.driver import current_device, encode_tiled
from numba_tma.host.encoding import (
    SIMULATED,
    Encoding,
    L2Promotion,
    MapOptions,
    OobFill,
    as_box,
    atom_violations,
    check_kinds,
    encode,
    memory_violations,
    option_dtype,
    say_broken,
)
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import MAX_RANK, Swizzle, Tile
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.values import is_whole

__all__ = ["RaggedTensorMap", "ragged_tensor_map"]

RaggedEncoding = Literal["wrap", "shift"]

# The extent of an axis clips copies at the sequence's end: row r of a sequence of length
# L has the coordinate extent - L + r there, so that rows from L on lie outside. An axis in
# front with the same stride adds the sequence's end, start + L. The sum is `extent` rows too large:
# "shift" subtracts them from the base address; "wrap" subtracts them by another axis, `extent`
# steps of WRAP - stride, in arithmetic modulo 2**64 (extent * WRAP is 2**66).
WRAP_EXTENT = 1 << 30
WRAP = 1 << 36
ADDED_AXES = {"wrap": 2, "shift": 1}

NO_SEQUENCE = (
    "a ragged map copies within one sequence: use y.sequence(start, length).load(...), "
    ".store(...), .reduce(...) or .prefetch_tile(...), whose coordinates count from the sequence's "
    "first row"
)
#: Methods of the map that start no copy.
OF_THE_MAP = ("prefetch", "fence_acquire")


def _needs_sequence(name: str) -> Callable[..., None]:
    """Return a method of a ragged map that raises."""

    def method(self: "RaggedTensorMap", *args: Any, **kwargs: Any) -> None:
        """Raise: a copy needs a sequence."""
        raise TypeError(f"RaggedTensorMap.{name}: {NO_SEQUENCE}")

    method.__name__ = name
    return method


@host_only
def ragged_tensor_map(
    array: DeviceArray,
    tile_or_box: Tile | Sequence[int],
    *,
    axis: int = 0,
    encoding: RaggedEncoding | None = None,
    swizzle: Swizzle | None = None,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    dtype: DTypeLike | None = None,
    overwrite_padding: bool = False,
) -> "RaggedTensorMap":
    """Describe an array in which sequences of different lengths are packed along an axis.

    A kernel copies through ``y.sequence(start, length)``: loads find `oob_fill` past the sequence's
    end, and stores write nothing there, wherever in a tile the sequence ends. The hardware clips;
    a copy costs as much as any tensor copy.

    Parameters
    ----------
    array
        2 to 4 axes in GPU memory, as for `tensor_map`. Arrays of 4 axes can only be stored to.
    tile_or_box
        As for `tensor_map`: a `Tile`, which may be larger than a box, or the shape of a box, with
        the rank of `array`.
    axis
        Axis along which the sequences are packed; not the innermost.
    encoding
        ``"wrap"`` loads and stores, and adds two axes to the tensor that the hardware sees.
        ``"shift"`` adds one and only stores. None takes ``"wrap"`` where the rank leaves room.
    swizzle, l2_promotion, oob_fill, dtype, overwrite_padding
        As for `tensor_map`.

    Raises
    ------
    ValueError
        With the rule that the arguments break, and the repair.
    """
    if type(tile_or_box) is not Tile and type(tile_or_box) is not tuple:
        tile_or_box = as_box(tile_or_box, "ragged_tensor_map")
    if not is_whole(axis) or not (encoding is None or isinstance(encoding, str)):
        raise TypeError(
            f"ragged_tensor_map: axis is {axis!r} and encoding is {encoding!r}; give an integer, "
            'and "wrap", "shift" or None'
        )
    view, array, owner = reading_of(array, "ragged_tensor_map: array")
    options = MapOptions(
        tile_or_box,
        swizzle,
        l2_promotion,
        oob_fill,
        element_strides=None,
        interleave=None,
        dtype=option_dtype("ragged_tensor_map", dtype),
        overwrite_padding=overwrite_padding,
        function="ragged_tensor_map",
    )
    check_kinds(options)
    plain = encode(SIMULATED, *view[:5], *options)
    if plain.dtype.is_packed:
        raise ValueError(
            f"ragged_tensor_map: dtype {plain.dtype} is not modelled here: use tensor_map, or a "
            "map of u8"
        )
    device = SIMULATED if simulated() else current_device()
    return RaggedTensorMap(array, owner, *_encode_ragged(device, plain, axis, encoding))


class RaggedTensorMap(TensorMap):
    """A map of packed sequences and the tile of one copy; see `ragged_tensor_map`.

    `shape`, `strides` and `address` are those of the array.
    """

    __slots__ = ("_axis", "_chosen", "_extent")

    def __init__(
        self,
        array: DeviceArray,
        owner: object,
        encoding: Encoding,
        axis: int,
        chosen: RaggedEncoding,
        extent: int,
    ) -> None:
        super().__init__(array, owner, encoding)
        self._axis, self._chosen, self._extent = axis, chosen, extent

    @property
    def axis(self) -> int:
        """Axis along which the sequences are packed."""
        return self._axis

    @property
    def encoding(self) -> RaggedEncoding:
        """Encoding by which the hardware clips sequences: ``"wrap"`` or ``"shift"``."""
        return self._chosen

    @property
    def extent(self) -> int:
        """Most rows of a sequence."""
        return self._extent

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties of the map that a kernel is compiled for."""
        return *super().kind, self.axis, self.encoding, self.extent

    def sequence(self, start: Integer, length: Integer) -> Any:
        """Return the sequence of `length` rows from row `start` on, to load from or store to.

        For kernels. It has `load`, `store`, `reduce` and `prefetch_tile` of a `TensorMap`, with
        the same arguments, as if it were the map of the sequence alone. The
        coordinate along the ragged axis counts from the sequence's first row and is not negative.
        The sequence lies in the array: past its last row nothing is copied at all. Nothing is
        executed here; a copy is one instruction for each box of the tile.
        """
        return in_kernels("sequence")(self, start, length)

    load = _needs_sequence("load")
    store = _needs_sequence("store")
    reduce = _needs_sequence("reduce")
    prefetch_tile = _needs_sequence("prefetch_tile")
    load_im2col = _needs_sequence("load_im2col")
    store_im2col = _needs_sequence("store_im2col")

    def replace_address(self, array: DeviceArray) -> "RaggedTensorMap":
        """Raise: the address of a ragged map is not always its array's."""
        raise TypeError(
            "RaggedTensorMap.replace_address: a ragged map is made anew; call "
            "ragged_tensor_map(array, tile), which is cached"
        )

    def explain(self) -> str:
        """Return the text of `TensorMap.explain`, and a section about sequences."""
        added = "2 axes added" if self.encoding == "wrap" else "1 axis added, stores only"
        return (
            f"{super().explain()}\nsequences\n"
            f"  axis {self.axis}     of up to {self.extent:,} rows; "
            f"encoding {self.encoding!r}, {added}"
        )

    def __repr__(self) -> str:
        return (
            f"RaggedTensorMap({self.dtype}, shape {self.shape}, strides {self.strides} B, "
            f"sequences along axis {self.axis}, tile {self.tile}, encoding {self.encoding!r})"
        )


@functools.lru_cache(maxsize=1024)
def _encode_ragged(
    device: int, plain: Encoding, axis: int, encoding: RaggedEncoding | None
) -> tuple[Encoding, int, RaggedEncoding, int]:
    """Return the encoding, its axis, the kind of encoding, and the extent of the ragged axis."""
    axis, chosen = _check(plain, axis, encoding)
    wrong = atom_violations(plain.tile.swizzle, device)
    if wrong := wrong + memory_violations(plain.address):
        raise ValueError(say_broken("ragged_tensor_map", wrong))
    extent, address, shape, strides = artificial_tensor(plain, axis, chosen)
    value = None
    if device != SIMULATED:
        shape, box = map(plain.copies.in_words, (shape, (1,) * ADDED_AXES[chosen] + plain.box))
        value = encode_tiled(
            *(plain.dtype.word, address, shape, strides, box, (1,) * len(shape), None),
            *(plain.tile.swizzle, plain.l2_promotion, plain.oob_fill),
        )
    return replace(plain, value=value, numba_type=None), axis, chosen, extent


def artificial_tensor(
    plain: Encoding, axis: int, encoding: RaggedEncoding
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Return the ragged axis's extent, and the address, shape and strides that are encoded."""
    rows, stride = plain.shape[axis], plain.strides[axis]
    # The extent is a constant of the kernel. A power of two keeps the number of compilations low.
    extent = WRAP_EXTENT if encoding == "wrap" else 1 << (rows - 1).bit_length()
    shape = (rows + 1, *plain.shape[:axis], extent, *plain.shape[axis + 1 :])
    strides = (stride, *plain.strides)
    if encoding == "wrap":
        return extent, plain.address, (extent + 1, *shape), (WRAP - stride, *strides)
    return extent, plain.address - extent * stride, shape, strides


def _check(
    plain: Encoding, axis: int, encoding: RaggedEncoding | None
) -> tuple[int, RaggedEncoding]:
    rank, asked = len(plain.shape), operator.index(axis)
    if not -rank <= asked < rank:
        raise ValueError(
            f"ragged_tensor_map: axis is {axis}; the array has the axes 0 to {rank - 1}"
        )
    axis = asked % rank
    if axis == rank - 1:
        repair = "array.reshape(-1, columns)" if rank == 1 else "array.transpose(...)"
        raise ValueError(
            f"ragged_tensor_map: axis {axis} is the innermost of the array, along which TMA copies "
            f"chunks of 16 B; sequences are packed along an outer one: pass {repair}"
        )
    if encoding not in (None, "wrap", "shift"):
        raise ValueError(
            f'ragged_tensor_map: encoding is {encoding!r}; it is "wrap", "shift" or None'
        )
    chosen: RaggedEncoding = encoding or ("wrap" if rank + 2 <= MAX_RANK else "shift")
    added = ADDED_AXES[chosen]
    if rank + added > MAX_RANK:
        other = "" if rank > 4 else 'encoding="shift", which only stores, or '
        raise ValueError(
            f"ragged_tensor_map: array has rank {rank} and encoding {chosen!r} adds {added}, but "
            f"TMA takes {MAX_RANK} axes: use {other}merge axes with array.reshape, or make one map "
            "per index of an axis"
        )
    rows, stride = plain.shape[axis], plain.strides[axis]
    if rows >= 1 << 31:
        raise ValueError(
            f"ragged_tensor_map: axis {axis} has {rows} rows; the end of a sequence is a "
            f"coordinate of 31 bits: make {-(-rows // ((1 << 31) - 1))} maps of parts of the array"
        )
    if chosen == "wrap" and stride >= WRAP:
        raise ValueError(
            f"ragged_tensor_map: axis {axis} stride is {stride} B; the wrap-around encoding needs "
            'less than 2**36: use encoding="shift", which only stores, or copy the array to '
            "contiguous memory"
        )
    if chosen == "shift":
        extent = 1 << (rows - 1).bit_length()
        if plain.address < extent * stride:
            raise ValueError(
                f"ragged_tensor_map: the array's address {plain.address:#x} is less than {extent} "
                f"rows of {stride} B, by which the shifted encoding moves it: make maps of parts "
                "of the array"
            )
    return axis, chosen
