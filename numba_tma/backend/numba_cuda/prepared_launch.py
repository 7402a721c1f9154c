"""Prepared launches: a compiled kernel, its launch configuration, and its argument types."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
from cuda.core import LaunchConfig, launch
from cuda.core._utils.cuda_utils import CUDAError as CUDAError

from numba_tma.backend.numba_cuda import launches as compiler
from numba_tma.backend.numba_cuda.packing import Packer
from numba_tma.host.driver import FORKED, lost_context
from numba_tma.host.launch_errors import HINTS
from numba_tma.host.launching import Launcher, Unfit, generated

# A launch for certain argument types. It checks, packs and launches without a loop. It is generated
# as `dataclasses` generates an ``__init__``.
_LAUNCH = """
    try:
        _run{n}(_stream, _config{n}, _kernel{n}, {values})
    except _errors as _error:
        _other(_error, ({arguments}))
"""


# Raised by arguments of other types, and by the driver.
_ERRORS = (Unfit, AttributeError, OverflowError, CUDAError)


class PreparedLaunch:
    """A loaded kernel, its configuration, and how arguments of certain types are passed."""

    def __init__(self, launcher: Launcher, compiled: Any, packer: Packer) -> None:
        self._launcher, self._packer = launcher, packer
        self._kernel = compiler.handle_of(compiled)
        self._config = _configuration(launcher, compiled.cooperative)
        self._run: Callable[..., None] = launch
        if launcher.closable is not None:
            self._run = self._run_on_open_stream

    def bind(self, arguments: tuple[Any, ...]) -> Callable[[], None]:
        """Return a launch with these arguments, or raise `Unfit`."""
        values = self._packer.values(arguments)
        return functools.partial(
            self._run, self._launcher.core_stream, self._config, self._kernel, *values
        )

    def generate(self, n: int, namespace: dict[str, Any]) -> CodeType | None:
        """Return the code of a function that launches; its globals are put in `namespace`."""
        fields = self._packer.fields
        namespace |= {f"_field{n}_{i}": field for i, field in enumerate(fields)}
        namespace |= {f"_field{n}_{i}_type": f.map_type or f.cls for i, f in enumerate(fields)}
        namespace |= {f"_run{n}": self._run, f"_config{n}": self._config}
        namespace |= {f"_kernel{n}": self._kernel}
        values = [f.source(f"_argument{i}", f"_field{n}_{i}") for i, f in enumerate(fields)]
        body = _LAUNCH.format(n=n, values=", ".join(values), arguments="{arguments}")
        namespace |= {"_stream": self._launcher.core_stream, "_errors": _ERRORS}
        return generated(body, self._packer.names, namespace).__code__

    def _run_on_open_stream(self, *given: Any) -> None:
        if self._launcher.closable.is_closed:
            raise RuntimeError(
                f"{self._launcher}: its stream is closed: make one on another stream"
            )
        launch(*given)


class WatchedLaunch(PreparedLaunch):
    """A launch in debug mode: it waits for the kernel's end and raises the recorded errors."""

    def __init__(self, launcher: Launcher, compiled: Any, packer: Packer) -> None:
        super().__init__(launcher, compiled, packer)
        run = self._run
        watched = compiler.guarded(compiled, lambda given, *_: run(*given))
        self._run = lambda *given: watched(given, launcher.grid, launcher.block, launcher.handle)


class OrdinaryLaunch(PreparedLaunch):
    """A launch of a kernel that only numba-cuda can launch."""

    def __init__(self, launcher: Launcher, compiled: Any, packer: Packer) -> None:
        super().__init__(launcher, compiled, packer)
        self._numbas = compiled.launch

    def bind(self, arguments: tuple[Any, ...]) -> Callable[[], None]:
        """Return a launch with these arguments, or raise `Unfit`."""
        self._packer.values(arguments)
        launcher = self._launcher
        return functools.partial(
            self._numbas, arguments, launcher.grid, launcher.block, launcher.core_stream
        )

    def generate(self, n: int, namespace: dict[str, Any]) -> None:
        """Return nothing: each launch is bound anew."""


class CompiledLauncher(Launcher):
    """The launcher of a kernel that numba-cuda compiles."""

    def _check_kernel(self) -> None:
        if not compiler.is_kernel(self.kernel):
            raise TypeError(
                f"launcher: {self.kernel!r} is no kernel: give a function under @cuda.jit, without "
                "device=True and not yet configured by [grid, block]"
            )

    def _prepare(self, arguments: tuple[Any, ...]) -> PreparedLaunch:
        return prepare(self, arguments)

    def _is_drivers(self, error: Exception) -> bool:
        return isinstance(error, CUDAError)

    def _again(self, error: Exception, bound: Callable[[], None]) -> None:
        again(self, error, bound)


def again(launcher: Launcher, error: Exception, bound: Callable[[], None]) -> None:
    """Launch once more where that may help, or raise what the driver found wrong."""
    if isinstance(error, OverflowError):
        raise TypeError(f"{launcher.kernel.py_func.__name__}(): {error}") from None
    if not isinstance(error, CUDAError):
        raise error
    if lost_context():
        raise RuntimeError(f"{launcher} failed: {FORKED}") from None
    if "CUDA_ERROR_INVALID_CONTEXT" in str(error):
        compiler.make_context_current()  # a new thread has none
        try:
            bound()
            return
        except CUDAError as second:
            error = second
    hint = "".join(f" ({hint})" for name, hint in HINTS.items() if name in str(error))
    raise RuntimeError(f"{launcher} failed: {str(error).strip()}{hint}") from None


def prepare(launcher: Launcher, arguments: tuple[Any, ...]) -> PreparedLaunch:
    """Compile the launcher's kernel for these arguments and make it ready to launch."""
    kernel, name = launcher.kernel, launcher.kernel.py_func.__name__
    names = list(launcher.names)
    _check_memory(name, names, arguments)
    if launcher.core_stream is None:
        launcher.core_stream = compiler.stream_of(launcher.handle)
    compiled = compiler.compiled_for(kernel, launcher.grid, launcher.block, arguments)
    most = compiler.max_threads(compiled)
    if math.prod(launcher.block) > most:
        raise ValueError(
            f"block {launcher.block}: {name} uses so many registers that a block has at most "
            f"{most} threads: use fewer, or @cuda.jit(launch_bounds=...)"
        )
    reason = compiler.ordinary_reason(compiled)
    if reason and (launcher.cluster or launcher.pdl):
        raise ValueError(f"launcher: {name} cannot have cluster= or pdl=True, because {reason}")
    try:
        packer = Packer(names, compiled.argument_types, arguments)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
    if reason:
        return OrdinaryLaunch(launcher, compiled, packer)
    if compiler.requirements_of(compiled).watched:
        return WatchedLaunch(launcher, compiled, packer)
    check = compiler.guarded(compiled, lambda *_: None)  # once: grid and block stay the same
    check((), launcher.grid, launcher.block, launcher.handle, 0)
    return PreparedLaunch(launcher, compiled, packer)


def _check_memory(name: str, names: list[str], arguments: tuple[Any, ...]) -> None:
    """Refuse arrays in host memory, which numba-cuda would copy to the GPU and back."""
    for which, argument in zip(names, arguments):
        host_tensor = hasattr(argument, "data_ptr") and not getattr(argument, "is_cuda", True)
        if host_tensor or isinstance(argument, np.ndarray | memoryview | bytes | bytearray):
            raise TypeError(
                f"{name}(): {which} is a {type(argument).__name__} in host memory, and a launcher "
                "copies nothing: pass cuda.to_device(array), a CuPy array or a CUDA tensor"
            )


def _configuration(launcher: Launcher, cooperative: bool) -> Any:
    options: dict[str, Any] = {"grid": launcher.grid, "block": launcher.block}
    if launcher.cluster:  # then cuda.core counts clusters
        options["grid"] = tuple(n // c for n, c in zip(launcher.grid, launcher.cluster))
        options["cluster"] = launcher.cluster
    return LaunchConfig(
        **options, is_cooperative=cooperative, programmatic_stream_serialization=launcher.pdl
    )
