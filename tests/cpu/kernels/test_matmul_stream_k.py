"""Stream-K without a GPU: how clusters divide tiles, what they hand over, and the machine code."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, typeof, types

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import StreamKConfig, grouped_matmul
from numba_tma.kernels.matmul import stream_k_kernel as module
from numba_tma.kernels.matmul.arguments import Epilogue, MatmulExtents
from numba_tma.kernels.matmul.choice import ROW_CLUSTERS
from numba_tma.kernels.matmul.kernel import matmul_kernel
from numba_tma.kernels.matmul.plan import Config
from numba_tma.kernels.matmul.stream_k_kernel import (
    Part,
    hand_over,
    parts_of,
    stream_k_kernel,
)
from numba_tma.kernels.matmul.stream_k_plan import FEWEST, SHORTEST, StreamK, divide, slot_nbytes
from numba_tma.tools.testing import compile_ptx, find_tool
from tests.cpu.kernels.test_matmul_host import Array
from tests.kernels.matmul_forms import EVERYTHING, form, signature, stream_k_signature
from tests.machine_code import all_in_registers, shortest_loop
from tests.ptx_machine import Machine
from tests.tiers import every, quick

needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
SMALL = form(config=StreamKConfig(64, 32))
PAIRS = form(config=StreamKConfig(cluster=2))

# -------------------------------------------------------------------------------- division

TILES = (1, 2, 3, 5, 24, 65, 131, 132, 133, 198, 263, 264, 265, 288, 1000)
STEPS = (1, 2, 3, 5, 8, 16, 47, 75, 1024)


def divided(tiles, steps, most):
    """Return the division, as the kernel gets it, and the parts of each worker."""
    division = divide(tiles, steps, most)
    stream = StreamK(*division[1:], 0, 0)
    workers = range(division.clusters)
    return division, stream, [list(parts_of(w, len(workers), stream, steps)) for w in workers]


@pytest.mark.parametrize("most", [1, 2, 7, 66, 132])
@pytest.mark.parametrize("tiles", every(4, TILES))
def test_every_stage_is_computed_once_and_clusters_equally_long(tiles, most):
    for steps in STEPS:
        division, _, all_parts = divided(tiles, steps, most)
        computed = np.zeros((tiles, steps), int)
        for parts in all_parts:
            assert parts, "a cluster without work"
            for number, begin, end in parts:
                computed[number, begin:end] += 1
                assert end - begin >= min(FEWEST, steps)
        assert (computed == 1).all(), (steps, division)
        lengths = [sum(end - begin for _, begin, end in parts) for parts in all_parts]
        assert max(lengths) - min(lengths) <= 1 + 4 * (FEWEST - 1)
        if tiles < division.clusters:
            assert min(lengths) > SHORTEST - 2 * FEWEST
        else:  # what is divided is one tile to two for each cluster
            assert division.clusters == min(tiles, most)
            assert 0 <= tiles - division.whole <= 2 * division.clusters


@pytest.mark.parametrize("tiles", every(4, TILES))
def test_owners_take_the_slots_of_their_tile_in_order(monkeypatch, tiles):
    """A slot is written before all else, taken once, and by a worker of a smaller number."""
    waited = []
    monkeypatch.setattr(module, "wait_for_flag", lambda flag, site: waited.append(flag // 16))
    monkeypatch.setattr(module, "add_global_by_thread", lambda acc, *_: acc)
    none = SimpleNamespace(
        **{"tid_x": lambda: 0, "laneid": lambda: 1, "bar_warp_sync": lambda: None},
        fence_acq_rel=lambda scope: None,
    )
    monkeypatch.setattr(module, "ptx", none)
    _, add = hand_over(form(config=StreamKConfig(64, 32, cluster=2)))
    for steps in STEPS:
        division, stream, all_parts = divided(tiles, steps, 132)
        slots = {}  # by tile: the workers that hold sums of a part, in the order of the parts
        for worker, parts in enumerate(all_parts):
            ends = [i for i, part in enumerate(parts) if part.begin > 0]
            heads = [i for i, part in enumerate(parts) if 0 < part.end < steps and not part.begin]
            streamed = [i for i, part in enumerate(parts) if part.number >= division.whole]
            assert ends in ([], [0]) and heads in ([], streamed[-1:])
            for i in ends:
                slots.setdefault(parts[i].number, []).append(worker)
        taken = []
        for worker, parts in enumerate(all_parts):
            for number, begin, end in parts:
                waited.clear()
                of_worker = parts_of(worker, len(all_parts), stream, steps)
                if begin == 0:
                    add(None, Part(number, begin, end), stream, of_worker, 1, 0, 32)
                found = [(slot - 1) // 2 for slot in waited]
                assert found == (slots[number] if not begin and end < steps else [])
                assert found == sorted(found) and found[:1] in ([], [worker + 1])
                taken += found
        assert sorted(taken) == sorted(sum(slots.values(), []))


def test_parts_are_found_in_32_bits():
    """The compiled division, near the most stages; `longer` and rounding to tiles among it."""
    u32 = types.uint32

    def kernel(out, worker, workers, whole, share, longer, steps):
        i = 0
        for part in parts_of(worker, workers, StreamK(whole, share, longer, 0, 0), steps):
            if i < 4:
                out[i, 0], out[i, 1], out[i, 2] = part.number, part.begin, part.end
            i += 1
        out[4, 0] = i

    kinds = (types.int64[:, ::1], u32, u32, *(types.int64,) * 4)
    ptx = compile_ptx(cuda.jit(kernel), kinds)
    for tiles, steps, most in ((263, 8_100_000, 132), (288, 47, 132), (5, 8, 3), (24, 100, 132)):
        division, _, all_parts = divided(tiles, steps, most)
        for worker in (0, 1, len(all_parts) // 2, len(all_parts) - 1):
            out = np.zeros((5, 3), np.int64)
            Machine(ptx, out, worker, len(all_parts), *division[1:], steps).run()
            expected = [tuple(part) for part in all_parts[worker]]
            assert [tuple(row) for row in out[: len(expected)].tolist()] == expected[:4]
            assert out[4, 0] == len(expected)


def test_too_many_stages():
    with pytest.raises(ValueError, match=r"divides 2,156,600,000 stages, .*: use a Config"):
        divide(263, 8_200_000, 132)


# ------------------------------------------------------------------------------- hand-over


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_sums_go_through_a_slot(dtype):
    """A block writes two slots, and takes them both; a third of the columns is outside."""
    PLAN = form(*(("i8", "i8", "i32") if dtype == "i32" else ()), config=StreamKConfig(64, 160))
    (write, add), N = hand_over(PLAN), PLAN.config.n
    ACC, cast = PLAN.accumulator.name, PLAN.accumulator.numpy.type

    @cuda.jit(device=True)
    def number(value, row, column):
        return cast(row * 1000 + column)

    def kernel(out, sums, flags):
        stream = StreamK(0, 20, 0, sums.ctypes.data, flags.ctypes.data)
        acc = tma.fragment(N, ACC).map_coords(number)
        write(acc, stream, parts_of(1, 3, stream, 60), 0, 0, 100)
        write(acc, stream, parts_of(2, 3, stream, 60), 0, 0, 300)
        # Worker 0 has stages 0 to 20 of a tile of 60.
        acc = add(acc, Part(0, 0, 20), stream, parts_of(0, 3, stream, 60), 0, 0, 100)
        acc.store_global(out, 0, 0)

    out = np.zeros((64, N), as_dtype(dtype).numpy)
    sums, flags = np.zeros(3 * slot_nbytes(PLAN) // 4, np.float32), np.zeros(12, np.uint32)
    kinds = tuple(typeof(array) for array in (out, sums, flags))
    machine = Machine(compile_ptx(cuda.jit(kernel), kinds), out, sums, flags)
    logs = machine.run_together(range(128))
    row, column = np.indices(out.shape)
    np.testing.assert_array_equal(out, (row * 1000 + column) * np.where(column < 128, 3, 1))
    assert not flags.any()
    # Of the flag's accesses that write and read sums are on the other side of a fence.
    names = [name for name, *_ in logs[32]]
    written = ["bar.warp.sync", "fence.acq_rel.gpu"]
    assert names == written * 2 + ["fence.acq_rel.gpu", "bar.warp.sync"] * 2
    assert [name for name, *_ in logs[33]] == ["bar.warp.sync"] * 2 + written[::-1] * 2


# ------------------------------------------------------------- the kernel, executed by itself

SUMS, FLAGS = 1 << 33, 1 << 34  # addresses


def slots_of(machine, access):
    """Return which slots of an MMA warpgroup the last run has stored to, or loaded from."""
    places = {at for name, at, _ in machine.accesses if name.startswith(f"{access}.global.v4")}
    return sorted({(at - SUMS) // slot_nbytes(SMALL) for at in places})


@pytest.mark.parametrize("cluster", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("tiles", "steps", "most"), [(3, 9, 2), (1, 24, 3), (5, 6, 2), (4, 1, 2)])
def test_clusters_load_hand_over_and_store_what_is_theirs(tiles, steps, most, cluster):
    """The blocks run one after the other, so a block that waits for a later one never ends."""
    division, _, all_parts = divided(tiles, steps, most)
    extents = MatmulExtents(64 * cluster, 32 * tiles, cluster, tiles, 1, steps, 0, 0, 1)
    maps, terms = [bytes(128)] * 3, (1.0, 0.0, 0, 0, 0)
    given = (*maps, 0, 0, *extents, *terms, *division[1:], SUMS, FLAGS)
    plan = form(config=StreamKConfig(64, 32, cluster))
    grid = division.clusters * cluster, 1, 1
    machine, stored = Machine(compiled(plan), *given, block=(256, 1, 1), grid=grid), []
    for block in range(division.clusters * cluster):
        number, rank = divmod(block, cluster)
        worker = division.clusters - 1 - number
        here = {"block": (block, 0, 0), "cluster_ctarank": rank, "cluster_nctarank": cluster}
        parts, later = all_parts[worker], all_parts[worker + 1 :]
        stages = [(tile, 64 * k) for tile, begin, end in parts for k in range(begin, end)]
        log = machine.run(0, **here)  # loads
        loads = [values[1][1] for name, values in log if name.startswith("cp.async.bulk.tensor")]
        of_a, of_b = (64 * rank, 0), 32 // cluster * rank
        assert loads == [
            place for tile, k in stages for place in ((k, *of_a), (k, 32 * tile + of_b, 0))
        ]
        log = machine.run_together(range(160, 192), **here)[0]  # an MMA warp
        products = sum(name.startswith("wgmma.mma_async") for name, _ in log)
        assert products == 4 * len(stages)
        assert slots_of(machine, "st") == [worker * cluster + rank] * (parts[0].begin > 0)
        heads = [part.number for part in parts if part.end < steps and part.begin == 0]
        assert slots_of(machine, "ld") == [
            other * cluster + rank
            for other, (first, *_) in enumerate(later, worker + 1)
            if first.begin > 0 and first.number in heads
        ]
        stored += [part.number for part in parts if part.begin == 0]
    assert sorted(stored) == sorted([*range(tiles)] * cluster)
    assert not any(machine.peek(FLAGS, 16 * division.clusters * cluster))


# ---------------------------------------------------------------------------- machine code

BIAS = Epilogue(alpha=True, bias=as_dtype("bf16"))
FORMS = {
    "bf16": form(),
    "pairs": form(config=Config(cluster=2)),
    "everything": form(epilogue=EVERYTHING, config=Config(cluster=2)),
    "odd": form(epilogue=BIAS, addressable=False),
    "NT": form(layout="NT", config=Config(cluster=2)),
    "tf32": form("tf32", out="f32", config=Config(cluster=2)),
    "i8": form("i8", out="i32"),
    **{str(config): form(config=config) for config in ROW_CLUSTERS},
    "everything, narrow": form(epilogue=EVERYTHING, out="f32", config=ROW_CLUSTERS[-1]),
}


@functools.cache
def compiled(plan):
    config = StreamKConfig(**dataclasses.asdict(plan.config))
    plan = dataclasses.replace(plan, config=config)
    return compile_ptx(stream_k_kernel(plan), stream_k_signature(plan))


@pytest.mark.parametrize("name", quick(["pairs"], FORMS))
def test_registers_hold_everything(name):
    report = all_in_registers(compiled(FORMS[name]))
    if FORMS[name].config.m == 128:
        assert report.registers == 168  # of each thread at launch


@needs_nvdisasm
def test_the_loop_is_that_of_whole_tiles():
    plain = FORMS["pairs"]
    ours, theirs = (
        [name for name, _ in shortest_loop(ptx, lambda code: "HGMMA" in code)]
        for ptx in (compiled(plain), compile_ptx(matmul_kernel(plain), signature(plain)))
    )
    assert len(ours) <= len(theirs)
    for name in ("HGMMA", "SYNCS", "WARPGROUP", "BRA"):
        assert ours.count(name) == theirs.count(name)


# -------------------------------------------------------------------------------- refusals


def test_k_is_not_split_besides():
    with pytest.raises(ValueError, match=r"StreamKConfig\(splits=2\).*: use splits=1"):
        StreamKConfig(splits=2)


def test_groups_have_no_stream_k():
    arrays = [Array(i, (64, 64)) for i in range(4)]
    with pytest.raises(TypeError, match="config is StreamKConfig.*; it is a Config,"):
        grouped_matmul(*arrays, config=StreamKConfig())
