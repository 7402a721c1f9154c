"""`gelu` and `swiglu`: activations as pointwise kernels. Their arithmetic is in `formulas`."""

from __future__ import annotations

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.array_interface import reading_of
from numba_tma.host.cached_kernel import Named
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.values import REAL, checked, one_of
from numba_tma.kernels.pointwise.api import Pointwise
from numba_tma.kernels.pointwise.plan import PointwisePlan

_PAGE = "numba_tma.kernels.pointwise.formulas"

#: The kernels of each type; the fast functions of one type are too coarse for another.
GELU = {
    "bf16": Pointwise(Named(_PAGE, "gelu_bf16"), "gelu", names=["x"]),
    "f16": Pointwise(Named(_PAGE, "gelu_f16"), "gelu", names=["x"]),
    "f32": Pointwise(Named(_PAGE, "gelu_f32"), "gelu", names=["x"]),
}
GELU_TANH = Pointwise(Named(_PAGE, "gelu_tanh_lane"), "gelu", names=["x"])
# Twice the threads of an addition: each has a chain of an exponential and a reciprocal to wait for.
SWIGLU = Pointwise(
    Named(_PAGE, "swiglu_lane"),
    "swiglu",
    PointwisePlan("ring", 256, 8192, 4, 2, "tma"),
    names=["gate", "up"],
)


def gelu(
    x: DeviceArray,
    *,
    approximate: str = "none",
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: PointwisePlan | None = None,
) -> DeviceArray:
    """Compute x Phi(x), or its approximation by tanh.

    Parameters
    ----------
    x
        Device array of f32, f16 or bf16; see `pointwise` for what arrays can be.
    approximate
        ``"none"`` or ``"tanh"``, as in torch. By tanh results below 2^-119 become zero.
    out, stream, dtype, plan
        As in `pointwise`.

    Returns
    -------
    DeviceArray
        `out`, computed in float32 and rounded once.
    """
    if approximate == "tanh":
        return GELU_TANH.compute((out, x), stream, dtype, plan)
    if approximate != "none":
        checked("gelu", "approximate", approximate, one_of("none", "tanh"))
    stored = reading_of(x, "gelu(): x")[0][3] if dtype is None else dtype
    try:
        kind = as_dtype(stored).name
    except TypeError:
        kind = ""  # which is no type for any of them: the call says so
    chosen = GELU.get(kind, GELU["f32"])
    return chosen.compute((out, x), stream, dtype, plan)


def swiglu(
    gate: DeviceArray,
    up: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: PointwisePlan | None = None,
) -> DeviceArray:
    """Compute silu(gate) * up, with silu(x) = x / (1 + exp(-x)).

    Parameters and result are those of `gelu`. Below gate = -87, where silu is below 2^-119, the
    result is zero.
    """
    if REAL.of_kind(up):  # which `pointwise` takes, as a number for all elements
        raise TypeError(f"swiglu(): up is {up}, a number; pass an array that broadcasts")
    return SWIGLU.compute((out, gate, up), stream, dtype, plan)
