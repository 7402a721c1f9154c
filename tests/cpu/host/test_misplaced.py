"""Memory that the current GPU cannot access is named before a kernel reads it."""

import pytest
from cuda.bindings import driver

import numba_tma as tma
from numba_tma.host.driver import misplaced
from numba_tma.host.encoding import encode
from numba_tma.kernels.pointwise import add

SUCCESS, REFUSED = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_VALUE
FREED = (
    "lies at 0x10000, where CUDA has no memory: it was freed or never allocated; keep the array "
    "alive"
)
ELSEWHERE = (
    "lies on {}, and kernels on the current GPU, 0, cannot access it: make its GPU current "
    "(numba.cuda.gpus[i], torch.cuda.device(i)), enable peer access, or copy the array"
)


class Memory:
    """A driver of GPU 0: what it knows of the address of an array."""

    def __init__(self, monkeypatch):
        self.accessible, self.context, self.pageable = False, None, 0
        self.current = [0]  # contexts; that of GPU i is i + 1 in memory's answers
        monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: (SUCCESS, self.current[-1]))
        monkeypatch.setattr(driver, "cuCtxPushCurrent", self.push)
        monkeypatch.setattr(driver, "cuCtxPopCurrent", self.current.pop)
        monkeypatch.setattr(driver, "cuPointerGetAttribute", self.pointer)
        monkeypatch.setattr(driver, "cuDeviceGetAttribute", self.device)

    def pointer(self, which, address):
        if which.name.endswith("DEVICE_POINTER"):
            return (SUCCESS, address) if self.accessible else (REFUSED, None)
        assert which.name.endswith("CONTEXT")
        return (REFUSED, None) if self.context is None else (SUCCESS, self.context)

    def push(self, context):
        self.current.append(context - 1)
        return (SUCCESS,)

    def device(self, which, device):
        number = {"MAJOR": 9, "MINOR": 0, "ACCESS": self.pageable}[which.name.rpartition("_")[2]]
        return SUCCESS, number


class Array:
    def __init__(self, shape=(32, 32)):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (0x10000, False), "version": 3,
        }  # fmt: skip


@pytest.fixture
def memory(monkeypatch):
    return Memory(monkeypatch)


def test_accessible_memory_of_another_gpu(memory):
    memory.accessible, memory.context = True, 2
    assert misplaced(0x10000) == ""


@pytest.mark.parametrize(("context", "owner"), [(2, "GPU 1"), (0, "another GPU")])
def test_memory_of_another_gpu(context, owner, memory):
    """Memory that is mapped by hand has no context."""
    memory.context = context
    assert misplaced(0x10000) == ELSEWHERE.format(owner)
    assert memory.current == [0]


def test_freed_memory(memory):
    assert misplaced(0x10000) == FREED


def test_a_gpu_that_accesses_all_memory_of_the_process(memory):
    memory.pageable = 1
    assert misplaced(0x10000) == ""
    memory.context = 2
    assert misplaced(0x10000) == ELSEWHERE.format("GPU 1")


def test_without_a_context_nobody_asks(memory, monkeypatch):
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: (REFUSED, None))
    assert misplaced(0x10000) == ""


CALLS = {
    "tensor_map: 1 rule is broken:\n  1. array ": lambda: tma.tensor_map(Array(), (8, 32)),
    "im2col_map: 1 rule is broken:\n  1. array ": lambda: tma.im2col_map(
        Array((2, 9, 8, 16)), (8, 8)
    ),
    "add(): x ": lambda: add(Array(), Array(), out=Array()),
}


@pytest.mark.parametrize("subject", CALLS)
def test_who_says_so(subject, memory):
    with pytest.raises(ValueError) as caught:
        CALLS[subject]()
    assert str(caught.value).startswith(subject + FREED)


@pytest.fixture
def x(memory, monkeypatch):
    """Return a map whose array was accessible when it was made."""
    monkeypatch.setattr(
        driver, "cuTensorMapEncodeTiled", lambda *a: (SUCCESS, driver.CUtensorMap())
    )
    memory.accessible = True
    x = tma.tensor_map(Array(), (8, 32))
    memory.accessible = False
    yield x
    encode.cache_clear()


def test_a_map_of_another_address(x):
    with pytest.raises(ValueError) as caught:
        x.replace_address(Array())
    assert str(caught.value) == "replace_address: array " + FREED


def test_a_ragged_map(x):
    with pytest.raises(
        ValueError, match=r"ragged_tensor_map: 1 rule is broken:\n  1. array lies at"
    ):
        tma.ragged_tensor_map(Array(), (8, 32), axis=0)
