"""Wrong arguments of fragments and instructions in kernels, and the sentences about them."""

import inspect
import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.device import row_share
from numba_tma.device.warp_products import mma_sync, zero_part
from numba_tma.tools.testing import compile_ptx

HOPPER, BLACKWELL = (9, 0, "a"), (10, 0, "a")
OPERAND = Tile((64, 64), "bf16", Swizzle.B128)
FLOATS, EIGHT = Tile(4, "f32"), Tile(8, "bf16")
INTEGERS = Tile(4, "i32")


@cuda.jit(device=True)
def doubled(value):
    return value * 2.0


REFUSED = {
    "quad": (lambda: tma.fragment(16).row_max("text"), "quad is True or False, not"),
    "rows of text": (lambda: tma.rows("text"), "rows(value=...) takes a number, not"),
    "keywords of map": (
        lambda: tma.fragment(16).map(function=doubled),
        "Fragment.map(function, *others) takes no keywords",
    ),
    "map of nothing": (
        lambda: tma.fragment(16).map(),
        "Fragment.map(function, *others) takes no keywords",
    ),
    "map of a number": (lambda: tma.fragment(16).map(1.5), "Fragment.map(function=...): "),
    "map of a tile": (lambda: tma.fragment(16).map(tma.shared_tile(FLOATS)), "does not take"),
    "coords of a fragment": (
        lambda: tma.fragment(16).coords(1.5),
        "Fragment.coords(i=...) takes an integer, not float64",
    ),
    "coords of rows": (
        lambda: tma.rows(0).coords(1.5),
        "Rows.coords(i=...) takes an integer, not float64",
    ),
    "a flag of wgmma": (
        lambda: tma.wgmma(
            tma.fragment(64),
            tma.shared_tile(OPERAND).matrix_descriptor(),
            tma.shared_tile(OPERAND).matrix_descriptor(),
            fence=1,
        ),
        "wgmma(fence=...) is 1: use True or False",
    ),
    "no tile": (lambda: tma.shared_tile(3), "shared_tile(tile=...) takes a Tile, not 3"),
    "a fraction for a number": (
        lambda: tma.ptx.nanosleep(1.5),
        "nanosleep(nanoseconds=...) takes an integer (uint32), not",
    ),
    "text for a float": (
        lambda: tma.ptx.max_f32("text", 1.0),
        "max_f32(a=...) takes a number (float32), not",
    ),
    "vectors of two lengths": (
        lambda: tma.ptx.max_f32(
            tma.shared_tile(FLOATS).read_vector(0), tma.shared_tile(EIGHT).read_vector(0)
        ),
        "max_f32: vectors of 4 and 8 elements do not go together: give vectors of one length",
    ),
    "a vector of integers": (
        lambda: tma.ptx.max_f32(tma.shared_tile(INTEGERS).read_vector(0), 1.0),
        "max_f32(a=...) takes Vector(float32, 4), not Vector(int32, 4)",
    ),
    "halves": (
        lambda: tma.ptx.clusterlaunchcontrol_query_cancel_is_canceled(3),
        "takes a tuple of two 64-bit halves, the lower first, not",
    ),
    "one half": (
        lambda: tma.ptx.clusterlaunchcontrol_query_cancel_is_canceled((3,)),
        "takes a tuple of two 64-bit halves, the lower first, not",
    ),
    "halves of floats": (
        lambda: tma.ptx.clusterlaunchcontrol_query_cancel_is_canceled((3, 1.5)),
        "takes a tuple of two 64-bit halves, the lower first, not",
    ),
}


def refused(body, cc=HOPPER):
    """Return the error of a kernel."""
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(cuda.jit(body), (), cc=cc)
    return re.sub(r"\s+", " ", str(caught.value))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, message = REFUSED[case]
    call_it = cuda.jit(device=True, forceinline=True)(call)
    assert message in refused(lambda: call_it(), BLACKWELL if "hal" in case else HOPPER)


OF_SHARES = [
    *(row_share.load_global, row_share.load_cached, row_share.load_shared, row_share.store_global),
    *(row_share.store_sums, row_share.write_floats, row_share.to_float, row_share.from_float),
    *(row_share.keep, row_share.zeros, row_share.num_present, row_share.weighted),
    row_share.first_largest,
]


@pytest.mark.parametrize("function", OF_SHARES, ids=lambda function: function.__name__)
def test_a_share_is_a_constant(function):
    others = (0.0,) * (len(inspect.signature(function).parameters) - 1)

    def kernel(n):
        function(n, *others)

    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(cuda.jit(kernel), (types.int32,), cc=HOPPER)
    name = f"{function.__name__}(share=...)"
    assert f"{name} must be a compile-time constant, but its type is int32" in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "accumulator", "since"),
    [("bf16", "bf16", "f32", 80), ("i8", "u8", "i32", 80), ("e4m3", "e5m2", "f32", 89)],
)
def test_products_of_warps_need_the_gpu_of_their_instruction(a, b, accumulator, since):
    def kernel():
        sums = (tma.fragment(16, accumulator),)
        mma_sync(sums, zero_part("a", a, 64), zero_part("b", b, 16))

    for number in (80, 86, 89, 90):
        cc = divmod(number, 10)
        if number < since:
            message = refused(kernel, (*cc, ""))
            assert "mma_sync() needs" in message and f"8.{since % 10} or newer" in message
        else:
            compile_ptx(cuda.jit(kernel), (), cc=(*cc, ""))
