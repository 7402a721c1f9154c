"""Stencils in the simulator, against NumPy's padded arrays, a correlation, and numba.stencil."""

import re
from pathlib import Path

import ml_dtypes
import numba
import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host.boundaries import BOUNDARIES
from numba_tma.kernels.stencil.api import MODES
from numba_tma.kernels.stencil.plan import StencilPlan
from numba_tma.simulator.hazards import Hazards
from tests.kernels.stencil_functions import (
    WEIGHTS,
    behind,
    box,
    convolve,
    correlate,
    cross,
    expected,
    flux,
    line,
)

PLAN = StencilPlan(4, 16, 3, 1, 1)
PLANES = StencilPlan(4, 16, 4, 1, 1, planes=2)
TYPES = ["f8", "f4", "f2", ml_dtypes.bfloat16, *("i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")]


def drawn(shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def check(stencil, *arguments, plan=PLAN, **given):
    found = stencil(*arguments, plan=plan, **given)
    np.testing.assert_array_equal(found, expected(stencil, *arguments))
    return found


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("shape", [(6, 18), (2, 3)])
def test_every_boundary(shape, boundary):
    """Corners, ragged tiles, and an array that is shorter than the neighbourhood."""
    check(tma.stencil(cross, boundary=boundary, cval=7), drawn(shape))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    "boundary",
    [
        ("edge", "zero", "wrap"),
        ("zero", "wrap", "reflect"),
        ("nan", "symmetric", "nan"),
        ("constant", "wrap", "constant"),
        ("wrap", "constant", "edge"),
    ],
)
def test_a_boundary_for_each_axis(boundary):
    """Planes come in chunks, whose windows hold planes of their neighbours."""
    check(tma.stencil(box, boundary=boundary), drawn((3, 5, 17), "f8"), plan=PLANES)


def test_a_batch_of_volumes():
    check(tma.stencil(box, boundary="wrap"), drawn((2, 1, 2, 3, 9)), plan=PLANES)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type(dtype):
    stencil = tma.stencil(line, boundary="reflect", neighbourhood=((-3, 3),))
    check(stencil, drawn((3, 18), dtype))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_arrays_that_are_shorter_than_the_radius(boundary):
    far = tma.stencil(lambda a: a[-7] + 2 * a[6] + 4 * a[0], boundary=boundary)
    for n in (2, 3, 5):
        check(far, drawn(n))


def test_the_smallest_neighbourhood_that_has_the_element():
    """Rows before and columns after: no others are constant."""
    found = check(tma.stencil(behind, cval=-1), drawn((2, 6, 9)))
    assert (found[:, 2:, :-1] >= 0).all() and (found[:, :2] == -1).all()


def test_arrays_numbers_and_results():
    x, w = drawn((2, 5, 18)), drawn((2, 5, 18), seed=1)
    stencil = tma.stencil(flux, boundary="edge")
    for number in (2.5, np.float32(0.5)):
        results = stencil(x, number, w, plan=PLAN)
        for found, want in zip(results, expected(stencil, x, np.float32(number), w)):
            np.testing.assert_array_equal(found, want)
    outs = np.zeros_like(x), np.zeros_like(x)
    assert stencil(x, 3, w, out=outs, plan=PLAN) == outs
    np.testing.assert_array_equal(outs[1], expected(stencil, x, 3, w)[1])


def test_arrays_at_any_address():
    """Tensor maps cannot address them: they are copied first. Results leave the gaps."""
    memory, odd = drawn((2, 6, 24)), drawn((2, 5, 19))
    for x, boundary in ((memory[:, :, 1:20], "symmetric"), (odd, "wrap")):
        whole = np.full((2, 7, 30), -1, x.dtype)
        out = whole[:, : x.shape[1], 3 : 3 + x.shape[2]]
        assert check(tma.stencil(cross, boundary=boundary), x, out=out) is out
        out[...] = -1
        assert (whole == -1).all()
    check(tma.stencil(cross, boundary="wrap"), memory[::2, 1:, :19])


def test_bits_whose_type_numpy_does_not_know():
    x = drawn((4, 16), ml_dtypes.bfloat16)
    stencil = tma.stencil(cross, boundary="zero")
    found = stencil(x.view(np.uint16), dtype="bf16", plan=PLAN)
    np.testing.assert_array_equal(found.view(x.dtype), expected(stencil, x))


def test_stages_are_refilled_only_after_fenced_reads(monkeypatch):
    monkeypatch.setattr(Hazards, "fenced_reads", True)
    simulator.seed(1)
    check(tma.stencil(box, boundary="edge"), drawn((5, 4, 16)), plan=PLANES)


# ------------------------------------------------------- what other libraries compute


def test_correlations_and_convolutions():
    """As `scipy.ndimage` defines them: sums of w[k] x[i + k - 1], and of w[k] x[i - k + 1]."""
    x = drawn((5, 12), "f8")
    p, square = np.pad(x, 1, "symmetric"), ((-1, 1), (-1, 1))
    for function, weights in ((correlate, WEIGHTS), (convolve, WEIGHTS[::-1, ::-1])):
        want = sum(weights[i, j] * p[i : i + 5, j : j + 12] for i, j in np.ndindex(3, 3))
        stencil = tma.stencil(function, boundary="symmetric", neighbourhood=square)
        np.testing.assert_array_equal(stencil(x, plan=PLAN), want)


def test_numba_stencil():
    """Its border: results whose neighbourhood leaves the array are cval, by default 0."""

    def mean(a):
        return 0.25 * (a[0, 1] + a[1, 0] + a[0, -1] + a[-1, 0])

    x = np.arange(100.0).reshape(10, 10)
    np.testing.assert_array_equal(tma.stencil(mean)(x, plan=PLAN), numba.stencil(mean)(x))
    ones = tma.stencil(behind, cval=1.0)(x, plan=PLAN)
    np.testing.assert_array_equal(ones, numba.stencil(behind, cval=1.0)(x))


def test_a_moving_mean():
    def mean(a):
        total = 0.0
        for i in range(-9, 1):
            total += a[i]
        return total / 10

    x = drawn(40, "f8")
    found = tma.stencil(mean, neighbourhood=((-9, 0),))(x, plan=PLAN)
    np.testing.assert_array_equal(found[:9], np.zeros(9))
    np.testing.assert_allclose(found[9:], np.convolve(x, np.full(10, 0.1), "valid"), 1e-14)


@pytest.mark.parametrize("name", ["heat", "smooth"])
def test_the_examples_of_the_page(name, tmp_path):
    page = (Path(__file__).parents[3] / "docs/guide/stencils.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if f"def {name}(a)" in block]
    file = tmp_path / "example.py"  # its source is read
    file.write_text(code)
    x = drawn((2, 3, 8))
    names = {"np": np, "tma": tma, "x": x, "y": np.zeros_like(x), "stream": None}
    exec(compile(code, str(file), "exec"), names)
    found, want = names[name](x), expected(names[name], x)
    np.testing.assert_allclose(found, want, 1e-6)
    assert name == "smooth" or (names["y"] == found).all()


# ---------------------------------------------------------------------- what is refused

X = drawn((4, 16))
CROSS, FLUX = tma.stencil(cross, boundary="zero"), tma.stencil(flux)
REFUSED = {
    "count": (lambda: CROSS(X, X), "cross() takes 1 arguments, a, but 2 were given"),
    "no array": (lambda: CROSS(3.0), "cross(): a is a float"),
    "array for a number": (lambda: FLUX(X, X, X), "c is a numpy.ndarray, and the function has it"),
    "number for an array": (lambda: FLUX(X, 1, 1), "flux(): w is a int"),
    "number": (lambda: FLUX(X, "1", X), "flux(c='1'): c is a number that float32 can hold"),
    "large number": (lambda: FLUX(X, 1e39, X), "flux(c=1e+39): c is a number that float32 can"),
    "axes": (lambda: CROSS(X[0]), "a has shape (16,), and the function has 2 indices"),
    "shapes": (lambda: FLUX(X, 1, X[:3]), "w has shape (3, 16), but a has (4, 16)"),
    "types": (lambda: FLUX(X, 1, X.astype("f8")), "w is f64, but a is f32; they must agree"),
    "type": (lambda: CROSS(X.astype("u1"), dtype="e4m3"), "a is e4m3; a stencil works on f64,"),
    "empty": (lambda: CROSS(X[:0]), "a has shape (0, 16) and no elements"),
    "one": (lambda: CROSS(X[:1]), "a has shape (1, 16): axis -2 has one element"),
    "columns": (lambda: CROSS(X.T), "a has shape (1, 16, 4) and strides (64, 4, 64) B as planes"),
    "reversed": (lambda: CROSS(X[::-1]), "TMA walks forward"),
    "expanded": (lambda: CROSS(np.broadcast_to(X, (2, 4, 16))), "share no memory; pass a cont"),
    "planes": (
        lambda: CROSS(np.zeros((2, 3, 4, 16)).swapaxes(0, 1)),
        "a has leading shape (3, 2) and strides (512, 1536) B, which is no single sequence",
    ),
    "overlap": (lambda: CROSS(X, out=X), "out shares memory with a"),
    "overlap of parts": (lambda: CROSS(X[:, :12], out=X[:, 4:]), "out shares memory with a"),
    "results": (
        lambda: FLUX(X, 1, X, out=(out := np.zeros_like(X), out)),
        "out[1] shares memory with out[0]",
    ),
    "one result": (lambda: FLUX(X, 1, X, out=X.copy()), "the function returns 2 results; out is"),
    "shape of out": (lambda: CROSS(X, out=X[:2].copy()), "out has shape (2, 16) of f32, but the"),
    "type of out": (lambda: CROSS(X, out=X.astype("f8")), "out has shape (4, 16) of f64, but"),
    "stream": (lambda: CROSS(X, stream="a"), "cross(): stream is a"),
    "plan": (lambda: CROSS(X, plan=3), "cross(plan=3): plan is a StencilPlan, or None"),
    "tile": (
        lambda: CROSS(X, plan=StencilPlan(4, 256)),
        "its box of (1, 6, 264) elements has more than 256 along an axis, for the radii (1, 2) of",
    ),
    "radius": (
        lambda: tma.stencil(lambda a: a[-200] + a[0])(X),
        "no tile holds the radii (200,) of a of f32; a box has up to 256 elements",
    ),
    "NaN": (
        lambda: tma.stencil(cross, boundary="nan")(X.astype("i4")),
        "stencil(boundary='nan'): cross() is given i32, which has no NaN; use 'zero'",
    ),
    "cval": (
        lambda: tma.stencil(cross, cval=0.5)(X.astype("i4")),
        "stencil(cval=0.5): cross() is given i32; cval is an integer from -2147483648 to",
    ),
    "cval of no integer": (
        lambda: tma.stencil(cross, cval=np.nan)(X.astype("u1")),
        "stencil(cval=nan): cross() is given u8; cval is an integer from 0 to 255 then",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_are_refused(name):
    call, text = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        call()
