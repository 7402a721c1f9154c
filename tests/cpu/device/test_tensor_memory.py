"""`TensorMemory` and its matrices in kernels: the PTX, and the errors of a compile."""

import re

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.host.scale_factors import scale_tile
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels.tensor_kernels import packed, round_trip

SM_100A = (10, 0, "a")
MATRIX, ROW = types.float32[:, ::1], types.float32[::1]


def test_one_warp_allocates_and_frees():
    text = compile_ptx(round_trip.py_func, (MATRIX,) * 4, cc=SM_100A)
    steps = re.findall(
        r"tcgen05\.(alloc|dealloc|relinquish_alloc_permit|fence::\w+)|(bar\.sync|bar\.warp\.sync)",
        text,
    )
    steps = [a or b for a, b in steps]
    before, after = "fence::before_thread_sync", "fence::after_thread_sync"
    start = ["alloc", "relinquish_alloc_permit", before, "bar.sync", after]
    assert steps[:5] == start
    assert steps[-5:] == [before, "bar.sync", after, "bar.warp.sync", "dealloc"]
    report = ptxas(text)
    assert (report.warnings, report.spill_stores, report.stack_frame) == ((), 0, 0)


def test_the_blocks_of_a_pair_wait_for_each_other():
    """Neither reads the address, or frees the columns, before both have come."""
    PAIR = tma.TensorMemory(64, cta_group=2)

    @tma.cluster(2)
    def kernel():
        PAIR.start().close()

    text = compile_ptx(kernel, (), cc=SM_100A)
    steps = re.findall(r"tcgen05\.(\w+)|barrier\.cluster\.(\w+)|(ld\.shared)", text)
    meeting = ["fence", "arrive", "wait", "fence"]
    alloc = ["alloc", "relinquish_alloc_permit", *meeting, "ld.shared"]
    assert [a or b or c for a, b, c in steps] == [*alloc, *meeting, "dealloc"]


def test_operands_are_packed_by_two_conversions():
    text = compile_ptx(packed.py_func, (MATRIX, MATRIX), cc=SM_100A)
    assert len(re.findall(r"cvt\.rn\.bf16x2\.f32", text)) == 2
    assert "tcgen05.st.sync.aligned.32x32b.x2.b32" in text


TMEM, SMALL = tma.TensorMemory(512), tma.TensorMemory(64)
ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warpgroups(1))
OUT = tma.OutputTilePipeline(
    2,
    tma.Tile((128, 64), "f32"),
    mma=ROLES.mma,
    epilogue=ROLES.epilogue,
    memory="tensor",
    extra_columns=32,
)


def test_the_role_s_first_warp_allocates():
    assert tma.TensorMemory(role=ROLES.epilogue).first == 32
    assert OUT.num_columns == 256 and OUT.tensor_memory.num_columns == 256


def too_many():
    TMEM.start().tile(128, 256, "f32", 300)


def too_wide():
    SMALL.start().tile(128, 128)


def shared():
    tmem = TMEM.start()
    tmem.tile(128, 256)
    tmem.tile(128, 128, "f16", column=128)


def shared_with_stages():
    OUT.start().tensor_memory.tile(128, 32, "f32", 100)


def of_rows(n):
    TMEM.start().tile(n, 128)


def at_column(column):
    TMEM.start().tile(128, 64, "f32", column)


def half_the_lanes(out):
    out[0] = TMEM.start().tile(64, 128).load(0, 1)[0]


def half_the_lanes_stored(out):
    TMEM.start().tile(64, 128).store(0, (out[0],))


def row_of_half_the_lanes(out):
    out[0] = TMEM.start().tile(64, 128).row


def three_columns(out):
    out[0] = TMEM.start().tile(128, 128).load(0, 3)[0]


def odd_column(out):
    TMEM.start().operand(128, 64, "bf16").store(1, (out[0], out[1]))


def past_the_scores():
    TMEM.start().tile(128, 64).operand(128, "bf16", column=32)


ERRORS = [
    (too_many, (), "takes columns 300 to 555, and TensorMemory.512. has 512"),
    (too_wide, (), "takes 128 columns, and TensorMemory.64. has 64"),
    (shared, (), "share columns 128 to 255 of TensorMemory.512."),
    (shared_with_stages, (), r"tile\(128, 32, f32\) .* the stages .* share columns 100 to 127"),
    (of_rows, (types.int64,), "tile: m is int64; it is an integer that is known at compile time"),
    (at_column, (types.float64,), r"tile\(128, 64, f32\): column takes an integer, not float64"),
    (half_the_lanes, (ROW,), r"tile.load: tile\(64, 128, f32\) has 64 rows, .* 16 of every 32"),
    (half_the_lanes_stored, (ROW,), r"tile.store: tile\(64, 128, f32\) has 64 rows"),
    (row_of_half_the_lanes, (ROW,), r"tile.row: tile\(64, 128, f32\) has 64 rows"),
    (three_columns, (ROW,), "tile.load moves 1, 2, 4, .* 128 columns at once, not 3"),
    (odd_column, (ROW,), "column is 1; a cell has 2 elements of bf16: use a multiple of 2"),
    (past_the_scores, (), "takes columns 32 to 95, and tile.128, 64, f32. has 64"),
]


@pytest.mark.parametrize(("kernel", "args", "text"), ERRORS)
def test_errors(kernel, args, text):
    with pytest.raises((TypingError, CudaTypingError), match=text):
        compile_ptx(kernel, args, cc=SM_100A)


#: A matrix of each kind.
MATRICES = {
    "tile": "tile(128, 64)",
    "operand": "operand(128, 128, 'bf16')",
    "metadata": "metadata(128, 128, 'bf16')",
    "scales": "scales(FACTORS)",
}
#: What threads do with a matrix: the kinds that have it, and the error of the others.
METHODS = {
    "load(0, 1)[0]": (["tile"], "threads load accumulators"),
    "store(0, (out[0], out[1]))": (["tile", "operand"], "are copied from shared memory by tma.tc"),
    "row": (["tile", "operand"], "are copied from shared memory by tma.tcgen05_copy"),
    "operand(64, 'bf16').address": (["tile"], "operands lie in an accumulator's"),
    "scale_rows(0, 64).address": (["scales"], "and not of scale factors"),
}
#: Matrices of 64 columns.
WIDE = {
    "tile": "tile(128, 64, 'f32'",
    "operand": "operand(128, 128, 'bf16'",
    "metadata": "metadata(128, 2048, 'bf16'",
    "scales": "scales(WIDE_FACTORS",
}
NAMES = {
    "FACTORS": scale_tile(128, 128), "WIDE_FACTORS": scale_tile(512, 512),
    "SMALL": SMALL, "NARROW": tma.TensorMemory(32), "TMEM": TMEM,
}  # fmt: skip


def error_of(statement):
    """Compile a kernel of one statement; return its error, or "" if there is none."""
    names = dict(NAMES)
    exec(f"def kernel(out, column):\n    {statement}\n", names)
    try:
        compile_ptx(names["kernel"], (ROW, types.int64), cc=SM_100A)
    except (TypingError, CudaTypingError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", MATRICES)
def test_each_method_refuses_the_matrices_that_have_it_not(kind, method):
    kinds, text = METHODS[method]
    uses = f"TMEM.start().{MATRICES[kind]}.{method}"
    error = error_of(uses if method.startswith("store") else f"out[0] = {uses}")
    if kind in kinds:
        assert error == ""
    else:
        name = method.partition("(")[0]
        assert re.search(rf"tile\.{name}: the tile is {kind}\b.*{text}", error)


@pytest.mark.parametrize("column", ["0", "column"])
@pytest.mark.parametrize("kind", WIDE)
def test_a_matrix_fits_into_the_columns_wherever_it_begins(kind, column):
    """A run-time column is not checked; the number of columns is."""
    assert error_of(f"SMALL.start().{WIDE[kind]}, column={column})") == ""
    error = error_of(f"NARROW.start().{WIDE[kind]}, column={column})")
    assert re.search(rf"{kind}\b.* takes 64 columns, and TensorMemory\(32\) has 32", error)


@pytest.mark.parametrize("column", ["0", "column"])
def test_an_operand_fits_into_the_columns_of_its_accumulator(column):
    assert error_of(f"TMEM.start().tile(128, 64).operand(128, 'bf16', {column})") == ""
    error = error_of(f"TMEM.start().tile(128, 64).operand(256, 'bf16', {column})")
    assert "takes 128 columns, and tile(128, 64, f32) has 64" in error


def test_a_column_may_be_a_run_time_value():
    def kernel(out, n):
        tmem = TMEM.start()
        for i in range(n):
            out[i] = tmem.tile(128, 128, "f32", 128 * i).load(0, 1)[0]
        tmem.close()

    assert "tcgen05.ld" in compile_ptx(kernel, (ROW, types.int64), cc=SM_100A)


def test_hopper_has_no_tensor_memory():
    with pytest.raises(TypingError, match=r"TensorMemory.start.* needs sm_100a.*sm_90a.* wgmma"):
        compile_ptx(too_wide, (), cc=(9, 0, "a"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"columns": 513}, r"columns=513\): a block has 512 columns"),
        ({"columns": "x"}, r"columns='x'\)"),
        ({"cta_group": 3}, r"cta_group=3\): 1, or 2 for a CTA pair"),
        ({"cta_group": 2, "cluster": 3}, r"cluster=3\): the two blocks of a CTA pair"),
        ({"role": "mma"}, r"role=...\) takes a role of warps, .* not 'mma'"),
    ],
)
def test_host_errors(given, text):
    with pytest.raises((ValueError, TypeError), match=text):
        tma.TensorMemory(**given)
