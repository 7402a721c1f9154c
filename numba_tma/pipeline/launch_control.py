"""`LaunchControl`: blocks that run take the tiles of blocks that have not begun.

The grid has a block, or a cluster, for each tile. The hardware starts as many as fit. While a block
computes a tile, one of its threads requests the next block of the grid: the hardware cancels that
block's launch and writes its index to shared memory, as an *answer*. All threads of the requesting
block read the answer and compute the cancelled block's tile. So the tiles go to the SMs that are
free, in the order of the grid, and a block sets up its barriers and its tensor memory once.

Answers are in a ring of slots. *full* completes when the 16 bytes of an answer have been written,
*empty* when all threads have read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    compile_target,
    compile_time,
    constant_class,
    device_function,
    simulator_only,
    u32,
)
from numba_tma.backend.primitives import allocate_shared, quotient, require_cluster
from numba_tma.host.architectures import BLACKWELL, FAMILY, refusal
from numba_tma.host.cluster_rules import cluster_size
from numba_tma.host.debug import Site, is_bounded
from numba_tma.pipeline.launch_control_handle import ANSWER_BYTES, LaunchControlHandle
from numba_tma.pipeline.roles import WARP, Role, Roles
from numba_tma.pipeline.stage_layout import positive
from numba_tma.pipeline.start import check_launch, check_sync, meet_at_start
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    ctaid_x,
    fence_mbarrier_init,
    mbarrier_init,
    nctaid_x,
    ntid_x,
    tid_x,
)


@dataclass(frozen=True)
class LaunchControl:
    """A persistent scheduler: a block that has computed its tile takes the next block of the grid.

    Made on the host, used from a kernel's globals, on GPUs of compute capability 10.0 and newer.
    Every role computes the same tiles: all threads of the block, in a cluster of every block, walk
    ``work.tiles(schedule)`` to its end.

    Parameters
    ----------
    roles
        The block's `Roles`. By default the block is any number of whole warps.
    asks
        The role whose first thread requests the next tile: the one that runs ahead of the others,
        as the producer of a pipeline does. By default the last role, or the last warp.
    slots
        Answers that may be unread, at least 1. The asking role can be ``slots - 1`` tiles ahead of
        the slowest.
    cluster
        The blocks of the kernel's cluster along x and y, which take a tile together.
    debug
        Whether waits that take too long raise an exception, as in `TilePipeline`.

    Examples
    --------
    >>> from numba_tma import Roles, Warps
    >>> ROLES = Roles(compute=Warps(4), load=Warps(1))
    >>> LaunchControl(ROLES, asks=ROLES.load).arrivals
    5
    """

    device_methods = ("start",)
    roles: tuple[Role, ...]
    asks: Role | None
    slots: int
    cluster: tuple[int, int]
    debug: bool = False

    def __init__(
        self,
        roles: Roles | None = None,
        *,
        asks: Role | None = None,
        slots: int = 3,
        cluster: int | tuple[int, int] = 1,
        debug: bool | None = None,
    ) -> None:
        if not isinstance(roles, Roles | None):
            raise TypeError(
                f"LaunchControl(roles=...) takes the block's Roles, all of which read the answers, "
                f"not {roles!r}"
            )
        members = () if roles is None else roles.roles
        if asks is not None and asks not in members:
            raise ValueError(
                f"LaunchControl(asks={asks!r}): the role that asks is one of the roles, which are "
                f"{', '.join(map(repr, members)) or 'not given'}"
            )
        rule = "at least 1 answer; 3 let the role that loads run ahead"
        number = positive("LaunchControl", "slots", slots, rule)
        values = {
            "roles": members,
            "asks": members[-1] if members and asks is None else asks,
            "slots": number,
            "cluster": cluster_size(cluster, "LaunchControl")[:2],
            "debug": is_bounded(LaunchControl, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        roles = f"Roles({', '.join(map(repr, self.roles))}), asks={self.asks}, "
        shown = f"{roles if self.roles else ''}slots={self.slots}"
        if self.in_cluster:
            shown += f", cluster={self.cluster}"
        return f"LaunchControl({shown}{', debug=True' if self.debug else ''})"

    @property
    def num_blocks(self) -> int:
        """Blocks that read the same answers: those of a cluster."""
        return self.cluster[0] * self.cluster[1]

    @property
    def in_cluster(self) -> bool:
        """Whether the blocks of a cluster take a tile together."""
        return self.num_blocks > 1

    @property
    def width(self) -> int:
        """Blocks of the grid along x that take a tile together."""
        return self.cluster[0]

    @property
    def cluster_feature(self) -> str:
        """The argument that requires a cluster, for error messages."""
        return f"cluster={self.cluster}"

    def cluster_rule(self, given: object) -> str:
        """Return the error of a kernel that runs in clusters of another size."""
        return (
            f"{self} is for clusters of {self.cluster}, but the kernel runs in clusters of "
            f"{given}: put @tma.cluster({self.cluster}) below @cuda.jit"
        )

    @property
    def block(self) -> int:
        """Threads of the block; 0 for any number of whole warps."""
        return self.roles[0].block if self.roles else 0

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block}" if self.roles else "line"

    @property
    def asks_first(self) -> int:
        """threadIdx.x of the asking thread, if there are roles."""
        return self.asks.first if self.asks else 0

    @property
    def each_thread_reads(self) -> bool:
        """Whether each thread arrives after it has read an answer; otherwise each warp does."""
        return any(role.group.unit == 1 for role in self.roles)

    @property
    def arrivals(self) -> int:
        """Arrivals of a block that has read an answer; 0 if they depend on the launch's block."""
        if self.each_thread_reads:
            return sum(role.members for role in self.roles)
        return sum(role.arrivals for role in self.roles)

    @property
    def full_offset(self) -> int:
        """Offset of the full barriers from the answers, in bytes."""
        return ANSWER_BYTES * self.slots

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers from the answers, in bytes."""
        return self.full_offset + 8 * self.slots

    @property
    def nbytes(self) -> int:
        """Shared memory of the answers and barriers, in bytes."""
        return self.empty_offset + 8 * self.slots

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        return {"answers": self.full_offset, "barriers": self.nbytes - self.full_offset}

    @property
    def full_site(self) -> Site:
        """The name of a wait for an answer."""
        return Site("'launch_control.full'", "reader", debug=self.debug)

    @property
    def empty_site(self) -> Site:
        """The name of the wait until all threads have read an answer."""
        name, shared = self.asks.name if self.asks else "asking warp", self.in_cluster
        return Site("'launch_control.empty'", name, debug=self.debug, in_cluster=shared)

    def start(self, sync: Constant[bool] = True) -> LaunchControlHandle:
        """Allocate the answers, initialise their barriers and return the handle.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises the
        block, or the cluster.

        Parameters
        ----------
        sync
            The literal False leaves the synchronisation to the pipeline that is started last.
        """
        check_target(self)
        check_launch(self)
        check_sync(sync)
        if self.in_cluster:
            require_cluster(self)
        base = allocate_shared(self, self.nbytes, ANSWER_BYTES, "", self.launch_kind)
        label_answers(self, base)
        thread, num_threads = tid_x(), ntid_x()
        initialise(self, base, thread, num_threads, sync)
        asking = u32(self.asks_first) if self.roles else u32(num_threads - WARP)
        first, step = quotient(ctaid_x(), u32(self.width)), quotient(nctaid_x(), u32(self.width))
        return LaunchControlHandle(
            self,
            base=base,
            asking=thread == asking,
            step=step[0],
            number=u32(first[0] - step[0]),
            state=PipelineState(self.slots, self.slots, 1),
        )


@device_function
def initialise(
    control: LaunchControl, base: int, thread: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers and make them visible to the block and the cluster."""
    if thread == 0:
        readers = u32(control.arrivals)
        if readers == 0:
            readers = u32(num_threads) // u32(WARP)
        for slot in range(control.slots):
            mbarrier_init(base + control.full_offset + 8 * slot, 1)
            mbarrier_init(base + control.empty_offset + 8 * slot, readers * control.num_blocks)
        fence_mbarrier_init()
    if sync:
        meet_at_start(control.in_cluster, num_threads)


@compile_time
def check_target(control: LaunchControl) -> None:
    """Raise if the target has no launch control."""
    target, having = compile_target(), FAMILY if control.in_cluster else BLACKWELL
    if target and not having.allow(target):
        raise simulator.BadOperand(
            f"{refusal(f'{control}: launch control', having, target)}; or use PersistentGrid, and "
            "launch as many blocks as run at the same time"
        )


@simulator_only
def label_answers(control: LaunchControl, base: int) -> None:
    """Name the answers and their barriers for the simulator, and let it count the readers."""
    for slot in range(control.slots):
        full, empty = (o + 8 * slot for o in (control.full_offset, control.empty_offset))
        simulator.label(base + ANSWER_BYTES * slot, f"answer[{slot}] of {control}")
        simulator.label(base + full, f"full[{slot}] of {control}")
        simulator.label(base + empty, f"empty[{slot}] of {control}")
        simulator.read_by_all(base + empty)


constant_class(LaunchControl)
