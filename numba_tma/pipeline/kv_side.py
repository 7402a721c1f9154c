"""What both sides of a started `KVPipeline` have."""

from __future__ import annotations

from typing import Any

from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.staged import StagedPipeline

#: Members of a `KVPipeline` that both its sides have as well, at compile time.
MEMBERS = (
    *("BK", "BMN", "full_kv_bytes", "staged_k_bytes", "num_qk_stages_effective", "is_k"),
    *("is_k_major", "num_kv_stages"),
)


class KVSide:
    """What both sides have, for the simulator."""

    kv: KVPipeline
    pipeline: StagedPipeline
    base: int
    accesses: TileAccesses

    def __getattr__(self, name: str) -> Any:
        if name in MEMBERS:
            return getattr(self.kv, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _stage(self, index: Any) -> int:
        index = self.pipeline.state.index if index is None else index
        return self.base + index * self.kv.full_kv_bytes

    def _k_tile(self, qk_stage: int, index: Any = None) -> SharedTile:
        address = self._stage(index) + qk_stage * self.kv.staged_k_bytes
        return SharedTile(self.kv.k_tile, address, self.accesses)

    def _v_tile(self, index: Any = None) -> SharedTile:
        return SharedTile(self.kv.v_tile, self._stage(index), self.accesses)
