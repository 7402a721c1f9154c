"""Test kernels without a GPU, and run code that may hang in a process with a time limit.

`compile_ptx` -> `ptxas` / `sass` / `instructions` show what a kernel tells the GPU on any machine.
`run_isolated` gives a callable a fresh process and a time limit: a kernel that traps loses only
that process's CUDA context, and one that hangs becomes a `TimeoutError`.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import pickle
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from numba_tma.host.environment import simulated
from numba_tma.host.process_bound import new_in_children

ComputeCapability = tuple[int, int] | tuple[int, int, str]

_TOOL_SECONDS = 300
#: Held while Numba's current device is another.
_substituting = new_in_children(threading.RLock)
_PTX_OPTIONS = ("debug", "lineinfo", "device", "fastmath", "opt", "forceinline", "launch_bounds")


@functools.cache
def gpu_available() -> bool:
    """Return whether device 0 has TMA. Asks the driver and creates no context."""
    if simulated():
        return False
    try:
        from cuda.core import Device

        return bool(Device(0).properties.tensor_map_access_supported)
    except Exception:  # no driver, no device and a broken installation each raise their own type
        return False


def skip_without_gpu() -> None:
    """Skip the calling test (pytest or unittest) where no GPU with TMA is present."""
    if not gpu_available():
        raise unittest.SkipTest("no GPU with TMA here; `python -m numba_tma doctor` says why")


def compile_ptx(
    kernel: Callable[..., Any],
    signature: Any,
    cc: ComputeCapability = (9, 0, "a"),
    **options: Any,
) -> str:
    """Compile a kernel to PTX without a GPU.

    Parameters
    ----------
    kernel
        A `@cuda.jit` kernel, whose decorator options are kept, or a plain function.
    signature
        The argument types: a tuple of Numba types, a signature, or its text.
    cc
        Compute capability, with "a" or "f" for the architecture- or family-specific target.
    **options
        Options of `numba.cuda.compile_ptx`; they override the decorator's.

    Returns
    -------
    str
        The PTX module.
    """
    if simulated():
        raise RuntimeError(
            "compile_ptx needs the compiler, and NUMBA_ENABLE_CUDASIM=1 has replaced it by the "
            "simulator: unset NUMBA_ENABLE_CUDASIM and start Python again"
        )
    from numba import cuda

    decorated: dict[str, Any] = getattr(kernel, "targetoptions", {})
    chosen = {name: decorated[name] for name in _PTX_OPTIONS if name in decorated} | options
    # Numba compiles Python-bodied device functions (jit(device=True), overloads) for the current
    # device, not for `cc`, and asks for that device at this one name.
    cc = (*cc, "") if len(cc) == 2 else cc  # two parts stand for a GPU's own target
    with _compiling_for(SimpleNamespace(compute_capability=cc)):
        ptx, _ = cuda.compile_ptx(getattr(kernel, "py_func", kernel), signature, cc=cc, **chosen)
    return str(ptx)


@contextmanager
def _compiling_for(device: object) -> Iterator[None]:
    """Let Numba take `device` for the current one, in this thread alone."""
    name = "numba.cuda.dispatcher.get_current_device"
    with _substituting:
        thread, current = threading.get_ident(), pkgutil.resolve_name(name)

        def answer() -> Any:
            return device if threading.get_ident() == thread else current()

        with mock.patch(name, answer):
            yield


def instructions(ptx: str) -> list[str]:
    """List the instructions of a module's kernel in a form that is the same for equal kernels.

    Registers, labels and symbols are numbered in order of first use, parameters are `param_N`;
    comments, directives and scope braces are left out. Labels stand as `L0:`.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*\.(?:loc|file)\b[^\n]*", "", ptx, flags=re.S | re.M)
    entries = [match.start() for match in re.finditer(r"\.entry\b", text)]
    if len(entries) != 1:
        raise ValueError(f"the PTX has {len(entries)} kernels (.entry); instructions() takes one")
    body = _braced(text, text.index("{", entries[0]))
    # Only declared prefixes are virtual registers: %clock64 and %tid.x keep their names.
    prefixes = set(re.findall(r"\.reg\s+\S+\s+%(\w+)<\d+>", body))
    statements = _statements(body)
    labels = {statement[:-1] for statement in statements if statement.endswith(":")}
    numbers: dict[str, dict[str, int]] = {}

    def rename(match: re.Match[str]) -> str:
        word = match.group()
        if parameter := re.fullmatch(r"_Z.*_(param_\d+)", word):
            return parameter.group(1)
        register = re.fullmatch(r"%(\D+)\d+", word)
        if register and register.group(1) in prefixes:
            kind = f"%{register.group(1)}"
        elif word in labels:
            kind = "L"
        elif word.startswith("_Z"):
            kind = "symbol_"
        else:
            return word
        seen = numbers.setdefault(kind, {})
        return f"{kind}{seen.setdefault(word, len(seen))}"

    return [re.sub(r"%?[\w$]+", rename, statement) for statement in statements]


def _braced(text: str, start: int) -> str:
    """Return the text between the brace at `start` and its closing brace."""
    depth = 0
    for match in re.finditer(r"[{}]", text[start:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return text[start + 1 : start + match.start()]
    raise ValueError("the PTX ends inside a kernel: a closing brace is missing")


def _statements(body: str) -> list[str]:
    """Split a PTX body into instructions and labels, without directives and scope braces."""
    found = []
    for match in re.finditer(r"\s*(?:[{}]|([\w$]+\s*:(?!:))|([^;]*);)", body):
        label, statement = match.groups()
        if label:
            found.append(re.sub(r"\s+", "", label))
        elif statement and not statement.startswith("."):
            found.append(re.sub(r"\s+", " ", re.sub(r"\s*,\s*", ", ", statement)).strip())
    return found


class PtxasError(RuntimeError):
    """ptxas refused the PTX; the message is ptxas's own, with the lines that it names."""


@dataclass(frozen=True)
class PtxasReport:
    """The report of ptxas on a module; the largest value if it holds several functions.

    Spills are summed. `warnings` holds ptxas's warnings and its numbered performance remarks
    (C7510: wgmma serialised, and the like).
    """

    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack_frame: int
    shared: int
    warnings: tuple[str, ...]


def find_tool(name: str) -> str | None:
    """Find a CUDA command line tool: NVIDIA's wheels, conda, CUDA_HOME, then PATH."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        return find_nvidia_binary_utility(name) or shutil.which(name)
    except Exception:  # older releases lack the function, or do not know the tool
        return shutil.which(name)


def ptxas(ptx: str, arch: str | None = None, *options: str) -> PtxasReport:
    """Assemble PTX and report registers, spills, stack frame and shared memory.

    Parameters
    ----------
    ptx
        The PTX module.
    arch
        Such as "sm_90a"; by default the module's own `.target`.
    *options
        Further ptxas options, such as "--maxrregcount=64".

    Raises
    ------
    PtxasError
        With ptxas's message when it refuses the module.
    """
    _, log, arch = _assemble(ptx, arch, *options)

    def values(pattern: str) -> list[int]:
        return [int(number) for number in re.findall(pattern, log)]

    return PtxasReport(
        arch=arch,
        registers=max(values(r"Used (\d+) registers"), default=0),
        spill_stores=sum(values(r"(\d+) bytes spill stores")),
        spill_loads=sum(values(r"(\d+) bytes spill loads")),
        stack_frame=max(values(r"(\d+) bytes stack frame"), default=0),
        shared=max(values(r"(\d+) bytes smem"), default=0),
        warnings=tuple(
            line for line in log.splitlines() if re.search(r"\bwarning\b|\(C\d+\)", line)
        ),
    )


def sass(ptx: str, arch: str | None = None, *options: str) -> str:
    """Assemble PTX and disassemble the machine code (nvdisasm's text); arguments as in `ptxas`."""
    nvdisasm = _required_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    cubin, _, _ = _assemble(ptx, arch, *options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [nvdisasm, "--print-code", str(path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=True
        )
    return done.stdout


def _required_tool(name: str, package: str) -> str:
    path = find_tool(name)
    if path is None:
        raise FileNotFoundError(
            f"{name} was not found in NVIDIA's wheels, CUDA_HOME or PATH: pip install {package}"
        )
    return path


def _assemble(ptx: str, arch: str | None, *options: str) -> tuple[bytes, str, str]:
    """Return the cubin, ptxas's log and the architecture."""
    tool = _required_tool("ptxas", "nvidia-cuda-nvcc")
    if arch is None:
        target = re.search(r"^\s*\.target\s+(\w+)", ptx, flags=re.M)
        if target is None:
            raise ValueError('the PTX names no .target: pass arch, such as arch="sm_90a"')
        arch = target.group(1)
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [tool, "-v", f"-arch={arch}", *options, str(source), "-o", str(cubin)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TOOL_SECONDS
        )
        log = (done.stdout + done.stderr).replace(str(source), "kernel.ptx")
        if done.returncode == 0:
            return cubin.read_bytes(), log, arch
    named = set(re.findall(r"kernel\.ptx, line (\d+)", log))
    lines = enumerate(ptx.splitlines(), start=1)
    quoted = [f"  {number}: {line.strip()}" for number, line in lines if str(number) in named]
    raise PtxasError("\n".join([f"ptxas -arch={arch}: {log.strip()}", *quoted]))


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
