"""StorePipeline and OrderedSequenceBarrier: on the host, in PTX, and their errors."""

import re
from typing import NamedTuple

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import OrderedSequenceBarrier, Roles, StorePipeline, TensorMapType, Tile
from numba_tma.host.launch_rules import check_line
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels.pipeline_kernels import reduce_store, store_pipeline

TILE, SMALL = Tile((16, 64), "f32"), Tile((3, 16), "u8")
MAP = TensorMapType(2, TILE)
ROLES = Roles(load=tma.Warps(1), one=tma.Warps(2), two=tma.Warps(3), few=tma.Threads(8))
OUT = StorePipeline(2, y=TILE)


# ------------------------------------------------------------------------- on the host


def test_it_says_what_it_is():
    assert repr(OUT) == "StorePipeline(2, y=Tile((16, 64), f32, NONE))"
    assert repr(StorePipeline(1, y=SMALL, role=ROLES.one)).endswith(", role=one=Warps(2))")
    assert repr(StorePipeline(2, y=TILE, debug=True)) == repr(OUT)[:-1] + ", debug=True)"
    assert OUT == StorePipeline(2, y=Tile((16, 64), "f32")) != StorePipeline(3, y=TILE)
    assert len({OUT, StorePipeline(2, y=TILE, role=ROLES.one), StorePipeline(2, y=TILE)}) == 2


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_each_role_has_stages_of_its_own(stages):
    pipe = StorePipeline(stages, a=SMALL, y=TILE, role=(ROLES.one, ROLES.two))
    alone = StorePipeline(stages, a=SMALL, y=TILE)
    assert pipe.role_nbytes % pipe.alignment == 0 and pipe.role_nbytes >= alone.nbytes
    assert pipe.nbytes == pipe.role_nbytes + alone.nbytes
    assert (pipe.block, alone.block) == (ROLES.threads, 0)
    assert pipe.still_reading == max(0, stages - 2)


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (None, "y: 2 stages x 4,096 B"),
        (ROLES.one, "y: 2 stages x 4,096 B"),
        ((ROLES.one, ROLES.two), "y: 2 roles x 2 stages x 4,096 B"),
    ],
    ids=["no role", "one", "two"],
)
def test_shared_memory_is_told_by_its_parts(role, text):
    pipe = StorePipeline(2, y=TILE, role=role)
    stages, barriers = pipe.shared_parts("stages"), pipe.shared_parts("barriers")
    assert next(iter(stages)) == text
    assert stages[text] == 2 * 4096 * (2 if "roles" in text else 1)
    assert sum(stages.values()) == pipe.nbytes + pipe.sync_nbytes
    assert list(barriers) == ["barriers"]


def test_a_payload_names_the_tiles():
    class Payload(NamedTuple):
        y: Tile
        z: Tile

    pipe = StorePipeline(2, Payload(TILE, SMALL))
    assert pipe == StorePipeline(2, y=TILE, z=SMALL) and pipe.k_group == 1
    with pytest.raises(TypeError, match="as a payload or by name, not both"):
        StorePipeline(2, Payload(TILE, SMALL), x=TILE)


@pytest.mark.parametrize(
    ("error", "text", "make"),
    [
        (
            ValueError,
            r"StorePipeline\(num_stages=0\): a pipeline",
            lambda: StorePipeline(0, y=TILE),
        ),
        (ValueError, r"StorePipeline\(\): name at least one", lambda: StorePipeline(2)),
        (
            TypeError,
            r"StorePipeline\(y=...\) takes a Tile, not",
            lambda: StorePipeline(2, y=(16, 64)),
        ),
        (TypeError, r"payload is a dataclass", lambda: StorePipeline(2, TILE)),
        (
            TypeError,
            r"role=...\) takes a role, as ROLES.epilogue .*not 128",
            lambda: StorePipeline(2, y=TILE, role=128),
        ),
        (TypeError, "takes a role", lambda: StorePipeline(2, y=TILE, role=())),
        (
            ValueError,
            r"role=few=Threads\(8\)\): .* whole warps; give Warps",
            lambda: StorePipeline(2, y=TILE, role=ROLES.few),
        ),
        (
            ValueError,
            "different roles of the same Roles",
            lambda: StorePipeline(2, y=TILE, role=(ROLES.one, ROLES.one)),
        ),
        (
            ValueError,
            "different roles of the same Roles",
            lambda: StorePipeline(2, y=TILE, role=(ROLES.one, Roles(a=tma.Warps(1)).a)),
        ),
        (
            ValueError,
            r"OrderedSequenceBarrier\(depth=0\): .* at least 1 stage",
            lambda: OrderedSequenceBarrier(0, (ROLES.load, ROLES.one)),
        ),
        (ValueError, "depth='2'", lambda: OrderedSequenceBarrier("2", (ROLES.load, ROLES.one))),
        (TypeError, "takes roles, as .*not 3", lambda: OrderedSequenceBarrier(2, 3)),
        (ValueError, "two or more different", lambda: OrderedSequenceBarrier(2, ROLES.one)),
        (
            ValueError,
            "two or more different",
            lambda: OrderedSequenceBarrier(2, (ROLES.one, ROLES.one)),
        ),
        (
            ValueError,
            r"with equal arrivals, but these have 2 \(one=Warps\(2\)\), 3 \(two=Warps\(3\)\)",
            lambda: OrderedSequenceBarrier(2, (ROLES.one, ROLES.two)),
        ),
    ],
)
def test_what_does_not_add_up_on_the_host(error, text, make):
    with pytest.raises(error, match=text):
        make()


def test_the_barriers_of_an_order():
    roles = Roles(a=tma.Warpgroups(1), b=tma.Warpgroups(1), c=tma.Warpgroups(1))
    order = OrderedSequenceBarrier(2, (roles.a, roles.b, roles.c))
    assert (order.num_barriers, order.num_groups, order.arrivals, order.block) == (6, 3, 4, 384)
    threads = Roles(a=tma.Threads(8), b=tma.Threads(8))
    order = OrderedSequenceBarrier(1, [threads.a, threads.b])
    assert order.each_thread_arrives and order.arrivals == 8


@pytest.mark.parametrize("block", [(8, 4, 1), (32, 1, 2), (48, 1, 1)])
def test_a_block_that_stores_as_a_whole_is_one_dimensional(block):
    with pytest.raises(
        ValueError, match=re.escape(f"block {block}: a kernel with a StorePipeline")
    ):
        check_line(block)
    check_line((96, 1, 1))


# ------------------------------------------------------------------------------- in PTX


def lines(kernel, arguments, *words):
    body = instructions(compile_ptx(kernel, arguments))
    return [line for line in body if any(word in line for word in words)]


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_one_barrier_for_each_stage(stages):
    kernel, arguments = store_pipeline(stages)
    found = lines(
        kernel, arguments, "fence.proxy", "wait_group", "bar.sync", "bulk.tensor", "commit"
    )
    assert [line.split()[0] for line in found] == [
        "fence.proxy.async.shared::cta",
        "cp.async.bulk.wait_group.read",
        "bar.sync",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
        "cp.async.bulk.commit_group",
        "cp.async.bulk.wait_group",
    ]
    assert found[1].endswith(f" {stages - 2}") and found[-1].endswith(" 0")


def test_two_barriers_where_there_is_one_stage():
    kernel, arguments = store_pipeline(1)
    found = lines(
        kernel, arguments, "fence.proxy", "wait_group", "bar.sync", "bulk.tensor", "commit"
    )
    assert [line.split()[0].removeprefix("cp.async.bulk.") for line in found] == [
        "wait_group.read",
        "bar.sync",
        "fence.proxy.async.shared::cta",
        "bar.sync",
        "tensor.2d.global.shared::cta.bulk_group",
        "commit_group",
        "wait_group",
    ]


def test_the_stores_of_a_stage_are_one_group():
    kernel, arguments = reduce_store(2)
    found = lines(kernel, arguments, "bulk_group", "commit_group")
    assert [line.split()[0].split(".")[-2] for line in found][:2] == ["shared::cta", "add"]
    assert [line for line in found if "commit" in line] == ["cp.async.bulk.commit_group"]


def test_a_tail_that_only_waits_for_the_reads():
    @cuda.jit
    def kernel(y):
        out = OUT.start()
        stage = out.acquire()
        stage.y[0, cuda.threadIdx.x] = 1.0
        out.store(y, stage.y, (0, 0))
        out.tail(read=True)

    found = lines(kernel, (MAP,), "wait_group")
    assert set(found) == {"cp.async.bulk.wait_group.read 0"}


def test_a_store_with_a_cache_hint():
    @cuda.jit
    def kernel(y):
        out = OUT.start()
        stage = out.acquire()
        stage.y[0, cuda.threadIdx.x] = 1.0
        out.store(y, stage.y, (0, 0), tma.CachePolicy.EVICT_FIRST)
        out.reduce(y, stage.y, (0, 0), "add", cache_hint=tma.CachePolicy.EVICT_LAST)
        out.tail()

    assert len(lines(kernel, (MAP,), "bulk_group.L2::cache_hint")) == 2


def test_memory_handed_in_and_a_loop_without_commit_spill_nothing():
    MEMORY = Tile((32, 64), "f32")

    @cuda.jit
    def kernel(y, n):
        memory = tma.shared_tile(MEMORY)
        out = OUT.start(tiles=memory)
        for tile, stage in out.stages(0, n):
            stage.y[0, cuda.threadIdx.x] = tile
            out.store(y, stage.y, (tile * 16, 0))
            if tile == 7:
                break
        out.tail()

    text = compile_ptx(kernel, (MAP, types.int64))
    report = ptxas(text)
    assert (report.spill_stores, report.stack_frame, report.shared) == (0, 0, MEMORY.nbytes)
    assert ".local" not in text


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_turns_are_waits_and_arrivals(depth):
    ROLES = Roles(a=tma.Warpgroups(1), b=tma.Warpgroups(1))
    ORDER = OrderedSequenceBarrier(depth, (ROLES.a, ROLES.b))

    @cuda.jit
    def kernel(out, n):
        order = ORDER.start()
        for i in range(n):
            turn = order.turn()
            out[i] = i
            turn.close()

    text = compile_ptx(kernel, (types.int64[::1], types.int64))
    report = ptxas(text)
    assert (report.spill_stores, report.stack_frame, report.shared) == (0, 0, 16 * depth)
    assert ".local" not in text
    inits = [line for line in instructions(text) if "mbarrier.init" in line]
    assert len(inits) == 2 * depth or depth > 2


# -------------------------------------------------------------------- what is refused


def refused(kernel, *arguments):
    with pytest.raises((TypingError, CudaTypingError)) as error:
        compile_ptx(kernel, arguments)
    return str(error.value)


def one_stage(operation, pipeline=OUT):
    """Return a kernel that acquires a stage and calls `operation(out, stage, map)`."""
    call = cuda.jit(device=True)(operation)

    @cuda.jit
    def kernel(y):
        out = pipeline.start()
        call(out, out.acquire(), y)

    return kernel


def test_a_reduction_that_the_type_does_not_have():
    kernel = one_stage(lambda out, stage, y: out.reduce(y, stage.y, (0, 0), "min"))
    text = refused(kernel, MAP)
    assert "Store.reduce: the copy engine has no reduction 'min' of f32: it has 'add'" in text


def test_a_reduction_by_a_value():
    @cuda.jit
    def kernel(y, n):
        out = OUT.start()
        stage = out.acquire()
        out.reduce(y, stage.y, (0, 0), n)

    text = refused(kernel, MAP, types.int64)
    assert "Store.reduce: op is part of the instruction, so a literal such as 'add'" in text


@pytest.mark.parametrize("method", ["store", "reduce"])
def test_an_array_instead_of_a_map(method):
    if method == "store":
        kernel = one_stage(lambda out, stage, y: out.store(y, stage.y, (0, 0)))
    else:
        kernel = one_stage(lambda out, stage, y: out.reduce(y, stage.y, (0, 0), "add"))
    text = refused(kernel, types.float32[:, ::1])
    assert f"Store.{method}: tensor_map is array" in text
    assert "pass tensor_map(array, tile) to the kernel" in text


def test_a_map_of_another_tile():
    kernel = one_stage(lambda out, stage, y: out.store(y, stage.y, (0, 0)))
    assert "the map copies" in refused(kernel, TensorMapType(2, Tile((8, 64), "f32")))


def test_an_im2col_map():
    kernel = one_stage(lambda out, stage, y: out.store(y, stage.y, (0, 0)))
    text = refused(kernel, TensorMapType(4, TILE, mode="im2col"))
    assert "Store.store takes maps of tensor_map" in text and "store_im2col" in text


def test_an_unknown_tile_of_a_stage():
    kernel = one_stage(lambda out, stage, y: out.store(y, stage.z, (0, 0)))
    assert "has no tile 'z'" in refused(kernel, MAP)


def test_more_stages_than_shared_memory_has():
    PIPE = StorePipeline(30, y=TILE, role=(ROLES.one, ROLES.two))
    kernel = one_stage(lambda out, stage, y: out.store(y, stage.y, (0, 0)), PIPE)
    text = refused(kernel, MAP)
    assert "245,760 B (y: 2 roles x 30 stages x 4,096 B)" in text


def test_memory_that_is_too_small():
    MEMORY = Tile((16, 64), "f32")

    @cuda.jit
    def kernel(y):
        memory = tma.shared_tile(MEMORY)
        OUT.start(tiles=memory)

    text = refused(kernel, MAP)
    assert "it has 4,096 B at a multiple of 128, but the pipeline needs 8,192 B" in text


def test_barriers_that_are_too_few():
    roles = Roles(a=tma.Warps(1), b=tma.Warps(1))
    ORDER = OrderedSequenceBarrier(2, (roles.a, roles.b))

    @cuda.jit
    def kernel():
        barriers = tma.shared_barriers(3)
        ORDER.start(barriers=barriers)

    assert "start(barriers=3 barriers): it has 24 B" in refused(kernel)
