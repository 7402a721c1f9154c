"""Tensor maps: the descriptors that tell the copy engine where a tensor lies and how to tile it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from numba_tma.host.annotations import (
    BarrierLike,
    BlockMask,
    CacheHint,
    DeviceArray,
    DTypeLike,
    SharedMemory,
)
from numba_tma.host.array_interface import NoDeviceArray, read_array, readers, reading_of
from numba_tma.host.backend import KernelArgument, LaunchParameter, in_kernels
from numba_tma.host.boxes import Copies
from numba_tma.host.driver import NBYTES, bytes_of, current_device
from numba_tma.host.dtypes import DType
from numba_tma.host.encoding import (
    SIMULATED,
    Encoding,
    Interleave,
    L2Promotion,
    MapOptions,
    OobFill,
    as_box,
    as_element_strides,
    check_kinds,
    encode,
    option_dtype,
    with_address,
)
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.process_bound import ProcessBound

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

__all__ = ["TensorMap", "simulated", "tensor_map"]


@host_only
def tensor_map(
    array: DeviceArray,
    tile_or_box: Tile | Sequence[int] | int,
    *,
    swizzle: Swizzle | None = None,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    element_strides: Sequence[int] | None = None,
    interleave: Interleave = None,
    dtype: DTypeLike | None = None,
    overwrite_padding: bool = False,
    fold: bool = False,
) -> "TensorMap":
    """Describe to the copy engine how to cut tiles out of `array`.

    The result is a kernel argument. It is encoded once and cached; the same tensor with the same
    options costs a look-up. All axes are in the array's order.

    Parameters
    ----------
    array
        1 to 5 axes in GPU memory: numba, CuPy, torch, or anything that offers
        ``__cuda_array_interface__`` or ``__dlpack__``. It is kept alive by the map, and not
        synchronised with: launch on the stream that fills it. In the simulator, a NumPy array.
    tile_or_box
        A `Tile`, which is what lands in shared memory, by several copies if it is larger than a
        box; or the shape of the box that one copy covers in `array`. They differ where
        `element_strides` skips elements.
    swizzle
        Swizzle for a box; a `Tile` has its own.
    l2_promotion
        Bytes that the L2 cache fetches at least: None, 64, 128 or 256.
    oob_fill
        What a load puts where the tile reaches outside of the array: ``"zeros"``, or ``"nan"``
        for float types. Stores never write there.
    element_strides
        Per axis, take every n-th element, 1 to 8; the innermost must be 1. A box of extent b then
        gives ``ceil(b / n)`` elements.
    interleave
        16 or 32 for tensors whose channels lie in slices of so many bytes, NC/8HWC8 or NC/16HWC16:
        arrays (images, slices, pixels, slice) or (images, slices, rows, pixels, slice), whose last
        axis is a slice. A copy takes one slice of the channels, ``box[1] == 1``, and whole slices:
        its coordinates leave out the last axis. With 32 the swizzle is B32.
    dtype
        What the bits of `array` mean where its own type cannot say it, in the same size: bf16
        held as uint16, fp8 as uint8, tf32 as float32. Elements of 4 and 6 bits are held as uint8,
        packed (`pack`): the array's last axis counts bytes, the map's shape and boxes elements.
    overwrite_padding
        Allow stores through the map although its rows are no multiple of 16 B long. The copy
        engine stores whole 16-byte chunks and so overwrites up to 15 bytes past each row (loads
        are exact). Without this, a kernel that stores through such a map does not compile.
    fold
        Move a tile whose rows are wider than a box with one copy and not one per box: the map gets
        an extra axis that counts the parts of the innermost one. Kernels are written as before,
        but the innermost coordinate must be a multiple of the part, which is the swizzle's span
        (without a swizzle, a power of two of up to 256 elements), and so must the array's
        innermost extent; on a GPU any other coordinate is an illegal instruction. A tile that is
        one box is not changed. The instructions in `numba_tma.ptx` take the coordinates of the
        encoded map, with the extra axis; `explain` shows it.

    Raises
    ------
    ValueError
        With all the rules that the arguments break, and the repairs. Memory that was freed, or that
        kernels on the current GPU cannot access, is among them where the driver can tell.
    TypeError
        When `array` is not in GPU memory, or its element type is none that TMA copies.
    """
    if type(tile_or_box) is not Tile and type(tile_or_box) is not tuple:
        tile_or_box = as_box(tile_or_box)
    if element_strides is not None:
        element_strides = as_element_strides(element_strides)
    if dtype is not None:
        dtype = option_dtype("tensor_map", dtype)
    try:  # `reading_of`, without a call: a map in the cache costs a microsecond
        view, array, owner = readers.get(type(array), read_array)(array)
    except NoDeviceArray as error:
        raise TypeError(f"tensor_map: array {error}") from None
    options: tuple[Any, ...] = (
        *(tile_or_box, swizzle, l2_promotion, oob_fill, element_strides),
        *(interleave, dtype, overwrite_padding, fold),
    )
    device = SIMULATED if simulated() else current_device()
    try:
        encoding = encode(device, *view[:5], *options)
    except TypeError:  # perhaps of an option without a hash
        check_kinds(MapOptions(*options))
        raise
    return TensorMap(array, owner, encoding)


@host_only
class TensorMap(ProcessBound, KernelArgument):
    """A tensor in global memory and the tile that a load takes from it; see `tensor_map`.

    Kernels read `ndim`, `rank`, `tile` and `dtype`, which are compile-time constants there. The
    extents of the array are not: pass them to the kernel as arguments.
    """

    __slots__ = ("__weakref__", "_encoding", "_owner", "array", "edits")

    _opaque = True
    #: The properties that kernels read: their values, from a map or from its Numba type.
    _of_the_type: ClassVar[dict[str, Callable[["_Described"], Any]]] = {
        "ndim": lambda described: described.rank,
        "rank": lambda described: described.rank,
        "tile": lambda described: described.tile,
        "dtype": lambda described: described.tile and described.tile.dtype.held,
    }
    _REPAIR = "make a map of"
    edits: int  #: edits by kernels; only in the simulator, in a TensorMapArray

    def __init__(self, array: DeviceArray, owner: object, encoding: Encoding) -> None:
        self.array = array
        self._owner = owner
        self._encoding = encoding

    @property
    def dtype(self) -> DType:
        """Element type, as the copy engine treats it; in kernels the type of ``tile[i, j]``."""
        return self._encoding.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self._encoding.shape)

    @property
    def ndim(self) -> int:
        """Number of axes, as NumPy calls it."""
        return len(self._encoding.shape)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self._encoding.address

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the tensor along each axis."""
        return self._encoding.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._encoding.strides

    @property
    def box(self) -> tuple[int, ...]:
        """Extent of one copy in the tensor, skipped elements included."""
        return self._encoding.box

    @property
    def tile(self) -> Tile:
        """The tile that a load writes to shared memory."""
        return self._encoding.tile

    @property
    def copies(self) -> Copies:
        """The copies of one `load` or `store`; one unless the tile is wide."""
        return self._encoding.copies

    @property
    def swizzle(self) -> Swizzle:
        """Swizzle of the tile in shared memory."""
        return self._encoding.tile.swizzle

    @property
    def l2_promotion(self) -> L2Promotion:
        """Bytes that the L2 cache fetches at least."""
        return self._encoding.l2_promotion

    @property
    def oob_fill(self) -> OobFill:
        """Value of elements outside of the tensor."""
        return self._encoding.oob_fill

    @property
    def element_strides(self) -> tuple[int, ...]:
        """For each axis, elements of the tensor from one element of the tile to the next."""
        return self._encoding.element_strides

    @property
    def interleave(self) -> Interleave:
        """Bytes per pixel slice of an interleaved tensor."""
        return self._encoding.interleave

    @property
    def mode(self) -> str:
        """Copies that take the map: ``"tiled"``, ``"im2col"``, ``"im2col_w..."``, ``"gather"``."""
        return self._encoding.mode

    @property
    def partial_rows(self) -> str:
        """What a store through the map would overwrite, which kernels may not; "" if nothing."""
        return self._encoding.partial_rows

    @property
    def _launch_parameter_(self) -> LaunchParameter:
        return LaunchParameter((type(self), self.kind), f"{NBYTES}s", self.encoded)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties of the map that a kernel is compiled for."""
        return kind_of(self)

    @property
    def value(self) -> "TensorMapDescriptor | None":
        """The encoded map, which a launch passes by value; None in the simulator."""
        return self._encoding.descriptor

    @property
    def encoded(self) -> bytes:
        """The 128 bytes of the encoded map."""
        assert self._encoding.value is not None
        return bytes_of(self._encoding.value)

    @property
    def numba_type(self) -> Any:
        """The Numba type of the map, made when a kernel first takes it; equal maps share it."""
        return self._encoding.numba_type

    @numba_type.setter
    def numba_type(self, numba_type: Any) -> None:
        self._encoding.numba_type = numba_type

    def replace_address(self, array: DeviceArray) -> "TensorMap":
        """Return a map of `array`, which is like this map's array but lies elsewhere.

        Only the address is checked and encoded, which is cheaper than a first `tensor_map` of the
        array. Nothing is cached here: a repeated `tensor_map` is a look-up, and cheaper still.

        Parameters
        ----------
        array
            In GPU memory, of the same shape, strides and element size.

        Raises
        ------
        ValueError
            When `array` differs in more than its address, or its address breaks a rule.
        """
        view, array, owner = reading_of(array, "replace_address: array")
        return type(self)(array, owner, with_address(self._encoding, view[:5]))

    def explain(self) -> str:
        """Describe a copy through the map, and the rules that the map meets, axis by axis."""
        from numba_tma.host.explain import explain  # which few maps are asked for

        return explain(self._encoding)

    def load(
        self,
        tile: SharedMemory,
        coords: tuple[int, ...],
        barrier: BarrierLike,
        cache_hint: CacheHint = None,
        multicast: BlockMask = None,
        cta_group: int = 1,
    ) -> None:
        """Start the copy of one tile from the tensor into shared memory.

        For kernels. Executed by one thread: each thread that executes it starts its own copies. A
        tile of several boxes is that many copies. The call returns at once. A thread sees the bytes
        after it has waited for the phase of `barrier` in which they were expected. The copies
        together count ``tile.nbytes`` on `barrier`.

        Parameters
        ----------
        tile
            Where in shared memory, of the map's own tile type.
        coords
            First element of the tile in the tensor, one coordinate per axis in the array's order.
            They may be negative or past the end; such elements become `oob_fill`. The innermost
            one times the element size must be a multiple of 16 bytes; of unpacked types, which
            have gaps in shared memory, it is a multiple of 128 elements.
        barrier
            The barrier that gets the bytes; it must expect them in its current phase.
        cache_hint
            How long the data should stay in the L2 cache, if it matters.
        multicast
            The blocks of the cluster that get the tile, from one read of global memory: bit r is
            the block of rank r. The tile lands at the offset of `tile`, and is counted on the
            barrier at the offset of `barrier`, in each of them, so the blocks allocate the same and
            each expects the whole tile. They have initialised their barriers, and freed the tile,
            before (a barrier of the cluster says so), and outlive the copy.
        cta_group
            A literal. With 2 the bytes count on the barrier of the even block of the CTA pair, at
            the offset of `barrier`; with `multicast`, on that of each destination's own pair. The
            cluster has an even number of blocks along x. For targets with tcgen05.

        Notes
        -----
        PTX ``cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes``,
        with `cta_group` 2 ``.cta_group::2`` and ``mapa`` of the barrier.
        """
        in_kernels("load")(self, tile, coords, barrier, cache_hint, multicast, cta_group)

    def store(
        self, tile: SharedMemory, coords: tuple[int, ...], cache_hint: CacheHint = None
    ) -> None:
        """Start the copy of one tile from shared memory into the tensor.

        For kernels. A tile of several boxes is that many copies. To be executed by one thread,
        after `fence_proxy_async` has made what the block wrote into the tile visible to the copy
        engine and a barrier has gathered the writers. It returns at once and joins the thread's
        current bulk group: commit the group, and wait for it before the tile is written again or
        the result is relied on. Elements outside of the tensor are not written. Whole slabs are
        stored, so that a tile with a padded slab can only be stored to an array that ends there.

        Parameters
        ----------
        tile
            Where in shared memory, of the map's own tile type.
        coords
            First element of the tile in the tensor, as for `load`, but never negative: on a GPU
            that is an illegal instruction, which loses the context.
        cache_hint
            How long the data should stay in the L2 cache, if it matters.

        Notes
        -----
        PTX ``cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group``.
        """
        in_kernels("store")(self, tile, coords, cache_hint)

    def fence_acquire(self) -> None:
        """Let this thread's later copies use what a kernel has made of this map (`edit_map`).

        For kernels, and for maps in a `TensorMapArray`. Executed by each thread that issues copies
        through a map that a kernel has edited, after the thread has synchronised with the editor.
        A map that only the host wrote needs no fence.

        Notes
        -----
        PTX ``fence.proxy.tensormap::generic.acquire.gpu``.
        """
        in_kernels("fence_acquire")(self)

    def reduce(
        self, tile: SharedMemory, coords: tuple[int, ...], op: str, cache_hint: CacheHint = None
    ) -> None:
        """Start to combine one tile in shared memory with what the tensor holds.

        For kernels. As `store`, but each element of the tensor becomes ``op(element, tile's)``, in
        one atomic step and in no order. Many blocks may reduce into the same tile of the tensor:
        sums of integers are then exact, those of floats depend on the order in their last bits.

        Parameters
        ----------
        tile, coords, cache_hint
            Those of `store`.
        op
            A literal, one of those that the element type has (`DType.reductions`): ``"add"``,
            ``"min"``, ``"max"``; ``"inc"`` and ``"dec"``, which count u32 up and down and wrap at
            the tile's element; ``"and"``, ``"or"``, ``"xor"``. Integers wrap round; sums of
            floats keep subnormal numbers.

        Notes
        -----
        PTX ``cp.reduce.async.bulk.tensor.Nd.global.shared::cta.op.tile.bulk_group``.
        """
        in_kernels("reduce")(self, tile, coords, op, cache_hint)

    def prefetch_tile(self, coords: tuple[int, ...], cache_hint: CacheHint = None) -> None:
        """Start to bring one tile of the tensor into the L2 cache, ahead of its load.

        For kernels. Executed by one thread. The prefetch is a hint; nothing waits for it.

        Parameters
        ----------
        coords, cache_hint
            Those of `load`.

        Notes
        -----
        PTX ``cp.async.bulk.prefetch.tensor.Nd.L2.global.tile``.
        """
        in_kernels("prefetch_tile")(self, coords, cache_hint)

    def prefetch(self) -> None:
        """Fetch the map itself (not the tensor) into the cache, ahead of the first copy.

        For kernels. Executed by one thread. The prefetch orders nothing and is optional.

        Notes
        -----
        PTX ``prefetch.tensormap``.
        """
        in_kernels("prefetch")(self)

    def load_im2col(
        self,
        tile: SharedMemory,
        coords: tuple[int, ...],
        offsets: tuple[int, ...],
        barrier: BarrierLike,
        cache_hint: CacheHint = None,
        multicast: BlockMask = None,
        cta_group: int = 1,
    ) -> None:
        """Raise in a kernel; an `Im2colMap` has this method, see there."""
        in_kernels("load_im2col")(
            self, tile, coords, offsets, barrier, cache_hint, multicast, cta_group
        )

    def store_im2col(
        self, tile: SharedMemory, coords: tuple[int, ...], cache_hint: CacheHint = None
    ) -> None:
        """Raise in a kernel; an `Im2colMap` has this method, see there."""
        in_kernels("store_im2col")(self, tile, coords, cache_hint)

    def __repr__(self) -> str:
        return (
            f"TensorMap({self.dtype}, shape {self.shape}, strides {self.strides} B, "
            f"address {self.address:#x}, box {self.box}, tile {self.tile}, "
            f"{self.copies.summary}element_strides {self.element_strides}, "
            f"l2_promotion {self.l2_promotion}, oob_fill {self.oob_fill!r}, "
            f"interleave {self.interleave})"
        )


#: A map, or a Numba type of maps, which has the same properties.
_Described: TypeAlias = Any


def kind_of(described: _Described) -> tuple[Any, ...]:
    """Return the properties of a map, or of a Numba type of maps, that compiled code depends on."""
    copies = described.copies if described.mode == "tiled" else None
    moved = (copies.element_strides, copies.fold) if copies else None
    return (
        *(described.rank, described.tile, described.interleave, bool(described.partial_rows)),
        *(moved, described.mode),
    )


def describe_kind(described: _Described) -> str:
    """Describe the result of `kind_of`, as Numba types and messages show it."""
    tile, mode, rank = described.tile, described.mode, described.rank
    known = [str(tile)] if tile else [f"{rank}d"] if rank else []
    known = [f"{mode} {rank}d", *known] if mode != "tiled" else known
    known += [f"interleave={described.interleave}"] if described.interleave else []
    known += ["loads only"] if described.partial_rows else []
    copies = described.copies if mode == "tiled" else None
    if copies and copies.fold:
        known.append("folded")
    if copies and max(copies.element_strides) > 1:
        known.append(f"element_strides={copies.element_strides}")
    if (axis := getattr(described, "axis", None)) is not None:  # of a ragged map
        known.append(
            f"sequences along axis {axis} (encoding {described.encoding!r}, up to "
            f"{described.extent} rows)"
        )
    return ", ".join(known)


_MODES = {
    "tiled": "a tiled one: use its load and store, or make the map with im2col_map",
    "im2col": (
        "one of columns of pixels: use load_im2col(tile, coords, offsets, barrier), "
        "store_im2col(tile, coords), ptx.cp_reduce_async_bulk_tensor_im2col or "
        "ptx.cp_async_bulk_prefetch_tensor_im2col"
    ),
    "im2col_w": "a wide one: use load_im2col(tile, coords, (w,), barrier)",
    "im2col_w128": "a wide one: use load_im2col(tile, coords, (w,), barrier)",
    "gather": (
        "one of rows by number: use gather(tile, rows, column, barrier) and scatter(tile, rows, "
        "column), or make the map with tensor_map"
    ),
}


def maker_of(mode: str) -> str:
    """Return the name of the function that makes maps of a mode."""
    return {"tiled": "tensor_map", "im2col": "im2col_map"}.get(mode, "im2col_wide_map")


def wrong_mode(tensor_map: str, mode: str) -> str:
    """Return the error text for a copy that takes maps of another mode."""
    return f"the map is {tensor_map}, {_MODES[mode]}"
