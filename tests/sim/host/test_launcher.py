"""Launchers in the simulator: the ordinary launch, with the same checks."""

import threading

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx

TILE = tma.Tile((8, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


@cuda.jit
def copy_tiles(x, y, num_tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(cuda.blockIdx.x, num_tiles, cuda.gridDim.x):
            x.load(stage.x, (t * 8, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(cuda.blockIdx.x, num_tiles, cuda.gridDim.x):
            pipe.store(y, stage.x, (t * 8, 0))
        pipe.close()


@cuda.jit
def ranks(out):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = ptx.cluster_ctarank() + 10 * ptx.cluster_nctarank()


@pytest.mark.parametrize("bound", [False, True])
def test_it_launches_the_kernel(bound):
    x = np.random.default_rng(1).random((40, 32), np.float32)
    y = np.zeros_like(x)
    launch = tma.launcher(copy_tiles, 2, 64, stream=cuda.stream(), pdl=True)
    arguments = (tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 5)
    if bound:
        launch.bind(*arguments)()
    else:
        launch(*arguments)
    assert np.array_equal(x, y)


def test_a_cluster_is_of_that_launch_alone():
    out = np.zeros(4, np.int32)
    tma.launcher(ranks, 4, 32, cluster=2)(out)
    assert out.tolist() == [20, 21, 20, 21]
    tma.launcher(ranks, 4, 32)(out)
    assert out.tolist() == [10, 10, 10, 10]


def test_mistakes_are_refused():
    launch = tma.launcher(ranks, 4, 32)
    with pytest.raises(TypeError, match=r"takes 1 positional argument but 2 were given"):
        launch(1, 2)
    with pytest.raises(ValueError, match="3 blocks along x are not a multiple of 2"):
        tma.launcher(ranks, 3, 32, cluster=2)
    with pytest.raises(ValueError, match="2,048 threads; a block has at most 1,024"):
        tma.launcher(ranks, 1, (64, 32))
    for what in (print, cuda.jit(device=True)(lambda x: x)):
        with pytest.raises(TypeError, match="is no kernel"):
            tma.launcher(what, 1, 32)


def test_threads_launch_one_kernel_in_clusters_of_different_sizes():
    wrong = []

    def work(size):
        try:
            for _ in range(4):
                out = np.zeros(4, np.int32)
                tma.launcher(ranks, 4, 32, cluster=size)(out)
                assert out.tolist() == [rank % (size or 1) + 10 * (size or 1) for rank in range(4)]
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(size,)) for size in [None, 1, 2, 4] * 4]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
