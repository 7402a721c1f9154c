"""What a sparse operand stores, and its metadata; the simulator's tests multiply by them."""

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.sparse_metadata import SPARSE_TYPES, metadata_cells
from tests.kernels.tensor_variants import sparse_rows


def dense(stored, metadata, m):
    """Return A from what is stored: the reverse of compression, bit by bit."""
    out = np.zeros((len(stored), 2 * stored.shape[1]))
    for place, column in np.ndindex(stored.shape):
        (block, row), (group, which) = divmod(place, m), divmod(column, 2)
        word, code, shift = group // 8, group % 8, group % 8 * 4
        if stored.itemsize == 2:  # half a word of a row, and half of one 8 lanes further
            row, shift = row // 16 * 16 + row % 8 + code // 4 * 8, row // 8 % 2 * 16 + code % 4 * 4
        lanes = metadata[word // 4, 128 * block : 128 * block + 128, word % 4]
        (code,) = {int(lane) >> shift & 0xF for lane in lanes[row::m]}  # each fold has it
        out[place, group * 4 + (code >> 2 * which & 3)] = stored[place, column]
    return out


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["e4m3", "bf16"])
def test_compressed_rows(dtype, m):
    a = sparse_rows(128, 256, dtype, 3)
    stored, metadata = tma.sparse_compress(a, m=m)
    assert metadata.shape == (2, 128 * 128 // m, 4) and metadata.dtype == np.uint32
    np.testing.assert_array_equal(dense(stored, metadata, m), a.astype(np.float64))


@pytest.mark.parametrize("rows", [16, 32, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_each_code_has_four_bits_of_the_cells_to_itself(bits, rows):
    """As the figures of PTX show them: cell by cell, the row and the code of each four bits."""
    for selector in range(1 if bits == 8 else 2):
        lanes, columns, shifts = metadata_cells(bits, rows, *[selector][: bits > 8])
        found = np.stack([lanes, columns, shifts], axis=-1)
        for lane, column, shift in np.ndindex(rows, 2 if bits == 8 else 1, 8):
            if bits == 8:  # 16 codes of the lane's row, in two columns
                row, code = lane, 8 * column + shift
            else:  # four codes each of two rows, 8 apart
                row = lane // 16 * 16 + lane % 8 + 8 * (shift // 4)
                code, column = lane % 16 // 8 * 4 + shift % 4, selector
            assert found[row, code].tolist() == [lane, column, 4 * shift]
        assert found[..., 0].size == rows * (16 if bits == 8 else 8)
    assert not metadata_cells(16, rows).column.any()


@pytest.mark.parametrize("name", SPARSE_TYPES)
def test_a_copy_has_the_metadata_of_128_elements_or_of_64_of_32_bits(name):
    bits = as_dtype(name).shared_bits
    step = 512 // bits  # along K: an instruction reads 256 bits of what is stored, which is half
    for k in range(step, 600, step):
        copies = -(-k // (64 if bits == 32 else 128))
        assert tma.metadata_tile(k, name) == tma.Tile((copies, 128, 4), "u32")
    for k in (0, step // 2, step + 1):
        with pytest.raises(ValueError, match=f"k is {k}; .* has {step} elements of {name} along K"):
            tma.metadata_tile(k, name)


@pytest.mark.parametrize("m", [32, 64, 128])
def test_the_metadata_of_32_bits_is_that_of_two_halves_an_element(m):
    """Of each 2 elements one is stored, which are the first two halves or the last two of 4."""
    kept = np.random.default_rng(4).integers(0, 2, (128, 32))
    halves = np.repeat(np.stack([1 - kept, kept], axis=-1).reshape(128, 64), 2, axis=-1)
    wide = halves.astype(np.float16).view(np.float32)
    _, expected = tma.sparse_compress(halves.astype(np.float16), m=m)
    np.testing.assert_array_equal(tma.sparse_compress(wide, m=m)[1], expected)


#: Rows of two elements in each group but one, which has three.
THREE = np.tile(np.array([1, 0, 0, 2], np.float16), (128, 16))
THREE[77, 20:24] = 1, 0, 2, 3


@pytest.mark.parametrize(
    ("matrix", "given", "text"),
    [
        (THREE, {}, "row 77 has 3 elements that are not zero from K 20 on"),
        (np.ones((128, 32), np.float16), {}, "row 0 has 4 elements that are not zero from K 0 on"),
        (np.ones((128, 16), np.float32), {}, "has 2 elements .* at most 1 of each 2"),
        (np.zeros((100, 32), np.float16), {}, r"shape \(100, 32\) and m is 128; .* multiple of m"),
        (np.zeros((128, 48), np.int8), {}, "k is 48; .* use a multiple of 64"),
        (np.zeros((128, 64), np.float64), {}, "dtype is dtype.'float64'.; a sparse operand is one"),
    ],
)
def test_what_cannot_be_compressed(matrix, given, text):
    with pytest.raises(ValueError, match=text):
        tma.sparse_compress(matrix, **given)
