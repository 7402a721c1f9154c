"""TilePipeline: its layout on the host, and the protocol that kernels are compiled to."""

import pickle
import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import TensorMapType, Tile, TilePipeline
from numba_tma.backend.interface import Unknown
from numba_tma.host.layout import Swizzle
from numba_tma.pipeline.ranges import goes_backwards
from numba_tma.simulator import BadOperand
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.cpu.device.test_shared import integers

TILE = Tile((16, 64), "f32")
BITS, WIDE = Tile((3, 16), "u8"), Tile((8, 64), "bf16", Swizzle.B128)
PIPE = TilePipeline(3, x=TILE)
MIXED = TilePipeline(3, bits=BITS, x=TILE, wide=WIDE)
MAP = TensorMapType(2, TILE)
I64, FLOATS, COUNTER = types.int64, types.float32[::1], types.uint32[::1]


# ------------------------------------------------------------------------- on the host


@pytest.mark.parametrize("stages", [1, 3, 8])
@pytest.mark.parametrize(
    "tiles",
    [
        {"x": TILE},
        {"bits": BITS, "x": TILE, "wide": WIDE},
        {"wide": WIDE, "bits": BITS},
        {"narrow": Tile((4, 8), "f32", Swizzle.B128), "x": TILE},
    ],
    ids=lambda tiles: "-".join(tiles),
)
def test_stages_lie_apart_and_aligned(stages, tiles):
    pipe = TilePipeline(stages, **tiles)
    used = []
    for name, tile in tiles.items():
        stride = -(-tile.shared_nbytes // tile.alignment) * tile.alignment
        for stage in range(stages):
            start = pipe.tile_offset(name) + stage * stride
            assert start % tile.alignment == 0
            used.append((start, start + tile.shared_nbytes))
    first = pipe.barriers_offset
    for offset, size in ((0, 8), (pipe.empty_offset, 8), (pipe.ticket_offset, 4)):
        offset += first
        assert offset % size == 0
        used += [(offset + size * stage, offset + size * (stage + 1)) for stage in range(stages)]
    used.sort()
    assert used[0][0] == 0 and 0 <= pipe.nbytes - used[-1][1] < 8
    assert all(end <= start for (_, end), (start, _) in zip(used, used[1:]))
    assert pipe.alignment == max(tile.alignment for tile in tiles.values())
    assert pipe.tx_bytes == sum(tile.nbytes for tile in tiles.values())


def test_known_sizes():
    pipe = TilePipeline(4, x=Tile((64, 128), "f32"))
    assert (pipe.tx_bytes, pipe.alignment, pipe.barriers_offset) == (32768, 128, 131072)
    assert (pipe.empty_offset, pipe.ticket_offset, pipe.nbytes) == (32, 64, 131152)


def test_it_says_what_it_is():
    assert repr(MIXED) == (
        "TilePipeline(3, bits=Tile((3, 16), u8, NONE), x=Tile((16, 64), f32, NONE), "
        "wide=Tile((8, 64), bf16, B128))"
    )


def test_equal_pipelines_are_one_compile_time_value():
    same = TilePipeline(3, x=Tile((16, 64), np.float32))
    assert same == PIPE and hash(same) == hash(PIPE)
    assert pickle.loads(pickle.dumps(MIXED)) == MIXED
    others = [TilePipeline(4, x=TILE), TilePipeline(3, y=TILE), TilePipeline(3, x=WIDE), MIXED]
    assert len({PIPE, *others}) == 5
    assert TilePipeline(3, x=TILE, wide=WIDE) != TilePipeline(3, wide=WIDE, x=TILE)
    with pytest.raises(AttributeError):
        PIPE.num_stages = 4


@pytest.mark.parametrize("name", ["barrier", "index", "owner", "tile", "get_tile", "expect_bytes"])
def test_a_tile_may_not_hide_what_a_stage_has(name):
    with pytest.raises(ValueError, match=f"TilePipeline.{name}=.*the name is reserved for an"):
        TilePipeline(2, **{name: TILE})


@pytest.mark.parametrize("tile", [(16, 64), TILE.shape, "f32", None, PIPE])
def test_a_stage_holds_tiles(tile):
    with pytest.raises(TypeError, match=r"TilePipeline\(x=...\) takes a Tile, not "):
        TilePipeline(2, x=tile)


def test_a_pipeline_has_a_tile():
    with pytest.raises(ValueError, match="name at least one tile, as in TilePipeline.4, x=TILE"):
        TilePipeline(4)


def test_an_unknown_tile():
    with pytest.raises(AttributeError, match="has no tile 'y'"):
        PIPE.tile_offset("y")


def test_a_state_walks_round_on_the_host_as_well():
    state = tma.PipelineState(3, 0, 1)
    seen = []
    for _ in range(6):
        seen.append((int(state.index), int(state.phase), int(state.count)))
        state.step()
    assert seen == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (0, 0, 3), (1, 0, 4), (2, 0, 5)]


def test_next_is_step_and_the_state_itself():
    def by_step(steps):
        state = tma.PipelineState(3)
        for i in range(len(steps)):
            steps[i] = state.index + 4 * state.phase
            state.step()

    def by_next(steps):
        state = tma.PipelineState(3)
        for i in range(len(steps)):
            steps[i] = state.index + 4 * state.phase
            state = state.next()

    ours, theirs = (body_of(cuda.jit(k), types.int64[::1]) for k in (by_next, by_step))
    # The order of first use, by which registers are numbered, may differ.
    ours, theirs = ([re.sub(r"%(\D+)\d+", r"%\1", line) for line in k] for k in (ours, theirs))
    assert ours == theirs


# ------------------------------------------------------------------------ the protocol


def body_of(kernel, *arguments, cc=(9, 0, "a")):
    """Return a kernel's instructions, if it needs no local memory."""
    ptx = compile_ptx(kernel, arguments, cc=cc)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads) == (0, 0) and not report.warnings
    if cc == (9, 0, "a"):
        assert ".local" not in ptx and report.stack_frame == 0
    return instructions(ptx)


def count(body, *parts):
    return sum(all(part in line for part in parts) for line in body)


def operations(body, *names):
    """List (name, operand, ...) of the instructions `names`, with what their registers hold.

    Each is listed once: a wait is in the code twice, before its loop and in it.
    """
    held, found = integers(body), []
    for line in body:
        for name in names:
            if name in line:
                registers = re.findall(r"%r\d+", line.partition(name)[2])
                operation = (name, *(held.get(register) for register in registers))
                if found[-1:] != [operation]:
                    found.append(operation)
    return found


@pytest.mark.parametrize("stages", [1, 3, 8])
def test_the_barriers_are_initialised_by_constant_addresses(stages):
    pipe = TilePipeline(stages, x=TILE)

    def kernel(n):
        pipe.start()

    body = body_of(kernel, I64)
    addresses = [address for _, address, _ in operations(body, "mbarrier.init")]
    full = [pipe.barriers_offset + 8 * s for s in range(stages)]
    empty = [pipe.barriers_offset + pipe.empty_offset + 8 * s for s in range(stages)]
    assert sorted(addresses) == sorted(full + empty)
    order = [line.split()[0] for line in body if line.startswith(("mbarrier", "fence", "bar"))]
    wanted = ["mbarrier.init.shared::cta.b64"] * 2 * stages
    assert order == [*wanted, "fence.mbarrier_init.release.cluster", "bar.sync"]


@cuda.jit(device=True, forceinline=True)
def fill(producer, bits, x, wide):
    stage = producer.acquire()
    bits.load(stage.bits, (0, 0), stage.barrier)
    x.load(stage.x, (0, 0), stage.barrier)
    wide.load(stage.wide, (0, 0), stage.barrier)
    producer.commit()


@cuda.jit(device=True, forceinline=True)
def use(consumer):
    consumer.wait()
    consumer.release()


WAIT, ARM, LOAD = "try_wait.parity", "arrive.expect_tx", "complete_tx"
ARRIVE, SYNC, ELECT = "mbarrier.arrive.shared", "bar.warp.sync", "elect.sync"


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_what_a_producer_waits_for_and_arms_and_loads(stages):
    pipe = TilePipeline(stages, bits=BITS, x=TILE, wide=WIDE)

    def kernel(bits, x, wide):
        producer = pipe.start().producer()
        fill(producer, bits, x, wide)
        fill(producer, bits, x, wide)
        fill(producer, bits, x, wide)
        fill(producer, bits, x, wide)
        fill(producer, bits, x, wide)

    wanted = []
    for turn in range(5):
        s, phase = turn % stages, 1 - turn // stages % 2
        full = pipe.barriers_offset + 8 * s
        wanted += [
            (WAIT, pipe.barriers_offset + pipe.empty_offset + 8 * s, phase),
            (ARM, full, pipe.tx_bytes),
        ]
        for name, tile in pipe.tiles:
            stride = -(-tile.shared_nbytes // tile.alignment) * tile.alignment
            wanted.append((LOAD, pipe.tile_offset(name) + s * stride, 0, 0, full))
    body = body_of(kernel, *(TensorMapType(2, tile) for tile in (BITS, TILE, WIDE)))
    assert operations(body, WAIT, ARM, LOAD) == wanted


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_what_a_consumer_waits_for_and_releases(stages):
    pipe = TilePipeline(stages, bits=BITS, x=TILE, wide=WIDE)

    def kernel(n):
        consumer = pipe.start().consumer()
        use(consumer)
        use(consumer)
        use(consumer)
        use(consumer)
        use(consumer)

    wanted = []
    for turn in range(5):
        s, phase = turn % stages, turn // stages % 2
        wanted += [(WAIT, pipe.barriers_offset + 8 * s, phase), (SYNC,), (ELECT,)]
        wanted.append((ARRIVE, pipe.barriers_offset + pipe.empty_offset + 8 * s))
    got = [
        operation[:1] if operation[0] in (SYNC, ELECT) else operation
        for operation in operations(body_of(kernel, I64), WAIT, SYNC, ELECT, ARRIVE)
    ]
    assert got == wanted


def test_stages_held_back_are_handed_back_oldest_first():
    def kernel(n):
        consumer = PIPE.start().consumer()
        consumer.wait()
        consumer.wait()
        consumer.release()
        consumer.wait()
        consumer.release()
        consumer.release()

    full = PIPE.barriers_offset
    empty = full + PIPE.empty_offset
    assert operations(body_of(kernel, I64), WAIT, ARRIVE) == [
        (WAIT, full, 0), (WAIT, full + 8, 0), (ARRIVE, empty),
        (WAIT, full + 16, 0), (ARRIVE, empty + 8), (ARRIVE, empty + 16),
    ]  # fmt: skip


# --------------------------------------------------------------------------- the loops


def loop(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(cuda.blockIdx.x, n, cuda.gridDim.x):
            x.load(stage.x, (16 * tile, 0), stage.barrier)
    elif pipe.is_consumer():
        for tile, stage in pipe.consume(cuda.blockIdx.x, n, cuda.gridDim.x):
            out[tile] = stage.x[0, cuda.threadIdx.x]
        pipe.close()


def loop_with_default_step(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n):
            x.load(stage.x, (16 * tile, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(0, n, in_flight=2):
            pipe.store(x, stage.x, (16 * tile, 0))
        pipe.release_pending()


def nested(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for group in range(n):
            for k, stage in pipe.produce(group * 4, group * 4 + 4):
                x.load(stage.x, (16 * k, 0), stage.barrier)
    else:
        for group in range(n):
            total = np.float32(0)
            for _, stage in pipe.consume(0, 4):
                total += stage.x[0, cuda.threadIdx.x]
            out[group] = total


def breaks(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n):
            x.load(stage.x, (16 * tile, 0), stage.barrier)
            if tile == out.size:
                break
    else:
        for tile, stage in pipe.consume(0, n, in_flight=1):
            if out[tile] < 0:
                continue
            out[tile] = stage.x[0, 0]
            if tile == out.size:
                break
        pipe.release_pending()


def returns(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n):
            if out[tile] > 0:
                return
            x.load(stage.x, (16 * tile, 0), stage.barrier)
        return
    for tile, stage in pipe.consume(0, n):
        if out[tile] > 0:
            pipe.close()
            return
        out[tile] = stage.x[1, 1]


def two_rings(x, out, n):
    left, right = PIPE.start(), PIPE.start()
    if left.is_producer():
        if tma.elect_sync():
            for tile in range(n):
                a, b = left.producer().acquire(), right.producer().acquire()
                x.load(a.x, (16 * tile, 0), a.barrier)
                x.load(b.x, (16 * tile, 0), b.barrier)
                left.producer().commit()
                right.producer().commit()
    else:
        for tile, a in left.consume(0, n):
            b = right.consumer().wait()
            a.x[0, 0] += b.x[0, 0]
            right.consumer().release()
            left.store(x, a.x, (16 * tile, 0))


def explicit(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        if tma.elect_sync():
            tile = cuda.blockIdx.x
            while tile < n:
                stage = pipe.producer().acquire()
                x.load(stage.x, (16 * tile, 0), stage.barrier)
                pipe.producer().commit()
                tile += cuda.gridDim.x
            pipe.producer().tail()
    else:
        tile = cuda.blockIdx.x
        while tile < n:
            stage = pipe.consumer().wait()
            out[tile] = stage.x[0, 0]
            pipe.consumer().release()
            tile += cuda.gridDim.x


@cuda.jit(device=True)
def produce_all(pipe, x, n):
    for tile, stage in pipe.produce(0, n):
        load_stage(x, stage, tile)


@cuda.jit(device=True)
def load_stage(x, stage, tile):
    x.load(stage.x, (16 * tile, 0), stage.barrier)


@cuda.jit(device=True)
def consume_all(pipe, out, n):
    for tile, stage in pipe.consume(0, n):
        out[tile] = sum_of_tile(stage.x)


@cuda.jit(device=True)
def sum_of_tile(tile):
    total = np.float32(0)
    for i in range(16):
        total += tile[i, cuda.threadIdx.x]
    return total


def in_device_functions(x, out, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        produce_all(pipe, x, n)
    else:
        consume_all(pipe, out, n)


def counted(x, out, n):
    state = tma.PipelineState(3)
    for _ in range(n):
        state.step()
    out[state.index] = state.phase + state.count


LOOPS = [
    loop,
    loop_with_default_step,
    nested,
    breaks,
    returns,
    two_rings,
    explicit,
    in_device_functions,
    counted,
]


@pytest.mark.parametrize("kernel", LOOPS, ids=lambda kernel: kernel.__name__)
def test_every_form_of_loop_compiles_to_registers(kernel):
    body = body_of(kernel, MAP, FLOATS, I64)
    assert not count(body, "call")
    rings = 0 if kernel is counted else 2 if kernel is two_rings else 1
    assert count(body, "mbarrier.init") == rings * 2 * PIPE.num_stages
    assert count(body, "complete_tx::bytes") == rings


@pytest.mark.parametrize("kernel", [loop, explicit, in_device_functions])
def test_the_other_architectures(kernel):
    for cc in ((10, 0, "a"), (12, 0)):
        body = body_of(kernel, MAP, FLOATS, I64, cc=cc)
        assert count(body, "complete_tx::bytes") == 1


def test_the_bytes_of_a_stage_are_armed_once_for_all_its_tiles():
    def kernel(bits, x, wide, out, n):
        pipe = MIXED.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                bits.load(stage.bits, (3 * tile, 0), stage.barrier)
                x.load(stage.x, (16 * tile, 0), stage.barrier)
                wide.load(stage.wide, (8 * tile, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(0, n):
                i = cuda.threadIdx.x
                out[tile] = stage.bits[0, i] + stage.x[0, i] + stage.wide[0, i]

    maps = [TensorMapType(2, tile) for tile in (BITS, TILE, WIDE)]
    body = body_of(kernel, *maps, FLOATS, I64)
    assert [operands[-1] for _, *operands in operations(body, ARM)] == [MIXED.tx_bytes]
    assert count(body, "complete_tx::bytes") == 3
    reads = [line.split()[0] for line in body if line.startswith("ld.shared")]
    assert sorted(reads) == ["ld.shared.f32", "ld.shared.u16", "ld.shared.u8"]


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_a_store_leaves_as_many_groups_as_stages_are_in_flight(in_flight):
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                x.load(stage.x, (16 * tile, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(0, n, in_flight=in_flight):
                pipe.store(y, stage.x, (16 * tile, 0), written=False)
            pipe.release_pending()

    body = body_of(kernel, MAP, MAP, I64)
    waited = {line.split()[1] for line in body if "wait_group.read" in line}
    assert waited == {str(in_flight), "0"}
    assert count(body, "global.shared::cta.bulk_group") == 1
    assert not count(body, "fence.proxy.async")


def test_a_queue_is_drawn_from_by_one_thread():
    def kernel(x, counter, out, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce_from(tma.TileQueue(counter, n)):
                x.load(stage.x, (16 * tile, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume_from():
                out[tile] = stage.x[0, 0]

    body = body_of(kernel, MAP, COUNTER, FLOATS, I64)
    assert count(body, "atom.global.inc.u32") == 2  # the first tile, and one per turn
    assert count(body, "st.shared.u32") == 2  # a tile's number, and the end
    assert count(body, "ld.shared.u32") == 1


def test_roles_are_told_apart_by_the_last_warp():
    def kernel(out):
        pipe = PIPE.start()
        if pipe.is_producer():
            out[0] = 1
        if pipe.is_consumer():
            out[1] = 2
        out[2] = pipe.num_consumers()

    body = body_of(kernel, FLOATS)
    assert count(body, "setp.lt.u32") + count(body, "setp.ge.u32") in (1, 2)
    assert count(body, "add.s32", "-32") >= 1


def test_barriers_by_hand():
    def kernel(out):
        full = tma.shared_barrier()
        full.init(3)
        tma.fence_mbarrier_init()
        full.arrive()
        full.expect_tx(64)
        full.arrive_expect_tx(32)
        out[0] = full.try_wait(0)
        out[1] = full.test_wait(1)
        full.wait(1)
        full.inval()

    body = body_of(kernel, FLOATS)
    names = [re.search(r"(mbarrier|fence)[.\w:]*", line) for line in body]
    order = [name[0] for name in names if name]
    assert [re.sub(r"\.(shared::cta|b64)", "", name) for name in order] == [
        "mbarrier.init", "fence.mbarrier_init.release.cluster", "mbarrier.arrive",
        "mbarrier.expect_tx.relaxed.cta", "mbarrier.arrive.expect_tx", "mbarrier.try_wait.parity",
        "mbarrier.test_wait.parity", "mbarrier.try_wait.parity", "mbarrier.try_wait.parity",
        "mbarrier.inval",
    ]  # fmt: skip


class Typed(Unknown):
    """An argument of a type, as the compiler knows it."""

    is_integer = False

    def __str__(self):
        return "float64"

    def __repr__(self):
        return "<an argument>"


@pytest.mark.parametrize("place", ["first", "stop", "step"])
@pytest.mark.parametrize(
    ("given", "text"),
    [(Typed(), "float64"), ("3", "'3'"), (2.5, "2.5"), (True, "True"), (None, "None")],
)
def test_a_bound_that_is_no_integer_is_told_by_its_type_or_its_value(place, given, text):
    bounds = {"first": 0, "stop": 4, "step": 1} | {place: given}
    with pytest.raises(BadOperand) as caught:
        goes_backwards("consume", **bounds)
    assert f"consume({place}=...) takes an integer, not {text}: use //" in str(caught.value)
