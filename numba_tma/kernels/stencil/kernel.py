"""The kernel of a stencil: planes stream through a pipeline, and threads read neighbours in tiles.

Cost model: each input is read once, with the halo of its tiles, and each output written once, so
DRAM decides as long as the function takes few instructions. A tile of 16 x 64 with a radius of 1
loads 27 % more elements than it has; most of them come from L2, since tiles side by side are
computed at a time.

One kernel serves 1 to 3 axes. Arrays are (planes, rows, columns) to it. A block takes a chunk of
planes at one place of the rows and columns, and streams through it: a stencil of 3 axes holds a
window of planes, one of 2 axes a single plane, and one of 1 axis has its batch as rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import (
    Constant,
    compile_time,
    device_class,
    device_function,
    i32,
    u32,
)
from numba_tma.backend.primitives import add32, quotient
from numba_tma.device.halo import Boundaries, is_number
from numba_tma.device.shared import Index
from numba_tma.host.annotations import DeviceFunction, Kernel, Real
from numba_tma.host.boundaries import BOUNDARIES
from numba_tma.host.dtypes import DType
from numba_tma.kernels.pointwise.inputs import as_device, device, entry, together
from numba_tma.kernels.stencil.form import StencilForm
from numba_tma.pipeline.stages import slot_tile
from numba_tma.pipeline.windows import Window


@device_class(static=("halo", "name", "axes"))
@dataclass(frozen=True)
class Neighbours:
    """An array as a stencil's function has it: ``a[-1, 0]`` is the element of the row before."""

    halo: tma.Halo
    name: str  # of the tiles
    axes: int  # of the indices
    window: Window
    row: i32  # of the element in its tile
    column: i32

    def __getitem__(self, index: Constant[Index]) -> Any:
        plane, row, column = along_planes(self.axes, index)
        stage = self.window[plane]
        tile = self.halo.inner(slot_tile(stage.owner, stage.index, self.name))
        return computed(self.halo, tile[0, self.row + row, self.column + column])


@device_function
def along_planes(axes: Constant[int], index: Constant[Index]) -> tuple[int, ...]:
    """Return an index as those of planes, rows and columns."""
    if axes == 3:
        return i32(index[0]), i32(index[1]), i32(index[2])
    if axes == 2:
        return 0, i32(index[0]), i32(index[1])
    if is_number(index):
        return 0, 0, i32(index)
    return 0, 0, i32(index[0])


@device_function
def computed(halo: tma.Halo, value: Real) -> Any:
    """Return an element as functions compute with it: integers have 64 bits and a sign."""
    if is_integer(halo):
        return np.int64(value)
    return value


@compile_time
def is_integer(halo: tma.Halo) -> bool:
    """Return whether the elements are integers."""
    return halo.dtype.numpy.kind in "iu"


def rounding(dtype: DType) -> DeviceFunction:
    """Return the function that makes what is stored of a result."""
    pairs: dict[str, Any] = {"bf16": ptx.cvt_bf16x2_f32, "f16": ptx.cvt_f16x2_f32}
    if dtype.name in pairs:
        rounded = pairs[dtype.name]

        @device
        def stored_bits(value):  # type: ignore[no-untyped-def]
            return np.uint16(rounded(np.float32(0), np.float32(value)) & 0xFFFF)

        return stored_bits
    kind = {"f32": np.float32, "f64": np.float64}.get(dtype.name, np.int64)

    @device
    def stored_whole(value):  # type: ignore[no-untyped-def]
        return kind(value)

    return stored_whole


def calling(fn: DeviceFunction, form: StencilForm) -> DeviceFunction:
    """Return the function that calls `fn` with views and numbers, and returns a tuple."""
    views, numbers = iter(range(len(form.radii))), iter(range(len(form.is_array)))
    arguments = ", ".join(
        f"views[{next(views)}]" if is_array else f"numbers[{next(numbers)}]"
        for is_array in form.is_array
    )
    result = f"fn({arguments})" if form.outputs > 1 else f"(fn({arguments}),)"
    made: dict[str, Any] = {"fn": fn}
    exec(f"def call(views, numbers):\n    return {result}\n", made)
    return device(made["call"])


def any_of(functions: Sequence[DeviceFunction]) -> DeviceFunction:
    """Return the function that calls each of `functions`, and returns whether one returned True."""
    *before, last = functions
    if not before:
        return last
    first = any_of(before)

    @device
    def one_of_them(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
        earlier = first(inputs, tiles, at, extra)
        return last(inputs, tiles, at, extra) or earlier

    return one_of_them


@functools.cache
def stencil_kernel(fn: DeviceFunction, form: StencilForm) -> Kernel:
    """Return the kernel of a function in one form."""
    fn = as_device(fn)
    dtype, (height, width), count = form.dtype, form.tile, len(form.radii)
    # The planes beside a tile are tiles of their own.
    halos = [tma.Halo((1, height, width), dtype, (0, *radius[1:])) for radius in form.radii]
    names = [f"x{k}" for k in range(count)]
    payload: dict[str, Any] = {name: halo.tile for name, halo in zip(names, halos)}
    ROLES = tma.Roles(compute=tma.Warps(form.warps), load=tma.Warps(1))
    PIPE = tma.TilePipeline(form.stages, producer=ROLES.load, consumer=ROLES.compute, **payload)
    RADIUS = form.radius
    across_planes, *in_plane = form.boundaries
    streamed = across_planes if across_planes in BOUNDARIES else None
    filled_modes = Boundaries((None, *(m if m in BOUNDARIES else None for m in in_plane)))
    fills = any(filled_modes.modes)
    axes = form.axes
    (LOW_Z, HIGH_Z), (LOW_Y, HIGH_Y), (LOW_X, HIGH_X) = form.margins
    has_margins = any(map(any, form.margins))

    @device
    def plane_at(z, depth, batch):  # type: ignore[no-untyped-def]
        """Return the plane of the array that stands for another; -1 for none."""
        if streamed is not None:
            return batch * depth + tma.padded_index(streamed, z, depth)
        if 0 <= z and z < depth:
            return batch * depth + z
        return -1

    def load(k: int) -> DeviceFunction:
        halo = halos[k]

        @device
        def load_box(inputs, tiles, at, barrier):  # type: ignore[no-untyped-def]
            inputs[k].load(tiles[k], halo.box_at(at), barrier)
            return True

        return load_box

    def fill(k: int) -> DeviceFunction:
        # Bits are moved: no element is rounded.
        halo = tma.Halo(halos[k].shape, f"u{8 * dtype.itemsize}", halos[k].radius)
        box, needs_source = halo.tile, form.needs_sources

        @device
        def fill_halo(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
            extents, thread, threads = extra
            tile = halo.inner(tiles[k].view(box))
            if needs_source:
                return tile.fill(filled_modes, at, extents, thread, threads, inputs[k])
            return tile.fill(filled_modes, at, extents, thread, threads)

        return fill_halo

    def view(k: int) -> DeviceFunction:
        halo, name = halos[k], names[k]

        @device
        def view_it(window, nothing, at, extra):  # type: ignore[no-untyped-def]
            return Neighbours(halo, name, axes, window, at[0], at[1])

        return view_it

    round_result = rounding(dtype)

    def store(k: int) -> DeviceFunction:
        @device
        def store_it(outs, results, at, extra):  # type: ignore[no-untyped-def]
            plane, row, column = at
            outs[k][plane, row, column] = round_result(results[k])
            return True

        return store_it

    def compute(k: int) -> DeviceFunction:
        @device
        def compute_it(window, numbers, me, extra):  # type: ignore[no-untyped-def]
            i, j = element(k, me)
            if not whole:  # the last of some threads is behind the tile
                i = min(i, u32(height - 1))
            return call(view_all(window, (), (i, j), 0), numbers)

        return compute_it

    def finish(k: int) -> DeviceFunction:
        @device
        def finish_it(outs, results, at, extra):  # type: ignore[no-untyped-def]
            (me, top, left), (z, batch, depth, rows, columns) = at, extra
            i, j = element(k, me)
            # An index of an array that has a sign could count from the end.
            row, column = add32(top, i), add32(left, j)
            if i < height and row < u32(rows) and column < u32(columns):
                place = (u32(batch * depth + z), row, column)
                inside = True
                if has_margins:
                    inside = z + LOW_Z >= 0 and z + HIGH_Z < depth
                    inside = inside and row >= -LOW_Y and row + HIGH_Y < rows
                    inside = inside and column >= -LOW_X
                    inside = inside and column + HIGH_X < columns
                if inside:
                    store_all(outs, results[k], place, 0)
                elif has_margins:
                    store_all(outs, constants, place, 0)
            return True

        return finish_it

    threads, in_columns = 32 * form.warps, 32 * form.warps % width == 0

    @device
    def element(k, me):  # type: ignore[no-untyped-def]
        """Return row and column in the tile of a thread's `k`-th element."""
        if in_columns:  # all in one column: a constant number of rows apart
            row, column = quotient(u32(me), u32(width))
            return add32(row, k * (threads // width)), column
        return quotient(u32(me + k * threads), u32(width))

    each, outputs = range(count), range(form.outputs)
    elements_of_a_thread = range(-(-height * width // threads))
    whole = height * width % threads == 0
    load_all, view_all = (together([f(k) for k in each]) for f in (load, view))
    store_all, constants = together([store(k) for k in outputs]), (form.cval,) * form.outputs
    fill_all, call = any_of([fill(k) for k in each]), calling(fn, form)
    # All results are computed before one is stored: a store would hold back the reads behind it.
    compute_all = together([compute(k) for k in elements_of_a_thread])
    finish_all = together([finish(k) for k in elements_of_a_thread])

    @device
    def place_of(t, depth, rows, columns, chunk):  # type: ignore[no-untyped-def]
        """Return where a block's work begins, and the planes of its chunk."""
        rest, column = quotient(u32(t), u32((columns + width - 1) // width))
        rest, row = quotient(rest, u32((rows + height - 1) // height))
        batch, part = quotient(rest, u32((depth + chunk - 1) // chunk))
        first = i32(part) * i32(chunk)
        stop = min(first + i32(chunk), i32(depth))
        return i32(row) * height, i32(column) * width, i32(batch), first, stop

    @device
    def planes(maps, outs, sources, numbers, depth, rows, columns, chunk, total):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if pipe.is_producer():
            for t in range(cuda.blockIdx.x, total, cuda.gridDim.x):
                top, left, batch, first, stop = place_of(t, depth, rows, columns, chunk)
                for z, stage in pipe.produce_windows(first, stop, radius=RADIUS):
                    at = (plane_at(z, depth, batch), top, left)
                    load_all(maps, stage.get_tile(), at, stage.barrier)
        else:
            me, all_of_us = pipe.consumer_thread(), pipe.num_consumers()
            for t in range(cuda.blockIdx.x, total, cuda.gridDim.x):
                top, left, batch, first, stop = place_of(t, depth, rows, columns, chunk)
                for z, window in pipe.windows(first, stop, radius=RADIUS):
                    if fills:
                        # The planes of the window are filled when they arrive.
                        filled = False
                        for d in range(RADIUS if z > first else -RADIUS, RADIUS + 1):
                            plane = plane_at(z + d, depth, batch)
                            if plane >= 0:
                                at, extents = (plane, top, left), (plane + 1, rows, columns)
                                extra = (extents, me, all_of_us)
                                if fill_all(sources, window[d].get_tile(), at, extra):
                                    filled = True
                        if filled:
                            pipe.sync_consumers()
                    results = compute_all(window, numbers, me, 0)
                    finish_all(outs, results, (me, top, left), (z, batch, depth, rows, columns))
        pipe.close()

    return entry(
        planes,
        "stencil",
        maps=count,
        outs=form.outputs,
        sources=count * form.needs_sources,
        numbers=len(form.is_array) - count,
    )
