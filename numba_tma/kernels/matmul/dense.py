"""Matmul: products of matrices on the tensor cores, with what follows them in one kernel.

How the kernel works is told in `_matmul_kernel`, and in docs/kernels/matmul.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host.array_interface import read_array, readers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.launching import Matrix, empty, launched_again, multiprocessors, noting
from numba_tma.kernels.matmul.choice import candidates, fastest, key_of, time_on_gpu
from numba_tma.kernels.matmul.epilogue import ACTIVATIONS, Epilogue, Terms
from numba_tma.kernels.matmul.launch import MatmulCall, factor_type, run
from numba_tma.kernels.matmul.operands import Matrices, move, padded
from numba_tma.kernels.matmul.plan import AnyConfig, Config, SwappedConfig, check_config

#: Types that go together as factors, and what their products are stored as, the usual one first.
FACTORS = {
    ("bf16",): ("bf16", "f32", "f16"),
    ("f16",): ("f16", "f32", "bf16"),
    ("tf32",): ("f32", "f16", "bf16"),
    ("e4m3", "e5m2"): ("bf16", "f16", "f32"),
    ("i8", "u8"): ("i32", "f32", "f16", "bf16"),
}


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    bias: Any = None,
    residual: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    row_scale: Any = None,
    column_scale: Any = None,
    out_dtype: object = None,
    stream: Any = None,
    dtype: object = None,
    config: AnyConfig | None = None,
    tune: bool = False,
) -> Any:
    """Multiply matrices, and do what follows in the same kernel.

    ``activation(alpha * row_scale * column_scale * (a @ b) + beta * out + bias) + residual``

    Parameters
    ----------
    a, b
        Device arrays (..., M, K) and (..., K, N): torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Leading axes count matrices; they are the
        same, or one array has no more than one matrix, which is multiplied with all of the other.
        Both bf16 or both f16; f32, which is rounded to tf32; e4m3 and e5m2 in any mix; i8 and u8 in
        any mix. One of the last two axes is contiguous, so that ``w.T`` is multiplied as it lies.
        Copied first is what TMA cannot address, since it starts or has rows that are no multiple of
        16 B apart; of 8 and 32 bits, what is not contiguous along K is transposed first.
    out
        Where to write, (..., M, N), with a contiguous last axis and no part of a or b; a new array
        if None.
    bias
        (N,), of f32, f16 or bf16.
    residual
        (..., M, N), of the type of `out`, its leading axes not expanded. May be `out`.
    activation
        "relu", "gelu", "gelu_tanh" or "silu".
    alpha, beta
        Numbers. With beta = 0, `out` is not read.
    row_scale, column_scale
        float32, (..., M) and (N,): the scales of quantised factors.
    out_dtype
        What to store: by default the type of `a` for bf16, f16 and f32, bf16 for 8-bit floats, i32
        for integers. Floats are stored as f32, f16 or bf16; so are products of integers, if wanted.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of a and b mean where their own type cannot say it, such as bf16 held as
        uint16; or a pair for a and b.
    config
        How the work is cut up, a `Config` or `SwappedConfig`; what is expected to be fast if None.
    tune
        Take what is fastest, if no `config` is given: at the first call for a GPU and such arrays
        every configuration is compiled and measured, which takes a minute and synchronises, and
        the best is kept in a file (`_matmul_tuner`); later calls, and processes, look it up.

    Returns
    -------
    Any
        `out`. Products are added up in float32 (integers in int32), the other steps are computed in
        float32, and the result is rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    kinds = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    if out is None:
        shape, found = _result(Matrices("a", a, kinds[0]), Matrices("b", b, kinds[1]), out_dtype)
        if beta:
            raise ValueError(f"matmul(): beta is {beta}, which multiplies out, and out is None")
        out = empty(a, shape, found)
    arrays = (a, b, out, bias, residual, row_scale, column_scale)
    named = None if out_dtype is None else as_dtype(out_dtype)
    tunes = tune and config is None and not simulated()
    _matmul(arrays, stream, (alpha, beta), kinds, named, activation, config, tunes)
    return out


def _result(a: Matrices, b: Matrices, out_dtype: object) -> tuple[tuple[int, ...], DType]:
    """Return the shape and type of the result, or raise a ValueError."""
    names = {factor_type(a).name, factor_type(b).name}
    outs = next((outs for kinds, outs in FACTORS.items() if names <= set(kinds)), None)
    if outs is None:
        raise ValueError(
            f"matmul(): a is {a.dtype} and b is {b.dtype}; the tensor cores multiply "
            f"{'; '.join(' with '.join(dict.fromkeys((k[0], k[-1]))) for k in FACTORS)}"
        )
    if a.columns != b.rows:
        raise ValueError(
            f"matmul(): a has shape {a.shape} and b {b.shape}: K is {a.columns} and {b.rows}, and "
            "must be the same; is b transposed?"
        )
    found = as_dtype(outs[0] if out_dtype is None else out_dtype)
    if found.name not in outs:
        raise ValueError(
            f"matmul(): out is {found}, but products of {a.dtype} and {b.dtype} are stored as "
            f"{', '.join(outs)}"
        )
    leading = [m.shape[:-2] for m in (a, b)]
    if 1 not in map(math.prod, leading) and leading[0] != leading[1]:
        raise ValueError(
            f"matmul(): a has shape {a.shape} and b {b.shape}: the leading axes must be the same, "
            "or those of one array 1 or none; expand an array and copy it"
        )
    return (*np.broadcast_shapes(*leading), a.rows, b.columns), found


@launched_again
def _matmul(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[float, float],
    kinds: tuple[object, object],
    out_dtype: DType | None,
    activation: str | None,
    config: AnyConfig | None,
    tunes: bool,
) -> list[Any]:
    check_config("matmul", config, Config, SwappedConfig)
    product = _product(arrays, numbers, kinds, out_dtype, activation)
    if not product.out.nbytes:
        return []
    if tunes:
        with noting():  # what is launched to measure is not launched again
            config = _tuned(product, stream)
    return run(product, config, stream)


def _product(
    arrays: tuple[Any, ...],
    numbers: tuple[float, float],
    kinds: tuple[object, object],
    out_dtype: DType | None,
    activation: str | None,
) -> MatmulCall:
    """Return the matmul of some arrays, if they fit each other."""
    a, b = (Matrices(name, array, kind) for name, array, kind in zip("ab", arrays, kinds))
    shape, kind = _result(a, b, out_dtype or _stored_type(arrays[2]))
    out = Matrices("out", arrays[2], kind)
    if out.shape != shape:
        raise ValueError(
            f"matmul(): out has shape {out.shape}, but {a.shape} @ {b.shape} has shape {shape}"
        )
    if out.nbytes and (out.repeats or not out.has_rows):
        raise ValueError(
            f"matmul(): out has shape {out.shape} and steps of {out.steps} B: its last axis must "
            "be contiguous, and no axis expanded; multiply b.T @ a.T into out.T, or pass another "
            "array"
        )
    epilogue, terms, residual = _epilogue(arrays[3:], numbers, activation, out)
    return MatmulCall(a, b, out, residual, epilogue, terms)


_tuned_before: dict[str, AnyConfig] = {}


def _tuned(product: MatmulCall, stream: Any) -> AnyConfig:
    """Return the fastest configuration, which is measured if that is not known."""
    key, out = key_of(cuda.get_current_device().name, product), product.out
    if key not in _tuned_before:
        saved = padded("out", out.extents, out.dtype)
        if product.epilogue.sources:  # which may be read from out
            move(out, saved, stream)

        def seconds(config: AnyConfig) -> float:
            with noting() as launches:
                kept = run(product, config, stream)
            taken = time_on_gpu(launches, stream)
            kept.clear()  # the launches are over
            return taken

        every = candidates(product.problem, multiprocessors())
        _tuned_before[key] = fastest(key, every, seconds)
        if product.epilogue.sources:
            move(saved, out, stream)
    return _tuned_before[key]


def _stored_type(out: Any) -> DType | None:
    """Return what `out` says that it holds; None for bits that could be anything."""
    found = as_dtype(readers.get(type(out), read_array)(out)[3])
    return None if found.name in ("u8", "i8", "u16", "i16", "u32") else found


def _epilogue(
    arrays: tuple[Any, ...], numbers: tuple[float, float], activation: str | None, out: Matrices
) -> tuple[Epilogue, Terms, Matrices | None]:
    """Return which steps follow the product, what they need, and the residual."""
    bias, residual, row_scale, column_scale = arrays
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(
            f"matmul(): activation is {activation!r}; it is None or one of "
            f"{', '.join(map(repr, ACTIVATIONS))}"
        )
    added = None if residual is None else Matrices("residual", residual, out.dtype)
    fits = added is None or (added.shape == out.shape and added.has_rows)
    if added is not None and (not fits or added.batch != out.batch):
        raise ValueError(
            f"matmul(): residual has shape {added.shape} and steps of {added.steps} B, and out has "
            f"shape {out.shape}; it has that shape too, a contiguous last axis, and no leading "
            "axis that is expanded: pass a copy"
        )
    f32 = ("f32",)
    vectors = (
        _vector("row_scale", row_scale, out.shape[:-1], f32, out),
        _vector("column_scale", column_scale, out.shape[-1:], f32, out),
        _vector("bias", bias, out.shape[-1:], ("f32", "f16", "bf16"), out),
    )
    alpha, beta = numbers
    epilogue = Epilogue(
        alpha=bool(alpha != 1),
        row_scale=row_scale is not None,
        column_scale=column_scale is not None,
        beta=bool(beta != 0),
        bias=vectors[2].dtype if vectors[2] else None,
        activation=activation,
        residual=residual is not None,
    )
    if out.dtype.name == "i32" and epilogue.changes:
        raise ValueError(
            "matmul(): out is i32, exact sums that nothing follows; use out_dtype f32, f16 or bf16 "
            "for alpha, beta, scales, bias, activation and residual"
        )
    terms = Terms(*map(np.float32, numbers), *(v.as_bytes() if v else 0 for v in vectors))
    return epilogue, terms, added


def _vector(
    name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[str, ...], out: Matrices
) -> Matrix | None:
    """Return an array of the epilogue, if there is one and it has what it should have."""
    if array is None:
        return None
    stored = as_dtype(readers.get(type(array), read_array)(array)[3])
    vector = Matrix(name, array, out.dtype if stored.name in ("u16", "i16") else None)
    if vector.shape != shape or vector.dtype.name not in dtypes or not vector.is_contiguous():
        raise ValueError(
            f"matmul(): {name} has shape {vector.shape} of {vector.dtype}; with an out of shape "
            f"{out.shape} it is contiguous, of shape {shape} and of {' or '.join(dtypes)}"
        )
    return vector
