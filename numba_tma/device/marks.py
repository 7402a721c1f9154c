"""`mark`: ranges of the user in traces; and the points at which bodies tell a trace of themselves.

Outside of a trace none of these adds an instruction to a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    device_function,
    native,
    u32,
)
from numba_tma.host.debug import Site


@device_class(static=("name",))
@dataclass(frozen=True)
class Mark:
    """A range that `mark` began."""

    name: str
    begun: u32  # units of two cycles, or steps of the simulator; 0 outside of a trace

    def enters(self) -> bool:
        """Return True: every thread executes the scope of a mark."""
        return True

    def close(self) -> None:
        """End the range."""
        end_mark(self.name, self.begun)


@device_function
def mark(name: Constant[str]) -> Mark:
    """Begin a range that a trace shows under `name`, a literal; ``close()`` ends it.

    ::

        step = tma.mark("softmax")
        ...
        step.close()

    or under ``@tma.scopes``, as a ``with`` block::

        with tma.mark("softmax"):
            ...

    Executed by any threads; a trace keeps one range a warp. It orders nothing. A kernel without a
    trace has no instruction of it.
    """
    check_name(name)
    return Mark(name, now())


@compile_time
def check_name(name: str) -> None:
    """Raise unless a mark's name is known when the kernel is compiled."""
    if isinstance(name, Unknown) or not isinstance(name, str):
        raise simulator.BadOperand(
            f"mark({name if isinstance(name, Unknown) else repr(name)}): the name of a range is a "
            'literal string, as in tma.mark("softmax")'
        )


@native
def now() -> int:
    """Return the time at which a range begins."""
    return simulator.trace_step()


@native
def end_mark(name: str, begun: int) -> None:
    """Put a range of the user into the trace, if there is one."""
    simulator.trace_range("mark", name, begun)


@native
def waited_for_flag(site: Site, begun: int) -> None:
    """Put a wait for a flag into the trace, if there is one."""
    simulator.trace_range("flag", site.what, begun)


@native
def begin_tile(number: int) -> None:
    """Put the begin of a scheduler's tile into the trace, if there is one."""
    simulator.trace_range("tile", str(int(number)), simulator.trace_step())
