"""wgmma and its groups, executed for the calling thread and for its warpgroup."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from numba_tma.host.mma_rules import RegisterOperand
from numba_tma.host.warpgroup import ROWS, THREADS
from numba_tma.simulator.block import FULL_MASK
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.products import (
    Array,
    PendingProduct,
    ProductCall,
    bytes_of,
    gathered,
    multiplied,
    scattered,
)
from numba_tma.simulator.thread import WARP_SIZE, SimulatedThread, current
from numba_tma.simulator.thread_instructions import exchange

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta

_WARPS = THREADS // WARP_SIZE


def wgmma_fence() -> None:
    """Order registers, which the simulator never reorders."""
    current()


def wgmma_commit_group() -> None:
    """Close this thread's group of products."""
    current().products.commit()


def wgmma_wait_group(pending: int) -> None:
    """Wait until all but this thread's newest `pending` groups have ended."""
    thread, left = current(), int(pending)
    if not 0 <= left <= 7:
        raise BadOperand(f"wgmma_wait_group({pending}): the number of groups is 0 to 7")
    thread.products.wait(thread, left)


def has_waited(product: PendingProduct) -> bool:
    """Return whether the thread has waited for a product."""
    return product.ended_for(current())


def thread_in_warpgroup() -> int:
    """Return the thread's place in its warpgroup, 0 to 127."""
    thread = current()
    return thread.warp % _WARPS * WARP_SIZE + thread.lane


def wgmma(call: ProductCall, accumulator: Array, a: Array | None) -> tuple[Array, PendingProduct]:
    """Start a product; return this thread's elements of the new accumulator."""
    thread = current()
    group, first = thread.warp // _WARPS, thread.warp // _WARPS * _WARPS
    name = f"wgmma of warpgroup {group}, warps {first} to {first + _WARPS - 1},"
    meeting = thread.cta.warpgroup_meeting(thread, "wgmma", (call, accumulator, a))
    product: PendingProduct = meeting.once(lambda: _start(thread.cta, name, meeting.values))
    thread.products.open.append(product)
    if thread.log is not None:
        for address, nbytes in product.reads:
            thread.log.read(thread.cta, address, nbytes)
    return product.elements[thread_in_warpgroup()], product


_ALL_OF_IT = (
    f"all {THREADS} threads of a warpgroup multiply together, and its first warp is a multiple of "
    f"{_WARPS}"
)


def _start(cta: Cta, name: str, values: dict[SimulatedThread, Any]) -> PendingProduct:
    """Compute the product for all threads of the warpgroup, and record its reads."""
    threads = sorted(values, key=lambda thread: thread.row)
    if len(threads) < THREADS:
        raise BadOperand(f"{name} is executed by {len(threads)} threads: {_ALL_OF_IT}")
    calls, accumulators, matrices = zip(*(values[thread] for thread in threads))
    for thread, call in zip(threads, calls):
        _check_same(name, threads[0], calls[0], thread, call)
    call = calls[0]
    n, steps, itemsize = call.product.n, call.product.k_steps, call.accumulator.itemsize
    operands, a = [bytes_of(call.b, n, steps)], None
    if isinstance(call.a, RegisterOperand):
        a = gathered(matrices, call.a.k, call.a.dtype.itemsize)
    else:
        operands.insert(0, bytes_of(call.a, ROWS, steps))
    runs = [run for operand in operands for run in operand.runs]
    for address, nbytes in runs:
        cta.memory.check_range("wgmma, operand in shared memory", address, nbytes)
    result = multiplied(call, cta.memory, gathered(accumulators, n, itemsize), a, operands)
    product = PendingProduct(threads, runs, scattered(result, itemsize))
    cta.hazards.multiply(product)
    return product


def _check_same(
    name: str, one: SimulatedThread, mine: ProductCall, other: SimulatedThread, its: ProductCall
) -> None:
    """Raise if two threads of a warpgroup give different arguments."""
    for field in fields(ProductCall):
        a, b = getattr(mine, field.name), getattr(its, field.name)
        if a != b:
            raise BadOperand(
                f"{name} {field.name} is {a} in {one.description} and {b} in {other.description}: "
                f"{_ALL_OF_IT}; what differs between them is in their fragments alone"
            )


def exchange_in_quad(name: str, value: Any) -> list[Any]:
    """Return the values of the quad's four threads; the whole warp executes this together."""
    values = exchange(name, FULL_MASK, value)
    if len(values) < WARP_SIZE:
        raise BadOperand(
            f"{name}: {len(values)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    first = current().lane // 4 * 4
    return [values[lane] for lane in range(first, first + 4)]
