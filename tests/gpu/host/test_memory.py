"""Freed memory and memory of another GPU are named before a kernel accesses them."""

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.pointwise import add
from tests.gpu.worker import on_gpu


class Array:
    """Memory that its owner may free while this says that it is there."""

    def __init__(self, owner):
        self.__cuda_array_interface__ = dict(owner.__cuda_array_interface__)


def accesses_all_memory():
    which = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
    return bool(driver.cuDeviceGetAttribute(which, cuda.get_current_device().id)[1])


def refusals(array):
    """Return what a map and a function without maps say of an array."""
    texts = []
    for call in (lambda: tma.tensor_map(array, (8, 32)), lambda: add(array, array, out=array)):
        with pytest.raises(ValueError) as caught:
            call()
        texts.append(str(caught.value))
    return texts


@on_gpu
def freed():
    error, address = driver.cuMemAlloc(64 << 20)
    assert not error
    array = Array(cuda.to_device(np.zeros((32, 32), np.float32)))
    array.__cuda_array_interface__["data"] = (int(address), False)
    tma.tensor_map(array, (16, 32))
    driver.cuMemFree(address)
    return refusals(array) if not accesses_all_memory() else []


def test_freed_memory():
    texts = freed()
    if not texts:
        pytest.skip("this GPU accesses all memory of the process, and the driver knows no other")
    for text in texts:
        assert "where CUDA has no memory: it was freed or never allocated" in text


@on_gpu
def elsewhere():
    with cuda.gpus[1]:
        array = cuda.to_device(np.zeros((32, 32), np.float32))
    cuda.current_context()  # that of GPU 0: Numba may leave none behind a first `with`
    texts = refusals(array)
    with cuda.gpus[1]:
        add(array, array)
        tma.tensor_map(array, (8, 32))
        cuda.synchronize()
        other = cuda.current_context()
    (error,) = driver.cuCtxEnablePeerAccess(driver.CUcontext(int(other.handle)), 0)
    assert not error
    tma.tensor_map(array, (8, 32))
    return texts


def checked(returned):
    error, *results = returned
    assert not error, error
    return results[0] if results else None


def mapped_by_hand(nbytes):
    """Return an address of the driver's virtual memory management, as PyTorch's segments have."""
    kind = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    properties = driver.CUmemAllocationProp()
    properties.type, properties.location.type, properties.location.id = kind, place, 0
    unit = checked(driver.cuMemGetAllocationGranularity(properties, least))
    nbytes = -(-nbytes // unit) * unit
    address = checked(driver.cuMemAddressReserve(nbytes, unit, 0, 0))
    memory = checked(driver.cuMemCreate(nbytes, properties, 0))
    checked(driver.cuMemMap(address, nbytes, 0, memory, 0))
    access = driver.CUmemAccessDesc()
    access.location.type, access.location.id = place, 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    checked(driver.cuMemSetAccess(address, nbytes, [access], 1))
    return int(address)


@on_gpu
def doubled_in(kind):
    """Return whether a sum is right in memory of a kind that the GPU can access."""
    example = cuda.to_device(np.zeros((32, 32), np.float32))
    if kind in ("managed", "mapped"):
        array = getattr(cuda, f"{kind}_array")((32, 32), np.float32)
    else:
        array = Array(example)
        nbytes = 32 * 32 * 4
        address = (
            mapped_by_hand(nbytes) if kind == "virtual" else
            int(checked(driver.cuMemAllocAsync(nbytes, 0)))
        )  # fmt: skip
        array.__cuda_array_interface__["data"] = (address, False)
    ones = cuda.to_device(np.ones((32, 32), np.float32))
    add(ones, ones, out=array)
    tma.tensor_map(array, (8, 32))
    add(array, ones, out=example)
    return bool((example.copy_to_host() == 3).all())


@pytest.mark.parametrize("kind", ["managed", "mapped", "pool", "virtual"])
def test_every_other_kind_of_memory_is_taken(kind):
    assert doubled_in(kind)


@on_gpu
def gpus():
    return len(cuda.gpus)


def test_memory_of_another_gpu():
    if gpus() < 2:
        pytest.skip("needs two GPUs")
    for text in elsewhere():
        assert "lies on GPU 1, and kernels on the current GPU, 0, cannot access it" in text
