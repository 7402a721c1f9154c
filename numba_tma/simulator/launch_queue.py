"""The blocks of a launch that have not begun, from which running blocks take.

Simulated blocks run one after the other, or a cluster after the other. A request takes the next one
that has not begun, or nothing: on a GPU other blocks begin at the same time, so that a request may
find none left. The seed chooses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

#: A block's index in the grid.
BlockIndex: TypeAlias = "tuple[int, int, int]"

#: Chance that a request finds a block while there is one.
_TAKEN = 0.7


class LaunchQueue:
    """The blocks of a launch that have not begun: the first blocks of clusters, in order."""

    def __init__(self, first_blocks: Sequence[BlockIndex], seed: str) -> None:
        self._waiting = list(first_blocks)
        self._random = random.Random(f"{seed} launch control")
        self._failed: set[BlockIndex] = set()
        #: First blocks of the clusters that have seen an answer that nothing was taken.
        self.has_seen_failure: set[BlockIndex] = set()

    def begin(self, block: BlockIndex) -> bool:
        """Return whether a block begins; it does not if it was taken."""
        if block not in self._waiting:
            return False
        self._waiting.remove(block)
        return True

    def take(self, asking: BlockIndex) -> BlockIndex | None:
        """Take a block for a cluster, or None; requests after one that failed fail, too."""
        if asking not in self._failed and self._waiting and self._random.random() < _TAKEN:
            return self._waiting.pop(0)
        self._failed.add(asking)
        return None
