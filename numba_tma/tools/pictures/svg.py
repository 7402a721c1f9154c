"""The few shapes that pictures are made of."""

from __future__ import annotations

from html import escape

#: Areas: hues that stand apart for most eyes, drawn translucent on any background.
HUES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#999999")
_FONT = "font-family:system-ui,sans-serif;font-size:11px"


class Picture:
    """An SVG picture in the making; lengths are in pixels."""

    def __init__(self, title: str) -> None:
        self.title, self.width, self.height = title, 0.0, 0.0
        self._areas: list[str] = []
        self._texts: list[str] = []

    def area(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        hue: str = "none",
        tip: str = "",
        dashed: bool = False,
    ) -> None:
        """Draw a rectangle; the pointer shows `tip`."""
        line = ' stroke-dasharray="4 3"' if dashed else ""
        box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._areas.append(f'<rect {box} fill="{hue}"{line}>{inside}</rect>')
        self._reach(x + width, y + height)

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Write a line; `y` is its middle."""
        place = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._texts.append(f"<text {place}>{escape(text)}</text>")
        width = 6.2 * len(text)
        self._reach(x + width * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + 7)

    def html(self) -> str:
        """Return the picture under its title."""
        size = f'width="{self.width + 2:.0f}" height="{self.height + 2:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="{_FONT}">'
        name = escape(self.title)
        areas = '<g stroke="currentColor" stroke-opacity="0.5" fill-opacity="0.4">'
        texts = '<g fill="currentColor" dominant-baseline="central">'
        inside = f"{areas}{''.join(self._areas)}</g>{texts}{''.join(self._texts)}</g>"
        body = f"{head}<title>{name}</title>{inside}</svg>"
        return f'<div style="overflow-x:auto"><code>{name}</code><br/>{body}</div>'

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def size_of(nbytes: int) -> str:
    """Return a number of bytes for people."""
    return f"{nbytes / 1024:.4g} KiB" if nbytes >= 1024 else f"{nbytes} B"
