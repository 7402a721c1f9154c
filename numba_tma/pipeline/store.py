"""`StorePipeline`: tiles that threads write into stages, from where the copy engine stores them.

A stage may be written again when the copy engine has read it. Only the thread that stored can wait
for that, since bulk groups belong to a thread: each stage is one group of the role's first thread,
and the role's barrier tells the others. Between the writes to two stages that barrier is needed for
two things: the first of them is complete and can be stored, and the second is free. With one stage
these are two events, because the second is the first, which has to be stored before it is free.
With two stages or more one barrier says both, if its first thread waits before it instead of after
it: until all but `num_stages` - 2 of the groups that it has committed so far have been read.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma._device import constant_class, device_class, i64, u32
from numba_tma.layout import Tile
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.payload import tile_stride
from numba_tma.pipeline.ring import TilePipeline
from numba_tma.pipeline.roles import WARP, Role
from numba_tma.pipeline.stages import slot_tile
from numba_tma.pipeline.started import block_rule, given_address
from numba_tma.ptx import (
    barrier_sync,
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_async,
    ntid_x,
    tid_x,
)
from numba_tma.shared import SharedTile, Writes


@dataclass(frozen=True, init=False, repr=False)
class StorePipeline:
    """A ring of `num_stages` stages that threads write and the copy engine stores.

    Made on the host, used from a kernel's globals. (CUTLASS: PipelineTmaStore.)

    Parameters
    ----------
    num_stages
        Stages of the ring, at least 1. While one is written, the copy engine may be reading all
        others. With 2 or more the role synchronises once for each stage, with 1 twice.
    payload
        The tiles of a stage as one object, as `TilePipeline` takes them. Instead of `tiles`.
    role
        The `Role` whose threads write and store; by default all threads of the block, which then
        has one dimension. Several roles, as a tuple, have stages of their own each, in one kernel
        text: what one thread stores, no other can wait for.
    **tiles
        The tiles of a stage, by the name they have in the kernel: ``stage.y``.

    Examples
    --------
    >>> OUT = StorePipeline(2, y=Tile((64, 128), "f32"))
    >>> OUT.nbytes
    65536
    """

    ring: TilePipeline
    roles: tuple[Role, ...]

    def __init__(
        self,
        num_stages: int,
        payload: Any = None,
        /,
        *,
        role: Role | tuple[Role, ...] | None = None,
        **tiles: Tile,
    ) -> None:
        if payload is not None and tiles:
            raise TypeError("StorePipeline: give its tiles as a payload or by name, not both")
        if payload is None:
            payload = namedtuple("Tiles", tiles)(**tiles)
        try:
            ring = TilePipeline(num_stages, payload)
        except (TypeError, ValueError) as error:
            text = str(error).replace("TilePipeline", "StorePipeline")
            raise type(error)(text) from None
        object.__setattr__(self, "ring", ring)
        object.__setattr__(self, "roles", storing_roles(role))

    def __repr__(self) -> str:
        shown = [f"{name}={tile}" for name, tile in self.tiles]
        if self.roles:
            shown.append(f"role={self.roles[0] if len(self.roles) == 1 else self.roles}")
        return f"StorePipeline({self.num_stages}, {', '.join(shown)})"

    @property
    def num_stages(self) -> int:
        """Stages of the ring."""
        return self.ring.num_stages

    @property
    def tiles(self) -> tuple[tuple[str, Tile], ...]:
        """Names and tiles of a stage."""
        return self.ring.tiles

    @property
    def k_group(self) -> int:
        """Tiles of each name in a stage."""
        return 1

    @property
    def alignment(self) -> int:
        """Alignment of the ring in shared memory, in bytes."""
        return self.ring.alignment

    def tile_offset(self, name: str) -> int:
        """Return the offset of the first stage's tile `name` from a role's first byte."""
        return self.ring.tile_offset(name)

    @property
    def role_nbytes(self) -> int:
        """Bytes from the stages of one role to those of the next."""
        return -(-self.ring.storage_nbytes // self.alignment) * self.alignment

    @property
    def nbytes(self) -> int:
        """Shared memory of all stages, in bytes."""
        return (max(1, len(self.roles)) - 1) * self.role_nbytes + self.ring.storage_nbytes

    @property
    def block(self) -> int:
        """Threads of the block; 0 if any number of whole warps will do."""
        return self.roles[0].block if self.roles else 0

    @property
    def still_reading(self) -> int:
        """Groups that may still be read before the next is stored; one stage has none before."""
        return max(0, self.num_stages - 2)

    def start(self, tiles: Any = None) -> Store:
        """Allocate the stages and return what the kernel writes and stores them by.

        Executed once by every thread of the block, so not inside a loop. Does not synchronise.

        Parameters
        ----------
        tiles
            Where the stages are, if not in memory of their own: a `SharedTile` of at least
            `nbytes`, or an address that is a multiple of `alignment`. Nobody uses the memory any
            more, and the role has synchronised with those who did.
        """
        return start(self, tiles)


def storing_roles(role: Any) -> tuple[Role, ...]:
    """Return the roles that store, if they are different roles of one block, of whole warps."""
    if role is None:
        return ()
    roles = role if isinstance(role, tuple) else (role,)
    for one in roles or (role,):
        if not isinstance(one, Role):
            raise TypeError(
                "StorePipeline(role=...) takes a role, as ROLES.epilogue with ROLES = "
                f"Roles(load=Warps(1), epilogue=Warps(4)), or a tuple of roles, not {one!r}"
            )
        if one.members % WARP:
            raise ValueError(
                f"StorePipeline(role={one}): those that store synchronise by whole warps; give "
                f"Warps(n), or Threads(n) with a multiple of {WARP}"
            )
    if len({one.block for one in roles}) > 1 or len({one.index for one in roles}) < len(roles):
        raise ValueError(
            f"StorePipeline(role={list(roles)}): these must be different roles of the same Roles"
        )
    return roles


@device_class(static=("pipeline",), mutable=True)
@dataclass
class Store:
    """A started `StorePipeline`. All its methods are executed by every thread of the role.

    ``stage = store.acquire()``, write to ``stage.y``, ``store.store(y, stage.y, coords)``, and
    when all stages are done ``store.tail()``.
    """

    pipeline: StorePipeline
    base: u32
    thread: u32  # in the role
    num_threads: u32  # of the role
    sync_id: u32  # its barrier
    writes: Writes
    index: u32  # of the newest stage; num_stages if there is none yet
    open: bool = False  # that stage is acquired, and its group not committed
    published: bool = True  # the role has synchronised since the newest stage was written

    def enters(self) -> bool:
        """Return whether this thread stores."""
        return self.thread < self.num_threads

    def close(self) -> None:
        """End the use: commit what is open and wait until all stores are complete."""
        if self.enters():
            self.tail()

    def acquire(self) -> StoreStage:
        """Return the next stage, to be written, once the copy engine has read it.

        Commits the stage before, if that is left to do.
        """
        self._commit_open()
        index = u32(self.index + 1)
        if index >= self.pipeline.num_stages:
            index = u32(0)
        self.index = index
        if self.pipeline.num_stages == 1:
            self._await_read()
            self.sync()
        self.open, self.published = True, False
        return StoreStage(self, self.index)

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, cache_hint: Any = None) -> None:
        """Start to store a tile of the stage through `tensor_map`.

        A stage may have several stores, and all of it has been written before the first of them:
        that fences the threads' writes and synchronises the role.
        """
        self._publish()
        if self.thread == 0:
            tensor_map.store(tile, coords, cache_hint)

    def reduce(
        self, tensor_map: Any, tile: SharedTile, coords: Any, op: Any, cache_hint: Any = None
    ) -> None:
        """Start to combine a tile of the stage with what the tensor holds; else as `store`.

        `op` is a literal: ``"add"``, ``"min"`` or any that `TensorMap.reduce` has for the type.
        """
        self._publish()
        if self.thread == 0:
            tensor_map.reduce(tile, coords, op, cache_hint)

    def commit(self) -> None:
        """End the stage: what was stored of it is one bulk group."""
        self._publish()
        if self.thread == 0:
            cp_async_bulk_commit_group()
        self.open = False

    def tail(self, read: bool = False) -> None:
        """Wait until all stores are complete, and their writes visible to the thread that stored.

        With the literal ``read=True``, only until the stages have been read, which is enough before
        the block ends, or before they are used for something else. The role's first thread waits;
        `sync` after it if others go by it.
        """
        self._commit_open()
        if self.thread == 0:
            if read:
                cp_async_bulk_wait_group_read(0)
            else:
                cp_async_bulk_wait_group(0)

    def stages(self, first: Any, stop: Any, step: Any = 1) -> StoreStages:
        """Iterate over range(first, stop, step), each tile with an acquired stage to write.

        Yields (tile, stage). The body ends with `commit`; without it, the next stage and `tail`
        commit what is left open, at the cost of a test. `step` is positive.
        """
        return StoreStages(self, i64(first) - i64(step), stop, step)

    def sync(self) -> None:
        """Synchronise the role's threads, as cuda.syncthreads does a block."""
        barrier_sync(self.sync_id, self.num_threads)

    def _publish(self) -> None:
        """Make the stage's writes known to the copy engine; from then on the next stage is free."""
        if not self.published:
            fence_proxy_async()
            self.writes.unfenced = False
            if self.pipeline.num_stages > 1:
                self._await_read()
            self.sync()
            self.published = True

    def _await_read(self) -> None:
        """Wait until the copy engine has read the stage that is written next."""
        if self.thread == 0:
            cp_async_bulk_wait_group_read(self.pipeline.still_reading)

    def _commit_open(self) -> None:
        """Commit the stage that was acquired last, unless that is done."""
        if self.open:
            self.commit()


@device_class()
@dataclass
class StoreStage:
    """A stage to be written: its tiles by name."""

    owner: Store
    index: u32

    def __getattr__(self, name: str) -> SharedTile:
        return slot_tile(self.owner, self.index, name)

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Commit the stage."""
        self.owner._commit_open()


@device_class()
@dataclass
class StoreStages(Iteration):
    """The tiles first, first + step, ... below stop, each with the stage to write."""

    store: Store
    tile: i64
    stop: i64
    step: i64

    def has_next(self) -> bool:
        """Return whether a tile is left."""
        self.tile += self.step
        return self.tile < self.stop

    def take(self) -> tuple[int, StoreStage]:
        """Return the next tile and its acquired stage."""
        return self.tile, self.store.acquire()


def start(pipeline: StorePipeline, tiles: Any) -> Store:
    """Do what `StorePipeline.start` says, in the simulator."""
    simulator.check_block("StorePipeline", minimum=WARP)
    thread, num_threads = tid_x(), ntid_x()
    if pipeline.block and num_threads != pipeline.block:
        raise simulator.BadOperand(block_rule(pipeline.block, num_threads))
    if tiles is None:
        base = simulator.allocate_shared(pipeline, pipeline.nbytes, pipeline.alignment)
    else:
        base = given_address("tiles", tiles, pipeline.nbytes, pipeline.alignment)
    for number in range(max(1, len(pipeline.roles))):
        of = f" for {pipeline.roles[number].name}" if len(pipeline.roles) > 1 else ""
        for name, tile in pipeline.tiles:
            for stage in range(pipeline.num_stages):
                offset = number * pipeline.role_nbytes + stage * tile_stride(tile)
                address = base + pipeline.tile_offset(name) + offset
                simulator.label(address, f"{name}[{stage}]{of} of {pipeline}")
    members = [role.is_member() for role in pipeline.roles]
    mine = members.index(True) if any(members) else 0
    first, sync_id = 0, 0
    if pipeline.roles:
        role = pipeline.roles[mine]
        first, num_threads, sync_id = role.first, role.members, role.barrier_id
    # Threads before a role have a number beyond its last, as unsigned numbers have it.
    own = thread - first & 0xFFFFFFFF
    base += mine * pipeline.role_nbytes
    return Store(pipeline, base, own, num_threads, sync_id, Writes(), pipeline.num_stages)


constant_class(StorePipeline)
