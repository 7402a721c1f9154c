"""`TilePipeline`: the tiles of a ring of stages, its producer and its consumers.

Each stage has two mbarriers. *full* completes when the stage has been filled. *empty* completes
when every consumer has released the stage. The arrival counts follow from the roles.
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
from numba_tma.host.values import FLAG, checked
from numba_tma.pipeline.arrivals import RingArrivals
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.memory import tiles_and_barriers
from numba_tma.pipeline.multicast import peers
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
    check_commits,
    check_multicast,
    check_products,
    check_roles,
    one_of,
    plane,
    shared_tiles,
)
from numba_tma.ptx import laneid, ntid_x, tid_x

#: What fills a stage: TMA copies, cp.async copies, or writes of threads.
FILLED_BY = ("tma", "cp_async", "threads")
#: What releases a stage: arrivals of the consumers, or the completion of their tcgen05 products.
RELEASED_BY = ("threads", "tcgen05")


@dataclass(frozen=True)
class TilePipeline(RingArrivals, StageLayout):
    """A ring of `num_stages` stages in shared memory, each holding the named `tiles`.

    Made on the host, used from a kernel's globals. `start` returns a `TilePipelineHandle`: its
    `producer` has `acquire`, `commit` and `tail`, its `consumer` has `wait` and `release`. Shared
    memory, barriers, arrivals, and the bytes that each stage expects follow from the parameters.

    Parameters
    ----------
    num_stages
        Stages of the ring, at least 1.
    payload
        The tiles of a stage as one object, in place of `tiles`: `StandardTilePayload`,
        `BlockScaledTilePayload`, or any dataclass or NamedTuple of tiles.
    k_group
        Tiles of each name in one stage, which are loaded and released together:
        ``stage.tile(j)`` is the j-th.
    producer, consumer
        A `Role` of the kernel's `Roles`; several consumers as a tuple. By default the last warp of
        the block produces and all others consume.
    filled_by
        What fills a stage: ``"tma"``, copies that one elected thread starts; ``"cp_async"``,
        copies that each thread of the producer starts; ``"threads"``, writes of the producer's
        threads.
    released_by
        What releases a stage: ``"threads"``, an arrival of each consumer warp; ``"tcgen05"``, one
        tcgen05.commit of the thread that multiplies, which arrives when its products are complete.
        One elected thread then executes the consumer's loop or scope.
    alternate
        Whether one consumer releases each stage, in place of all consumers; see `Consumer.skip`.
    cluster
        The blocks of the kernel's cluster along x and y; with `cta_group` 2 a pair by default.
    cta_group
        2 if two blocks of the cluster multiply as a CTA pair. Both blocks load, each its own tiles
        with ``load(..., cta_group=2)``. The full barriers of the even block count the bytes of
        both. The even block alone consumes, and its commits release the stage of both.
    multicast
        The tiles that blocks share: by the tile's name, the axis along which blocks get the same
        tile. ``multicast={"a": "x"}`` shares a among blocks that differ only in x, and in CTA pairs
        have the same place in their pair. A stage is empty when the consumers of all sharing blocks
        have released it.
    debug
        Whether waits that take too long raise an exception, and bytes are counted. The default is
        the environment's ``NUMBA_TMA_DEBUG``. The simulator does both in any case.
    **tiles
        The tiles of a stage, by the name they have in the kernel: ``stage.x``. The producer loads
        every tile into every stage; a stage is full only when `tx_bytes` bytes have arrived. Use a
        `shared_tile` for a tile that is not loaded, such as an output of another shape.

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
    released_by: str = "threads"
    alternate: bool = False
    cluster: tuple[int, int] = (1, 1)
    cta_group: int = 1
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
        released_by: Literal["threads", "tcgen05"] = "threads",
        alternate: bool = False,
        cluster: int | tuple[int, int] | None = None,
        cta_group: Literal[1, 2] = 1,
        multicast: dict[str, Literal["x", "y"]] | None = None,
        debug: bool | None = None,
        **tiles: Tile,
    ) -> None:
        named = named_tiles(TilePipeline, payload, tiles)
        one_of("filled_by", filled_by, FILLED_BY)
        one_of("released_by", released_by, RELEASED_BY)
        one_of("cta_group", cta_group, (1, 2))
        stages = "a pipeline has at least 1 stage; 2 to 8 are usual"
        tiles_of_a_stage = "a pipeline has at least 1 tile of each name in a stage"
        values = {
            "num_stages": positive("TilePipeline", "num_stages", num_stages, stages),
            "tiles": named,
            "k_group": positive("TilePipeline", "k_group", k_group, tiles_of_a_stage),
            "producer": producer,
            "consumers": check_roles(producer, consumer, alternate),
            "filled_by": filled_by,
            "released_by": released_by,
            "alternate": checked("TilePipeline", "alternate", alternate, FLAG),
            "cluster": plane(cta_group if cluster is None else cluster),
            "cta_group": int(cta_group),
            "multicast": shared_tiles(multicast),
            "debug": is_bounded(TilePipeline, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_commits(self)
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
        """Offset of the tile numbers that a `TileQueue`'s producer publishes, from the barriers."""
        return 16 * self.num_stages

    @property
    def sync_offset(self) -> int:
        """Offset of debug mode's mbarriers for named barriers from the full barriers."""
        return round_up(self.ticket_offset + 4 * self.num_stages, 8)

    @property
    def ledger_offset(self) -> int:
        """Offset of a stage's ledger (8 bytes) from its full barrier in debug mode; else 0."""
        if self.debug and not self.in_pair:
            return self.sync_offset + 8 * (MAX_ROLES + 1)
        return 0

    @property
    def num_barriers(self) -> int:
        """Length of the `BarrierArray` that `start` takes: two barriers a stage, and other data."""
        ledgers = self.num_stages if self.ledger_offset else 0
        meetings = MAX_ROLES + 1 if self.debug else 0
        return self.sync_offset // 8 + meetings + ledgers

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        return self.barriers_offset + 8 * self.num_barriers

    @property
    def block(self) -> int:
        """Threads of the block; 0 for any number of whole warps."""
        return self.producer.block if self.producer else 0

    @property
    def by_tma(self) -> bool:
        """Whether TMA fills the stages, so that full barriers count bytes."""
        return self.filled_by == "tma"

    @property
    def by_cp_async(self) -> bool:
        """Whether cp.async copies of each thread fill the stages."""
        return self.filled_by == "cp_async"

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block or ''}"

    @property
    def consumer_table(self) -> RoleTable:
        """The consumer roles as a table."""
        return RoleTable(self.consumers)

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
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
    def each_thread_commits(self) -> bool:
        """Whether each thread of the producer arrives; otherwise one lane of each warp does."""
        return self.producer is not None and self.producer.group.unit == 1

    # ------------------------------------------------------- its waits in debug mode

    @property
    def full_site(self) -> Site:
        """The name of a wait for a full stage."""
        counted = self.tx_bytes if self.by_tma and not self.in_pair else 0
        name = self.consumers[0].name if len(self.consumers) == 1 else "consumer"
        what = f"'{self._name}.full'"
        pair = self.in_pair
        return Site(what, name, counted, self.num_stages, debug=self.debug, in_cluster=pair)

    @property
    def empty_site(self) -> Site:
        """The name of a wait for an empty stage."""
        name = self.producer.name if self.producer else "producer"
        shared = self.in_cluster
        return Site(f"'{self._name}.empty'", name, debug=self.debug, in_cluster=shared)

    @property
    def sync_site(self) -> Site:
        """The name of the consumers' synchronisation."""
        what = f"sync_consumers() or store() of '{self._name}'"
        return Site(what, "consumer", kind="sync", debug=self.debug)

    @property
    def sync_arrivals(self) -> tuple[int, ...]:
        """The threads that synchronise at each named barrier, for debug mode; 0 if unused."""
        threads = {role.barrier_id: role.sync_threads for role in self.consumers}
        return tuple(threads.get(i, 0) for i in range(MAX_ROLES + 1))

    def start(
        self,
        tiles: Constant[Any] = None,
        barriers: Constant[Any] = None,
        sync: Constant[bool] = True,
    ) -> TilePipelineHandle:
        """Allocate the ring, initialise its barriers and return its handle.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises the
        block. With `multicast` or `cta_group` 2 it also waits until the cluster's other blocks
        have initialised their barriers. Only `cluster_sync` makes other writes of these blocks to
        shared memory visible. Each call in the source is a ring of its own.

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
        check_launch(self, WARP if self.block else 2 * WARP)
        check_sync(sync)
        check_products(self)
        if self.in_cluster:
            require_cluster(self)
        base, first = tiles_and_barriers(self, tiles, barriers)
        label_stages(self, base, first)
        thread, num_threads, stages = tid_x(), ntid_x(), self.num_stages
        # The threads of the consumers and of the producer if there are no roles.
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
        if self.in_cluster and not self.by_commit:
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
        # Alternating consumers call `skip` first, so their walk starts at the first stage.
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
