"""Pipelines in compiled kernels, executed: each wait by its record, and the barriers' addresses."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.host import debug
from numba_tma.tools.testing import compile_ptx
from tests.cpu.host.test_debug_pipelines import ROLES as STORING
from tests.cpu.host.test_debug_pipelines import circular, stores
from tests.ptx_machine import Machine
from tests.tiers import quick

TILE, SMALL = tma.Tile((8, 32), "f32"), tma.Tile((4, 32), "f32")
MAP, SMALL_MAP = tma.TensorMapType(2, TILE), tma.TensorMapType(2, SMALL)
ROLES = tma.Roles(work=tma.Warps(1), load=tma.Warps(1))
I64, BYTES = types.int64, bytes(128)
HOPPER, BLACKWELL = (9, 0, "a"), (10, 0, "a")


def waits(kernel, kinds, *values, thread, count, cc=HOPPER, more=lambda name: 0):
    """Return the records of a thread's first waits, each as that wait never ends.

    A record is (site, iteration, stage, parity, address behind the last shared variable's start).
    """
    ptx, found = compile_ptx(kernel, kinds, cc=cc), []
    for passed in range(count):
        left = [passed]

        def answer(name, operands, left=left):
            if re.match(r"mbarrier\.(try|test)_wait", name):
                left[0] -= 1
                return int(left[0] >= 0)
            return more(name)

        machine = Machine(ptx, *values, answer=answer, block=(64, 1, 1))
        machine.run(thread)
        raw = machine.peek(debug.NO_GPU + 4 * debug.HEADER, debug.RECORD.itemsize)
        (one,) = debug.decode(np.frombuffer(raw, debug.RECORD), debug._SITES)
        site = one.site.what.strip("'").rpartition(".")[2]
        place = one.address - machine.shared[-1]
        found.append((site, one.iteration, one.stage, one.parity, place))
    return found


def turn(site, i, stages, first, apart=8):
    """Return the record of wait i of a ring: parity 0 for full stages, and 1 for empty ones."""
    parity = i // stages & 1 ^ (site == "empty")
    return site, i, i % stages, parity, first + apart * (i % stages)


def sites(records, site):
    return [record for record in records if record[0] == site]


@pytest.mark.parametrize("barriers", quick(["one"], ["one", "each"]))
def test_waits_of_a_circular_buffer(barriers):
    _, kernel, kinds = circular(True, "mbarrier", barriers)
    values = BYTES, BYTES, np.zeros(64, np.float32), 8
    per_tile = 2 if barriers == "each" else 1
    found = waits(kernel, kinds, *values, thread=0, count=9 * per_tile)
    empty = sites(found, "empty")
    assert len(empty) >= 5
    assert empty == [turn("empty", i, 3, 24 * per_tile) for i in range(len(empty))]
    full = [record[1:] for record in found if record[0] != "empty"]
    expected = [turn("full", i, 3, 24 * j)[1:] for i in range(8) for j in range(per_tile)]
    assert full == expected[: len(full)]


@pytest.mark.parametrize("role", ["work", "load"])
def test_waits_of_a_tile_pipeline(role):
    PIPE = tma.TilePipeline(
        3, x=TILE, producer=ROLES.load, consumer=ROLES.work, filled_by="threads", debug=True
    )

    @cuda.jit
    def kernel(n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for _ in pipe.produce(0, n):
                pass
        else:
            for _ in pipe.consume(0, n):
                pass
        pipe.close()

    chosen, site, first = {
        "work": (ROLES.work, "full", 3 * TILE.nbytes),
        "load": (ROLES.load, "empty", 3 * TILE.nbytes + 24),
    }[role]
    found = waits(kernel, (I64,), 8, thread=chosen.first, count=7)
    assert found == [turn(site, i, 3, first) for i in range(7)]


def test_waits_of_launch_control():
    CONTROL = tma.LaunchControl(slots=2, debug=True)
    SCHEDULER = tma.GroupedScheduler(2)

    @cuda.jit
    def kernel(rows, columns):
        for _ in CONTROL.start().tiles(SCHEDULER.over(rows, columns)):
            pass

    found = waits(
        kernel, (I64, I64), 4, 16, thread=32, count=12, cc=BLACKWELL,
        more=lambda name: int("is_canceled" in name),
    )  # fmt: skip
    first = {
        site: CONTROL.full_offset if site == "full" else CONTROL.empty_offset
        for site in ("full", "empty")
    }
    for site, start in first.items():
        records = sites(found, site)
        assert len(records) >= 5
        assert records == [turn(site, i, 2, start) for i in range(len(records))]


# ---------------------------------------------------------------------------- releases


def turns_of(kernel, kinds, *values, full, empty, stages=3, cc=HOPPER):
    """Return what thread 0 does with the barriers of stages: ("wait" or "release", stage)."""
    machine = Machine(compile_ptx(kernel, kinds, cc=cc), *values, block=(64, 1, 1))
    names = {}
    for stage in range(stages):
        names[machine.shared[-1] + full + 8 * stage] = "wait", stage
        names[machine.shared[-1] + empty + 8 * stage] = "release", stage
    log = machine.run(0)
    acts = [given[0] for name, given in log if re.match(r"mbarrier\.(try_wait|arrive)", name)]
    return [names[place] for place in acts if place in names]


TILES = tma.TilePipeline(3, x=TILE, producer=ROLES.load, consumer=ROLES.work)


@pytest.mark.parametrize("in_flight", quick([1], [0, 1, 2]))
@pytest.mark.parametrize("loop", ["consume", "consume_from"])
def test_a_stage_is_released_so_many_tiles_later(loop, in_flight):
    listed = loop == "consume"

    def walk_list(pipe, n):
        for tile, _ in pipe.consume(0, 100, in_flight=in_flight):
            if tile == n - 1:
                break

    def walk_queue(pipe, n):
        seen = 0
        for _ in pipe.consume_from(in_flight):
            seen += 1
            if seen == n:
                break

    walk = cuda.jit(device=True, forceinline=True)(walk_list if listed else walk_queue)

    @cuda.jit
    def kernel(queue, n):
        pipe = TILES.start()
        if pipe.is_consumer():
            walk(pipe, n)
            walk(pipe, n)
        elif listed:
            for _ in pipe.produce(0, n):
                pass
        else:
            for _ in pipe.produce_from(tma.TileQueue(queue, n)):
                pass
        pipe.close()

    n, first = 4, 3 * TILE.nbytes
    kinds = (types.uint32[::1], I64)
    found = turns_of(kernel, kinds, np.zeros(4, np.uint32), n, full=first, empty=first + 24)
    expected = []
    for i in range(2 * n):  # a loop that was left goes on with the next loop, or with close()
        expected += [("release", (i - 1 - in_flight) % 3)] if i > in_flight else []
        expected += [("wait", i % 3)]
    expected += [("release", i % 3) for i in range(2 * n - 1 - in_flight, 2 * n)]
    assert found == expected


def test_the_end_of_a_scope_leaves_older_stages_held():
    """Which `release` then releases in their order."""

    @cuda.jit
    @tma.scopes
    def kernel(turns):
        pipe = TILES.start()
        if pipe.is_consumer():
            works = pipe.consumer()
            for _ in range(turns):
                works.wait()
                works.wait()
                with works.wait():
                    pass
                works.release()
                works.release()

    first = 3 * TILE.nbytes
    found = turns_of(kernel, (I64,), 2, full=first, empty=first + 24)
    turn = [("wait", 0), ("wait", 1), ("wait", 2), ("release", 2), ("release", 0), ("release", 1)]
    assert found == 2 * turn


@pytest.mark.parametrize("memory", quick(["tensor"], ["shared", "tensor"]))
def test_an_output_is_closed_with_the_release_of_what_is_held(memory):
    MATH = tma.Roles(epilogue=tma.Warps(4), mma=tma.Warps(1))
    tile = TILE if memory == "shared" else tma.Tile((128, 32), "f32")
    OUT = tma.OutputTilePipeline(3, tile, mma=MATH.mma, epilogue=MATH.epilogue, memory=memory)

    @cuda.jit
    def kernel(n):
        pipe = OUT.start()
        if MATH.epilogue.is_member():
            for _ in pipe.consume(0, n):
                break
        pipe.close()

    first = 3 * TILE.nbytes if memory == "shared" else 0
    found = turns_of(kernel, (I64,), 8, full=first, empty=first + 24, cc=BLACKWELL)
    assert found == [("wait", 0), ("release", 0)]


@pytest.mark.parametrize("rank", quick([2], [0, 2]))
def test_an_output_of_a_pair_is_committed_to_both_blocks(rank):
    MATH = tma.Roles(epilogue=tma.Warps(4), mma=tma.Warps(1))
    OUT = tma.OutputTilePipeline(
        2, tma.Tile((128, 32), "f32"), mma=MATH.mma, epilogue=MATH.epilogue, memory="tensor",
        cta_group=2, cluster=4,
    )  # fmt: skip

    @cuda.jit
    @tma.cluster((4, 1))
    def kernel(n):
        pipe = OUT.start()
        if MATH.mma.is_member():
            for _ in pipe.produce(0, n):
                pass
        pipe.close()

    machine = Machine(compile_ptx(kernel, (I64,), cc=BLACKWELL), 3, block=(160, 1, 1))
    log = machine.run(MATH.mma.first, cluster_ctarank=rank, cluster_nctarank=4)
    commits = [given for name, given in log if name.startswith("tcgen05.commit")]
    full = [machine.shared[-1] + 8 * (i % 2) for i in range(3)]
    assert commits == [(place, 3 << rank) for place in full]


def initialised(pipe, block, thread=0):
    """Return the mbarriers that a thread initialises: offset from the first, and arrivals."""

    @cuda.jit
    def kernel():
        pipe.start()

    machine = Machine(compile_ptx(kernel, (), cc=HOPPER), block=(block, 1, 1))
    log = machine.run(thread)
    found = [given for name, given in log if name.startswith("mbarrier.init")]
    fences = [name for name, _ in log if "fence.mbarrier_init" in name]
    assert len(fences) == bool(found)
    return [(address - found[0][0], count) for address, count in found]


WORKERS = tma.Roles(load=tma.Warps(1), left=tma.Warps(2), right=tma.Warps(1))


@pytest.mark.parametrize(
    ("pipe", "block", "full", "empty", "meetings"),
    [
        (tma.TilePipeline(3, x=TILE), 128, 1, 3, []),  # each consumer warp releases
        (tma.TilePipeline(2, x=TILE), 64, 1, 1, []),
        (tma.TilePipeline(2, x=TILE, debug=True), 160, 1, 4, [128]),
        (
            tma.TilePipeline(
                2, x=TILE, producer=WORKERS.load, consumer=(WORKERS.left, WORKERS.right)
            ),
            128, 1, 3, [],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_one_thread_initialises_the_barriers_of_a_ring(pipe, block, full, empty, meetings):
    found = initialised(pipe, block)
    stages = range(pipe.num_stages)
    counts = [dict(found)[8 * stage] for stage in stages]
    assert counts == [full] * pipe.num_stages
    counts = [dict(found)[pipe.empty_offset + 8 * stage] for stage in stages]
    assert counts == [empty] * pipe.num_stages and pipe.empty_offset >= 8 * pipe.num_stages
    others = found[2 * pipe.num_stages :]
    assert [count for _, count in others] == meetings
    assert len(dict(found)) == len(found) == 2 * pipe.num_stages + len(meetings)
    assert initialised(pipe, block, thread=1) == []


# ---------------------------------------------------------------------------- fences


def of_a_tile_pipeline():
    @cuda.jit
    def kernel(reads, out, n):
        pipe = TILES.start()
        if pipe.is_consumer():
            consumer = pipe.consumer()
            for i in range(n):
                stage = consumer.wait()
                if reads[i]:
                    out[i] = stage.x[0, 0]
                consumer.release()

    return kernel


def of_a_circular_buffer():
    BUFFER = tma.CircularBuffer(3, 1, war="mbarrier", x=TILE)

    @cuda.jit
    def kernel(reads, out, n):
        ring = BUFFER.start()
        for i, stage in ring.tiles(0, n):
            for _ in ring.loads():
                pass
            full = stage.wait()
            if reads[i]:
                out[i] = full.x[0, 0]
        ring.close()

    return kernel


def of_keys_and_values():
    KEYS = tma.KVPipeline(3, 16, 64, "bf16", 1, producer=ROLES.load, consumer=ROLES.work, holds="k")

    @cuda.jit
    def kernel(reads, out, n):
        consumer = KEYS.start().consumer()
        if ROLES.work.is_member():
            for i in range(n):
                consumer.wait()
                if reads[i]:
                    out[i] = consumer.get_tile()[0, 0]
                consumer.release()
                consumer.step()

    return kernel


FENCE = "fence.proxy.async.shared::cta"


def fences_and_releases(kernel, kinds, *values):
    """Return "fence" and "release" as thread 0 executes them."""
    machine = Machine(
        compile_ptx(kernel, kinds, cc=HOPPER), *values, block=(64, 1, 1),
        answer=lambda name, _: int("_wait" in name),
    )  # fmt: skip
    log = [name for name, _ in machine.run(0)]
    steps = {FENCE: "fence", "mbarrier.arrive.shared::cta.b64": "release"}
    assert log.count(FENCE)
    return [steps[name] for name in log if name in steps]


@pytest.mark.parametrize("kernel", [of_a_tile_pipeline, of_a_circular_buffer, of_keys_and_values])
def test_a_release_fences_what_was_accessed_since_the_last_one(kernel):
    reads = np.array([1, 0, 0, 1, 1, 0, 1, 0], np.int64)
    kinds = (types.int64[::1], types.float32[::1], I64)
    found = fences_and_releases(kernel(), kinds, reads, np.zeros(8, np.float32), 8)
    assert found == [step for read in reads for step in ["fence"] * read + ["release"]]


def test_a_release_does_not_fence_what_a_store_has_fenced():
    @cuda.jit
    def kernel(y, n):
        pipe = TILES.start()
        if pipe.is_consumer():
            consumer = pipe.consumer()
            for i in range(n):
                stage = consumer.wait()
                stage.x[0, 0] = i
                pipe.store(y, stage.x, (0, 0))
                consumer.release()

    assert fences_and_releases(kernel, (MAP, I64), BYTES, 4) == 4 * ["fence", "release"]


# ---------------------------------------------------------------------------- starts

TMEM_ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(4))
#: What starts, with the threads of its block.
STARTED = [
    (tma.TilePipeline(2, x=TILE), 96),
    (tma.TilePipeline(2, x=TILE, producer=ROLES.load, consumer=ROLES.work), 64),
    (tma.CircularBuffer(3, 1, x=TILE), 96),
    (tma.KVPipeline(2, 16, 64, "bf16", 1, producer=ROLES.load, consumer=ROLES.work), 64),
    (tma.OrderedSequenceBarrier(2, (ROLES.work, ROLES.load)), 64),
    (tma.LaunchControl(), 96),
    (tma.LaunchControl(ROLES), 64),
    (tma.TensorMemory(64), 96),
    (tma.TensorMemory(64, role=TMEM_ROLES.epilogue), 160),
    (
        tma.OutputTilePipeline(2, TILE, mma=TMEM_ROLES.mma, epilogue=TMEM_ROLES.epilogue), 160,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("started", "block"), STARTED, ids=str)
def test_a_block_starts_at_the_barrier_of_syncthreads(started, block):
    """Numbers from 1 on are those of roles, whose threads may not have left theirs."""
    frees = isinstance(started, tma.TensorMemory)

    @cuda.jit
    def kernel():
        if frees:
            started.start().close()
        else:
            started.start()

    machine = Machine(compile_ptx(kernel, (), cc=BLACKWELL), block=(block, 1, 1))
    for thread in (0, block - 1):
        log = machine.run(thread)
        met = [given for name, given in log if re.match(r"(bar|barrier)\.sync", name)]
        assert met == (1 + frees) * [(0, block)]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("roles", "thread", "number", "threads", "barrier"),
    [
        ((), 0, 0, 96, 0),  # the whole block, as by syncthreads
        ((STORING.epilogue,), 64, 0, 128, STORING.epilogue.barrier_id),
        ((STORING.mma, STORING.epilogue), 0, 0, 64, STORING.mma.barrier_id),
        ((STORING.mma, STORING.epilogue), 64, 1, 128, STORING.epilogue.barrier_id),
    ],
)
def test_those_who_store_together_meet_at_a_barrier_of_their_own(
    roles, thread, number, threads, barrier, debug
):
    """In debug mode it is an mbarrier, which is initialised before the named barrier's only use."""
    _, kernel, kinds = stores(debug, **({"role": roles} if roles else {}))
    block = (192 if roles else 96, 1, 1)
    answer = lambda name, _: int("_wait" in name)  # noqa: E731
    machine = Machine(compile_ptx(kernel, kinds, cc=HOPPER), BYTES, block=block, answer=answer)
    log = machine.run(thread)
    named = [given for name, given in log if re.match(r"(bar|barrier)\.sync", name)]
    assert set(named) == {(barrier, threads)}
    assert not debug or len(named) == 1
    made = [given for name, given in log if name.startswith("mbarrier.init")]
    assert made == debug * [(machine.shared[-1] + 8 * number, threads)]
    met = {given[0] for name, given in log if re.match(r"mbarrier\.(arrive|try_wait)", name)}
    assert met == {address for address, _ in made}


def test_a_synchronisation_is_named_after_the_one_role_that_has_it():
    for roles, name in [((), ""), ((STORING.mma,), "mma"), ((STORING.mma, STORING.epilogue), "")]:
        pipe, *_ = stores(True, **({"role": roles} if roles else {}))
        assert pipe.sync_site.role == name
