"""`KVPipeline`: the ring through which attention streams its K and V tiles.

A stage holds one K tile or one V tile. K is loaded in sub-stages along the depth, each with its
own full and empty barrier, so that the first product starts when the first columns have arrived.
V, the second operand of P V, is loaded whole, since the product's sum runs over the keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    constant_class,
    device_function,
    simulator_only,
    u32,
)
from numba_tma.device.shared import TileAccesses
from numba_tma.host.debug import Site, is_bounded
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_handle import KVPipelineHandle
from numba_tma.pipeline.kv_producer import TMAProducerPipeline
from numba_tma.pipeline.kv_rules import (
    HOLDS,
    as_keys,
    as_swizzle,
    check_commits,
    check_roles,
    check_tiles,
)
from numba_tma.pipeline.memory import tiles_and_barriers
from numba_tma.pipeline.roles import Role, index_from
from numba_tma.pipeline.stage_layout import positive
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.start import check_launch, check_sync
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import barrier_sync, fence_mbarrier_init, st_shared_u64, tid_x


@dataclass(frozen=True)
class KVPipeline:
    """A ring of `num_kv_stages` stages in shared memory, each for one K tile or one V tile.

    Made on the host, used from a kernel's globals. The depth is the innermost axis of K and V, as
    in global memory: as operands K is K-major and V is MN-major. Names in capitals are those of
    Mojo's FA4. `start` returns a `KVPipelineHandle`.

    A block loads for its own barriers: its loads have no ``cta_group=2``. CTA pairs use
    ``TilePipeline(cta_group=2)``.

    Parameters
    ----------
    num_kv_stages
        Stages of the ring, at least 1.
    block_n
        Keys of a tile, or the leading axes of the tile that a copy moves, whose product is the
        number of keys: ``(1, 128, 1)`` for tensors (batch, key, head, depth).
    depth
        Elements of a key.
    dtype
        Type of the elements.
    num_qk_stages
        Sub-stages of K along the depth. Each has its own wait and its own release.
    holds
        ``"kv"``: K and V share the stages, in the order in which producer and consumer use them.
        ``"k"`` or ``"v"``: the ring holds one of them.
    swizzle
        B128, B64 or B32. The depth is padded to whole spans of the swizzle; copies fill the padding
        with zeros.
    producer, consumer
        Roles of the kernel's `Roles`; several consumers as a tuple.
    released_by
        ``"threads"``: each consumer warp arrives. ``"tcgen05"``: one tcgen05.commit of each
        consumer, a role of one warp, arrives when its products are complete.
    debug
        Whether waits that take too long raise an exception, and bytes are counted. The default is
        the environment's ``NUMBA_TMA_DEBUG``. The simulator does both in any case.

    Examples
    --------
    >>> from numba_tma import Roles, Warpgroups
    >>> ROLES = Roles(mma=Warpgroups(2), load=Warpgroups(1, registers=40))
    >>> KV = KVPipeline(4, 128, 128, "bf16", 2, producer=ROLES.load, consumer=ROLES.mma)
    >>> KV.k_tile, KV.v_tile
    (Tile((128, 64), bf16, B128), Tile((128, 128), bf16, B128))
    """

    device_methods = ("start",)
    num_kv_stages: int
    keys: tuple[int, ...]  #: leading axes of its tiles
    depth: int
    dtype: DType
    num_qk_stages: int
    holds: str
    swizzle: Swizzle
    producer: Role
    consumers: tuple[Role, ...]
    released_by: str
    debug: bool

    def __init__(
        self,
        num_kv_stages: int,
        block_n: int | Sequence[int],
        depth: int,
        dtype: object,
        num_qk_stages: int = 1,
        *,
        producer: Role,
        consumer: Role | tuple[Role, ...],
        holds: Literal["kv", "k", "v"] = "kv",
        swizzle: Swizzle = Swizzle.B128,
        released_by: Literal["threads", "tcgen05"] = "threads",
        debug: bool | None = None,
    ) -> None:
        if released_by not in ("threads", "tcgen05"):
            raise ValueError(f"KVPipeline(released_by={released_by!r}): 'threads' or 'tcgen05'")
        if not isinstance(holds, str) or holds not in HOLDS:
            raise ValueError(f"KVPipeline(holds={holds!r}): one of {', '.join(map(repr, HOLDS))}")
        values = {
            "num_kv_stages": positive("KVPipeline", "num_kv_stages", num_kv_stages),
            "keys": as_keys(block_n),
            "depth": positive("KVPipeline", "depth", depth),
            "dtype": as_dtype(dtype),
            "num_qk_stages": positive("KVPipeline", "num_qk_stages", num_qk_stages),
            "holds": holds,
            "swizzle": as_swizzle(swizzle),
            "producer": producer,
            "consumers": consumer if isinstance(consumer, tuple) else (consumer,),
            "released_by": released_by,
            "debug": is_bounded(KVPipeline, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_roles(self)
        check_tiles(self)

    def __repr__(self) -> str:
        shown: list[Any] = [self.num_kv_stages, self.keys if len(self.keys) > 1 else self.BN]
        shown += [self.depth, self.dtype, self.num_qk_stages]
        named = [f"holds={self.holds!r}"]
        if self.swizzle is not Swizzle.B128:
            named.append(f"swizzle={self.swizzle.name}")
        if self.by_commit:
            named.append("released_by='tcgen05'")
        if self.debug:
            named.append("debug=True")
        return f"KVPipeline({', '.join([*map(str, shown), *named])})"

    # ---------------------------------------------------------------------- its tiles

    @property
    def is_k(self) -> bool:
        """Whether `BK`, `BMN` and `get` refer to K: True unless the ring holds V alone."""
        return self.holds != "v"

    @property
    def is_k_major(self) -> bool:
        """Whether the tile that `get` refers to is K-major. K is K-major, V is MN-major."""
        return self.is_k

    @property
    def num_qk_stages_effective(self) -> int:
        """Sub-stages of a stage that have barriers: 1 if the ring holds V alone."""
        return self.num_qk_stages if self.is_k else 1

    @property
    def span(self) -> int:
        """Elements of a span of the swizzle."""
        return self.swizzle.span // self.dtype.itemsize

    @property
    def padded_depth(self) -> int:
        """The depth in whole spans."""
        return -(-self.depth // self.span) * self.span

    @property
    def BN(self) -> int:
        """Keys of a tile."""
        return math.prod(self.keys)

    @property
    def BK0(self) -> int:
        """Elements of a sub-stage of K along the depth, over which one product Q K' sums."""
        return self.padded_depth // self.num_qk_stages

    @property
    def BK1(self) -> int:
        """Keys of a tile, over which P V sums."""
        return self.BN

    @property
    def BK(self) -> int:
        """Elements over which one product with the tile sums: `BK0` for K, `BK1` for V alone."""
        return self.BK0 if self.is_k else self.BK1

    @property
    def BMN(self) -> int:
        """Columns of the product with the tile: keys for K, the padded depth for V alone."""
        return self.BN if self.is_k else self.padded_depth

    @property
    def k_tile(self) -> Tile:
        """The tile of a sub-stage of K, which one copy loads."""
        return Tile((*self.keys, self.BK0), self.dtype, self.swizzle)

    @property
    def k_stage(self) -> Tile:
        """All sub-stages of K as one tile. They lie one after the other."""
        return Tile((*self.keys, self.padded_depth), self.dtype, self.swizzle)

    @property
    def v_tile(self) -> Tile:
        """The tile of a stage of V, which one copy loads."""
        return self.k_stage

    @property
    def staged_k_bytes(self) -> int:
        """Bytes of a sub-stage of K."""
        return self.BN * self.BK0 * self.dtype.itemsize

    @property
    def full_kv_bytes(self) -> int:
        """Bytes of a stage."""
        return self.BN * self.padded_depth * self.dtype.itemsize

    # --------------------------------------------------------------- its memory, its arrivals

    @property
    def alignment(self) -> int:
        """Alignment of the ring in shared memory, in bytes."""
        return self.swizzle.alignment

    @property
    def storage_nbytes(self) -> int:
        """Shared memory of the tiles alone, in bytes."""
        return self.num_kv_stages * self.full_kv_bytes

    @property
    def barriers_offset(self) -> int:
        """Offset of the barriers from the ring's base, in bytes."""
        return self.storage_nbytes

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers from the full ones, in bytes."""
        return 8 * self.num_kv_stages * self.num_qk_stages_effective

    @property
    def ledger_offset(self) -> int:
        """Offset of a ledger (8 bytes) from its full barrier in debug mode; else 0."""
        return 2 * self.empty_offset if self.debug else 0

    @property
    def num_barriers(self) -> int:
        """Length of the `BarrierArray` that `start` takes.

        Each sub-stage has one full and one empty barrier. All full barriers come first, then all
        empty barriers, then in debug mode the ledgers.
        """
        return (3 if self.debug else 2) * self.empty_offset // 8

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        return self.storage_nbytes + 8 * self.num_barriers

    @property
    def by_commit(self) -> bool:
        """Whether a release is a tcgen05.commit."""
        return self.released_by == "tcgen05"

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that complete an empty barrier: one for each warp of the consumers.

        With ``released_by="tcgen05"`` a consumer is one warp, whose commit is one arrival.
        """
        return sum(role.arrivals for role in self.consumers)

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""
        return f"ring{self.block}"

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        stages = f"{self.num_kv_stages} stages x {self.full_kv_bytes:,} B"
        parts = {} if what == "barriers" else {stages: self.storage_nbytes}
        return parts | {"barriers": 8 * self.num_barriers}

    @property
    def block(self) -> int:
        """Threads of the block."""
        return self.producer.block

    @property
    def v_skips_barriers(self) -> bool:
        """Whether V uses stages with barriers of several sub-stages, of which V uses the first.

        The other barriers complete a phase only when K uses the stage, not each time round the
        ring.
        """
        return self.holds == "kv" and self.num_qk_stages > 1

    # ------------------------------------------------------- its waits in debug mode

    @property
    def k_site(self) -> Site:
        """The name of a wait for a sub-stage of K."""
        return self._full_site("k", self.staged_k_bytes, self.num_qk_stages_effective)

    @property
    def v_site(self) -> Site:
        """The name of a wait for V."""
        return self._full_site("v", self.full_kv_bytes, 1)

    @property
    def empty_site(self) -> Site:
        """The name of a wait for an empty sub-stage."""
        what = f"'{'/'.join(self.holds)}.empty'"
        parts = self.num_qk_stages_effective
        return Site(what, self.producer.name, parts=parts, debug=self.debug)

    def _full_site(self, what: str, tx_bytes: int, parts: int) -> Site:
        name = self.consumers[0].name if len(self.consumers) == 1 else "consumer"
        return Site(f"'{what}.full'", name, tx_bytes, 0, parts=parts, debug=self.debug)

    def start(
        self,
        tiles: Constant[Any] = None,
        barriers: Constant[Any] = None,
        sync: Constant[bool] = True,
    ) -> KVPipelineHandle:
        """Allocate the ring, initialise its barriers and return the handle of both sides.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises the
        block. Each call in the source is a ring of its own.

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
        check_commits(self)
        base, first = tiles_and_barriers(self, tiles, barriers)
        label_ring(self, base, first)
        thread = tid_x()
        stages, parts, ledger = self.num_kv_stages, self.num_qk_stages_effective, self.ledger_offset
        loading = StagedPipeline(stages, parts, first, PipelineState(stages, 0, 1, 0), ledger)
        working = StagedPipeline(
            stages, parts, first, PipelineState(stages, 0, 0, 0), ledger, self.by_commit
        )
        initialise_ring(loading, thread, self.empty_arrivals, self.block, sync)
        mine = index_from(thread, self.producer.first)
        return KVPipelineHandle(
            TMAProducerPipeline(self, loading, base, mine, TileAccesses()),
            TMAConsumerPipeline(self, working, base, TileAccesses()),
        )


@device_function
def initialise_ring(
    pipeline: StagedPipeline, thread: int, arrivals: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        pipeline.init(u32(arrivals))
        if pipeline.ledger > 0:
            for i in range(pipeline.num_kv_stages * pipeline.num_qk_stages):
                st_shared_u64(pipeline.barriers + pipeline.ledger + 8 * i, 0)
        fence_mbarrier_init()
    if sync:
        barrier_sync(0, num_threads)


@simulator_only
def label_ring(kv: KVPipeline, base: int, first: int) -> None:
    """Name the tiles and the barriers for the simulator's errors and timeline."""
    parts = kv.num_qk_stages_effective
    for i in range(kv.num_kv_stages * parts):
        stage, part = divmod(i, parts)
        where = f"[{stage}] of {f'sub-stage {part} of ' if parts > 1 else ''}{kv}"
        if simulator.labelled(first + 8 * i, f"full{where}"):
            return  # by another thread of the block
        simulator.label(first + 8 * i, f"full{where}")
        simulator.label(first + kv.empty_offset + 8 * i, f"empty{where}")
        address = base + stage * kv.full_kv_bytes + part * kv.staged_k_bytes
        simulator.label(address, f"{kv.holds}{where}")


constant_class(KVPipeline)
