"""Fibers: stacks of one operating-system thread, of which one runs until it switches to another."""

from greenlet import getcurrent as running_fiber
from greenlet import greenlet as Fiber

__all__ = ["Fiber", "running_fiber"]
