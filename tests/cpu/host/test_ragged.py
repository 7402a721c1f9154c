"""Ragged maps: their encoding against the array, and every message."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, types
from numba.core.errors import NumbaError

import numba_tma as tma
from numba_tma import Tile, ragged_tensor_map
from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType, type_of
from numba_tma.host import encoding as _encoding
from numba_tma.host import ragged
from numba_tma.host.ragged import WRAP_EXTENT
from numba_tma.tools.testing import compile_ptx, instructions, ptxas

I32 = types.int32
ADDRESS = 0x7F00_0000_0000
PARAMETERS = (
    "dtype address shape strides box element_strides interleave swizzle l2_promotion oob_fill"
).split()


class Array:
    """Device memory that only knows the CUDA array interface."""

    def __init__(self, shape, dtype=np.float32, strides=None, address=ADDRESS):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


@pytest.fixture(autouse=True)
def encoded(monkeypatch):
    """Capture what the driver would be asked to encode."""
    calls = []

    def encode_tiled(*arguments):
        calls.append(dict(zip(PARAMETERS, arguments, strict=True)))
        return f"map {len(calls)}"

    monkeypatch.setattr(ragged, "encode_tiled", encode_tiled)
    monkeypatch.setattr(ragged, "current_device", lambda: 0)
    ragged._encode_ragged.cache_clear()
    yield calls
    ragged._encode_ragged.cache_clear()
    _encoding.encode.cache_clear()


# -------------------------------------------------------------- what the hardware sees


def hardware_coordinates(ragged_map, start, length, coords):
    """Return the coordinates of a copy as the compiled kernels have them (held below to PTX)."""
    result = list(coords)
    result[ragged_map.axis] += ragged_map.extent - length
    return [ragged_map.extent] * (ragged_map.encoding == "wrap") + [start + length] + result


def addresses(call, coords):
    """Return {index in the box: address} of what a copy touches, in arithmetic modulo 2**64."""
    box, touched = call["box"], {}
    for index in itertools.product(*map(range, box)):
        position = [c + i for c, i in zip(coords, index)]
        if all(0 <= p < n for p, n in zip(position, call["shape"])):
            offset = sum(p * s for p, s in zip(position, call["strides"]))
            touched[index] = (call["address"] + offset) % 2**64
    return touched


@st.composite
def cases(draw):
    rank = draw(st.integers(2, 4))
    encoding = draw(st.sampled_from(["wrap", "shift"] if rank <= 3 else ["shift"]))
    dtype = draw(st.sampled_from([np.uint8, np.float16, np.float32, np.float64]))
    inner = 16 // np.dtype(dtype).itemsize
    shape = (*(draw(st.integers(1, 9)) for _ in range(rank - 1)), draw(st.integers(1, 2)) * inner)
    box = (*(draw(st.integers(1, 4)) for _ in range(rank - 1)), inner)
    axis = draw(st.integers(0, rank - 2))
    length = draw(st.integers(0, shape[axis]))
    start = draw(st.integers(0, shape[axis] - length))
    coords = [draw(st.integers(-2, n)) for n in shape[:-1]] + [0]
    coords[axis] = draw(st.integers(0, length + 2))
    return shape, dtype, box, axis, encoding, start, length, coords


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_copy_touches_the_rows_of_its_sequence_and_no_others(case):
    shape, dtype, box, axis, encoding, start, length, coords = case
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ragged, "encode_tiled", lambda *a: calls.append(dict(zip(PARAMETERS, a, strict=True)))
        )
        ragged._encode_ragged.cache_clear()
        y = ragged_tensor_map(Array(shape, dtype), box, axis=axis, encoding=encoding)
    strides = np.empty(shape, dtype).strides
    touched = addresses(calls[0], hardware_coordinates(y, start, length, coords))
    expected = {}
    for index in itertools.product(*map(range, box)):
        position = [c + i for c, i in zip(coords, index)]
        limits = [length if a == axis else n for a, n in enumerate(shape)]
        if all(0 <= p < n for p, n in zip(position, limits)):
            position[axis] += start
            extra = (0,) * (len(calls[0]["box"]) - len(shape))
            expected[extra + index] = ADDRESS + sum(p * s for p, s in zip(position, strides))
    assert touched == expected


def test_what_is_encoded_wraps_around(encoded):
    y = ragged_tensor_map(Array((1000, 64)), Tile((16, 32), "f32", tma.Swizzle.B128))
    assert (y.encoding, y.axis, y.extent, y.value) == ("wrap", 0, WRAP_EXTENT, "map 1")
    call = encoded[0]
    assert call["address"] == ADDRESS
    assert call["shape"] == (2**30 + 1, 1001, 2**30, 64)
    assert call["strides"] == (2**36 - 256, 256, 256, 4)
    assert (call["box"], call["element_strides"]) == ((1, 1, 16, 32), (1, 1, 1, 1))
    assert (call["swizzle"], call["l2_promotion"], call["oob_fill"]) == (3, 128, "zeros")
    assert (y.shape, y.strides, y.box, y.rank) == ((1000, 64), (256, 4), (16, 32), 2)


def test_what_is_encoded_is_shifted(encoded):
    y = ragged_tensor_map(Array((1000, 4, 2, 64)), Tile((16, 1, 2, 32), "f32"))
    assert (y.encoding, y.extent) == ("shift", 1024)
    assert encoded[0]["address"] == ADDRESS - 1024 * 2048
    assert encoded[0]["shape"] == (1001, 1024, 4, 2, 64)
    assert encoded[0]["strides"] == (2048, 2048, 512, 256, 4)


def test_a_shifted_extent_is_the_next_power_of_two():
    rows = (1, 2, 3, 4, 5, 8, 9, 1023, 1024, 1025)
    made = [ragged_tensor_map(Array((n, 64)), (1, 32), encoding="shift") for n in rows]
    assert [y.extent for y in made] == [1, 2, 4, 4, 8, 8, 16, 1024, 1024, 2048]


def test_a_map_keeps_its_array():
    array = Array((8, 64))
    assert ragged_tensor_map(array, (4, 32)).array is array


def test_a_tile_of_several_boxes_is_encoded_by_its_box(encoded):
    head = Tile((512, 1, 128), "bf16", tma.Swizzle.B128)  # 2 boxes of rows, in 2 slabs
    y = ragged_tensor_map(Array((1000, 4, 128), np.uint16), head, dtype="bf16")
    assert encoded[0]["box"] == (1, 1, 256, 1, 64)
    assert (y.box, y.tile, y.copies.count) == ((256, 1, 64), head, 4)


def test_equal_maps_are_encoded_once(encoded):
    array = Array((1000, 64))
    first, again = (ragged_tensor_map(array, Tile((16, 32), "f32")) for _ in range(2))
    other = ragged_tensor_map(array, Tile((16, 32), "f32"), encoding="shift")
    assert len(encoded) == 2
    assert type_of(first) is type_of(again)
    assert type_of(first) != type_of(other)


def test_explain_says_where_sequences_end(encoded):
    wrapped = ragged_tensor_map(Array((1000, 64)), Tile((16, 32), "f32")).explain()
    assert wrapped.endswith("axis 0     of up to 1,073,741,824 rows; encoding 'wrap', 2 axes added")
    shifted = ragged_tensor_map(
        Array((9, 100, 64)), (1, 16, 32), axis=1, encoding="shift"
    ).explain()
    assert shifted.endswith(
        "axis 1     of up to 128 rows; encoding 'shift', 1 axis added, stores only"
    )
    wide = ragged_tensor_map(Array((1000, 64)), Tile((16, 64), "f32", tma.Swizzle.B128)).explain()
    assert "2 of the box (16, 32), 2,048 B each, to 0, 2,048 B in shared memory" in wide


def test_the_type_of_wrapping_maps_does_not_depend_on_the_array():
    tile = Tile((16, 32), "f32")
    one, other = (type_of(ragged_tensor_map(Array((n, 64)), tile)) for n in (100, 70000))
    assert one == other and hash(one) == hash(other) and one.name == other.name
    assert one != type_of(ragged_tensor_map(Array((7, 9, 64)), (1, 16, 32), axis=1))
    shifted = [
        type_of(ragged_tensor_map(Array((n, 64)), tile, encoding="shift")) for n in (100, 120, 130)
    ]
    assert shifted[0] == shifted[1] != shifted[2]


# --------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("array", "box", "options", "message"),
    [
        (Array((64,)), (32,), {}, r"axis 0 is the innermost .* pass array.reshape\(-1, columns\)"),
        (Array((8, 64)), (4, 32), {"axis": 1}, r"axis 1 is the innermost .* array.transpose"),
        (Array((8, 64)), (4, 32), {"axis": -1}, "axis 1 is the innermost"),
        (Array((8, 64)), (4, 32), {"axis": 2}, "axis is 2; the array has the axes 0 to 1"),
        (Array((8, 64)), (4, 32), {"encoding": "x"}, "encoding is 'x'; it is "),
        (
            Array((8, 2, 2, 64)),
            (4, 1, 1, 32),
            {"encoding": "wrap"},
            "rank 4 and encoding 'wrap' adds 2, but TMA takes 5 axes: use encoding=\"shift\"",
        ),
        (
            Array((8, 2, 2, 2, 64)),
            (4, 1, 1, 1, 32),
            {},
            "rank 5 and encoding 'shift' adds 1, but TMA takes 5 axes: use merge axes",
        ),
        (
            Array((2**31, 64)),
            (4, 32),
            {},
            "axis 0 has 2147483648 rows; the end of a sequence is a coordinate of 31 bits: make 2",
        ),
        (
            Array((3, 64), strides=(2**36, 4)),
            (4, 32),
            {},
            r"axis 0 stride is 68719476736 B; .* needs less than 2\*\*36: use encoding=\"shift\"",
        ),
        (
            Array((3, 64), strides=(2**36, 4), address=2**37),
            (4, 32),
            {"encoding": "shift"},
            "address 0x2000000000 is less than 4 rows of 68719476736 B",
        ),
        # The rules of every tensor map hold too.
        (Array((8, 61)), (4, 32), {}, "axis 0 stride is 244 B; TMA needs a multiple of 16 B"),
        (Array((8, 64), strides=(2**40, 4)), (4, 32), {}, r"TMA needs less than 2\*\*40"),
        (Array((8, 64)), (4, 33), {}, "box axis 1 is 33 f32 = 132 B"),
        (Array((8, 64)), (1, 4, 32), {}, r"box \(1, 4, 32\) has rank 3, the array 2"),
        (Array((8, 64)), (4, 32), {"oob_fill": "nan", "dtype": "i32"}, '"nan", but i32'),
    ],
)
def test_what_cannot_be_described(array, box, options, message):
    with pytest.raises(ValueError, match=message):
        ragged_tensor_map(array, box, **options)


@pytest.mark.parametrize(
    "options",
    [{"axis": "0"}, {"axis": 1.0}, {"axis": None}, {"encoding": 1}, {"encoding": ("wrap",)}],
)
def test_an_axis_is_an_integer_and_an_encoding_a_word(options):
    axis, encoding = options.get("axis", 0), options.get("encoding")
    said = f"axis is {axis!r} and encoding is {encoding!r}; give an integer, and"
    with pytest.raises(TypeError, match=re.escape(said)):
        ragged_tensor_map(Array((8, 64)), (4, 32), **options)


def test_an_option_without_a_hash_is_named():
    for name in ("swizzle", "l2_promotion", "oob_fill"):
        with pytest.raises(TypeError, match=rf"ragged_tensor_map\({name}=\[3\]\): "):
            ragged_tensor_map(Array((8, 64)), (4, 32), **{name: [3]})


def test_the_rules_of_the_array_are_said_of_a_ragged_map():
    with pytest.raises(ValueError) as caught:
        ragged_tensor_map(Array((1000, 64)), (16, 64), swizzle=tma.Swizzle.B128)
    text = str(caught.value)
    assert text.startswith("ragged_tensor_map: 1 rule is broken")
    assert "use 32 or fewer elements (and 2 copies), or Swizzle.NONE" in text
    rows = ragged_tensor_map(Array((1000, 60), "f2", strides=(128, 2)), (16, 64)).partial_rows
    assert "ragged_tensor_map(..., overwrite_padding=True)" in rows


def test_on_the_host_nothing_is_copied():
    y = ragged_tensor_map(Array((8, 64)), (4, 32))
    with pytest.raises(RuntimeError, match="sequence runs inside a @cuda.jit kernel"):
        y.sequence(0, 3)
    for copy in (y.load, y.store):
        with pytest.raises(TypeError, match="copies within one sequence: use y.sequence"):
            copy(None, (0, 0))
    with pytest.raises(TypeError, match="a ragged map is made anew"):
        y.replace_address(Array((8, 64)))


# ---------------------------------------------------------------------------- kernels

TILE = Tile((16, 32), "f32")
WRAP = RaggedTensorMapType(2, TILE, 0, "wrap", WRAP_EXTENT)
SHIFT = RaggedTensorMapType(2, TILE, 0, "shift", 128)


def coordinates(kernel, signature):
    """Return the literal coordinates of each copy of a compiled kernel, in the array's order."""
    code = instructions(compile_ptx(kernel, signature))
    moved = dict(re.findall(r"^mov\.[us]32 (%\w+), (-?\d+)$", "\n".join(code), re.M))
    return [
        [int(moved[r]) for r in reversed(re.search(r"\{(.*)\}", line)[1].split(", "))]
        for line in code
        if line.startswith("cp.async.bulk.tensor")
    ]


def test_the_coordinates_of_a_wrapping_map():
    @cuda.jit
    def kernel(y):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        y.sequence(1000, 37).load(tile, (32, 64), full)
        y.sequence(5, 3).store(tile, (2, 96), tma.CachePolicy.EVICT_FIRST)

    y = ragged_tensor_map(Array((2000, 128)), TILE)
    assert coordinates(kernel, (type_of(y),)) == [
        hardware_coordinates(y, 1000, 37, (32, 64)),
        hardware_coordinates(y, 5, 3, (2, 96)),
    ]


def test_the_coordinates_of_a_shifted_map_with_the_sequences_inside():
    tile = Tile((1, 2, 16, 32), "f32")

    @cuda.jit
    def kernel(y):
        y.sequence(100, 37).store(tma.shared_tile(tile), (7, 6, 8, 64))

    y = ragged_tensor_map(Array((9, 10, 2000, 128)), tile, axis=2)
    assert coordinates(kernel, (type_of(y),)) == [hardware_coordinates(y, 100, 37, (7, 6, 8, 64))]


@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a"), (12, 0)], ids=str)
def test_a_sequence_costs_three_additions(cc):
    @cuda.jit
    def kernel(y, start, length, row):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        sequence = y.sequence(start, length)
        sequence.load(tile, (row, 0), full)
        sequence.store(tile, (row, 0))

    ptx = compile_ptx(kernel, (WRAP, types.int64, types.int32, types.int64), cc=cc)
    code = instructions(ptx)
    assert sum(line.startswith(("add", "sub")) for line in code) == 3
    assert ".local" not in ptx and not ptxas(ptx).spill_stores


def test_sequences_travel_to_device_functions_and_pipelines():
    PIPE = tma.TilePipeline(2, x=TILE)

    @cuda.jit(device=True)
    def load(sequence, stage, row):
        sequence.load(stage.x, (row, 0), stage.barrier)

    @cuda.jit
    def kernel(x, y, starts, lengths):
        pipe = PIPE.start()
        start, length = starts[cuda.blockIdx.x], lengths[cuda.blockIdx.x]
        tiles = (length + 15) // 16
        if pipe.is_producer():
            for t, stage in pipe.produce(0, tiles, 1):
                load(x.sequence(start, length), stage, 16 * t)
        else:
            for t, stage in pipe.consume(0, tiles, 1):
                pipe.store(y.sequence(start, length), stage.x, (16 * t, 0), written=False)

    array = types.int32[::1]
    ptx = compile_ptx(kernel, (WRAP, SHIFT, array, array))
    assert ptxas(ptx).spill_stores == 0
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cluster") == 1
    assert ptx.count("cp.async.bulk.tensor.3d.global") == 1


HEAD = Tile((32, 128), "bf16", tma.Swizzle.B128)


def head(y, rows):
    tile, full = tma.shared_tile(HEAD), tma.shared_barrier()
    part = y.sequence(rows, rows)
    part.load(tile, (0, 0), full)
    part.store(tile, (0, 0))
    part.reduce(tile, (0, 0), "add")
    part.prefetch_tile((0, 0))


def test_a_tile_of_two_slabs_is_two_copies_64_columns_apart():
    text = compile_ptx(cuda.jit(head), (RaggedTensorMapType(2, HEAD, 0, "wrap", 1 << 30), I32))
    assert not ptxas(text).warnings
    columns = re.findall(r"tensor\.4d\S* .*\{(%\w+),", text)
    values = dict(re.findall(r"mov\.\w+\s+(%\w+), (\d+);", text))
    assert [values[c] for c in columns] == ["0", "64"] * 4


def plain_load(y, tile, full):
    y.load(tile, (0, 0), full)


def plain_store(y, tile, full):
    y.store(tile, (0, 0))


def load_of_a_shifted_map(y, tile, full):
    y.sequence(0, 3).load(tile, (0, 0), full)


def row_before(y, tile, full):
    y.sequence(0, 3).load(tile, (-1, 0), full)


def store_before(y, tile, full):
    y.sequence(0, 3).store(tile, (-16, 0))


def store_left_of_it(y, tile, full):
    y.sequence(0, 3).store(tile, (0, -32))


def coordinate_off_16_bytes(y, tile, full):
    y.sequence(0, 3).load(tile, (0, 3), full)


def too_few_coordinates(y, tile, full):
    y.sequence(0, 3).load(tile, (0,), full)


def length_of_no_number(y, tile, full):
    y.sequence(0, 1.5).load(tile, (0, 0), full)


def no_length(y, tile, full):
    y.sequence(0).load(tile, (0, 0), full)


def plain_reduce(y, tile, full):
    y.reduce(tile, (0, 0), "add")


def plain_prefetch(y, tile, full):
    y.prefetch_tile((0, 0))


def plain_pixels(y, tile, full):
    y.load_im2col(tile, (0, 0, 0, 0), (0, 0), full)


def prefetch_of_a_shifted_map(y, tile, full):
    y.sequence(0, 3).prefetch_tile((0, 0))


def bits_of_floats(y, tile, full):
    y.sequence(0, 3).reduce(tile, (0, 0), "xor")


def reduce_before(y, tile, full):
    y.sequence(0, 3).reduce(tile, (0, -32), "add")


def slices_of_a_map(y, tile, full):
    tma.load_partitioned(y, tile, (0, 0), full, 0)


def slices_of_a_sequence(y, tile, full):
    tma.load_partitioned(y.sequence(0, 3), tile, (0, 0), full, 0)


def every_copy(y, tile, full):
    y.prefetch()
    part = y.sequence(5, 3)
    part.prefetch_tile((1, 32), tma.CachePolicy.EVICT_LAST)
    part.load(tile, (1, 32), full, multicast=0b11)
    part.reduce(tile, (1, 32), "add")


def test_a_sequence_has_every_copy():
    def kernel(y):
        every_copy(y, tma.shared_tile(TILE), tma.shared_barrier())

    every_copy = cuda.jit(device=True)(globals()["every_copy"])
    ptx = compile_ptx(cuda.jit(kernel), (WRAP,))
    ptxas(ptx)
    copies = [line for line in instructions(ptx) if ".bulk.tensor" in line or "prefetch" in line]
    names = [line.split()[0] for line in copies]
    assert names[:2] == [
        "prefetch.tensormap",
        "cp.async.bulk.prefetch.tensor.4d.L2.global.L2::cache_hint",
    ]
    assert ".multicast::cluster" in names[2] and names[3].startswith(
        "cp.reduce.async.bulk.tensor.4d"
    )
    places = {re.search(r"\{(.*?)\}", line)[1] for line in copies[1:]}
    assert len(places) == 1  # where a load lies is held to the array above


def test_a_swizzle_that_this_gpu_lacks(monkeypatch):
    monkeypatch.setattr(_encoding, "compute_capability", lambda device: (9, 0))
    tile = Tile((8, 32), "f32", tma.Swizzle.B128_ATOM_32B)
    with pytest.raises(
        ValueError, match="ragged_tensor_map: 1 rule is broken:\n.*B128_ATOM_32B, w"
    ):
        ragged_tensor_map(Array((64, 32)), tile)


@pytest.mark.parametrize("method", ["load", "store", "reduce", "prefetch_tile", "load_im2col"])
def test_the_host_says_what_a_copy_needs(method):
    with pytest.raises(TypeError, match=f"RaggedTensorMap.{method}: a ragged map copies within"):
        getattr(ragged_tensor_map(Array((64, 32)), TILE), method)()


OTHER = RaggedTensorMapType(2, Tile((8, 32), "f32"), 0, "wrap", WRAP_EXTENT)
PARTIAL = RaggedTensorMapType(2, TILE, 0, "wrap", WRAP_EXTENT, "a row of the tensor is short")


@pytest.mark.parametrize(
    ("body", "typ", "message"),
    [
        (plain_load, WRAP, "RaggedTensorMap.load: a ragged map copies within one sequence: use y."),
        (plain_store, WRAP, "RaggedTensorMap.store: a ragged map copies within one sequence"),
        (plain_reduce, WRAP, "RaggedTensorMap.reduce: a ragged map copies within one sequence"),
        (plain_prefetch, WRAP, "RaggedTensorMap.prefetch_tile: a ragged map copies within one"),
        (plain_pixels, WRAP, "RaggedTensorMap.load_im2col: a ragged map copies within one"),
        (prefetch_of_a_shifted_map, SHIFT, "prefetch_tile: the encoding 'shift' starts in front"),
        (bits_of_floats, WRAP, "RaggedTensorMap.reduce: "),
        (reduce_before, WRAP, "the coordinate of axis 1 is -32; a reduction starts inside"),
        (slices_of_a_map, WRAP, "load_partitioned: the blocks share the tiles of a map of tensor"),
        (slices_of_a_sequence, WRAP, "load_partitioned: the blocks share the tiles of a map of"),
        (load_of_a_shifted_map, SHIFT, "'shift' starts in front of the array and only stores"),
        (row_before, WRAP, "the coordinate of axis 0 is -1; a tile starts in its sequence or past"),
        (store_before, WRAP, "the coordinate of axis 0 is -16; a tile starts in its sequence"),
        (store_left_of_it, WRAP, "the coordinate of axis 1 is -32; a store starts inside"),
        (coordinate_off_16_bytes, WRAP, "the innermost coordinate is 3, which is 12 B into"),
        (too_few_coordinates, WRAP, "1 coordinates for RaggedTensorMap"),
        (length_of_no_number, WRAP, "sequence(length=...) takes an integer, not float64"),
        (no_length, WRAP, "sequence: missing a required argument: 'length'"),
        (load_of_a_shifted_map, OTHER, "the map copies Tile((8, 32), f32, NONE) but the tile in"),
        (store_left_of_it, PARTIAL, "RaggedTensorMap.store: a row of the tensor is short"),
    ],
)
def test_what_does_not_compile(body, typ, message):
    device = cuda.jit(device=True)(body)

    def kernel(y):
        device(y, tma.shared_tile(TILE), tma.shared_barrier())

    with pytest.raises(NumbaError, match=re.escape(message)):
        compile_ptx(cuda.jit(kernel), (typ,))


def test_a_ragged_map_is_no_map_of_its_rank():
    assert WRAP.can_convert_to(None, TensorMapType(2)) is None


def test_what_is_no_box_is_said_of_the_call():
    with pytest.raises(TypeError, match=r"^ragged_tensor_map: 3.5 is no box; give a Tile, or one"):
        ragged_tensor_map(Array((8, 64)), 3.5)
