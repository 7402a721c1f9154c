"""The notebooks' ladders: full-size kernels stay in registers; the shown rates are measured."""

import functools
import json

import pytest
from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.benchmarks.sweeps.ladder import RESULTS
from tests.ladders import LADDERS, NOTEBOOKS, RUNGS, executed
from tests.tiers import quick

BITS = types.uint16[:, ::1]  # of bf16, in an array
SCALARS = {"matmul": (types.int64,), "attention": (types.int64, types.float32)}
EVERY = [(ladder, name) for ladder in RUNGS for name in RUNGS[ladder]]


@functools.cache
def rungs(ladder):
    return executed(ladder, "tiles", "rung", simulated=False)["RUNGS"]


@pytest.mark.parametrize("ladder", LADDERS)
def test_the_rungs_are_those_that_are_tested(ladder):
    assert list(rungs(ladder)) == RUNGS[ladder]


LAST = [("matmul", "stores overlap"), ("attention", "longest first")]


@pytest.mark.parametrize(("ladder", "name"), quick(LAST[:1], EVERY))
def test_registers_hold_everything(ladder, name):
    """ptxas says so itself (C7508 to C7518) when it makes products wait for each other."""
    rung = rungs(ladder)[name]
    maps = (TensorMapType(tile.ndim, tile) if tile else BITS for tile in rung.tiles)
    ptx = compile_ptx(rung.kernel, (*maps, *SCALARS[ladder]))
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [line for line in instructions(ptx) if ".local" in line] == []
    assert report.registers * rung.threads <= 65536


@pytest.mark.parametrize("ladder", LADDERS)
def test_the_speeds_that_are_shown_are_those_of_the_results(ladder):
    file = NOTEBOOKS.parent / RESULTS
    measured = json.loads(file.read_text()).get(ladder, {}) if file.exists() else {}
    cells = json.loads((NOTEBOOKS / LADDERS[ladder]).read_text())["cells"]
    runs = [cell for cell in cells if cell["id"].startswith("run-")]
    for cell, name in zip(runs, RUNGS[ladder], strict=True):
        assert "".join(cell["source"]) == f'climb("{name}")'
        speed = f"{measured[name]:.0f} TFLOP/s" if name in measured else "not measured yet"
        (output,) = cell["outputs"]
        said = "".join(output["text"])
        assert said == f"right; {speed}\n", "python -m tests.sim.project.test_notebooks"
