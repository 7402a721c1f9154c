"""Programs of other maps than tiled ones: rows by number, pixels, and arrays of maps."""

from __future__ import annotations

from tests.generated.draws import Draw, array, family, typed
from tests.generated.program import Program

KERNEL = """\
@cuda.jit
def kernel(x, y, rows, n):
    $start
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce($first, $stop, $step):
            $load
            $elected
    else:
        lane = cuda.threadIdx.x
        for t, stage in pipe.consume($first, $stop, $step, in_flight=$in_flight):
            $use
            for i in range({rows}):
                y[t * {rows} + i, lane % {columns}] = stage.x[i, lane % {columns}]
"""
LOOP = {"first": "0", "stop": "n", "step": "1", "in_flight": "0"}


def program(name: str, made: str, size: tuple[int, int], **parts: str) -> Program:
    """Return a program whose producer executes the load."""
    rows, columns = size
    kernel = KERNEL.replace("{rows}", str(rows)).replace("{columns}", str(columns))
    load = parts["load"]
    holes = {n: v for n, v in parts.items() if n not in ("load", "launch", "typed", "objects")}
    return Program(
        name,
        f"TILE = {made}\nPIPE = tma.TilePipeline(2, x=TILE)\n{parts.get('objects', '')}",
        kernel.replace("$load", load),
        parts["launch"],
        f"({parts['typed']}, {typed('f32')}, types.int32[::1], types.int64)",
        LOOP | holes,
    )


@family(2)
def gathered(rng: Draw) -> Program:
    """Rows of a matrix by their numbers."""
    tiles = rng.randrange(2, 5)
    launch = f"""\
{array("a", 40, 32, "f32")}
rows, n = np.random.default_rng({rng.randrange(99)}).permutation(40)[: {4 * tiles}], {tiles}
rows, y = rows.astype(np.int32), np.zeros(({4 * tiles}, 32), np.float32)
kernel[1, 64](tma.gather_map(a, TILE), y, rows, n)
assert np.array_equal(y, a[rows])
"""
    return program(
        "gathered",
        'tma.Tile((4, 32), "f32", tma.Swizzle.B128)',
        (4, 32),
        load="tma.gather_rows($tile, x, rows[4 * t :], $barrier)",
        typed="tma.TensorMapType(2, TILE, mode='gather')",
        launch=launch,
        tile="stage.x",
        barrier="stage.barrier",
    )


@family(2)
def pixels(rng: Draw) -> Program:
    """Pixels of images, channels last."""
    launch = f"""\
a = np.arange({2 * 4 * 8 * 8}, dtype=np.float32).reshape({2}, 4, 8, 8)
y, rows, n = np.zeros(({2 * 4 * 8}, 8), np.float32), np.zeros(1, np.int32), {4}
kernel[1, 64](tma.im2col_map(a, TILE, filter=1), y, rows, n)
assert np.array_equal(y, a.reshape(-1, 8))
"""
    place = "(t // 2, t % 2 * 2, 0, 0)"
    return program(
        "pixels",
        'tma.Tile((16, 8), "f32")',
        (16, 8),
        load=f"$map.load_im2col($tile, {place}, $offsets, $barrier)",
        typed="tma.TensorMapType(4, TILE, mode='im2col')",
        launch=launch,
        tile="stage.x",
        barrier="stage.barrier",
        offsets="(0, 0)",
        map="x",
    )


@family(2)
def several_maps(rng: Draw) -> Program:
    """An array of maps, indexed in the kernel."""
    launch = f"""\
{array("a", 16, 32, "f32")}
y, rows, n = np.zeros((8, 32), np.float32), np.zeros(1, np.int32), 2
maps = tma.TensorMapArray([tma.tensor_map(a[:8].copy(), TILE), tma.tensor_map(a[8:].copy(), TILE)])
kernel[1, 64](maps, y, rows, n)
assert np.array_equal(y, a[[0, 1, 2, 3, 12, 13, 14, 15]])
"""
    return program(
        "several maps",
        'tma.Tile((4, 32), "f32")',
        (4, 32),
        load="x[$which].load($tile, $coords, $barrier)",
        typed="MAPS",
        launch=launch,
        tile="stage.x",
        barrier="stage.barrier",
        coords="(t * 4, 0)",
        which="t",
        objects=(
            "if not __import__('numba_tma').host.environment.simulated():\n"
            "    from numba_tma.backend.lowering.types import TensorMapArrayType\n"
            "    MAPS = TensorMapArrayType(tma.TensorMapType(2, TILE))\n"
        ),
    )
