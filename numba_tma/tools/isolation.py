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
        A module-level function, or Python source that sees `args` and leaves its value in `result`.
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
    name, job = _describe(function)
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
                child.communicate(pickle.dumps((str(answer), timeout, job, args)), timeout)
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


def _describe(function: Callable[..., Any] | str) -> tuple[str, str | tuple[str, str]]:
    """Return a name for messages, and the address by which the child finds the function."""
    if isinstance(function, str):
        return "the source", function
    module, qualname = function.__module__, function.__qualname__
    if module == "__main__" or "<" in qualname:  # "<locals>" or "<lambda>"
        raise ValueError(
            f"{module}.{qualname} cannot be found by a fresh process, which imports the function "
            f"by its name: move it to the top level of a module, or pass its source as text"
        )
    return qualname, (module, qualname)


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
    answer, timeout, job, args = pickle.loads(sys.stdin.buffer.read())
    # Print where it hangs before the parent kills it.
    faulthandler.dump_traceback_later(0.9 * timeout, exit=False)
    try:
        returned, value, trace = True, pickle.dumps(_call(job, args)), ""
    except Exception as error:
        returned, value, trace = False, _pickled_error(error), traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    partial = Path(f"{answer}.partial")
    partial.write_bytes(pickle.dumps((returned, value, trace)))
    partial.rename(answer)


def _call(job: str | tuple[str, str], args: tuple[Any, ...]) -> Any:
    if isinstance(job, str):
        names: dict[str, Any] = {"args": args}
        exec(compile(job, "<isolated source>", "exec"), names)
        return names.get("result")
    module, qualname = job
    function = functools.reduce(getattr, qualname.split("."), importlib.import_module(module))
    return function(*args)  # type: ignore[operator]


def _pickled_error(error: Exception) -> bytes:
    try:
        pickle.loads(pickled := pickle.dumps(error))
        return pickled
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
