"""Launches of cached kernels without a GPU: what is loaded, compiled, passed and refused."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver as bindings
from numba import cuda

import numba_tma as tma
from numba_tma.host import cache_files, debug, kernel_key, kernel_store, stored_launch
from numba_tma.host import driver as _driver
from numba_tma.host.parameters import Unsupported, type_of
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing
from tests.cpu.host.test_launcher import NUMBERS, device_array
from tests.recording_driver import CALLS, Array, RecordingDriver
from tests.tiers import quick

ROOT = Path(__file__).parents[3]
TILE = tma.Tile((8, 32), "f32")


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A driver that notes launches, an empty cache, and a process that has loaded nothing."""
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path))
    monkeypatch.setattr(cache_files, "_warned", set())
    another_process(monkeypatch)
    _driver.compute_capability.cache_clear()
    with RecordingDriver().installed() as driver, hopper_that_loads_nothing():
        yield driver
    _driver.compute_capability.cache_clear()


def another_process(monkeypatch):
    """Forget what this process has loaded."""
    monkeypatch.setattr(stored_launch, "_loaded", {})
    scale_kernel._made.clear()
    add_one.found.clear()


@tma.cached
def scale_kernel(factor):
    @cuda.jit
    def scale(x, n, alpha):
        if n > 0:
            x[0] = factor * alpha

    return scale


@tma.cached
@cuda.jit
def add_one(x, n):
    if n > 0:
        x[0] += 1


def compiles(monkeypatch):
    """Count the kernels that are compiled from now on."""
    compiled = []
    original = stored_launch.compiled_image

    def count(kernel, arguments):
        compiled.append(kernel.py_func.__name__)
        return original(kernel, arguments)

    monkeypatch.setattr(stored_launch, "compiled_image", count)
    return compiled


ARGUMENTS = (Array(1, (64,), "f4"), 7, np.float32(2))


def test_a_kernel_is_compiled_once_and_then_found(gpu, monkeypatch):
    compiled = compiles(monkeypatch)
    for _ in range(2):
        scale_kernel(3)[4, 64](*ARGUMENTS)
    assert compiled == ["scale"]
    another_process(monkeypatch)
    scale_kernel(3)[4, 64](*ARGUMENTS)
    assert compiled == ["scale"] and len(gpu.loaded) == 2 and gpu.loaded[0] == gpu.loaded[1]
    first, *others = gpu.launches
    assert others == [first, first] and (first.grid, first.block) == ((4, 1, 1), (64, 1, 1))
    scale_kernel(4)[4, 64](*ARGUMENTS)
    scale_kernel(3)[4, 64](*ARGUMENTS[:2], 2.0)
    assert compiled == ["scale"] * 3


def test_a_kernel_with_both_decorators(gpu, monkeypatch):
    compiled = compiles(monkeypatch)
    launch = tma.launcher(add_one, (2, 3), 32, stream=17)
    launch(ARGUMENTS[0], 1)
    bound = launch.bind(ARGUMENTS[0], 1)
    bound()
    assert compiled == ["add_one"] and gpu.launches[0] == gpu.launches[1]
    assert gpu.launches[0].stream == 17 and gpu.launches[0].grid == (2, 3, 1)


def test_a_wrapper_launches_the_function_of_its_context(gpu):
    """It is faster than a kernel of any context, and ends with the context."""
    prepared = []

    @launched_again
    def wrapper(arrays, stream, numbers):
        prepared.append(numbers)
        launch(add_one, 1, 32, stream, arrays[0], 1)

    def contexts(context):
        gpu.context = context
        wrapper((ARGUMENTS[0],), None, ())
        return gpu.launches[-1].context, len(prepared)

    assert [contexts(n) for n in (1, 1, 2, 2, 0, 0, 1)] == [
        *[(1, 1)] * 2, *[(2, 2)] * 2, *[(0, 3)] * 2, (1, 1 + 2),
    ]  # fmt: skip
    launcher = tma.launcher(add_one, 1, 32)
    gpu.context = 1
    bound = launcher.bind(ARGUMENTS[0], 1)
    gpu.context = 2  # a user's own holds in any context
    bound()
    assert gpu.launches[-1].context == 0


def test_attributes_of_a_launch(gpu):
    tma.launcher(add_one, 8, 32, cluster=2, pdl=True)(ARGUMENTS[0], 1)
    (launch,) = gpu.launches
    assert launch.attributes == [
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    ]
    assert launch.grid == (8, 1, 1) and launch.cluster == [(2, 1, 1)]


def test_nothing_is_written_where_caches_are_off(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_TMA_CACHE", "0")
    add_one[1, 32](ARGUMENTS[0], 1)
    assert len(gpu.launches) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["garbage", "another kernel's", "unloadable"])
def test_what_cannot_be_used_is_compiled_again(gpu, monkeypatch, damage):
    compiled = compiles(monkeypatch)
    add_one[1, 32](ARGUMENTS[0], 1)
    scale_kernel(3)[1, 32](*ARGUMENTS)
    files = [entry.path for entry in kernel_store.entries()]
    assert len(files) == 2
    if damage == "garbage":
        for file in files:
            file.write_bytes(b"garbage")
    elif damage == "another kernel's":
        one, other = (file.read_bytes() for file in files)
        files[0].write_bytes(other)
        files[1].write_bytes(one)
    else:
        gpu.refused = True
    another_process(monkeypatch)
    if gpu.refused:
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_IMAGE"):
            add_one[1, 32](ARGUMENTS[0], 1)
        gpu.refused = False
    gpu.launches.clear()
    add_one[1, 32](ARGUMENTS[0], 1)
    scale_kernel(3)[1, 32](*ARGUMENTS)
    assert ["add_one" in one.entry for one in gpu.launches] == [True, False]
    assert compiled.count("add_one") >= 2
    another_process(monkeypatch)
    count = len(compiled)
    add_one[1, 32](ARGUMENTS[0], 1)
    assert len(compiled) == count


def test_a_kernel_in_debug_mode_is_not_cached(gpu, monkeypatch):
    monkeypatch.setattr(debug, "buffer_address", lambda: debug.NO_GPU)  # as where there is none
    pipe = tma.TilePipeline(2, x=TILE, debug=True)

    @tma.cached
    @cuda.jit
    def watched(x):
        handle = pipe.start()
        if handle.is_producer():
            for tile, stage in handle.produce(0, 2, 1):
                x.load(stage.x, (tile * 8, 0), stage.barrier)
        else:
            for _, stage in handle.consume(0, 2, 1):
                stage.x[0, 0] = 1

    x = tma.tensor_map(Array(1, (64, 64), "f4"), TILE)
    assert stored_launch.loaded(watched, (x,), 0) is None
    assert kernel_store.entries() == [] and not gpu.loaded


def test_a_launcher_of_another_cluster_than_the_kernels(gpu):
    @tma.cached
    @cuda.jit
    @tma.cluster(4)
    def in_fours(x):
        x[0] = 1

    expected = r"launcher: cluster=\(2, 1, 1\), but .*in_fours.* is compiled for clusters of "
    with pytest.raises(ValueError, match=expected):
        tma.launcher(in_fours, 8, 32, cluster=2)(ARGUMENTS[0])
    tma.launcher(in_fours, 8, 32, cluster=4)(ARGUMENTS[0])
    tma.launcher(in_fours, 8, 32)(ARGUMENTS[0])
    assert [one.cluster for one in gpu.launches] == [[(4, 1, 1)], []]  # its code has the other


def test_what_has_no_description_is_not_cached_and_named_once(gpu):
    unknown = object()

    @tma.cached
    def factory(given):
        return add_one.kernel

    with pytest.warns(RuntimeWarning, match="factory is not cached: it has a builtins.object"):
        assert stored_launch.loaded(factory(unknown), (ARGUMENTS[0], 1), 0) is None
    assert stored_launch.loaded(factory(unknown), (ARGUMENTS[0], 1), 0) is None


def test_a_factory_that_returns_no_kernel(gpu):
    @tma.cached
    def factory():
        return 3

    with pytest.raises(TypeError, match="factory returned a int; a factory returns a kernel"):
        factory()[1, 32](1)


@pytest.mark.parametrize("subject", [3, None, int, "kernel"])
def test_what_is_neither_kernel_nor_factory(subject):
    with pytest.raises(TypeError, match="neither a function under @cuda.jit, nor one that returns"):
        tma.cached(subject)


def test_a_device_function_is_refused():
    with pytest.raises(TypeError, match="is a device function; cache the kernels it is in"):
        tma.cached(cuda.jit(device=True)(lambda x: x))


def test_cached_twice_is_cached():
    assert tma.cached(add_one) is add_one and tma.cached(scale_kernel) is scale_kernel
    assert scale_kernel(3) is scale_kernel(3)
    others = [scale_kernel(given) for given in (3, 4, 3.0, True, 1, (1,), (1.0,))]
    assert len(set(others)) == len(others)
    assert add_one[1, 32] is add_one[1, 32] is not add_one[1, 64]


# ------------------------------------------------------------------------------ errors


def test_a_wrong_number_of_arguments(gpu):
    scale_kernel(3)[1, 32](*ARGUMENTS)
    with pytest.raises((TypeError, RuntimeError)):
        scale_kernel(3)[1, 32](*ARGUMENTS[:2])


def test_too_many_threads_for_the_registers(gpu):
    gpu.most_threads = 128
    with pytest.raises(ValueError, match="block .256, 1, 1.: add_one uses so many registers"):
        add_one[1, 256](ARGUMENTS[0], 1)
    add_one[1, 128](ARGUMENTS[0], 1)


@pytest.mark.parametrize("grid, block", [(0, 32), (1, 2048), (2**31, 32), ("x", 32)])
def test_a_grid_or_block_that_no_gpu_runs(gpu, grid, block):
    with pytest.raises((ValueError, TypeError), match="launcher: "):
        add_one[grid, block](ARGUMENTS[0], 1)


def test_dynamic_shared_memory_is_refused(gpu):
    with pytest.raises(ValueError, match="without dynamic shared memory, and is given 64 B"):
        add_one[1, 32, 0, 64](ARGUMENTS[0], 1)
    add_one[1, 32, 0, 0](ARGUMENTS[0], 1)


def test_the_requirements_of_a_kernel_are_checked(gpu):
    pipe = tma.TilePipeline(2, x=TILE)

    @tma.cached
    @cuda.jit
    def piped(x):
        handle = pipe.start()
        if handle.is_producer():
            for tile, stage in handle.produce(0, 2, 1):
                x.load(stage.x, (tile * 8, 0), stage.barrier)
        else:
            for _, stage in handle.consume(0, 2, 1):
                stage.x[0, 0] = 1

    x = tma.tensor_map(Array(1, (64, 64), "f4"), TILE)
    piped[1, 64](x)
    with pytest.raises(ValueError, match=r"block \(48, 1, 1\): a kernel with a TilePipeline has"):
        piped[1, 48](x)
    assert len(gpu.launches) == 1 and gpu.launches[0].packed == [x.encoded]


ERROR = bindings.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


def test_what_the_driver_refuses_is_named(gpu):
    gpu.errors = [ERROR]
    with pytest.raises(RuntimeError, match=r"launcher\('add_one', .*OUT_OF_RESOURCES .use fewer"):
        add_one[1, 32](ARGUMENTS[0], 1)


def test_a_thread_without_a_context_gets_one(gpu):
    gpu.errors = [bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT]
    add_one[1, 32](ARGUMENTS[0], 1)
    assert gpu.contexts == 1 and len(gpu.launches) == 2
    gpu.errors = [bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT, ERROR]
    with pytest.raises(RuntimeError, match="OUT_OF_RESOURCES"):
        add_one[1, 32](ARGUMENTS[0], 1)


def test_parameters_that_are_not_the_kernels_are_never_launched(gpu, monkeypatch):
    add_one[1, 32](ARGUMENTS[0], 1)
    (known,) = stored_launch._loaded.values()
    object.__setattr__(known.image, "sizes", (8, 4))
    with pytest.raises(RuntimeError, match="this is an error of numba_tma"):
        add_one[1, 32](ARGUMENTS[0], 1)
    assert len(gpu.launches) == 1


# --------------------------------------------------------------------------- parameters

#: Numbers that a launch takes without a compiler; the others are passed as by `launcher`.
TAKEN = {name: value for name, value in NUMBERS.items() if type(value) in (
    int, float, bool, np.bool_, np.float16, np.float32, np.float64,
    *(np.dtype(f"{kind}{size}").type for kind in "iu" for size in (1, 2, 4, 8)),
)}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_number_is_passed_as_numba_passes_it(gpu, name):
    value = TAKEN[name]

    @tma.cached
    @cuda.jit
    def kernel(x):
        pass

    kernel[1, 32](value)
    (packed,) = gpu.launches[0].packed
    dtype = np.dtype(type(value)) if isinstance(value, np.generic) else {
        int: np.dtype("u8" if value >= 2**63 else "i8"), float: np.dtype("f8"), bool: np.dtype("?"),
    }[type(value)]  # fmt: skip
    assert packed == np.array(value, dtype).tobytes()


def test_arrays_are_passed_as_numba_passes_them(gpu):
    array = device_array((3, 5), np.float32, strides=(64, 4))

    @tma.cached
    @cuda.jit
    def kernel(x, n):
        pass

    kernel[1, 32](array, 1)
    words = [int.from_bytes(p, "little") for p in gpu.launches[0].packed]
    address = array.device_ctypes_pointer.value
    assert words == [0, 0, 15, 4, address, 3, 5, 64, 4, 1]


def test_types_of_arguments_are_told_apart():
    arguments = [
        *(1, 2**63, 1.0, True, np.int32(1), np.int64(1), np.float32(1)),
        *((), (1,), (1, 2), (1, 1.0), ((1,), 2)),
        *(Array(1, shape, "f4") for shape in ((8,), (8, 8), (1,), (0,))),
        *(Array(1, (8,), "i4"), device_array((8, 8)), device_array((8, 8), "f8")),
        *(device_array((8, 8), strides=strides) for strides in ((64, 4), (4, 32))),
    ]
    texts = [type_of(argument) for argument in arguments]
    assert len(set(texts)) == len(texts)
    rows = Array(1, (8,), "f4"), Array(9, (64,), "f4")
    for same in ((1, -(2**63)), (1, 2**63 - 1), (2**63, 2**64 - 1), (1.0, 2.0), rows):
        assert type_of(same[0]) == type_of(same[1])


def test_maps_are_told_apart_by_their_tiles(gpu):
    x = Array(1, (64, 64), "f4")
    maps = [tma.tensor_map(x, tile) for tile in (TILE, tma.Tile((16, 32), "f32"))]
    texts = {type_of(one) for one in maps}
    assert len(texts) == 2
    assert type_of(tma.tensor_map(Array(5, (128, 64), "f4"), TILE)) == type_of(maps[0])


def test_what_maps_and_tuples_are_compiled_to_is_described_once(gpu, monkeypatch):
    """A call at other addresses has other maps, of kinds that are known."""
    pair = collections.namedtuple("pair", "x n")

    def arguments(place):
        map_ = tma.tensor_map(Array(place, (64, 64), "f4"), TILE)
        return pair(Array(place, (64, 64), "f4"), 1), map_

    texts = [type_of(argument) for argument in arguments(1)]
    monkeypatch.setattr(kernel_key._Description, "of", lambda *given: pytest.fail("again"))
    assert [type_of(argument) for argument in arguments(7)] == texts


OTHERS = [None, "x", 1j, object(), np.zeros(3), 2**64, -(2**63) - 1, [1]]


@pytest.mark.parametrize("argument", OTHERS)
def test_other_arguments_are_left_to_the_compilers_package(argument):
    with pytest.raises(Unsupported):
        type_of(argument)


# ------------------------------------------------------------------- in a second process

#: What a hit imports none of: compilers, and what other calls and other GPUs need.
UNNEEDED = (
    *("numba.", "llvmlite", "cuda.core", "numba_tma.simulator", "numba_tma.device.products"),
    *(f"numba_tma.host.{name}" for name in (
        "encoding", "explain", "im2col", "matrix_layout", "mma_rules", "pixel_box", "ragged",
        "reference", "scale_factors", "tcgen05", "tensor_map", "tensor_tiles", "warp_rules",
    )),
    *("numba_tma.kernels.rows.backward", "numba_tma.kernels.rows.columns"),
    *("numba_tma.kernels.rows.reductions", "numba_tma.kernels.matmul.mma_plan"),
    *("numba_tma.kernels.matmul.scales", "numba_tma.kernels.matmul.tcgen05_plan"),
)  # fmt: skip
MAPS = {f"numba_tma.host.{name}" for name in ("encoding", "tensor_map", "tensor_map_rules")}
NEEDED = {"gelu": MAPS, "matmul": MAPS}

FEW = (("rmsnorm", "gelu"),)


@pytest.mark.parametrize("names", quick([FEW], [FEW, (tuple(CALLS),)]))
def test_a_second_process_launches_without_a_compiler(names, tmp_path):
    """The same launches, from another process's files."""
    environment = os.environ | {"NUMBA_TMA_CACHE": str(tmp_path)}

    def run(*options):
        command = [sys.executable, "-m", "tests.recording_driver", *names, *options]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=280, env=environment
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    cold, warm = run("--compile"), run()
    assert warm["launches"] == cold["launches"] and len(warm["launches"]) == len(names)
    assert all("numba" in modules for modules in cold["imported"].values())
    seen = set()
    for name, modules in warm["imported"].items():  # in the order of the calls
        seen |= NEEDED.get(name, set())
        found = {m for m in modules if m.startswith(UNNEEDED)} - seen
        assert found == set(), f"{name} imports {sorted(found)}"
    assert sum(warm["seconds"].values()) < sum(cold["seconds"].values())
