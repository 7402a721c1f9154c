"""Named barriers that collide: two groups of warps use one number, and nothing orders their uses.

A barrier counts arrivals and not who arrives. If another group may arrive before a use is complete,
the two complete each other's, and some threads go on early while others wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import BarrierMisuse
from numba_tma.simulator.races import Place, in_words, place_in_kernel
from numba_tma.simulator.thread import WARP_SIZE

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread


@dataclass
class Use:
    """The arrivals of one use: by warp where it arrives, by row of a thread its time then."""

    name: str = ""
    threads: int = 0
    places: dict[int, Place] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)


class NamedBarriers:
    """The last complete use and the current one of each named barrier of a block."""

    def __init__(self) -> None:
        self._uses: dict[int, tuple[Use, Use]] = {}

    def arrive(
        self, thread: SimulatedThread, name: str, number: int, threads: int, clocks: Clocks
    ) -> None:
        """Record an arrival; raise if it could have come during a use of other warps."""
        last, use = self._uses.get(number, (Use(), Use()))
        if len(use.times) >= use.threads:
            last, use = use, Use(name, threads)
        if use.name != name:
            return  # another number of threads, which the meeting refuses
        self._uses[number] = last, use
        known, place = clocks.epochs(thread.row), place_in_kernel()
        if thread.warp not in last.places:
            if any(known[row] < time for row, time in last.times.items()):
                raise _collision(thread, name, place, last)
        use.places.setdefault(thread.warp, place)
        if WARP_SIZE * len(use.places) > threads:
            raise _collision(thread, name, place, use)
        use.times[thread.row] = clocks.epoch(thread.row)


def _collision(thread: SimulatedThread, name: str, place: Place, use: Use) -> BarrierMisuse:
    others = [warp for warp in use.places if warp != thread.warp]
    word = "warp" if len(others) == 1 else "warps"
    return BarrierMisuse(
        f"{name}: two groups of warps use it at the same time: warp {thread.warp} arrives at "
        f"{in_words(place)}, and {word} {', '.join(map(str, others))} at "
        f"{in_words(use.places[others[0]])}, and nothing orders the two uses: arrivals of one "
        "complete the other. Give each group a number of its own (tma.NamedBarrier has 8 to 15; a "
        "role's sync() uses the role's), or synchronise all of them in between"
    )
