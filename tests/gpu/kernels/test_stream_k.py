"""Stream-K against float64, and its hand-overs: again, on streams, in graphs, after a failure."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.device.waiting import wait_for_flag
from numba_tma.host.debug import Site
from numba_tma.kernels._host import memo
from numba_tma.kernels._host.device import resident_clusters
from numba_tma.kernels.matmul import Config, StreamKConfig, matmul
from tests.gpu.kernels.test_matmul import LIMIT, TYPES, Device, check, factors, values
from tests.gpu.worker import on_gpu

SMALL = StreamKConfig(64, 64, stages=3)
CONFIGS = {
    "64 x 64": SMALL,
    "64 x 32": StreamKConfig(64, 32),
    "128 x 64": StreamKConfig(128, 64),
    "128 x 256": StreamKConfig(),
    "128 x 256, pairs": StreamKConfig(cluster=2),
    "128 x 192, fours": StreamKConfig(128, 192, cluster=4),
}


@pytest.mark.parametrize("name", CONFIGS)
@on_gpu(limit=LIMIT)
def test_configurations(name):
    """Fewer tiles than blocks, up to two waves, more than two, and a tile of many parts."""
    for shape in (
        *((1, 1, 1), (64, 32, 8192), (129, 257, 2000), (300, 520, 4096), (1000, 1000, 1000)),
        *((2049, 1288, 520), (1500, 1700, 333)),
    ):
        check(*factors(*shape, ("bf16", "bf16")), config=CONFIGS[name], what=name)


@pytest.mark.parametrize("seed", range(4))
@on_gpu(limit=LIMIT)
def test_random_shapes(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        m, n = (int(x) for x in rng.integers(1, 1200, 2))
        k, layout = int(rng.integers(1, 6000)), rng.choice(["TN", "TT", "NN", "NT"])
        config = CONFIGS[rng.choice(list(CONFIGS))]
        check(*factors(m, n, k, ("f16", "f16"), layout), out="f16", config=config, what=layout)


@pytest.mark.parametrize("kinds", [("f32", "f32", "f32"), ("i8", "u8", "i32"), ("i8", "i8", "f32")])
@on_gpu(limit=LIMIT)
def test_types(kinds):
    for shape in ((64, 64, 8192), (1000, 1000, 1000)):
        check(*factors(*shape, kinds), out=kinds[2], config=SMALL, out_dtype=kinds[2])


@on_gpu(limit=LIMIT)
def test_batches_and_sources():
    for config in (SMALL, StreamKConfig(cluster=2)):
        a, b = factors(300, 264, 2000, ("bf16", "bf16"), batch=(5,))
        check(a, b, config=config)
        check(a, b[0], config=config)
        old, added = values((5, 300, 264), "f32", 3), values((5, 300, 264), "f32", 4)
        out = Device(old.copy())
        terms = {"beta": 0.5, "residual": Device(added), "activation": "relu"}
        matmul(Device(a), Device(b), out, config=config, **terms)
        exact = a.astype(float) @ b.astype(float) + 0.5 * old
        np.testing.assert_allclose(out.get(), np.maximum(exact, 0) + added, 1e-4, 2e-2)


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """Slots and flags serve each call; sums have one order, whichever block is faster."""
    for shape in ((3000, 3000, 3000), (256, 512, 16384), (1000, 1000, 1000)):
        a, b = map(Device, factors(*shape, ("bf16", "bf16")))
        for config in (StreamKConfig(), StreamKConfig(cluster=2), StreamKConfig(128, 128)):
            out = Device(np.full(shape[:2], 7, np.float32))
            first = matmul(a, b, out, config=config).get().view(np.uint32).copy()
            for _ in range(30):
                again = matmul(a, b, out, config=config)
            np.testing.assert_array_equal(again.get().view(np.uint32), first)
            plain = matmul(a, b, out, config=Config()).get()
            np.testing.assert_allclose(first.view(np.float32), plain, 1e-4, 1e-1)


@on_gpu(limit=LIMIT)
def test_two_streams_at_once():
    """Neither launch's blocks all fit beside the other's, and still all of them end."""
    a, b = map(Device, factors(1000, 1000, 4000, ("bf16", "bf16")))
    streams = [cuda.stream() for _ in range(2)]
    outs = [Device(np.full((1000, 1000), 7, TYPES["bf16"])) for _ in streams]
    for config in (SMALL, StreamKConfig(cluster=2)):
        for _ in range(50):
            for out, stream in zip(outs, streams):
                matmul(a, b, out, config=config, stream=stream)
        cuda.synchronize()
        first, second = (out.get().view(np.uint16) for out in outs)
        alone = Device(np.full((1000, 1000), 7, TYPES["bf16"]))
        expected = matmul(a, b, alone, config=config).get().view(np.uint16)
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(second, expected)


@on_gpu(limit=LIMIT)
def test_graphs():
    """Captured at their first calls, and replayed on two streams at a time."""
    torch = pytest.importorskip("torch")
    from tests.gpu.graphs import check_replays

    a, b = (torch.randn(1000, 1000, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = matmul(a, b, torch.empty_like(a), config=SMALL)  # compiles

    def call(out, stream):
        matmul(a, b, out, config=SMALL, stream=stream)

    check_replays(call, expected)


@on_gpu(limit=LIMIT)
def test_after_a_failed_launch():
    """The flags of a failed launch, wherever they are left, serve no other launch."""
    a, b = map(Device, factors(512, 512, 2000, ("bf16", "bf16")))
    out = Device(np.zeros((512, 512), TYPES["bf16"]))
    memo.forget_all()
    first = matmul(a, b, out, config=SMALL).get().view(np.uint16).copy()
    (call,) = (call for calls in memo._tables for call in calls.table.values())
    _, flags = call.recording.workspace

    def fails():
        cuda.as_cuda_array(flags).copy_to_device(np.ones(flags.shape, np.uint32))
        raise RuntimeError("as a kernel that was stopped")

    assert not cuda.as_cuda_array(flags).copy_to_host().any()
    call.recording.launches.append(fails)
    with pytest.raises(RuntimeError, match="stopped"):
        matmul(a, b, out, config=SMALL)
    again = matmul(a, b, out, config=SMALL).get().view(np.uint16)
    np.testing.assert_array_equal(again, first)


@on_gpu(limit=LIMIT)
def test_a_flag_that_nobody_sets_ends_in_debug_mode():
    SITE = Site("sums of another block", kind="flag", debug=True)

    @cuda.jit
    def waits(flags):
        wait_for_flag(flags.ctypes.data, SITE)

    flags = cuda.to_device(np.zeros(1, np.uint32))
    with pytest.raises(tma.PipelineTimeout, match=r"warp 0 of block .* on sums of another block"):
        waits[2, 32](flags)
    flags.copy_to_device(np.ones(1, np.uint32))
    waits[2, 32](flags)


@on_gpu(limit=LIMIT)
def test_tiles_of_whole_waves():
    """No tile is divided where the tiles fill the waves."""
    tiles = 2 * resident_clusters(1, 1)
    check(*factors(64, 64 * tiles, 520, ("bf16", "bf16")), config=SMALL)
