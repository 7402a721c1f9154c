"""Block-scaled matmul on Blackwell's tensor cores in the simulator, against NumPy."""

import inspect

import ml_dtypes
import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host.scale_factors import FORMATS
from numba_tma.kernels.matmul import Tcgen05Config, matmul
from numba_tma.kernels.matmul import launch as launches
from numba_tma.kernels.matmul import tcgen05_scaled_kernel as page
from tests.sim.kernels.test_matmul import BF16, assert_close, values
from tests.tiers import quick

ONE = Tcgen05Config(64, stages=2)
PAIR = Tcgen05Config(64, stages=2, cta_group=2)
WIDE, WIDE_PAIR = (Tcgen05Config(192, stages=2, cta_group=group) for group in (1, 2))
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


class Operand:
    """A matrix (..., rows, K) in a block-scaled format: what `matmul` takes, and its values."""

    def __init__(self, format, numbers, scales):
        kind = FORMATS[format]
        self.values, self.scales = numbers.astype(kind.element.numpy), scales
        self.given = tma.pack(self.values) if kind.element.is_packed else self.values
        self.atoms = tma.to_blocked(scales)
        self.wide = self.values.astype(np.float64) * np.repeat(
            scales.astype(np.float64), kind.block, -1
        )
        self.dtype = kind.element.name if kind.element.is_packed else None


def exact(format, rows, k, seed, batch=()):
    """Return an operand of small integers and powers of two, whose products are exact."""
    kind, rng = FORMATS[format], np.random.default_rng(seed)
    scales = np.exp2(rng.integers(-2, 3, (*batch, rows, k // kind.block)))
    numbers = rng.integers(-2, 3, (*batch, rows, k))
    return Operand(format, numbers, scales.astype(kind.scale.numpy))


def multiply(a, b, **options):
    return matmul(
        a.given,
        b.given.swapaxes(-1, -2),
        a_scales=a.atoms,
        b_scales=b.atoms,
        dtype=(a.dtype, b.dtype),
        **options,
    )


def check(a, b, **options):
    got = multiply(a, b, out_dtype=np.float32, **options)
    np.testing.assert_array_equal(got, a.wide @ b.wide.swapaxes(-1, -2))


#: Formats and extents: odd M and N, K of less than a stage and of a stage and a part.
EXACT = [
    ("mxfp8", (70, 72, 160), ONE),
    ("mxfp8", (130, 71, 160), PAIR),
    ("nvfp4", (70, 71, 272), ONE),
    ("nvfp4", (130, 57, 272), PAIR),
    ("mxfp4", (33, 7, 32), ONE),
    ("mxfp4", (260, 130, 320), PAIR),
    ("mxfp8_e5m2", (128, 200, 128), WIDE),
    ("nvfp4", (257, 200, 64), WIDE_PAIR),
]


@pytest.mark.parametrize(("format", "shape", "config"), quick(EXACT[:4:3], EXACT))
def test_integers_and_powers_of_two_are_exact(format, shape, config):
    m, n, k = shape
    check(exact(format, m, k, 0), exact(format, n, k, 1), config=config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [ONE, PAIR])
def test_in_any_order_of_the_threads(config):
    a, b = exact("nvfp4", 140, 272, 2), exact("nvfp4", 130, 272, 3)
    for seed in range(3):
        simulator.seed(seed)
        check(a, b, config=config)


RANDOM = [("mxfp8", 32, 0.06), ("nvfp4", 64, 0.2), ("mxfp4", 64, 0.25)]


@pytest.mark.parametrize(("format", "k", "tolerance"), quick(RANDOM[:2], RANDOM))
def test_numbers_are_within_the_bound_of_the_tensor_cores(format, k, tolerance):
    x = [values((rows, 96), np.float64, rows) for rows in (20, 24)]
    a, b = (Operand(format, *tma.quantize(rows, format)) for rows in x)
    got = multiply(a, b, config=ONE, out_dtype=np.float32)
    steps = -(-96 // k)
    bound = steps * ((k + 1) * 2.0**-25 + 2.0**-23) * (np.abs(a.wide) @ np.abs(b.wide).T)
    assert (np.abs(got - a.wide @ b.wide.T) <= bound).all()
    near = x[0] @ x[1].T  # of the numbers before they were quantised
    assert np.linalg.norm(got - near) < tolerance * np.linalg.norm(near)


BATCHES = [((3,), (3,)), ((3,), ()), ((), (2,))]


@pytest.mark.parametrize(("left", "right"), quick(BATCHES[1:2], BATCHES))
def test_batches(left, right):
    a, b = exact("mxfp8", 5, 64, 4, left), exact("mxfp8", 7, 64, 5, right)
    check(a, b, config=ONE)


@pytest.mark.slow
def test_a_batch_of_whole_atoms_is_one_matrix():
    check(exact("nvfp4", 128, 64, 6, (2,)), exact("nvfp4", 72, 64, 7), config=ONE)


def test_any_mix_of_8_bits_however_it_lies():
    a, b = exact("mxfp8", 64, 64, 8), exact("mxfp8_e5m2", 64, 64, 9)
    a.given = np.asfortranarray(a.given)  # (K, M) in memory, as b is (K, N)
    got = matmul(
        a.given, np.ascontiguousarray(b.given.T), a_scales=a.atoms, b_scales=b.atoms, config=ONE
    )
    assert got.dtype == BF16
    assert_close(got, a.wide @ b.wide.T)


MIXES = [
    ("mxfp6_e2m3", "mxfp8_e5m2", ONE),
    ("mxfp8", "mxfp4", PAIR),
    ("mxfp6_e3m2", "mxfp6_e2m3", PAIR),
    ("mxfp4", "mxfp6_e3m2", ONE),
]


@pytest.mark.parametrize(("left", "right", "config"), quick(MIXES[:1], MIXES))
def test_6_bits_and_mixes_with_4(left, right, config):
    check(exact(left, 40, 256, 18), exact(right, 24, 256, 19), config=config)


@pytest.mark.slow
def test_4_bits_along_m_and_n_are_transposed_as_bytes():
    a, b = exact("nvfp4", 32, 64, 8), exact("nvfp4", 48, 64, 9)
    got = matmul(
        np.asfortranarray(a.given), np.ascontiguousarray(b.given.T), a_scales=a.atoms,
        b_scales=b.atoms, dtype="e2m1", config=ONE, out_dtype=np.float32,
    )  # fmt: skip
    np.testing.assert_array_equal(got, a.wide @ b.wide.T)


def test_the_epilogue_and_scales_held_as_bytes():
    a, b = exact("nvfp4", 40, 32, 10), exact("nvfp4", 24, 32, 11)
    bias, residual = values(24, BF16, 12), values((40, 24), BF16, 13)
    held = [x.atoms.view(np.uint8).ravel() for x in (a, b)]
    got = matmul(
        a.given, b.given.T, a_scales=held[0], b_scales=held[1], dtype="e2m1",
        scale_dtype="ue4m3", alpha=0.5, bias=bias, residual=residual, activation="relu",
    )  # fmt: skip
    wide = [x.astype(np.float64) for x in (bias, residual)]
    assert_close(got, np.maximum(0.5 * (a.wide @ b.wide.T) + wide[0], 0) + wide[1])


def test_a_sum_of_nothing_is_zero():
    a, b = exact("mxfp8", 3, 0, 14), exact("mxfp8", 8, 0, 15)
    check(a, b, config=ONE)


# ---------------------------------------------------------------- the kernel, broken by a line

PRODUCT = "tma.tcgen05_mma("
COPIES = ("tma.tcgen05_copy(a_scale, stage.sfa)", "tma.tcgen05_copy(b_scale, stage.sfb)")
#: A line, its replacement, and the simulator's error, or None for wrong values.
BROKEN = [
    (COPIES[1], "", "reads scale factors of B there that were never copied"),
    (COPIES[0], "if k_tile > 0:\n    tma.tcgen05_copy(a_scale, stage.sfa)", "factors of A"),
    ("b_part = b_scale.scale_rows(tile.column * N % ATOM_ROWS, N)",
     "b_part = b_scale.scale_rows(0, N)", None),
    ("b_atom = b_matrix * b_atoms + left // ATOM_ROWS",
     "b_atom = b_matrix * b_atoms + column // BLOCK_N", None),
    ("k, k_atom, full = k_tile * STAGE_K, k_tile * K_ATOMS, stage.barrier",
     "k, k_atom, full = k_tile * STAGE_K, k_tile, stage.barrier", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "replacement", "error"),
    quick(lambda case: case in (BROKEN[1], BROKEN[2]), BROKEN),
)
def test_a_broken_line_is_seen(monkeypatch, line, replacement, error):
    text = inspect.getsource(page.tcgen05_scaled_kernel.__wrapped__)
    assert text.count(line) == 1
    start = text.index(line)
    indent = " " * (start - text.rindex("\n", 0, start) - 1)
    text = text.replace(line, (replacement or "pass").replace("\n", f"\n{indent}"))
    broken = dict(vars(page))
    exec(text, broken)
    monkeypatch.setattr(launches, "tcgen05_scaled_kernel", broken["tcgen05_scaled_kernel"])
    a, b = exact("nvfp4", 20, 288, 16), exact("nvfp4", 72, 288, 17)
    if error:
        with pytest.raises(simulator.UninitializedRead, match=error):
            check(a, b, config=ONE)
    else:
        with pytest.raises(AssertionError):
            check(a, b, config=ONE)
