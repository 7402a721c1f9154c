"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from numba_tma.kernels import attention as attentions
from numba_tma.kernels import matmul as matmuls
from numba_tma.kernels.matmul import Config, ScaledConfig, StreamKConfig, SwappedConfig
from tests.fuzz.families import EPS32, Family, Problem, kind, normal, one, size, wide
from tests.fuzz.memory import TYPES, ulp

CONFIGS: dict[str, Any] = {
    **{"64": Config(64, 64, stages=2), "64x128": Config(64, 128), "128": Config(128, 128)},
    **{"128x256": Config(), "pairs": Config(64, 64, cluster=2), "parts": Config(64, 64, splits=3)},
    **{"fours": Config(64, 256, cluster=4), "long": Config(64, 32, k=256)},
    **{"stream-K": StreamKConfig(64, 64, stages=3), "stream-K pairs": StreamKConfig(cluster=2)},
    **{"swapped": SwappedConfig(), "swapped 64": SwappedConfig(64, 64, stages=4)},
    **{"chosen": None},
}
SCALED: dict[str, Any] = {
    **{"64": ScaledConfig(64, 64, stages=2), "128": ScaledConfig(128, 128), "chosen": None},
    **{"pairs": ScaledConfig(128, 96, cluster=2), "parts": ScaledConfig(64, 64, splits=3)},
}
OPERANDS = kind("bf16 bf16", "f16 f16", "f32 f32", "e4m3 e4m3", "e4m3 e5m2", "i8 i8", "u8 i8")
NARROW = ("e4m3", "e5m2")


def as_tf32(x: Any) -> Any:
    """Round f32 as the copies do; other types are exact."""
    if x.dtype != np.float32:
        return wide(x)
    bits = np.ascontiguousarray(x).view(np.uint32)
    odd = bits >> np.uint32(13) & np.uint32(1)
    return wide(((bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32))


def activated(z: Any, name: str | None, out: str) -> tuple[Any, Any]:
    """Return an activation of z, and what its formula may be wrong by."""
    if name is None or name == "relu":
        return (z if name is None else np.maximum(z, 0)), 0 * z
    if name == "silu":
        y = z / (1 + np.exp(np.minimum(-z, 700)))
    elif name == "gelu":
        y = z * 0.5 * np.vectorize(math.erfc, otypes=[float])(-z * math.sqrt(0.5))
    else:
        u = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        y = z / (1 + np.exp(np.minimum(-2 * u, 700)))
    loss = {"bf16": 0.3, "f16": 0.3}.get(out, 0.0) * ulp(y, TYPES[out]) if out != "i32" else 0
    return y, loss + (16 * np.abs(z) + 4 * z**2 + 64) * EPS32 * np.abs(y) + 2.0**-116 * np.abs(z)


def products(c: Any, rng: np.random.Generator) -> Problem:
    types = c.types.split()
    batch = () if c.batch is None else (c.batch,)
    b_batch = () if c.batch is None or c.shared else (c.batch,)
    a, b = normal(rng, (*batch, c.m, c.k), types[0]), normal(rng, (*b_batch, c.k, c.n), types[1])
    whole = types[0] in ("i8", "u8")
    default = types[0] if types[0] in ("bf16", "f16", "f32") else "i32" if whole else "bf16"
    out = default if c.result == "same" else c.result
    arrays: dict[str, Any] = {"a": a, "b": b}
    if c.bias and out != "i32":
        # 16-bit integers mean the type of out.
        arrays["bias"] = normal(rng, (c.n,), "f32" if c.bias == "bf16" != out else c.bias)
    if c.residual and out != "i32":
        arrays["residual"] = normal(rng, (*batch, c.m, c.n), out)
    if c.scales and out != "i32":
        arrays["row_scale"] = rng.uniform(0.1, 2, (*batch, c.m)).astype(np.float32)
        arrays["column_scale"] = rng.uniform(0.1, 2, c.n).astype(np.float32)
    options: dict[str, Any] = {"config": ["matmul", c.config], "alpha": c.alpha}
    activation = c.activation if out != "i32" else None
    options |= {"activation": activation, "out_dtype": None if c.result == "same" else out}
    beta = c.beta if c.out == "given" and out != "i32" else 0.0
    options["beta"] = beta
    if out == "i32":
        options["alpha"] = 1.0

    def expect() -> Any:
        x, y = as_tf32(a), as_tf32(b)
        total, sizes = x @ y, np.abs(x) @ np.abs(y)
        if out == "i32":
            return {"out": (total.astype(np.int64).astype(np.int32), None)}
        slack = 0 * sizes if whole else (2 * c.k + 8) * EPS32 * sizes
        slack = slack + (2.0**-10 * sizes if types[0] in NARROW else 0)
        factor = np.float64(np.float32(options["alpha"]))
        for name, axis in (("row_scale", -1), ("column_scale", -2)):
            if name in arrays:
                factor = factor * np.expand_dims(wide(arrays[name]), axis)
        z, error = factor * total, np.abs(factor) * (slack + 8 * EPS32 * np.abs(total))
        if beta:
            z = z + beta * START
            error = error + 4 * EPS32 * np.abs(beta * START)
        if "bias" in arrays:
            z, error = z + wide(arrays["bias"]), error + 4 * EPS32 * np.abs(wide(arrays["bias"]))
        error = error + 4 * EPS32 * np.abs(z)
        y, more = activated(z, activation, out)
        error = 1.13 * error + more
        if "residual" in arrays:
            y = y + wide(arrays["residual"])
            error = error + 4 * EPS32 * np.abs(y)
        return {"out": (y, error + 2.0**-126)}

    in_place = {"out": "residual"} if "residual" in arrays and not beta else {}
    views = ("a", "b", "out", "residual")
    dtype = types if types[0] not in ("i8", "u8") else None
    return Problem(arrays, {"out": ((*batch, c.m, c.n), out)}, expect, options, in_place, views,
                   dtype=dtype)  # fmt: skip


START = 1.5  #: what outputs hold before a call


def grouped(c: Any, rng: np.random.Generator) -> Problem:
    types = c.types.split()
    sizes = rng.integers(0, c.rows + 1, c.groups) * (rng.random(c.groups) < 0.8)
    ends = np.cumsum(sizes)
    a = normal(rng, (int(ends[-1]) + c.behind, c.k), types[0])
    b = normal(rng, (c.groups, c.k, c.n), types[1])
    out = c.result if c.result != "same" else types[0] if types[0] not in NARROW else "bf16"
    rows = {"offsets" if c.by_ends else "group_sizes": (ends if c.by_ends else sizes)}
    arrays = {"a": a, "b": b, **{name: v.astype(np.int32) for name, v in rows.items()}}
    if c.scales:
        arrays["scales"] = rng.uniform(-2, 2, c.groups).astype(np.float32)

    def expect() -> Any:
        y, slack = (np.full((len(a), c.n), v) for v in (START, 0.0))
        for g, (start, end) in enumerate(zip(ends - sizes, ends)):
            rows, matrix = wide(a[start:end]), wide(b[g])
            factor = np.float32(c.alpha) * (wide(arrays["scales"][g]) if c.scales else 1.0)
            y[start:end] = factor * (rows @ matrix)
            loss = 2.0**-10 if types[0] in NARROW else (2 * c.k + 8) * EPS32
            slack[start:end] = np.abs(factor) * loss * (np.abs(rows) @ np.abs(matrix)) + 2.0**-126
        return {"out": (y, slack)}

    options = {"alpha": c.alpha, "config": ["matmul", c.config]}
    options["out_dtype"] = None if c.result == "same" else out
    return Problem(arrays, {"out": ((len(a), c.n), out)}, expect, options, views=("out",),
                   returned=(), dtype=types)  # fmt: skip


def block_scaled(c: Any, rng: np.random.Generator) -> Problem:
    types, blocks = c.types.split(), -(-c.k // 128)
    a, b = normal(rng, (c.m, c.k), types[0]), normal(rng, (c.k, c.n), types[1])
    a_scales = rng.uniform(0.1, 2, (c.m, blocks)).astype(np.float32)
    b_scales = rng.uniform(-2, 2, (blocks, -(-c.n // 128))).astype(np.float32)
    arrays = {"a": a, "b": b, "a_scales": a_scales, "b_scales": b_scales}

    def expect() -> Any:
        x = wide(a) * wide(a_scales).repeat(128, 1)[:, : c.k]
        y = wide(b) * wide(b_scales).repeat(128, 0).repeat(128, 1)[: c.k, : c.n]
        return {"out": (x @ y, 2.0**-10 * (np.abs(x) @ np.abs(y)) + 2.0**-126)}

    options = {"config": ["scaled", c.config], "out_dtype": c.result}
    return Problem(arrays, {"out": ((c.m, c.n), c.result)}, expect, options,
                   views=("a", "b", "a_scales", "b_scales", "out"), dtype=types)  # fmt: skip


def seen_by(queries: int, keys: int, causal: bool, window: Any) -> Any:
    """Return which keys each query sees."""
    left, right = (None, None) if window is None else window
    left = keys + queries if left is None else left
    right = 0 if causal else keys + queries if right is None else right
    beside = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    return (beside >= -left) & (beside <= right)


def attended(q: Any, k: Any, v: Any, c: Any, narrow: bool, kind: Any) -> Any:
    """Return attention of one head, its error, lse, its error, the weights and their errors."""
    depth, keys = q.shape[1], len(k)
    scale = depth**-0.5 if c.scale is None else c.scale
    scores, sizes = q @ k.T * scale, np.abs(q) @ np.abs(k).T * scale
    wrong = (2.0**-12 if narrow else (2 * depth + 4) * EPS32) * sizes
    if c.softcap is not None:
        scores = c.softcap * np.tanh(scores / c.softcap)
        wrong = wrong + 2.0**-10.9 * np.abs(scores)
    scores = np.where(seen_by(len(q), keys, c.causal, c.window), scores, -np.inf)
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    top = np.where(top > -np.inf, top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[:, 0]
    wrong = np.where(weights > 0, wrong, 0).max(axis=1, keepdims=True, initial=0)
    share = weights / np.where(total == 0, 1, total)
    size = share @ np.abs(v)
    info = ml_dtypes.finfo(kind)
    if narrow:
        lost = 2.0**-4 * size + 2.0**-17 * np.abs(v).sum(axis=0) / np.maximum(total, 1)
        lost = lost + 2.0**-12 * (1 + min(keys, 256) / 32) * size
    else:
        lost = (float(info.eps) / 2 + 2 * keys * EPS32) * size
        tiny = float(info.smallest_subnormal) / 2
        lost = lost + tiny * np.abs(v).sum(axis=0) / np.maximum(total, 1)
    error = np.expm1(2 * wrong) * size + lost + 1e-30
    finite = np.where(np.isfinite(lse), np.abs(lse), 0)
    return share @ v, error, lse, 2e-4 + 2 * wrong[:, 0] + 4e-6 * finite


def attention_problem(c: Any, rng: np.random.Generator) -> Problem:
    kv = (c.batch, c.keys, c.kv_heads, c.depth)
    queries = (c.batch, c.queries, c.kv_heads * c.group, c.depth)
    q, k, v = (normal(rng, shape, c.dtype) for shape in (queries, kv, kv))
    narrow = c.dtype == "e4m3"
    arrays = {"q": q, "k": k, "v": v}
    if narrow and c.scales:
        for name, heads in (("q_scale", q), ("k_scale", k), ("v_scale", k)):
            arrays[name] = rng.uniform(0.3, 2, (c.batch, heads.shape[2])).astype(np.float32)

    def expect() -> Any:
        y, slack = np.zeros(q.shape), np.zeros(q.shape)
        lse, wrong = (np.zeros((c.batch, q.shape[2], c.queries)) for _ in range(2))
        for i, head in np.ndindex(c.batch, q.shape[2]):
            kv_head = head // c.group
            parts = (("q", head), ("k", kv_head), ("v", kv_head))
            some = [wide(arrays[n][i, :, h]) for n, h in parts]
            for at, (n, h) in enumerate(parts):
                some[at] = some[at] * (arrays[f"{n}_scale"][i, h] if f"{n}_scale" in arrays else 1)
            results = attended(*some, c, narrow, q.dtype)
            y[i, :, head], slack[i, :, head], lse[i, head], wrong[i, head] = results
        return {"out": (y, slack), "lse": (lse, wrong)}

    options = {name: getattr(c, name) for name in ("causal", "scale", "window", "softcap")}
    options |= {"out_dtype": "bf16"} if narrow else {}
    outputs = {"out": (q.shape, "bf16" if narrow else c.dtype)}
    outputs |= {"lse": ((c.batch, q.shape[2], c.queries), "f32")} if c.lse else {}
    options |= {"return_lse": True} if c.lse and c.out == "new" else {}
    return Problem(arrays, outputs, expect, options, views=("q", "k", "v", "out"), aligned=True,
                   returned=("out", "lse"), dtype=c.dtype)  # fmt: skip


def packed(c: Any, rng: np.random.Generator) -> Problem:
    lengths = [rng.integers(0, most + 1, c.sequences) for most in (c.queries, c.keys)]
    starts = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in lengths]
    heads, rows = c.kv_heads * c.group, [int(s[-1]) + 3 for s in starts]
    q = normal(rng, (rows[0], heads, c.depth), c.dtype)
    k, v = (normal(rng, (rows[1], c.kv_heads, c.depth), c.dtype) for _ in range(2))
    arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1]}

    def expect() -> Any:
        y, slack = np.full(q.shape, START), np.zeros(q.shape)
        lse, wrong = np.full((heads, rows[0]), START), np.zeros((heads, rows[0]))
        for i, head in np.ndindex(c.sequences, heads):
            mine, theirs = (slice(*s[i : i + 2]) for s in starts)
            some = (wide(q[mine, head]), *(wide(x[theirs, head // c.group]) for x in (k, v)))
            results = attended(*some, c, False, q.dtype)
            y[mine, head], slack[mine, head], lse[head, mine], wrong[head, mine] = results
        return {"out": (y, slack), "lse": (lse, wrong)}

    options = {name: getattr(c, name) for name in ("causal", "scale", "window", "softcap")}
    outputs = {"out": (q.shape, c.dtype)}
    outputs |= {"lse": ((heads, rows[0]), "f32")} if c.lse else {}
    return Problem(arrays, outputs, expect, options, views=("q", "k", "v", "out"), aligned=True,
                   returned=(), dtype=c.dtype)  # fmt: skip


def gradients(c: Any, rng: np.random.Generator) -> Problem:
    kv = (c.batch, c.keys, c.kv_heads, c.depth)
    shape = (c.batch, c.queries, c.kv_heads * c.group, c.depth)
    dout, q, k, v = (normal(rng, s, c.dtype) for s in (shape, shape, kv, kv))
    scale = c.depth**-0.5 if c.scale is None else c.scale
    info = ml_dtypes.finfo(q.dtype)
    half, tiny = float(info.eps) / 2, float(info.smallest_subnormal) / 2
    out, lse = np.zeros_like(q), np.zeros((c.batch, shape[2], c.queries), np.float32)
    values, errors = ([np.zeros(x.shape) for x in (q, k, v)] for _ in range(2))
    seen = seen_by(c.queries, c.keys, c.causal, None)
    for i, head in np.ndindex(c.batch, shape[2]):
        place = head // c.group
        a, g, b, w = (
            wide(x[i, :, h]) for x, h in ((q, head), (dout, head), (k, place), (v, place))
        )
        scores = np.where(seen, a @ b.T * scale, -np.inf)
        top = scores.max(axis=1, keepdims=True)
        top = np.where(top > -np.inf, top, 0)
        total = np.exp(scores - top).sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse[i, head] = (np.log(total) + top)[:, 0]
        weights = np.exp(scores - top) / np.where(total == 0, 1, total)
        out[i, :, head] = (weights @ w).astype(q.dtype)
        terms = g * wide(out[i, :, head])
        ds = weights * (g @ w.T - terms.sum(axis=1, keepdims=True))
        exponent = 2 * (c.depth + 2) * EPS32 * np.abs(a) @ np.abs(b).T * scale
        exponent = exponent + 4 * EPS32 * np.where(total > 0, np.abs(lse[i, head][:, None]), 0)
        exponent = np.where(weights > 0, exponent, 0)
        wrong = np.expm1(exponent) * weights + half * weights + tiny
        # dP and delta cancel: with one key dS is 0, and what is left of it are their errors.
        sums = np.abs(g) @ np.abs(w).T + np.abs(terms).sum(axis=1, keepdims=True)
        wrong_ds = np.expm1(exponent) * np.abs(ds) + half * np.abs(ds) + tiny
        wrong_ds = wrong_ds + weights * sums * (2 * c.depth + 8) * EPS32
        parts = (
            (0, head, ds @ b * scale, wrong_ds @ np.abs(b) * scale),
            (1, place, ds.T @ a * scale, wrong_ds.T @ np.abs(a) * scale),
            (2, place, weights.T @ g, wrong.T @ np.abs(g)),
        )
        for n, h, value, error in parts:
            values[n][i, :, h] += value
            errors[n][i, :, h] += 1.05 * error

    def expect() -> Any:
        slack = [e + 1e-4 * np.abs(x) + tiny + 1e-6 for x, e in zip(values, errors)]
        return dict(zip(("dq", "dk", "dv"), zip(values, slack)))

    arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    outputs = {n: (x.shape, c.dtype) for n, x in (("dq", q), ("dk", k), ("dv", v))}
    options = {name: getattr(c, name) for name in ("causal", "scale", "deterministic")}
    return Problem(arrays, outputs, expect, options,
                   views=("dout", "q", "k", "v", "dq", "dk", "dv"), aligned=True,
                   returned=("dq", "dk", "dv"), dtype=c.dtype)  # fmt: skip


FLOATS, HALVES = kind("f32", "f16", "bf16"), kind("bf16", "f16")
MATRICES = {"m": size(1, 400, 70), "n": size(1, 700, 70), "k": size(1, 900, 140)}
SCORES: dict[str, Any] = {
    **{"queries": size(1, 300, 40), "keys": size(1, 500, 70), "batch": one(1, 2, few=(1,))},
    **{
        "kv_heads": one(1, 2, 3, few=(1, 2)),
        "group": one(1, 2, 4, few=(1, 2)),
        "causal": kind(False, True),
    },
    **{"depth": kind(64, 128, few=(64,)), "dtype": HALVES, "scale": one(None, 0.02, 0.3)},
}
MASKS = {"window": kind(None, (10, 5), (30, None), (None, 7), (0, 0)), "softcap": kind(None, 5.0)}
MASKS |= {"lse": kind(False, True), "out": one("new", "given")}
FAMILIES = (
    Family(matmuls.matmul, {**MATRICES, "types": OPERANDS, "batch": one(None, None, 1, 3),
           "shared": one(False, True), "alpha": kind(1.0, 0.25, -2), "beta": kind(0.0, 0.0, 0.5),
           "activation": kind(None, None, "relu", "gelu", "gelu_tanh", "silu"),
           "bias": kind(None, None, "f32", "f16", "bf16"), "residual": kind(False, False, True),
           "scales": kind(False, False, True), "result": kind("same", "same", "f32", "f16", "bf16"),
           "config": kind(*CONFIGS, few=("64", "parts")),
           "out": one("new", "given", "in place")}, products, 4),
    Family(matmuls.grouped_matmul, {"groups": size(1, 20, 4), "rows": size(0, 150, 40),
           "behind": one(1, 70), "n": MATRICES["n"], "k": MATRICES["k"], "alpha": one(1.0, 0.25),
           "types": kind("bf16 bf16", "f16 f16", "e4m3 e4m3", "e5m2 e4m3"),
           "by_ends": kind(False, True), "scales": kind(False, True),
           "result": kind("same", "f32", "f16", "bf16"),
           "config": kind("64", "128", "pairs", "128x256", "fours", "long", "chosen", few=("64",)),
           "out": one("given")}, grouped, 2),
    Family(matmuls.block_scaled_matmul, {**MATRICES, "types": kind("e4m3 e4m3", "e5m2 e4m3"),
           "result": kind("bf16", "f16", "f32"), "config": kind(*SCALED, few=("64",)),
           "out": one("new", "given")}, block_scaled, 2),
    Family(attentions.attention, {**SCORES, **MASKS, "scales": one(False, True),
           "dtype": kind("bf16", "f16", "e4m3")}, attention_problem, 3),
    Family(attentions.attention_varlen, {**SCORES, **MASKS, "sequences": size(1, 12, 3),
           "out": one("given")}, packed, 2),
    Family(attentions.attention_backward, {**SCORES, "deterministic": kind(False, True),
           "out": one("new", "given")}, gradients, 2),
)  # fmt: skip
