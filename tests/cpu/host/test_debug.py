"""Debug mode without a GPU: the compiled code, the records' messages, and no caching."""

import functools
import pickle
import re
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.backend.numba_cuda import guards
from numba_tma.host import debug
from numba_tma.host import environment as _environment
from numba_tma.host.debug import Record, Site
from numba_tma.tools.testing import compile_ptx, instructions, ptxas, run_isolated
from tests.cpu.backend.test_compiler import Application, hopper_that_loads_nothing

TILE = tma.Tile((8, 32), "f32")
MAP = TensorMapType(2, TILE)
I64, FLOATS = types.int64, types.float64[::1]


# -------------------------------------------------------------------- the environment


@pytest.fixture
def environment(monkeypatch):
    """Set variables and return what a new process would make of them."""

    def read(name, function, value):
        monkeypatch.setenv(name, value)
        return function.__wrapped__()

    return read


@pytest.mark.parametrize(
    ("value", "on"),
    [(value, True) for value in ("1", "yes", "ON", "2")]
    + [(value, False) for value in ("0", "", "false", "No")],
)
def test_the_variable_switches_debug_mode_on(environment, value, on):
    assert environment("NUMBA_TMA_DEBUG", _environment.debugging, value) is on


def test_another_value_of_a_switch_is_refused(environment):
    with pytest.raises(ValueError, match=r"NUMBA_TMA_DEBUG='maybe': a switch is 1 \(on\) or 0"):
        environment("NUMBA_TMA_DEBUG", _environment.debugging, "maybe")


def test_a_seed_is_an_integer(monkeypatch):
    for value, seed in (("", 0), ("-3", -3), (" 12 ", 12)):
        monkeypatch.setenv("NUMBA_TMA_SIM_SEED", value)
        assert _environment.simulator_seed() == seed
    monkeypatch.setenv("NUMBA_TMA_SIM_SEED", "first")
    with pytest.raises(ValueError, match="NUMBA_TMA_SIM_SEED='first': the seed .* is an integer"):
        _environment.simulator_seed()


@pytest.mark.parametrize(("value", "seconds"), [("", 2.0), ("0.25", 0.25), ("60", 60.0)])
def test_the_limit_is_in_seconds(environment, value, seconds):
    limit = environment("NUMBA_TMA_DEBUG_TIMEOUT", _environment.wait_limit, value)
    assert limit == seconds


@pytest.mark.parametrize("value", ["soon", "0", "-1", "1e9", "nan"])
def test_a_wrong_limit_is_refused(environment, value):
    with pytest.raises(ValueError, match=rf"NUMBA_TMA_DEBUG_TIMEOUT='{value}': give the seconds"):
        environment("NUMBA_TMA_DEBUG_TIMEOUT", _environment.wait_limit, value)


# ------------------------------------------------------------------------------- PTX


def once(pipe):
    """Return a kernel with every kind of wait and no loop around any."""

    @cuda.jit
    def kernel(source, destination):
        ring = pipe.start()
        if ring.is_producer():
            if tma.elect_sync():
                stage = ring.producer().acquire()
                source.load(stage.x, (0, 0), stage.barrier)
        else:
            stage = ring.consumer().wait()
            ring.sync_consumers()
            ring.store(destination, stage.x, (0, 0))
            ring.consumer().release()

    return kernel


@functools.cache
def ptx_of(on):
    return compile_ptx(once(tma.TilePipeline(2, x=TILE, debug=on)), (MAP, MAP))


@cuda.jit
def wait_on_a_barrier(x, column, out):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes)
    x.load(tile, (0, column), barrier)
    barrier.wait(0)
    out[0] = tile[0, 0]


def ptx_of_the_barrier():
    return compile_ptx(wait_on_a_barrier, (MAP, I64, FLOATS))


@functools.cache
def in_debug_mode():
    """Return the PTX of a kernel without a pipeline, compiled with the variable set."""
    return run_isolated(ptx_of_the_barrier, timeout=120, env={"NUMBA_TMA_DEBUG": "1"})


SPIN = 8  # instructions that the plain wait loop has at most, labels and all


def unbounded_waits(ptx):
    """List the try_waits that lie on a short cycle, no loop over tiles, that reads no clock."""
    listed = instructions(ptx)
    labels = {line[:-1]: i for i, line in enumerate(listed) if line.endswith(":")}

    def following(i):
        jump = re.match(r"(?:@!?%\w+ )?bra(?:\.uni)? (\w+)", listed[i])
        if jump:
            yield labels[jump.group(1)]
        if i + 1 < len(listed) and not re.match("bra|exit|ret", listed[i]):
            yield i + 1

    found = []
    for wait in (i for i, line in enumerate(listed) if "try_wait" in line):
        seen, newest = set(), {wait}
        for _ in range(SPIN):
            newest = {
                after
                for before in newest
                for after in following(before)
                if after not in seen and "%globaltimer" not in listed[after]
            }
            seen |= newest
        if wait in seen:
            found.append(listed[wait])
    return found


def test_no_wait_of_a_pipeline_is_unbounded():
    on = ptx_of(True)
    assert unbounded_waits(on) == []
    assert "mbarrier.try_wait.parity" in on  # full and empty
    assert "mbarrier.try_wait.shared" in on  # the meetings of the consumers
    assert re.findall(r"bar\.sync (.*);", on) == [re.search(r"bar\.sync (.*);", on)[1]]  # start()
    assert "exit;" in on and debug.MARKER in on
    report = ptxas(on)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)


def test_the_scan_finds_what_is_unbounded():
    assert len(unbounded_waits(ptx_of(False))) == 2


def test_off_nothing_of_it_is_compiled():
    off = ptx_of(False)
    assert off.count("bar.sync") == 3
    for absent in ("globaltimer", "exit", "inval", "red.", "atom.", debug.MARKER):
        assert absent not in off


def test_the_variable_bounds_the_waits_of_a_barrier_too():
    plain = ptx_of_the_barrier()
    assert len(unbounded_waits(plain)) == 1 and "exit" not in plain
    on = in_debug_mode()
    assert unbounded_waits(on) == [] and debug.MARKER in on
    ptxas(on)


def test_the_innermost_coordinate_is_checked_before_the_copy():
    assert "%" not in re.search(r"exit; // (.*)", in_debug_mode())[1]
    listed = instructions(in_debug_mode())
    (copy,) = (i for i, line in enumerate(listed) if line.startswith("cp.async.bulk.tensor"))
    assert "exit" in listed[:copy]
    assert "exit" not in instructions(ptx_of_the_barrier())


def test_copies_onto_a_stage_are_counted_before_they_are_issued():
    listed = instructions(ptx_of(True))
    (copy,) = (i for i, line in enumerate(listed) if "shared::cluster.global" in line)
    (count,) = (i for i, line in enumerate(listed) if line.startswith("red."))
    assert count < copy and "shared::cluster.add.u32" in listed[count]


SPACE = tma.Tile(2048, "u8")


@cuda.jit
def copy_onto_ledgers(x, source, nbytes, mask):
    space = tma.shared_tile(SPACE)
    barrier = tma.Barrier(space.address + 1024, 8)
    x.load(space.address, (0, 0), barrier, multicast=mask)
    tma.ptx.cp_async_bulk_load(space.address, source, nbytes, barrier)


def test_a_multicast_is_counted_in_every_block_of_the_mask():
    text = compile_ptx(copy_onto_ledgers, (MAP, types.uint8[::1], I64, types.uint16))
    assert len(re.findall(r"mapa\.shared::cluster\.u32", text)) >= 1
    assert len(re.findall(r"red\.relaxed\.cluster\.shared::cluster\.add\.u32", text)) >= 2
    ptxas(text)


@cuda.jit
def copy_something(x, destination):
    space = tma.shared_tile(SPACE)
    x.load(space.address, (0, 0), tma.Barrier(space.address + 1024, 8))


@pytest.mark.parametrize(
    ("tensor_map", "offset", "added"), [(MAP, 8, 1024), (TensorMapType(2), 12, 1)]
)
def test_a_copy_of_unknown_size_makes_the_ledger_void(tensor_map, offset, added):
    listed = instructions(compile_ptx(copy_something, (tensor_map, FLOATS)))
    (count,) = (line for line in listed if line.startswith("red."))
    address, value = re.search(r"\[(\S+)\], (\S+)", count).groups()
    assert f"mov.u32 {value}, {added}" in listed
    assert any(re.fullmatch(rf"add\.s32 {address}, %r\d+, {offset}", line) for line in listed)


# ------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("word", "count", "pending", "outstanding"),
    [  # as an H200 had them
        (0x000003FE001FFFFA, 3, 0, 4096),
        (0x7FFFD800001FFFF6, 5, 5, 0),
        (0x7FFFFBFE001FFFFE, 1, 1, 4096),
    ],
)
def test_words_of_barriers_are_read(word, count, pending, outstanding):
    assert debug.decode_word(word) == (count, pending, outstanding)
    flags = 1 << 63 | 1 << 42 | 1  # which say other things
    assert debug.decode_word(word | flags) == (count, pending, outstanding)


def test_bytes_beyond_the_expected_are_negative():
    word = (-7 & 0xFFFFF) << 1 | (8192 << 21) | (-2 & 0xFFFFF) << 43
    assert debug.decode_word(word) == (7, 2, -8192)


SITES = [
    Site("'x.full'", "consumer", 2048, 4),
    Site("'x.empty'", "producer"),
    Site("sync_consumers() of 'x'", "consumer", kind="sync"),
    Site("'x.full'", "consumer", 2048, 4, "ledger"),
    Site("load of TILE", kind="coordinate", itemsize=4),
    Site("Barrier.wait"),
    Site("load of E2M1", kind="coordinate", itemsize=1, unit=32),
    Site("sums of another block", kind="flag"),
]
WORD = 0x000003FE001FFFFA


def row(**values):
    made = np.zeros((), debug.RECORD)
    for name, value in values.items():
        made[name] = value
    return made


def test_a_record_says_what_was_written():
    values = {name: i for i, name in enumerate(debug.RECORD.names, 10)}
    values |= {"site": 2, "nanoseconds": 2_500_000_000, "word": WORD}
    (read,) = debug.decode(np.array([row(**values)]), SITES)
    plain = ("stage", "parity", "iteration", "warp", "lane", "rank", "address", "issued")
    assert {n: getattr(read, n) for n in plain} == {n: values[n] for n in plain}
    assert read.block == (values["block_x"], values["block_y"], values["block_z"])
    assert (read.site, read.seconds) == (SITES[1], 2.5)
    assert (read.count, read.pending, read.outstanding) == (3, 0, 4096)


def test_warps_at_one_barrier_share_its_word():
    rows = [row(site=6, address=64), row(site=6, address=64, word=WORD), row(site=6, address=72)]
    rows.append(row(site=6, address=64, block_x=1))
    read = debug.decode(np.array(rows), SITES)
    assert [r.pending for r in read] == [0, 0, None, None]


def test_the_kernel_writes_the_fields_where_the_host_reads_them():
    # A kernel writes four words at a time, and the two fields of 64 bits.
    assert 4 * debug.HEADER % 16 == debug.RECORD.itemsize % 16 == 0
    assert [debug.offset_of(n) for n in debug.RECORD.names] == [*range(0, 48, 4), 48, 56]
    text = in_debug_mode()
    stores = re.findall(r"st\.global\.(v4\.u32|u64) \[(%rd\d+)(?:\+(\d+))?\]", text)
    for base in {register for kind, register, _ in stores if kind == "v4.u32"}:
        written = [(kind, int(at or 0)) for kind, register, at in stores if register == base]
        fours = [("v4.u32", at) for at in (0, 16, 32)]
        assert written == [*fours, ("u64", 48), ("u64", 56)]
    assert any(kind == "v4.u32" for kind, *_ in stores)
    # Words 4 to 7 of a record are ctaid.x, .y and .z, and the warp.
    (_, fields), *_ = re.findall(r"st\.global\.v4\.u32 \[(%rd\d+)\+16\], \{(.*?)\};", text)
    places = [re.search(rf"mov\.u32 {f}, %(ctaid\.\w);", text) for f in fields.split(", ")[:3]]
    assert [place[1] for place in places] == ["ctaid.x", "ctaid.y", "ctaid.z"]


def test_a_buffer_keeps_the_first_records_and_counts_the_rest():
    buffer = debug.Buffer(np.full(debug.NUM_WORDS, 7, np.uint32))
    assert buffer.records() == [] and buffer.stopped == 0
    buffer.check()
    site = debug.site_number(SITES[5])
    assert debug.site_number(SITES[5]) == site > 0
    buffer.words[debug.HEADER :].view(debug.RECORD)["site"] = site
    buffer.words[debug.COUNT] = debug.CAPACITY + 5
    buffer.words[debug.STOPPED] = 3
    assert len(buffer.records()) == debug.CAPACITY and buffer.lost == 5
    with pytest.raises(tma.PipelineTimeout, match="3 later waits were cut short") as caught:
        buffer.check()
    assert f"{debug.CAPACITY + 4} more:" in str(caught.value)
    buffer.clear()
    buffer.check()


# --------------------------------------------------------------------------- messages


def record(site, **values):
    plain = {"stage": 0, "parity": 0, "iteration": 0, "block": (0, 0, 0), "warp": 0, "lane": 0}
    plain |= {"rank": 0, "address": 64, "seconds": 2.0, "issued": 0}
    return Record(SITES[site], **plain | values)


def known(pending, outstanding, count=1):
    return {"count": count, "pending": pending, "outstanding": outstanding}


FULL, EMPTY, SYNC, LEDGER, COORDINATE, BARRIER, PACKED, FLAG = range(8)


def test_the_sentence():
    values = {"stage": 2, "parity": 1, "iteration": 17, "block": (3, 0, 0), "warp": 5}
    error = debug.error_of([record(FULL, **values, issued=1024, **known(0, 1024))])
    assert isinstance(error, tma.PipelineTimeout) and isinstance(error, RuntimeError)
    assert str(error) == (
        "consumer warp 5 of block (3, 0, 0) waited 2.0 s on 'x.full' stage 2 phase 1 in iteration "
        "17; 1,024 of 2,048 bytes were issued; 0 of 1 arrivals are pending, 1,024 bytes "
        "outstanding: a load of this stage is missing, or was issued on another barrier"
    )


def test_the_hints_do_not_depend_on_what_roles_are_called():
    sites = [Site("'x.full'", "mma", 2048, 4), Site("'x.empty'", "load")]
    full, empty = (replace(record(FULL, **known(2, 0, 2)), site=site) for site in sites)
    assert "the producer has not acquired the stage" in str(debug.error_of([full]))
    for order in ([full, empty], [empty, full]):
        text = str(debug.error_of(order))
        assert text.startswith("load warp 0 of block (0, 0, 0) waited 2.0 s on 'x.empty' stage 0")
        assert "consumer warps have not released the stage" in text


def test_bytes_that_nobody_could_count_are_not_told():
    (read,) = debug.decode(np.array([row(site=1, issued=debug.UNCOUNTED, word=WORD)]), SITES)
    assert read.issued is None
    text = str(debug.error_of([read]))
    assert "issued" not in text and "fewer bytes were copied onto this barrier" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (record(FULL, issued=2048, **known(0, 64)), "all loads were issued, so one of them is"),
        (record(FULL, **known(1, 0)), "the producer has not acquired the stage"),
        (record(FULL, **known(0, -64)), "64 bytes more came than were expected: a copy is larger"),
        (record(FULL), r"0 of 2,048 bytes were issued$"),
        (record(EMPTY, **known(2, 0, 4)), "2 of 4 arrivals are pending.*a release is missing"),
        (record(SYNC, **known(32, 0, 64)), r"on sync_consumers\(\) of 'x'; 32 of 64 arrivals"),
        (record(SYNC, **known(32, 0, 64)), "these threads left before the others"),
        (record(BARRIER, **known(0, 16)), "Barrier.wait at shared address 0x40 phase 0; 0 of 1"),
        (record(BARRIER, **known(0, 16)), "fewer bytes were copied onto this barrier"),
        (record(BARRIER, **known(2, 0, 2)), "nobody has arrived.*or the wait names the wrong par"),
        (record(BARRIER, **known(1, 0, 2)), "somebody has not arrived"),
        (record(BARRIER, rank=1), r"^warp 0 of block \(0, 0, 0\) \(rank 1 of its cluster\) waited"),
        (
            record(LEDGER, stage=2, iteration=6, issued=4096),
            r"'x.full' stage 2 in iteration 6: 4,096 bytes issued, 2,048 expected: a tile.* twice",
        ),
        (record(LEDGER, issued=1024), "1,024 bytes issued, 2,048 expected: bytes were completed b"),
        (
            record(COORDINATE, iteration=3),
            r"load of TILE: innermost coordinate 3 x 4 B is not a multiple of 16 B: .*multiple of "
            "4 elements",
        ),
        (record(COORDINATE, iteration=2**32 - 1), "innermost coordinate -1 x 4 B"),
        (record(PACKED, iteration=16), "E2M1: innermost coordinate 16 is not a multiple of 32 ele"),
        (record(FLAG), r"^warp 0 of block \(0, 0, 0\) waited 2.0 s on sums of another block$"),
    ],
)
def test_each_cause_is_told(given, expected):
    assert re.search(expected, str(debug.error_of([given])))


def test_the_error_names_the_cause_and_not_what_followed():
    full, empty = record(FULL, **known(1, 0)), record(EMPTY, **known(2, 0, 4))
    starved = record(FULL, **known(0, 1024))
    assert "'x.empty'" in str(debug.error_of([full, empty])).splitlines()[0]
    assert "1,024 bytes outstanding" in str(debug.error_of([empty, starved])).splitlines()[0]
    assert "'x.full'" in str(debug.error_of([record(FLAG), record(FULL)])).splitlines()[0]
    assert isinstance(debug.error_of([starved, record(LEDGER)]), tma.ByteLedgerError)
    error = debug.error_of([starved, record(LEDGER), record(COORDINATE, iteration=1)])
    assert isinstance(error, tma.CoordinateError) and len(error.records) == 3


def test_equal_waits_are_counted():
    many = [record(FULL, warp=warp, **known(0, 1024)) for warp in range(4)]
    many += [record(EMPTY, stage=stage) for stage in range(20)]
    lines = str(debug.error_of(many, stopped=7, lost=2)).splitlines()
    assert lines[1] == "25 more:"
    assert lines[2].startswith("  3 x consumer on 'x.full' stage 0 phase 0: 0 of 1 arrivals")
    assert len(lines) == 2 + 10 + 1 + 1
    assert lines[-2] == "  13 x elsewhere"
    assert lines[-1] == "7 later waits were cut short"


def test_errors_keep_their_records_between_processes():
    error = debug.error_of([record(FULL, **known(0, 1024))])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is tma.PipelineTimeout
    assert (str(again), again.records) == (str(error), error.records)


# ----------------------------------------------------------------- launches and caches


def buffer_with(monkeypatch, records=()):
    """Put a buffer into place that the next launch finds `records` in."""
    buffer = debug.Buffer(np.zeros(debug.NUM_WORDS, np.uint32))
    monkeypatch.setattr(debug, "mapped_buffer", lambda: buffer)
    monkeypatch.setattr(guards, "_is_capturing", lambda stream: stream == "capturing")

    def launch(*args):
        rows = buffer.words[debug.HEADER :].view(debug.RECORD)
        for i, written in enumerate(records):
            rows[i] = written
        buffer.words[debug.COUNT] = len(records)
        return args

    return launch


def test_a_launch_waits_and_raises_what_it_finds(monkeypatch):
    synchronized = []
    monkeypatch.setattr(guards.cuda, "synchronize", lambda: synchronized.append(1))
    launch = buffer_with(monkeypatch)
    assert guards._watch(launch, (), 1, 32, 0, 0) == ((), 1, 32, 0, 0)
    launch = buffer_with(monkeypatch, [row(site=debug.site_number(SITES[BARRIER]))])
    for _ in range(2):  # the buffer is cleared before each launch
        with pytest.raises(tma.PipelineTimeout) as caught:
            guards._watch(launch, (), 1, 32, 0, 0)
        assert len(caught.value.records) == 1
    assert len(synchronized) == 3


def test_what_was_recorded_explains_a_fault(monkeypatch):
    fault = RuntimeError("illegal instruction")
    monkeypatch.setattr(guards.cuda, "synchronize", mock.Mock(side_effect=fault))
    launch = buffer_with(monkeypatch, [row(site=debug.site_number(SITES[COORDINATE]))])
    with pytest.raises(tma.CoordinateError) as caught:
        guards._watch(launch, (), 1, 32, 0, 0)
    assert caught.value.__cause__ is fault
    with pytest.raises(RuntimeError, match="illegal instruction"):
        guards._watch(buffer_with(monkeypatch), (), 1, 32, 0, 0)


def test_races_before_a_fault_explain_it(monkeypatch):
    fault, race = RuntimeError("launch failure"), tma.PipelineError("EarlyRead")
    monkeypatch.setattr(guards.cuda, "synchronize", mock.Mock(side_effect=fault))
    monkeypatch.setattr(guards, "racing", lambda: True)
    judge = mock.Mock()
    monkeypatch.setattr(guards, "_race_check", lambda: judge)
    check = judge.check_after_failure
    with pytest.raises(RuntimeError, match="launch failure"):
        guards._watch(buffer_with(monkeypatch), (), (2, 3), 32, 0, 0)
    check.assert_called_once_with((2, 3), fault)
    check.side_effect = race
    with pytest.raises(tma.PipelineError, match="EarlyRead"):
        guards._watch(buffer_with(monkeypatch), (), (2, 3), 32, 0, 0)


def test_a_stream_that_is_captured_is_refused(monkeypatch):
    with pytest.raises(RuntimeError, match="a stream that is being captured cannot be waited for"):
        guards._watch(buffer_with(monkeypatch), (), 1, 32, "capturing", 0)


CACHED = """
from numba import cuda
import numba_tma as tma

PIPE = tma.TilePipeline(2, x=tma.Tile((8, 32), "f32"), debug={debug})

@cuda.jit(cache=True)
def kernel(out, n):
    PIPE.start().sync_consumers()
"""


def test_a_debug_kernel_is_not_cached(tmp_path):
    application = Application(tmp_path)
    signature = (FLOATS, I64)
    for on, hits in ((True, [False, False]), (False, [False, True]), (True, [False, False])):
        compiled = [application.compile(CACHED.format(debug=on), signature) for _ in hits]
        assert [c.hit for c in compiled] == hits
        for c in compiled:
            assert (debug.MARKER in c.kernel._codelibrary.get_asm_str(cc=(9, 0))) is on


def test_only_debug_kernels_are_watched(tmp_path):
    application = Application(tmp_path)
    for on in (True, False):
        kernel = application.compile(CACHED.format(debug=on), (FLOATS, I64)).kernel
        launch, hooks = kernel.launch, []
        while isinstance(launch, functools.partial):
            hooks.append(launch.func)
            launch = launch.args[0]
        assert (guards._watch in hooks) is on


def test_the_debug_flag_is_in_the_key(monkeypatch):
    def key():
        cache = SimpleNamespace(_py_func=wait_on_a_barrier.py_func, options=())
        with (
            hopper_that_loads_nothing(),
            mock.patch.object(compiled_kernels_cache, "_index_key", lambda *args: ()),
        ):
            return compiled_kernels_cache._index_key_with_captures(cache, (MAP,), None)

    from numba_tma.backend.numba_cuda import cache as compiled_kernels_cache

    plain = key()
    monkeypatch.setattr(compiled_kernels_cache, "debugging", lambda: True)
    assert key() != plain


# ------------------------------------------------------------------- on a TilePipeline


def test_the_ring_has_room_for_its_ledgers():
    plain, ring = (tma.TilePipeline(3, x=TILE, debug=on) for on in (False, True))
    assert not plain.debug and plain.ledger_offset == 0
    assert ring != plain and repr(ring) == repr(plain)[:-1] + ", debug=True)"
    assert ring.sync_offset % 8 == 0 and ring.sync_offset >= ring.ticket_offset + 4 * 3
    assert ring.ledger_offset == ring.sync_offset + 8 * 8
    assert ring.nbytes == ring.barriers_offset + ring.ledger_offset + 3 * 8
    for offset in ("barriers_offset", "empty_offset", "ticket_offset"):
        assert getattr(ring, offset) == getattr(plain, offset)


def test_the_environment_decides_where_nothing_is_said(monkeypatch):
    assert not tma.TilePipeline(2, x=TILE).debug
    monkeypatch.setattr("numba_tma.host.debug.debugging", lambda: True)
    assert tma.TilePipeline(2, x=TILE).debug
    assert not tma.TilePipeline(2, x=TILE, debug=False).debug


def test_a_tile_cannot_be_named_debug():
    with pytest.raises(TypeError, match=r"TilePipeline\(debug=...\) takes True, False or None"):
        tma.TilePipeline(2, x=TILE, debug=TILE)


# --------------------------------------------------------------------- on a KVPipeline

ROLES = tma.Roles(mma=tma.Warps(2), load=tma.Warps(1))


def keys_and_values(**options):
    return tma.KVPipeline(2, 64, 128, "bf16", 2, producer=ROLES.load, consumer=ROLES.mma, **options)


@functools.cache
def ptx_of_kv(on):
    """Compile a kernel with every kind of wait and no loop around any."""
    KV = keys_and_values(debug=on)

    @cuda.jit
    def kernel(k, v, out):
        pipe = KV.start()
        loads, works = pipe.producer(), pipe.consumer()
        if ROLES.load.is_member():
            if loads.enters():
                for part in range(2):
                    loads.acquire_k(part)
                    barrier, tile = loads.get_k(part)
                    k.load(tile, (0, part * 64), barrier)
                loads.commit_step()
                loads.acquire_v()
                barrier, tile = loads.get_v()
                v.load(tile, (0, 0), barrier)
        else:
            works.wait_k(0)
            works.release_k(0)
            works.wait_k(1)
            works.release_k(1)
            works.wait_v()
            out[0] = works.get_v().value
            works.release_v()

    maps = TensorMapType(2, KV.k_tile), TensorMapType(2, KV.v_tile)
    return compile_ptx(kernel, (*maps, types.uint64[::1]))


def test_no_wait_of_keys_and_values_is_unbounded():
    on = ptx_of_kv(True)
    assert unbounded_waits(on) == [] and debug.MARKER in on
    report = ptxas(on)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert len(unbounded_waits(ptx_of_kv(False))) == 4 + 3  # empty, full


def test_off_nothing_of_it_is_compiled_for_keys_and_values():
    for absent in ("globaltimer", "exit", "inval", "red.", "atom.", "st.shared", debug.MARKER):
        assert absent not in ptx_of_kv(False)


def test_bytes_of_keys_and_values_are_counted_from_the_arrival_on():
    """Each arrival sets its ledger back and writes the turn behind; then the copies' bytes come."""
    listed = [
        line.split(".")[0] + (".expect_tx" if "expect_tx" in line else "")
        for line in instructions(ptx_of_kv(True))
        if re.match(r"st\.shared.*u32|red\.|mbarrier\.arrive\.expect_tx", line)
    ]
    set_back = ["st", "st", "mbarrier.expect_tx", "red"]
    assert listed == 3 * set_back + ["red"] * (listed.count("red") - 3)  # V has two boxes


def test_keys_and_values_are_compared_with_bytes_of_their_own():
    on, kv = instructions(ptx_of_kv(True)), keys_and_values()
    for nbytes in (kv.staged_k_bytes, kv.full_kv_bytes):
        assert any(re.fullmatch(rf"setp\.(eq|ne)\.s32 %p\d+, %r\d+, {nbytes}", i) for i in on)


def test_the_ring_of_keys_and_values_has_room_for_its_ledgers():
    plain, ring = keys_and_values(debug=False), keys_and_values(debug=True)
    assert not plain.debug and plain.ledger_offset == 0
    assert ring != plain and repr(ring) == repr(plain)[:-1] + ", debug=True)"
    assert (plain.num_barriers, ring.num_barriers) == (8, 12)
    assert ring.empty_offset == plain.empty_offset == 32 and ring.ledger_offset == 64
    assert ring.nbytes == plain.nbytes + 8 * 4


def test_the_environment_decides_for_keys_and_values(monkeypatch):
    assert not keys_and_values().debug
    monkeypatch.setattr(debug, "debugging", lambda: True)
    assert keys_and_values().debug and not keys_and_values(debug=False).debug
    with pytest.raises(
        TypeError, match=r"KVPipeline\(debug=...\) takes True, False or None, not 3"
    ):
        keys_and_values(debug=3)


def test_a_sub_stage_is_named():
    kv = keys_and_values(debug=True)
    sites = [kv.k_site, kv.v_site, kv.empty_site]
    rows = [row(site=i, stage=1 if i == 2 else 3, issued=7) for i in (1, 2, 3)]
    texts = [str(debug.error_of([r])) for r in debug.decode(np.array(rows), sites)]
    assert "mma warp 0" in texts[0] and "on 'k.full' stage 1 sub-stage 1 phase 0" in texts[0]
    assert f"7 of {kv.staged_k_bytes:,} bytes were issued" in texts[0]
    assert "on 'v.full' stage 1 phase 0" in texts[1]
    assert f"7 of {kv.full_kv_bytes:,} bytes were issued" in texts[1]
    assert "load warp 0" in texts[2] and "'k/v.empty' stage 1 sub-stage 1 phase 0" in texts[2]
