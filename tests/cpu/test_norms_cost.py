"""What the norms and reductions compile to, beyond the kernels that have goldens."""

import pytest

from numba_tma.dtypes import as_dtype
from numba_tma.kernels._columns import add_rows_kernel
from numba_tma.kernels._row_at_once import at_once
from numba_tma.kernels._row_held import held_rows
from numba_tma.kernels._row_launch import PLANS, plan_for, share_of
from numba_tma.kernels._row_rings import row_per_stage, slots_per_row
from numba_tma.kernels._rows import Options, Plan
from numba_tma.kernels.layernorm import LAYERNORM
from numba_tma.kernels.reductions import ROW_MAX, ROW_SUM
from numba_tma.kernels.rmsnorm import RMSNORM
from numba_tma.kernels.softmax import LOG_SOFTMAX, SOFTMAX
from numba_tma.testing import compile_ptx, instructions, ptxas
from tests.shipped_kernels import COUNTER, INT, ROWS

OPTIONS = {
    RMSNORM: Options(weight=True),
    LAYERNORM: Options(weight=True, bias=True),
    SOFTMAX: Options(statistics=(True, False)),
    LOG_SOFTMAX: Options(),
    ROW_SUM: Options(statistics=(True, False), output=False),
    ROW_MAX: Options(statistics=(False, True), output=False, index=True),
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


def at_once_with(op, columns, dtype="bf16", width=16, plan=None):
    plan = plan or plan_for(columns)
    share = share_of(columns, plan.rows, as_dtype(dtype), width, plan)
    return at_once(op, share, plan, OPTIONS[op])


def test_a_row_is_read_once_and_written_once():
    found = check(at_once_with(SOFTMAX, 8192), ROWS)
    for access in ("ld.global.v4", "st.global.v4"):
        assert sum(access in i for i in found) == 4  # 8192 / (8 of an access * 256 threads)
    assert sum("ex2" in i for i in found) <= 32 + 3  # one an element, and one a meeting


def test_what_comes_by_bulk_copies_is_read_from_shared_memory_once():
    found = check(at_once_with(RMSNORM, 8192, plan=Plan(256, bulk=True)), ROWS)
    assert sum("cp.async.bulk" in i for i in found) == 1
    assert sum("ld.shared.v4.b32" in i for i in found) == 4


@pytest.mark.parametrize(
    ("cache", "load"),
    [
        ("allocate", "ld.global.v4"),
        ("no_allocate", "ld.global.L1::no_allocate.v4"),
        ("evict_first", "ld.global.L2::cache_hint.v4"),
    ],
)
def test_how_rows_are_cached(cache, load):
    found = check(at_once_with(RMSNORM, 4096, plan=Plan(128, cache=cache)), ROWS)
    assert sum("ld.global" in i for i in found) == 8  # as many of the weights
    assert sum(load in i for i in found) == (8 if cache == "allocate" else 4)


def test_resident_weights_are_loaded_once():
    plan = Plan(512, 1, 4, blocks=1, stages=9, slot=16384, resident=True)
    kernel = slots_per_row(LAYERNORM, as_dtype("bf16"), 2 * 65536, plan, OPTIONS[LAYERNORM])
    found = check(kernel, (COUNTER, *ROWS))
    assert not any("ld.global" in i for i in found)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 1000, 8192, 65536, 262144])
@pytest.mark.parametrize("op", OPTIONS, ids=lambda op: op.name)
def test_what_is_planned_stays_in_registers(op, columns):
    check(at_once_with(op, columns), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("op", [RMSNORM, LAYERNORM, SOFTMAX, LOG_SOFTMAX], ids=lambda op: op.name)
def test_the_table_of_plans(op):
    for nbytes, plan in PLANS[op.name].items():
        if plan.slot:
            kernel = slots_per_row(op, as_dtype("bf16"), nbytes, plan, OPTIONS[op])
        elif plan.stages:
            kernel = row_per_stage(op, as_dtype("bf16"), nbytes, plan, OPTIONS[op])
        else:
            kernel = at_once_with(op, nbytes // 2, plan=plan)
        check(kernel, (COUNTER, *ROWS) if plan.stages else ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("f32", 16), ("f16", 2), ("bf16", 8), ("f32", 4)])
@pytest.mark.parametrize("op", OPTIONS, ids=lambda op: op.name)
def test_other_types_and_widths(op, dtype, width):
    check(at_once_with(op, 4096, dtype, width), ROWS)


@pytest.mark.parametrize(
    "op",
    [SOFTMAX, *(pytest.param(op, marks=pytest.mark.slow) for op in (RMSNORM, LAYERNORM))],
    ids=lambda op: op.name,
)
def test_rows_that_are_held_are_read_from_shared_memory_once(op):
    plan = Plan(512, blocks=1, stages=13, slot=16384, held=True)
    kernel = held_rows(op, as_dtype("bf16"), 2 * 65536, plan, OPTIONS[op])
    found = check(kernel, (COUNTER, *ROWS))
    assert sum("ld.shared.v4.b32" in i for i in found) == 16


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("op", [RMSNORM, LAYERNORM, SOFTMAX, LOG_SOFTMAX], ids=lambda op: op.name)
def test_slots(op, cluster):
    plan = Plan(512, 1, cluster, blocks=1, stages=13, slot=16384)
    kernel = slots_per_row(op, as_dtype("bf16"), 2 * 65536, plan, OPTIONS[op])
    check(kernel, (COUNTER, *ROWS))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_the_sum_of_a_workspace(dtype):
    check(add_rows_kernel(as_dtype(dtype)), (INT,) * 4)
