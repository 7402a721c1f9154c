"""The kernel that transposes V for products of e4m3, alone, in the simulator."""

import numpy as np
import pytest

from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.transpose_v import KEYS, transposed_v

#: Where the tensor cores' operand of 16 bytes has the keys that a thread holds side by side: byte
#: j of V' is that of row ORDER[j] of V.
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]


@pytest.mark.parametrize(("head_dim", "shape"), [(64, (2, 133, 2)), (128, (1, 30, 1))])
def test_keys_lie_as_the_weights_of_a_thread(head_dim, shape):
    """Keys behind the last are zeros, up to whole tiles; V is a view with gaps."""
    batch, keys, heads = shape
    memory = np.random.default_rng(1).integers(1, 255, (batch, keys, heads, 2, head_dim), np.uint8)
    v, workspace = memory[:, :, :, 1], []
    given = Array.read("attention", "v", v).as_dtype(as_dtype("e4m3"))
    found = transposed_v(given, None, workspace)
    tiles = -(-keys // KEYS)
    padded = np.zeros((batch, tiles * KEYS, heads, head_dim), np.uint8)
    padded[:, :keys] = v
    groups = padded.reshape(batch, tiles * KEYS // 16, 16, heads, head_dim)[:, :, ORDER]
    expected = groups.reshape(padded.shape).transpose(0, 2, 3, 1)
    assert found.shape == (batch, head_dim, heads, tiles * KEYS)
    np.testing.assert_array_equal(workspace[0], expected)
