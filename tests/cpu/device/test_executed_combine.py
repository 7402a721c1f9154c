"""How threads combine their parts, executed: over lanes, over warps, and what goes to a cluster."""

import numpy as np
import pytest
from numba import cuda, types

from numba_tma.device.combine import exchange_tiles, lanes_max, lanes_sum
from numba_tma.tools.testing import compile_ptx
from tests.kernels.meeting import ROWS, meeting
from tests.ptx_machine import Machine
from tests.tiers import every

NUMBERS = types.float32[:, ::1]
#: No sum of some of these is another's.
GIVEN = (np.arange(32) * 41 % 64 * 8 + np.arange(32)).astype(np.float32)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_neighbouring_lanes_have_the_sum_and_the_largest(lanes):
    def kernel(given, got):
        mine = given[0, cuda.threadIdx.x]
        got[0, cuda.threadIdx.x] = lanes_sum(mine, lanes)
        got[1, cuda.threadIdx.x] = lanes_max(mine, lanes)

    got = np.zeros((2, 32), np.float32)
    ptx = compile_ptx(cuda.jit(kernel), (NUMBERS, NUMBERS), cc=(9, 0, "a"))
    Machine(ptx, GIVEN[None], got, block=(32, 1, 1)).run_together(range(32))
    groups = GIVEN.reshape(-1, lanes)
    np.testing.assert_array_equal(got[0], np.repeat(groups.sum(1), lanes))
    np.testing.assert_array_equal(got[1], np.repeat(groups.max(1), lanes))


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize(
    ("threads", "blocks"), [(1, 1), (32, 8), (64, 1), (256, 4), (256, 8), (352, 3)]
)
def test_each_warp_has_a_part_and_each_of_the_cluster_up_to_32(threads, blocks, turns):
    scratch, peers = exchange_tiles(threads, blocks, turns)
    warps = max(1, threads // 32)
    received = warps * blocks if warps * blocks <= 32 else blocks
    assert (scratch.shape, peers.shape) == ((turns * warps, 4), (turns * received, 4))
    if turns == 1:
        assert exchange_tiles(threads, blocks) == (scratch, peers)


def machine_of(threads, blocks):
    """Compile the kernel of a meeting; return its machine, arrays, and tile of other blocks."""
    kernel, peers = meeting(threads, blocks)
    given = np.random.default_rng(1).integers(0, 4096, (ROWS, threads)).astype(np.float32)
    got = np.zeros_like(given)
    ptx = compile_ptx(kernel, (NUMBERS, NUMBERS), cc=(9, 0, "a"))
    return Machine(ptx, given, got, block=(threads, 1, 1)), given, got, peers


@pytest.mark.parametrize("threads", [32, 64, 256])
def test_threads_of_a_block_have_the_whole(threads):
    machine, given, got, _ = machine_of(threads, 1)
    machine.run_together(range(threads))
    stores = [name for name, *_ in machine.accesses if name.startswith("st.shared")]
    assert len(stores) == (3 * threads // 32 if threads > 32 else 0)  # one for each warp and row
    np.testing.assert_array_equal(got, np.broadcast_to(given.sum(1, keepdims=True), got.shape))


@pytest.mark.parametrize(("threads", "blocks"), every(2, [(64, 4), (32, 8), (256, 8), (32, 2)]))
def test_parts_go_to_each_block_of_the_cluster(threads, blocks):
    machine, given, _, peers = machine_of(threads, blocks)
    rank, warps = blocks - 1, threads // 32
    parts = warps if warps * blocks <= 32 else 1  # that a block sends to each
    entries = parts * blocks
    logs = machine.run_together(range(threads), cluster_ctarank=rank)
    *_, home, barriers = machine.shared
    sums = given.reshape(3, parts, -1).sum(2)
    for turn in range(3):
        sent = {}
        for log in logs:
            mine = [values for name, values in log if name.startswith("st.async")]
            for place, part, barrier in mine[turn : turn + 1]:
                sent[place] = (np.uint32(part[0]).view(np.float32), barrier)
        expected = {
            home + peers.offset(turn % 2 * entries + rank * parts + part, 0) | peer << 24: (
                sums[turn, part],
                barriers + 8 * (turn % 2) | peer << 24,
            )
            for part in range(parts)
            for peer in range(blocks)
        }
        assert sent == expected
    expects = [values for name, values in logs[0] if "expect_tx" in name]
    assert [nbytes for *_, nbytes in expects] == [16 * entries] * 3
