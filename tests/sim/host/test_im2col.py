"""im2col copies in the simulator: a convolution's matrix, stores, reductions, and misuse."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

TILE = tma.Tile((16, 8), "f32", tma.Swizzle.B32)
WORDS = tma.Tile((8, 4), "u32")


@cuda.jit
def gather(x, out, lower, stride, dilation, outputs, filter):
    """Write the im2col matrix of an NHWC input, a tile at a time."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    parity = 0
    for start in range(0, out.shape[0], 16):
        image, place = divmod(start, outputs[0] * outputs[1])
        p, q = divmod(place, outputs[1])
        for r in range(filter[0]):
            for s in range(filter[1]):
                if thread == 0:
                    barrier.arrive_expect_tx(tile.tile.nbytes)
                    h, w = lower[0] + p * stride[0], lower[1] + q * stride[1]
                    x.load_im2col(
                        tile, (image, h, w, 0), (r * dilation[0], s * dilation[1]), barrier
                    )
                barrier.wait(parity)
                parity ^= 1
                if start + thread < out.shape[0]:
                    for c in range(8):
                        out[start + thread, r, s, c] = tile[thread, c]
                cuda.syncthreads()


@pytest.mark.parametrize(
    ("filter", "padding", "stride", "dilation"),
    [
        ((3, 3), ((1, 1), (1, 1)), (1, 1), (1, 1)),
        ((2, 3), ((0, 2), (1, 0)), (2, 1), (1, 2)),
        ((3, 1), ((3, 3), (0, 0)), (1, 3), (3, 1)),
    ],
)
def test_a_kernel_gathers_the_im2col_matrix(filter, padding, stride, dilation):
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 8)).astype(np.float32)
    x_map = tma.im2col_map(
        x, TILE, filter=filter, padding=padding, stride=stride, dilation=dilation
    )
    outputs = x_map.output_shape
    out = np.full((2 * outputs[0] * outputs[1], *filter, 8), np.nan, np.float32)
    gather[1, 16](x_map, out, x_map.pixel_box.lower, stride, dilation, outputs, filter)
    padded = np.pad(x, ((0, 0), *padding, (0, 0)))
    expected = [
        padded[
            n,
            p * stride[0] : p * stride[0] + filter[0] * dilation[0] : dilation[0],
            q * stride[1] : q * stride[1] + filter[1] * dilation[1] : dilation[1],
        ]
        for n in range(2)
        for p in range(outputs[0])
        for q in range(outputs[1])
    ]
    np.testing.assert_array_equal(out, np.array(expected))


@cuda.jit
def write(y, coords, values, operation):
    """Store the tile of `values` through an im2col map, or reduce with it."""
    tile = tma.shared_tile(WORDS)
    for i in range(8):
        for j in range(4):
            tile[i, j] = values[i, j]
    tma.fence_proxy_async()
    if operation == "store":
        y.store_im2col(tile, coords)
    else:
        ptx.cp_reduce_async_bulk_tensor_im2col(y, coords, tile, operation)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


def written(operation, old, values, **options):
    """Return a tensor of 2 images of 3 by 2 pixels after 8 pixels were written from (0, 1, 0)."""
    y = np.full((2, 3, 2, 4), old, np.uint32)
    write[1, 1](tma.im2col_map(y, WORDS, **options), (0, 1, 0, 0), values, operation)
    return y


def test_a_store_writes_a_column_of_pixels():
    values = np.arange(1, 33, dtype=np.uint32).reshape(8, 4)
    y = written("store", 0, values)
    expected = np.zeros((12, 4), np.uint32)
    expected[2:10] = values
    np.testing.assert_array_equal(y.reshape(12, 4), expected)


def test_a_store_walks_with_strides_and_stops_at_the_last_image():
    values = np.arange(1, 33, dtype=np.uint32).reshape(8, 4)
    y = written("store", 0, values, stride=(1, 2))
    expected = np.zeros((2, 3, 2, 4), np.uint32)
    expected[:, :, 0].reshape(6, 4)[1:] = values[:5]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", lambda old, new: old + new),
        ("min", np.minimum),
        ("max", np.maximum),
        ("and", np.bitwise_and),
        ("or", np.bitwise_or),
        ("xor", np.bitwise_xor),
        ("inc", lambda old, new: np.where(old >= new, 0, old + 1)),
        ("dec", lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
    ],
)
def test_a_reduction_combines(operation, expected):
    values = np.arange(32, dtype=np.uint32).reshape(8, 4)
    y = written(operation, 13, values).reshape(12, 4)
    np.testing.assert_array_equal(y[2:10], expected(np.uint32(13), values))
    assert (y[:2] == 13).all() and (y[10:] == 13).all()


def test_a_reduction_refuses_what_the_type_does_not_have():
    y, TWO_PIXELS = np.zeros((1, 2, 4), np.float32), tma.Tile((2, 4), "f32")

    def kernel(y):
        tile = tma.shared_tile(TWO_PIXELS)
        ptx.cp_reduce_async_bulk_tensor_im2col(y, (0, 0, 0), tile, "min")

    with pytest.raises(sim.BadOperand, match="no reduction 'min' of f32: it has 'add'"):
        cuda.jit(kernel)[1, 1](tma.im2col_map(y, (2, 4)))


def test_an_operation_that_ptx_does_not_have_is_named():
    with pytest.raises(sim.BadOperand, match="'mul'"):
        written("mul", 0, np.zeros((8, 4), np.uint32))


# -------------------------------------------------------------------------------- misuse


def run(body, tensor_map, held=None):
    held = held or TILE

    def kernel(x):
        tile, barrier = tma.shared_tile(held), tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(held.nbytes)
        body(x, tile, barrier)
        barrier.wait(0)

    cuda.jit(kernel)[1, 1](tensor_map)


X = np.zeros((2, 5, 6, 8), np.float32)
LOADS = {"filter": 3, "padding": 1}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda x, t, b: x.load(t, (0, 0, 0, 0), b), sim.BadOperand, r"use load_im2col\(tile"),
        (lambda x, t, b: ptx.cp_async_bulk_tensor_load(t, x, (0, 0, 0, 0), b), sim.BadOperand,
         r"cp_async_bulk_tensor_load: the map is Im2colMap\("),
        (lambda x, t, b: x.prefetch_tile((0, 0, 0, 0)), sim.BadOperand,
         r"a copy of another mode: the map is Im2colMap\("),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0), (0, 0), b), sim.BadOperand,
         "3 coordinates for"),
        (lambda x, t, b: ptx.cp_async_bulk_tensor_im2col_load(t, x, (0, 0, 0), b, (0, 0)),
         sim.BadCoordinate, "3 coordinates for Im2colMap.*, which has 4 axes"),
        (lambda x, t, b: x.load_im2col(t, (0, -2, 0, 0), (0, 0), b), sim.BadCoordinate,
         r"the first pixel is \(-2, 0\), outside of the box of base pixels, which is -1 to 3"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 5, 0), (0, 0), b), sim.BadCoordinate,
         r"which is -1 to 3, -1 to 4 per spatial axis"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0, 2), (0, 0), b), sim.BadCoordinate,
         r"the innermost coordinate \(axis 3\) is 2"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0, 0), (0,), b), sim.BadCoordinate,
         r"the offsets are \(0,\); .* takes 2, one per spatial axis, each 0 to 255"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0, 0), (0, 256), b), sim.BadCoordinate,
         r"the offsets are \(0, 256\)"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0, 0), (-1, 0), b), sim.BadCoordinate,
         r"the offsets are \(-1, 0\)"),
        (lambda x, t, b: ptx.cp_async_bulk_prefetch_tensor_im2col(x, (0, 9, 0, 0), (0, 0)),
         sim.BadCoordinate, "cp_async_bulk_prefetch_tensor_im2col: the first pixel"),
        (lambda x, t, b: x.store_im2col(t, (0, 0, 0, 0)), sim.BadOperand,
         r"pixel box has the corners \(-1, -1\) and \(-1, -1\); a store stays inside"),
        (lambda x, t, b: ptx.cp_async_bulk_tensor_im2col_store(x, (0, 0, 0, 0), t),
         sim.BadCoordinate, "a store begins and stays inside the tensor"),
        (lambda x, t, b: x.load_im2col(t, (0, 0, 0, 0), (0, 0), b, multicast=2),
         sim.BadOperand, "multicast is 0b10; its bits are ranks of the cluster, which has"),
        (lambda x, t, b: ptx.cp_async_bulk_tensor_im2col_w_load(t, x, (0, 0, 0, 0), b, 0, 0),
         sim.BadOperand, "cp_async_bulk_tensor_im2col_w_load: the map is Im2colMap"),
    ],
)  # fmt: skip
def test_misuse_is_named(body, error, message):
    with pytest.raises(error, match=message):
        run(body, tma.im2col_map(X, TILE, **LOADS))


def test_a_tiled_map_names_what_it_lacks():
    x = tma.tensor_map(X.reshape(60, 8), TILE)
    with pytest.raises(sim.BadOperand, match="a tiled one: use its load and store, or make the ma"):
        run(lambda x, t, b: x.load_im2col(t, (0, 0), (), b), x)
    with pytest.raises(sim.BadOperand, match="a tiled one"):
        run(lambda x, t, b: x.store_im2col(t, (0, 0)), x)


def test_a_tile_that_does_not_match_is_named():
    x = tma.im2col_map(X, (32, 8))
    with pytest.raises(sim.BadOperand, match=r"make the map with im2col_map\(array, Tile\(\(16, 8"):
        run(lambda x, t, b: x.load_im2col(t, (0, 0, 0, 0), (0, 0), b), x)


def test_a_multicast_to_the_block_itself_and_a_prefetch_run():
    def body(x, tile, barrier):
        ptx.cp_async_bulk_prefetch_tensor_im2col(x, (0, 0, 0, 0), (0, 0))
        x.load_im2col(tile, (0, 0, 0, 0), (0, 0), barrier, multicast=1)

    run(body, tma.im2col_map(X, TILE))


def test_what_is_not_modelled_is_said():
    with pytest.raises(NotImplementedError, match="im2col_map: interleave=16 is not simulated"):
        tma.im2col_map(X, (16, 4), interleave=16)
    x = tma.im2col_wide_map(X, WIDE_TILE)
    with pytest.raises(NotImplementedError, match="w_halo is 2; the PTX manual shows in figures"):
        run(lambda x, t, b: ptx.cp_async_bulk_tensor_im2col_w_load(t, x, (0, 0, 0, 0), b, 2, 0), x)


WIDE_TILE = tma.Tile((16, 8), "f32", tma.Swizzle.B64)


def make_wide(tile, coords, w_offset):
    pixels, channels = tile.shape

    @cuda.jit
    def kernel(x, out):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(tile.nbytes)
            x.load_im2col(held, coords, (w_offset,), full)
        full.wait(0)
        for i in range(cuda.threadIdx.x, pixels * channels, 32):
            out[i // channels, i % channels] = held[i // channels, i % channels]

    return kernel


@pytest.mark.parametrize("mode", ["w", "w128"])
@pytest.mark.parametrize(
    ("first", "w_offset", "stride", "lower", "upper"),
    [
        ((0, 2, 0), 0, 1, 0, 0),
        ((1, 0, 3), 0, 1, -1, 0),
        ((0, 1, -1), 2, 1, -1, -1),
        ((0, -1, 1), 0, 2, 0, -2),  # above the image: zeros
        ((0, 3, -4), 1, 3, -1, 0),  # the first pixel lies before the box
        ((2, 4, 5), 31, 1, 0, 0),
    ],
)
def test_a_wide_load_walks_along_w_and_from_image_to_image(
    mode, first, w_offset, stride, lower, upper
):
    x = np.arange(3 * 5 * 6 * 8, dtype=np.float32).reshape(3, 5, 6, 8) + 1
    tile = WIDE_TILE if mode == "w" else tma.Tile((128, 8), "f32", tma.Swizzle.B64)
    corners = {"lower_corner": lower, "upper_corner": upper, "stride": stride}
    out = np.full(tile.shape, -1, np.float32)
    source = tma.im2col_wide_map(x, tile, mode=mode, **corners)
    make_wide(tile, (*first, 0), w_offset)[1, 32](source, out)
    expected, (n, h, w) = np.zeros_like(out), first
    for pixel in range(tile.shape[0]):
        if n < 3 and 0 <= h < 5 and 0 <= w + w_offset < 6:
            expected[pixel] = x[n, h, w + w_offset]
        w += stride
        if w >= 6 + upper:
            n, w = n + 1, lower
    np.testing.assert_array_equal(out, expected)


def test_what_a_wide_load_refuses():
    x = tma.im2col_wide_map(X, WIDE_TILE, upper_corner=-1)
    for coords, offsets, error, message in (
        ((0, 0, X.shape[2] - 1, 0), (0,), sim.BadCoordinate, "outside of the box of base pixels"),
        ((0, 0, 0, 0), (32,), sim.BadCoordinate, "w_offset is 32; mode 'im2col_w' takes 0 to 31"),
        ((0, 0, 0, 0), (0, 0), sim.BadOperand, "2 offsets for Im2colMap"),
        ((0, 0, 0, 2), (0,), sim.BadCoordinate, "the innermost coordinate"),
    ):
        with pytest.raises(error, match=message):
            run(lambda x, t, b, c=coords, o=offsets: x.load_im2col(t, c, o, b), x, WIDE_TILE)


@pytest.mark.parametrize(
    ("mode", "pixels", "load", "most"),
    [
        ("w", 16, ptx.cp_async_bulk_tensor_im2col_w_load, 511),
        ("w128", 128, ptx.cp_async_bulk_tensor_im2col_w_128_load, 31),
    ],
)
@pytest.mark.parametrize("w_offset", [0, 31])
def test_the_largest_halo_of_a_mode(mode, pixels, load, most, w_offset):
    tile = tma.Tile((pixels, 8), "f32", tma.Swizzle.B64)
    x = tma.im2col_wide_map(X, tile, mode=mode)
    for halo, error in ((most, NotImplementedError), (most + 1, sim.BadCoordinate)):
        with pytest.raises(error, match=f"w_halo is {halo}"):
            run(lambda x, t, b, n=halo: load(t, x, (0, 0, 0, 0), b, n, w_offset), x, tile)


@cuda.jit
def load_by_index(maps, which, out):
    tile, full = tma.shared_tile(WORDS), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(WORDS.nbytes)
        maps[which].load_im2col(tile, (0, 1, 0), (0,), full)
    cuda.syncthreads()
    full.wait(0)
    out[cuda.threadIdx.x] = tile[cuda.threadIdx.x // 4, cuda.threadIdx.x % 4]


def test_im2col_maps_in_an_array():
    xs = np.arange(2 * 10 * 4, dtype=np.uint32).reshape(2, 1, 10, 4)
    maps = tma.TensorMapArray([tma.im2col_map(x, WORDS) for x in xs])
    assert all(type(m) is tma.Im2colMap for m in maps)
    for which in (1, 0):
        out = np.zeros(32, np.uint32)
        load_by_index[1, 32](maps, which, out)
        np.testing.assert_array_equal(out.reshape(8, 4), xs[which, 0, 1:9])


@cuda.jit
def edit_in_place(maps):
    ptx.tensormap_replace_rank(maps[0], "global", 1)


def test_an_im2col_map_is_not_edited():
    maps = tma.TensorMapArray([tma.im2col_map(X, TILE)])
    with pytest.raises(sim.BadOperand, match="is not tiled, and tensormap.replace knows the field"):
        edit_in_place[1, 1](maps)
