"""Atomic operations on elements of tiles in compiled kernels: instructions, addresses, fences."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels.atomic_tiles import CASES, tile_of
from tests.ptx_machine import Machine
from tests.tiers import every

I32 = types.int32
#: PTX's names of operations, where they differ.
ATOMS = {"sub": "add", "nanmin": "min", "nanmax": "max", "and_": "and", "or_": "or"}
EVERY_CASE = [*CASES, ("exch", "i64"), ("cas", "u32")]


def atom_of(name, dtype):
    """Return PTX's operation; what PTX lacks is a loop of compare-and-swap."""
    if dtype[0] == "f" and name != "add" or name in ("inc", "dec") and dtype == "u64":
        return "cas"
    return ATOMS.get(name, name)


@pytest.mark.parametrize(("name", "dtype"), every(5, EVERY_CASE))
def test_an_operation_is_one_instruction_on_shared_memory(name, dtype):
    tile = tile_of(dtype)
    names = {"cuda": cuda, "tma": tma, "tile": tile}
    given = "values[0], values[1]" if name == "cas" else "values[0]"
    exec(
        "def kernel(values, i, j):\n"
        f"    values[2] = cuda.atomic.{name}(tma.shared_tile(tile), (i, j), {given})",
        names,
    )
    element = getattr(types, tile.dtype.compute)[::1]
    ptx = compile_ptx(names["kernel"], (element, I32, I32))
    assert ".local" not in ptx and ptxas(ptx).stack_frame == 0
    assert re.findall(r"\batom\.(\w+)\.(\w+)\.\w+", ptx) == [("shared", atom_of(name, dtype))]


@pytest.mark.parametrize(
    "tile", [Tile((8, 32), "i32", Swizzle.B128), Tile((3, 5, 8), "u32"), Tile(40, "u32")], ids=str
)
def test_it_changes_the_element_and_no_other(tile):
    def kernel(index, out):
        held = tma.shared_tile(tile)
        cuda.atomic.add(held, index, 7)
        out[0] = cuda.atomic.exch(held, index, 9)

    kinds = types.UniTuple(I32, tile.ndim), types.int32[::1]
    ptx = compile_ptx(cuda.jit(kernel), kinds)
    for index in [(0,) * tile.ndim, tuple(n - 1 for n in tile.shape), (2, 4, 5)[: tile.ndim]]:
        machine = Machine(ptx, *index, np.zeros(1, np.int32))
        machine.run()
        image = np.frombuffer(machine.peek_shared(machine.shared[0], tile.nbytes), np.int32)
        (changed,) = np.flatnonzero(image)
        assert 4 * changed == tile.offset(*index) and image[changed] == 9


def test_a_stage_that_an_atomic_has_changed_is_fenced_before_its_release():
    tile = Tile((8, 32), "f32", Swizzle.B128)
    pipeline = tma.TilePipeline(2, x=tile)

    def kernel(x, n):
        pipe = pipeline.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t * 8, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, n):
                cuda.atomic.add(stage.x, (t, t), 1)

    body = instructions(compile_ptx(cuda.jit(kernel), (tma.TensorMapType(2, tile), I32)))
    steps = "|".join(("atom.shared", "fence.proxy.async", "mbarrier.arrive.shared"))
    order = [found[0] for line in body if (found := re.match(steps, line))]
    last = order.index("atom.shared")
    assert order[last : last + 3] == steps.split("|")
