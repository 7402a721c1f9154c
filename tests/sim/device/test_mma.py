"""wgmma and fragments in the simulator: results and errors."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma import simulator as sim
from numba_tma.device import fragments
from numba_tma.device.warp_products import load_part, mma_sync, zero_part
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.simulator import products
from tests.kernels.matrix_operands import Operand

BF16 = ml_dtypes.bfloat16


PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "mma.md").read_text()


def test_the_page_s_matmul():
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    exec(compile(code, "docs/guide/mma.md", "exec"), {"__name__": "page"})  # it checks its result


def run(body, *args, threads=128):
    """Run `body` as a kernel of one block."""
    cuda.jit(lambda *args: body(*args))[1, threads](*args)


def fails(kind, body, *args, threads=128):
    with pytest.raises(kind) as caught:
        run(body, *args, threads=threads)
    return str(caught.value)


# --------------------------------------------------------------------- a small matmul

SQUARE = Tile((64, 64), "bf16", Swizzle.B128)


class Matmul:
    """C = A B^T in tiles of 64 x 64 x 64, with hooks for what can be done wrong."""

    def __init__(self, warpgroups=1, stages=2):
        self.roles = roles = tma.Roles(math=tma.Warpgroups(warpgroups), load=tma.Warps(1))
        self.a_tile = a_tile = Tile((64 * warpgroups, 64), "bf16", Swizzle.B128)
        pipe_object = tma.TilePipeline(
            stages, a=a_tile, b=SQUARE, producer=roles.load, consumer=roles.math
        )

        @cuda.jit
        def kernel(a, b, c, num_k, in_flight, wait, end):
            pipe = pipe_object.start()
            out = tma.shared_tile(a_tile)
            row, column = cuda.blockIdx.x * a_tile.shape[0], cuda.blockIdx.y * 64
            if pipe.is_producer():
                for k, stage in pipe.produce(0, num_k):
                    a.load(stage.a, (row, k * 64), stage.barrier)
                    b.load(stage.b, (column, k * 64), stage.barrier)
            elif pipe.is_consumer():
                mine = cuda.threadIdx.x // 128 * 64
                acc = tma.fragment(64)
                for _, stage in pipe.consume(0, num_k, in_flight=in_flight):
                    a_part = stage.a.matrix_descriptor().advance(row=mine)
                    acc = tma.wgmma(acc, a_part, stage.b.matrix_descriptor())
                    acc = wait(acc)
                acc = end(acc)
                acc.to("bf16").store(out, (mine, 0))
                pipe.store(c, out, (row, column))
                pipe.release_pending()
            pipe.close()

        self.kernel = kernel

    def __call__(self, m, n, k, in_flight=1, wait=None, end=tma.wgmma_wait, seed=0):
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal((rows, k)).astype(BF16) for rows in (m, n))
        c = np.zeros((m, n), BF16)
        a_map, b_map, c_map = (
            tma.tensor_map(x, t) for x, t in ((a, self.a_tile), (b, SQUARE), (c, self.a_tile))
        )
        grid = m // self.a_tile.shape[0], n // 64
        wait = wait or (lambda acc: tma.wgmma_wait(acc, 1))
        self.kernel[grid, self.roles.threads](a_map, b_map, c_map, k // 64, in_flight, wait, end)
        return c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("warpgroups", [1, 2])
def test_a_warp_specialised_matmul(warpgroups):
    c, expected = Matmul(warpgroups)(64 * warpgroups, 64 * (3 - warpgroups), 192)
    np.testing.assert_allclose(c, expected, rtol=2**-8, atol=1e-4 * abs(expected).max())


def test_one_tile_at_a_time_needs_no_stage_in_flight():
    c, expected = Matmul()(64, 64, 192, in_flight=0, wait=tma.wgmma_wait, end=lambda acc: acc)
    np.testing.assert_allclose(c, expected, rtol=2**-8, atol=1e-4 * abs(expected).max())


def test_a_stage_released_before_the_wait():
    for seed in range(3):
        sim.seed(seed)
        with pytest.raises(sim.EarlyOverwrite) as caught:
            Matmul()(64, 64, 256, in_flight=0)
        text = str(caught.value)
        assert "a load into bytes that a wgmma of warps 0 to 3 of block (0, 0, 0)" in text
        assert "test_mma.py" in text and "must pass wgmma_wait() for it, and only then" in text


def test_a_result_used_before_the_wait():
    with pytest.raises(sim.UnfinishedProduct, match=r"Fragment.to: .* pass it through wgmma_wait"):
        Matmul()(64, 64, 64, end=lambda acc: acc)
    with pytest.raises(sim.UnfinishedProduct, match="arithmetic: the fragment is what wgmma"):
        Matmul()(64, 64, 128, wait=lambda acc: tma.wgmma_wait(acc, 1) * 2)


def test_a_wait_counts_only_for_what_is_passed_through_it():
    def elsewhere(acc):
        tma.wgmma_wait(tma.fragment(64))
        return acc

    with pytest.raises(sim.UnfinishedProduct, match=r"wgmma_wait\(fragment\), and use what that"):
        Matmul()(64, 64, 64, end=elsewhere)


def test_a_product_never_waited_for():
    with pytest.raises(sim.UnfinishedProduct, match="ends with 1 wgmma that it has not waited for"):
        Matmul()(64, 64, 64, wait=lambda acc: acc, end=lambda acc: tma.fragment(64))
    with pytest.raises(sim.UnfinishedProduct, match="ends with 2 wgmma that were never committed"):
        run(lambda: multiply_zeros(times=2, commit=False))


def test_the_bare_instructions():
    def body(last):
        a = zeros(SQUARE).matrix_descriptor()
        tma.ptx.wgmma_fence()
        acc = tma.wgmma(tma.fragment(64), a, a, commit=False)
        acc = tma.wgmma(acc, a, a, commit=False)
        tma.ptx.wgmma_commit_group()
        tma.ptx.wgmma_wait_group(last)
        if last:
            tma.ptx.wgmma_wait_group(0)
        assert (acc if last else tma.wgmma_wait(acc))[0] == 0

    run(body, 0)
    text = fails(sim.UnfinishedProduct, body, 1)
    assert "pass it through wgmma_wait first" in text


def test_the_matmul_in_every_order():
    matmul = Matmul(stages=2)
    report = sim.explore(lambda: matmul(64, 64, 192), seeds=(0,))
    assert report.states > 100


# ------------------------------------------------------------- who multiplies, and what


def zeros(tile):
    """Return a shared tile of zeros, which all threads may give to wgmma."""
    shared = tma.shared_tile(tile)
    if cuda.threadIdx.x < tile.shape[0]:
        for column in range(0, tile.shape[1], 16 // tile.itemsize):
            shared.write_vector(
                (cuda.threadIdx.x, column), np.zeros(16 // tile.itemsize, np.float32)
            )
    tma.fence_proxy_async()
    cuda.syncthreads()
    return shared


def multiply_zeros(times=1, **options):
    a = zeros(SQUARE).matrix_descriptor()
    acc = tma.fragment(64)
    for _ in range(times):
        acc = tma.wgmma(acc, a, a, **options)
    return acc


def test_a_warp_is_missing():
    def body(others):
        a = zeros(SQUARE).matrix_descriptor()
        if cuda.threadIdx.x < 96:
            tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a))
        else:
            others()

    for threads in (96, 128):
        text = fails(sim.BadOperand, body, lambda: None, threads=threads)
        assert "wgmma of warpgroup 0, warps 0 to 3, is executed by 96 threads: all 128" in text
    text = fails(
        sim.Deadlock, body, lambda: tma.wgmma_wait(tma.fragment(64)) and cuda.syncthreads()
    )
    assert "wgmma of warpgroup 0: 96 of 128 threads have arrived" in text


def test_a_warpgroup_begins_at_a_multiple_of_four_warps():
    def body():
        a = zeros(SQUARE).matrix_descriptor()
        if cuda.threadIdx.x >= 32:
            tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a))

    text = fails(sim.BadOperand, body, threads=160)
    assert "its first warp is a multiple of 4" in text


def test_operands_that_differ_within_a_warpgroup():
    def body():
        a = zeros(Tile((128, 64), "bf16", Swizzle.B128)).matrix_descriptor()
        mine = a.advance(row=cuda.threadIdx.x // 32 * 16)
        tma.wgmma_wait(tma.wgmma(tma.fragment(64), mine, a))

    text = fails(sim.BadOperand, body)
    pair = (
        r"a is Tile\(\(128, 64\), bf16, B128\).* in thread \(0, 0, 0\) .*\(warp 0 lane 0\) and "
        r"Tile.* in thread \(32, 0, 0\) .*\(warp 1 lane 0\): all 128"
    )
    assert re.search(pair, text)
    assert "what differs between them is in their fragments alone" in text


def test_the_first_thread_of_a_warpgroup_is_compared_with_the_others():
    def body():
        a = zeros(SQUARE).matrix_descriptor()
        tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a, scale_d=cuda.threadIdx.x != 0))

    pair = r"scale_d is False in thread \(0, 0, 0\) .* and True in thread \(1, 0, 0\)"
    assert re.search(pair, fails(sim.BadOperand, body))


@pytest.mark.parametrize("fence", ["no", "before the writes", "without a sync"])
def test_a_tile_that_threads_wrote(fence):
    def body():
        shared = tma.shared_tile(SQUARE)
        if fence == "before the writes":
            tma.fence_proxy_async()
        if cuda.threadIdx.x < 64:
            for column in range(0, 64, 8):
                shared.write_vector((cuda.threadIdx.x, column), np.zeros(8, np.float32))
        if fence == "without a sync":
            tma.fence_proxy_async()
        else:
            cuda.syncthreads()
        a = shared.matrix_descriptor()
        tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a))

    text = fails(sim.MissingFence, body)
    if fence == "without a sync":
        assert "a wgmma reads what" in text and "all threads of the warpgroup that" in text
    else:
        assert "a wgmma reads bytes that" in text and "without a fence_proxy_async()" in text


def test_a_tile_is_written_while_it_is_read():
    def body(wait_first):
        shared = zeros(SQUARE)
        a = shared.matrix_descriptor()
        acc = tma.wgmma(tma.fragment(64), a, a)
        if wait_first:
            acc = tma.wgmma_wait(acc)
            cuda.syncthreads()
        shared[cuda.threadIdx.x // 2, 0] = 1
        tma.wgmma_wait(acc)

    run(body, True)
    text = fails(sim.EarlyOverwrite, body, False)
    assert "a write to bytes that a wgmma of warps 0 to 3" in text


def test_tiles_that_nobody_has_filled():
    def unwritten():
        a = tma.shared_tile(SQUARE).matrix_descriptor()
        tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a))

    assert "read by a wgmma, but it was never written" in fails(sim.UninitializedRead, unwritten)

    def not_waited_for(x):
        shared, full = tma.shared_tile(SQUARE), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(SQUARE.nbytes)
            x.load(shared, (0, 0), full)
        if cuda.threadIdx.x < 96:  # the fourth warp forgets it
            full.wait(0)
        a = shared.matrix_descriptor()
        tma.wgmma_wait(tma.wgmma(tma.fragment(64), a, a))

    x_map = tma.tensor_map(np.zeros((64, 64), BF16), SQUARE)
    text = fails(sim.EarlyRead, not_waited_for, x_map)
    assert "read by a wgmma before the load that fills them is known to be complete" in text


def test_what_is_not_multiplied():
    def chain(fence_later):
        a = zeros(SQUARE).matrix_descriptor()
        acc = tma.wgmma(tma.fragment(64), a, a, commit=False)
        other = tma.wgmma(tma.fragment(64), a, a, fence=fence_later)
        tma.wgmma_wait((acc, other))

    run(chain, True)
    assert "wgmma(fence=False): a thread may" in fails(sim.UnfinishedProduct, chain, False)

    def wgmma(**options):
        a = zeros(SQUARE).matrix_descriptor()
        tma.wgmma(tma.fragment(options.pop("n", 64)), options.pop("a", a), a, **options)

    assert "b is Tile((64, 64), bf16, B128) with 64 columns" in fails(
        sim.BadOperand, lambda: wgmma(n=72)
    )
    assert "k_steps is 5" in fails(sim.BadOperand, lambda: wgmma(k_steps=5))

    def from_inside():
        a = zeros(SQUARE).matrix_descriptor()
        tma.wgmma(tma.fragment(64), a.advance(3), a.advance(3), k_steps=2)

    text = fails(sim.BadOperand, from_inside)
    assert "stands at k step 3 of a slab of 4" in text and "k_steps=1 or less" in text


# ------------------------------------------------------------------------------- values


def in_shared(x, tile, barrier, parity=0):
    """Load a tile and wait for it."""
    shared = tma.shared_tile(tile)
    if cuda.threadIdx.x == 0:
        barrier.arrive_expect_tx(tile.nbytes)
        x.load(shared, (0,) * tile.ndim, barrier)
    barrier.wait(parity)
    return shared


def started():
    barrier = tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    return barrier


def product(a, b, accumulator="f32", use=None, registers=False, seed=0):
    """Return what a kernel and what NumPy make of two operands of small integers, and a start."""
    rng = np.random.default_rng(seed)
    low = 0 if "u8" in (a.dtype, b.dtype) else -4
    matrices = [rng.integers(low, 5, (x.rows, x.k)) for x in (a, b)]
    maps = [
        tma.tensor_map(x.as_tensor(m.astype(x.tile.dtype.numpy)), x.tile, dtype=x.tile.dtype)
        for x, m in zip((a, b), matrices)
    ]
    start = rng.integers(-9, 10, (64, b.rows))
    out = np.zeros((64, b.rows), as_dtype(accumulator).numpy)
    use = use or tma.wgmma

    def kernel(a_map, b_map, start, out):
        barrier = started()
        a_shared = in_shared(a_map, a.tile, barrier)
        b_desc = in_shared(b_map, b.tile, barrier, 1).matrix_descriptor(b.major)
        acc = tma.fragment(b.rows, accumulator).map_coords(
            lambda value, row, column, numbers: numbers[row, column], start
        )
        held = tma.load_fragment(a_shared, (0, 0), a.k) if registers else None
        acc = use(acc, held or a_shared.matrix_descriptor(a.major), b_desc)
        tma.wgmma_wait(acc).store_global(out, 0, 0)

    run(kernel, *maps, start, out)
    return out, matrices[0], matrices[1].T, start


@pytest.mark.parametrize(
    ("a", "b", "accumulator"),
    [
        (Operand(64, 64, "bf16"), Operand(256, 64, "bf16"), "f32"),
        (Operand(64, 32, "bf16", "MN"), Operand(64, 32, "bf16", "MN", Swizzle.B64), "f32"),
        (Operand(64, 128, "f16"), Operand(64, 128, "f16", "MN"), "f32"),
        (Operand(64, 32, "f16", "K", Swizzle.NONE), Operand(8, 32, "f16", "K", Swizzle.B64), "f16"),
        (Operand(64, 64, "f32"), Operand(24, 64, "tf32"), "f32"),
        (Operand(64, 128, "e4m3"), Operand(16, 128, "e5m2"), "f32"),
        (
            Operand(64, 64, "e5m2", "K", Swizzle.B64),
            Operand(40, 64, "e5m2", "K", Swizzle.B64),
            "f16",
        ),
        (Operand(64, 32, "i8", "K", Swizzle.B32), Operand(32, 32, "u8", "K", Swizzle.B32), "i32"),
    ],
    ids=lambda x: str(x),
)
def test_every_kind_of_product(a, b, accumulator):
    out, left, right, start = product(a, b, accumulator)
    np.testing.assert_array_equal(out, start + left @ right)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3", "i8"])
def test_a_matrix_a_in_registers(dtype):
    k = 128 // as_dtype(dtype).itemsize
    accumulator = "i32" if dtype == "i8" else "f32"
    out, left, right, start = product(
        Operand(64, k, dtype), Operand(16, k, dtype), accumulator, registers=True
    )
    np.testing.assert_array_equal(out, start + left @ right)


def test_options_of_a_product():
    def use(acc, a, b):
        acc = tma.wgmma(acc, a, b, negate_a=True)
        acc = tma.wgmma(acc, a, b, negate_a=True, negate_b=True, commit=False)
        acc = tma.wgmma(acc, a, b, k_steps=1, fence=False)
        return tma.wgmma(acc, a.advance(2), b.advance(2), k_steps=2)

    operands = Operand(64, 64, "bf16"), Operand(32, 64, "bf16")
    out, a, b, start = product(*operands, use=use)
    expected = start + a[:, :16] @ b[:16] + a[:, 32:] @ b[32:]
    np.testing.assert_array_equal(out, expected)
    out, a, b, _ = product(
        *operands, use=lambda acc, a, b: tma.wgmma(acc, a, b, scale_d=acc.num_elements < 9)
    )
    np.testing.assert_array_equal(out, a @ b)


def test_tf32_drops_bits_and_integers_wrap_round():
    tile = Tile((64, 8), "f32", Swizzle.B32)
    x = np.full((64, 8), 1 + 2**-10 + 2**-11, np.float32)
    out = np.zeros((64, 8), np.float32)

    def kernel(x_map, out):
        shared = in_shared(x_map, tile, started())
        a = shared.matrix_descriptor()
        acc = tma.wgmma(tma.fragment(8), a, a)
        tma.wgmma_wait(acc).store_global(out, 0, 0)

    run(kernel, tma.tensor_map(x, tile), out)
    assert (out == np.float32(8 * (1 + 2**-10) ** 2)).all()

    def most(acc, a, b):
        return tma.wgmma(acc.map(lambda value: np.int32(2**31 - 1)), a, b)

    operands = Operand(64, 32, "i8", "K", Swizzle.B32), Operand(8, 32, "i8", "K", Swizzle.B32)
    out, a, b, _ = product(*operands, "i32", use=most)
    np.testing.assert_array_equal(out, (2**31 - 1 + a @ b).astype(np.int32))
    assert (out < 0).any() and (out > 0).any()


# ---------------------------------------------------------------------------- fragments


def numbered(n, dtype="f32"):
    """Return a fragment whose elements say where they are."""
    return tma.fragment(n, dtype).map_coords(lambda value, row, column: row * 4 + column % 4)


@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "bf16", "e4m3", "u8"])
def test_where_elements_are(dtype):
    numpy = as_dtype(dtype).numpy
    seen, out = np.zeros((64, 48), int), np.zeros((64, 48), numpy)
    image, back = np.zeros((80, 64), numpy), np.zeros((64, 32), numpy)

    def kernel(seen, out, image_map, back):
        f = tma.fragment(48, dtype).map_coords(lambda value, row, column: row % 8 + column % 8)
        assert f.num_elements == 24
        for i in range(f.num_elements):
            row, column = f.coords(i)
            seen[row, column] += 1
            assert f[i] == row % 8 + column % 8
        f.store_global(out, 0, 0)
        tile = tma.shared_tile(image_tile)
        f.store(tile, (16, 16))
        assert tile.accesses.unfenced
        cuda.syncthreads()
        tma.load_fragment(tile, (16, 32), 32).store_global(back, 0, 0)

    image_tile = Tile((80, 64), dtype, Swizzle.B32 if dtype in ("e4m3", "u8") else Swizzle.B128)
    run(kernel, seen, out, image, back)
    row, column = np.indices((64, 48))
    assert (seen == 1).all()
    expected = (row % 8 + column % 8).astype(numpy)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(back, expected[:, 16:48])


def test_a_number_for_each_row():
    numbers, out = np.arange(96, dtype=np.float32), np.zeros((64, 16), np.float32)
    TALL = Tile(96, "f32")

    def kernel(numbers, out):
        tile = tma.shared_tile(TALL)
        if cuda.threadIdx.x < 96:
            tile[cuda.threadIdx.x] = numbers[cuda.threadIdx.x]
        cuda.syncthreads()
        (tma.fragment(16) + tma.load_rows(tile, 24)).store_global(out, 0, 0)
        assert tile.accesses.unfenced

    run(kernel, numbers, out)
    np.testing.assert_array_equal(out, np.repeat(numbers[24:88, None], 16, 1))


def test_a_store_may_leave_the_array():
    x, bits = np.zeros((70, 20), np.float32), np.zeros((64, 8), np.uint16)

    def kernel(x, bits):
        numbered(16).store_global(x[:, ::2], 10, 4)
        numbered(16).store_global(x[:, 1::2], -60, -12)
        numbered(8, "bf16").store_global(bits, 0, 0)

    run(kernel, x, bits)
    row, column = np.indices((64, 16))
    values = 4 * row + column % 4
    expected = np.zeros_like(x)
    expected[10:, 8::2] = values[:60, :6]
    expected[:4, 1:9:2] = values[60:, 12:]
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(bits, values[:, :8].astype(BF16).view(np.uint16))


def test_stores_are_checked_like_any_write():
    def to_global(y, fence):
        tile = tma.shared_tile(SQUARE)
        numbered(64, "bf16").store(tile, (0, 0))
        if fence:
            tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(tile, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    y = np.zeros((64, 64), BF16)
    y_map = tma.tensor_map(y, SQUARE)
    run(to_global, y_map, True)
    row, column = np.indices(y.shape)
    np.testing.assert_array_equal(y, (4 * row + column % 4).astype(BF16))
    text = fails(sim.MissingFence, to_global, y_map, False)
    assert "without a fence_proxy_async() between its write" in text

    def into_a_load(x):
        barrier = started()
        tile = tma.shared_tile(SQUARE)
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(SQUARE.nbytes)
            x.load(tile, (0, 0), barrier)
        cuda.syncthreads()
        numbered(64, "bf16").store(tile, (0, 0))
        barrier.wait(0)

    text = fails(sim.EarlyOverwrite, into_a_load, y_map)
    assert "overwritten before the load that fills them" in text

    def into_a_product():
        tile = zeros(SQUARE)
        acc = tma.wgmma(tma.fragment(64), tile.matrix_descriptor(), tile.matrix_descriptor())
        numbered(32, "bf16").store(tile, (0, 32))
        tma.wgmma_wait(acc)

    text = fails(sim.EarlyOverwrite, into_a_product)
    assert "a write to bytes that a wgmma" in text


def test_arithmetic():
    out = np.zeros((6, 64, 8), np.float32)

    def kernel(out):
        f = numbered(8)
        g = f + 1
        r = tma.rows(3.0).map(lambda number, i: np.float32(number + i), 1)  # 4
        out_of = (f + g, 2 - f * np.float32(0.5), g / 2, 1 / g, (f - r) * r, r + g)
        for i, result in enumerate(out_of):
            result.store_global(out[i], 0, 0)
        h = f
        h *= 2
        assert h[0] == 2 * f[0]  # f is as it was

    run(kernel, out)
    row, column = np.indices((64, 8))
    f = (4 * row + column % 4).astype(np.float32)
    g = f + 1
    expected = [f + g, 2 - f / 2, g / 2, 1 / g, (f - 4) * 4, g + 4]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))


def test_narrow_floats_are_rounded_once_for_each_operation():
    out = np.zeros((64, 8), BF16)
    run(lambda out: ((numbered(8, "bf16") * 3 + 0.5) / 7).store_global(out, 0, 0), out)
    row, column = np.indices((64, 8))
    expected = (4 * row + column % 4).astype(BF16)
    for operation in (lambda x: x * 3, lambda x: x + 0.5, lambda x: x / 7):
        expected = operation(expected.astype(np.float32)).astype(BF16)
    np.testing.assert_array_equal(out, expected)


def test_maps_get_what_belongs_to_the_element():
    out, bias = np.zeros((64, 16), np.float32), np.arange(16, dtype=np.float32)

    def kernel(out, bias):
        f, ones = numbered(16), tma.fragment(16, "f16").map(lambda value: np.float32(1))
        f = f.map(lambda value, one, maximum, number: value + one + maximum + number,
                  ones, f.row_max(), 5)  # fmt: skip
        f = f.map_coords(lambda value, row, column, bias: value - row + bias[column], bias)
        f.store_global(out, 0, 0)

    run(kernel, out, bias)
    row, column = np.indices((64, 16))
    expected = 4 * row + column % 4 + 1 + (4 * row + 3) + 5 - row + column
    np.testing.assert_array_equal(out, expected)


def test_reductions_of_rows():
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    values[3, 5] = np.nan
    found, own = np.zeros((64, 2), np.float32), np.zeros((64, 4), np.float32)

    def kernel(values, found, own):
        f = tma.fragment(32).map_coords(lambda value, row, column, x: x[row, column], values)
        largest, total = f.row_max(), f.row_sum()
        part = f.row_sum(quad=False)
        lane = cuda.threadIdx.x % 4
        for i in range(2):
            row = largest.coords(i)
            found[row] = largest[i], total[i]
            own[row, lane] = part[i]
        assert np.array_equal(part.quad_sum()[0], total[0], equal_nan=True)
        assert f.row_max(quad=False).quad_max()[1] == largest[1]

    run(kernel, values, found, own)
    np.testing.assert_array_equal(found[:, 0], np.nanmax(values, axis=1))
    np.testing.assert_allclose(found[:, 1], values.sum(axis=1), rtol=1e-5, atol=1e-6)
    parts = values.reshape(64, 4, 4, 2).sum(axis=(1, 3))
    np.testing.assert_allclose(own, parts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "e5m2"])
def test_conversions(dtype):
    numpy = as_dtype(dtype).numpy
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32) * 100
    values[0, 0] = 1e6
    out, back = np.zeros((64, 32), numpy), np.zeros((64, 32), np.float32)

    def kernel(values, out, back):
        f = tma.fragment(32).map_coords(lambda value, row, column, x: x[row, column], values)
        f.to(dtype).store_global(out, 0, 0)
        if as_dtype(dtype).itemsize > 1:
            f.to(dtype).to("f32").store_global(back, 0, 0)

    run(kernel, values, out, back)
    limit = float(ml_dtypes.finfo(numpy).max) if as_dtype(dtype).itemsize == 1 else np.inf
    with np.errstate(over="ignore"):
        expected = np.clip(values, -limit, limit).astype(numpy)
    np.testing.assert_array_equal(out, expected)
    if as_dtype(dtype).itemsize > 1:
        np.testing.assert_array_equal(back, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
def test_some_columns(dtype):
    values = np.random.default_rng(0).integers(-8, 9, (64, 64)).astype(np.float32)
    out = np.zeros((64, 32), as_dtype(dtype).numpy)

    def kernel(values, out):
        f = tma.fragment(64).map_coords(lambda value, row, column, x: x[row, column], values)
        f.to(dtype).columns(16, 32).store_global(out, 0, 0)

    run(kernel, values, out)
    np.testing.assert_array_equal(out.astype(np.float32), values[:, 16:48])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda: tma.fragment(12), "fragment: n is 12; a fragment of f32 has 8 to 256 columns"),
        (lambda: tma.fragment(8, "f64"), "fragment: dtype is 'f64'; a fragment holds one of f32"),
        (lambda: tma.fragment(8)[4], "each thread holds elements 0 to 3"),
        (lambda: tma.fragment(8).coords(4), "each thread holds elements 0 to 3"),
        (lambda: tma.fragment(8).coords(-1), "each thread holds elements 0 to 3"),
        (lambda: tma.rows(1)[2], "each thread holds rows 0 and 1"),
        (lambda: tma.rows(1).coords(2), "each thread holds rows 0 and 1"),
        (
            lambda: tma.fragment(8) + tma.fragment(16),
            "Fragment(64 x 8, f32) and Fragment(64 x 16, f32)",
        ),
        (lambda: tma.fragment(16).map(max, tma.fragment(16, "u8")), "do not go together"),
        (lambda: tma.fragment(16, "e4m3").to("f32"), "fragments of e4m3 are operands only"),
        (lambda: tma.fragment(16).columns(4, 8), "Fragment.columns(4, 8) of 64 x 16, f32: both"),
        (lambda: tma.fragment(8).to("i32"), "dtype is 'i32'; fragments are converted to f32, f16"),
        (lambda: tma.fragment(8, "i32") / 2, "a division of integers: convert them first"),
        (
            lambda: tma.fragment(16, "i8").row_sum(),
            "Fragment(64 x 16, i8) has no reduction: convert",
        ),
        (
            lambda: tma.fragment(8).store_global(np.zeros((8, 8)), 0, 0),
            "array of f32, not one of float64 with 2 axes",
        ),
        (lambda: tma.fragment(8).to("e4m3"), "has 16 to 256 columns, a multiple of 16"),
        (
            lambda: tma.fragment(8).store(tma.shared_tile(SQUARE), (0, 0)),
            "the fragment of f32: use",
        ),
        (
            lambda: tma.fragment(8, "bf16").store(tma.shared_tile(SQUARE), (8, 0)),
            "a fragment of 64 x 8 from row 8 on does not fit a tile of 64 x 64",
        ),
        (
            lambda: tma.load_fragment(tma.shared_tile(SQUARE), (0, 4), 8),
            "the column is 4; rows are moved 16 B at a time: use a multiple of 8",
        ),
        (lambda: tma.load_rows(tma.shared_tile(SQUARE), 0), "rows have a float32 each: use a tile"),
        (
            lambda: tma.load_rows(tma.shared_tile(Tile(64, "f32")), 8),
            "64 rows from 8 on are not in",
        ),
        (lambda: tma.wgmma_wait(3), "takes a fragment or a tuple of them, not 3"),
        (lambda: tma.wgmma_wait(tma.fragment(8), 8), "pending is 8; wait until at most 0 to 7"),
    ],
)
def test_mistakes_with_fragments(body, said):
    assert said in fails(sim.BadOperand, body)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: tma.wgmma(d, d, d), "wgmma(acc, a, b): acc is a fragment and b a matrix desc"),
        (lambda d: tma.wgmma(tma.fragment(64), d, 3), "wgmma(acc, a, b): acc is a fragment and"),
        (lambda d: tma.wgmma_wait(d), "wgmma_wait(fragments=...) takes a fragment or a tuple of"),
        (lambda d: tma.wgmma_wait((tma.fragment(8), 3)), "wgmma_wait(fragments=...) takes a frag"),
        (
            lambda d: tma.wgmma_wait(tma.fragment(8), after=3),
            "wgmma_wait(after=...) takes rows of float32, not 3",
        ),
        (lambda d: tma.shared_barriers(3)[3], "barriers[3]: the array has the barriers 0 to 2"),
        (lambda d: tma.shared_barriers(3)[-1], "barriers[-1]: the array has the barriers 0 to 2"),
        (
            lambda d: mma_sync(tma.fragment(16), zero_part("a", "bf16", 128), d),
            "mma_sync(sums=...) takes a tuple of 2 fragments, one for each 64 rows of a, not",
        ),
        (
            lambda d: load_part("a", tma.shared_tile(SQUARE), 4, 64, 0),
            "load_part: row is 4; parts of",
        ),
    ],
)
def test_what_is_no_operand(call, text):
    assert text in fails(
        sim.BadOperand, lambda: call(tma.shared_tile(SQUARE).matrix_descriptor())
    )


def test_what_is_kept_for_later_calls_cannot_be_written():
    tile = tma.Tile((64, 64), "f32")
    for kept in (
        *fragments._places(64, 4, 5),
        fragments._halves(64, 2),
        fragments._offsets(tile, 0, 0, 64, 4, 5),
        products.scattered(np.zeros((64, 8), np.float32), 4),
    ):
        with pytest.raises(ValueError, match="read-only"):
            kept[...] = 0


K_MAJOR = tma.Tile((64, 64), "bf16", tma.Swizzle.B128)


@pytest.mark.parametrize(
    ("tile", "major", "rows", "steps"),
    [
        (K_MAJOR, "K", 64, 4), (K_MAJOR, "K", 64, 1), (K_MAJOR, "K", 8, 1), (K_MAJOR, "MN", 64, 4),
        (K_MAJOR, "MN", 64, 1), (tma.Tile((64, 32), "bf16", tma.Swizzle.B64), "K", 64, 1),
        (tma.Tile((4, 64, 8), "bf16"), "K", 64, 1), (tma.Tile((4, 64, 8), "bf16"), "K", 16, 2),
    ],
)  # fmt: skip
def test_the_runs_of_an_operand_are_its_bytes(tile, major, rows, steps):
    layout = MatrixLayout(tile, major)
    operand = products.SharedOperand(layout.descriptor(1024), layout)
    addresses, runs = products.bytes_of(operand, rows, steps)
    assert addresses.shape == (rows, 16 * steps)
    held = [byte for start, nbytes in runs for byte in range(start, start + nbytes)]
    assert held == sorted({int(a) + i for a in addresses.flat for i in range(2)})
    ends = [start + nbytes for start, nbytes in runs]
    assert all(end < start for end, (start, _) in zip(ends, runs[1:]))  # as few runs as there are
