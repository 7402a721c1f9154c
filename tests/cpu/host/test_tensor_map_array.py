"""Arrays of maps, maps with another address, and edited maps: the PTX and the errors."""

import ctypes
import gc
import importlib
import re
import weakref

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core._tensor_map import TensorMapDescriptor
from numba import cuda, types
from numba.core.errors import NumbaError

import numba_tma as tma
from numba_tma import Swizzle, TensorMapArray, Tile, im2col_map, ragged_tensor_map, tensor_map
from numba_tma.backend.lowering.types import TensorMapArrayType, TensorMapType, type_of
from numba_tma.host import encoding as _encoding
from numba_tma.host import im2col, ragged
from numba_tma.host.boxes import Copies
from numba_tma.host.driver import _descriptor, address_of
from numba_tma.kernels.copy.grouped import grouped_copy_kernel
from numba_tma.tools.testing import compile_ptx, instructions, ptxas, sass

ADDRESS = 0x7F00_0000_0000
TILE = Tile((16, 32), "f32")
WIDE, TALL = Tile((8, 64), "f32", Swizzle.B128), Tile((256, 16), "f32")


class Array:
    """Device memory that only knows the CUDA array interface."""

    def __init__(self, shape=(100, 64), dtype=np.float32, strides=None, address=ADDRESS):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


class DeviceBytes:
    def __init__(self, image, stream):
        self.image, self.stream = image.copy(), stream
        self.address = 0x7E00_0000_0000


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Encode maps as 128 bytes that tell their address, without a driver."""

    def encode(dtype, address, *rest):
        words = np.full(16, address, np.uint64)
        return _descriptor(words.ctypes.data)

    def replace(encoded, address):
        ctypes.c_uint64.from_address(int(encoded.getPtr())).value = address
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(_encoding, "encode_tiled", encode)
    monkeypatch.setattr(ragged, "encode_tiled", encode)
    monkeypatch.setattr(im2col, "encode_im2col", encode)
    monkeypatch.setattr(driver, "cuTensorMapReplaceAddress", replace)
    for module in ("tensor_map", "ragged", "im2col"):
        monkeypatch.setattr(
            importlib.import_module(f"numba_tma.host.{module}"), "current_device", lambda: 0
        )
    monkeypatch.setattr("numba_tma.host.tensor_map_array.copied_to_device", DeviceBytes)
    _encoding.encode.cache_clear()
    ragged._encode_ragged.cache_clear()
    im2col._encode.cache_clear()
    yield
    _encoding.encode.cache_clear()
    ragged._encode_ragged.cache_clear()
    im2col._encode.cache_clear()


def words(tensor_map):
    return list((ctypes.c_uint64 * 16).from_address(address_of(tensor_map.value)))


# ------------------------------------------------------------------------ on the host


def test_the_descriptors_lie_one_after_the_other():
    maps = [tensor_map(Array(address=ADDRESS + 4096 * i), TILE) for i in range(3)]
    array = TensorMapArray(maps)
    image = array._buffer.image.view(np.uint64).reshape(3, 16)
    assert [list(row) for row in image] == [words(m) for m in maps]
    assert array.address == 0x7E00_0000_0000
    assert (len(array), list(array), array[2]) == (3, maps, maps[2])
    assert repr(array).startswith("TensorMapArray(3 maps like TensorMap(f32")
    for index in (3, -1):
        with pytest.raises(IndexError, match=f"map {index} of a TensorMapArray of 3"):
            array[index]


def test_the_descriptors_are_copied_on_a_stream():
    stream = object()
    assert TensorMapArray([tensor_map(Array(), TILE)], stream=stream)._buffer.stream is stream


def test_the_tensors_are_kept_alive():
    array = Array()
    alive = weakref.ref(array)
    maps = TensorMapArray(iter([tensor_map(array, TILE)]))
    del array
    gc.collect()
    assert alive() is not None
    del maps
    gc.collect()
    assert alive() is None


def test_arrays_of_maps_of_one_type_have_one_type():
    one, other = (TensorMapArray([tensor_map(Array((n, 64)), TILE)] * n) for n in (1, 5))
    assert type_of(one) == type_of(other) == TensorMapArrayType(TensorMapType(2, TILE))
    assert cuda_typeof(one) == type_of(one)
    narrow = TensorMapArray([tensor_map(Array(), Tile((8, 32), "f32"))])
    assert type_of(narrow) != type_of(one)


def cuda_typeof(value):
    from numba.cuda.typing.typeof import typeof

    return typeof(value)


def test_arrays_of_ragged_maps():
    maps = TensorMapArray([ragged_tensor_map(Array((n, 64)), TILE) for n in (100, 200)])
    assert type_of(maps).element == type_of(maps[0])


@pytest.mark.parametrize(
    ("maps", "error", "message"),
    [
        (lambda: [], ValueError, "no map is given"),
        (lambda: [Array()], TypeError, "element 0 is Array, no TensorMap; make it with tensor_map"),
        (
            lambda: [tensor_map(Array(), TILE), tensor_map(Array(), (8, 32))],
            ValueError,
            r"element 1 is a TensorMap of Tile\(\(8, 32\), f32, NONE\), but element 0 is a "
            r"TensorMap of Tile\(\(16, 32\), f32, NONE\)",
        ),
        (
            lambda: [tensor_map(Array(), TILE), tensor_map(Array((3, 100, 64)), (1, 16, 32))],
            ValueError,
            r"element 1 is a TensorMap of Tile\(\(1, 16, 32\)",
        ),
        (
            lambda: [
                tensor_map(Array(), TILE),
                tensor_map(Array(strides=(320, 4), shape=(9, 61)), TILE),
            ],
            ValueError,
            r"a TensorMap of Tile\(\(16, 32\), f32, NONE\), loads only, but element 0 is a",
        ),
        (
            lambda: [tensor_map(Array((64, 128)), WIDE, fold=fold) for fold in (False, True)],
            ValueError,
            r"element 1 is a TensorMap of Tile\(\(8, 64\), f32, B128\), folded, but element 0",
        ),
        (
            lambda: [tensor_map(Array((999, 64)), TALL, element_strides=(n, 1)) for n in (1, 2)],
            ValueError,
            r"element 1 is a TensorMap of Tile\(\(256, 16\), f32, NONE\), element_strides=\(2, 1\)",
        ),
        (
            lambda: [tensor_map(Array(), TILE), im2col_map(Array((2, 8, 8, 32)), TILE)],
            ValueError,
            r"element 1 is an Im2colMap of im2col 4d, Tile\(\(16, 32\), f32, NONE\), but element 0",
        ),
        (
            lambda: [im2col_map(Array((*(8,) * rank, 32)), TILE) for rank in (3, 4)],
            ValueError,
            "an Im2colMap of im2col 5d, .* but element 0 is an Im2colMap of im2col 4d",
        ),
        (
            lambda: [tensor_map(Array(), TILE), ragged_tensor_map(Array(), TILE)],
            ValueError,
            r"a RaggedTensorMap of .*, sequences along axis 0 \(encoding 'wrap', up to 1073",
        ),
    ],
)
def test_what_is_no_array_of_maps(maps, error, message):
    with pytest.raises(error, match=message):
        TensorMapArray(maps())


# -------------------------------------------------------------------- another address


def test_an_address_is_replaced_in_a_copy():
    first, other = Array(), Array(address=ADDRESS + 512)
    before = tensor_map(first, TILE)
    after = before.replace_address(other)
    assert words(before) == [ADDRESS] * 16
    assert words(after) == [ADDRESS + 512] + [ADDRESS] * 15
    assert type(after.value) is TensorMapDescriptor
    assert (after.address, after.array, before.address) == (ADDRESS + 512, other, ADDRESS)
    assert (after.shape, after.strides, after.tile) == (before.shape, before.strides, before.tile)
    assert type_of(after) == type_of(before)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Array((101, 64)), r"has shape \(101, 64\), .* the map's array shape \(100, 64\)"),
        (Array(strides=(512, 4)), r"strides \(512, 4\) B and 4 B per element, .*\(256, 4\) B"),
        (Array(dtype=np.float64, strides=(256, 8)), "8 B per element, the map's array"),
        (Array(address=ADDRESS + 8), "address is 0x7f0000000008, 8 B past a multiple of 16 B"),
        (Array(address=0), "array address is 0; its memory was freed"),
    ],
)
def test_only_the_address_is_replaced(array, message):
    with pytest.raises(ValueError, match=f"replace_address: .*{message}"):
        tensor_map(Array(), TILE).replace_address(array)


def test_the_stride_of_an_axis_of_extent_1_may_differ():
    first, other = (Array((1, 64), strides=(n, 4)) for n in (256, 12))
    assert tensor_map(first, TILE).replace_address(other).strides == (256, 4)


def test_an_array_knows_its_type():
    maps = TensorMapArray([tensor_map(Array(), TILE)])
    assert type_of(maps) is type_of(maps) == TensorMapArrayType(type_of(maps[0]))


def test_the_driver_refuses_an_address(monkeypatch):
    refused = (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)
    monkeypatch.setattr(driver, "cuTensorMapReplaceAddress", lambda encoded, address: refused)
    with pytest.raises(RuntimeError, match="ReplaceAddress failed: CUDA_ERROR_INVALID_VALUE"):
        tensor_map(Array(), TILE).replace_address(Array())


# --------------------------------------------------------------------------- in kernels

MAP = TensorMapType(2, TILE)
MAPS = TensorMapArrayType(MAP)
I64 = types.int64


def one_copy(maps, i):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    y = maps[i]
    y.prefetch()
    y.load(tile, (0, 0), full)
    maps[i + 1].store(tile, (16, 0))


@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a"), (12, 0)], ids=str)
def test_an_element_is_its_address(cc):
    ptx = compile_ptx(cuda.jit(one_copy), (MAPS, I64), cc=cc)
    code = instructions(ptx)
    assert "fence.proxy" not in ptx and ".local" not in ptx
    assert sum(line.startswith("shl.b64") for line in code) == 1
    assert any(re.match(r"add\.s64 %rd\d+, %rd\d+, 128$", line) for line in code)
    assert ptxas(ptx).spill_stores == 0


def test_elements_travel_to_device_functions_and_through_tuples():
    @cuda.jit(device=True)
    def load(pair, i, tile, full):
        pair[1][i].load(tile, (0, 0), full)

    @cuda.jit
    def kernel(single, maps, i):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        load((single, maps), i, tile, full)

    assert "cp.async.bulk.tensor.2d" in compile_ptx(kernel, (MAP, MAPS, types.int32))


def edit_all(maps, template, i, x):
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    y = maps[i]
    tma.edit_map(y, template, scratch, x, x.shape, x.strides)
    y.fence_acquire()


def test_a_map_is_edited_in_as_many_bytes_as_it_has():
    """A CUtensorMap has 128."""
    assert tma.DESCRIPTOR.nbytes == 128


def test_an_edit_keeps_the_order():
    """Copy, replace, sync, copy out and release, acquire: in this order, with everything in it."""
    code = instructions(compile_ptx(cuda.jit(edit_all), (MAPS, MAP, I64, types.float32[:, :])))
    text = "\n".join(code)
    order = [
        r"bar\.warp\.sync",
        r"setp.*\n@%p\d+ bra L0",
        *[rf"ld\.param\.v2\.u64 \S+ \S+, \[%rd\d+\+{16 * i}\]" for i in range(1, 8)],
        r"replace\.tile\.global_address\.shared::cta\.b1024\.b64",
        r"replace\.tile\.global_dim\.shared::cta\.b1024\.b32 \[%rd\d+\], 1,",
        r"replace\.tile\.global_dim\.shared::cta\.b1024\.b32 \[%rd\d+\], 0,",
        r"replace\.tile\.global_stride\.shared::cta\.b1024\.b64 \[%rd\d+\], 0,",
        r"L0:",
        r"bar\.warp\.sync",
        r"tensormap\.cp_fenceproxy.*release\.gpu\.sync\.aligned \[(%rd\d+)\], \[%r\d+\], 128",
        r"fence\.proxy\.tensormap::generic\.acquire\.gpu \[\1\], 128",
    ]
    assert re.search(".*?".join(f"(?:{part})" for part in order), text, re.S)
    assert text.count("tensormap.replace") == 4 and ".local" not in text


def test_fields_that_are_not_given_are_the_templates():
    @cuda.jit
    def kernel(maps, template, address):
        tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), address)
        tma.edit_map(maps[1], maps[0], tma.shared_tile(tma.DESCRIPTOR), shape=(8, 16))

    text = compile_ptx(kernel, (MAPS, MAP, types.uint64))
    assert re.findall(r"replace\.tile\.(\w+)", text) == ["global_address", *["global_dim"] * 2]


def test_strides_are_bytes_for_this_assembler():
    """ptxas, not the caller, divides a stride by 16: what CUDA 12.5 and newer promise."""
    listing = sass(compile_ptx(cuda.jit(edit_all), (MAPS, MAP, I64, types.float32[:, :])))
    assert re.search(r"SHF\.R\.U64 \w+, \w+, 0x4, ", listing)


def test_an_edit_keeps_fold_and_steps():
    folded = TensorMapType(2, WIDE, copies=Copies(WIDE, (1, 1), fold=True))
    steps = TensorMapType(2, TALL, copies=Copies(TALL, (2, 1)))
    compile_ptx(cuda.jit(just_edit), (TensorMapArrayType(steps), steps))
    for destination, template, message in (
        (folded, TensorMapType(2, WIDE), "maps are Tile((8, 64), f32, B128), folded, the template"),
        (steps, TensorMapType(2, TALL), "NONE), element_strides=(2, 1), the template Tile((256"),
    ):
        with pytest.raises(NumbaError, match=re.escape(message)):
            compile_ptx(cuda.jit(just_edit), (TensorMapArrayType(destination), template))


def test_an_element_is_what_a_signature_takes():
    kinds = TensorMapArrayType(MAP).element.in_array, MAP, TensorMapType(2)
    assert len({*kinds}) == 3
    assert [kinds[0].can_convert_to(None, kind) is not None for kind in kinds[1:]] == [True, True]
    assert [kind.can_convert_to(None, kinds[0]) for kind in kinds[1:]] == [None, None]


@pytest.mark.parametrize("tile", [Tile((16, 32), "f32"), Tile((32, 256), "u8")], ids=str)
def test_grouped_copy_spills_nothing(tile):
    map_type = TensorMapType(2, tile)
    signature = (map_type, TensorMapArrayType(map_type), types.int64[:, ::1])
    report = ptxas(compile_ptx(grouped_copy_kernel(tile), signature))
    assert (report.spill_stores, report.stack_frame) == (0, 0)


# ---------------------------------------------------------------------------- messages


def index_of_no_integer(maps, template):
    maps[1.0].prefetch()


def no_scratch(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(TILE))


def no_template(maps, template):
    tma.edit_map(maps[0], 3, tma.shared_tile(tma.DESCRIPTOR))


def no_element(maps, template):
    tma.edit_map(maps, template, tma.shared_tile(tma.DESCRIPTOR))


def float_shape(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), 0, (1.0, 2))


def short_shape(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), 0, (1,))


def long_strides(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), strides=(64, 64, 64))


def address_of_no_array(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), 1.5)


def replace_in_no_map(maps, template):
    tma.ptx.tensormap_replace_rank(1.5, "global", 2)


def replace_in_no_space(maps, template):
    tma.ptx.tensormap_replace_rank(maps[0], "shared", 2)


def replace_what_is_no_axis(maps, template):
    tma.ptx.tensormap_replace_global_dim(maps[0], "global", 5, 2)


def replace_by_no_literal(maps, template):
    tma.ptx.tensormap_replace_fill_mode(maps[0], "global", cuda.threadIdx.x)


OTHER = TensorMapType(2, Tile((8, 32), "f32"))


def edit_an_argument(maps, template):
    tma.edit_map(template, template, tma.shared_tile(tma.DESCRIPTOR))


def replace_in_an_argument(maps, template):
    tma.ptx.tensormap_replace_rank(template, "global", 2)


def copy_to_an_argument(maps, template):
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    tma.ptx.tensormap_cp_fenceproxy(template, scratch, "gpu")


def just_edit(maps, template):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR))


IN_GLOBAL = "TensorMap(Tile((16, 32), f32, NONE)) is not in global memory, where a kernel could"


@pytest.mark.parametrize(
    ("body", "template", "message"),
    [
        (index_of_no_integer, MAP, "a TensorMapArray is indexed with an integer, not float64"),
        (no_scratch, MAP, "edit_map(scratch=...) takes a shared_tile(DESCRIPTOR), not SharedTile("),
        (no_template, MAP, "edit_map(template=...) takes a TensorMap, not"),
        (no_element, MAP, "edit_map(destination=...) takes a TensorMap, not TensorMapArray("),
        (float_shape, MAP, "edit_map(shape=...) takes a tuple of integers, not"),
        (short_shape, MAP, "1 extents for a template of rank 2; give one per axis"),
        (long_strides, MAP, "3 strides for a template of rank 2; give one per axis, in bytes"),
        (address_of_no_array, MAP, "edit_map(address=...) takes an array in global memory or its"),
        (
            short_shape,
            OTHER,
            "maps are Tile((16, 32), f32, NONE), the template Tile((8, 32), f32, NONE); make the",
        ),
        (
            just_edit,
            TensorMapType(2, TILE, 16),
            "the template is interleaved, so that its axes are not",
        ),
        (just_edit, TensorMapType(2, TILE, None, "x"), "template Tile((16, 32), f32, NONE), loads"),
        (just_edit, TensorMapType(4, TILE, mode="im2col"), "the template is im2col 4d, Tile((16,"),
        (edit_an_argument, MAP, f"edit_map(destination=...): {IN_GLOBAL}"),
        (replace_in_an_argument, MAP, f"tensormap_replace_rank(tensor_map=...): {IN_GLOBAL}"),
        (copy_to_an_argument, MAP, f"tensormap_cp_fenceproxy(destination=...): {IN_GLOBAL}"),
        (short_shape, TensorMapType(), "nothing is known of TensorMap(); pass a map of tensor_map"),
        (
            replace_in_no_map,
            MAP,
            "takes a TensorMap in global memory, or a shared tile of 128 byte",
        ),
        (replace_in_no_space, MAP, "one of 'global', 'shared::cta', not 'shared'"),
        (replace_what_is_no_axis, MAP, "one of 0, 1, 2, 3, 4, not 5"),
        (replace_by_no_literal, MAP, "one of 0, 1, not int32"),
    ],
)
def test_what_does_not_compile(body, template, message):
    with pytest.raises(NumbaError, match=re.escape(message)):
        compile_ptx(cuda.jit(body), (MAPS, template))


def test_on_the_host_nothing_is_fenced():
    with pytest.raises(RuntimeError, match="fence_acquire runs inside a @cuda.jit kernel"):
        tensor_map(Array(), TILE).fence_acquire()


def test_the_number_of_a_field_is_in_the_instruction():
    def kernel(maps):
        tma.ptx.tensormap_replace_elemtype(maps[0], "global", 11)
        tma.ptx.tensormap_replace_swizzle_mode(maps[0], "global", 2)

    code = instructions(compile_ptx(cuda.jit(kernel), (MAPS,)))
    assert re.search(r"elemtype\.global\.b1024\.b32 \[%rd\d\], 11$", code[1])
    assert re.search(r"swizzle_mode\.global\.b1024\.b32 \[%rd\d\], 2$", code[2])
