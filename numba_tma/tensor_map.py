"""Tensor maps: the descriptors that tell the copy engine where a tensor lies and how to tile it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ._array_interface import read_array, readers
from ._driver import current_device
from ._encoding import SIMULATED, Encoding, Interleave, L2Promotion, OobFill, as_box, encode
from ._environment import simulated
from .dtypes import DType, as_dtype
from .layout import Swizzle, Tile

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

__all__ = ["TensorMap", "simulated", "tensor_map"]


def tensor_map(
    array: Any,
    tile_or_box: Tile | Sequence[int] | int,
    *,
    swizzle: Swizzle | None = None,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    element_strides: Sequence[int] | None = None,
    interleave: Interleave = None,
    dtype: object = None,
    overwrite_padding: bool = False,
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
        A `Tile`, which is what lands in shared memory; or the shape of the box that one copy
        covers in `array`. They differ where `element_strides` skips elements.
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
        None, or 16 or 32 for tensors in NC/8HWC8 or NC/16HWC16 order. Encoded as given, by the
        driver's rules; what such copies look like in shared memory is not modelled.
    dtype
        What the bits of `array` mean where its own type cannot say it, in the same size: bf16
        held as uint16, fp8 as uint8, tf32 as float32.
    overwrite_padding
        Allow stores through the map although its rows are no multiple of 16 B long. The copy
        engine stores whole 16-byte chunks and so overwrites up to 15 bytes past each row (loads
        are exact). Without this, a kernel that stores through such a map does not compile.

    Raises
    ------
    ValueError
        With all the rules that the arguments break, and the repairs.
    TypeError
        When `array` is not in GPU memory, or its element type is none that TMA copies.
    """
    if type(tile_or_box) is not Tile and type(tile_or_box) is not tuple:
        tile_or_box = as_box(tile_or_box)
    if element_strides is not None:
        element_strides = tuple(element_strides)
    if dtype is not None:
        dtype = as_dtype(dtype)
    read = readers.get(type(array), read_array)
    address, shape, strides, stored, strides_in_elements, array, owner = read(array)
    encoding = encode(
        SIMULATED if simulated() else current_device(),
        address,
        shape,
        strides,
        stored,
        strides_in_elements,
        tile_or_box,
        swizzle,
        l2_promotion,
        oob_fill,
        element_strides,
        interleave,
        dtype,
        overwrite_padding,
    )
    return TensorMap(array, owner, encoding)


class TensorMap:
    """A tensor in global memory and the tile that one copy takes from it; see `tensor_map`."""

    __slots__ = ("__weakref__", "_encoding", "_owner", "array")

    def __init__(self, array: Any, owner: object, encoding: Encoding) -> None:
        self.array = array
        self._owner = owner
        self._encoding = encoding

    @property
    def dtype(self) -> DType:
        """Element type, as the copy engine treats it."""
        return self._encoding.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
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
        """Extent in the tensor that one copy covers; the tile's shape times `element_strides`."""
        return self._encoding.box

    @property
    def tile(self) -> Tile:
        """What one copy puts into shared memory."""
        return self._encoding.tile

    @property
    def swizzle(self) -> Swizzle:
        """How the tile lies in shared memory."""
        return self._encoding.tile.swizzle

    @property
    def l2_promotion(self) -> L2Promotion:
        """Bytes that the L2 cache fetches at least."""
        return self._encoding.l2_promotion

    @property
    def oob_fill(self) -> OobFill:
        """What stands for elements outside of the tensor."""
        return self._encoding.oob_fill

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Per axis, how many elements of the tensor one step in the tile skips over, plus one."""
        return self._encoding.element_strides

    @property
    def interleave(self) -> Interleave:
        """Bytes per pixel slice of an interleaved tensor."""
        return self._encoding.interleave

    @property
    def mode(self) -> str:
        """Which copy instructions take the map: ``"tiled"``, ``"im2col"``, ``"im2col_w..."``."""
        return self._encoding.mode

    @property
    def partial_rows(self) -> str:
        """Why a kernel may not store through the map: what that would overwrite; "" if it may."""
        return self._encoding.partial_rows

    @property
    def value(self) -> "TensorMapDescriptor | None":
        """The encoded map, which a launch passes by value; None in the simulator."""
        return self._encoding.value

    @property
    def numba_type(self) -> Any:
        """The Numba type of the map, once `numba_tma.types` has made it; equal maps share it."""
        return self._encoding.numba_type

    @numba_type.setter
    def numba_type(self, numba_type: Any) -> None:
        self._encoding.numba_type = numba_type

    def load(
        self, tile: Any, coords: tuple[int, ...], barrier: Any, cache_hint: Any = None
    ) -> None:
        """Start the copy of one tile from the tensor into shared memory.

        For kernels. To be executed by one thread: each thread that executes it starts a copy of
        its own. It returns at once. The bytes are there for a thread that has waited for the
        phase of `barrier` in which they were expected; the copy counts ``tile.nbytes`` on it.

        Parameters
        ----------
        tile
            Where in shared memory, of the map's own tile type.
        coords
            First element of the tile in the tensor, one coordinate per axis in the array's order.
            They may be negative or past the end; such elements become `oob_fill`. The innermost
            one times the element size must be a multiple of 16 bytes.
        barrier
            The barrier that gets the bytes; it must expect them in its current phase.
        cache_hint
            How long the data should stay in the L2 cache, if it matters.

        Notes
        -----
        PTX ``cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes``.
        """
        only_in_kernels("load")

    def store(self, tile: Any, coords: tuple[int, ...], cache_hint: Any = None) -> None:
        """Start the copy of one tile from shared memory into the tensor.

        For kernels. To be executed by one thread, after `fence_proxy_async` has made what the
        block wrote into the tile visible to the copy engine and a barrier has gathered the
        writers. It returns at once and joins the thread's current bulk group: commit the group,
        and wait for it before the tile is written again or the result is relied on. Elements
        outside of the tensor are not written.

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
        only_in_kernels("store")

    def prefetch(self) -> None:
        """Fetch the map itself (not the tensor) into the cache, ahead of the first copy.

        For kernels. To be executed by one thread; it orders nothing and may be left out.

        Notes
        -----
        PTX ``prefetch.tensormap``.
        """
        only_in_kernels("prefetch")

    def __repr__(self) -> str:
        return (
            f"TensorMap({self.dtype}, shape {self.shape}, strides {self.strides} B, "
            f"address {self.address:#x}, box {self.box}, tile {self.tile}, "
            f"element_strides {self.element_strides}, l2_promotion {self.l2_promotion}, "
            f"oob_fill {self.oob_fill!r}, interleave {self.interleave})"
        )


def only_in_kernels(method: str) -> NoReturn:
    """Say that a method of a map is for kernels."""
    raise RuntimeError(
        f"TensorMap.{method} runs inside a @cuda.jit kernel, which takes the map as an argument; "
        "it cannot be called on the host"
    )


_MODES = {
    "tiled": "a tiled one: use its load and store, or make the map with im2col_map",
    "im2col": (
        "one of columns of pixels: use load_im2col(tile, coords, offsets, barrier) and "
        "store_im2col(tile, coords)"
    ),
    "im2col_w": "a wide one: use ptx.cp_async_bulk_tensor_im2col_w_load",
    "im2col_w128": "a wide one: use ptx.cp_async_bulk_tensor_im2col_w_128_load",
}


def wrong_mode(tensor_map: str, mode: str) -> str:
    """Say that a copy takes maps of another mode than that of `tensor_map`."""
    return f"the map is {tensor_map}, {_MODES[mode]}"
