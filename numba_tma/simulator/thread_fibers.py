"""The fibers of Python alone: operating-system threads, each of which waits for its turn.

The names, and what they do, are greenlet's.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

_local = threading.local()


class Fiber:
    """A stack with `run` at its bottom; what `run` returns goes to the fiber that made this one."""

    def __init__(self) -> None:
        self.parent = running_fiber()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._turn = threading.Lock()
        self._turn.acquire()
        self._given: Any = None
        #: Of a parent: the child that runs.
        self._running: Fiber = self
        self._raises: BaseException | None = None

    def __bool__(self) -> bool:
        """Return whether the fiber has begun and not ended."""
        return self._thread is not None and not self._ended

    def run(self) -> Any:
        """Do the fiber's work."""

    def switch(self, given: Any = None) -> Any:
        """Let this fiber run until another one switches back; return what that one gave."""
        caller = running_fiber()
        self._resume(given)
        caller._wait()
        if caller._raises is not None:
            error, caller._raises = caller._raises, None
            raise error
        return caller._given

    def throw(self, error: type[BaseException]) -> Any:
        """Switch to this fiber, which raises `error`."""
        self._raises = error()
        return self.switch()

    def _resume(self, given: Any) -> None:
        self._given = given
        self.parent._running = self
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._thread.start()
        else:
            self._turn.release()

    def _wait(self) -> None:
        self._turn.acquire()

    def _main(self) -> None:
        _local.fiber = self
        given = None
        try:
            given = self.run()
        except BaseException as error:  # the parent raises it
            self.parent._raises = error
        self._ended = True
        self.parent._resume(given)


class _Host(Fiber):
    """An operating-system thread that is no fiber's; fibers that it makes are its children."""

    def __init__(self) -> None:
        _local.fiber = self
        super().__init__()
        self._thread = threading.current_thread()

    def _wait(self) -> None:
        try:
            super()._wait()
        except KeyboardInterrupt:
            # Python interrupts its main thread alone, and the fiber that runs is meant.
            thread = self._running._thread
            assert thread is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
            super()._wait()


def running_fiber() -> Fiber:
    """Return the fiber that calls."""
    fiber: Fiber | None = getattr(_local, "fiber", None)
    return _Host() if fiber is None else fiber
