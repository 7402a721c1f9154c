"""tcgen05: tensor memory, its allocation, and moves to and from registers.

A block has 128 lanes x 512 columns of 32 bits, at addresses ``lane << 16 | column``. Warp w reaches
lanes 32 (w mod 4) to 32 (w mod 4) + 31. An instruction that a warp executes is executed by all its
threads, converged, with the same operands. The simulator executes these rows. The rows have been
assembled for every target that has them, and have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05
from numba_tma.ptx._instruction import (
    BarrierAddress,
    Immediate,
    SharedAddress,
    TensorMemoryAddress,
    address,
    assembled_only,
    instruction,
    u16,
    u32,
    u32x2num,
    u32x4num,
    u32xnum,
)

__all__ = [
    "tcgen05_alloc", "tcgen05_alloc_exclusive", "tcgen05_dealloc",
    "tcgen05_relinquish_alloc_permit", "tcgen05_ld_32x32b", "tcgen05_ld_16x64b",
    "tcgen05_ld_16x128b", "tcgen05_ld_16x256b", "tcgen05_ld_16x32bx2", "tcgen05_wait_ld",
    "tcgen05_st_32x32b", "tcgen05_st_16x64b", "tcgen05_st_16x128b", "tcgen05_st_16x256b",
    "tcgen05_st_16x32bx2", "tcgen05_wait_st", "tcgen05_commit",
    "tcgen05_fence_before_thread_sync", "tcgen05_fence_after_thread_sync",
]  # fmt: skip

#: 1: the block acts alone; 2: with the other block of its CTA pair. One value in a kernel.
CtaGroup: TypeAlias = Literal[1, 2]
#: Repetitions of the shape of a load or store along the columns.
Repeats: TypeAlias = Literal[1, 2, 4, 8, 16, 32, 64, 128]
RepeatsTo64: TypeAlias = Literal[1, 2, 4, 8, 16, 32, 64]
RepeatsTo32: TypeAlias = Literal[1, 2, 4, 8, 16, 32]
#: Two columns of 16 bits in a register.
Pack: TypeAlias = Literal["pack::16b"]
Unpack: TypeAlias = Literal["unpack::16b"]


# -------------------------------------------------------------------------- allocation


@instruction(
    "tcgen05.alloc.cta_group::{cta_group}.sync.aligned.shared::cta.b32 [{destination}], {columns};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_alloc(destination: SharedAddress, columns: u32, cta_group: CtaGroup) -> None:
    """Allocate columns of tensor memory, and write their address to shared memory.

    `columns` is a power of two from 32 to 512, and at most that of any earlier allocation. The
    address is one 32-bit word. Waits until that many columns are free. Executed by one warp; with
    `cta_group` 2 by one warp in each block of the pair. The write is an ordinary one: other warps
    read the address after a barrier.
    """
    simulator.tcgen05_alloc(address(destination), columns, cta_group)


@instruction(
    "tcgen05.dealloc.cta_group::{cta_group}.sync.aligned.b32 {taddr}, {columns};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_dealloc(taddr: TensorMemoryAddress, columns: u32, cta_group: CtaGroup) -> None:
    """Free an allocation; `taddr` and `columns` are those of its `tcgen05_alloc`.

    Executed by one warp; with `cta_group` 2 by one warp in each block of the pair. Executed after
    every access, and before the kernel ends: nothing else frees columns.
    """
    simulator.tcgen05_dealloc(taddr, columns, cta_group)


@instruction(
    "tcgen05.relinquish_alloc_permit.cta_group::{cta_group}.sync.aligned;",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_relinquish_alloc_permit(cta_group: CtaGroup) -> None:
    """Give up the block's permit to allocate, so that other blocks can allocate.

    The block must not allocate afterwards. Executed by one warp. Orders nothing.
    """
    simulator.tcgen05_relinquish_alloc_permit(cta_group)


@instruction(
    "tcgen05.alloc.cta_group::{cta_group}.sync.aligned.exclusive.shared::cta.b32"
    " [{destination}], {columns};",
    isa=(9, 4),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_alloc_exclusive(destination: SharedAddress, columns: u32, cta_group: CtaGroup) -> None:
    """Allocate columns for a block that has the tensor memory of its SM alone.

    `columns` is a multiple of 32. All else is as for `tcgen05_alloc`. Assembled only.
    """
    assembled_only("tcgen05_alloc_exclusive", " or call tcgen05_alloc")


# ------------------------------------------------------------------------ to registers


@instruction(
    "tcgen05.ld.sync.aligned.32x32b.x{num}<pack:.{pack}>.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_ld_32x32b(
    taddr: TensorMemoryAddress, num: Repeats, pack: Pack | None = None
) -> u32xnum:
    """Start to load `num` columns of the warp's 32 lanes; return the thread's registers.

    Register r of thread l is lane l, column r. The lane of `taddr` is the warp's first.
    With `pack` a register has the low halves of two columns, so that twice as many are loaded.
    Asynchronous: the registers are valid after `tcgen05_wait_ld`. Executed by a warp.
    """
    return simulator.tcgen05_ld("32x32b", taddr, num, pack=pack is not None)


@instruction(
    "tcgen05.ld.sync.aligned.16x64b.x{num}<pack:.{pack}>.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_ld_16x64b(
    taddr: TensorMemoryAddress, num: Repeats, pack: Pack | None = None
) -> u32xnum:
    """Start to load 2 `num` columns of 16 of the warp's lanes; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (l mod 2), column l // 2 mod 2 + 2 r. The lane of
    `taddr` is the warp's first, or the 16th after it. All else is as for `tcgen05_ld_32x32b`.
    """
    return simulator.tcgen05_ld("16x64b", taddr, num, pack=pack is not None)


@instruction(
    "tcgen05.ld.sync.aligned.16x128b.x{num}<pack:.{pack}>.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_ld_16x128b(
    taddr: TensorMemoryAddress, num: RepeatsTo64, pack: Pack | None = None
) -> u32x2num:
    """Start to load 4 `num` columns of 16 of the warp's lanes; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (r mod 2), column l mod 4 + 4 (r // 2). All else is as
    for `tcgen05_ld_16x64b`.
    """
    return simulator.tcgen05_ld("16x128b", taddr, num, pack=pack is not None)


@instruction(
    "tcgen05.ld.sync.aligned.16x256b.x{num}<pack:.{pack}>.b32 {result}, [{taddr}];",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_ld_16x256b(
    taddr: TensorMemoryAddress, num: RepeatsTo32, pack: Pack | None = None
) -> u32x4num:
    """Start to load 8 `num` columns of 16 of the warp's lanes; return the thread's registers.

    Register r of thread l is lane l // 4 + 8 (r // 2 mod 2), column r mod 2 + 2 (l mod 4) + 8 (r //
    4). All else is as for `tcgen05_ld_16x64b`.
    """
    return simulator.tcgen05_ld("16x256b", taddr, num, pack=pack is not None)


@instruction(
    "tcgen05.ld.sync.aligned.16x32bx2.x{num}<pack:.{pack}>.b32 {result}, [{taddr}], {offset};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_ld_16x32bx2(
    taddr: TensorMemoryAddress, offset: Immediate, num: Repeats, pack: Pack | None = None
) -> u32xnum:
    """Start to load `num` columns of the warp's 32 lanes, at two places.

    Lanes 0 to 15 are loaded from the column of `taddr` on, lanes 16 to 31 from `offset` columns
    further on. All else is as for `tcgen05_ld_32x32b`.
    """
    return simulator.tcgen05_ld("16x32bx2", taddr, num, pack=pack is not None, offset=offset)


@instruction("tcgen05.wait::ld.sync.aligned;", isa=(8, 6), sm=TCGEN05, convergent=True)
def tcgen05_wait_ld() -> None:
    """Wait until the warp's loads from tensor memory are complete.

    Before this wait the registers are not valid, and the loaded columns must not be overwritten.
    For other threads, `tcgen05_fence_before_thread_sync` and a barrier must follow. Executed by a
    warp.
    """
    simulator.tcgen05_wait_ld()


# ---------------------------------------------------------------------- from registers


@instruction(
    "tcgen05.st.sync.aligned.32x32b.x{num}<unpack:.{unpack}>.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_st_32x32b(
    taddr: TensorMemoryAddress, values: u32xnum, num: Repeats, unpack: Unpack | None = None
) -> None:
    """Start to store the thread's registers to `num` columns of the warp's 32 lanes.

    The reverse of `tcgen05_ld_32x32b`, with `unpack` of its `pack`. Asynchronous: `tcgen05_wait_st`
    must precede the next use of the columns, by this warp or another. Executed by a warp.
    """
    simulator.tcgen05_st("32x32b", taddr, values, num, unpack=unpack is not None)


@instruction(
    "tcgen05.st.sync.aligned.16x64b.x{num}<unpack:.{unpack}>.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_st_16x64b(
    taddr: TensorMemoryAddress, values: u32xnum, num: Repeats, unpack: Unpack | None = None
) -> None:
    """Start to store the thread's registers to 2 `num` columns of 16 of the warp's lanes.

    The reverse of `tcgen05_ld_16x64b`. All else is as for `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x64b", taddr, values, num, unpack=unpack is not None)


@instruction(
    "tcgen05.st.sync.aligned.16x128b.x{num}<unpack:.{unpack}>.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_st_16x128b(
    taddr: TensorMemoryAddress, values: u32x2num, num: RepeatsTo64, unpack: Unpack | None = None
) -> None:
    """Start to store the thread's registers to 4 `num` columns of 16 of the warp's lanes.

    The reverse of `tcgen05_ld_16x128b`. All else is as for `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x128b", taddr, values, num, unpack=unpack is not None)


@instruction(
    "tcgen05.st.sync.aligned.16x256b.x{num}<unpack:.{unpack}>.b32 [{taddr}], {values};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_st_16x256b(
    taddr: TensorMemoryAddress, values: u32x4num, num: RepeatsTo32, unpack: Unpack | None = None
) -> None:
    """Start to store the thread's registers to 8 `num` columns of 16 of the warp's lanes.

    The reverse of `tcgen05_ld_16x256b`. All else is as for `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x256b", taddr, values, num, unpack=unpack is not None)


@instruction(
    "tcgen05.st.sync.aligned.16x32bx2.x{num}<unpack:.{unpack}>.b32 [{taddr}], {offset}, {values};",
    isa=(8, 6),
    sm=TCGEN05,
    convergent=True,
)
def tcgen05_st_16x32bx2(
    taddr: TensorMemoryAddress,
    offset: Immediate,
    values: u32xnum,
    num: Repeats,
    unpack: Unpack | None = None,
) -> None:
    """Start to store the thread's registers to `num` columns, at two places.

    The reverse of `tcgen05_ld_16x32bx2`. All else is as for `tcgen05_st_32x32b`.
    """
    simulator.tcgen05_st("16x32bx2", taddr, values, num, unpack=unpack is not None, offset=offset)


@instruction("tcgen05.wait::st.sync.aligned;", isa=(8, 6), sm=TCGEN05, convergent=True)
def tcgen05_wait_st() -> None:
    """Wait until the warp's stores to tensor memory are complete.

    For other threads, `tcgen05_fence_before_thread_sync` and a barrier must follow. Executed by a
    warp.
    """
    simulator.tcgen05_wait_st()


# --------------------------------------------------------------- from thread to thread


@instruction(
    "tcgen05.commit.cta_group::{cta_group}.mbarrier::arrive::one.shared::cluster"
    "<multicast:.multicast::cluster>.b64 [{barrier}]<multicast:, {multicast}>;",
    isa=(8, 6),
    sm=TCGEN05,
)
def tcgen05_commit(
    barrier: BarrierAddress, cta_group: CtaGroup, multicast: u16 | None = None
) -> None:
    """Arrive once on `barrier` when the thread's earlier matrix multiplications are complete.

    The hardware makes the arrival. The arrival also covers the thread's earlier copies to tensor
    memory, and not its loads and stores, which have waits of their own. With `multicast` the
    arrival is made in each block of the cluster whose bit is set, at the offset of `barrier`.
    Executed by one thread. Includes `tcgen05_fence_before_thread_sync`.
    """
    simulator.tcgen05_commit(address(barrier), cta_group, multicast)


@instruction("tcgen05.fence::before_thread_sync;", isa=(8, 6), sm=TCGEN05)
def tcgen05_fence_before_thread_sync() -> None:
    """Order the thread's accesses to tensor memory before the arrival or barrier that follows.

    A load or store is ordered only after its wait. Executed by each thread.
    """
    simulator.tcgen05_fence_before_thread_sync()


@instruction("tcgen05.fence::after_thread_sync;", isa=(8, 6), sm=TCGEN05)
def tcgen05_fence_after_thread_sync() -> None:
    """Order the thread's accesses to tensor memory after the wait or barrier before it.

    Executed by each thread.
    """
    simulator.tcgen05_fence_after_thread_sync()
