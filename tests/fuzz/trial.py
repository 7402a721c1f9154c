"""One call: its arrays are made, it runs, and its outputs are held to what they must be."""

from __future__ import annotations

import inspect
import time
import traceback
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host.environment import simulated
from tests.fuzz import maps, products, rows
from tests.fuzz.absurd import ABSURD, SHOWN, fits
from tests.fuzz.families import Case, Family, Problem
from tests.fuzz.memory import NOT_NUMBAS, TYPES, Memory, taken, ulp
from tests.gpu.worker import on_gpu

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*rows.FAMILIES, *products.FAMILIES, *maps.FAMILIES)
}
#: Views that a function may refuse, in a sentence of its own.
ODD = ("expanded", "reversed", "every second", "permuted", "transposed")
BAD = ("wrong", "raw error", "silence", "crash", "refused a good call")


@on_gpu
def attempt(case: Case) -> tuple[str, str, float]:
    """Make a call; return the verdict, what there is to say about it, and its seconds."""
    start = time.perf_counter()
    with np.errstate(all="ignore"):
        try:
            verdict, text = _attempt(case)
        except Exception:
            verdict, text = "crash", traceback.format_exc()[-3000:]
    return verdict, text, time.perf_counter() - start


attempt = getattr(attempt, "__wrapped__", attempt)


def problem_of(case: Case) -> tuple[Family, Problem]:
    """Return the family of a case and its arrays."""
    family = FAMILIES[case["family"]]
    rng = np.random.default_rng(case["seed"])
    choices = {  # a file of the corpus has lists for tuples
        name: tuple(value) if isinstance(value, list) else value
        for name, value in case["choices"].items()
    }
    return family, family.problem(SimpleNamespace(**choices), rng)


def _attempt(case: Case) -> tuple[str, str]:
    try:
        family, problem = problem_of(case)
    except (TypeError, ValueError) as error:
        if "Tile(" in str(error):
            return "refused", str(error)
        raise
    views, bits = case.get("views", {}), case.get("bits", False)
    out = case["choices"].get("out", "given")
    bits = bits or out == "new"
    memories: dict[str, Memory] = {}
    arguments: dict[str, Any] = dict(problem.options)

    def make(name: str, values: Any) -> Any:
        kinds = [np.dtype(TYPES[one]) for one in _names(problem.dtype or "")]
        meant = not problem.dtype or values.dtype in kinds
        view = views.get(name.split()[0], "plain")
        own = bits and view != "reversed" and (meant or values.dtype not in NOT_NUMBAS)
        memories[name] = Memory(values, view, own)
        return memories[name].given

    for name, value in problem.arrays.items():
        if isinstance(value, list):
            arguments[name] = [make(f"{name} {i}", one) for i, one in enumerate(value)]
        else:
            arguments[name] = make(name, value) if isinstance(value, np.ndarray) else value
    sources: dict[str, str] = {}  # output: where it lies
    for name, (shape, dtype) in problem.outputs.items():
        if out == "in place" and name in problem.in_place:
            source = problem.in_place[name]
            if problem.arrays[source].shape == shape:
                sources[name] = source
                arguments[name] = memories[source].given
                continue
        if out == "new" and name in problem.returned:
            continue
        arguments[name] = make(name, np.full(shape, products.START).astype(TYPES[dtype]))
        sources[name] = name
    groups = [name for name in arguments if name.startswith("outs ")]
    if groups:
        arguments["outs"] = [arguments.pop(name) for name in groups]
    if bits and problem.dtype and set(_names(problem.dtype)) & {"bf16", "e4m3", "e5m2"}:
        arguments["dtype"] = _names(problem.dtype) if isinstance(problem.dtype, list) else (
            problem.dtype)  # fmt: skip
    if bits and "out_dtype" in problem.options:
        arguments["out_dtype"] = problem.outputs["out"][1]
    for name, value in arguments.items():
        if name == "config":
            configs = products.CONFIGS if value[0] == "matmul" else products.SCALED
            arguments[name] = configs[value[1]]
    stream = stream_of(case.get("stream", "none"))
    if stream is not None:
        arguments["stream"] = stream
        cuda.synchronize()  # the arrays were copied on another stream
    if case.get("absurd"):
        return _absurd(family, arguments, *case["absurd"])
    return _compared(family, problem, case, arguments, memories, sources)


def _names(dtype: Any) -> tuple[str, ...]:
    return (dtype,) * bool(dtype) if isinstance(dtype, str) else tuple(dtype)


def stream_of(name: str) -> Any:
    """Return a stream."""
    if name == "none":
        return None
    if name == "own" or simulated():
        return cuda.stream()
    return cuda.per_thread_default_stream() if name == "per-thread" else cuda.default_stream()


def _call(function: Any, arguments: dict[str, Any]) -> Any:
    named = dict(arguments)
    places = [named.pop(name) for name in sorted(n for n in arguments if n.isdigit())]
    if getattr(function, "__name__", "") == "swiglu":
        places = [named.pop("gate"), named.pop("up")]
    result = function(*places, **named)
    cuda.synchronize()
    return result


def _compared(family: Family, problem: Problem, case: Case, arguments: Any, memories: Any,
              sources: dict[str, str]) -> tuple[str, str]:  # fmt: skip
    odd = any(view in ODD for view in case.get("views", {}).values())
    try:
        result = _call(family.function, arguments)
    except (TypeError, ValueError) as error:
        own = f"{family.name}(" in str(error)
        if problem.refusable:
            own = any(name in str(error) for name in ("tensor_map:", "im2col_map:", "Tile("))
            odd = True
        if own and (odd or "onfig" in str(error)):  # a configuration has rules
            return "refused", str(error)
        return ("refused a good call" if own else "raw error"), traceback.format_exc()[-2500:]
    wrong = []
    results = result if isinstance(result, tuple) else (result,)
    for name, (expected, slack) in problem.expect().items():
        if name not in problem.outputs:
            continue
        shape, dtype = problem.outputs[name]
        kind = np.dtype(TYPES[dtype])
        if name in sources:
            got = memories[sources[name]].get()
        else:
            got = taken(results[problem.returned.index(name)], kind)
        wrong += [f"{name}: {text}" for text in differences(got, expected, slack, shape, kind,
                                                            problem.ulps)]  # fmt: skip
    for name, memory in memories.items():
        if not memory.is_unchanged(name in sources.values()):
            wrong.append(f"{name}: bytes outside of the outputs have changed")
    return ("wrong", "; ".join(wrong)) if wrong else ("right", "")


def differences(got: Any, expected: Any, slack: Any, shape: Any, kind: Any, ulps: float) -> Any:
    """Yield what is wrong with an output."""
    if got.shape != shape or got.dtype != kind:
        yield f"has shape {got.shape} of {got.dtype}, not {shape} of {kind}"
        return
    if not got.size:
        return
    if slack is None:
        same = got.view(f"u{kind.itemsize}") == np.ascontiguousarray(expected).astype(
            kind, copy=False).view(f"u{kind.itemsize}")  # fmt: skip
        if kind.kind not in "iu":
            same |= (got == expected.astype(kind)) | (np.isnan(got) & np.isnan(expected))
        if not same.all():
            at = tuple(map(int, np.argwhere(~same)[0]))
            yield f"{(~same).sum()} of {same.size} differ, first {at}: {got[at]} is not "
            yield f"{expected[at]}"
        return
    actual = got.astype(np.float64)
    expected, slack = np.broadcast_to(expected, shape), np.broadcast_to(slack, shape)
    allowed = slack + ulps * ulp(np.where(np.isfinite(expected), expected, 0), kind)
    good = np.abs(actual - expected) <= allowed
    good |= (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    largest = 65504.0 if kind == np.float16 else 3.3e38
    good |= np.isinf(actual) & (np.abs(expected) + allowed >= largest) & (actual * expected > 0)
    if not good.all():
        ratio = np.where(good, -1, np.abs(actual - expected) / allowed)
        at = tuple(map(int, np.unravel_index(np.nanargmax(np.where(np.isnan(ratio), np.inf, ratio)),
                                             shape)))  # fmt: skip
        yield (f"{(~good).sum()} of {good.size} are wrong, worst at {at}: {actual[at]} is not "
               f"{expected[at]} within {allowed[at]:.3g}")  # fmt: skip


# --------------------------------------------------------------------------- absurd values


def arguments_of(case: Case) -> list[str]:
    """Return the arguments of a call that can get an absurd value."""
    family, problem = problem_of(case)
    try:
        known = list(inspect.signature(family.function).parameters)
    except (TypeError, ValueError):
        known = []
    if family.name in ("add", "scale_add"):
        known = ["0", "1", *("2", "3") * (family.name == "scale_add"), "out", "stream", "dtype",
                 "plan"]  # fmt: skip
    return known


def _absurd(family: Family, arguments: Any, argument: str, kind: str) -> tuple[str, str]:
    value, before = ABSURD[kind], arguments.get(argument)
    if value is ...:
        shape = getattr(before, "shape", None)
        if shape is None or not shape:
            return "absurd: no array", ""
        shape = {"longer": (shape[0] + 1, *shape[1:]), "scalar": ()}.get(kind, shape)
        dtype = np.dtype(np.float64) if kind == "of f64" else before.dtype
        if kind == "longer" and argument not in ("out", "dx", "dq", "dk", "dv", "lse", "rstd"):
            return "absurd: no array", ""
        value = Memory(np.zeros(shape, dtype)).given
    if argument == "stream" and kind in ("10**12", "10**400", "True") and not simulated():
        return "absurd: no array", ""  # a handle is any number, and the driver trusts it
    try:
        _call(family.function, {**arguments, argument: value})
    except (TypeError, ValueError) as error:
        text, shown = str(error), SHOWN.get(argument, argument)
        fit = ABSURD[kind] is ... or fits(family.name, argument, kind)
        named = family.name in text and (fit or shown in text or "onfig" in text)
        if not named:
            return "raw error", f"{argument} is {kind}: {traceback.format_exc()[-1500:]}"
        return "absurd: refused", text
    except Exception:
        return "raw error", f"{argument} is {kind}: {traceback.format_exc()[-2500:]}"
    if fits(family.name, argument, kind):
        return "absurd: makes sense", ""
    if simulated() and argument == "stream":
        return "absurd: makes sense", ""
    return "silence", f"{family.name}({argument}={kind}) was accepted"
