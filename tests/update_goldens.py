"""Write ptx/kernels and the generated pages of docs, for ``make goldens``.

The golden of a kernel holds for one compiler, the one that constraints.txt pins.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from numba_tma.tools.testing import find_tool, instructions, ptxas
from tests import (
    api_page,
    explorer_facts,
    gallery_page,
    instruction_table,
    matrix_table,
    schedule_page,
    trace_page,
)
from tests.kernels.golden_kernels import GOLDENS, arch, compiled

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "ptx" / "kernels"


#: What a kernel's PTX and machine code depend on: name in the golden, name in constraints.txt.
COMPILER = {
    "numba": "numba",
    "llvmlite": "llvmlite",
    "numba-cuda": "numba-cuda",
    "NVVM": "nvidia-nvvm",
    "ptxas": "nvidia-cuda-nvcc",
}

#: The names of shared variables, which depend on what else was compiled.
SHARED = re.compile(r"\b(?:numba_tma_[a-z]+\d*_[0-9a-f]{8}_\d+|_cudapy_smem(?:_\d+)?)\b")


def path(name: str) -> Path:
    """Return where the golden of a kernel is."""
    return FOLDER / f"{name}.{arch(name)}.txt"


def pinned() -> dict[str, str]:
    """Return the versions that constraints.txt pins."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    return {name: versions[package] for name, package in COMPILER.items()}


@functools.cache
def installed() -> dict[str, str]:
    """Return the versions that are at work here; the tools are asked themselves."""
    found = {name: version(name) for name in ("numba", "llvmlite", "numba-cuda")}
    banner = compiled("copy_chunks")
    tool = subprocess.run([find_tool("ptxas"), "--version"], capture_output=True, text=True)
    for name, text in (("NVVM", banner), ("ptxas", tool.stdout)):
        found[name] = re.search(r"release [\d.]+, V([\d.]+)", text)[1]
    return found


def difference() -> str:
    """Say how the compiler at work here differs from the pinned one; empty if it does not."""
    here, there = installed(), pinned()
    return ", ".join(f"{n} is {here[n]}, not {there[n]}" for n in here if here[n] != there[n])


def skeleton(ptx: str) -> str:
    """Return a kernel's instructions, one to a line, labels at the margin.

    The numbers that Numba and the library give their shared variables depend on what else was
    compiled; here they count from 0.
    """
    text = SHARED.sub(_numbered(), "\n".join(instructions(ptx)))
    lines = text.splitlines()
    return "".join(f"{line}\n" if line.endswith(":") else f"    {line}\n" for line in lines)


def renamed(ptx: str) -> str:
    """Return PTX whose shared variables have names and an order that depend on the kernel alone.

    ptxas places shared variables in the order of their names' hashes, and of their declarations.
    """
    number = _numbered()
    for line in instructions(ptx):
        SHARED.sub(number, line)
    lines = SHARED.sub(number, ptx).splitlines()
    declared = [i for i, line in enumerate(lines) if line.startswith(".visible .shared")]
    for i, line in zip(declared, sorted(lines[i] for i in declared)):
        lines[i] = line
    return "\n".join(lines)


def _numbered() -> Callable[[re.Match[str]], str]:
    """Return a function that gives each shared variable a name by its first use."""
    shared: dict[str, str] = {}
    return lambda match: shared.setdefault(match[0], f"shared_{len(shared)}")


def golden(name: str) -> str:
    """Return what the golden of a kernel should say now."""
    ptx = compiled(name)
    # Goldens for Hopper were written from the names of one run, and keep their numbers.
    report = ptxas(ptx if arch(name) == "sm_90a" else renamed(ptx))
    compiler = ", ".join(f"{n} {v}" for n, v in installed().items())
    return (
        f"{name} for {arch(name)}, written by `make goldens`\n"
        f"{compiler}\n\n"
        f"registers            {report.registers}\n"
        f"bytes spilled        {report.spill_stores + report.spill_loads}\n"
        f"bytes of stack       {report.stack_frame}\n"
        f"bytes shared         {report.shared}\n\n"
        f"{skeleton(ptx)}"
    )


def main() -> None:
    """Write the pages and every golden, and remove those of kernels that are shipped no more."""
    pages = (
        *(api_page, instruction_table, matrix_table, schedule_page, gallery_page),
        *(explorer_facts, trace_page),
    )
    for page in pages:
        if page.write():
            print(f"wrote {page.FILE.relative_to(ROOT)}")
    if problem := difference():
        sys.exit(
            f"goldens hold for the compiler of constraints.txt, but here {problem}: install with "
            "`make test`, or change constraints.txt first"
        )
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.txt"):
        if file not in {path(name) for name in GOLDENS}:
            file.unlink()
            print(f"removed {file.relative_to(ROOT)}")
    for name in GOLDENS:
        text, file = golden(name), path(name)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
