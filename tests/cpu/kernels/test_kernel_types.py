"""TensorMaps as kernel arguments: 128 bytes in parameter space, used in place, on every target."""

import re
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core._tensor_map import TensorMapDescriptor
from numba import cuda, types
from numba.core.errors import NumbaError
from numba.cuda.core.errors import TypingError

import numba_tma as tma
from numba_tma import TensorMapType, Tile
from numba_tma.host.layout import Swizzle
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.tiers import every

TILE, BYTES = Tile((16, 32), "f32"), Tile((16, 64), "u8", Swizzle.B64)
MAP, OTHER = TensorMapType(2, TILE), TensorMapType(2, BYTES)
#: Below and from compute capability 10.0 on, libNVVM speaks two dialects of LLVM's `byval`.
TARGETS = [(9, 0, "a"), (10, 0, "a"), (12, 0)]


@cuda.jit(device=True)
def load_first(x, tile, full):
    x.load(tile, (0, 0), full)


@cuda.jit(device=True)
def load_first_of_pair(maps, tile, full):
    maps[0].load(tile, (0, 0), full)


def plain(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.load(tile, (0, 0), full)


def in_a_device_function(x):
    load_first(x, tma.shared_tile(TILE), tma.shared_barrier())


def in_a_tuple(maps):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    maps[1].load(tile, (16, 0), full)
    load_first_of_pair(maps, tile, full)


def in_a_mixed_tuple(maps):
    tile, bits, full = tma.shared_tile(TILE), tma.shared_tile(BYTES), tma.shared_barrier()
    maps[0].load(tile, (0, 0), full)
    maps[1].store(bits, (0, 0))


def between_other_arguments(n, x, factor, y, array, z):
    x.prefetch()
    y.prefetch()
    z.prefetch()
    array[n] = factor


I64, F32, ARRAY = types.int64, types.float32, types.float32[::1]
KERNELS = {
    "plain": (plain, (MAP,), 1),
    "device function": (in_a_device_function, (MAP,), 1),
    "generic map": (plain, (TensorMapType(2),), 1),
    "descriptor of cuda.core": (plain, (TensorMapType(),), 1),
    "tuple": (in_a_tuple, (types.UniTuple(MAP, 2),), 2),
    "mixed tuple": (in_a_mixed_tuple, (types.Tuple((MAP, OTHER)),), 2),
    "between other arguments": (between_other_arguments, (I64, MAP, F32, OTHER, ARRAY, MAP), 3),
}


def parameters(ptx):
    """List the types of a kernel's parameters."""
    text = ptx[ptx.index(".entry") :]
    text = text[text.index("(") : text.index(")")]
    found = re.findall(r"\.param (.*?) ?_Z\w+?_param_\d+(\[\d+\])?", text)
    return [" ".join(part for part in parts if part) for parts in found]


@pytest.mark.parametrize("cc", TARGETS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_a_map_stays_in_parameter_space(name, cc):
    kernel, signature, maps = KERNELS[name]
    for function in (load_first, load_first_of_pair):
        function.overloads.clear()  # Numba keeps the code for one target, and gives it to the next
    ptx = compile_ptx(kernel, signature, cc=cc)
    assert parameters(ptx).count(".align 64 .b8 [128]") == maps
    body = instructions(ptx)
    assert sum(line.startswith("cvta.param.u64") for line in body) == maps
    # Without the grid_constant annotation, NVVM would copy the map to local memory and load it.
    assert ".local" not in ptx
    report = ptxas(ptx)
    assert not report.warnings
    assert report.stack_frame == 0


def test_scalars_keep_their_places_between_maps():
    ptx = compile_ptx(between_other_arguments, (I64, MAP, F32, OTHER, ARRAY, MAP))
    place = {text: i for i, text in reversed(list(enumerate(parameters(ptx))))}
    maps = [i for i, p in enumerate(parameters(ptx)) if p.endswith("[128]")]
    assert maps == [1, 3, len(parameters(ptx)) - 1]
    assert (place[".u64"], place[".f32"]) == (0, 2)
    prefetched = [
        re.search(r"param_(\d+)", line)[1]
        for line in instructions(ptx)
        if line.startswith("mov.b64") and "param_" in line
    ]
    assert sorted(map(int, prefetched)) == maps


def test_equal_maps_may_be_different_arguments():
    def move(x, y):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        x.load(tile, (0, 0), full)
        y.store(tile, (0, 0))

    body = instructions(compile_ptx(move, (MAP, MAP)))
    load = next(line for line in body if "shared::cluster.global" in line)
    store = next(line for line in body if "global.shared::cta" in line)
    used = [re.search(r"\[(%rd\d+), \{", line)[1] for line in (load, store)]
    assert used[0] != used[1]


# ------------------------------------------------------------------------ the generic map


@pytest.fixture
def hopper():
    """Supply the device that a device function with an explicit signature is compiled for."""
    device = SimpleNamespace(compute_capability=(9, 0, "a"))
    with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: device):
        yield


def test_a_generic_map_in_an_explicit_signature_takes_any_map_of_the_rank(hopper):
    @cuda.jit(types.void(TensorMapType(2)), device=True)
    def prefetch(x):
        x.prefetch()

    def kernel(x, y, z):
        prefetch(x)
        prefetch(y)
        prefetch(z)

    ptx = compile_ptx(kernel, (MAP, OTHER, TensorMapType(2)))
    assert parameters(ptx).count(".align 64 .b8 [128]") == 3
    assert ".local" not in ptx


@pytest.mark.parametrize("given", [TensorMapType(3), TensorMapType(1, Tile(64, "f32")), I64])
def test_a_generic_map_takes_no_other_rank(hopper, given):
    @cuda.jit(types.void(TensorMapType(2)), device=True)
    def prefetch(x):
        x.prefetch()

    def kernel(x):
        prefetch(x)

    with pytest.raises(TypingError, match=r"TensorMap\(2d\)"):
        compile_ptx(kernel, (given,))


# ------------------------------------------------------------------------------ the type


def test_the_type_is_its_rank_tile_and_interleave():
    same = TensorMapType(2, Tile((16, 32), np.float32))
    assert same == MAP and hash(same) == hash(MAP) and same.name == MAP.name
    others = [
        TensorMapType(2, Tile((16, 32), "f32", Swizzle.B128)),
        TensorMapType(2, Tile((16, 32), "tf32")),
        TensorMapType(2, Tile((32, 16), "f32")),
        TensorMapType(3, TILE),
        TensorMapType(2, TILE, 16),
        TensorMapType(2),
        TensorMapType(3),
        TensorMapType(),
    ]
    every = [MAP, *others]
    assert len({MAP, *others}) == len(every)
    assert MAP.name == "TensorMap(Tile((16, 32), f32, NONE))"
    assert str(TensorMapType(2)) == "TensorMap(2d)"


def test_maps_of_different_tiles_give_kernels_of_different_names():
    def kernel(x):
        x.prefetch()

    def entry(numba_type):
        return re.search(r"\.entry (\w+)", compile_ptx(kernel, (numba_type,)))[1]

    swizzled = TensorMapType(2, Tile((16, 32), "f32", Swizzle.B128))
    strip = re.compile(r"B\d?v\d+")  # numba numbers its compilations
    names = {strip.sub("", entry(t)) for t in (MAP, swizzled, OTHER, TensorMapType(2))}
    assert len(names) == 4


class Tensor:
    """Global memory that is not there."""

    def __init__(self, shape, address=1 << 40):
        self.__cuda_array_interface__ = {
            "shape": shape, "strides": None, "typestr": "<f4", "data": (address, False),
            "version": 3,
        }  # fmt: skip


@pytest.fixture
def encoder(monkeypatch):
    """Encode maps without a GPU: the driver's answer is 128 empty bytes."""
    answer = driver.CUresult.CUDA_SUCCESS
    encode = lambda *arguments: (answer, driver.CUtensorMap())  # noqa: E731
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encode)
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: (answer, driver.CUdevice(0)))


def test_a_map_has_the_type_of_what_it_copies(encoder):
    typeof = cuda.jit(plain).typeof_pyval
    x = tma.tensor_map(Tensor((64, 64)), TILE)
    assert typeof(x) == MAP
    assert typeof(tma.tensor_map(Tensor((99, 32)), TILE, oob_fill="nan")) == MAP
    rounded = Tile((16, 32), "tf32")
    assert typeof(tma.tensor_map(Tensor((64, 64)), rounded)) == TensorMapType(2, rounded)
    cube = tma.tensor_map(Tensor((8, 8, 16)), (4, 4, 16), swizzle=Swizzle.B64)
    assert typeof(cube) == TensorMapType(3, Tile((4, 4, 16), "f32", Swizzle.B64))
    assert typeof((x, 1, cube)) == types.Tuple((MAP, types.int64, typeof(cube)))


def test_a_descriptor_of_cuda_core_is_a_map_of_which_nothing_is_known():
    descriptor = TensorMapDescriptor.__new__(TensorMapDescriptor)
    assert cuda.jit(plain).typeof_pyval(descriptor) == TensorMapType()


# ------------------------------------------------------------------------------ imports

ORDERS = {
    "numba first": "from numba import cuda\nimport numba_tma as tma",
    "numba_tma first": "import numba_tma as tma\nfrom numba import cuda",
    "numba.cuda first, one name": "import numba.cuda\nfrom numba import cuda\n"
    "import numba_tma as tma\ntma.TilePipeline",
}
TYPED = """
from cuda.bindings import driver
answer = driver.CUresult.CUDA_SUCCESS
driver.cuTensorMapEncodeTiled = lambda *arguments: (answer, driver.CUtensorMap())
driver.cuCtxGetDevice = lambda: (answer, driver.CUdevice(0))
driver.cuPointerGetAttribute = lambda which, address: (answer, address)

class Tensor:
    __cuda_array_interface__ = dict(
        shape=(64, 64), strides=None, typestr="<f4", data=(1 << 40, False), version=3)

@cuda.jit
def kernel(x):
    x.prefetch()

x = tma.tensor_map(Tensor(), (16, 32))
numba_type = kernel.typeof_pyval(x)
from numba_tma.tools.testing import compile_ptx
assert "prefetch.tensormap" in compile_ptx(kernel, (numba_type,))
print(numba_type)
"""
# Nothing of numba_tma but two functions that need no Numba is used before the argument is typed.
UNTOUCHED = """
import sys
import numba_tma as tma
assert "numba" not in sys.modules
tensor_map = tma.tensor_map
from numba import cuda
assert "numba_tma.backend.lowering.types" not in sys.modules
"""


def run(source):
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("order", every(3, ORDERS))
def test_a_map_is_known_in_any_order_of_imports(order):
    assert run(ORDERS[order] + TYPED).strip() == MAP.name


def test_a_map_is_known_if_the_library_was_never_touched_before():
    assert run(UNTOUCHED + TYPED).strip() == MAP.name


OTHERS = """
import re, sys
from unittest import mock
from types import SimpleNamespace
if "with" in sys.argv:
    import numba_tma
    numba_tma.TilePipeline, numba_tma.shared_tile, numba_tma.ptx
import enum
import numpy as np
from numba import cuda, njit, types

class Colour(enum.IntEnum):
    RED = 3

@cuda.jit(device=True, inline="always")
def helper(array, i):
    array[i] = array[i] + Colour.RED.value
    return array[i]

@cuda.jit(device=True)
def pair(x, i):
    return x[i], i + 1

def reduce(x, out, n):
    shared = cuda.shared.array(64, np.float32)
    local = cuda.local.array(4, np.float32)
    t = cuda.threadIdx.x
    local[t & 3] = x[t]
    shared[t] = local[t & 3]
    cuda.syncthreads()
    for i in range(n):
        value, j = pair(shared, i)
        out[j] += helper(shared, i) + value
    cuda.atomic.add(out, 0, shared[t])

def use_tuples(maps, colour, flags):
    for i in range(len(maps)):
        maps[i][0] = colour.value if flags[i] else 0

array = types.float32[::1]
device = SimpleNamespace(compute_capability=(9, 0, "a"))
with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: device):
    for function, signature in (
        (reduce, (array, array, types.int64)),
        (use_tuples, (types.UniTuple(array, 2), types.IntEnumMember(Colour, types.int64),
                      types.UniTuple(types.boolean, 2))),
    ):
        print(cuda.compile_ptx(function, signature, cc=(9, 0, "a"))[0])
        print("=====")

@njit
def host(a, colour):
    total = 0
    for i in range(a.size):
        a[i] += colour.value
        total += a[i]
    return total

assert host(np.arange(5), Colour.RED) == 25
print(re.sub(r"_Z\\w+|@\\S+|%\\S+|0x\\w+|\\d{6,}", "", host.inspect_llvm(host.signatures[0])))
"""


def test_nothing_changes_for_other_kernels_and_for_njit():
    sources = [f"import sys; sys.argv = ['', '{word}']\n{OTHERS}" for word in ("with", "without")]
    outputs = [run(source).split("=====") for source in sources]
    assert len(outputs[0]) == len(outputs[1]) == 3
    for with_library, without in zip(*(output[:2] for output in outputs)):
        assert instructions(with_library) == instructions(without)
        declared = re.compile(r"\.(?:shared|local|param) [^_]+")
        assert declared.findall(with_library) == declared.findall(without)
    assert outputs[0][2] == outputs[1][2]


FIRST_USED_IN_A_KERNEL = """
import sys
import numba_tma as tma
from numba import cuda, types
from numba_tma.tools.testing import compile_ptx
assert "numba_tma.device.shared" not in sys.modules
TILE = tma.Tile((8, 32), "f32")

def kernel(out):
    tile = tma.shared_tile(TILE)
    tile[0, 0] = 1.0
    out[0] = tile[0, 0]

compile_ptx(kernel, types.void(types.float32[::1]))
print("compiled")
"""


def test_a_name_can_be_used_first_inside_a_kernel_that_is_being_compiled():
    assert run(FIRST_USED_IN_A_KERNEL).strip() == "compiled"


# ---------------------------------------------------------------------------- interleave


def test_the_slice_is_no_coordinate_of_an_interleaved_copy():
    tile = Tile((1, 1, 2, 8, 4), "f32")
    interleaved = TensorMapType(5, tile, 16)

    def load(x, n):
        x.load(tma.shared_tile(tile), (n, 1, 2, 3), tma.shared_barrier())

    def load_inside(x, n):
        x.load(tma.shared_tile(tile), (n, 1, 2, 3, 0), tma.shared_barrier())

    ptx = compile_ptx(load, (interleaved, types.int32))
    (copy,) = [i for i in instructions(ptx) if "bulk" in i]
    assert copy.startswith("cp.async.bulk.tensor.4d.") and copy.count(",") == 6
    with pytest.raises(NumbaError, match="5 coordinates for .* but for the last: copies take"):
        compile_ptx(load_inside, (interleaved, types.int32))
