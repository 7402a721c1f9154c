"""`CircularBuffer`: one group of threads that loads ahead of the stage on which it works.

A loop over tiles contains a loop over loads. The number of tiles that the inner loop yields makes
the prologue, the body and the epilogue, which code written by hand spells out::

    for tile, stage in ring.tiles(first, stop, step):
        for ahead, slot in ring.loads():  # one thread, `prefetch` tiles ahead
            x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
        full = stage.wait()
        ...                               # full.x[i, j]

In the first iteration one thread loads the first ``prefetch + 1`` tiles (the prologue). In each
further iteration it loads one tile (the body), and in the last `prefetch` iterations none (the
epilogue). Two other forms are harder to read. Flags (``if step.loads``, ``if step.computes``) put
a test round both halves of the user's code. A function that loads, passed as an argument, moves
the user's loads out of the loop. An iteration costs every thread, the loading thread included, at
most 2 % more machine instructions than three parts written by hand
(tests/cpu/pipeline/test_circular_cost.py).
"""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from typing import Any, Literal

from numba_tma import simulator
from numba_tma.backend.interface import Constant, constant_class, simulator_only, u32
from numba_tma.backend.primitives import kept_in_register
from numba_tma.device.shared import TileAccesses
from numba_tma.host.debug import Site, is_bounded
from numba_tma.host.layout import Tile
from numba_tma.pipeline.circular_handle import CircularBufferHandle, initialise_circular
from numba_tma.pipeline.memory import own_or_given_barriers, own_or_given_tiles
from numba_tma.pipeline.roles import WARP, Role, index_from
from numba_tma.pipeline.stage_layout import (
    RESERVED,
    StageLayout,
    named_tiles,
    positive,
    tile_stride,
)
from numba_tma.pipeline.start import check_launch, check_sync
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import ntid_x, tid_x

#: The synchronisation between the reads of a stage and the next load into it (write after read).
WAR = ("sync", "mbarrier")
#: One full barrier for all tiles of a stage, or one for each tile.
BARRIERS = ("one", "each")
#: Attributes of the stages that the loops yield, which cannot be names of tiles.
TAKEN = RESERVED | {"accesses", "barrier_of", "base", "pipeline", "wait"}


@dataclass(frozen=True)
class CircularBuffer(StageLayout):
    """Stages of shared memory into which the threads that work on them also load.

    Made on the host, used from a kernel's globals. The class is nvFuser's pipelined circular
    buffering; the warp-specialised form of nvFuser is a `TilePipeline`.

    Parameters
    ----------
    num_stages
        Stages in shared memory, at least 1.
    prefetch
        Tiles by which the loads are ahead of the work: 0 to ``num_stages - 1``, the default. The
        other ``num_stages - prefetch - 1`` stages let warps run apart (``war="mbarrier"``), or let
        asynchronous work on a stage continue (`in_flight`).
    war
        The synchronisation that precedes a load into a stage that was read (write after read).
        ``"sync"``: all threads synchronise in each iteration. ``"mbarrier"``: each warp arrives on
        the empty barrier of the stage.
    barriers
        ``"one"``: a stage has one full barrier for the bytes of all its tiles. ``"each"``: each
        tile has its own, so that work on the first tile begins before the last has arrived.
    role
        The `Role` whose threads load and work, of whole warps; by default all threads of the block.
    debug
        Whether waits that take too long raise an exception, and bytes are counted, as in
        `TilePipeline`.
    **tiles
        The tiles of a stage, by the name they have in the kernel.

    Examples
    --------
    >>> BUFFER = CircularBuffer(4, 2, x=Tile((64, 128), "f32"))
    >>> BUFFER.in_flight, BUFFER.tx_bytes
    (1, 32768)
    """

    device_methods = ("start",)
    ends_barriers = True  # a CircularBufferHandle's close() does
    num_stages: int
    prefetch: int
    tiles: tuple[tuple[str, Tile], ...]
    war: str = "sync"
    barriers: str = "one"
    role: Role | None = None
    debug: bool = False

    def __init__(
        self,
        num_stages: int,
        prefetch: int | None = None,
        /,
        *,
        war: Literal["sync", "mbarrier"] = "sync",
        barriers: Literal["one", "each"] = "one",
        role: Role | None = None,
        debug: bool | None = None,
        **tiles: Tile,
    ) -> None:
        rule = (
            "a buffer has at least 1 stage; with 2 or more it loads one while threads work on "
            "another"
        )
        stages = positive("CircularBuffer", "num_stages", num_stages, rule)
        ahead = stages - 1 if prefetch is None else _prefetch(prefetch, stages)
        for name, chosen, choices in (("war", war, WAR), ("barriers", barriers, BARRIERS)):
            if chosen not in choices:
                raise ValueError(
                    f"CircularBuffer({name}={chosen!r}): one of {', '.join(map(repr, choices))}"
                )
        _check_role(role)
        named = named_tiles(CircularBuffer, None, tiles, TAKEN)
        bounded = is_bounded(CircularBuffer, debug)
        values = (stages, ahead, named, war, barriers, role, bounded)
        for field, value in zip(self.__dataclass_fields__, values):
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        shown = [str(self.num_stages), str(self.prefetch)]
        shown += [f"{n}={t}" for n, t in self.tiles]
        for field in dataclasses.fields(self)[3:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"CircularBuffer({', '.join(shown)})"

    @property
    def in_flight(self) -> int:
        """Stages beside the current one that asynchronous work may use while others are loaded."""
        return self.num_stages - self.prefetch - 1

    # -------------------------------------------------------------- its memory

    @property
    def full_bytes(self) -> tuple[int, ...]:
        """Bytes that each of a stage's full barriers expects."""
        if self.barriers == "one":
            return (self.tx_bytes,)
        return tuple(tile.nbytes for _, tile in self.tiles)

    @property
    def num_full(self) -> int:
        """Full barriers of one stage."""
        return len(self.full_bytes)

    @property
    def all_full(self) -> int:
        """The full barriers of a stage, one bit each."""
        return (1 << self.num_full) - 1

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block}" if self.role else "line"

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        parts = {}
        for name, tile in self.tiles if what != "barriers" else ():
            size = f"{self.num_stages} stages x {tile_stride(tile):,} B"
            parts[f"{name}: {size}"] = self.num_stages * tile_stride(tile)
        return parts | {"barriers": 8 * self.num_barriers}

    def full_offset(self, name: str) -> int:
        """Return the offset of the full barrier of `name` in stage 0 from the barriers' base."""
        if self.barriers == "one":
            return 0
        return 8 * self.num_stages * list(dict(self.tiles)).index(name)

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers (``war="mbarrier"``) from the barriers' base."""
        return 8 * self.num_stages * self.num_full

    @property
    def sync_offset(self) -> int:
        """Offset of debug mode's mbarrier for `sync` from the barriers' base."""
        return 8 * self.num_stages * (self.num_full + self.by_mbarrier)

    @property
    def num_live(self) -> int:
        """Number of mbarriers."""
        return self.sync_offset // 8 + self.debug

    @property
    def ledger_offset(self) -> int:
        """Offset of a ledger (8 bytes) from its full barrier in debug mode; else 0."""
        return 8 * self.num_live if self.debug else 0

    @property
    def num_barriers(self) -> int:
        """Length of the `BarrierArray` that `start` takes: mbarriers, and debug mode's ledgers."""
        return self.num_live + self.debug * self.num_stages * self.num_full

    @property
    def nbytes(self) -> int:
        """Shared memory in all, in bytes."""
        return self.barriers_offset + 8 * self.num_barriers

    # ------------------------------------------------------------- its threads

    @property
    def by_mbarrier(self) -> bool:
        """Whether stages have empty barriers."""
        return self.war == "mbarrier"

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that complete an empty barrier; 0 if they depend on the launch's block."""
        return self.role.members // WARP if self.role else 0

    @property
    def block(self) -> int:
        """Threads of the block; 0 for any number of whole warps."""
        return self.role.block if self.role else 0

    @property
    def sync_threads(self) -> int:
        """Threads that synchronise; 0 if they depend on the launch's block."""
        return self.role.members if self.role else 0

    @property
    def sync_id(self) -> int:
        """Number of the named barrier at which the threads synchronise."""
        return self.role.barrier_id if self.role else 0

    # ------------------------------------------------------- its waits in debug mode

    @property
    def full_sites(self) -> tuple[Site, ...]:
        """The name of a wait for a full stage, for each full barrier of the stage."""
        names = [self._name] if self.barriers == "one" else [name for name, _ in self.tiles]
        of, stages = self._who, self.num_stages
        return tuple(
            Site(f"'{name}.full'", of, nbytes, stages, debug=self.debug)
            for name, nbytes in zip(names, self.full_bytes)
        )

    @property
    def empty_site(self) -> Site:
        """The name of a wait for an empty stage."""
        return Site(f"'{self._name}.empty'", self._who, debug=self.debug)

    @property
    def sync_site(self) -> Site:
        """The name of the threads' synchronisation."""
        what = f"the end of an iteration, or sync() or close(), of '{self._name}'"
        return Site(what, self._who, kind="sync", debug=self.debug)

    @property
    def _who(self) -> str:
        return self.role.name if self.role else ""

    def start(
        self,
        tiles: Constant[Any] = None,
        barriers: Constant[Any] = None,
        sync: Constant[bool] = True,
    ) -> CircularBufferHandle:
        """Allocate the stages, initialise the barriers and return the handle.

        Executed by every thread of the block. `start` synchronises the block. Each call in the
        source has memory of its own; in a loop, `close` and a synchronisation of the threads come
        before the next start.

        Parameters
        ----------
        tiles
            Memory for the tiles: a `SharedTile` of at least `storage_nbytes`, or an address that
            is a multiple of `alignment`. By default `start` allocates it.
        barriers
            Memory for the barriers: a `BarrierArray` of at least `num_barriers`, or an address that
            is a multiple of 8. By default `start` allocates it.
        sync
            The literal False leaves the synchronisation to the pipeline that is started last.
        """
        check_launch(self)
        check_sync(sync)
        base = own_or_given_tiles(self, tiles)
        # ptxas rematerialises a shared address at each use, from the block's rank in its cluster
        # (S2R SR_CgaCtaId), which is slow. It does not rematerialise the result of a shuffle.
        barriers_at = kept_in_register(own_or_given_barriers(self, barriers))
        label_buffer(self, base, barriers_at)
        thread, num_threads, stages = tid_x(), ntid_x(), self.num_stages
        initialise_circular(self, barriers_at, thread, num_threads, sync)
        if self.role is not None:
            thread = index_from(thread, self.role.first)
            num_threads = u32(self.role.members)
        return CircularBufferHandle(
            self,
            base=base,
            barriers=barriers_at,
            _thread=thread,
            _num_threads=num_threads,
            state=PipelineState(stages, stages, 1, 0),
            loading=PipelineState(stages, stages, 0, 0),
            accesses=TileAccesses(),
            waited=self.all_full,
        )


@simulator_only
def label_buffer(pipeline: CircularBuffer, base: int, first: int) -> None:
    """Name the tiles and the barriers for the simulator's errors and timeline."""
    for index in range(pipeline.num_barriers):
        turn, stage = divmod(index, pipeline.num_stages)
        kind = "full" if turn < pipeline.num_full else "empty"
        name = f" of {pipeline.tiles[turn][0]}" if kind == "full" and pipeline.num_full > 1 else ""
        simulator.label(first + 8 * index, f"{kind}[{stage}]{name} of {pipeline}")
    for stage in range(pipeline.num_stages):
        for name, tile in pipeline.tiles:
            address = base + pipeline.tile_offset(name) + stage * tile_stride(tile)
            simulator.label(address, f"{name}[{stage}] of {pipeline}")


constant_class(CircularBuffer)


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
            f"CircularBuffer(role={role}): whole warps elect a thread and release stages, but "
            f"{role.members} threads are {role.members // WARP} warps and {role.members % WARP} "
            "threads; use Warps(n)"
        )
