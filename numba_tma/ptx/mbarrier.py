"""mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of copies."""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import BarrierAddress, address, instruction, u32, u64

__all__ = [
    "mbarrier_init", "mbarrier_inval", "mbarrier_arrive", "mbarrier_arrive_no_complete",
    "mbarrier_arrive_expect_tx", "mbarrier_arrive_drop", "mbarrier_arrive_drop_no_complete",
    "mbarrier_arrive_drop_expect_tx", "mbarrier_expect_tx", "mbarrier_complete_tx",
    "mbarrier_try_wait", "mbarrier_try_wait_parity", "mbarrier_test_wait",
    "mbarrier_test_wait_parity", "mbarrier_pending_count",
]  # fmt: skip

#: Semantics and scope of an arrival; None is release.cta.
Release: TypeAlias = Literal["release.cta", "release.cluster", "relaxed.cta", "relaxed.cluster"]
#: Semantics and scope of a wait that returns True; None is acquire.cta.
Acquire: TypeAlias = Literal["acquire.cta", "acquire.cluster", "relaxed.cta", "relaxed.cluster"]
#: Scope of an instruction that orders nothing.
Relaxed: TypeAlias = Literal["relaxed.cta", "relaxed.cluster"]

#: Forms that are newer than their row: of rows that start with sm_80; `_SINCE_90` with sm_90.
_SINCE_80 = {
    "release.cta": ((8, 0), 80),
    "release.cluster": ((8, 0), 90),
    "acquire.cta": ((8, 0), 80),
    "acquire.cluster": ((8, 0), 90),
    "relaxed.cta": ((8, 6), 90),
    "relaxed.cluster": ((8, 6), 90),
    "count": ((7, 8), 90),
}
_SINCE_90 = {name: (isa, 90) for name, (isa, _) in _SINCE_80.items()}


@instruction("mbarrier.init.shared::cta.b64 [{barrier}], {count};", isa=(7, 8), sm=80)
def mbarrier_init(barrier: BarrierAddress, count: u32) -> None:
    """Initialise a barrier whose phases each expect `count` arrivals (1 to 2**20 - 1).

    Executed by one thread. Orders nothing: before other threads or the copy engine use the barrier,
    the initialising thread executes `fence_mbarrier_init` and the block synchronises.
    """
    simulator.mbarrier_init(address(barrier), count)


@instruction("mbarrier.inval.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def mbarrier_inval(barrier: BarrierAddress) -> None:
    """Invalidate a barrier, so that its 8 bytes can be reused.

    Executed by one thread, after the last use of the barrier by a thread or a copy.
    """
    simulator.mbarrier_inval(address(barrier))


# ---------------------------------------------------------------------------- arrivals


@instruction(
    "mbarrier.arrive<semantics:.{semantics}>.shared::cta.b64 {result}, [{barrier}]"
    "<count:, {count}>;",
    isa=(7, 8),
    sm=80,
    since=_SINCE_80,
)
def mbarrier_arrive(
    barrier: BarrierAddress, count: u32 | None = None, semantics: Release | None = None
) -> u64:
    """Arrive once, or `count` times; return the state (token) of the current phase.

    Executed by each arriving thread. Release semantics at block scope: the thread's earlier writes
    are visible to threads that have waited for this phase. `semantics` selects others; the relaxed
    ones order nothing.
    """
    return simulator.mbarrier_arrive(address(barrier), count, semantics)


@instruction(
    "mbarrier.arrive.noComplete.shared::cta.b64 {result}, [{barrier}], {count};",
    isa=(7, 8),
    sm=80,
)
def mbarrier_arrive_no_complete(barrier: BarrierAddress, count: u32) -> u64:
    """Arrive `count` times in a phase that later arrivals complete; return the phase's state.

    Executed by each arriving thread. Release semantics at block scope. The behaviour is undefined
    if this arrival completes the phase.
    """
    return simulator.mbarrier_arrive_no_complete(address(barrier), count)


@instruction(
    "mbarrier.arrive.expect_tx<semantics:.{semantics}>.shared::cta.b64"
    " {result}, [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
    since=_SINCE_90,
)
def mbarrier_arrive_expect_tx(
    barrier: BarrierAddress, tx_bytes: u32, semantics: Release | None = None
) -> u64:
    """Expect `tx_bytes` more bytes in this phase, then arrive once; return the phase's state.

    Executed by one thread, before or after the copies of these bytes start. Release semantics at
    block scope, or as `semantics` says.
    """
    return simulator.mbarrier_arrive_expect_tx(address(barrier), tx_bytes, semantics)


@instruction(
    "mbarrier.arrive_drop<semantics:.{semantics}>.shared::cta.b64 {result}, [{barrier}]"
    "<count:, {count}>;",
    isa=(7, 8),
    sm=80,
    since=_SINCE_80,
)
def mbarrier_arrive_drop(
    barrier: BarrierAddress, count: u32 | None = None, semantics: Release | None = None
) -> u64:
    """Arrive once, or `count` times, and leave all later phases; return the phase's state.

    Each later phase expects as many arrivals fewer. Executed by a thread that leaves before the
    others. Release semantics at block scope, or as `semantics` says.
    """
    return simulator.mbarrier_arrive_drop(address(barrier), count, semantics)


@instruction(
    "mbarrier.arrive_drop.noComplete.shared::cta.b64 {result}, [{barrier}], {count};",
    isa=(7, 8),
    sm=80,
)
def mbarrier_arrive_drop_no_complete(barrier: BarrierAddress, count: u32) -> u64:
    """Arrive `count` times and leave, in a phase that later arrivals complete; return its state.

    Each later phase expects as many arrivals fewer. Release semantics at block scope. The behaviour
    is undefined if this arrival completes the phase.
    """
    return simulator.mbarrier_arrive_drop_no_complete(address(barrier), count)


@instruction(
    "mbarrier.arrive_drop.expect_tx<semantics:.{semantics}>.shared::cta.b64"
    " {result}, [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
    since=_SINCE_90,
)
def mbarrier_arrive_drop_expect_tx(
    barrier: BarrierAddress, tx_bytes: u32, semantics: Release | None = None
) -> u64:
    """Expect `tx_bytes` more bytes in this phase, arrive once and leave; return the phase's state.

    Each later phase expects one arrival fewer. Executed by the thread that issues its last copies.
    Release semantics at block scope, or as `semantics` says.
    """
    return simulator.mbarrier_arrive_drop_expect_tx(address(barrier), tx_bytes, semantics)


# ------------------------------------------------------------------------------- bytes


@instruction(
    "mbarrier.expect_tx.{semantics}.shared::cta.b64 [{barrier}], {tx_bytes};", isa=(8, 0), sm=90
)
def mbarrier_expect_tx(
    barrier: BarrierAddress, tx_bytes: u32, semantics: Relaxed = "relaxed.cta"
) -> None:
    """Expect `tx_bytes` more bytes in this phase, without an arrival. Orders nothing."""
    simulator.mbarrier_expect_tx(address(barrier), tx_bytes)


@instruction(
    "mbarrier.complete_tx.{semantics}.shared::cta.b64 [{barrier}], {tx_bytes};", isa=(8, 0), sm=90
)
def mbarrier_complete_tx(
    barrier: BarrierAddress, tx_bytes: u32, semantics: Relaxed = "relaxed.cta"
) -> None:
    """Count `tx_bytes` as copied, without a copy and without an arrival.

    Credits the bytes of a load that was expected and then skipped. Executed by the thread that
    skips the load. Orders nothing.
    """
    simulator.mbarrier_complete_tx(address(barrier), tx_bytes)


# ------------------------------------------------------------------------------- waits


@instruction(
    "mbarrier.try_wait<semantics:.{semantics}>.shared::cta.b64 {predicate}, [{barrier}], {state}"
    "<suspend_hint:, {suspend_hint}>;",
    isa=(7, 8),
    sm=90,
    since=_SINCE_90,
)
def mbarrier_try_wait(
    barrier: BarrierAddress,
    state: u64,
    suspend_hint: u32 | None = None,
    semantics: Acquire | None = None,
) -> bool:
    """Return whether the phase of `state` has completed, after a wait of limited time.

    Executed by any thread. A result of True has acquire semantics at block scope: bytes copied into
    shared memory and earlier writes of the arriving threads are visible. `semantics` selects
    others; the relaxed ones order nothing. `suspend_hint` is a hint: the time limit in nanoseconds.
    """
    return simulator.mbarrier_try_wait(address(barrier), state, semantics)


@instruction(
    "mbarrier.try_wait.parity<semantics:.{semantics}>.shared::cta.b64"
    " {predicate}, [{barrier}], {parity}<suspend_hint:, {suspend_hint}>;",
    isa=(7, 8),
    sm=90,
    since=_SINCE_90,
)
def mbarrier_try_wait_parity(
    barrier: BarrierAddress,
    parity: u32,
    suspend_hint: u32 | None = None,
    semantics: Acquire | None = None,
) -> bool:
    """Return whether the phase of `parity` has completed, after a wait of limited time.

    On a fresh barrier parity 1 counts as completed, and parity 0 does not. Executed by any thread.
    A result of True has acquire semantics at block scope, or those that `semantics` selects.
    `suspend_hint` is a hint: the time limit in nanoseconds.
    """
    return simulator.mbarrier_try_wait_parity(address(barrier), parity, semantics)


@instruction(
    "mbarrier.test_wait<semantics:.{semantics}>.shared::cta.b64 {predicate}, [{barrier}], {state};",
    isa=(7, 8),
    sm=80,
    since=_SINCE_80,
)
def mbarrier_test_wait(
    barrier: BarrierAddress, state: u64, semantics: Acquire | None = None
) -> bool:
    """Return whether the phase of `state` has completed, without waiting.

    Executed by any thread. A result of True has acquire semantics at block scope, or those that
    `semantics` selects.
    """
    return simulator.mbarrier_test_wait(address(barrier), state, semantics)


@instruction(
    "mbarrier.test_wait.parity<semantics:.{semantics}>.shared::cta.b64"
    " {predicate}, [{barrier}], {parity};",
    isa=(7, 8),
    sm=80,
    since=_SINCE_80,
)
def mbarrier_test_wait_parity(
    barrier: BarrierAddress, parity: u32, semantics: Acquire | None = None
) -> bool:
    """Return whether the phase of `parity` has completed, without waiting.

    Executed by any thread. A result of True has acquire semantics at block scope, or those that
    `semantics` selects.
    """
    return simulator.mbarrier_test_wait_parity(address(barrier), parity, semantics)


@instruction("mbarrier.pending_count.b64 {result}, {state};", isa=(7, 0), sm=80, pure=True)
def mbarrier_pending_count(state: u64) -> u32:
    """Return the number of arrivals that the phase lacked before the arrival of `state`.

    `state` is the result of that arrival. Bytes are not counted. Executed by any thread. Orders
    nothing.
    """
    return simulator.mbarrier_pending_count(state)
