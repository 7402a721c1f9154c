"""Programs of a TilePipeline."""

from __future__ import annotations

from textwrap import indent

from tests.generated.draws import BYTES, Draw, array, family, few, tile, typed
from tests.generated.program import Program


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
            f"if cuda.threadIdx.x < {columns}:\n"
            "    stage.x[0, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]\n"
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


@family(1)
def windows(rng: Draw) -> Program:
    """Windows of a stream, whose sides are drawn."""
    shape, dtype, rows, columns = tile(rng, "f32 i32")
    before, after = rng.choice(few(rng, [(1, 1), (2, 0), (0, 1)]))
    tiles, back = rng.randrange(2, 6), rng.choice([True, False])
    first, stop, step = ("n - 1", "-1", "-1") if back else ("0", "n", "1")
    bounds = "$first, $stop, $step, before=$before, after=$after"
    at = f"i // {columns}, i % {columns}"
    text = f"""\
@cuda.jit
def kernel(x, y, n):
    $start
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce_windows({bounds}):
            $map.load($tile, $coords, $barrier)
            $elected
    else:
        for t, window in pipe.windows({bounds}):
            $use
            for i in range(cuda.threadIdx.x, {rows * columns}, 32):
                y[t * {rows} + {at}] = window[$distance].x[{at}] + window[{after}].x[{at}]
    pipe.close()
"""
    launch = f"""\
{array("a", rows * tiles, columns, dtype)}
y, n = np.zeros_like(a), {tiles}
kernel[1, 64](tma.tensor_map(a, TILE), y, n)
sides = np.pad(a, (({before * rows}, {after * rows}), (0, 0)))
assert np.array_equal(y, sides[: a.shape[0]] + sides[{(before + after) * rows} :])
"""
    holes = {
        "map": "x", "tile": "stage.x", "coords": f"(t * {rows}, 0)", "barrier": "stage.barrier",
        "first": first, "stop": stop, "step": step,
        "before": f"{before}", "after": f"{after}", "distance": f"{-before}",
    }  # fmt: skip
    stages = before + 1 + after + rng.choice(few(rng, [1, 0]))
    return Program(
        "windows", f"TILE = {shape}\nPIPE = tma.TilePipeline({stages}, x=TILE)", text, launch,
        f"(tma.TensorMapType(2, TILE), {typed(dtype)}, types.int64)", holes,
    )  # fmt: skip
