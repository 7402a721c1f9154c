"""What a case calls: our function, the exact values that it is held to, and its peers."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench import attention, attention_backward, matmul, norms
from numba_tma.tools.bench.peers import check, offered, shipped
from numba_tma.tools.bench.survey.draw import Case
from numba_tma.tools.bench.timing import Run

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "e4m3": "float8_e4m3fn"}
TOLERANCES = {"f32": 2**-16, "bf16": 2**-7, "f16": 2**-9}  #: of a rounded result, by its type
SUMS, SUM_TOLERANCE = ("row_sum", "column_sum"), 2**-13  #: results are f32
F16_SPACING = 2**-24  #: of the smallest numbers
FOLDERS = {
    **dict.fromkeys(("rmsnorm", "layernorm", "softmax", *SUMS), "rows"),
    **dict.fromkeys(("add", "gelu", "swiglu"), "pointwise"),
    **{name: name for name in ("transpose", "copy")},
}
GAP = 3  #: elements between the rows of a view
CHECKED_AT_ONCE = 1 << 24  #: elements in float64


class Call(NamedTuple):
    """One call, ready to run."""

    ours: Run  #: returns the result, as the peers do
    right: Callable[[Any], None]  #: raises an AssertionError for a wrong result
    peers: dict[str, Run]
    nbytes: int  #: that are read and written, once each
    operations: int  #: on the tensor cores
    copy: tuple[Run, float] | None = None  #: a copy, and how many times its bytes are moved


def is_here(package: str) -> bool:
    """Return whether a package of peers is installed."""
    return importlib.util.find_spec(package) is not None


def call_of(torch: ModuleType, case: Case) -> Call:
    """Return the call of a case, with inputs that are the same each time."""
    torch.manual_seed(0)
    return CALLS[case.family](torch, case)


# ------------------------------------------------------------------------------------ matmul


def _matmul(torch: ModuleType, case: Case) -> Call:
    M, N, K = case.shape
    dtype = getattr(torch, DTYPES[case.dtype])
    a, w = (
        torch.randn(rows, K, device="cuda").to(dtype)
        if axis == "K"
        else torch.randn(K, rows, device="cuda").to(dtype).T
        for rows, axis in zip((M, N), case.form)
    )
    narrow = case.dtype == "e4m3"
    kept = torch.bfloat16 if narrow else dtype
    c, d = (torch.full((M, N), math.nan, device="cuda", dtype=kept) for _ in range(2))
    one = torch.ones(1, 1, device="cuda")
    peers: dict[str, Run] = {"cuBLAS": lambda: torch.mm(a, w.T, out=d)}
    if narrow:
        peers = {"cuBLASLt": matmul.cublaslt(torch, a, w, one, one, fast=True)}
    tolerance = matmul.FP8_TOLERANCE if narrow else matmul.BF16_TOLERANCE
    return Call(
        functools.partial(_into, c, shipped("matmul", "matmul"), a, w.T),
        functools.partial(matmul.check_product, torch, tolerance, a, w),
        peers,
        a.nbytes + w.nbytes + c.nbytes,
        2 * M * N * K,
    )


def _into(out: DeviceArray, function: Callable[..., Any], *args: object, **how: object) -> Any:
    """Call a function that writes `out`, and return that."""
    function(*args, out=out, **how)
    return out


# --------------------------------------------------------------------------------- attention


def _operands(torch: ModuleType, case: Case) -> tuple[Any, Any, Any]:
    """Return q, k and v."""
    batch, queries, heads, depth, keys, kv_heads = case.shape
    dtype = getattr(torch, DTYPES[case.dtype])
    shapes = ((batch, n, h, depth) for n, h in ((queries, heads), (keys, kv_heads)))
    q_shape, kv_shape = shapes
    q, k, v = (torch.randn(s, device="cuda").to(dtype) for s in (q_shape, kv_shape, kv_shape))
    return q, k, v


def _products(case: Case, count: int) -> int:
    """Return the operations of so many products of queries and keys; a mask leaves half."""
    batch, queries, heads, depth, keys, _ = case.shape
    return 2 * count * batch * heads * queries * keys * depth // (1 + (case.form == "causal"))


def _attention(torch: ModuleType, case: Case) -> Call:
    q, k, v = _operands(torch, case)
    o, causal = torch.full_like(q, math.nan), case.form == "causal"
    shared = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    sources = {
        "SDPA": functools.partial(attention.by_torch, torch, q, k, v, is_causal=causal, **shared)
    }
    if is_here("flash_attn"):
        four = functools.partial(attention.flash_attention_4, q, k, v, causal)
        sources["FlashAttention-4"] = four
    return Call(
        functools.partial(_into, o, shipped("attention", "attention"), q, k, v, causal=causal),
        functools.partial(attention.check_rows, torch, q, k, v, causal),
        offered(case.name, sources),
        sum(t.nbytes for t in (q, k, v, o)),
        _products(case, 2),
    )


def _attention_backward(torch: ModuleType, case: Case) -> Call:
    q, k, v = _operands(torch, case)
    dout, causal = torch.randn(q.shape, device="cuda").to(q.dtype), case.form == "causal"
    forward, backward = (shipped("attention", f"attention{s}") for s in ("", "_backward"))
    out, lse = forward(q, k, v, causal=causal, return_lse=True)
    grads = {f"d{name}": torch.full_like(t, math.nan) for name, t in zip("qkv", (q, k, v))}
    arrays = dout, q, k, v

    def ours() -> Any:
        backward(*arrays, out, lse, causal=causal, **grads)
        return tuple(grads.values())

    sources = {
        name: functools.partial(attention_backward.by_torch, name, torch, arrays, causal)
        for name in attention_backward.BACKENDS
    }
    return Call(
        ours,
        functools.partial(attention_backward.check_gradients, torch, arrays, causal),
        offered(case.name, sources),
        sum(t.nbytes for t in (*arrays, out, lse, *grads.values())),
        _products(case, 5),
    )


# -------------------------------------------------------------------------------------- rows


def placed(flat: Callable[[int], DeviceArray], form: str, rows: int, columns: int) -> DeviceArray:
    """Return a matrix of an alignment, in the memory that `flat` makes."""
    pitch = columns + GAP * (form == "view")
    start = int(form in ("shifted", "view"))
    return flat(start + rows * pitch)[start:].reshape(rows, pitch)[:, :columns]


def _references(torch: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return torch's functions of x, a second array like it, a weight and a bias."""
    F = torch.nn.functional
    return {
        "rmsnorm": lambda x, z, w, b: F.rms_norm(x, x.shape[-1:], w, 1e-6),
        "layernorm": lambda x, z, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5),
        "softmax": lambda x, z, w, b: torch.softmax(x, -1),
        "row_sum": lambda x, z, w, b: x.sum(-1),
        "column_sum": lambda x, z, w, b: x.sum(0),
        "add": lambda x, z, w, b: x + z,
        "gelu": lambda x, z, w, b: F.gelu(x),
        "swiglu": lambda x, z, w, b: F.silu(x) * z,
        "transpose": lambda x, z, w, b: x.T,
        "copy": lambda x, z, w, b: x,
    }


def _rows(torch: ModuleType, case: Case) -> Call:
    rows, columns = case.shape
    dtype, kernel = getattr(torch, DTYPES[case.dtype]), case.kernel

    def random(size: int) -> DeviceArray:
        return torch.randn(size, device="cuda").to(dtype)

    def unwritten(size: int) -> DeviceArray:
        return torch.full((size,), math.nan, device="cuda", dtype=dtype)

    x = placed(random, case.form, rows, columns)
    z = placed(random, case.form, rows, columns) if kernel in ("add", "swiglu") else x
    w, b = (random(columns) for _ in range(2))
    shape = (columns, rows) if kernel == "transpose" else (rows, columns)
    y, theirs, copied = (placed(unwritten, case.form, *s) for s in (shape, shape, case.shape))
    if kernel in SUMS:
        size = rows if kernel == "row_sum" else columns
        y = torch.full((size,), math.nan, device="cuda", dtype=torch.float32)
    function, reference = shipped(FOLDERS[kernel], kernel), _references(torch)[kernel]
    arrays = {"rmsnorm": (x, w), "layernorm": (x, w, b), "add": (x, z), "swiglu": (x, z)}
    peers: dict[str, Run] = {
        "torch": {
            "row_sum": lambda: x.sum(-1, dtype=torch.float32),
            "column_sum": lambda: x.sum(0, dtype=torch.float32),
            "add": lambda: torch.add(x, z, out=theirs),
            "transpose": lambda: theirs.copy_(x.T),
            "copy": lambda: theirs.copy_(x),
        }.get(kernel, functools.partial(reference, x, z, w, b))
    }
    if kernel in norms.QUACK and is_here("quack"):
        source = functools.partial(norms.by_quack, kernel, x, w, b)
        peers |= offered(f"{kernel} {case.name}", {"QuACK": source})
    moved = {"add": 3, "swiglu": 3, "row_sum": 1, "column_sum": 1}.get(kernel, 2)
    return Call(
        functools.partial(_into, y, function, *arrays.get(kernel, (x,))),
        functools.partial(_check_rows, torch, case, reference, (x, z, w, b)),
        peers,
        moved * x.nbytes,
        0,
        None if kernel == "copy" else (lambda: copied.copy_(x), moved / 2),
    )


def _check_rows(
    torch: ModuleType,
    case: Case,
    reference: Callable[..., Any],
    arrays: tuple[Any, Any, Any, Any],
    got: DeviceArray,
) -> None:
    """Hold all values to float64, some rows at a time, and what is moved to equality."""
    x, z, w, b = arrays
    if case.kernel in ("transpose", "copy"):
        assert torch.equal(got, reference(*arrays)), "values are not those of the input"
        return
    tolerance = SUM_TOLERANCE if case.kernel in SUMS else TOLERANCES[case.dtype]
    if (case.kernel, case.dtype) == ("softmax", "f16"):
        tolerance += F16_SPACING * x.shape[1]  # 1 / columns, the mean, may be a subnormal number
    step = len(x) if case.kernel == "column_sum" else max(1, CHECKED_AT_ONCE // x.shape[1])
    for first in range(0, len(x), step):
        part = slice(first, first + step)
        exact = reference(x[part].double(), z[part].double(), w.double(), b.double())
        some = got if case.kernel == "column_sum" else got[part]
        check(torch, some, exact, tolerance)


CALLS: dict[str, Callable[[ModuleType, Case], Call]] = {
    "matmul": _matmul,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "rows": _rows,
}
