"""The compiled norms and reductions, beyond the kernels that have goldens."""

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.rows.backward import backward_kernel
from numba_tma.kernels.rows.launching import kernel_for
from numba_tma.kernels.rows.layernorm import LAYERNORM
from numba_tma.kernels.rows.plan import PLANS, RowOptions, RowPlan, plan_for, share_of
from numba_tma.kernels.rows.reductions import ROW_MAX, ROW_SUM
from numba_tma.kernels.rows.rmsnorm import RMSNORM
from numba_tma.kernels.rows.softmax import LOG_SOFTMAX, SOFTMAX
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels.shipped_kernels import EVERYTHING, RESIDUAL, ROWS, SHIPPED

OPTIONS = {
    RMSNORM: RowOptions(weight=True),
    LAYERNORM: RowOptions(weight=True, bias=True),
    SOFTMAX: RowOptions(statistics=(True, False)),
    LOG_SOFTMAX: RowOptions(),
    ROW_SUM: RowOptions(statistics=(True, False), output=False),
    ROW_MAX: RowOptions(statistics=(False, True), output=False, index=True),
}


def check(kernel, signature):
    """Hold a kernel to registers; return its instructions."""
    ptx = compile_ptx(kernel, signature)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    found = instructions(ptx)
    assert [i for i in found if ".local" in i] == []
    return found


def kernel_of(op, columns, dtype="bf16", width=16, plan=None, options=None):
    """Return the kernel for rows as they are planned, or with a plan."""
    element, options = as_dtype(dtype), options or OPTIONS[op]
    plan = plan or plan_for(op.name, columns, element.itemsize, width, options)
    return kernel_for(op, plan.rows, columns, element, width, plan, options)


def test_a_row_is_read_once_and_written_once():
    found = check(kernel_of(SOFTMAX, 8192, plan=RowPlan(256)), ROWS)
    for access in ("ld.global.v4", "st.global.v4"):
        assert sum(access in i for i in found) == 4  # 8192 / (8 of an access * 256 threads)
    assert sum("ex2" in i for i in found) <= 32 + 3  # one an element, and one a meeting


def test_what_comes_by_bulk_copies_is_read_from_shared_memory_once():
    found = check(kernel_of(RMSNORM, 8192, plan=RowPlan(256, bulk=True)), ROWS)
    assert sum("cp.async.bulk" in i for i in found) == 1
    assert sum("ld.shared.v4.u32" in i for i in found) == 4


@pytest.mark.parametrize(
    ("cache", "load"),
    [
        ("allocate", "ld.global.v4"),
        ("no_allocate", "ld.global.L1::no_allocate.v4"),
        ("evict_first", "ld.global.L2::cache_hint.v4"),
    ],
)
def test_how_rows_are_cached(cache, load):
    found = check(kernel_of(RMSNORM, 4096, plan=RowPlan(128, cache=cache)), ROWS)
    assert sum("ld.global" in i for i in found) == 8  # as many of the weights
    assert sum(load in i for i in found) == (8 if cache == "allocate" else 4)


@pytest.mark.parametrize("cluster", [1, 2])
def test_staged_rows_are_read_from_shared_memory_twice(cluster):
    plan = RowPlan(512, 1, cluster, bulk=True, slot=16384)
    found = check(kernel_of(SOFTMAX, cluster * 16384, plan=plan), ROWS)
    assert sum("cp.async.bulk.shared" in i for i in found) == 1
    assert not any("ld.global" in i for i in found)
    assert sum("ld.shared.v4.u32" in i for i in found) == 2 * 4  # 32 KB / (16 B * 512 threads)
    assert sum("st.global.v4" in i for i in found) == 4


@pytest.mark.parametrize("cluster", [1, 2])
def test_only_blocks_of_a_cluster_ask_for_their_rank_in_gradients(cluster):
    plan, (_, signature) = RowPlan(32, 1, cluster), SHIPPED["layernorm_backward"]
    share = share_of(512, 1, as_dtype("bf16"), 16, plan)
    kernel = backward_kernel(share, plan, centred=False, weighted=False, sums=0)
    asks = [i for i in instructions(compile_ptx(kernel, signature)) if "%cluster" in i]
    assert (cluster > 1) == bool(asks), asks


@pytest.mark.parametrize("slot", [0, 16384])
@pytest.mark.parametrize("width", [16, 2])
@pytest.mark.parametrize("cluster", [1, 2])
def test_only_blocks_of_a_cluster_ask_for_their_rank(cluster, width, slot):
    plan = RowPlan(512, 1, cluster, bulk=slot > 0, slot=slot)
    kernel = kernel_of(SOFTMAX, 32768, width=width, plan=plan)
    asks = [i for i in instructions(compile_ptx(kernel, ROWS)) if "%cluster" in i]
    assert (cluster > 1) == bool(asks), asks


@pytest.mark.parametrize(
    ("plan", "columns"),
    [
        (RowPlan(32), 512),
        *((RowPlan(32, 1, 2, bulk=True, slot=512), columns) for columns in (512, 504)),
    ],
)
def test_accesses_have_a_predicate_unless_all_of_all_threads_exist(plan, columns):
    """An access is of 8 elements, and a row of 512 has two for each thread, or one in a pair."""
    found = check(kernel_of(SOFTMAX, columns, plan=plan), ROWS)
    accesses = [i for i in found if ".global.v4" in i or "ld.shared.v4.u32" in i]
    assert accesses and {i.startswith("@") for i in accesses} == {columns != 512}


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 1000, 8192, 65536, 262144])
@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("op", OPTIONS, ids=lambda op: op.name)
def test_what_is_planned_stays_in_registers(op, columns, width):
    check(kernel_of(op, columns, width=width), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("op", [RMSNORM, LAYERNORM, SOFTMAX, LOG_SOFTMAX], ids=lambda op: op.name)
def test_the_table_of_plans(op):
    for nbytes, plan in PLANS[op.name].items():
        check(kernel_of(op, nbytes // 2, plan=plan), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("columns", [20008, 32768, 100000, 131072])
@pytest.mark.parametrize(("op", "options"), [(RMSNORM, RESIDUAL), (LAYERNORM, EVERYTHING)])
def test_a_residual_of_long_rows(op, options, columns, dtype):
    check(kernel_of(op, columns, dtype, options=options), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("f32", 16), ("f16", 2), ("bf16", 8), ("f32", 4)])
@pytest.mark.parametrize("op", OPTIONS, ids=lambda op: op.name)
def test_other_types_and_widths(op, dtype, width):
    check(kernel_of(op, 4096, dtype, width), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("length", ["whole slots", "partial"])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
@pytest.mark.parametrize("op", OPTIONS, ids=lambda op: op.name)
def test_staged_rows(op, cluster, length):
    columns = 32768 * cluster - (0 if length == "whole slots" else 1000)
    plan = RowPlan(512, 1, cluster, bulk=True, slot=16384)
    check(kernel_of(op, columns, plan=plan), ROWS)
