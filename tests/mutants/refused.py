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
    """A wrong kernel and the sentence of its error, a regular expression."""

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


@refused("")
def float_coordinate():
    return loader("(t * 4, 0.0)")


@refused("")
def float_variable_coordinate():
    return loader("(t / 2, 0)")


@refused("")
def list_of_coordinates():
    return loader("[t * 4, 0]")


@refused("")
def scalar_coordinate():
    return loader("t")


@refused("")
def too_few_coordinates():
    return loader("(t,)")


@refused("")
def array_for_a_map():
    return loader(source="y")


@refused("")
def array_in_load_place():
    return loader(tile="y")


@refused("")
def none_barrier():
    return loader(barrier="None")


@refused("")
def integer_barrier_tile():
    return loader(barrier="stage.x")


# objects that only the host makes


@refused("")
def tile_in_kernel():
    return loader(before="T = tma.Tile((4, 32), 'f32')")


@refused("")
def pipeline_in_kernel():
    return loader(before="P = tma.TilePipeline(2, x=TILE)")


@refused("")
def map_in_kernel():
    return loader(before="m = tma.tensor_map(y, TILE)")


@refused("")
def roles_in_kernel():
    return loader(before="r = tma.Roles(compute=tma.Warps(1))")


# attributes


@refused("")
def shape_of_a_map():
    return loader(before="r = x.shape[0]")


@refused("")
def array_of_a_map():
    return loader(before="r = x.array")


@refused("")
def offset_of_a_tile():
    return loader(consumer="y[0, 0] = TILE.offset(1, 2)")


@refused("")
def atomic_on_a_tile():
    return loader(consumer="cuda.atomic.add(stage.x, (0, 0), 1.0)")


@refused("")
def iterate_over_a_tile():
    return loader(consumer="for v in stage.x: y[0, 0] = v")


@refused("")
def len_of_a_tile():
    return loader(consumer="y[0, 0] = len(stage.x)")


@refused("")
def shape_of_a_shared_tile():
    return loader(consumer="y[0, 0] = stage.x.shape[0]")


@refused("")
def slice_of_a_tile():
    return loader(consumer="y[0, 0] = stage.x[0][0]")


@refused("")
def float_index():
    return loader(consumer="y[0, 0] = stage.x[0.0, 1]")


@refused("")
def one_index():
    return loader(consumer="y[0, 0] = stage.x[0]")


@refused("")
def misaligned_vector():
    return loader(consumer="v = stage.x.read_vector((0, 1)); y[0, 0] = v[0]")


@refused("")
def unknown_tile():
    return loader(consumer="y[0, 0] = stage.z[0, 0]")


@refused("")
def vector_index_variable():
    return loader(consumer="v = stage.x.read_vector((0, 0)); y[0, 0] = v[n]")


# loops


@refused("")
def step_of_zero():
    return loader(loop="pipe.produce(0, n, 0)", consume="pipe.consume(0, n, 0)")


@refused("")
def float_bound():
    return loader(loop="pipe.produce(0, n / 2)", consume="pipe.consume(0, n / 2)")


@refused("")
def float_first():
    return loader(loop="pipe.produce(0.0, n)", consume="pipe.consume(0.0, n)")


@refused("")
def array_bound():
    return loader(loop="pipe.produce(0, y)", consume="pipe.consume(0, y)")


@refused("")
def in_flight_of_all_stages():
    return loader(consume="pipe.consume(0, n, in_flight=2)")


@refused("")
def start_in_a_loop():
    @cuda.jit
    def kernel(x, y, n):
        for _ in range(2):
            pipe = PIPE.start()
            if pipe.is_producer():
                for t, stage in pipe.produce(0, n):
                    x.load(stage.x, (t * 4, 0), stage.barrier)
            else:
                for t, stage in pipe.consume(0, n):
                    pass

    return kernel


@refused("")
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
            for t, stage in pipe.consume(0, n):
                for u, second in other.consume(0, 1):
                    pass

    return kernel


@refused("")
def is_producer_forgotten():
    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
        for t, stage in pipe.consume(0, n):
            pass

    return kernel


@refused("")
def missing_scopes():
    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n):
                    with producer.acquire() as stage:
                        x.load(stage.x, (t * 4, 0), stage.barrier)
        else:
            with pipe.consumer() as consumer:
                for t in range(n):
                    with consumer.wait() as stage:
                        pass

    return kernel
