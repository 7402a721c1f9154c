"""Declarations are registered at the next compile, in any order of imports."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from numba.cuda import types

from numba_tma.backend import interface
from numba_tma.backend.interface import constant_class, device_class, device_function, u32
from numba_tma.backend.numba_cuda import registration
from numba_tma.tools.testing import compile_ptx

ROOT = Path(__file__).parents[3]


def later():
    """Declare a record, a constant and a body, as a module of a user's does."""

    @device_class()
    @dataclass(frozen=True)
    class Pair:
        low: u32
        high: u32

        def total(self):
            return u32(self.low + self.high)

    @constant_class
    @dataclass(frozen=True)
    class Scale:
        factor: int
        device_methods = ("apply",)

        def apply(self, value):
            return value * self.factor

    @device_function
    def doubled(value):
        return 2 * value

    return Pair, Scale, doubled


def test_what_is_declared_after_a_compile_is_known_at_the_next():
    for factor in (1000, 2000):
        Pair, Scale, doubled = later()
        SCALE = Scale(factor)

        def kernel(out, x):
            out[0] = doubled(SCALE.apply(Pair(x, x).total()))  # noqa: B023

        ptx = compile_ptx(kernel, (types.uint32[::1], types.uint32))
        assert str(4 * factor) in ptx


def test_a_declaration_registers_nothing():
    before = registration._registered
    later()
    assert registration._registered == before < len(interface.DECLARATIONS)


def test_a_native_without_a_lowering_is_an_error(monkeypatch):
    def orphan():
        """Nothing lowers this."""

    orphan.__module__ = "numba_tma.device.shared"
    declared = [*interface.DECLARATIONS, interface.Declaration("native", orphan)]
    registration.register_declared()
    monkeypatch.setattr(interface, "DECLARATIONS", declared)
    monkeypatch.setattr(registration, "_lowered", len(declared) - 1)
    monkeypatch.setattr(registration, "_registered", len(declared) - 1)
    message = "orphan is declared native, and numba_tma.backend.lowering.shared has no lowering"
    with pytest.raises(NotImplementedError, match=message):
        registration.register_declared()


@pytest.mark.parametrize(
    ("module", "lowering"),
    [
        ("numba_tma.device.shared", "numba_tma.backend.lowering.shared"),
        ("numba_tma.backend.interface", "numba_tma.backend.lowering.interface"),
        ("numba_tma.pipeline.output", "numba_tma.backend.lowering.pipeline.output"),
    ],
)
def test_a_lowering_mirrors_its_module(module, lowering):
    assert registration.lowering_of(module) == lowering


COMPILE = """
from numba_tma.tools.testing import compile_ptx
assert "{expected}" in compile_ptx(kernel, {signature})
"""
LOAD = """
@cuda.jit
def kernel(x):
    tile = tma.shared_tile(TILE)
    barrier = tma.shared_barrier()
    x.load(tile, (0, 0), barrier)
"""
TILE = "TILE = tma.Tile((8, 32), np.float32)\n"
RING = """
@cuda.jit
def kernel(x):
    pipe = PIPE.start()
"""


@pytest.mark.parametrize(
    ("source", "signature", "expected"),
    [
        pytest.param(
            f"import numba_tma as tma\nimport numpy as np\nfrom numba import cuda\n{TILE}{LOAD}",
            "(tma.TensorMapType(2),)",
            "cp.async.bulk.tensor.2d",
            id="numba_tma first",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"from numba import cuda\nimport numba_tma as tma\nimport numpy as np\n{TILE}{LOAD}",
            "(tma.TensorMapType(2),)",
            "cp.async.bulk.tensor.2d",
            id="numba first",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "from numba_tma.pipeline import TilePipeline\nfrom numba_tma.host.layout import Tile\n"
            "import numpy as np\nfrom numba import cuda, types\n"
            f"PIPE = TilePipeline(2, x=Tile((8, 32), np.float32))\n{RING}",
            "(types.int32,)",
            "mbarrier.init",
            id="modules alone",
        ),
        pytest.param(
            "import numba_tma as tma\nfrom numba import cuda\n@cuda.jit\ndef kernel(x):\n"
            "    x.prefetch()\n",
            "(tma.TensorMapType(2),)",
            "prefetch.tensormap",
            id="a map's method alone",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import numba_tma as tma\nfrom numba import cuda, types\nTILE = tma.Tile(8, 'f32')\n"
            "@cuda.jit\ndef kernel(x):\n    tma.shared_tile(TILE).address_of(3)\n"
            "    tma.cluster_sync()\n",
            "(types.int32,)",
            "barrier.cluster.wait",
            id="a tile and a body",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import numba_tma as tma\nfrom numba import cuda, types\n@cuda.jit\ndef kernel(x):\n"
            "    tma.cluster_sync()\n",
            "(types.int32,)",
            "barrier.cluster.wait",
            id="a body alone",
        ),
    ],
)
def test_a_kernel_compiles_first_of_all(source, signature, expected):
    source += COMPILE.format(signature=signature, expected=expected)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_first_argument_may_be_a_descriptor_of_cuda_core():
    source = """
from cuda.core._tensor_map import TensorMapDescriptor
from numba import cuda
import numba_tma as tma
tma.ptx.elect_sync

@cuda.jit
def kernel(x):
    pass

print(kernel.typeof_pyval(TensorMapDescriptor.__new__(TensorMapDescriptor)))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.startswith("TensorMap("), done.stderr
