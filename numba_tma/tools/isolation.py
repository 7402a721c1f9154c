"""Run code that may hang in a process of its own, with a time limit."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def run_isolated(
    function: Callable[..., Any] | str,
    *args: Any,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Call a function in a fresh process with a time limit.

    Parameters
    ----------
    function
        A function, or Python source that sees `args` and leaves its value in `result`. A function
        of a notebook, of a script's ``__main__`` or inside of another function travels as its code,
        with the globals that it names; every other one is imported by its name.
    *args
        Passed on; they and the returned value travel by pickle.
    timeout
        Seconds, the start of Python included. Then the process and all its children are killed.
    env
        Environment variables to set on top of this process's own.

    Returns
    -------
    Any
        What the function returned.

    Raises
    ------
    TimeoutError
        "... timed out after N s", with where the process stood.
    ChildProcessError
        When the process died (signal, `sys.exit`), with its last output.
    Exception
        What the function raised, with the process's traceback as a note.
    """
    name = "the source" if isinstance(function, str) else function.__qualname__
    address = address_of(function)
    with tempfile.TemporaryDirectory() as folder:
        answer, output = Path(folder, "answer"), Path(folder, "output")
        with open(output, "wb") as log:
            child = subprocess.Popen(
                # -u: printed lines must survive a kill
                [sys.executable, "-u", "-c", f"from {__name__} import _child; _child()"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A session of its own is a process group that can be killed as a whole.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
            )
            try:
                child.communicate(pickle.dumps((str(answer), timeout, address, args)), timeout)
            except subprocess.TimeoutExpired:
                _kill_group(child)
                raise TimeoutError(
                    f"{name} timed out after {timeout:g} s and was killed{_last_output(output)}"
                ) from None
            finally:
                _kill_group(child)
        if not answer.exists():
            status = child.returncode
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise ChildProcessError(f"{name} ended with {how}{_last_output(output)}")
        sys.stdout.write(output.read_text(errors="replace"))
        returned, value, trace = pickle.loads(answer.read_bytes())
    if returned:
        return pickle.loads(value)
    error: Exception = pickle.loads(value)
    error.add_note(f"Raised in the process of run_isolated({name}):\n{trace}")
    raise error


#: Where a process finds a function: source, module and name, or its pickled code.
Address = str | tuple[str, str] | bytes


def address_of(function: Callable[..., Any] | str) -> Address:
    """Return how another process finds a function; one that it cannot import is pickled."""
    if isinstance(function, str):
        return function
    module, qualname = function.__module__, function.__qualname__
    if module != "__main__" and "<" not in qualname:  # "<locals>" or "<lambda>"
        return module, qualname
    from numba_tma.simulator.shipping import ship

    return ship(function)


def found_at(address: Address) -> Callable[..., Any]:
    """Return the function that has an address."""
    if isinstance(address, bytes):
        (shipped,) = pickle.loads(address)
        return shipped  # type: ignore[no-any-return]
    if isinstance(address, str):
        return functools.partial(_execute, address)
    module, qualname = address
    found: Any = functools.reduce(getattr, qualname.split("."), importlib.import_module(module))
    return found  # type: ignore[no-any-return]


def _execute(source: str, *args: Any) -> Any:
    names: dict[str, Any] = {"args": args}
    exec(compile(source, "<isolated source>", "exec"), names)
    return names.get("result")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _last_output(path: Path) -> str:
    text = path.read_text(errors="replace").strip()
    return f"; its last output:\n{text[-4000:]}" if text else " without output"


def _child() -> None:
    """Run the job that `run_isolated` wrote to standard input."""
    answer, timeout, address, args = pickle.loads(sys.stdin.buffer.read())
    # Print where it hangs before the parent kills it.
    faulthandler.dump_traceback_later(0.9 * timeout, exit=False)
    try:
        returned, value, trace = True, pickle.dumps(found_at(address)(*args)), ""
    except Exception as error:
        returned, value, trace = False, pickle.dumps(sendable(error)), traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    partial = Path(f"{answer}.partial")
    partial.write_bytes(pickle.dumps((returned, value, trace)))
    partial.rename(answer)


def sendable(error: BaseException) -> BaseException:
    """Return an error as the other end of a pipe has it: what does not pickle is its text."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
