"""Atomic operations on elements of tiles, checked in the simulator and on a GPU."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.host.dtypes import as_dtype

THREADS, ROWS, COLUMNS = 64, 8, 4  #: the threads share the first columns of a tile's rows
NUMBERS = ("f32", "f64", "i32", "u32", "i64", "u64")
INTEGERS, UNSIGNED = NUMBERS[2:], ("u32", "u64")
#: Operations whose result does not depend on the order of the threads, and their elements.
CASES = [
    *((name, dtype) for name in ("add", "sub", "min", "max") for dtype in NUMBERS),
    *((name, dtype) for name in ("nanmin", "nanmax") for dtype in ("f32", "f64", "i32")),
    *((name, dtype) for name in ("and_", "or_", "xor") for dtype in INTEGERS),
    *((name, dtype) for name in ("inc", "dec") for dtype in UNSIGNED),
]
_MODEL = {
    "add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "nanmin": np.fmin,
    "nanmax": np.fmax, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
}  # fmt: skip


def tile_of(dtype):
    return Tile((ROWS, 128 // as_dtype(dtype).itemsize), dtype, Swizzle.B128)


def changing(tile, change):
    """Return a kernel in which all threads `change` elements of a tile, which is then stored."""

    @cuda.jit
    def kernel(x, y, values):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.load(held, (0, 0), full)
        cuda.syncthreads()
        full.wait(0)
        thread = cuda.threadIdx.x
        change(held, thread % ROWS, thread // ROWS % COLUMNS, values, thread)
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            y.store(held, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return kernel


def change_by(statement):
    """Return the device function of a statement, for `changing`."""
    names = {"cuda": cuda}
    exec(f"def change(held, i, j, values, thread):\n    {statement}", names)
    return cuda.jit(device=True)(names["change"])


def run(tile, change, x, values):
    y, values = cuda.to_device(np.zeros_like(x)), cuda.to_device(values)
    maps = [tma.tensor_map(array, tile) for array in (cuda.to_device(x), y)]
    changing(tile, change)[1, THREADS](*maps, values)
    return y.copy_to_host(), values.copy_to_host()


def check_operation(name, dtype):
    """Let two threads change each of some elements; the rest of the tile stays as it was."""
    tile = tile_of(dtype)
    random = np.random.default_rng(len(name))
    x = random.integers(0, 20, tile.shape).astype(tile.dtype.numpy)
    values = random.integers(0, 20, THREADS).astype(tile.dtype.numpy)

    if name in ("inc", "dec"):
        values[:] = 7  # one limit, so that the order does not matter
    change = change_by(f"cuda.atomic.{name}(held, (i, j), values[thread])")
    expected = x.copy()
    with np.errstate(over="ignore"):
        for thread, value in enumerate(values):
            at = thread % ROWS, thread // ROWS % COLUMNS
            expected[at] = _MODEL[name](expected[at], value)
    stored, _ = run(tile, change, x, values)
    np.testing.assert_array_equal(stored, expected)


def check_exchange():
    """Exchange elements: what comes out is what was there, and what went in is there at last."""
    tile = tile_of("i32")
    x = np.arange(tile.size, dtype=np.int32).reshape(tile.shape)

    @cuda.jit(device=True)
    def change(held, i, j, values, thread):
        values[thread] = cuda.atomic.exch(held, (i, j), -1 - thread)

    stored, old = run(tile, change, x, np.zeros(THREADS, np.int32))
    seen = [*stored[:, :COLUMNS].reshape(-1), *old]
    assert sorted(seen) == sorted([*x[:, :COLUMNS].reshape(-1), *range(-THREADS, 0)])
    np.testing.assert_array_equal(stored[:, COLUMNS:], x[:, COLUMNS:])


def check_lock():
    """Count under a lock in another element: no increment is lost."""
    tile = Tile((4, 32), "u32", Swizzle.B128)

    @cuda.jit(device=True)
    def change(held, i, j, values, thread):
        if thread % 32 == 0:  # one thread a warp: others would wait for their own warp
            while cuda.atomic.cas(held, (1, 5), 0, 1) != 0:
                pass
            cuda.threadfence_block()
            held[3, 7] += 1
            cuda.threadfence_block()
            cuda.atomic.exch(held, (1, 5), 0)

    x = np.zeros(tile.shape, np.uint32)
    stored, _ = run(tile, change, x, np.zeros(1, np.uint32))
    x[3, 7] = THREADS // 32
    np.testing.assert_array_equal(stored, x)
