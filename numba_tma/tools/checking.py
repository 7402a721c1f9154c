"""`testing.check`: one kernel, compiled and simulated, each half in its own process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.host.annotations import Kernel
from numba_tma.host.architectures import target_of
from numba_tma.host.environment import simulated
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.tools.assembling import PtxasReport
from numba_tma.tools.isolation import run_isolated

if TYPE_CHECKING:
    from numba_tma.simulator.signatures import ArgumentType

Arguments = Sequence[object] | Callable[[], Sequence[object]]


class CheckError(RuntimeError):
    """The compiler or the simulator refuses a kernel, or both do.

    `compiler` and `simulator` are the errors of the two, each "" if that half accepts the kernel.
    """

    def __init__(self, name: str, compiler: str, simulator: str) -> None:
        super().__init__(name, compiler, simulator)
        self.name, self.compiler, self.simulator = name, compiler, simulator

    def __str__(self) -> str:
        refusals = {"compiler": self.compiler, "simulator": self.simulator}
        refuse = [half for half, error in refusals.items() if error]
        accept = "".join(f", and the {half} accepts it" for half in refusals.keys() - refuse)
        return "\n".join(
            f"{self.name}: the {half} refuses it{accept}: {refusals[half]}" for half in refuse
        )


@dataclass(frozen=True)
class Checked:
    """A kernel that both halves accept."""

    ptx: str
    report: PtxasReport | None  #: ptxas's, or None where ptxas is not found
    #: Those of the launch after the simulated kernel has run; for a map, its array.
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Simulated:
    types: tuple[ArgumentType, ...]
    arguments: tuple[object, ...]
    error: str


def check_kernel(
    kernel: Kernel,
    arguments: Arguments,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    shared: int,
    cc: tuple[Any, ...],
    timeout: float,
) -> Checked:
    """Do what `numba_tma.testing.check` says."""
    # The simulator needs Numba, which `tools.testing` does not: doctor says that it is missing.
    from numba_tma.simulator.compiling import compile_elsewhere
    from numba_tma.simulator.shipping import ship

    if not callable(getattr(kernel, "py_func", None)):
        raise TypeError(f"check: {kernel!r} is no kernel: give a function under @cuda.jit")
    launch = (kernel, arguments, (grid, block, 0, shared))
    if simulated():
        done = _simulate(*launch)
        answer = compile_elsewhere(kernel, done.types, target_of(cc))
    else:
        from numba_tma.tools.compile_server import compiled

        done = run_isolated(
            _simulate_shipped,
            ship(*launch),
            timeout=timeout,
            env={"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_TMA_SIM_COMPILES": ""},
        )
        answer = compiled(kernel, done.types, target_of(cc))
    if answer.error or done.error:
        raise CheckError(kernel.py_func.__name__, answer.error, done.error)
    report: Any = answer.report
    return Checked(answer.ptx, report, done.arguments)


def _simulate_shipped(job: bytes) -> _Simulated:
    return _simulate(*pickle.loads(job))


def _simulate(
    kernel: Kernel, arguments: Arguments, configuration: tuple[object, ...]
) -> _Simulated:
    from numba_tma.simulator.signatures import type_of

    made = tuple(arguments() if callable(arguments) else arguments)
    types, error = tuple(map(type_of, made)), ""
    try:
        kernel[configuration](*made)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return _Simulated(types, tuple(map(_left_in, made)), error)


def _left_in(argument: object) -> object:
    if isinstance(argument, TensorMapArray):
        return tuple(map(_left_in, argument.maps))
    return argument.array if isinstance(argument, TensorMap) else argument
