"""`load`: a kernel that `export` wrote, and its launches, which need no compiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba_tma.host.annotations import StreamLike
from numba_tma.host.architectures import capability_of, loads_on, own_target
from numba_tma.host.driver import compute_capability, launching_device, name_of_device
from numba_tma.host.environment import simulated
from numba_tma.host.exported_arguments import ExportedArgument
from numba_tma.host.exported_files import read_image
from numba_tma.host.host_only import host_only
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.launching import Extents
from numba_tma.host.loaded_kernel import DriverError, LoadedKernel
from numba_tma.host.process_bound import new_in_children
from numba_tma.host.stored_launch import StoredKernel, StoredLauncher


class ExportedKernel(StoredKernel):
    """A kernel that was compiled ahead of time; see `load`.

    It is launched as any kernel, ``kernel[grid, block, stream](*arguments)``, or by `launcher`,
    which costs less.
    """

    def __init__(
        self, stem: Path, image: KernelImage, target: str, types: tuple[ExportedArgument, ...]
    ) -> None:
        super().__init__()
        self.image, self._stem, self._target, self._types = image, stem, target, types
        self._loaded: LoadedKernel | None = None
        self._lock = new_in_children(threading.Lock)

    def _on(self, device: int) -> LoadedKernel:
        """Return the code in the driver, which loads it at the first launch."""
        major, minor = compute_capability(device)
        if not loads_on(self._target, number := 10 * major + minor):
            own = capability_of(own_target(number))
            raise RuntimeError(
                f"{self._stem}.cubin is compiled for sm_{self._target}, and GPU {device} "
                f"({name_of_device(device)}) has compute capability {major}.{minor}: export the "
                f"kernel with cc={own}"
            )
        with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = LoadedKernel(self.image)
                except DriverError as error:
                    raise RuntimeError(
                        f"the driver does not load {self._stem}.cubin: {error}"
                    ) from None
            return self._loaded

    def _accepted(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Return a launch's arguments with numbers of the kernel's types, or raise a TypeError."""
        self.image.check_count(len(arguments))
        named = zip(self.image.arguments, self._types, arguments)
        return [
            given.accepted(argument, f"{self.image.name}(): {name}")
            for name, given, argument in named
        ]

    def launcher_of(
        self,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        stream: StreamLike,
        pdl: bool,
    ) -> Callable[..., None]:
        """Return the launches that `launcher` prepares."""
        return _ExportedLauncher(self, grid, block, cluster, stream, pdl)  # type: ignore[arg-type]

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Return a function that launches with a grid, a block, and a stream."""
        _, _, *rest = configuration
        if len(rest) > 1 and rest[1] and rest[1] != self.image.shared:
            raise ValueError(
                f"{self.image.name} was exported with shared={self.image.shared}, and is given "
                f"{rest[1]} B of dynamic shared memory: leave it out, or export it with that"
            )
        return self._launches(configuration)

    def __repr__(self) -> str:
        pairs = zip(self.image.arguments, self._types)
        return f"{self.image.name}({', '.join(f'{name}: {given}' for name, given in pairs)})"


class _ExportedLauncher(StoredLauncher):
    """Launches of an exported kernel, whose code is there, and is the same for all arguments."""

    kernel: ExportedKernel  # type: ignore[assignment]

    def bind(self, *arguments: Any) -> Callable[[], None]:
        return super().bind(*self.kernel._accepted(arguments))

    def _find(self, arguments: tuple[Any, ...]) -> LoadedKernel | None:
        return self.kernel._on(launching_device())


@host_only
def load(path: str | os.PathLike[str]) -> ExportedKernel:
    """Load a kernel that `export` wrote.

    It imports neither Numba nor a compiler, and needs the files ``path.json`` and ``path.cubin``
    alone::

        kernel = numba_tma.load("build/scale")
        x_map = numba_tma.tensor_map(x, TILE)
        launch = kernel[blocks, 64, stream]
        launch(x_map, y, 2.0)

    Tensor maps and arrays must be of the types that the kernel was exported for; numbers are
    converted, integers without a loss. The files are the GPU's code: load those that you trust.

    Parameters
    ----------
    path
        The files' path without a suffix, as `export` was given it.

    Returns
    -------
    ExportedKernel
        It is launched by ``kernel[grid, block, stream](*arguments)`` or `launcher`. A launch raises
        a TypeError for an argument of another type, a ValueError for a grid or block that the
        kernel cannot have, and a RuntimeError on a GPU that the code was not compiled for.

    Raises
    ------
    FileNotFoundError
        When a file is missing.
    OSError
        When a file cannot be read.
    ValueError
        When a file was changed, or was written by another version.
    RuntimeError
        In the simulator.
    """
    if simulated():
        raise RuntimeError(
            "load needs a GPU, and NUMBA_ENABLE_CUDASIM=1 has replaced it by the simulator, which "
            "runs the kernel's Python: unset NUMBA_ENABLE_CUDASIM and start Python again"
        )
    stem = Path(os.fspath(path))
    return ExportedKernel(stem, *read_image(stem))
