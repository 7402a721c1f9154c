"""What tells a repeated call from another one, and how little is done to find out."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numba_tma
from numba_tma.host.array_interface import NoDeviceArray
from numba_tma.kernels._host import call_key, launch, outputs
from numba_tma.kernels._host.call_key import CallForm, form_reader, no_arrays
from numba_tma.kernels._host.memo import _Call, launched_again
from numba_tma.kernels.pointwise import add, api
from numba_tma.kernels.pointwise.api import ADD
from numba_tma.kernels.rows import launching, rmsnorm, softmax
from tests.cpu.host import test_tensor_map
from tests.cpu.host.test_launcher import device_array
from tests.cpu.host.test_stored_launch import gpu  # noqa: F401
from tests.cpu.host.test_tensor_map import Tensor


class Parameter(Tensor):
    """A class of the same library, with arrays of its own."""


def key_of(*arrays, device=0, stream=0, options=()):
    return device, stream, options, *form_reader(arrays)(arrays)


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
    read = form_reader((tensor,))
    before = read((tensor,))
    tensor.is_cuda = False
    assert read((tensor,)) not in (before, None)


def test_arrays_that_differ_in_their_place_alone_have_one_form():
    for make in (Tensor, device_array):
        arrays = make((8, 64)), make((8, 64), address=4096)
        here, there = (form_reader((array,))((array,)) for array in arrays)
        assert here[0] == there[0] and here[1] != there[1] == (4096,)


def test_code_for_some_classes_reads_no_others():
    read = form_reader((Tensor((8, 64)), None))
    for other in [(Parameter((8, 64)), None), (Tensor((8, 64)),) * 2, (None, None), (), (None,)]:
        assert read(other) is None
        assert form_reader(other)(other) is not None


def test_what_is_no_array_is_refused():
    with pytest.raises(NoDeviceArray, match="host memory"):
        form_reader((Tensor((8, 64)), np.zeros(3)))
    with pytest.raises(NoDeviceArray, match="a tensor on 'cpu'"):
        form_reader((changed(is_cuda=False, device="cpu"),))


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
    ADD._new((None, *arrays), None, None)
    assert made == [arrays[like]]


def test_arrays_that_do_not_fit_together_are_named_before_a_result_is_made(made):
    with pytest.raises(ValueError, match=r"shapes \(8, 64\) and \(3,\) cannot be broadcast"):
        ADD._new((None, Tensor((8, 64)), Tensor((3,))), None, None)
    assert made == []


# ------------------------------------------------------------------ what a repeated call does

rows_softmax = sys.modules[softmax.__module__]
PACKAGE = str(Path(numba_tma.__file__).parent)


class Contiguous(Tensor):
    """A tensor that calls nothing of the package to say so."""

    def is_contiguous(self):
        return True


X, Y = (Contiguous((64, 1024), address=i << 32) for i in (1, 2))
W = Contiguous((1024,), address=3 << 32)
REPEATED = {
    "add": (lambda: add(X, X, out=Y), ["add", "compute"]),
    "softmax": (lambda: softmax(X, out=Y), ["softmax"]),
    "rmsnorm": (lambda: rmsnorm(X, W, out=Y), ["rmsnorm"]),
}


@pytest.fixture
def entered(gpu, monkeypatch):  # noqa: F811
    """Return a function that makes a call, and the names of the package's functions it enters."""
    monkeypatch.setattr(
        "numba_tma.kernels.pointwise.api.queue_counter", lambda: device_array((1,), np.uint32)
    )

    def names_in(call):
        names = []

        def note(frame, event, argument):
            if event == "call" and frame.f_code.co_filename.startswith((PACKAGE, "<string>")):
                names.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return names

    return names_in


@pytest.mark.parametrize("name", REPEATED)
def test_the_functions_that_a_repeated_call_enters(gpu, entered, name):  # noqa: F811
    """Each is a tenth of a microsecond of a call that should take five."""
    call, own = REPEATED[name]
    call()
    call()
    has = ["has"] * (name != "add")  # a number
    found = ["no_arrays", "no_arrays", "find", "with_result", "read", "form_of", "nearest"]
    names = entered(call)
    assert names[: len(own) + 9] == [*own, "call", "current_context", *found]
    assert names[-1 - len(has) :] == [*has, "launch"]
    assert len({str(launch) for launch in gpu.launches}) == 1


# ------------------------------------------------------------ tensors that torch itself compares


class TensorGuards:
    """Compares tensors as torch's class does."""

    made = mode = 0

    def __init__(self, *tensors, dynamic_dims_sizes, dynamic_dims_strides):
        assert dynamic_dims_sizes is dynamic_dims_strides is None
        type(self).made += 1
        self._mode = self.mode
        self._forms = [*map(self._form, tensors)]

    def check(self, *tensors):
        assert len(tensors) == len(self._forms)
        if self._mode != self.mode or len({*map(id, tensors)}) < len(tensors):
            return False
        return [*map(self._form, tensors)] == self._forms

    @staticmethod
    def _form(array):
        if not isinstance(array, Tensor):
            return type(array)
        return type(array), array.shape, array.stride(), array.dtype, array.device


class Torchs(Tensor):
    """A tensor with what results are compared by."""

    requires_grad = False

    def get_device(self):
        return int(self.device.partition(":")[2])


Torchs.__module__ = "torch"


@pytest.fixture
def torch(monkeypatch, gpu):  # noqa: F811
    """Put a torch in its place that compares tensors and makes them, each at a place of its own."""
    monkeypatch.setattr(api, "ADD", api.Pointwise(api._add, "add", names=["x", "y"]))
    run = launching.normaliser(rows_softmax.SOFTMAX, "x", "out", "logsumexp")
    monkeypatch.setattr(rows_softmax, "_softmax", run)
    for kept in (api.unit_kernel, launching.rows_in_registers, launching.prepared):
        kept.cache_clear()
    launch._launcher.cache_clear()
    made = iter(range(1, 1000))

    def empty(shape, strides, dtype):
        np_dtype = next(k for k, v in test_tensor_map.TORCH_DTYPES.items() if v is dtype)
        device, address = module.device, (1 << 40) + (next(made) << 20)
        return Torchs(shape, np_dtype, strides, address=address, device=device)

    def empty_like(tensor):
        module.liked += 1
        address = (1 << 42) + (next(made) << 20)
        return Torchs(tensor.shape, np.float32, address=address, device=tensor.device)

    guards = SimpleNamespace(TensorGuards=TensorGuards, _empty_strided_cuda=empty)
    module = SimpleNamespace(
        _C=SimpleNamespace(_dynamo=SimpleNamespace(guards=guards)),
        **{"guards": guards, "empty_like": empty_like, "device": "cuda:0", "liked": 0},
        Tensor=Torchs,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(outputs, "_likes", {})
    monkeypatch.setattr(TensorGuards, "made", 0)
    return module


def tensors(count, shape=(64, 1024), first=1):
    return [Torchs(shape, address=i << 32) for i in range(first, first + count)]


def test_torch_compares_what_it_compared_before(torch, gpu, entered):  # noqa: F811
    x, y, out = tensors(3)
    for _ in range(2):
        add(x, y, out=out)
    names = ["add", "compute", "call", "current_context", "near", "launch"]
    assert entered(lambda: add(x, y, out=out)) == names
    assert len(gpu.launches) == 3 and TensorGuards.made == 1
    assert len({str(launch) for launch in gpu.launches}) == 1


def test_calls_of_two_forms_by_turns_are_both_known(torch, gpu, entered):  # noqa: F811
    large, small = tensors(3), tensors(3, (8, 8), first=5)
    for arrays in (large, small) * 2:
        add(*arrays[:2], out=arrays[2])
    for arrays in (large, small):
        names = entered(lambda given=arrays: add(*given[:2], out=given[2]))
        assert "find" not in names and names.count("near") <= 2
    assert TensorGuards.made == 2


def addresses(launch):
    return [int.from_bytes(p, "little") for p in launch.packed if len(p) == 8]


def test_another_call_is_not_taken_for_the_last(torch, gpu):  # noqa: F811
    """Whatever differs: a place, a shape, strides, a class, an argument, or which are the same."""
    x, y, out = tensors(3)
    add(x, y, out=out)
    other, small, small_out = *tensors(1, first=9), *tensors(2, (8, 8), first=10)
    turned = Torchs((64, 1024), strides=(1028, 1), address=12 << 32)
    own = Parameter((64, 1024), address=13 << 32)
    for arrays, count in (
        ((x, other, out), 2), ((x, y, other), 3), ((x, x, out), 4), ((x, x, x), 5), ((x, y, y), 6),
        ((small, small, small_out), 7), ((x, turned, out), 8), ((own, y, out), 9),
        ((x, y, out), 9), ((x, x, out), 9), ((own, y, out), 9), ((small, small, small_out), 9),
    ):  # fmt: skip
        add(arrays[0], arrays[1], out=arrays[2])
        assert {a.data_ptr() for a in arrays} <= {*addresses(gpu.launches[-1])}
        assert len({str(launch) for launch in gpu.launches}) == count


@pytest.mark.parametrize("new", [None, lambda arrays: pytest.fail("all arrays were given")])
def test_a_call_at_other_addresses_is_prepared_with_its_own_arrays(torch, new):
    """The last array was None where a function returns no new result, and attention unscaled."""
    given = []

    @launched_again("scaled", "x", "out", "scale", new=new)
    def scaled(arrays, stream, numbers):
        given.append(arrays)

    calls = [tuple(tensors(3, first=first)) for first in (1, 11, 21)]
    for arrays in calls:
        result = scaled(arrays, None, ())
        assert result is (arrays[1] if new else None)
    assert [[*map(id, arrays)] for arrays in given] == [[*map(id, arrays)] for arrays in calls]


def test_a_tensor_that_was_changed_in_place_is_another(torch, gpu):  # noqa: F811
    x, y, out = tensors(3)
    for _ in range(2):
        add(x, y, out=out)
    x.shape = x.shape[::-1]
    with pytest.raises(ValueError, match="cannot be broadcast"):
        add(x, y, out=out)
    x.shape, x._address = x.shape[::-1], 77 << 32
    add(x, y, out=out)
    assert x.data_ptr() in addresses(gpu.launches[-1])
    x.is_cuda, x.device = False, "cpu"
    with pytest.raises(TypeError, match="a tensor on 'cpu'"):
        add(x, y, out=out)


@pytest.mark.parametrize("given", [np.zeros(3), 3.0, None])
def test_what_is_no_array_is_refused_after_a_call(torch, gpu, given):  # noqa: F811
    x, y, out = tensors(3)
    add(x, y, out=out)
    with pytest.raises(TypeError, match=r"add\(\)"):
        add(given, y, out=out)


def test_a_new_result_is_made_without_a_look_at_it(torch, gpu, entered):  # noqa: F811
    x, y, _ = tensors(3)
    results = [add(x, y)]
    names = []
    for _ in range(3):
        names += [entered(lambda: results.append(add(x, y)))]
    assert torch.liked == 1 and len({out.data_ptr() for out in results}) == 4
    for out, launched in zip(results, gpu.launches, strict=True):
        assert (out.shape, out.stride(), out.dtype) == (x.shape, x.stride(), x.dtype)
        assert {x.data_ptr(), y.data_ptr(), out.data_ptr()} <= {*addresses(launched)}
    assert names[0][:5] == ["add", "compute", "call", "current_context", "near"]
    assert "find" not in names[0]


def test_a_result_is_made_where_the_arrays_are(torch, gpu):  # noqa: F811
    x, *_ = tensors(3)
    for device in ("cuda:0", "cuda:0", "cuda:1"):  # torch's current one
        torch.device = device
        assert softmax(x).device == "cuda:0"
    assert torch.liked == 2


def test_a_torch_that_makes_results_otherwise(torch, gpu):  # noqa: F811
    torch.device = "cuda:1"
    x, *_ = tensors(3)
    for _ in range(3):
        assert softmax(x).device == "cuda:0"
    assert torch.liked == 3


@pytest.mark.parametrize("change", [{"Tensor": Tensor}, {}])
def test_a_torch_whose_results_are_of_another_kind(torch, gpu, monkeypatch, change):  # noqa: F811
    vars(torch).update(change)
    if not change:
        monkeypatch.setattr(Torchs, "requires_grad", True)
    x, *_ = tensors(3)
    results = {softmax(x).data_ptr() for _ in range(3)}
    assert torch.liked == 3 == len(results)


@pytest.mark.parametrize("name", ["TensorGuards", "_empty_strided_cuda"])
def test_a_torch_without(torch, gpu, name):  # noqa: F811
    delattr(torch.guards, name)
    x, y, out = tensors(3)
    for _ in range(2):
        add(x, y, out=out)
        assert add(x, y).shape == out.shape
    assert torch.liked == 2
    assert [x.data_ptr() in addresses(launch) for launch in gpu.launches] == [True] * 4


def test_a_torch_whose_mode_changes_is_asked_so_often(torch, gpu, monkeypatch):  # noqa: F811
    """Within a mode of torch, such as inference, tensors are others: they are compared anew."""
    x, y, out = tensors(3)
    for mode in range(40):
        monkeypatch.setattr(TensorGuards, "mode", mode)
        add(x, y, out=out)
    assert len({str(launch) for launch in gpu.launches}) == 1
    assert TensorGuards.made == call_key._MOST_NEAR


def test_a_form_without_tensors_of_torch_is_not_compared():
    form, array = CallForm(), device_array((8, 64))
    assert form.nearest((no_arrays,), (array,), None, -1) is no_arrays
    assert no_arrays(0, 0, (), (array,)) is None
