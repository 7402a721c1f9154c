"""The kernels of `pointwise`: tiles in a pipeline, chunks, and vectors without TMA.

Cost model: each input is read once and the output written once, so DRAM decides as long as `fn`
takes few instructions. On an H200 an SM streams 5 elements of bf16 per cycle from one input to one
output, and issues 128 lane instructions meanwhile; 25 per element are the limit, those that move
the data included. DRAM is fastest when the chunks in flight lie close together and are about 64 KB
per SM.

Three kernels:

- "ring" (`ring_kernel`), for several large inputs: tiles stream through a `TilePipeline`, and
  blocks draw tiles from a queue; swiglu reaches 4,340 GB/s (bf16 2^29; a copy 4,214);
- "chunk" (`chunk_kernel`), for one: a block computes one chunk, which a bulk copy brings. It has no
  `TilePipeline`: other blocks of the SM hide the latency, as in `copy`; gelu reaches 4,298 GB/s
  (bf16 2^29; a copy 4,230);
- "vector" (`unit_kernel`), for small arrays, and for those that TMA cannot address: threads load
  and store units of 16 B.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.units import (
    STEPS,
    lanes_of,
    load_element,
    place_in_row,
    place_in_rows,
    words_of,
)
from numba_tma.device.vectors import load_vector, map_lanes, store_vector
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.kernels._host.limits import STREAMED
from numba_tma.kernels.pointwise.inputs import as_device, device, entry, together
from numba_tma.kernels.pointwise.plan import FULL, ONE_PER_ROW, ROW, UNIT_THREADS, PointwisePlan


@functools.cache
def ring_kernel(
    fn: DeviceFunction, kinds: tuple[str, ...], numbers: int, tile: tma.Tile, plan: PointwisePlan
) -> Kernel:
    """Return the kernel whose tiles stream through a pipeline; blocks draw tiles from a queue.

    An input of the result's shape is a TensorMap. A broadcast input is an array of bytes; each
    thread loads the vector or element that it needs, which stays in the caches.
    """
    fn = as_device(fn)
    names = [f"x{k}" for k, kind in enumerate(kinds) if kind == FULL]
    payload: dict[str, Any] = dict.fromkeys(names, tile)
    PIPE = tma.TilePipeline(plan.stages, **payload)
    FLAT, ITEM = tma.Tile(tile.size, tile.dtype), tile.itemsize
    VECTOR, SINGLE = tma.Tile(16 // ITEM, tile.dtype), tma.Tile(1, tile.dtype)
    rows_of_tile, width = tile.shape
    lanes, vectors, threads = 16 // ITEM, tile.size * ITEM // 16, plan.threads
    through_tma, in_flight = plan.store == "tma", int(plan.store == "tma")
    # TMA clips tiles at the edges, so that threads may compute elements outside of the arrays.
    everywhere = through_tma and set(kinds) == {FULL}

    def load(k: int, slot: int) -> DeviceFunction:
        @device
        def load_tile(inputs, tiles, at, barrier):  # type: ignore[no-untyped-def]
            inputs[k].load(tiles[slot], at, barrier)
            return True

        return load_tile

    def read(k: int, kind: str) -> DeviceFunction:
        if kind == FULL:
            slot = names.index(f"x{k}")

            @device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return tiles[slot].view(FLAT).read_vector(i)
        elif kind == ROW:

            @device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return load_vector(inputs[k], at[1] * ITEM, VECTOR)
        else:
            step = ITEM if kind == ONE_PER_ROW else 0

            @device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return load_vector(inputs[k], at[0] * step, SINGLE)

        return read_it

    load_all = together([load(int(name[1:]), slot) for slot, name in enumerate(names)])
    read_all = together([read(k, kind) for k, kind in enumerate(kinds)])

    @device
    def tiles_in_a_ring(inputs, out, numbers, counter, rows, columns, pitch):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        row_tiles = (rows + rows_of_tile - 1) // rows_of_tile
        column_tiles = (columns + width - 1) // width
        if pipe.is_producer():
            for t, stage in pipe.produce_from(tma.TileQueue(counter, row_tiles * column_tiles)):
                at = (t // column_tiles * rows_of_tile, t % column_tiles * width)
                load_all(inputs, stage.get_tile(), at, stage.barrier)
        else:
            for t, stage in pipe.consume_from(in_flight=in_flight):
                tiles = stage.get_tile()
                first_row, first_column = t // column_tiles * rows_of_tile, t % column_tiles * width
                for vector in range(cuda.threadIdx.x, vectors, threads):
                    i = vector * lanes
                    row, column = first_row + i // width, first_column + i % width
                    if everywhere or (row < rows and column < columns):
                        values = read_all(inputs, tiles, (row, column), i)
                        result = map_lanes(fn, values, numbers)
                        if through_tma:
                            tiles[0].view(FLAT).write_vector(i, result)
                        else:
                            store_vector(out, row * pitch + column * ITEM, result, VECTOR)
                if through_tma:
                    pipe.store(out, tiles[0], (first_row, first_column))
            pipe.release_pending()

    return entry(tiles_in_a_ring, "pointwise_ring", inputs=len(kinds), numbers=numbers)


@functools.cache
def chunk_kernel(
    fn: DeviceFunction, inputs: int, numbers: int, dtype: tma.DType, plan: PointwisePlan
) -> Kernel:
    """Return the kernel in which each block computes one chunk of contiguous elements."""
    fn = as_device(fn)
    CHUNK, ITEM = tma.Tile((inputs, plan.tile_bytes // dtype.itemsize), dtype), dtype.itemsize
    nbytes_of_chunk, threads = plan.tile_bytes, plan.threads
    VECTOR, SINGLE = tma.Tile(16 // ITEM, dtype), tma.Tile(1, dtype)
    vectors = nbytes_of_chunk // 16
    lanes, vectors_each = 16 // ITEM, vectors // threads

    def load(k: int) -> DeviceFunction:
        @device
        def load_chunk(inputs, chunk, start_and_length, full):  # type: ignore[no-untyped-def]
            start, length = start_and_length
            ptx.cp_async_bulk_load(
                chunk.address_of((k, 0)), inputs[k][start:], length, full, STREAMED
            )
            return True

        return load_chunk

    def read(k: int) -> DeviceFunction:
        @device
        def read_it(inputs, chunk, i, extra):  # type: ignore[no-untyped-def]
            return chunk.read_vector((k, i))

        return read_it

    def read_one(k: int) -> DeviceFunction:
        @device
        def read_it(inputs, chunk, start, extra):  # type: ignore[no-untyped-def]
            return load_vector(inputs[k], start, SINGLE)

        return read_it

    load_all, read_all, read_ones = (
        together([f(k) for k in range(inputs)]) for f in (load, read, read_one)
    )

    @device
    def chunk_of_a_block(inputs, out, numbers, nbytes):  # type: ignore[no-untyped-def]
        chunk = tma.shared_tile(CHUNK)
        full = tma.shared_barrier()
        thread = cuda.threadIdx.x
        start = cuda.blockIdx.x * nbytes_of_chunk
        length = min(nbytes_of_chunk, nbytes - start) // 16 * 16
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            if length > 0:
                full.arrive_expect_tx(CHUNK.shape[0] * length)
                load_all(inputs, chunk, (start, length), full)
        cuda.syncthreads()
        if length > 0:
            full.wait(0)
        for k in range(vectors_each):
            i = (thread + k * threads) * lanes
            if i * ITEM < length:
                values = read_all(inputs, chunk, i, 0)
                store_vector(out, start + i * ITEM, map_lanes(fn, values, numbers), VECTOR)
        # Bulk copies move multiples of 16 B; the threads load the last elements of other arrays.
        left = start + length + thread * ITEM
        if length < nbytes_of_chunk and left < nbytes:
            store_vector(
                out, left, map_lanes(fn, read_ones(inputs, chunk, left, 0), numbers), SINGLE
            )

    return entry(chunk_of_a_block, "pointwise_chunk", inputs=inputs, numbers=numbers)


@functools.cache
def unit_kernel(
    fn: DeviceFunction,
    kinds: tuple[str, ...],
    numbers: int,
    dtype: tma.DType,
    flat: bool,
    form: str,
) -> Kernel:
    """Return the kernel in which each thread computes a unit of 16 B of rows that begin anywhere.

    `flat` is for an output of one row; `form` is that of the arrays.
    """
    fn, place_of = as_device(fn), place_in_row if flat else place_in_rows
    ITEM, threads = dtype.itemsize, UNIT_THREADS
    UNIT, SINGLE = tma.Tile(16 // ITEM, dtype), tma.Tile(1, dtype)
    load_rows, words, store = STEPS[form]

    def load(k: int, kind: str) -> DeviceFunction:
        take = load_rows if kind in (FULL, ROW) else load_element

        @device
        def load_it(inputs, nothing, place, extra):  # type: ignore[no-untyped-def]
            return take(SINGLE, inputs[k], place)

        return load_it

    def read(k: int, kind: str) -> DeviceFunction:
        if kind in (FULL, ROW):

            @device
            def read_it(inputs, loaded, at, extra):  # type: ignore[no-untyped-def]
                return lanes_of(words(loaded[k]), UNIT)
        else:

            @device
            def read_it(inputs, loaded, at, extra):  # type: ignore[no-untyped-def]
                return loaded[k]

        return read_it

    load_all, read_all = (
        together([f(k, kind) for k, kind in enumerate(kinds)]) for f in (load, read)
    )

    @device
    def unit_of_a_thread(inputs, out, numbers, rows, nbytes, units):  # type: ignore[no-untyped-def]
        number = cuda.blockIdx.x * threads + cuda.threadIdx.x
        place = place_of(number, out, rows, nbytes, units)
        loaded = load_all(inputs, (), place, 0)  # all before any is used
        result = map_lanes(fn, read_all(inputs, loaded, 0, 0), numbers)
        store(SINGLE, out, place, words_of(result, UNIT))

    return entry(unit_of_a_thread, "pointwise_units", inputs=len(kinds), numbers=numbers)
