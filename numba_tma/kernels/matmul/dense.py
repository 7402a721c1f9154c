"""`matmul`: the public function, its checks, and the choice of a measured configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.array_interface import reading_of
from numba_tma.host.arrays import Array, option_dtype
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.values import FLAG, NUMBER, checked, one_of, optional
from numba_tma.kernels._host.device import device_name, has_mma_alone, has_tcgen05, sm_count
from numba_tma.kernels._host.launch import recorded
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty
from numba_tma.kernels.matmul.arguments import ACTIVATIONS, Epilogue, Terms
from numba_tma.kernels.matmul.choice import MMA_CONFIGS, candidates, tcgen05_candidates
from numba_tma.kernels.matmul.launch import MatmulCall, operand_type, run
from numba_tma.kernels.matmul.measurements import fastest, key_of, time_on_gpu
from numba_tma.kernels.matmul.operands import (
    Workspace,
    as_matrices,
    elements,
    move,
    operand_dtypes,
    padded,
    read_matrices,
    repeats,
)
from numba_tma.kernels.matmul.plan import (
    CONFIG_CLASSES,
    AnyConfig,
    check_config,
)

#: Operand types that may be mixed, and the types of their results, the default first.
RESULTS = {
    ("bf16",): ("bf16", "f32", "f16"),
    ("f16",): ("f16", "f32", "bf16"),
    ("tf32",): ("f32", "f16", "bf16"),
    ("e4m3", "e5m2"): ("bf16", "f16", "f32"),
    ("i8", "u8"): ("i32", "f32", "f16", "bf16"),
}
SCALED_RESULTS = ("bf16", "f16", "f32")  #: of any operands with scale factors

ACTIVATION = optional(one_of(*ACTIVATIONS))


def matmul(
    a: DeviceArray,
    b: DeviceArray,
    out: DeviceArray | None = None,
    *,
    bias: DeviceArray | None = None,
    residual: DeviceArray | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    row_scale: DeviceArray | None = None,
    column_scale: DeviceArray | None = None,
    a_scales: DeviceArray | None = None,
    b_scales: DeviceArray | None = None,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | tuple[DTypeLike, DTypeLike] | None = None,
    scale_dtype: DTypeLike | None = None,
    config: AnyConfig | None = None,
    tune: bool = False,
) -> DeviceArray:
    """Multiply matrices on the tensor cores, with the epilogue in the same kernel.

    ``activation(alpha * row_scale * column_scale * (a @ b) + beta * out + bias) + residual``

    With `a_scales` and `b_scales`, a and b are in a block-scaled format: mxfp8, mxfp4 or nvfp4.

    Parameters
    ----------
    a, b
        Device arrays (..., M, K) and (..., K, N): torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Leading axes count matrices; they are equal,
        or one array has a single matrix, which is multiplied with all of the other. Both are bf16,
        both f16, both f32 (rounded to tf32), any mix of e4m3 and e5m2, any mix of i8 and u8, or in
        a block-scaled format. One of the last two axes is contiguous: ``w.T`` is multiplied without
        a copy. Inputs whose base or row stride is not 16-byte aligned are copied first, unless they
        are f16 or bf16 and the product is small or narrow. Inputs of 8 or 32 bits that are not
        contiguous along K are transposed first, but for 8-bit floats on Blackwell.
    out
        Device array (..., M, N) for the result, with a contiguous last axis, that does not overlap
        a or b; a new array if None.
    bias
        (N,), f32, f16 or bf16; integers of 16 bits hold the type of `out`.
    residual
        (..., M, N), of the type of `out`; its leading axes are not expanded. It may be `out`.
    activation
        "relu", "gelu", "gelu_tanh" or "silu".
    alpha, beta
        Numbers. With beta = 0, `out` is not read.
    row_scale, column_scale
        float32, (..., M) and (N,): the scales of quantised operands.
    a_scales, b_scales
        Scale factors for blocks of a's rows and b's columns along K, on GPUs with Blackwell's
        tensor cores. For e2m1 an e4m3 for 16 elements (nvfp4), or a ue8m0 for 32 (mxfp4). For any
        mix of e4m3, e5m2, e3m2, e2m3 and e2m1 a ue8m0 for 32 (mxfp8, mxfp6). K is a multiple of
        that, and of 128 if elements of 6 bits, or of 4 beside others, are among them. Scales lie
        in atoms of 128 x 4, as `to_blocked` returns them: ceil(M / 128) x ceil(K / block / 4)
        atoms of 512 B for a matrix of a, ceil(N / 128) x as many for one of b; contiguous, in any
        shape but that of plain scales. Padding along K is no NaN: `to_blocked` writes zeros.
    out_dtype
        Type of the result. The default is the type of `a` for bf16, f16 and f32, bf16 for 8-bit
        floats, and i32 for integers. Any result may be f32, f16 or bf16.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of a and b where their own type cannot say it, such as bf16 held as uint16; or
        a pair for a and b. Elements of 4 and 6 bits are packed along K (`pack`): of e2m1 a is
        (..., M, K / 2) bytes, and b (..., K / 2, N).
    scale_dtype
        "ue8m0" or "ue4m3", where the scales of e2m1 are held as uint8.
    config
        A `Config`, `StreamKConfig`, `SwappedConfig` or `UnalignedConfig` on Hopper, a
        `Tcgen05Config` on Blackwell (compute capability 10.0, 10.3 and 11.0), and an `MmaConfig` on
        any GPU, which compute capability 12.x needs; the one that is expected to be fastest if
        None.
    tune
        Use the configuration that was measured to be fastest; ignored if `config` is given. The
        first call for a GPU, types, layouts and sizes compiles and measures all configurations,
        which takes a minute and synchronises. The result is kept in a file (`choice`).

    Returns
    -------
    DeviceArray
        `out`. Products are added up in float32 (integers in int32), the epilogue is computed in
        float32, and the result is rounded once.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory, or `config` is of another class.
    ValueError
        If shapes, types or layouts do not fit each other.
    """
    kinds = operand_dtypes("matmul", dtype)
    named = option_dtype("matmul", "out_dtype", out_dtype)
    if out is None:
        left, right = (read_matrices("matmul", *given) for given in zip("ab", (a, b), kinds))
        scaled = _are_scaled(a_scales, b_scales)
        shape, found = _result(left, right, named, scaled)
        if checked("matmul", "beta", beta, NUMBER):
            raise ValueError(f"matmul(): beta is {beta}, which multiplies out, and out is None")
        out = empty("matmul", "a", a, shape, found)
    arrays = (a, b, out, bias, residual, row_scale, column_scale, a_scales, b_scales)
    tunes = checked("matmul", "tune", tune, FLAG) and config is None and not simulated()
    types = (*kinds, option_dtype("matmul", "scale_dtype", scale_dtype))
    _matmul(arrays, stream, (alpha, beta), types, named, activation, config, tunes)
    return out


@launched_again(
    *("matmul", "a", "b", "out", "bias", "residual", "row_scale", "column_scale"),
    *("a_scales", "b_scales"),
)
def _matmul(
    arrays: tuple[DeviceArray | None, ...],
    stream: StreamLike,
    numbers: tuple[float, float],
    kinds: tuple[DType | None, DType | None, DType | None],
    out_dtype: DType | None,
    activation: str | None,
    config: AnyConfig | None,
    tunes: bool,
) -> Workspace:
    check_config("matmul", config, *CONFIG_CLASSES)
    call = _call(arrays, numbers, kinds, out_dtype, activation)
    if call.scales is not None:
        from numba_tma.kernels.matmul.scales import check_scaled

        check_scaled(call.scales, call.a.dtype, call.b.dtype, config)
    if not call.out.size:
        return []
    if tunes:
        with recorded():  # launches that measure are not launched again
            config = _tuned(call, stream)
    return run(call, config, stream)


# --------------------------------------------------------------------------------- checks


def _are_scaled(*scales: DeviceArray | None) -> bool:
    """Return whether there are scale factors; raise a TypeError for some that are no array."""
    for name, array in zip(("a_scales", "b_scales"), scales):
        if array is not None:
            reading_of(array, f"matmul(): {name}")
    return any(array is not None for array in scales)


def _call(
    arrays: tuple[DeviceArray | None, ...],
    numbers: tuple[float, float],
    kinds: tuple[DType | None, DType | None, DType | None],
    out_dtype: DType | None,
    activation: str | None,
) -> MatmulCall:
    """Return the matmul of these arrays, if they fit each other."""
    a, b = (read_matrices("matmul", *given) for given in zip("ab", arrays, kinds))
    a_scales, b_scales = arrays[7:]
    scaled = _are_scaled(a_scales, b_scales)
    shape, kind = _result(a, b, out_dtype or _stored_type(arrays[2]), scaled)
    scales = None
    if scaled:
        from numba_tma.kernels.matmul.scales import read_scales  # which most calls have no use for

        scales = read_scales(a, b, a_scales, b_scales, kinds[2])
    out = read_matrices("matmul", "out", arrays[2], kind)
    if out.shape != shape:
        raise out.error(f"has shape {out.shape}, but {a.shape} @ {b.shape} has shape {shape}")
    if out.size and (repeats(out) or not out.has_contiguous_rows):
        raise out.error(
            f"has shape {out.shape} and strides {out.strides} B: its last axis must be "
            "contiguous, and no axis expanded; multiply b.T @ a.T into out.T, or pass another array"
        )
    given_residual, residual = _residual(arrays[4], out)
    bias, row_scale, column_scale = (
        _vector("bias", arrays[3], out.shape[-1:], ("f32", "f16", "bf16"), out),
        _vector("row_scale", arrays[5], out.shape[:-1], ("f32",), out),
        _vector("column_scale", arrays[6], out.shape[-1:], ("f32",), out),
    )
    activation = checked("matmul", "activation", activation, ACTIVATION)
    alpha, beta = (checked("matmul", *given, NUMBER) for given in zip(("alpha", "beta"), numbers))
    factors = (scales.a, scales.b) if scales else ()
    inputs = [a, b, bias, given_residual, row_scale, column_scale, *factors]
    check_outputs([out], inputs, in_place=[given_residual])
    epilogue = Epilogue(
        alpha=bool(alpha != 1),
        row_scale=row_scale is not None,
        column_scale=column_scale is not None,
        beta=bool(beta != 0),
        bias=bias.dtype if bias else None,
        activation=activation,
        residual=residual is not None,
    )
    if out.dtype.name == "i32" and epilogue.changes:
        raise ValueError(
            "matmul(): out is i32, exact sums that nothing follows; use out_dtype f32, f16 or bf16 "
            "for alpha, beta, scales, bias, activation and residual"
        )
    vectors = (v.as_bytes() if v else 0 for v in (row_scale, column_scale, bias))
    terms = Terms(np.float32(alpha), np.float32(beta), *vectors)
    a, b, out = map(as_matrices, (a, b, out))
    return MatmulCall(a, b, out, residual, epilogue, terms, scales)


def _result(
    a: Array, b: Array, out_dtype: DTypeLike | None, scaled: bool
) -> tuple[tuple[int, ...], DType]:
    """Return the shape and type of the result, or raise a ValueError."""
    names = {operand_type(a).name, operand_type(b).name}
    outs = next((outs for kinds, outs in RESULTS.items() if names <= set(kinds)), None)
    if scaled:
        outs = SCALED_RESULTS
    if outs is None and (a.dtype.is_packed or b.dtype.is_packed):
        raise ValueError(
            f"matmul(): a is {a.dtype} and b is {b.dtype}: elements of 4 and 6 bits have scale "
            "factors: give a_scales and b_scales"
        )
    if outs is None:
        raise ValueError(
            f"matmul(): a is {a.dtype} and b is {b.dtype}; the tensor cores multiply "
            f"{'; '.join(' with '.join(dict.fromkeys((k[0], k[-1]))) for k in RESULTS)}"
        )
    k = elements(a), elements(b.transposed())
    if k[0] != k[1]:
        raise ValueError(
            f"matmul(): a has shape {a.shape} and b {b.shape}: K is {k[0]} and {k[1]}, and must be "
            "the same; is b transposed?"
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
    return (*np.broadcast_shapes(*leading), a.shape[-2], b.shape[-1]), found


def _stored_type(out: DeviceArray) -> DType | None:
    """Return the type that `out` says it holds; None for integers, which may hold any bits."""
    found = Array.read("matmul", "out", out).dtype
    return None if found.name in ("u8", "i8", "u16", "i16", "u32") else found


def _residual(array: DeviceArray | None, out: Array) -> tuple[Array | None, Array | None]:
    """Return the residual, and it as matrices, if there is one and it fits `out`."""
    if array is None:
        return None, None
    residual = read_matrices("matmul", "residual", array, out.dtype)
    matrices = as_matrices(residual)
    fits = residual.shape == out.shape and residual.has_contiguous_rows
    if not fits or matrices.shape != as_matrices(out).shape:
        raise residual.error(
            f"has shape {residual.shape} and strides {residual.strides} B, and out has shape "
            f"{out.shape}; it has that shape too, a contiguous last axis, and no leading axis that "
            "is expanded: pass a copy"
        )
    return residual, matrices


def _vector(
    name: str,
    array: DeviceArray | None,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
    out: Array,
) -> Array | None:
    """Return an array of the epilogue, if there is one and it has the right shape and type."""
    if array is None:
        return None
    vector = Array.read("matmul", name, array)
    if vector.dtype.name in ("u16", "i16"):
        vector = Array.read("matmul", name, array, out.dtype)
    if vector.shape != shape or vector.dtype.name not in dtypes or not vector.is_contiguous:
        raise vector.error(
            f"has shape {vector.shape} of {vector.dtype}; with an out of shape {out.shape} it is "
            f"contiguous, of shape {shape} and of {' or '.join(dtypes)}"
        )
    return vector


# --------------------------------------------------------------------------------- tuning

_tuned_before: dict[str, AnyConfig] = {}


def _tuned(call: MatmulCall, stream: StreamLike) -> AnyConfig:
    """Return the fastest configuration; measure all if none is known."""
    tried: Iterable[AnyConfig] = MMA_CONFIGS
    if has_tcgen05():
        tried = tcgen05_candidates(scaled=call.scales is not None)
    elif not has_mma_alone():
        tried = candidates(call.problem, sm_count())
    key, out = key_of(device_name(), call), call.out
    if key not in _tuned_before:
        # The epilogue may read `out`, which the measurements overwrite.
        saved = padded(out.shape, out.dtype, [])
        if call.epilogue.sources:
            move(out, saved, stream)

        def seconds(config: AnyConfig) -> float:
            with recorded() as recording:
                recording.workspace.extend(run(call, config, stream))
            return time_on_gpu(recording.launches, stream)  # which waits for the launches

        _tuned_before[key] = fastest(key, tried, seconds)
        if call.epilogue.sources:
            move(saved, out, stream)
    return _tuned_before[key]
