"""The simulator refuses each wrong kernel of the table, with the compiler's sentence."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host import host_only
from tests.mutants.refused import PIPE, REFUSED, ROLES, TILE, loader

OF_ROLES = tma.TilePipeline(2, x=TILE, producer=ROLES.load, consumer=ROLES.compute)


def launch(kernel, block=64, tiles=4):
    x = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    y = np.zeros_like(x)
    kernel[1, block](tma.tensor_map(x, TILE), y, tiles)
    return x, y


@pytest.mark.parametrize("wrong", REFUSED, ids=repr)
def test_the_simulator_refuses(wrong):
    with pytest.raises(Exception) as caught:
        launch(wrong.build(), wrong.threads)
    assert wrong.simulated in str(caught.value)


def test_what_is_wrong_in_those_kernels_is_all_that_is_wrong():
    copied = loader(consumer="y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]")
    x, y = launch(copied)
    assert np.array_equal(y[::4], x[::4])


@pytest.mark.parametrize(
    ("backwards", "tiles"), [("(n - 1, -1, -1)", [3, 2, 1, 0]), ("(n - 1, 0, -2)", [3, 1])]
)
def test_loops_run_backwards(backwards, tiles):
    kernel = loader(
        loop=f"pipe.produce{backwards}",
        consume=f"pipe.consume{backwards}",
        consumer="y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]",
    )
    x, y = launch(kernel)
    rows = [4 * tile for tile in tiles]
    assert np.array_equal(y[rows], x[rows]) and np.count_nonzero(y.any(axis=1)) == len(rows)


def test_a_negative_step_of_the_launch_is_refused():
    """A compiled kernel would run no turn, without a word."""
    kernel = loader(loop="pipe.produce(n - 1, -1, n - 5)", consume="pipe.consume(n - 1, -1, n - 5)")
    with pytest.raises(
        simulator.NotCompiled, match=r"\(step=n - 5\) is -1 here, and a compiled loop"
    ):
        launch(kernel)


def test_a_name_of_one_literal_is_a_literal():
    loop = "(n - 1, -1, back)"
    kernel = loader(
        before="back = -1",
        loop=f"pipe.produce{loop}",
        consume=f"pipe.consume{loop}",
        consumer="y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]",
    )
    x, y = launch(kernel)
    assert np.array_equal(y[::4], x[::4])


@pytest.mark.parametrize("block", [2048, (32, 64), (64, 32)])
def test_a_block_has_at_most_1024_threads(block):
    with pytest.raises(ValueError, match=r"has 2,048 threads; a block has at most 1,024"):
        launch(loader(), block)


def test_a_signature_of_maps_is_accepted():
    @cuda.jit((tma.TensorMapType(2, TILE),))
    def kernel(x):
        x.prefetch()

    kernel[1, 32](tma.tensor_map(np.zeros((4, 32), np.float32), TILE))


def test_the_host_uses_what_kernels_may_not():
    x_map = tma.tensor_map(np.zeros((8, 32), np.float32), TILE)
    assert x_map.shape == (8, 32) and TILE.offset(1, 0) == 128 and x_map.array.shape == (8, 32)


@cuda.jit(device=True)
def makes_a_tile():
    return tma.Tile((4, 32), "f32")


def test_device_functions_see_what_kernels_see():
    @cuda.jit
    def kernel():
        makes_a_tile()

    with pytest.raises(TypeError, match=r"Tile\(...\) is for the host"):
        kernel[1, 1]()


# ------------------------------------------------------------------- causes and repairs


@cuda.jit
def acquires_in_all_lanes(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        producer = pipe.producer()
        for t in range(n):
            stage = producer.acquire()
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for _ in pipe.consume(0, n):
            pass


@cuda.jit
def loads_in_all_threads(x, y, n):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        barrier.arrive_expect_tx(TILE.nbytes)
    x.load(tile, (0, 0), barrier)
    barrier.wait(0)


@cuda.jit
def third_role_consumes(x, y, n):
    pipe = OF_ROLES.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for _ in pipe.consume(0, n):
            pass


@cuda.jit
def releases_early(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        consumer = pipe.consumer()
        for t in range(n):
            stage = consumer.wait()
            consumer.release()
            y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]


def producer_uses_the_stage(writes):
    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t * 4, 0), stage.barrier)
                if writes:
                    stage.x[0, 0] = 1
                else:
                    y[0, 0] = stage.x[0, 0]
        else:
            for _ in pipe.consume(0, n):
                pass

    return kernel


@pytest.mark.parametrize("writes", [False, True])
def test_who_reads_too_early_is_told_how_a_pipeline_waits(writes):
    """Who writes too early is not: no wait makes that right."""
    with pytest.raises(simulator.EarlyOverwrite if writes else simulator.EarlyRead) as caught:
        launch(producer_uses_the_stage(writes))
    waits = "In a pipeline: consumer.wait() and pipe.consume(...) return a stage when it is full"
    assert (waits in str(caught.value)) == (not writes)


@cuda.jit
def stores_by_itself(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, n):
            if cuda.threadIdx.x == 0:
                x.store(stage.x, (t * 4, 0))


@pytest.mark.parametrize(
    ("kernel", "block", "error", "text"),
    [
        (acquires_in_all_lanes, 64, "BarrierMisuse", "call acquire() under `if tma.elect_sync():`"),
        (loads_in_all_threads, 64, "EarlyOverwrite", "The other load is the same one, at test_ref"),
        (third_role_consumes, 96, "BarrierMisuse", "a thread that is no consumer: put it under"),
        (
            loader(),
            (32, 2),
            "BadOperand",
            "one-dimensional blocks of whole warps: launch blocks",
        ),
        (loader(loop="pipe.produce(0, n - 1)"), 64, "Deadlock", "filled fewer stages than its con"),
        (loader(loop="pipe.produce(0, n + 3)"), 64, "Deadlock", "give both sides the same range"),
        (releases_early, 64, "EarlyOverwrite", "In a pipeline: release the stage after its last"),
        (stores_by_itself, 64, "EarlyOverwrite", "In a pipeline: pipe.store(map, tile, coords)"),
    ],
)
def test_an_error_has_its_cause_and_a_repair_in_the_pipelines_words(kernel, block, error, text):
    with pytest.raises(getattr(simulator, error)) as caught:
        launch(kernel, block)
    assert text in str(caught.value)


def test_a_kernel_whose_file_holds_another_text_runs(tmp_path):
    """Its lines are not Python's; the kernel was compiled before they were written, say."""
    source = "from numba import cuda\n@cuda.jit\ndef kernel(y):\n    y[0] = 1.0\n"
    text = tmp_path / "text.py"
    names = {}
    exec(compile(source, str(text), "exec"), names)
    text.write_text("one\nline's end (is\nnot here 'and\n" * 4)
    y = np.zeros(1)
    names["kernel"][1, 1](y)
    assert y[0] == 1


def test_kernels_know_maps_by_their_types_alone(monkeypatch):
    one = tma.tensor_map(np.zeros((16, 32), np.float32), TILE)
    of_one, of_many = ("array", "shape", "box", "copies"), ("maps",)
    for it, names in ((one, of_one), (tma.TensorMapArray([one]), of_many)):
        for name in names:
            read = eval(f"lambda it: it.{name}")
            read(it)  # on the host
            with monkeypatch.context() as of_a_kernel:
                of_a_kernel.setattr(host_only, "KERNEL_CODE", {id(read.__code__)})
                with pytest.raises(AttributeError, match=name):
                    read(it)
