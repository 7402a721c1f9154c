"""Pictures: the layout of a tile in shared memory, and a pipeline's stages over time.

They need matplotlib, which is imported when a picture is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.layout import Tile
from numba_tma.simulator.trace import _STAGE, _STATES, Event, EventTrace
from numba_tma.tools.trace import Trace, TracedLaunch
from numba_tma.tools.trace.facts import fills_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IntArray = np.ndarray[Any, np.dtype[np.int64]]
CHUNK = 16  # bytes that a swizzle moves as one
LINE = 128  # bytes that all 32 banks hold side by side
GROUPS = LINE // CHUNK
MAX_LINES = 16  # every swizzle repeats after 8 lines
TEXT = {"fontsize": 9, "color": "#303030"}
#: Meanings and colours of the signs of `EventTrace.timeline`; "." is free and not drawn.
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


def timeline(
    trace: EventTrace | Trace,
    ax: Axes | None = None,
    pipelines: str | Sequence[str] | None = None,
) -> Axes:
    """Draw the states of pipelines' stages over time, in the first block of a trace that ran one.

    One bar per stage and state: loading, full, and being read until all readers have released
    it. The numbers count the fills in the order of their loads. Below lie the stores that were in
    flight, where the trace knows of their end. A GPU does not say when a stage became full: there,
    "loading" lasts until the first reader has seen it.

    Parameters
    ----------
    trace
        What `numba_tma.trace` or `numba_tma.simulator.record` recorded. Times are nanoseconds of a
        GPU, or the simulator's steps, which tell the order of things and not how long a GPU takes.
    ax
        Where to draw; a new figure if None.
    pipelines
        Parts of the names of pipelines, in the order in which they are drawn: ``"KVPipeline"``, or
        ``("holds='k'", "holds='v'")``. None: the first one that was used.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        If no pipeline ran while the trace was recorded, or none has such a name.
    """
    block, unit, found, stores = _first_block(trace)
    chosen = _chosen(found, pipelines)
    rows = [(name, stage, bars) for name in chosen for stage, bars in found[name].items()]
    if ax is None:
        ax = _new_axes(9.0, 1.2 + 0.42 * (len(rows) + len(chosen) - 1))
    ends = [end for *_, bars in rows for _, _, end, _ in bars] or [1]
    starts = [start for *_, bars in rows for _, start, _, _ in bars] or [0]
    shortest = (max(ends) - min(starts)) / 80  # bar that has room for a number
    place, places, names = 0.0, [], []
    for number, (name, stage, bars) in enumerate(rows):
        if number and name != rows[number - 1][0]:
            place += 0.6  # between two pipelines
        for sign, start, end, fill in bars:
            ax.barh(place, end - start, left=start, height=0.8, color=STATES[sign][1])
            if sign == "#" and fill is not None and end - start > shortest * len(str(fill)):
                _write(ax, (start + end) / 2, place, str(fill))
        places.append(place)
        short = f"{_short(name)} " if len(chosen) > 1 else ""
        names.append(f"{short}stage {stage}")
        place += 1
    for start, end in stores:
        ax.barh(place, end - start, left=start, height=0.4, color=STORING[1])
    if stores:
        places.append(place)
        names.append("stores")
    for name, colour in [*STATES.values(), *[STORING] * bool(stores)]:
        ax.barh(0, 0, color=colour, label=name)
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.set_xlabel(unit, **TEXT)
    title = f"{chosen[0]}, block {block}" if len(chosen) == 1 else f"block {block}"
    ax.set_title(title, loc="left", pad=22, **TEXT)  # the legend has a line of its own below it
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)
    return _plain(ax)


def _chosen(found: dict[str, Stages], pipelines: str | Sequence[str] | None) -> list[str]:
    """Return the names of the pipelines that are drawn."""
    if pipelines is None:
        return [next(iter(found))]
    chosen: list[str] = []
    for part in [pipelines] if isinstance(pipelines, str) else pipelines:
        matching = [name for name in found if part in name]
        if not matching:
            raise ValueError(
                f"timeline(): no pipeline has {part!r} in its name; there are: {', '.join(found)}"
            )
        chosen += [name for name in matching if name not in chosen]
    return chosen


def _short(name: str) -> str:
    """Return what tells a pipeline from others, in a few letters."""
    held = re.search(r"holds='(\w+)'", name)
    return held[1] if held else name.partition("(")[0].removesuffix("Pipeline")


def _first_block(
    trace: EventTrace | Trace,
) -> tuple[Any, str, dict[str, Stages], list[tuple[float, float]]]:
    """Return the first block with a pipeline: its index, the unit of times, stages and stores."""
    if isinstance(trace, EventTrace):
        first = next((e.run for e in trace.events if _STAGE.fullmatch(e.label)), None)
        if first is not None:
            events = [event for event in trace.events if event.run == first]
            names = dict.fromkeys(m[3] for e in events if (m := _STAGE.fullmatch(e.label)))
            found: dict[str, Stages] = {name: stage_bars(events, name) for name in names}
            return events[0].block, "simulator step", found, list(store_bars(events))
    else:
        for launch in trace.launches:
            for block in launch.blocks:
                names = dict.fromkeys(
                    s.pipeline for s in launch.of("load", "full") if s.block == block and s.pipeline
                )
                found = {name: _bars_of_fills(launch, name, block) for name in names}
                if any(found.values()):
                    unit = "simulator step" if launch.unit == "steps" else launch.unit
                    return block, unit, {n: bars for n, bars in found.items() if bars}, []
    raise ValueError(
        "timeline(): the trace has no pipeline stage: launch a kernel with a TilePipeline inside "
        "`with tma.trace() as trace`, or inside `with simulator.record() as trace`, with "
        "NUMBA_ENABLE_CUDASIM=1 set before Python starts"
    )


def _bars_of_fills(launch: TracedLaunch, pipeline: str, block: tuple[int, int, int]) -> Stages:
    """Return the bars of each stage of a pipeline."""
    stages: Stages = {}
    end = max(span.end for span in launch.spans if span.block == block)
    for number, fill in enumerate(fills_of(launch, pipeline, block)):
        bars = stages.setdefault(fill.stage, [])
        full = end if fill.full is None else fill.full
        bars.append((">", fill.issued, full, number))
        if fill.full is not None:
            bars.append(("#", full, end if fill.released is None else fill.released, number))
    return dict(sorted(stages.items()))


#: Sign, begin, end, number of the fill.
Bar = tuple[str, float, float, int | None]
Stages = dict[int, list[Bar]]


def stage_bars(events: list[Event], pipeline: str) -> Stages:
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
    # Clipped: what a reader zooms away needs no room.
    ax.text(x, y, text, ha="center", va="center", clip_on=True, **TEXT | {"fontsize": 8})


def _plain(ax: Axes) -> Axes:
    """Remove the frame and the tick marks."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=8, labelcolor=TEXT["color"])
    return ax
