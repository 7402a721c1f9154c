"""mbarrier: the barrier in shared memory on which copies and threads report."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import BarrierAddress, address, instruction, u32, u64


@instruction("mbarrier.init.shared::cta.b64 [{barrier}], {count};", isa=(7, 8), sm=80)
def mbarrier_init(barrier: BarrierAddress, count: u32) -> None:
    """Initialise a barrier: each phase expects `count` arrivals (1 to 2**20 - 1).

    Executed by one thread. Orders nothing: before other threads or the copy engine use the
    barrier, that thread executes `fence_mbarrier_init` and the block synchronises.
    """
    simulator.mbarrier_init(address(barrier), count)


@instruction("mbarrier.inval.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def mbarrier_inval(barrier: BarrierAddress) -> None:
    """End the life of a barrier, so that its 8 bytes can be used for something else.

    Executed by one thread, when no thread and no copy uses the barrier any more.
    """
    simulator.mbarrier_inval(address(barrier))


@instruction("mbarrier.arrive.shared::cta.b64 {result}, [{barrier}];", isa=(7, 8), sm=80)
def mbarrier_arrive(barrier: BarrierAddress) -> u64:
    """Arrive once; return the state (token) of the phase that was arrived at.

    Executed by each arriving thread. Release semantics at block scope: what the thread wrote
    before is visible to threads that have waited for this phase.
    """
    return simulator.mbarrier_arrive(address(barrier))


@instruction(
    "mbarrier.arrive.expect_tx.shared::cta.b64 {result}, [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
)
def mbarrier_arrive_expect_tx(barrier: BarrierAddress, tx_bytes: u32) -> u64:
    """Expect `tx_bytes` more bytes in this phase, then arrive once; return the state.

    Executed by one thread, before the copies it speaks of or after. Release semantics at block
    scope.
    """
    return simulator.mbarrier_arrive_expect_tx(address(barrier), tx_bytes)


@instruction(
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{barrier}], {tx_bytes};", isa=(8, 0), sm=90
)
def mbarrier_expect_tx(barrier: BarrierAddress, tx_bytes: u32) -> None:
    """Expect `tx_bytes` more bytes in this phase. This does not arrive. Orders nothing."""
    simulator.mbarrier_expect_tx(address(barrier), tx_bytes)


@instruction(
    "mbarrier.try_wait.shared::cta.b64 {predicate}, [{barrier}], {state};", isa=(7, 8), sm=90
)
def mbarrier_try_wait(barrier: BarrierAddress, state: u64) -> bool:
    """Return whether the phase of `state` has completed, after waiting for it a limited time.

    Executed by any thread. Acquire semantics at block scope when it returns True: what was
    copied into shared memory and what arriving threads wrote before is visible.
    """
    return simulator.mbarrier_try_wait(address(barrier), state)


@instruction(
    "mbarrier.try_wait.parity.shared::cta.b64 {predicate}, [{barrier}], {parity};",
    isa=(7, 8),
    sm=90,
)
def mbarrier_try_wait_parity(barrier: BarrierAddress, parity: u32) -> bool:
    """Return whether the phase of `parity` has completed, after waiting a limited time.

    On a fresh barrier parity 1 counts as completed and parity 0 does not. Executed by any thread;
    acquire semantics at block scope when it returns True.
    """
    return simulator.mbarrier_try_wait_parity(address(barrier), parity)


@instruction(
    "mbarrier.test_wait.shared::cta.b64 {predicate}, [{barrier}], {state};", isa=(7, 8), sm=80
)
def mbarrier_test_wait(barrier: BarrierAddress, state: u64) -> bool:
    """Return whether the phase of `state` has completed, without waiting.

    Executed by any thread; acquire semantics at block scope when it returns True.
    """
    return simulator.mbarrier_test_wait(address(barrier), state)


@instruction(
    "mbarrier.test_wait.parity.shared::cta.b64 {predicate}, [{barrier}], {parity};",
    isa=(7, 8),
    sm=80,
)
def mbarrier_test_wait_parity(barrier: BarrierAddress, parity: u32) -> bool:
    """Return whether the phase of `parity` has completed, without waiting.

    Executed by any thread; acquire semantics at block scope when it returns True.
    """
    return simulator.mbarrier_test_wait_parity(address(barrier), parity)
