"""Races mode in compiled kernels, executed: the log that the host reads."""

from pathlib import Path

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.numba_cuda.race_check import names_of
from numba_tma.device.races import delay, note, note_access
from numba_tma.host.races import (
    CAPACITY,
    EVENT,
    HEADER,
    Kind,
    label_number,
    line_in_words,
    log_address,
)
from numba_tma.pipeline.launch_control import label_answers
from numba_tma.pipeline.ordered import label_turns
from numba_tma.tools.testing import compile_ptx, run_isolated
from tests.ptx_machine import Machine

U32 = types.uint32
RACES = {"NUMBA_TMA_DEBUG": "races"}


def compiled(body, *kinds):
    return compile_ptx(cuda.jit(body), kinds, cc=(9, 0, "a"))


def special(cluster, clusters, rank, blocks):
    """Return the special registers of a block: its cluster of the grid's clusters, and its rank."""
    named = {"cluster_ctarank": rank, "cluster_nctarank": blocks}
    for axis, at, n in zip("xyz", cluster, clusters):
        named |= {f"clusterid__{axis}": at, f"nclusterid__{axis}": n}
    return named


def events(machine):
    """Return the log's events."""
    number = int.from_bytes(machine.peek(log_address(), 4), "little")
    raw = machine.peek(log_address() + 4 * HEADER, EVENT.itemsize * min(number, CAPACITY))
    return np.frombuffer(raw, EVENT)


def one_note(address, size, other, line, mask, located):
    note(np.uint32(Kind.LOAD), address, size, other, line, mask, located)


@pytest.mark.parametrize(
    ("thread", "block", "rank"), [(0, (0, 0, 0), 0), (77, (1, 2, 1), 1), (127, (1, 1, 0), 1)]
)
def test_an_event_has_the_fields_that_the_host_reads(thread, block, rank):
    ptx = compiled(one_note, *[U32] * 6)
    grid, clusters = (2, 3, 2), (1, 3, 2)  # clusters of two blocks along x
    machine = Machine(ptx, 0x400, 512, 0x8008, 7, 3, 0x8008 | 1 << 24, block=(4, 8, 4), grid=grid)
    machine.run(thread, block, **special((0, *block[1:]), clusters, rank, 2))
    (event,) = events(machine)
    cluster = block[2] * 3 + block[1]
    assert event["slot"] == 2 * cluster + rank
    assert event["block"] == (block[2] * 3 + block[1]) * 2 + block[0]
    assert (event["kind"], event["warp"], event["warps"]) == (Kind.LOAD, thread // 32, 4)
    assert (event["blocks"], event["rank"]) == (2, 1)
    fields = event[["address", "size", "other", "line", "mask"]]
    assert fields.item() == (0x400, 512, 0x8008, 7, 3)


def test_blocks_beyond_the_tracked_ones_log_nothing():
    ptx = compiled(one_note, *[U32] * 6)
    for cluster, logged in [(15, 1), (16, 0)]:  # of two blocks each; 32 are tracked
        machine = Machine(ptx, 0, 0, 0, 0, 0, 0, grid=(64, 1, 1))
        machine.run(0, (2 * cluster, 0, 0), **special((cluster, 0, 0), (32, 1, 1), 0, 2))
        assert len(events(machine)) == logged


ALONE = special((0, 0, 0), (1, 1, 1), 0, 1)


def test_one_step_in_eight_is_delayed_by_a_microsecond_at_most():
    def kernel(n):
        for number in range(n):
            delay(np.uint32(number))

    log = Machine(compiled(kernel, U32), 4096).run(0, **ALONE)
    times = [given for name, (given,) in log if name.startswith("nanosleep")]
    assert 400 < len(times) < 620
    assert 0 <= min(times) < 50 and 970 < max(times) <= 1023


def test_a_note_may_delay_its_thread():
    def kernel(n):
        for _ in range(n):
            note(np.uint32(Kind.FENCE), *ZEROS)

    machine = Machine(compiled(kernel, U32), 128)
    log = machine.run(0, **ALONE)
    assert (events(machine)["kind"] == Kind.FENCE).all() and len(events(machine)) == 128
    assert any(name.startswith("nanosleep") for name, _ in log)


ZEROS = tuple(np.uint32(0) for _ in range(6))


def test_an_access_is_logged_once_in_an_epoch():
    def kernel(n):
        for i in range(n):
            note_access(np.uint32(Kind.READ), np.uint32(0x1000404), np.uint32(16), 0, 5)
            note_access(np.uint32(Kind.WRITE), np.uint32(0x1000404), np.uint32(16), 0, 5)
            if i % 3 == 2:
                note(np.uint32(Kind.FENCE), *ZEROS)

    machine = Machine(compiled(kernel, U32), 6)
    machine.run(0, **ALONE)
    found = events(machine)
    epoch = [(Kind.READ, 0x400, 16, 5), (Kind.WRITE, 0x400, 16, 5), (Kind.FENCE, 0, 0, 0)]
    assert found[["kind", "address", "size", "line"]].tolist() == epoch * 2


# ----------------------------------------------------------------------- in races mode


def logged_by(kernel, block):
    """Return the events of a block of a kernel, and the log of thread 0."""
    machine = Machine(
        compile_ptx(cuda.jit(launch_bounds=(block, 1))(kernel), (types.float32[:, ::1],)),
        np.zeros((64, 8), np.float32),
        block=(block, 1, 1),
        answer=lambda name, _: 0xFFFFFFFF if "activemask" in name else int("_wait" in name),
    )
    log, *_ = machine.run_together(range(block), **ALONE)
    found = events(machine)
    lines = [line_in_words(int(number)) for number in found["line"]]
    return found.tolist(), lines, log, machine.shared


OPERAND = tma.Tile((64, 64), "bf16", tma.Swizzle.B128)


def products():
    def kernel(out):
        tile, full = tma.shared_tile(OPERAND), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(3)
            full.arrive_expect_tx(64)
        cuda.syncthreads()
        tile[cuda.threadIdx.x // 2, 0] = 1
        tma.ptx.fence_proxy_async()
        tma.ptx.barrier_cluster_arrive("aligned")
        tma.ptx.barrier_cluster_wait()
        descriptor = tile.matrix_descriptor()
        tma.wgmma_wait(tma.wgmma(tma.fragment(8), descriptor, descriptor)).store_global(out, 0, 0)

    return logged_by(kernel, 128)


def test_every_step_of_a_kernel_is_an_event():
    found, lines, log, (tile, full) = run_isolated(products, timeout=240, env=RACES)
    rows = [dict(zip(EVENT.names, each)) | {"line": line} for each, line in zip(found, lines)]
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in Kind}
    (init,) = by_kind[Kind.INIT]
    assert (init["address"], init["size"]) == (full, 3)
    source = Path(__file__).read_text().splitlines()
    place = f"{Path(__file__).name}:{source.index('            full.init(3)') + 1}"
    assert place in {row["line"] for row in by_kind[Kind.LINE]}
    (arrive,) = by_kind[Kind.ARRIVE]
    assert (arrive["address"], arrive["size"], arrive["other"]) == (full, 1, 64)
    counts = {kind.name: len(each) for kind, each in by_kind.items() if each}
    threads = dict.fromkeys(("MEET", "MET", "FENCE", "CLUSTER_ARRIVE", "CLUSTER_WAITED"), 128)
    assert counts.items() >= threads.items()
    assert sorted(row["other"] for row in by_kind[Kind.CLUSTER_ARRIVE]) == sorted(
        4 * [1 << lane for lane in range(32)]
    )
    # Each warp logs the bytes that its product reads: 64 rows of 128 bytes of A, 8 rows of B.
    reads = [row for row in by_kind[Kind.PRODUCT] if row["warp"] == 2]
    covered = [
        byte for row in reads for byte in range(row["address"], row["address"] + row["size"])
    ]
    assert sorted(covered) == sorted([*range(tile, tile + 8192), *range(tile, tile + 1024)])
    assert len(by_kind[Kind.PRODUCT_COMMIT]) == len(by_kind[Kind.PRODUCT_DRAINED]) == 4
    # All lanes of a warp meet before an instruction that is of all of them.
    names = [name for name, _ in log]
    at = names.index("barrier.cluster.arrive.aligned")
    assert names[at - 1].startswith("bar.warp.sync")


TWINS = tma.Roles(left=tma.Warps(1), right=tma.Warps(1))


@pytest.mark.parametrize(
    ("function", "owner", "first"),
    [
        (label_turns, tma.OrderedSequenceBarrier(2, (TWINS.left, TWINS.right)), "turn[0] of left"),
        (label_answers, tma.LaunchControl(slots=2), "answer[0] of LaunchControl"),
    ],
)
def test_what_has_no_tiles_has_names_alone(function, owner, first):
    names, nbytes = names_of(label_number(function, owner), 0x800, 0)
    assert (names[0], nbytes) == ((0x800, first), 0)
