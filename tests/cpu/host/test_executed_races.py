"""Races mode in compiled kernels, executed: the log that the host reads."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.interface import device_function
from numba_tma.backend.lowering.races import matrix_rows
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.backend.numba_cuda.race_check import names_of
from numba_tma.device.fragment_moves import row_fragment, store_by_thread
from numba_tma.device.races import delay, note, note_access
from numba_tma.host.races import (
    CAPACITY,
    EVENT,
    HEADER,
    SEEN,
    Kind,
    events_address,
    header_address,
    label_number,
    line_in_words,
)
from numba_tma.pipeline.launch_control import label_answers
from numba_tma.pipeline.ordered import label_turns
from numba_tma.tools.testing import compile_ptx, run_isolated
from tests.ptx_machine import PAGE, Machine

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
    number = int.from_bytes(machine.peek(header_address(), 4), "little")
    raw = machine.peek(events_address(), EVENT.itemsize * min(number, CAPACITY))
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


ACCESSES = Kind.READ, Kind.WRITE, Kind.COPY, Kind.ATOMIC


def test_an_access_is_logged_unless_it_was_the_last_of_its_kind_to_these_16_bytes():
    """The order is that of a cache with an entry per warp, kind of access and 16 bytes."""

    def kernel(steps):
        for i in range(steps.shape[0]):
            kind, line = steps[i, 0], np.uint32(i)
            if kind == Kind.FENCE:  # begins an epoch
                note(np.uint32(Kind.FENCE), *ZEROS)
            else:
                note_access(kind, steps[i, 1], steps[i, 2], steps[i, 3], line)

    rng, steps, expected, last = np.random.default_rng(1), [], [], {}
    for i in range(160):
        kind, size = int(rng.choice([*ACCESSES, Kind.FENCE])), int(rng.choice([4, 8, 16]))
        address = 0x1000400 + 16 * int(rng.integers(3)) + 4 * int(rng.integers(4))
        partial = int(size == 4 and rng.integers(2))
        steps.append((kind, address, size, partial))
        start = address & 0xFFFFFF & -size
        if kind == Kind.FENCE:
            last.clear()
            expected.append((kind, 0, 0, 0, 0))
        elif last.get((kind, start // 16)) != (start, size):
            last[kind, start // 16] = start, size
            expected.append((kind, start, size, partial, i))
    given = np.array(steps, np.uint32)
    machine = Machine(compiled(kernel, types.uint32[:, ::1]), given, block=(96, 1, 1))
    number = 0
    for block, thread in ((0, 0), (0, 64), (1, 0), (31, 64), (1, 32)):
        before = {number: bytes(page) for number, page in machine.pages.items()}
        machine.run(thread, (block, 0, 0), **special((block, 0, 0), (40, 1, 1), 0, 1))
        found = events(machine)[number:]
        number += len(found)
        fields = found[["kind", "address", "size", "other", "line"]].tolist()
        assert fields == expected
        assert {(e["slot"], e["warp"]) for e in found} == {(block, thread // 32)}
        # Nothing but the warp's own words, the log's, and the number of its events.
        words = {
            (page * PAGE + at - header_address()) // 4
            for page, now in machine.pages.items()
            for at, (old, new) in enumerate(zip(before.get(page, bytes(PAGE)), now))
            if old != new and page * PAGE + at >= header_address()
        }
        own = 64 + (block * 32 + thread // 32) * SEEN
        assert all(w == 0 or w >= HEADER or own <= w < own + SEEN for w in words)
        assert own in words


# ----------------------------------------------------------------------- in races mode


WORKERS = tma.Roles(load=tma.Warps(1), work=tma.Warps(2))


def row_cases(tile, full):
    """Return calls of instructions with the events that they log: kind, address, size, other."""
    k = Kind
    load, store = "ptx.ld_shared_", "ptx.st_shared_"
    copies = "ptx.cp_async_"
    return [
        ("ptx.mbarrier_init(full, 7)", [(k.INIT, full, 7, 0)]),
        ("ptx.mbarrier_arrive(full)", [(k.ARRIVE, full, 1, 0)]),
        ("ptx.mbarrier_arrive(full, n + 3)", [(k.ARRIVE, full, 3, 0)]),
        ("ptx.mbarrier_arrive_expect_tx(full, 64)", [(k.ARRIVE, full, 1, 64)]),
        ("ptx.mbarrier_arrive_drop(full, 2)", [(k.ARRIVE, full, 2, 0, 1)]),
        ("ptx.mbarrier_arrive_remote(full.address)", [(k.ARRIVE, full, 1, 0)]),
        ("ptx.mbarrier_expect_tx(full, n + 32)", [(k.EXPECT, full, 0, 32)]),
        ("ptx.mbarrier_expect_tx_remote(full.address, 48)", [(k.EXPECT, full, 0, 48)]),
        ("ptx.mbarrier_complete_tx(full, 16)", [(k.COMPLETE, full, 0, 16)]),
        ("ptx.cp_async_mbarrier_arrive_noinc(full)", [(k.ARRIVE_COPIED, full, 1, 0)]),
        ("ptx.cp_async_mbarrier_arrive(full)", [(k.UNCOUNTED, full, 0, 0)]),
        ("ptx.st_async_b32(n, n, full.address)", [(k.UNCOUNTED, full, 0, 0)]),
        ("ptx.red_async_u32(n, n, full.address, 'add')", [(k.UNCOUNTED, full, 0, 0)]),
        (
            "ptx.cp_async_bulk_copy_cluster(n, tile, 16, full.address)",
            [(k.UNCOUNTED, full, 0, 0)],
        ),
        ("ptx.mbarrier_try_wait_parity(full, 1)", [(k.WAITED, full, 1, 0)]),
        ("ptx.mbarrier_test_wait_parity(full, n)", [(k.WAITED, full, 0, 0)]),
        ("ptx.mbarrier_try_wait(full, np.uint64(9))", [(k.WAITED_OWN, full, 0, 0)]),
        ("ptx.mbarrier_test_wait(full, np.uint64(9))", [(k.WAITED_OWN, full, 0, 0)]),
        ("ptx.cp_async_bulk_load(tile, out, 128, full)", [(k.LOAD, tile, 128, full)]),
        (
            "ptx.cp_async_bulk_load(tile, out, 256, full, multicast=np.uint16(5))",
            [(k.LOAD, tile, 256, full, 5)],
        ),
        ("ptx.cp_async_bulk_tensor_load(tile, x, (n, n), full)", [(k.LOAD, tile, 8192, full)]),
        ("ptx.cp_async_bulk_tensor_load(tile, y, (n, n), full)", [(k.LOAD, tile, 8192, full)]),
        ("ptx.cp_async_bulk_tensor_load(at, y, (n, n), full)", [(k.UNCOUNTED, full, 0, 0)]),
        ("ptx.cp_async_bulk_store(out, tile, 512)", [(k.SOURCE, tile, 512, 0)]),
        ("ptx.cp_async_bulk_tensor_store(x, (n, n), tile)", [(k.SOURCE, tile, 8192, 0)]),
        ("ptx.cp_async_bulk_tensor_store(y, (n, n), at)", [(k.SOURCE, tile, 16, 0)]),  # unknown
        ("ptx.cp_reduce_async_bulk_tensor(x, (n, n), tile, 'add')", [(k.SOURCE, tile, 8192, 0)]),
        ("ptx.cp_reduce_async_bulk_store(out, tile, 64, 'add.f32')", [(k.SOURCE, tile, 64, 0)]),
        ("ptx.cp_async_bulk_commit_group()", [(k.COMMIT, 0, 0, 0)]),
        ("ptx.cp_async_bulk_wait_group(3)", [(k.DRAINED, 0, 3, 0)]),
        ("ptx.cp_async_bulk_wait_group_read(2)", [(k.DRAINED, 0, 2, 0)]),
        (f"{copies}ca(tile, out, 4)", [(k.COPY, tile, 4, 0)]),
        (f"{copies}ca(tile, out, 8)", [(k.COPY, tile, 8, 0)]),
        (f"{copies}cg(tile, out)", [(k.COPY, tile, 16, 0)]),
        (f"{copies}commit_group()", [(k.COPY_COMMIT, 0, 0, 0)]),
        (f"{copies}wait_group(2)", [(k.COPY_DRAINED, 0, 2, 0)]),
        (f"{copies}wait_all()", [(k.COPY_DRAINED, 0, 0, 1)]),
        ("ptx.fence_proxy_async()", [(k.FENCE, 0, 0, 0)]),
        ("ptx.fence_proxy_async('global')", []),
        ("ptx.fence_proxy_async_all()", [(k.FENCE, 0, 0, 0)]),
        ("ptx.wgmma_fence()", []),
        ("ptx.wgmma_commit_group()", [(k.PRODUCT_COMMIT, 0, 0, 0)]),
        ("ptx.wgmma_wait_group(1)", [(k.PRODUCT_DRAINED, 0, 1, 0)]),
        ("cuda.syncthreads()", [(k.MEET, 0, 0, 1), (k.MET, 0, 0, 0)]),
        ("meet_in_a_body()", [(k.MEET, 0, 0, 1), (k.MET, 0, 0, 0)]),
        ("ptx.barrier_sync(2, 128)", [(k.MEET, 2, 128, 1), (k.MET, 2, 0, 0)]),
        ("ptx.barrier_arrive(3, 64)", [(k.MEET, 3, 64, 1)]),
        ("ptx.barrier_cluster_arrive()", [(k.CLUSTER_ARRIVE, 0, 0, 1)]),
        ("ptx.barrier_cluster_wait()", [(k.CLUSTER_WAITED, 0, 0, 0)]),
        ("ptx.st_shared_cluster_u32(n, n)", [(k.UNTRACKED, 0, 0, 0)]),
        (f"{load}u16(at)", [(k.READ, tile, 4, 1)]),
        (f"{load}u32(at)", [(k.READ, tile, 4, 0)]),
        (f"{load}u64(at + 16)", [(k.READ, tile + 16, 8, 0)]),
        (f"{load}f32(at + 32)", [(k.READ, tile + 32, 4, 0)]),
        (f"{load}v2_u32(at, 48)", [(k.READ, tile + 48, 8, 0)]),
        (f"{load}v4_u32(at, condition=n < 3)", [(k.READ, tile, 16, 0)]),
        (f"{load}v4_u32(at, 128, condition=n > 3)", []),
        (f"{store}u16(at, np.uint16(1))", [(k.WRITE, tile, 4, 1)]),
        (f"{store}u64(at + 16, np.uint64(1))", [(k.WRITE, tile + 16, 8, 0)]),
        (f"{store}v4_u32(at + 32, (n, n, n, n))", [(k.WRITE, tile + 32, 16, 0)]),
        ("ptx.mbarrier_inval(full)", [(k.INVAL, full, 0, 0)]),
    ]


@device_function
def meet_in_a_body() -> None:
    cuda.syncthreads()


def rows_logged():
    """Return the events of each call of `row_cases`."""
    calls = [call for call, _ in row_cases(0, 0)]
    lines = ["tile, full = tma.shared_tile(OPERAND), tma.shared_barrier()"]
    lines += ["at = tile.address_of((0, 0))"]
    for i, call in enumerate(calls):  # a mark before each
        lines += [f"races.note(np.uint32(Kind.SITE), np.uint32({i}), *ZEROS[1:])", call]
    source = "def kernel(x, y, out, n):\n    " + "\n    ".join(lines)
    scope = {**globals(), "ptx": tma.ptx, "races": tma.device.races}
    exec(source, scope)
    kinds = TensorMapType(2, OPERAND), TensorMapType(2, None), types.int64, U32
    machine = Machine(
        compile_ptx(cuda.jit(scope["kernel"]), kinds, cc=(9, 0, "a")),
        bytes(128), bytes(128), 1 << 33, 0,
        answer=lambda name, _: 1 if "activemask" in name else int("_wait" in name),
    )  # fmt: skip
    names = [name for name, _ in machine.run(0, **ALONE)]
    return calls, events(machine).tolist(), machine.shared, names, matrix_rows_logged()


def launch_bounds():
    """Return the largest block of kernels of a pipeline without roles, and of two with and without.

    The first has no limit; a block of roles has a known size.
    """
    plain = tma.TilePipeline(2, x=OPERAND)
    of_roles = tma.TilePipeline(2, x=OPERAND, producer=WORKERS.load, consumer=WORKERS.work)

    def without():
        plain.start()

    def both():
        of_roles.start()
        plain.start()

    texts = [compile_ptx(cuda.jit(kernel), (), cc=(9, 0, "a")) for kernel in (without, both)]
    return [re.findall(r"\.maxntid (\d+)", text) for text in texts]


def matrix_rows_logged():
    """Return the kinds and offsets of accesses of one of each ldmatrix and stmatrix."""

    def kernel(n):
        row = tma.shared_tile(OPERAND).address_of((0, 0)) + 16 * n
        tma.ptx.ldmatrix_x1(row)
        tma.ptx.ldmatrix_x2(row + 512)
        tma.ptx.ldmatrix_x4(row + 1024)
        tma.ptx.stmatrix_x2(row + 1536, (n, n))

    def of_lanes():
        kernel_(u32(cuda.laneid))

    kernel_, u32 = cuda.jit(device=True)(kernel), np.uint32
    machine = Machine(compile_ptx(cuda.jit(of_lanes), (), cc=(9, 0, "a")))
    machine.run_together(range(32), **ALONE)
    (tile,) = machine.shared
    kinds = Kind.READ, Kind.WRITE
    return [(e["kind"], e["address"] - tile) for e in events(machine) if e["kind"] in kinds]


def all_in_one_process():
    return {case.__name__: case() for case in CASES}


@functools.cache
def in_races_mode():
    """Return what each of the functions returns where NUMBA_TMA_DEBUG=races."""
    return run_isolated(all_in_one_process, timeout=240, env=RACES)


def test_every_instruction_logs_what_it_does():
    calls, found, (tile, full), _, matrices = in_races_mode()["rows_logged"]
    logged = {}
    for event in (dict(zip(EVENT.names, values)) for values in found):
        if event["kind"] == Kind.SITE:
            here = logged.setdefault(calls[event["address"]], [])
        elif event["kind"] != Kind.LINE:
            words = [event[name] for name in ("kind", "address", "size", "other", "mask")]
            here.append(tuple(words if words[-1] else words[:-1]))
    assert logged == {call: each for call, each in row_cases(tile, full)}
    rows = [(Kind.READ, 0, 8), (Kind.READ, 512, 16), (Kind.READ, 1024, 32), (Kind.WRITE, 1536, 16)]
    each = [(kind, start + 16 * row) for kind, start, count in rows for row in range(count)]
    assert sorted(matrices) == sorted(each)


def test_lanes_of_a_warp_meet_before_its_instructions_and_around_events_of_one_lane():
    """A commit is logged before it is executed, a wait afterwards."""
    *_, names, _ = in_races_mode()["rows_logged"]
    shown = " ".join(name for name in names if name != "nanosleep.u32")
    sync = "bar.warp.sync"
    for name in ("wgmma.fence", "bar.sync", "bar.arrive"):
        assert re.search(rf"{sync} {name}", shown), f"lanes of a warp come apart to {name}"
    products = re.search(r"wgmma\.fence.* bar\.sync", shown)[0].replace(".sync.aligned", "")
    assert products.split()[:9] == [
        *("wgmma.fence", sync, sync, "wgmma.commit_group"),
        *(sync, "wgmma.wait_group", sync, sync),
        sync,  # of the syncthreads that follows
    ]


def test_a_block_of_roles_has_the_registers_of_its_size():
    assert in_races_mode()["launch_bounds"] == [[], ["96"]]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *[(f"{way}matrix_x{n}", 8 * n) for way in ("ld", "st") for n in (1, 2, 4)],
        ("ldmatrix_m16n16_x1", 16), ("ldmatrix_m16n16_x2", 32), ("ldmatrix_m8n16_x4", 32),
        ("ldmatrix_m8n16_x1", 8), ("stmatrix_m16n8_x1", 8), ("stmatrix_m16n8_x4", 32),
    ],
)  # fmt: skip
def test_so_many_lanes_have_the_address_of_a_row(name, rows):
    assert matrix_rows(name) == rows


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


SQUARE, NUMBERS, COLUMN = tma.Tile((64, 8), "f32"), tma.Tile(64, "f32"), tma.Tile(8, "f32")
COUNTS = tma.Tile(64, "i32")


def helpers_logged():
    """Return the granules of shared memory that each helper is logged to read and write."""

    def kernel(out):
        loaded, stored = tma.shared_tile(SQUARE), tma.shared_tile(SQUARE)
        slots, numbers = tma.shared_tile(SQUARE), tma.shared_tile(NUMBERS)
        column, single = tma.shared_tile(COLUMN), tma.shared_tile(NUMBERS)
        counts = tma.shared_tile(COUNTS)
        held = tma.load_fragment(loaded, (0, 0), 8) * tma.load_rows(numbers, 0)
        held.store(stored, (0, 0))
        store_by_thread(row_fragment(column), slots)
        single[cuda.threadIdx.x // 2] = single[cuda.threadIdx.x // 2] + np.float32(1)
        cuda.atomic.exch(counts, cuda.threadIdx.x // 2, 1)

    found, _, _, tiles = logged_by(kernel, 128)
    rows = [dict(zip(EVENT.names, each)) for each in found]

    def places(kind, tile, nbytes):
        told = {row["address"] - tile for row in rows if row["kind"] == kind}
        return {place for place in told if 0 <= place < nbytes}

    return [
        [places(kind, tile, nbytes) for kind in (Kind.READ, Kind.WRITE, Kind.ATOMIC)]
        for tile, nbytes in zip(tiles, HELD)
    ]


#: Bytes of the tiles of `helpers_logged`, as they are placed.
HELD = [2048, 2048, 2048, 256, 32, 256, 256]
CASES = rows_logged, launch_bounds, products, helpers_logged


def test_helpers_log_the_16_bytes_that_they_read_and_write():
    """An atomic operation is logged with its own bytes."""
    loaded, stored, slots, numbers, column, single, _ = (
        set(range(0, nbytes, 16)) for nbytes in HELD
    )
    none = set()
    assert in_races_mode()["helpers_logged"] == [
        *([loaded, none, none], [none, stored, none], [none, slots, none]),
        *([numbers, none, none], [column, none, none], [single, single, none]),
        [none, none, set(range(0, 256, 4))],
    ]


def test_every_step_of_a_kernel_is_an_event():
    found, lines, log, (tile, full) = in_races_mode()["products"]
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
    # Of the 16 bytes of each row's first element.
    wrote = {row["address"] - tile for row in by_kind[Kind.WRITE]}
    assert wrote == {OPERAND.offset(row, 0) for row in range(64)}
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
