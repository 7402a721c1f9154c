"""Readers of shared memory through the async proxy, and repairs of stages, in words."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reader(NamedTuple):
    """A reader of shared memory through the async proxy, in the words of messages."""

    name: str
    done: str
    target: str
    who: str


#: The name of a stage's tile.
_STAGE = re.compile(r"\w+\[\d+(, \d+)?\] of \w*Pipeline\(")

STORE = Reader("a store", "stored", "stored to global memory", "the thread that stores")
COPY = Reader("a copy", "copied", "copied to another block", "the thread that copies")
WGMMA = Reader(
    "a wgmma", "read by a wgmma", "read by a wgmma", "all threads of the warpgroup that multiplies"
)

TCGEN05 = Reader(
    "a tcgen05 product or copy",
    "read by a tcgen05 product or copy",
    "read by a tcgen05 product or copy",
    "the thread that issues it",
)


#: Repairs of a stage, in its pipeline's words.
RELEASE = (
    "release the stage after its last use: by the next turn of pipe.consume(...), or "
    "consumer.release()"
)
FENCES = "pipe.store(...) and consumer.release() fence by themselves"
IN_FLIGHT = (
    "pipe.consume(..., in_flight=1) releases a stage one turn later, and pipe.release_pending() "
    "the last one, after wgmma_wait()"
)
WAITS = "consumer.wait() and pipe.consume(...) return a stage when it is full"


def of_pipeline(where: str, repair: str) -> str:
    """Return the repair of bytes that belong to a pipeline's stage, in the pipeline's own words."""
    return f". In a pipeline: {repair}" if repair and _STAGE.match(where) else ""
