"""A trace: the warps of a block and what each waits for, and the stages of its pipelines."""

from __future__ import annotations

from numba_tma.tools.pictures.svg import HUES, Picture
from numba_tma.tools.trace import Trace
from numba_tma.tools.trace.facts import fills_of
from numba_tma.tools.trace.spans import Span, TracedLaunch

_WIDTH, _ROW, _LEFT, _PIPELINES = 760, 18, 130, 4
#: What a range is drawn as: its name in the legend, and its hue.
_SHOWN = {
    "full": ("wait for full", HUES[1]),
    "empty": ("wait for empty", HUES[3]),
    "products": ("wait for tensor cores", HUES[5]),
    "drain": ("wait for stores", HUES[6]),
    "meet": ("meet", HUES[7]),
    "mark": ("marked", HUES[0]),
}
_ALIKE = {"wait": "full", "flag": "full", "cluster": "meet"}
_STAGES = {"loading": HUES[4], "being read": HUES[2]}
_NAME = 140  #: letters of a pipeline's name
_NARROW = 0.4  #: pixels of a range that is left out
_MOST = 250  #: ranges that are drawn


def draw(trace: Trace) -> str:
    """Draw the first traced block of the first launch that has a pipeline."""
    with_stages = [x for x in trace.launches if any(s.stage >= 0 for s in x.spans)]
    launch = next(iter(with_stages or trace.launches), None)
    if launch is None or not launch.spans:
        made = Picture("Trace")
        made.text(0, 8, "nothing was launched")
        return made.html()
    block = launch.blocks[0]
    spans = [span for span in launch.spans if span.block == block]
    return _Drawing(launch, spans).html(len(trace.launches))


class _Drawing:
    """The picture of a block, from its first span on, for as long as it can be read."""

    def __init__(self, launch: TracedLaunch, spans: list[Span]) -> None:
        self.launch, self.spans, self.block = launch, spans, spans[0].block
        ranges = sorted(s.end for s in spans if s.kind in _SHOWN or s.kind in _ALIKE)
        self.start = min(span.start for span in spans)
        self.end = max(span.end for span in spans)
        if len(ranges) > _MOST:
            self.end = ranges[_MOST]
        self.scale = _WIDTH / max(1e-9, self.end - self.start)

    def html(self, launches: int) -> str:
        launch, unit = self.launch, self.launch.unit
        on = launch.processors.get(self.block)
        made = Picture(
            f"{launch.kernel}, block {self.block}"
            + (f" on SM {on}" if on is not None else "")
            + f": {self.start:,.0f} to {self.end:,.0f} {unit}"
            + (f" (first of {launches} launches)" if launches > 1 else "")
        )
        y = self._legend(made)
        for warp in sorted({span.warp for span in self.spans}):
            y = self._warp(made, warp, y)
        pipelines = dict.fromkeys(s.pipeline for s in self.spans if s.stage >= 0 and s.pipeline)
        loaded = [name for name in pipelines if fills_of(launch, name, self.block)]
        for name in loaded[:_PIPELINES]:
            y = self._stages(made, name, y)
        if (more := len(loaded) - _PIPELINES) > 0:
            made.text(0, y + 8, f"and {more} more pipelines")
        return made.html()

    def _legend(self, made: Picture) -> float:
        kinds = {_ALIKE.get(span.kind, span.kind) for span in self.spans}
        shown = [_SHOWN[kind] for kind in _SHOWN if kind in kinds] + list(_STAGES.items())
        x, y = 0.0, 2.0
        for name, hue in shown:
            width = 40 + 6.2 * len(name)
            if x + width > _LEFT + _WIDTH:
                x, y = 0.0, y + 18
            made.area(x, y, 12, 12, hue)
            made.text(x + 18, y + 6, name)
            x += width
        return y + 24

    def _warp(self, made: Picture, warp: int, y: float) -> float:
        role = self.launch.roles.get((self.block, warp), "")
        made.text(0, y + _ROW / 2, f"warp {warp} {role}")
        for span in self.spans:
            kind = _ALIKE.get(span.kind, span.kind)
            if span.warp != warp or kind not in _SHOWN:
                continue
            name, hue = _SHOWN[kind]
            what = f"{name} {span.name}".strip() + (f" [{span.stage}]" if span.stage >= 0 else "")
            inset = 6 if kind == "mark" else 2  # a wait may lie inside of a mark
            self._bar(made, y + inset, _ROW - 2 * inset, span.start, span.end, hue, what)
        return y + _ROW

    def _stages(self, made: Picture, name: str, y: float) -> float:
        made.text(0, y + 12, name if len(name) <= _NAME else f"{name[: _NAME - 3]}...")
        y += 24
        rows: dict[int, float] = {}
        fills = fills_of(self.launch, name, self.block)
        for stage in sorted({fill.stage for fill in fills}):
            rows[stage] = y
            made.text(0, y + _ROW / 2, f"stage {stage}")
            y += _ROW
        for number, fill in enumerate(fills):
            row = rows[fill.stage]
            full = self.end if fill.full is None else fill.full
            what = f"fill {number}: {fill.nbytes:,} B loading"
            self._bar(made, row + 2, _ROW - 4, fill.issued, full, _STAGES["loading"], what)
            if fill.full is not None:
                released = self.end if fill.released is None else fill.released
                what = f"fill {number} being read"
                hue = _STAGES["being read"]
                width = self._bar(made, row + 2, _ROW - 4, full, released, hue, what)
                if width > 8 * len(str(number)):
                    x = _LEFT + (full - self.start) * self.scale + width / 2
                    made.text(x, row + _ROW / 2, str(number), "middle")
        return y + 6

    def _bar(
        self, made: Picture, y: float, height: float, start: float, end: float, hue: str, what: str
    ) -> float:
        """Draw a range as far as it lies in the picture; return its width."""
        first, last = max(start, self.start), min(end, self.end)
        width = (last - first) * self.scale
        if width < _NARROW:
            return 0.0
        tip = f"{what}, {start:,.0f} to {end:,.0f} {self.launch.unit}"
        made.area(_LEFT + (first - self.start) * self.scale, y, width, height, hue, tip)
        return width
