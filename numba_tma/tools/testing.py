"""Test kernels without a GPU, and run code that may hang in a process with a time limit.

`compile_ptx` -> `ptxas` / `sass` / `instructions` show what a kernel tells the GPU on any machine.
`check` compiles and simulates a kernel.
`run_isolated` gives a callable a fresh process and a time limit: a kernel that traps loses only
that process's CUDA context, and one that hangs becomes a `TimeoutError`.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numba_tma.host.annotations import ComputeCapability as ComputeCapability
from numba_tma.host.annotations import Signature
from numba_tma.host.environment import gpu_required, simulated
from numba_tma.tools.assembling import PtxasError as PtxasError
from numba_tma.tools.assembling import PtxasReport as PtxasReport
from numba_tma.tools.assembling import compile_ptx as compile_ptx
from numba_tma.tools.assembling import find_tool as find_tool
from numba_tma.tools.assembling import instructions as instructions
from numba_tma.tools.assembling import ptxas as ptxas
from numba_tma.tools.assembling import sass as sass
from numba_tma.tools.checking import Checked as Checked
from numba_tma.tools.checking import CheckError as CheckError
from numba_tma.tools.checking import check_kernel
from numba_tma.tools.isolation import run_isolated as run_isolated

if TYPE_CHECKING:
    from numba_tma.tools.inspecting import Inspection


@functools.cache
def gpu_available() -> bool:
    """Return whether device 0 has TMA. Asks the driver and creates no context."""
    if simulated():
        return False
    try:
        from cuda.core import Device

        return bool(Device(0).properties.tensor_map_access_supported)
    except Exception:  # no driver, no device and a broken installation each raise their own type
        return False


def skip_without_gpu() -> None:
    """Skip the calling test (pytest or unittest) where no GPU with TMA is present.

    With ``pytest --tma-require-gpu``, or ``NUMBA_TMA_REQUIRE_GPU=1``, fail it instead.
    """
    if gpu_available():
        return
    reason = "no GPU with TMA here; `python -m numba_tma doctor` says why"
    raise AssertionError(reason) if gpu_required() else unittest.SkipTest(reason)


def inspect(
    kernel: Callable[..., Any],
    signature: Signature,
    threads: int = 128,
    cc: ComputeCapability = (9, 0, "a"),
) -> Inspection:
    """Compile a kernel without a GPU and say what it takes of an SM.

    ::

        found = tma.testing.inspect(scale, (tma.map_type(TILE), types.float32[:, ::1], types.int64))
        print(found)                 # registers, spills, shared memory, occupancy
        print(found.ptx_listing())   # what each instruction of this library does

    Parameters
    ----------
    kernel
        A `@cuda.jit` kernel, whose decorator options are kept, or a plain function.
    signature
        The argument types, as of `compile_ptx`; `numba_tma.map_type` has those of maps.
    threads
        Threads of a block, for the occupancy.
    cc
        The compute capability to compile for.

    Returns
    -------
    Inspection
        `ptx`; `report`, which is ptxas's (None where ptxas is not found); `blocks`, `occupancy` and
        `limited_by` of an SM; `sass`; and `ptx_listing()` and `sass_listing()`, commented line by
        line. Its repr is a table.
    """
    from numba_tma.tools.inspecting import inspect_kernel

    return inspect_kernel(kernel, signature, threads, cc)


def check(
    kernel: Callable[..., Any],
    arguments: Sequence[object] | Callable[[], Sequence[object]],
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 64,
    *,
    shared: int = 0,
    cc: ComputeCapability = (9, 0, "a"),
    timeout: float = 300,
) -> Checked:
    """Compile a kernel without a GPU, assemble it, and simulate one launch of it.

    A process has the compiler or the simulator (``NUMBA_ENABLE_CUDASIM``). This works in both: the
    other half runs in a process of its own.

    Parameters
    ----------
    kernel
        A `@cuda.jit` kernel. It may be in a notebook or inside of a function: its code, the globals
        that it names and its closure are pickled.
    arguments
        The launch's arguments, with NumPy arrays: a tuple, or a function that returns it and is
        called where the kernel is simulated. Tensor maps need the function, because a compiling
        process makes no map of a NumPy array. The types follow from the arguments.
    grid, block, shared
        Blocks, threads of a block, and bytes of dynamic shared memory of the launch.
    cc
        The compute capability to compile for.
    timeout
        Seconds for the process that simulates, if the caller's does not.

    Returns
    -------
    Checked
        With the PTX, ptxas's report (None where ptxas is not found), and the arguments as the
        launch has left them; for a map, its array.

    Raises
    ------
    CheckError
        When the compiler, ptxas or the simulator refuses the kernel. Its `compiler` and
        `simulator` are the errors of the two; its text names the half.
    TypeError
        When the kernel or its arguments cannot be pickled.
    """
    return check_kernel(kernel, arguments, grid, block, shared, cc, timeout)
