"""The key of a kernel's code: what may change the code changes the key, and nothing else does."""

import dataclasses
import enum
import functools
import json
import math
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host import cached_kernel, kernel_key
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.kernel_key import Undescribable, described, key_of
from numba_tma.kernels.matmul.plan import Config, MatmulPlan

ROOT = Path(__file__).parents[3]
BF16 = as_dtype("bf16")

#: A user's module; each variant below changes one thing of it.
MODULE = '''
import math
import helpers
import numba_tma as tma
from numba import cuda
from numba_tma.backend.interface import device_function

WIDTH = 3
TABLE = (1, 2.5)
PIPE = tma.TilePipeline(2, x=tma.Tile((8, 32), "f32"))

class Shape:
    sides = 4
    @staticmethod
    def area(x):
        return x * 4

@cuda.jit(device=True)
def inner(x):
    return x * WIDTH + 1

@cuda.jit(device=True)
def outer(x, factor=2):
    return inner(x) + math.sqrt(x) * factor

@device_function
def body(x):
    return x + helpers.step(x)

@tma.cached
def make(stages, *, fast=True):
    OFFSET = 5

    @cuda.jit
    def kernel(x, n):
        pipe = PIPE.start()
        x[0] = outer(n) + stages + OFFSET + TABLE[0] + body(n) + Shape.sides

    return kernel

@tma.cached
@cuda.jit(max_registers=64)
@tma.cluster(2)
def alone(x, n):
    x[0] = outer(n)
'''
HELPERS = '''
def step(x):
    return below(x) - 1

def below(x):
    return x + 7
'''
#: Changes of one thing each: of the module, or of the helpers.
CHANGES = {
    "a captured number": ("WIDTH = 3", "WIDTH = 4"),
    "its type": ("WIDTH = 3", "WIDTH = 3.0"),
    "an element of a tuple": ("(1, 2.5)", "(1, 2.25)"),
    "the stages of a pipeline": ("TilePipeline(2", "TilePipeline(3"),
    "the tile of a pipeline": ("(8, 32)", "(8, 64)"),
    "a line of an inner function": ("x * WIDTH + 1", "x * WIDTH - 1"),
    "a constant of an inner function": ("x * WIDTH + 1", "x * WIDTH + 2"),
    "a default": ("factor=2", "factor=3"),
    "a function of a module": ("math.sqrt", "math.cbrt"),
    "a line of the kernel": ("+ OFFSET +", "- OFFSET +"),
    "a local of the factory": ("OFFSET = 5", "OFFSET = 6"),
    "a default of the factory": ("fast=True", "fast=False"),
    "an attribute of a class": ("sides = 4", "sides = 5"),
    "a method of a class": ("x * 4", "x * 6"),
    "a body": ("x + helpers", "x - helpers"),
    "a line of a helper": ("below(x) - 1", "below(x) - 2"),
    "a line of a helper's helper": ("x + 7", "x + 8"),
    "an option of a function": ("device=True)\ndef in", "device=True, forceinline=True)\ndef in"),
    "how a body is declared": ("@device_function\ndef body", "@cuda.jit(device=True)\ndef body"),
}  # fmt: skip
#: What changes no code.
SAME = {
    "nothing": ("", ""),
    "a comment": ("WIDTH = 3", "WIDTH = 3  # columns"),
    "lines": ("\nWIDTH", "\n\n\n\nWIDTH"),
    "a name that no kernel uses": ("\nWIDTH", "\nHEIGHT = 7\nWIDTH"),
}
#: Changes that the second kernel sees.
OF_THE_OTHER = {
    "a cluster": ("cluster(2)", "cluster(4)"),
    "an option of a kernel": ("max_registers=64", "max_registers=96"),
}

PROGRAM = """
import json, sys, types
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.kernel_key import described, key_of
answers = {}
for name, (module, helpers) in json.load(sys.stdin).items():
    sys.modules["helpers"] = h = types.ModuleType("helpers")
    exec(helpers, h.__dict__)
    sys.modules["users"] = m = types.ModuleType("users")
    exec(module, m.__dict__)
    answers[name] = [key_of(described(k), ["int"], "9.0") for k in (m.make(4), m.make(5), m.alone)]
print(json.dumps(answers))
"""


def keys_of(variants: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Return the keys of three kernels of each variant, as another process has them."""
    sources = {
        name: (MODULE.replace(*change, 1), HELPERS.replace(*change, 1))
        for name, change in variants.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def keys():
    return keys_of(SAME | CHANGES | OF_THE_OTHER)


def test_a_second_process_has_the_same_keys(keys):
    assert keys_of({"nothing": SAME["nothing"]})["nothing"] == keys["nothing"]


@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_code_changes_no_key(keys, change):
    assert keys[change] == keys["nothing"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_thing_is_another_key(keys, change):
    assert MODULE.replace(*CHANGES[change]) + HELPERS.replace(*CHANGES[change]) != MODULE + HELPERS
    assert keys[change][0] != keys["nothing"][0] and keys[change][1] != keys["nothing"][1]


@pytest.mark.parametrize("change", OF_THE_OTHER)
def test_options_and_clusters_of_a_kernel_are_in_its_key(keys, change):
    assert keys[change][:2] == keys["nothing"][:2] and keys[change][2] != keys["nothing"][2]


def test_no_two_changes_have_the_same_key(keys):
    several = [keys[name][0] for name in CHANGES] + [keys["nothing"][0], keys["nothing"][1]]
    assert len(set(several)) == len(several)


def test_the_arguments_of_a_factory_are_in_the_key(keys):
    assert keys["nothing"][0] != keys["nothing"][1]


# ------------------------------------------------------------------------- what compiles


def key():
    kernel_key._toolchain.cache_clear()
    return key_of("kernel", ["int", "float32"], "9.0")


@pytest.fixture(autouse=True)
def _fresh():
    yield
    kernel_key._toolchain.cache_clear()


def test_types_targets_and_kernels_are_told_apart():
    found = {
        key_of(kernel, types_, target)
        for kernel in ("a", "b")
        for types_ in ([], ["int"], ["int", "int"], ["float32"])
        for target in ("9.0", "10.0")
    }
    assert len(found) == 16


def test_the_librarys_version_and_its_sources_are_in_the_key(monkeypatch, tmp_path):
    before = key()
    assert key() == before
    monkeypatch.setattr(kernel_key, "__version__", "0.0.0")
    assert key() != before
    monkeypatch.undo()
    assert key() == before
    (tmp_path / "numba_tma" / "host").mkdir(parents=True)
    monkeypatch.setattr(kernel_key, "__file__", str(tmp_path / "numba_tma/host/kernel_key.py"))
    source = tmp_path / "numba_tma" / "device.py"
    seen = set()
    for text in ("x = 1\n", "x = 2\n", "x = 2 \n"):
        source.write_text(text)
        seen.add(key())
    source.rename(source.with_name("other.py"))
    seen.add(key())
    assert len(seen) == 4 and before not in seen


@pytest.mark.parametrize(
    "name",
    [
        *("numba-0.68.1", "numba_cuda-0.30.4", "llvmlite-0.50.0", "nvidia_nvvm-13.4.92"),
        *("nvidia_nvjitlink-13.5.37", "nvidia_cuda_nvcc-13.5.37", "numpy-2.4.6"),
        *("cuda_core-1.2.2", "nvidia_cuda_nvcc_cu12-12.9.1", "nvidia_nvjitlink_cu12-12.9.1"),
    ],
)
def test_the_compilers_versions_are_in_the_key(monkeypatch, tmp_path, name):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    without = key()
    (tmp_path / f"{name}.dist-info").mkdir()
    first = key()
    (tmp_path / f"{name}.dist-info").rename(tmp_path / f"{name}9.dist-info")
    assert len({without, first, key()}) == 3


def test_other_distributions_are_not_in_the_key(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    before = key()
    for name in ("requests-2.0.dist-info", "numbat-1.0.dist-info", "numba"):
        (tmp_path / name).mkdir()
    assert key() == before


def test_every_installed_compiler_is_found():
    found = "\n".join(kernel_key._installed())
    for name in ("numba-", "numba_cuda-", "llvmlite-", "numpy-"):
        assert f"\n{name}" in f"\n{found}"


def test_a_toolkit_that_is_no_distribution_is_in_the_key(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    before = key()
    (tmp_path / "version.json").write_text("13.0")
    assert key() != before


def test_numbas_settings_of_the_working_folder_are_in_the_key(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = key()
    Path(".numba_config.yaml").write_text("opt: 0\n")
    first = key()
    Path(".numba_config.yaml").write_text("opt: 1\n")
    assert len({before, first, key()}) == 3


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *(("NUMBA_OPT", True), ("NUMBA_CUDA_DEFAULT_PTX_CC", True), ("NUMBA_TMA_DEBUG", True)),
        *(("NUMBA_CACHE_DIR", False), ("NUMBA_TMA_CACHE_MIB", False), ("PATH_TO", False)),
        *(("NUMBA_TMA_SIM_SEED", False),),
    ],
)
def test_variables_of_the_compiler_are_in_the_key(monkeypatch, name, counts):
    monkeypatch.delenv(name, raising=False)
    before = key()
    monkeypatch.setenv(name, "1")
    assert (key() != before) == counts


# ---------------------------------------------------------------------------- descriptions


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Other:
    class Colour(enum.IntEnum):
        RED = 1


class Point(NamedTuple):
    x: int = 1
    y: int = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    rows: int
    tile: Any = None


def test_values_that_differ_are_described_differently():
    values = [
        *(None, ..., True, False, 0, 1, -1, 1.0, 0.0, -0.0, math.nan, math.inf, 1j, "1", b"1", ""),
        *((), (1,), (1, 2), (2, 1), ((1,), 2), [1, 2], {1, 2}, frozenset({1, 2}), {1: 2}, {2: 1}),
        *(np.float32(1), np.float64(1), np.int32(1), np.int64(1), np.bool_(True), np.uint8(1)),
        *(np.arange(3), np.arange(4), np.arange(3.0), np.zeros((2, 3)), np.zeros((3, 2))),
        *(np.zeros((3, 2), order="F"), np.dtype("f4"), np.dtype("f8"), np.float32, np.float64),
        *(Colour.RED, Other.Colour.RED, Colour.BLUE, Colour, Point(), Point(2), Point(1, 3)),
        *(Plan(1), Plan(2)),
        *(Plan(1, tma.Tile((8, 32), "f32")), Plan(1, tma.Tile((8, 32), "f16")), Point, Plan),
        *(tma.Tile(4, "bf16"), tma.Tile(4, "u16"), tma.DType, len, abs, np.sin, np.cos, math),
        *(functools.partial(len), functools.partial(abs), functools.partial(abs, 1)),
        *(lambda x: x, lambda x: x + 1, lambda x, y: x, lambda *x: x, lambda x=1: x),
        MatmulPlan(BF16, BF16, "K", "K", BF16, Config()),
    ]
    texts = [described(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert texts == [described(value) for value in values]


def test_the_same_code_is_described_alike():
    def make(number):
        def kernel(x):
            return x + number

        return kernel

    assert described(make(1)) == described(make(1)) != described(make(2))
    assert described(functools.cache(make)) != described(make)


def test_functions_that_call_each_other_are_described():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert described(even) == described(even) != described(odd)


def test_source_lines_count_where_the_code_has_them():
    texts = []
    for lineinfo in (False, True):
        for blank in ("", "\n\n"):
            namespace = {"cuda": cuda}
            exec(compile(f"{blank}def kernel(x): pass", "users.py", "exec"), namespace)
            texts.append(described(cuda.jit(namespace["kernel"], lineinfo=lineinfo)))
    assert texts[0] == texts[1] and texts[2] != texts[3]


class Unknown:
    """An object whose effect on code nobody knows."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


UNKNOWN = Unknown()


@pytest.mark.parametrize(
    "value",
    [UNKNOWN, [UNKNOWN], {"x": UNKNOWN}, Plan(1, UNKNOWN), functools.partial(len, UNKNOWN),
     lambda x: UNKNOWN, np.array([UNKNOWN]), iter([]), object(),
     # No kernels: they have a part of what a kernel has.
     Unknown(py_func=len), Unknown(targetoptions={})],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_nothing_is_known_of_has_no_description(value):
    with pytest.raises(Undescribable):
        described(value)


def test_an_object_that_contains_itself_has_no_description():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Undescribable, match="a list that contains itself"):
        described(endless)


@pytest.mark.parametrize("option", ["debug", "link", "extensions"])
def test_kernels_that_are_more_than_their_code_have_no_description(option):
    kernel = types.SimpleNamespace(py_func=lambda x: x, targetoptions={option: ["file.cu"]})
    with pytest.raises(Undescribable, match=f"has {option}="):
        described(kernel)


def test_a_users_module_with_the_name_of_pythons_is_a_users(monkeypatch):
    module = types.ModuleType("queue")
    module.__file__ = "/home/somebody/queue.py"
    monkeypatch.setitem(sys.modules, "queue", module)
    kernel_key._has_a_version.cache_clear()
    texts = []
    for source in ("def f(x): return x", "def f(x): return -x"):
        exec(source, module.__dict__)
        texts.append(described(module.f))
    kernel_key._has_a_version.cache_clear()
    assert texts[0] != texts[1]


# ------------------------------------------------------------------------- shipped kernels


def shipped_factories():
    for path in sorted((ROOT / "numba_tma" / "kernels").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if "shipped(" in path.read_text():
            for name, value in vars(__import__(module, fromlist=["x"])).items():
                named = getattr(value, "factory", None)
                if isinstance(named, cached_kernel.Named):
                    yield f"{module}.{name}", named


FACTORIES = dict(shipped_factories())


def test_there_are_factories():
    assert len(FACTORIES) >= 15


@pytest.mark.parametrize("name", FACTORIES)
def test_a_named_factory_is_there(name):
    assert callable(FACTORIES[name].load()) and FACTORIES[name].name == name.rpartition(".")[2]
