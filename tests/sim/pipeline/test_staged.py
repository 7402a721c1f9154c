"""`StagedPipeline` by itself, by the names that its methods have in Mojo."""

import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.simulator import BadOperand


def staged(body, stages=3, parts=2):
    """Call body(producer's pipeline, consumer's) in one warp, over barriers of their own."""

    @cuda.jit
    def kernel():
        barriers = tma.shared_barriers(2 * stages * parts)
        loads = tma.StagedPipeline(stages, parts, barriers.address, tma.PipelineState(stages, 0, 1))
        works = tma.StagedPipeline(stages, parts, barriers.address, tma.PipelineState(stages))
        if cuda.threadIdx.x == 0:
            works.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        body(loads, works)

    kernel[1, 32]()


def test_StagedPipeline():
    def body(loads, works):
        assert works.num_mbars == 12
        first = works.barriers
        # full ones first, sub-stages side by side, then the empty ones
        assert works.full(1) == tma.Barrier(first + 8)  # which keeps no ledger
        for index in range(3):
            assert works._at(index, 1) == first + 8 * (2 * index + 1)
            assert works._empty_at(index, 0) == first + 8 * (6 + 2 * index)
        assert (loads.state.phase, works.state.phase) == (1, 0)
        loads.producer_acquire(1)  # passes at once: the producer's phase is 1
        assert works.step() == 0 and works.state.index == 1
        assert [works.step(), works.step()] == [1, 2]
        assert (works.state.index, works.state.phase) == (0, 1)

    staged(body)


def test_StagedPipeline_consumer_wait_and_consumer_release():
    def body(loads, works):
        for turn in range(7):
            for part in range(2):
                loads.producer_acquire(part)
                if cuda.threadIdx.x == 0:
                    loads.full(part).arrive()
                works.consumer_wait(part)
                works.consumer_release(part)
            loads.step()
            assert works.state.count == loads.state.count == turn + 1

    staged(body)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_StagedPipeline_consumer_release_at(one_by_one):
    def body(loads, works):
        left = 0
        for turn in range(7):
            for part in range(2):
                loads.producer_acquire(part)
                if cuda.threadIdx.x == 0:
                    loads.full(part).arrive()
                works.consumer_wait(part)
            if turn and one_by_one:
                works.consumer_release_at(left, 1)
                works.consumer_release_at(left, 0, cuda.threadIdx.x == 9)
            elif turn:
                works.consumer_release_at(left)
            loads.step()
            left = works.step()
            assert works.state.count == turn + 1

    staged(body)


NUMBERS = [
    ("producer_acquire", "qk_stage"), ("consumer_wait", "qk_stage"),
    ("consumer_release", "qk_stage"), ("consumer_release_at", "qk_stage"),
    ("consumer_release", "e"), ("consumer_release_at", "index"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "name"), NUMBERS)
def test_methods_take_numbers_of_sub_stages_that_the_ring_has(method, name):
    required = {"index": 0} if method == "consumer_release_at" and name != "index" else {}

    cases = [("text", f"{method}({name}=...) takes a number, not text")]
    if name == "qk_stage":
        says = "the ring has num_qk_stages = 2 sub-stage(s) to a stage, numbered 0 to 1"
        cases += [(n, f"{method}(qk_stage={n}): {says}") for n in (2, -1)]
    for given, text in cases:
        wrong = required | {name: given}
        with pytest.raises(BadOperand) as caught:
            staged(lambda loads, works, wrong=wrong: getattr(works, method)(**wrong))
        assert text in str(caught.value)
