"""`RingArrivals`: what arrives on the barriers of a `TilePipeline`, and in which blocks."""

from __future__ import annotations

from typing import Any

from numba_tma.pipeline.multicast import axis_mask
from numba_tma.pipeline.roles import WARP, Role


class RingArrivals:
    """The arrivals that complete a ring's barriers, and the blocks of its cluster."""

    tx_bytes: int
    producer: Role | None
    consumers: tuple[Role, ...]
    filled_by: str
    released_by: str
    alternate: bool
    cta_group: int
    cluster: tuple[int, int]
    multicast: tuple[tuple[str, str], ...]

    @property
    def full_arrivals(self) -> int:
        """Arrivals that complete a full barrier, beside the stage's bytes."""
        if self.filled_by == "tma":
            return 1
        members = self.producer.members if self.producer else WARP
        if self.filled_by == "cp_async":
            return members
        return self.producer.arrivals if self.producer else 1

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that complete an empty barrier; 0 if they depend on the launch's block.

        A consumer arrives once for each warp or thread; with ``released_by="tcgen05"`` one commit
        of each consumer arrives. In a cluster the consumers of all sharing blocks arrive.
        """
        arrivals = [1 if self.by_commit else role.arrivals for role in self.consumers]
        if self.by_commit and not arrivals:
            arrivals = [1]
        one = arrivals[0] if self.alternate else sum(arrivals)
        return one * self.num_peers

    @property
    def expected_bytes(self) -> int:
        """Bytes that a full barrier expects: those of a stage, in a CTA pair of both blocks."""
        return self.cta_group * self.tx_bytes

    @property
    def by_tma(self) -> bool:
        """Whether TMA fills the stages, so that full barriers count bytes."""
        return self.filled_by == "tma"

    @property
    def by_cp_async(self) -> bool:
        """Whether cp.async copies of each thread fill the stages."""
        return self.filled_by == "cp_async"

    @property
    def by_commit(self) -> bool:
        """Whether a tcgen05.commit releases the stages, so that one thread consumes."""
        return self.released_by == "tcgen05"

    @property
    def one_warp_consumes(self) -> bool:
        """Whether each consumer is a single warp."""
        return bool(self.consumers) and all(r.sync_threads == WARP for r in self.consumers)

    @property
    def each_thread_releases(self) -> bool:
        """Whether each thread of the consumers arrives; otherwise one lane of each warp does."""
        return any(role.group.unit == 1 for role in self.consumers)

    # ---------------------------------------------------------------------- its cluster

    @property
    def in_pair(self) -> bool:
        """Whether two blocks multiply as a CTA pair."""
        return self.cta_group == 2

    @property
    def num_peers(self) -> int:
        """Blocks of the cluster that load into one block's stages, itself included.

        With `cta_group` 2, the CTA pairs that load into one pair's stages.
        """
        axes = {axis for _, axis in self.multicast}
        extents = (self.cluster[0] // self.cta_group, self.cluster[1])
        return 1 + sum(n - 1 for axis, n in zip("xy", extents) if axis in axes)

    @property
    def in_cluster(self) -> bool:
        """Whether blocks of a cluster share tiles or multiply as CTA pairs."""
        return self.in_pair or self.num_peers > 1

    @property
    def cluster_feature(self) -> str:
        """The argument that requires a cluster, for error messages."""
        return "cta_group=2" if self.in_pair else f"multicast={dict(self.multicast)}"

    def cluster_rule(self, given: Any) -> str:
        """Return the error of a kernel that runs in clusters of another size."""
        return (
            f"{self} is for clusters of {self.cluster}, but the kernel runs in clusters of "
            f"{given}: put @tma.cluster({self.cluster}) below @cuda.jit"
        )

    @property
    def cluster_width(self) -> int:
        """Blocks of the cluster along x."""
        return self.cluster[0]

    @property
    def cluster_height(self) -> int:
        """Blocks of the cluster along y."""
        return self.cluster[1]

    @property
    def shares_x(self) -> bool:
        """Whether blocks that differ only in x share a tile."""
        return "x" in dict(self.multicast).values()

    @property
    def shares_y(self) -> bool:
        """Whether blocks that differ only in y share a tile."""
        return "y" in dict(self.multicast).values()

    @property
    def row_mask(self) -> int:
        """The blocks of the cluster's first row, or the even ones in pairs: a bit for each rank."""
        return axis_mask(self.cluster, "x", 0, 0, self.cta_group)

    @property
    def column_mask(self) -> int:
        """The blocks of the cluster's first column, one bit for each rank."""
        return axis_mask(self.cluster, "y", 0, 0)
