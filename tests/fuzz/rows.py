"""Row functions, pointwise functions, copies and transposes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from numba_tma.kernels import copy as copies
from numba_tma.kernels import pointwise as pointwises
from numba_tma.kernels import rows
from numba_tma.kernels import transpose as transposes
from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
from tests.fuzz.families import EPS32, Family, Problem, kind, normal, one, size, wide

FLOATS = kind("f32", "f16", "bf16")
ROWS = {"rows": size(1, 300, 20), "columns": size(1, 6000, 300, fixed=True), "dtype": FLOATS}
ROWS |= {"batch": one(None, None, 1, 3), "out": one("new", "given", "in place")}
SHARED = 2.0**-126  # what arithmetic that flushes subnormal numbers may lose


def shape_of(c: Any) -> tuple[int, ...]:
    return (c.rows, c.columns) if c.batch is None else (c.batch, c.rows, c.columns)


def softmaxes(logs: bool) -> Any:
    def problem(c: Any, rng: np.random.Generator) -> Problem:
        x = normal(rng, shape_of(c), c.dtype)
        outputs = {"out": (x.shape, c.dtype)}
        outputs |= {"logsumexp": (x.shape[:-1], "f32")} if c.logsumexp else {}

        def expect() -> Any:
            s = wide(x) * np.float64(np.float32(c.scale))
            top = s.max(axis=-1, keepdims=True)
            total = np.exp(s - top).sum(axis=-1, keepdims=True)
            lse = np.log(total) + top
            most = np.abs(s).max(axis=-1, keepdims=True)
            relative = (8 * most + c.columns + 64) * EPS32
            y = s - lse if logs else np.exp(s - lse)
            slack = relative * (1 + most + np.abs(lse)) if logs else relative * y + SHARED
            return {"out": (y, slack), "logsumexp": (lse[..., 0], (relative * 4 + 0 * s)[..., 0])}

        options = {"scale": c.scale}
        return Problem({"x": x}, outputs, expect, options, {"out": "x"}, ("x", "out"),
                       dtype=c.dtype)  # fmt: skip

    return problem


def norms(centred: bool) -> Any:
    def problem(c: Any, rng: np.random.Generator) -> Problem:
        shape = shape_of(c)
        x = normal(rng, shape, c.dtype)
        arrays = {"x": x}
        if c.weight:
            arrays["weight"] = normal(rng, shape[-1:], c.dtype)
        if centred and c.weight:
            arrays["bias"] = normal(rng, shape[-1:], c.dtype)
        if c.residual:
            arrays["residual"] = normal(rng, shape, c.dtype)
        outputs = {"out": (shape, c.dtype)}
        if c.residual and c.total:
            outputs["residual_out"] = (shape, c.dtype)
        if c.statistics:
            outputs |= {"rstd": (shape[:-1], "f32")}
            outputs |= {"mean": (shape[:-1], "f32")} if centred else {}

        def expect() -> Any:
            z = sum(wide(arrays[n]) for n in ("x", "residual") if n in arrays)
            w, b = (wide(arrays.get(n, d)) for n, d in (("weight", 1.0), ("bias", 0.0)))
            error = (c.columns + 32) * EPS32
            sizes = np.abs(z).mean(axis=-1, keepdims=True)
            mean = z.mean(axis=-1, keepdims=True) if centred else 0 * sizes
            d = z - mean
            squares = (d**2).mean(axis=-1, keepdims=True)
            rstd = 1 / np.sqrt(squares + np.float64(np.float32(c.eps)))
            wrong = 2 * error * squares + (error * sizes) ** 2 * centred
            relative = wrong * rstd**2 / 2 + 8 * EPS32
            y = d * rstd * w + b
            shift = error * sizes * centred + 4 * EPS32 * np.abs(z)
            slack = np.abs(w) * rstd * (shift + relative * np.abs(d)) + 8 * EPS32 * np.abs(y)
            slack = slack + 8 * EPS32 * np.abs(b) + SHARED
            return {
                "out": (y, slack),
                "residual_out": (z, 2 * EPS32 * np.abs(z)),
                "rstd": (rstd[..., 0], (relative * rstd)[..., 0]),
                "mean": (mean[..., 0], (error * sizes)[..., 0]),
            }

        views = ("x", "out", "residual", "residual_out")
        return Problem(arrays, outputs, expect, {"eps": c.eps}, {"out": "x"}, views, dtype=c.dtype)

    return problem


def norm_gradients(centred: bool) -> Any:
    def problem(c: Any, rng: np.random.Generator) -> Problem:
        shape = shape_of(c)
        x, dy = normal(rng, shape, c.dtype), normal(rng, shape, c.dtype)
        wx = wide(x)
        mean = wx.mean(axis=-1).astype(np.float32) if centred else np.zeros(shape[:-1], np.float32)
        variance = ((wx - wide(mean)[..., None]) ** 2).mean(axis=-1)
        rstd = (1 / np.sqrt(variance + 1e-5)).astype(np.float32)
        arrays = {"dy": dy, "x": x, "rstd": rstd}
        arrays |= {"mean": mean} if centred else {}
        if c.weight:
            arrays["weight"] = normal(rng, shape[-1:], c.dtype)
        outputs = {"dx": (shape, c.dtype)}
        if c.dweight:
            outputs["dweight"] = (shape[-1:], c.sums)
            outputs |= {"dbias": (shape[-1:], c.sums)} if centred else {}

        def expect() -> Any:
            r, g = wide(rstd)[..., None], wide(dy) * wide(arrays.get("weight", 1.0))
            far = wx - wide(mean)[..., None]
            hat, error = far * r, (c.columns + 64) * EPS32
            wrong = 4 * EPS32 * (np.abs(wx) + np.abs(wide(mean)[..., None])) * r
            both = (g * hat).mean(axis=-1, keepdims=True)
            sizes = (np.abs(g) * (np.abs(hat) + wrong / EPS32 * EPS32)).mean(axis=-1, keepdims=True)
            middle = g.mean(axis=-1, keepdims=True) * centred
            dx = r * (g - middle - hat * both)
            terms = np.abs(g) + np.abs(g).mean(axis=-1, keepdims=True) * centred
            terms = terms + np.abs(hat) * sizes
            moved = wrong * np.abs(both)
            moved = moved + np.abs(hat) * (np.abs(g) * wrong).mean(axis=-1, keepdims=True)
            axes = tuple(range(wx.ndim - 1))
            count = (math.prod(shape[:-1]) + 64) * EPS32
            dyw = np.abs(wide(dy))
            return {
                "dx": (dx, r * (error * terms + moved) + SHARED),
                "dweight": (
                    (wide(dy) * hat).sum(axis=axes),
                    count * (dyw * np.abs(hat)).sum(axis=axes) + (dyw * wrong).sum(axis=axes),
                ),
                "dbias": (wide(dy).sum(axis=axes), count * dyw.sum(axis=axes)),
            }

        return Problem(arrays, outputs, expect, {}, {"dx": "dy"}, ("dy", "x", "dx"), ("dx",),
                       dtype=c.dtype)  # fmt: skip

    return problem


def row_sums(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)

    def expect() -> Any:
        sums = wide(x).sum(axis=-1)
        return {"out": (sums, (c.columns + 8) * EPS32 * np.abs(wide(x)).sum(axis=-1))}

    return Problem({"x": x}, {"out": (x.shape[:-1], "f32")}, expect, views=("x",), dtype=c.dtype)


def row_maxima(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    return Problem({"x": x}, {"out": (x.shape[:-1], "f32")},
                   lambda: {"out": (x.astype(np.float32).max(axis=-1), None)},
                   views=("x",), dtype=c.dtype)  # fmt: skip


def row_places(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    return Problem({"x": x}, {"out": (x.shape[:-1], "i64")},
                   lambda: {"out": (x.astype(np.float32).argmax(axis=-1), None)},
                   views=("x",), dtype=c.dtype)  # fmt: skip


def column_sums(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    axes = tuple(range(x.ndim - 1))

    def expect() -> Any:
        count = math.prod(x.shape[:-1]) + 8
        return {"out": (wide(x).sum(axis=axes), count * EPS32 * np.abs(wide(x)).sum(axis=axes))}

    sums = "f32" if c.out == "new" else c.sums
    return Problem({"x": x}, {"out": (x.shape[-1:], sums)}, expect, {"parts": c.parts},
                   views=("x",), dtype=c.dtype)  # fmt: skip


def gelus(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    x = (wide(x) * c.size).astype(x.dtype)

    def expect() -> Any:
        v = wide(x)
        if c.approximate == "tanh":
            u = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
            y = v / (1 + np.exp(np.minimum(-2 * u, 700)))
            relative = (16 * np.abs(u) + 32) * EPS32
        else:
            y = v * 0.5 * np.vectorize(math.erfc, otypes=[float])(-v * math.sqrt(0.5))
            relative = (2 * v**2 + 16) * EPS32 if c.dtype == "f32" else 0 * v
        return {"out": (y, relative * np.abs(y) + np.abs(v) * 2.0**-118)}

    return Problem({"x": x}, {"out": (x.shape, c.dtype)}, expect, {"approximate": c.approximate},
                   {"out": "x"}, ("x", "out"), ulps=0.75, dtype=c.dtype)  # fmt: skip


def swiglus(c: Any, rng: np.random.Generator) -> Problem:
    gate, up = (normal(rng, shape_of(c), c.dtype) for _ in range(2))
    gate = (wide(gate) * c.size).astype(gate.dtype)

    def expect() -> Any:
        g, u = wide(gate), wide(up)
        y = g / (1 + np.exp(-g)) * u
        return {"out": (y, (8 * np.abs(g) + 32) * EPS32 * np.abs(y) + np.abs(g * u) * 2.0**-118)}

    return Problem({"gate": gate, "up": up}, {"out": (gate.shape, c.dtype)}, expect, {},
                   {"out": "gate"}, ("gate", "up", "out"), dtype=c.dtype)  # fmt: skip


def sums(scaled: bool) -> Any:
    def problem(c: Any, rng: np.random.Generator) -> Problem:
        shape = shape_of(c)
        second = {"same": shape, "row": shape[-1:], "column": (*shape[:-1], 1)}
        second |= {"one": (1,) * len(shape)}
        x = normal(rng, shape, c.dtype)
        y = c.second if c.second not in second else normal(rng, second[c.second], c.dtype)
        factors = (c.alpha, c.beta) if scaled else (1.0, 1.0)

        def expect() -> Any:
            terms = [f * wide(v) for f, v in zip(map(np.float64, map(np.float32, factors)), (x, y))]
            slack = 4 * EPS32 * (np.abs(terms[0]) + np.nan_to_num(np.abs(terms[1]))) + SHARED
            return {"out": (terms[0] + terms[1], slack)}

        arrays = {"0": x, "1": y} | ({"2": c.alpha, "3": c.beta} if scaled else {})
        return Problem(arrays, {"out": (shape, c.dtype)}, expect, {}, {"out": "0"},
                       ("0", "out") + ("1",) * (c.second == "same"), dtype=c.dtype)  # fmt: skip

    return problem


def copied(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    return Problem({"source": x}, {"out": (x.shape, c.dtype)}, lambda: {"out": (x, None)},
                   views=("source", "out"), returned=())  # fmt: skip


def copied_groups(c: Any, rng: np.random.Generator) -> Problem:
    count = 16 // np.dtype(normal(rng, (), c.dtype).dtype).itemsize
    shapes = [(int(n), c.columns * count) for n in rng.integers(1, c.rows + 2, c.groups)]
    sources = [normal(rng, shape, c.dtype) for shape in shapes]
    outputs = {f"outs {i}": (shape, c.dtype) for i, shape in enumerate(shapes)}
    return Problem({"sources": sources}, outputs,
                   lambda: {f"outs {i}": (x, None) for i, x in enumerate(sources)},
                   returned=())  # fmt: skip


def transposed(c: Any, rng: np.random.Generator) -> Problem:
    x = normal(rng, shape_of(c), c.dtype)
    y = x.swapaxes(-1, -2)
    return Problem({"x": x}, {"out": (y.shape, c.dtype)}, lambda: {"out": (y, None)},
                   views=("x", "out"))  # fmt: skip


def pipelined(c: Any, rng: np.random.Generator) -> Problem:
    given = {"columns": c.columns * 8, "weight": True, "residual": False, "statistics": False}
    problem = norms(False)(SimpleNamespace(**{**vars(c), **given}), rng)
    problem.options |= {"threads": c.threads, "stages": c.stages}
    problem.views = ()
    return problem


NORM = {"weight": kind(False, True), "residual": kind(False, True), "total": kind(False, True)}
NORM |= {"statistics": kind(False, True), "eps": one(1e-5, 1e-2)}
GRADIENT = {"weight": kind(False, True), "dweight": kind(False, True), "sums": FLOATS}
BITS = kind("u8", "u16", "f32", "bf16", "u64", "e4m3")
GIVEN = {"out": one("given")}
ANY = {**ROWS, "rows": size(0, 300, 20), "columns": size(0, 5000, 300)}
FAMILIES = (
    Family(rows.softmax, {**ROWS, "scale": one(1.0, 0.3, 4.0), "logsumexp": kind(False, True)},
           softmaxes(False)),
    Family(rows.log_softmax, {**ROWS, "scale": one(1.0, 0.3, 4.0), "logsumexp": kind(False, True)},
           softmaxes(True)),
    Family(rows.rmsnorm, {**ROWS, **NORM}, norms(False)),
    Family(rows.layernorm, {**ROWS, **NORM}, norms(True)),
    Family(rmsnorm_pipelined, {**ROWS, "columns": size(1, 700, 30, True), "eps": one(1e-5),
           "total": one(False), "threads": kind(32, 64, 128), "stages": kind(1, 2, 4),
           "batch": one(None)}, pipelined),
    Family(rows.rmsnorm_backward, {**ROWS, **GRADIENT}, norm_gradients(False)),
    Family(rows.layernorm_backward, {**ROWS, **GRADIENT}, norm_gradients(True)),
    Family(rows.row_sum, {**ROWS, "out": one("new", "given")}, row_sums),
    Family(rows.row_max, {**ROWS, "out": one("new", "given")}, row_maxima),
    Family(rows.row_argmax, {**ROWS, "out": one("new", "given")}, row_places),
    Family(rows.column_sum, {**ROWS, "out": one("new", "given"), "parts": one(None, 1, 2, 7),
           "sums": FLOATS}, column_sums),
    Family(pointwises.gelu, {**ANY, "approximate": kind("none", "tanh"), "size": one(1, 10)},
           gelus),
    Family(pointwises.swiglu, {**ANY, "size": one(1, 10)}, swiglus),
    Family(pointwises.add, {**ANY, "second": one("same", "row", "column", "one", 2.5, 0,
           10**12)}, sums(False)),
    Family(pointwises.scale_add, {**ANY, "second": one("same", "row", "column", "one", 2.5, 0),
           "alpha": one(1.0, -0.3, 2), "beta": one(1.0, 0.0, 7.5)}, sums(True)),
    Family(copies.copy, {**ANY, "dtype": BITS, **GIVEN}, copied),
    Family(copies.grouped_copy, {"groups": size(1, 20, 4), "rows": size(1, 100, 9),
           "columns": size(1, 60, 9), "dtype": BITS, **GIVEN}, copied_groups),
    Family(transposes.transpose, {**ANY, "dtype": BITS, "columns": size(0, 700, 70),
           "out": one("new", "given")}, transposed),
)  # fmt: skip
