"""The bulk and tensor copies, their groups and fences, executed for the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_tma.host.dtypes import reduction_violation
from numba_tma.host.layout import Swizzle
from numba_tma.host.reference import (
    reduce_elements,
    reference_reduce,
    reference_store,
    reference_tile,
)
from numba_tma.simulator.barriers import TrackedBarrier, check_over_none
from numba_tma.simulator.block import Cta
from numba_tma.simulator.cluster import mapa, ranks_of, resolve
from numba_tma.simulator.copies import Bytes, GroupWait, Load, PendingStore
from numba_tma.simulator.copy_rules import (
    bulk_view,
    check_bulk,
    check_inside,
    check_tensor,
    parse_reduction,
)
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.fence_instructions import check_fenced
from numba_tma.simulator.global_memory import accessed, box_of
from numba_tma.simulator.map_uses import uses_of
from numba_tma.simulator.protocol import (
    AwaitStores,
    ByteSpan,
    Issue,
    IssueStore,
    Transfer,
    Unmodelled,
)
from numba_tma.simulator.thread import SimulatedThread, current

if TYPE_CHECKING:
    from numba_tma.host.tensor_map import TensorMap


class Arrival(NamedTuple):
    """A block that gets the bytes of a load, and the barrier on which they complete."""

    into: Cta
    barrier: TrackedBarrier


def cp_async_bulk_load(dst: int, src: Bytes, mbar: int, multicast: int | None = None) -> None:
    """Copy `src`, a 1-D view of global bytes, to shared `dst`; completes on `mbar`.

    `multicast` is a mask of the cluster's blocks: the copy goes to each, at the same offsets.
    """
    what = "cp_async_bulk_load"
    thread, address = current(), int(dst)
    source = bulk_view(what, "src", src)
    check_bulk(what, address, "dst", source.nbytes)
    arrivals = _arrivals(what, thread, address, source.nbytes, int(mbar), multicast)
    accessed(source, writes=False)
    _load(thread, arrivals, address, source.nbytes, source.nbytes, source.copy)


def cp_async_bulk_load_ignore_oob(
    dst: int, src: Bytes, nbytes: int, ignored: tuple[int, int], mbar: int
) -> None:
    """Copy global bytes, but for the ignored first and last ones, to `nbytes` at shared `dst`.

    `src` may lack ignored bytes at its end.
    """
    what = "cp_async_bulk_load_ignore_oob"
    thread, address = current(), int(dst)
    source = bulk_view(what, "src", src)
    check_bulk(what, address, "dst", nbytes)
    left, right = ignored
    for name, count in (("ignored_left", left), ("ignored_right", right)):
        if not 0 <= count <= 15:
            raise BadOperand(f"{what}: {name} is {count}; 0 to 15 bytes can be ignored")
    if source.nbytes < nbytes - right:
        raise BadOperand(
            f"{what}: src has {source.nbytes} bytes, and {nbytes} - {right} are read: ignore up "
            "to 15 bytes more, or copy fewer"
        )

    def read() -> Bytes:
        image = np.full(nbytes, 0xFF, np.uint8)
        image[left : nbytes - right] = source[left : nbytes - right]
        return image

    arrivals = _arrivals(what, thread, address, nbytes, int(mbar), None)
    accessed(source[left : nbytes - right], writes=False)
    _load(thread, arrivals, address, nbytes, nbytes, read, ignored=ignored)


def load_bytes(
    what: str, address: int, image: Bytes, mbar: int, multicast: int | None = None
) -> None:
    """Write bytes to shared `address` some time later, as a load; completes them on `mbar`."""
    thread = current()
    arrivals = _arrivals(what, thread, address, image.nbytes, int(mbar), multicast)
    _load(thread, arrivals, address, image.nbytes, image.nbytes, image.copy)


def cp_async_bulk_store(dst: Bytes, src: int, byte_mask: int = 0xFFFF) -> None:
    """Copy shared bytes at `src` to `dst`, a 1-D view of global bytes; joins the bulk group.

    Byte i of each 16 is copied if bit i of `byte_mask` is set.
    """
    what = "cp_async_bulk_store"
    thread, address = current(), int(src)
    target = bulk_view(what, "dst", dst)
    check_bulk(what, address, "src", target.nbytes)

    copied = np.array([int(byte_mask) >> i & 1 for i in range(16)], bool)

    def write(image: Bytes) -> None:
        target.reshape(-1, 16)[:, copied] = image.reshape(-1, 16)[:, copied]

    accessed(target, writes=True)
    _store(what, thread, address, target.nbytes, write, every_byte=True)


def cp_async_bulk_tensor_load(
    dst: int,
    tensor_map: TensorMap,
    coords: Sequence[int],
    mbar: int,
    multicast: int | None = None,
    cta_group: int | None = None,
) -> None:
    """Copy the box at `coords` (NumPy axis order) to shared `dst`; completes on `mbar`.

    `multicast` is a mask of the cluster's blocks: the copy goes to each, at the same offsets. With
    `cta_group` 2 the barrier may be in the other block of the destination's pair: then each copy
    completes on the barrier of that block of its own pair that has the same parity.
    """
    what = "cp_async_bulk_tensor_load" + ("_cta_group" if cta_group else "")
    thread, address = current(), int(dst)
    origin = check_tensor(what, tensor_map, coords, address, "dst")

    def read() -> Bytes:
        return reference_tile(
            tensor_map.copies.view(tensor_map.array),
            box,
            origin,
            oob_fill=tensor_map.oob_fill,
            element_strides=tensor_map.copies.encoded_steps(tensor_map.element_strides),
        )

    box = tensor_map.copies.box
    nbytes = box.shared_nbytes
    arrivals = _arrivals(what, thread, address, nbytes, int(mbar), multicast, cta_group)
    accessed(box_of(tensor_map, origin), writes=False)
    if uses := uses_of(thread, tensor_map):
        for _, barrier in arrivals:
            uses.loads(barrier)
    _load(thread, arrivals, address, nbytes, box.nbytes, read, swizzle=box.swizzle)


def cp_async_bulk_tensor_store(tensor_map: TensorMap, coords: Sequence[int], src: int) -> None:
    """Copy shared bytes at `src` to the box at `coords` (NumPy axis order)."""
    what = "cp_async_bulk_tensor_store"
    thread, address = current(), int(src)
    origin = check_tensor(what, tensor_map, coords, address, "src")
    check_inside(what, origin)

    def write(image: Bytes) -> None:
        reference_store(
            tensor_map.copies.view(tensor_map.array),
            image,
            box,
            origin,
            element_strides=tensor_map.copies.encoded_steps(tensor_map.element_strides),
        )

    box = tensor_map.copies.box
    accessed(box_of(tensor_map, origin), writes=True)
    _store(what, thread, address, box.shared_nbytes, write, every_byte=False)
    if uses := uses_of(thread, tensor_map):
        uses.stores(thread)


def cp_async_bulk_copy_cluster(dst: int, src: int, nbytes: int, mbar: int) -> None:
    """Copy shared bytes at `src` to the cluster's block of `dst` and `mbar`."""

    def copy(source: Bytes, destination: Bytes) -> Bytes:
        return source

    _transfer("cp_async_bulk_copy_cluster", dst, src, nbytes, mbar, copy, reduces=False)


def cp_async_bulk_prefetch(src: Bytes) -> None:
    """Check the operands of a prefetch of global bytes; there is no cache to fill."""
    what = "cp_async_bulk_prefetch"
    current()
    check_bulk(what, 0, "", bulk_view(what, "src", src).nbytes)


def cp_async_bulk_prefetch_tensor(tensor_map: TensorMap, coords: Sequence[int]) -> None:
    """Check the operands of a prefetch of a tile; there is no cache to fill."""
    current()
    check_tensor("cp_async_bulk_prefetch_tensor", tensor_map, coords, 0, "")


def cp_reduce_async_bulk_store(dst: Bytes, src: int, operation: str) -> None:
    """Combine shared bytes at `src` with `dst`, a 1-D view of global bytes; joins the group."""
    what = "cp_reduce_async_bulk_store"
    thread, address = current(), int(src)
    target = bulk_view(what, "dst", dst)
    check_bulk(what, address, "src", target.nbytes)
    name, dtype = parse_reduction(operation)

    def write(image: Bytes) -> None:
        result = reduce_elements(name, target.view(dtype.numpy), image.view(dtype.numpy))
        target[:] = result.view(np.uint8)

    accessed(target, writes=True, atomic=True)
    _store(what, thread, address, target.nbytes, write, every_byte=True)


def cp_reduce_async_bulk_cluster(
    dst: int, src: int, nbytes: int, mbar: int, operation: str
) -> None:
    """Combine shared bytes at `src` with those at `dst` in a block of the cluster."""
    name, dtype = parse_reduction(operation)

    def reduce(source: Bytes, destination: Bytes) -> Bytes:
        old, operand = destination.view(dtype.numpy), source.view(dtype.numpy)
        return reduce_elements(name, old, operand).view(np.uint8)

    _transfer("cp_reduce_async_bulk_cluster", dst, src, nbytes, mbar, reduce, reduces=True)


def cp_reduce_async_bulk_tensor(
    tensor_map: TensorMap, coords: Sequence[int], src: int, operation: str
) -> None:
    """Combine shared bytes at `src` with the tile at `coords` (NumPy axis order)."""
    what = "cp_reduce_async_bulk_tensor"
    thread, address = current(), int(src)
    if violation := reduction_violation(tensor_map.dtype, operation):
        raise BadOperand(f"{what}: {violation}")
    origin = check_tensor(what, tensor_map, coords, address, "src")
    check_inside(what, origin)

    def write(image: Bytes) -> None:
        reference_reduce(
            tensor_map.copies.view(tensor_map.array),
            image,
            box,
            origin,
            operation,
            element_strides=tensor_map.copies.encoded_steps(tensor_map.element_strides),
        )

    box = tensor_map.copies.box
    accessed(box_of(tensor_map, origin), writes=True, atomic=True)
    _store(what, thread, address, box.shared_nbytes, write, every_byte=False)
    if uses := uses_of(thread, tensor_map):
        uses.stores(thread)


def cp_async_bulk_commit_group() -> None:
    """Close this thread's group of stores."""
    thread = current()
    thread.groups.commit()
    thread.cta.scheduler.point()


def cp_async_bulk_wait_group(n: int) -> None:
    """Wait until all but this thread's newest `n` groups are visible in global memory."""
    _wait_group(int(n), read=False)


def cp_async_bulk_wait_group_read(n: int) -> None:
    """Wait until all but this thread's newest `n` groups have read their shared source."""
    _wait_group(int(n), read=True)


def prefetch_tensormap(tensor_map: TensorMap) -> None:
    """Check that a descriptor can be fetched; there is no cache to fill."""
    current()
    if not hasattr(tensor_map, "tile"):
        raise BadOperand(f"prefetch_tensormap: {tensor_map!r} is not a TensorMap")


def _arrivals(
    what: str,
    thread: SimulatedThread,
    address: int,
    nbytes: int,
    mbar: int,
    multicast: int | None,
    cta_group: int | None = None,
) -> list[Arrival]:
    """Return the destination blocks of a load and their barriers, after checking them."""
    receivers = [thread.cta]
    if multicast is not None:
        receivers = [resolve(mapa(address, r))[0] for r in ranks_of(what, multicast)]
    homes, offset = receivers, mbar
    if cta_group is not None:
        homes, offset = _homes(what, thread, receivers, mbar, cta_group)
    arrivals = []
    for into, home in zip(receivers, homes):
        barrier = _check_arrival(what, thread, into, address, nbytes, home, offset)
        arrivals.append(Arrival(into, barrier))
    for into, barrier in arrivals:
        into.hazards.load(thread, address, nbytes, barrier)
    return arrivals


def _homes(
    what: str, thread: SimulatedThread, receivers: list[Cta], mbar: int, cta_group: int
) -> tuple[list[Cta], int]:
    """Return the blocks of the barriers of a load with a cta_group, and the address there."""
    named, offset = resolve(mbar)
    if cta_group == 1:
        if named is not thread.cta:
            raise BadOperand(
                f"{what}: with cta_group 1 the barrier is in the destination's block, and this one "
                f"is in the block of rank {named.rank}: use cta_group 2, or the address of the "
                "own barrier"
            )
        return receivers, offset
    if len(thread.cta.cluster) % 2:
        raise BadOperand(
            f"{what} with cta_group 2 is for pairs of blocks, and the cluster has "
            f"{len(thread.cta.cluster)}: use @tma.cluster with an even number"
        )
    if named.rank // 2 != thread.cta.rank // 2:
        raise BadOperand(
            f"{what}: the barrier is in the block of rank {named.rank}, and the pair of this block "
            f"has the ranks {thread.cta.rank & ~1} and {thread.cta.rank | 1}: map the barrier to "
            "one of these"
        )
    places = [resolve(mapa(offset, into.rank & ~1 | named.rank & 1)) for into in receivers]
    return [home for home, _ in places], offset


def _check_arrival(
    what: str, thread: SimulatedThread, cta: Cta, address: int, nbytes: int, home: Cta, mbar: int
) -> TrackedBarrier:
    cta.memory.check_range(f"{what}, dst", address, nbytes)
    barrier = home.barrier_at(thread, mbar)
    check_fenced(thread, barrier)
    check_over_none(cta.barriers, what, address, nbytes)
    return barrier


def _load(
    thread: SimulatedThread,
    arrivals: Sequence[Arrival],
    address: int,
    nbytes: int,
    tx_bytes: int,
    read: Callable[[], Bytes],
    source: ByteSpan | None = None,
    swizzle: Swizzle | None = None,
    ignored: tuple[int, int] = (0, 0),
) -> None:
    scheduler = thread.cta.scheduler
    clocks = thread.cta.tracked_clocks()
    known = clocks.waited_for(thread.row)  # the copy engine releases no writes of its issuer
    started = clocks.publish(thread.row)
    if any({into, barrier.cta} != {thread.cta} for into, barrier in arrivals):
        known = started  # the other block learns that the issuer's access to it is over
    loads = []
    for into, barrier in arrivals:
        load = Load(thread, address, nbytes, tx_bytes, read, barrier, known, into)
        load.swizzle, load.ignored = swizzle, ignored
        barrier.issue(load)
        loads.append(load)
        barrier.cta.emit(thread, "issue", barrier.name, tx_bytes)
        scheduler.start_copy(load)
    note_issue(thread, loads, source)
    scheduler.point()


def note_issue(thread: SimulatedThread, loads: Sequence[Load], source: ByteSpan | None) -> None:
    """Add copies into shared memory to the issuing thread's log."""
    if thread.log is None:
        return
    transfers = []
    for load in loads:
        load.content = thread.log.new_fill()
        into = ByteSpan(load.into.rank, load.address, load.address + load.nbytes)
        transfers.append(Transfer(load.content, into, load.barrier.place, load.tx_bytes, source))
    thread.note(Issue, tuple(transfers))


def _transfer(
    what: str,
    dst: int,
    src: int,
    nbytes: int,
    mbar: int,
    combine: Callable[[Bytes, Bytes], Bytes],
    *,
    reduces: bool,
) -> None:
    """Copy from the calling thread's block to one of its cluster."""
    thread, source = current(), int(src)
    (owner, address), (home, barrier_address) = resolve(dst), resolve(mbar)
    if owner is not home:
        raise BadOperand(
            f"{what}: the destination lies in the block of rank {owner.rank}, the barrier in that "
            f"of rank {home.rank}; both must lie in the block that gets the bytes: use "
            "mapa(address, rank) with one rank for both"
        )
    check_bulk(what, address, "dst", nbytes)
    check_bulk(what, source, "src", nbytes)
    thread.cta.memory.check_range(f"{what}, src", source, nbytes)
    barrier = _check_arrival(what, thread, owner, address, nbytes, owner, barrier_address)
    thread.cta.hazards.copy_out(thread, source, nbytes, barrier)
    if reduces:
        thread.note(Unmodelled, what)
        owner.hazards.reduce(thread, address, nbytes, barrier)
    else:
        owner.hazards.load(thread, address, nbytes, barrier)
    here, there = thread.cta.memory.data, owner.memory.data

    def read() -> Bytes:
        return combine(
            here[source : source + nbytes].copy(), there[address : address + nbytes].copy()
        )

    if thread.log is not None:
        thread.log.read(thread.cta, source, nbytes)
    span = ByteSpan(thread.cta.rank, source, source + nbytes)
    _load(thread, [Arrival(owner, barrier)], address, nbytes, nbytes, read, span)


def _store(
    what: str,
    thread: SimulatedThread,
    address: int,
    nbytes: int,
    write: Callable[[Bytes], None],
    *,
    every_byte: bool,
) -> None:
    cta, groups = thread.cta, thread.groups
    cta.memory.check_range(f"{what}, src", address, nbytes)
    groups.stores += 1
    cta.hazards.store(thread, address, nbytes, groups.stores, every_byte=every_byte)
    store = PendingStore(thread, groups.stores, address, nbytes, write)
    groups.add(store)
    if thread.log is not None:
        thread.log.read(cta, address, nbytes)
        thread.note(IssueStore, groups.stores, ByteSpan(cta.rank, address, address + nbytes))
    cta.emit(thread, "store", cta.memory.describe(address, nbytes), nbytes)
    cta.scheduler.start_copy(store)
    cta.scheduler.point()


def _wait_group(n: int, *, read: bool) -> None:
    thread = current()
    name = f"cp_async_bulk_wait_group{'_read' if read else ''}"
    if n < 0:
        raise BadOperand(f"{name}({n}): the number of groups left must not be negative")
    cta = thread.cta
    wait = GroupWait(thread.groups, n, read)
    if wait.satisfied():
        cta.scheduler.point()
    else:
        cta.scheduler.park(wait)
    newest = thread.groups.finish_wait(wait)
    thread.note(AwaitStores, newest)
    known = cta.tracked_clocks().stores(thread.row)
    known[thread.row] = max(int(known[thread.row]), newest)
