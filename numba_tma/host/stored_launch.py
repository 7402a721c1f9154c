"""The launcher of cached kernels: finds a kernel's code, loads it, and launches it.

The code is looked up in this process, then on disk, and is compiled where it is in neither.
"""

from __future__ import annotations

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, cast

from numba_tma.host import kernel_store, tracing
from numba_tma.host.annotations import StreamLike
from numba_tma.host.backend import compiled_image
from numba_tma.host.cache_files import warn_once
from numba_tma.host.cluster_rules import check_grid, cluster_size
from numba_tma.host.collections import without_collections
from numba_tma.host.driver import (
    FORKED,
    compute_capability,
    launching_device,
    lost_context,
    make_context_current,
)
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.kernel_key import Undescribable, described, key_of
from numba_tma.host.launch_errors import HINTS
from numba_tma.host.launching import Extents, checked_extents, launcher
from numba_tma.host.loaded_kernel import DriverError, LoadedKernel, configuration
from numba_tma.host.parameters import Parameters, Unsupported, type_of
from numba_tma.host.process_bound import new_in_children
from numba_tma.host.streams import closable, handle_of
from numba_tma.host.values import FLAG, checked

if TYPE_CHECKING:
    from numba_tma.host.cached_kernel import CachedKernel

#: The kernels of this process, by key.
_loaded: dict[str, LoadedKernel] = {}
_lock = new_in_children(threading.RLock)


def loaded(kernel: CachedKernel, arguments: tuple[Any, ...], device: int) -> LoadedKernel | None:
    """Return a kernel's code for arguments, loaded; None if only numba-cuda can launch it."""
    try:
        types = tuple(type_of(argument) for argument in arguments)
        if (types, device) in kernel.found:
            return kernel.found[types, device]
        major, minor = compute_capability(device)
        key = key_of(described(kernel), types, f"{major}.{minor}")
    except (Undescribable, Unsupported) as error:
        warn_once(f"the kernel {kernel} is not cached: it has {error}", "each process compiles it")
        return None
    with _lock:
        if (known := _loaded.get(key)) is None:
            known = _load(kernel, arguments, key)
            if known is not None:
                _loaded[key] = known
    kernel.found[types, device] = known
    return known


def _load(kernel: CachedKernel, arguments: tuple[Any, ...], key: str) -> LoadedKernel | None:
    image = kernel_store.find(key)
    if image is not None:
        try:
            return LoadedKernel(image)
        except DriverError:  # of another driver, perhaps
            kernel_store.forget(key)
    image = _compiled(kernel, arguments)
    if image is None:
        return None
    found = LoadedKernel(image)
    kernel_store.keep(key, image)
    return found


@without_collections
def _compiled(kernel: CachedKernel, arguments: tuple[Any, ...]) -> KernelImage | None:
    return compiled_image(kernel.kernel, arguments)


class StoredKernel(ABC):
    """A kernel that a `StoredLauncher` launches, prepared once for equal grids and blocks."""

    def __init__(self) -> None:
        self._launchers: dict[Hashable, Callable[..., None]] = {}

    @abstractmethod
    def launcher_of(
        self,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        stream: StreamLike,
        pdl: bool,
    ) -> Callable[..., None]:
        """Return the launches that `launcher` prepares."""

    def _launches(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Return the launches with a grid, a block, and perhaps a stream and what follows it."""
        try:
            return self._launchers[configuration]
        except (KeyError, TypeError):  # a list, say
            grid, block, stream, *_ = (*configuration, None)
            launch = self.launcher_of(grid, block, None, stream, False)
        if all(isinstance(given, int | tuple) for given in configuration):
            self._launchers[configuration] = launch
        return launch


class StoredLauncher:
    """Launches of a cached kernel with a grid, a block and a stream."""

    def __init__(
        self,
        kernel: CachedKernel,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        stream: StreamLike,
        pdl: bool,
    ) -> None:
        self.kernel, self.stream = kernel, stream
        self.grid, self.block = checked_extents(grid, block)
        self.cluster = None if cluster is None else cluster_size(cluster, "launcher")
        if self.cluster is not None:
            check_grid(self.grid, self.cluster)
        self.pdl = checked("launcher", "pdl", pdl, FLAG)
        self._handle, self._closable = handle_of(stream), closable(stream)
        self._configured: dict[LoadedKernel, Any] = {}
        self._ordinary: Any = None

    def __call__(self, *arguments: Any) -> None:
        """Launch; it returns when the driver has taken the arguments."""
        self.bind(*arguments)()

    def bind(self, *arguments: Any) -> Callable[[], None]:
        """Return a function that launches with these arguments, which are read now and not again.

        The function holds addresses and does not keep the memory alive: the caller must.
        """
        return self._bound(arguments, here=False)

    def bind_here(self, *arguments: Any) -> Callable[[], None]:
        """Return such a function for the current context alone; a launch costs the host less."""
        return self._bound(arguments, here=True)

    def _bound(self, arguments: tuple[Any, ...], *, here: bool) -> Callable[[], None]:
        found = self._find(arguments)
        if found is None:
            bound: Callable[[], None] = self._as_ordinary().bind(*arguments)
            return bound
        parameters = Parameters(arguments)
        self._check_arguments(found.image, arguments, parameters)
        return self._bound_to(found, parameters, here=here)

    def _bound_to(
        self, found: LoadedKernel, parameters: Parameters, *, here: bool
    ) -> Callable[[], None]:
        """Return a launch; its attributes are what another one like it is made of.

        `prepared` is all but the parameters; `with_parameters` returns a launch with others.
        """
        run = found.bind(self._configuration(found), parameters, here=here)
        stream = self._closable

        def launch(keep: Parameters = parameters) -> None:
            (error,) = run()
            if error:
                self._again(DriverError("cuLaunchKernelEx", error), run)

        def launch_unless_closed() -> None:
            if stream.is_closed:
                raise RuntimeError(f"{self}: its stream is closed: make one on another stream")
            launch()

        bound: Any = launch if stream is None else launch_unless_closed
        bound.parameters, bound.prepared = parameters, (id(self), id(found))
        bound.with_parameters = functools.partial(self._bound_to, found, here=here)
        return cast("Callable[[], None]", bound)

    def __repr__(self) -> str:
        parts = [repr(str(self.kernel)), f"grid={self.grid}", f"block={self.block}"]
        parts += [f"cluster={self.cluster}"] * bool(self.cluster)
        parts += [f"stream={self.stream!r}"] * (self.stream is not None) + ["pdl=True"] * self.pdl
        return f"launcher({', '.join(parts)})"

    def _find(self, arguments: tuple[Any, ...]) -> LoadedKernel | None:
        """Return the code for these arguments; None if only numba-cuda can launch it."""
        if tracing.active() is not None:
            return None
        return loaded(self.kernel, arguments, launching_device())

    def _as_ordinary(self) -> Any:
        if self._ordinary is None:
            self._ordinary = launcher(
                self.kernel.kernel,
                self.grid,
                self.block,
                cluster=self.cluster,
                stream=self.stream,
                pdl=self.pdl,
            )
        return self._ordinary

    def _configuration(self, found: LoadedKernel) -> Any:
        """Return the driver's configuration, after the checks of grid and block for the kernel."""
        if (known := self._configured.get(found)) is not None:
            return known
        image = found.image
        most = found.max_threads(launching_device())
        if math.prod(self.block) > most:
            raise ValueError(
                f"block {self.block}: {image.name} uses so many registers that a block has at most "
                f"{most} threads: use fewer, or @cuda.jit(launch_bounds=...)"
            )
        size = image.requirements.cluster
        if size and self.cluster and size != self.cluster:
            raise ValueError(
                f"launcher: cluster={self.cluster}, but {image.name} is compiled for clusters of "
                f"{size}: leave cluster out"
            )
        image.requirements.check(self.grid, self.block)
        if image.shared:
            found.allow_shared(launching_device())
        made = self._configured[found] = configuration(
            *(self.grid, self.block, self.cluster, self._handle),
            shared=image.shared,
            cooperative=image.cooperative,
            pdl=self.pdl,
        )
        return made

    def _check_arguments(
        self, image: KernelImage, arguments: tuple[Any, ...], given: Parameters
    ) -> None:
        """Raise unless the kernel can be launched so, with these arguments."""
        image.check_count(len(arguments))
        if given.sizes != image.sizes:
            raise RuntimeError(
                f"{image.name}() has parameters of {image.sizes} B, and its arguments are "
                f"{given.sizes} B: this is an error of numba_tma; NUMBA_TMA_CACHE=0 may avoid it"
            )

    def _again(self, error: DriverError, run: Callable[[], tuple[Any]]) -> None:
        """Launch once more where a thread has no context, or say what the driver found wrong."""
        if lost_context():
            raise RuntimeError(f"{self} failed: {FORKED}") from None
        if error.name == "CUDA_ERROR_INVALID_CONTEXT":
            make_context_current()
            (second,) = run()
            if not second:
                return
            error = DriverError("cuLaunchKernelEx", second)
        hint = f" ({HINTS[error.name]})" if error.name in HINTS else ""
        raise RuntimeError(f"{self} failed: {error}{hint}") from None
