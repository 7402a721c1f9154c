"""The base class of producer and consumer of a started `KVPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, compile_time, u32
from numba_tma.backend.primitives import add32
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.staged import StagedPipeline

if TYPE_CHECKING:
    from numba_tma.pipeline.kv import KVPipeline

#: Members of a `KVPipeline` that its producer and consumer have too, as compile-time constants.
MEMBERS = (
    *("BK", "BMN", "full_kv_bytes", "staged_k_bytes", "num_qk_stages_effective", "is_k"),
    *("is_k_major", "num_kv_stages"),
)


class KVSide:
    """The members that producer and consumer share."""

    kv: KVPipeline
    pipeline: StagedPipeline
    base: u32
    accesses: TileAccesses

    def __getattr__(self, name: Constant[str]) -> Any:
        return member_of(self.kv, name)

    def _stage(self, index: int | None = None) -> int:
        """Return the address of stage `index`, by default of the current stage."""
        if index is None:
            return add32(self.base, self.pipeline.state.index * self.kv.full_kv_bytes)
        return add32(self.base, u32(index) * self.kv.full_kv_bytes)

    def _k_tile(self, qk_stage: int, index: int | None = None) -> SharedTile:
        address = add32(self._stage(index), qk_stage * self.kv.staged_k_bytes)
        return SharedTile(self.kv.k_tile, address, self.accesses)

    def _v_tile(self, index: int | None = None) -> SharedTile:
        return SharedTile(self.kv.v_tile, self._stage(index), self.accesses)


@compile_time
def member_of(kv: KVPipeline, name: str) -> Any:
    """Return a member of the pipeline that its producer and consumer have too."""
    if name not in MEMBERS:
        raise AttributeError(f"the sides of {kv} have no attribute {name!r}")
    return getattr(kv, name)
