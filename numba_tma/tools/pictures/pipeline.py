"""A pipeline: its shared memory, its barriers, and what fits beside it."""

from __future__ import annotations

from numba_tma.host.launch_advice import Processors, blocks_by_limit
from numba_tma.pipeline.circular import CircularBuffer
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.store import StorePipeline
from numba_tma.pipeline.tile import TilePipeline
from numba_tma.simulator.memory import CAPACITY
from numba_tma.tools.pictures.svg import HUES, Picture, size_of

Pipeline = TilePipeline | CircularBuffer | StorePipeline | KVPipeline
_WIDTH = 620


def draw(pipeline: Pipeline) -> str:
    """Draw the shared memory of a block, with the parts of the pipeline and what is left."""
    made, sm = Picture(repr(pipeline)), Processors(1)
    parts = pipeline.shared_parts("")
    total = sum(parts.values())
    scale, x = _WIDTH / max(CAPACITY, total), 0.0
    for number, (name, nbytes) in enumerate(parts.items()):
        width, hue = max(2.0, nbytes * scale), HUES[number % len(HUES)]
        stages = getattr(pipeline, "slots", 1) if name != "barriers" else 1
        for stage in range(stages):
            tip = f"{name}; {size_of(nbytes)}" + f"; slot {stage}" * (stages > 1)
            made.area(x + stage * width / stages, 0, width / stages, 26, hue, tip)
        x += width
    if total < CAPACITY:
        left = f"{size_of(CAPACITY - total)} left"
        made.area(x, 0, max(0.0, _WIDTH - x), 26, tip=left, dashed=True)
    y = 42
    for number, (name, nbytes) in enumerate(parts.items()):
        made.area(0, y - 6, 12, 12, HUES[number % len(HUES)])
        made.text(18, y, f"{name}: {size_of(nbytes)}")
        y += 18
    for line in _facts(pipeline, total, sm):
        made.text(0, y, line)
        y += 18
    return made.html()


def _facts(pipeline: Pipeline, total: int, sm: Processors) -> list[str]:
    blocks = min(blocks_by_limit(0, total, 1, sm).values())  # by its shared memory alone
    lines = [
        f"{size_of(total)} of the {size_of(CAPACITY)} that a block may have; by its shared memory, "
        f"an SM holds {blocks} block{'s' * (blocks != 1)} of it"
    ]
    stages = getattr(pipeline, "num_stages", None)
    if stages and total <= CAPACITY:
        each = pipeline.storage_nbytes // stages
        more = (CAPACITY - total) // max(1, each + 16)
        fit = "stage fits" if more == 1 else "stages fit"
        lines.append(f"{more or 'no'} more {fit} beside it")
    if isinstance(pipeline, TilePipeline):
        nbytes = f" and {size_of(pipeline.tx_bytes)}" if pipeline.filled_by == "tma" else ""
        full, empty = pipeline.full_arrivals, pipeline.empty_arrivals
        lines.append(
            f"{pipeline.num_barriers} barriers: full after {_arrivals(full)}{nbytes}, empty after "
            + (_arrivals(empty) if empty else "one arrival of each consumer warp")
        )
    return lines


def _arrivals(count: int) -> str:
    return f"{count} arrival{'s' * (count != 1)}"
