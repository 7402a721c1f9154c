"""Compiled schedulers: as many instructions as by hand, in registers; and their errors."""

import pytest
from numba import cuda, types, uint32
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.primitives import quotient  # division as in CUDA C++, with no test for 0
from numba_tma.tools.testing import compile_ptx, instructions, ptxas

OUT = types.int64[:, ::1]
GRID = (OUT, types.int64, types.int64, types.int64)
CAUSAL = (OUT, types.int64, types.int64, types.int64, types.int64)


# -------------------------------------------------------------- with schedulers, by hand


def grid_kernel(scheduler, batched=False):
    if batched:

        @cuda.jit
        def kernel(out, rows, columns, batch):
            for row, column, matrix in scheduler.over(rows, columns, batch).tiles():
                out[row, column] = matrix

    else:

        @cuda.jit
        def kernel(out, rows, columns, batch):
            for row, column, matrix in scheduler.over(rows, columns).tiles():
                out[row, column] = matrix

    return kernel


def strided_by_hand(rows, columns, number):
    return quotient(number, columns)


def grouped_by_hand(rows, columns, number):
    index, inner = uint32(0), number
    if number >= uint32(8 * columns):
        index, inner = quotient(number, uint32(8 * columns))
    height = uint32(min(uint32(rows - 8 * index), uint32(8)))
    column, row = quotient(inner, height)
    return uint32(8 * index + row), column


def by_hand(formula, batched=False):
    locate = cuda.jit(device=True, forceinline=True)(formula)
    if batched:

        @cuda.jit
        def kernel(out, rows, columns, batch):
            rows_, columns_ = uint32(rows), uint32(columns)
            number, step = ptx.ctaid_x(), ptx.nctaid_x()
            while number < uint32(rows_ * columns_ * uint32(batch)):
                matrix, inner = uint32(0), number
                if uint32(batch) > 1:
                    matrix, inner = quotient(number, uint32(rows_ * columns_))
                row, column = locate(rows_, columns_, inner)
                out[row, column] = matrix
                number = uint32(number + step)

    else:

        @cuda.jit
        def kernel(out, rows, columns, batch):
            rows_, columns_ = uint32(rows), uint32(columns)
            number, step = ptx.ctaid_x(), ptx.nctaid_x()
            while number < uint32(rows_ * columns_):
                row, column = locate(rows_, columns_, number)
                out[row, column] = 0
                number = uint32(number + step)

    return kernel


@cuda.jit
def causal(out, queries, keys, heads, batch):
    for block, head, matrix, length in SCHEDULER.over(queries, keys, heads, batch).tiles():
        out[block, head] = length * 65536 + matrix


SCHEDULER = tma.CausalLPTScheduler(128, 128)


@cuda.jit
def causal_by_hand(out, queries, keys, heads, batch):
    queries_, keys_, heads_ = uint32(queries), uint32(keys), uint32(heads)
    all_heads = uint32(heads_ * uint32(batch))
    blocks = uint32(queries_ + 127) >> 7
    number = ptx.ctaid_x()
    turn = uint32(2 * ptx.nctaid_x())
    stride = uint32(turn - 2 * number - 1)
    while number < uint32(blocks * all_heads):
        later, head = quotient(number, all_heads)
        matrix, head = quotient(head, heads_)
        block = uint32(blocks - 1 - later)
        reach = uint32(min(uint32(128 * block + 128), queries_) + keys_)
        length = uint32(uint32(max(reach, queries_) - queries_ + 127) >> 7)
        out[block, head] = length * 65536 + matrix
        number = uint32(number + stride)
        stride = uint32(turn - stride)


def count(kernel, signature):
    listed = instructions(compile_ptx(kernel, signature))
    return sum(not line.endswith(":") for line in listed)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("scheduler", "formula"),
    [
        (tma.GridStridedScheduler(), strided_by_hand),
        (tma.GroupedScheduler(8), grouped_by_hand),
    ],
)
def test_a_grid_costs_what_the_formula_costs(scheduler, formula, batched):
    ours = count(grid_kernel(scheduler, batched), GRID)
    hand = count(by_hand(formula, batched), GRID)
    assert ours <= 1.02 * hand, f"{ours} PTX instructions with {scheduler}, {hand} by hand"


def test_causal_costs_what_the_formula_costs():
    ours, hand = count(causal, CAUSAL), count(causal_by_hand, CAUSAL)
    assert ours <= 1.02 * hand, f"{ours} PTX instructions with the scheduler, {hand} by hand"


def test_a_batch_that_is_not_given_costs_no_division():
    def divisions(scheduler, batched):
        text = compile_ptx(grid_kernel(scheduler, batched), GRID)
        return sum(line.startswith(("div.", "rem.")) for line in instructions(text))

    for scheduler, expected in (
        (tma.GridStridedScheduler("F"), 1),
        (tma.GroupedScheduler(8), 2),
        (tma.GroupedScheduler(8, axis=1), 2),
    ):
        assert divisions(scheduler, False) == expected
        # LLVM may make a loop for one matrix, and one for several, with quotient and remainder.
        assert expected < divisions(scheduler, True) <= 2 * expected + 2


def test_the_hilbert_curve_is_a_short_loop():
    plain = count(grid_kernel(tma.GridStridedScheduler()), GRID)
    assert count(grid_kernel(tma.HilbertScheduler()), GRID) - plain < 110


KERNELS = {
    "strided": (grid_kernel(tma.GridStridedScheduler("F"), True), GRID),
    "grouped": (grid_kernel(tma.GroupedScheduler(8, axis=1), True), GRID),
    "hilbert": (grid_kernel(tma.HilbertScheduler(), True), GRID),
    "causal": (causal, CAUSAL),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")], ids=["sm_90a", "sm_100a"])
def test_nothing_leaves_the_registers(name, cc):
    kernel, signature = KERNELS[name]
    text = compile_ptx(kernel, signature, cc=cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    listed = instructions(text)
    assert not [line for line in listed if ".local" in line or line.startswith("call")]


# ------------------------------------------------------------------------ in pipelines

TILE = tma.Tile((64, 64), "bf16")
PIPE = tma.TilePipeline(4, x=TILE)
GROUPED = tma.GroupedScheduler(8)


@cuda.jit
def scheduled_copy(source, destination, rows, columns):
    pipe = PIPE.start()
    schedule = GROUPED.over(rows, columns)
    first, step = cuda.blockIdx.x, cuda.gridDim.x
    if pipe.is_producer():
        for number, stage in pipe.produce(first, schedule.num_tiles, step):
            row, column, _ = schedule.tile(number)
            source.load(stage.x, (row * 64, column * 64), stage.barrier)
    else:
        for number, stage in pipe.consume(first, schedule.num_tiles, step):
            tile = schedule.tile(number)
            pipe.store(destination, stage.x, (tile.row * 64, tile.column * 64), written=False)


def test_both_roles_of_a_pipeline_take_tiles_from_it():
    from numba_tma.backend.lowering.types import TensorMapType

    text = compile_ptx(
        scheduled_copy,
        (TensorMapType(2, TILE), TensorMapType(2, TILE), types.int64, types.int64),
    )
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    listed = instructions(text)
    assert sum(line.startswith("div.u32") for line in listed) == 4  # two in each role
    assert not [line for line in listed if line.startswith(("div.u64", "div.s64", "rem."))]


# ------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda out, n: GROUPED.over(n, n / 2),
            r"GroupedScheduler\(group=8, axis=0\): columns=float64 is no integer; divide with //",
        ),
        (lambda out, n: GROUPED.over(n, n).tile(0.5), "number=float64 is no integer"),
        (lambda out, n: GROUPED.over(n, n).tiles(n, 2.0), "step=float64 is no integer"),
        (lambda out, n: SCHEDULER.over(n, n, 1.0), "heads=float64 is no integer"),
    ],
)
def test_what_is_no_integer_is_refused(body, message):
    with pytest.raises(TypingError, match=message):
        compile_ptx(body, (types.int64[::1], types.int64))
