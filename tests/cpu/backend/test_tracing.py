"""Kernels compiled with a trace: their records, executed; other kernels stay as they are."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend import compiler
from numba_tma.backend.lowering import hooks
from numba_tma.backend.lowering import tracing as records
from numba_tma.backend.lowering.instructions import AFTER, HOOKS
from numba_tma.backend.numba_cuda import traced
from numba_tma.host import tracing
from numba_tma.host.environment import compiler_variables
from numba_tma.host.trace_buffer import Sampling, launch_address
from numba_tma.host.trace_records import LAUNCH, counters_of, records_of
from numba_tma.host.trace_records import RecordKind as Kind
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from numba_tma.tools.trace.decode import decode
from tests.cpu.backend.test_compiler import Application
from tests.kernels import kv_kernels, launch_control
from tests.kernels.circular_kernels import circular_add
from tests.kernels.golden_kernels import GOLDENS
from tests.ptx_machine import CYCLES, START_CYCLES, START_NANOSECONDS, Machine
from tests.tiers import quick
from tests.traced_machine import HOPPER, TracedMachine, compiled, in_cluster, sites
from tests.update_goldens import skeleton

I64, F32, BYTES = types.int64, types.float32, bytes(128)
BLACKWELL, WORKSTATION = (10, 0, "a"), (12, 0, "a")
TILE = tma.Tile((8, 32), "f32")
MAP = tma.TensorMapType(2, TILE)
ONE = Sampling(0, 1, 1, 1, 1)  # one block of one warp


@cuda.jit(device=True)
def half(value):
    work = tma.mark("half")
    result = value / 2
    work.close()
    return result


@cuda.jit(device=True)
def quarter(value):
    return half(half(value))


def halves(marked):
    @cuda.jit
    def kernel(x, n):
        for i in range(n):
            if marked:
                work = tma.mark("all of it")
            x[i] = quarter(x[i])
            if marked:
                work.close()
        ptx.barrier_sync(3, 64)

    return kernel, (F32[::1], I64)


def doubles(stages=3, k_group=1, name="double"):
    """Return a kernel of a ring whose stages have `k_group` tiles."""
    ROLES = tma.Roles(work=tma.Warps(1), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        stages, x=TILE, producer=ROLES.load, consumer=ROLES.work, k_group=k_group
    )

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                for j in range(k_group):
                    x.load(stage.tile(j).x, (8 * (k_group * tile + j), 0), stage.barrier)
        elif pipe.is_consumer():
            for tile, stage in pipe.consume(0, n):
                work = tma.mark(name)
                work.close()
                pipe.store(y, stage.get_tile(k_group - 1)[0], (8 * tile, 0))

    return kernel, (MAP, MAP, I64)


# ------------------------------------------------------------------- kernels without a trace


@pytest.mark.parametrize("make", [doubles, lambda: halves(True), circular_add])
def test_a_kernel_without_a_trace_is_the_same_after_one_with(make):
    kernel, signature = make()
    before = compile_ptx(kernel, signature, cc=HOPPER)
    assert not re.search("tma_traced|clock64|globaltimer", before)
    with_trace = compiled(kernel, signature)
    assert "tma_traced" in with_trace
    assert skeleton(compile_ptx(kernel, signature, cc=HOPPER)) == skeleton(before)
    assert len(sites(compiled(kernel, signature))) == len(sites(with_trace))
    # A kernel that shares its functions with it, too.
    other, _ = make()
    assert skeleton(compile_ptx(other, signature, cc=HOPPER)) == skeleton(before)


def test_a_mark_is_nothing_without_a_trace():
    plain, marked = (compile_ptx(*halves(is_marked), cc=HOPPER) for is_marked in (False, True))
    assert skeleton(marked) == skeleton(plain)
    assert sum(site.kind is Kind.MARK for site in sites(compiled(*halves(False)))) >= 1
    names = {site.what for site in sites(compiled(*halves(True))) if site.kind is Kind.MARK}
    assert names == {"half", "all of it"}


def test_a_traced_compile_leaves_nothing_behind():
    lists = [HOOKS, AFTER, hooks.AROUND_WAITS, hooks.BEFORE_WAITS, hooks.GROUPS, compiler.FINISHED]
    before = [list(one) for one in lists]
    compile_ptx(*halves(False), cc=HOPPER)
    own = dict(half.overloads)
    with pytest.raises(RuntimeError, match="in the middle"), traced.compiling():
        assert tracing.compiles_traced()
        compile_ptx(*halves(False), cc=HOPPER)
        assert half.overloads and half.overloads != own
        records._begun.append(None)  # as a lowering that fails leaves it
        raise RuntimeError("in the middle")
    assert not tracing.compiles_traced()
    assert [list(one) for one in lists] == before
    assert half.overloads == own != {} and not traced._set_aside and not records._begun


def test_a_refused_kernel_leaves_nothing_behind():
    @cuda.jit
    def wrong(x, n):
        ptx.cp_async_bulk_wait_group(n)

    with pytest.raises(Exception, match="must be a literal"):
        compiled(wrong, (F32[::1], I64))
    kinds = [site.kind for site in sites(compiled(*doubles()))]
    assert kinds[0] is Kind.BEGIN and Kind.DRAIN in kinds


def test_no_traced_code_is_kept(tmp_path):
    application = Application(tmp_path)
    source = """
from numba import cuda
import numba_tma as tma

@cuda.jit(cache=True)
def kernel(out, n):
    work = tma.mark("work")
    out[n] = 1
    work.close()
"""
    signature = F32[::1], I64
    assert not application.compile(source, signature).hit
    files = set(tmp_path.rglob("*.nbi")) | set(tmp_path.rglob("*.nbc"))
    assert files
    import application as package

    kernel = package.kernels.kernel
    assert "tma_traced" in compiled(kernel, signature)
    assert set(tmp_path.rglob("*.nbi")) | set(tmp_path.rglob("*.nbc")) == files
    again = application.compile(source, signature)
    assert again.hit
    assert "tma_traced" not in str(again.kernel._codelibrary.get_asm_str(cc=(9, 0)))


def test_keys_of_caches_do_not_depend_on_a_trace(monkeypatch):
    before = compiler_variables()
    monkeypatch.setenv("NUMBA_TMA_TRACE", "run.json")
    assert compiler_variables() == before


# ---------------------------------------------------------------------------- marks


def test_a_mark_as_a_scope():
    @tma.scopes
    def body(x):
        with tma.mark("outer"):
            x[0] += 1
            with tma.mark("inner"):
                x[1] += 1

    machine = TracedMachine(
        compiled(cuda.jit(body), (F32[::1],)),
        np.zeros(2, np.float32),
        sampling=ONE,
        block=(32, 1, 1),
    )
    machine.run_warps([0])
    inner, outer = sorted(
        (s for s in decode(machine.rings, ONE, (1,)).spans if s.kind == "mark"),
        key=lambda span: span.end,
    )
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start < inner.start < inner.end < outer.end


@pytest.mark.parametrize("with_trace", [False, True])
def test_a_marks_name_is_a_literal(with_trace):
    @cuda.jit
    def kernel(x, n):
        work = tma.mark(n)
        work.close()

    compile_it = compiled if with_trace else compile_ptx
    with pytest.raises(
        Exception, match="the name of a range is a literal string, as in tma.mark"
    ) as e:
        compile_it(kernel, (F32[::1], I64), cc=HOPPER)
    assert "mark(" in str(e.value)


# ---------------------------------------------------------------------------- records


def kinds_of(ptx_text):
    found = {}
    for site in sites(ptx_text):
        found[site.kind] = found.get(site.kind, 0) + 1
    return found


def test_every_kind_of_record():
    @cuda.jit
    def kernel(out, x, n):
        tile = tma.shared_tile(TILE)
        barrier = tma.shared_barrier()
        cuda.syncthreads()
        tma.cluster_sync()
        x.load(tile, (0, 0), barrier)
        barrier.arrive()
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)
        ptx.cp_async_bulk_wait_group_read(0)
        ptx.cp_async_wait_all()
        ptx.barrier_sync(1, 32)
        x.store(tile, (0, 0))

    found = kinds_of(compiled(kernel, (F32[::1], MAP, I64)))
    assert found == {
        Kind.BEGIN: 1, Kind.END: 1, Kind.MEET: 2, Kind.CLUSTER: 1, Kind.LOAD: 1, Kind.ARRIVE: 1,
        Kind.DRAIN: 3, Kind.STORE: 1,
    }  # fmt: skip


def test_a_wait_for_products_is_one_record():
    (make, cc) = GOLDENS["matmul"]
    kernel, signature = make()
    found = kinds_of(compiled(kernel, signature, cc))
    plain = "\n".join(instructions(compile_ptx(kernel, signature, cc=cc)))
    assert found[Kind.PRODUCT] == plain.count("wgmma.wait_group") > 0
    assert found[Kind.CLUSTER] == plain.count("barrier.cluster.wait") > 0
    assert found[Kind.TILE] >= 2


def place_of(lines, text, after=0):
    return next(i for i, line in enumerate(lines) if i >= after and text in line)


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (lambda: ptx.barrier_sync(1, 32), "bar.sync"),
        (lambda: cuda.syncthreads(), "bar.sync"),
        (lambda: ptx.cp_async_bulk_wait_group(0), "cp.async.bulk.wait_group"),
        (lambda: ptx.cp_async_wait_group(0), "cp.async.wait_group"),
    ],
)
def test_the_record_of_a_wait_is_behind_it_and_its_begin_before(call, waits):
    body = cuda.jit(device=True)(call)

    @cuda.jit
    def kernel(x):
        body()

    lines = instructions(compiled(kernel, (F32[::1],)))
    at = place_of(lines, waits)
    first_record = place_of(lines, "st.global.v4")
    begun = place_of(lines, "clock64", place_of(lines, "L0:", first_record))
    read = place_of(lines, "clock64", at)
    assert first_record < begun < at < read < place_of(lines, "st.global.v4", at)


def test_a_meeting_ends_at_an_access_before_the_clock_is_read():
    lines = instructions(compiled(*halves(False)))
    at = place_of(lines, "bar.sync")
    assert place_of(lines, "st.global.b32 [tma_ring], tma_count", at) < place_of(
        lines, "clock64", at
    )


# --------------------------------------------------------------------- records, executed


def run(make, *values, warps, block, sampling=None, grid=(1, 1, 1), cc=HOPPER, **options):
    """Execute lane 0 of the warps of a block; return what is decoded."""
    kernel, signature = make
    sampling = sampling or Sampling(0, 1, 1, 1, block // 32)
    machine = TracedMachine(
        compiled(kernel, signature, cc),
        *values,
        sampling=sampling,
        block=(block, 1, 1),
        grid=grid,
        **options,
    )
    machine.run_warps(warps)
    return decode(machine.rings, sampling, grid), machine


def spans(found, kind, warp=None):
    return [s for s in found.spans if s.kind == kind and warp in (None, s.warp)]


def test_the_rings_of_a_block():
    found, machine = run(doubles(), BYTES, BYTES, 7, warps=[0, 1], block=64)
    assert found.processors == {(0, 0, 0): 7} and found.dropped == 0
    assert found.roles == {((0, 0, 0), 0): "work", ((0, 0, 0), 1): "load"}
    (pipeline,) = found.pipelines
    assert pipeline.startswith("TilePipeline(3") and isinstance(
        found.pipelines[pipeline], tma.TilePipeline
    )
    ring = [0, 1, 2, 0, 1, 2, 0]
    loads = spans(found, "load")
    assert [s.stage for s in loads] == ring and {s.nbytes for s in loads} == {TILE.nbytes}
    assert {s.warp for s in loads} == {1} and {s.pipeline for s in loads} == {pipeline}
    assert [s.stage for s in spans(found, "empty")][:7] == ring
    assert [s.stage for s in spans(found, "full")] == ring
    assert [s.stage for s in spans(found, "release")] == ring
    assert {s.warp for s in spans(found, "full")} == {0} and not spans(found, "arrive")
    assert [s.name for s in spans(found, "mark")] == ["double"] * 7
    stores = spans(found, "store")
    assert len(stores) == 7 and {s.nbytes for s in stores} == {TILE.nbytes}
    assert [s.stage for s in stores] == ring  # of the tile that is stored
    assert all(re.fullmatch(r"test_tracing\.py:\d+", s.line) for s in loads)
    assert len(spans(found, "run")) == 2
    for warp in (0, 1):
        (whole,) = spans(found, "run", warp)
        own = [s for s in found.spans if s.warp == warp]
        assert whole.start == min(s.start for s in own) and whole.end == max(s.end for s in own)
        assert all(s.duration >= 0 for s in own)


def test_a_stage_of_several_tiles():
    found, _ = run(doubles(stages=2, k_group=2), BYTES, BYTES, 5, warps=[0, 1], block=64)
    assert [s.stage for s in spans(found, "load")] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert [s.stage for s in spans(found, "full")] == [0, 1, 0, 1, 0]
    assert [s.stage for s in spans(found, "store")] == [0, 1, 0, 1, 0]


def test_sub_stages_are_pipelines():
    parts, threads = kv_kernels.PARTS, kv_kernels.ATTENTION.threads
    out = np.zeros((4, 3), np.uint64)
    warp = kv_kernels.ATTENTION.load.first // 32
    found, _ = run(kv_kernels.kv_pipeline(), BYTES, BYTES, out, 4, warps=[warp, 0], block=threads)
    names = list(found.pipelines)
    assert len(names) == parts
    assert all(n.startswith(f"sub-stage {i} of KVPipeline(") for i, n in enumerate(sorted(names)))
    loads = spans(found, "load")
    k, v = kv_kernels.PART_NBYTES, kv_kernels.NBYTES
    assert sum(s.nbytes for s in loads) == 4 * (parts * k + v)
    assert {s.nbytes for s in loads} == {k}  # a load of v is one of each of its halves, too
    for name in names:
        at = [s.stage for s in spans(found, "empty") if s.pipeline == name]
        assert at == [i % kv_kernels.STAGES for i in range(len(at))] and len(at) == 8


@pytest.mark.parametrize(("mask", "blocks"), [(0b11, 2), (0b1011, 3)])
def test_a_multicast_loads_in_each_block(mask, blocks):
    @cuda.jit
    @tma.cluster(4)
    def kernel(x):
        tile = tma.shared_tile(TILE)
        barrier = tma.shared_barrier()
        x.load(tile, (0, 0), barrier, multicast=mask)

    sampling = Sampling(0, 1, 1, 4, 1)
    machine = TracedMachine(
        compiled(kernel, (MAP,)), BYTES, sampling=sampling, grid=(4, 1, 1), block=(32, 1, 1)
    )
    machine.run_warps([0], (2, 0, 0), **in_cluster((0, 0, 0), (1, 1, 1), 2, 4))
    (load,) = spans(decode(machine.rings, sampling, (4,)), "load")
    assert (load.nbytes, load.block) == (blocks * TILE.nbytes, (2, 0, 0))


def test_a_circular_buffer():
    n = 9
    out = np.zeros((16 * n, 128), np.float32)
    found, _ = run(circular_add("mbarrier"), BYTES, BYTES, out, n, warps=[0], block=128)
    (pipeline,) = found.pipelines
    assert pipeline.startswith("CircularBuffer(")
    stages = found.pipelines[pipeline].num_stages
    full = [s.stage for s in spans(found, "full")]
    assert full == [i % stages for i in range(n)]
    assert len(spans(found, "load")) == 2 * n
    assert {s.stage for s in spans(found, "load")} == set(range(stages))


def test_launch_control_and_a_schedule():
    answers = iter([1, 1, 1, 0])

    def answer(name, operands):
        if "is_canceled" in name:
            return next(answers, 0)
        return 1 if name.startswith("activemask") else int("_wait" in name)

    tiles = np.zeros((5, 4), np.int64)
    kernel = launch_control.count
    found, _ = run(
        (kernel, (I64[:, ::1], I64, I64)), tiles, 4, 4,
        warps=[0], block=64, cc=BLACKWELL, answer=answer,
    )  # fmt: skip
    assert len(spans(found, "tile")) >= 3
    assert {s.pipeline.partition("(")[0] for s in spans(found, "full")} == {"LaunchControl"}


def test_a_block_that_is_not_traced_writes_nothing():
    kernel, signature = halves(True)
    machine = TracedMachine(
        compiled(kernel, signature), np.zeros(4, np.float32), 4,
        sampling=Sampling(1, 2, 2, 1, 2), grid=(6, 1, 1), block=(64, 1, 1),
    )  # fmt: skip
    before = machine.rings.copy()
    for block in (0, 2, 4, 5):  # of 1 and 3
        machine.run_warps([0, 1], (block, 0, 0))
        assert (machine.rings == before).all() and not any(machine.behind)
    machine.run_warps([1], (3, 0, 0))
    changed = [i for i in range(4) if (machine.rings[i] != before[i]).any()]
    assert changed == [3]  # the second traced block's second warp
    found = decode(machine.rings, machine.sampling, machine.grid)
    assert {(s.block, s.warp) for s in found.spans} == {((3, 0, 0), 1)}


def test_without_rings_a_traced_kernel_is_the_kernel():
    kernel, signature = halves(True)
    x = np.arange(8, dtype=np.float32)
    machine = TracedMachine(compiled(kernel, signature), x, 8, sampling=ONE, block=(64, 1, 1))
    told = np.zeros((), LAUNCH)
    told["nbytes"], told["step"], told["clusters"] = machine.nbytes, 1, 1
    machine.poke(launch_address(), told.tobytes())
    pages = {page: bytes(data) for page, data in machine.pages.items()}
    machine.run_warps([0])
    np.testing.assert_array_equal(x, np.arange(8) / 4)
    changed = {p for p, data in machine.pages.items() if bytes(data) != pages.get(p, bytes(4096))}
    assert changed == {machine.arrays[0][0] // 4096}


@pytest.mark.parametrize("size", [(2, 1, 1), (1, 2, 2)])
def test_clusters_are_traced_as_a_whole(size):
    @cuda.jit
    @tma.cluster(size)
    def kernel(x):
        x[0] = 1

    sampling, blocks = Sampling(1, 2, 2, int(np.prod(size)), 2), int(np.prod(size))
    clusters = (2, 2, 1)
    grid = tuple(n * m for n, m in zip(clusters, size))
    machine = TracedMachine(
        compiled(kernel, (F32[::1],)), np.zeros(1, np.float32),
        sampling=sampling, grid=grid, block=(8, 4, 2),
    )  # fmt: skip
    expected = {}
    for index in np.ndindex(*clusters[::-1]):
        z, y, x = index
        linear = x + 2 * y
        for rank in range(blocks):
            within = rank % size[0], rank // size[0] % size[1], rank // (size[0] * size[1])
            block = tuple(c * s + w for c, s, w in zip((x, y, z), size, within))
            special = in_cluster((x, y, z), clusters, rank, blocks)
            machine.run_warps([0, 1], block, **special)
            if linear in (1, 3):
                for warp in (0, 1):
                    expected[((linear // 2) * blocks + rank) * 2 + warp] = block, warp
    for number in range(sampling.rings):
        rings = np.zeros_like(machine.rings)
        rings[number] = machine.rings[number]
        only = decode(rings, sampling, grid)
        assert {(s.block, s.warp) for s in only.spans} == {expected[number]}, number
    assert not any(machine.behind)


def test_a_lane_other_than_0_has_a_ring_of_its_own():
    @cuda.jit
    def kernel(x, n):
        if cuda.threadIdx.x == 5:
            for _ in range(n):
                work = tma.mark("five")
                work.close()
        work = tma.mark("all")
        work.close()

    machine = TracedMachine(
        compiled(kernel, (F32[::1], I64)), np.zeros(1, np.float32), 300,
        sampling=ONE, block=(32, 1, 1), capacity=64,
    )  # fmt: skip
    machine.active = 1 << 5 | 1 << 9
    alone = in_cluster((0, 0, 0), (1, 1, 1), 0, 1)
    machine.run(9, **alone)  # not the first of the active lanes
    assert not machine.rings[0][48:].any()
    machine.run(5, **alone)
    machine.active = 0xFFFFFFFF
    machine.run(0, **alone)
    found = decode(machine.rings, ONE, (1,))
    marks = [s.name for s in spans(found, "mark")]
    # Its begin, its 300 marks and one of all, and its end, of which 256 have room.
    assert marks.count("all") == 2 and marks.count("five") == 254
    assert found.dropped == 303 - 256 and len(spans(found, "run")) == 1


def test_a_ring_wraps():
    @cuda.jit
    def kernel(n):
        for _ in range(n):
            work = tma.mark("nothing")
            work.close()

    machine = TracedMachine(
        compiled(kernel, (I64,)), 100, sampling=ONE, block=(32, 1, 1), capacity=64
    )
    machine.run_warps([0])
    found = decode(machine.rings, ONE, (1,))
    assert found.dropped == 102 - 64 and len(spans(found, "mark")) == 63
    starts = [s.start for s in spans(found, "mark")]
    assert starts == sorted(starts) and len(spans(found, "run")) == 1
    clocks, times = counters_of(machine.rings[0], records_of(machine.rings[0])[0])
    elapsed = (clocks - START_CYCLES) // CYCLES
    assert (times - START_NANOSECONDS - elapsed == 1).all()  # the timer is read after the clock


# ---------------------------------------------------------------------- other architectures

FAST = ("copy_chunks", "kv_pipeline", "launch_control")


@pytest.mark.parametrize("name", quick(FAST, GOLDENS))
def test_ptxas_takes_every_shipped_kernel_with_a_trace(name):
    make, cc = GOLDENS[name]
    kernel, signature = make()
    text = compiled(kernel, signature, cc)
    kinds = kinds_of(text)
    assert kinds[Kind.BEGIN] == 1 <= kinds[Kind.END]
    # No function is left that a trace's registers could not reach.
    assert not re.search(r"\.func\b", re.sub(r"\.extern \.func[^;]*;", "", text, flags=re.S))
    report = ptxas(text)
    assert report.registers <= 255


@pytest.mark.parametrize("cc", [HOPPER, BLACKWELL, WORKSTATION])
def test_records_on_every_architecture(cc):
    text = compiled(*doubles(), cc)
    assert kinds_of(text)[Kind.LOAD] == 1
    assert ptxas(text).spill_stores == 0


def test_the_machine_and_the_kernel_without_a_trace_agree():
    """A traced kernel does what the kernel does: the instructions that the hardware is told."""
    kernel, signature = doubles()
    plain = Machine(
        compile_ptx(kernel, signature, cc=HOPPER), BYTES, BYTES, 5, block=(64, 1, 1), step=1
    )
    with_trace = TracedMachine(
        compiled(kernel, signature), BYTES, BYTES, 5,
        sampling=Sampling(0, 1, 1, 1, 2), block=(64, 1, 1),
    )  # fmt: skip
    alone = in_cluster((0, 0, 0), (1, 1, 1), 0, 1)
    for thread in (0, 32):
        logs = [machine.run(thread, **alone) for machine in (plain, with_trace)]
        told = [[(n, v) for n, v in log if not n.startswith("activemask")] for log in logs]
        assert [name for name, _ in told[0]] == [name for name, _ in told[1]]
