"""Tensor maps that a kernel edits: their 128 bytes, and which threads have acquired an edit.

The simulator's 128 bytes have a layout of its own. To a kernel they are opaque, as on a GPU, and
instructions replace their fields. Addresses are the host's.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from numba_tma.host.boxes import copies_of
from numba_tma.host.driver import NBYTES
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.simulator import thread_instructions
from numba_tma.simulator.errors import BadOperand, MissingFence
from numba_tma.simulator.map_uses import uses_of
from numba_tma.simulator.thread import current

if TYPE_CHECKING:
    from numba_tma.host.tensor_map import TensorMap


#: A map's bytes. Axes are counted from the innermost; `origin` numbers the map's original.
_RECORD = np.dtype(
    {
        "names": ["origin", "global_address", "global_stride", "global_dim", "element_stride"]
        + ["box_dim", "rank", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode"],
        "formats": ["u4", "u8", "(4,)u8", "(5,)u4", "(5,)u1", "(5,)u2", *["u1"] * 5],
        "itemsize": NBYTES,
    },
    align=True,
)

_ELEMENT_TYPES = (
    *("u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32"),
    *("tf32_ftz", "e2m1", "e2m1_unpacked", "e2m3"),  # e3m2 has the code of e2m3
)
_CODES = {as_dtype(name).tensor_map: code for code, name in enumerate(_ELEMENT_TYPES)}

#: The original maps of descriptors, kept alive by the launch, for the fields that the bytes lack.
#: No map has the number 0, or a number that unwritten memory holds.
_origins: WeakValueDictionary[int, TensorMap] = WeakValueDictionary()
_numbers = itertools.count(1)


def to_bytes(tensor_map: TensorMap) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the 128 bytes of a map."""
    if tensor_map.mode != "tiled":
        raise BadOperand(
            f"{tensor_map} is not tiled, and tensormap.replace knows the fields of tiled maps "
            "alone: use a map of tensor_map, or make the maps on the host"
        )
    record = np.zeros((), _RECORD)
    rank = tensor_map.rank
    record["origin"] = number = next(_numbers)
    _origins[number] = tensor_map
    record["global_address"] = tensor_map.address
    record["global_stride"][: rank - 1] = tensor_map.strides[-2::-1]
    for field, values in (
        ("global_dim", tensor_map.shape),
        ("element_stride", tensor_map.element_strides),
        ("box_dim", tensor_map.box),
    ):
        record[field][:rank] = values[::-1]
    record["rank"] = rank - 1
    record["elemtype"] = _CODES[tensor_map.dtype.tensor_map]
    record["swizzle_mode"] = int(tensor_map.swizzle)
    record["fill_mode"] = int(tensor_map.oob_fill == "nan")
    return record.reshape(1).view(np.uint8)


def from_bytes(image: np.ndarray[Any, np.dtype[np.uint8]], target: TensorMap) -> None:
    """Make `target` the map that the 128 bytes describe."""
    record = image.view(_RECORD)[0]
    origin = _origins.get(int(record["origin"]))
    if origin is None:
        raise BadOperand(
            "tensormap_cp_fenceproxy: the source is no tensor map; copy a template there first"
        )
    if record["interleave_layout"]:
        raise NotImplementedError("an interleaved map is not simulated; use a GPU")
    rank = int(record["rank"]) + 1
    dtype = _dtype(int(record["elemtype"]), origin.dtype)
    shape, box, steps = (
        tuple(int(n) for n in record[field][:rank][::-1])
        for field in ("global_dim", "box_dim", "element_stride")
    )
    strides = tuple(int(n) for n in record["global_stride"][: rank - 1][::-1])
    strides, unit = (*strides, dtype.storage.itemsize), 32 if dtype.is_unpacked else 16
    for name, number in (("address", int(record["global_address"])), *enumerate(strides[:-1])):
        if number % unit or number >= 1 << 40 and name != "address":
            text = name if name == "address" else f"stride of axis {name}"
            raise BadOperand(
                f"the edited map's {text} is {number}; it must be a multiple of {unit} B, and a "
                "stride less than 2**40"
            )
    address, swizzle = int(record["global_address"]), Swizzle(int(record["swizzle_mode"]))
    tile, copies = origin.tile, origin.copies
    original = origin.box, origin.element_strides, origin.dtype, origin.swizzle
    if (box, steps, dtype, swizzle) != original:
        lands = tuple(-(-extent // step) for extent, step in zip(box, steps))
        copies = copies_of(Tile(lands, dtype, swizzle))
        tile = copies.tile
    encoding = dataclasses.replace(
        origin._encoding,
        address=address,
        shape=shape,
        strides=strides,
        dtype=dtype,
        box=box,
        tile=tile,
        copies=copies,
        oob_fill="nan" if record["fill_mode"] else "zeros",
        element_strides=steps,
    )
    target._encoding = encoding
    target.array = _array_at(address, shape, strides, dtype)


def _dtype(code: int, original: DType) -> DType:
    if code == _CODES[original.tensor_map]:
        return original  # perhaps one of several maps with the same bytes
    return as_dtype(_ELEMENT_TYPES[code])


def _array_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType
) -> np.ndarray[Any, Any]:
    """Return the live array that begins at a host address."""
    shape = dtype.storage_shape(shape)
    nbytes = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.storage.itemsize
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.ndarray(shape, dtype.storage, memoryview(memory), 0, strides)


def copy_template(destination: int, template: TensorMap) -> None:
    """Write the 128 bytes of `template` to shared memory, as one thread's generic writes."""
    check_acquired("copy_template", template)
    thread_instructions.shared_write(destination, to_bytes(template))


def tensormap_replace(
    operand: Any, space: str, field: str, value: int, ordinal: int | None = None
) -> None:
    """Replace one field of a map in shared or global memory, or of its axes the `ordinal`-th."""
    what = f"tensormap_replace_{field}"
    limit = np.iinfo(_RECORD[field].base).max
    if not 0 <= int(value) <= limit:
        raise BadOperand(f"{what}: {value} is not in 0 to {limit}")
    if space == "global":
        target = _slot(what, operand)
        image = to_bytes(target)
    else:
        shared = _shared_address(what, operand)
        image = thread_instructions.shared_read(shared, np.dtype(np.uint8), NBYTES)
    record = image.view(_RECORD)[0]
    if ordinal is None:
        record[field] = int(value)
    else:
        record[field][int(ordinal)] = int(value)
    if space == "global":
        _edit(what, target, image, in_place=True)
        current().cta.scheduler.wrote()
    else:
        thread_instructions.shared_write(shared, image)


def _edit(what: str, target: TensorMap, image: np.ndarray[Any, Any], *, in_place: bool) -> None:
    if uses := uses_of(current(), target):
        uses.edit(current(), what, in_place=in_place)
    from_bytes(image, target)
    target.edits += 1


def tensormap_cp_fenceproxy(destination: Any, source: int) -> None:
    """Copy the map at shared `source` over one in global memory; by a warp."""
    what, thread = "tensormap_cp_fenceproxy", current()
    target = _slot(what, destination)
    if int(source) % NBYTES:
        raise BadOperand(f"{what}: source is shared address {source}, not a multiple of {NBYTES}")
    lanes = thread.cta.live_lanes[thread.warp]
    meeting = thread.cta.warp_meeting(thread, what, lanes, None, orders_memory=True)
    if thread.lane == min(meeting):
        image = thread_instructions.shared_read(source, np.dtype(np.uint8), NBYTES)
        _edit(what, target, image, in_place=False)
    thread.cta.warp_meeting(thread, what, lanes, None, orders_memory=True)


def fence_proxy_tensormap_acquire(tensor_map: Any) -> None:
    """Let this thread's copies use the newest contents of a map."""
    thread = current()
    if uses := uses_of(thread, tensor_map):
        uses.check_acquire(thread)
    thread.acquired[id(tensor_map)] = getattr(tensor_map, "edits", 0)
    thread.cta.scheduler.point()


def fence_proxy_tensormap_release() -> None:
    """Publish this thread's edits in place."""
    for uses in current().cta.cluster[0].map_uses.values():
        uses.release(current())
    current().cta.scheduler.point()


def check_acquired(what: str, tensor_map: Any) -> None:
    """Raise if the map was edited since this thread has acquired it."""
    edits = getattr(tensor_map, "edits", 0)
    if edits and current().acquired.get(id(tensor_map)) != edits:
        raise MissingFence(
            f"{what}: a kernel has edited this map, and the thread has not acquired it since: the "
            "copy may use the old one. Synchronise with the editor, then call fence_acquire() on "
            "the map in each thread that issues copies through it"
        )


def _slot(what: str, operand: Any) -> Any:
    if not hasattr(operand, "edits"):
        raise BadOperand(
            f"{what}: {operand!r} is not in global memory, where a kernel could edit it; give an "
            "element of a TensorMapArray"
        )
    return operand


def _shared_address(what: str, operand: Any) -> int:
    shared = int(getattr(operand, "address", operand))
    if hasattr(operand, "edits") or hasattr(operand, "box"):
        raise BadOperand(
            f"{what}: {operand!r} is not in shared memory; the space of a map in global memory is "
            '"global"'
        )
    return shared
