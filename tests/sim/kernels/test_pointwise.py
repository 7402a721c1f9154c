"""Pointwise kernels, transposes and copies without TMA in the simulator, against NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest

from numba_tma import simulator
from numba_tma.kernels.copy import api as copies
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.pointwise.activations import gelu, swiglu
from numba_tma.kernels.pointwise.api import Plan, add, pointwise, scale_add
from numba_tma.kernels.transpose import api as transposes
from numba_tma.kernels.transpose.api import transpose
from numba_tma.simulator.hazards import Hazards

BF16 = ml_dtypes.bfloat16
#: One ulp: half of it for the rounding, and some for what is computed in float32.
ULP = {np.float32: 2.0**-20, np.float16: 2.0**-10, BF16: 2.0**-7}
#: Every kernel, small, so that the simulator is quick.
PLANS = {
    "chunk": Plan("chunk", 32, 512),
    "vector": Plan("vector"),
    "ring, TMA stores": Plan("ring", 32, 1024, 2, 1, "tma"),
    "ring, threads store": Plan("ring", 32, 1024, 2, 1, "registers"),
}


def values(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(x):
    return x.astype(np.float64)


# --------------------------------------------------------------------------- pointwise


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("shape", [(1,), (7,), (264,), (1030,), (3, 5, 8)])
def test_contiguous_arrays_of_any_length(shape, plan):
    x, y = values(shape, BF16), values(shape, BF16, 1)
    want = (x.astype(np.float32) + y.astype(np.float32)).astype(BF16)
    np.testing.assert_array_equal(add(x, y, plan=plan), want)


def test_stages_are_refilled_only_after_fenced_reads(monkeypatch):
    monkeypatch.setattr(Hazards, "fenced_reads", True)
    x, y = values(2000), values(2000, seed=1)
    for seed in range(2):
        simulator.seed(seed)
        np.testing.assert_array_equal(add(x, y, plan=PLANS["ring, threads store"]), x + y)


@pytest.mark.parametrize("columns", [16, 13])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["f32", "bf16"])
def test_rows_and_columns_are_broadcast(dtype, columns):
    x, row = values((9, columns), dtype), values(columns, dtype, 1)
    column, one = values((9, 1), dtype, 2), values((1, 1), dtype, 3)
    total = pointwise(lambda x, row, column, one, n: x * row + column * one + n)
    for plan in (PLANS["ring, TMA stores"], PLANS["ring, threads store"]):
        got = total(x, row, column, one, 0.5, plan=plan)
        terms = wide(x) * wide(row), wide(column) * wide(one), 0.5
        size = abs(terms[0]) + abs(terms[1]) + 0.5
        assert (abs(wide(got) - sum(terms)) <= ULP[dtype] * size).all()


def test_what_is_broadcast_stands_in_any_place():
    x, row = values((3, 5, 16)), values((1, 1, 16), seed=1)
    np.testing.assert_array_equal(add(row, x), row + x)
    column = values((3, 5, 1), seed=2)
    np.testing.assert_array_equal(add(column, x), column + x)
    out = np.zeros((4, 16), np.float32)
    assert add(values((4, 1)), values(16, seed=1), out=out) is out
    np.testing.assert_array_equal(out, values((4, 1)) + values(16, seed=1))


@pytest.mark.parametrize(("columns", "start"), [(280, 0), (280, 4), (61, 0), (280, 1)])
def test_rows_with_gaps_into_an_input_leave_the_gaps(columns, start):
    simulator.seed(start)
    memory, y = values((5, 300)), values((5, columns), seed=1)
    x, want = memory[:, start : start + columns], memory.copy()
    want[:, start : start + columns] += y
    assert add(x, y, out=x, plan=PLANS["ring, TMA stores"]) is x
    np.testing.assert_array_equal(memory, want)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_arrays_that_start_anywhere(offset):
    memory, out = values(200, BF16), np.zeros(200, BF16)
    x = memory[offset : offset + 101]
    add(x, x, out=out[offset : offset + 101])
    want = np.zeros(200, BF16)
    want[offset : offset + 101] = (2 * x.astype(np.float32)).astype(BF16)
    np.testing.assert_array_equal(out, want)


def test_bits_whose_type_numpy_does_not_know():
    x = values(64, BF16)
    got = scale_add(
        x.view(np.uint16), x.view(np.uint16), 1.5, 0.5, dtype="bf16", plan=PLANS["chunk"]
    )
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got.view(BF16), (2 * x.astype(np.float32)).astype(BF16))


def test_a_function_of_the_math_module():
    x = abs(values((4, 8)))
    np.testing.assert_allclose(pointwise(lambda x: np.float32(math.sqrt(x)))(x), np.sqrt(x), 1e-6)


def test_partial_results():
    """A kernel that fails leaves its tile queue anywhere; the next kernel computes all tiles."""

    def fails(x, y):
        return (x, y)[2]

    x = values((64, 256))
    with pytest.raises(IndexError):
        pointwise(fails)(x, x)
    out = np.full_like(x, np.nan)
    np.testing.assert_array_equal(add(x, x, out=out), 2 * x)


def test_nothing():
    assert add(values((0, 8)), values((0, 8))).shape == (0, 8)


REFUSED = {
    "types": (
        lambda: add(values(8), values(8, np.float16)),
        "add(): y is f16, but x is f32; they must agree: convert one",
    ),
    "integers": (
        lambda: add(np.zeros(8, np.int32), np.zeros(8, np.int32)),
        "add(): x is i32; it works on f32, f16 and bf16",
    ),
    "shapes": (
        lambda: add(values((2, 8)), values((3, 8))),
        "add(): shapes (2, 8) and (3, 8) cannot be broadcast to one",
    ),
    "broadcast": (
        lambda: add(values((2, 3, 8)), values((3, 8))),
        "y has shape (3, 8) and the result (2, 3, 8); what is broadcast is a row, one "
        "element per row, or one element: expand the array and copy it",
    ),
    "out": (
        lambda: add(values((2, 8)), values((2, 8)), out=values((2, 4))),
        "add(): out has shape (2, 4) of f32, but the result has shape (2, 8) of f32",
    ),
    "approximate": (
        lambda: gelu(values(8), approximate="erf"),
        "gelu(approximate='erf'): approximate is 'none' or 'tanh'",
    ),
    "reversed, by tanh": (
        lambda: gelu(values((3, 8))[::-1], approximate="tanh"),
        "gelu(): x has strides (-32, 4) B, and kernels walk forward: pass a contiguous",
    ),
    "transposed": (
        lambda: transpose(values((2, 4)), out=values((2, 4))),
        "out has shape (2, 4), but the transpose of (2, 4) has shape (4, 2)",
    ),
    "transposed type": (
        lambda: transpose(values((2, 4)), out=values((4, 2), np.float16)),
        "out is f16, but x is f32; they must agree",
    ),
    "vector": (lambda: transpose(values(4)), "x has shape (4,); a matrix has two axes or more"),
    "chunks": (
        lambda: add(values(64), values(64), plan=Plan("chunk", 96, 4096)),
        "96 threads cannot share the 256 vectors of 16 B of a chunk equally: use tile_bytes of a "
        "multiple of 1536",
    ),
    "threads": (
        lambda: transpose(values((32, 32)), plan=transposes.Plan(1, 1, 128)),
        "which 128 threads cannot share equally: use a divisor of 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


def test_numbers_beside_an_array():
    np.testing.assert_array_equal(add(values(8), 2.5), values(8) + np.float32(2.5))
    with pytest.raises(ValueError, match=r"add\(y=1000.*a number that float32 can hold"):
        add(values(8), 10**400)
    with pytest.raises(TypeError, match=r"swiglu\(\): up is 0, a number; pass an array"):
        swiglu(values(8), 0)


def test_the_number_of_arguments():
    with pytest.raises(TypeError, match=r"scale_add\(\) missing 1 required .*: 'beta'"):
        scale_add(values(8), values(8), 1.0)
    with pytest.raises(TypeError, match=r"add\(\) was given 0 arrays; it takes 1 to 4"):
        add(1.0, 2.0)
    with pytest.raises(TypeError, match=r"gelu\(\) was given 0 arrays; it takes 1 to 4, from x on"):
        gelu(4.5, approximate="tanh")
    with pytest.raises(TypeError) as caught:
        scale_add(values(8), values(8), 1.0, "2")
    assert str(caught.value) == (
        "scale_add(): alpha is a number, and beta is a str; arrays come first, and "
        "numbers after them"
    )
    five = pointwise(lambda a, b, c, d, e: a + b + c + d + e)
    with pytest.raises(TypeError, match="was given 5 arrays; it takes 1 to 4"):
        five(*[values(8)] * 5)


# ------------------------------------------------------------------------- activations

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-38, -3.0], np.float32)


@pytest.mark.parametrize("dtype", ULP, ids=lambda d: np.dtype(d).name)
def test_activations_of_special_values(dtype):
    with np.errstate(over="ignore"):
        x = SPECIAL.astype(dtype)
    exact = [0.0 if v == -np.inf else 0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in wide(x)]
    got = gelu(x)
    np.testing.assert_allclose(wide(got), np.array(exact), rtol=2 * ULP[dtype], atol=1e-30)
    with np.errstate(all="ignore"):
        silu = wide(x) / (1 + np.exp(-wide(x)))
        want = np.array(silu).astype(dtype)
    got = swiglu(x, np.ones_like(x))
    np.testing.assert_allclose(wide(got), wide(want), rtol=2 * ULP[dtype], atol=1e-30)


# --------------------------------------------------------------------------- transpose


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *(("f4", shape) for shape in ((8, 16), (33, 5), (1, 1), (2, 2, 7, 3))),
        ("u2", (2, 40, 48)),
        ("f8", (8, 16)),
    ],
)
def test_transpose(dtype, shape):
    x = np.random.default_rng(0).integers(0, 1000, shape).astype(dtype)
    np.testing.assert_array_equal(transpose(x), np.swapaxes(x, -1, -2))


@pytest.mark.slow
@pytest.mark.parametrize("itemsize", transposes.PLANS)
@pytest.mark.parametrize(
    "plan", [transposes.Plan(1, 1, 64, 1), transposes.Plan(2, 1, 64, 2)], ids=str
)
def test_transpose_by_every_plan(plan, itemsize):
    side = 128 // itemsize
    x = np.random.default_rng(0).integers(0, 200, (3 * side, 2 * side + 16)).astype(f"u{itemsize}")
    np.testing.assert_array_equal(transpose(x, plan=plan), x.T)


@pytest.mark.parametrize("store", ["tma", "registers"])
def test_transpose_of_rows_with_gaps_leaves_the_gaps(store):
    memory, target = values((20, 64)), np.full((48, 24), 7, np.float32)
    plan = transposes.Plan(1, 2, 32, store=store)
    transpose(memory[:, 8:56], out=target[:, :20], plan=plan)
    np.testing.assert_array_equal(target[:, :20], memory[:, 8:56].T)
    assert (target[:, 20:] == 7).all()


@pytest.mark.parametrize(
    ("itemsize", "start"),
    [(2, 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4, 0), (1, 5), (8, 1)))],
)
def test_patches_of_rows_that_begin_anywhere(itemsize, start):
    """Patches at each edge, and one within; what lies between the target's rows stays."""
    x = np.random.default_rng(0).integers(0, 200, (2, 130, 65)).astype(f"u{itemsize}")
    memory = np.full((2, 65, 137), 7, x.dtype)
    out = memory[:, :, start : start + 130]
    transpose(x, out=out)
    np.testing.assert_array_equal(out, np.swapaxes(x, -1, -2))
    assert (memory[:, :, :start] == 7).all() and (memory[:, :, start + 130 :] == 7).all()


# -------------------------------------------------------------------------------- copy


@pytest.mark.parametrize("store", ["tma", "registers", "vector"])
@pytest.mark.parametrize("nbytes", [1, 16, 511, 1040])
def test_copies_of_bytes_by_every_plan(nbytes, store):
    x = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    out = np.zeros_like(x)
    copy(x, out, plan=copies.Plan(512, 32, store))
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("columns", [61, 64])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_copies_of_what_tma_cannot_address(start, columns):
    x, out = values((6, 72)), np.zeros((6, 70), np.float32)
    copy(x[:, start : start + columns], out[:, 1 : 1 + columns])
    want = np.zeros_like(out)
    want[:, 1 : 1 + columns] = x[:, start : start + columns]
    np.testing.assert_array_equal(out, want)
