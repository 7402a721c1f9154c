"""The compiler of a simulating process: a process of its own, since a process has one of the two.

The helper process starts with the first kernel and takes all of them, one after another. It ends
with this process, whose end closes the pipe that it reads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numba_tma.host.annotations import Kernel
from numba_tma.host.environment import compiled_target
from numba_tma.host.process_bound import new_in_children
from numba_tma.simulator.errors import NotCompiled
from numba_tma.simulator.shipping import ship
from numba_tma.simulator.signatures import ArgumentType, type_of

#: Seconds after which a compile counts as stuck; the largest kernels take 30.
_LIMIT = 600.0
_lock = new_in_children(threading.Lock)
_helper: subprocess.Popen[bytes] | None = None
_owner = 0  # the process that started the helper: a fork must not talk to its parent's
#: For each kernel's function, the answers by the types of the arguments and the target.
_answers: weakref.WeakKeyDictionary[Any, dict[bytes, Compiled]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a kernel for some arguments: its PTX, or its error."""

    ptx: str = ""
    error: str = ""
    report: object = None  #: ptxas's, where ptxas is found


def compile_launched(kernel: Kernel, arguments: Sequence[object]) -> None:
    """Raise the compiler's error of a kernel that is launched, if ``NUMBA_TMA_SIM_COMPILES``.

    Raises
    ------
    NotCompiled
        With the compiler's message; or because the kernel cannot be sent to the compiler.
    """
    if target := compiled_target():
        if error := compile_elsewhere(kernel, tuple(map(type_of, arguments)), target).error:
            raise NotCompiled(
                f"{kernel.__name__} does not compile for sm_{target} with these arguments: {error}"
            )


def compile_elsewhere(kernel: Kernel, types: tuple[ArgumentType, ...], target: str) -> Compiled:
    """Compile a kernel for arguments of these types in the helper process; ask once for each."""
    known = _answers.setdefault(kernel.py_func, {})
    try:
        asked = ship(types, target)
        if asked not in known:
            known[asked] = _ask(ship(kernel, types, target))
        return known[asked]
    except (TypeError, ChildProcessError) as error:  # it does not pickle, or there is no answer
        return Compiled(error=str(error))


def _ask(job: bytes) -> Compiled:
    with _lock:
        helper = _running()
        to, answers = helper.stdin, helper.stdout
        assert to and answers
        try:
            pickle.dump(job, to)
            to.flush()
            if not select.select([answers], [], [], _LIMIT)[0]:
                raise ChildProcessError(f"the compiler's process gave no answer in {_LIMIT:g} s")
            answer: Compiled = pickle.load(answers)
            return answer
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            _end()
            if isinstance(error, ChildProcessError):
                raise
            raise ChildProcessError(
                f"the compiler's process ended with exit status {helper.returncode}; "
                "its standard error has the reason"
            ) from None


def _running() -> subprocess.Popen[bytes]:
    """Return the helper; start one if there is none, or a fork has left it to the parent."""
    global _helper, _owner
    if _helper is None or _owner != os.getpid():
        _helper, _owner = _start(), os.getpid()
    return _helper


def _start() -> subprocess.Popen[bytes]:
    source = "from numba_tma.tools.compile_server import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Jupyter and terminals interrupt a whole group
        env={
            **os.environ,
            "NUMBA_ENABLE_CUDASIM": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )


@atexit.register
def _end() -> None:
    """End the helper, if it is this process's own."""
    global _helper
    helper, _helper = _helper, None
    if helper is None or _owner != os.getpid():
        return
    if helper.poll() is None:
        helper.kill()
    helper.wait()
    for pipe in (helper.stdin, helper.stdout):
        with contextlib.suppress(OSError):  # what was not flushed
            pipe.close()  # type: ignore[union-attr]
