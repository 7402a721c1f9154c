"""The output rows of Mojo's tile_pipeline, one test for each, by its name; and what goes wrong."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.backend.interface import u32
from tests.kernels import output_kernels as kernels

ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(1))
SHARED = tma.OutputTilePipeline(2, tma.Tile((4, 32), "f32"), mma=ROLES.mma, epilogue=ROLES.epilogue)
FOUR = kernels.roles()
TENSOR = tma.OutputTilePipeline(
    2, tma.Tile((128, 32), "f32"), mma=FOUR.mma, epilogue=FOUR.epilogue, memory="tensor"
)


def shared(mma, epilogue, tiles=3):
    """Run what the two roles do with a pipeline in shared memory, then close it."""

    def kernel():
        pipe = SHARED.start()
        (mma if ROLES.mma.is_member() else epilogue)(pipe, tiles)
        pipe.close()

    cuda.jit(kernel)[1, ROLES.threads]()


def tensor(mma, epilogue, tiles=3, closed=True):
    """Run what the two roles do with a pipeline in tensor memory, then close it."""

    def kernel():
        pipe = TENSOR.start()
        (mma if FOUR.mma.is_member() else epilogue)(pipe, tiles)
        if closed:
            pipe.close()

    cuda.jit(kernel)[1, FOUR.threads]()


def fill_shared(pipe, tiles):
    for tile, stage in pipe.produce(0, tiles):
        stage.acc[0, ROLES.mma.thread()] = tile


def check_shared(pipe, tiles):
    for tile, stage in pipe.consume(0, tiles):
        assert stage.acc[0, 31 - ROLES.epilogue.thread()] == tile


def fill_tensor(pipe, tiles):
    for tile, stage in pipe.produce(0, tiles):
        stage.store(0, (tile, tile + FOUR.mma.thread()))


def check_tensor(pipe, tiles):
    for tile, stage in pipe.consume(0, tiles):
        assert stage.load(0, 2) == (tile, tile + FOUR.epilogue.thread())


# ---------------------------------------------------------------- OutputTilePipeline


def test_OutputTilePipeline():
    shared(fill_shared, check_shared, 5)
    tensor(fill_tensor, check_tensor, 5)


def test_OutputTilePipeline_acquire_for_mma():
    def mma(pipe, tiles):
        for tile in range(tiles):
            stage = pipe.acquire_for_mma()
            assert isinstance(stage, tma.OutputStage)
            assert stage.index == tile % 2
            stage.acc[0, ROLES.mma.thread()] = tile
            pipe.release_from_mma(stage)

    shared(mma, check_shared)


def test_OutputTilePipeline_acquire_for_mma_waits_until_the_stage_is_empty():
    def epilogue(pipe, tiles):
        pipe.acquire_for_epilogue()
        pipe.release_from_epilogue()  # the first of four

    with pytest.raises(sim.Deadlock, match=r"empty\[1\]"):
        shared(fill_shared, epilogue, 4)


def test_OutputTilePipeline_release_from_mma():
    seen = []

    def mma(pipe, tiles):
        stage = pipe.acquire_for_mma()
        stage.acc[0, ROLES.mma.thread()] = 7
        seen.append("filled")
        pipe.release_from_mma(stage)

    def epilogue(pipe, tiles):
        stage = pipe.acquire_for_epilogue()
        assert seen == ["filled"] * 32
        assert stage.acc[0, ROLES.epilogue.thread()] == 7
        pipe.release_from_epilogue()

    shared(mma, epilogue)


def test_OutputTilePipeline_release_from_mma_is_a_commit_in_tensor_memory(monkeypatch):
    commit, committed = tma.OutputTilePipeline._commit, []

    def counted(self, barrier):
        committed.append(cuda.threadIdx.x)
        commit(self, barrier)

    monkeypatch.setattr(tma.OutputTilePipeline, "_commit", counted)

    def mma(pipe, tiles):
        for tile in range(tiles):
            stage = pipe.acquire_for_mma()
            stage.store(0, (tile, tile + FOUR.mma.thread()))
            pipe.release_from_mma(stage)

    tensor(mma, check_tensor, 3)
    assert len(committed) == 3 * 4 and len(set(committed)) == 4, "one thread of each warp"
    with pytest.raises(sim.Deadlock, match=r"full\[0\]"):
        tensor(lambda pipe, tiles: None, check_tensor, 1)


def test_OutputTilePipeline_acquire_for_epilogue():
    def epilogue(pipe, tiles):
        for tile in range(tiles):
            stage = pipe.acquire_for_epilogue()
            assert stage.index == tile % 2
            assert stage.load(1, 1) == (tile + FOUR.epilogue.thread(),)
            pipe.release_from_epilogue()

    tensor(fill_tensor, epilogue)


def test_OutputTilePipeline_release_from_epilogue():
    def epilogue(pipe, tiles):
        for tile in range(tiles):
            stage = pipe.acquire_for_epilogue()
            assert stage.acc[0, ROLES.epilogue.thread()] == tile
            pipe.release_from_epilogue()

    shared(fill_shared, epilogue, 5)


def test_OutputTilePipeline_producer():
    def mma(pipe, tiles):
        assert isinstance(pipe.producer(), tma.OutputProducer)
        fill_shared(pipe, tiles)

    shared(mma, check_shared)


def test_OutputTilePipeline_consumer():
    def epilogue(pipe, tiles):
        assert isinstance(pipe.consumer(), tma.OutputConsumer)
        check_shared(pipe, tiles)

    shared(fill_shared, epilogue)


# --------------------------------------------------------------------------- its views


def test_OutputProducer():
    def mma(pipe, tiles):
        producer = pipe.producer()
        assert producer.enters()
        for tile in range(tiles):
            stage = producer.acquire()
            stage.store(0, (tile, tile + FOUR.mma.thread()))
            producer.commit()
        producer.close()

    tensor(mma, check_tensor)


def test_OutputProducer_acquire_commits_what_is_open():
    def mma(pipe, tiles):
        for tile in range(tiles):
            pipe.producer().acquire().acc[0, ROLES.mma.thread()] = tile

    shared(mma, check_shared)


def test_OutputProducer_acquire_as_a_scope():
    @tma.scopes
    def mma(pipe, tiles):
        with pipe.producer() as producer:
            for tile in range(tiles):
                with producer.acquire() as stage:
                    stage.store(0, (tile, tile + FOUR.mma.thread()))

    tensor(mma, check_tensor)


def test_OutputConsumer():
    def epilogue(pipe, tiles):
        consumer = pipe.consumer()
        assert consumer.enters()
        for tile in range(tiles):
            stage = consumer.acquire()
            assert stage.load(0, 2) == (tile, tile + FOUR.epilogue.thread())
            consumer.sync()
            consumer.release()
        consumer.close()

    tensor(fill_tensor, epilogue)


def test_OutputConsumer_acquire_as_a_scope():
    @tma.scopes
    def epilogue(pipe, tiles):
        with pipe.consumer() as consumer:
            for tile in range(tiles):
                with consumer.acquire() as stage:
                    assert stage.acc[0, ROLES.epilogue.thread()] == tile

    shared(fill_shared, epilogue)


def test_OutputConsumer_holds_several_stages_and_close_releases_them():
    def epilogue(pipe, tiles):
        consumer = pipe.consumer()
        first, second = consumer.acquire(), consumer.acquire()
        assert first.acc[0, 0] == 0 and second.acc[0, 0] == 1
        consumer.release()  # the first
        assert consumer.acquire().acc[0, 0] == 2
        consumer.close()  # the second and the third

    shared(fill_shared, epilogue)


def test_OutputStage_shared():
    def mma(pipe, tiles):
        stage = pipe.acquire_for_mma()
        assert stage.index == 0 and stage.acc.tile == SHARED.acc
        assert stage.owner.pipeline is SHARED
        assert stage.enters()
        with pytest.raises(sim.BadOperand, match="read and write stage.acc"):
            _ = stage.address
        with pytest.raises(sim.BadOperand, match="are in shared memory"):
            stage.load(0, 1)
        with pytest.raises(AttributeError, match="'OutputStage' object has no attribute 'a'"):
            _ = stage.a
        stage.acc[0, ROLES.mma.thread()] = 0
        stage.close()

    shared(mma, check_shared, 1)


def test_OutputStage_tensor():
    def mma(pipe, tiles):
        stage = pipe.acquire_for_mma()
        base = stage.address
        with pytest.raises(sim.BadOperand, match="columns of tensor memory"):
            _ = stage.acc
        with pytest.raises(sim.BadOperand, match="columns 31 to 32 of an accumulator that has 32"):
            stage.load(31, 2)
        with pytest.raises(sim.BadOperand, match="columns at once, not 3"):
            stage.store(0, (1, 2, 3))
        stage.store(0, (0, FOUR.mma.thread()))
        stage.close()
        assert pipe.acquire_for_mma().address == base + 32  # which close commits

    def epilogue(pipe, tiles):
        check_tensor(pipe, 1)
        pipe.acquire_for_epilogue()
        pipe.release_from_epilogue()

    tensor(mma, epilogue)


# ----------------------------------------------------------------------------- mutants


@pytest.mark.parametrize("seed", range(3))
def test_mutant_early_release_in_shared_memory(seed):
    """The epilogue releases a stage, then reads it: ordinary accesses race."""
    sim.seed(seed)

    def racing(pipe, tiles):
        for _ in range(tiles):
            stage = pipe.acquire_for_epilogue()
            pipe.release_from_epilogue()
            for _ in range(8):
                cuda.nanosleep(1)
                stage.acc[0, ROLES.epilogue.thread()]

    with pytest.raises(
        sim.DataRace, match=r"acc\[\d\] of TilePipeline.* written at .* and read by"
    ):
        shared(fill_shared, racing, 8)


def test_mutant_early_release_in_tensor_memory():
    def epilogue(pipe, tiles):
        for _ in range(tiles):
            stage = pipe.acquire_for_epilogue()
            pipe.release_from_epilogue()
            stage.load(0, 2)

    with pytest.raises((sim.EarlyRead, sim.EarlyOverwrite, sim.MissingFence)):
        tensor(fill_tensor, epilogue, 5)


def test_mutant_no_wait_st():
    def mma(pipe, tiles):
        lanes = u32(cuda.threadIdx.x // 32 % 4 << 21)
        for _ in range(tiles):
            stage = pipe.acquire_for_mma()
            ptx.tcgen05_st_32x32b(u32(stage.address + lanes), (1, 2), 2)
            pipe.release_from_mma(stage)

    with pytest.raises(sim.EarlyRead, match=r"must execute tcgen05_wait_st\(\)"):
        tensor(mma, check_tensor)


def test_mutant_no_wait_ld():
    def epilogue(pipe, tiles):
        lanes = u32(cuda.threadIdx.x // 32 % 4 << 21)
        for _ in range(tiles):
            stage = pipe.acquire_for_epilogue()
            ptx.tcgen05_ld_32x32b(u32(stage.address + lanes), 2)
            pipe.release_from_epilogue()

    with pytest.raises(sim.EarlyOverwrite, match=r"tcgen05_wait_ld\(\)"):
        tensor(fill_tensor, epilogue)


@pytest.mark.parametrize(
    ("fence", "kind"), [("_fence_after", sim.MissingFence), ("_fence_before", sim.MissingFence)]
)
def test_mutant_no_fence(monkeypatch, fence, kind):
    monkeypatch.setattr(tma.OutputTilePipeline, fence, lambda self: None)
    name = {"_fence_after": "after", "_fence_before": "before"}[fence]
    with pytest.raises(kind, match=rf"tcgen05_fence_{name}_thread_sync\(\)"):
        tensor(fill_tensor, check_tensor, 5)


def test_mutant_no_proxy_fence(monkeypatch):
    """A copy stores a stage as it is, and the warps that filled it have not fenced."""
    monkeypatch.setattr("numba_tma.pipeline.producer.fence_proxy_async", lambda: None)
    with pytest.raises(sim.MissingFence, match=r"fence_proxy_async\(\)"):
        kernels.Case().copied(2, 3)


def test_mutant_columns_leak():
    with pytest.raises(sim.TensorMemoryMisuse, match="ended without tcgen05_dealloc of columns"):
        tensor(fill_tensor, check_tensor, 3, closed=False)


def test_mutant_a_stage_is_committed_that_nobody_waits_for():
    def epilogue(pipe, tiles):
        check_tensor(pipe, tiles - 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="deallocated before the tcgen05_st of warp"):
        tensor(fill_tensor, epilogue, 2)


def test_mutant_half_a_role_commits():
    def mma(pipe, tiles):
        if FOUR.mma.thread() < 64:
            fill_tensor(pipe, tiles)

    with pytest.raises(sim.Deadlock, match=r"full\[0\]"):
        tensor(mma, check_tensor, 1)


def test_a_block_of_another_size():
    with pytest.raises(sim.BadOperand, match="launch blocks of 64, which Roles.threads says"):

        @cuda.jit
        def kernel():
            SHARED.start().close()

        kernel[1, 96]()


def test_columns_are_freed_for_another_pipeline():
    out = np.zeros(2)

    def use(pipe):
        if FOUR.mma.is_member():
            fill_tensor(pipe, 3)
        else:
            check_tensor(pipe, 3)
        pipe.close()

    @cuda.jit
    def kernel():
        use(TENSOR.start())
        out[0] = 1
        use(TENSOR.start())

    # The permit to allocate is given back for good, so a block starts one such pipeline.
    with pytest.raises(sim.TensorMemoryMisuse, match="relinquish_alloc_permit"):
        kernel[1, FOUR.threads]()
    assert out[0] == 1
