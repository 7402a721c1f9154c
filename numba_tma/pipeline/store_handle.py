"""`StorePipelineHandle`: a started `StorePipeline`, its stages and its loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, device_class, device_function, i64, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.copy_rules import require_reduction, require_tiled_map
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.device.waiting import meet
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.ranges import goes_backwards, is_before
from numba_tma.pipeline.stages import slot_tile
from numba_tma.ptx import (
    barrier_sync,
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_init,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.store import StorePipeline

#: The repair in the error of an im2col map.
IM2COL = (
    "have the role's first thread call store_im2col(tile, coords) between fence_proxy_async(), "
    "sync() and commit()"
)


@device_class(static=("pipeline",), mutable=True)
@dataclass
class StorePipelineHandle:
    """A started `StorePipeline`. Every thread of the role executes its methods.

    For each tile call ``stage = store.acquire()``, write to ``stage.y``, and call
    ``store.store(y, stage.y, coords)``. Call ``store.tail()`` after the last stage.
    """

    pipeline: StorePipeline
    base: u32
    thread: u32  # in the role
    num_threads: u32  # of the role
    sync_id: u32  # named barrier of the role
    accesses: TileAccesses
    meeting: u32  # mbarrier of the role in debug mode
    index: u32  # newest stage; num_stages if there is none yet
    open: bool = False  # the newest stage is acquired, and its bulk group is not committed
    published: bool = True  # the role has synchronised since the newest stage was written

    def enters(self) -> bool:
        """Return whether this thread stores."""
        return self.thread < self.num_threads

    def close(self, read: bool = False) -> None:
        """End the use: commit an open stage and wait until all stores are complete.

        With the literal ``read=True`` wait until their stages have been read, as `tail` does. This
        suffices at the end of a kernel.
        """
        if self.enters():
            self.tail(read)

    def acquire(self) -> StoreStage:
        """Wait until the copy engine has read the next stage, and return the stage for writing.

        The call first commits an open stage.
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

        A stage may have several stores. Write the whole stage before the first of them, which
        fences the threads' writes and synchronises the role.
        """
        require_tiled_map("Store.store", tensor_map, IM2COL)
        self._publish()
        if self.thread == 0:
            tensor_map.store(tile, coords, cache_hint)

    def reduce(
        self,
        tensor_map: Any,
        tile: SharedTile,
        coords: Any,
        op: Constant[str],
        cache_hint: Any = None,
    ) -> None:
        """Start to reduce a tile of the stage into the tensor; otherwise do what `store` does.

        `op` is a literal: ``"add"``, ``"min"`` or another operation of `TensorMap.reduce` for the
        type.
        """
        require_tiled_map("Store.reduce", tensor_map, IM2COL)
        require_reduction("Store.reduce", tensor_map, op)
        self._publish()
        if self.thread == 0:
            tensor_map.reduce(tile, coords, op, cache_hint)

    def commit(self) -> None:
        """Commit the stage: its stores become one bulk group."""
        self._publish()
        if self.thread == 0:
            cp_async_bulk_commit_group()
        self.open = False

    def tail(self, read: bool = False) -> None:
        """Wait until all stores are complete and their writes visible to the thread that stored.

        With the literal ``read=True`` the wait ends when the copy engine has read the stages. This
        suffices before the block exits, or before the stages' memory is used for another purpose.
        Only the role's first thread waits: call `sync` after `tail` if other threads depend on it.
        """
        self._commit_open()
        if self.thread == 0:
            if read:
                cp_async_bulk_wait_group_read(0)
            else:
                cp_async_bulk_wait_group(0)

    def stages(self, first: Any, stop: Any, step: Constant[int] = 1) -> StoreStages:
        """Iterate over range(first, stop, step), each tile with an acquired stage to write.

        Yields (tile, stage). The body ends with `commit`. Without `commit` the next `acquire` or
        `tail` commits the open stage, at the cost of a test. `step` is positive, or a
        negative literal.
        """
        backwards = goes_backwards("stages", first, stop, step)
        return StoreStages(backwards, self, i64(first) - i64(step), stop, step)

    def sync(self) -> None:
        """Synchronise the role's threads, as cuda.syncthreads synchronises a block."""
        meet(self.sync_id, self.num_threads, Barrier(self.meeting), self.pipeline.sync_site)

    def _publish(self) -> None:
        """Fence the stage's writes and synchronise the role, once for each stage.

        With two stages or more the next stage has then been read.
        """
        if not self.published:
            fence_proxy_async()
            if self.pipeline.num_stages > 1:
                self._await_read()
            self.sync()
            self.published = True

    def _await_read(self) -> None:
        """Wait until the copy engine has read the stage that is written next (first thread)."""
        if self.thread == 0:
            cp_async_bulk_wait_group_read(self.pipeline.still_reading)

    def _commit_open(self) -> None:
        """Commit the newest stage, unless it has been committed."""
        if self.open:
            self.commit()


@device_class()
@dataclass
class StoreStage:
    """A stage for writing: its tiles by name."""

    owner: StorePipelineHandle
    index: u32

    def __getattr__(self, name: Constant[str]) -> SharedTile:
        return slot_tile(self.owner, self.index, name)

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Commit the stage."""
        self.owner._commit_open()


@device_class(static=("backwards",))
@dataclass
class StoreStages(Iteration):
    """The tiles first, first + step, ... below stop, each with the stage to write."""

    backwards: bool
    store: StorePipelineHandle
    tile: i64
    stop: i64
    step: i64

    def has_next(self) -> bool:
        """Return whether a tile is left."""
        self.tile += self.step
        return is_before(self.tile, self.stop, self.backwards)

    def take(self) -> tuple[int, StoreStage]:
        """Return the next tile and its acquired stage."""
        return self.tile, self.store.acquire()


@device_function
def prepare_meeting(barrier: int, thread: int, num_threads: int, sync_id: int) -> None:
    """Initialise the mbarrier of a role's `sync` in debug mode, which the simulator has not."""
    if thread < num_threads:
        if thread == 0:
            mbarrier_init(barrier, num_threads)
            fence_mbarrier_init()
        barrier_sync(sync_id, num_threads)
