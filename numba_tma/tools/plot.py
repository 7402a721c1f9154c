"""Pictures: the layout of a tile in shared memory, and a pipeline's stages over time.

They need matplotlib, which is imported when a picture is asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.layout import Tile
from numba_tma.simulator.trace import _STAGE, _STATES, Event, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IntArray = np.ndarray[Any, np.dtype[np.int64]]
CHUNK = 16  # bytes that a swizzle moves as one
LINE = 128  # bytes that all 32 banks hold side by side
GROUPS = LINE // CHUNK
MAX_LINES = 16  # every swizzle repeats after 8 lines
TEXT = {"fontsize": 9, "color": "#303030"}
#: Meanings and colours of the signs of `Trace.timeline`; "." is free and not drawn.
STATES = {">": ("loading", "#9ecae1"), "=": ("full", "#fdd0a2"), "#": ("being read", "#74c476")}
STORING = ("being stored", "#bcbddc")


def swizzle(tile: Tile, ax: Axes | None = None) -> Axes:
    """Draw the position of each 16-byte chunk of a tile in shared memory.

    A line of the picture is 128 bytes of shared memory, a column one group of four banks. Number
    and colour say which chunk of its row of the tile stands there. Threads that read down one
    column of the tile use one colour: where it fills a column of the picture they wait for each
    other, where it is spread out they do not.

    Parameters
    ----------
    tile
        A tile with rows of a multiple of 16 bytes; its first 16 lines are drawn. Where a line
        holds several rows, the row stands before the chunk; what is blank is padding.
    ax
        Where to draw; a new figure if None.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        If the tile's rows are no multiple of 16 bytes.
    """
    row_bytes = tile.shape[-1] * tile.itemsize
    if row_bytes % CHUNK:
        raise ValueError(
            f"swizzle(): {tile} has rows of {row_bytes} B, which cannot be drawn in chunks of "
            f"{CHUNK} B: use a multiple of {CHUNK // tile.itemsize} along the innermost axis"
        )
    row, chunk = places_of_chunks(tile)
    lines = len(row)
    shown = min(lines, MAX_LINES)
    row, chunk = row[:shown], chunk[:shown]
    if ax is None:
        ax = _new_axes(5.0, 0.8 + 0.34 * shown)
    colours = np.ma.masked_where(row < 0, chunk)
    ax.pcolormesh(colours, cmap="Spectral", alpha=0.6, edgecolors="white", linewidth=1.5)
    for line, group in np.argwhere(row >= 0):
        name = f"{row[line, group]}:" * (tile.pitch % LINE > 0) + str(chunk[line, group])
        _write(ax, group + 0.5, line + 0.5, name)
    ax.invert_yaxis()
    ax.set_xticks(
        np.arange(GROUPS) + 0.5, [f"{bank}-{bank + 3}" for bank in range(0, 4 * GROUPS, 4)]
    )
    ax.set_yticks(np.arange(shown) + 0.5, [_row_range(line[line >= 0]) for line in row])
    ax.set_xlabel("shared-memory banks", **TEXT)
    ax.set_ylabel("row of the tile", **TEXT)
    more = f", first {shown} of {lines} lines" if shown < lines else ""
    ax.set_title(f"{tile}{more}", **TEXT)
    return _plain(ax)


def places_of_chunks(tile: Tile) -> tuple[IntArray, IntArray]:
    """Return the row and the number in it of the chunk in each place: (lines, groups); -1: none.

    A line is 128 bytes of shared memory. Rows of the tile are multiples of 16 bytes.
    """
    *leading, inner = tile.shape
    starts = np.ix_(*map(np.arange, leading), np.arange(0, inner, CHUNK // tile.itemsize))
    place = np.ravel(tile.offset(*starts)) // CHUNK
    source = np.full(-(-tile.shared_nbytes // LINE) * GROUPS, -1)
    source[place] = np.arange(place.size)
    chunks = inner * tile.itemsize // CHUNK
    row, chunk = np.divmod(source.reshape(-1, GROUPS), chunks)
    return row, np.where(row < 0, -1, chunk)


def timeline(trace: Trace, ax: Axes | None = None) -> Axes:
    """Draw the states of a pipeline's stages over time, from a trace of the simulator.

    One bar per stage and state: loading, full, and being read until all readers have released
    it. The numbers count the fills in the order of their loads. Below lie the stores that were in
    flight. Time is in the simulator's steps: it tells the order of things, not how long a GPU
    takes.

    Parameters
    ----------
    trace
        What `numba_tma.simulator.record` recorded. The first pipeline of the first block that ran
        one is drawn.
    ax
        Where to draw; a new figure if None.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        If no pipeline ran, or none in the simulator, while the trace was recorded.
    """
    first = next(((e.run, m[3]) for e in trace.events if (m := _STAGE.fullmatch(e.label))), None)
    if first is None:
        raise ValueError(
            "timeline(): the trace has no pipeline stage: launch a kernel with a TilePipeline "
            "inside `with simulator.record() as trace`, with NUMBA_ENABLE_CUDASIM=1 set before "
            "Python starts"
        )
    events = [event for event in trace.events if event.run == first[0]]
    stages = stage_bars(events, first[1])
    if ax is None:
        ax = _new_axes(9.0, 1.2 + 0.42 * len(stages))
    shortest = (events[-1].time - events[0].time) / 80  # bar that has room for a number
    for row, bars in stages.items():
        for sign, start, end, fill in bars:
            ax.barh(row, end - start, left=start, height=0.8, color=STATES[sign][1])
            if sign == "#" and fill is not None and end - start > shortest:
                _write(ax, (start + end) / 2, row, str(fill))
    stores = store_bars(events)
    for start, end in stores:
        ax.barh(len(stages), end - start, left=start, height=0.4, color=STORING[1])
    for name, colour in [*STATES.values(), *[STORING] * bool(stores)]:
        ax.barh(0, 0, color=colour, label=name)
    names = [f"stage {row}" for row in stages] + ["stores"] * bool(stores)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("simulator step", **TEXT)
    ax.set_title(f"{first[1]}, block {events[0].block}", loc="left", **TEXT)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8)
    return _plain(ax)


Bar = tuple[str, int, int, int | None]  # sign, first step, step after the last, number of the fill


def stage_bars(events: list[Event], pipeline: str) -> dict[int, list[Bar]]:
    """Return the bars of each stage, for every state but free."""
    changes: dict[int, list[tuple[str, int, int | None]]] = {}
    fills = 0
    for event in events:
        match = _STAGE.fullmatch(event.label)
        if not match or match[3] != pipeline or (event.kind, match[1]) not in _STATES:
            continue
        sign, stage = _STATES[event.kind, match[1]], changes.setdefault(int(match[2]), [])
        if stage and stage[-1][0] == sign:  # another copy of the same fill, or another reader
            continue
        # A stage may be full without a load: it signals a queue's end.
        fill = fills if sign == ">" else stage[-1][2] if stage and sign != "." else None
        fills += sign == ">"
        stage.append((sign, event.time, fill))
    end = (".", events[-1].time, None)
    return {
        row: [
            (sign, at, until, fill)
            for (sign, at, fill), (_, until, _) in pairwise([*stage, end])
            if sign != "."
        ]
        for row, stage in sorted(changes.items())
    }


def store_bars(events: list[Event]) -> list[tuple[int, int]]:
    """Return the intervals with at least one store in flight."""
    in_flight, bars = 0, []
    for event in events:
        if event.kind == "store":
            if in_flight == 0:
                start = event.time
            in_flight += 1
        elif event.kind == "store_done":
            in_flight -= 1
            if in_flight == 0:
                bars.append((start, event.time))
    return bars


def _row_range(rows: DeviceArray) -> str:
    first, last = rows.min(), rows.max()
    return str(first) if first == last else f"{first}-{last}"


def _new_axes(width: float, height: float) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install matplotlib") from error
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def _write(ax: Axes, x: float, y: float, text: str) -> None:
    ax.text(x, y, text, ha="center", va="center", **TEXT | {"fontsize": 8})


def _plain(ax: Axes) -> Axes:
    """Remove the frame and the tick marks."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=8, labelcolor=TEXT["color"])
    return ax
