"""Small kernels with one thing wrong, which compiler and simulator refuse, with the same sentence.

Each is a function that returns a kernel of (map of `TILE`, array of float32, number of tiles).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)
OTHER = tma.TilePipeline(2, x=TILE)
ROLES = tma.Roles(compute=tma.Warps(1), load=tma.Warps(1), spare=tma.Warps(1))


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
    text = f"""
def kernel(x, y, n):
    {before}
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in {loop}:
            {source}.load({tile}, {coordinates}, {barrier})
    else:
        for t, stage in {consume}:
            {consumer}
"""
    names = dict(globals())
    exec(compile(text, "<refused>", "exec"), names)
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


@refused("cuda.atomic takes arrays, and a shared tile is none")
def atomic_on_a_tile():
    return loader(consumer="cuda.atomic.add(stage.x, (0, 0), 1.0)")


@refused("a shared tile cannot be iterated over: iterate over its indices")
def iterate_over_a_tile():
    return loader(consumer="for v in stage.x: y[0, 0] = v")


@refused("No implementation of function Function(<built-in function len>)", "has no len()")
def len_of_a_tile():
    return loader(consumer="y[0, 0] = len(stage.x)")


@refused("attribute 'shape'")
def shape_of_a_shared_tile():
    return loader(consumer="y[0, 0] = stage.x.shape[0]")


@refused("has 2 axes but is indexed with 1 integers")
def slice_of_a_tile():
    return loader(consumer="y[0, 0] = stage.x[0][0]")


@refused("is indexed with integers, not")
def float_index():
    return loader(consumer="y[0, 0] = stage.x[0.0, 1]")


@refused("has 2 axes but is indexed with 1 integers")
def one_index():
    return loader(consumer="y[0, 0] = stage.x[0]")


@refused("starts 4 B after a multiple of 16 B: use a multiple of 4 along the last axis")
def misaligned_vector():
    return loader(consumer="v = stage.x.read_vector((0, 1)); y[0, 0] = v[0]")


@refused("has no tile 'z'")
def unknown_tile():
    return loader(consumer="y[0, 0] = stage.z[0, 0]")


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
