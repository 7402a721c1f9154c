"""A compiled kernel in the driver, and its launches, by cuda.bindings alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from numba_tma.host.cluster_rules import Dim3
from numba_tma.host.driver import _driver
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.parameters import Parameters


class _Error(Protocol):
    name: str


class DriverError(RuntimeError):
    """A call that the driver refused; `name` is its error's."""

    def __init__(self, call: str, error: _Error) -> None:
        self.name = error.name
        super().__init__(f"{call}: {self.name}")


class LoadedKernel:
    """A kernel's code, loaded for all contexts of its compute capability."""

    def __init__(self, image: KernelImage) -> None:
        driver = _driver()
        self.image = image
        error, self._library = driver.cuLibraryLoadData(image.code, [], [], 0, [], [], 0)
        if error:
            raise DriverError("cuLibraryLoadData", error)
        error, kernel = driver.cuLibraryGetKernel(self._library, image.entry.encode())
        if error:
            raise DriverError("cuLibraryGetKernel", error)
        #: The driver launches a kernel of a library as it launches a function.
        self._function = driver.CUfunction(int(kernel))
        self._kernel = kernel

    def max_threads(self, device: int) -> int:
        """Return the most threads that a block may have, given the kernel's registers."""
        driver = _driver()
        which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        error, most = driver.cuKernelGetAttribute(which, self._kernel, device)
        if error:
            raise DriverError("cuKernelGetAttribute", error)
        return int(most)

    def allow_shared(self, device: int) -> None:
        """Allow launches on a GPU their dynamic shared memory, which needs a leave above 48 KiB."""
        driver = _driver()
        which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(which, self.image.shared, self._kernel, device)
        if error:
            raise DriverError("cuKernelSetAttribute", error)

    def bind(
        self, configuration: Any, parameters: Parameters, *, here: bool = False
    ) -> Callable[[], tuple[Any]]:
        """Return a launch, which returns the driver's error and reads `parameters` each time.

        A launch that is bound `here` works in the current context alone. It costs the host less,
        because the driver need not look up the kernel's function in the context.
        """
        driver, function = _driver(), self._function
        if here:
            error, own = driver.cuKernelGetFunction(self._kernel)
            function = function if error else own  # the launch itself says what is wrong
        return functools.partial(
            driver.cuLaunchKernelEx, configuration, function, parameters.address, 0
        )


def configuration(
    grid: Dim3,
    block: Dim3,
    cluster: Dim3 | None,
    stream: int,
    *,
    shared: int = 0,
    cooperative: bool,
    pdl: bool,
) -> Any:
    """Return the driver's configuration of a launch."""
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared
    config.hStream = driver.CUstream(stream)
    kinds, attributes = driver.CUlaunchAttributeID, []
    if cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster
        attributes.append(attribute)
    if cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if pdl:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
