"""`suggest_launch`: the grid and the block with which a persistent kernel fills the GPU."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from numba_tma.host.annotations import Kernel
from numba_tma.host.backend import resources_of
from numba_tma.host.cluster_rules import cluster_of
from numba_tma.host.driver import device_attribute, launching_device
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.launch_rules import Requirements, Resources
from numba_tma.host.launching import parameters_of

_WARP = 32
#: Threads of an SM that work on tiles, and the fewest of a block. More threads hide more of the
#: latency of shared memory; a loop over elements gains little beyond 512.
_WORKING, _FEWEST = 512, 128


@dataclass(frozen=True)
class Processors:
    """The SMs of a GPU, and what each of them has; the defaults are sm_90's."""

    count: int
    registers: int = 65536
    shared: int = 233472  #: bytes
    reserved: int = 1024  #: bytes of shared memory that each block takes beside its own
    threads: int = 2048
    blocks: int = 32


@dataclass(frozen=True)
class LaunchAdvice:
    """A grid and a block for a kernel, ``kernel[advice.grid, advice.block]``, and their reason."""

    grid: int | tuple[int, int, int]
    block: int
    reason: str

    def __repr__(self) -> str:
        return f"LaunchAdvice(grid={self.grid}, block={self.block}): {self.reason}"


@host_only
def suggest_launch(kernel: Kernel, arguments: Sequence[object]) -> LaunchAdvice:
    """Suggest the grid and the block of a persistent kernel for the current GPU.

    The kernel loops over its tiles in steps of the grid, as pipelines do::

        arguments = x_map, y_map, np.float32(2), n_tiles
        advice = tma.suggest_launch(scale, arguments)
        launch = tma.launcher(scale, advice.grid, advice.block)
        launch(*arguments)

    The grid has as many blocks as fit on all SMs at once, by shared memory, registers and threads.
    The block has the threads of the kernel's roles. Without roles, 512 threads of an SM work on
    tiles, as far as the kernel's registers allow; a `TilePipeline` has one more warp, which loads.

    Parameters
    ----------
    kernel
        A ``@cuda.jit`` kernel, or one of `cached`. It is compiled for `arguments`, and a launch
        with such arguments compiles nothing again.
    arguments
        The arguments of a launch. Shared memory of dynamic size is not counted.

    Returns
    -------
    LaunchAdvice
        `grid`, `block`, and the `reason`, which its repr shows. In the simulator, which has 2 SMs
        and counts no registers, shared memory is that of the pipelines among the kernel's globals.

    Raises
    ------
    TypeError
        When `kernel` is no kernel, or has another number of parameters.
    ValueError
        When the pipelines of the kernel need blocks of different sizes.
    """
    kernel = getattr(kernel, "kernel", kernel)  # of a `CachedKernel`
    if not hasattr(kernel, "py_func"):
        raise TypeError(f"suggest_launch: {kernel!r} is no kernel: give a function under @cuda.jit")
    names = parameters_of(kernel.py_func, "suggest_launch: ")
    if len(arguments) != len(names):
        raise TypeError(
            f"suggest_launch: {kernel.py_func.__name__}() takes {len(names)} arguments "
            f"({', '.join(names)}), and is given {len(arguments)}"
        )
    if simulated():
        return advise(_declared(kernel), Processors(2))
    return advise(resources_of(kernel, tuple(arguments)), _present())


def advise(needs: Resources, sm: Processors) -> LaunchAdvice:
    """Return the grid and the block of a kernel with these needs."""
    sizes = needs.requirements.blocks - {0}
    if len(sizes) > 1:
        raise ValueError(
            f"suggest_launch: the kernel's pipelines have roles of {sorted(sizes)} threads: no "
            "block has all of them; make their roles by one Roles"
        )
    by_shared = max(1, _by_shared(needs.shared, sm))
    if sizes:
        (block,) = sizes
        threads = f"the block is that of the roles, {block} threads"
    else:
        loading = _WARP if 0 in needs.requirements.blocks else 0
        wanted = max(_FEWEST, _WORKING // by_shared // _WARP * _WARP)
        working = max(_WARP, min(wanted, needs.most_threads // _WARP * _WARP - loading))
        block = working + loading
        threads = f"{working} threads of a block work" + f" and {loading} load" * bool(loading)
        if working < wanted:
            threads += f", since {needs.registers} registers a thread allow no more"
    limits = blocks_by_limit(needs.registers, needs.shared, block, sm)
    limit = min(limits, key=lambda name: limits[name])
    each = max(1, limits[limit])
    x, y, z = needs.requirements.cluster or (1, 1, 1)
    clusters = resident_clusters(x * y * z, each, sm.count)
    grid = (clusters * x, y, z) if y * z > 1 else clusters * x
    blocks = f"{sm.count} SMs run {each} block{'s' * (each > 1)} each, by their {limit}"
    if x * y * z > 1:
        blocks += f", which hold {clusters} clusters of {x * y * z} at once"
    return LaunchAdvice(grid, block, f"{blocks}; {threads}")


def blocks_by_limit(registers: int, shared: int, threads: int, sm: Processors) -> dict[str, int]:
    """Return how many blocks an SM can hold by each of its limits, which have names for people.

    `registers` are those of a thread, `shared` the bytes of a block.
    """
    of_block = -(-registers * _WARP // 256) * 256 * -(-threads // _WARP)
    return {
        f"shared memory ({shared:,} B a block)": _by_shared(shared, sm),
        f"registers ({registers} a thread)": sm.registers // max(1, of_block),
        "threads": sm.threads // threads,
        "blocks": sm.blocks,
    }


def _by_shared(shared: int, sm: Processors) -> int:
    return sm.shared // (shared + sm.reserved)


_LARGEST_GROUP = 18  #: SMs of a GPC; a cluster lies within one. Some GPCs have 16.


def resident_clusters(size: int, blocks: int, sms: int) -> int:
    """Return how many clusters of `size` surely run at once, with `blocks` on an SM.

    A cluster lies within a GPC, in which fewer SMs than `size` may be left over. A grid of more
    clusters would make the last ones wait, and their tiles with them. Of sizes that are multiples
    of 3 fewer fit than SMs would allow: the driver of an H100 counts 39 of 3, and 17 of 6.
    """
    if size == 1:
        return blocks * sms
    group = _LARGEST_GROUP * blocks
    groups = sms * blocks / group
    fitting = 0.75 if size % 3 == 0 else 1
    return max(1, int(groups * (group // size) * fitting))


def _present() -> Processors:
    """Return the SMs of the current GPU."""
    device = launching_device()

    def of_sm(name: str) -> int:
        return device_attribute(device, f"MAX_{name}_PER_MULTIPROCESSOR")

    return Processors(
        device_attribute(device, "MULTIPROCESSOR_COUNT"),
        registers=of_sm("REGISTERS"),
        shared=of_sm("SHARED_MEMORY"),
        reserved=device_attribute(device, "RESERVED_SHARED_MEMORY_PER_BLOCK"),
        threads=of_sm("THREADS"),
        blocks=of_sm("BLOCKS"),
    )


def _declared(kernel: Kernel) -> Resources:
    """Return the needs of the pipelines among a kernel's globals (simulator)."""
    named = inspect.getclosurevars(kernel.py_func)
    values = {**named.globals, **named.nonlocals}.values()
    pipelines = {v for v in values if hasattr(v, "launch_kind") and hasattr(v, "nbytes")}
    kinds = {pipeline.launch_kind for pipeline in pipelines}
    requirements = Requirements(
        blocks=frozenset(int(kind[4:] or 0) for kind in kinds if kind.startswith("ring")),
        line="line" in kinds,
        cluster=cluster_of(kernel.py_func),
        watched=False,
    )
    return Resources(0, sum(p.nbytes for p in pipelines), 1024, requirements)
