"""Launchers without a GPU: their packing against numba-cuda's, and their errors."""

import contextlib
import ctypes
import enum
import gc
import pickle
import re
import weakref
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from cuda.core._kernel_arg_handler import ParamHolder
from cuda.core._utils.cuda_utils import CUDAError
from numba import cuda, types
from numba.cuda.cudadrv.devicearray import DeviceNDArray, DeviceRecord

import numba_tma as tma
from numba_tma.backend.numba_cuda import launches as compiler
from numba_tma.backend.numba_cuda import prepared_launch as _prepared_launch
from numba_tma.backend.numba_cuda.packing import Packer
from numba_tma.host import driver as _driver
from numba_tma.host import encoding as _encoding
from numba_tma.host import streams as _streams
from numba_tma.host.launching import Unfit, checked_extents
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing

ADDRESS = 0x7F00_1234_5000
TILE = tma.Tile((8, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


class Colour(enum.IntEnum):
    RED = 7


class Driver:
    """Stands for cuda.core's launch: notes the configuration and the bytes that are passed."""

    def __init__(self):
        self.sizes, self.launches, self.errors = [], [], []

    def __call__(self, stream, config, kernel, *values):
        assert kernel == "loaded"
        holder = ParamHolder(values)
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(holder.ptr or 8)
        packed = [ctypes.string_at(p, n) for p, n in zip(pointers, self.sizes)]
        self.launches.append(SimpleNamespace(stream=stream, config=config, packed=packed))
        if self.errors:
            raise CUDAError(self.errors.pop(0))


@pytest.fixture
def driver(monkeypatch):
    """Compile as on a GPU, and launch on nothing."""
    fake = Driver()
    monkeypatch.setattr(_prepared_launch, "launch", fake)
    monkeypatch.setattr(_prepared_launch, "LaunchConfig", lambda **given: given)
    monkeypatch.setattr(compiler, "handle_of", lambda compiled: "loaded")
    monkeypatch.setattr(compiler, "stream_of", lambda handle: f"stream {handle}")
    monkeypatch.setattr(compiler, "max_threads", lambda compiled: 512)
    with hopper_that_loads_nothing():
        yield fake


@pytest.fixture
def tensor_map(monkeypatch):
    """Make tensor maps of random bytes."""
    rng = np.random.default_rng(5)

    def encode(*_):
        image = rng.bytes(128)
        return _driver._descriptor(ctypes.addressof(ctypes.create_string_buffer(image, 128)))

    monkeypatch.setattr(_encoding, "encode_tiled", encode)
    _encoding.encode.cache_clear()
    yield tma.tensor_map
    _encoding.encode.cache_clear()


def device_array(shape=(3, 5), dtype=np.float32, strides=None, address=ADDRESS):
    """Return a numba array over memory that does not exist."""
    dtype = np.dtype(dtype)
    if strides is None:
        strides = np.empty(shape, dtype).strides
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(address), size=1 << 20)
    return DeviceNDArray(shape, strides, dtype, gpu_data=memory)


def device_record(dtype):
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(ADDRESS), size=64)
    return DeviceRecord(np.dtype(dtype), gpu_data=memory)


def kernel_of(count):
    """Return a kernel that takes so many arguments, and does nothing."""
    namespace = {}
    exec(f"def kernel({', '.join(f'a{i}' for i in range(count))}): pass", namespace)
    return cuda.jit(namespace["kernel"])


def compiled_by(launch):
    """Return the one compiled kernel of a launcher's kernel."""
    (compiled,) = kernel_behind(launch).overloads.values()
    return compiled


def kernel_behind(launch):
    """Return the kernel that a launch function launches."""
    return launch.bind.__self__.kernel


def sizes_in_ptx(compiled):
    """Return the bytes of each parameter of the kernel, as its PTX declares them."""
    ptx = compiled._codelibrary.get_asm_str(cc=(9, 0))
    (entry,) = re.findall(r"(?s)\.entry [^(]*\((.*?)\)", ptx)
    found = re.findall(
        r"\.param (?:\.align \d+ )?\.[busf](\d+)(?: \.ptr[^,\n]*)? \w+(?:\[(\d+)\])?", entry
    )
    return [int(count or bits) // (1 if count else 8) for bits, count in found]


def numbas_packing(compiled, arguments):
    """Return what numba-cuda and cuda.core make of the arguments."""
    values = []
    for numba_type, argument in zip(compiled.argument_types, arguments):
        compiled._prepare_args(numba_type, argument, 0, [], values)
    holder = ParamHolder(tuple(values))
    sizes = sizes_in_ptx(compiled)
    pointers = (ctypes.c_void_p * len(sizes)).from_address(holder.ptr)
    return [ctypes.string_at(p, n) for p, n in zip(pointers, sizes)]


POINT = np.dtype([("x", np.int32), ("y", np.float64)])
NUMBERS = {
    "int": 12345678901,
    "negative": -1,
    "uint64": 2**63 + 5,
    "bool": True,
    "float": 0.1,
    **{d: np.dtype(d).type(77) for d in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")},
    "f2": np.float16(1.5),
    "f4": np.float32(0.1),
    "f8": np.float64(-0.0),
    "bool_": np.bool_(True),
    "complex64": np.complex64(1 - 2j),
    "complex": 3 + 4j,
    "datetime": np.datetime64("2020-01-02T03:04:05", "s"),
    "timedelta": np.timedelta64(-7, "ms"),
    "enum": Colour.RED,
    "tuple": (1, np.float32(2.5), (np.int8(3), True)),
    "tuple of one": (np.int16(4),),
}
ARRAYS = {
    "vector": device_array((7,)),
    "matrix": device_array((3, 5), np.int16),
    "fortran": device_array((3, 5), np.float64, (8, 24)),
    "strided": device_array((3, 5), np.float32, (40, 8)),
    "reversed": device_array((6,), np.int64, (-8,)),
    "scalar": device_array((), np.int32),
    "in a tuple": (device_array((2, 2)), 5),
    "record": device_record(POINT),
    "records": device_array((4,), POINT),
}


@pytest.mark.parametrize("kinds", [NUMBERS, ARRAYS], ids=["numbers", "arrays"])
def test_arguments_are_packed_as_numba_cuda_does(kinds, driver):
    arguments = (np.int8(1), *kinds.values())
    launch = tma.launcher(kernel_of(len(arguments)), 132, 128)
    launch(*arguments)
    driver.sizes = sizes_in_ptx(compiled_by(launch))
    launch(*arguments)
    launch.bind(*arguments)()
    expected = numbas_packing(compiled_by(launch), arguments)
    assert [len(value) for value in expected] == driver.sizes != []
    assert [launched.packed for launched in driver.launches] == [[], expected, expected]


def test_maps_and_their_arrays_are_packed(driver, tensor_map, monkeypatch):
    x_map, y_map = (tensor_map(device_array((64, 64), address=a), TILE) for a in (4096, 1 << 20))
    ragged = tensor_map(device_array((64, 64), address=1 << 21), (8, 16))
    launch = tma.launcher(kernel_of(3), 1, 32)
    launch(x_map, y_map, 7)
    driver.sizes = sizes_in_ptx(compiled_by(launch))
    assert driver.sizes == [128, 128, 8]
    images = {m: ctypes.string_at(_driver.address_of(m.value), 128) for m in (x_map, y_map)}
    assert len(set(images.values())) == 2
    for first, second in ((x_map, y_map), (y_map, x_map)):
        launch(first, second, 7)
        expected = [images[first], images[second], b"\7" + bytes(7)]
        assert driver.launches[-1].packed == expected
        assert numbas_packing(compiled_by(launch), (first, second, 7)) == expected
    moved = x_map.replace_address
    monkeypatch.setattr(_encoding, "replace_address", lambda value, address: y_map.value)
    launch(x_map, moved(device_array((64, 64), address=1 << 22)), 7)
    assert driver.launches[-1].packed[:2] == [images[x_map], images[y_map]]
    # Another tile is another kernel; then the first one again.
    launch(ragged, y_map, 7)
    assert len(kernel_behind(launch).overloads) == 2
    launch(x_map, y_map, 7)
    assert driver.launches[-1].packed[:2] == [images[x_map], images[y_map]]
    descriptor = tma.launcher(kernel_of(1), 1, 32)
    driver.sizes = [128]
    descriptor(x_map.value)
    assert driver.launches[-1].packed == [images[x_map]]
    maps = tma.TensorMapArray.__new__(tma.TensorMapArray)
    maps.maps, maps.address, maps.numba_type = [x_map], ADDRESS, None
    driver.sizes = [8]
    descriptor(maps)
    assert driver.launches[-1].packed == [ADDRESS.to_bytes(8, "little")]


@pytest.mark.parametrize(
    ("numba_type", "argument"),
    [
        (types.intp, 3), (types.float64, 2.5), (types.boolean, True), (types.boolean, np.bool_(1)),
        (types.float32, np.float32(2)), (types.float64, np.float64(2)),
        *((getattr(types, kind.__name__), kind(3)) for kind in (np.int8, np.int64, np.uint16)),
    ],
)  # fmt: skip
def test_what_cuda_core_packs_needs_no_conversion(numba_type, argument):
    field = Packer(["n"], [numba_type], [argument]).fields[0]
    assert field.read is None and field.value(argument) is argument
    with pytest.raises(Unfit, match="it is a str, not this"):
        field.value("text")


def test_arguments_of_other_types_compile_another_kernel(driver):
    launch = tma.launcher(kernel_of(1), 1, 32)
    driver.sizes = [8]
    given = [
        3,
        2.5,
        4,
        np.int64(5),
        np.uint64(7),
        device_array((4,)),
        device_array((2, 2)),
        6,
        (1, 2),
    ]
    for argument in given:
        launch(argument)
    assert len(kernel_behind(launch).overloads) == 6
    for argument, raw in ((3, b"\3" + bytes(7)), (2.5, np.float64(2.5).tobytes())) * 2:
        launch(argument)
        assert driver.launches[-1].packed == [raw]
    assert len(kernel_behind(launch).overloads) == 6
    other = tma.launcher(kernel_of(1), 1, 32)
    for argument in ((1, 2), (1, 2.5), (3, 4)):
        other(argument)
    assert len(kernel_behind(other).overloads) == 2


def test_a_signature_takes_pointers(driver):
    pointer = types.CPointer(types.float32)
    kernel = cuda.jit((pointer, pointer, types.int32, types.boolean))(lambda a, b, n, on: None)
    launch = tma.launcher(kernel, 1, 32)
    driver.sizes = [8, 8, 4, 1]
    launch(ADDRESS, 2**63 - 1, -2, True)
    assert [int.from_bytes(v, "little") for v in driver.launches[-1].packed] == [
        *(ADDRESS, 2**63 - 1, 2**32 - 2, 1),
    ]
    for arguments, text in (
        ((0, 0, 2**31, True), "n is 2147483648, where the kernel takes int32: it is out of"),
        ((0, 0, 1.5, True), "n is 1.5, where the kernel takes int32: .*int"),
        ((0.5, 0, 1, True), "a is 0.5, where the kernel takes int64|a is 0.5"),
        ((0, device_array(), 1, True), r"b: it is a DeviceNDArray, and the kernel takes a int64"),
        ((0, 0, 1, "yes"), "on: it is a str, and the kernel takes a bool"),
    ):
        with pytest.raises(TypeError, match=f"^<lambda>\\(\\): {text}"):
            launch(*arguments)
    assert len(driver.launches) == 1


def test_an_array_kernel_takes_what_converts(driver):
    kernel = cuda.jit((types.float32[:],))(lambda a: None)
    launch = tma.launcher(kernel, 1, 32)
    driver.sizes = [8] * 7
    launch(device_array((4,)))
    assert [int.from_bytes(v, "little") for v in driver.launches[-1].packed] == [
        *(0, 0, 4, 4, ADDRESS, 4, 4),
    ]
    with pytest.raises(
        TypeError, match="array.float64, 1d, C., and the kernel takes a array.float"
    ):
        launch(device_array((4,), np.float64))


# ---------------------------------------------------------------------- what is refused


def test_wrong_arguments_are_refused(driver):
    launch = tma.launcher(kernel_of(2), 1, 32)
    launch(1, 2)
    host_tensor = SimpleNamespace(data_ptr=int, is_cuda=False)
    for arguments, text in (
        ((1,), r"kernel\(\) (missing 1 required|takes 2 arguments \(a0, a1\), and is given 1)"),
        ((1, 2, 3), "takes 2 (positional arguments but 3|arguments .*, and is given 3)"),
        ((1, np.zeros(3)), r"kernel\(\): a1 is a ndarray in host memory, and a launcher copies"),
        ((host_tensor, 1), "a0 is a SimpleNamespace in host memory"),
        ((1, 2**63), r"^kernel\(\): a1 is 9223372036854775808, where .* range of int64"),
        ((1, "text"), "a1: a str .* is none of what a launcher passes"),
        ((1, object()), "Cannot determine Numba type of|is none of what"),
        ((1, None), "a1: a NoneType .* is none of what a launcher passes"),
    ):
        for _ in range(2):
            with pytest.raises((TypeError, ValueError), match=text):
                launch(*arguments)
        with pytest.raises((TypeError, ValueError), match=text):
            launch.bind(*arguments)
    assert len(driver.launches) == 1
    launch(3, 4)
    assert len(driver.launches) == 2


@pytest.mark.parametrize(
    ("grid", "block", "options", "text"),
    [
        (0, 32, {}, r"grid \(0, 1, 1\) has 0 blocks along x; it is 1 to 2,147,483,647"),
        ((1, 65536), 32, {}, "65,536 blocks along y; it is 1 to 65,535"),
        (1, (32, 64), {}, r"block \(32, 64, 1\) has 2,048 threads; a block has at most 1,024"),
        (1, (1, 1, 65), {}, "65 threads along z; it is 1 to 64"),
        (1, -1, {}, "-1 threads along x"),
        (1.5, 32, {}, "grid=1.5 is neither an integer nor a tuple of 1 to 3 integers"),
        (1, (1, 1, 1, 1), {}, "block=.* is neither"),
        (True, 32, {}, "grid=True is neither"),
        (3, 32, {"cluster": 2}, "3 blocks along x are not a multiple of 2: launch 4"),
        (16, 32, {"cluster": 16}, "16 blocks are more than the 8"),
        (1, 32, {"stream": "s"}, "stream is a builtins.str: give a numba, CuPy, torch"),
        (1, 32, {"stream": SimpleNamespace(is_closed=True)}, "stream .* is closed"),
    ],
)
def test_what_no_gpu_can_run_is_refused(grid, block, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tma.launcher(kernel_of(1), grid, block, **options)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("grid", (2**31 - 1, 1, 1)), ("grid", (1, 65535, 1)), ("grid", (1, 1, 65535)),
        ("block", (1024, 1, 1)), ("block", (1, 1024, 1)), ("block", (1, 1, 64)),
    ],
)  # fmt: skip
def test_each_axis_has_a_largest_extent(name, most):
    axis = max(range(3), key=most.__getitem__)
    beyond = tuple(n + (i == axis) for i, n in enumerate(most))
    one = {"grid": (1, 1, 1), "block": (1, 1, 1)}
    assert checked_extents(**one | {name: most}) == tuple((one | {name: most}).values())
    with pytest.raises(ValueError, match=f"along {'xyz'[axis]}; it is 1 to {most[axis]:,}$"):
        checked_extents(**one | {name: beyond})


@pytest.mark.parametrize("block", [(1024, 1, 1), (32, 32, 1), (16, 1, 64), (8, 8, 16)])
def test_a_block_has_1024_threads_at_most(block):
    assert checked_extents(1, block) == ((1, 1, 1), block)
    for axis in range(3):
        wider = tuple(n + (i == axis) for i, n in enumerate(block))
        with pytest.raises(ValueError, match=r"a block has at most 1,024$|it is 1 to"):
            checked_extents(1, wider)


def test_what_is_no_kernel_is_refused():
    device = cuda.jit(device=True)(lambda x: x)
    for what in (print, device, 3):
        with pytest.raises(TypeError, match="is no kernel: give a function under @cuda.jit"):
            tma.launcher(what, 1, 32)


def test_the_kernels_own_rules_hold(driver):
    @cuda.jit
    def kernel(n):
        PIPE.start().sync_consumers()

    with pytest.raises(ValueError, match="a kernel with a TilePipeline has one-dimensional blocks"):
        tma.launcher(kernel, 1, 48)(1)
    tma.launcher(kernel, 1, 512)(1)
    with pytest.raises(ValueError, match="so many registers that a block has at most 512 threads"):
        tma.launcher(kernel, 1, 544)(1)

    @cuda.jit
    @tma.cluster(2)
    def clustered(n):
        pass

    with pytest.raises(ValueError, match="3 blocks along x are not a multiple of 2"):
        tma.launcher(clustered, 3, 32)(1)
    with pytest.raises(ValueError, match=r"stands under @tma.cluster\(\(2, 1, 1\)\)"):
        tma.launcher(clustered, 8, 32, cluster=4)
    tma.launcher(clustered, 4, 32, cluster=2)(1)
    assert len(driver.launches) == 2


# ---------------------------------------------------------------------- the configuration


def test_cuda_core_is_told_grid_block_stream_cluster_and_dependence(driver):
    tma.launcher(kernel_of(0), (4, 6, 2), (32, 2), cluster=(2, 3), stream=77, pdl=True)()
    (launched,) = driver.launches
    assert launched.stream == "stream 77"
    assert launched.config == {
        "grid": (2, 2, 2),  # in clusters
        "cluster": (2, 3, 1),
        "block": (32, 2, 1),
        "is_cooperative": False,
        "programmatic_stream_serialization": True,
    }
    tma.launcher(kernel_of(0), 5, 32)()
    assert driver.launches[-1].stream == "stream 0"
    assert driver.launches[-1].config == {
        "grid": (5, 1, 1),
        "block": (32, 1, 1),
        "is_cooperative": False,
        "programmatic_stream_serialization": False,
    }


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 0),
        (5, 5),
        (SimpleNamespace(cuda_stream=9, ptr=1), 9),  # torch
        (SimpleNamespace(ptr=10), 10),  # CuPy
        (SimpleNamespace(handle=ctypes.c_void_p(11)), 11),  # numba
        (SimpleNamespace(handle=ctypes.c_void_p()), 0),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 12)), 12),
        (SimpleNamespace(stream=SimpleNamespace(handle=13)), 13),  # cuda.core's graph builder
    ],
)
def test_streams_of_every_library_have_a_handle(stream, handle):
    assert _streams.handle_of(stream) == handle


def test_a_stream_closed_after_preparation_is_refused(driver):
    stream = SimpleNamespace(handle=9, is_closed=False)
    launch = tma.launcher(kernel_of(0), 1, 32, stream=stream)
    launch()
    again = launch.bind()
    stream.is_closed = True
    for run in (launch, again):
        with pytest.raises(RuntimeError, match="its stream is closed: make one on another"):
            run()
    assert len(driver.launches) == 1


def test_what_the_driver_refuses_is_raised_with_a_hint(driver):
    launch = tma.launcher(kernel_of(1), 4, 32, stream=9)
    for run in (launch, launch, lambda _: launch.bind(1)()):
        driver.errors = ["CUDA_ERROR_INVALID_HANDLE: no such thing"]
        with pytest.raises(RuntimeError) as caught:
            run(1)
        assert str(caught.value) == (
            "launcher('kernel', grid=(4, 1, 1), block=(32, 1, 1), stream=9) failed: "
            "CUDA_ERROR_INVALID_HANDLE: no such thing (is its stream alive, and one of this "
            "device?)"
        )
    launch(2)
    assert len(driver.launches) == 4


def test_a_thread_without_a_context_gets_one(driver, monkeypatch):
    made = []
    monkeypatch.setattr(compiler, "make_context_current", lambda: made.append(1))
    launch = tma.launcher(kernel_of(1), 1, 32)
    launch(1)
    driver.sizes = [8]
    for n, run in enumerate((launch, lambda n: launch.bind(n)(), launch), 1):
        driver.errors = ["CUDA_ERROR_INVALID_CONTEXT: none"]
        run(5)
        assert len(made) == n
        assert [launched.packed for launched in driver.launches[-2:]] == [[b"\5" + bytes(7)]] * 2
    driver.errors = ["CUDA_ERROR_INVALID_CONTEXT: none"] * 2
    with pytest.raises(RuntimeError, match="INVALID_CONTEXT"):
        launch(5)


def test_a_launch_in_the_middle_of_a_launch_changes_nothing_of_it(driver, monkeypatch):
    nested = [2.5, 200]

    def interrupted(*given):
        if nested:  # as a finaliser, a signal or another thread would
            launch(nested.pop())
        driver(*given)

    monkeypatch.setattr(_prepared_launch, "launch", interrupted)
    launch = tma.launcher(kernel_of(1), 1, 32)
    nested, first = [], nested
    launch(1), launch(1.5), launch(1)
    driver.sizes, driver.launches, nested = [8], [], first
    launch(7)
    packed = [launched.packed[0] for launched in driver.launches]
    assert packed == [np.float64(2.5).tobytes(), b"\xc8" + bytes(7), b"\7" + bytes(7)]
    launch(8)
    assert driver.launches[-1].packed == [b"\x08" + bytes(7)]


def test_arguments_that_are_bound_stay(driver):
    launch = tma.launcher(kernel_of(1), 1, 32)
    bound = [launch.bind(n) for n in range(3)]
    driver.sizes = [8]
    launch(99)
    for again in (*bound, *bound):
        again()
    values = [launched.packed[0][0] for launched in driver.launches]
    assert values == [99, 0, 1, 2, 0, 1, 2]


# --------------------------------------------------------------------------- debug mode


def test_a_kernel_in_debug_mode_is_watched_at_each_launch(driver, monkeypatch):
    from numba_tma.backend.numba_cuda import guards

    pipe = tma.TilePipeline(2, x=TILE, debug=True)

    @cuda.jit
    def kernel(n):
        pipe.start().sync_consumers()

    watched = []

    def synchronize():
        watched.append(len(driver.launches))
        if len(watched) == 3:
            raise RuntimeError("fault")

    buffer = mock.Mock(check=mock.Mock(side_effect=lambda *error: None))
    monkeypatch.setattr(guards.debug, "mapped_buffer", lambda: buffer)
    monkeypatch.setattr(guards.cuda, "synchronize", synchronize)
    monkeypatch.setattr(guards, "_is_capturing", lambda stream: stream == 9)
    launch = tma.launcher(kernel, 1, 64, pdl=True)
    launch(1)
    launch.bind(1)()
    with pytest.raises(RuntimeError, match="fault"):
        launch(1)
    assert watched == [1, 2, 3]
    assert buffer.clear.call_count == 3
    with pytest.raises(RuntimeError, match="a stream that is being captured cannot be waited for"):
        tma.launcher(kernel, 1, 64, stream=9)(1)
    with pytest.raises(ValueError, match="a kernel with a TilePipeline"):
        tma.launcher(kernel, 1, 48)(1)


def test_what_only_numba_cuda_can_launch_goes_through_it(driver, monkeypatch):
    launched = []

    @cuda.jit(debug=True, opt=False)
    def kernel(n):
        pass

    launch = tma.launcher(kernel, (2, 3), 32)
    monkeypatch.setattr(
        "numba.cuda.dispatcher._Kernel.launch", lambda self, *given: launched.append(given)
    )
    launch(1)
    launch(2)
    launch.bind(3)()
    assert launched == [((n,), (2, 3, 1), (32, 1, 1), "stream 0") for n in (1, 2, 3)]
    launch(1.5)
    assert len(kernel.overloads) == 2
    for options in ({"pdl": True}, {"cluster": 2}):
        with pytest.raises(ValueError, match=r"cannot have cluster= or pdl=True, because it was"):
            tma.launcher(kernel, 2, 32, **options)(1)
    assert driver.launches == []


# --------------------------------------------------------------------- wrappers' launches


def test_a_wrapper_launches_again_for_arrays_at_the_same_place(driver, monkeypatch):
    from numba_tma.kernels._host import launch, memo

    kernel, prepared = kernel_of(3), []

    @memo.launched_again
    def wrapper(arrays, stream, numbers, option):
        (scale,) = numbers
        prepared.append(scale)
        if scale < 0:
            raise ValueError("negative")
        launch.launch(kernel, 4, 64, stream, *arrays, np.float32(scale))
        launch.launch(kernel, 8, 64, stream, *arrays, np.float32(scale + 1))

    monkeypatch.setattr(memo._driver, "current_context", lambda: context[0])
    context = [1]
    x, y, z = (device_array((6,), address=ADDRESS + i * 4096) for i in range(3))
    same = device_array((6,), address=ADDRESS)
    driver.sizes = [8] * 14 + [4]
    wrapper((x, y), None, (2.0,), "a")
    first = driver.launches[:]
    assert len(first) == 2 and len(prepared) == 1
    for arrays in ((x, y), (same, y)):
        wrapper(arrays, None, (2.0,), "a")
        again = driver.launches[-2:]
        assert [a.packed for a in again] == [f.packed for f in first]
        assert [a.config["grid"][0] for a in again] == [4, 8]
    assert len(prepared) == 1
    others = [((x, z), None), ((x, y), 9), ((y, x), None)]
    others += [((device_array((5,)), y), None), ((device_array((6,), np.int32), y), None)]
    for n, call in enumerate(others, 2):
        wrapper(*call, (2.0,), "a")
        assert len(prepared) == n
    wrapper((x, y), None, (2.0,), "b")
    context[0] = 2
    wrapper((x, y), None, (2.0,), "a")
    assert len(prepared) == len(others) + 3
    for _ in range(2):  # a mistake is not kept
        with pytest.raises(ValueError, match="negative"):
            wrapper((x, y), None, (-1.0,), "a")
    assert prepared[-2:] == [-1.0, -1.0]
    with pytest.raises(TypeError, match="host memory"):
        wrapper((x, np.zeros(6, np.float32)), None, (2.0,), "a")


def test_a_wrapper_forgets_the_oldest_call(driver, monkeypatch):
    from numba_tma.kernels._host import memo

    prepared = []
    monkeypatch.setattr(memo, "_MOST_CALLS", 2)
    wrapper = memo.launched_again(lambda arrays, stream, numbers, n: prepared.append(n))
    for n in (1, 2, 1, 3, 2, 3, 1):
        wrapper((), None, (), n)
    assert prepared == [1, 2, 3, 1]


def test_other_numbers_replace_those_of_the_last_call(driver, monkeypatch):
    from numba_tma.kernels._host import launch, memo

    kernel, prepared = kernel_of(1), []

    @memo.launched_again
    def wrapper(arrays, stream, numbers):
        prepared.append(repr(*numbers))
        launch.launch(kernel, 1, 32, stream, np.float32(*numbers))

    driver.sizes = [4]
    nans = float("nan"), float("nan")
    for number in (1.0, 1.0, 0.0, -0.0, -0.0, 1.0, *nans, np.float32(2), np.float32(2)):
        wrapper((), None, (number,))
        assert driver.launches[-1].packed[0] == np.float32(number).tobytes()
    assert prepared == ["1.0", "0.0", "-0.0", "1.0", "nan", "np.float32(2.0)"]
    monkeypatch.setattr(memo, "_MOST_CALLS", 2)
    one, other = ((device_array((6,), address=ADDRESS + i * 4096),) for i in range(2))
    wrapper(one, None, (5.0,))
    for number in range(8):
        wrapper(other, None, (float(number),))
    del prepared[:]
    wrapper(one, None, (5.0,))
    assert prepared == []


def test_what_a_graph_captured_is_kept(monkeypatch):
    from numba_tma.kernels._host import memo

    @memo.launched_again
    def wrapper(arrays, stream, numbers, nbytes):
        space = SimpleWorkspace(nbytes)
        workspaces.add(space)
        return [space]

    workspaces = weakref.WeakSet()
    monkeypatch.setattr(memo, "_MOST_BYTES", 100)
    monkeypatch.setattr(memo, "_captured", {})
    monkeypatch.setattr(_driver, "is_capturing", lambda stream: stream == 5)
    monkeypatch.setattr(_driver, "allocating_while_capturing", contextlib.nullcontext)
    for n, stream in ((10, None), (20, 5), (10, 5), (30, None), (10, 5), (40, 5), (70, 7)):
        wrapper((), stream, (), n)
    gc.collect()
    assert sorted(space.nbytes for space in workspaces) == [10, 20, 40, 70]


def test_a_wrapper_keeps_its_own_memory_up_to_a_limit(monkeypatch):
    from numba_tma.kernels._host import memo

    monkeypatch.setattr(_driver, "is_capturing", lambda stream: False)
    prepared, workspaces = [], weakref.WeakSet()

    @memo.launched_again
    def wrapper(arrays, stream, numbers, nbytes):
        prepared.append(nbytes)
        space = SimpleWorkspace(nbytes)
        workspaces.add(space)
        return [space]

    monkeypatch.setattr(memo, "_MOST_BYTES", 100)
    for n in (30, 40, 30, 30, 20, 30, 40, 50, 90):
        wrapper((), None, (), n)
    assert prepared == [30, 40, 20, 50, 90]
    gc.collect()
    assert [space.nbytes for space in workspaces] == [90]


class SimpleWorkspace:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_the_launcher_says_what_it_is():
    launch = tma.launcher(kernel_of(1), 4, 32, cluster=2, pdl=True)
    assert (launch.__name__, launch.__doc__) == (
        "kernel",
        "Launch: launcher('kernel', grid=(4, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1), "
        "pdl=True).",
    )
    with pytest.raises(TypeError, match=r"does not have a fixed number of arguments"):
        tma.launcher(cuda.jit(lambda *arguments: None), 1, 32)


@cuda.jit
def oddly_named(_other, _type, _encoding, _argument0, _run0):
    _other[0] = _argument0


def test_a_parameter_may_have_any_name(driver):
    launch = tma.launcher(oddly_named, 1, 32)
    for _ in range(2):
        launch(device_array(1), 1, 2.0, 3, 4)
        launch(_other=device_array(1), _type=1, _encoding=2.0, _argument0=3, _run0=4)
    assert len(driver.launches) == 4


def test_a_launcher_cannot_be_pickled_and_the_error_names_it():
    launch = tma.launcher(oddly_named, 1, 64)
    with pytest.raises(pickle.PicklingError, match=r"'oddly_named'.* make one in the"):
        pickle.dumps(launch)
    with pytest.raises(TypeError, match=r"'oddly_named'.* call tma.launcher in the other"):
        pickle.dumps(launch.bind)
