"""`launcher`: a launch whose kernel, grid, block and stream are prepared once."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

from numba_tma.host import tracing
from numba_tma.host.annotations import Kernel, StreamLike
from numba_tma.host.backend import compiled_launcher, traced_kernels
from numba_tma.host.cluster_rules import check_grid, cluster_of, cluster_size, set_cluster
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.streams import closable, handle_of
from numba_tma.host.values import FLAG, checked

Dim3 = tuple[int, int, int]
Extents = int | tuple[int, ...]  #: along x, or along x, y and z

_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCK = (1024, 1024, 64)
_MOST_THREADS = 1024


@host_only
def launcher(
    kernel: Kernel,
    grid: Extents,
    block: Extents,
    *,
    cluster: Extents | None = None,
    stream: StreamLike = None,
    pdl: bool = False,
) -> Callable[..., None]:
    """Prepare launches of a kernel, so that each costs the host little more than the driver's part.

    It launches the same compiled kernel as ``kernel[grid, block, stream](*arguments)``::

        launch = tma.launcher(kernel, blocks, 128, stream=torch.cuda.current_stream())
        launch(x_map, y_map, n)

    Parameters
    ----------
    kernel
        A ``@cuda.jit`` kernel, or one of `cached`. It is compiled at the first launch with
        arguments of new types.
    grid, block
        Blocks of the grid and threads of a block: an integer, or a tuple for x, y and z.
    cluster
        Blocks of a cluster, for a kernel without ``@tma.cluster``. They divide the grid.
    stream
        A numba, CuPy, torch or cuda.core stream, anything with ``__cuda_stream__``, or a handle;
        the default stream if None. It is kept alive.
    pdl
        Programmatic dependent launch: blocks may start before the kernel that is in front of this
        one on the stream has ended, once all its blocks have executed
        `ptx.griddepcontrol_launch_dependents` or ended. So this kernel must execute
        `ptx.griddepcontrol_wait` before it touches what others wrote, or reads.

    Returns
    -------
    Callable
        A function of the kernel's arguments. It returns when the driver has taken them; they may be
        changed then, but the memory they point to must live until the kernel ends, as for any
        launch. It raises a TypeError for arguments that are not the kernel's, or that cannot be
        passed (arrays in host memory, which it does not copy to the GPU), and a RuntimeError when
        the driver refuses the launch. ``launch.bind(*arguments)`` returns a function without
        arguments that launches with just these.

    Raises
    ------
    TypeError
        When `kernel` is no kernel, or `stream` no stream.
    ValueError
        When no GPU can run such a grid, block or cluster, or the stream is closed.
    """
    if hasattr(kernel, "launcher_of"):  # a `CachedKernel`
        prepared: Callable[..., None] = kernel.launcher_of(grid, block, cluster, stream, pdl)
        return prepared
    kind = _SimulatedLauncher if simulated() else compiled_launcher()
    function: Callable[..., None] = kind(kernel, grid, block, cluster, stream, pdl).function
    return function


def generated(body: str, names: Sequence[str], namespace: dict[str, Any]) -> FunctionType:
    """Return a function with these parameters, and this body, where ``{arguments}`` lists them.

    The body's text has ``_argument0`` and so on for them, so that a parameter may have any name.
    """
    arguments = "".join(f"_argument{i}, " for i in range(len(names)))
    source = f"def launch({arguments}):\n" + body.format(arguments=arguments).lstrip("\n")
    defined: dict[str, FunctionType] = {}
    exec(compile(source, "<launcher>", "exec"), namespace, defined)
    function = defined["launch"]
    code = function.__code__
    function.__code__ = code.replace(co_varnames=(*names, *code.co_varnames[len(names) :]))
    return function


class Unfit(Exception):
    """The arguments have other types than those that a launch was prepared for."""


class Launcher:
    """The state of a launch function: its kernel, configuration, and the types it has seen.

    `launcher` returns `function`. Its code fits the types of its last arguments; for arguments of
    other types it calls `_other`, which replaces the code. Any number of threads may call it: a
    call ends with the code that it began with.
    """

    core_stream: Any = None

    #: Whether one with pdl=True was made: the simulator then records what primaries write.
    _dependent_made: ClassVar[bool] = False

    def __init__(
        self,
        kernel: Kernel,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        stream: StreamLike,
        pdl: bool,
    ) -> None:
        self.kernel = kernel
        self._check_kernel()
        self.names = parameters_of(kernel.py_func, "launcher: ")
        self.grid, self.block = checked_extents(grid, block)
        size = None if cluster is None else cluster_size(cluster, "launcher")
        self.cluster = None if size is None else self._check_cluster(size)
        self.stream, self.pdl = stream, checked("launcher", "pdl", pdl, FLAG)
        if self.pdl:
            Launcher._dependent_made = True
        self._prepare_stream()
        self._prepared: list[tuple[Any, Any]] = []  # one for each set of types, with its code
        self._namespace: dict[str, Any] = {"_type": type, "_other": self._other}
        self.function = self._function()
        self.function.bind = self.bind
        self._first_code = self.function.__code__
        _launchers.add(self)

    def bind(self, *arguments: Any) -> Callable[[], None]:
        """Return a function that launches with these arguments, which are read now and not again.

        The function holds addresses and does not keep the memory alive: the caller must.
        """
        if tracing.active() is not None:
            return functools.partial(self._other, None, arguments)
        _, bound = self._find(arguments)
        return self._guarded(bound)

    def __repr__(self) -> str:
        parts = [repr(_name(self.kernel)), f"grid={self.grid}", f"block={self.block}"]
        parts += [f"cluster={self.cluster}"] * bool(self.cluster)
        parts += [f"stream={self.stream!r}"] * (self.stream is not None) + ["pdl=True"] * self.pdl
        return f"launcher({', '.join(parts)})"

    def _function(self) -> Any:
        """Return a function that takes the kernel's arguments and launches nothing yet."""
        function: Any = generated("    _other(None, ({arguments}))", self.names, self._namespace)
        function.__name__ = function.__qualname__ = _name(self.kernel)
        # Pickle's error quotes it, and pickle finds no other function of this name.
        function.__module__ = f"{self}, which belongs to its process: make one in the other process"
        function.__doc__ = f"Launch: {self}."
        return function

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self} holds a loaded kernel and addresses of this process, and cannot be pickled: "
            "pickle the kernel and its configuration, and call tma.launcher in the other process"
        )

    def _other(self, error: Exception | None, arguments: tuple[Any, ...]) -> None:
        """Launch with arguments that the function's code is not for, or after an `error`."""
        if (recorder := tracing.active()) is not None:
            traced_kernels().launch(recorder, self, arguments)
            return
        (_, code), bound = self._find(arguments)
        if error is not None and self._is_drivers(error):
            self._again(error, bound)
            return
        if code is not None:
            self.function.__code__ = code
            if tracing.recorders:  # which launches anew, and asks for that
                self.function.__code__ = self._first_code
        self._guarded(bound)()

    def _guarded(self, bound: Callable[[], None]) -> Callable[[], None]:
        def launch() -> None:
            try:
                bound()
            except Exception as error:
                self._again(error, bound)

        return launch

    def _find(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, Any], Callable[[], None]]:
        """Return the prepared launch for such arguments, and that launch bound to `arguments`."""
        if len(arguments) != len(self.names):
            raise TypeError(
                f"{_name(self.kernel)}() takes {len(self.names)} arguments "
                f"({', '.join(self.names)}), and is given {len(arguments)}"
            )
        for known in self._prepared:
            try:
                return known, known[0].bind(arguments)
            except Unfit:
                continue
        prepared = self._prepare(arguments)
        try:
            bound = prepared.bind(arguments)
        except Unfit as error:
            raise TypeError(f"{_name(self.kernel)}(): {error}") from None
        known = prepared, prepared.generate(len(self._prepared), self._namespace)
        self._prepared.append(known)
        return known, bound

    def _check_kernel(self) -> None:
        """Raise a TypeError unless the kernel can be launched."""
        raise NotImplementedError

    def _prepare(self, arguments: tuple[Any, ...]) -> Any:
        """Return the launch of the kernel compiled for such arguments."""
        raise NotImplementedError

    def _is_drivers(self, error: Exception) -> bool:
        """Return whether the driver raised `error`."""
        raise NotImplementedError

    def _again(self, error: Exception, bound: Callable[[], None]) -> None:
        """Launch once more if that may help, or raise the error."""
        raise NotImplementedError

    def _check_cluster(self, size: Dim3) -> Dim3:
        declared = cluster_of(self.kernel.py_func)
        if declared not in (None, size):
            raise ValueError(
                f"launcher: cluster={size}, but {_name(self.kernel)} stands under "
                f"@tma.cluster({declared}), for which it is compiled: leave cluster out"
            )
        check_grid(self.grid, size)
        return size

    def _prepare_stream(self) -> None:
        self.handle = handle_of(self.stream)
        self.closable = closable(self.stream)


#: All launchers of the process.
_launchers = weakref.WeakSet[Launcher]()


@contextmanager
def with_first_code() -> Iterator[None]:
    """Let all launchers ask anew how they launch, now and again at the end."""
    try:
        _forget_codes()
        yield
    finally:
        _forget_codes()


def _forget_codes() -> None:
    for launcher in tuple(_launchers):
        launcher.function.__code__ = launcher._first_code


class _SimulatedLauncher(Launcher):
    """Launches in the simulator, where a launch ends before the next one begins."""

    def _other(self, error: Exception | None, arguments: tuple[Any, ...]) -> None:
        self._kernel[self.grid, self.block](*arguments)

    def bind(self, *arguments: Any) -> Callable[[], None]:
        return functools.partial(self.function, *arguments)

    def _check_kernel(self) -> None:
        if not hasattr(self.kernel, "py_func") or getattr(self.kernel, "_device", False):
            raise TypeError(
                f"launcher: {self.kernel!r} is no kernel: give a function under @cuda.jit, without "
                "device=True"
            )

    def _prepare_stream(self) -> None:
        if not type(self.stream).__module__.startswith("numba."):
            handle_of(self.stream)  # raises for what is no stream
        self.handle, self.closable = 0, None

    @functools.cached_property
    def _kernel(self) -> Any:
        """The kernel, as one whose function has the launcher's cluster and dependence."""
        if self.cluster is None and not self.pdl:
            return self.kernel
        function = self.kernel.py_func
        named = function.__code__, function.__globals__, function.__name__
        own = FunctionType(*named, function.__defaults__, function.__closure__)
        own.__kwdefaults__ = function.__kwdefaults__
        kernel: Any = copy.copy(self.kernel)
        kernel.fn = own
        if self.cluster is not None:
            set_cluster(own, self.cluster)
        elif declared := cluster_of(function):
            set_cluster(own, declared)
        setattr(own, _DEPENDENT, self.pdl)
        return kernel


def has_dependent_launchers() -> bool:
    """Return whether a launcher of dependent launches was made in this process."""
    return Launcher._dependent_made


#: The attribute of a simulated kernel's function that says whether its launch is dependent.
_DEPENDENT = "_tma_dependent"


def is_dependent(function: object) -> bool:
    """Return whether a simulated kernel is launched by programmatic dependent launch."""
    return bool(getattr(function, _DEPENDENT, False))


def checked_extents(grid: Extents, block: Extents) -> tuple[Dim3, Dim3]:
    """Return grid and block along x, y and z, or raise for what no GPU can run."""
    blocks = _dimensions("grid", grid, _LARGEST_GRID, "blocks")
    threads = _dimensions("block", block, _LARGEST_BLOCK, "threads")
    check_threads(threads, "launcher: ")
    return blocks, threads


def check_threads(block: Dim3, where: str = "") -> None:
    """Raise a ValueError for a block with more threads than any GPU runs."""
    if math.prod(block) > _MOST_THREADS:
        raise ValueError(
            f"{where}block {tuple(block)} has {math.prod(block):,} threads; a block has at most "
            f"{_MOST_THREADS:,}"
        )


def parameters_of(function: Callable[..., Any], where: str = "") -> list[str]:
    """Return the names of a kernel's parameters."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        raise TypeError(
            f"{where}{function.__name__}{inspect.signature(function)} does not have a fixed "
            "number of arguments: write them one by one"
        )
    return [p.name for p in parameters]


def _name(kernel: Kernel) -> str:
    return str(kernel.py_func.__qualname__.rpartition(".")[2])


def _dimensions(name: str, given: Extents, most: Dim3, unit: str) -> Dim3:
    """Return the extents along x, y and z, or raise for one that no GPU can run."""
    extents = given if isinstance(given, tuple | list) else (given,)
    try:
        if any(isinstance(n, bool) for n in extents) or not 1 <= len(extents) <= 3:
            raise TypeError
        x, y, z = [*map(operator.index, extents), *[1] * (3 - len(extents))]
    except TypeError:
        raise TypeError(
            f"launcher: {name}={given!r} is neither an integer nor a tuple of 1 to 3 integers"
        ) from None
    for axis, extent, limit in zip("xyz", (x, y, z), most):
        if not 1 <= extent <= limit:
            raise ValueError(
                f"launcher: {name} {(x, y, z)} has {extent:,} {unit} along {axis}; it is 1 to "
                f"{limit:,}"
            )
    return x, y, z
