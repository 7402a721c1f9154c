"""A trace of the simulator: the stages of each pipeline over time."""

from __future__ import annotations

from numba_tma.simulator.trace import _STAGE, Event, EventTrace
from numba_tma.tools.pictures.svg import HUES, Picture
from numba_tma.tools.plot import STATES, STORING, stage_bars, store_bars

_WIDTH, _ROW, _LEFT, _PIPELINES = 620, 22, 62, 4
_HUES = dict(zip(STATES, HUES))


def draw(trace: EventTrace) -> str:
    """Draw the pipelines of the first block that ran one, a row for each stage."""
    found = [(event.run, match[3]) for event in trace.events
             if (match := _STAGE.fullmatch(event.label))]  # fmt: skip
    if not found:
        made = Picture("Trace")
        made.text(0, 8, f"{len(trace.events)} events, and none of a pipeline's stages")
        return made.html()
    run = found[0][0]
    events = [event for event in trace.events if event.run == run]
    names = list(dict.fromkeys(name for number, name in found if number == run))
    made = Picture(f"Trace of block {events[0].block}: {len(events)} events")
    x = 0.0
    for sign, (name, _) in STATES.items():
        made.area(x, 2, 12, 12, _HUES[sign])
        made.text(x + 18, 8, name)
        x += 40 + 6.2 * len(name)
    made.text(x, 8, "numbers count the fills; time in steps of the simulator")
    y = 30.0
    for name in names[:_PIPELINES]:
        y = _stages(made, events, name, y)
    if more := len(names) - _PIPELINES:
        if more > 0:
            made.text(0, y + 8, f"and {more} more pipelines")
            y += 20
    if stores := store_bars(events):
        scale = _WIDTH / max(1, events[-1].time - events[0].time)
        made.text(0, y + _ROW / 2, "stores")
        for start, end in stores:
            place = _LEFT + (start - events[0].time) * scale
            made.area(place, y + 4, (end - start) * scale, _ROW - 8, HUES[3], STORING[0])
    return made.html()


def _stages(made: Picture, events: list[Event], name: str, y: float) -> float:
    """Draw the stages of a pipeline from `y` on; return where the next one begins."""
    first = events[0].time
    scale = _WIDTH / max(1, events[-1].time - first)
    made.text(0, y + 8, name)
    y += 20
    for stage, bars in stage_bars(events, name).items():
        made.text(0, y + _ROW / 2, f"stage {stage}")
        for sign, start, end, fill in bars:
            place, width = _LEFT + (start - first) * scale, (end - start) * scale
            tip = f"{STATES[sign][0]}, steps {start} to {end}"
            made.area(place, y + 2, width, _ROW - 4, _HUES[sign], tip)
            if sign == "#" and fill is not None and width > 8 * len(str(fill)):
                made.text(place + width / 2, y + _ROW / 2, str(fill), "middle")
        y += _ROW
    return y + 10
