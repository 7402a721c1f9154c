"""wgmma and fragments: the legal products, their PTX, and their errors."""

import itertools
import re

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.mma_rules import (
    FORMS,
    FRAGMENT_DTYPES,
    RegisterOperand,
    check_fragment,
    check_place,
    check_product,
    check_rows,
    fragment_coords,
    num_elements,
    num_registers,
)
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.fragments import fragments
from tests.kernels.matrix_operands import Operand
from tests.kernels.mma_kernels import product
from tests.tiers import every

HOPPER = (9, 0, "a")


# ------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_each_element_is_held_once(itemsize):
    i, thread = np.indices((num_elements(48), 128))
    row, column = fragment_coords(i, thread, itemsize)
    held = np.zeros((64, 48), int)
    np.add.at(held, (row, column), 1)
    assert (held == 1).all()


@pytest.mark.parametrize("itemsize", [1, 2])
def test_packed_fragments_are_matrices_as_ldmatrix_loads_them(itemsize):
    """As 8 rows of 16 bytes each: rows 0 to 7 and 8 to 15 of a warp's, then the next 16 bytes."""
    n = 64
    block = np.arange(64 * n * itemsize).astype(np.uint8).reshape(64, n * itemsize)
    i, thread = np.indices((num_elements(n), 128))
    row, column = fragment_coords(i, thread, itemsize)
    elements = block.view(f"u{itemsize}")[row, column]  # (elements, threads)
    words = np.ascontiguousarray(elements.T).view(np.uint32)
    assert words.shape == (128, num_registers(n, itemsize))
    for warp in range(4):
        own = block[16 * warp : 16 * warp + 16].view(np.uint16)
        matrices = own.reshape(2, 8, -1, 8).transpose(2, 0, 1, 3).reshape(-1, 8, 8)
        np.testing.assert_array_equal(words[32 * warp : 32 * warp + 32], fragments(matrices))


def layout(dtype, rows=256, k=64):
    return MatrixLayout(Tile((rows, k), dtype, Swizzle.B32))


def legal(accumulator, a, b, n):
    try:
        check_product(as_dtype(accumulator), n, layout(a), layout(b))
    except ValueError as error:
        assert "wgmma multiplies f16 -> f16 or f32" in str(error)
        return False
    return True


def test_the_legal_products():
    operands = ("f16", "bf16", "f32", "tf32", "e4m3", "e5m2", "i8", "u8")
    found = {
        (a, b, acc)
        for a, b, acc in itertools.product(operands, operands, FRAGMENT_DTYPES)
        if legal(acc, a, b, 64)
    }
    single, byte = ("f32", "tf32"), ("e4m3", "e5m2")
    assert found == {
        *(("f16", "f16", acc) for acc in ("f16", "f32")),
        ("bf16", "bf16", "f32"),
        *((a, b, "f32") for a in single for b in single),
        *((a, b, acc) for a in byte for b in byte for acc in ("f16", "f32")),
        *((a, b, "i32") for a in ("i8", "u8") for b in ("i8", "u8")),
    }


def test_the_legal_widths():
    floats = [n for n in range(1, 300) if legal("f32", "bf16", "bf16", n)]
    assert floats == list(range(8, 257, 8))
    integers = [n for n in range(1, 300) if legal("i32", "i8", "u8", n)]
    assert integers == [8, 16, 24, *range(32, 257, 16)]


# ------------------------------------------------------------------------------ emitted


def emitted(body, *arguments):
    """Return what a kernel compiles to: its PTX, instruction by instruction, and ptxas's report."""
    ptx = compile_ptx(cuda.jit(launch_bounds=(128, 1))(body), arguments, cc=HOPPER)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    return instructions(ptx)


def named(found, *prefixes):
    """Return the instructions that begin so, the registers of an accumulator as `D`."""
    registers = r"\{%[rf]\d+(?:, %[rf]\d+){4,}\}"
    return [re.sub(registers, "D", i) for i in found if i.startswith(prefixes)]


PAIRS = [
    (Operand(64, 64, a, *first), Operand(264 - 8 * i, 64, b, *second), acc)
    for i, (a, b, acc, first, second) in enumerate(
        [
            ("f16", "f16", "f16", ("K", Swizzle.B128), ("MN", Swizzle.B128)),
            ("f16", "f16", "f32", ("MN", Swizzle.B32), ("K", Swizzle.NONE)),
            ("bf16", "bf16", "f32", ("MN", Swizzle.B64), ("MN", Swizzle.NONE)),
            ("f32", "tf32", "f32", ("K", Swizzle.B128), ("K", Swizzle.B64)),
            ("e4m3", "e5m2", "f16", ("K", Swizzle.B64), ("K", Swizzle.B32)),
            ("e5m2", "e4m3", "f32", ("K", Swizzle.NONE), ("K", Swizzle.B64)),
            ("i8", "u8", "i32", ("K", Swizzle.B64), ("K", Swizzle.NONE)),
            ("u8", "i8", "i32", ("K", Swizzle.B32), ("K", Swizzle.B32)),
        ]
    )
]


@pytest.mark.parametrize(("a", "b", "accumulator"), every(3, PAIRS), ids=str)
def test_a_product_of_each_form(a, b, accumulator):
    n = b.rows // 16 * 16 if accumulator == "i32" else min(b.rows, 256)
    kernel, signature = product(a, b, n, accumulator)
    found = instructions(compile_ptx(kernel, signature, cc=HOPPER))
    products = named(found, "wgmma.mma_async")
    k = 32 // a.tile.itemsize
    ptx = {"i8": "s8", "i32": "s32", "f32": "tf32"}
    types_ = f"{ptx.get(a.dtype, a.dtype)}.{ptx.get(b.dtype, b.dtype)}"
    result = "f32" if accumulator == "f32" else ptx.get(accumulator, accumulator)
    assert len(products) == a.k // k
    assert all(
        p.startswith(f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{types_} D,")
        for p in products
    )
    modifiers = ["1", "1"] if accumulator != "i32" else []
    if a.dtype in ("f16", "bf16"):
        modifiers += [str(int(x.major == "MN")) for x in (a, b)]
    assert {tuple(p.split(", ")[4:]) for p in products} == {tuple(modifiers)}
    assert len(named(found, "wgmma.fence")) == len(named(found, "wgmma.commit")) == 1
    assert ptxas(compile_ptx(kernel, signature, cc=HOPPER)).warnings == ()


X, Y = Tile((128, 64), "bf16", Swizzle.B128), Tile((64, 64), "bf16", Swizzle.B128)


def calls(call):
    """Return the wgmma instructions of a call on two tiles, and what follows from it."""

    def body(out, flag):
        x, y = tma.shared_tile(X).matrix_descriptor(), tma.shared_tile(Y).matrix_descriptor()
        acc = tma.wgmma_wait(call(tma.fragment(64), x, y, flag))
        acc.store_global(out, 0, 0)

    call = cuda.jit(device=True, forceinline=True)(call)
    return emitted(body, types.float32[:, ::1], types.boolean)


def test_a_call_is_a_group():
    found = named(calls(lambda acc, x, y, _: tma.wgmma(acc, x, y)), "wgmma")
    assert [i.split()[0].removesuffix(".sync.aligned") for i in found] == [
        "wgmma.fence",
        *["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"] * 4,
        "wgmma.commit_group",
        "wgmma.wait_group",
    ]
    assert found[-1] == "wgmma.wait_group.sync.aligned 0"


def test_calls_are_joined():
    def twice(acc, x, y, _):
        acc = tma.wgmma(acc, x, y, commit=False)
        return tma.wgmma(acc, x.advance(row=64), y, fence=False, k_steps=2, negate_b=True)

    found = named(calls(twice), "wgmma")
    assert [i.split()[0].split(".")[1] for i in found] == [
        "fence",
        *["mma_async"] * (4 + 2),
        "commit_group",
        "wait_group",
    ]
    assert [i.split(", ")[4:] for i in found[1:7]] == [["1", "1", "0", "0"]] * 4 + [
        ["1", "-1", "0", "0"]
    ] * 2


@pytest.mark.parametrize(
    ("call", "set_to"),
    [
        (lambda acc, x, y, _: tma.wgmma(acc, x, y, scale_d=True), ["setp.eq.u32 p, 0, 0"]),
        (
            lambda acc, x, y, _: tma.wgmma(acc, x, y, scale_d=False),
            ["setp.ne.u32 p, 0, 0", "setp.eq.u32 p, 0, 0"],
        ),
        (
            lambda acc, x, y, flag: tma.wgmma(acc, x, y, scale_d=flag),
            ["setp.ne.u32 p, R, 0", "setp.eq.u32 p, 0, 0"],
        ),
    ],
    ids=["True", "False", "known at run time"],
)
def test_the_first_step_overwrites(call, set_to):
    found = calls(call)
    lines = [re.sub(r"%r\d+", "R", i) for i in found if i.startswith("setp.") and " p, " in i]
    assert lines == set_to
    places = [i for i, line in enumerate(found) if line.startswith("wgmma.mma_async")]
    sets = [i for i, line in enumerate(found) if line.startswith("setp.") and " p, " in line]
    assert sets[0] < places[0] and all(places[0] < i < places[1] for i in sets[1:])


def test_the_fence_stands_behind_what_the_accumulator_and_a_were_computed_by():
    Z = Tile((64, 64), "bf16", Swizzle.B128)

    def body(out, factor):
        z, y = tma.shared_tile(Z), tma.shared_tile(Y).matrix_descriptor()
        a = tma.load_fragment(z, (0, 0), 64) * factor
        acc = tma.fragment(64) + factor
        acc = tma.wgmma_wait(tma.wgmma(acc, a, y))
        acc *= factor
        acc.store_global(out, 0, 0)

    found = emitted(body, types.float32[:, ::1], types.float32)
    fence, wait = (found.index(*named(found, f"wgmma.{name}")) for name in ("fence", "wait"))
    computed = [i for i, line in enumerate(found) if line.startswith(("cvt.rn.bf16x2", "mul.f32"))]
    assert len([i for i in computed if i < fence]) == 32 + 16  # of a: 32 elements, 16 words
    assert [i for i in computed if fence < i < wait] == []
    assert len([i for i in computed if i > wait]) == 32
    operands = re.search(r"wgmma\.mma_async\S+ \{.*?\}, \{(.*?)\}", "\n".join(found))[1]
    assert len(operands.split(", ")) == 4


def test_two_products_are_under_way():
    """ptxas adds waits of its own (C7517) where it believes that registers are shared."""

    def body(out):
        x, y = tma.shared_tile(X).matrix_descriptor(), tma.shared_tile(Y).matrix_descriptor()
        for column in range(out.shape[1]):
            first = tma.wgmma(tma.fragment(64), x, y)
            second = tma.wgmma(tma.fragment(64), x.advance(row=64), y)
            first = tma.wgmma_wait(first, 1)
            first, second = tma.wgmma_wait((first, second))
            (first + second).store_global(out, 0, column)

    found = emitted(body, types.float32[:, ::1])
    waits = named(found, "wgmma.wait_group")
    assert waits == [f"wgmma.wait_group.sync.aligned {n}" for n in (1, 0)]


def test_fragments_of_several_kinds_are_waited_for():
    def body(out, narrow):
        x, y = tma.shared_tile(X).matrix_descriptor(), tma.shared_tile(Y).matrix_descriptor()
        first, second = tma.wgmma(tma.fragment(64), x, y), tma.fragment(32, "bf16")
        first, second = tma.wgmma_wait((first, second))
        first.store_global(out, 0, 0)
        second.store_global(narrow, 0, 0)

    found = emitted(body, types.float32[:, ::1], types.uint16[:, ::1])
    assert len(named(found, "wgmma.wait_group")) == 1


def test_what_a_fragment_becomes_stays_in_registers():
    @cuda.jit(device=True)
    def kept(value, row, column, limit, bias):
        return value + bias[column] if column <= row + limit else np.float32(-1e30)

    SMALL, NARROW = Tile((64, 256), "e4m3", Swizzle.B128), Tile((64, 256), "bf16", Swizzle.B128)

    def body(out, bias, limit):
        f = tma.fragment(256).map_coords(kept, limit, bias)
        f -= f.row_max()
        f = f / f.row_sum(quad=False).quad_sum()
        tile, small = tma.shared_tile(NARROW), tma.shared_tile(SMALL)
        f.to("bf16").store(tile, (0, 0))
        f.to("e4m3").store(small, (0, 0))
        tma.load_fragment(tile, (0, 0), 128).to("f32").store_global(out, limit, 0)

    found = emitted(body, types.float32[:, ::1], types.float32[::1], types.int32)
    count = {
        "stmatrix.sync.aligned.m8n8.x4": 16 + 8,  # of 64 bytes of each row
        "ldmatrix.sync.aligned.m8n8.x4": 8,
        "shfl.sync.bfly": 2 * 2 * 2,
        "shfl.sync.idx": 2 * 16,  # for each 16 columns
        "prmt.b32": 2 * 16,
        "st.global.v2": 32,
    }
    assert {name: len(named(found, name)) for name in count} == count


def test_rows_are_two_loads():
    TALL = Tile(128, "f32")

    def body(out, start):
        (tma.fragment(8) + tma.load_rows(tma.shared_tile(TALL), start)).store_global(out, 0, 0)

    found = emitted(body, types.float32[:, ::1], types.int32)
    assert len(named(found, "ld.shared.f32")) == 2


def test_rows_are_in_a_tile_of_64_or_more():
    f32 = as_dtype("f32")
    for start in (None, 0):
        check_rows((64,), f32, start)
        with pytest.raises(ValueError, match="64 rows from 0 on are not in a tile of 63"):
            check_rows((63,), f32, start)
    check_rows((72,), f32, 8)
    for start in (-1, 9):
        with pytest.raises(ValueError, match=f"64 rows from {start} on are not in a tile of 72"):
            check_rows((72,), f32, start)


def test_a_fragment_lies_in_whole_units_of_a_tile():
    bf16 = as_dtype("bf16")
    check_place((64, 24), (None, 8), 16, bf16, "store")
    for shape, at, n, said in (
        ((64, 20), (0, 0), 16, "the tile's rows have 20 elements of bf16; .* a multiple of 8"),
        ((64, 24), (0, 4), 16, "the column is 4; .* use a multiple of 8 of bf16"),
        ((64, 24), (1, 8), 16, "64 x 16 from row 1 on does not fit"),
        ((64, 24), (None, 16), 16, "64 x 16 from column 16 on does not fit"),
        ((64,), (0, 0), 16, r"the tile has the shape \(64,\); a fragment is a matrix"),
    ):
        with pytest.raises(ValueError, match=f"^store: .*{said}"):
            check_place(shape, at, n, bf16, "store")
    check_place((64, 48), (0, 16), 32, as_dtype("e4m3"), "store")


@pytest.mark.parametrize(("dtype", "step"), [("f32", 8), ("bf16", 8), ("e4m3", 16)])
def test_columns_of_a_fragment(dtype, step):
    for n in (step, 256):
        assert check_fragment(n, dtype, "fragment").name == dtype
    for n in (float(step), str(step), None, 0, -step, step // 2, step + 4, 256 + step):
        said = f"fragment: n is {n!r}; a fragment of {dtype} has {step} to 256 columns, a multiple"
        with pytest.raises(ValueError, match=said):
            check_fragment(n, dtype, "fragment")


def test_an_array_of_any_layout_is_stored_to():
    def body(out):
        tma.fragment(16).store_global(out, 0, 0)

    found = emitted(body, types.float32[:, :])
    stores = named(found, "st.global")
    assert len([s for s in stores if ".v2" in s]) == 2 * 2 and len(stores) == 2 * 2 + 8


# ------------------------------------------------------------------------------ refused


def refused(body, *arguments, cc=HOPPER):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(cuda.jit(body), arguments, cc=cc)
    return re.sub(r"\s+", " ", str(caught.value))


HALF = Tile((64, 64), "f16", Swizzle.B128)
FLOATS = Tile((64, 32), "f32", Swizzle.B128)
BYTES = Tile((64, 64), "i8", Swizzle.B64)
WIDE = Tile((64, 128), "bf16", Swizzle.B128)
FEW = Tile((32, 64), "bf16", Swizzle.B128)
LINE = Tile(4096, "bf16")
ROWS_OF_72 = Tile(72, "f32")


@cuda.jit(device=True)
def doubled(value):
    return value * 2.0


@cuda.jit(device=True)
def added(value, other):
    return value + other


REFUSED = {
    "n": (lambda: tma.fragment(12), "fragment: n is 12; a fragment of f32 has 8 to 256 columns"),
    "n of bytes": (lambda: tma.fragment(8, "e4m3"), "n is 8; a fragment of e4m3 has 16 to 256"),
    "n unknown": (
        lambda: tma.fragment(cuda.threadIdx.x),
        "fragment(n=...) must be a compile-time constant",
    ),
    "dtype": (
        lambda: tma.fragment(8, "f64"),
        "dtype is 'f64'; a fragment holds one of f32, i32, f16, bf16, e4m3, e5m2, i8, u8",
    ),
    "pair": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), x, h),
        "wgmma: there is no bf16 x f16 -> f32. wgmma multiplies f16 -> f16 or f32 (n multiples",
    ),
    "accumulator": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64, "f16"), x, x),
        "there is no bf16 x bf16 -> f16",
    ),
    "integers": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(40, "i32"), b, b),
        "n is 40, which i8 x i8 -> i32 has not",
    ),
    "negated": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64, "i32"), b, b, negate_a=True),
        "integers are not negated (i8 x i8 -> i32): subtract the product later",
    ),
    "rows of a": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), s, x),
        "with 32 rows; a warpgroup multiplies 64 rows",
    ),
    "columns of b": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(128), x, x),
        "with 64 columns of B, and the accumulator has 128: use fragment(64), or a wider tile",
    ),
    "K": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), w, x),
        "a has K 128 and b has K 64: use tiles of one K, or say k_steps",
    ),
    "k_steps": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), w, x, k_steps=5),
        "k_steps is 5; the operands have 8 and 4 steps of 32 B along K: use 1 to 4",
    ),
    "tf32 in registers": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), tma.fragment(32), f),
        "a is a fragment of f32, and tf32 in registers has another layout",
    ),
    "b in registers": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), x, tma.fragment(64, "bf16")),
        "wgmma(b=...) takes a matrix descriptor (tile.matrix_descriptor()), not Fragment(",
    ),
    "a": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), x.value, x),
        "wgmma(a=...) takes a matrix descriptor (tile.matrix_descriptor()) or a fragment, not",
    ),
    "acc": (lambda x, h, f, b, w, s: tma.wgmma(x, x, x), "wgmma(acc=...) takes a fragment, not"),
    "flag": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), x, x, commit=x.lo > 3),
        "wgmma(commit=...) must be a compile-time constant",
    ),
    "scale_d": (
        lambda x, h, f, b, w, s: tma.wgmma(tma.fragment(64), x, x, scale_d=1.0),
        "wgmma(scale_d=...) takes a bool, not",
    ),
    "pending": (
        lambda: tma.wgmma_wait(tma.fragment(8), 8),
        "pending is 8; wait until at most 0 to 7 groups are under way",
    ),
    "wait after": (
        lambda: tma.wgmma_wait(tma.fragment(8), after=3),
        "wgmma_wait(after=...) takes rows of float32, not",
    ),
    "wait after integers": (
        lambda: tma.wgmma_wait(tma.fragment(8), after=tma.fragment(8, "i32").row_max()),
        "wgmma_wait(after=...) takes rows of float32, not Rows(int32)",
    ),
    "waits for": (
        lambda: tma.wgmma_wait((tma.fragment(8), 3)),
        "wgmma_wait(fragments=...) takes a fragment or a tuple of fragments, not",
    ),
    "sum": (
        lambda: tma.fragment(8) + tma.fragment(16),
        "add of Fragment(64 x 8, f32) and Fragment(64 x 16, f32): fragments of one size",
    ),
    "sum of two dtypes": (
        lambda: tma.fragment(8) + tma.fragment(8, "bf16"),
        "with rows of their elements; convert with to()",
    ),
    "quotient": (
        lambda: tma.fragment(8, "i32") / 2,
        'truediv of Fragment(64 x 8, i32): convert the integers first, with to("f32")',
    ),
    "element": (lambda: tma.fragment(8)[4], "[4]: a thread holds the elements 0 to 3"),
    "element by number": (
        lambda: tma.fragment(8)[cuda.threadIdx.x],
        "lives in registers and is indexed with a literal integer: use map_coords",
    ),
    "row": (lambda: tma.rows(0)[2], "Rows(float32)[2]: a thread holds the elements 0 to 1"),
    "a function of doubles": (
        lambda: tma.fragment(8).map(doubled),
        "Fragment.map: the function returns float64, and the elements are float32: a literal",
    ),
    "a function of more": (
        lambda: tma.fragment(8).map(added),
        "Cannot bind 'args=(float32,) kws={}' to signature '(value, other)'",
    ),
    "another layout": (
        lambda: tma.fragment(16).map(added, tma.fragment(16, "e4m3")),
        "Fragment(64 x 16, e4m3) does not go with Fragment(64 x 16, f32): threads hold other",
    ),
    "a fragment for rows": (
        lambda: tma.rows(1).map(added, tma.fragment(16)),
        "Rows.map: Fragment(64 x 16, f32) does not go with Rows(float32)",
    ),
    "reduced bytes": (
        lambda: tma.fragment(16, "i8").row_max(),
        'Fragment(64 x 16, i8) has no reduction: convert it first, with to("f32")',
    ),
    "columns": (
        lambda: tma.fragment(16).columns(8, 12),
        "Fragment.columns(8, 12) of 64 x 16, f32: both are multiples of 8, and the columns are",
    ),
    "columns beyond": (
        lambda: tma.fragment(32, "e4m3").columns(16, 32),
        "Fragment.columns(16, 32) of 64 x 32, e4m3: both are multiples of 16, and the columns are",
    ),
    "columns at run time": (
        lambda: tma.fragment(16).columns(cuda.threadIdx.x, 8),
        "Fragment.columns(first, n)",
    ),
    "conversion": (
        lambda: tma.fragment(16).to("i8"),
        "Fragment.to: dtype is 'i8'; fragments are converted to f32, f16, bf16, e4m3, e5m2",
    ),
    "conversion of bytes": (
        lambda: tma.fragment(16, "e4m3").to("f32"),
        "Fragment.to: fragments of e4m3 are operands only",
    ),
    "conversion to bytes": (
        lambda: tma.fragment(8).to("e4m3"),
        "Fragment.to: n is 8; a fragment of e4m3 has 16 to 256 columns, a multiple of 16",
    ),
    "store": (
        lambda: tma.fragment(64).store(tma.shared_tile(Y), (0, 0)),
        'Fragment.store: Fragment(64 x 64, f32) into a tile of bf16: convert it first, with to("bf',
    ),
    "store beyond": (
        lambda: tma.fragment(64, "bf16").store(tma.shared_tile(Y), (0, 8)),
        "a fragment of 64 x 64 from column 8 on does not fit a tile of 64 x 64",
    ),
    "store below": (
        lambda: tma.fragment(8, "bf16").store(tma.shared_tile(X), (72, 0)),
        "a fragment of 64 x 8 from row 72 on does not fit a tile of 128 x 64",
    ),
    "store askew": (
        lambda: tma.fragment(8, "bf16").store(tma.shared_tile(Y), (0, 4)),
        "the column is 4; rows are moved 16 B at a time: use a multiple of 8 of bf16",
    ),
    "store to a line": (
        lambda: tma.fragment(8, "bf16").store(tma.shared_tile(LINE), (0, 0)),
        "the tile has the shape (4096,); a fragment is a matrix: use a tile of two axes",
    ),
    "store at": (
        lambda: tma.fragment(8, "bf16").store(tma.shared_tile(Y), 0),
        "Fragment.store(at=...) takes a (row, column) of two integers, not",
    ),
    "store where": (
        lambda: tma.fragment(8, "bf16").store(3, (0, 0)),
        "Fragment.store(tile=...) takes a tile in shared memory, not",
    ),
    "load": (
        lambda: tma.load_fragment(tma.shared_tile(Y), (0, 0), 72),
        "load_fragment: a fragment of 64 x 72 from column 0 on does not fit a tile of 64 x 64",
    ),
    "rows": (
        lambda: tma.load_rows(tma.shared_tile(Y), 0),
        "load_rows: the tile has the shape (64, 64) and holds bf16; rows have a float32 each: use",
    ),
    "rows beyond": (
        lambda: tma.load_rows(tma.shared_tile(ROWS_OF_72), 9),
        "load_rows: 64 rows from 9 on are not in a tile of 72: use a larger tile",
    ),
    "rows where": (
        lambda: tma.load_rows(tma.shared_tile(ROWS_OF_72), 1.5),
        "load_rows(start=...) takes an integer, not float64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, message = REFUSED[case]
    call_it = cuda.jit(device=True, forceinline=True)(call)

    def with_operands():
        call_it(
            tma.shared_tile(Y).matrix_descriptor(),
            tma.shared_tile(HALF).matrix_descriptor(),
            tma.shared_tile(FLOATS).matrix_descriptor(),
            tma.shared_tile(BYTES).matrix_descriptor(),
            tma.shared_tile(WIDE).matrix_descriptor(),
            tma.shared_tile(FEW).matrix_descriptor(),
        )

    body = with_operands if call.__code__.co_argcount else lambda: call_it()
    assert message in refused(body)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (types.float32[::1], "f32"),
        (types.float64[:, ::1], "f32"),
        (types.uint32[:, ::1], "f32"),
        (types.float32[:, ::1], "bf16"),
        (types.float16[:, ::1], "bf16"),
        (types.Array(types.float32, 2, "C", readonly=True), "f32"),
    ],
)
def test_an_array_of_another_kind(array, dtype):
    def body(out):
        tma.fragment(8, dtype).store_global(out, 0, 0)

    assert (
        f"Fragment.store_global(array=...) takes a two-dimensional array of {dtype} in global "
        "memory, not" in refused(body, array)
    )


@pytest.mark.parametrize(
    ("dtype", "arrays"),
    [
        ("f32", [types.float32]),
        ("i32", [types.int32]),
        ("f16", [types.float16, types.uint16, types.int16]),
        ("bf16", [types.uint16, types.int16]),
        ("e4m3", [types.uint8, types.int8]),
    ],
)
def test_arrays_that_hold_a_dtype(dtype, arrays):
    def body(out):
        tma.fragment(16, dtype).store_global(out, 0, 0)

    for element in arrays:
        emitted(body, element[:, ::1])


def test_other_gpus_have_no_wgmma():
    def body():
        x = tma.shared_tile(Y).matrix_descriptor()
        tma.wgmma(tma.fragment(64), x, x)

    assert "wgmma() needs sm_90a; this kernel is compiled for sm_100a" in refused(
        body, cc=(10, 0, "a")
    )


def test_each_form_is_one_line_of_the_legend():
    assert len({str(form) for form in FORMS}) == len(FORMS)
    with pytest.raises(ValueError, match="i8, u8 -> i32"):
        check_product(as_dtype("f32"), 8, RegisterOperand(as_dtype("i8"), 64), layout("e4m3"))
