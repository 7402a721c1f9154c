"""The blocks of a launch that have not begun, from which running blocks take."""

import pytest

from numba_tma.simulator.launch_queue import LaunchQueue

BLOCKS = [(i, 0, 0) for i in range(64)]


@pytest.mark.parametrize("seed", "abc")
def test_blocks_are_taken_in_order_and_begin_no_more(seed):
    queue = LaunchQueue(BLOCKS, seed)
    assert queue.begin(BLOCKS[0]) and not queue.begin(BLOCKS[0])
    taken = []
    while found := queue.take(BLOCKS[0]):
        taken.append(found)
    assert taken == BLOCKS[1 : 1 + len(taken)] and not any(map(queue.begin, taken))
    assert all(map(queue.begin, BLOCKS[1 + len(taken) :]))


@pytest.mark.parametrize("seed", "abc")
def test_a_cluster_that_got_nothing_gets_nothing_more(seed):
    queue = LaunchQueue(BLOCKS * 8, seed)
    while queue.take(BLOCKS[0]):
        pass
    assert [queue.take(BLOCKS[0]) for _ in range(20)] == [None] * 20
    assert any(queue.take((1, i, 0)) for i in range(20)), "but others do"


def test_a_request_finds_a_block_most_of_the_time():
    got = [LaunchQueue(BLOCKS, str(seed)).take((0, 0, 0)) for seed in range(200)]
    assert 120 < sum(block is not None for block in got) < 160
    assert LaunchQueue([], "").take((0, 0, 0)) is None
    again = [LaunchQueue(BLOCKS, str(seed)).take((0, 0, 0)) for seed in range(200)]
    assert got == again, "the seed chooses"
