"""Maps that kernels edit, on the GPU: each field, in both places, and a grouped copy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, TensorMapArray, Tile, ptx, tensor_map
from numba_tma.kernels.copy.grouped import grouped_copy
from tests.gpu.worker import on_gpu

TRIES = 100_000
BOX = Tile((8, 16), "f32")  # what the maps of these tests copy, before they are edited
SPACE = Tile((32, 128), "u8", Swizzle.B128)  # where a copy lands, aligned for any swizzle


@cuda.jit(device=True)
def load_image(tensor_map_, coords, nbytes, image, failed):
    """Load one box, by a warp, over bytes of 0x55; copy them all out."""
    space, full = tma.shared_tile(SPACE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    for i in range(thread, 1024, 32):
        ptx.st_shared_u32(space.address + 4 * i, 0x55555555)
    tma.fence_proxy_async()
    if thread == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncwarp()
    if thread == 0:
        full.arrive_expect_tx(nbytes)
        ptx.cp_async_bulk_tensor_load(space, tensor_map_, coords, full)
        done = False
        for _ in range(TRIES):
            if full.test_wait(0):
                done = True
                break
        if not done:
            failed[0] = 1
    cuda.syncwarp()
    for i in range(thread, 1024, 32):
        image[i] = ptx.ld_shared_u32(space.address + 4 * i)


def edited_load(edit, space):
    """Return a kernel that edits a map by `edit(map, value)` in `space` and loads through it."""
    edit = cuda.jit(device=True)(edit)

    if space == "global":

        @cuda.jit
        def kernel(template, maps, value, coords, nbytes, image, failed):
            edited = maps[0]
            if cuda.threadIdx.x == 0:
                edit(edited, value)
                ptx.fence_proxy_tensormap_release("gpu")
            ptx.bar_warp_sync()
            edited.fence_acquire()
            load_image(edited, coords, nbytes, image, failed)

    else:

        @cuda.jit
        def kernel(template, maps, value, coords, nbytes, image, failed):
            scratch = tma.shared_tile(tma.DESCRIPTOR)
            tma.edit_map(maps[0], template, scratch)  # leaves the template's bytes in the scratch
            ptx.bar_warp_sync()
            if cuda.threadIdx.x == 0:
                edit(scratch, value)
            ptx.bar_warp_sync()
            ptx.tensormap_cp_fenceproxy(maps[0], scratch, "gpu")
            maps[0].fence_acquire()
            load_image(maps[0], coords, nbytes, image, failed)

    return kernel


def in_space(space):
    """Return an edit for each field; the space is part of the instruction."""

    def global_address(m, value):
        ptx.tensormap_replace_global_address(m, space, value)

    def rank(m, value):
        ptx.tensormap_replace_rank(m, space, value)

    def box_dim_0(m, value):
        ptx.tensormap_replace_box_dim(m, space, 0, value)

    def box_dim_1(m, value):
        ptx.tensormap_replace_box_dim(m, space, 1, value)

    def global_dim_0(m, value):
        ptx.tensormap_replace_global_dim(m, space, 0, value)

    def global_dim_1(m, value):
        ptx.tensormap_replace_global_dim(m, space, 1, value)

    def global_stride_0(m, value):
        ptx.tensormap_replace_global_stride(m, space, 0, value)

    def element_stride_1(m, value):
        ptx.tensormap_replace_element_stride(m, space, 1, value)

    def elemtype_tf32(m, value):
        ptx.tensormap_replace_elemtype(m, space, 11)

    def swizzle_64(m, value):
        ptx.tensormap_replace_swizzle_mode(m, space, 2)

    def fill_nan(m, value):
        ptx.tensormap_replace_fill_mode(m, space, 1)

    def interleave_none(m, value):
        ptx.tensormap_replace_interleave_layout(m, space, 0)

    def three_axes(m, value):
        ptx.tensormap_replace_rank(m, space, 2)
        ptx.tensormap_replace_global_dim(m, space, 2, value)
        ptx.tensormap_replace_global_stride(m, space, 1, 8 * 128)
        ptx.tensormap_replace_box_dim(m, space, 1, 2)
        ptx.tensormap_replace_box_dim(m, space, 2, 3)
        ptx.tensormap_replace_element_stride(m, space, 2, 1)

    return {name: edit for name, edit in locals().items() if callable(edit)}


EDITS = {space: in_space(space) for space in ("global", "shared::cta")}
FIELDS = sorted(set(EDITS["global"]))


def case_of(field, host, other):
    """Return value, coordinates, and the tensor, tile and options of the edited map."""
    view = np.lib.stride_tricks.as_strided
    rows, columns = host.shape
    plain = {"array": host, "tile": BOX, "coords": (4, 16), "value": 0, "options": {}}
    changed = {
        "global_address": {"array": other, "value": "other"},
        "rank": {"array": host[0], "tile": Tile((16,), "f32"), "coords": (16,), "value": 0},
        "box_dim_0": {"tile": Tile((8, 4), "f32"), "value": 4},
        "box_dim_1": {"tile": Tile((3, 16), "f32"), "value": 3},
        "global_dim_0": {"array": host[:, :20], "value": 20},
        "global_dim_1": {"array": host[:7], "value": 7},
        "global_stride_0": {"array": view(host, (rows, columns), (64, 4)), "value": 64},
        "element_stride_1": {
            "tile": Tile((4, 16), "f32"),
            "value": 2,
            "options": {"element_strides": (2, 1)},
        },
        "elemtype_tf32": {"tile": Tile((8, 16), "tf32")},
        "swizzle_64": {"tile": Tile((8, 16), "f32", Swizzle.B64)},
        "fill_nan": {"coords": (rows - 3, 16), "options": {"oob_fill": "nan"}},
        "interleave_none": {},
        "three_axes": {
            "array": view(host, (2, 24, columns), (8 * 128, 128, 4)),
            "tile": Tile((3, 2, 16), "f32"),
            "coords": (0, 5, 16),
            "value": 2,
        },
    }
    return plain | changed[field]


@pytest.mark.parametrize("space", EDITS)
@pytest.mark.parametrize("field", FIELDS)
@on_gpu
def test_a_field_is_replaced(field, space):
    rng = np.random.default_rng(0)
    host, other = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    x, y = cuda.to_device(host), cuda.to_device(other)
    case = case_of(field, host, other)
    tile, coords, value = case["tile"], case["coords"], case["value"]
    expected = tma.reference_tile(case["array"], tile, coords, **case["options"])
    template = tensor_map(x, BOX)
    maps = TensorMapArray([template])
    if value == "other":
        value = y.device_ctypes_pointer.value
    image, failed = cuda.to_device(np.zeros(1024, "u4")), cuda.to_device(np.zeros(1, "i4"))
    kernel = edited_load(EDITS[space][field], space)
    kernel[1, 32](template, maps, value, coords, tile.nbytes, image, failed)
    assert not failed.copy_to_host()[0], "other bytes came than those of the edited box"
    image = image.copy_to_host().view(np.uint8)
    np.testing.assert_array_equal(image[: len(expected)], expected)
    assert (image[len(expected) :] == 0x55).all()


@cuda.jit
def edit_for_the_other_blocks(template, maps, x, ready, image, failed):
    """Block 0 edits; the others wait for it, acquire, and load."""
    if cuda.blockIdx.x == 0:
        tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), x, x.shape, x.strides)
        if cuda.threadIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.exch(ready, 0, 1)
    else:
        if cuda.threadIdx.x == 0:
            for _ in range(TRIES):
                if cuda.atomic.add(ready, 0, 0) == 1:
                    break
            cuda.threadfence()
        cuda.syncwarp()
        maps[0].fence_acquire()
        load_image(maps[0], (0, 0), 512, image[cuda.blockIdx.x], failed)


@on_gpu
def test_other_blocks_see_an_edit_once_they_have_acquired_it():
    rng = np.random.default_rng(0)
    blocks = 33
    template = tensor_map(cuda.to_device(np.zeros((100, 64), np.float32)), BOX)
    maps = TensorMapArray([template])
    for _ in range(20):  # what the descriptor cache holds from the round before is old each time
        host = rng.standard_normal((5, 20)).astype(np.float32)
        x = cuda.to_device(host)
        image = cuda.to_device(np.zeros((blocks, 1024), "u4"))
        ready, failed = (cuda.to_device(np.zeros(1, "i4")) for _ in range(2))
        edit_for_the_other_blocks[blocks, 32](template, maps, x, ready, image, failed)
        assert not failed.copy_to_host()[0]
        expected = tma.reference_tile(host, BOX, (0, 0))
        for row in image.copy_to_host()[1:]:
            np.testing.assert_array_equal(row.view(np.uint8)[:512], expected)


@cuda.jit
def edit_again_and_again(template, maps, xs, image, failed):
    """One warp walks over tensors with one map, editing it between two loads."""
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    space, full = tma.shared_tile(SPACE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    for i in range(xs.shape[0]):
        tma.edit_map(maps[0], template, scratch, xs[i], (8 + i, 16))
        maps[0].fence_acquire()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(512)
            ptx.cp_async_bulk_tensor_load(space, maps[0], (4, 0), full)
            done = False
            for _ in range(TRIES):
                if full.test_wait(i & 1):
                    done = True
                    break
            if not done:
                failed[0] = 1
        cuda.syncwarp()
        for j in range(cuda.threadIdx.x, 128, 32):
            image[i, j] = ptx.ld_shared_u32(space.address + 4 * j)
        cuda.syncwarp()


@on_gpu
def test_one_map_edited_between_loads():
    hosts = np.random.default_rng(1).standard_normal((40, 64, 16)).astype(np.float32)
    x = cuda.to_device(hosts)
    base = x.device_ctypes_pointer.value
    addresses = cuda.to_device(base + 4096 * np.arange(40, dtype=np.uint64))
    template = tensor_map(x[0], BOX)
    maps = TensorMapArray([template])
    image, failed = cuda.to_device(np.zeros((40, 128), "u4")), cuda.to_device(np.zeros(1, "i4"))
    edit_again_and_again[1, 32](template, maps, addresses, image, failed)
    assert not failed.copy_to_host()[0]
    image = image.copy_to_host()
    for i in range(40):
        expected = tma.reference_tile(hosts[i, : 8 + i], BOX, (4, 0))
        np.testing.assert_array_equal(image[i].view(np.uint8), expected)


# ------------------------------------------------------------------------ grouped copy


@on_gpu(limit=60)
def check_grouped_copy(dtype, shapes, gap, seed):
    rng = np.random.default_rng(seed)
    step = 16 // np.dtype(dtype).itemsize
    shapes = [(rows, columns * step) for rows, columns in shapes]
    hosts = [rng.integers(0, 100, shape).astype(dtype) for shape in shapes]
    padded = [cuda.to_device(np.full((r, c + gap * step), 77, dtype)) for r, c in shapes]
    grouped_copy(list(map(cuda.to_device, hosts)), [p[:, :c] for p, (_, c) in zip(padded, shapes)])
    for host, p in zip(hosts, padded):
        expected = np.pad(host, ((0, 0), (0, gap * step)), constant_values=77)
        np.testing.assert_array_equal(p.copy_to_host(), expected)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=12),
    gap=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_a_grouped_copy(dtype, shapes, gap, seed):
    check_grouped_copy(dtype, shapes, gap, seed)


@on_gpu(limit=60)
def test_a_grouped_copy_of_many():
    """More matrices than blocks, and more tiles: each block edits its maps again and again."""
    rng = np.random.default_rng(2)
    shapes = [(int(r), 4 * int(c)) for r, c in rng.integers(1, 400, (500, 2))]
    sizes = np.cumsum([0, *(r * c for r, c in shapes)])
    host = rng.standard_normal(int(sizes[-1])).astype(np.float32)
    x, y = cuda.to_device(host), cuda.to_device(np.zeros_like(host))

    def parts(memory):
        return [memory[a : a + r * c].reshape(r, c) for a, (r, c) in zip(sizes, shapes)]

    for stream in (None, cuda.stream()):
        y.copy_to_device(np.zeros_like(host))
        cuda.synchronize()
        grouped_copy(parts(x), parts(y), stream=stream)
        cuda.synchronize()
        np.testing.assert_array_equal(y.copy_to_host(), host)
