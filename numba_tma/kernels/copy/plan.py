"""How `copy` cuts up contiguous bytes."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.values import check_fields, one_of, whole
from numba_tma.kernels._host.limits import SHARED_BYTES


@dataclass(frozen=True)
class CopyPlan:
    """How contiguous bytes are copied. Plans are part of cache keys."""

    chunk_bytes: int = 2048  #: bytes that a block copies, a multiple of 16
    threads: int = 32  #: threads of a block, whole warps
    store: str = "tma"  #: "tma"; "registers": threads store the chunk; "vector": without TMA

    def __post_init__(self) -> None:
        check_fields(
            self,
            chunk_bytes=whole(16, SHARED_BYTES, step=16),
            threads=whole(32, 1024, step=32),  # up to 15 of them copy the bytes behind the chunks
            store=one_of("tma", "registers", "vector"),
        )
