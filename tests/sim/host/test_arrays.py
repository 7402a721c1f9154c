"""`Array` in the simulator: views are NumPy arrays over the same memory."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import as_dtype


def test_views_write_to_the_memory_of_the_array():
    memory = np.arange(64, dtype=np.float32).reshape(4, 16)
    rows = Array.read("f", "x", memory[:, :8]).as_rows()
    assert rows.strides == (64, 4) and not rows.is_contiguous
    rows.as_numpy()[1, 2] = -1
    assert memory[1, 2] == -1
    rows.view((1, 3), offset=128).as_numpy()[:] = -2
    assert (memory[2, :3] == -2).all() and memory[2, 3] == 35
    assert (rows.transposed().as_numpy() == memory[:, :8].T).all()


def test_bytes_include_the_gaps():
    memory = np.arange(64, dtype=np.uint8).reshape(4, 16)
    spanned = Array.read("f", "x", memory[1:, 2:10]).as_bytes()
    assert spanned.copy_to_host().tolist() == list(range(18, 58))
    assert Array.read("f", "x", memory[:0]).as_bytes().size == 0


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float64])
def test_elements_of_every_type(dtype):
    memory = np.arange(12).astype(dtype).reshape(3, 4)
    array = Array.read("f", "x", cuda.to_device(memory))
    assert array.as_numpy().dtype == memory.dtype
    np.testing.assert_array_equal(array.as_numpy().view(np.uint8), memory.view(np.uint8))
    assert array.as_bits().as_numpy().dtype == np.dtype(f"u{memory.itemsize}")


def test_bits_are_named_by_the_caller():
    memory = np.arange(4, dtype=np.uint16)
    array = Array.read("f", "x", memory, "bf16")
    assert array.as_numpy().dtype == ml_dtypes.bfloat16
    assert array.dtype is as_dtype("bf16") and array.stored == np.uint16


def test_what_is_no_array_is_named():
    with pytest.raises(TypeError, match=r"^f\(\): x is a list; in the simulator pass a NumPy"):
        Array.read("f", "x", [1.0])
