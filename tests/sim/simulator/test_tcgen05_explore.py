"""Every order of a ring that tcgen05.commit releases: products and arrivals of the hardware."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor
from numba_tma.simulator.exploration import explore_runs
from numba_tma.simulator.protocol import Arrive, CommitProducts, recorded_protocol
from tests.kernels.tensor_matmul import HELD

A = tma.Tile((64, 16), "bf16", tma.Swizzle.B32)
B = tma.Tile((8, 16), "bf16", tma.Swizzle.B32)
LAYOUTS = [MatrixLayout(tile, "K", "tcgen05") for tile in (A, B)]
IDESC = instruction_descriptor(InstructionDescriptor("f16", 64, 8, "bf16", "bf16"))
STAGES, FULL, EMPTY, DONE = 2, 0, 2, 4
BLOCKS = 4


def ring(x, y):
    """Thread 0 loads, thread 31 multiplies and commits."""
    held, bars, t = tma.shared_tile(HELD), tma.shared_barriers(5), cuda.threadIdx.x
    stages = [(tma.shared_tile(A).address, tma.shared_tile(B).address) for _ in range(STAGES)]
    if t == 0:
        for i in range(5):
            bars[i].init(1)
        ptx.fence_mbarrier_init()
    ptx.tcgen05_alloc(held, 32, 1)
    cuda.syncthreads()
    taddr = ptx.ld_shared_u32(held.address)
    for i in range(BLOCKS):
        s, phase = i % STAGES, i // STAGES & 1
        if t == 0:
            bars[EMPTY + s].wait(phase ^ 1)
            bars[FULL + s].arrive_expect_tx(A.nbytes + B.nbytes)
            x.load(stages[s][0], (0, 16 * i), bars[FULL + s])
            y.load(stages[s][1], (0, 16 * i), bars[FULL + s])
        elif t == 31:
            bars[FULL + s].wait(phase)
            da, db = (layout.descriptor(at) for layout, at in zip(LAYOUTS, stages[s]))
            sim.tcgen05_mma("f16", taddr, da, db, IDESC, i > 0, a_in_tmem=False, cta_group=1)
            ptx.tcgen05_commit(bars[EMPTY + s], 1)
    if t == 31:
        ptx.tcgen05_commit(bars[DONE], 1)
        bars[DONE].wait(0)
        ptx.tcgen05_fence_after_thread_sync()
        ptx.tcgen05_fence_before_thread_sync()
    cuda.syncthreads()
    ptx.tcgen05_fence_after_thread_sync()
    ptx.tcgen05_dealloc(taddr, 32, 1)


def launch():
    x, y = (np.ones((tile.shape[0], 16 * BLOCKS), A.dtype.numpy) for tile in (A, B))
    cuda.jit(ring)[1, 32](tma.tensor_map(x, A), tma.tensor_map(y, B))


def test_commits_release_stages():
    assert sim.explore(launch).states > 50


def test_an_arrival_of_the_thread_would_come_before_the_reads_are_over():
    with recorded_protocol() as runs:
        launch()
    changed = 0
    for log in runs[0].logs:
        for at, operation in enumerate(log.operations):
            if isinstance(operation, CommitProducts) and operation.number <= BLOCKS:
                log.operations[at] = Arrive(operation.barriers[0], 1, None, False, False)
                changed += 1
    assert changed == BLOCKS
    with pytest.raises(sim.EarlyOverwrite, match="may still be reading them") as caught:
        explore_runs(runs)
    assert any("tcgen05 reads" in step for step in caught.value.interleaving)
