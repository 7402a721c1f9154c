"""docs/guide/recipes.md: its kernels compile for Hopper and Blackwell, without spills."""

import ast
import re
from pathlib import Path

import pytest
from numba import types

from numba_tma import TensorMapType
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.tiers import every

PAGE = (Path(__file__).parents[3] / "docs/guide/recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
F32, I32 = types.float32, types.int32


def definitions():
    """Return what the blocks define: imports, the objects before each kernel, and the kernel."""
    names = {"__name__": "page"}
    for block in BLOCKS:
        nodes = ast.parse(block).body
        last = max((i for i, n in enumerate(nodes) if isinstance(n, ast.FunctionDef)), default=None)
        imports = isinstance(nodes[0], ast.Import) and len(nodes) == 3
        kept = nodes if imports else nodes[: last + 1] if last is not None else []
        exec(compile(ast.Module(kept, []), "recipes.md", "exec"), names)
    return names


NAMES = definitions()


def tiled(name):
    return TensorMapType(NAMES[name].ndim, NAMES[name])


SIGNATURES = {
    "heat": lambda: (tiled("HALO"), F32[:, ::1], F32, I32, I32),
    "laplacian": lambda: (tiled("PLANE"), F32[:, :, ::1], I32, I32, I32, I32),
    "moving_mean": lambda: (tiled("ROW"), F32[:, ::1], I32),
    "all_pairs": lambda: (tiled("LINE"), tiled("LINE"), F32[:, ::1], I32, I32),
    "add_shorter": lambda: (tiled("LINE"), tiled("LINE"), F32[::1], I32, I32),
    "histogram": lambda: (tiled("BYTES"), I32, I32[::1]),
    "box_filter": lambda: (
        TensorMapType(4, NAMES["PIXELS"], mode="im2col"),
        F32[:, ::1],
        I32,
        I32,
    ),
    "permute": lambda: (
        TensorMapType(2, NAMES["ROWS"], mode="gather"),
        I32[::1],
        F32[:, ::1],
    ),
}


def test_every_kernel_of_the_page_has_a_signature():
    assert set(re.findall(r"^@cuda.jit\ndef (\w+)", PAGE, re.M)) == set(SIGNATURES)


@pytest.mark.parametrize("name", every(2, SIGNATURES))
def test_a_kernel_of_the_page_assembles(name):
    report = ptxas(compile_ptx(NAMES[name], SIGNATURES[name]()))
    assert (report.spill_stores, report.spill_loads, report.warnings) == (0, 0, ())


def test_the_blocks_that_compile_run(capsys):
    compiling, inspecting = (block for block in BLOCKS if "tma.testing." in block)
    exec(compile(compiling, "recipes.md", "exec"), NAMES)
    exec(compile(inspecting, "recipes.md", "exec"), NAMES)
    printed = capsys.readouterr().out
    assert "".join(f"    {line}\n" for line in printed.splitlines()) in PAGE
