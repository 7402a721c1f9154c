"""`Roles`: the division of a block into roles.

A block is divided into groups of whole warps, in the order of the roles. The division determines
each role's threads, named barrier, arrivals on an mbarrier, and registers after setmaxnreg.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import (
    Constant,
    compile_time,
    constant_class,
    device_function,
    simulator_only,
    u32,
)
from numba_tma.backend.primitives import require_launch_bounds, sub32
from numba_tma.host.host_only import host_only
from numba_tma.host.loop_rules import role_refusal
from numba_tma.ptx import barrier_arrive, barrier_sync, setmaxnreg_dec, setmaxnreg_inc, tid_x
from numba_tma.simulator import BarrierMisuse

WARP, WARPGROUP = 32, 128
MAX_ROLES = 7
REGISTER_FILE = 65536  #: 32-bit registers of an SM
FIRST_FREE_BARRIER = MAX_ROLES + 1


@dataclass(frozen=True)
class Group:
    """A number of threads, warps or warpgroups; see `Threads`, `Warps` and `Warpgroups`."""

    count: int
    unit: int
    registers: int

    def __init__(self, count: Any = 1, *, registers: int = 0) -> None:
        name, unit = type(self).__name__, _UNITS[type(self).__name__]
        number, kept = _integer(count), _integer(registers)
        if number < 1 or number * unit > 1024:
            raise ValueError(
                f"{name}({count!r}): a block has 1 to 1024 threads, so a role has 1 to "
                f"{1024 // unit} {name.lower()}"
            )
        if registers and (unit != WARPGROUP or kept % 8 or not 24 <= kept <= 256):
            raise ValueError(
                f"{name}({count}, registers={registers!r}): whole warpgroups change their "
                "registers, to 24 to 256 a thread in multiples of 8; give "
                "Warpgroups(n, registers=40)"
            )
        for field, value in (("count", number), ("unit", unit), ("registers", kept)):
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        registers = f", registers={self.registers}" if self.registers else ""
        return f"{type(self).__name__}({self.count}{registers})"

    @property
    def members(self) -> int:
        """Threads that belong to the group."""
        return self.count * self.unit

    @property
    def threads(self) -> int:
        """Threads of the block that the group occupies: whole warps."""
        return -(-self.members // WARP) * WARP

    @property
    def arrivals(self) -> int:
        """Arrivals of the group on a barrier: one for each warp; of `Threads`, for each thread."""
        return self.count if self.unit == 1 else self.threads // WARP


def _integer(value: Any) -> int:
    """Return `value` as an integer, or 0 (no valid argument here) if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        return 0


@host_only
class Threads(Group):
    """`count` threads, each of which arrives on barriers."""


@host_only
class Warps(Group):
    """`count` warps, each of which arrives on barriers once."""


@host_only
class Warpgroups(Group):
    """`count` warpgroups of 4 warps. Each warp arrives on barriers once.

    `registers` is the number of registers per thread after `Role.set_registers`.
    """


_UNITS = {"Threads": 1, "Warps": WARP, "Warpgroups": WARPGROUP}


@dataclass(frozen=True)
class Role:
    """One of the roles of a block: a range of its warps.

    In a kernel `first`, `members` and `arrivals` are compile-time integers.
    """

    name: str
    group: Group
    index: int
    first: int  #: threadIdx.x of its first thread
    block: int  #: threads of the whole block
    launch_registers: int  #: registers per thread at launch; 0 if no role sets registers
    registers: int  #: registers per thread after `set_registers`; 0 if no role sets registers
    device_methods = ("is_member", "thread", "sync", "set_registers")

    def __repr__(self) -> str:
        return f"{self.name}={self.group}"

    @property
    def members(self) -> int:
        """Number of its threads."""
        return self.group.members

    @property
    def arrivals(self) -> int:
        """Arrivals of the role on a pipeline's barrier, for each stage."""
        return self.group.arrivals

    @property
    def barrier_id(self) -> int:
        """Number of the named barrier that `sync` uses."""
        return self.index + 1

    @property
    def sync_threads(self) -> int:
        """Threads that `sync` synchronises: whole warps."""
        return self.group.threads

    def is_member(self) -> bool:
        """Return whether the calling thread has this role."""
        thread = tid_x()
        return thread >= u32(self.first) and thread < u32(self.first + self.members)

    def thread(self) -> int:
        """Return the index of the calling thread in the role, from 0. Executed by its members."""
        return u32(tid_x() - self.first)

    def sync(self) -> None:
        """Synchronise the role's warps. Executed by all threads of these warps (barrier.sync)."""
        barrier_sync(self.barrier_id, self.sync_threads)

    def set_registers(self) -> None:
        """Release registers, or request those that other roles release (setmaxnreg).

        A request waits until the registers are free. Executed once by every thread of the role,
        converged.
        """
        check_registers(self)
        require_launch_bounds(self.block)  # without them ptxas drops setmaxnreg
        if self.registers < self.launch_registers:
            setmaxnreg_dec(self.registers)
        elif self.registers > self.launch_registers:
            setmaxnreg_inc(self.registers)


@dataclass(frozen=True)
class Roles:
    """The roles of a kernel's threads, in the order of ``threadIdx.x``.

    Made on the host and used from a kernel's globals: ``ROLES.load`` is a `Role`.

    Parameters
    ----------
    **groups
        1 to 7 roles by name, each `Threads`, `Warps` or `Warpgroups`. If one of them has
        `registers`, roles without share the remaining ones evenly, and neighbouring roles of warps
        fill whole warpgroups. Every warp of a warpgroup executes `set_registers`.

    Examples
    --------
    >>> ROLES = Roles(mma=Warpgroups(2), load=Warpgroups(1, registers=40))
    >>> ROLES.threads, ROLES.mma.registers
    (384, 232)
    """

    roles: tuple[Role, ...]

    def __init__(self, **groups: Group) -> None:
        if not 1 <= len(groups) <= MAX_ROLES:
            raise ValueError(
                f"Roles(): {len(groups)} roles; name 1 to {MAX_ROLES}, as in "
                "Roles(compute=Warps(4), load=Warps(1))"
            )
        for name, group in groups.items():
            if not isinstance(group, Group) or type(group) is Group:
                raise TypeError(
                    f"Roles({name}=...) takes Threads(n), Warps(n) or Warpgroups(n), not {group!r}"
                )
            if name in ("roles", "threads", "launch_bounds") or name.startswith("_"):
                raise ValueError(f"Roles({name}=...): the name is reserved; choose another name")
        block = sum(group.threads for group in groups.values())
        if block > 1024:
            terms = " + ".join(f"{g.threads} ({n})" for n, g in groups.items())
            raise ValueError(f"Roles: {terms} = {block} threads; a block has at most 1024")
        launch, registers = _registers(groups, block)
        roles, first = [], 0
        for index, (name, group) in enumerate(groups.items()):
            roles.append(Role(name, group, index, first, block, launch, registers[name]))
            first += group.threads
        object.__setattr__(self, "roles", tuple(roles))

    def __repr__(self) -> str:
        return f"Roles({', '.join(map(repr, self.roles))})"

    def __getattr__(self, name: str) -> Role:
        for role in self.__dict__.get("roles", ()):
            if role.name == name:
                return role
        raise AttributeError(f"{type(self).__name__} has no role {name!r}")

    @property
    def threads(self) -> int:
        """Threads of the block, for the launch of the kernel."""
        return self.roles[0].block

    @property
    def launch_bounds(self) -> tuple[int, int]:
        """The value for ``@cuda.jit(launch_bounds=...)``, which `Role.set_registers` requires."""
        return self.threads, 1


def _registers(groups: dict[str, Group], block: int) -> tuple[int, dict[str, int]]:
    """Return the registers per thread at launch and, by role, after setmaxnreg; 0 if unchanged."""
    if not any(group.registers for group in groups.values()):
        return 0, dict.fromkeys(groups, 0)
    _check_warpgroups(groups, block)
    launch = min(256, REGISTER_FILE // block // 8 * 8)
    budget = launch * block
    asked = {name: group.registers * group.threads for name, group in groups.items()}
    rest = [name for name, group in groups.items() if not group.registers]
    terms = " + ".join(f"{g.registers or launch} x {g.threads} ({n})" for n, g in groups.items())
    shared = sum(groups[name].threads for name in rest)
    each = min(256, (budget - sum(asked.values())) // shared // 8 * 8) if rest else 0
    if rest and each < 24 or sum(asked.values()) > budget:
        raise ValueError(
            f"Roles: {terms} = {sum(asked.values()) + launch * shared:,} registers, but a launch "
            f"of {block} threads has {launch} x {block} = {budget:,}, so setmaxnreg would wait for "
            "ever: ask for fewer, or let another role give back more"
        )
    return launch, {n: g.registers or each for n, g in groups.items()}


def _check_warpgroups(groups: dict[str, Group], block: int) -> None:
    """Raise unless roles with different numbers of registers share no warpgroup.

    Warpgroups alone have `registers`, and the other roles share the rest evenly.
    """
    first = 0
    for name, group in groups.items():
        if group.unit == WARPGROUP and first % WARPGROUP:
            raise ValueError(
                f"Roles({name}={group}): it begins at thread {first}, inside a warpgroup. Where "
                "one role has registers, setmaxnreg changes whole warpgroups: let the roles of "
                f"warps before it fill {-(-first // WARPGROUP)} of them, or name it first"
            )
        first += group.threads
    if block % WARPGROUP:
        raise ValueError(
            f"Roles: {block} threads, whose last warpgroup has {block % WARPGROUP // WARP} warps. "
            "Where one role has registers, setmaxnreg changes whole warpgroups: give Warpgroups(n),"
            f" or another role of Warps({(-block % WARPGROUP) // WARP})"
        )


@dataclass(frozen=True)
class NamedBarrier:
    """One of the 16 named barriers of a block, which `threads` threads share.

    Parameters
    ----------
    barrier_id
        8 to 15. ``cuda.syncthreads`` uses barrier 0. Roles and pipelines use 1 to 7.
    threads
        Threads that execute `sync` or `arrive`: a multiple of 32.
    """

    barrier_id: int
    threads: int
    device_methods = ("sync", "arrive")

    def __init__(self, barrier_id: int, threads: int) -> None:
        number, meeting = _integer(barrier_id), _integer(threads)
        if not FIRST_FREE_BARRIER <= number <= 15:
            raise ValueError(
                f"NamedBarrier(barrier_id={barrier_id!r}): use {FIRST_FREE_BARRIER} to 15; 0 is "
                f"cuda.syncthreads, and 1 to {MAX_ROLES} are those of the roles and of pipelines"
            )
        if meeting % WARP or not WARP <= meeting <= 1024:
            raise ValueError(
                f"NamedBarrier(threads={threads!r}): whole warps take part, so a multiple of "
                f"{WARP} up to 1024"
            )
        object.__setattr__(self, "barrier_id", number)
        object.__setattr__(self, "threads", meeting)

    def sync(self) -> None:
        """Arrive and wait for the other threads (barrier.sync). Executed by whole warps.

        Orders the threads' memory accesses.
        """
        barrier_sync(self.barrier_id, self.threads)

    def arrive(self) -> None:
        """Arrive without waiting (barrier.arrive). Executed by whole warps; others call `sync`."""
        barrier_arrive(self.barrier_id, self.threads)


@compile_time
def check_registers(role: Role) -> None:
    """Raise unless a role has a number of registers."""
    if not role.launch_registers:
        raise ValueError(
            f"set_registers of {role}: no role has a number of registers; give one, as in "
            "Roles(compute=Warpgroups(2), load=Warpgroups(1, registers=40))"
        )


@simulator_only
def check_member(called: str, pipeline: object, role: str, thread: int, threads: int) -> None:
    """Raise if a thread that is not among the `threads` of a role works on its stages."""
    if not 0 <= int(thread) < int(threads):
        raise BarrierMisuse(role_refusal(called, pipeline, role))


@dataclass(frozen=True)
class RoleTable:
    """Properties of some roles as columns, in which a thread looks up the entry of its own role."""

    roles: tuple[Role, ...]

    @property
    def last(self) -> int:
        """The number of the table's last role, from 0."""
        return len(self.roles) - 1

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first thread of each role."""
        return tuple(role.first for role in self.roles)

    @property
    def members(self) -> tuple[int, ...]:
        """The threads of each role."""
        return tuple(role.members for role in self.roles)

    @property
    def barriers(self) -> tuple[int, ...]:
        """The named barrier of each role."""
        return tuple(role.barrier_id for role in self.roles)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each role in the table."""
        return tuple(range(len(self.roles)))


@device_function
def of_own_role(thread: int, table: RoleTable, column: tuple[int, ...]) -> int:
    """Return the column's value for the role of `thread`, or the first value without a role."""
    return _of_role_up_to(thread, table, column, table.last)


@device_function
def _of_role_up_to(
    thread: int, table: RoleTable, column: tuple[int, ...], number: Constant[int]
) -> int:
    # Recursion: LLVM would unroll a loop too late to merge the code on both sides of it.
    if number == 0:
        return u32(column[0])
    if sub32(thread, table.firsts[number]) < table.members[number]:
        return u32(column[number])
    return _of_role_up_to(thread, table, column, _before(number))


@compile_time
def _before(number: int) -> int:
    return number - 1


@device_function
def index_from(thread: int, first: int) -> int:
    """Return the index of a thread in a role that begins at `first`.

    Threads before the role get an index beyond the role's last, since the result is unsigned.
    """
    return sub32(thread, first)


constant_class(Roles)
constant_class(Role)
constant_class(RoleTable)
constant_class(NamedBarrier)
