"""torch.compile as a peer: in its default mode, and with all that it can tune."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from numba_tma.tools.bench.results import first_line
from numba_tma.tools.bench.timing import Run

MODES = {
    "torch.compile": "default",
    "torch.compile max-autotune": "max-autotune-no-cudagraphs",  # graphs would copy the inputs
}


SLOW_SECONDS = 5


def compiled_peers(
    torch: ModuleType,
    function: Callable[..., Any],
    *arguments: Any,
    modes: Mapping[str, str] = MODES,
) -> dict[str, Run]:
    """Return the function of these arguments, compiled in each mode; what fails is said.

    All that was compiled before is forgotten: beyond a number of variants of one function torch
    would run it uncompiled, without a word. So the peers of one case are made by one call.
    """
    torch._dynamo.reset()
    runs: dict[str, Run] = {}
    for name, mode in modes.items():
        run = functools.partial(torch.compile(function, dynamic=False, mode=mode), *arguments)
        start = time.perf_counter()
        try:
            run()
            torch.cuda.synchronize()
        except Exception as error:  # a peer that cannot do a shape is left out
            print(f"{name} fails: {first_line(error)}", flush=True)
            continue
        if (seconds := time.perf_counter() - start) > SLOW_SECONDS:
            print(f"{name} took {seconds:.0f} s to compile", flush=True)
        runs[name] = run
    return runs
