"""The functions that users call import neither Numba, nor a body of a kernel, nor the simulator."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import importlib, pathlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite") or name.startswith("cuda.core"):
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numba_tma
families = sorted(p.parent.name for p in pathlib.Path(sys.argv[1]).glob("[!_]*/__init__.py"))
for family in families:
    module = importlib.import_module(f"numba_tma.kernels.{family}")
    for name in module.__all__:
        assert callable(getattr(module, name)), name
# The same, as the docstring lists them.
lines = importlib.import_module("numba_tma.kernels").__doc__.splitlines()
exec("\\n".join(line for line in lines if line.startswith("from ")))
rooms = ("simulator", "device", "pipeline", "ptx")
print(families, [m for m in sys.modules if m.startswith(tuple(f"numba_tma.{r}" for r in rooms))])
"""


def test_no_function_imports_a_compiler_or_a_body():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "numba_tma" / "kernels")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    families, bodies = done.stdout.strip().split("] ")
    assert families.count("'") == 2 * 7
    # What the host chooses of a row, without its functions.
    assert bodies == "['numba_tma.device', 'numba_tma.device.share']"


ATTACHED = """
import sys
import numba_tma as tma
PIPE = tma.{use}
assert "numba" not in sys.modules
from numba import cuda
assert "numba_tma.backend.compiler" in sys.modules
from numba_tma.tools.testing import compile_ptx

@cuda.jit
def kernel(x):
    tma.fence_proxy_async()
    if x > 0:
        cuda.syncthreads()

print("fence.proxy.async" in compile_ptx(kernel, "void(int32)"))
"""


def test_the_backend_is_attached_when_numba_is_imported_later():
    done = subprocess.run(
        [sys.executable, "-c", ATTACHED.format(use='Tile((8, 32), "f32")')],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
