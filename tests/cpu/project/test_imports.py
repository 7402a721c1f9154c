"""The layers: a module imports only what stands to its left, and importing touches no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import house
from tests.tiers import every

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "numba_tma"

#: The rooms, from left to right: a module imports its own room and those to its left.
ROOMS = (
    "_version",
    "host",
    "simulator",
    "backend.interface",
    "backend.primitives",
    "ptx",
    "device",
    "pipeline",
    "kernels",
    "tools",
)
#: What the backend is made of, beside its interface. Lowerings are written in the names of
#: `compiler`, and know the bodies that they belong to; a backend knows neither, but tensor maps.
BACKEND = {
    "backend": ("backend",),
    "backend.compiler": ("backend.numba_cuda",),
    "backend.numba_cuda": ("_version", "host", "simulator", "backend.interface"),
    "backend.lowering": (*ROOMS[:-2], "backend.compiler"),
}
#: The two places where the halves of the house are put together.
EXCEPTIONS = {
    # A launcher packs tensor maps by their types, which are lowerings of this house.
    "numba_tma.backend.numba_cuda.packing": ("backend.lowering",),
    # It makes the compiler's types of what the simulator launches.
    "numba_tma.tools.compile_server": ("backend.lowering",),
    # It compiles for GPUs that are not there.
    "numba_tma.tools.assembling": ("backend.compiler",),
    # It measures the launcher against what stands below it.
    "numba_tma.tools.bench.host": ("backend.numba_cuda",),
}
#: These are written as a user would write them.
USERS = ("kernels", "tools", "__main__")


def room_of(module):
    """Return the room of a module: the folder in the package, or the part of the backend."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["backend"] else parts[:1])


def allowed(room):
    """Return what a room may import beside itself."""
    if room in BACKEND:
        return BACKEND[room]
    if room == "__main__":
        return ROOMS
    return ROOMS[: ROOMS.index(room)]


def own(module):
    """Yield what a module imports of the package, without the package itself."""
    for name in house.imports(house.modules()[module]):
        if name.split(".")[0] == "numba_tma":
            yield name


MODULES = [m for m in house.modules() if m != "numba_tma"]
WITHOUT_NUMBA = [m for m in MODULES if room_of(m) in ("host", "backend.interface")]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_in_a_room(module):
    assert room_of(module) in (*ROOMS, *BACKEND, "__main__")


@pytest.mark.parametrize("room", sorted({room_of(m) for m in MODULES}))
def test_a_room_imports_only_to_its_left(room):
    wrong = []
    for module in (m for m in MODULES if room_of(m) == room):
        may = {room, *allowed(room), *EXCEPTIONS.get(module, ())}
        for name in own(module):
            other = room_of(name)
            if other == "" and not room.startswith(USERS):
                wrong.append(f"{module} imports the public names of numba_tma")
            elif other and other not in may and not (other == "backend" and room != "host"):
                wrong.append(f"{module} imports {name}, which stands to its right")
    assert not wrong, "\n".join(wrong)


def test_bodies_know_of_the_backend_its_interface_and_primitives_alone():
    bodies = ("ptx", "device", "pipeline", "kernels")
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if room_of(module) in bodies
        for name in own(module)
        if room_of(name).startswith("backend")
        and room_of(name) not in ("backend.interface", "backend.primitives")
    ]
    assert not wrong, "\n".join(wrong)


def test_numbas_insides_are_imported_in_backends_and_the_simulator():
    assert not house.compiler_imports()


def test_the_backend_is_chosen_in_one_place():
    who = {m for m in MODULES for name in own(m) if room_of(name) == "backend.numba_cuda"}
    outside = {m for m in who if room_of(m) != "backend.numba_cuda"} - EXCEPTIONS.keys()
    assert outside == {"numba_tma.backend.compiler"}


def test_no_module_imports_one_that_imports_it():
    assert not house.cycles(house.graph(deep=False))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import numba_tma.host.layout", ["numba_tma.host.layout"]),
        ("import numba_tma", ["numba_tma"]),
        ("from numba_tma.host import layout, Tile", ["numba_tma.host.layout", "numba_tma.host"]),
        ("from numba_tma.simulator import install", ["numba_tma.simulator"]),
        ("from .. import host", ["numba_tma.host"]),
        ("from ..host.layout import Tile", ["numba_tma.host.layout"]),
        ("from . import mbarrier", ["numba_tma.ptx.mbarrier"]),
        ("from .mbarrier import init", ["numba_tma.ptx.mbarrier"]),
        ("def f():\n    from numba_tma.host import layout", ["numba_tma.host.layout"]),
        ("if TYPE_CHECKING:\n    from numba_tma.host import layout", []),
        ("try:\n    from ..host.layout import Tile\nexcept E: pass", ["numba_tma.host.layout"]),
        ("from llvmlite import ir", ["llvmlite"]),
        ("from numba.core import types", ["numba.core"]),
        ("from numba import cuda", ["numba.cuda"]),
        ("from numba.cuda import cgutils", ["numba.cuda.cgutils"]),
    ],
)
def test_the_scan_sees_every_form_of_import(source, expected, tmp_path):
    package = tmp_path / "numba_tma"
    for name in ("host/layout.py", "host/__init__.py", "simulator/__init__.py", "ptx/mbarrier.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    path = package / "ptx" / "scanned.py"
    path.write_text(source)
    assert list(house.imports(path, package)) == expected


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


@pytest.mark.parametrize("module", every(16, WITHOUT_NUMBA))
def test_imports_without_numba(module):
    run(f"{BLOCK_NUMBA}\nimport {module}")


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
# package must not see numba.cuda then: it would attach the backend at once.
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


WHOLE = [m.removeprefix("numba_tma.") for m in MODULES if not m.endswith("__main__")]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 32))]
)
def test_each_module_imports_first_of_all_and_calls_no_driver(first):
    modules = WHOLE[first::32]
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


# Milliseconds depend on the machine; what takes them is known by name. Without these it is 15.
SLOW = "{'numba', 'llvmlite', 'numpy', 'ml_dtypes', 'cuda.bindings', 'cuda.core'}"


def test_importing_the_package_imports_nothing_that_takes_long():
    source = f"import sys\nbefore = set(sys.modules)\nimport numba_tma\nprint(sorted({SLOW} & "
    assert run(f"{source}(set(sys.modules) - before)))") == "[]\n"
