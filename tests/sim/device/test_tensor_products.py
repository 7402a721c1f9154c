"""tcgen05_mma in the simulator: small integers are exact; what is refused."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.host.packed import pack
from numba_tma.host.scale_factors import to_blocked
from tests.kernels.tensor_gemm import ROLES, SWIZZLE, V, gemm, integers, paired, scaled, weights
from tests.tiers import every

THREADS = ROLES.threads
PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "mma.md").read_text()


def test_the_page_s_matmul():
    codes = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (code,) = (code for code in codes if "tcgen05_mma" in code and "import numpy" in code)
    exec(compile(code, "docs/guide/mma.md", "exec"), {"__name__": "page"})  # it checks its result


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(
    ("n", "dtype", "k", "acc", "b_major", "k_steps"),
    every(
        2,
        [
            (32, "bfloat16", 64, "f32", "K", None),
            (64, "bfloat16", 64, "f32", "MN", None),
            (16, "float8_e4m3fn", 128, "f16", "K", None),
            (32, "float32", 32, "f32", "K", 3),
            (16, "int8", 128, "i32", "K", None),
        ],
    ),
)
def test_products(n, dtype, k, acc, b_major, k_steps):
    tiles, kernel = gemm(n, np.dtype(getattr(ml_dtypes, dtype, dtype)), k, acc, b_major, k_steps)
    a, b = integers((128, 2 * k), dtype, 0), integers((n, 2 * k), dtype, 1)
    given = (a, b if b_major == "K" else np.ascontiguousarray(b.T))
    out = np.zeros((128, n), np.float64)
    maps = [tma.tensor_map(x, tile) for x, tile in zip(given, tiles)]
    kernel[1, THREADS](*maps, out, 2)
    if k_steps is not None:
        used = k_steps * 32 // tiles[0].itemsize
        a = a.reshape(128, 2, k)[..., :used].reshape(128, -1)
        b = b.reshape(n, 2, k)[..., :used].reshape(n, -1)
    np.testing.assert_array_equal(out, product(a, b))


@pytest.mark.parametrize(
    ("n", "dtype", "k", "scale", "block"),
    every(
        3,
        [
            (32, "e4m3", 128, "ue8m0", 32),
            (144, "e2m1", 256, "ue4m3", 16),
            (32, "e2m1", 256, "ue8m0", 32),
        ],
    ),
)
def test_scaled_products(n, dtype, k, scale, block):
    tiles, kernel = scaled(n, dtype, k, scale, block)
    kind = tiles[0].dtype.numpy
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-2, 3, (rows, 2 * k)).astype(kind) for rows in (128, n))
    powers = [rng.integers(0, 4, (rows, 2 * k // block)) for rows in (128, n)]
    factors = [np.exp2(p).astype(tiles[2].dtype.numpy) for p in powers]
    stored = [pack(x) if tiles[0].dtype.is_packed else x for x in (a, b)]
    blocked = [to_blocked(f) for f in factors]
    maps = [
        *(tma.tensor_map(x, t, dtype=t.dtype) for x, t in zip(stored, tiles)),
        *(tma.tensor_map(f.view(np.uint8), t, dtype=t.dtype) for f, t in zip(blocked, tiles[2:])),
    ]
    out = np.zeros((128, n), np.float64)
    kernel[1, THREADS](*maps, out, 2)
    wide = [x.astype(np.float64) * np.repeat(2.0**p, block, 1) for x, p in zip((a, b), powers)]
    np.testing.assert_array_equal(out, wide[0] @ wide[1].T)


@pytest.mark.slow
def test_a_pair_of_blocks():
    tiles, kernel = paired(64)
    a, b = integers((256, 128), "bfloat16", 5), integers((64, 128), "bfloat16", 6)
    out = np.zeros((256, 64), np.float32)
    kernel[2, THREADS](*(tma.tensor_map(x, t) for x, t in zip((a, b), tiles)), out, 2)
    np.testing.assert_array_equal(out, product(a, b))


def test_an_operand_in_tensor_memory():
    p = integers((128, 32), "float32", 3)
    v = integers((32, 64), "bfloat16", 4)
    out = np.zeros((128, 64), np.float32)
    weights[1, THREADS](p, tma.tensor_map(v, V), out)
    np.testing.assert_array_equal(out, -(p.astype(np.float64) @ v.astype(np.float64)))


# ----------------------------------------------------------------------------- refusals

TMEM = tma.TensorMemory(64)
A, B = tma.Tile((128, 64), "bf16", SWIZZLE), tma.Tile((32, 64), "bf16", SWIZZLE)


def fails(body):
    def kernel():
        tmem = TMEM.start()
        acc = tmem.tile(128, 32)
        a, b = tma.shared_tile(A), tma.shared_tile(B)
        body(acc, a, b)
        tmem.close()

    with pytest.raises(sim.SimulatorError) as caught:
        cuda.jit(kernel)[1, 32]()
    return str(caught.value)


def test_errors_are_those_of_the_compiler():
    def no_scales(acc, a, b):
        tma.tcgen05_mma(acc, a, b, accumulate=False, a_scale=acc)

    def a_number(acc, a, b):
        tma.tcgen05_mma(acc, 1, b, accumulate=False)

    def steps(acc, a, b):
        tma.tcgen05_mma(acc, a, b, accumulate=False, k_steps=5)

    assert "one of a_scale and b_scale is missing" in fails(no_scales)
    assert "tcgen05_mma(a=...) takes a shared tile" in fails(a_number)
    assert "k_steps is 5" in fails(steps)


def test_scale_factors_of_rows_begin_at_half_an_atom():
    tile = tma.scale_tile(128, 128)

    def kernel(first):
        tmem = TMEM.start()
        scales = tmem.scales(tile, 32)
        part = scales.scale_rows(first, 64)
        assert (part.address - scales.address, part.layout.rows) == (first // 32, 64)
        tmem.close()

    for first in (0, 64):
        cuda.jit(kernel)[1, 32](first)
    with pytest.raises(ValueError, match="row is 32 and num 64; .* a multiple of 64 up to"):
        cuda.jit(kernel)[1, 32](32)


def test_wgmma_refuses_what_only_tcgen05_reads():
    WIDE = tma.Tile((64, 128), "e4m3", SWIZZLE)

    def body(acc, a, b):
        wide = tma.shared_tile(WIDE).matrix_descriptor("MN")
        tma.wgmma(tma.fragment(64), wide, wide)

    assert "is no MN-major operand of wgmma" in fails(body)
