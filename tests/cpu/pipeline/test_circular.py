"""CircularBuffer: its layout on the host, its errors, and the compiled kernels."""

import pickle

import pytest
from numba import cuda, types
from numba.core.errors import NumbaError

import numba_tma as tma
from numba_tma import CircularBuffer, TensorMapType, Tile
from numba_tma.host.layout import Swizzle
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.tiers import quick

TILE, WIDE = Tile((16, 64), "f32"), Tile((8, 64), "bf16", Swizzle.B128)
BUFFER = CircularBuffer(4, 2, x=TILE, wide=WIDE)
ROLES = tma.Roles(other=tma.Warps(1), compute=tma.Warps(2), few=tma.Threads(40))
MAP, WIDE_MAP = TensorMapType(2, TILE), TensorMapType(2, WIDE)
SIGNATURE = (MAP, WIDE_MAP, types.float32[::1], types.int64)

# ------------------------------------------------------------------------- on the host


def test_known_sizes():
    assert (BUFFER.in_flight, BUFFER.prefetch, BUFFER.tx_bytes) == (1, 2, 4096 + 1024)
    assert (BUFFER.storage_nbytes, BUFFER.alignment) == (4 * 5120, 1024)
    assert (BUFFER.full_bytes, BUFFER.num_barriers) == ((5120,), 4)
    each = CircularBuffer(4, 2, war="mbarrier", barriers="each", x=TILE, wide=WIDE)
    assert (each.full_bytes, each.num_barriers, each.empty_offset) == ((4096, 1024), 12, 64)
    assert [each.full_offset(n) for n in ("x", "wide")] == [0, 32]
    assert each.nbytes == each.storage_nbytes + 8 * 12


def test_shared_memory_is_told_by_its_parts():
    barriers = {"barriers": 32}
    tiles = {"x: 4 stages x 4,096 B": 4 * 4096, "wide: 4 stages x 1,024 B": 4 * 1024}
    assert BUFFER.shared_parts("") == tiles | barriers
    assert BUFFER.shared_parts("barriers") == barriers


@pytest.mark.parametrize("stages", [1, 2, 8])
def test_by_default_all_but_one_stage_are_loaded_ahead(stages):
    assert CircularBuffer(stages, x=TILE) == CircularBuffer(stages, stages - 1, x=TILE)
    assert CircularBuffer(stages, x=TILE).in_flight == 0


def test_it_says_what_it_is():
    assert repr(CircularBuffer(3, x=TILE)) == "CircularBuffer(3, 2, x=Tile((16, 64), f32, NONE))"
    full = CircularBuffer(3, 0, war="mbarrier", barriers="each", role=ROLES.compute, x=TILE)
    assert repr(full) == (
        "CircularBuffer(3, 0, x=Tile((16, 64), f32, NONE), war='mbarrier', barriers='each', "
        "role=compute=Warps(2))"
    )


def test_equal_buffers_are_one_compile_time_value():
    same = CircularBuffer(4, 2, x=TILE, wide=WIDE)
    assert same == BUFFER and hash(same) == hash(BUFFER)
    assert pickle.loads(pickle.dumps(BUFFER)) == BUFFER
    others = [
        CircularBuffer(4, 3, x=TILE, wide=WIDE),
        CircularBuffer(4, 2, x=TILE),
        CircularBuffer(4, 2, war="mbarrier", x=TILE, wide=WIDE),
        CircularBuffer(4, 2, barriers="each", x=TILE, wide=WIDE),
        CircularBuffer(4, 2, role=ROLES.compute, x=TILE, wide=WIDE),
    ]
    assert len({BUFFER, *others}) == 6


WRONG = {
    "no stage": (lambda: CircularBuffer(0, x=TILE), ValueError, "num_stages=0.*at least 1 stage"),
    "half a stage": (lambda: CircularBuffer(1.5, x=TILE), ValueError, "num_stages=1.5"),
    "negative prefetch": (
        lambda: CircularBuffer(2, -1, x=TILE), ValueError, "prefetch=-1.*0 or more tiles ahead",
    ),
    "no number": (lambda: CircularBuffer(2, "1", x=TILE), ValueError, "prefetch='1'"),
    "too far ahead": (
        lambda: CircularBuffer(3, 3, x=TILE), ValueError,
        r"\(3, prefetch=3\): tile i \+ 3 .* takes 3 \+ 1 = 4 stages; prefetch at most 3 - 1 = 2, "
        "or use 4 stages",
    ),
    "an unknown form": (
        lambda: CircularBuffer(2, war="fence", x=TILE), ValueError,
        r"war='fence'\): one of 'sync', 'mbarrier'",
    ),
    "unknown barriers": (
        lambda: CircularBuffer(2, barriers="two", x=TILE), ValueError,
        r"barriers='two'\): one of 'one', 'each'",
    ),
    "part of a warp": (
        lambda: CircularBuffer(2, role=ROLES.few, x=TILE), ValueError,
        r"role=few=Threads\(40\)\): whole warps elect a thread and release .* 40 threads are 1 "
        r"warps and 8 threads; use Warps\(n\)",
    ),
    "no role": (
        lambda: CircularBuffer(2, role=32, x=TILE), TypeError, r"takes a role, as ROLES.compute",
    ),
    "no tile": (lambda: CircularBuffer(2), ValueError, "name at least one tile"),
    "something else": (lambda: CircularBuffer(2, x=(16, 64)), TypeError, r"x=...\) takes a Tile"),
    "a name that is taken": (
        lambda: CircularBuffer(2, barrier=TILE), ValueError, "barrier=.*reserved for an attribute",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_wrong_on_the_host(mistake):
    make, error, text = WRONG[mistake]
    with pytest.raises(error, match=text):
        make()


# ------------------------------------------------------------------------- in kernels


def kernel_of(buffer, in_flight=0, use=None):
    each = buffer.barriers == "each"

    @cuda.jit
    def kernel(x, wide, out, n):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, n, 1, in_flight):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * 16, 0), slot.barrier_of("x"))
                wide.load(slot.wide, (ahead * 8, 0), slot.barrier_of("wide"))
            if each:
                out[tile] = stage.wait("x")[1, 2]
                out[tile] += stage.wait("wide")[3, ring.thread()]
            else:
                full = stage.wait()
                out[tile] = full.x[1, 2] + full.wide[3, ring.thread()]
        ring.close()

    return kernel


def refused(kernel):
    with pytest.raises(NumbaError) as caught:
        compile_ptx(kernel, SIGNATURE)
    return str(caught.value)


def test_more_in_flight_than_there_are_stages_for():
    assert "4 - 2 - 1 = 1 can be in flight; lower in_flight or prefetch, or add stages" in refused(
        kernel_of(BUFFER, in_flight=2)
    )


def in_a_loop(buffer, body):
    body = cuda.jit(device=True, forceinline=True)(body)

    @cuda.jit
    def kernel(x, wide, out, n):
        ring = buffer.start()
        for _, stage in ring.tiles(0, n):
            for _, slot in ring.loads():
                body(stage, slot)

    return kernel


def wait_x(stage, slot):
    stage.wait("x")


def wait_z(stage, slot):
    stage.wait("z")


def one_barrier(stage, slot):
    slot.barrier.arrive()


def barrier_of_z(stage, slot):
    slot.barrier_of("z").arrive()


def unknown_tile(stage, slot):
    stage.wait().z[0, 0]  # noqa: B018


EACH = CircularBuffer(2, barriers="each", x=TILE, wide=WIDE)
MISTAKES = {
    "waited for by name": (BUFFER, wait_x, "stage.wait('x'): all tiles of a stage complete on"),
    "an unknown name": (EACH, wait_z, "stage.wait('z'): the tiles of CircularBuffer(2, 1,"),
    "one barrier of several": (EACH, one_barrier, 'slot.barrier_of("x")'),
    "the barrier of an unknown tile": (BUFFER, barrier_of_z, "are 'x', 'wide'"),
    "an unknown tile": (BUFFER, unknown_tile, "has no tile 'z'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_stage_has_not(mistake):
    buffer, body, text = MISTAKES[mistake]
    assert text in refused(in_a_loop(buffer, body))


def test_more_shared_memory_than_a_block_has():
    buffer = CircularBuffer(8, x=Tile((128, 64), "f32"))

    @cuda.jit
    def kernel(x, wide, out, n):
        buffer.start()

    @cuda.jit
    def with_barriers(x, wide, out, n):
        buffer.start(barriers=tma.shared_barriers(8))

    for each in (kernel, with_barriers):
        text = refused(each)
        assert "262,144 B (x: 8 stages x 32,768 B) + 64 B (barriers) = 262,208 B" in text


FORMS = [
    CircularBuffer(stages, prefetch, war=war, barriers=barriers, role=role, x=TILE, wide=WIDE)
    for stages, prefetch, role in ((1, 0, ROLES.compute), (4, 2, None))
    for war in ("sync", "mbarrier")
    for barriers in ("one", "each")
]


@pytest.mark.parametrize(
    "buffer", quick([FORMS[i] for i in (0, 3, 6)], FORMS), ids=range(len(FORMS))
)
def test_every_form_is_free_of_local_memory_and_says_what_it_should(buffer):
    text = compile_ptx(kernel_of(buffer, buffer.in_flight), SIGNATURE)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == () and report.shared == buffer.nbytes
    body = instructions(text)
    assert [line for line in body if ".local" in line or line.startswith("call")] == []

    def count(*parts):
        return sum(all(part in line for part in parts) for line in body)

    assert count("mbarrier.init") == count("mbarrier.inval") == buffer.num_barriers
    assert count("expect_tx") == buffer.num_full
    assert count("cp.async.bulk.tensor") == 2
    # A wait is written twice: before its loop, and in it. The loads' waits are in one place.
    assert count("try_wait") == 2 * (buffer.num_full + buffer.by_mbarrier)
    assert count("mbarrier.arrive.shared") == buffer.by_mbarrier


def test_a_loop_may_start_it_again():
    """Unlike other pipelines, since close() ends the use of its barriers."""
    buffer = CircularBuffer(2, x=TILE)

    @cuda.jit
    def kernel(x, wide, out, n):
        for _ in range(n):
            ring = buffer.start()
            for tile, stage in ring.tiles(0, n):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * 16, 0), slot.barrier)
                out[tile] = stage.wait().x[1, 2]
            ring.close()
            cuda.syncthreads()

    assert ptxas(compile_ptx(kernel, SIGNATURE)).spill_stores == 0


def test_where_the_memory_is_said_nothing_is_allocated():
    buffer = CircularBuffer(2, x=TILE)
    memory = Tile((40, 64), "f32")

    @cuda.jit
    def kernel(x, wide, out, n):
        ring = buffer.start(tma.shared_tile(memory), tma.shared_barriers(2))
        for tile, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * 16, 0), slot.barrier)
            out[tile] = stage.wait().x[1, 2]

    assert ptxas(compile_ptx(kernel, SIGNATURE)).shared == memory.nbytes + 16

    @cuda.jit
    def small(x, wide, out, n):
        buffer.start(tma.shared_tile(TILE))

    assert "it has 4,096 B at a multiple of 128" in refused(small)
