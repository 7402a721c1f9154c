"""The compile-time errors of kernels with a mistake."""

import re
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import TensorMapType, Tile, TilePipeline, ptx
from numba_tma.backend.lowering.types import TensorMapArrayType, type_of
from numba_tma.host.layout import Swizzle
from numba_tma.tools.testing import compile_ptx
from tests.coverage import SIMULATED

TILE, SHORT, HALF = Tile((64, 64), "f32"), Tile((32, 64), "f32"), Tile((64, 64), "f16")
FLAT, LARGE = Tile(4096, "f32"), Tile((300, 1024), "u8")
SMALL = Tile(100, "u8")
ALIGNED = TilePipeline(1, x=Tile((226, 8, 32), "f32", Swizzle.B128))
SWIZZLED = Tile((128, 32), "f32", Swizzle.B128)
MAP, HALF_MAP = TensorMapType(2, TILE), TensorMapType(2, HALF)
PIPE, LONG = TilePipeline(3, x=TILE), TilePipeline(32, x=TILE, y=SHORT)
I64, FLOATS = types.int64, types.float32[::1]


def message(kernel, *arguments, cc=(9, 0, "a")):
    """Return what the compiler says, on one line."""
    # Numba's own layers raise its CPU side's class or its GPU side's, depending on the step.
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments, cc=cc)
    return re.sub(r"\s+", " ", str(caught.value))


def holds(text, *parts):
    for part in parts:
        assert part in text


# ---------------------------------------------------------------------- maps and tiles


def load_into_another_tile(x):
    x.load(tma.shared_tile(SHORT), (0, 0), tma.shared_barrier())


def store_from_another_tile(x):
    x.store(tma.shared_tile(SHORT), (0, 0))


def load_into_a_stage(x, n):
    pipe = PIPE.start()
    for tile, stage in pipe.produce(0, n):
        x.load(stage.x, (tile, 0), stage.barrier)


def store_through_the_pipeline(x, n):
    pipe = PIPE.start()
    for tile, stage in pipe.consume(0, n):
        pipe.store(x, stage.x, (tile, 0))


@pytest.mark.parametrize(
    ("kernel", "arguments", "tile", "box"),
    [
        (load_into_another_tile, (MAP,), SHORT, TILE),
        (store_from_another_tile, (MAP,), SHORT, TILE),
        (load_into_a_stage, (HALF_MAP, I64), TILE, HALF),
        (store_through_the_pipeline, (HALF_MAP, I64), TILE, HALF),
        (load_into_a_stage, (TensorMapType(2, Tile((64, 64), "tf32")), I64), TILE, "tf32"),
        (
            load_into_another_tile,
            (TensorMapType(2, Tile((32, 32), "f32", Swizzle.B128)),),
            SHORT,
            "B128",
        ),
    ],
)
def test_a_tile_that_the_map_does_not_copy(kernel, arguments, tile, box):
    text = message(kernel, *arguments)
    holds(text, f"the tile in shared memory is {tile}", str(box), f"tensor_map(array, {tile})")
    assert "the map copies Tile(" in text


def a_barrier_for_the_tile(x):
    full = tma.shared_barrier()
    x.load(full, (0, 0), full)


def a_barrier_to_be_stored(x):
    x.store(tma.shared_barrier(), (0, 0))


def a_barrier_for_the_tile_in_ptx(x):
    full = tma.shared_barrier()
    ptx.cp_async_bulk_tensor_load(full, x, (0, 0), full)


def a_tile_for_the_barrier(x):
    tile = tma.shared_tile(TILE)
    x.load(tile, (0, 0), tile)


def arrive_on_a_tile(x):
    ptx.mbarrier_arrive(tma.shared_tile(TILE))


@pytest.mark.parametrize(
    ("kernel", "expected", "given"),
    [
        (a_barrier_for_the_tile, "a tile in shared memory", "Barrier("),
        (a_barrier_to_be_stored, "a tile in shared memory", "Barrier("),
        (a_barrier_for_the_tile_in_ptx, "a tile in shared memory", "Barrier("),
        (a_tile_for_the_barrier, "a Barrier (or its shared-memory address)", "SharedTile(Tile("),
        (arrive_on_a_tile, "a Barrier (or its shared-memory address)", "SharedTile(Tile("),
    ],
)
def test_a_barrier_and_a_tile_in_each_others_place(kernel, expected, given):
    assert f"takes {expected}, not {given}" in message(kernel, MAP)


# ------------------------------------------------------------------------- coordinates


def load_off_16_bytes(x, i):
    x.load(tma.shared_tile(TILE), (0, 2), tma.shared_barrier())


def load_off_16_bytes_in_a_runtime_row(x, i):
    x.load(tma.shared_tile(TILE), (i, 3), tma.shared_barrier())


def load_off_16_bytes_before_the_row(x, i):
    x.load(tma.shared_tile(TILE), (i, -2), tma.shared_barrier())


def store_off_16_bytes(x, i):
    x.store(tma.shared_tile(TILE), (i, 66))


@pytest.mark.parametrize(
    ("kernel", "column", "offset"),
    [
        (load_off_16_bytes, 2, 8),
        (load_off_16_bytes_in_a_runtime_row, 3, 12),
        (load_off_16_bytes_before_the_row, -2, -8),
        (store_off_16_bytes, 66, 264),
    ],
)
def test_a_literal_innermost_coordinate_is_a_multiple_of_16_bytes(kernel, column, offset):
    holds(
        message(kernel, MAP, I64),
        f"the innermost coordinate is {column}, which is {offset} B into the row",
        "TMA needs a multiple of 16 B",
        "use a multiple of 4 elements",
    )


def right_literals(x, i):
    x.load(tma.shared_tile(TILE), (i, 4), tma.shared_barrier())
    x.load(tma.shared_tile(TILE), (3, 0), tma.shared_barrier())
    x.store(tma.shared_tile(TILE), (3, i))


def test_right_and_runtime_coordinates_compile():
    assert compile_ptx(right_literals, (MAP, I64)).count("cp.async.bulk.tensor") == 3


def three_coordinates(x):
    x.load(tma.shared_tile(TILE), (0, 0, 0), tma.shared_barrier())


def one_coordinate(x):
    x.store(tma.shared_tile(TILE), (0,))


def no_tuple(x):
    x.load(tma.shared_tile(TILE), 0, tma.shared_barrier())


def a_fraction(x):
    x.store(tma.shared_tile(TILE), (0, 1.5))


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (three_coordinates, f"3 coordinates for {MAP}, which has rank 2"),
        (one_coordinate, f"1 coordinates for {MAP}, which has rank 2"),
        (no_tuple, "takes a tuple of 1 to 5 integers in the array's axis order, not "),
        (a_fraction, "takes a tuple of 1 to 5 integers in the array's axis order, not Tuple("),
    ],
)
def test_coordinates_are_one_integer_per_axis(kernel, text):
    assert text in message(kernel, MAP)


def test_a_generic_map_counts_its_coordinates_too():
    text = message(three_coordinates, TensorMapType(2))
    assert "3 coordinates for TensorMap(2d), which has rank 2" in text


# --------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize("stages", [0, -1, 2.0, "2", None])
def test_a_pipeline_has_stages(stages):
    with pytest.raises(ValueError, match=re.escape(f"num_stages={stages!r}")) as caught:
        TilePipeline(stages, x=TILE)
    assert "at least 1 stage" in str(caught.value)


def no_stages():
    tma.PipelineState(0)


def stages_at_run_time(n):
    tma.PipelineState(n)


def test_a_state_has_a_literal_number_of_stages():
    text = message(no_stages)
    assert "PipelineState(num_stages=0): a pipeline has at least 1 stage" in text
    text = message(stages_at_run_time, I64)
    assert "PipelineState(num_stages=...) must be a compile-time constant" in text


def consume_in_flight(n):
    for _ in PIPE.start().consume(0, n, in_flight=3):
        pass


def consume_from_in_flight(n):
    for _ in PIPE.start().consume_from(3):
        pass


def consume_in_flight_at_run_time(n):
    for _ in PIPE.start().consume(0, n, 1, n):
        pass


def consume_from_in_flight_at_run_time(n):
    for _ in PIPE.start().consume_from(n):
        pass


@pytest.mark.parametrize("kernel", [consume_in_flight, consume_from_in_flight])
def test_in_flight_is_below_the_number_of_stages(kernel):
    text = message(kernel, I64)
    holds(text, "consume(in_flight=3): with 3 stages at most 2", "lower in_flight or add stages")


@pytest.mark.parametrize(
    "kernel", [consume_in_flight_at_run_time, consume_from_in_flight_at_run_time]
)
def test_in_flight_is_a_literal(kernel):
    text = "(in_flight=...) must be a compile-time constant, an integer, not int64"
    assert text in message(kernel, I64)


@cuda.jit(device=True)
def make_pipeline():
    return PIPE.start()


@cuda.jit(device=True)
def make_state():
    return tma.PipelineState(3)


def take_the_pipeline(n):
    pipe = make_pipeline()
    for _ in pipe.consume(0, n):
        pass


def take_the_state(n):
    make_state().step()


@pytest.mark.parametrize("kernel", [take_the_pipeline, take_the_state])
def test_a_handle_is_not_returned_from_the_function_that_made_it(kernel):
    text = message(kernel, I64)
    holds(text, "lives in the function that made it and cannot be returned", "as an argument")


def another_tile(n):
    for _, stage in PIPE.start().consume(0, n):
        stage.y[0, 0] = 1


def test_a_stage_has_the_tiles_of_its_pipeline():
    assert "has no tile 'y'" in message(another_tile, I64)


# ----------------------------------------------------------------------- shared memory


def a_long_ring():
    LONG.start()


def a_large_tile():
    tma.shared_tile(LARGE)


def five_rings():
    PIPE.start()
    PIPE.start()
    PIPE.start()
    PIPE.start()
    PIPE.start()


def a_ring_pushed_up_by_its_alignment(out):
    tma.shared_tile(SMALL)[0] = 1
    ALIGNED.start()


def a_ring_beside_an_array(out):
    mine = cuda.shared.array(50_000, types.float32)
    PIPE.start()
    out[0] = mine[1]


def test_a_ring_that_is_too_long_shows_its_sum():
    holds(
        message(a_long_ring),
        f"{LONG} needs 524,288 B (x: 32 stages x 16,384 B) + 262,144 B (y: 32 stages x 8,192 B)",
        "(barriers) = 787,072 B of shared memory",
        "a block has 232,448 B on sm_90a",
        "use fewer stages or smaller tiles",
    )


def test_a_tile_that_is_too_large_shows_its_size():
    holds(message(a_large_tile), "307,200 B", "a block has 232,448 B on sm_90a")


def checked_sum(text):
    """Return the sum that a message shows, if it is the sum of the terms that it shows."""
    terms, total = re.search(r"needs (.*) = ([\d,]+) B of shared memory", text).groups()
    numbers = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) B \(", terms)]
    assert sum(numbers) == int(total.replace(",", "")) > 232_448
    return sum(numbers)


def test_all_that_a_kernel_allocates_is_summed():
    text = message(five_rings)
    assert text.count("49,216 B") == 5
    assert 5 * 49_216 <= checked_sum(text) < 5 * (49_216 + PIPE.alignment)
    text = message(a_ring_beside_an_array, FLOATS)
    holds(text, "200,000 B", "cuda.shared.array", "49,216 B", str(PIPE))
    assert 249_216 <= checked_sum(text) < 249_216 + PIPE.alignment


def test_the_gaps_before_aligned_rings_count():
    assert SMALL.nbytes + ALIGNED.nbytes < 232_448 < 1024 + ALIGNED.nbytes
    text = message(a_ring_pushed_up_by_its_alignment, FLOATS)
    holds(text, f"{ALIGNED.nbytes:,} B", "a block has 232,448 B")
    assert checked_sum(text) == 1024 + ALIGNED.nbytes


def test_the_limit_is_that_of_the_target():
    assert "a block has 49,152 B on sm_120 (101,376 B on sm_120a)" in message(
        five_rings, cc=(12, 0)
    )


# --------------------------------------------------------------------------- the target


def takes_a_map(x):
    pass


def fences(n):
    ptx.fence_proxy_async()


@pytest.mark.parametrize("cc", [(8, 0), (8, 6)])
def test_a_map_needs_hopper(cc):
    text = message(takes_a_map, MAP, cc=cc)
    holds(text, "a TensorMap argument needs compute capability 9.0 (Hopper) or newer")
    holds(text, f"compiled for {cc[0]}.{cc[1]}", "no Tensor Memory Accelerator")


def test_an_instruction_of_hopper_needs_hopper():
    text = message(fences, I64, cc=(8, 6))
    assert "fence_proxy_async() needs compute capability 9.0 (Hopper) or newer" in text


# ------------------------------------------------------------------ elements and vectors


def one_index(out):
    out[0] = tma.shared_tile(TILE)[0]


def three_indices(out):
    tma.shared_tile(TILE)[0, 0, 0] = out[0]


def a_fractional_index(out):
    out[0] = tma.shared_tile(TILE)[0, 1.5]


def one_index_of_a_vector(out):
    out[0] = tma.shared_tile(TILE).read_vector(3)[0]


def another_vector(out):
    tile, halves = tma.shared_tile(TILE), tma.shared_tile(HALF)
    tile.write_vector((0, 0), halves.read_vector((0, 0)))


def a_number_for_a_vector(out):
    tma.shared_tile(TILE).write_vector((0, 0), 1.0)


def vectors_of_different_types(out):
    tile, halves = tma.shared_tile(TILE), tma.shared_tile(HALF)
    tile.write_vector((0, 0), tile.read_vector((0, 0)) + halves.read_vector((0, 0)))


def an_element_too_far(out):
    out[0] = tma.shared_tile(TILE).read_vector((0, 0))[4]


def an_element_at_run_time(out):
    out[0] = tma.shared_tile(TILE).read_vector((0, 0))[out.size]


def a_view_of_another_size(out):
    tma.shared_tile(TILE).view(SHORT)


def a_view_through_a_swizzle(out):
    tma.shared_tile(SWIZZLED).view(FLAT)


def a_view_of_no_tile(out):
    tma.shared_tile(TILE).view(5)


def a_tile_of_no_tile(out):
    tma.shared_tile(out)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (one_index, f"{TILE} has 2 axes but is indexed with 1 integers"),
        (three_indices, f"{TILE} has 2 axes but is indexed with 3 integers"),
        (a_fractional_index, f"{TILE} is indexed with integers, not Tuple("),
        (one_index_of_a_vector, f"{TILE} has 2 axes but is indexed with 1 integers"),
        (another_vector, "takes a Vector(float32, 4) (16 bytes of f32), not Vector(float32, 8)"),
        (a_number_for_a_vector, "takes a Vector(float32, 4) (16 bytes of f32), not float64"),
        (vectors_of_different_types, "add of Vector(float32, 4) and Vector(float32, 8)"),
        (an_element_too_far, "Vector(float32, 4) has no element 4"),
        (an_element_at_run_time, "a vector lives in registers and is indexed with a literal"),
        (a_view_of_another_size, f"{TILE} has 16,384 B and cannot be seen as {SHORT}"),
        (a_view_through_a_swizzle, f"{SWIZZLED} cannot be seen as {FLAT}: a swizzled tile keeps"),
        (a_view_of_no_tile, "SharedTile.view(tile=...) takes a Tile, not 5"),
        (a_tile_of_no_tile, "shared_tile(tile=...) must be a compile-time constant"),
    ],
)
def test_elements_vectors_and_views(kernel, text):
    assert text in message(kernel, FLOATS)


# ------------------------------------------------------------------------------ operands


def a_fraction_for_a_hint(x):
    x.load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), 1.5)


def a_tile_for_a_hint(x):
    tile = tma.shared_tile(TILE)
    x.store(tile, (0, 0), cache_hint=tile)


@pytest.mark.parametrize("kernel", [a_fraction_for_a_hint, a_tile_for_a_hint])
def test_a_hint_is_a_policy(kernel):
    assert "(cache_hint=...) takes a CachePolicy or a createpolicy result, not" in message(
        kernel, MAP
    )


def an_array_for_a_map(x):
    ptx.prefetch_tensormap(x)


def a_runtime_count_of_groups(n):
    ptx.cp_async_bulk_wait_group(n)


def too_few_arguments(n):
    ptx.mbarrier_init(tma.shared_barrier())


def no_coordinates(x):
    x.load(tma.shared_tile(TILE))


@pytest.mark.parametrize(
    ("kernel", "argument", "text"),
    [
        (an_array_for_a_map, FLOATS, "prefetch_tensormap(tensor_map=...) takes a TensorMap, not"),
        (a_runtime_count_of_groups, I64, "(pending=...) is part of the instruction"),
        (too_few_arguments, I64, "mbarrier_init: missing a required argument: 'count'"),
        (no_coordinates, MAP, "load: missing a required argument: 'coords'"),
    ],
)
def test_operands(kernel, argument, text):
    assert text in message(kernel, argument)


# -------------------------------------------------------------------------- on the host

#: They depend on their operands alone, and give values on the host too.
VALUES = {
    name
    for name, row in ptx.TABLE.items()
    if name.startswith(("createpolicy", "cvt_")) or row.family == "arithmetic"
}
#: They run on no Hopper GPU and not in the simulator, and say that.
ASSEMBLED_ONLY = {
    name
    for name, row in ptx.TABLE.items()
    if not row.targets.on((9, 0)) and row.family not in SIMULATED
}


@pytest.mark.parametrize("name", sorted(ptx.TABLE.keys() - VALUES - ASSEMBLED_ONLY))
def test_an_instruction_cannot_be_called_on_the_host(name):
    operands = {
        "GlobalAddress": np.zeros(64, np.uint8),
        "TensorMapOperand": SimpleNamespace(tile=TILE),
        "Coordinates": (0, 0),
        "u32x2": (0, 0),
        "u32x4": (0, 0, 0, 0),
        "f32x4": (0.0, 0.0, 0.0, 0.0),
        "i32x4": (0, 0, 0, 0),
        "b128": (0, 0),
    }
    row = ptx.TABLE[name]
    given = [operands.get(kind, 16) for kind in row.operands.values()]
    for i, operand in enumerate(row.operands):
        if isinstance((*row.choices.get(operand, ()), 0)[0], str):
            given[i] = row.choices[operand][-1]
    with pytest.raises(RuntimeError, match="call it .* kernel"):
        getattr(ptx, name)(*given)


@pytest.mark.parametrize(
    "call",
    [
        lambda: PIPE.start(),
        lambda: tma.shared_tile(TILE),
        lambda: tma.shared_barrier(),
        lambda: tma.Barrier(1024).arrive(),
        lambda: tma.SharedTile(TILE, 1024, None)[0, 0],
        lambda: tma.TensorMap.load(object(), None, (0, 0), None),
        lambda: tma.TensorMap.store(object(), None, (0, 0)),
        lambda: tma.TensorMap.prefetch(object()),
    ],
)
def test_what_a_kernel_does_cannot_be_done_on_the_host(call):
    with pytest.raises(RuntimeError, match="a (@cuda.jit )?kernel"):
        call()


# ----------------------------------------------------------------- what a store may not do


def store_before_the_tensor(x, i):
    x.store(tma.shared_tile(TILE), (-1, 0))


def store_anywhere(x, i):
    x.store(tma.shared_tile(TILE), (i, 0))


def test_a_store_does_not_start_before_the_tensor():
    holds(
        message(store_before_the_tensor, MAP, I64),
        "the coordinate of axis 0 is -1",
        "a store starts inside or past the tensor",
    )


def partial_map(**options):
    class OnDevice:
        __cuda_array_interface__ = {
            "shape": (16, TILE.shape[1] - 1),
            "strides": (TILE.shape[1] * TILE.itemsize, TILE.itemsize),
            "typestr": "<f4",
            "data": (1 << 40, False),
            "version": 3,
        }

    with mock.patch("numba_tma.host.encoding.encode_tiled", lambda *arguments: object()):
        return type_of(tma.tensor_map(OnDevice(), TILE, **options))


def test_a_store_does_not_overwrite_what_follows_a_row_without_a_word():
    text = message(store_anywhere, partial_map(), I64)
    holds(text, "TMA stores whole chunks of 16 B", "overwrite_padding=True")
    compile_ptx(store_anywhere, (partial_map(overwrite_padding=True), I64))


def store_to_an_array(y, n):
    pipe = PIPE.start()
    for t, stage in pipe.consume(0, n):
        pipe.store(y, stage.x, (t, 0))


def test_maps_that_a_pipeline_does_not_store_through():
    text = message(store_to_an_array, TensorMapArrayType(MAP), I64)
    holds(text, "Pipeline.store: tensor_map is TensorMapArray(", "index it: give maps[i]")
    text = message(store_to_an_array, TensorMapType(4, TILE, mode="im2col"), I64)
    holds(text, "Pipeline.store takes maps of tensor_map, not TensorMap(im2col", "store_im2col(")


def test_an_array_is_no_map():
    text = message(store_to_an_array, types.float32[:, ::1], I64)
    holds(
        text, "Pipeline.store: tensor_map is array(float32, 2d, C)", "pass tensor_map(array, tile)"
    )
