"""`PipelineState`: the position of a walk round the stages of a ring."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import device_class, u32


@device_class(static=("num_stages",), mutable=True)
@dataclass
class PipelineState:
    """The position of a walk round the stages: `index`, `phase` bit and `count` of steps.

    At the first stage a consumer's phase is 0 and a producer's is 1. A walk that steps before its
    first stage starts with `index` equal to `num_stages` and the opposite phase.
    """

    num_stages: int
    index: u32 = 0
    phase: u32 = 0
    count: u32 = 0

    def __post_init__(self) -> None:
        if not isinstance(self.num_stages, int) or self.num_stages < 1:
            raise ValueError(
                f"PipelineState(num_stages={self.num_stages!r}): a pipeline has at least 1 stage"
            )

    def step(self) -> None:
        """Step to the next stage. The phase flips after the last stage."""
        index = u32(self.index + 1)
        if index >= self.num_stages:
            self.phase ^= 1
            index = u32(0)
        self.index = index
        self.count += 1

    def next(self) -> PipelineState:
        """Do what `step` does, and return this state."""
        self.step()
        return self

    def advance(self, steps: u32) -> None:
        """Do what `steps` calls of `step` do."""
        last = u32(self.num_stages - 1)
        index = u32(min(self.index, last) + steps)
        self.phase ^= index // u32(self.num_stages) & 1
        self.index = index % u32(self.num_stages)
        self.count += steps
