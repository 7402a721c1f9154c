"""Programs of the other pipelines."""

from __future__ import annotations

from tests.generated.draws import Draw, array, family, few, tile, typed
from tests.generated.program import Program


@family(2)
def stores(rng: Draw) -> Program:
    """A StorePipeline of one role."""
    shape, dtype, rows, columns = tile(rng, "f32 i32")
    stages, tiles = rng.choice(few(rng, [2, 1, 3])), rng.randrange(2, 5)
    text = f"""\
@cuda.jit
def kernel(x, out, n):
    $start
    ring = PIPE.start()
    for t, stage in ring.stages($first, $stop, $step):
        $use
        for i in range(cuda.threadIdx.x, {rows * columns}, 32):
            stage.y[i // {columns}, i % {columns}] = x[t * {rows} + i // {columns}, i % {columns}]
        ring.store(out, $tile, $coords)
    ring.tail()
"""
    launch = f"""\
{array("a", rows * tiles, columns, dtype)}
out, n = np.zeros_like(a), {tiles}
kernel[1, 32](a, tma.tensor_map(out, TILE), n)
assert np.array_equal(out, a)
"""
    holes = {
        "first": "0", "stop": "n", "step": "1", "tile": "stage.y", "coords": f"(t * {rows}, 0)"
    }  # fmt: skip
    objects = f"TILE = {shape}\nPIPE = tma.StorePipeline({stages}, y=TILE)"
    signature = f"({typed(dtype)}, tma.TensorMapType(2, TILE), types.int64)"
    return Program("stores", objects, text, launch, signature, holes)


@family(3)
def circular(rng: Draw) -> Program:
    """A CircularBuffer."""
    shape, dtype, rows, columns = tile(rng, "f32 i32")
    stages, tiles = rng.choice(few(rng, [2, 3])), rng.randrange(2, 6)
    prefetch = rng.choice(few(rng, [1, 0, stages - 1]))
    war = rng.choice(few(rng, ["sync", "mbarrier"]))
    text = f"""\
@cuda.jit
def kernel(x, y, n):
    $start
    ring = PIPE.start()
    for t, stage in ring.tiles($first, $stop, $step):
        for ahead, slot in ring.loads():
            $map.load($tile, $coords, $barrier)
        full = stage.wait()
        $use
        for i in range(cuda.threadIdx.x, {rows * columns}, 64):
            y[t * {rows} + i // {columns}, i % {columns}] = full.x[i // {columns}, i % {columns}]
    ring.close()
"""
    launch = f"""\
{array("a", rows * tiles, columns, dtype)}
y, n = np.zeros_like(a), {tiles}
kernel[1, 64](tma.tensor_map(a, TILE), y, n)
assert np.array_equal(y, a)
"""
    holes = {
        "map": "x", "tile": "slot.x", "coords": f"(ahead * {rows}, 0)", "barrier": "slot.barrier",
        "first": "0", "stop": "n", "step": "1",
    }  # fmt: skip
    objects = (
        f'TILE = {shape}\nPIPE = tma.CircularBuffer({stages}, {prefetch}, x=TILE, war="{war}")'
    )
    signature = f"(tma.TensorMapType(2, TILE), {typed(dtype)}, types.int64)"
    return Program("circular", objects, text, launch, signature, holes)


@family(1)
def outputs(rng: Draw) -> Program:
    """An OutputTilePipeline in shared memory."""
    tiles = rng.randrange(2, 4)
    text = """\
@cuda.jit
def kernel(x, y, n):
    $start
    out = PIPE.start()
    lane = cuda.threadIdx.x % 32
    if ROLES.mma.is_member():
        for t, stage in out.produce($first, $stop, $step):
            $use
            for i in range(4):
                stage.acc[i, lane] = x[4 * t + i, lane]
    elif ROLES.epilogue.is_member():
        for t, stage in out.consume($first, $stop, $step):
            for i in range(4):
                y[4 * t + i, lane] = stage.acc[i, 31 - lane]
    out.close()
"""
    launch = f"""\
{array("a", 4 * tiles, 32, "f32")}
y, n = np.zeros_like(a), {tiles}
kernel[1, 64](a, y, n)
assert np.array_equal(y, a[:, ::-1])
"""
    objects = (
        "ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(1))\n"
        'TILE = tma.Tile((4, 32), "f32")\n'
        f"PIPE = tma.OutputTilePipeline({rng.choice(few(rng, [2, 1]))}, TILE, mma=ROLES.mma, "
        "epilogue=ROLES.epilogue)"
    )
    holes = {"first": "0", "stop": "n", "step": "1"}
    return Program(
        "outputs", objects, text, launch, f"({typed('f32')}, {typed('f32')}, types.int64)", holes
    )


@family(1)
def keys_and_values(rng: Draw) -> Program:
    """A KVPipeline whose tiles are read by threads."""
    tiles = rng.randrange(2, 4)
    text = """\
@cuda.jit
def kernel(k, v, y, n):
    $start
    kv = PIPE.start()
    if ROLES.load.is_member():
        load = kv.producer()
        if load.enters():
            for t in range(n):
                load.acquire_k(0)
                barrier, tile = load.get_k($part)
                $elected
                k.load($tile, $coords, $barrier)
                load.commit_step()
                load.acquire_v()
                barrier, tile = load.get_v()
                v.load(tile, (t * 16, 0), barrier)
                load.commit_step()
    else:
        use, lane = kv.consumer(), cuda.threadIdx.x
        for t in range(n):
            use.wait_k(0)
            y[2 * t, lane] = use.get_k_tile(0)[lane % 16, lane]
            use.release_k(0)
            use.wait_v()
            y[2 * t + 1, lane] = use.get_v_tile()[lane % 16, lane]
            use.release_v()
            $use
    kv.close()
"""
    launch = f"""\
{array("a", 16 * tiles, 64, "f16")}
y, n, lane = np.zeros(({2 * tiles}, 32), a.dtype), {tiles}, np.arange(32)
kernel[1, 64](tma.tensor_map(a, PIPE.k_tile), tma.tensor_map(a + 1, PIPE.v_tile), y, n)
for t in range(n):
    assert np.array_equal(y[2 * t], a[16 * t + lane % 16, lane])
    assert np.array_equal(y[2 * t + 1], a[16 * t + lane % 16, lane] + 1)
"""
    objects = (
        "ROLES = tma.Roles(use=tma.Warps(1), load=tma.Warps(1))\n"
        f'PIPE = tma.KVPipeline({rng.choice(few(rng, [2, 3]))}, 16, 64, "f16", 1, '
        "producer=ROLES.load, consumer=ROLES.use)\nTILE = PIPE.k_tile"
    )
    holes = {"part": "0", "tile": "tile", "coords": "(t * 16, 0)", "barrier": "barrier"}
    signature = (
        "(tma.TensorMapType(2, PIPE.k_tile), tma.TensorMapType(2, PIPE.v_tile), "
        f"{typed('f16')}, types.int64)"
    )
    return Program("keys and values", objects, text, launch, signature, holes)
