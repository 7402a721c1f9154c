"""Tiles of records in compiled kernels: fields, their alignment, and what is refused."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import TensorMapType
from numba_tma.backend.compiler import from_dtype
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels.record_tiles import (
    PACKED,
    POINT,
    TILES,
    WHOLE,
    bodies,
    changing,
    records,
)
from tests.ptx_machine import Machine
from tests.tiers import every

I32 = types.int32


@pytest.mark.parametrize("tile", every(3, TILES[:4]), ids=str)
def test_a_kernel_of_records_takes_no_local_memory(tile):
    change, _ = bodies(tile.dtype.numpy)
    kind, row = TensorMapType(2, tile), from_dtype(tile.dtype.numpy)[::1]
    kernel = changing(tile, cuda.jit(device=True)(change))
    ptx = compile_ptx(kernel, (kind, kind, row, types.UniTuple(I32, 2)))
    report = ptxas(ptx)
    assert report.stack_frame == report.spill_stores == 0 and ".local" not in ptx
    assert "ld.u" not in ptx and "st.u" not in ptx  # generic addresses


FIELDS = {
    POINT: ["x", "y", "id"],
    WHOLE: ["small", "at.x", "at.id", "half", "wide", "z"],
    PACKED: ["small", "wide", "at.y", "at.id", "pad", "z"],
}


def value_of(record, path):
    for name in path.split("."):
        record = record[name]
    return record


@pytest.mark.parametrize(
    ("dtype", "path"),
    every(4, [(d, p) for d, ps in FIELDS.items() for p in ps if p != "half"]),
    ids=str,
)
def test_a_field_is_read_and_written_where_numpy_has_it(dtype, path):
    tile = next(t for t in TILES if t.dtype.numpy == dtype)
    names = {"tma": tma, "tile": tile}
    exec(
        "def kernel(i, j, out):\n    held = tma.shared_tile(tile)\n"
        f"    out[0] = held[i, j].{path}\n    held[i, j].{path} = out[1]",
        names,
    )
    kind = value_of(np.zeros(1, dtype), path).dtype
    ptx = compile_ptx(names["kernel"], (I32, I32, from_dtype(kind)[::1]))
    x, out = records(tile.shape, dtype), np.full(2, 77).astype(kind)
    machine = Machine(ptx, 5, 9, out)
    machine.poke_shared(machine.shared[0], x.tobytes())
    machine.run()
    assert out[0] == value_of(x[5, 9], path)
    changed = np.frombuffer(machine.peek_shared(machine.shared[0], tile.nbytes), dtype)
    value_of(x, path)[5, 9] = 77
    assert changed.tobytes() == x.tobytes()


@pytest.mark.parametrize(("dtype", "own"), [(WHOLE, True), (PACKED, False)])
def test_an_access_is_as_wide_as_the_alignment_of_the_field(dtype, own):
    tile = next(t for t in TILES if t.dtype.numpy == dtype)

    def kernel(i, out):
        out[0] = tma.shared_tile(tile)[i, 2].wide

    body = "\n".join(instructions(compile_ptx(kernel, (I32, types.float64[::1]))))
    assert re.findall(r"ld\.shared\.(\w+)", body) == (["f64"] if own else ["u8"] * 8)


REFUSED = {
    "held[0, 0].q": "a record {x: f4, y: f4, id: i4} has no field 'q': its fields are x, y, id",
    "held.read_vector((0, 0))[0]": "has elements of fields, and vectors have elements of one word",
    "cuda.atomic.add(held, (0, 0), 1)": "cuda.atomic.add takes elements of f32, f64, i32, u32, i6",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_no_access_to_a_record(expression):
    names = {"tma": tma, "tile": TILES[0], "cuda": cuda}
    exec(f"def kernel(out):\n    held = tma.shared_tile(tile)\n    out[0] = {expression}", names)
    with pytest.raises(Exception, match=re.escape(REFUSED[expression])):
        compile_ptx(names["kernel"], (types.float32[::1],))


def test_a_number_is_no_record():
    tile = TILES[0]

    def kernel(out):
        tma.shared_tile(tile)[0, 0] = out[0]

    with pytest.raises(Exception, match=r"a tile of \{x: .* takes records of its own type: write"):
        compile_ptx(kernel, (types.float32[::1],))


def test_a_changed_field_is_fenced_before_the_release():
    tile = TILES[0]
    pipeline = tma.TilePipeline(2, x=tile)

    def kernel(x, n):
        pipe = pipeline.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t * 8, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, n):
                stage.x[t, 0].x = 1

    body = instructions(compile_ptx(cuda.jit(kernel), (TensorMapType(2, tile), I32)))
    steps = "|".join(("st.shared.u32", "fence.proxy.async", "mbarrier.arrive.shared"))
    order = [found[0] for line in body if (found := re.match(steps, line))]
    last = order.index("st.shared.u32")
    assert order[last : last + 3] == steps.split("|")
