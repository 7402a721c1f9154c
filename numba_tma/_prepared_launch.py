"""One compiled kernel with its launch configuration: what a launcher runs after packing."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from numba_tma._compiler import launches as compiler
from numba_tma._packing import Packer
from numba_tma.launching import Launcher, Unfit

#: Replaced where there is no driver.
launch_kernel: Callable[..., Any] = driver.cuLaunchKernelEx

_HINTS = {
    "CUDA_ERROR_INVALID_HANDLE": "is its stream alive, and one of this device?",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "is its stream alive?",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "it was compiled on another kind of GPU: make a launcher there",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "no multiprocessors have room for such a cluster: use fewer "
    "blocks in one, fewer threads, or less shared memory",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use fewer threads, or fewer stages",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel failed, and the context is lost",
    "CUDA_ERROR_LAUNCH_FAILED": "an earlier kernel failed, and the context is lost",
}


class PreparedLaunch:
    """A loaded kernel, its configuration as the driver takes it, and the packer of arguments."""

    def __init__(self, launcher: Launcher, compiled: Any, packer: Packer) -> None:
        self._launcher, self._packer = launcher, packer
        self._config = _configuration(launcher, compiled.cooperative)
        self._function = driver.CUfunction(compiler.handle_of(compiled))
        self._run = launch_kernel
        if launcher.closable is not None:
            self._run = self._run_on_open_stream
        if compiler.is_watched(compiled):
            run = self._run
            self._run = compiler.guarded(compiled, lambda arguments, *_: run(*arguments))
            self._run = functools.partial(_run_watched, self._run, launcher)
        self.launch = packer.launcher(self._run, self._config, self._function, self._recover)

    def bind(self, arguments: tuple[Any, ...]) -> Callable[[], None]:
        """Return a launch with these arguments, which are packed now."""
        try:
            parameters = self._packer.pack(*arguments)
        except Unfit:
            raise TypeError(self.explain(arguments)) from None
        run, config, function, recover = self._run, self._config, self._function, self._recover
        address = parameters[1]

        def launch() -> None:
            (error,) = run(config, function, address, 0)
            if error:
                recover(error, address)

        launch.parameters = parameters  # type: ignore[attr-defined]  # lives as long as the function
        return launch

    def explain(self, arguments: tuple[Any, ...]) -> str:
        """Say why arguments do not fit."""
        name = self._launcher.kernel.py_func.__name__
        return f"{name}(): {self._packer.explain(arguments)}"

    def _run_on_open_stream(self, *given: Any) -> Any:
        if self._launcher.closable.is_closed:
            raise RuntimeError(
                f"{self._launcher}: its stream is closed: make one on another stream"
            )
        return launch_kernel(*given)

    def _recover(self, error: Any, address: int) -> None:
        """Launch again with a context, which a new thread does not have, or raise."""
        if error.name == "CUDA_ERROR_INVALID_CONTEXT":
            compiler.make_context_current()
            (error,) = self._run(self._config, self._function, address, 0)
        if error:
            hint = f": {_HINTS[error.name]}" if error.name in _HINTS else ""
            raise RuntimeError(f"{self._launcher} failed with {error.name}{hint}")


def _run_watched(run: Any, launcher: Launcher, *given: Any) -> Any:
    """Launch a kernel in debug mode, wait for its end, and raise what it recorded."""
    return run(given, launcher.grid, launcher.block, launcher.handle)


class OrdinaryLaunch:
    """Of a kernel that only numba-cuda can launch."""

    def __init__(self, launcher: Launcher, compiled: Any) -> None:
        stream, types = compiler.stream_of(launcher.handle), compiled.argument_types

        def launch(*arguments: Any) -> None:
            if tuple(map(compiler.typeof, arguments)) != types and not launcher.kernel.specialized:
                raise Unfit("there is another launch for these arguments")
            compiled.launch(arguments, launcher.grid, launcher.block, stream)

        self.launch = launch

    def bind(self, arguments: tuple[Any, ...]) -> Callable[[], None]:
        """Return a launch with these arguments."""
        return functools.partial(self.launch, *arguments)


def prepare(launcher: Launcher, arguments: tuple[Any, ...]) -> PreparedLaunch | OrdinaryLaunch:
    """Compile the launcher's kernel for these arguments and make it ready to launch."""
    kernel, name = launcher.kernel, launcher.kernel.py_func.__name__
    names = list(inspect.signature(kernel.py_func).parameters)
    _check_memory(name, names, arguments)
    compiled = compiler.compiled_for(kernel, launcher.grid, launcher.block, arguments)
    most = compiler.max_threads(compiled)
    if math.prod(launcher.block) > most:
        raise ValueError(
            f"block {launcher.block}: {name} uses so many registers that a block has at most "
            f"{most} threads: use fewer, or @cuda.jit(launch_bounds=...)"
        )
    if reason := compiler.ordinary_reason(compiled):
        if launcher.cluster or launcher.pdl:
            raise ValueError(f"launcher: {name} cannot have cluster= or pdl=True, because {reason}")
        return OrdinaryLaunch(launcher, compiled)
    size = compiler.compiled_cluster(compiled)
    if size and launcher.cluster and size != launcher.cluster:
        raise ValueError(
            f"launcher: cluster={launcher.cluster}, but {name} is compiled for clusters of {size}: "
            "leave cluster out"
        )
    try:
        packer = Packer(names, compiled.argument_types, arguments)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
    if not compiler.is_watched(compiled):
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
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launcher.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launcher.block
    config.hStream = launcher.handle
    attributes: list[Any] = []
    if launcher.cluster:
        attribute = _attribute(attributes, "CLUSTER_DIMENSION")
        attribute.clusterDim.x, attribute.clusterDim.y, attribute.clusterDim.z = launcher.cluster
    if launcher.pdl:
        attribute = _attribute(attributes, "PROGRAMMATIC_STREAM_SERIALIZATION")
        attribute.programmaticStreamSerializationAllowed = 1
    if cooperative:
        _attribute(attributes, "COOPERATIVE").cooperative = 1
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _attribute(attributes: list[Any], name: str) -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    attributes.append(attribute)
    return attribute.value
