"""`KVPipeline`: the ring through which attention streams its keys and values.

A stage holds one tile of K or one of V. K is loaded in sub-stages along the depth, each with its
own full and empty barrier, so that the first product starts when the first columns have come. V is
whole: it is the second operand of P V, whose sum runs over the keys.
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
from numba_tma.host.layout import Swizzle, Tile, as_shape
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_handle import KVPipelineHandle
from numba_tma.pipeline.kv_producer import TMAProducerPipeline
from numba_tma.pipeline.kv_rules import HOLDS, check_roles, check_tiles, positive
from numba_tma.pipeline.memory import tiles_and_barriers
from numba_tma.pipeline.roles import Role, index_from
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.start import check_launch, check_sync
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import barrier_sync, fence_mbarrier_init, st_shared_u64, tid_x


@dataclass(frozen=True, init=False, repr=False)
class KVPipeline:
    """A ring of `num_kv_stages` stages in shared memory, each for a tile of K or one of V.

    Made on the host, used from a kernel's globals. K is K-major, with the depth innermost; V is
    MN-major, with the depth innermost as well: both lie as they do in memory. Names in capitals
    are those of Mojo's FA4.

    Parameters
    ----------
    num_kv_stages
        Stages of the ring, at least 1.
    block_n
        Keys of a tile, or the leading axes of the tile that a copy moves, with so many keys in
        all: ``(1, 128, 1)`` for tensors (batch, key, head, depth).
    depth
        Elements of a key.
    dtype
        Their type.
    num_qk_stages
        Parts along the depth in which K comes, each waited for and released by itself.
    holds
        ``"kv"``: K and V share the stages, in the order in which both sides use them. ``"k"`` or
        ``"v"``: a ring for one of them.
    swizzle
        B128, B64 or B32. The depth is padded to whole spans of it, which copies fill with zeros.
    producer, consumer
        Roles of the kernel's `Roles`; several consumers as a tuple.
    debug
        Whether waits end with an exception when they take too long, and bytes are counted; by
        default as the environment's ``NUMBA_TMA_DEBUG`` says. The simulator does so by itself.

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
        debug: bool | None = None,
    ) -> None:
        if holds not in HOLDS:
            raise ValueError(f"KVPipeline(holds={holds!r}): one of {', '.join(map(repr, HOLDS))}")
        values = {
            "num_kv_stages": positive("num_kv_stages", num_kv_stages),
            "keys": as_shape(block_n),
            "depth": positive("depth", depth),
            "dtype": as_dtype(dtype),
            "num_qk_stages": positive("num_qk_stages", num_qk_stages),
            "holds": holds,
            "swizzle": Swizzle(swizzle),
            "producer": producer,
            "consumers": consumer if isinstance(consumer, tuple) else (consumer,),
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
        if self.debug:
            named.append("debug=True")
        return f"KVPipeline({', '.join([*map(str, shown), *named])})"

    # ---------------------------------------------------------------------- its tiles

    @property
    def is_k(self) -> bool:
        """Whether its tile is one of K; of a ring that holds both, K's is the one meant."""
        return self.holds != "v"

    @property
    def is_k_major(self) -> bool:
        """Whether its tile is K-major: K is, V is MN-major."""
        return self.is_k

    @property
    def num_qk_stages_effective(self) -> int:
        """Sub-stages that a stage has barriers for: 1 where V is alone."""
        return self.num_qk_stages if self.is_k else 1

    @property
    def span(self) -> int:
        """Elements that fill a span of the swizzle."""
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
        """Elements along the depth of a sub-stage of K: what Q K' sums over at a time."""
        return self.padded_depth // self.num_qk_stages

    @property
    def BK1(self) -> int:
        """Keys, over which P V sums."""
        return self.BN

    @property
    def BK(self) -> int:
        """Elements that one product with its tile sums over."""
        return self.BK0 if self.is_k else self.BK1

    @property
    def BMN(self) -> int:
        """Columns of the product with its tile."""
        return self.BN if self.is_k else self.padded_depth

    @property
    def k_tile(self) -> Tile:
        """What a sub-stage of K holds, and its copy brings."""
        return Tile((*self.keys, self.BK0), self.dtype, self.swizzle)

    @property
    def k_stage(self) -> Tile:
        """All sub-stages of K as one tile; they lie one after the other."""
        return Tile((*self.keys, self.padded_depth), self.dtype, self.swizzle)

    @property
    def v_tile(self) -> Tile:
        """What a stage of V holds, and its copy brings."""
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
        """In debug mode, how far behind a full barrier its ledger lies, 8 bytes; else 0."""
        return 2 * self.empty_offset if self.debug else 0

    @property
    def num_barriers(self) -> int:
        """The `BarrierArray` that `start` takes has this many.

        One full and one empty barrier for each sub-stage: all full ones, then all empty ones, then
        in debug mode the ledgers.
        """
        return (2 * self.empty_offset + (self.empty_offset if self.debug else 0)) // 8

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        return self.storage_nbytes + 8 * self.num_barriers

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that a sub-stage needs to be empty: one for each warp of the consumers."""
        return sum(role.arrivals for role in self.consumers)

    @property
    def launch_kind(self) -> str:
        """What a launch has to know, as `allocate_shared` takes it."""
        return f"ring{self.block}"

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes of its parts, for the error of a sum that is too large."""
        stages = f"{self.num_kv_stages} stages x {self.full_kv_bytes:,} B"
        parts = {} if what == "barriers" else {stages: self.storage_nbytes}
        return parts | {"barriers": 8 * self.num_barriers}

    @property
    def block(self) -> int:
        """Threads of the block."""
        return self.producer.block

    @property
    def v_skips_barriers(self) -> bool:
        """Whether V takes stages that have barriers for K's other parts, which it leaves alone.

        Those complete a phase when K takes their stage, and not each time round the ring.
        """
        return self.holds == "kv" and self.num_qk_stages > 1

    # ------------------------------------------------------- what debug mode calls it

    @property
    def k_site(self) -> Site:
        """What a wait for a sub-stage of K is called."""
        return self._full_site("k", self.staged_k_bytes, self.num_qk_stages_effective)

    @property
    def v_site(self) -> Site:
        """What a wait for V is called."""
        return self._full_site("v", self.full_kv_bytes, 1)

    @property
    def empty_site(self) -> Site:
        """What a wait for an empty sub-stage is called."""
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

        Executed once by every thread of the block, so not inside a loop; it synchronises the block,
        unless another start after it does. Each call in the source is a ring of its own.

        Parameters
        ----------
        tiles
            Where the tiles are, if not in memory of their own: a `SharedTile` of at least
            `storage_nbytes`, or an address that is a multiple of `alignment`.
        barriers
            A `BarrierArray` of at least `num_barriers`, or an address, likewise.
        sync
            A literal False leaves the block to be synchronised by what is started next.
        """
        check_launch(self)
        check_sync(sync)
        base, first = tiles_and_barriers(self, tiles, barriers)
        label_ring(self, base, first)
        thread = tid_x()
        stages, parts, ledger = self.num_kv_stages, self.num_qk_stages_effective, self.ledger_offset
        loading = StagedPipeline(stages, parts, first, PipelineState(stages, 0, 1, 0), ledger)
        working = StagedPipeline(stages, parts, first, PipelineState(stages, 0, 0, 0), ledger)
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
        simulator.label(first + 8 * i, f"full{where}")
        simulator.label(first + kv.empty_offset + 8 * i, f"empty{where}")
        address = base + stage * kv.full_kv_bytes + part * kv.staged_k_bytes
        simulator.label(address, f"{kv.holds}{where}")


constant_class(KVPipeline)
