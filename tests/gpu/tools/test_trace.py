"""Traces on a GPU: what is recorded, what it costs, and that the summary names what is slow."""

import functools
import json
import math
import time

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host import trace_buffer, tracing
from numba_tma.host.backend import traced_kernels
from numba_tma.kernels._host.memo import forget_all
from numba_tma.kernels.attention import attention
from numba_tma.kernels.matmul import matmul
from numba_tma.tools.bench.timing import time_alternating
from tests.gpu.worker import on_gpu

ROWS, COLUMNS, BLOCKS = 64, 128, 132
TILE = tma.Tile((ROWS, COLUMNS), np.float32)
ROW = tma.Tile((1, COLUMNS), np.float32)
CONSUMERS = 256
ATTEMPTS = 10
WARPS = CONSUMERS // 32


def scaler(stages, tile=TILE, produces=None, consumes=None, ends=None, more=0, slow_warp=False):
    """Return a kernel that doubles the tiles of an array, with a nap somewhere."""
    pipeline, rows = tma.TilePipeline(stages, x=tile), tile.shape[0]
    fills, works = produces or 0, consumes or 0
    drains = bool(ends)

    @cuda.jit
    def scale(x, y, n_tiles):
        pipe = pipeline.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        rounds = 1
        if more and first == 0:
            rounds = more
        for _ in range(rounds):
            if pipe.is_producer():
                for tile, stage in pipe.produce(first, n_tiles, step):
                    if fills:
                        ptx.nanosleep(np.uint32(fills))
                    x.load(stage.x, (tile * rows, 0), stage.barrier)
            elif pipe.is_consumer():
                for tile, stage in pipe.consume(first, n_tiles, step):
                    work = tma.mark("double")
                    for i, j in pipe.indices(stage.x):
                        stage.x[i, j] *= 2
                    if works:
                        ptx.nanosleep(np.uint32(works))
                    if slow_warp and cuda.threadIdx.x < 32:
                        ptx.nanosleep(np.uint32(4000))
                    work.close()
                    pipe.store(y, stage.x, (tile * rows, 0))
                    if drains:
                        if cuda.threadIdx.x == 0:
                            ptx.cp_async_bulk_wait_group(0)
                        pipe.sync_consumers()

    return scale


def traced(kernel, tiles, tile=TILE, blocks=BLOCKS, **options):
    """Launch a scaler with a trace and without; return the trace, after a look at the results."""
    x = np.random.default_rng(0).random((tiles * tile.shape[0], COLUMNS), np.float32)
    given, taken = cuda.to_device(x), cuda.to_device(np.zeros_like(x))
    maps = tma.tensor_map(given, tile), tma.tensor_map(taken, tile)
    with tma.trace(**options) as trace:
        kernel[blocks, CONSUMERS + 32](*maps, tiles)
    np.testing.assert_array_equal(taken.copy_to_host(), 2 * x)
    taken.copy_to_device(np.zeros_like(x))
    kernel[blocks, CONSUMERS + 32](*maps, tiles)
    np.testing.assert_array_equal(taken.copy_to_host(), 2 * x)
    assert len(trace.launches) == 1
    return trace


def repeated(check):
    """Let a check of times fail some times: other tests' kernels interrupt one that is measured."""

    @functools.wraps(check)
    def until_it_holds(*args, **kwargs):
        for _ in range(ATTEMPTS - 1):
            try:
                return check(*args, **kwargs)
            except AssertionError:
                time.sleep(0.2)
        return check(*args, **kwargs)

    return until_it_holds


@on_gpu(limit=120)
@repeated
def test_a_trace_has_every_step_of_the_traced_blocks():
    tiles = 8 * BLOCKS
    (launch,) = traced(scaler(3), tiles, blocks=BLOCKS).launches
    assert launch.unit == "ns" and launch.dropped == 0
    assert len(launch.blocks) == 4 and len(set(launch.processors.values())) >= 2
    for block in launch.blocks:
        spans = [span for span in launch.spans if span.block == block]
        kinds = {kind: [s for s in spans if s.kind == kind] for kind in {s.kind for s in spans}}
        assert len(kinds["load"]) == len(kinds["empty"]) == 8
        assert {s.nbytes for s in kinds["load"]} == {TILE.nbytes}
        assert [s.stage for s in kinds["load"]] == [0, 1, 2, 0, 1, 2, 0, 1]
        assert len(kinds["full"]) == WARPS * 8 and len(kinds["release"]) == WARPS * 8
        assert len(kinds["mark"]) == WARPS * 8 and {s.name for s in kinds["mark"]} == {"double"}
        assert len(kinds["store"]) == 8 and len(kinds["run"]) == WARPS + 1
        roles = [launch.roles[block, warp] for warp in range(WARPS + 1)]
        assert roles == ["consumer"] * WARPS + ["producer"]
        for load in kinds["load"]:  # on one time: nobody sees a stage full before its load
            full = min(s.end for s in kinds["full"] if s.stage == load.stage and s.end > load.end)
            assert 300 < full - load.end < 20_000
    meet = [s for s in launch.spans if s.kind == "meet" and s.block == launch.blocks[0]]
    first = sorted(meet, key=lambda s: s.end)[: WARPS + 1]  # the block's start
    assert first[-1].end - first[0].end < 100


@on_gpu(limit=120)
@repeated
def test_a_ring_keeps_the_newest_records_and_counts_the_others():
    (launch,) = traced(scaler(3), 400 * BLOCKS, blocks=BLOCKS, megabytes=0.5).launches
    assert launch.dropped > 0
    assert max(s.end for s in launch.of("run")) == pytest.approx(launch.duration, rel=0.2)
    assert {launch.roles[launch.blocks[0], warp] for warp in range(WARPS + 1)} == {
        "consumer",
        "producer",
    }


@on_gpu(limit=120)
def test_launchers_and_device_functions_are_traced_and_then_as_before(tmp_path):
    @cuda.jit(device=True)
    def half(value):
        work = tma.mark("half")
        result = value / 2
        work.close()
        return result

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = half(out[cuda.threadIdx.x])

    out = cuda.to_device(np.full(64, 64.0))
    launch = tma.launcher(kernel, 1, 64)
    launch(out)
    with tma.trace() as trace:
        launch(out)
        kernel[1, 64](out)
    launch(out)
    kernel[1, 64](out)
    np.testing.assert_array_equal(out.copy_to_host(), np.full(64, 2.0))
    assert [len(list(found.of("mark"))) for found in trace.launches] == [2, 2]
    trace.save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "mark" for event in events) == 4


# ------------------------------------------------------------------------------- verdicts

SLOW = {
    "latency": (lambda: scaler(1), 40 * BLOCKS, {}),
    "producer": (lambda: scaler(3, produces=3000), 20 * BLOCKS, {}),
    "compute": (lambda: scaler(3, consumes=4000), 20 * BLOCKS, {}),
    "drain": (lambda: scaler(3, ends=True), 20 * BLOCKS, {}),
    "meeting": (lambda: scaler(3, slow_warp=True), 20 * BLOCKS, {}),
    "uneven": (lambda: scaler(3, more=4), 20 * BLOCKS, {}),
    "small stages": (lambda: scaler(3, ROW), 200 * BLOCKS, {"tile": ROW}),
    "start": (lambda: scaler(1), 8 * BLOCKS, {"blocks": 8 * BLOCKS}),
}


@pytest.mark.parametrize("kind", SLOW)
@on_gpu(limit=120)
@repeated
def test_the_summary_names_what_a_kernel_was_slowed_by(kind):
    make, tiles, options = SLOW[kind]
    summary = traced(make(), tiles, **options).summary()
    print(summary)
    assert summary.verdicts[0].kind == kind


# ----------------------------------------------------------------------------------- cost


class Timed:
    """Times launches of a traced kernel, with so many of its blocks traced."""

    def __init__(self, blocks):
        self.blocks, self.time = blocks, None

    def launch(self, traced, run):
        cluster = math.prod(traced.cluster or (1,))
        sampling = trace_buffer.sampled(self.blocks, traced.grid, traced.block, cluster)
        rings = trace_buffer.Rings(sampling, 16 << 20)
        rings.begin()
        self.time = time_alternating({"run": run})["run"]
        rings.end()


def time_of(call, blocks):
    recorder = Timed(blocks)
    forget_all()
    with traced_kernels().tracing_launches(), tracing.recording(recorder):
        call()
    forget_all()
    return recorder.time


@on_gpu(limit=120)
@repeated
def test_a_record_costs_at_most_60_ns():
    @cuda.jit
    def marks(out, n):
        for _ in range(n):
            work = tma.mark("nothing")
            work.close()
        out[cuda.threadIdx.x] = n

    with tma.trace(blocks=1) as trace:
        marks[1, 32](cuda.device_array(32, np.int64), 2000)
    times = [s.end for s in trace.launches[0].of("mark")]
    assert (times[-1] - times[100]) / (len(times) - 101) < 60


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 1024)])
@on_gpu(limit=120)
@repeated
def test_one_traced_block_costs_a_matmul_at_most_a_tenth(shape):
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def call():
        matmul(a, b, out=out)

    call()
    plain = [time_alternating({"call": call})["call"] for _ in range(2)]
    costs = time_of(call, 1)
    print(f"{shape}: {min(plain) * 1e6:.1f} us, with a trace of one block {costs * 1e6:.1f}")
    assert costs < 1.1 * max(plain)


@on_gpu(limit=120)
def test_a_traced_attention_is_right():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 512, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = attention(q, k, v)
    with tma.trace() as trace:
        found = attention(q, k, v)
    assert torch.equal(found, expected)
    (launch,) = [x for x in trace.launches if "forward" in x.kernel]
    assert {"full", "load", "release", "products", "tile"} <= {s.kind for s in launch.spans}
