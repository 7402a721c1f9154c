"""The target of a compile: the one that is asked for, or a GPU's own."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from numba import cuda
from numba.core import types
from numba.core.errors import TypingError
from numba.cuda import dispatcher, flags
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core import config, targetconfig

import numba_tma as tma
from numba_tma import Tile, TilePipeline, ptx
from numba_tma.backend.numba_cuda import functions
from numba_tma.backend.numba_cuda.functions import compile_target, exact
from numba_tma.backend.numba_cuda.targeting import compiling_for
from numba_tma.host.architectures import TARGETS, capability_of
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.tiers import quick


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "90a"),  # of a GPU: numba-cuda compiles its own target
        ((12, 1), "121a"),
        ((8, 0), "80"),
        (exact((9, 0)), "90"),  # asked for
        ((10, 0, "f"), "100f"),
        ((10, 3, "a"), "103a"),
    ],
)
def test_the_target_of_a_capability(capability, target):
    given = flags.CUDAFlags()
    given.compute_capability = capability
    with targetconfig.ConfigStack().enter(given):
        assert compile_target() == target


def test_without_a_compile_the_target_is_hoppers_own():
    """Its types and rules hold on every GPU with TMA; a tool may ask for them without a kernel."""
    assert not targetconfig.ConfigStack.top_or_none()
    assert compile_target() == "90a"


def test_a_forced_capability_is_the_target(monkeypatch):
    monkeypatch.setattr(config, "FORCE_CUDA_CC", (10, 0))
    assert compile_target() == "100"


def test_another_capability_is_that_of_one_thread_alone(monkeypatch):
    """And of code for no capability in particular; what else is asked for goes to numba-cuda."""
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: "the current device")
    monkeypatch.setattr(CUDACodeLibrary, "_ensure_cc", lambda _, given: ("as before", given))

    def answers():
        device = dispatcher.get_current_device()
        libraries = [CUDACodeLibrary._ensure_cc(None, given) for given in (None, (8, 0))]
        return getattr(device, "compute_capability", device), *libraries

    before = "the current device", ("as before", None), ("as before", (8, 0))
    with ThreadPoolExecutor(1) as other:
        with compiling_for((9, 0, "a")):
            assert answers() == ((9, 0, "a"), (9, 0, "a"), ("as before", (8, 0)))
            assert other.submit(answers).result() == before
        assert answers() == other.submit(answers).result() == before
        with pytest.raises(KeyError), compiling_for((9, 0, "a")):
            raise KeyError
        assert answers() == before


PLACE = Tile(32, "u32")


def allocate():
    ptx.tcgen05_alloc(tma.shared_tile(PLACE).address, 32, 1)


@pytest.mark.parametrize("cc", [(10, 0, "a"), (10, 0, "f"), (10, 3, "f"), (11, 0, "a")])
def test_tensor_memory_exists_in_all_of_its_targets(cc):
    text = compile_ptx(allocate, (), cc=cc)
    assert f".target sm_{''.join(map(str, cc))}" in text
    assert ptxas(text).spill_stores == 0


@pytest.mark.parametrize("compiler", [compile_ptx, cuda.compile_ptx])
def test_a_plain_target_is_not_the_gpu_s_own(compiler):
    with pytest.raises(TypingError, match=r"sm_100: compile it for sm_100a or sm_100f"):
        compiler(wait, (), cc=(10, 0))


def wait():
    ptx.tcgen05_wait_ld()


LARGE = TilePipeline(4, x=Tile((64, 64), "f32"))


def ring():
    pipe = LARGE.start()
    if cuda.threadIdx.x < 32:
        producer = pipe.producer()
        producer.tail()


SIZES = [t for t in TARGETS if t.endswith("a")]


@pytest.mark.parametrize("target", quick(["120a"], SIZES))
def test_64_kib_of_shared_memory(target):
    text = compile_ptx(ring, (), cc=capability_of(target))
    assert re.search(rf"^\.target sm_{target}$", text, re.M)
    assert ptxas(text).shared > 64 << 10


def ignore_bytes(x):
    full = tma.shared_barrier()
    ptx.cp_async_bulk_load_ignore_oob(tma.shared_tile(PLACE), x, 32, 0, 4, full)


def test_an_instruction_that_the_toolkit_does_not_assemble(monkeypatch):
    """The driver's linker would report it as a syntax error in the PTX."""
    signature = (types.Array(types.uint8, 1, "C"),)
    compile_ptx(ignore_bytes, signature)
    monkeypatch.setattr(functions, "toolkit", lambda: (13, 1))
    error = (
        r"cp_async_bulk_load_ignore_oob\(\) needs PTX ISA 9\.2, which CUDA 13\.2 and newer "
        r"assemble; this kernel is compiled with CUDA 13\.1: update the CUDA toolkit"
    )
    with pytest.raises(TypingError, match=error):
        compile_ptx(ignore_bytes, signature)
