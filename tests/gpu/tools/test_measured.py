"""Behaviour that manuals leave open: measured, printed (pytest -s), compared with the model."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype, names
from numba_tma.tools.pytest_plugin.worker import WorkerLost
from tests.gpu import copies
from tests.gpu.copies import Tensor
from tests.gpu.worker import on_gpu

FLOATS = [name for name in names if as_dtype(name).is_float]
CONVERTED = ["f32", "tf32", "f32_ftz", "tf32_ftz"]

# Zero, denormals, the ends of the normal range, ties and their neighbours at 10 mantissa bits
# (below an even and an odd last bit), infinity, and NaNs, quiet and signalling.
PATTERNS = [
    0x00000000, 0x00000001, 0x00001000, 0x00400000, 0x007FFFFF, 0x00800000, 0x00801000,
    0x3F800000, 0x3F800001, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F801FFF, 0x3F802000,
    0x3F802FFF, 0x3F803000, 0x3F803001, 0x3FFFFFFF, 0x7F7FEFFF, 0x7F7FF000, 0x7F7FFFFF,
    0x7F800000, 0x7F800001, 0x7F801000, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF,
]  # fmt: skip
BITS = np.array(PATTERNS + [p | 0x80000000 for p in PATTERNS], np.uint32)


def table(title, rows):
    """Print rows of columns."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)))


# ---------------------------------------------------------------------------- NaN fill


@on_gpu
def fill_bits(name):
    """Return the different elements of a tile that lies outside of its tensor."""
    dtype = as_dtype(name)
    tile = tma.Tile((4, 64 // dtype.itemsize), dtype)
    tensor = Tensor((4, tile.shape[1]), (64, dtype.itemsize), dtype.itemsize)
    device = tensor.on_device(cuda.to_device(np.zeros(tensor.nbytes, np.uint8)))
    tensor_map = tma.tensor_map(device, tile, dtype=dtype, oob_fill="nan")
    image, completed = copies.load(tensor_map, (100, 0), tile.nbytes, tile.nbytes)
    assert completed
    return [int(bits) for bits in np.unique(image.view(f"u{dtype.itemsize}"))]


def test_nan_fill():
    rows, wrong = [("type", "measured", "model")], []
    for name in FLOATS:
        tile = tma.Tile((1, 64), name)
        array = np.zeros((1, 64), tile.dtype.numpy)
        model = tma.reference_tile(array, tile, (9, 0), oob_fill="nan")
        expected = int(model.view(f"u{tile.itemsize}")[0])
        measured = fill_bits(name)
        rows.append((name, " ".join(map(hex, measured)), hex(expected)))
        if measured != [expected]:
            wrong.append(name)
    table("NaN fill", rows)
    assert not wrong


# ------------------------------------------------------------------------- conversions


@on_gpu
def converted(name, bits, direction):
    """Return what a load, or a store, of float32 bits makes of them."""
    tile, width = tma.Tile((1, bits.size), name), 4 * bits.size
    tensor = Tensor((1, bits.size), (width, 4), 4)
    memory = np.zeros(tensor.nbytes, np.uint8)
    tensor.of(memory)[:] = bits if direction == "load" else 0
    device = cuda.to_device(memory)
    tensor_map = tma.tensor_map(tensor.on_device(device), tile, dtype=name)
    if direction == "load":
        image, completed = copies.load(tensor_map, (0, 0), tile.nbytes, tile.nbytes)
        assert completed
        return image.view(np.uint32)
    copies.store(tensor_map, (0, 0), bits)
    return tensor.of(device.copy_to_host())[0]


def modelled(name, bits, direction):
    tile, array = tma.Tile((1, bits.size), name), bits.reshape(1, -1).copy()
    if direction == "load":
        return tma.reference_tile(array, tile, (0, 0)).view(np.uint32)
    tma.reference_store(array, bits.view(np.uint8), tile, (0, 0))
    return array[0]


@pytest.mark.parametrize("direction", ["load", "store"])
def test_what_a_copy_does_to_float32_bits(direction):
    assert BITS.size * 4 % 16 == 0
    rows = [("bits", *CONVERTED, "(only what is changed; * is other than the model, which says)")]
    measured = {name: converted(name, BITS, direction) for name in CONVERTED}
    expected = {name: modelled(name, BITS, direction) for name in CONVERTED}
    for i, bits in enumerate(BITS):
        wrong = [name for name in CONVERTED if measured[name][i] != expected[name][i]]
        if wrong or any(measured[name][i] != bits for name in CONVERTED):
            cells = [f"{measured[n][i]:08x}{'*' if n in wrong else ''}" for n in CONVERTED]
            says = ", ".join(f"{name} {expected[name][i]:08x}" for name in wrong)
            rows.append((f"{bits:08x}", *cells, says))
    table(f"float32 bits after a {direction}", rows)
    assert [n for n in CONVERTED if not np.array_equal(measured[n], expected[n])] == []


@pytest.mark.parametrize("direction", ["load", "store"])
@pytest.mark.parametrize("name", CONVERTED)
def test_random_float32_bits(name, direction):
    rng = np.random.default_rng(0)
    for _ in range(8):
        bits = rng.integers(0, 2**32, 256, np.uint32)
        np.testing.assert_array_equal(
            converted(name, bits, direction), modelled(name, bits, direction)
        )


# --------------------------------------------------------- rows narrower than the swizzle

ROWS = 20


def numbered(tensor):
    """Return memory in which each 16-byte chunk holds its own number, 8 times."""
    return np.repeat(np.arange(tensor.nbytes // 16, dtype=np.uint16), 8).view(np.uint8)


@on_gpu
def narrow_image(swizzle, chunks):
    """Return a load of rows of so many chunks, and whether packed or padded bytes were counted."""
    tile = tma.Tile((ROWS, 8 * chunks), "u16", swizzle)
    tensor = Tensor((ROWS, 8 * chunks), (16 * chunks, 2), 2)
    memory = numbered(tensor)
    tensor_map = tma.tensor_map(tensor.on_device(cuda.to_device(memory)), tile)
    window = ROWS * tile.swizzle.span + 1024
    counted = {}
    for what, nbytes in (("packed", tile.nbytes), ("padded", ROWS * tile.swizzle.span)):
        image, counted[what] = copies.load(tensor_map, (0, 0), nbytes, window)
    return image, counted


def landed(image):
    """Return chunk number -> the chunk of shared memory in which it lies whole."""
    chunks = image.view(np.uint16).reshape(-1, 8)
    canary = copies.canaries(4).view(np.uint16)
    whole = (chunks == chunks[:, :1]).all(-1) & (chunks[:, 0] != canary[0])
    return {int(chunks[at, 0]): int(at) for at in np.flatnonzero(whole)}


def places_of(tile, pitch):
    """Return chunk number -> chunk of shared memory, rows `pitch` bytes apart, then swizzled."""
    chunks = tile.shape[1] // 8
    number = np.arange(ROWS * chunks)
    offsets = number // chunks * pitch + number % chunks * 16
    return dict(zip(number.tolist(), (tma.swizzle_index(tile.swizzle, offsets) // 16).tolist()))


def modelled_places(tile):
    """Return chunk number -> chunk of shared memory, by the tile itself."""
    chunks = tile.shape[1] // 8
    return {n: tile.offset(n // chunks, n % chunks * 8) // 16 for n in range(ROWS * chunks)}


def test_rows_narrower_than_the_swizzle():
    rows, wrong = [("swizzle", "row", "bytes counted", "layout", "first chunks lie at")], []
    for swizzle in (tma.Swizzle.B32, tma.Swizzle.B64, tma.Swizzle.B128):
        for chunks in range(1, swizzle.span // 16 + 1):
            tile = tma.Tile((ROWS, 8 * chunks), "u16", swizzle)
            image, counted = narrow_image(swizzle, chunks)
            places = landed(image)
            pitches = {"packed": 16 * chunks, "padded": swizzle.span}
            found = [n for n, pitch in pitches.items() if places == places_of(tile, pitch)]
            counts = [n for n, complete in counted.items() if complete]
            first = " ".join(str(places.get(i, "-")) for i in range(20))
            rows.append((swizzle.name, f"{16 * chunks} B", counts, found or "neither", first))
            if places != modelled_places(tile) or not counted["packed"]:
                wrong.append(f"{swizzle.name} {16 * chunks} B")
    table(f"{ROWS} rows narrower than the swizzle, in chunks of 16 B", rows)
    assert not wrong


# ------------------------------------------------------------------- the edges of a store


@on_gpu
def store_at(coords, columns):
    """Return 8 rows of 64 bytes, 0xff before a store of 1s at `coords` in a tensor of `columns`."""
    memory = cuda.to_device(np.full(8 * 64, 0xFF, np.uint8))
    tensor = Tensor((8, columns), (64, 1), 1).on_device(memory)
    tensor_map = tma.tensor_map(tensor, tma.Tile((8, 64), "u8"))
    copies.store(tensor_map, coords, np.ones(512, np.uint8))
    return memory.copy_to_host().reshape(8, 64)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 43, 48, 63, 64])
def test_a_store_ends_a_row_with_a_whole_chunk(columns):
    stored = store_at((0, 0), columns) == 1
    written = -(-columns // 16) * 16
    print(f"a store to rows of {columns} B writes {int(stored[0].sum())} B of each")
    assert stored[:, :written].all() and not stored[:, written:].any()


@pytest.mark.parametrize("coords", [(-1, 0), (0, -16), (-8, 0)])
def test_a_store_before_the_tensor_is_an_illegal_instruction(coords):
    with pytest.raises(WorkerLost, match=r"(?is)illegal.?instruction"):
        store_at(coords, 64)
