"""A traced kernel on the machine for PTX: the rings that its warps fill, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numba_tma.backend.numba_cuda import traced
from numba_tma.host.trace_buffer import Sampling, launch_address
from numba_tma.host.trace_records import LAUNCH, RECORD_NBYTES, RECORDS, SITES, RecordSite
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import Machine

RINGS = 1 << 33
HOPPER = (9, 0, "a")


def compiled(kernel: Any, signature: Any, cc: Any = HOPPER) -> str:
    """Return the PTX of a kernel that is compiled with a trace."""
    with traced.compiling():
        return compile_ptx(kernel, signature, cc=cc)


def sites(ptx: str) -> list[RecordSite]:
    """Return the sites of the records, in the order of the code."""
    return [SITES[int(number)] for number in re.findall(r"or\.b32 h, h, (\d+);", ptx)]


def in_cluster(index: Sequence[int], clusters: Sequence[int], rank: int, blocks: int) -> Any:
    """Return the special registers of a block of a cluster with this index, of so many."""
    named = {"cluster_ctarank": rank, "cluster_nctarank": blocks}
    for axis, at, n in zip("xyz", index, clusters):
        named |= {f"clusterid__{axis}": at, f"nclusterid__{axis}": n}
    return named


class TracedMachine(Machine):
    """Executes warps one after the other; each fills the ring that the sampling gives it."""

    def __init__(
        self, ptx: str, *arguments: Any, sampling: Sampling, capacity: int = 256, **options: Any
    ) -> None:
        self.active = 1
        given = {"step": 1, "answer": self._answer, "special": {"smid": 7}} | options
        super().__init__(ptx, *arguments, **given)
        self.sampling, self.nbytes = sampling, RECORDS + capacity * RECORD_NBYTES
        told = np.zeros((), LAUNCH)
        told["rings"], told["nbytes"] = RINGS, self.nbytes
        told["first"], told["step"], told["clusters"] = sampling[:3]
        self.poke(launch_address(), told.tobytes())
        mask = (capacity - 1) * RECORD_NBYTES
        for ring in range(sampling.rings):
            self.poke(RINGS + ring * self.nbytes + 4, mask.to_bytes(4, "little"))

    def _answer(self, name: str, operands: Sequence[Any]) -> int:
        return self.active if name.startswith("activemask") else int("_wait" in name)

    def run_warps(
        self, warps: Iterable[int], block: tuple[int, int, int] = (0, 0, 0), **special: int
    ) -> None:
        """Execute lane 0 of some warps."""
        alone = in_cluster(block, self.grid, 0, 1) | special
        for warp in warps:
            self.run(32 * warp, block, **alone)

    @property
    def behind(self) -> bytes:
        """The bytes behind the rings, which no warp writes to."""
        return self.peek(RINGS + self.sampling.rings * self.nbytes, 4 * self.nbytes)

    @property
    def rings(self) -> np.ndarray[Any, Any]:
        """The bytes of the rings."""
        number = self.sampling.rings
        raw = self.peek(RINGS, number * self.nbytes)
        return np.frombuffer(raw, np.uint8).reshape(number, self.nbytes)
