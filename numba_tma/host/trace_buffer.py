"""The memory of traces on a GPU: the rings of a launch, which the host reads after it."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numba_tma.host.debug import NO_GPU
from numba_tma.host.device_memory import DeviceMemory, device_memory
from numba_tma.host.driver import copy_from_host, copy_to_host, current_context, launching_device
from numba_tma.host.environment import simulated
from numba_tma.host.trace_records import LAUNCH, RECORD_NBYTES, RECORDS

WARP = 32
_LEAST = 64  #: records of a ring


@functools.cache
def _launch_words(context: int) -> DeviceMemory:
    """Return the words that tell kernels of a launch, 0 where none is traced."""
    words = device_memory((LAUNCH.itemsize,), np.uint8)
    _write(words, np.zeros((), LAUNCH))
    return words


def _write(memory: DeviceMemory, value: np.ndarray[Any, Any]) -> None:
    copy_from_host(memory.address, np.ascontiguousarray(value).ctypes.data, value.nbytes, None)


def launch_address() -> int:
    """Return the address of these words in the current context, which is compiled into kernels."""
    return _launch_words(current_context()).address if _has_gpu() else NO_GPU


@functools.cache
def _has_gpu() -> bool:
    if simulated():
        return False
    try:
        launching_device()
    except Exception:  # no driver, no device and a broken installation each raise their own type
        return False
    return True


class Sampling(NamedTuple):
    """Which blocks of a grid are traced, in whole clusters."""

    first: int  #: cluster
    step: int
    clusters: int
    blocks: int  #: of a cluster
    warps: int  #: of a block

    @property
    def rings(self) -> int:
        """Warps of the traced blocks."""
        return self.clusters * self.blocks * self.warps


def sampled(
    blocks: int | range, grid: tuple[int, ...], block: tuple[int, ...], cluster: int
) -> Sampling:
    """Return the traced clusters: of so many blocks at equal distances, or of those of a range."""
    all_clusters, warps = math.prod(grid) // cluster, -(-math.prod(block) // WARP)
    if isinstance(blocks, int):
        number = min(all_clusters, -(-blocks // cluster))
        return Sampling(0, max(1, all_clusters // number), number, cluster, warps)
    chosen = [block // cluster for block in blocks if block // cluster < all_clusters]
    chosen = list(dict.fromkeys(chosen)) or [0]
    step = chosen[1] - chosen[0] if chosen[1:] else 1
    return Sampling(chosen[0], step, len(chosen), cluster, warps)


class Rings:
    """The rings of one launch, of at most so many bytes together."""

    def __init__(self, sampling: Sampling, nbytes: int) -> None:
        self.sampling = sampling
        each = nbytes // max(1, sampling.rings)
        most = max(0, each - RECORDS) // RECORD_NBYTES
        self.capacity = 1 << most.bit_length() >> 1  # a power of 2
        if self.capacity < _LEAST:
            least = sampling.rings * (RECORDS + _LEAST * RECORD_NBYTES)
            raise ValueError(
                f"trace: {sampling.rings // sampling.warps} blocks of {sampling.warps} warps need "
                f"{-(-least // (1 << 20))} MB for {_LEAST} records a warp, and megabytes="
                f"{nbytes / (1 << 20):g}: give more, or trace fewer blocks (blocks=...)"
            )
        self.ring_nbytes = RECORDS + self.capacity * RECORD_NBYTES
        self._memory = device_memory((max(1, sampling.rings * self.ring_nbytes),), np.uint8)

    def begin(self) -> None:
        """Let the next launch write to the rings, which are empty."""
        empty = np.zeros((self.sampling.rings, self.ring_nbytes), np.uint8)
        empty[:, 4:8].view("<u4")[:] = (self.capacity - 1) * RECORD_NBYTES
        _write(self._memory, empty)
        told = np.zeros((), LAUNCH)
        told["rings"], told["nbytes"] = self._memory.address, self.ring_nbytes
        told["first"], told["step"], told["clusters"] = self.sampling[:3]
        _write(_launch_words(current_context()), told)

    def end(self) -> None:
        """Let no further launch write to them."""
        _write(_launch_words(current_context()), np.zeros((), LAUNCH))

    def read(self) -> np.ndarray[Any, Any]:
        """Return the bytes of the rings: (warps, bytes)."""
        found = np.empty((self.sampling.rings, self.ring_nbytes), np.uint8)
        copy_to_host(found.ctypes.data, self._memory.address, found.nbytes)
        return found
