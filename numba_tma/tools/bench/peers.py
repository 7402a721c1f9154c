"""What can do a case: our kernel, and of the peers those that are here and work."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench import timing
from numba_tma.tools.bench.results import LeftOut, first_line
from numba_tma.tools.bench.timing import Run


def shipped(family: str, name: str) -> Any:
    """Return a function of a family of `numba_tma.kernels`; without it the case is left out."""
    try:
        return getattr(importlib.import_module(f"numba_tma.kernels.{family}"), name)
    except ModuleNotFoundError as error:
        raise LeftOut(f"there is no {name} in this version ({error})") from None


def offered(case: str, sources: Mapping[str, Callable[[], dict[str, Run]]]) -> dict[str, Run]:
    """Return all that the sources offer; which of them offers nothing is said."""
    runs: dict[str, Run] = {}
    for peer, source in sources.items():
        try:
            runs |= source()
        except Exception as error:  # not installed, or not for this GPU
            print(f"{case}: no {peer} beside it: {first_line(error)}", flush=True)
    return runs


def working(
    torch: ModuleType,
    case: str,
    candidates: dict[str, Run],
    check: Callable[[Any], None] | None = None,
) -> dict[str, Run]:
    """Return those that run and whose result passes `check`; what fails is said."""
    found: dict[str, Run] = {}
    for peer, run in candidates.items():
        try:
            result = run()
            torch.cuda.synchronize()
            if check:
                check(result)
            found[peer] = run
        except Exception as error:  # a peer that cannot do a shape is left out
            print(f"{case}: {peer} fails: {first_line(error)}", flush=True)
    return found


def with_fastest(peers: dict[str, Run], family: str) -> dict[str, Run]:
    """Return the peers with the fastest of "family, setting" as "family", timed alone."""
    settings = {name: run for name, run in peers.items() if name.startswith(f"{family}, ")}
    kept = {name: run for name, run in peers.items() if name not in settings}
    if settings:
        times = timing.time_alternating(settings, repeats=5)
        kept[family] = settings[min(times, key=lambda name: times[name])]
    return kept


def check(torch: ModuleType, result: DeviceArray, exact: Any, tolerance: float) -> None:
    """Hold a result to a float64 one, by the size of its elements and of their row."""
    error = (result.double() - exact).abs()
    size = exact.abs() + exact.square().mean(-1, keepdim=True).sqrt()
    wrong = ~(error <= tolerance * size)  # NaN too
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} values are wrong"


def check_whole(result: DeviceArray, exact: Any, tolerance: float) -> None:
    """Hold the root mean square of all errors to that of a float64 result."""
    error, size = (
        x.reshape(1, -1).square().mean(-1, keepdim=True) for x in (result.double() - exact, exact)
    )
    assert (error <= tolerance**2 * size).all(), "the values as a whole are wrong"
