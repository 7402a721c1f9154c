"""No public function takes a senseless value in silence, and each error is in our words.

Each argument of each function gets each absurd value, in turn. Values that make sense there are
listed; all others raise a TypeError or ValueError that names the function and the argument. Nothing
is simulated: the launches are left out.
"""

import dataclasses
import functools
import inspect
import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import numba_tma as tma
from numba_tma.kernels import attention as attentions
from numba_tma.kernels import copy as copies
from numba_tma.kernels import matmul as matmuls
from numba_tma.kernels import pointwise as pointwises
from numba_tma.kernels import rows
from numba_tma.kernels import transpose as transposes
from numba_tma.kernels._host import launch as _launch
from numba_tma.kernels.attention.backward.plan import BackwardPlan
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.pointwise.plan import PointwisePlan
from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.kernels.transpose.plan import TransposePlan

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
ABSURD = {
    "None": None,
    "nan": math.nan,
    "str": "2",
    "list": [1],
    "tuple": (1,),
    "4.5": 4.5,
    "-1": -1,
    "0": 0,
    "10**12": 10**12,
    "object": object(),
}
NUMBERS = {"4.5", "-1", "0", "10**12"}
SIZES = {"4.5", "0", "10**12"}  # from 0 on


def array(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def heads(length, count=1):
    return array(1, length, count, 64, dtype=BF16)


X, ROW, STATISTIC = array(4, 64), array(64), array(4)
Q, LSE = heads(8), array(1, 1, 8)
A, B = array(64, 64, dtype=BF16), array(64, 64, dtype=BF16).T
STREAM = {"None", "0", "10**12"}  # a handle is any number
COMMON = {"out": {"None"}, "stream": STREAM, "dtype": {"None"}, "plan": {"None"}}
COMMON |= {name: {"None"} for name in ("weight", "bias", "residual", "residual_out", "config")}
COMMON |= {name: {"None"} for name in ("rstd", "mean", "logsumexp", "dx", "dweight", "dbias")}
COMMON |= {name: {"None"} for name in ("lse", "q_scale", "k_scale", "v_scale", "out_dtype")}
COMMON |= {name: {"None"} for name in ("row_scale", "column_scale", "activation", "scales")}
COMMON |= {name: {"None"} for name in ("dq", "dk", "dv", "a_scales", "b_scales", "scale_dtype")}
WINDOW = {"None", "0", "10**12"}
SCORES = {"scale": {"None", "4.5", "10**12"}, "window": WINDOW}
SCORES |= {"softcap": {"None", "4.5", "10**12"}}
BACKWARD = {"rstd": STATISTIC}
PACKED = array(8, 1, 64, dtype=BF16)
STARTS = np.array([0, 8], np.int32)

#: Of each function: valid arguments, and which absurd values make sense besides `COMMON`.
FUNCTIONS = {
    copies.copy: ((X, X + 1), {"out": ()}),
    copies.grouped_copy: (([X], [X + 1]), {}),
    transposes.transpose: ((X,), {}),
    pointwises.gelu: ((X,), {}),
    pointwises.swiglu: ((X, X), {}),
    rows.rmsnorm: ((X,), {"eps": SIZES}),
    rows.layernorm: ((X,), {"eps": SIZES}),
    rmsnorm_pipelined: ((X, ROW), {"eps": SIZES, "weight": ()}),
    rows.softmax: ((X,), {"scale": {"4.5", "10**12"}}),
    rows.log_softmax: ((X,), {"scale": {"4.5", "10**12"}}),
    rows.rmsnorm_backward: ((X, X), {"rstd": ()}, BACKWARD),
    rows.layernorm_backward: ((X, X), {"rstd": (), "mean": ()}, {**BACKWARD, "mean": STATISTIC}),
    rows.row_sum: ((X,), {}),
    rows.row_max: ((X,), {}),
    rows.row_argmax: ((X,), {}),
    rows.column_sum: ((X,), {"parts": {"None"}}),
    matmuls.matmul: ((A, B, array(64, 64, dtype=BF16)), {"alpha": NUMBERS, "beta": NUMBERS}),
    matmuls.grouped_matmul: (
        (A, B[None], np.array([64], np.int32)),
        {"alpha": NUMBERS, "offsets": {"None"}},
    ),
    matmuls.block_scaled_matmul: (
        (A.astype(E4M3), B.astype(E4M3), array(64, 1), array(1, 1)),
        {"a_scales": (), "b_scales": ()},
    ),
    attentions.attention: ((Q, Q, Q), SCORES),
    attentions.attention_varlen: ((PACKED, PACKED, PACKED, STARTS, STARTS), SCORES),
    attentions.attention_backward: (
        (Q, Q, Q, Q, Q, LSE),
        {**SCORES, "out": (), "lse": ()},
    ),
}
MAP_OPTIONS = {name: {"None"} for name in ("swizzle", "element_strides", "interleave", "dtype")}
CACHED = {"fold": {"0"}, "overwrite_padding": {"0"}}  # 0 equals False, whose map is known
#: How errors call an argument.
SHOWN = {"tile_or_box": "box"}
FUNCTIONS |= {
    tma.tensor_map: (
        (X, (4, 32)),
        {**MAP_OPTIONS, "swizzle": {"None", "0"}, "l2_promotion": {"None"}, **CACHED},
    ),
    tma.Tile: (
        ((8, 32), "f32"),
        {"shape": {"tuple", "list", "10**12"}, "swizzle": {"0"}, "dtype": ()},
    ),
}


@pytest.fixture(autouse=True)
def no_launches(monkeypatch):
    monkeypatch.setattr(_launch, "_launcher", lambda *given: lambda *arguments: None)


def complaint(name, argument, fits, call):
    """Call with an absurd value; return what is wrong with the answer, or None."""
    try:
        call()
    except (TypeError, ValueError) as error:
        text = str(error)
        named = name in text and SHOWN.get(argument, argument) in text
        return None if named and not fits else f"{type(error).__name__}: {text[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if fits else "silence"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_raw_python_errors(function):
    given, sensible, *rest = FUNCTIONS[function]
    signature, name = inspect.signature(function), function.__name__
    valid = signature.bind(*given, **(rest[0] if rest else {})).arguments
    assert complaint(name, "", True, lambda: function(**valid)) is None
    wrong = []
    for argument, (kind, value) in itertools.product(signature.parameters, ABSURD.items()):
        fits = kind in sensible.get(argument, COMMON.get(argument, ()))
        call = functools.partial(function, **{**valid, argument: value})
        if (text := complaint(name, argument, fits, call)) is not None:
            wrong.append(f"{name}({argument}={value!r}): {text}")
    assert not wrong, "\n".join(wrong)


PLANS = {
    CopyPlan: (),
    TransposePlan: (),
    PointwisePlan: ("ring",),
    RowPlan: (128,),
    AttentionPlan: (),
    Tcgen05AttentionPlan: (),
    BackwardPlan: (),
    matmuls.Config: (),
    matmuls.SwappedConfig: (),
    matmuls.UnalignedConfig: (),
    matmuls.Tcgen05Config: (),
    matmuls.MmaConfig: (),
    matmuls.ScaledConfig: (),
}
FIELDS = {"RowPlan.blocks", "RowPlan.slot"}  # which may be 0
FIELDS |= {f"{plan}.heads_together" for plan in ("AttentionPlan", "Tcgen05AttentionPlan")}
FIELDS |= {"Tcgen05AttentionPlan.polynomial_period"}


@pytest.mark.parametrize("plan", PLANS)
def test_plans_check_themselves_when_made(plan):
    valid, wrong = plan(*PLANS[plan]), []
    for field, (kind, value) in itertools.product(dataclasses.fields(plan), ABSURD.items()):
        fits = kind == "0" and f"{plan.__name__}.{field.name}" in FIELDS
        call = functools.partial(dataclasses.replace, valid, **{field.name: value})
        if (text := complaint(plan.__name__, field.name, fits, call)) is not None:
            wrong.append(f"{field.name}={value!r}: {text}")
    assert not wrong, "\n".join(wrong)
