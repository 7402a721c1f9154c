"""The compiler's process of a simulating one (`numba_tma.simulator.compiling`)."""

from __future__ import annotations

import os
import pickle
import re
import sys
import warnings

from numba_tma.backend.lowering.signatures import compiled_type
from numba_tma.host.architectures import capability_of
from numba_tma.simulator.compiling import Compiled
from numba_tma.simulator.signatures import ArgumentType
from numba_tma.tools.assembling import compile_ptx, find_tool, ptxas


def serve() -> None:
    """Compile the kernels that come on standard input until it ends."""
    # What a kernel's module prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_compile(job), answers)
        answers.flush()


def _compile(job: bytes) -> Compiled:
    try:
        kernel, arguments, target = pickle.loads(job)
    except Exception as error:
        return Compiled(
            error=f"the kernel cannot be made again in the compiler's process "
            f"({type(error).__name__}: {error}): a module that it needs is not imported there"
        )
    return compiled(kernel, arguments, target)


def compiled(kernel: object, arguments: tuple[ArgumentType, ...], target: str) -> Compiled:
    """Compile a kernel for a target, such as "90a", and assemble it where ptxas is found."""
    try:
        signature = tuple(map(compiled_type, arguments))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ptx = compile_ptx(kernel, signature, capability_of(target))  # type: ignore[arg-type]
        return Compiled(ptx, report=ptxas(ptx) if find_tool("ptxas") else None)
    except Exception as error:  # the compiler has many types of its own
        return Compiled(error=_plain(error))


def _plain(error: Exception) -> str:
    """Return an error's text without Numba's colours."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    return text or type(error).__name__
