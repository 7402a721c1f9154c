"""Elements of 4 and 6 bits: packing, tiles, the rules of their maps, and what a load leaves."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_tma.host import array_interface, encoding
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.packed import pack, unpack
from numba_tma.host.packed_rules import packed_violations, unpacked_address_violations
from numba_tma.host.reference import GAP, reference_reduce, reference_store, reference_tile
from numba_tma.host.tensor_map import tensor_map

FORMATS = ("e2m1", "e2m3", "e3m2")
UNPACKED = ("e2m1_unpacked", "e2m3", "e3m2")


def codes_of(name, *shape, seed=0):
    """Return random codes of a type, one a byte."""
    return np.random.default_rng(seed).integers(0, 1 << as_dtype(name).bits, shape, np.uint8)


# ------------------------------------------------------------------------------ packing


def test_the_first_element_is_in_the_low_bits():
    assert pack(np.array([0x1, 0xF, 0x3, 0x0], np.uint8), "e2m1").tolist() == [0xF1, 0x03]
    word = sum(code << 6 * i for i, code in enumerate([1, 2, 3, 63]))
    packed = pack(np.array([1, 2, 3, 63], np.uint8), "e2m3")
    assert int.from_bytes(packed.tobytes(), "little") == word and packed.shape == (3,)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), groups=st.integers(0, 5), seed=st.integers(0, 9))
def test_unpack_reverses_pack(name, rows, groups, seed):
    dtype, codes = as_dtype(name), codes_of(name, rows, 4 * groups, seed=seed)
    values = codes.view(dtype.numpy)
    assert np.array_equal(pack(values), pack(codes, name))
    assert pack(values).shape == (rows, 4 * groups * dtype.bits // 8)
    back = unpack(pack(values), name)
    assert back.dtype == dtype.numpy and np.array_equal(back.view(np.uint8), codes)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: pack(np.zeros(3, np.uint8), "e2m1"), ValueError, "in multiples of 2 elements"),
        (lambda: pack(np.zeros(6, np.uint8), "e3m2"), ValueError, "in multiples of 4 elements"),
        (lambda: pack(np.array([0, 16], np.uint8), "e2m1"), ValueError, "has the code 16"),
        (lambda: pack(np.zeros(4, np.float32), "e2m1"), TypeError, r"ml_dtypes.float4_e2m1fn\)"),
        (lambda: pack(np.zeros(4, np.uint8)), TypeError, "is u8, which has 8 bits"),
        (lambda: unpack(np.zeros(4, np.uint8), "e2m3"), ValueError, "a multiple of 3 along"),
        (lambda: unpack(np.zeros(4, np.uint8), "bf16"), TypeError, "give e2m1, e2m3 or e3m2"),
    ],
)
def test_what_cannot_be_packed(make, error, said):
    with pytest.raises(error, match=said):
        make()


# -------------------------------------------------------------------------------- tiles


@pytest.mark.parametrize(
    ("tile", "nbytes", "shared", "boxes"),
    [
        (Tile((64, 256), "e2m1", Swizzle.B128), 8192, 8192, 1),
        (Tile((64, 512), "e2m1", Swizzle.B128), 16384, 16384, 2),
        (Tile((64, 512), "e2m1"), 16384, 16384, 128),
        (Tile((64, 96), "e2m1", Swizzle.B128), 3072, 8192, 1),  # rows of 48 B, 128 B apart
        (Tile((64, 128), "e2m1_unpacked", Swizzle.B128), 4096, 8192, 1),
        (Tile((64, 256), "e2m1_unpacked", Swizzle.B128), 8192, 16384, 2),
        (Tile((64, 128), "e2m3", Swizzle.B128), 6144, 8192, 1),
        (Tile((64, 256), "e3m2", Swizzle.B128), 12288, 16384, 2),
        (Tile((4, 256), "e3m2"), 768, 1024, 8),
    ],
    ids=str,
)
def test_bytes_of_a_tile(tile, nbytes, shared, boxes):
    assert (tile.nbytes, tile.shared_nbytes, len(tile.boxes())) == (nbytes, shared, boxes)
    assert sum(Tile(tile.box, tile.dtype).nbytes for _ in tile.boxes()) == nbytes


@pytest.mark.parametrize("name", ["e2m1", *UNPACKED])
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B])
def test_a_load_puts_each_element_where_the_tile_says(name, swizzle):
    """Element by element: bits at `Tile.offset`, zeros outside, and gaps between the data."""
    dtype, width = as_dtype(name), 256
    tile = Tile((8, width), dtype, swizzle)
    codes = codes_of(name, 10, 384)
    image = reference_tile(pack(codes, name), tile, (3, 256))
    assert image.shape == (tile.shared_nbytes,)
    bits = np.unpackbits(image, bitorder="little")
    data = np.zeros(len(bits), bool)
    for row in range(8):
        for column in range(width):
            first = 8 * int(tile.offset(row, column)) + column % 16 * dtype.bits % 8
            inside = 3 + row < 10 and 256 + column < 384
            code = codes[3 + row, 256 + column] if inside else 0
            # A code may go on in the next byte, which is in the same 16 bytes.
            assert sum(int(b) << i for i, b in enumerate(bits[first:][: dtype.bits])) == code
            data[first : first + dtype.bits] = True
    assert data.sum() == 8 * tile.nbytes
    gaps = ~data.reshape(-1, 8).any(1)
    assert gaps.sum() == tile.shared_nbytes - tile.nbytes
    assert (image[gaps] == GAP).all()


def test_a_packed_tile_is_stored():
    codes = codes_of("e2m1", 4, 128)
    tile, array = Tile((4, 64), "e2m1", Swizzle.B32), pack(codes, "e2m1")
    image = reference_tile(array, tile, (0, 64))
    target = np.zeros((3, 32), np.uint8)
    reference_store(target, image, tile, (1, 0))
    assert np.array_equal(target[1:, :], array[:2, 32:]) and not target[0].any()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: reference_store(
                np.zeros((4, 96), "u1"), np.zeros(512, "u1"), Tile((4, 128), "e2m3"), (0, 0)
            ),
            TypeError, "loaded and never stored",
        ),
        (
            lambda: reference_reduce(
                np.zeros((4, 64), "u1"), np.zeros(256, "u1"), Tile((4, 128), "e2m1"), (0, 0), "add"
            ),
            ValueError, "no reduction of e2m1",
        ),
        (
            lambda: reference_tile(np.zeros((4, 64), "u2"), Tile((4, 128), "e2m1"), (0, 0)),
            TypeError, "takes the bytes of packed elements",
        ),
        (
            lambda: reference_tile(
                np.zeros((4, 128), ml_dtypes.float4_e2m1fn), Tile((4, 128), "e2m1"), (0, 0)
            ),
            TypeError, r"use pack\(array\)",
        ),
        (
            lambda: reference_tile(np.zeros((4, 10), "u1"), Tile((4, 128), "e2m3"), (0, 0)),
            ValueError, "a multiple of 12 B",
        ),
        (
            lambda: reference_tile(
                np.zeros((4, 64), "u1"), Tile((4, 128), "e2m1"), (0, 0), oob_fill="nan"
            ),
            ValueError, 'e2m1 takes "zeros"',
        ),
    ],
)  # fmt: skip
def test_references_refuse(make, error, said):
    with pytest.raises(error, match=said):
        make()


# ---------------------------------------------------------------------------------- maps


class Bytes:
    """Looks like a Numba array of bytes on a GPU."""

    __cuda_ndarray__ = True

    def __init__(self, shape, strides=None, address=0x7F00_0000_0000, dtype=np.uint8):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = strides or np.empty(shape, self.dtype).strides
        self.device_ctypes_pointer = type("Pointer", (), {"value": address})


@pytest.fixture(autouse=True)
def capability(monkeypatch):
    """Encode for a GPU of compute capability 10.0; return the arguments of the calls."""
    calls = []
    monkeypatch.setattr(encoding, "compute_capability", lambda device: (10, 0))
    monkeypatch.setattr(encoding, "encode_tiled", lambda *arguments: calls.append(arguments))
    module = __import__("numba_tma.host.tensor_map", fromlist=["_"])
    monkeypatch.setattr(module, "current_device", lambda: 0)
    monkeypatch.setattr(array_interface, "readers", {})
    monkeypatch.setattr(module, "readers", array_interface.readers)
    encoding.encode.cache_clear()
    yield calls
    encoding.encode.cache_clear()


@pytest.mark.parametrize(
    ("name", "nbytes", "kind"),
    [
        ("e2m1", 128, "16U4_ALIGN8B"),
        ("e2m1_unpacked", 128, "16U4_ALIGN16B"),
        ("e2m3", 192, "16U6_ALIGN16B"),
        ("e3m2", 192, "16U6_ALIGN16B"),
    ],
)
def test_the_driver_gets_elements_and_strides_in_bytes(name, nbytes, kind, capability):
    tile = Tile((2, 64, 128), name, Swizzle.B128)
    made = tensor_map(Bytes((3, 100, nbytes)), tile, dtype=name)
    dtype, _, shape, strides, box, *_ = capability[0]
    assert dtype.tensor_map == kind
    assert shape == (3, 100, 256) and box == (2, 64, 128)
    assert strides[:-1] == (100 * nbytes, nbytes)
    assert (made.shape, made.dtype, made.tile) == ((3, 100, 256), as_dtype(name), tile)
    assert bool(made.partial_rows) == (name != "e2m1")  # loads only
    assert f"{tile.nbytes:,} B to its barrier" in made.explain()
    assert f"contiguous ({dtype.bits} bits)" in made.explain()
    other = made.replace_address  # the array is of bytes, its shape that of the memory
    with pytest.raises(ValueError, match=r"shape \(3, 100, 64\)"):
        other(Bytes((3, 100, 64)))


def test_elements_of_a_library_need_no_dtype():
    pairs = type("dtype", (), {"__repr__": lambda self: "torch.float4_e2m1fn_x2", "itemsize": 1})
    pairs.__module__ = "torch"
    array = Bytes((64, 128))
    array.dtype = pairs()
    for name in ("e2m1", "e2m1_unpacked"):
        made = tensor_map(array, Tile((64, 128), name, Swizzle.B128))
        assert made.shape == (64, 256) and made.dtype is as_dtype(name)
    scales = Bytes((64, 128), dtype=ml_dtypes.float8_e4m3fn)
    assert tensor_map(scales, Tile((64, 128), "ue4m3")).dtype is as_dtype("ue4m3")


def test_an_array_of_kernels_counts_bytes():
    array = Array.read("matmul", "a", Bytes((64, 128)), "e2m1")
    assert (array.shape, array.itemsize, array.nbytes) == ((64, 128), 1, 64 * 128)
    assert array.is_loadable and array.as_bits().dtype is as_dtype("u8")
    assert tensor_map(array, Tile((64, 128), "e2m1")).shape == (64, 256)
    with pytest.raises(
        TypeError, match=r"matmul\(\): a has .*one byte|holds each element in a byte"
    ):
        Array.read("matmul", "a", Bytes((64, 128), dtype=ml_dtypes.float4_e2m1fn), "e2m1")


U4, U4G, U6 = "e2m1", "e2m1_unpacked", "e3m2"


@pytest.mark.parametrize(
    ("array", "tile", "options", "said"),
    [
        (Bytes((64, 100)), Tile((64, 128), U4G, Swizzle.B128), {},
         "multiple of 128 elements (64 B) there: pad the rows to 128 B"),
        (Bytes((64, 112)), Tile((64, 128), U6, Swizzle.B128), {}, "pad the rows to 192 B"),
        (Bytes((64, 192)), Tile((64, 64), U6, Swizzle.B128), {}, "TMA copies exactly 128 along"),
        (Bytes((64, 192)), Tile((64, 192), U6), {}, "TMA copies exactly 128 along"),
        (Bytes((64, 96), address=0x7F00_0000_0010), Tile((64, 128), U6), {},
         "16 B past a multiple of 32 B; TMA needs the multiple for 16U6_ALIGN16B"),
        (Bytes((64, 96), strides=(112, 1)), Tile((64, 128), U6), {},
         "axis 0 stride is 112 B; TMA needs a multiple of 32 B for 16U6_ALIGN16B"),
        (Bytes((64, 128)), Tile((64, 128), U4G, Swizzle.B64), {},
         "swizzle is B64, but tiles of e2m1_unpacked have none, B128 or B128_ATOM_32B"),
        (Bytes((64, 128)), Tile((64, 80), U4), {}, "multiple of 16 B along the innermost axis"),
        (Bytes((64, 128)), Tile((64, 128), U4), {"oob_fill": "nan"}, "which has no NaN"),
        (Bytes((64, 128)), Tile((64, 512), U4, Swizzle.B128), {"fold": True},
         "fold=True is not modelled for e2m1"),
        (Bytes((2, 2, 4, 16)), Tile((1, 1, 4, 32), U4), {"interleave": 16},
         "interleave=16 is not modelled for e2m1"),
        (Bytes((64, 128), dtype=ml_dtypes.float4_e2m1fn), Tile((64, 128), U4), {},
         "pass the bytes of numba_tma.pack(array)"),
        (Bytes((64, 64), dtype=np.uint16), Tile((64, 128), U4), {}, "dtype e2m1 has 1 B"),
        (Bytes((2, 1 << 32)), Tile((1, 128), U4), {}, "8589934592 e2m1; TMA takes 1 to 2**32"),
    ],
)  # fmt: skip
def test_broken_rules(array, tile, options, said):
    with pytest.raises((ValueError, TypeError)) as raised:
        tensor_map(array, tile, dtype=tile.dtype, **options)
    assert said in str(raised.value)


def test_bytes_are_not_taken_for_elements():
    with pytest.raises(ValueError, match='pass dtype="e2m1" if that is what the bits are'):
        tensor_map(Bytes((64, 128)), Tile((64, 128), "e2m1"))


@pytest.mark.parametrize("name", ["e2m1", *UNPACKED])
def test_older_gpus_do_not_copy_them(name, monkeypatch):
    monkeypatch.setattr(encoding, "compute_capability", lambda device: (9, 0))
    with pytest.raises(ValueError, match=rf"{name}, whose copies begin with .* 10.0; .* has 9.0"):
        tensor_map(Bytes((64, 192)), Tile((64, 128), name), dtype=name)
    assert tensor_map(Bytes((64, 192)), Tile((64, 192), "u8")).dtype is as_dtype("u8")


@pytest.mark.parametrize("shape", [(), (0, 64), (4, 0)])
def test_an_array_without_elements_breaks_other_rules(shape):
    strides = (64,) * len(shape)
    assert packed_violations(as_dtype("e2m1"), 0, shape, strides, Swizzle.NONE) == []


def violations(name, shape, *, address=0, strides=None, swizzle=Swizzle.NONE):
    strides = strides or np.empty(shape, np.uint8).strides
    return packed_violations(as_dtype(name), address, shape, strides, swizzle)


@pytest.mark.parametrize("name", ["e2m1", *UNPACKED, "u8"])
def test_unpacked_types_alone_begin_at_multiples_of_32_bytes(name):
    """Addresses off 16 bytes break a rule of all types, which is not here."""
    for offset in range(64):
        found = unpacked_address_violations(0x7F00_0000_0000 + offset, as_dtype(name))
        assert len(found) == (name in UNPACKED and offset % 32 == 16)


@pytest.mark.parametrize("name", UNPACKED)
@pytest.mark.parametrize("leading", [(), (3,), (1,), (2, 3)])
def test_rows_of_unpacked_types_are_whole_runs_of_128_elements(name, leading):
    whole = 128 * as_dtype(name).bits // 8
    for nbytes in (whole, 2 * whole):
        assert violations(name, (*leading, nbytes)) == []
        wrong = violations(name, (*leading, nbytes + 32))[0]
        assert wrong.startswith(f"axis {len(leading)} has {nbytes + 32} B = ")
        assert wrong.endswith(f"pad the rows to {nbytes + whole} B")


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_a_row_has_as_many_elements_as_an_axis_of_a_map(leading):
    most = 1 << 31  # bytes of 2**32 elements of 4 bits
    strides = (most,) * len(leading) + (1,)
    for nbytes, parts in ((most - 1, 0), (most, 0), (most + 1, 2), (2 * most, 2), (3 * most, 3)):
        found = violations("e2m1", (*leading, nbytes), strides=strides)
        assert len(found) == bool(parts)
        if parts:
            assert found[0].startswith(f"axis {len(leading)} has {2 * nbytes} e2m1; ")
            assert found[0].endswith(f"make {parts} maps of parts of the array")


def test_strides_of_unpacked_types_are_multiples_of_32_bytes():
    """Those off 16 bytes break a rule of all types, and of packed types none is refused here."""
    for first, second in itertools.product(range(96, 161, 8), repeat=2):
        found = violations("e2m3", (2, 2, 96), strides=(first, second, 1))
        wrong = [(i, n) for i, n in enumerate((first, second)) if n % 32 == 16]
        assert [text.partition("; ")[0] for text in found] == [
            f"axis {axis} stride is {stride} B" for axis, stride in wrong
        ]
        for text, (_, stride) in zip(found, wrong, strict=True):
            assert text.endswith(f"lay the array out with {stride + 16} B there")
        assert violations("e2m1", (2, 2, 96), strides=(first, second, 1)) == []
