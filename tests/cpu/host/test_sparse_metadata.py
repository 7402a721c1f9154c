"""What a sparse operand stores, and its metadata; the simulator's tests multiply by them."""

import numpy as np
import pytest

import numba_tma as tma
from tests.kernels.tensor_variants import sparse_rows


def dense(stored, metadata, k, size):
    """Return A of 8-bit elements from what is stored: the reverse of compression, bit by bit."""
    out = np.zeros((len(stored), k))
    for row, column in np.ndindex(stored.shape):
        group, which = divmod(column, size // 2)
        word = metadata[group // 32, row, group // 8 % 4]
        code = int(word) >> group % 8 * 4 & 0xF
        out[row, group * size + (code >> 2 * which & 3)] = stored[row, column]
    return out


def test_compressed_rows():
    a = sparse_rows(128, 256, "e4m3", 3)
    stored, metadata = tma.sparse_compress(a)
    assert metadata.shape == (2, 128, 4) and metadata.dtype == np.uint32
    np.testing.assert_array_equal(dense(stored, metadata, 256, 4), a.astype(np.float64))


@pytest.mark.parametrize("m", [32, 64, 128])
def test_the_metadata_of_32_bits_is_that_of_two_halves_an_element(m):
    """Of each 2 elements one is stored, which are the first two halves or the last two of 4."""
    kept = np.random.default_rng(4).integers(0, 2, (128, 32))
    halves = np.repeat(np.stack([1 - kept, kept], axis=-1).reshape(128, 64), 2, axis=-1)
    wide = halves.astype(np.float16).view(np.float32)
    _, expected = tma.sparse_compress(halves.astype(np.float16), m=m)
    np.testing.assert_array_equal(tma.sparse_compress(wide, m=m)[1], expected)


@pytest.mark.parametrize(
    ("matrix", "given", "text"),
    [
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
