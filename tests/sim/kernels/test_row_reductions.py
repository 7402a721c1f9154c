"""Row sums, maxima and argmaxima, and column sums, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator
from numba_tma.device import combine
from numba_tma.device.combine import lanes_max, lanes_sum
from numba_tma.kernels.rows import columns
from numba_tma.kernels.rows.columns import kernel as column_kernels
from numba_tma.kernels.rows.columns import plan as column_plans
from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from tests.kernels.meeting import ROWS, meeting
from tests.sim.race_log import Kind, record
from tests.tiers import quick


def values(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("plan", "start"),
    [
        (RowPlan(8, 4), 1),
        pytest.param(RowPlan(32, 1, 2), 1, marks=pytest.mark.slow),
        (RowPlan(32, 1, 2, bulk=True, slot=512), 0),
        pytest.param(RowPlan(32, bulk=True, slot=512), 0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows(plan, start, dtype):
    x = values((5, 304), dtype)[:, start:]
    x[1, 40:60] = x.max()  # several largest, in several threads
    x[2] = -np.inf
    x[3, [77, 200]] = np.nan
    exact = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        sums, want = row_sum(x, plan=plan), exact.sum(-1)
    some = np.isfinite(want)
    assert (np.abs(sums[some] - want[some]) <= 2.0**-20 * np.abs(exact).sum(-1)[some]).all()
    np.testing.assert_array_equal(sums[~some], want[~some])
    np.testing.assert_array_equal(row_max(x, plan=plan), exact.max(-1))
    got = row_argmax(x, plan=plan)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, exact.argmax(-1))


LANES = [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_combine_with_their_neighbours_alone(lanes):
    LANES = lanes

    def kernel(given, sums, maxima):
        lane = cuda.threadIdx.x
        sums[lane] = lanes_sum(given[lane], LANES)
        maxima[lane] = lanes_max(given[lane], LANES)

    given = np.random.default_rng(2).permutation(32).astype(np.float32)
    sums, maxima = np.zeros_like(given), np.zeros_like(given)
    cuda.jit(kernel)[1, 32](given, sums, maxima)
    groups = given.reshape(-1, lanes)
    np.testing.assert_array_equal(sums, np.repeat(groups.sum(1), lanes))
    np.testing.assert_array_equal(maxima, np.repeat(groups.max(1), lanes))


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_find_the_first_of_the_largest_in_their_row(lanes):
    x = np.random.default_rng(3).integers(0, 9, (32 // lanes + 1, 67)).astype(np.float32)
    got = row_argmax(x, plan=RowPlan(lanes, 32 // lanes))
    np.testing.assert_array_equal(got, x.argmax(1))


@pytest.mark.parametrize("columns", [4, 252, 256, 260, 512])
@pytest.mark.parametrize(
    "plan", [RowPlan(32, 1, 2, bulk=True, slot=512), RowPlan(32, 1, 4, bulk=True)]
)
def test_blocks_of_a_cluster_may_have_less_of_a_row_or_none(plan, columns):
    """Integers, so that each sum is exact: what is read beside the row makes it another one."""
    x = np.random.default_rng(columns).integers(1, 9, (2, columns)).astype(np.float32)
    sums = []
    log, error = record(lambda: sums.append(row_sum(x, plan=plan)))
    assert error is None
    np.testing.assert_array_equal(sums[0], x.sum(1))
    loaded = [size for kind, _, _, _, _, _, size, *_ in log.events if kind == Kind.LOAD]
    assert min(loaded) > 0 and sum(loaded) == x.nbytes


MEETING = [(8, 1), (32, 1), (128, 1), (32, 2), (32, 8), (64, 4)]
MORE_MEETING = [(32, 4), (128, 8), (256, 8), (512, 4), (1024, 2)]


@pytest.mark.parametrize(
    ("threads", "blocks"),
    [*MEETING, *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in MORE_MEETING)],
)
def test_all_threads_that_share_a_row_have_the_whole_of_it(threads, blocks):
    check_meeting(threads, blocks)


def test_one_lane_of_each_warp_writes_the_part_of_all():
    log, error = record(lambda: check_meeting(128, 1))
    assert error is None
    assert sum(event[0] == Kind.WRITE for event in log.events) == 3 * 4  # turns, warps


def test_blocks_of_more_than_32_warps_send_one_part_each(monkeypatch):
    monkeypatch.setattr(combine, "_entries", lambda threads, blocks: blocks)  # as if they had
    check_meeting(64, 4)


def check_meeting(threads, blocks):
    given = np.random.default_rng(1).integers(0, 4096, (ROWS, threads * blocks)).astype(np.float32)
    got = np.zeros_like(given)
    kernel, _ = meeting(threads, blocks)
    kernel[blocks, threads](given, got)
    np.testing.assert_array_equal(got, np.broadcast_to(given.sum(-1, keepdims=True), got.shape))


@pytest.fixture
def small_blocks(monkeypatch):
    """Column sums have blocks of 128 threads, and tiles to match."""
    for module in (columns, column_kernels, column_plans):
        monkeypatch.setattr(module, "THREADS", 128)
    monkeypatch.setattr(column_plans, "_PACKED", 256)
    monkeypatch.setattr(column_plans, "_WIDTHS", (16,))
    kernel = column_kernels.column_sums_kernel.__wrapped__
    monkeypatch.setattr(columns, "column_sums_kernel", kernel)


def check_columns(x, **options):
    """Hold sums, of which none is left as it was, to float64."""
    exact, out = x.astype(np.float64), np.full(x.shape[1], np.nan, np.float32)
    assert column_sum(x, out=out, **options) is out
    assert (np.abs(out - exact.sum(0)) <= 2.0**-20 * np.abs(exact).sum(0)).all()
    return out


def placed(rows, width, dtype, form):
    """Return a matrix at the start of memory, from the second element on, or with gaps, too."""
    pitch, start = width + 3 * (form == "view"), int(form != "aligned")
    flat = values(start + rows * pitch, dtype)
    if form == "view":
        flat[start:].reshape(rows, pitch)[:, width:] = np.nan
    return flat[start:].reshape(rows, pitch)[:, :width]


FORMS = ["aligned", "shifted", "view"]
SHORT = (40, 3, ml_dtypes.bfloat16)  # rows of which many are read as one
LONG = (21, 136, ml_dtypes.bfloat16)  # more columns than a tile has
OTHERS = [(70, 33, np.float32), (200, 1, np.float16), (33, 129, np.float32), (33, 301, np.float16)]
NARROW = [(18, n, ml_dtypes.bfloat16) for n in range(2, 71)]


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "form"),
    quick(
        [*((*SHORT, form) for form in FORMS), (*OTHERS[0], "shifted"), (*LONG, "view")],
        [(*case, form) for case in (SHORT, LONG, *OTHERS, *NARROW) for form in FORMS],
    ),
)
def test_columns(small_blocks, rows, width, dtype, form):
    x = placed(rows, width, dtype, form)
    check_columns(x)
    sums = check_columns(x, parts=70)
    if form == "shifted":
        simulator.seed(1)  # blocks and threads in another order
        np.testing.assert_array_equal(check_columns(x, parts=70), sums)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (7, 1030)])
def test_columns_of_few_rows(rows, width):
    x = placed(rows, width, ml_dtypes.bfloat16, "view")
    check_columns(x)


def test_columns_in_parts_of_few_rows(small_blocks):
    check_columns(placed(3, 70, ml_dtypes.bfloat16, "shifted"), parts=2)


def test_columns_of_repeated_and_reversed_rows(small_blocks):
    x = values((20, 24), ml_dtypes.bfloat16)
    check_columns(x[::-1])
    check_columns(np.broadcast_to(x[3], (20, 24)))
    check_columns(x[::-1, 3:])


@pytest.mark.parametrize(("rows", "width"), [(70, 1), (9, 129)])
def test_columns_whose_number_is_one_above_that_of_turns_of_threads(small_blocks, rows, width):
    """The last thread that adds up rows in shared memory is alone in its turn."""
    check_columns(placed(rows, width, np.float32, "view"))


def test_columns_of_whole_blocks():
    x = values((20, 64), ml_dtypes.bfloat16)
    sums = check_columns(x)
    out = np.zeros(64, np.float16)
    assert column_sum(x, out=out) is out
    np.testing.assert_array_equal(out, sums.astype(np.float16))


def test_columns_written_as_bits_of_x():
    x = values((5, 40), ml_dtypes.bfloat16)
    out = np.zeros(40, np.uint16)
    assert column_sum(x.view(np.uint16), dtype="bf16", out=out) is out
    given = column_sum(x, out=np.zeros(40, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(out, given.view(np.uint16))


def test_columns_of_no_rows_are_0():
    assert not column_sum(values((0, 8))).any()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: row_sum(values(8)), r"x has 1 axis; pass x.reshape\(1, -1\)"),
        (lambda: row_sum(values((2, 8), np.float64)), "x is f64; it works on f32, f16 and bf16"),
        (lambda: row_argmax(values((2, 0))), "rows of 0 elements; it finds columns of rows of 1"),
        (lambda: row_max(values((2, 8)), out=values(3)), r"row_max.*shape \(2,\) of f32"),
        (lambda: row_argmax(values((2, 8)), out=values(2)), "of f32; it takes one i64 for each"),
        (lambda: column_sum(values((2, 8)), out=values(2)), r"pass an array of shape \(8,\)"),
    ],
)
def test_what_cannot_be_done(call, text):
    with pytest.raises(ValueError, match=text):
        call()
