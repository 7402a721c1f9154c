"""Values that make no sense, and where they do all the same."""

from __future__ import annotations

import math
from typing import Any

#: Kinds of absurd values. Those that are None here are arrays, made to fit the argument.
ABSURD: dict[str, Any] = {
    **{"None": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "str": "2", "list": [1]},
    **{"tuple": (1,), "4.5": 4.5, "-1": -1, "0": 0, "10**12": 10**12, "object": object(), "1j": 1j},
    **{"True": True, "dict": {}, "bytes": b"12", "type": int, "": "", "10**400": 10**400},
    **{"of f64": ..., "longer": ..., "scalar": ...},
}
NUMBERS = {"4.5", "-1", "0", "10**12"}
SIZES = {"4.5", "0", "10**12"}  # from 0 on
WHOLE = {"0", "10**12", "10**400"}
#: Of each argument of all functions, or of one: the kinds that make sense.
SENSIBLE: dict[str, set[str]] = {
    **{name: NUMBERS for name in ("alpha", "beta", "2", "3")},
    **{"eps": SIZES, "softcap": {"None", "4.5", "10**12"}, "stream": {"None", "0"}},
    **{"scale": {"4.5", "10**12"}, "window": {"None", *WHOLE}},
    **{name: {"True"} for name in ("causal", "deterministic", "tune", "return_lse")},
}
OPTIONAL = ("out", "dtype", "plan", "config", "weight", "bias", "residual", "residual_out", "rstd",
            "mean", "logsumexp", "dx", "dweight", "dbias", "lse", "q_scale", "k_scale", "v_scale",
            "out_dtype", "row_scale", "column_scale", "activation", "scales", "dq", "dk", "dv",
            "offsets", "group_sizes", "parts", "a_scales", "b_scales", "scale_dtype")  # fmt: skip
REQUIRED = {("copy", "out"), ("rmsnorm_backward", "rstd"), ("layernorm_backward", "rstd"),
            ("layernorm_backward", "mean"), ("rmsnorm_pipelined", "weight"),
            ("attention_backward", "out"), ("attention_backward", "lse"),
            ("block_scaled_matmul", "a_scales"), ("block_scaled_matmul", "b_scales")}  # fmt: skip
SCALES = ("attention", "attention_varlen", "attention_backward")
#: How errors call an argument.
SHOWN = {"0": "x", "1": "y", "2": "alpha", "3": "beta"}


def fits(function: str, argument: str, kind: str) -> bool:
    """Return whether a kind of value makes sense for an argument."""
    if kind == "None" and argument in OPTIONAL and (function, argument) not in REQUIRED:
        return True
    if kind == "None" and argument == "scale" and function in SCALES:
        return True
    if function in ("add", "scale_add") and argument == "1":  # add(x, 2.0): drawn, too
        return kind in NUMBERS or function == "add" and kind in ("nan", "inf", "-inf")
    if function == "transpose" and argument == "x" and kind == "of f64":
        return True
    return kind in SENSIBLE.get(argument, ())
