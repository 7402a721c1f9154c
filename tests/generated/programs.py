"""Valid programs: a family each, of which a random number generator draws shapes and forms."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from textwrap import indent
from typing import Any

from tests.generated.program import Program

DTYPES = {"f32": "float32", "f16": "float16", "i32": "int32", "u8": "uint8", "f64": "float64"}
BYTES = {"f32": 4, "f16": 2, "i32": 4, "u8": 1, "f64": 8}

FAMILIES: list[tuple[int, Callable[[Draw], Program]]] = []


def family(weight: int) -> Callable[[Callable[[Draw], Program]], Callable[[Draw], Program]]:
    """Enter a family with the number of its tickets in the draw."""

    def enter(make: Callable[[Draw], Program]) -> Callable[[Draw], Program]:
        FAMILIES.append((weight, make))
        return make

    return enter


def draw(rng: Draw) -> Program:
    """Draw a program."""
    weights, makers = zip(*FAMILIES)
    return rng.choices(makers, weights)[0](rng)


def tile(rng: Draw, dtypes: str = "f32 f16 i32 u8 f64") -> tuple[str, str, int, int]:
    """Return a tile as source, its element type, rows and columns."""
    if rng.block == 0:
        return 'tma.Tile((4, 32), "f32", tma.Swizzle.NONE)', "f32", 4, 32
    shared = Random(f"{rng.block} {dtypes}")
    dtype = shared.choice(dtypes.split())
    swizzles = {"NONE": 64, "B32": 32, "B64": 64, "B128": 128}
    name = shared.choice(["NONE", "NONE", "B128", *swizzles])
    rows, columns = shared.choice([2, 4, 8]), swizzles[name] // BYTES[dtype]
    if name == "NONE":
        columns = shared.choice([16, 32])
    return f'tma.Tile(({rows}, {columns}), "{dtype}", tma.Swizzle.{name})', dtype, rows, columns


class Draw(Random):
    """The draws of one program. Programs of one block share objects, which compile once."""

    def __init__(self, number: int, block: int) -> None:
        super().__init__(number)
        self.block = block


def few(rng: Draw, options: list[Any]) -> list[Any]:
    """Return the one option of an object that the programs of a block share."""
    return [Random(f"{rng.block} {options}").choice(options) if rng.block else options[0]]


def array(name: str, rows: int, columns: int, dtype: str) -> str:
    """Return the statement that makes an array of small numbers."""
    return (
        f"{name} = (np.arange({rows * columns}) % 113)"
        f".reshape({rows}, {columns}).astype(np.{DTYPES[dtype]})"
    )


def typed(dtype: str) -> str:
    return f"types.{DTYPES[dtype]}[:, ::1]"


# --------------------------------------------------------------------------- TilePipeline


@family(8)
def ring(rng: Draw) -> Program:
    """Loads by a producer warp, reads by a consumer warp, in a form that is drawn."""
    shape, dtype, rows, columns = tile(rng)
    tiles, stages = rng.randrange(2, 6), rng.choice(few(rng, [2, 3]))
    first, stop, step = rng.choice([("0", "n", "1"), ("n - 1", "-1", "-1"), ("1", "n", "2")])
    with_roles = rng.choice(few(rng, [False, True]))
    roles = "ROLES = tma.Roles(work=tma.Warps(1), load=tma.Warps(1), spare=tma.Warps(1))\n"
    sides = ", producer=ROLES.load, consumer=ROLES.work" if with_roles else ""
    objects = (
        f"TILE = {shape}\n{roles}SPARE = tma.TilePipeline(2, x=TILE)\n"
        f"PIPE = tma.TilePipeline({stages}, x=TILE{sides})"
    )
    at = f"i // {columns}, i % {columns}"
    body = {
        "elements": (
            f"for i in range(cuda.threadIdx.x, {rows * columns}, 32):\n"
            f"    y[t * {rows} + {at}] = stage.x[{at}]"
        ),
        "in place": (
            f"stage.x[0, cuda.threadIdx.x % {columns}] = stage.x[0, cuda.threadIdx.x % {columns}]\n"
            "pipe.sync_consumers()\n"
            f"for i in range(cuda.threadIdx.x, {rows * columns}, 32):\n"
            f"    y[t * {rows} + {at}] = stage.x[{at}]"
        ),
        "vectors": (
            f"for i in range(cuda.threadIdx.x, {rows}, 32):\n"
            f"    for j in range(0, {columns}, {16 // BYTES[dtype]}):\n"
            "        v = stage.x.read_vector((i, j))\n"
            + "".join(
                f"        y[t * {rows} + i, j + {k}] = v[{k}]\n" for k in range(16 // BYTES[dtype])
            )
        ),
    }
    kind = rng.choice(list(body)) if dtype in ("f32", "i32") else "elements"
    work = f"$use\n{body[kind]}"
    load = "$map.load($tile, $coords, $barrier)\n$elected"
    form = rng.choice(["loop", "loop", "loop", "explicit", "scopes"])
    if form == "explicit":  # a forgotten release shows when the stages are used again
        tiles, first, stop, step = tiles + 3, "0", "n", "1"
    producer, consumer, decorators = _FORMS[form]
    text = (
        f"@cuda.jit\n{decorators}def kernel(x, y, n):\n"
        "    $start\n    pipe = PIPE.start()\n"
        f"    if pipe.is_producer():\n{indent(_into(load, producer), ' ' * 8)}\n"
        f"    elif $is_consumer:\n{indent(_into(work, consumer), ' ' * 8)}"
    )
    made = [f"{array('a', rows * tiles, columns, dtype)}", f"y, n = np.zeros_like(a), {tiles}"]
    ran = f"range({first}, {stop}, {step})"
    launch = (
        "\n".join(made)
        + f"\nkernel[1, {96 if with_roles else 64}](tma.tensor_map(a, TILE), y, n)\n"
        + f"expected = np.zeros_like(a)\nfor t in {ran}:\n"
        + f"    expected[t * {rows} : (t + 1) * {rows}] = a[t * {rows} : (t + 1) * {rows}]\n"
        + "assert np.array_equal(y, expected)"
    )
    holes = {
        "map": "x",
        "tile": "stage.x",
        "coords": f"(t * {rows}, 0)",
        "barrier": "stage.barrier",
        "is_consumer": "pipe.is_consumer()",
    }
    if form == "loop":
        holes |= {"first": first, "stop": stop, "step": step, "in_flight": "0"}
    else:
        text = text.replace("$first", first).replace("$stop", stop).replace("$step", step)
    if form == "explicit":
        holes |= {"release": "consumer.release()"}
    if form == "scopes":
        holes |= {"scopes": "@tma.scopes"}
    return Program(
        f"ring {form}", objects, text, launch,
        f"(tma.TensorMapType(2, TILE), {typed(dtype)}, types.int64)", holes,
    )  # fmt: skip


def _into(code: str, text: str) -> str:
    """Return `text` with code in place of the line LOAD or WORK, at its indentation."""
    (line,) = (line for line in text.splitlines() if line.strip() in ("LOAD", "WORK"))
    return text.replace(line, indent(code, line[: -len(line.strip())]))


_FORMS = {
    "loop": (
        "for t, stage in pipe.produce($first, $stop, $step):\n    LOAD",
        "for t, stage in pipe.consume($first, $stop, $step, in_flight=$in_flight):\n    WORK",
        "",
    ),
    "explicit": (
        "producer = pipe.producer()\n"
        "if producer.enters():\n"
        "    for t in range($first, $stop, $step):\n"
        "        stage = producer.acquire()\n"
        "        LOAD\n"
        "        producer.commit()",
        "consumer = pipe.consumer()\n"
        "for t in range($first, $stop, $step):\n"
        "    stage = consumer.wait()\n"
        "    WORK\n"
        "    $release",
        "",
    ),
    "scopes": (
        "with pipe.producer() as producer:\n"
        "    for t in range($first, $stop, $step):\n"
        "        with producer.acquire() as stage:\n"
        "            LOAD",
        "with pipe.consumer() as consumer:\n"
        "    for t in range($first, $stop, $step):\n"
        "        with consumer.acquire() as stage:\n"
        "            WORK",
        "$scopes\n",
    ),
}


@family(2)
def threads_fill(rng: Draw) -> Program:
    """Stages that the producer's threads write."""
    _, dtype, rows, columns = tile(rng, "f32 i32")
    tiles, how = rng.randrange(2, 5), rng.choice(few(rng, ["threads", "cp_async"]))
    objects = (
        f'TILE = tma.Tile(({rows}, 32), "{dtype}")\n'
        f'PIPE = tma.TilePipeline(2, x=TILE, filled_by="{how}")'
    )
    fill = f"for i in range({rows}):\n                stage.x[i, lane] = x[t * {rows} + i, lane]"
    if how == "cp_async":
        fill = (
            f"for i in range({rows}):\n"
            "                ptx.cp_async_ca(stage.x.address_of((i, lane)), "
            f"x[t * {rows} + i, lane:], 4)"
        )
    text = f"""\
@cuda.jit
def kernel(x, y, n):
    $start
    pipe = PIPE.start()
    lane = cuda.threadIdx.x % 32
    if pipe.is_producer():
        for t, stage in pipe.produce($first, $stop, $step):
            {fill}
    else:
        for t, stage in pipe.consume($first, $stop, $step, in_flight=$in_flight):
            $use
            for i in range({rows}):
                y[t * {rows} + i, lane] = stage.x[i, lane] + stage.x[i, (lane + 1) % 32]
    pipe.close()
"""
    launch = f"""\
{array("a", rows * tiles, 32, dtype)}
y, n = np.zeros_like(a), {tiles}
kernel[1, 64](a, y, n)
assert np.array_equal(y, a + np.roll(a, -1, 1))
"""
    holes = {"first": "0", "stop": "n", "step": "1", "in_flight": "0"}
    return Program(
        f"filled by {how}", objects, text, launch,
        f"({typed(dtype)}, {typed(dtype)}, types.int64)", holes,
    )  # fmt: skip


# --------------------------------------------------------------------------- without a pipeline


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


# --------------------------------------------------------------------------- other pipelines


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


# --------------------------------------------------------------------------- without copies


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
