"""`CircularBuffer`: one group of threads that loads ahead of the stage it works on.

A loop over tiles holds a loop over loads. Both are needed in every iteration, and what is a
prologue, a body and an epilogue in code written by hand follows from how far the inner one goes::

    for tile, stage in ring.tiles(first, stop, step):
        for ahead, slot in ring.loads():  # one thread, `prefetch` tiles ahead
            x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
        full = stage.wait()
        ...                               # full.x[i, j]

In the first iteration one thread loads the first ``prefetch + 1`` tiles (the prologue), then one
tile in each (the body), and none in the last `prefetch` (the epilogue). The other ways to write it
are worse to read: flags (``if step.loads``, ``if step.computes``) put a test round both halves of
the user's code, and a function that loads, passed as an argument, takes that code out of the loop.
Beside three parts written by hand, an iteration costs the thread that loads up to a dozen machine
instructions more, and the others less than 2 % (tests/cpu/test_circular_cost.py).
"""

from __future__ import annotations

import collections
import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numba_tma._device import constant_class
from numba_tma.debug import Site
from numba_tma.layout import Tile
from numba_tma.pipeline.payload import RESERVED
from numba_tma.pipeline.ring import TilePipeline
from numba_tma.pipeline.roles import WARP, Role

if TYPE_CHECKING:
    from numba_tma.pipeline.circular_started import Ring

#: How a stage is known to have been read by all before it is loaded again.
WAR = ("sync", "mbarrier")
#: Whether the tiles of a stage complete on one barrier, or each on its own.
BARRIERS = ("one", "each")


@dataclass(frozen=True, init=False, repr=False)
class CircularBuffer:
    """Stages of shared memory that a group of threads loads and works on by itself.

    nvFuser's pipelined circular buffering. (Its warp-specialised form is a `TilePipeline`.) Made on
    the host, used from a kernel's globals.

    Parameters
    ----------
    num_stages
        Stages in shared memory, at least 1.
    prefetch
        How many tiles the loads are ahead of the work: 0 to ``num_stages - 1``, which is the
        default. The ``num_stages - prefetch - 1`` stages that are left let warps run apart
        (``war="mbarrier"``), or the work on them go on asynchronously (`in_flight`).
    war
        How the thread that loads knows that a stage has been read (write after read):
        ``"sync"``, all threads synchronise in each iteration; ``"mbarrier"``, each warp arrives on
        a barrier of the stage.
    barriers
        ``"one"`` barrier a stage for the bytes of all its tiles, or one for ``"each"`` tile, so
        that work on the first can begin before the last has come.
    role
        The `Role` whose threads do it, in whole warps; by default all threads of the block.
    **tiles
        The tiles of a stage, by the name they have in the kernel.

    Examples
    --------
    >>> BUFFER = CircularBuffer(4, 2, x=Tile((64, 128), "f32"))
    >>> BUFFER.in_flight, BUFFER.tx_bytes
    (1, 32768)
    """

    num_stages: int
    prefetch: int
    tiles: tuple[tuple[str, Tile], ...]
    war: str = "sync"
    barriers: str = "one"
    role: Role | None = None

    def __init__(
        self,
        num_stages: int,
        prefetch: int | None = None,
        /,
        *,
        war: Literal["sync", "mbarrier"] = "sync",
        barriers: Literal["one", "each"] = "one",
        role: Role | None = None,
        **tiles: Tile,
    ) -> None:
        stages = _stages(num_stages)
        ahead = stages - 1 if prefetch is None else _prefetch(prefetch, stages)
        for name, chosen, choices in (("war", war, WAR), ("barriers", barriers, BARRIERS)):
            if chosen not in choices:
                raise ValueError(
                    f"CircularBuffer({name}={chosen!r}): one of {', '.join(map(repr, choices))}"
                )
        _check_role(role)
        _check_tiles(tiles)
        values = (stages, ahead, tuple(tiles.items()), war, barriers, role)
        for field, value in zip(self.__dataclass_fields__, values):
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        shown = [str(self.num_stages), str(self.prefetch)]
        shown += [f"{n}={t}" for n, t in self.tiles]
        for name, default in (("war", "sync"), ("barriers", "one"), ("role", None)):
            if getattr(self, name) != default:
                shown.append(f"{name}={getattr(self, name)!r}")
        return f"CircularBuffer({', '.join(shown)})"

    @property
    def in_flight(self) -> int:
        """Stages that work may still go on with, beside the current one, while others load."""
        return self.num_stages - self.prefetch - 1

    # -------------------------------------------------------------- its memory

    @property
    def _memory(self) -> TilePipeline:
        return _memory(self.num_stages, self.tiles)

    @property
    def tx_bytes(self) -> int:
        """Bytes that the loads of one stage bring."""
        return self._memory.tx_bytes

    @property
    def alignment(self) -> int:
        """Alignment of the tiles in shared memory, in bytes."""
        return self._memory.alignment

    @property
    def storage_nbytes(self) -> int:
        """Shared memory of the tiles alone, in bytes."""
        return self._memory.storage_nbytes

    def tile_offset(self, name: str) -> int:
        """Return the offset of the first stage's tile `name` from the tiles' base, in bytes."""
        return self._memory.tile_offset(name)

    @property
    def barriers_offset(self) -> int:
        """Offset of the barriers from the tiles' base, in bytes."""
        return self._memory.barriers_offset

    @property
    def full_bytes(self) -> tuple[int, ...]:
        """Bytes that each of a stage's full barriers expects."""
        if self.barriers == "one":
            return (self.tx_bytes,)
        return tuple(tile.nbytes for _, tile in self.tiles)

    @property
    def num_full(self) -> int:
        """Barriers that tell of one stage whether it is full."""
        return len(self.full_bytes)

    def full_offset(self, name: str) -> int:
        """Return the offset of the full barrier of `name` in stage 0 from the barriers' base."""
        if self.barriers == "one":
            return 0
        return 8 * self.num_stages * list(dict(self.tiles)).index(name)

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers, which ``war="mbarrier"`` has, from the barriers' base."""
        return 8 * self.num_stages * self.num_full

    @property
    def num_barriers(self) -> int:
        """The `BarrierArray` that `start` takes has this many."""
        return self.num_stages * (self.num_full + self.by_mbarrier)

    @property
    def nbytes(self) -> int:
        """Shared memory in all, in bytes."""
        return self.barriers_offset + 8 * self.num_barriers

    # ------------------------------------------------------------- its threads

    @property
    def by_mbarrier(self) -> bool:
        """Whether barriers tell when a stage has been read."""
        return self.war == "mbarrier"

    @property
    def empty_arrivals(self) -> int:
        """Arrivals by which a stage is handed back; 0 if that depends on the launch's block."""
        return self.role.members // WARP if self.role else 0

    @property
    def block(self) -> int:
        """Threads of the block; 0 if any number of whole warps will do."""
        return self.role.block if self.role else 0

    @property
    def sync_id(self) -> int:
        """The named barrier by which its threads synchronise."""
        return self.role.barrier_id if self.role else 0

    # ------------------------------------------------------- what debug mode calls it

    @property
    def full_site(self) -> Site:
        """What a wait for a full stage is called."""
        return Site(f"'{self._name}.full'", self.role.name if self.role else "")

    @property
    def empty_site(self) -> Site:
        """What a wait for an empty stage is called."""
        return Site(f"'{self._name}.empty'", self.role.name if self.role else "")

    @property
    def _name(self) -> str:
        return "+".join(name for name, _ in self.tiles)

    def start(self, tiles: Any = None, barriers: Any = None, sync: bool = True) -> Ring:
        """Allocate the stages, initialise the barriers and return the block's `Ring`.

        Executed once by every thread of the block, so not inside a loop; it synchronises the
        block. Each call in the source has memory of its own.

        Parameters
        ----------
        tiles
            Where the tiles are, if not in memory of their own: a `SharedTile` of at least
            `storage_nbytes`, or an address that is a multiple of `alignment`.
        barriers
            A `BarrierArray` of at least `num_barriers`, or an address, likewise.
        sync
            False, a literal, where several are started: only the last has to synchronise.
        """
        from numba_tma.pipeline.circular_started import start

        return start(self, tiles, barriers, sync)


constant_class(CircularBuffer)


@functools.cache
def _memory(num_stages: int, tiles: tuple[tuple[str, Tile], ...]) -> TilePipeline:
    """Return a pipeline whose tiles lie as those of a buffer do."""
    names, values = zip(*tiles)
    payload: Any = collections.namedtuple("payload", names)(*values)
    return TilePipeline(num_stages, payload)


def _stages(given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(
            f"CircularBuffer(num_stages={given!r}): it has at least 1 stage, and 2 or more to load "
            "one while it works on another"
        )
    return number


def _prefetch(given: Any, stages: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(
            f"CircularBuffer(prefetch={given!r}): the loads are 0 or more tiles ahead of the work"
        )
    if number >= stages:
        raise ValueError(
            f"CircularBuffer({stages}, prefetch={number}): tile i + {number} would be loaded while "
            f"the tiles i to i + {number - 1} are in shared memory and tile i is worked on, which "
            f"takes {number} + 1 = {number + 1} stages; prefetch at most {stages} - 1 = "
            f"{stages - 1}, or use {number + 1} stages"
        )
    return number


def _check_role(role: Any) -> None:
    if role is None:
        return
    if not isinstance(role, Role):
        raise TypeError(
            f"CircularBuffer(role=...) takes a role, as ROLES.compute with ROLES = "
            f"Roles(compute=Warps(4)), not {role!r}"
        )
    if role.members % WARP:
        raise ValueError(
            f"CircularBuffer(role={role}): one thread that its first warp elects starts the loads, "
            f"and whole warps hand stages back, but {role.members} threads are "
            f"{role.members // WARP} warps and {role.members % WARP} threads; use Warps(n)"
        )


def _check_tiles(tiles: dict[str, Tile]) -> None:
    if not tiles:
        raise ValueError(
            "CircularBuffer(): name at least one tile, as in CircularBuffer(3, x=TILE)"
        )
    for name, tile in tiles.items():
        if not isinstance(tile, Tile):
            raise TypeError(f"CircularBuffer({name}=...) takes a Tile, not {tile!r}")
        if name in RESERVED | {"barrier_of", "base", "pipeline", "wait", "writes"}:
            raise ValueError(
                f"CircularBuffer({name}=...): the name means something else on a stage"
            )
