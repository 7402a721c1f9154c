"""Arrays of maps and edited maps in the simulator: values and errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile, ptx, simulator, tensor_map
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.copy.grouped import grouped_copy
from numba_tma.simulator import BadOperand, MissingFence
from numba_tma.simulator.tensormap import from_bytes, to_bytes

TILE = Tile((4, 8), "f32")


def values(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@cuda.jit(device=True)
def copy_tile(source, target, at):
    """Copy one tile, by one warp."""
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(TILE.nbytes)
        source.load(tile, at, full)
        full.wait(0)
        target.store(tile, at)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@cuda.jit
def copy_by_index(sources, targets, order):
    i = order[cuda.blockIdx.x]
    copy_tile(sources[i], targets[i], (0, 0))


def test_a_kernel_chooses_among_maps():
    xs, ys = [values((4, 8), i) for i in range(5)], [np.zeros((4, 8), np.float32) for _ in range(5)]
    maps = [tma.TensorMapArray([tensor_map(a, TILE) for a in arrays]) for arrays in (xs, ys)]
    copy_by_index[3, 32](*maps, np.array([4, 0, 2]))
    for i in range(5):
        np.testing.assert_array_equal(ys[i], xs[i] if i in (0, 2, 4) else 0)


def test_an_index_outside_of_the_array():
    maps = tma.TensorMapArray([tensor_map(values((4, 8)), TILE)])
    for i in (1, -1):
        with pytest.raises(IndexError, match=f"map {i} of a TensorMapArray of 1"):
            copy_by_index[1, 32](maps, maps, np.array([i]))


# ------------------------------------------------------------------------------- edits


@cuda.jit
def copy_through_edited_maps(template, maps, x, y, acquires):
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    tma.edit_map(maps[0], template, scratch, x, x.shape, x.strides)
    tma.edit_map(maps[1], template, scratch, y, y.shape, (y.strides[0],))
    if acquires:
        maps[0].fence_acquire()
        maps[1].fence_acquire()
    copy_tile(maps[0], maps[1], (0, 0))


@pytest.mark.parametrize("shape", [(4, 8), (3, 8), (9, 16), (1, 4)])
def test_an_edited_map_is_of_the_other_array(shape):
    template = tensor_map(values((100, 64)), TILE)
    maps = tma.TensorMapArray([template, template])
    x, y = values(shape), np.zeros(shape, np.float32)
    copy_through_edited_maps[1, 32](template, maps, x, y, True)
    expected = np.zeros(shape, np.float32)
    expected[:4, :8] = x[:4, :8]
    np.testing.assert_array_equal(y, expected)


def test_an_edited_map_has_to_be_acquired():
    template = tensor_map(values((100, 64)), TILE)
    maps = tma.TensorMapArray([template, template])
    x, y = values((4, 8)), np.zeros((4, 8), np.float32)
    with pytest.raises(MissingFence, match="a kernel has edited this map, .* call fence_acquire"):
        copy_through_edited_maps[1, 32](template, maps, x, y, False)


@cuda.jit
def acquire_too_early(template, maps, y):
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    if cuda.threadIdx.x >= 32:
        maps[0].fence_acquire()
    cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        tma.edit_map(maps[0], template, scratch, y)
    cuda.syncthreads()
    if cuda.threadIdx.x == 32:
        maps[0].load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier())


def test_an_acquire_before_the_edit_is_none():
    template = tensor_map(values((100, 64)), TILE)
    with pytest.raises(MissingFence, match="has not acquired it since"):
        acquire_too_early[1, 64](template, tma.TensorMapArray([template]), values((100, 64)))


@cuda.jit
def edit_with(destination, template, address, shape, strides):
    tma.edit_map(destination, template, tma.shared_tile(tma.DESCRIPTOR), address, shape, strides)


@pytest.mark.parametrize(
    ("address", "shape", "strides", "text"),
    [
        (None, (4,), None, "1 extents for a template of rank 2; give one per axis"),
        (None, None, (4, 4, 4), "3 strides for a template of rank 2"),
        (40, None, None, "the edited map's address is 40; it must be a multiple of 16 B"),
        (None, None, (40,), "the edited map's stride of axis 0 is 40; it must be a multiple"),
        (None, None, (2**40,), "stride of axis 0 is 1099511627776; .*a stride less than 2..40"),
        (None, None, (-64,), "tensormap_replace_global_stride: -64 is not in 0 to"),
        (None, (2**32, 8), None, "tensormap_replace_global_dim: 4294967296 is not in 0 to"),
    ],
)
def test_what_an_edit_may_not_do(address, shape, strides, text):
    template = tensor_map(values((100, 64)), TILE)
    maps = tma.TensorMapArray([template])
    with pytest.raises(BadOperand, match=text):
        edit_with[1, 32](maps[0], template, address, shape, strides)


def test_the_largest_stride_of_an_edit():
    template = tensor_map(values((100, 64)), TILE)
    maps = tma.TensorMapArray([template])
    edit_with[1, 32](maps[0], template, None, None, (2**40 - 16,))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype, oob_fill", [("u8", "zeros"), ("f16", "nan"), ("f64", "nan")])
@pytest.mark.parametrize("swizzle", [tma.Swizzle.NONE, tma.Swizzle.B32])
def test_the_bytes_of_a_map_are_the_map(rank, dtype, oob_fill, swizzle):
    array = np.zeros((3, 5, 6, 7, 64)[-rank:], as_dtype(dtype).numpy)
    tile = Tile((1, 2, 2, 3, 32 // array.itemsize)[-rank:], dtype, swizzle)
    steps = (1, 2, 1, 2, 1)[-rank:]
    one = tensor_map(array, tile, oob_fill=oob_fill, element_strides=steps)
    other = tensor_map(np.zeros_like(array), tile)
    from_bytes(to_bytes(one), other)
    for name in ("address", "shape", "strides", "box", "element_strides", "dtype", "swizzle"):
        assert getattr(other, name) == getattr(one, name), name
    assert (other.oob_fill, other.tile) == (one.oob_fill, one.tile)


def test_only_maps_in_global_memory_are_edited():
    template = tensor_map(values((100, 64)), TILE)
    with pytest.raises(BadOperand, match="is not in global memory, where a kernel could edit it"):
        edit_with[1, 32](template, template, None, (4, 8), None)


def test_a_template_is_like_the_map():
    template = tensor_map(values((100, 64)), Tile((8, 8), "f32"))
    maps = tma.TensorMapArray([tensor_map(values((100, 64)), TILE)])
    with pytest.raises(BadOperand, match=r"maps are Tile\(\(4, 8\).*, the template Tile\(\(8, 8\)"):
        edit_with[1, 32](maps[0], template, None, (4, 8), None)


def test_a_template_is_folded_and_stepped_as_the_map():
    x, wide = values((512, 128)), Tile((8, 64), "f32", tma.Swizzle.B128)
    tall = Tile((256, 16), "f32")
    plain, folded = tensor_map(x, wide), tensor_map(x, wide, fold=True)
    steps = tensor_map(x, tall, element_strides=(2, 1))
    pixels = tma.im2col_map(values((2, 8, 8, 8)), TILE)
    for destination, template, text in (
        (folded, plain, r"maps are Tile\(\(8, 64\), f32, B128\), folded, the template Tile"),
        (steps, tensor_map(x, tall), r"element_strides=\(2, 1\), the template Tile"),
        (plain, tma.ragged_tensor_map(x, Tile((8, 32), "f32")), r", sequences along axis 0 \(enc"),
        (pixels, pixels, "template is im2col 4d, .*; only maps of tensor_map can be edited"),
    ):
        maps = tma.TensorMapArray([destination])
        with pytest.raises(BadOperand, match=text):
            edit_with[1, 32](maps[0], template, x, None, None)


@cuda.jit
def edit_in_place(maps, y):
    if cuda.threadIdx.x == 0:
        ptx.tensormap_replace_global_address(maps[0], "global", y)
        ptx.tensormap_replace_rank(maps[0], "global", 1)
        ptx.tensormap_replace_box_dim(maps[0], "global", 0, 4)
        ptx.tensormap_replace_box_dim(maps[0], "global", 1, 8)
        ptx.tensormap_replace_global_dim(maps[0], "global", 0, 12)
        ptx.tensormap_replace_global_dim(maps[0], "global", 1, 5)
        ptx.tensormap_replace_global_stride(maps[0], "global", 0, 64)
        ptx.tensormap_replace_element_stride(maps[0], "global", 1, 2)
        ptx.tensormap_replace_elemtype(maps[0], "global", 2)
        ptx.tensormap_replace_swizzle_mode(maps[0], "global", 0)
        ptx.tensormap_replace_interleave_layout(maps[0], "global", 0)
        ptx.tensormap_replace_fill_mode(maps[0], "global", 1)
        ptx.fence_proxy_tensormap_release("gpu")
    cuda.syncwarp()
    ptx.fence_proxy_tensormap_acquire(maps[0], "gpu")


def test_every_field_is_replaced():
    x, y = values((6, 16)), values((6, 16))
    maps = tma.TensorMapArray([tensor_map(x, TILE)])
    edit_in_place[1, 32](maps, y.ctypes.data)
    edited = maps[0]
    assert (edited.address, edited.shape, edited.strides) == (y.ctypes.data, (5, 12), (64, 4))
    assert (edited.box, edited.element_strides, edited.oob_fill) == ((8, 4), (2, 1), "nan")
    assert edited.tile == Tile((4, 4), "u32")
    np.testing.assert_array_equal(edited.array.view(np.float32), y[:5, :12])


@cuda.jit
def copy_no_map(maps):
    tile = tma.shared_tile(tma.DESCRIPTOR)
    tile[cuda.threadIdx.x] = 255
    for i in range(3):
        tile[cuda.threadIdx.x + 32 * i + 32] = 255
    ptx.bar_warp_sync()
    ptx.tensormap_cp_fenceproxy(maps[0], tile, "gpu")


def test_what_is_no_map_is_not_copied_over_one():
    maps = tma.TensorMapArray([tensor_map(values((6, 16)), TILE)])
    with pytest.raises(BadOperand, match="the source is no tensor map; copy a template there"):
        copy_no_map[1, 32](maps)


@cuda.jit
def replace_in_the_wrong_space(maps):
    ptx.tensormap_replace_rank(maps[0], "shared::cta", 1)


@cuda.jit
def replace_the_atomicity(maps):
    ptx.tensormap_replace_swizzle_atomicity(maps[0], "global", 1)


def test_the_space_of_a_map_and_what_is_not_simulated():
    maps = tma.TensorMapArray([tensor_map(values((6, 16)), TILE)])
    with pytest.raises(BadOperand, match='the space of a map in global memory is "global"'):
        replace_in_the_wrong_space[1, 1](maps)
    with pytest.raises(NotImplementedError, match="swizzle_atomicity needs sm_100a"):
        replace_the_atomicity[1, 1](maps)


# ------------------------------------------------------------------------ grouped copy


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_grouped_copy(dtype):
    rng = np.random.default_rng(3)
    step = 16 // np.dtype(dtype).itemsize
    shapes = [(int(r), int(c) * step) for r, c in rng.integers(1, 40, (7, 2))] + [(0, 16), (3, 608)]
    for seed in range(2):
        simulator.seed(seed)
        xs = [values(shape, i).astype(dtype) for i, shape in enumerate(shapes)]
        padded = [np.full((r, c + 2 * step), 7, dtype) for r, c in shapes]
        ys = [p[:, :c] for p, (_, c) in zip(padded, shapes)]
        grouped_copy(xs, ys)
        for x, y, p in zip(xs, ys, padded):
            np.testing.assert_array_equal(y, x)
            assert (p[:, x.shape[1] :] == 7).all()


def test_grouped_copy_of_what_it_cannot_copy():
    x, y = values((4, 8)), values((4, 8))
    grouped_copy([], [])
    with pytest.raises(ValueError, match="2 sources, but 1 outs"):
        grouped_copy([x, x], [y])
    with pytest.raises(ValueError, match=r"outs\[1\] has shape \(4, 4\) of f32, but sources\[1\]"):
        grouped_copy([x, x], [y, y[:, :4]])
    other = values((4, 8), dtype=np.float64)
    with pytest.raises(ValueError, match=r"sources\[1\] holds f64, the first array f32"):
        grouped_copy([x, other], [y, other])
    with pytest.raises(
        ValueError, match=r"outs\[0\] has rows of 7 f32 = 28 B|sources\[0\] has rows"
    ):
        grouped_copy([x[:, :7]], [y[:, :7]])
    odd = values((4, 13))[:, :8]
    with pytest.raises(ValueError, match=r"sources\[0\]: axis 0 stride is 52 B"):
        grouped_copy([odd], [y])


def test_replace_address_in_the_simulator():
    x, y = values((4, 8)), values((4, 8), 1)
    moved = tensor_map(x, TILE).replace_address(y)
    assert moved.address == y.ctypes.data and moved.array is y


WIDE = Tile((8, 64), "f32", tma.Swizzle.B128)
LONG = Tile((256, 8), "f32")


def load_edited(tile):
    """Return a kernel that edits a map and reads one tile through it."""
    rows, columns = tile.shape

    @cuda.jit
    def kernel(maps, template, x, out):
        scratch, full = tma.shared_tile(tma.DESCRIPTOR), tma.shared_barrier()
        shared = tma.shared_tile(tile)
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
        tma.edit_map(maps[0], template, scratch, address=x)
        maps[0].fence_acquire()
        if cuda.threadIdx.x == 0:
            maps[0].load(shared, (0, 0), full)
        full.wait(0)
        for i in range(cuda.threadIdx.x, rows * columns, 32):
            out[i // columns, i % columns] = shared[i // columns, i % columns]

    return kernel


@pytest.mark.parametrize(("tile", "step"), [(WIDE, 1), (LONG, 2), (WIDE, 2)])
def test_an_edited_map_of_several_boxes_keeps_its_copies(tile, step):
    rows, columns = tile.shape
    x, y = (values((step * rows, columns), seed) for seed in (0, 1))
    template = tensor_map(x, tile, element_strides=(step, 1))
    assert len(template.copies.starts) > 1
    maps, out = tma.TensorMapArray([template]), np.zeros(tile.shape, np.float32)
    load_edited(tile)[1, 32](maps, template, y, out)
    assert (maps[0].tile, maps[0].copies) == (template.tile, template.copies)
    np.testing.assert_array_equal(out, y[::step])
