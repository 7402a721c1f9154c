"""Kernels that read the neighbours of a tile's elements, in each number of dimensions."""

from numba import cuda

import numba_tma as tma

LINE = tma.Halo(24, "f64", 3)
PLANE = tma.Halo((4, 8), "f32", 2)
SLICE = tma.Halo((1, 4, 16), "f16", (0, 1, 1))
LINE_PIPE = tma.TilePipeline(2, x=LINE.tile)
PLANE_PIPE = tma.TilePipeline(2, x=PLANE.tile)
SLICE_PIPE = tma.TilePipeline(4, x=SLICE.tile)


def line_kernel(boundary):
    """Return the kernel y[i] = x[i - 3] + 10 x[i] + 100 x[i + 3]; None: what TMA fills."""

    @cuda.jit
    def line(x, y, n):
        pipe = LINE_PIPE.start()
        tiles = (n + 23) // 24
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                x.load(stage.x, LINE.box_at((t * 24,)), stage.barrier)
        else:
            me, all_of_us = pipe.consumer_thread(), pipe.num_consumers()
            for t, stage in pipe.consume(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                s = LINE.inner(stage.x)
                if boundary is not None and s.fill(boundary, (t * 24,), (n,), me, all_of_us):
                    pipe.sync_consumers()
                for (i,) in s.indices(me, all_of_us):
                    if t * 24 + i < n:
                        y[t * 24 + i] = s[i - 3] + 10 * s[i] + 100 * s[i + 3]
        pipe.close()

    return line


def plane_kernel(boundary, from_source):
    """Return a kernel of five neighbours of a plane; the source gives what lies outside, or x."""

    @cuda.jit
    def plane(x, y, source, rows, columns):
        pipe = PLANE_PIPE.start()
        across = (columns + 7) // 8
        tiles = (rows + 3) // 4 * across
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                x.load(stage.x, PLANE.box_at((t // across * 4, t % across * 8)), stage.barrier)
        else:
            me, all_of_us = pipe.consumer_thread(), pipe.num_consumers()
            for t, stage in pipe.consume(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                s, at = PLANE.inner(stage.x), (t // across * 4, t % across * 8)
                if from_source:
                    filled = s.fill(boundary, at, (rows, columns), me, all_of_us, source)
                else:
                    filled = s.fill(boundary, at, (rows, columns), me, all_of_us)
                if filled:
                    pipe.sync_consumers()
                for i, j in pipe.indices(PLANE.interior):
                    row, column = at[0] + i, at[1] + j
                    if row < rows and column < columns:
                        straight = s[i - 2, j] + 10 * s[i + 2, j] + 100 * s[i, j - 2]
                        y[row, column] = straight + 1000 * s[i, j + 2] + 0.5 * s[i - 1, j + 1]
        pipe.close()

    return plane


def slice_kernel(boundary):
    """Return a kernel over planes that it streams: six neighbours, in three dimensions."""

    @cuda.jit
    def slices(x, y, depth, rows, columns):
        pipe = SLICE_PIPE.start()
        top, left = cuda.blockIdx.y * 4, cuda.blockIdx.x * 16
        if pipe.is_producer():
            for z, stage in pipe.produce_windows(0, depth):
                plane = tma.padded_index(boundary, z, depth)
                x.load(stage.x, SLICE.box_at((plane, top, left)), stage.barrier)
        else:
            me, all_of_us = pipe.consumer_thread(), pipe.num_consumers()
            for z, window in pipe.windows(0, depth):
                above, here = SLICE.inner(window[-1].x), SLICE.inner(window[0].x)
                below = SLICE.inner(window[1].x)
                extents = (depth, rows, columns)
                if here.fill(boundary, (z, top, left), extents, me, all_of_us):
                    pipe.sync_consumers()
                for _, i, j in pipe.indices(SLICE.interior):
                    row, column = top + i, left + j
                    if row < rows and column < columns:
                        total = above[0, i, j] + 2 * below[0, i, j] + 4 * here[0, i - 1, j]
                        total += 8 * here[0, i + 1, j] + 16 * here[0, i, j - 1]
                        y[z, row, column] = total + 32 * here[0, i, j + 1]
        pipe.close()

    return slices
