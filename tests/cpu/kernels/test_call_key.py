"""What tells a repeated call from another one, and how little is done to find out."""

import sys
from pathlib import Path

import numpy as np
import pytest

import numba_tma
from numba_tma.host.array_interface import NoDeviceArray
from numba_tma.kernels._host import outputs
from numba_tma.kernels._host.call_key import key_reader
from numba_tma.kernels._host.memo import _Call
from numba_tma.kernels.pointwise import add
from numba_tma.kernels.pointwise.api import ADD
from numba_tma.kernels.rows import rmsnorm, softmax
from tests.cpu.host.test_launcher import device_array
from tests.cpu.host.test_stored_launch import gpu  # noqa: F401
from tests.cpu.host.test_tensor_map import Tensor


class Parameter(Tensor):
    """A class of the same library, with arrays of its own."""


def key_of(*arrays, device=0, stream=0, options=()):
    return key_reader(arrays)(device, stream, options, arrays)


def changed(**attributes):
    """Return a tensor that differs in attributes, which a library may change in place."""
    tensor = Tensor((8, 64))
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def test_tensors_at_one_place_have_one_key():
    same = key_of(Tensor((8, 64)), None), key_of(Tensor((8, 64)), None)
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])


OTHERS = {
    "address": lambda: key_of(changed(_address=4096), None),
    "shape": lambda: key_of(changed(shape=(64, 8)), None),
    "rank": lambda: key_of(changed(shape=(8, 64, 1), _strides=(64, 1, 1)), None),
    "strides": lambda: key_of(changed(_strides=(128, 1)), None),
    "type": lambda: key_of(Tensor((8, 64), np.float16), None),
    "host": lambda: key_of(changed(is_cuda=False), None) or pytest.fail("no key"),
    "device": lambda: key_of(Tensor((8, 64)), None, device=1),
    "stream": lambda: key_of(Tensor((8, 64)), None, stream=9),
    "options": lambda: key_of(Tensor((8, 64)), None, options=("bf16",)),
    "place": lambda: key_of(None, Tensor((8, 64))),
    "library": lambda: key_of(device_array((8, 64), address=Tensor((8, 64)).data_ptr()), None),
    "another array": lambda: key_of(Tensor((8, 64)), Tensor((8, 64))),
}


@pytest.mark.parametrize("other", [name for name in OTHERS if name != "host"])
def test_keys_differ_in(other):
    assert OTHERS[other]() != key_of(Tensor((8, 64)), None)


def test_a_tensor_that_moved_to_the_host_has_another_key():
    tensor = Tensor((8, 64))
    read = key_reader((tensor,))
    before = read(0, 0, (), (tensor,))
    tensor.is_cuda = False
    assert read(0, 0, (), (tensor,)) not in (before, None)


def test_code_for_some_classes_reads_no_others():
    read = key_reader((Tensor((8, 64)), None))
    for other in [(Parameter((8, 64)), None), (Tensor((8, 64)),) * 2, (None, None), (), (None,)]:
        assert read(0, 0, (), other) is None
        assert key_reader(other)(0, 0, (), other) is not None


def test_what_is_no_array_is_refused():
    with pytest.raises(NoDeviceArray, match="host memory"):
        key_reader((Tensor((8, 64)), np.zeros(3)))
    with pytest.raises(NoDeviceArray, match="a tensor on 'cpu'"):
        key_reader((changed(is_cuda=False, device="cpu"),))


class Written(float):
    """A number that counts how often it is written."""

    count = 0

    def __repr__(self):
        Written.count += 1
        return super().__repr__()


def test_numbers_that_are_the_same_objects_are_not_written():
    number, nan = Written(2.0), float("nan")
    call = _Call((number, nan), repr((number, nan)), None)
    Written.count = 0
    assert call.has((number, nan)) and Written.count == 0
    assert call.has((Written(2.0), float("nan"))) and Written.count == 1
    assert not call.has((number,)) and not call.has((number, nan, nan))
    assert not _Call((0.0,), "(0.0,)", None).has((-0.0,))


# --------------------------------------------------------------------------- new results


@pytest.fixture
def made(monkeypatch):
    """Let the tensors have a library of the name torch, and note what is made like what."""
    noted = []

    class torch:
        @staticmethod
        def empty_like(tensor):
            noted.append(tensor)
            return Tensor(tensor.shape, address=1 << 30)

    imported = outputs.importlib.import_module
    modules = {"torch": torch}
    monkeypatch.setattr(
        outputs.importlib, "import_module", lambda name: modules.get(name) or imported(name)
    )
    monkeypatch.setattr(Tensor, "__module__", "torch")
    monkeypatch.setattr(outputs, "_likes", {})
    return noted


def test_a_new_result_is_made_by_the_library_of_the_array(made):
    x = Tensor((8, 64))
    for _ in range(2):
        out = outputs.empty_like("f", "x", x)
        assert made.pop() is x and out.data_ptr() == 1 << 30
    with pytest.raises(TypeError, match=r"f\(\): x is a tensor on 'cpu'"):
        outputs.empty_like("f", "x", Tensor((8, 64), device="cpu"))
    assert made == []


@pytest.mark.parametrize("shapes, like", [
    ([(8, 64), (8, 64)], 0), ([(64,), (8, 64)], 1), ([(8, 1), (8, 64)], 1), ([(8, 64), (1,)], 0),
])  # fmt: skip
def test_a_new_result_is_like_the_first_array_of_its_shape(made, shapes, like):
    arrays = tuple(map(Tensor, shapes))
    ADD._new(arrays, None)
    assert made == [arrays[like]]


def test_arrays_that_do_not_fit_together_are_named_before_a_result_is_made(made):
    with pytest.raises(ValueError, match=r"shapes \(8, 64\) and \(3,\) cannot be broadcast"):
        ADD._new((Tensor((8, 64)), Tensor((3,))), None)
    assert made == []


# ------------------------------------------------------------------ what a repeated call does

PACKAGE = str(Path(numba_tma.__file__).parent)


class Contiguous(Tensor):
    """A tensor that calls nothing of the package to say so."""

    def is_contiguous(self):
        return True


X, Y = (Contiguous((64, 1024), address=i << 32) for i in (1, 2))
W = Contiguous((1024,), address=3 << 32)
REPEATED = {
    "add": (lambda: add(X, X, out=Y), ["add", "compute"]),
    "softmax": (lambda: softmax(X, out=Y), ["softmax", "_run"]),
    "rmsnorm": (lambda: rmsnorm(X, W, out=Y), ["rmsnorm"]),
}


@pytest.mark.parametrize("name", REPEATED)
def test_the_functions_that_a_repeated_call_enters(gpu, monkeypatch, name):  # noqa: F811
    """Each is a tenth of a microsecond of a call that should take five."""
    monkeypatch.setattr(
        "numba_tma.kernels.pointwise.api.queue_counter", lambda: device_array((1,), np.uint32)
    )
    call, own = REPEATED[name]
    call()
    call()
    entered = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith((PACKAGE, "<string>")):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    has = ["has"] * (name != "add")  # a number
    assert entered == [*own, "call", "current_context", "read", *has, "launch"]
    first, second, third = gpu.launches
    assert first == second == third
