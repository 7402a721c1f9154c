"""Maps of any description (tiled, im2col, ragged), and pipelines of any stages and tiles."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.host.environment import simulated
from numba_tma.host.reference import reference_store, reference_tile
from tests.fuzz.families import Draw, Family, Problem, kind, normal, one, size
from tests.fuzz.memory import TYPES

SWIZZLES = {swizzle.name: swizzle for swizzle in tma.Swizzle if swizzle.atom == 16}
THREADS = 64


@cuda.jit(device=True)
def _by_tile(x, shared, where, full):  # type: ignore[no-untyped-def]
    x.load(shared, where, full)


@cuda.jit(device=True)
def _by_pixel(x, shared, where, full):  # type: ignore[no-untyped-def]
    x.load_im2col(shared, where[0], where[1], full)


@cuda.jit(device=True)
def _by_row(x, shared, where, full):  # type: ignore[no-untyped-def]
    x.sequence(where[0], where[1]).load(shared, (where[2], where[3]), full)


@functools.lru_cache(64)
def _load_kernel(tile: tma.Tile, words: int, start: Any = _by_tile) -> Any:
    @cuda.jit
    def load(x, coords, image):  # type: ignore[no-untyped-def]
        shared, full = tma.shared_tile(tile), tma.shared_barrier()
        for i in range(cuda.threadIdx.x, words, THREADS):
            tma.ptx.st_shared_u32(shared.address + 4 * i, 0)
        tma.fence_proxy_async()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(tile.nbytes)
            start(x, shared, coords, full)
        full.wait(0)
        for i in range(cuda.threadIdx.x, words, THREADS):
            image[i] = tma.ptx.ld_shared_u32(shared.address + 4 * i)

    return load


@functools.lru_cache(64)
def _store_kernel(tile: tma.Tile, words: int) -> Any:
    @cuda.jit
    def store(y, coords, image):  # type: ignore[no-untyped-def]
        shared = tma.shared_tile(tile)
        for i in range(cuda.threadIdx.x, words, THREADS):
            tma.ptx.st_shared_u32(shared.address + 4 * i, image[i])
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(shared, coords)
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return store


def _tile(c: Any) -> tma.Tile:
    itemsize = np.dtype(TYPES[c.dtype]).itemsize
    return tma.Tile((*c.outer[: c.rank - 1], c.inner // itemsize), c.dtype, SWIZZLES[c.swizzle])


def tensor_map(x: Any, *, tile: tma.Tile, coords: Any, image: Any, options: Any, load: bool,
               stream: Any = None) -> None:  # fmt: skip
    """Load one tile into `image`, or store it from there."""
    described = tma.tensor_map(x, tile, **options)
    make = _load_kernel if load else _store_kernel
    make(tile, tile.shared_nbytes // 4)[1, THREADS, stream or 0](described, coords, image)


def described(c: Any, rng: np.random.Generator) -> Problem:
    tile = _tile(c)
    chunk = 16 // tile.itemsize
    shape = (*c.shape[: c.rank - 1], c.columns * chunk)
    x = normal(rng, shape, c.dtype)
    load = c.load or c.fill == "nan"
    reach = zip(shape, tile.shape)
    coords = [int(rng.integers(-n // 2 if c.outside else 0, m)) for m, n in reach]
    coords[-1] = coords[-1] // chunk * chunk
    coords = coords if load else [max(at, 0) for at in coords]
    options = {"l2_promotion": c.l2, "oob_fill": c.fill} | ({"dtype": c.dtype} if c.named else {})
    given = {"tile": tile, "coords": tuple(coords), "options": options, "load": load}
    words = tile.shared_nbytes // 4
    if load:

        def loaded() -> Any:
            image = reference_tile(x, tile, coords, oob_fill=c.fill)
            return {"image": (image.view(np.uint32), None)}

        outputs = {"image": ((words,), "u32")}
        return Problem({"x": x}, outputs, loaded, given, views=("x",), aligned=True, returned=(),
                       refusable=True)  # fmt: skip
    image = normal(rng, (words,), "u32")

    def stored() -> Any:
        y = np.full(shape, 1.5).astype(x.dtype)
        reference_store(y, image.view(np.uint8), tile, coords)
        return {"x": (y, None)}

    return Problem({"image": image}, {"x": (shape, c.dtype)}, stored, given, views=("x",),
                   aligned=True, returned=(), refusable=True)  # fmt: skip


def im2col(x: Any, *, tile: tma.Tile, where: Any, image: Any, options: Any,
           stream: Any = None) -> None:  # fmt: skip
    """Load one column of pixels into `image`."""
    pixels = tma.im2col_map(x, tile, dtype=tile.dtype, **options)
    load = _load_kernel(tile, tile.shared_nbytes // 4, _by_pixel)
    load[1, THREADS, stream or 0](pixels, where, image)


def convolved(c: Any, rng: np.random.Generator) -> Problem:
    chunk = 16 // np.dtype(TYPES[c.dtype]).itemsize
    swizzle = SWIZZLES[c.swizzle]
    tile = tma.Tile((c.pixels, c.inner * chunk), c.dtype, swizzle)
    extents = [max(n, (c.filter - 1) * c.dilation + 1) for n in c.extents[: c.axes]]
    x = normal(rng, (c.images, *extents, c.channels * chunk), c.dtype)
    reach = (c.filter - 1) * c.dilation
    counts = [(n + 2 * c.padding - reach - 1) // c.stride + 1 for n in extents]
    first = [int(rng.integers(n)) for n in (c.images, *counts)]
    channel = int(rng.integers(c.channels)) * chunk
    offsets = [int(rng.integers(c.filter)) * c.dilation for _ in extents]
    coords = [first[0], *(p * c.stride - c.padding for p in first[1:]), channel]

    def expect() -> Any:
        found = np.zeros(tile.shape, x.dtype)
        places, start = (c.images, *counts), int(np.ravel_multi_index(first, (c.images, *counts)))
        for row in range(min(c.pixels, int(np.prod(places)) - start)):
            n, *output = np.unravel_index(start + row, places)
            at = [int(p) * c.stride - c.padding + r for p, r in zip(output, offsets)]
            if all(0 <= i < extent for i, extent in zip(at, extents)):
                pixel = x[(n, *at)][channel : channel + tile.shape[1]]
                found[row, : len(pixel)] = pixel
        image = reference_tile(found, tile, (0, 0))
        return {"image": (image.view(np.uint32), None)}

    options = {name: getattr(c, name) for name in ("filter", "padding", "stride", "dilation")}
    given = {"tile": tile, "where": (tuple(coords), tuple(offsets)), "options": options}
    outputs = {"image": ((tile.shared_nbytes // 4,), "u32")}
    return Problem({"x": x}, outputs, expect, given, views=("x",), aligned=True, returned=(),
                   refusable=True)  # fmt: skip


def ragged(x: Any, *, tile: tma.Tile, where: Any, image: Any, encoding: Any,
           stream: Any = None) -> None:  # fmt: skip
    """Load one tile of a sequence into `image`."""
    sequences = tma.ragged_tensor_map(x, tile, encoding=encoding, dtype=tile.dtype)
    load = _load_kernel(tile, tile.shared_nbytes // 4, _by_row)
    load[1, THREADS, stream or 0](sequences, where, image)


def sequenced(c: Any, rng: np.random.Generator) -> Problem:
    chunk = 16 // np.dtype(TYPES[c.dtype]).itemsize
    tile = tma.Tile((c.rows, c.inner * chunk), c.dtype, SWIZZLES[c.swizzle])
    x = normal(rng, (c.all, c.columns * chunk), c.dtype)
    start = int(rng.integers(c.all))
    length = int(rng.integers(c.all - start + 1))
    row, column = int(rng.integers(length + 1)), int(rng.integers(c.columns)) * chunk

    def expect() -> Any:
        image = reference_tile(x[start : start + length], tile, (row, column))
        return {"image": (image.view(np.uint32), None)}

    given = {"tile": tile, "where": (start, length, row, column), "encoding": c.encoding}
    outputs = {"image": ((tile.shared_nbytes // 4,), "u32")}
    return Problem({"x": x}, outputs, expect, given, views=("x",), aligned=True, returned=(),
                   refusable=True)  # fmt: skip


@functools.lru_cache(64)
def _ring_kernel(tile: tma.Tile, stages: int, prefetch: int, war: str, outs: int) -> Any:
    loads = tma.CircularBuffer(stages, prefetch, war=war, x=tile)
    stores = tma.StorePipeline(outs, y=tile)
    rows, columns = tile.shape

    @cuda.jit
    def kernel(x, y, n):  # type: ignore[no-untyped-def]
        ring, out = loads.start(), stores.start()
        for t, stage in ring.tiles(cuda.blockIdx.x, n, cuda.gridDim.x):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * rows, 0), slot.barrier)
            full = stage.wait()
            written = out.acquire()
            for i in range(cuda.threadIdx.x, rows * columns, THREADS):
                written.y[i // columns, i % columns] = full.x[i // columns, i % columns]
            out.store(y, written.y, (t * rows, 0))
            out.commit()
        ring.close()
        out.tail()

    return kernel


def ring(x: Any, *, y: Any, tile: Any, plan: Any, blocks: int, turns: int,
         stream: Any = None) -> None:  # fmt: skip
    """Copy tiles through a circular buffer and a store pipeline."""
    maps = tma.tensor_map(x, tile), tma.tensor_map(y, tile)
    _ring_kernel(tile, *plan)[blocks, THREADS, stream or 0](*maps, turns)


def circled(c: Any, rng: np.random.Generator) -> Problem:
    tile = tma.Tile((c.rows, c.columns * 16 // np.dtype(TYPES[c.dtype]).itemsize), c.dtype)
    rows = [max(c.turns * c.rows - missing, 1) for missing in (c.missing, c.clipped)]
    x = normal(rng, (rows[0], tile.shape[1]), c.dtype)

    def expect() -> Any:
        y = np.full((rows[1], tile.shape[1]), 1.5).astype(x.dtype)
        y[: c.turns * c.rows] = 0
        both = min(len(x), len(y), c.turns * c.rows)
        y[:both] = x[:both]
        return {"y": (y, None)}

    plan = (c.stages, min(c.prefetch, c.stages - 1), c.war, c.outs)
    options = {"tile": tile, "plan": plan, "blocks": c.blocks, "turns": c.turns}
    return Problem({"x": x}, {"y": ((rows[1], tile.shape[1]), c.dtype)}, expect, options,
                   views=("x", "y"), aligned=True, returned=(), refusable=True)  # fmt: skip


@functools.lru_cache(64)
def _pipeline_kernel(stages: int, tile: tma.Tile, second: Any, consumers: int, late: int) -> Any:
    roles = tma.Roles(load=tma.Warps(1), use=tma.Warps(consumers))
    tiles = {"a": tile} | ({"b": second} if second else {})
    pipe_ = tma.TilePipeline(stages, producer=roles.load, consumer=roles.use, **tiles)
    (rows, columns), two = tile.shape, second is not None
    others = second.shape[1] if second is not None else 1

    @cuda.jit
    def kernel(a, b, out_a, out_b, n):  # type: ignore[no-untyped-def]
        pipe = pipe_.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, n, cuda.gridDim.x):
                a.load(stage.a, (t * rows, 0), stage.barrier)
                if two:
                    b.load(stage.b, (t * rows, 0), stage.barrier)
        elif pipe.is_consumer():
            for t, stage in pipe.consume(cuda.blockIdx.x, n, cuda.gridDim.x, in_flight=late):
                for i in range(pipe.consumer_thread(), rows * columns, pipe.num_consumers()):
                    out_a[t * rows + i // columns, i % columns] = stage.a[i // columns, i % columns]
                if two:
                    for i in range(pipe.consumer_thread(), rows * others, pipe.num_consumers()):
                        out_b[t * rows + i // others, i % others] = stage.b[i // others, i % others]
            pipe.release_pending()

    return kernel


def pipeline(a: Any, b: Any, *, out_a: Any, out_b: Any, tile: Any, second: Any, plan: Any,
             blocks: int, turns: int, stream: Any = None) -> None:  # fmt: skip
    """Copy the tiles of two arrays through a pipeline."""
    kernel = _pipeline_kernel(plan[0], tile, second, *plan[1:])
    maps = tma.tensor_map(a, tile), tma.tensor_map(b if second else a, second or tile)
    outs = (out_a, out_b) if simulated() else map(cuda.as_cuda_array, (out_a, out_b))
    kernel[blocks, 32 * (1 + plan[1]), stream or 0](*maps, *outs, turns)


def piped(c: Any, rng: np.random.Generator) -> Problem:
    tiles = [
        tma.Tile((c.rows, columns * 16 // np.dtype(TYPES[dtype]).itemsize), dtype)
        for columns, dtype in ((c.columns, c.dtype), (c.others, c.second or "u32"))
    ]
    shapes = [(max(c.turns * c.rows - c.missing, 1), tile.shape[1]) for tile in tiles]
    dtypes = (c.dtype, c.second or "u32")
    a, b = (normal(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes))

    def expect() -> Any:
        found = {}
        for name, x, used in (("out_a", a, True), ("out_b", b, c.second)):
            y = np.zeros((c.turns * c.rows, x.shape[1]), x.dtype)
            y[: min(len(x), len(y))] = x[: len(y)]
            found[name] = (y if used else np.full_like(y, np.array(1.5).astype(y.dtype)), None)
        return found

    late = min(c.late, c.stages - 1)
    options = {"tile": tiles[0], "second": tiles[1] if c.second else None, "blocks": c.blocks}
    options |= {"plan": (c.stages, c.consumers, late), "turns": c.turns}
    outputs = {
        f"out_{name}": ((c.turns * c.rows, tile.shape[1]), dtype)
        for name, tile, dtype in zip("ab", tiles, dtypes)
    }
    return Problem({"a": a, "b": b}, outputs, expect, options, views=("a", "b"), aligned=True,
                   returned=(), refusable=True)  # fmt: skip


SOME = SimpleNamespace(
    outer=kind((1, 1, 1), (2, 3, 2), (1, 2, 4), (5, 1, 1), (8, 2, 1), (4, 4, 4)),
    bits=kind("u8", "u16", "f32", "bf16", "f16", "i64", "i32"),
)
NUMBERS: Draw = kind("f32", "i32", "u16", "u8", "i64", "f16")
GIVEN = {"out": one("given")}
FAMILIES: tuple[Family, ...] = (
    Family(tensor_map, {"rank": kind(1, 2, 3, 4), "inner": kind(16, 32, 64, 128, 256, 1024),
           "outer": SOME.outer, "swizzle": kind(*SWIZZLES), "dtype": SOME.bits,
           "load": one(True, False), "shape": one((9, 3, 3), (1, 1, 1), (17, 6, 2), (3, 40, 5)),
           "columns": size(1, 40, 20), "outside": one(False, True),
           "l2": one(128, None, 64, 256), "fill": one("zeros", "zeros", "nan"),
           "named": one(False, True), **GIVEN}, described, 5),
    Family(pipeline, {"stages": kind(1, 2, 3, 5), "rows": kind(1, 4, 8), "columns": kind(1, 4, 16),
           "others": kind(1, 2, 8), "dtype": NUMBERS, "second": kind(None, "f32", "u8", "i64"),
           "consumers": kind(1, 2, 4), "late": kind(0, 1), "blocks": one(1, 2, 7),
           "turns": size(0, 40, 9), "missing": one(0, 1, 3), **GIVEN}, piped, 2),
    Family(im2col, {"axes": kind(1, 2, 3), "dtype": SOME.bits, "pixels": kind(1, 8, 20, 100),
           "inner": kind(1, 2, 4, 8), "swizzle": kind(*SWIZZLES), "images": one(1, 2),
           "extents": one((7, 5, 4), (1, 1, 1), (12, 9, 2)), "channels": size(1, 20, 9),
           "filter": one(1, 2, 3), "padding": one(0, 1, 2), "stride": one(1, 2, 3),
           "dilation": one(1, 2), **GIVEN}, convolved, 2),
    Family(ragged, {"dtype": SOME.bits, "rows": kind(8, 1, 32, 100), "inner": kind(1, 4, 8, 16),
           "swizzle": kind(*SWIZZLES), "all": size(1, 300, 60), "columns": size(1, 40, 20),
           "encoding": kind(None, "wrap"), **GIVEN}, sequenced, 2),
    Family(ring, {"stages": kind(2, 1, 3, 5), "prefetch": kind(0, 1, 2), "outs": kind(1, 2, 3),
           "war": kind("sync", "mbarrier"), "rows": kind(1, 4, 8), "columns": kind(1, 4, 16),
           "dtype": NUMBERS, "blocks": one(1, 2, 7), "turns": size(0, 40, 9),
           "missing": one(0, 1, 3), "clipped": one(0, 2), **GIVEN}, circled, 2),
)  # fmt: skip
