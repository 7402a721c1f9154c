"""Arrays of tensor maps: descriptors in device memory, chosen by an index in the kernel."""

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from numba_tma.host.annotations import StreamLike
from numba_tma.host.backend import KernelArgument, LaunchParameter
from numba_tma.host.device_memory import copied_to_device
from numba_tma.host.driver import NBYTES
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.process_bound import ProcessBound
from numba_tma.host.ragged import RaggedTensorMap
from numba_tma.host.tensor_map import TensorMap, describe_kind

__all__ = ["TensorMapArray"]


@host_only
class TensorMapArray(ProcessBound, KernelArgument):
    """Tensor maps of one type in device memory: one kernel argument, indexed in the kernel.

    A kernel takes ``maps[i]`` for the map of its work, and uses it as it would use a map of its
    own: ``maps[i].load(...)``. The index is any integer from 0 on; on a GPU nothing checks it, and
    negative ones do not count from the end. No fence is needed, because the host wrote the
    maps before the launch. The maps of the array, and so their tensors, are kept alive; the array
    itself has to live as long as a kernel uses it.

    A kernel can also replace an element: see `edit_map`.

    Parameters
    ----------
    maps
        Maps of the same tile, rank and kind. Addresses, shapes and strides may differ.
    stream
        The stream on which the descriptors are copied, for kernels on the same stream. If None,
        they are there for every stream when the constructor returns.

    Raises
    ------
    ValueError
        If there is no map, or one is of another type than the first.
    TypeError
        If an element is no map.
    RuntimeError
        If a graph captures `stream`: its replays would copy from memory of the host that is gone.
    """

    _opaque = True
    _REPAIR = "make maps of"
    __slots__ = ("__weakref__", "_buffer", "address", "maps", "numba_type")

    def __init__(self, maps: Iterable[TensorMap], *, stream: StreamLike = None) -> None:
        self.maps = tuple(maps)
        _check(self.maps)
        #: Address of the descriptors, 128 bytes each; 0 in the simulator.
        self.address = 0
        #: The Numba type of the array, once `numba_tma.backend.lowering.types` has made it.
        self.numba_type: Any = None
        if simulated():
            self.maps = tuple(map(_editable, self.maps))
            return
        image = np.empty(len(self.maps) * NBYTES, np.uint8)
        for i, tensor_map in enumerate(self.maps):
            target = image.ctypes.data + i * NBYTES
            ctypes.memmove(target, tensor_map.encoded, NBYTES)
        self._buffer = copied_to_device(image, stream)
        self.address = self._buffer.address

    @property
    def _launch_parameter_(self) -> LaunchParameter:
        first = self.maps[0]
        return LaunchParameter((type(self), type(first), first.kind), "Q", self.address)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> TensorMap:
        if not hasattr(index, "__index__"):
            raise TypeError(f"a TensorMapArray is indexed with an integer, not {index!r}")
        if not 0 <= index < len(self.maps):
            raise IndexError(f"map {index} of a TensorMapArray of {len(self.maps)}")
        return self.maps[index]

    def __iter__(self) -> Iterator[TensorMap]:
        return iter(self.maps)

    def __repr__(self) -> str:
        return f"TensorMapArray({len(self)} maps like {self.maps[0]!r})"


def _editable(tensor_map: TensorMap) -> TensorMap:
    """Return a copy of a map that kernels can edit, for the simulator."""
    if isinstance(tensor_map, RaggedTensorMap):
        return tensor_map
    editable = type(tensor_map)(tensor_map.array, tensor_map._owner, tensor_map._encoding)
    editable.edits = 0
    return editable


def _check(maps: tuple[Any, ...]) -> None:
    if not maps:
        raise ValueError("TensorMapArray: no map is given; an array has at least one")
    for i, tensor_map in enumerate(maps):
        if not isinstance(tensor_map, TensorMap):
            raise TypeError(
                f"TensorMapArray: element {i} is {type(tensor_map).__name__}, no TensorMap; make "
                "it with tensor_map(array, tile)"
            )
        if tensor_map.kind != maps[0].kind:
            raise ValueError(
                f"TensorMapArray: element {i} is {_describe(tensor_map)}, but element 0 is "
                f"{_describe(maps[0])}; in a kernel all are of one type: make an array of each"
            )


def _describe(tensor_map: TensorMap) -> str:
    name = type(tensor_map).__name__
    return f"{'an' if name[0] == 'I' else 'a'} {name} of {describe_kind(tensor_map)}"
