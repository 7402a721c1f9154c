"""Special registers, syncs, warp-wide operations and shared memory, for the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.block import FULL_MASK, Cta
from numba_tma.simulator.elected_loops import check_whole_warp
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.fibers import running_fiber
from numba_tma.simulator.global_memory import accessed
from numba_tma.simulator.memory import END
from numba_tma.simulator.registers import take as take_registers
from numba_tma.simulator.thread import WARP_SIZE, SimulatedThread, current

_DIM3 = tuple[int, int, int]

#: A thread that only reads memory yields after this many reads, so that a polled word can change.
_ACCESSES_PER_TURN = 4096


def thread_index() -> _DIM3:
    """Return the thread's index in its block."""
    return current().index


def block_dim() -> _DIM3:
    """Return the number of threads of the block."""
    return current().cta.block_dim


def block_index() -> _DIM3:
    """Return the block's index in the grid."""
    return current().block


def grid_dim() -> _DIM3:
    """Return the number of blocks of the grid."""
    return current().cta.grid_dim


def trace_step() -> int:
    """Return the step at which a range of a trace begins; 0 on the host, which walks schedules."""
    thread = running_fiber()
    return thread.cta.scheduler.step if isinstance(thread, SimulatedThread) else 0


def trace_range(kind: str, name: str, begun: int) -> None:
    """Put a range of the thread into the trace, if one is recorded."""
    thread = running_fiber()
    if isinstance(thread, SimulatedThread):
        thread.cta.emit(thread, kind, name, begun=begun)


def lane_id() -> int:
    """Return the thread's lane in its warp."""
    return current().lane


def warp_id() -> int:
    """Return the thread's warp in its block."""
    return current().warp


def sm_registers() -> _DIM3:
    """Return the SM's number, the number of SMs, and the warp slots of an SM."""
    current()
    return 0, 1, 64


def barrier_sync(id: int, threads: int) -> None:
    """Wait on named barrier `id` until `threads` threads have arrived. Orders memory."""
    thread = current()
    check_whole_warp("sync", thread)
    thread.cta.named_barrier(thread, int(id), int(threads), wait=True)


def barrier_arrive(id: int, threads: int) -> None:
    """Arrive on named barrier `id` without waiting."""
    thread = current()
    thread.cta.named_barrier(thread, int(id), int(threads), wait=False)


def syncwarp(mask: int = FULL_MASK) -> None:
    """Wait for the lanes of `mask`. Orders memory."""
    thread = current()
    thread.cta.warp_meeting(thread, "syncwarp", mask, None, orders_memory=True)


def elect_sync(mask: int = FULL_MASK) -> bool:
    """Return True in one lane of `mask`, the lowest live one. Orders no memory."""
    lowest: int = next(iter(exchange("elect_sync", mask, None)))
    return current().lane == lowest


def shfl(mode: str, value: Any, lane_or_delta: int, mask: int = FULL_MASK) -> Any:
    """Return `value` of another lane, or this lane's if that lane is inactive. Orders no memory."""
    lane, other = current().lane, int(lane_or_delta)
    sources = {"idx": other % WARP_SIZE, "up": lane - other, "down": lane + other}
    source = lane ^ other if mode == "bfly" else sources.get(mode)
    if source is None:
        raise BadOperand(f'shfl: mode is {mode!r}; it must be "idx", "up", "down" or "bfly"')
    name = "shfl_sync" if mode == "idx" else f"shfl_{mode.replace('bfly', 'xor')}_sync"
    return exchange(name, mask, value).get(source, value)


def ballot_sync(mask: int, predicate: object) -> int:
    """Return the mask of lanes whose predicate is true."""
    values = exchange("ballot_sync", mask, predicate)
    return sum(1 << lane for lane, value in values.items() if value)


def all_sync(mask: int, predicate: object) -> bool:
    """Return whether the predicate is true in all lanes of `mask`."""
    return all(exchange("all_sync", mask, predicate).values())


def any_sync(mask: int, predicate: object) -> bool:
    """Return whether the predicate is true in one lane of `mask`."""
    return any(exchange("any_sync", mask, predicate).values())


def eq_sync(mask: int, predicate: object) -> bool:
    """Return whether the predicate is the same in all lanes of `mask`."""
    return len({bool(v) for v in exchange("eq_sync", mask, predicate).values()}) == 1


def match_any_sync(mask: int, value: object) -> int:
    """Return the mask of lanes with the same value as this one."""
    values = exchange("match_any_sync", mask, value)
    return sum(1 << lane for lane, other in values.items() if other == value)


def match_all_sync(mask: int, value: object) -> tuple[int, bool]:
    """Return the mask of lanes and True if all values are the same, else 0 and False."""
    values = exchange("match_all_sync", mask, value)
    same = all(other == value for other in values.values())
    return (sum(1 << lane for lane in values) if same else 0), same


def activemask() -> int:
    """Return the mask of live lanes. A GPU may leave out those on another branch."""
    thread = current()
    return thread.cta.live_lanes[thread.warp]


def lanemask_lt() -> int:
    """Return the mask of the lanes below this one."""
    return (1 << current().lane) - 1


def await_primary() -> None:
    """Wait for the launches in front of a dependent one, which have ended."""
    thread = current()
    if thread.cta.dependent:
        thread.cta.await_primary(thread)


def yield_turn() -> None:
    """Offer another thread the chance to run."""
    current().cta.scheduler.point()


def nanosleep(nanoseconds: int) -> None:
    """Offer another thread the chance to run; the clocks do not count the sleep."""
    yield_turn()


def clock() -> int:
    """Return the number of steps of this block's threads; it grows at each call."""
    scheduler = current().cta.scheduler
    scheduler.point()
    scheduler.event()  # a time limit ends a wait, so waiting for one is no deadlock
    return scheduler.step


def global_time() -> int:
    """Return this block's time in nanoseconds; it grows at each call."""
    clock()
    return current().cta.scheduler.nanoseconds


def setmaxnreg(change: str, registers: int) -> None:
    """Set the registers per thread of the warpgroup, once the block has them."""
    thread, count = current(), int(registers)
    name = f"setmaxnreg_{change}({count})"
    if count % 8 or not 24 <= count <= 256:
        raise BadOperand(f"{name}: a thread can have 24 to 256 registers, in multiples of 8")
    before = thread.registers
    if before is not None and (count > before if change == "dec" else count < before):
        limit = "most" if change == "dec" else "least"
        raise BadOperand(
            f"{name}: the warpgroup has {before} registers per thread since its last setmaxnreg, "
            f"and {change} takes at {limit} that many"
        )
    thread.cta.warpgroup_meeting(thread, name)
    take_registers(thread, name, count)
    thread.registers = count


def atomic_replace(word: np.ndarray[Any, Any], new: Callable[[int], int]) -> int:
    """Replace the 32-bit word that starts at `word` by ``new(old)``, and return `old`."""
    yield_turn()
    accessed(word[:4], writes=True, atomic=True)
    place = word.view(np.uint32)
    old = int(place[0])
    place[0] = new(old) % 2**32
    current().cta.scheduler.wrote()
    return old


def atomic_inc(counter: np.ndarray[Any, Any], limit: int) -> int:
    """Add 1 to the 32-bit counter that starts at `counter`, back to 0 after `limit`."""
    return atomic_replace(counter, lambda old: 0 if old >= int(limit) else old + 1)


def relaxed_read(word: np.ndarray[Any, Any]) -> int:
    """Return the 32-bit word that starts at `word`, which other threads may write concurrently."""
    yield_turn()
    accessed(word[:4], writes=False, atomic=True)
    return int(word.view(np.uint32)[0])


def allocate_shared(owner: Hashable, nbytes: int, alignment: int) -> int:
    """Return the address of shared memory for `owner`.

    The n-th call for an owner gives the same address to all threads of the block. Owners are
    compared by equality.
    """
    thread = current()
    number = thread.cta.memory.number_of(owner)
    call = thread.allocation_calls.get(number, 0)
    thread.allocation_calls[number] = call + 1
    return thread.cta.memory.allocate(
        ("owner", number, call), owner, int(nbytes), int(alignment), tracked=True
    ).start


def shared_address(array: np.ndarray[Any, Any]) -> int:
    """Return the shared address of an array that ``cuda.shared.array`` made, or of a view of it."""
    address = int(array.__array_interface__["data"][0]) - current().cta.memory.pointer
    if not 0 < address < END:
        raise BadOperand("the array is not in the shared memory of this block")
    return address


def label(address: int, text: str) -> None:
    """Name the barrier or region that starts at `address` in errors and the timeline."""
    current().cta.memory.set_label(int(address), text)


def labelled(address: int, text: str) -> bool:
    """Return whether `label` has given this name to what starts at `address`."""
    return current().cta.memory.label(int(address)) == text


def name_role(name: str, first: int, threads: int) -> None:
    """Name the warps of `threads` threads from thread `first` on in errors."""
    warps = range(first // WARP_SIZE, -(-(first + threads) // WARP_SIZE))
    current().cta.role_names.update(dict.fromkeys(warps, name))


def read_by_all(address: int) -> None:
    """Let the end of the block check that all readers have arrived on a barrier, or none."""
    current().cta.read_by_all.add(int(address))


def shared_read(addr: int, dtype: np.dtype[Any], count: int | None = None) -> Any:
    """Read one value, or an array of `count`, with the checks of a generic read."""
    return read_from(current().cta, "shared_read", addr, dtype, count)


def read_from(
    cta: Cta, what: str, addr: int, dtype: np.dtype[Any], count: int | None, *, atomic: bool = False
) -> Any:
    """Read from the shared memory of the calling thread's block, or of another."""
    dtype = np.dtype(dtype)
    nbytes = dtype.itemsize * (1 if count is None else int(count))
    thread, address = _access(cta, what, addr, dtype, nbytes)
    cta.hazards.read(thread, address, nbytes, atomic=atomic)
    if thread.log is not None:
        thread.log.read(cta, address, nbytes)
    values = cta.memory.data[address : address + nbytes].view(dtype)
    return values[0] if count is None else values.copy()


def shared_read_vector(addr: int, dtype: np.dtype[Any], count: int) -> Any:
    """Read `count` values, aligned to all their bytes, as a tuple."""
    _check_vector("shared_read_vector", int(addr), count * dtype.itemsize)
    return tuple(shared_read(addr, dtype, count).tolist())


def shared_write_vector(addr: int, values: np.ndarray[Any, Any]) -> None:
    """Write an array, aligned to all its bytes."""
    _check_vector("shared_write_vector", int(addr), values.nbytes)
    shared_write(addr, values)


def _check_vector(what: str, address: int, nbytes: int) -> None:
    if address % nbytes:
        raise BadOperand(
            f"{what}: shared address {address} is not a multiple of the {nbytes} bytes of the "
            "vector"
        )


def shared_write(addr: int, np_values: Any) -> None:
    """Write a NumPy scalar or array, with the checks of a generic write."""
    write_to(current().cta, "shared_write", addr, np_values)


def write_to(cta: Cta, what: str, addr: int, np_values: Any, *, atomic: bool = False) -> None:
    """Write to the shared memory of the calling thread's block, or of another."""
    if not isinstance(np_values, np.generic | np.ndarray):
        raise TypeError(
            f"{what}: {np_values!r} has no dtype; pass a NumPy scalar or array, for example "
            "np.float32(x)"
        )
    values = np.ascontiguousarray(np_values).reshape(-1)
    thread, address = _access(cta, what, addr, values.dtype, values.nbytes)
    image = values.view(np.uint8)
    check_over_none(cta.barriers, what, address, image.nbytes)
    cta.hazards.write(thread, address, values.nbytes, image, atomic=atomic)
    if thread.log is not None:
        thread.log.wrote(cta, address, values.nbytes)
    cta.memory.data[address : address + values.nbytes] = image
    thread.cta.scheduler.wrote()


def shared_write_pieces(addresses: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Write a row of `values` to each of `addresses`, none of them across 16 bytes."""
    pieces = np.ascontiguousarray(values).view(np.uint8)
    nbytes, thread = pieces.shape[1], current()
    first, last = int(addresses.min()), int(addresses.max())
    thread.cta.memory.check_range("shared_write", first, last + nbytes - first)
    for address in addresses.tolist():
        check_over_none(thread.cta.barriers, "shared_write", address, nbytes)
    thread.cta.hazards.write_pieces(thread, addresses, pieces)
    if thread.log is not None:
        for address in addresses.tolist():
            thread.log.wrote(thread.cta, address, nbytes)
    thread.cta.memory.data[addresses[:, None] + np.arange(nbytes)] = pieces
    thread.cta.scheduler.wrote()


def _access(
    cta: Cta, what: str, addr: int, dtype: np.dtype[Any], nbytes: int
) -> tuple[SimulatedThread, int]:
    thread, address = current(), int(addr)
    thread.accesses += 1
    if thread.accesses % _ACCESSES_PER_TURN == 0:
        thread.cta.scheduler.point()
    if address % dtype.itemsize:
        raise BadOperand(
            f"{what}: shared address {address} is not a multiple of the {dtype.itemsize} bytes "
            f"of {dtype}"
        )
    cta.memory.check_range(what, address, nbytes)
    return thread, address


def exchange(name: str, mask: int, value: object) -> dict[int, Any]:
    """Return the values of the live lanes of `mask`, by lane. Orders no memory."""
    thread = current()
    return thread.cta.warp_meeting(thread, name, mask, value, orders_memory=False)
