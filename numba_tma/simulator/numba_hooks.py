"""Hooks into numba's simulator: blocks run here, and `cuda` gets the names that it lacks."""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel, kernelapi
from numba.cuda.simulator.cudadrv.devicearray import FakeWithinKernelCUDAArray

from numba_tma.host.cluster_rules import check_device_function, check_grid, cluster_of
from numba_tma.host.environment import simulator_seed
from numba_tma.host.host_only import KERNEL_CODE, array_refusal
from numba_tma.host.launching import check_threads, has_dependent_launchers, is_dependent
from numba_tma.host.process_bound import new_in_children
from numba_tma.simulator import protocol
from numba_tma.simulator import thread_instructions as instructions
from numba_tma.simulator.atomics import atomics
from numba_tma.simulator.block import Cta, Dim3
from numba_tma.simulator.cluster import form_cluster
from numba_tma.simulator.compiling import compile_launched
from numba_tma.simulator.fibers import running_fiber
from numba_tma.simulator.global_memory import accessed, begin_launch, global_memory
from numba_tma.simulator.kernel_code import check_code
from numba_tma.simulator.launch_queue import LaunchQueue
from numba_tma.simulator.mbarrier_instructions import fence_acq_rel
from numba_tma.simulator.report import deadlock_report
from numba_tma.simulator.scheduler import Scheduler
from numba_tma.simulator.shared_arrays import Index, Shared, element
from numba_tma.simulator.thread import SimulatedThread, current
from numba_tma.simulator.trace import SimulatedLaunch
from numba_tma.simulator.trace import active as recorded_trace

#: Held by the launch that runs: numba's simulator has one at a time.
_launches = new_in_children(threading.RLock)
#: Of the launch that runs: its queue, the device functions that it has called, their modules.
_queue: LaunchQueue | None = None
_called: dict[int, FunctionType] = {}
_modules = ExitStack()
_seed = simulator_seed()
#: Of a host thread: the seed inside `seeded`.
_own = threading.local()

_EXTRAS = (
    "syncwarp",
    "ballot_sync",
    "all_sync",
    "any_sync",
    "eq_sync",
    "match_any_sync",
    "match_all_sync",
    "activemask",
    "lanemask_lt",
)
#: Options of `cuda.jit` that only the compiler has, and that numba's simulator rejects.
_COMPILER_OPTIONS = frozenset(
    {"extensions", "forceinline", "launch_bounds", "lineinfo", "lto", "max_registers"}
)
#: What the compiler has of NumPy's arrays.
_ARRAY_ATTRIBUTES = frozenset(
    {"T", "all", "any", "argmax", "argmin", "astype", "clip", "conj", "conjugate", "copy"}
    | {"ctypes", "cumprod", "cumsum", "dot", "dtype", "fill", "flags", "flat", "flatten", "imag"}
    | {"item", "itemsize", "max", "mean", "min", "nbytes", "ndim", "nonzero", "prod", "ravel"}
    | {"real", "repeat", "reshape", "shape", "size", "sort", "std", "strides", "sum", "take"}
    | {"transpose", "var", "view"}
)
_SHUFFLES = {
    "shfl_sync": "idx",
    "shfl_up_sync": "up",
    "shfl_down_sync": "down",
    "shfl_xor_sync": "bfly",
}


def seed(n: int) -> None:
    """Choose the order of thread switches and copy completions for the launches to come."""
    global _seed
    _seed = int(n)


@contextmanager
def seeded(n: int) -> Iterator[None]:
    """Choose the seed of this host thread's launches inside the ``with`` block."""
    outer, _own.seed = getattr(_own, "seed", None), n
    try:
        yield
    finally:
        _own.seed = outer


def _chosen_seed() -> int:
    own: int | None = getattr(_own, "seed", None)
    return _seed if own is None else own


class BlockManager:
    """Runs one block, or a cluster; numba's kernel launch makes one manager per block."""

    def __init__(
        self, f: Callable[..., None], grid_dim: Dim3, block_dim: Dim3, debug: bool
    ) -> None:
        self._kernel = f
        KERNEL_CODE[id(f.__code__)] = f.__code__
        self._grid_dim = grid_dim
        self._block_dim = block_dim
        self._debug = debug
        self._cluster = cluster_of(f)
        check_threads(block_dim)
        if self._cluster:
            check_grid(grid_dim, self._cluster)

    def run(self, grid_point: Dim3, *args: Any) -> None:
        """Run all threads of the block at `grid_point`, or of the cluster that it begins."""
        extents = self._cluster or (1, 1, 1)
        if any(i % n for i, n in zip(grid_point, extents)):
            return  # the block has run with the first block of its cluster
        if not any(grid_point):
            begin_launch(recorded=has_dependent_launchers())
            if (trace := recorded_trace()) is not None:
                launch = tuple(self._grid_dim), tuple(self._block_dim)
                trace.launches.append(SimulatedLaunch(self._kernel.__name__, *launch))
        queue = _launch_queue(grid_point, self._grid_dim, extents)
        if not queue.begin(grid_point):
            return  # a running block has taken its place
        scheduler = Scheduler(f"{_chosen_seed()} {grid_point}", deadlock_report)
        x0, y0, z0 = grid_point
        blocks = [
            Cta(
                scheduler,
                lambda: self._kernel(*args),
                (x0 + x, y0 + y, z0 + z),
                self._grid_dim,
                self._block_dim,
                self._debug,
            )
            for z, y, x in product(*map(range, reversed(extents)))
        ]
        for block in blocks:
            block.launch_queue = queue
            block.dependent = is_dependent(self._kernel)
        threads = form_cluster(blocks, self._cluster) if self._cluster else blocks[0].threads
        protocol.begin_run(blocks)
        try:
            scheduler.run(threads)
            for block in blocks:
                block.check_end()
        finally:
            for block in blocks:
                block.forget()


def _launch_queue(grid_point: Dim3, grid_dim: Dim3, cluster: Dim3) -> LaunchQueue:
    """Return the blocks of the launch that have not begun, which its first block makes."""
    global _queue
    if _queue is None or not any(grid_point):
        xs, ys, zs = (range(0, extent, step) for extent, step in zip(grid_dim, cluster))
        _queue = LaunchQueue(list(product(xs, ys, zs)), str(_chosen_seed()))
    return _queue


def _in_kernel() -> bool:
    return isinstance(running_fiber(), SimulatedThread)


def _one_launch_at_a_time(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a launch wait for another; reject a cluster on a function that a kernel calls."""

    @functools.wraps(call)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        if isinstance(running_fiber(), SimulatedThread):
            function = self.fn
            if id(function) not in _called:
                _call_first(function)
            return function(*args, **named)
        check_code(self.fn, device=self._device)
        compile_launched(self, args)
        with _launches, _modules:
            try:
                return call(self, *args, **named)
            finally:
                _called.clear()

    return checked


def _call_first(function: FunctionType) -> None:
    """Check a function that a kernel calls, before its first call in a launch.

    Its module has the simulated `cuda` from then to the launch's end: numba's own exchange at each
    call takes longer than most functions.
    """
    check_device_function(function)
    check_code(function, device=True)
    KERNEL_CODE[id(function.__code__)] = function.__code__
    module = kernelapi.swapped_cuda_module(function, kernel._get_kernel_context())
    _modules.enter_context(module)
    _called[id(function)] = function


def _configured_copy(getitem: Callable[..., Any]) -> Callable[..., Any]:
    """Let each ``kernel[...]`` keep its configuration, which numba puts into the kernel."""

    @functools.wraps(getitem)
    def configured(self: Any, configuration: Any) -> Any:
        return getitem(copy.copy(self), configuration)

    return configured


def _outside_kernels(self: object, name: str) -> Any:
    """Find what numba's module in kernels lacks: a host thread meets it during another's launch."""
    if _in_kernel():
        raise AttributeError(f"cuda.{name}: numba's simulator has no such name in a kernel")
    return getattr(cuda, name)


def install() -> None:
    """Run the kernels of numba's simulator here from now on."""
    module = kernelapi.FakeCUDAModule
    kernel.BlockManager = BlockManager
    function = kernel.FakeCUDAKernel
    function.__call__ = _one_launch_at_a_time(function.__call__)
    function.__getitem__ = _configured_copy(function.__getitem__)
    cuda.jit = _jit_with_any_option(cuda.jit)
    array = FakeWithinKernelCUDAArray
    array.__getitem__ = _recorded_read(array.__getitem__)
    array.__setitem__ = _recorded_write(array.__setitem__)
    array.__getattr__ = _with_attribute_errors(array.__getattr__)
    atomic = atomics()
    # The calling thread, of which numba reads threadIdx, blockIdx, thread_id and syncthreads.
    kernelapi.threading = SimpleNamespace(current_thread=current)
    module.__getattr__ = _outside_kernels
    module.atomic = property(lambda self: atomic)
    module.shared = property(lambda self: Shared(self._shared._dynshared_size))
    for name in _EXTRAS:
        setattr(module, name, staticmethod(getattr(instructions, name)))
    for name, mode in _SHUFFLES.items():
        setattr(module, name, staticmethod(_shuffle(mode)))
    for name in ("threadfence", "threadfence_block", "threadfence_system"):
        setattr(module, name, staticmethod(fence_acq_rel))
    module.nanosleep = staticmethod(lambda nanoseconds: instructions.yield_turn())


def _recorded_read(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def recorded(self: Any, index: Index) -> Any:
        value = read(self, index)
        if global_memory() is not None and not isinstance(value, FakeWithinKernelCUDAArray):
            accessed(element(self._item._ary, index), writes=False)
        return value

    return recorded


def _recorded_write(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def recorded(self: Any, index: Index, value: object) -> None:
        if getattr(type(value), "shared_kind", None) == "record":
            value = np.asarray(value)[()]  # NumPy asks no element for an array
        if global_memory() is not None:
            accessed(element(self._item._ary, index), writes=True)
        write(self, index, value)

    return recorded


def _with_attribute_errors(read: Callable[..., Any]) -> Callable[..., Any]:
    """Name an attribute that an array lacks; numba's simulator takes it for an index."""

    @functools.wraps(read)
    def checked(self: Any, name: str) -> Any:
        if not name.startswith("_") and id(sys._getframe(1).f_code) in KERNEL_CODE:
            if hasattr(np.ndarray, name) and name not in _ARRAY_ATTRIBUTES:
                raise AttributeError(array_refusal(name))
        try:
            return read(self, name)
        except (IndexError, ValueError):
            raise AttributeError(array_refusal(name)) from None

    return checked


def _jit_with_any_option(jit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(jit)
    def wrapped(*args: Any, **options: Any) -> Any:
        made = jit(*args, **{n: v for n, v in options.items() if n not in _COMPILER_OPTIONS})
        if isinstance(made, kernel.FakeCUDAKernel):
            made.given_options = options  # for the compiler, should it get the kernel
            return made
        return lambda function: wrapped(function, **options)

    return wrapped


def _shuffle(mode: str) -> Callable[[int, Any, int], Any]:
    return lambda mask, value, lane_or_delta: instructions.shfl(mode, value, lane_or_delta, mask)
