"""Fibers: stacks of which one runs until it switches to another.

They are greenlets. Where greenlet is not installed they are operating-system threads, with the same
methods; a simulation then takes twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_tma.simulator.thread_fibers import Fiber, running_fiber
else:
    try:
        from greenlet import getcurrent as running_fiber
        from greenlet import greenlet as Fiber
    except ImportError:
        from numba_tma.simulator.thread_fibers import Fiber, running_fiber

__all__ = ["Fiber", "running_fiber"]
