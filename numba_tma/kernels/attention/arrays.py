"""The arrays of attention: what its kernels take, views of it, and errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from numba_tma.host.annotations import DeviceArray, DTypeLike
from numba_tma.host.array_interface import contiguous_strides
from numba_tma.host.arrays import Array
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import TensorMap, tensor_map
from numba_tma.host.values import POSITIVE, checked
from numba_tma.kernels.attention.choice import FP8_HEAD_DIMS, HEAD_DIMS
from numba_tma.kernels.attention.plan import DTYPES, E4M3

if TYPE_CHECKING:
    from numba_tma.host.ragged import RaggedTensorMap

AXES = ("batch", "sequence", "heads", "head_dim")


def read_heads(
    function: str,
    name: str,
    array: DeviceArray,
    dtype: DTypeLike | None = None,
    packed: bool = False,
) -> Array:
    """Read an argument (batch, sequence, heads, head_dim).

    Packed sequences (rows, heads, head_dim) become a batch of one.

    Raises
    ------
    ValueError
        If the array has another number of axes.
    """
    found = Array.read(function, name, array, dtype)
    axes = ("rows", *AXES[2:]) if packed else AXES
    if len(found.shape) != len(axes):
        raise found.error(
            f"has shape {found.shape} of {found.dtype}; it takes ({', '.join(axes)}) of "
            f"{' or '.join(DTYPES)}"
        )
    if packed:
        batch_stride = found.strides[0] * found.shape[0]
        found = replace(found, shape=(1, *found.shape), strides=(batch_stride, *found.strides))
    return found


# ------------------------------------------------------------------------- maps and views


def _for_maps(array: Array) -> Array:
    """Return the array with legal strides along axes of one element, where any stride is right."""
    plain = contiguous_strides(array.shape, array.itemsize)
    strides = (s if n > 1 else p for n, s, p in zip(array.shape, array.strides, plain))
    return replace(array, strides=tuple(strides))


def map_of(array: Array, tile: Tile) -> TensorMap:
    """Return the tensor map that copies `tile`, all its columns at once."""
    return tensor_map(_for_maps(array).as_dtype(tile.dtype), tile, fold=True)


def ragged_map_of(array: Array, tile: Tile) -> RaggedTensorMap:
    """Return the map of packed sequences that copies `tile`, some columns of a row of a head."""
    from numba_tma.host.ragged import ragged_tensor_map  # which packed sequences alone need

    rows = _for_maps(array)
    return ragged_tensor_map(rows.view(rows.shape[1:], rows.strides[1:]), tile)


def last_positions(array: Array, positions: int) -> Array:
    """Return the last `positions` of each sequence."""
    batch, length, heads, head_dim = array.shape
    offset = (length - positions) * array.strides[1]
    return array.view((batch, positions, heads, head_dim), array.strides, offset=offset)


def heads_as_queries(array: Array, group: int) -> Array:
    """Return an array of one position with each `group` of heads as the positions of one head.

    Heads that share K and V so become the queries of one head.
    """
    batch, _, heads, head_dim = array.shape
    each, step, _, element = array.strides[0], array.strides[2], None, array.strides[3]
    return array.view((batch, group, heads // group, head_dim), (each, step, step * group, element))


# --------------------------------------------------------------------------------- checks


def scale_of(function: str, scale: float | None, head_dim: int) -> float:
    """Return the scale of the scores, by default 1 / sqrt(head dim), or raise a ValueError."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    return float(checked(function, "scale", scale, POSITIVE, "negate q for a negative one"))


def is_plain(array: Array, shape: tuple[int, ...], dtype: str) -> bool:
    """Return whether an array has this shape and type, is contiguous and aligned."""
    aligned = array.address % array.itemsize == 0
    return (array.shape, array.dtype.name) == (shape, dtype) and array.is_contiguous and aligned


def shown(array: Array) -> str:
    """Return what errors say of an array that is not `is_plain`."""
    strides = f" and strides {array.strides} B" * (not array.is_contiguous)
    return f"has shape {array.shape} of {array.dtype}{strides}"


def read_lse(q: Array, array: DeviceArray, packed: bool = False) -> Array:
    """Return lse, the logarithms of the row sums of these queries, or raise a ValueError."""
    if array is None:
        raise ValueError(
            f"{q.function}(): lse is None; it takes the second result of the forward pass, which "
            "has it with return_lse=True"
        )
    lse, (batch, queries, heads, _) = Array.read(q.function, "lse", array), q.shape
    axes = ("heads", "rows") if packed else ("batch", "heads", "queries")
    expected = (heads, queries) if packed else (batch, heads, queries)
    if not is_plain(lse, expected, "f32"):
        raise lse.error(
            f"{shown(lse)}, but q has shape {q.shape[packed:]}; lse takes ({', '.join(axes)}) "
            f"= {expected} of f32, contiguous, as it is returned with return_lse=True"
        )
    return lse


def read_head_scales(of: Array, array: DeviceArray) -> Array:
    """Return the scales of an array's heads, (batch * heads), or raise a ValueError."""
    scales, expected = (
        Array.read(of.function, f"{of.name}_scale", array),
        (of.shape[0], of.shape[2]),
    )
    if not is_plain(scales, expected, "f32"):
        raise scales.error(
            f"{shown(scales)}, but {of.name} has shape {of.shape}; {scales.name} takes "
            f"(batch, heads) = {expected} of f32, contiguous, or None where nothing is to be "
            "multiplied"
        )
    return scales.view((scales.size,))


def read_starts(function: str, name: str, array: DeviceArray) -> Array:
    """Return where packed sequences begin, int32 (sequences + 1), or raise a ValueError."""
    starts = Array.read(function, name, array)
    if len(starts.shape) != 1 or not starts.shape[0] or not is_plain(starts, starts.shape, "i32"):
        raise starts.error(
            f"{shown(starts)}; it takes (sequences + 1,) of i32, contiguous, as of cumsum: where "
            "each sequence begins, and the last one ends"
        )
    return starts


def check(
    q: Array, k: Array, v: Array, out: Array, *, fp8: bool = False, packed: bool = False
) -> None:
    """Raise a ValueError unless the arrays fit each other and TMA.

    `fp8` is whether the function takes e4m3 as well, `packed` whether sequences are packed.
    """
    is_fp8 = fp8 and q.dtype is E4M3
    head_dims = FP8_HEAD_DIMS if is_fp8 else HEAD_DIMS
    if not (is_fp8 or q.dtype.name in DTYPES) or q.shape[3] not in head_dims:
        also = f", and e4m3 with {' or '.join(map(str, FP8_HEAD_DIMS))}" if fp8 else ""
        raise q.error(
            f"has shape {q.shape[packed:]} of {q.dtype}; it takes {' and '.join(DTYPES)} "
            f"with a head dim of {', '.join(map(str, HEAD_DIMS))}{also}"
        )
    batch, _, heads, head_dim = q.shape
    fits = k.shape[0] == batch and k.shape[3] == head_dim
    if not fits or 0 in k.shape[1:3] or heads % k.shape[2]:
        raise k.error(
            f"has shape {k.shape[packed:]}, but q {q.shape[packed:]}; k takes the same batch and "
            "head dim, at least one key, and a number of heads that divides that of q"
        )
    for array, like in ((v, k), (out, q)):
        if array.shape != like.shape:
            raise array.error(
                f"has shape {array.shape[packed:]}, but {like.name} has {like.shape[packed:]}; "
                "they must agree"
            )
    for array in (q, k, v, out):
        if is_fp8 and array is out:
            if out.dtype.name not in DTYPES:
                raise out.error(
                    f"is {out.dtype}; the result of e4m3 is {' or '.join(DTYPES)}: say which of "
                    "them its bits are by out_dtype"
                )
        elif array.dtype is not q.dtype:
            raise array.error(f"is {array.dtype}, but q is {q.dtype}; they must agree: convert one")
        steps = [s for n, s in zip(array.shape, array.strides) if n > 1]
        contiguous = array.strides[3] == array.itemsize and not array.is_reversed
        if not contiguous or any(s % 16 for s in (array.address, *steps[:-1])):
            raise array.error(
                f"lies at {array.address:#x} with strides {array.strides} B; no axis is reversed, "
                "the head dim is contiguous, and the address and the other strides are multiples "
                "of 16 B: pass a contiguous copy"
            )
