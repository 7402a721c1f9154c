"""Loaded kernels without a GPU: what is passed, and which arguments and files are refused."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

import numba_tma as tma
from numba_tma.backend.numba_cuda.images import compile_image
from numba_tma.host import exported_files
from numba_tma.host.exported_arguments import ExportedMap
from numba_tma.host.parameters import Parameters
from numba_tma.host.stored_launch import StoredLauncher
from tests.cpu.backend.test_compiler import hopper_that_loads_nothing
from tests.cpu.host.test_launcher import device_array
from tests.exported import (
    F32,
    I64,
    MAP,
    SCALE,
    TILE,
    exported,
    launched,
    machine_code,
    nothing,
    recording,
    scale,
)
from tests.recording_driver import Array

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gpu():
    """A driver that notes launches."""
    with recording() as driver:
        yield driver


@pytest.fixture(scope="module")
def scale_stem(tmp_path_factory):
    """The files of `scale`, which tests only read."""
    stem = tmp_path_factory.mktemp("exported") / "scale"
    tma.export(scale, SCALE, stem)
    return stem


def scale_arguments():
    x = tma.tensor_map(Array(1, (64, 32), "f4"), TILE)
    return x, Array(2, (64, 32), "f4"), 2.0, (8, 8)


# ------------------------------------------------------------------------------- launches


def test_a_loaded_kernel_is_launched_as_the_compiled_one(gpu, scale_stem):
    kernel = tma.load(scale_stem)
    x, y = Array(1, (64, 32), "f4"), Array(2, (64, 32), "f4")
    x_map = tma.tensor_map(x, TILE)
    launch = launched(gpu, kernel, x_map, y, 2, (8, 9), grid=(4, 2))
    with hopper_that_loads_nothing():
        image = compile_image(scale, SCALE)
    (loaded,) = gpu.loaded
    assert machine_code(loaded) == machine_code(image.code) and kernel.image.sizes == image.sizes
    assert (launch.grid, launch.block, launch.stream) == ((4, 2, 1), (64, 1, 1), 0)
    assert launch.packed[0] == x_map.encoded and launch.shared == 0
    words = [int.from_bytes(packed, "little") for packed in launch.packed[1:10]]
    assert words == [0, 0, 64 * 32, 4, 2 << 32, 64, 32, 128, 4]
    assert launch.packed[10:] == [np.float32(2).tobytes(), b"\x08\0\0\0", b"\x09" + bytes(7)]


def test_launchers_streams_and_configurations(gpu, scale_stem):
    kernel = tma.load(scale_stem)
    gpu.sizes[kernel.image.entry] = kernel.image.sizes
    arguments = scale_arguments()
    launch = tma.launcher(kernel, 8, 96, cluster=2, stream=17, pdl=True)
    launch(*arguments)
    launch.bind(*arguments)()
    first, second = gpu.launches
    assert first == second and (first.stream, first.cluster) == (17, [(2, 1, 1)])
    assert len(first.attributes) == 2 and len(gpu.loaded) == 1
    assert kernel[1, 64] is kernel[1, 64] is not kernel[1, 96]
    assert isinstance(kernel[1, 64], StoredLauncher)
    kernel[[1], 64, SimpleNamespace(cuda_stream=5)](*arguments)
    assert gpu.launches[-1].stream == 5


def test_requirements_are_checked(gpu, scale_stem):
    arguments = scale_arguments()
    with pytest.raises(ValueError, match=r"block \(48, 1, 1\): a kernel with a TilePipeline has"):
        tma.load(scale_stem)[1, 48](*arguments)
    assert not gpu.launches


@pytest.mark.parametrize(
    ("cc", "repair"),
    [((10, 0, "a"), "(9, 0, 'a')"), ((8, 0), "(9, 0, 'a')"), ((9, 0, "a"), None), ((9, 0), None)],
)
def test_a_cubin_of_another_gpu(gpu, tmp_path, cc, repair):
    kernel = exported(nothing, (I64,), tmp_path, cc=cc)
    if repair is None:
        launched(gpu, kernel, 1)
        return
    with pytest.raises(RuntimeError) as caught:
        launched(gpu, kernel, 1)
    assert f"GPU 0 (H200) has compute capability 9.0: export the kernel with cc={repair}" in str(
        caught.value
    )
    assert not gpu.loaded


def test_a_cubin_that_the_driver_refuses(gpu, scale_stem):
    gpu.refused = True
    kernel = tma.load(scale_stem)
    arguments = scale_arguments()
    with pytest.raises(RuntimeError, match="driver does not load .*scale.cubin: .*INVALID_IMAGE"):
        kernel[1, 64](*arguments)
    gpu.refused = False
    launched(gpu, kernel, *arguments)


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("dtype", "given", "passed"),
    [
        *(("int32", n, np.int32(n)) for n in (-5, np.int64(7), True, 3.0, np.float16(2))),
        *(("uint8", n, np.uint8(n)) for n in (0, 255, np.uint64(9))),
        *(("uint64", n, np.uint64(n)) for n in (2**64 - 1, np.int8(3))),
        *(("float32", n, np.float32(n)) for n in (1, 0.1, np.float64(0.1), True, np.inf)),
        *(("float16", n, np.float16(wanted)) for n, wanted in ((1.5, 1.5), (1e9, np.inf))),
        *(("bool", n, np.bool_(n)) for n in (True, 0, np.bool_(True))),
        ("float64", 0.1, np.float64(0.1)),
    ],
)
def test_a_number_is_converted(gpu, tmp_path, dtype, given, passed):
    kernel = exported(nothing, (getattr(types, {"bool": "boolean"}.get(dtype, dtype)),), tmp_path)
    assert launched(gpu, kernel, given).packed == [passed.tobytes()]


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        *(("int32", n) for n in (2**31, 1.5, np.nan, np.inf, "1", None, 1j, np.zeros(1))),
        *(("uint8", n) for n in (-1, 256, np.complex64(1))),
        *(("float32", n) for n in ("1", None, 1j, (1.0,))),
    ],
)
def test_a_number_that_is_none(gpu, tmp_path, dtype, given):
    kernel = exported(nothing, (getattr(types, dtype),), tmp_path)
    with pytest.raises(TypeError, match=rf"nothing\(\): x is .* was exported for: {dtype}$"):
        launched(gpu, kernel, given)


ARRAYS = {
    "C": F32[:, ::1],
    "F": F32[::1, :],
    "A": F32[:, :],
    "readonly": types.Array(F32, 2, "C", readonly=True),
    "vector": F32[::1],
    "bytes": types.uint8[:, ::1],
}


def strided(shape, strides):
    array = Array(1, shape, "f4")
    array.__cuda_array_interface__["strides"] = strides
    return array


def read_only():
    array = Array(1, (8, 8), "f4")
    array.__cuda_array_interface__["data"] = (1 << 32, True)
    return array


GIVEN = {
    "C": lambda: device_array((8, 8)),
    "F": lambda: device_array((8, 8), strides=(4, 32)),
    "A": lambda: device_array((8, 8), strides=(64, 4)),
    "protocol": lambda: Array(1, (8, 8), "f4"),
    "readonly": read_only,
    "vector": lambda: device_array((8,)),
    "one row": lambda: device_array((1, 8), strides=(999, 4)),
    "none": lambda: strided((0, 8), (999, 4)),
    "ints": lambda: device_array((8, 8), "i4"),
    "bytes": lambda: device_array((8, 8), "u1"),
}
FITS = {
    "C": {"C", "protocol", "one row", "none"},
    "F": {"F", "one row", "none"},
    "A": {"C", "F", "A", "protocol", "one row", "none"},
    "readonly": {"C", "protocol", "readonly", "one row", "none"},
    "vector": {"vector"},
    "bytes": {"bytes"},
}


@pytest.mark.parametrize("wanted", ARRAYS)
def test_arrays_fit_by_type_axes_and_order(gpu, tmp_path, wanted):
    kernel = exported(nothing, (ARRAYS[wanted],), tmp_path)
    fitting = set()
    for name, make in GIVEN.items():
        try:
            launched(gpu, kernel, make())
            fitting.add(name)
        except TypeError as error:
            assert "nothing(): x is a" in str(error) and "was exported for: array of" in str(error)
    assert fitting == FITS[wanted]


def test_arrays_of_other_types(gpu, tmp_path):
    for dtype, name in ((types.boolean, "?"), (types.complex64, "c8"), (types.float64, "f8")):
        kernel = exported(nothing, (dtype[::1],), tmp_path)
        launched(gpu, kernel, device_array((8,), name))
        with pytest.raises(TypeError, match="was exported for: array of"):
            launched(gpu, kernel, device_array((8,), "i2"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.zeros((8, 8), "f4"), r"nothing\(\): x is a numpy.ndarray in host memory"),
        (None, r"nothing\(\): x is None"),
        (3, r"nothing\(\): x is a int, which is no array"),
    ],
)
def test_what_is_no_device_array(gpu, tmp_path, given, text):
    kernel = exported(nothing, (F32[:, ::1],), tmp_path)
    with pytest.raises(TypeError, match=text):
        launched(gpu, kernel, given)


def test_maps_fit_by_kind(gpu, tmp_path):
    kernel = exported(nothing, (MAP,), tmp_path)
    for shape in ((64, 32), (999, 64)):
        one = tma.tensor_map(Array(1, shape, "f4"), TILE)
        assert launched(gpu, kernel, one).packed == [one.encoded]
    x = Array(1, (64, 64), "f4")
    wrong = {
        "Tile((16, 32), f32, NONE)": tma.tensor_map(x, tma.Tile((16, 32), "f32")),
        "Tile((8, 32), f32, B128)": tma.tensor_map(x, tma.Tile((8, 32), "f32", tma.Swizzle.B128)),
        "Tile((8, 32), i32, NONE)": tma.tensor_map(Array(1, (8, 32), "i4"), (8, 32)),
        "loads only": tma.tensor_map(
            device_array((8, 33), strides=(144, 4)), TILE
        ),
        "RaggedTensorMap(": tma.ragged_tensor_map(Array(1, (64, 32), "f4"), TILE),
        "a int": 3,
        "DeviceNDArray": device_array((8, 32)),
    }
    for name, argument in wrong.items():
        with pytest.raises(TypeError) as caught:
            launched(gpu, kernel, argument)
        assert "nothing(): x is a" in str(caught.value) and name in str(caught.value)
        assert str(caught.value).endswith("for: TensorMap(Tile((8, 32), f32, NONE))")


KINDS = {
    "ragged": lambda: tma.ragged_tensor_map(Array(1, (64, 32), "f4"), TILE),
    "gather": lambda: tma.gather_map(Array(1, (64, 32), "f4"), tma.Tile((4, 32), "f32")),
    "steps": lambda: tma.tensor_map(
        Array(1, (64, 640), "f4"), tma.Tile((8, 512), "f32"), element_strides=(2, 1)
    ),
    "folded": lambda: tma.tensor_map(
        Array(1, (64, 512), "f4"), tma.Tile((8, 64), "f32", tma.Swizzle.B128), fold=True
    ),
    "interleaved": lambda: tma.tensor_map(
        Array(1, (1, 4, 64, 4), "f4"), tma.Tile((1, 1, 8, 4), "f32"), interleave=16
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_maps_of_every_kind_fit_themselves(gpu, tmp_path, kind):
    one = KINDS[kind]()
    kernel = exported(nothing, (one,), tmp_path)
    assert launched(gpu, kernel, KINDS[kind]()).packed == [one.encoded]
    with pytest.raises(TypeError, match=r"x is a TensorMap\(Tile"):
        launched(gpu, kernel, tma.tensor_map(Array(1, (64, 32), "f4"), TILE))
    assert ("kernel_encode_x" in (tmp_path / "kernel.h").read_text()) == (kind == "steps")


@pytest.mark.parametrize(
    ("kind", "steps", "fold"),
    [
        ("ragged", [1, 1], False), ("gather", [1, 1], False), ("steps", [2, 1], False),
        ("folded", [1, 1], True), ("interleaved", [1, 1, 1, 1], False),
    ],
)  # fmt: skip
def test_the_file_of_a_map_says_how_its_tiles_are_moved(gpu, kind, steps, fold):
    one = KINDS[kind]()
    facts = ExportedMap.of(one, type(one)).facts
    assert (facts["element_strides"], facts["fold"]) == (steps, fold)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_map_lies_at_a_multiple_of_64_bytes_wherever_it_stands(gpu, place):
    given = [np.int8(1), 2.0]
    given.insert(place, tma.tensor_map(Array(1, (64, 32), "f4"), TILE))
    parameters = Parameters(given)
    addresses = (ctypes.c_void_p * 3).from_address(parameters.address)
    assert addresses[place] % 64 == 0 and parameters.sizes[place] == 128
    assert ctypes.string_at(addresses[place], 128) == given[place].encoded


def test_pointers_and_arrays_of_maps(gpu, tmp_path):
    kernel = exported(nothing, (types.CPointer(F32),), tmp_path)
    assert launched(gpu, kernel, 2**63 + 8).packed == [np.uint64(2**63 + 8).tobytes()]
    for wrong in (-1, 2**64, 1.0, None):
        with pytest.raises(TypeError, match=r"x is .*for: address of float32"):
            launched(gpu, kernel, wrong)
    maps = tma.TensorMapArray.__new__(tma.TensorMapArray)  # whose constructor needs a GPU
    maps.maps, maps.address, maps.numba_type = (KINDS["steps"](),), 4096, None
    kernel = exported(nothing, (maps,), tmp_path)
    assert launched(gpu, kernel, maps).packed == [np.uint64(4096).tobytes()]
    assert "CUdeviceptr x;" in (tmp_path / "kernel.h").read_text()
    with pytest.raises(TypeError, match="x is a numba_tma.*for: TensorMapArray of Tensor"):
        launched(gpu, kernel, maps.maps[0])
    maps.maps = (tma.tensor_map(Array(1, (64, 32), "f4"), TILE),)
    with pytest.raises(TypeError, match=r"x\[0\] is a TensorMap"):
        launched(gpu, kernel, maps)


def test_tuples_and_the_number_of_arguments(gpu, tmp_path):
    kernel = exported(nothing, (types.Tuple((I64, types.UniTuple(F32, 2))),), tmp_path)
    packed = launched(gpu, kernel, (1, (2, 3.0))).packed
    assert packed == [one.tobytes() for one in (np.int64(1), np.float32(2), np.float32(3))]
    with pytest.raises(TypeError, match=r"x\[1\]\[0\] is a str"):
        launched(gpu, kernel, (1, ("a", 3.0)))
    for wrong, text in (((1,), "a tuple of 1"), ([1, (2, 3)], "a list"), (1, "a int")):
        with pytest.raises(TypeError, match=rf"x is {text}, .*\(int64, \(float32, float32\)\)"):
            launched(gpu, kernel, wrong)
    with pytest.raises(TypeError, match=r"nothing\(\) takes 1 arguments \(x\), and is given 2"):
        launched(gpu, kernel, (1, (2, 3)), 4)


# ----------------------------------------------------------------- files that are refused


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="load: .*kernel.json does not exist: path is what"):
        tma.load(tmp_path / "kernel")
    tma.export(nothing, (I64,), tmp_path / "kernel")
    (tmp_path / "kernel.cubin").unlink()
    with pytest.raises(FileNotFoundError, match="load: .*kernel.cubin does not exist"):
        tma.load(tmp_path / "kernel")
    (tmp_path / "kernel.cubin").mkdir()
    with pytest.raises(OSError, match="load: .*kernel.cubin cannot be read: "):
        tma.load(tmp_path / "kernel")


def changed(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


DAMAGES = {
    "empty": lambda f: f.write_text(""),
    "garbage": lambda f: f.write_bytes(b"\xff\x00garbage"),
    "half": lambda f: f.write_text(f.read_text()[: f.stat().st_size // 2]),
    "list": lambda f: f.write_text("[1, 2]"),
    "number": lambda f: f.write_text("3"),
    "deep": lambda f: f.write_text("[" * 100_000),
    "no checksum": lambda f: changed(f, lambda d: d.pop("checksum")),
    "another version": lambda f: changed(f, lambda d: d.update(format="numba_tma export 0")),
    "another size": lambda f: changed(f, lambda d: d["sizes"].__setitem__(0, 4)),
    "another type": lambda f: changed(f, lambda d: d["types"][0].update(dtype="float32")),
    "another target": lambda f: changed(f, lambda d: d.update(target="100a")),
    "another cubin": lambda f: f.with_suffix(".cubin").write_bytes(b"\x7fELF"),
    "changed cubin": lambda f: f.with_suffix(".cubin").write_bytes(
        f.with_suffix(".cubin").read_bytes()[:-1] + b"\x01"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file(tmp_path, damage):
    tma.export(nothing, (I64,), tmp_path / "kernel")
    DAMAGES[damage](tmp_path / "kernel.json")
    with pytest.raises(ValueError, match="load: .*kernel.json is not what export wrote: .*again$"):
        tma.load(tmp_path / "kernel")


@pytest.mark.parametrize("change", ["types", "requirements", "unknown type", "fields"])
def test_data_of_another_form_with_a_right_checksum(tmp_path, change):
    tma.export(nothing, (I64,), tmp_path / "kernel")

    def damage(data):
        data.pop("checksum")
        if change in data:
            del data[change]
        data.setdefault("types", [{}])[0].update(
            {"unknown type": {"type": "object"}, "fields": {"eval": "1"}}.get(change, {})
        )
        code = (tmp_path / "kernel.cubin").read_bytes()
        data["checksum"] = exported_files._checksum(data, code)

    changed(tmp_path / "kernel.json", damage)
    with pytest.raises(ValueError, match="is not what export wrote"):
        tma.load(tmp_path / "kernel")


# -------------------------------------------------------------------------- without Numba


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import numba_tma as tma
from tests.recording_driver import ATTRIBUTES, Array, RecordingDriver

with RecordingDriver().installed() as driver:
    kernel = tma.load(sys.argv[1])
    driver.sizes[kernel.image.entry] = kernel.image.sizes
    x = tma.tensor_map(Array(1, (64, 32), "f4"), tma.Tile((8, 32), "f32"))
    kernel[4, 64](x, Array(2, (64, 32), "f4"), 2.0, (8, 9))
    tma.launcher(kernel, 4, 64)(x, Array(2, (64, 32), "f4"), 2.0, (8, 9))
first, second = driver.launches
assert first == second and len(first.packed) == len(kernel.image.sizes)
loaded = [name for name, module in sys.modules.items() if module is not None]
compilers = ("numba.", "llvmlite", "cuda.core", "numba_tma.backend.", "numba_tma.simulator")
print([name for name in loaded if name.startswith(compilers)])
"""


def test_a_process_without_numba_launches(scale_stem):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, str(scale_stem)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['numba_tma.backend.interface']"
