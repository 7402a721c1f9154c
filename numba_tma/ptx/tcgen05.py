"""tcgen05: the tensor memory of sm_100a, its allocation, and what moves it to registers and back.

A block has 128 lanes x 512 columns of 32 bits, which an address names as ``lane << 16 | column``.
Warp w reaches lanes 32 (w mod 4) to 32 (w mod 4) + 31. What an instruction says is done by a warp
is executed by all its threads, converged, with the same operands. The simulator executes these
rows; they have been assembled for sm_100a, and run on none.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    SharedAddress,
    TensorMemoryAddress,
    address,
    instruction,
    u16,
    u32,
    u32x2num,
    u32x4num,
    u32xnum,
)

#: Whether a block acts by itself or with the other block of its CTA pair; one value in a kernel.
CtaGroup: TypeAlias = Literal[1, 2]
#: How often the shape of a load or store is repeated along the columns.
Repeats: TypeAlias = Literal[1, 2, 4, 8, 16, 32, 64, 128]
RepeatsTo64: TypeAlias = Literal[1, 2, 4, 8, 16, 32, 64]
RepeatsTo32: TypeAlias = Literal[1, 2, 4, 8, 16, 32]


# -------------------------------------------------------------------------- allocation


@instruction(
    "tcgen05.alloc.cta_group::{cta_group}.sync.aligned.shared::cta.b32 [{destination}], {columns};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_alloc(destination: SharedAddress, columns: u32, cta_group: CtaGroup) -> None:
    """Allocate columns, and write their address, a word, to shared memory.

    By one warp; with `cta_group` 2, by one in each block of the pair. `columns` is a power of two
    from 32 to 512, and not above that of an allocation before. Waits until so many are free. The
    write is an ordinary one: other warps read it after a barrier.
    """
    simulator.tcgen05_alloc(address(destination), columns, cta_group)


@instruction(
    "tcgen05.dealloc.cta_group::{cta_group}.sync.aligned.b32 {taddr}, {columns};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_dealloc(taddr: TensorMemoryAddress, columns: u32, cta_group: CtaGroup) -> None:
    """Free an allocation, with the address and the size that it was made with.

    By one warp; with `cta_group` 2, by one in each block of the pair. After every access, and
    before the kernel ends: nothing else frees columns.
    """
    simulator.tcgen05_dealloc(taddr, columns, cta_group)


@instruction(
    "tcgen05.relinquish_alloc_permit.cta_group::{cta_group}.sync.aligned;",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_relinquish_alloc_permit(cta_group: CtaGroup) -> None:
    """Let other blocks allocate: this one, after it, may not any more.

    By one warp. Orders nothing.
    """
    simulator.tcgen05_relinquish_alloc_permit(cta_group)


# ------------------------------------------------------------------------ to registers


@instruction(
    "tcgen05.ld.sync.aligned.32x32b.x{num}.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_ld_32x32b(taddr: TensorMemoryAddress, num: Repeats) -> u32xnum:
    """Start to load the warp's 32 lanes of `num` columns; return the thread's registers.

    Register r of thread l is lane l, column r. By a warp. Asynchronous: use the registers after
    `tcgen05_wait_ld`. The lane of `taddr` is the first of the warp's.
    """
    return simulator.tcgen05_ld("32x32b", taddr, num)


@instruction(
    "tcgen05.ld.sync.aligned.16x64b.x{num}.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_ld_16x64b(taddr: TensorMemoryAddress, num: Repeats) -> u32xnum:
    """Start to load 16 of the warp's lanes of 2 `num` columns; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (l mod 2), column l // 2 mod 2 + 2 r. The lane of
    `taddr` is the first of the warp's, or the 16th after it; otherwise as `tcgen05_ld_32x32b`.
    """
    return simulator.tcgen05_ld("16x64b", taddr, num)


@instruction(
    "tcgen05.ld.sync.aligned.16x128b.x{num}.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_ld_16x128b(taddr: TensorMemoryAddress, num: RepeatsTo64) -> u32x2num:
    """Start to load 16 of the warp's lanes of 4 `num` columns; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (r mod 2), column l mod 4 + 4 (r // 2). Otherwise as
    `tcgen05_ld_16x64b`.
    """
    return simulator.tcgen05_ld("16x128b", taddr, num)


@instruction(
    "tcgen05.ld.sync.aligned.16x256b.x{num}.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_ld_16x256b(taddr: TensorMemoryAddress, num: RepeatsTo32) -> u32x4num:
    """Start to load 16 of the warp's lanes of 8 `num` columns; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (r // 2 mod 2), column r mod 2 + 2 (l mod 4) +
    8 (r // 4). Otherwise as `tcgen05_ld_16x64b`.
    """
    return simulator.tcgen05_ld("16x256b", taddr, num)


@instruction("tcgen05.wait::ld.sync.aligned;", isa=(8, 6), sm="100a", convergent=True)
def tcgen05_wait_ld() -> None:
    """Wait until the warp's loads from tensor memory are complete.

    By a warp. Before it the registers are not there yet, and what was loaded must not be written
    again. Another thread learns of it through `tcgen05_fence_before_thread_sync` and a barrier.
    """
    simulator.tcgen05_wait_ld()


# ---------------------------------------------------------------------- from registers


@instruction(
    "tcgen05.st.sync.aligned.32x32b.x{num}.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_st_32x32b(taddr: TensorMemoryAddress, values: u32xnum, num: Repeats) -> None:
    """Start to store the thread's registers to the warp's 32 lanes of `num` columns.

    The reverse of `tcgen05_ld_32x32b`. By a warp. Asynchronous: `tcgen05_wait_st` waits for it,
    before the columns are used again, by this warp or another.
    """
    simulator.tcgen05_st("32x32b", taddr, values, num)


@instruction(
    "tcgen05.st.sync.aligned.16x64b.x{num}.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_st_16x64b(taddr: TensorMemoryAddress, values: u32xnum, num: Repeats) -> None:
    """Start to store the thread's registers to 16 of the warp's lanes of 2 `num` columns.

    The reverse of `tcgen05_ld_16x64b`; otherwise as `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x64b", taddr, values, num)


@instruction(
    "tcgen05.st.sync.aligned.16x128b.x{num}.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_st_16x128b(taddr: TensorMemoryAddress, values: u32x2num, num: RepeatsTo64) -> None:
    """Start to store the thread's registers to 16 of the warp's lanes of 4 `num` columns.

    The reverse of `tcgen05_ld_16x128b`; otherwise as `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x128b", taddr, values, num)


@instruction(
    "tcgen05.st.sync.aligned.16x256b.x{num}.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def tcgen05_st_16x256b(taddr: TensorMemoryAddress, values: u32x4num, num: RepeatsTo32) -> None:
    """Start to store the thread's registers to 16 of the warp's lanes of 8 `num` columns.

    The reverse of `tcgen05_ld_16x256b`; otherwise as `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x256b", taddr, values, num)


@instruction("tcgen05.wait::st.sync.aligned;", isa=(8, 6), sm="100a", convergent=True)
def tcgen05_wait_st() -> None:
    """Wait until the warp's stores to tensor memory are complete.

    By a warp. Another thread learns of it through `tcgen05_fence_before_thread_sync` and a barrier.
    """
    simulator.tcgen05_wait_st()


# --------------------------------------------------------------- from thread to thread


@instruction(
    "tcgen05.commit.cta_group::{cta_group}.mbarrier::arrive::one.shared::cluster"
    "<multicast:.multicast::cluster>.b64 [{barrier}]<multicast:, {multicast}>;",
    isa=(8, 6),
    sm="100a",
)
def tcgen05_commit(
    barrier: BarrierAddress, cta_group: CtaGroup, multicast: u16 | None = None
) -> None:
    """Let the hardware arrive once when the thread's matrix multiplications so far are complete.

    Also its copies to tensor memory; not its loads and stores, which have waits of their own. With
    `multicast` it arrives in each block of the cluster whose bit is set, at the same offset. By one
    thread. It fences as `tcgen05_fence_before_thread_sync` does.
    """
    simulator.tcgen05_commit(address(barrier), cta_group, multicast)


@instruction("tcgen05.fence::before_thread_sync;", isa=(8, 6), sm="100a")
def tcgen05_fence_before_thread_sync() -> None:
    """Order the thread's accesses to tensor memory before the arrival or barrier that follows.

    Of a load or store, that is after its wait. By each thread.
    """
    simulator.tcgen05_fence_before_thread_sync()


@instruction("tcgen05.fence::after_thread_sync;", isa=(8, 6), sm="100a")
def tcgen05_fence_after_thread_sync() -> None:
    """Order the thread's accesses to tensor memory after the wait or barrier before it.

    By each thread.
    """
    simulator.tcgen05_fence_after_thread_sync()
