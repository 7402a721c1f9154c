"""The layers: a module imports only what stands to its left, and importing touches no GPU."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import every

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "numba_tma"

# Modules of one group are parts of one layer and may import each other.
LAYERS = (
    ("_environment", "_version", "_cluster_rules"),
    ("dtypes",),
    ("layout", "pixel_box", "matrix_layout", "mma_rules"),
    (
        *("tensor_map", "_array_interface", "_boxes", "_driver", "_encoding", "_explain"),
        *("_tensor_map_rules", "im2col", "_im2col_rules"),
    ),
    ("ragged", "tensor_map_array"),
    ("simulator",),
    ("debug",),
    ("types", "_compiler", "_device"),
    ("launching", "_streams", "_packing", "_prepared_launch"),
    ("ptx",),
    ("waiting", "_waiting_lowering"),
    ("barrier", "clusters", "scope", "scheduler", "causal_scheduler", "_scheduler_lowering"),
    ("matrix_descriptor", "_matrix_descriptor_lowering"),
    (
        *("shared", "_im2col_lowering", "_shared_lowering", "_vector_lowering"),
        *("sequence", "_sequence_lowering", "vectors", "_vectors_lowering"),
    ),
    ("template", "_template_lowering"),
    ("multicast", "_multicast_lowering"),
    (
        *("pipeline", "fragments", "mma", "_mma_lowering"),
        *("_fragment_lowering", "_fragment_math_lowering", "_fragment_memory_lowering"),
    ),
    ("kernels",),
    (
        "testing",
        "bench",
        "plot",
        "demo",
        "doctor",
        "__main__",
    ),
)
RANK = {module: rank for rank, group in enumerate(LAYERS) for module in group}
WITHOUT_NUMBA = [m for m in RANK if RANK[m] <= RANK["tensor_map"]]
# The compiler for one backend, and the simulator that takes the place of numba's.
MAY_IMPORT_NUMBA_CUDAS_INSIDES = {"_compiler", "simulator"}
# These are written as a user would write them.
MAY_IMPORT_THE_PUBLIC_NAMES = {"kernels", *LAYERS[-1]}


def sources(module):
    path = PACKAGE / module
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


MODULES = sorted(
    path.stem
    for path in PACKAGE.iterdir()
    if path.stem not in ("__init__", "__pycache__")
    and (path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))))
)


def imported(path, *, package=PACKAGE):
    """List the parts of numba_tma that a file imports; "" is the package itself.

    What only a type checker sees does not count.
    """
    tree = ast.parse(path.read_text())
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    found = []

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            # `from numba_tma import layout` imports a module, `from numba_tma import Tile` a name
            names = [
                [*base, alias.name] if base == [package.name] and exists(alias.name) else base
                for alias in node.names
            ]
        else:
            names = []
            for child in ast.iter_child_nodes(node):
                visit(child)
        found.extend(name[1] if name[1:] else "" for name in names if name[:1] == [package.name])

    def exists(name):
        return (package / name).is_dir() or (package / f"{name}.py").is_file()

    visit(tree)
    return sorted(set(found))


def test_every_module_has_a_place():
    assert MODULES, "no modules found"
    homeless = [module for module in MODULES if module not in RANK]
    assert not homeless, f"give {homeless} a place in LAYERS"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_to_its_left(module):
    wrong = []
    for path in sources(module):
        for other in imported(path):
            if other == "" and module not in MAY_IMPORT_THE_PUBLIC_NAMES:
                wrong.append(f"{path.relative_to(ROOT)} imports the public names of numba_tma")
            elif other and RANK[other] > RANK[module]:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}, which stands to its right")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", sorted(set(MODULES) - MAY_IMPORT_NUMBA_CUDAS_INSIDES))
def test_the_compiler_is_touched_in_one_place(module):
    for path in sources(module):
        inside = re.findall(r"^\s*(?:from|import) +numba\.cuda\..*", path.read_text(), re.M)
        assert not inside, f"{path.relative_to(ROOT)} belongs behind _compiler: {inside}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import numba_tma.host.layout", ["layout"]),
        ("import numba_tma", [""]),
        ("from numba_tma import layout, Tile", ["", "layout"]),
        ("from numba_tma.simulator import install", ["simulator"]),
        ("from numba_tma.simulator.model import X", ["simulator"]),
        ("from .. import layout", ["layout"]),
        ("from ..tensor_map import TensorMap", ["tensor_map"]),
        ("from . import mbarrier", ["ptx"]),
        ("from .mbarrier import init", ["ptx"]),
        ("def f():\n    from numba_tma import layout", ["layout"]),
        ("if TYPE_CHECKING:\n    from numba_tma import layout", []),
        ("try:\n    from ..layout import Tile\nexcept ImportError: pass", ["layout"]),
        ("import numba_tmap, numpy", []),
    ],
)
def test_the_scan_sees_every_form_of_import(source, expected, tmp_path):
    package = tmp_path / "numba_tma"
    for name in ("layout.py", "tensor_map.py", "simulator/__init__.py", "ptx/mbarrier.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    path = package / "ptx" / "scanned.py"
    path.write_text(source)
    assert imported(path, package=package) == expected


# ---------------------------------------------------------------- in a fresh process


def run(source, stdin=""):
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        input=stdin,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCK_NUMBA = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.parametrize("module", every(4, WITHOUT_NUMBA))
def test_imports_without_numba(module):
    run(f"{BLOCK_NUMBA}\nimport numba_tma.{module}")


def test_numba_is_really_blocked():
    source = f"{BLOCK_NUMBA}\ntry:\n    import numba\nexcept ModuleNotFoundError: print('blocked')"
    assert run(source) == "blocked\n"


def test_a_tile_is_described_without_numba():
    source = "import numpy as np\nfrom numba_tma.host.layout import Tile\n"
    assert run(f"{BLOCK_NUMBA}\n{source}print(Tile((64, 128), np.float32).nbytes)") == "32768\n"


# Both roads to the driver are watched: numba's own, and that of cuda.bindings and cuda.core,
# which opens libcuda at its first call. (numba.cuda opens libcuda when it is imported, and calls
# nothing in it.)
WATCH_THE_DRIVER = """
import sys
calls = []
def audit(event, arguments):
    if event == "ctypes.dlopen" and "libcuda." in str(arguments[0]):
        frame = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("cuda.pathfinder"):
                calls.append(str(arguments[0]))
                break
            frame = frame.f_back
sys.addaudithook(audit)
from numba.cuda.cudadrv.driver import Driver
ensure_initialized = Driver.ensure_initialized
def watched(self):
    calls.append("numba.cuda driver")
    return ensure_initialized(self)
Driver.ensure_initialized = watched
"""


EVERY_PUBLIC_NAME = "import numba_tma\nfor name in dir(numba_tma): getattr(numba_tma, name)\n"


def test_importing_every_public_name_calls_no_driver():
    assert run(f"{WATCH_THE_DRIVER}\n{EVERY_PUBLIC_NAME}print(calls, end='')") == "[]"


# Each in a process of its own, which begins with what takes long to import and is not ours. The
# package must not see numba.cuda then: it would import the others itself, in the right order.
EACH_FIRST_OF_ALL = """
import importlib, os, sys, traceback
import ml_dtypes, numba.cuda
cuda = sys.modules.pop("numba.cuda")
import numba_tma
sys.modules["numba.cuda"] = cuda
for module in sys.stdin.read().split():
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    try:
        importlib.import_module("numba_tma." + module)
        print(module, calls)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    sys.stdout.flush()
    os._exit(0)
"""


# A compiled half is imported by the module whose half it is.
WHOLE = [m for m in MODULES if m != "__main__" and not m.endswith("_lowering")]


@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_each_module_imports_first_of_all_and_calls_no_driver(first):
    modules = WHOLE[first::3]
    said = run(WATCH_THE_DRIVER + EACH_FIRST_OF_ALL, stdin=" ".join(modules))
    assert said.splitlines() == [f"{module} []" for module in modules], said


@pytest.mark.parametrize(
    "use",
    [
        "from cuda.core import Device; Device(0)",
        "from numba import cuda; cuda.current_context()",
        pytest.param("from cuda.bindings import driver; driver.cuInit(0)", marks=pytest.mark.slow),
        pytest.param("from numba import cuda; cuda.is_available()", marks=pytest.mark.slow),
    ],
)
def test_the_watch_sees_a_use_of_the_driver(use):
    source = f"try:\n    {use}\nexcept Exception: pass\nprint(len(calls))"
    assert int(run(WATCH_THE_DRIVER + source)) > 0


@pytest.mark.slow
def test_importing_changes_nothing_for_njit():
    kernel = "import numba\n@numba.njit\ndef f(x): return x + 1\nprint(f(1), end='')"
    assert run(EVERY_PUBLIC_NAME + kernel) == "2"
