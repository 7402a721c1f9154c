"""How `transpose` cuts a matrix into tiles."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.values import check_fields, one_of, whole

LINE = 128  #: bytes of a swizzled row


@dataclass(frozen=True)
class TransposePlan:
    """How a matrix is cut into tiles, and their order. Plans are part of cache keys.

    A tile consists of squares whose rows are 128-byte lines.
    """

    rows: int = 2  #: squares of a tile from top to bottom
    columns: int = 2  #: squares of a tile from left to right
    threads: int = 128  #: threads of a block
    group: int = 256  #: tile rows that blocks go through before they move to the next tile column
    store: str = "tma"  #: "tma", or "registers": threads store the rows of the transposed tile

    def __post_init__(self) -> None:
        check_fields(
            self,
            rows=whole(1, 32),
            columns=whole(1, 32),
            threads=whole(32, 1024, step=32),
            group=whole(1, (1 << 16) - 1),
            store=one_of("tma", "registers"),
        )
        blocks = 64 * self.rows * self.columns  # of 16-byte rows, which threads transpose
        if blocks % self.threads:
            raise ValueError(
                f"TransposePlan(threads={self.threads}): a tile of {self.rows} x {self.columns} "
                f"squares has {blocks} blocks of 16-byte rows, which {self.threads} threads cannot "
                f"share equally: use a divisor of {blocks}"
            )


#: Plans by element size in bytes.
PLANS = {
    1: TransposePlan(1, 1, 64),
    2: TransposePlan(2, 2),
    4: TransposePlan(4, 2, 256, store="registers"),
    8: TransposePlan(2, 2),
}

PATCH, PATCH_THREADS = 64, 256  #: rows and columns of a patch, and threads of its block
SECTOR = 32  #: bytes
