"""The hooks into numba-cuda: the cache's key, and the launches that are errors."""

import importlib
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from numba import cuda, types
from numba.cuda import codegen, dispatcher

import numba_tma as tma
from numba_tma import Tile, ptx
from numba_tma.backend.numba_cuda import cache
from numba_tma.tools.testing import compile_ptx, instructions, run_isolated
from tests.tiers import every

MAP = tma.TensorMapType(2, Tile((16, 64), "f32"))
SIGNATURE = (MAP, types.int64)
SETTINGS = """
import numba_tma as tma
TILE = tma.Tile((16, 64), "f32")
PIPE = tma.TilePipeline({stages}, x=TILE)
PIPES = (tma.TilePipeline(1, x=TILE), PIPE)
DEBUG = {debug}
"""
HELPERS = """
from numba import cuda
from . import settings

@cuda.jit(device=True)
def load_all(x, n):
    pipe = settings.PIPE.start()
    for t, stage in pipe.produce(0, n):
        x.load(stage.x, (16 * t, 0), stage.barrier)
"""
KERNELS = {
    "a name": """
from numba import cuda
from .settings import PIPE

@cuda.jit(cache=True)
def kernel(x, n):
    pipe = PIPE.start()
    for t, stage in pipe.produce(0, n):
        x.load(stage.x, (16 * t, 0), stage.barrier)
""",
    "a name of a module": """
from numba import cuda
from . import settings

@cuda.jit(cache=True)
def kernel(x, n):
    pipe = settings.PIPE.start()
    for t, stage in pipe.produce(0, n):
        x.load(stage.x, (16 * t, 0), stage.barrier)
""",
    "a name of a module in a module": """
from numba import cuda
from . import helpers

@cuda.jit(cache=True)
def kernel(x, n):
    pipe = helpers.settings.PIPE.start()
    for t, stage in pipe.produce(0, n):
        x.load(stage.x, (16 * t, 0), stage.barrier)
""",
    "a tuple": """
from numba import cuda
from .settings import PIPES

@cuda.jit(cache=True)
def kernel(x, n):
    pipe = PIPES[1].start()
    for t, stage in pipe.produce(0, n):
        x.load(stage.x, (16 * t, 0), stage.barrier)
""",
    "a closure": """
from numba import cuda
from .settings import PIPE

def make(pipeline):
    @cuda.jit(cache=True)
    def kernel(x, n):
        pipe = pipeline.start()
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (16 * t, 0), stage.barrier)
    return kernel

kernel = make(PIPE)
""",
    "a device function": """
from numba import cuda
from .helpers import load_all

@cuda.jit(cache=True)
def kernel(x, n):
    load_all(x, n)
""",
    "a device function of a module": """
from numba import cuda
from . import helpers

@cuda.jit(cache=True)
def kernel(x, n):
    helpers.load_all(x, n)
""",
}
WITH_DEBUG = """
from numba import cuda
from .settings import DEBUG, PIPE

@cuda.jit(cache=True, debug=DEBUG, opt=not DEBUG)
def kernel(x, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (16 * t, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, n, in_flight=1):
            stage.x[0, cuda.threadIdx.x] += 1
            pipe.store(x, stage.x, (16 * t, 0))
        pipe.release_pending()
"""
#: Kernels that hold nothing of the library but what it compiles to.
BARE = {
    "an instruction": (
        """
from numba import cuda
import numba_tma as tma

@cuda.jit(cache=True)
def kernel(out, n):
    if tma.elect_sync():
        out[n] = 1
""",
        (types.float32[::1], types.int64),
    ),
    "an instruction beside an array in the globals": (
        """
import numpy as np
from numba import cuda
import numba_tma as tma

TABLE = np.arange(4, dtype=np.float32)

@cuda.jit(cache=True)
def kernel(out, n):
    if tma.elect_sync():
        out[n] = TABLE[n]
""",
        (types.float32[::1], types.int64),
    ),
    "an instruction by name": (
        """
from numba import cuda
from numba_tma.ptx import fence_proxy_async

@cuda.jit(cache=True)
def kernel(out, n):
    fence_proxy_async()
    out[n] = 1
""",
        (types.float32[::1], types.int64),
    ),
    "a map": (
        """
from numba import cuda

@cuda.jit(cache=True)
def kernel(x, n):
    x.prefetch()
""",
        SIGNATURE,
    ),
    "maps in a tuple": (
        """
from numba import cuda

@cuda.jit(cache=True)
def kernel(maps, n):
    maps[0].prefetch()
""",
        (types.UniTuple(MAP, 2), types.int64),
    ),
}
PLAIN = """
from numba import cuda

@cuda.jit(cache=True)
def kernel(out, n):
    out[n] = 1
"""


@contextmanager
def hopper_that_loads_nothing():
    """Let numba-cuda do all that it does on a GPU, up to the loading of the linked code."""
    device = SimpleNamespace(compute_capability=(9, 0), id=0)
    with (
        mock.patch.object(dispatcher, "get_current_device", lambda: device),
        mock.patch.object(codegen.devices, "get_context", lambda: SimpleNamespace(device=device)),
        mock.patch.object(codegen.JITCUDACodegen, "magic_tuple", lambda self: ((13, 0), (9, 0))),
        mock.patch.object(dispatcher._Kernel, "bind", lambda self: None),
    ):
        yield


class Application:
    """A package with one kernel; its cache lies beside it."""

    def __init__(self, folder):
        self.folder = Path(folder, "application")
        self.folder.mkdir()

    def write(self, name, text):
        path = self.folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def compile(self, source, signature=SIGNATURE, stages=2, debug=False):
        """Compile the kernel as another Python process would."""
        self.write("__init__.py", "")
        self.write("settings.py", SETTINGS.format(stages=stages, debug=debug))
        self.write("helpers.py", HELPERS)
        self.write("kernels.py", source)
        for name in [name for name in sys.modules if name.partition(".")[0] == "application"]:
            del sys.modules[name]
        with (
            mock.patch.object(sys, "path", [str(self.folder.parent), *sys.path]),
            # Bytecode of settings that were changed within a second would be taken for theirs.
            mock.patch.object(sys, "dont_write_bytecode", True),
            hopper_that_loads_nothing(),
        ):
            importlib.invalidate_caches()
            kernel = importlib.import_module("application.kernels").kernel
            compiled = kernel.compile(signature)
        assert len(kernel.stats.cache_hits) + len(kernel.stats.cache_misses) == 1
        return SimpleNamespace(hit=bool(kernel.stats.cache_hits), kernel=compiled)


@pytest.fixture
def application(tmp_path):
    return Application(tmp_path)


def stages_of(compiled):
    """Count the stages that a compiled kernel initialises."""
    (ptx,) = re.findall(r"(?s)\.version.*", compiled.kernel._codelibrary.get_asm_str(cc=(9, 0)))
    return sum(line.startswith("mbarrier.init") for line in instructions(ptx)) // 2


# ------------------------------------------------------------------------------- cache


@pytest.mark.parametrize("captured", every(2, KERNELS))
def test_a_cached_kernel_is_not_served_for_another_pipeline(captured, application):
    source = KERNELS[captured]
    first = application.compile(source, stages=2)
    assert not first.hit and stages_of(first) == 2
    second = application.compile(source, stages=5)
    assert not second.hit and stages_of(second) == 5
    for stages in (2, 5):
        again = application.compile(source, stages=stages)
        assert again.hit and stages_of(again) == stages


ROLES = """
import numba_tma as tma
ROLES = tma.Roles(other=tma.Warps({others}), work=tma.Warps(1), load=tma.Warps(1))
WORK, LOAD = ROLES.work, ROLES.load
PIPE = tma.TilePipeline(2, x=tma.Tile((16, 64), "f32"), producer=LOAD, consumer=WORK)
"""
BY_ROLE = {
    "a role": """
from numba import cuda
from .roles import LOAD

@cuda.jit(cache=True)
def kernel(x, n):
    if LOAD.is_member():
        x.prefetch()
""",
    "a pipeline of roles": """
from numba import cuda
from .roles import PIPE

@cuda.jit(cache=True)
def kernel(x, n):
    if PIPE.start().is_producer():
        x.prefetch()
""",
}


@pytest.mark.parametrize("captured", BY_ROLE)
def test_a_cached_kernel_is_not_served_for_roles_of_another_block(captured, application):
    # The roles' own names and threads are the same, where they are in the block is not.
    for others, hit in ((1, False), (2, False), (1, True), (2, True)):
        application.write("roles.py", ROLES.format(others=others))
        assert application.compile(BY_ROLE[captured]).hit is hit


def hits_by_debug_flag(folder, flags):
    application = Application(folder)
    return [application.compile(WITH_DEBUG, debug=debug).hit for debug in flags]


def test_a_cached_kernel_is_not_served_for_another_debug_flag(tmp_path):
    # In a process of its own: libNVVM gives other code for compute capability 10.0 and newer once
    # it has compiled for debugging.
    flags = [False, True, False, True]
    hits = run_isolated(hits_by_debug_flag, str(tmp_path), flags, timeout=120)
    assert hits == [False, False, True, True]


@pytest.mark.parametrize("captured", KERNELS)
def test_a_cached_kernel_is_not_served_to_another_version(captured, application, monkeypatch):
    assert not application.compile(KERNELS[captured]).hit
    monkeypatch.setattr(cache, "__version__", "0.0.0+other")
    assert not application.compile(KERNELS[captured]).hit
    assert application.compile(KERNELS[captured]).hit


@pytest.mark.parametrize("held", BARE)
def test_what_the_library_compiles_to_belongs_to_its_version(held, application, monkeypatch):
    source, signature = BARE[held]
    assert not application.compile(source, signature).hit
    monkeypatch.setattr(cache, "__version__", "0.0.0+other")
    assert not application.compile(source, signature).hit
    assert application.compile(source, signature).hit


def test_kernels_without_the_library_do_not_know_its_version(application, monkeypatch):
    signature = (types.float32[::1], types.int64)
    assert not application.compile(PLAIN, signature).hit
    monkeypatch.setattr(cache, "__version__", "0.0.0+other")
    assert application.compile(PLAIN, signature).hit


# ------------------------------------------------------------------------------- launch


@pytest.mark.parametrize("block", [(32, 1, 1), (100, 1, 1), (64, 2, 1), (64, 1, 2), (16, 1, 1)])
def test_a_block_that_cannot_hold_a_pipeline_is_refused(block, application):
    for hit in (False, True):
        compiled = application.compile(KERNELS["a name"])
        assert compiled.hit is hit
        with pytest.raises(ValueError, match="64, 96, 128") as caught:
            compiled.kernel.launch((), (1, 1, 1), block)
        assert f"block {block}" in str(caught.value)


def test_other_kernels_are_launched_with_any_block(application):
    compiled = application.compile(PLAIN, (types.float32[::1], types.int64))
    assert "launch" not in vars(compiled.kernel)
    compiled = application.compile(*BARE["an instruction"])
    assert "launch" not in vars(compiled.kernel)


def meets_in_a_loop(n):
    thread = ptx.tid_x()
    for _ in range(n):
        if thread == 0:
            ptx.cp_async_bulk_commit_group()
        ptx.barrier_sync(1, 64)


def meets_by_numba_in_a_loop(n):
    thread = ptx.tid_x()
    for _ in range(n):
        if thread == 0:
            ptx.cp_async_bulk_commit_group()
        cuda.syncthreads()


@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")], ids=["sm_90a", "sm_100a"])
def test_a_meeting_of_threads_is_not_moved_into_a_divergent_branch(cc):
    ours = compile_ptx(meets_in_a_loop, (types.int64,), cc=cc).count("bar.sync")
    assert ours == compile_ptx(meets_by_numba_in_a_loop, (types.int64,), cc=cc).count("bar.sync")
