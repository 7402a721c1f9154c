"""`TilePipeline`: what a ring of stages holds, who fills it and who empties it.

Each stage has two mbarriers. *full* completes when the stage has been filled, *empty* when every
consumer has released it. How many arrivals that takes follows from who fills and who consumes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from numba_tma.backend.interface import Constant, constant_class, u32
from numba_tma.backend.primitives import require_cluster, sub32, tiles_are_used
from numba_tma.device.shared import TileAccesses
from numba_tma.host.debug import Site, is_bounded
from numba_tma.host.layout import Tile
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.memory import tiles_and_barriers
from numba_tma.pipeline.multicast import axis_mask, peers
from numba_tma.pipeline.producer import TileProducer
from numba_tma.pipeline.roles import MAX_ROLES, WARP, Role, RoleTable, index_from, of_own_role
from numba_tma.pipeline.stage_layout import (
    StageLayout,
    named_tiles,
    positive,
    round_up,
    tile_stride,
)
from numba_tma.pipeline.start import (
    CONSUMER_BARRIER,
    check_launch,
    check_sync,
    initialise,
    label_stages,
)
from numba_tma.pipeline.state import PipelineState
from numba_tma.pipeline.tile_handle import TilePipelineHandle
from numba_tma.pipeline.tile_rules import (
    check_multicast,
    check_roles,
    plane,
    shared_tiles,
)
from numba_tma.ptx import laneid, ntid_x, tid_x

#: Who can fill a stage: the copy engine, the cp.async of threads, or what threads compute.
FILLED_BY = ("tma", "cp_async", "threads")


@dataclass(frozen=True, init=False, repr=False)
class TilePipeline(StageLayout):
    """A ring of `num_stages` stages in shared memory, each holding the named `tiles`.

    Made on the host, used from a kernel's globals. `start` returns a `TilePipelineHandle`: its
    `producer` has `acquire`, `commit` and `tail`, its `consumer` has `wait` and `release`. Shared
    bytes, barriers, arrivals, and the bytes that each stage expects follow from what is said here.

    Parameters
    ----------
    num_stages
        Stages of the ring, at least 1.
    payload
        The tiles of a stage as one object: `StandardTilePayload`, `BlockScaledTilePayload`, or any
        dataclass or NamedTuple of tiles. Instead of `tiles`.
    k_group
        Tiles of each name in one stage: ``stage.tile(j)`` is the j-th. They come and go together.
    producer, consumer
        A `Role` of the kernel's `Roles`; several consumers as a tuple. By default the last warp of
        the block produces and all others consume.
    filled_by
        What fills a stage: ``"tma"``, copies that one elected thread starts; ``"cp_async"``,
        copies that each thread of the producer starts; ``"threads"``, writes of the producer's
        threads.
    alternate
        Each stage is emptied by one of the consumers and not by all of them; see `Consumer.skip`.
    cluster, multicast
        The blocks of the kernel's cluster along x and y, and which tiles they share: by the tile's
        name, the axis along which blocks get the same tile (``multicast={"a": "x"}``: blocks that
        differ in their x alone). A stage is empty when all blocks that load into it know so.
    debug
        Whether waits end with an exception when they take too long, and bytes are counted; by
        default as the environment's ``NUMBA_TMA_DEBUG`` says. The simulator does so by itself.
    **tiles
        The tiles that one stage receives, by the name they have in the kernel: ``stage.x``. The
        producer loads every one of them into every stage, which is full only when `tx_bytes` bytes
        have come. A tile that is only written, an output of another shape, say, is a
        `shared_tile`.

    Examples
    --------
    >>> PIPE = TilePipeline(4, x=Tile((64, 128), "f32"))
    >>> PIPE.tx_bytes
    32768
    """

    device_methods = ("start",)
    num_stages: int
    tiles: tuple[tuple[str, Tile], ...]
    k_group: int = 1
    producer: Role | None = None
    consumers: tuple[Role, ...] = ()
    filled_by: str = "tma"
    alternate: bool = False
    cluster: tuple[int, int] = (1, 1)
    multicast: tuple[tuple[str, str], ...] = ()
    debug: bool = False

    def __init__(
        self,
        num_stages: int,
        payload: Any = None,
        /,
        *,
        k_group: int = 1,
        producer: Role | None = None,
        consumer: Role | tuple[Role, ...] | None = None,
        filled_by: Literal["tma", "cp_async", "threads"] = "tma",
        alternate: bool = False,
        cluster: int | tuple[int, int] = 1,
        multicast: dict[str, Literal["x", "y"]] | None = None,
        debug: bool | None = None,
        **tiles: Tile,
    ) -> None:
        named = named_tiles(TilePipeline, payload, tiles)
        if filled_by not in FILLED_BY:
            raise ValueError(
                f"TilePipeline(filled_by={filled_by!r}): one of {', '.join(map(repr, FILLED_BY))}"
            )
        values = {
            "num_stages": positive(
                TilePipeline, "num_stages", num_stages, "stage; 2 to 8 are usual"
            ),
            "tiles": named,
            "k_group": positive(TilePipeline, "k_group", k_group, "tile of each name in a stage"),
            "producer": producer,
            "consumers": check_roles(producer, consumer, alternate),
            "filled_by": filled_by,
            "alternate": bool(alternate),
            "cluster": plane(cluster),
            "multicast": shared_tiles(multicast),
            "debug": is_bounded(TilePipeline, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_multicast(self)

    def __repr__(self) -> str:
        shown = [f"{n}={t}" for n, t in self.tiles]
        for field in dataclasses.fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"TilePipeline({self.num_stages}, {', '.join(shown)})"

    # -------------------------------------------------------------------- its bytes

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers from the full ones, in bytes."""
        return 8 * self.num_stages

    @property
    def ticket_offset(self) -> int:
        """Offset of the tile numbers that a `TileQueue`'s producer passes on, from the barriers."""
        return 16 * self.num_stages

    @property
    def sync_offset(self) -> int:
        """Offset of the mbarriers that debug mode has for named barriers, from the full ones."""
        return round_up(self.ticket_offset + 4 * self.num_stages, 8)

    @property
    def ledger_offset(self) -> int:
        """In debug mode, how far behind a stage's full barrier its ledger lies, 8 bytes; else 0."""
        return self.sync_offset + 8 * (MAX_ROLES + 1) if self.debug else 0

    @property
    def num_barriers(self) -> int:
        """The `BarrierArray` that `start` takes has this many: two to a stage, and some room."""
        if self.debug:
            return self.ledger_offset // 8 + self.num_stages
        return self.sync_offset // 8

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        return self.barriers_offset + 8 * self.num_barriers

    # ------------------------------------------------------------------- its arrivals

    @property
    def full_arrivals(self) -> int:
        """Arrivals that a stage needs to be full, beside its bytes."""
        if self.filled_by == "tma":
            return 1
        members = self.producer.members if self.producer else WARP
        if self.filled_by == "cp_async":
            return members
        return self.producer.arrivals if self.producer else 1

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that a stage needs to be empty; 0 if that depends on the launch's block."""
        arrivals = [role.arrivals for role in self.consumers]
        one = arrivals[0] if self.alternate else sum(arrivals)
        return one * self.num_peers

    @property
    def block(self) -> int:
        """Threads of the block; 0 if any number of whole warps will do."""
        return self.producer.block if self.producer else 0

    @property
    def num_peers(self) -> int:
        """Blocks of the cluster that load into one block's stages, itself included."""
        axes = {axis for _, axis in self.multicast}
        return 1 + sum(n - 1 for axis, n in zip("xy", self.cluster) if axis in axes)

    @property
    def in_cluster(self) -> bool:
        """Whether blocks of a cluster share its stages."""
        return self.num_peers > 1

    @property
    def by_tma(self) -> bool:
        """Whether the copy engine fills the stages, and its bytes are counted."""
        return self.filled_by == "tma"

    @property
    def by_cp_async(self) -> bool:
        """Whether each thread's cp.async fills the stages."""
        return self.filled_by == "cp_async"

    @property
    def launch_kind(self) -> str:
        """What a launch has to know, as `allocate_shared` takes it."""
        return f"ring{self.block or ''}"

    @property
    def cluster_feature(self) -> str:
        """What it needs clusters for."""
        return f"multicast={dict(self.multicast)}"

    def cluster_rule(self, given: Any) -> str:
        """Return what is wrong with a kernel in clusters of another size."""
        return (
            f"{self} is for clusters of {self.cluster}, but the kernel runs in clusters of "
            f"{given}: put @tma.cluster({self.cluster}) below @cuda.jit"
        )

    @property
    def cluster_width(self) -> int:
        """Blocks of the cluster along x."""
        return self.cluster[0]

    @property
    def cluster_height(self) -> int:
        """Blocks of the cluster along y."""
        return self.cluster[1]

    @property
    def shares_x(self) -> bool:
        """Whether blocks that differ in x alone share a tile."""
        return "x" in dict(self.multicast).values()

    @property
    def shares_y(self) -> bool:
        """Whether blocks that differ in y alone share a tile."""
        return "y" in dict(self.multicast).values()

    @property
    def row_mask(self) -> int:
        """The blocks of the cluster's first row, by rank."""
        return axis_mask(self.cluster, "x", 0, 0)

    @property
    def column_mask(self) -> int:
        """The blocks of the cluster's first column, by rank."""
        return axis_mask(self.cluster, "y", 0, 0)

    @property
    def consumer_table(self) -> RoleTable:
        """The consumer roles in columns."""
        return RoleTable(self.consumers)

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes of its parts, for the error of a sum that is too large."""
        if what == "barriers":
            return {"barriers": 8 * self.num_barriers}
        parts = {}
        for name, tile in self.tiles:
            slots = f"{self.num_stages} stages x"
            slots += f" {self.k_group} x" if self.k_group > 1 else ""
            parts[f"{name}: {slots} {tile_stride(tile):,} B"] = self.slots * tile_stride(tile)
        return parts | {"barriers": self.nbytes - sum(parts.values())}

    @property
    def one_warp_produces(self) -> bool:
        """Whether the producer is a single warp."""
        return self.producer is None or self.producer.sync_threads == WARP

    @property
    def each_thread_releases(self) -> bool:
        """Whether consumers arrive thread by thread and not warp by warp."""
        return any(role.group.unit == 1 for role in self.consumers)

    @property
    def each_thread_commits(self) -> bool:
        """Whether the producer's threads arrive thread by thread and not warp by warp."""
        return self.producer is not None and self.producer.group.unit == 1

    # ------------------------------------------------------- what debug mode calls it

    @property
    def full_site(self) -> Site:
        """What a wait for a full stage is called."""
        counted = self.tx_bytes if self.by_tma else 0
        name = self.consumers[0].name if len(self.consumers) == 1 else "consumer"
        return Site(f"'{self._name}.full'", name, counted, self.num_stages, debug=self.debug)

    @property
    def empty_site(self) -> Site:
        """What a wait for an empty stage is called."""
        name = self.producer.name if self.producer else "producer"
        shared = self.in_cluster
        return Site(f"'{self._name}.empty'", name, debug=self.debug, in_cluster=shared)

    @property
    def sync_site(self) -> Site:
        """What the meeting of the consumers is called."""
        what = f"sync_consumers() or store() of '{self._name}'"
        return Site(what, "consumer", kind="sync", debug=self.debug)

    @property
    def sync_arrivals(self) -> tuple[int, ...]:
        """By named barrier: the threads that meet there in debug mode; 0 if nobody does."""
        threads = {role.barrier_id: role.sync_threads for role in self.consumers}
        return tuple(threads.get(i, 0) for i in range(MAX_ROLES + 1))

    def start(
        self,
        tiles: Constant[Any] = None,
        barriers: Constant[Any] = None,
        sync: Constant[bool] = True,
    ) -> TilePipelineHandle:
        """Allocate the ring, initialise its barriers and return the block's handle of it.

        Executed once by every thread of the block, so not inside a loop; it synchronises the
        block, or the cluster. Each call in the source is a ring of its own.

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
        check_launch(self, WARP if self.block else 2 * WARP)
        check_sync(sync)
        if self.in_cluster:
            require_cluster(self)
        base, first = tiles_and_barriers(self, tiles, barriers)
        label_stages(self, base, first)
        thread, num_threads, stages = tid_x(), ntid_x(), self.num_stages
        # Threads of consumers, and of the producer, without roles.
        members, sync_id = sub32(num_threads, WARP), u32(CONSUMER_BARRIER)
        mine, loading, num_producers = thread, index_from(thread, members), u32(WARP)
        if self.producer is not None:
            table = self.consumer_table
            members = of_own_role(thread, table, table.members)
            sync_id = of_own_role(thread, table, table.barriers)
            mine = index_from(thread, of_own_role(thread, table, table.firsts))
            loading = index_from(thread, self.producer.first)
            num_producers = u32(self.producer.members)
        is_sender = False
        if self.in_cluster:
            is_sender = peers(self) >> laneid() & 1 != 0
        initialise(self, first, thread, num_threads, sync)
        producer = TileProducer(
            self,
            base=base,
            barriers=first,
            thread=loading,
            state=PipelineState(stages, stages, 0),
            accesses=TileAccesses(),
            current=stages,
        )
        # Consumers that take turns skip first, and so stand on the first stage from the start.
        turns = self.alternate
        consumer = TileConsumer(
            self,
            base=base,
            barriers=first,
            thread=mine,
            num_threads=members,
            sync_id=sync_id,
            is_sender=is_sender,
            state=PipelineState(stages, 0 if turns else stages, 0 if turns else 1, int(turns)),
            accesses=TileAccesses(tiles_are_used()),
            current=stages,
            previous=stages,
            asked=turns,
        )
        return TilePipelineHandle(producer, consumer, num_producers)


constant_class(TilePipeline)
