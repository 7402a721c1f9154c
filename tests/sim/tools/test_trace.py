"""Traces in the simulator: the same spans as on a GPU, in the scheduler's steps."""

import json
import re
import subprocess
import sys
import threading
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx, simulator
from numba_tma.kernels.matmul import matmul
from numba_tma.simulator.trace import active
from numba_tma.tools import explain, pictures, plot
from numba_tma.tools.trace.facts import pipelines_of

TILE = tma.Tile((8, 32), "f32")
ROLES = tma.Roles(work=tma.Warps(2), load=tma.Warps(1))
PIPE = tma.TilePipeline(3, x=TILE, producer=ROLES.load, consumer=ROLES.work)
TILES = 8


@cuda.jit(device=True)
def twice(tile, pipe):
    work = tma.mark("twice")
    for i, j in pipe.indices(tile):
        tile[i, j] *= 2
    work.close()


@cuda.jit
def double(x, y, tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    elif pipe.is_consumer():
        for tile, stage in pipe.consume(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            twice(stage.x, pipe)
            pipe.store(y, stage.x, (tile * 8, 0))


@cuda.jit
def other(x):
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


def run(blocks=1, tiles=TILES):
    x = np.random.default_rng(1).random((8 * tiles, 32), np.float32)
    y = np.zeros_like(x)
    double[blocks, ROLES.threads](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), tiles)
    np.testing.assert_array_equal(y, 2 * x)


def of(launch, kind, block=(0, 0, 0)):
    return [s for s in launch.spans if s.kind == kind and s.block == block]


@pytest.fixture(scope="module")
def traced():
    with tma.trace() as trace:
        run(2)
        other[3, 64](np.zeros(64))
    return trace


def test_a_pipeline(traced):
    launch, _ = traced.launches
    assert (launch.kernel, launch.grid, launch.block) == ("double", (2, 1, 1), (96, 1, 1))
    assert (launch.unit, launch.blocks, launch.dropped) == ("steps", [(0, 0, 0), (1, 0, 0)], 0)
    for block in launch.blocks:
        stages = [0, 1, 2, 0]
        loads = of(launch, "load", block)
        assert [s.stage for s in loads] == stages and {s.nbytes for s in loads} == {TILE.nbytes}
        assert {s.warp for s in loads} == {2} and {s.pipeline for s in loads} == {str(PIPE)}
        assert [s.stage for s in of(launch, "empty", block)][:4] == stages
        for warp in (0, 1):
            own = [s for s in of(launch, "full", block) if s.warp == warp]
            assert [s.stage for s in sorted(own, key=lambda s: s.end)] == stages
            names = [s.name for s in of(launch, "mark", block) if s.warp == warp]
            assert names == ["twice"] * 4
        assert len(of(launch, "store", block)) == 4 and len(of(launch, "landed", block)) == 4
        assert [s.stage for s in of(launch, "release", block)][0] == 0
        assert len(of(launch, "run", block)) == 3
        roles = [launch.roles[block, warp] for warp in range(3)]
        assert roles == ["work", "work", "load"]


def test_the_order_of_a_turn(traced):
    launch, _ = traced.launches
    (facts,) = pipelines_of(launch)
    assert len(facts.fills) == TILES and facts.num_stages == 3
    landed = sorted(s.end for s in of(launch, "landed"))
    for fill, at in zip((f for f in facts.fills if f.block == (0, 0, 0)), landed):
        assert fill.issued < at <= fill.full < fill.released
        assert (fill.nbytes, fill.loads) == (TILE.nbytes, 1)
    for span in launch.spans:
        assert span.end >= span.start >= 0
    for warp, kind in ((0, "full"), (1, "full"), (2, "empty")):
        waits = sorted((s for s in of(launch, kind) if s.warp == warp), key=lambda s: s.end)
        assert all(b.start >= a.end for a, b in pairwise(waits)) and len(waits) >= 4
    run, *_ = of(launch, "run")
    inside = [s for s in launch.spans if (s.block, s.warp) == (run.block, run.warp)]
    assert run.start <= min(s.start for s in inside) and run.end == max(s.end for s in inside)


def test_launches_are_apart(traced):
    _, second = traced.launches
    assert (second.kernel, second.grid, second.block) == ("other", (3, 1, 1), (64, 1, 1))
    assert len(second.blocks) == 3 and {s.kind for s in second.spans} == {"meet", "run"}
    for block in second.blocks:
        meets = of(second, "meet", block)
        assert {s.name for s in meets} == {"syncthreads"} and max(s.duration for s in meets) > 0


def test_texts_files_and_pictures(traced, tmp_path):
    text = str(traced.summary())
    assert text.startswith("double, grid (2, 1, 1), block (96, 1, 1): ") and " steps in 2" in text
    assert "\n  load " in text and "\n  work " in text and "'twice'" in text
    assert f"{TILES} fills of 1,024 B" in text
    traced.save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())
    names = {event["name"] for event in events["traceEvents"]}
    assert {"twice", "wait full [0]", "load [2]", "TilePipeline: stages", "process_name"} <= names
    assert [x["unit"] for x in events["otherData"]["launches"]] == ["steps", "steps"]
    picture = pictures.picture(traced)
    assert "double, block (0, 0, 0)" in picture and "warp 2 load" in picture
    ax = plot.timeline(traced)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["stage 0", "stage 1", "stage 2"]
    assert str(PIPE) in ax.get_title(loc="left")


def test_so_many_launches_of_each_kernel():
    with tma.trace(launches=1) as trace:
        run()
        run()
        other[1, 32](np.zeros(32))
        run()
    assert [x.kernel for x in trace.launches] == ["double", "other"]
    assert trace.left_out == {"double": 2}


def test_a_trace_inside_of_a_trace():
    with tma.trace() as outer:
        other[1, 32](np.zeros(32))
        with tma.trace() as inner:
            run()
        other[2, 32](np.zeros(32))
    assert [x.kernel for x in inner.launches] == ["double"]
    assert [x.grid[0] for x in outer.launches] == [1, 2] and active() is None


def test_what_happened_before_an_error_is_kept():
    @cuda.jit
    def hangs(x):
        barrier = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
        cuda.syncthreads()
        barrier.wait(0)

    with pytest.raises(simulator.Deadlock), tma.trace() as trace:
        run()
        hangs[1, 32](np.zeros(32))
    assert [x.kernel for x in trace.launches] == ["double", "hangs"] and active() is None
    assert {"run", "meet"} <= {s.kind for s in trace.launches[1].spans}
    with pytest.raises(RuntimeError, match="mine"), tma.trace() as trace:
        other[1, 32](np.zeros(32))
        raise RuntimeError("mine")
    assert len(trace.launches) == 1


def test_another_thread_is_not_traced():
    with tma.trace() as trace:
        thread = threading.Thread(target=other[1, 32], args=(np.zeros(32),))
        thread.start()
        thread.join(60)
    assert trace.launches == [] and str(trace.summary()) == "nothing was launched"


def test_a_wait_whose_time_limit_ends_is_one_span():
    """Only the wait that has seen the phase complete is one; it begins where the first did."""

    @cuda.jit
    def kernel(x):
        barriers = tma.shared_barriers(2)
        if cuda.threadIdx.x == 0:
            barriers[0].init(1)
            barriers[1].init(1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for _ in range(4):  # for nothing: the time limit ends both threads' waits
                x[0] += ptx.mbarrier_try_wait_parity(barriers[0], 0)
            barriers[1].arrive()
        if cuda.threadIdx.x == 32:
            while not ptx.mbarrier_try_wait_parity(barriers[1], 0):
                x[1] += 1

    x = np.zeros(2, np.uint32)
    with tma.trace() as trace:
        kernel[1, 64](x)
    (launch,) = trace.launches
    assert x[0] == 0 and x[1] >= 2
    (wait,) = of(launch, "wait")
    assert wait.warp == 1
    (arrive,) = of(launch, "arrive")
    assert wait.start < arrive.start <= wait.end


def test_marks_as_scopes():
    @tma.scopes
    def kernel(x):
        with tma.mark("outer"):
            cuda.syncthreads()
            with tma.mark("inner"):
                x[1] = 1

    with tma.trace() as trace:
        cuda.jit(kernel)[1, 64](np.zeros(4, np.uint32))
    (launch,) = trace.launches
    marks = {(s.warp, s.name): s for s in of(launch, "mark")}
    assert set(marks) == {(w, name) for w in (0, 1) for name in ("outer", "inner")}
    for warp in (0, 1):
        outer, inner = marks[warp, "outer"], marks[warp, "inner"]
        assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_marks_name_is_a_literal():
    @cuda.jit
    def kernel(x):
        work = tma.mark(x)
        work.close()

    with pytest.raises(simulator.BadOperand, match="the name of a range is a literal string"):
        kernel[1, 32](5)


def test_a_matmul_and_its_tiles():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (256, 128)).astype(ml_dtypes.bfloat16) for _ in range(2))
    out = np.zeros((256, 256), ml_dtypes.bfloat16)
    with tma.trace() as trace:
        matmul(a, np.ascontiguousarray(b.T), out=out)
    assert trace.launches and "matmul" in trace.launches[0].kernel
    kinds = {s.kind for launch in trace.launches for s in launch.spans}
    assert {"load", "full", "empty", "release", "store", "tile", "run"} <= kinds
    (facts, *_) = pipelines_of(trace.launches[0])
    assert facts.fills and facts.producer and facts.consumer
    tiles = [s for s in trace.launches[0].spans if s.kind == "tile"]
    assert all(s.name.isdigit() for s in tiles) and any(s.duration > 100 for s in tiles)


def test_a_kv_pipeline_with_sub_stages():
    ring = tma.KVPipeline(
        2, 16, 64, "bf16", 2, swizzle=tma.Swizzle.B32, producer=ROLES.load, consumer=ROLES.work
    )

    @cuda.jit
    def kernel(k, v, tiles):
        pipe = ring.start()
        if ROLES.load.is_member():
            loads = pipe.producer()
            if loads.enters():
                for n in range(tiles):
                    for part in range(2):
                        loads.acquire_k(part)
                        barrier, tile = loads.get_k(part)
                        k.load(tile, (n * 16, part * loads.BK), barrier)
                    loads.commit_step()
                    loads.acquire_v()
                    barrier, tile = loads.get_v()
                    v.load(tile, (n * 16, 0), barrier)
                    loads.commit_step()
        else:
            works = pipe.consumer()
            for _ in range(tiles):
                works.wait_k(0)
                works.wait_k(1)
                left = works.step()
                works.wait_v()
                works.release_at(left)
                works.release_v()

    x = np.zeros((64, 64), ml_dtypes.bfloat16)
    maps = tma.tensor_map(x, ring.k_tile), tma.tensor_map(x, ring.v_tile)
    with tma.trace() as trace:
        kernel[1, ROLES.threads](*maps, 4)
    found = pipelines_of(trace.launches[0])
    assert [re.match(r"sub-stage (\d) of KVPipeline", f.name)[1] for f in found] == ["0", "1"]
    for facts, stages in zip(found, ([0, 1] * 4, [0] * 4)):  # v has one barrier for all of a stage
        assert [f.stage for f in facts.fills] == stages
        assert all(f.full is not None and f.released is not None for f in facts.fills)


# ------------------------------------------------------------------------------- explain

SCRIPT = """
import sys
import numpy as np
from numba import cuda
import numba_tma as tma
import beside

@cuda.jit
def meets(x):
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1

for _ in range(3):
    meets[1, 64](np.zeros(64))
print("given", sys.argv[1:], __name__, beside.VALUE)
if "end" in sys.argv:
    sys.exit({status})
"""

TRACES_ITSELF = """
import numpy as np
from numba import cuda
import numba_tma as tma

@cuda.jit
def meets():
    cuda.syncthreads()

with tma.trace() as trace:
    meets[1, 64]()
print(len(trace.launches))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(status="5"):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(status=status))
        return str(path)

    return write


def test_explain(script, tmp_path, capsys):
    file = tmp_path / "run.json"
    assert explain.main(["--save", str(file), script(), "--one", "two"]) == 0
    text = capsys.readouterr().out
    assert "given ['--one', 'two'] __main__ 7" in text
    assert text.count("meets, grid (1, 1, 1), block (64, 1, 1)") == 2
    assert "1 more launch of meets" in text and f"written to {file}" in text
    assert len(json.loads(file.read_text())["otherData"]["launches"]) == 2
    assert explain.main(["--launches", "3", script()]) == 0
    text = capsys.readouterr().out
    assert text.count("meets, grid") == 3 and "more launches" not in text


@pytest.mark.parametrize(
    ("status", "expected"), [("5", 5), ("0", 0), ("None", 0), ("'wrong'", 1), ("", 0)]
)
def test_explain_returns_the_status_of_the_script(script, capsys, status, expected):
    assert explain.main([script(status), "end"]) == expected
    found = capsys.readouterr()
    assert "meets, grid" in found.out and ("wrong" in found.err) == (status == "'wrong'")


def test_explain_of_a_script_that_traces_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "script.py"
    path.write_text(TRACES_ITSELF)
    assert explain.main([str(path)]) == 0
    assert capsys.readouterr().out == (
        "1\nno kernel was launched outside of the traces that the script itself makes\n"
    )


def test_explain_without_a_script(capsys):
    for given, text in [
        (["nothing.py"], "nothing.py is no file: give a Python script"),
        ([], "script"),
        (["--blocks", "0", "a.py"], "--blocks: 0 is no number from 1 on"),
        (["--launches", "-1", "a.py"], "--launches: -1 is no number from 1 on"),
    ]:
        with pytest.raises(SystemExit) as caught:
            explain.main(given)
        assert caught.value.code == 2 and text in capsys.readouterr().err


def test_the_command_line(script):
    command = [sys.executable, "-m", "numba_tma", "explain", script(), "end"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 5 and "meets, grid (1, 1, 1)" in done.stdout, done.stderr


def test_the_trace_of_a_process(script, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_TRACE", str(tmp_path / "run-%p.json"))
    process = subprocess.Popen(
        [sys.executable, script(), "end"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5
    file = tmp_path / f"run-{process.pid}.json"
    assert len(json.loads(file.read_text())["otherData"]["launches"]) == 3
    assert "meets, grid (1, 1, 1)" in err and f"{file}: <trace of 3 launches (meets)" in err
    quiet = subprocess.run(
        [sys.executable, "-c", "import numba_tma"], capture_output=True, text=True, timeout=120
    )
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert list(tmp_path.glob("*.json")) == [file]


# ------------------------------------------------------------------------ --tma-trace=DIR

pytest_plugins = ["pytester"]
TESTS = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def meets(x):
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1

def launch(times):
    for _ in range(times):
        meets[1, 64](np.zeros(64))

@pytest.mark.parametrize("times", [1, 6])
def test_here(times):
    launch(times)

def test_fails():
    launch(2)
    assert not "it fails"

def test_of_nothing():
    pass

@pytest.mark.tma_isolated
def test_elsewhere():
    launch(1)

def test_seed(tma_simulator):
    launch(1)
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_each_test_has_a_file(pytester, workers):
    pytester.makepyfile(test_traces=TESTS)
    count = ("-n", str(workers)) if workers else ()
    given = ("-p", "numba_tma_pytest", "-p", "no:cacheprovider", "--tma-trace=traces", *count)
    result = pytester.runpytest_subprocess(*given)
    assert result.parseoutcomes() == {"passed": 5, "failed": 1}, result.outlines
    found = {
        path.name: len(json.loads(path.read_text())["otherData"]["launches"])
        for path in (pytester.path / "traces").iterdir()
    }
    assert found == {
        "test_traces.py_test_here_1_.json": 1, "test_traces.py_test_here_6_.json": 4,
        "test_traces.py_test_fails.json": 2, "test_traces.py_test_elsewhere.json": 1,
        "test_traces.py_test_seed_seed_0_.json": 1,
    }  # fmt: skip


def test_nothing_is_traced_without_the_option(pytester):
    pytester.makepyfile(test_traces=TESTS)
    pytester.runpytest_subprocess("-p", "numba_tma_pytest", "-k", "test_here")
    assert not list(pytester.path.glob("**/*.json"))
