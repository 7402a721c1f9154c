"""The current device, and how many blocks or clusters a launch should have on it."""

from __future__ import annotations

from numba_tma.host import launch_advice
from numba_tma.host.architectures import TCGEN05, architecture_of
from numba_tma.host.driver import (
    compute_capability,
    device_attribute,
    launching_device,
    name_of_device,
)
from numba_tma.host.environment import simulated


def current_device() -> int:
    """Return the ordinal of the device that kernels run on now."""
    return 0 if simulated() else launching_device()


def sm_count() -> int:
    """Return the number of SMs of the current device; 2 in the simulator."""
    return 2 if simulated() else device_attribute(launching_device(), "MULTIPROCESSOR_COUNT")


def capability() -> tuple[int, int]:
    """Return the compute capability of the current device."""
    return compute_capability(launching_device())


def device_name() -> str:
    """Return the name of the current device."""
    return name_of_device(launching_device())


def has_tcgen05() -> bool:
    """Return whether the current device has Blackwell's tensor cores; False in the simulator."""
    if simulated():
        return False
    major, minor = capability()
    return TCGEN05.allow(f"{major}{minor}a")


def has_mma_alone() -> bool:
    """Return whether the current device multiplies by mma.sync alone; False in the simulator."""
    if simulated():
        return False
    major, minor = capability()
    return architecture_of(f"{major}{minor}").tensor_cores == "mma"


def resident_clusters(size: int, blocks: int) -> int:
    """Return how many clusters of `size` surely run at once, with `blocks` on an SM."""
    return launch_advice.resident_clusters(size, blocks, sm_count())


def fewest_in_same_waves(tiles: int, most: int) -> int:
    """Return the fewest blocks (or clusters) that finish `tiles` in the same number of waves.

    `most` blocks run at once. 900 tiles on 132 blocks take 7 waves, of which the last is not full;
    129 blocks take 7 waves too, and fewer blocks share shared memory and power in each.
    """
    return -(-tiles // -(-tiles // most))
