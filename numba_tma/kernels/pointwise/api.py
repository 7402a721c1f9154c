"""Pointwise kernels: `pointwise(fn)` makes one of any device function of one to four elements.

Cost model: every input is read once and the output written once, and DRAM decides as long as `fn`
takes few instructions: on an H200 a multiprocessor streams 5 elements of bf16 per cycle from one
input to one output, and issues 128 lane instructions meanwhile, so that 25 per element are the
limit, those of moving the data included. DRAM is fastest when the chunks in flight lie close
together and are about 64 KB per multiprocessor.

There are three kernels, and `plan_for` says which is used:

- "ring": tiles stream through a circular buffer; blocks that stay draw them from a queue;
- "chunk": a block for each chunk of contiguous memory, which comes in by bulk copies;
- "vector": a vector for each thread, without TMA: what TMA cannot address.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import load_vector, map_lanes, store_vector
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import MAX_BOX, Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import (
    STREAMED,
    Matrix,
    current_device,
    empty_like,
    launch,
    launched_again,
    multiprocessors,
    queue_counter,
    stream_key,
    tile_for,
)
from numba_tma.kernels._host.operands import FULL, ONE, ONE_PER_ROW, ROW, Operands
from numba_tma.pipeline import TilePipeline, TileQueue


@dataclass(frozen=True)
class Plan:
    """How the work is cut up: the kernel, and its sizes."""

    kernel: str  #: "ring", "chunk" or "vector"
    threads: int = 128  #: that compute
    tile_bytes: int = 4096  #: of each input
    stages: int = 4  #: of the ring
    blocks_per_multiprocessor: int = 1  #: of the ring
    store: str = "registers"  #: "tma" stores the ring's results from its stage


def plan_for(inputs: int) -> Plan:
    """Return how `inputs` arrays that TMA can address are worked on."""
    if inputs == 1:
        return Plan("chunk", 128, 4096)
    return Plan("ring", 128, 8192, 3, 2, "tma")


# ------------------------------------------------------------------- any number of inputs


def _device(function: Callable[..., Any]) -> Any:
    return cuda.jit(device=True, forceinline=True)(function)


def _together(functions: Sequence[Callable[..., Any]]) -> Any:
    """Return the device function that calls each of `functions` and returns a tuple."""
    *before, last = functions
    if not before:

        @_device
        def alone(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
            return (last(inputs, tiles, at, extra),)

        return alone
    first = _together(before)

    @_device
    def all_of_them(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
        return first(inputs, tiles, at, extra) + (last(inputs, tiles, at, extra),)  # noqa: RUF005

    return all_of_them


def _entry(body: Any, name: str, **counts: int) -> Any:
    """Return the kernel that calls `body`; parameters in `counts` are tuples of so many arguments.

    Kernels take no tuples, and their number of parameters is fixed.
    """
    arguments, passed = [], []
    for parameter in inspect.signature(getattr(body, "py_func", body)).parameters:
        if parameter in counts:
            parts = [f"{parameter}{i}" for i in range(counts[parameter])]
            arguments += parts
            passed.append(f"({' '.join(f'{part},' for part in parts)})")
        else:
            arguments.append(parameter)
            passed.append(parameter)
    source = f"def {name}({', '.join(arguments)}):\n    body({', '.join(passed)})\n"
    made: dict[str, Any] = {"body": body}
    exec(source, made)
    return cuda.jit(made[name])


# --------------------------------------------------------------------------- the kernels


@functools.cache
def ring_kernel(fn: Any, kinds: tuple[str, ...], numbers: int, tile: Tile, plan: Plan) -> Any:
    """Return the kernel whose tiles stream through a circular buffer.

    Inputs of the whole shape are TensorMaps, those that are broadcast arrays of bytes, of which
    each vector or element is read where it is needed: they stay in the caches.
    """
    names = [f"x{k}" for k, kind in enumerate(kinds) if kind == FULL]
    payload: Any = dict.fromkeys(names, tile)
    PIPE = TilePipeline(plan.stages, **payload)
    FLAT, ITEM = Tile(tile.size, tile.dtype), tile.itemsize
    VECTOR, SINGLE = Tile(16 // ITEM, tile.dtype), Tile(1, tile.dtype)
    rows_of_tile, width = tile.shape
    lanes, vectors, threads = 16 // ITEM, tile.size * ITEM // 16, plan.threads
    through_tma, in_flight = plan.store == "tma", int(plan.store == "tma")
    everywhere = through_tma and set(kinds) == {FULL}  # what is outside need not be left out

    def load(k: int, slot: int) -> Any:
        @_device
        def load_tile(inputs, tiles, at, barrier):  # type: ignore[no-untyped-def]
            inputs[k].load(tiles[slot], at, barrier)
            return True

        return load_tile

    def read(k: int, kind: str) -> Any:
        if kind == FULL:
            slot = names.index(f"x{k}")

            @_device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return tiles[slot].view(FLAT).read_vector(i)
        elif kind == ROW:

            @_device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return load_vector(inputs[k], at[1] * ITEM, VECTOR)
        else:
            step = ITEM if kind == ONE_PER_ROW else 0

            @_device
            def read_it(inputs, tiles, at, i):  # type: ignore[no-untyped-def]
                return load_vector(inputs[k], at[0] * step, SINGLE)

        return read_it

    load_all = _together([load(int(name[1:]), slot) for slot, name in enumerate(names)])
    read_all = _together([read(k, kind) for k, kind in enumerate(kinds)])

    @_device
    def tiles_in_a_ring(inputs, out, numbers, counter, rows, columns, pitch):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        row_tiles = (rows + rows_of_tile - 1) // rows_of_tile
        column_tiles = (columns + width - 1) // width
        if pipe.is_producer():
            for t, stage in pipe.produce_from(TileQueue(counter, row_tiles * column_tiles)):
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

    return _entry(tiles_in_a_ring, "pointwise_ring", inputs=len(kinds), numbers=numbers)


@functools.cache
def chunk_kernel(fn: Any, inputs: int, numbers: int, dtype: DType, plan: Plan) -> Any:
    """Return the kernel in which each block works on one chunk of contiguous memory."""
    CHUNK, ITEM = Tile((inputs, plan.tile_bytes // dtype.itemsize), dtype), dtype.itemsize
    nbytes_of_chunk, threads = plan.tile_bytes, plan.threads
    VECTOR, SINGLE = Tile(16 // ITEM, dtype), Tile(1, dtype)
    vectors = nbytes_of_chunk // 16
    if nbytes_of_chunk % (16 * threads):
        raise ValueError(
            f"{plan}: {threads} threads cannot share the {vectors} vectors of 16 B of a chunk "
            f"equally: use tile_bytes of a multiple of {16 * threads}"
        )
    lanes, rounds = 16 // ITEM, vectors // threads

    def load(k: int) -> Any:
        @_device
        def load_chunk(inputs, chunk, start_and_length, full):  # type: ignore[no-untyped-def]
            start, length = start_and_length
            ptx.cp_async_bulk_load(
                chunk.address_of((k, 0)), inputs[k][start:], length, full, STREAMED
            )
            return True

        return load_chunk

    def read(k: int) -> Any:
        @_device
        def read_it(inputs, chunk, i, extra):  # type: ignore[no-untyped-def]
            return chunk.read_vector((k, i))

        return read_it

    def read_one(k: int) -> Any:
        @_device
        def read_it(inputs, chunk, start, extra):  # type: ignore[no-untyped-def]
            return load_vector(inputs[k], start, SINGLE)

        return read_it

    load_all, read_all, read_ones = (
        _together([f(k) for k in range(inputs)]) for f in (load, read, read_one)
    )

    @_device
    def chunk_of_a_block(inputs, out, numbers, nbytes):  # type: ignore[no-untyped-def]
        chunk = shared_tile(CHUNK)
        full = shared_barrier()
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
        for k in range(rounds):
            i = (thread + k * threads) * lanes
            if i * ITEM < length:
                values = read_all(inputs, chunk, i, 0)
                store_vector(out, start + i * ITEM, map_lanes(fn, values, numbers), VECTOR)
        # The last elements of arrays that are not a multiple of 16 B long.
        left = start + length + thread * ITEM
        if length < nbytes_of_chunk and left < nbytes:
            store_vector(
                out, left, map_lanes(fn, read_ones(inputs, chunk, left, 0), numbers), SINGLE
            )

    return _entry(chunk_of_a_block, "pointwise_chunk", inputs=inputs, numbers=numbers)


@functools.cache
def vector_kernel(
    fn: Any, kinds: tuple[str, ...], numbers: int, dtype: DType, nbytes: int, flat: bool
) -> Any:
    """Return the kernel in which each thread works on a vector of `nbytes`, without TMA."""
    ITEM = dtype.itemsize
    lanes = nbytes // ITEM
    VECTOR, SINGLE = Tile(lanes, dtype), Tile(1, dtype)

    def read(k: int, kind: str, width: Tile) -> Any:
        step, taken = (0, SINGLE) if kind in (ONE_PER_ROW, ONE) else (ITEM, width)

        @_device
        def read_it(inputs, pitches, row, column):  # type: ignore[no-untyped-def]
            return load_vector(inputs[k], row * pitches[k] + column * step, taken)

        return read_it

    read_all, read_ones = (
        _together([read(k, kind, width) for k, kind in enumerate(kinds)])
        for width in (VECTOR, SINGLE)
    )

    @_device
    def vector_of_a_thread(inputs, out, numbers, pitches, pitch, rows, columns):  # type: ignore[no-untyped-def]
        vector, row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, 0
        if not flat:
            of_a_row = (columns + lanes - 1) // lanes
            row, vector = vector // of_a_row, vector % of_a_row
        column = vector * lanes
        if row < rows:
            if column + lanes <= columns:
                result = map_lanes(fn, read_all(inputs, pitches, row, column), numbers)
                store_vector(out, row * pitch + column * ITEM, result, VECTOR)
            else:
                for last in range(column, columns):
                    result = map_lanes(fn, read_ones(inputs, pitches, row, last), numbers)
                    store_vector(out, row * pitch + last * ITEM, result, SINGLE)

    return _entry(
        vector_of_a_thread,
        "pointwise_vector",
        inputs=len(kinds),
        numbers=numbers,
        pitches=len(kinds),
    )


# ------------------------------------------------------------------------------ the host


class Pointwise:
    """What `pointwise` returns: a function of device arrays. See there."""

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, plan: Plan | None = None
    ) -> None:
        self.plan = plan
        self.name: str = name or fn.__name__
        device = hasattr(fn, "py_func") or type(fn).__module__.startswith("numba")
        self.fn: Any = fn if device else _device(fn)
        functools.update_wrapper(self, getattr(fn, "py_func", fn))
        self._run = launched_again(self._prepare)
        self.parameters = len(inspect.signature(getattr(fn, "py_func", fn)).parameters)

    def __repr__(self) -> str:
        return f"pointwise({self.name})"

    def __call__(
        self,
        *arguments: Any,
        out: Any = None,
        stream: Any = None,
        dtype: object = None,
        plan: Plan | None = None,
    ) -> Any:
        """Compute `fn` of each element; see `pointwise`."""
        if len(arguments) != self.parameters:
            raise TypeError(
                f"{self.name}() takes {self.parameters} arguments, arrays first and numbers after "
                f"them, but {len(arguments)} were given"
            )
        count = len(arguments)
        while count and isinstance(arguments[count - 1], int | float | np.number):
            count -= 1
        arrays = arguments[:count]
        if not 1 <= count <= 4:
            raise TypeError(f"{self.name}() was given {count} arrays; it takes 1 to 4")
        if out is None:
            out = empty_like(Operands(self.name, arrays, dtype).like)
        self._run((*arrays, out), stream, arguments[count:], dtype, plan)
        return out

    def _prepare(
        self,
        given: tuple[Any, ...],
        stream: Any,
        given_numbers: tuple[Any, ...],
        dtype: object,
        plan: Plan | None,
    ) -> None:
        *arrays, out = given
        numbers = tuple(map(np.float32, given_numbers))
        operands = Operands(self.name, arrays, dtype)
        target = operands.target(out)
        if target.nbytes == 0:
            return
        if operands.flat(target):
            self._flat(
                operands, target, numbers, stream, plan or self.plan or plan_for(len(arrays))
            )
        elif operands.addressable(target):
            ring = plan if plan and plan.kernel == "ring" else plan_for(2)
            self._ring(operands, target, numbers, stream, ring)
        else:
            self._vector(operands, target, numbers, stream, 128, False)

    def _flat(
        self, operands: Operands, target: Matrix, numbers: tuple[Any, ...], stream: Any, plan: Plan
    ) -> None:
        """Work on contiguous arrays of one shape."""
        size = target.rows * target.columns
        aligned = all(m.address % 16 == 0 for m in (*operands.matrices, target))
        if not aligned or plan.kernel == "vector":
            self._vector(operands.cut(1, size), target.part(1, size), numbers, stream, 128, True)
        elif plan.kernel == "chunk":
            blocks = -(-target.nbytes // plan.tile_bytes)
            kernel = chunk_kernel(self.fn, len(operands.matrices), len(numbers), target.dtype, plan)
            arrays = [m.as_bytes() for m in (*operands.matrices, target)]
            launch(kernel, blocks, plan.threads, stream, *arrays, *numbers, target.nbytes)
        else:
            width = next((w for w in (256, 128, 64, 32) if size % w == 0), MAX_BOX)
            rows = size // width
            if rows:
                cut = operands.cut(rows, width)
                self._ring(cut, target.part(rows, width), numbers, stream, plan)
            if left := size - rows * width:
                done = rows * width * target.dtype.itemsize
                rest = operands.cut(1, left, done)
                self._vector(rest, target.part(1, left, done), numbers, stream, 128, True)

    def _ring(
        self, operands: Operands, target: Matrix, numbers: tuple[Any, ...], stream: Any, plan: Plan
    ) -> None:
        rows, columns, dtype = target.rows, target.columns, target.dtype
        tile = tile_for(columns, dtype, plan.tile_bytes)
        kernel = ring_kernel(self.fn, operands.kinds, len(numbers), tile, plan)
        inputs = [
            tensor_map(m.view(columns), tile, dtype=dtype) if kind == FULL else m.span()
            for m, kind in zip(operands.matrices, operands.kinds)
        ]
        through_tma = plan.store == "tma"
        out = tensor_map(target.view(columns), tile, dtype=dtype) if through_tma else target.span()
        tiles = -(-rows // tile.shape[0]) * -(-columns // tile.shape[1])
        blocks = min(plan.blocks_per_multiprocessor * multiprocessors(), tiles)
        counter = queue_counter(current_device(), stream_key(stream))
        arguments = (*inputs, out, *numbers, counter, rows, columns, target.row_stride)
        launch(kernel, blocks, plan.threads + 32, stream, *arguments)

    def _vector(
        self,
        operands: Operands,
        target: Matrix,
        numbers: tuple[Any, ...],
        stream: Any,
        threads: int,
        flat: bool,
    ) -> None:
        nbytes = operands.vector_bytes(target)
        kernel = vector_kernel(self.fn, operands.kinds, len(numbers), target.dtype, nbytes, flat)
        of_a_row = -(-target.columns * target.dtype.itemsize // nbytes)
        blocks = -(-target.rows * of_a_row // threads)
        arrays = [m.span() for m in (*operands.matrices, target)]
        sizes = (*operands.pitches, target.row_stride, target.rows, target.columns)
        launch(kernel, blocks, threads, stream, *arrays, *numbers, *sizes)


def pointwise(fn: Callable[..., Any]) -> Pointwise:
    """Make a kernel of a function of elements: ``pointwise(lambda x, y: x * y)``.

    `fn` is a plain Python function or a ``@cuda.jit(device=True)`` one. Its first parameters, one
    to four, are elements of arrays; the rest are numbers. All come as float32, and it returns a
    float32 (literals such as ``0.5`` are float64 in Numba: write ``np.float32(0.5)``), which is
    rounded once to the arrays' type.

    The result is called with device arrays and numbers::

        axpy = tma.kernels.pointwise.pointwise(lambda x, y, a: a * x + y)
        axpy(x, y, 2.0, out=y, stream=stream)

    Parameters of the call
    ----------------------
    *arguments
        Device arrays of f32, f16 or bf16, all of one type: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``; then numbers. An array has the shape of the
        result, or is broadcast: a row vector ``(columns,)``, a column vector ``(..., rows, 1)``, or
        one element. The last axis is contiguous; rows may have any stride and length.
    out
        Where to write; a new array like the first of the result's shape if None. May be an input
        of that shape.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How the work is cut up; what `plan_for` says if None.

    TMA moves what starts at a multiple of 16 B with rows that do. Anything else is worked on by
    ordinary loads and stores, as wide as the alignment of all arrays allows.
    """
    return Pointwise(fn)


def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y


def _scale_add(x, y, alpha, beta):  # type: ignore[no-untyped-def]
    return alpha * x + beta * y


#: ``add(x, y)`` is x + y.
add = Pointwise(_add, "add")
#: ``scale_add(x, y, alpha, beta)`` is alpha * x + beta * y, computed in float32.
scale_add = Pointwise(_scale_add, "scale_add")
