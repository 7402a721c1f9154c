"""`OrderedSequenceBarrier`: roles that do the same work take turns at it.

Each role has an mbarrier for each stage, which completes when the previous role has ended its turn
at the stage. A role waits on its own mbarrier and arrives on that of the next role. The first
role's first waits return at once, like a producer's waits for empty stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    constant_class,
    device_class,
    device_function,
    simulator_only,
    u32,
)
from numba_tma.device.barrier import Barrier
from numba_tma.device.waiting import wait_for
from numba_tma.host.debug import Site, is_bounded
from numba_tma.pipeline.memory import own_or_given_barriers
from numba_tma.pipeline.roles import Role, RoleTable, of_own_role
from numba_tma.pipeline.stage_layout import positive
from numba_tma.pipeline.start import check_launch, check_sync
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    barrier_sync,
    elect_sync,
    mbarrier_arrive,
    mbarrier_init,
    tid_x,
)


@dataclass(frozen=True)
class OrderedSequenceBarrier:
    """Turns of `roles` at `depth` stages of their work.

    Made on the host, used from a kernel's globals. At each stage one role at a time has its turn,
    in the order of `roles`. So two roles work on different tiles: one is in its mainloop while the
    other is in its epilogue (CUTLASS: ping-pong).

    Parameters
    ----------
    depth
        Stages of the work on one tile: 2 for a mainloop and an epilogue. Each role has a turn at
        stage 0, then one at stage 1 and so on, and begins again.
    roles
        Two or more roles of one `Roles`, of one kind and with equal arrivals.
    debug
        Whether waits that take too long raise an exception, as in `TilePipeline`.

    Examples
    --------
    >>> ROLES = Roles(math0=Warpgroups(1), math1=Warpgroups(1), load=Warps(1))
    >>> OrderedSequenceBarrier(2, (ROLES.math0, ROLES.math1)).num_barriers
    4
    """

    device_methods = ("start",)
    depth: int
    roles: tuple[Role, ...]
    debug: bool = False

    def __init__(self, depth: int, roles: tuple[Role, ...], *, debug: bool | None = None) -> None:
        rule = "the work on a tile has at least 1 stage; 2 are usual, a mainloop and an epilogue"
        number = positive("OrderedSequenceBarrier", "depth", depth, rule)
        roles = tuple(roles) if isinstance(roles, list | tuple) else (roles,)
        for role in roles:
            if not isinstance(role, Role):
                raise TypeError(
                    "OrderedSequenceBarrier(roles=...) takes roles, as (ROLES.math0, ROLES.math1) "
                    f"with ROLES = Roles(math0=Warpgroups(1), math1=Warpgroups(1)), not {role!r}"
                )
        indices = {role.index for role in roles}
        if len(roles) < 2 or len(indices) < len(roles) or len({r.block for r in roles}) > 1:
            raise ValueError(
                f"OrderedSequenceBarrier(roles={list(roles)}): two or more different roles of the "
                "same Roles take turns"
            )
        if len({(role.arrivals, role.group.unit == 1) for role in roles}) > 1:
            counts = ", ".join(f"{role.arrivals} ({role})" for role in roles)
            raise ValueError(
                "OrderedSequenceBarrier: roles that take turns must be of one kind with equal "
                f"arrivals, but these have {counts}"
            )
        object.__setattr__(self, "depth", number)
        object.__setattr__(self, "roles", roles)
        object.__setattr__(self, "debug", is_bounded(OrderedSequenceBarrier, debug))

    @property
    def num_barriers(self) -> int:
        """Number of mbarriers: one for each stage and role."""
        return self.depth * len(self.roles)

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block}"

    @property
    def role_table(self) -> RoleTable:
        """The roles that take turns, as a table."""
        return RoleTable(self.roles)

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        return {what: 8 * self.num_barriers}

    @property
    def num_groups(self) -> int:
        """Number of roles."""
        return len(self.roles)

    @property
    def arrivals(self) -> int:
        """Arrivals that end a turn: those of one role, which are the same for all."""
        return self.roles[0].arrivals

    @property
    def block(self) -> int:
        """Threads of the block."""
        return self.roles[0].block

    @property
    def each_thread_arrives(self) -> bool:
        """Whether each thread of a role arrives; otherwise one lane of each warp does."""
        return self.roles[0].group.unit == 1

    @property
    def site(self) -> Site:
        """The name of a wait for a turn, in debug mode."""
        roles = "+".join(role.name for role in self.roles)
        return Site("a turn of an OrderedSequenceBarrier", roles, debug=self.debug)

    def start(self, barriers: Constant[Any] = None, sync: Constant[bool] = True) -> OrderedSequence:
        """Initialise the barriers and return the handle by which roles take turns.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises the
        block.

        Parameters
        ----------
        barriers
            Memory for the barriers: a `BarrierArray` of at least `num_barriers`, or an address that
            is a multiple of 8. By default `start` allocates it.
        sync
            The literal False leaves the synchronisation to the pipeline that is started last.
        """
        check_launch(self)
        check_sync(sync)
        base = own_or_given_barriers(self, barriers)
        label_turns(self, base)
        thread, table = tid_x(), self.role_table
        initialise(self, base, thread, sync)
        group = of_own_role(thread, table, table.numbers)
        # The first role's first waits return at once.
        state = PipelineState(self.depth, 0, u32(group == 0), 0)
        return OrderedSequence(self, base, group, state)


@device_class(static=("order",), mutable=True)
@dataclass
class OrderedSequence:
    """A started `OrderedSequenceBarrier`. All threads of the roles execute its methods.

    The handle keeps the role's stage and phase: `wait` waits for the role's next turn, and `arrive`
    ends the turn.
    """

    order: OrderedSequenceBarrier
    barriers: u32
    group: u32  # the caller's role
    state: PipelineState
    waited: bool = False  # the caller's role has its turn

    def turn(self) -> Turn:
        """Wait for the role's next turn and return the turn. Its scope or `Turn.close` ends it."""
        self.wait()
        return Turn(self)

    def wait(self) -> None:
        """Wait for this role's turn at its next stage.

        After the wait, memory accesses of the previous turns at the stage are visible. Writes that
        the copy engine reads have to be fenced by the threads that wrote.
        """
        check_turn(self.waited, False)
        self._await_turn()
        self.waited = True

    def arrive(self) -> None:
        """End this role's turn: arrive on the next role's barrier and step to the next stage."""
        check_turn(self.waited, True)
        following = u32(self.group + 1)
        if following >= self.order.num_groups:
            following = u32(0)
        barrier = self._barrier(following)
        if self.order.each_thread_arrives:
            mbarrier_arrive(barrier)
        else:
            bar_warp_sync()
            if elect_sync():
                mbarrier_arrive(barrier)
        self.waited = False
        self.state.step()

    def _barrier(self, group: Any) -> Barrier:
        """Return the barrier that completes when role number `group` has its turn at this stage."""
        return Barrier(self.barriers + 8 * (self.state.index * self.order.num_groups + group))

    def _await_turn(self) -> None:
        """Wait until the previous role has ended its turn."""
        state = self.state
        barrier = self._barrier(self.group)
        wait_for(barrier, state.phase, self.order.site, state.index, state.count)


@device_class()
@dataclass
class Turn:
    """A role's turn at a stage. The end of its scope ends the turn."""

    owner: OrderedSequence

    def enters(self) -> bool:
        """Return True: every thread of the role executes the scope."""
        return True

    def close(self) -> None:
        """End the turn."""
        self.owner.arrive()


@simulator_only
def check_turn(waited: bool, wanted: bool) -> None:
    """Raise unless waits and arrivals alternate. On the GPU the check would cost instructions."""
    if waited != wanted:
        raise simulator.BarrierMisuse(
            "OrderedSequence.arrive: the role has not waited for this turn, so two roles may work "
            "at the stage at once: call wait() before the stage's work"
            if wanted
            else "OrderedSequence.wait: the role still has its turn at the previous stage, for "
            "which the next role waits: call arrive() when the stage's work is done"
        )


@simulator_only
def label_turns(order: OrderedSequenceBarrier, base: int) -> None:
    """Name the barriers for the simulator's errors and timeline."""
    for stage in range(order.depth):
        for group, role in enumerate(order.roles):
            address = base + 8 * (stage * order.num_groups + group)
            simulator.label(address, f"turn[{stage}] of {role.name}")


@device_function
def initialise(order: OrderedSequenceBarrier, barriers: int, thread: int, sync: bool) -> None:
    """Initialise the barriers and make them visible to the block."""
    if thread == 0:
        for number in range(order.num_barriers):
            mbarrier_init(barriers + 8 * number, order.arrivals)
    if sync:
        barrier_sync(0, order.block)


constant_class(OrderedSequenceBarrier)
