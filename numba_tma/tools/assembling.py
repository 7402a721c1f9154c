"""What a kernel tells the GPU: its PTX, what ptxas says of it, and the machine code."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba_tma.host.annotations import ComputeCapability, Signature
from numba_tma.host.environment import check_compiles

_TOOL_SECONDS = 300
_PTX_OPTIONS = ("debug", "lineinfo", "device", "fastmath", "opt", "forceinline", "launch_bounds")


def compile_ptx(
    kernel: Callable[..., Any],
    signature: Signature,
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
    check_compiles("compile_ptx")
    from numba import cuda

    from numba_tma.backend.compiler import compiling_for

    decorated: dict[str, Any] = getattr(kernel, "targetoptions", {})
    chosen = {name: decorated[name] for name in _PTX_OPTIONS if name in decorated} | options
    # Numba compiles Python-bodied device functions (jit(device=True), overloads) for the current
    # device, and not for `cc`.
    cc = (*cc, "") if len(cc) == 2 else cc  # two parts stand for a GPU's own target
    with compiling_for(cc):
        ptx, _ = cuda.compile_ptx(getattr(kernel, "py_func", kernel), signature, cc=cc, **chosen)
    return str(ptx)


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

    @functools.cache
    def renamed(word: str) -> str:
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

    return [
        re.sub(r"%?[\w$]+", lambda match: renamed(match.group()), statement)
        for statement in statements
    ]


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
    return *_assembled(tool, ptx, arch, options), arch


@functools.lru_cache(maxsize=8)  # a report is often followed by the machine code
def _assembled(tool: str, ptx: str, arch: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the cubin and ptxas's log."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [tool, "-v", f"-arch={arch}", *options, str(source), "-o", str(cubin)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TOOL_SECONDS
        )
        log = (done.stdout + done.stderr).replace(str(source), "kernel.ptx")
        if done.returncode == 0:
            return cubin.read_bytes(), log
    named = set(re.findall(r"kernel\.ptx, line (\d+)", log))
    lines = enumerate(ptx.splitlines(), start=1)
    quoted = [f"  {number}: {line.strip()}" for number, line in lines if str(number) in named]
    raise PtxasError("\n".join([f"ptxas -arch={arch}: {log.strip()}", *quoted]))
