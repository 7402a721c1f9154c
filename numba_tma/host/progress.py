"""A line that says how far long work is: on terminals and in notebooks, and nowhere else."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

WIDTH = 78
#: Seconds before a line is shown, and from one text to the next.
AFTER, EVERY = 2.0, 0.25


def is_watched() -> bool:
    """Return whether someone sees stderr as it is written."""
    stream = sys.stderr
    if stream is None or getattr(stream, "closed", False):  # of a process without a console
        return False
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")


class ProgressLine:
    """A line on stderr that overwrites itself, once the work has taken two seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + AFTER if is_watched() else float("inf")
        self._shown = False

    def show(self, text: str) -> None:
        """Show a text, unless the last one is young."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._shown = now + EVERY, True
            sys.stderr.write(f"\r{text[:WIDTH]:<{WIDTH}}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write(f"\r{'':<{WIDTH}}\r")
            sys.stderr.flush()


@contextlib.contextmanager
def ticking(text: str) -> Iterator[None]:
    """Show a text and the seconds that the block has taken, once these are two."""
    if not is_watched():
        yield
        return
    line, start, done = ProgressLine(), time.monotonic(), threading.Event()

    def tick() -> None:
        while not done.wait(EVERY):
            line.show(f"{text}, {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        line.clear()
