"""The parts of debug mode's waits in compiled kernels, executed: counts, limits and records."""

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.interface import i64
from numba_tma.device.barrier import Barrier
from numba_tma.device.waiting import (
    GRACE,
    LIMIT,
    check_coordinate,
    claim,
    count_multicast,
    is_out_of_time,
    issued_bytes,
    wait_bounded,
    wait_counted,
    wait_for_flag,
)
from numba_tma.host import debug
from numba_tma.host.boxes import Copies, copies_of
from numba_tma.host.debug import CLAIMS, COUNT, HEADER, NO_GPU, NUM_CLAIMS, STOPPED, UNCOUNTED, Site
from numba_tma.ptx import globaltimer
from numba_tma.tools.testing import compile_ptx, instructions
from tests import ptx_machine
from tests.ptx_machine import Machine

I32, I64 = types.int32, types.int64
AT, LEDGER = 0x8000, 24  # of a barrier, and from there to its ledger


def compiled(body, *kinds):
    return compile_ptx(cuda.jit(body), kinds, cc=(9, 0, "a"))


def alone(name, _):
    """Answer as to a thread without others before it in its warp, whose waits have not ended."""
    return 0xFFFFFFE0 if name.startswith("activemask") else 0


def buffer_word(machine, index):
    return int.from_bytes(machine.peek(NO_GPU + 4 * index, 4), "little")


def records(machine):
    """Return the records that the kernel has written."""
    count = buffer_word(machine, COUNT)
    raw = machine.peek(NO_GPU + 4 * HEADER, count * debug.RECORD.itemsize)
    return debug.decode(np.frombuffer(raw, debug.RECORD), debug._SITES)


@pytest.mark.parametrize(
    ("tx_bytes", "stages", "has_ledger", "iteration", "sum_", "turn", "issued"),
    [
        (0, 3, True, 7, 999, 5, 0),  # no copies are counted here
        (64, 3, False, 7, 999, 0, UNCOUNTED),
        (64, 3, True, 0, 64, 0, 64),
        (64, 3, True, 2, 96, 0, 96),
        (64, 3, True, 7, 192, 0, 64),  # the third turn of the ring's stage
        (64, 3, True, 7, 128, 0, 0),
        (64, 3, True, 7, 192, 1, UNCOUNTED),  # a copy of unknown size made the ledger void
        (64, 0, True, 7, 48, 7, 48),  # the producer sets the ledger back for each turn
        (64, 0, True, 7, 48, 6, UNCOUNTED),
    ],
)
def test_issued_bytes_are_those_of_the_turn(
    tx_bytes, stages, has_ledger, iteration, sum_, turn, issued
):
    site, ledger = Site("x", tx_bytes=tx_bytes, stages=stages), LEDGER if has_ledger else 0

    def kernel(out, iteration):
        out[0] = issued_bytes(Barrier(np.uint32(AT), ledger), site, iteration)

    out = np.zeros(1, np.uint32)
    machine = Machine(compiled(kernel, types.uint32[::1], types.uint32), out, iteration)
    machine.poke_shared(AT + LEDGER, sum_.to_bytes(4, "little") + turn.to_bytes(4, "little"))
    machine.run()
    assert out[0] == issued


@pytest.mark.parametrize(
    ("waited", "ending", "stops"),
    [
        (GRACE, True, False),
        (GRACE + 1, True, True),
        (2 * GRACE - 1, True, True),
        (2 * GRACE, True, False),
        (GRACE + 1, False, False),
        (LIMIT, False, False),
        (LIMIT, True, False),
        (LIMIT + 1, False, False),
    ],
)
def test_a_wait_is_cut_short_soon_after_another_has_failed(monkeypatch, waited, ending, stops):
    def kernel(out, waited):
        out[0] = 2 + is_out_of_time(i64(globaltimer()) - waited)

    monkeypatch.setattr(ptx_machine, "STEP_NANOSECONDS", 0)
    out = np.zeros(1, np.int64)
    machine = Machine(compiled(kernel, types.int64[::1], I64), out, waited, answer=alone)
    machine.poke(NO_GPU + 4 * COUNT, bytes([ending, 0, 0, 0]))
    machine.run()
    assert out[0] == (0 if stops else 2 + (waited > LIMIT))
    assert buffer_word(machine, STOPPED) == stops


@pytest.mark.parametrize("mask", [0b0001, 0b1010, 0b1111, 0])
def test_a_multicast_is_counted_in_the_blocks_of_its_mask(mask):
    def kernel(mask):
        count_multicast(np.uint32(AT), np.uint32(48), mask)

    machine = Machine(compiled(kernel, types.uint32), mask)
    machine.poke_shared(AT + (4 << 24), b"\x07")
    machine.run(cluster_ctarank=1, cluster_nctarank=4)
    counted = {rank for rank in range(6) if machine.peek_shared(AT + (rank << 24), 1) == b"0"}
    assert counted == {rank for rank in range(4) if mask >> rank & 1}
    assert machine.peek_shared(AT + (4 << 24), 4) == b"\x07\0\0\0"


@pytest.mark.parametrize(
    ("itemsize", "unit", "coordinate", "fits"),
    [
        (4, 16, 0, True), (4, 16, 4, True), (4, 16, 5, False), (2, 16, 8, True), (2, 16, 4, False),
        (1, 128, 128, True), (1, 128, 64, False), (4, 16, -4, True), (4, 16, -3, False),
    ],
)  # fmt: skip
def test_a_coordinate_that_would_fault_is_recorded(itemsize, unit, coordinate, fits):
    site = Site("load", kind="coordinate", itemsize=itemsize, unit=unit)

    def kernel(out, coordinate):
        check_coordinate(site, coordinate)
        out[0] = 1

    out = np.zeros(1, np.int64)
    kinds = types.int64[::1], I32
    machine = Machine(compiled(kernel, *kinds), out, coordinate, block=(64, 1, 1), answer=alone)
    log = machine.run(37, (2, 0, 1))
    assert out[0] == fits
    if fits:
        assert records(machine) == []
        return
    (one,) = records(machine)
    assert one.site == site and one.iteration == coordinate % (1 << 32)
    assert (one.stage, one.parity, one.seconds, one.address, one.issued) == (0, 0, 0, 0, 0)
    assert (one.block, one.warp, one.lane, one.count) == ((2, 0, 1), 1, 5, None)
    assert [name for name, _ in log if name.startswith("fence")] == ["fence.acq_rel.sys"]


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        ("f64", 2), ("f32", 4), ("bf16", 8), ("u8", 16), ("e2m1", 32),
        ("e2m1_unpacked", 128), ("e3m2", 128),
    ],
)  # fmt: skip
def test_a_copy_begins_at_16_bytes_of_its_elements(dtype, unit):
    tile = tma.Tile((8, 128), dtype)

    def kernel(x, out, column):
        held = tma.shared_tile(tile)
        x.load(held, (0, column), tma.Barrier(np.uint32(AT), LEDGER))
        out[0] = 1

    kinds = tma.TensorMapType(2, tile), types.int64[::1], I32
    ptx = compile_ptx(cuda.jit(kernel), kinds, cc=(10, 0, "a"))
    for column in {0, unit, unit // 2, unit + 1, 2 * unit - 1, 5 * unit, -unit, -1}:
        out, fits = np.zeros(1, np.int64), column % unit == 0
        machine = Machine(ptx, bytes(128), out, column, answer=alone)
        copies = [name for name, _ in machine.run() if name.startswith("cp.")]
        assert (len(copies), out[0]) == (fits, fits), column
        if not fits:
            (one,) = records(machine)
            least = f"multiple of {unit} elements"
            assert str(debug.error_of([one])).count(least) == 1


HELD, WIDE = tma.Tile((8, 32), "f32"), tma.Tile((64, 256), "bf16", tma.Swizzle.B128)
COMPLEX = tma.Tile((8, 256), "c64")
SWIZZLED = tma.Tile((8, 128), "f16", tma.Swizzle.B128)
MAPS = {
    "x": tma.TensorMapType(2, HELD),
    "wide": tma.TensorMapType(2, WIDE, copies=copies_of(WIDE)),
    "complex": tma.TensorMapType(2, COMPLEX),
    "untyped": tma.TensorMapType(2),
    "rows": tma.TensorMapType(2, SWIZZLED, mode="gather"),
    "pixels": tma.TensorMapType(4, HELD, mode="im2col"),
}


@pytest.mark.parametrize(
    ("call", "counted", "void"),
    [
        ("x.load(held, (0, 0), full)", HELD.nbytes, 0),
        ("x.load(held.address, (0, 0), full)", HELD.nbytes, 0),
        ("x.load(held, (0, 0), full, multicast=3)", HELD.nbytes, 0),
        ("wide.load(tma.shared_tile(WIDE), (0, 0), full)", WIDE.nbytes, 0),  # several copies
        ("complex.load(tma.shared_tile(COMPLEX), (0, 0), full)", COMPLEX.nbytes, 0),
        ("untyped.load(held, (0, 0), full)", HELD.nbytes, 0),
        ("untyped.load(held.address, (0, 0), full)", 0, 1),
        ("rows.gather(tma.shared_tile(SWIZZLED), (1, 2, 3, 4, 5, 6, 7, 8), 0, full)",
         SWIZZLED.nbytes, 0),
        ("pixels.load_im2col(held, (0, 1, 1, 0), (2, 2), full)", HELD.nbytes, 0),
        ("tma.ptx.cp_async_bulk_load(held, source, 48, full)", 48, 0),
        ("tma.ptx.cp_async_bulk_load_ignore_oob(held, source, 48, 0, 4, full)", 0, 1),
        ("tma.ptx.mbarrier_complete_tx(full, 80)", 80, 0),
        ("full.arrive_expect_tx(64)", 0, 0),
        ("x.store(held, (0, 0))", 0, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")], ids=["hopper", "blackwell"])
def test_the_ledger_counts_the_bytes_of_each_copy(call, counted, void, cc):
    name = call.partition(".")[0]
    name = name if name in MAPS else "x"
    body = f"""
def kernel({name}, source):
    held, full = tma.shared_tile(HELD), tma.Barrier(np.uint32({AT}), {LEDGER})
    {call}
"""
    names = {"tma": tma, "np": np, "HELD": HELD, "WIDE": WIDE, "SWIZZLED": SWIZZLED}
    names["COMPLEX"] = COMPLEX
    exec(body, names)
    ptx = compile_ptx(cuda.jit(names["kernel"]), (MAPS[name], types.uint8[::1]), cc=cc)
    machine = Machine(ptx, bytes(128), np.zeros(64, np.uint8), answer=alone)
    machine.run(cluster_nctarank=2)
    words = np.frombuffer(machine.peek_shared(AT + LEDGER, 8), np.uint32)
    assert words.tolist() == [counted, void]


SLICES = tma.Tile((1, 2, 4, 4), "f32")
FOLDED = Copies(WIDE, (1, 1), fold=True)


@pytest.mark.parametrize(
    ("kind", "tile", "text"),
    [
        (tma.TensorMapType(2), HELD, ""),  # of elements of any size
        (tma.TensorMapType(4, SLICES, interleave=16), SLICES, ""),  # of slices
        (tma.TensorMapType(2, HELD), HELD, "f32, NONE): innermost coordinate 3 x 4 B is not"),
        (MAPS["wide"], WIDE, "bf16, B128): innermost coordinate 3 x 2 B is not"),
        (MAPS["complex"], COMPLEX, "c64, NONE), counted in f32: innermost coordinate 6 x 4 B is"),
        (
            tma.TensorMapType(2, WIDE, copies=FOLDED), WIDE,
            "bf16, B128) by a folded map, in parts of 64 columns: innermost coordinate 1 x 2 B",
        ),
    ],
)  # fmt: skip
def test_the_coordinate_is_checked_where_it_counts_elements_of_known_size(kind, tile, text):
    start = (*[0] * (tile.ndim - bool(kind.interleave) - 1), 3)

    def kernel(x, start):
        x.load(tma.shared_tile(tile), start, tma.Barrier(np.uint32(AT), LEDGER))

    ptx = compile_ptx(cuda.jit(kernel), (kind, types.UniTuple(I32, len(start))), cc=(9, 0, "a"))
    machine = Machine(ptx, bytes(128), *start, answer=alone)
    machine.run()
    found = records(machine)
    assert len(found) == bool(text) and text in str(debug.error_of(found) if found else "")


def test_one_warp_claims_a_barrier():
    def kernel(out, other):
        out[0], out[1], out[2] = claim(np.uint32(AT)), claim(np.uint32(AT)), claim(other)

    out = np.zeros(3, np.int64)
    machine = Machine(compiled(kernel, types.int64[::1], types.uint32), out, AT + 8)
    machine.run(0, (1, 2, 3))
    assert out.tolist() == [1, 0, 1]
    hashed = [(at // 8 + 1 * 37 + 2 * 101 + 3 * 211) % NUM_CLAIMS for at in (AT, AT + 8)]
    claimed = [i for i in range(HEADER) if buffer_word(machine, i)]
    assert sorted(claimed) == sorted(CLAIMS + each for each in hashed)


def test_a_wait_that_never_ends_leaves_a_record_and_the_barriers_word():
    site = Site("'x.full'", tx_bytes=64, stages=3)

    def kernel(out):
        wait_bounded(Barrier(np.uint32(AT), LEDGER), np.uint32(1), site, np.uint32(2), np.uint32(5))
        out[0] = 1

    out = np.zeros(1, np.int64)
    machine = Machine(compiled(kernel, types.int64[::1]), out, answer=alone)
    machine.poke_shared(AT, (0x123456789ABCDEF).to_bytes(8, "little"))
    machine.poke_shared(AT + LEDGER, (96).to_bytes(4, "little"))
    log = machine.run()
    (one,) = records(machine)
    assert out[0] == 0 and one.site == site
    assert (one.stage, one.parity, one.iteration, one.address, one.issued) == (2, 1, 5, AT, 32)
    expected = debug.decode_word(0x123456789ABCDEF)
    assert (one.count, one.pending, one.outstanding) == expected
    assert one.seconds > LIMIT / 1e9
    assert any(name.startswith("mbarrier.inval") for name, _ in log)
    assert [name for name, _ in log if name.startswith("fence")] == ["fence.acq_rel.sys"]
    before = sum(name.startswith("mbarrier.try_wait") for name, _ in log)
    assert before >= 2
    # A second warp finds the barrier claimed, and reads its word no more.
    log = machine.run()
    assert [one.count for one in records(machine)] == [expected[0]] * 2
    assert not any(name.startswith("mbarrier.inval") for name, _ in log)


def test_a_stuck_warp_sleeps_until_others_have_written_their_records(monkeypatch):
    """It invalidates the barrier a grace later, and leaves them the issue slots until then."""

    site = Site("'x.full'")

    def kernel():
        wait_bounded(Barrier(np.uint32(AT)), np.uint32(1), site, np.uint32(2), np.uint32(5))

    monkeypatch.setattr(ptx_machine, "STEP_NANOSECONDS", GRACE // 50)
    machine = Machine(compiled(kernel), answer=alone)
    log = machine.run()
    (one,) = records(machine)
    assert LIMIT < one.seconds * 1e9 < LIMIT + GRACE  # without the sleep
    (invalid,) = (i for i, (name, _) in enumerate(log) if name.startswith("mbarrier.inval"))
    last = max(i for i, (name, _) in enumerate(log) if name.startswith("mbarrier.try_wait"))
    between = [step for step in log[last + 1 : invalid] if not step[0].startswith("activemask")]
    assert set(between) == {("nanosleep.u32", (1000,))}
    assert 5 <= len(between) <= 25  # in 50 instructions


@pytest.mark.parametrize(("issued", "wrong"), [(64, False), (63, True), (65, True), (0, True)])
def test_the_bytes_of_a_phase_are_compared_once_it_is_complete(issued, wrong):
    site = Site("'x.full'", tx_bytes=64, stages=3)

    def kernel(out):
        wait_counted(Barrier(np.uint32(AT), LEDGER), np.uint32(0), site, np.uint32(1), np.uint32(4))
        out[0] = 1

    out = np.zeros(1, np.int64)
    machine = Machine(
        compiled(kernel, types.int64[::1]), out,
        answer=lambda name, _: 1 if "activemask" in name else int("_wait" in name),
    )  # fmt: skip
    machine.poke_shared(AT + LEDGER, (64 + issued).to_bytes(4, "little"))
    log = machine.run()
    assert out[0] == (not wrong)
    assert [name for name, _ in log if name.startswith("fence")] == wrong * ["fence.acq_rel.sys"]
    found = [
        (
            *(one.site, one.stage, one.parity, one.iteration, one.seconds, one.address),
            *(one.issued, one.count, one.pending, one.outstanding),
        )
        for one in records(machine)
    ]
    # The barrier's word is not read: its phase is complete.
    assert found == [(site.ledger, 1, 0, 4, 0, AT, issued, None, None, None)] * wrong


@pytest.mark.parametrize("value", [0, 1])
def test_a_wait_for_a_flag_of_another_block_ends(value):
    site = Site("sums of another block", kind="flag", debug=True)

    def kernel(out, flags):
        wait_for_flag(flags.ctypes.data + 4, site)
        out[0] = 1

    out, flags = np.zeros(1, np.int64), np.array([1 - value, value], np.uint32)
    kinds = types.int64[::1], types.uint32[::1]
    machine = Machine(compiled(kernel, *kinds), out, flags, answer=alone)
    log = machine.run(0, (3, 0, 0))
    assert out[0] == value and [one.site for one in records(machine)] == [site] * (1 - value)
    if not value:
        (one,) = records(machine)
        assert (one.block, one.address, one.count) == ((3, 0, 0), 0, None)
        assert one.seconds > LIMIT / 1e9
        assert [name for name, _ in log if name.startswith("fence")] == ["fence.acq_rel.sys"]


def test_a_wait_for_a_flag_is_a_loop_over_loads():
    site = Site("sums of another block", kind="flag")

    def kernel(flags):
        wait_for_flag(flags.ctypes.data, site)

    ptx = compiled(kernel, types.uint32[::1])
    assert "ld.relaxed.sys.global.u32" in ptx and "globaltimer" not in ptx
    Machine(ptx, np.ones(1, np.uint32)).run()


def test_a_wait_for_the_own_block_acquires_no_more():
    def kernel():
        tma.shared_barrier().wait(0)

    waits = [i for i in instructions(compiled(kernel)) if i.startswith("mbarrier.try_wait")]
    assert waits and not any("cluster" in wait for wait in waits)
    assert Site("x") == Site("x", "", 0, 1, "wait", None, 0, 16, False, 1)
