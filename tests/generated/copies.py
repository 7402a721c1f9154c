"""Programs with tiles and barriers of their own, and programs without copies."""

from __future__ import annotations

from tests.generated.draws import BYTES, Draw, array, family, tile, typed
from tests.generated.program import Program


@family(5)
def bare(rng: Draw) -> Program:
    """A tile and a barrier of the kernel's own; a store or a reduction back."""
    shape, dtype, rows, columns = tile(rng, "f32 i32 f16")
    how = rng.choice(["store", "reduce"])
    wait = rng.choice(["full.wait(0)", "while not full.try_wait(0):\n        pass"])
    back = {
        "store": "out.store(here, $out_coords)",
        "reduce": 'out.reduce(here, $out_coords, "$op")',
    }
    text = f"""\
@cuda.jit
def kernel(x, out, y):
    $start
    here, full = tma.shared_tile($made), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init($count)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx($bytes)
        $map.load($tile, $coords, $barrier)
    {wait}
    $use
    for i in range(cuda.threadIdx.x, {rows * columns}, 32):
        here[i // {columns}, i % {columns}] = here[i // {columns}, i % {columns}] + y[0, 0]
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        {back[how]}
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group($groups)
"""
    launch = f"""\
{array("a", rows * 2, columns, dtype)}
out, y = np.ones_like(a), np.ones((1, 1), a.dtype)
kernel[1, 32](tma.tensor_map(a, TILE), tma.tensor_map(out, TILE), y)
expected = np.ones_like(a)
expected[:{rows}] {"+=" if how == "reduce" else "="} a[{rows}:] + 1
assert np.array_equal(out, expected)
"""
    holes = {
        "map": "x", "tile": "here", "coords": f"({rows}, 0)", "barrier": "full", "made": "TILE",
        "out_coords": "(0, 0)", "count": "1", "bytes": "TILE.nbytes", "groups": "0",
    }  # fmt: skip
    if how == "reduce":
        holes["op"] = "add"
    map_type = "tma.TensorMapType(2, TILE)"
    return Program(
        how, f"TILE = {shape}", text, launch, f"({map_type}, {map_type}, {typed(dtype)})", holes
    )


@family(2)
def bulk(rng: Draw) -> Program:
    """Contiguous bytes in, and out again."""
    dtype, columns = rng.choice(["f32", "i32"]), rng.choice([32, 64])
    nbytes = columns * BYTES[dtype]
    text = f"""\
@cuda.jit
def kernel(x, y):
    $start
    here, full = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx($bytes)
        ptx.cp_async_bulk_load($tile, $source, {nbytes}, $barrier)
    cuda.syncthreads()
    full.wait(0)
    $use
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.cp_async_bulk_store($destination, here, {nbytes})
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group($groups)
"""
    launch = f"""\
{array("a", 2, columns, dtype)}
y = np.zeros_like(a)
kernel[1, 32](a, y)
assert np.array_equal(y[0], a[1])
"""
    holes = {
        "tile": "here", "barrier": "full", "bytes": f"{nbytes}", "groups": "0",
        "source": "x[1]", "destination": "y[0]",
    }  # fmt: skip
    objects = f'TILE = tma.Tile((1, {columns}), "{dtype}")'
    return Program("bulk", objects, text, launch, f"({typed(dtype)}, {typed(dtype)})", holes)


@family(2)
def multicast(rng: Draw) -> Program:
    """Two blocks of a cluster, of which one loads for both."""
    shape, dtype, rows, columns = tile(rng, "f32 i32")
    text = f"""\
@cuda.jit
@tma.cluster($cluster)
def kernel(x, y):
    $start
    here, full = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(TILE.nbytes)
    tma.cluster_sync()
    if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
        $map.load($tile, $coords, $barrier, multicast=$mask)
    full.wait(0)
    $use
    for i in range(cuda.threadIdx.x, {rows * columns}, 32):
        row, column = i // {columns}, i % {columns}
        y[cuda.blockIdx.x * {rows} + row, column] = here[row, column]
    tma.cluster_sync()
"""
    launch = f"""\
{array("a", rows, columns, dtype)}
y = np.zeros((2 * {rows}, {columns}), a.dtype)
kernel[2, 32](tma.tensor_map(a, TILE), y)
assert np.array_equal(y, np.concatenate([a, a]))
"""
    holes = {
        "map": "x", "tile": "here", "coords": "(0, 0)", "barrier": "full", "mask": "3",
        "cluster": "(2, 1)",
    }  # fmt: skip
    signature = f"(tma.TensorMapType(2, TILE), {typed(dtype)})"
    return Program("multicast", f"TILE = {shape}", text, launch, signature, holes)


@family(2)
def walk(rng: Draw) -> Program:
    """The tiles of a scheduler."""
    made = rng.choice(["GridStridedScheduler()", "GroupedScheduler(2)", "HilbertScheduler()"])
    rows, columns, blocks = rng.randrange(1, 6), rng.randrange(1, 6), rng.randrange(1, 4)
    text = """\
@cuda.jit
def kernel(y, n):
    $start
    for tile in ORDER.over($rows, $columns).tiles():
        $use
        if cuda.threadIdx.x == 0:
            y[tile.row, tile.column] += 1
"""
    launch = f"""\
y = np.zeros(({rows}, {columns}), np.int32)
kernel[{blocks}, 32](y, 1)
assert (y == 1).all()
"""
    holes = {"rows": f"{rows}", "columns": f"{columns}"}
    objects = f"ORDER = tma.{made}\nTILE = tma.Tile((4, 32), 'f32')"
    return Program("walk", objects, text, launch, f"({typed('i32')}, types.int64)", holes)


@family(2)
def meetings(rng: Draw) -> Program:
    """Warps that meet at a named barrier, a role's barrier or an mbarrier."""
    text = """\
@cuda.jit
def kernel(x, y):
    $start
    words, full = tma.shared_tile(TILE), tma.shared_barriers(2)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        full[0].init(1)
        full[1].init($count)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if warp == 0:
        words[0, lane] = x[0, lane]
        $first_meets
        cuda.syncwarp()
        if lane == 0:
            full[1].arrive()
    else:
        $second_meets
        full[1].wait($parity)
        $use
        y[0, lane] = words[0, 31 - lane]
"""
    how = rng.choice(["pass", "NAMED.sync()"])
    launch = f"""\
{array("a", 1, 32, "f32")}
y = np.zeros_like(a)
kernel[1, 64](a, y)
assert np.array_equal(y, a[:, ::-1])
"""
    holes = {"count": "1", "parity": "0", "first_meets": how, "second_meets": how}
    objects = "TILE = tma.Tile((1, 32), 'f32')\nNAMED = tma.NamedBarrier(8, 64)"
    return Program("meetings", objects, text, launch, f"({typed('f32')}, {typed('f32')})", holes)


@family(1)
def products(rng: Draw) -> Program:
    """A product of one warpgroup."""
    columns = rng.choice([8, 16])
    text = f"""\
@cuda.jit
def kernel(a, b, y):
    $start
    here, there, full = tma.shared_tile(TILE), tma.shared_tile(RIGHT), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(TILE.nbytes + RIGHT.nbytes)
        a.load($tile, $coords, $barrier)
        b.load(there, (0, 0), full)
    cuda.syncthreads()
    full.wait(0)
    acc = tma.fragment({columns})
    acc = tma.wgmma(acc, here.matrix_descriptor($major), there.matrix_descriptor())
    acc = tma.wgmma_wait(acc)
    $use
    acc.store_global(y, 0, 0)
"""
    launch = f"""\
{array("a", 64, 64, "f16")}
a = (a % 5).astype(np.float16)
b, y = a[:{columns}].copy(), np.zeros((64, {columns}), np.float32)
kernel[1, 128](tma.tensor_map(a, TILE), tma.tensor_map(b, RIGHT), y)
assert np.array_equal(y, a.astype(np.float32) @ b.T.astype(np.float32))
"""
    objects = (
        'TILE = tma.Tile((64, 64), "f16", tma.Swizzle.B128)\n'
        f'RIGHT = tma.Tile(({columns}, 64), "f16", tma.Swizzle.B128)'
    )
    holes = {"tile": "here", "coords": "(0, 0)", "barrier": "full", "major": '"K"'}
    signature = f"(tma.TensorMapType(2, TILE), tma.TensorMapType(2, RIGHT), {typed('f32')})"
    return Program("products", objects, text, launch, signature, holes)
