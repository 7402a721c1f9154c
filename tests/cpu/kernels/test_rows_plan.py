"""How rows are shared among threads and blocks, and what a launch of them is given."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.rows import launching
from numba_tma.kernels.rows.launching import access_width, prepared, row_width
from numba_tma.kernels.rows.layernorm import LAYERNORM
from numba_tma.kernels.rows.plan import (
    LONGEST,
    PLAIN,
    PLANS,
    UNALIGNED,
    RowOptions,
    RowPlan,
    bytes_per_block,
    plan_for,
    share_of,
)
from numba_tma.kernels.rows.reductions import ROW_SUM
from numba_tma.kernels.rows.rmsnorm import RMSNORM

RESIDUAL, SUMS = RowOptions(residual=True), RowOptions(residual=True, residual_out=True)
NO_OUTPUT = RowOptions(statistics=(True, False), output=False)
COLUMNS = sorted({n + d for k in range(4, 25) for n in (1 << k, 3 << k) for d in (-8, 0, 8)})
COLUMNS = [n for n in COLUMNS if 8 <= n <= LONGEST]


def is_measured(name, width, options):
    return name in PLANS and width == 16 and options in (PLAIN, RowOptions(weight=True))


@pytest.mark.parametrize("options", [PLAIN, RESIDUAL, SUMS, NO_OUTPUT], ids=str)
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("name", ["rmsnorm", "row_sum"])
def test_rows_are_staged_if_they_are_long_and_fit(name, itemsize, options):
    """Each block of a cluster has up to 64 KB of a row and its residual, and no block too many."""
    copies = 1 + options.residual
    for columns in COLUMNS:
        nbytes = columns * itemsize
        plan = plan_for(name, columns, itemsize, 16, options)
        room = copies * bytes_per_block(nbytes, 8) <= SHARED_BYTES
        if is_measured(name, 16, options) and nbytes <= max(PLANS[name]) and nbytes > 1024:
            (size,) = (size for size in PLANS[name] if size // 2 < nbytes <= size)
            assert plan == PLANS[name][size]
            continue
        assert bool(plan.slot) == plan.bulk == (nbytes > 32768 and room)
        if plan.slot:
            padded = copies * 2 ** math.ceil(math.log2(nbytes))
            assert padded <= 65536 * plan.cluster or plan.cluster == 8
            assert plan.cluster == 1 or padded > 65536 * (plan.cluster // 2)


@pytest.mark.parametrize("name", PLANS)
def test_each_plan_that_was_measured_is_for_twice_the_length_of_the_one_before(name):
    sizes = list(PLANS[name])
    assert sizes == [sizes[0] << i for i in range(len(sizes))] and sizes[0] == 2048


@pytest.mark.parametrize("threads", [1, 16, 32, 64, 1024])
@pytest.mark.parametrize("cluster", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 2, 32, 1024])
def test_what_shares_a_row_meets_within_a_warp_or_has_a_block_of_its_own(rows, cluster, threads):
    """Several rows of a block share no more than warps do; a cluster has a row of whole warps."""
    legal = rows == 1 or (threads <= 32 and cluster == 1)
    legal &= threads >= 32 or cluster == 1
    if legal and threads * rows <= 1024:
        assert RowPlan(threads, rows, cluster).block_threads == threads * rows
    else:
        with pytest.raises(ValueError, match=rf"RowPlan\(threads={threads}, rows={rows}"):
            RowPlan(threads, rows, cluster)


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("name", ["softmax", "row_max"])
def test_threads_have_16_to_32_elements_of_a_row_until_there_are_no_more(name, width):
    """8,192 threads are the most: 8 blocks of 1,024, which stay 512 each as long as they can."""
    for columns in COLUMNS:
        plan = plan_for(name, columns, 4, width)
        threads = plan.threads * plan.cluster
        assert not plan.bulk and columns <= threads * (32 if threads < 8192 else 2048)
        # Of short rows, neighbouring threads access 64 B, or 16 elements, or all there is.
        together = min(16, 64 // width, 4 * columns // width)
        assert threads < 2 * together or columns > 16 * threads
        assert threads >= min(together, 16)
        assert plan.cluster == 1 or plan.threads in (512, 1024)
        assert plan.threads <= 512 or threads in (1024, 8192)
        assert plan.block_threads == (128 if threads <= 32 else plan.threads)


#: Columns of bf16: threads of a row, rows of a block, early loads of weights.
UNALIGNED_PLANS = {
    1: (1, 128, False), 33: (2, 64, False), 129: (8, 16, False), 511: (16, 8, False),
    512: (16, 4, True), 1023: (32, 4, True), 1281: (64, 1, True), 4097: (128, 1, True),
    8191: (256, 1, True), 16383: (512, 1, True),
}  # fmt: skip


@pytest.mark.parametrize("columns", UNALIGNED_PLANS)
def test_unaligned_rows_in_registers(columns):
    threads, rows, early = UNALIGNED_PLANS[columns]
    assert plan_for("rmsnorm", columns, 2, UNALIGNED) == RowPlan(threads, rows, early=early)


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "row_max"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_unaligned_rows_are_staged_as_aligned_ones(name, itemsize):
    for columns in (*(c for c in COLUMNS if c * itemsize > 32768), 20001, 50257, 70001):
        plan = plan_for(name, columns, itemsize, UNALIGNED)
        if plan.slot:
            longest = plan_for(name, columns + 32 // itemsize, itemsize)
            assert plan == replace(longest, threads=256, slot=8192, blocks=4)
            units = -(-columns * itemsize // 16) * 16 + 16
            assert bytes_per_block(units, plan.cluster) <= SHARED_BYTES
        else:
            assert columns * itemsize > 8 * SHARED_BYTES - 32
            assert plan == RowPlan(1024, 1, 8, early=True, cache="evict_last")


def test_an_unaligned_share_has_each_unit_that_a_row_may_touch():
    for dtype, columns in (("bf16", 1), ("bf16", 129), ("f32", 3), ("f32", 1024), ("f16", 8)):
        element, plan = as_dtype(dtype), RowPlan(2, 4)
        nbytes = columns * element.itemsize
        most = max(-(-(at + nbytes) // 16) for at in range(0, 16, element.itemsize))
        share = share_of(columns, 4, element, UNALIGNED, plan)
        assert (share.width, share.step, share.whole, share.aligned) == (16, 2, False, False)
        assert (share.count - 1) * 2 < most <= share.count * 2


def test_no_thread_holds_more_than_2048_elements():
    assert plan_for("row_sum", LONGEST, 4, 4) == RowPlan(1024, 1, 8)
    for options in (PLAIN, RESIDUAL):
        with pytest.raises(
            ValueError, match=r"row_sum\(\): x has rows of .* up to 16,777,216: cut"
        ):
            plan_for("row_sum", LONGEST + 1, 4, 4, options)


@pytest.mark.parametrize(
    "plan", [RowPlan(8, 4), RowPlan(32), RowPlan(128), RowPlan(64, 1, 4), RowPlan(32, 3)], ids=str
)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_the_threads_of_a_row_have_all_of_it(plan, width):
    element = as_dtype("f16")
    for columns in (8, 96, 256, 1000, 1024, 4096):
        for rows in (1, 3, 4, 12):
            accesses = 2 * columns // width
            share = share_of(columns, rows, element, width, plan)
            threads = plan.threads * plan.cluster
            assert (share.width, share.step) == (width, plan.threads)
            assert (share.count - 1) * threads < accesses <= share.count * threads
            # Every thread has each of its accesses, also in a block whose last rows are missing.
            assert share.whole == (accesses % threads == 0 and rows % plan.rows == 0)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
@pytest.mark.parametrize("nbytes", [16, 32, 1008, 1024, 65536, 65552])
def test_blocks_have_equal_parts_of_a_row_but_the_last(nbytes, blocks):
    each = bytes_per_block(nbytes, blocks)
    assert each % 16 == 0 and each * blocks >= nbytes > (each - 16) * blocks


# --------------------------------------------------------------------------------- launches


KERNELS = "rows_in_registers", "rows_in_shared", "unaligned_in_registers", "unaligned_in_shared"


@pytest.fixture
def kernels(monkeypatch):
    """Let a kernel be what it is compiled for."""
    for name in KERNELS:
        monkeypatch.setattr(launching, name, lambda *given, name=name: (name, *given))
    prepared.cache_clear()
    yield
    prepared.cache_clear()


@pytest.mark.parametrize(
    "plan",
    [RowPlan(8, 4), RowPlan(64), RowPlan(32, 1, 4), RowPlan(32, bulk=True, slot=512)],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 4, 5, 1000])
def test_each_row_has_its_threads(kernels, rows, plan):
    kernel, blocks, threads = prepared(LAYERNORM, rows, 256, as_dtype("f16"), 16, plan, PLAIN)
    assert blocks == math.ceil(rows / plan.rows) * plan.cluster
    assert threads == plan.threads * plan.rows
    assert kernel[0] == ("rows_in_shared" if plan.slot else "rows_in_registers")
    assert plan in kernel and PLAIN in kernel


@pytest.mark.parametrize("columns", [129, 50257])
@pytest.mark.parametrize("plan", [None, RowPlan(64), RowPlan(64, bulk=True)], ids=str)
def test_unaligned_rows_have_kernels_of_their_own(kernels, columns, plan):
    """A plan with bulk copies and without slots is for aligned rows: another takes its place."""
    given = 4, columns, as_dtype("f16"), UNALIGNED, plan, PLAIN
    kernel, blocks, threads = prepared(LAYERNORM, *given)
    if plan is None or plan.bulk:
        plan = plan_for("layernorm", columns, 2, UNALIGNED)
    assert plan in kernel and blocks == math.ceil(4 / plan.rows) * plan.cluster
    assert kernel[0] == ("unaligned_in_shared" if plan.slot else "unaligned_in_registers")
    assert threads == plan.block_threads and plan.cluster == (2 if plan.slot else 1)


def test_bulk_copies_move_multiples_of_16_bytes(kernels):
    """Rows that do not allow them take another plan than was asked for."""
    staged = RowPlan(32, bulk=True, slot=512)
    kernel, *_ = prepared(ROW_SUM, 3, 4100, as_dtype("f32"), 8, staged, NO_OUTPUT)
    assert plan_for("row_sum", 4100, 4, 8, NO_OUTPUT) in kernel
    plain = replace(staged, bulk=False, slot=0)
    kernel, *_ = prepared(ROW_SUM, 3, 4100, as_dtype("f32"), 8, plain, NO_OUTPUT)
    assert plain in kernel


def rows_at(address, columns, pitch, dtype, rows=3):
    interface = {
        "shape": (rows, columns), "strides": (pitch, dtype().itemsize),
        "typestr": np.dtype(dtype).str, "data": (address, False), "version": 3,
    }  # fmt: skip
    return Array.read("rmsnorm", "x", SimpleNamespace(__cuda_array_interface__=interface))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_accesses_are_as_wide_as_all_rows_allow(dtype):
    """Each row begins at a multiple of the width, and is one."""
    size = dtype().itemsize
    rng = np.random.default_rng(size)
    for _ in range(300):
        given, legal = [], {size, 16} | {w for w in (2, 4, 8) if w >= size}
        for _ in range(rng.integers(1, 3)):
            columns = int(rng.choice([8, 16, 24, 4, 12, 2, 6, 1, 5]))
            pitch = size * (columns + int(rng.choice([0, 8, 4, 2, 1])))
            address = (1 << 30) + size * int(rng.choice([0, 8, 4, 2, 1]))
            given.append(rows_at(address, columns, pitch, dtype))
            legal &= {w for w in legal if not any(n % w for n in (address, pitch, size * columns))}
        assert access_width(*given) == max(legal)
        assert access_width(None, *given, None) == max(legal)


NO_VECTORS = [None, None]


def test_rows_are_accessed_by_units_if_all_of_them_begin_alike():
    def at(distance, pitch=258, columns=129):
        return rows_at((1 << 30) + distance, columns, pitch, np.float16)

    x = at(0)
    assert row_width([x, at(16), None], [None, None]) == UNALIGNED
    vector = rows_at(1 << 31, 129, 258, np.float16, rows=1)
    assert row_width([x], [vector, None]) == UNALIGNED and row_width([x], [vector, vector]) == 2
    for columns, width in ((16383, 2), (16385, UNALIGNED), (20001, UNALIGNED)):  # up to 32 KB
        long = rows_at(1 << 30, columns, 2 * columns, np.float16)
        assert row_width([long], [vector, vector]) == width
    full = rows_at((1 << 30) + 2, 16384, 32770, np.float16)
    assert row_width([full], [vector, vector]) == 2
    assert row_width([x, at(2)], NO_VECTORS) == 2  # another distance from a multiple of 16 B
    assert row_width([x, at(0, 260)], NO_VECTORS) == 2  # and another in each row
    assert row_width([x, at(0, 274)], NO_VECTORS) == UNALIGNED
    assert row_width([at(6, 260, 128)], NO_VECTORS) == UNALIGNED
    assert row_width([at(8, 264, 128), at(8, 264, 128)], NO_VECTORS) == 8  # wide enough
    assert row_width([at(0, 256, 128)], [at(2), None]) == UNALIGNED  # a weight may begin anywhere
    assert row_width([at(0, 256, 128)], [at(16, 256, 128), None]) == 16
    one = rows_at((1 << 30) + 4, 65, 258, np.float16, rows=1)
    other = rows_at((1 << 30) + 4, 65, 300, np.float16, rows=1)
    assert row_width([one, other], NO_VECTORS) == UNALIGNED  # a pitch of one row is none


def test_short_rows_that_are_written_are_accessed_by_elements():
    x, y = (rows_at((1 << n) + 2, 63, 126, np.float16) for n in (30, 31))
    assert row_width([x, y, None, None], NO_VECTORS) == 2
    assert row_width([x, None, None, None], NO_VECTORS) == UNALIGNED  # a reduction
    x, y = (rows_at((1 << n) + 2, 65, 130, np.float16) for n in (30, 31))
    assert row_width([x, y, None, None], NO_VECTORS) == UNALIGNED


def test_rows_that_fit_into_the_l2_cache_are_not_evicted_last(kernels):
    def plan_of(rows, columns, name=RMSNORM):
        kernel, *_ = prepared(name, rows, columns, as_dtype("f16"), 16, None, PLAIN)
        return next(part for part in kernel if isinstance(part, RowPlan))

    assert plan_of(6144, 4096) == RowPlan(256)  # 48 MiB
    assert plan_of(6145, 4096) == RowPlan(256, cache="evict_last")
    assert plan_of(1, 32768).cache == "evict_last"  # a bulk copy
