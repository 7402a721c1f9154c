"""How column sums cut up matrices of any size, and what their kernels cost."""

import math
import random

import numpy as np
import pytest

from numba_tma.host.arrays import Array as Read
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.rows import columns
from numba_tma.kernels.rows.columns import kernel as kernels
from numba_tma.kernels.rows.columns.plan import THREADS, ColumnSizes, has_few_rows, plan_for
from numba_tma.kernels.rows.plan import UNALIGNED
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.cpu.kernels.test_matmul_host import Array
from tests.kernels.shipped_kernels import COLUMN_SUMS
from tests.ptx_machine import ARRAYS, Machine
from tests.tiers import quick

SMS = 132
FORMS = ("aligned", "shifted", "view")  # from the second element on, and with a gap between rows
SPACES = {"sums": 1 << 50, "counters": 1 << 51}


def matrix(rows, width, dtype=np.float16, form="aligned"):
    """Return a matrix as it was read, from memory that does not exist."""
    itemsize = np.dtype(dtype).itemsize
    pitch, start = width + 3 * (form == "view"), itemsize * (form != "aligned")
    strides = (pitch * itemsize, itemsize)
    return Read.read("f", "x", Array(1, (rows, width), dtype, strides=strides, start=start))


def drawn(count):
    """Yield matrices of up to 256 MB, of all widths."""
    rng = random.Random(1)

    def length(most):
        return round(math.exp(rng.uniform(0, math.log(most))))

    for _ in range(count):
        dtype, width = rng.choice((np.float32, np.float16)), length(1 << 18)
        rows = length(max(2, (1 << 28) // (width * np.dtype(dtype).itemsize)))
        yield matrix(rows, width, dtype, rng.choice(FORMS))


@pytest.mark.parametrize("parts", [None, 1, 7, 65536])
@pytest.mark.parametrize("sms", [2, 132])
def test_plans_cover_matrices(sms, parts):
    for x in drawn(1000):
        plan, lanes = plan_for(x, sms, parts), 16 // x.itemsize
        rows, width = -(-x.shape[0] // plan.packed), x.shape[1] * plan.packed
        case = x.shape, x.itemsize, plan
        assert (plan.tiles - 1) * plan.columns < width <= plan.tiles * plan.columns, case
        assert plan.packed == 1 or (plan.tiles == 1 and x.strides[0] == x.itemsize * x.shape[1])
        touched = -(-plan.columns // lanes) + (plan.width == UNALIGNED)
        assert touched <= plan.across and 1 <= plan.down * plan.across <= THREADS, case
        assert plan.down * plan.columns <= THREADS * lanes, case  # in shared memory
        assert plan.groups == 1 or plan.columns // plan.packed <= THREADS, case
        if rows > 1:  # the rows of a part begin alike
            assert plan.parts * plan.packed * x.strides[0] % 16 == 0, case
        if plan.width == 16:
            pitch = plan.packed * x.strides[0] * (rows > 1)
            begins = x.address, x.extent[1], pitch, plan.columns * x.itemsize
            assert not any(begin % 16 for begin in begins), case
        if parts:
            wanted = min(parts, rows)
            assert wanted <= plan.parts < wanted + plan.down, case


def test_plans_fill_the_gpu():
    """Large matrices have blocks for all SMs, and threads that have columns."""
    for x in drawn(4000):
        nbytes, plan = x.size * x.itemsize, plan_for(x, SMS)
        if nbytes < 1 << 24 or has_few_rows(x, SMS):
            continue
        blocks, case = plan.tiles * plan.groups, (x.shape, x.itemsize, plan)
        waves = blocks / (2 * SMS)
        assert waves >= 0.5 and waves / math.ceil(waves) >= 0.5, case
        assert plan.across * plan.down >= 0.65 * THREADS, case


PLANS = {
    # rows, columns, form: packed, threads across and down, columns of a tile, tiles, groups
    (1180302, 56, "aligned"): (1, 7, 73, 56, 1, 264),
    (171456, 576, "aligned"): (1, 16, 32, 128, 5, 52),
    (32768, 8192, "aligned"): (1, 32, 16, 256, 32, 8),
    (1983, 544, "aligned"): (1, 24, 21, 192, 3, 22),
    (256, 262144, "aligned"): (1, 128, 4, 1024, 256, 1),
    (3317, 4504, "shifted"): (1, 29, 17, 224, 21, 12),
    (18280, 3237, "view"): (1, 29, 17, 224, 15, 17),
    (300001, 63, "shifted"): (8, 64, 8, 504, 1, 264),
    (300001, 63, "view"): (1, 9, 56, 63, 1, 264),
    (4000001, 1, "aligned"): (512, 65, 7, 512, 1, 245),
}


@pytest.mark.parametrize("case", PLANS, ids=str)
def test_plans(case):
    rows, width, form = case
    assert plan_for(matrix(rows, width, form=form), SMS)[1:] == PLANS[case]


@pytest.mark.parametrize(
    ("rows", "width", "form", "few"),
    [
        (8, 64, "aligned", True), (9, 64, "aligned", False), (9, 262144, "aligned", False),
        (16, 4001, "aligned", True), (17, 4001, "aligned", False), (16, 4000, "shifted", True),
        (64, 262143, "shifted", True), (65, 262143, "shifted", False),
    ],
)  # fmt: skip
def test_few_rows_have_a_thread_for_a_column(rows, width, form, few):
    assert has_few_rows(matrix(rows, width, form=form), SMS) is few


@pytest.fixture
def launches(monkeypatch):
    """Note launches: (kernel, blocks, threads, stream, arguments); a kernel is what it is of."""
    noted = []
    monkeypatch.setattr(
        columns, "launch", lambda kernel, blocks, threads, stream, *given:
        noted.append((kernel, blocks, threads, stream, given))
    )  # fmt: skip
    for name in ("column_sums_kernel", "few_rows_kernel"):
        monkeypatch.setattr(columns, name, lambda *of, name=name: (name, *of))
    monkeypatch.setattr(columns.device, "sm_count", lambda: SMS)
    monkeypatch.setattr(columns, "float_workspace", lambda *shape: Array(8, shape, np.float32))
    monkeypatch.setattr(columns, "zero_counters", lambda count: Array(9, (count,), np.uint32))
    return noted


@pytest.mark.parametrize("form", FORMS)
def test_a_launch_has_what_its_plan_says(launches, form):
    x, out = matrix(5000, 1000, form=form), Read.read("f", "out", Array(2, (1000,), np.float32))
    plan = plan_for(x, SMS)
    sums, counters = columns.sum_columns(x, out, 7)
    ((kernel, blocks, threads, stream, given),) = launches
    assert kernel == ("column_sums_kernel", x.dtype, plan.width, out.dtype)
    assert (blocks, threads, stream) == (plan.tiles * plan.groups, THREADS, 7)
    assert sums.shape == (blocks, plan.columns) and counters.shape == (plan.tiles,)
    memory, sizes, *places = given
    assert memory == (x.address, x.strides[0]) and (sizes.begin, sizes.end) == x.extent
    assert (sizes.rows, sizes.columns, sizes.packed) == (5000, 1000, 1)
    assert sizes[4:9] == (plan.across, plan.down, plan.columns, plan.tiles, plan.groups)
    assert places == [Read.read("f", "", s).address for s in (sums, counters)] + [out.address]


def test_short_rows_are_read_as_one(launches):
    x, out = matrix(30001, 63), Read.read("f", "out", Array(2, (63,), np.float32))
    sums, counters = columns.sum_columns(x, out, 7)
    ((_, blocks, _, _, (memory, sizes, *_)),) = launches
    assert memory.stride == 8 * 126 and sizes.packed == 8
    assert (sizes.rows, sizes.columns) == (3751, 504)
    assert sums.shape == (blocks, 64) and counters.shape == (1,)


def test_a_block_for_a_tile_needs_no_workspace(launches):
    out = Read.read("f", "out", Array(2, (262144,), np.float32))
    assert columns.sum_columns(matrix(256, 262144), out, 7) == []
    assert launches[0][-1][2:] == (0, 0, out.address)


@pytest.mark.parametrize("width", [1, 1024, 1025])
def test_few_rows(launches, width):
    x, out = matrix(3, width, form="view"), Read.read("f", "out", Array(2, (width,), np.float16))
    assert columns.sum_columns(x, out, 7) == []
    ((kernel, blocks, threads, stream, given),) = launches
    assert kernel == ("few_rows_kernel", x.dtype, out.dtype)
    assert (blocks, threads, stream) == (-(-width // 1024), 256, 7)
    assert given == ((x.address, x.strides[0]), 3, width, out.address)
    launches.clear()
    columns.sum_columns(x, out, 7, parts=2)  # the order of addition is what was asked for
    assert launches[0][0][0] == "column_sums_kernel"


@pytest.mark.parametrize("width", [16, UNALIGNED])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_two_blocks_are_on_an_sm_with_four_loads_a_thread(dtype, width):
    kernel = kernels.column_sums_kernel(as_dtype(dtype), width, as_dtype("f16"))
    ptx = compile_ptx(kernel, COLUMN_SUMS)
    report = ptxas(ptx)
    assert report.registers <= 64 and report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    found = [i for i in instructions(ptx) if "ld.global" in i or "ld.local" in i]
    wide = [i for i in found if "v4" in i]
    assert len(wide) == 8  # four of the rows, and four of the workspace
    assert len(found) - len(wide) == (4 * 16 // as_dtype(dtype).itemsize if not width else 0)


WHERE, WORK, COUNTERS, OUT = (ARRAYS + (i << 20) for i in range(1, 5))


@pytest.mark.parametrize("columns", [24, 48])
@pytest.mark.parametrize("form", quick(["view"], FORMS))
def test_the_last_block_of_a_tile_adds_up_what_all_have(form, columns):
    """The compiled kernel, executed: no block adds, reads or writes anything beside an array."""
    rows, itemsize, tiles, groups = 41, 2, 1 + (columns > 24), 2
    x = matrix(rows, columns, form=form)
    (pitch, _), start = x.strides, x.address % 256
    width = 16 if form == "aligned" else UNALIGNED
    sizes = ColumnSizes(
        begin=WHERE + start, end=WHERE + start + x.span, rows=rows, columns=columns,
        across=4, down=4, tile_columns=24, tiles=tiles, groups=groups, packed=1,
    )  # fmt: skip
    assert sizes.down * groups * pitch % 16 == 0  # the rows of a part begin alike
    values = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(np.float16)
    memory = np.full(start // itemsize + rows * pitch // itemsize + 8, np.nan, np.float16)
    for row, elements in enumerate(values):
        memory[(start + row * pitch) // itemsize :][:columns] = elements
    kernel = kernels.column_sums_kernel(x.dtype, width, as_dtype("f32"))
    given = WHERE + start, pitch, *sizes, WORK, COUNTERS, OUT
    blocks = tiles * groups
    machine = Machine(
        compile_ptx(kernel, COLUMN_SUMS), *given, block=(THREADS, 1, 1), grid=(blocks, 1, 1)
    )
    machine.poke(WHERE, memory.tobytes())
    ranges = [(sizes.begin, sizes.end), (WORK, WORK + 4 * 24 * blocks)]
    ranges += [(COUNTERS, COUNTERS + 4 * tiles), (OUT, OUT + 4 * columns)]
    for block in reversed(range(blocks)):
        machine.run_together(range(64), (block, 0, 0))  # the others have neither rows nor sums
        for kind, at, nbytes in machine.accesses:
            if "global" in kind and at >= WHERE:
                assert any(begin <= at <= end - nbytes for begin, end in ranges), (kind, at)
    found = np.frombuffer(machine.peek(OUT, 4 * columns), np.float32)
    np.testing.assert_array_equal(found, values.astype(np.float32).sum(0))
    assert not any(machine.peek(COUNTERS, 4 * tiles))
