"""`trace`: what every warp of some blocks does and when, on a GPU or in the simulator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numba_tma.host import tracing
from numba_tma.host.backend import traced_kernels
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.memo import forget_all
from numba_tma.simulator.trace import record
from numba_tma.tools.trace.chrome import events_of
from numba_tma.tools.trace.chrome import launches_of as read
from numba_tma.tools.trace.recording import GpuRecorder, takes
from numba_tma.tools.trace.simulation import launches_of
from numba_tma.tools.trace.spans import Span as Span
from numba_tma.tools.trace.spans import TracedLaunch as TracedLaunch
from numba_tma.tools.trace.summary import Summary as Summary
from numba_tma.tools.trace.summary import counted
from numba_tma.tools.trace.verdicts import Verdict as Verdict

_MEGABYTES = 16


class Trace:
    """The launches that `trace` has recorded. In Jupyter it is a picture of the first one."""

    def __init__(self) -> None:
        self.launches: list[TracedLaunch] = []
        self.left_out: dict[str, int] = {}  #: by kernel: launches beyond the limit

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the Chrome trace event format, for Perfetto or chrome://tracing."""
        content = json.dumps(events_of(self.launches), separators=(",", ":"))
        Path(path).write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Return the trace of a file that `save` has written; a ValueError says that it is none."""
        found = cls()
        try:
            found.launches = read(json.loads(Path(path).read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"Trace.load({str(path)!r}): it is no JSON: {error}") from None
        except ValueError as error:
            raise ValueError(f"Trace.load({str(path)!r}): {error}") from None
        return found

    def summary(self) -> Summary:
        """Return where the time went, and what limits each launch; its text is a table.

        ``summary.verdicts`` has the limits, each with the share of time that it is about.
        """
        return Summary(tuple(self.launches), self.left_out)

    def __repr__(self) -> str:
        spans = sum(len(launch.spans) for launch in self.launches)
        names = ", ".join(dict.fromkeys(launch.kernel for launch in self.launches))
        return (
            f"<trace of {counted(len(self.launches), 'launch', 'es')} ({names}): {spans:,} spans>"
        )


def _keep(trace: Trace, launches: list[TracedLaunch], most: int | None) -> None:
    """Put launches into a trace, of each kernel at most so many."""
    for launch in launches:
        if takes(trace, launch.kernel, most):
            trace.launches.append(launch)


@contextmanager
def trace(
    *, blocks: int | range = 4, megabytes: float = _MEGABYTES, launches: int | None = None
) -> Iterator[Trace]:
    """Record what the kernels do that this thread launches inside of the ``with`` block.

    ::

        with tma.trace() as trace:
            kernel[grid, block](x_map, y_map, n)
        trace                           # in Jupyter: a picture
        print(trace.summary())          # where the time goes, and what limits the kernel
        trace.save("run.json")          # for Perfetto

    Each wait, load, store, release, meeting and product of the library is a span, and so are the
    ranges of `mark`. The kernel's source stays as it is: it is compiled once more, with records in
    it, and launched in the other one's place. The package's own functions, such as `matmul`, are
    traced, too. Without a trace, kernels have no instruction of it.

    Each launch waits for the kernel's end. A record costs the warp that writes it some 40 ns;
    blocks that are not traced jump over it. Times are of the GPU's clocks, laid on its timer, which
    all multiprocessors share. In the simulator they are its steps.

    ``NUMBA_TMA_TRACE=run.json`` traces a whole process, in the thread that imports the library;
    ``%p`` in the name becomes the process's number. ``python -m numba_tma explain script.py`` runs
    a script so and prints the summary.

    Parameters
    ----------
    blocks
        How many blocks are traced, at equal distances in the grid, or a range of their linear
        indices. A cluster is traced as a whole.
    megabytes
        Memory for the records of a launch. Each warp keeps its newest records in a ring; the trace
        says how many older ones were dropped.
    launches
        Launches of each kernel that are recorded; the trace counts the others. None: all.

    Yields
    ------
    Trace
        Complete at the end of the block.

    Raises
    ------
    ValueError
        If the megabytes do not have room for some records of each warp.
    RuntimeError
        If a launch is captured into a graph. What an exported kernel does is not recorded.
    """
    if isinstance(blocks, bool) or not isinstance(blocks, int | range) or not blocks:
        raise ValueError(f"trace(blocks={blocks!r}): give a number of blocks from 1 on, or a range")
    if min(blocks.start, blocks.step - 1) < 0 if isinstance(blocks, range) else blocks < 1:
        raise ValueError(f"trace(blocks={blocks!r}): give a number of blocks from 1 on, or a range")
    if launches is not None and launches < 1:
        raise ValueError(f"trace(launches={launches!r}): give a number from 1 on, or None for all")
    if not 0 < megabytes <= 1 << 16:
        raise ValueError(f"trace(megabytes={megabytes!r}): give more than 0, and at most 65536")
    found = Trace()
    if simulated():
        with record() as events:
            try:
                yield found
            finally:
                _keep(found, launches_of(events), launches)
        return
    recorder = GpuRecorder(found, blocks, int(megabytes * (1 << 20)), launches)
    try:
        with tracing.recording(recorder), traced_kernels().tracing_launches():
            yield found
    finally:
        forget_all()  # prepared launches of the package's functions are of traced kernels
