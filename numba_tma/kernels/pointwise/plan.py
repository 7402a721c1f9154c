"""The kernel of a pointwise function and its sizes, and the kinds of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.values import check_fields, one_of, whole
from numba_tma.kernels._host.limits import SHARED_BYTES

FULL, ROW, ONE_PER_ROW, ONE = (
    "full",
    "row",
    "one per row",
    "one",
)  #: kinds of inputs; see `Operands`

UNIT_THREADS = 256  #: threads of a block of "vector"


@dataclass(frozen=True)
class PointwisePlan:
    """The kernel that is used, and its sizes. Plans are part of cache keys."""

    kernel: str  #: "ring", "chunk" or "vector"
    threads: int = 128  #: threads that compute
    tile_bytes: int = 4096  #: bytes of a tile or chunk of each input
    stages: int = 4  #: stages of the ring
    blocks_per_sm: int = 1  #: resident blocks of the ring per SM
    store: str = "registers"  #: "tma": the ring's results are stored from their stage

    def __post_init__(self) -> None:
        check_fields(
            self,
            kernel=one_of("ring", "chunk", "vector"),
            threads=whole(32, 992, step=32),  # and a producer warp
            tile_bytes=whole(16, SHARED_BYTES, step=16),
            stages=whole(1, 32),
            blocks_per_sm=whole(1, 32),
            store=one_of("tma", "registers"),
        )
        if self.kernel == "chunk" and self.tile_bytes % (16 * self.threads):
            raise ValueError(
                f"PointwisePlan(tile_bytes={self.tile_bytes}): {self.threads} threads cannot share "
                f"the {self.tile_bytes // 16} vectors of 16 B of a chunk equally: use tile_bytes "
                f"of a multiple of {16 * self.threads}"
            )


def plan_for(inputs: int) -> PointwisePlan:
    """Return the plan for `inputs` large contiguous arrays that TMA can address."""
    if inputs == 1:
        return PointwisePlan("chunk", 128, 4096)
    return PointwisePlan("ring", 128, 8192, 3, 2, "tma")
