"""`cached`: kernels whose compiled code is kept on disk, and that are made only where it is not."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec

from numba_tma.host.annotations import Kernel, StreamLike
from numba_tma.host.environment import debugging, simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.kernel_key import Undescribable, described
from numba_tma.host.launching import Extents, launcher
from numba_tma.host.loaded_kernel import LoadedKernel
from numba_tma.host.stored_launch import StoredKernel, StoredLauncher

P = ParamSpec("P")


class Named:
    """An object of the library by its module and name; it is imported when it is needed."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def described_for_key(self, described: Callable[[Any], str]) -> str:
        """Return the name: the key has the library's sources."""
        return repr(self)

    def load(self) -> Any:
        """Import and return the object."""
        return getattr(importlib.import_module(self.module), self.name)


class CachedKernel(StoredKernel):
    """A kernel that is launched without being compiled, or even made, where its code is cached.

    It is launched as any kernel, ``kernel[grid, block, stream](*arguments)``, or by `launcher`,
    which costs less.
    """

    def __init__(
        self,
        subject: Kernel | Callable[..., Kernel] | Named,
        arguments: tuple[Any, ...] | None = None,
        keywords: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        super().__init__()
        self._subject, self._arguments, self._keywords = subject, arguments, keywords
        #: The code that this process has loaded, by types of arguments and device.
        self.found: dict[tuple[tuple[str, ...], int], LoadedKernel | None] = {}

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel of numba-cuda, which is made at the first use."""
        if self._arguments is None:
            return self._subject
        make = self._subject.load() if isinstance(self._subject, Named) else self._subject
        loaded = [given.load() if isinstance(given, Named) else given for given in self._arguments]
        kernel = make(*loaded, **dict(self._keywords))
        if not hasattr(kernel, "py_func"):
            raise TypeError(
                f"cached: {self} returned a {type(kernel).__name__}; a factory returns a kernel, a "
                "function under @cuda.jit"
            )
        return kernel

    @property
    def py_func(self) -> Callable[..., Any]:
        """The kernel's Python function."""
        function: Callable[..., Any] = self.kernel.py_func
        return function

    @property
    def targetoptions(self) -> dict[str, Any]:
        """The options of the kernel's ``@cuda.jit``."""
        options: dict[str, Any] = getattr(self.kernel, "targetoptions", {})
        return options

    @property
    def __name__(self) -> str:
        """The name of the kernel's Python function."""
        return self.py_func.__name__

    def described_for_key(self, described: Callable[[Any], str]) -> str:
        """Return the description of the kernel, or of its factory and arguments."""
        parts = self._subject, self._arguments, self._keywords
        return f"cached({','.join(map(described, parts))})"

    def launcher_of(
        self,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        stream: StreamLike,
        pdl: bool,
    ) -> Callable[..., None]:
        """Return the launches that `launcher` prepares."""
        if simulated() or debugging():
            kernel = self.kernel
            return launcher(kernel, grid, block, cluster=cluster, stream=stream, pdl=pdl)
        return StoredLauncher(self, grid, block, cluster, stream, pdl)

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Return a function that launches with a grid, a block, and a stream."""
        _, _, *rest = configuration
        if len(rest) > 1 and rest[1]:
            raise ValueError(
                f"{self}: a cached kernel is launched without dynamic shared memory, and is given "
                f"{rest[1]} B: leave it out, or launch {self}.kernel"
            )
        if simulated() or debugging():
            launch: Callable[..., None] = self.kernel[configuration]
            return launch
        return self._launches(configuration)

    def __repr__(self) -> str:
        subject = self._subject
        name = getattr(subject, "name", None) or getattr(
            getattr(subject, "py_func", subject), "__name__", repr(subject)
        )
        return str(name)


class _Factory(Generic[P]):
    """A function that returns cached kernels in place of kernels."""

    def __init__(self, make: Callable[P, Kernel]) -> None:
        self._make = make
        self._made: dict[str, CachedKernel] = {}
        functools.update_wrapper(self, make)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> CachedKernel:
        """Return the kernel that the factory makes of these arguments; once for equal ones."""
        keywords = tuple(sorted(kwargs.items()))
        try:
            known = described((args, keywords))  # in which 1 and 1.0 differ
        except Undescribable:
            return CachedKernel(self._make, args, keywords)
        if known not in self._made:
            self._made[known] = CachedKernel(self._make, args, keywords)
        return self._made[known]

    def described_for_key(self, described: Callable[[Any], str]) -> str:
        """Return the description of the function."""
        return f"factory({described(self._make)})"


def shipped(module: str, name: str) -> Callable[..., CachedKernel]:
    """Return the factory of kernels `name` of a module, which is imported where one is compiled."""
    factory = Named(module, name)

    @functools.cache
    def shipped_kernel(*arguments: Hashable, **keywords: Hashable) -> CachedKernel:
        return CachedKernel(factory, arguments, tuple(sorted(keywords.items())))

    shipped_kernel.factory = factory  # type: ignore[attr-defined]
    return shipped_kernel


@host_only
def cached(subject: Kernel | Callable[..., Kernel]) -> Any:
    """Keep the compiled code of a kernel, or of the kernels of a factory, on disk.

    A kernel stands under both decorators::

        @tma.cached
        @cuda.jit
        def scale(x, y, factor): ...

    A factory is a function that returns a kernel for its arguments; Numba's own ``cache=True``
    caches no such kernel::

        @tma.cached
        def scale_kernel(tile, stages):
            PIPE = tma.TilePipeline(stages, x=tile)

            @cuda.jit
            def scale(x, y, factor): ...

            return scale

        launch = tma.launcher(scale_kernel(TILE, 4), blocks, threads)
        launch(x_map, y_map, 2.0)

    A kernel is compiled again when anything has changed that decides its code: its bytecode, that
    of each function it reaches, what they capture, the argument types, the compute capability, the
    compiler's versions, or this library. A factory's result must depend on its arguments and on
    what it captures alone: the factory does not run where the code is cached.

    Parameters
    ----------
    subject
        A ``@cuda.jit`` kernel, or a function that returns one.

    Returns
    -------
    CachedKernel or a function that returns one
        It is launched as the kernel would be.

    Raises
    ------
    TypeError
        If `subject` is neither.

    Notes
    -----
    A kernel in debug mode is never cached. Neither is one that captures an object whose effect on
    the code is unknown, or is given a complex number, a date, an enumeration or a record: a
    RuntimeWarning names it.
    """
    if isinstance(subject, CachedKernel | _Factory):
        return subject
    if hasattr(subject, "py_func"):
        if getattr(subject, "targetoptions", {}).get("device"):
            raise TypeError(f"cached: {subject!r} is a device function; cache the kernels it is in")
        return CachedKernel(subject)
    if not callable(subject) or isinstance(subject, type):
        raise TypeError(
            f"cached: {subject!r} is neither a function under @cuda.jit, nor one that returns such"
        )
    return _Factory(subject)
