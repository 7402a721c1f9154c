"""Debug mode of the pipelines beside the ring: the bounded waits, and the shared memory."""

import functools
import re

import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host import debug
from numba_tma.tools.testing import compile_ptx, instructions, ptxas, run_isolated
from tests.cpu.host.test_debug import unbounded_waits
from tests.tiers import quick

TILE, SMALL = tma.Tile((8, 32), "f32"), tma.Tile((4, 32), "f32")
MAP, SMALL_MAP, FLOATS = TensorMapType(2, TILE), TensorMapType(2, SMALL), types.float32[::1]
ROLES = tma.Roles(mma=tma.Warps(2), epilogue=tma.Warps(4))
TWINS = tma.Roles(left=tma.Warps(1), right=tma.Warps(1))


def stores(on, **more):
    OUT = tma.StorePipeline(2, y=TILE, debug=on, **more)

    @cuda.jit
    def kernel(y):
        out = OUT.start()
        if out.enters():
            stage = out.acquire()
            stage.y[0, out.thread % 32] = 1.0
            out.store(y, stage.y, (0, 0))
            out.tail()

    return OUT, kernel, (MAP,)


def circular(on, war="sync", barriers="one"):
    BUFFER = tma.CircularBuffer(3, 1, war=war, barriers=barriers, debug=on, x=TILE, y=SMALL)

    @cuda.jit
    def kernel(x, y, out, n):
        ring = BUFFER.start()
        for tile, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * 8, 0), slot.barrier_of("x"))
                y.load(slot.y, (ahead * 4, 0), slot.barrier_of("y"))
            full = stage.wait()
            out[tile] = full.x[1, 2] + full.y[3, ring.thread()]
        ring.close()

    return BUFFER, kernel, (MAP, SMALL_MAP, FLOATS, types.int64)


def accumulators(on, memory="shared"):
    tile = TILE if memory == "shared" else tma.Tile((128, 32), "f32")
    OUT = tma.OutputTilePipeline(
        2, tile, mma=ROLES.mma, epilogue=ROLES.epilogue, memory=memory, debug=on
    )

    @cuda.jit
    def kernel(n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            for _ in pipe.produce(0, n):
                pass
        else:
            for _ in pipe.consume(0, n):
                pipe.consumer().sync()
        pipe.close()

    return OUT, kernel, (types.int64,)


def keys(on):
    KEYS = tma.KVPipeline(
        2, 64, 128, "bf16", 2, producer=ROLES.mma, consumer=ROLES.epilogue, holds="k", debug=on
    )

    @cuda.jit
    def kernel(n):
        pipe = KEYS.start()
        producer, consumer = pipe.producer(), pipe.consumer()
        if producer.enters():
            producer.acquire(1)
        elif ROLES.epilogue.is_member():
            consumer.wait(1)
            consumer.release(1)

    return KEYS, kernel, (types.int64,)


def turns(on):
    ORDER = tma.OrderedSequenceBarrier(1, (TWINS.left, TWINS.right), debug=on)

    @cuda.jit
    def kernel(n):
        order = ORDER.start()
        order.wait()
        order.arrive()

    return ORDER, kernel, (types.int64,)


def both_roles(on):
    return stores(on, role=(ROLES.mma, ROLES.epilogue))


FORMS = {
    "stores": stores,
    "stores of two roles": both_roles,
    "circular": circular,
    "circular, a barrier for each tile": functools.partial(circular, barriers="each"),
    "circular, by mbarrier": functools.partial(circular, war="mbarrier"),
    "accumulators": accumulators,
    "keys": keys,
    "turns": turns,
}
#: The others have meetings as well.
WITHOUT_MEETINGS = ("keys", "turns")


@functools.cache
def compiled(form, on):
    pipeline, kernel, arguments = FORMS[form](on)
    return pipeline, compile_ptx(kernel, arguments)


#: Those that every run has; the others are much like them.
QUICK = ("stores of two roles", "circular, a barrier for each tile", "circular, by mbarrier")
EACH_FORM = quick(QUICK, FORMS)


@pytest.mark.parametrize("form", EACH_FORM)
def test_every_wait_is_bounded(form):
    pipeline, text = compiled(form, True)
    assert pipeline.debug and debug.MARKER in text
    assert unbounded_waits(text) == []
    assert ("mbarrier.try_wait.shared" in text) == (form not in WITHOUT_MEETINGS)
    assert len(re.findall(r"bar(?:rier)?\.sync", text)) == 1  # of start(), which makes the barriers
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    if form != "turns":
        assert report.shared == pipeline.nbytes + getattr(pipeline, "sync_nbytes", 0)


@pytest.mark.parametrize("form", EACH_FORM)
def test_off_nothing_of_it_is_compiled(form):
    pipeline, text = compiled(form, False)
    assert not pipeline.debug
    assert debug.MARKER not in text and "globaltimer" not in text
    assert not [
        line for line in instructions(text) if re.match("exit|red|atom|st.shared.b64", line)
    ]


@pytest.mark.slow
def test_in_tensor_memory_every_wait_is_bounded():
    _, kernel, arguments = accumulators(True, "tensor")
    text = compile_ptx(kernel, arguments, cc=(10, 0, "a"))
    assert unbounded_waits(text) == [] and len(re.findall(r"bar\.sync", text)) == 1
    ptxas(text)


@pytest.mark.parametrize("form", [form for form in QUICK if form.startswith("circular")])
def test_the_copies_of_a_circular_buffer_are_counted(form):
    listed = instructions(compiled(form, True)[1])
    counts = [i for i, line in enumerate(listed) if line.startswith("red.")]
    copies = [i for i, line in enumerate(listed) if line.startswith("cp.async.bulk.tensor")]
    assert len(counts) == len(copies) == 2
    assert counts[0] < copies[0] < counts[1] < copies[1]


def under_the_variable():
    """Return whether waits are bounded, and copies counted, without a word and with debug=False."""
    found = []
    for on in (None, False):
        listed = instructions(compiled("circular", on)[1])
        found.append(any("globaltimer" in line or line.startswith("red.") for line in listed))
    return found


@pytest.mark.slow
def test_the_variable_decides_where_nothing_is_said():
    assert run_isolated(under_the_variable, timeout=300, env={"NUMBA_TMA_DEBUG": "1"}) == [
        True,
        False,
    ]


# ----------------------------------------------------------------------------- on the host


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize("barriers", ["one", "each"])
def test_a_circular_buffer_has_room_for_its_ledgers(war, barriers):
    plain, bounded = (circular(on, war, barriers)[0] for on in (False, True))
    assert plain.ledger_offset == 0 and plain.num_live == plain.num_barriers
    assert bounded != plain and repr(bounded) == repr(plain)[:-1] + ", debug=True)"
    assert bounded.sync_offset == plain.sync_offset == 8 * plain.num_barriers
    assert bounded.ledger_offset == bounded.sync_offset + 8
    assert bounded.num_barriers == plain.num_barriers + 1 + 3 * bounded.num_full
    assert [site.tx_bytes for site in bounded.full_sites] == list(bounded.full_bytes)
    names = ["'x.full'", "'y.full'"] if barriers == "each" else ["'x+y.full'"]
    assert [site.what for site in bounded.full_sites] == names
    assert all(site.in_ring and site.for_full for site in bounded.full_sites)


def test_the_others_say_that_they_are_bounded():
    for make in (stores, both_roles, accumulators, keys, turns):
        plain, bounded = make(False)[0], make(True)[0]
        assert bounded != plain
        assert repr(bounded).replace("debug=True", "debug=False") in (
            repr(plain), f"{repr(plain)[:-1]}, debug=False)"
        )  # fmt: skip
    assert [make(True)[0].sync_nbytes for make in (stores, both_roles)] == [8, 16]
    assert stores(False)[0].sync_nbytes == 0
    assert accumulators(True)[0].ring.debug and accumulators(True, "tensor")[0].ring.debug


@pytest.mark.parametrize("make", [stores, circular, accumulators, keys, turns])
def test_something_else_than_a_yes_or_no(make):
    with pytest.raises(
        TypeError, match=r"(Pipeline|Buffer|Barrier)\(debug=...\) takes True, False or None"
    ):
        make(1.5)
