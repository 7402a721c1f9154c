"""Small kernels with one thing wrong, which compiler and simulator refuse, with the same sentence.

Each is a function that returns a kernel of (map of `TILE`, array of float32, number of tiles).
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)
OTHER = tma.TilePipeline(2, x=TILE)
WIDE = tma.TilePipeline(4, x=TILE)
NUMBERS, CONSTANTS = [1, 2], np.zeros(4)
ROLES = tma.Roles(compute=tma.Warps(1), load=tma.Warps(1), spare=tma.Warps(1))


def plain(value):
    return value


@dataclass(frozen=True)
class Refused:
    """A wrong kernel and the sentence of its error,"""

    build: Callable[[], Any]
    sentence: str
    simulated: str  #: the simulator's, where it differs: the compiler sees types, not values
    threads: int

    def __repr__(self) -> str:
        return self.build.__name__


REFUSED: list[Refused] = []
_numbers = itertools.count()


def refused(sentence: str, simulated: str | None = None, threads: int = 64) -> Any:
    """Add a wrong kernel to the table."""

    def add(build: Callable[[], Any]) -> Callable[[], Any]:
        REFUSED.append(Refused(build, sentence, simulated or sentence, threads))
        return build

    return add


def loader(
    coordinates: str = "(t * 4, 0)",
    loop: str = "pipe.produce(0, n)",
    tile: str = "stage.x",
    source: str = "x",
    barrier: str = "stage.barrier",
    consumer: str = "pass",
    consume: str = "pipe.consume(0, n)",
    before: str = "pass",
) -> Any:
    """Return a pipeline's kernel with some of its parts replaced."""
    return kernel_from(f"""
def kernel(x, y, n):
    {before}
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in {loop}:
            {source}.load({tile}, {coordinates}, {barrier})
    else:
        for t, stage in {consume}:
            {consumer}
""")


def kernel_from(text: str) -> Any:
    """Return the kernel of a source."""
    names, place = dict(globals()), f"<refused {next(_numbers)}>"
    linecache.cache[place] = len(text), None, text.splitlines(True), place  # as a notebook does
    exec(compile(text, place, "exec"), names)
    return cuda.jit(names["kernel"])


# coordinates


@refused("takes a tuple of 1 to 5 integers in the array's axis order, not")
def float_coordinate():
    return loader("(t * 4, 0.0)")


@refused("takes a tuple of 1 to 5 integers in the array's axis order, not")
def float_variable_coordinate():
    return loader("(t / 2, 0)")


@refused("takes a tuple of 1 to 5 integers in the array's axis order, not")
def list_of_coordinates():
    return loader("[t * 4, 0]")


@refused("takes a tuple of 1 to 5 integers in the array's axis order, not")
def scalar_coordinate():
    return loader("t")


@refused("1 coordinates for TensorMap(")
def too_few_coordinates():
    return loader("(t,)")


@refused("array.load: an array is no tensor map; pass tensor_map(array, tile)")
def array_for_a_map():
    return loader(source="y")


@refused("takes a Barrier (or its shared-memory address), not")
def none_barrier():
    return loader(barrier="None")


@refused("takes a Barrier (or its shared-memory address), not SharedTile")
def integer_barrier_tile():
    return loader(barrier="stage.x")


# objects that only the host makes


@refused("Tile(...) is for the host: call it before the launch")
def tile_in_kernel():
    return loader(before="T = tma.Tile((4, 32), 'f32')")


@refused("TilePipeline(...) is for the host: call it before the launch")
def pipeline_in_kernel():
    return loader(before="P = tma.TilePipeline(2, x=TILE)")


@refused("tensor_map(...) is for the host: call it before the launch")
def map_in_kernel():
    return loader(before="m = tma.tensor_map(y, TILE)")


@refused("NamedBarrier(...) is for the host: call it before the launch")
def named_barrier_in_kernel():
    return loader(before="b = tma.NamedBarrier(8, 64)")


# attributes


@refused("TensorMap.shape is for the host: read it before the launch")
def shape_of_a_map():
    return loader(before="r = x.shape[0]")


@refused("TensorMap.array is for the host")
def array_of_a_map():
    return loader(before="r = x.array")


@refused("Tile.offset is for the host")
def offset_of_a_tile():
    return loader(consumer="y[0, 0] = TILE.offset(1, 2)")


@refused("cuda.atomic.and_ takes elements of i32, u32, i64, u64, and Tile((4, 32), f32, NONE) has")
def bitwise_atomic_on_a_tile_of_floats():
    return loader(consumer="cuda.atomic.and_(stage.x, (0, 0), 1)")


@refused("cuda.atomic.compare_and_swap takes the first element of an array of one axis, and Tile(")
def compare_and_swap_on_a_tile():
    return loader(consumer="cuda.atomic.compare_and_swap(stage.x, 1, 1)")


@refused("Tile((4, 32), f32, NONE) has 2 axes but is indexed with 1 integers")
def atomic_with_one_index():
    return loader(consumer="cuda.atomic.add(stage.x, 0, 1.0)")


@refused("Tile((4, 32), f32, NONE) is indexed with integers, not")
def atomic_with_a_float_index():
    return loader(consumer="cuda.atomic.add(stage.x, (0, 0.0), 1.0)")


@refused("a tile of f32 takes real numbers, not a complex one: write its real or its imag")
def complex_atomic():
    return loader(consumer="cuda.atomic.add(stage.x, (0, 0), 1j)")


@refused("cuda.atomic.add takes an array or a shared tile, not")
def atomic_on_a_barrier():
    return loader(consumer="cuda.atomic.add(tma.shared_barrier(), 0, 1)")


@refused("a shared tile cannot be iterated over: iterate over its indices")
def iterate_over_a_tile():
    return loader(consumer="for v in stage.x: y[0, 0] = v")


@refused("No implementation of function Function(<built-in function len>)", "has no len()")
def len_of_a_tile():
    return loader(consumer="y[0, 0] = len(stage.x)")


@refused("attribute 'strides'")
def strides_of_a_shared_tile():
    return loader(consumer="y[0, 0] = stage.x.strides[0]")


@refused("has 2 axes but is indexed with 1 integers")
def slice_of_a_tile():
    return loader(consumer="y[0, 0] = stage.x[0][0]")


@refused("is indexed with integers, not")
def float_index():
    return loader(consumer="y[0, 0] = stage.x[0.0, 1]")


@refused("a tile of f32 takes real numbers, not a complex one: write its real or its imag")
def complex_element():
    return loader(consumer="stage.x[0, 0] = 1j")


@refused("has 2 axes but is indexed with 1 integers")
def one_index():
    return loader(consumer="y[0, 0] = stage.x[0]")


@refused("starts 4 B after a multiple of 16 B: use a multiple of 4 along the last axis")
def misaligned_vector():
    return loader(consumer="v = stage.x.read_vector((0, 1)); y[0, 0] = v[0]")


@refused("has no tile 'z'")
def unknown_tile():
    return loader(consumer="y[0, 0] = stage.z[0, 0]")


@refused(
    "No implementation of function Function(<class 'bool'>)",
    "a shared tile is neither true nor false: compare",
)
def tile_as_a_condition():
    return loader(consumer="q = 1 if stage.x else 2")


@refused("is_consumer", "pipe.is_consumer is a method, and so never false: call it")
def role_that_is_not_called():
    return loader(consume="pipe.consume(0, n) if pipe.is_consumer else pipe.consume(0, n)")


@refused("which is not in shared memory; give a stage's tile, a shared_tile or a cuda.shared.array")
def global_array_for_a_tile():
    return loader(tile="y")


# host-only calls


@refused("Warps(...) is for the host: call it before the launch")
def warps_in_a_kernel():
    return loader(before="w = tma.Warps(1)")


@refused("reference_tile(...) is for the host: call it before the launch")
def reference_in_a_kernel():
    return loader(before="w = tma.reference_tile(y, TILE, (0, 0))")


@refused("TensorMap.explain is for the host")
def explain_in_a_kernel():
    return loader(before="x.explain()")


# operands


@refused("mbarrier_init(count=...) takes an integer (u")
def float_arrival_count():
    return loader(before="tma.shared_barrier().init(1.0)")


@refused("(parity=...) takes an integer (u32), not")
def float_parity():
    return loader(before="b = tma.shared_barrier()\n    b.init(1)\n    b.wait(1.0)")


@refused("takes a CachePolicy or a createpolicy result, not")
def text_for_a_cache_hint():
    return loader(barrier="stage.barrier, cache_hint='first'")


@refused("fence_proxy_async(space=...) is part of the instruction: one of 'shared::cta', ")
def unknown_fence():
    return loader(before="tma.fence_proxy_async('shared')")


@refused("cp_async_bulk_wait_group(pending=...) is part of the instruction and must be a literal")
def group_that_is_a_variable():
    return loader(before="tma.ptx.cp_async_bulk_wait_group(cuda.threadIdx.x)")


# Python


@refused("Untyped global name 'plain'", "plain is a plain Python function: put @cuda.jit(device=")
def plain_function():
    return loader(before="r = plain(1)")


@refused("build_set", "a kernel has no place for a set: compare with each element, or use a tuple")
def set_in_a_kernel():
    return loader(before="r = {1, 2}")


@refused("build_map", "a kernel has no place for a dictionary: use variables, or a tuple among")
def dictionary_in_a_kernel():
    return loader(before="r = {1: 2}")


@refused(
    "str(int32)", "a kernel has no place for a formatted string: print takes several arguments"
)
def formatted_string():
    return loader(before="r = f'{cuda.threadIdx.x}'")


@refused("exception_match", "a kernel has no place for a try statement: test the condition")
def try_in_a_kernel():
    return loader(before="try: r = 1\n    except ValueError: r = 2")


@refused("append", "a kernel has no place for a list comprehension: use a loop, and cuda.local.arr")
def list_comprehension():
    return loader(before="r = [i for i in range(3)]")


@refused("List(int64", "the global NUMBERS is a list: make it a tuple or a NumPy array")
def global_list():
    return loader(before="r = NUMBERS[0]")


@refused("must have void return type", "a kernel returns no value: write it to an array")
def returned_value():
    return loader(before="if cuda.threadIdx.x > 2000: return 1")


@refused("readonly array", "CONSTANTS is a global, and so a constant: pass the array to the kernel")
def written_global():
    return loader(before="CONSTANTS[0] = 1")


# loops


@refused("produce(step=0): the loop would not end")
def step_of_zero():
    return loader(loop="pipe.produce(0, n, 0)", consume="pipe.consume(0, n, 0)")


@refused("produce(stop=...) takes an integer, not")
def float_bound():
    return loader(loop="pipe.produce(0, n / 2)", consume="pipe.consume(0, n / 2)")


@refused("produce(first=...) takes an integer, not")
def float_first():
    return loader(loop="pipe.produce(0.0, n)", consume="pipe.consume(0.0, n)")


@refused("produce(stop=...) takes an integer, not")
def array_bound():
    return loader(loop="pipe.produce(0, y)", consume="pipe.consume(0, y)")


@refused("consume(in_flight=2): with 2 stages at most 1 can be held back")
def in_flight_of_all_stages():
    return loader(consume="pipe.consume(0, n, in_flight=2)")


@refused("is in a loop: it would initialise mbarriers again")
def start_in_a_loop():
    @cuda.jit
    def kernel(x, y, n):
        for _ in range(2):
            pipe = PIPE.start()
            if pipe.is_producer():
                for t, stage in pipe.produce(0, n):
                    x.load(stage.x, (t * 4, 0), stage.barrier)
            else:
                for _ in pipe.consume(0, n):
                    pass

    return kernel


@cuda.jit(device=True)
def starts():
    PIPE.start()


@refused("is in a loop: it would initialise mbarriers again")
def start_in_a_device_function_in_a_loop():
    return loader(before="for _ in range(2): starts()")


@refused("sync is called in the body of a produce loop, which one elected thread executes")
def named_barrier_in_a_produce_loop():
    return loader(barrier="stage.barrier); ROLES.load.sync(")


@refused("shfl_sync is called in the body of a produce loop, which one elected thread executes")
def shuffle_in_a_produce_loop():
    return loader(coordinates="(cuda.shfl_sync(-1, t, 0), 0)")


@refused(
    "consume(in_flight=...) must be a compile-time constant, an integer",
    "in_flight must be a compile-time constant",
)
def in_flight_of_the_launch():
    return loader(consume="pipe.consume(0, n, in_flight=n - 4)")


@refused("produce is called in the body of a produce loop, which one elected thread executes")
def nested_produce_loops():
    @cuda.jit
    def kernel(x, y, n):
        pipe, other = PIPE.start(), OTHER.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t * 4, 0), stage.barrier)
                for u, second in other.produce(0, 1):
                    x.load(second.x, (u * 4, 0), second.barrier)
        else:
            for _ in pipe.consume(0, n):
                pass

    return kernel


@refused(
    "the same threads execute produce and consume of one pipeline",
    "is executed by a thread that is no producer: put it under `if pipe.is_producer():`",
)
def is_producer_forgotten():
    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
        for _ in pipe.consume(0, n):
            pass

    return kernel


@refused("a `with` scope of a pipeline needs @tma.scopes: put it on the kernel or device function")
def missing_scopes():
    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        with pipe.producer() as producer:
            for t in range(n):
                stage = producer.acquire()
                x.load(stage.x, (t * 4, 0), stage.barrier)

    return kernel


# windows


def windows(use: str = "y[z, 0] = window[0].x[0, 0]", given: str = "0, n") -> Any:
    """Return a kernel with windows of a stream."""
    return kernel_from(f"""
def kernel(x, y, n):
    pipe = WIDE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce_windows({given}):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for z, window in pipe.windows({given}):
            {use}
""")


@refused(
    "window[2]: this window has the tiles -1 to 1; give radius=2 to pipe.windows and to pipe.prod"
)
def index_beyond_the_radius():
    return windows("y[z, 0] = window[2].x[0, 0]")


@refused(
    "window[-2]: this window has the tiles -1 to 0; give before=2 to pipe.windows and to pipe.pro"
)
def index_before_the_window():
    return windows("y[z, 0] = window[-2].x[0, 0]", "0, n, before=1, after=0")


@refused("a window cannot be iterated over: iterate over its distances, as in `for d in range(")
def iterate_over_a_window():
    return windows("for s in window: y[z, 0] = s.x[0, 0]")


@refused("a window holds 2 + 1 + 2 = 5 tiles, and TilePipeline(4, x=")
def window_of_more_tiles_than_stages():
    return windows(given="0, n, radius=2")


@refused(
    "windows(radius=...) must be a compile-time constant, an integer",
    "radius must be a compile-time constant",
)
def radius_of_the_launch():
    return windows(given="0, n, 1, n - 3")


@refused("windows is called in the body of a produce loop, which one elected thread executes")
def windows_in_a_produce_loop():
    return kernel_from("""
def kernel(x, y, n):
    pipe, other = PIPE.start(), WIDE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
            for z, window in other.windows(0, 1, radius=0):
                pass
    else:
        for _ in pipe.consume(0, n):
            pass
""")
