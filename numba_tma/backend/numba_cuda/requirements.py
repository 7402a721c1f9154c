"""The requirements of a compiled kernel on its launches, written into its PTX and read from it.

A kernel from numba-cuda's cache is its PTX and nothing else, so its requirements are kept in the
PTX, in the names of its shared variables. A name costs nothing. A comment needs an assembler
statement, which LLVM may not move, and which splits the basic block around it. Clusters and
setmaxnreg are directives and instructions of the PTX. A kernel without PTX (`symbols`) states the
same in LLVM's text, clusters by metadata. No other module of the library reads either text.
"""

from __future__ import annotations

import re
from typing import Any

from numba.cuda.core.errors import TypingError

from numba_tma.host import debug
from numba_tma.host.launch_rules import Requirements

_PREFIX = "numba_tma_"


def shared_symbol(requirement: str, owner: str, number: int) -> str:
    """Return the name of a function's shared allocation, which states a requirement on launches.

    "ring384": blocks of the roles' 384 threads. "ring": two whole warps or more. "line": whole
    warps in one dimension. "shared": no requirement. NVVM links a kernel's functions into one
    module, so `owner` and `number` make the name unique.
    """
    return f"{_PREFIX}{requirement}_{owner}_{number}"


def requirements_of(kernel: Any) -> Requirements:
    """Return the requirements of a compiled kernel."""
    if not hasattr(kernel, "numba_tma_requirements"):
        kernel.numba_tma_requirements = read(kernel._codelibrary.get_asm_str())
    found: Requirements = kernel.numba_tma_requirements
    return found


def read(text: str) -> Requirements:
    """Return the requirements that a kernel's PTX states, or its text of LLVM."""
    # A pattern that begins with the plain prefix is searched for faster than one with `\b`.
    stated = set(re.findall(rf"{_PREFIX}(?<!\w{_PREFIX})(ring\d*|line)_", text))
    directive = re.search(r"\.reqnctapercluster (\d+), (\d+), (\d+)", text)
    cluster = directive.groups() if directive else re.findall(r'"cluster_dim_\w", i32 (\d+)', text)
    return Requirements(
        blocks=frozenset(int(s[4:] or 0) for s in stated if s.startswith("ring")),
        line="line" in stated,
        cluster=(int(cluster[0]), int(cluster[1]), int(cluster[2])) if cluster else None,
        watched=debug.MARKER in text,
    )


def check_registers(ptx: str) -> None:
    """Raise if ptxas would drop a kernel's setmaxnreg."""
    if "setmaxnreg" in ptx and not re.search(r"\.minnctapersm|\.maxnreg", ptx):
        raise TypingError(
            "a kernel moves registers (Role.set_registers or setmaxnreg) in a function that it "
            "calls, and has no launch bounds of its own, without which the assembler drops that: "
            "give @cuda.jit(launch_bounds=ROLES.launch_bounds)"
        )
    _check_register_sum(ptx)


def _check_register_sum(ptx: str) -> None:
    """Raise if a setmaxnreg.inc asks for more registers than all other warps can release.

    The PTX does not show which warpgroup executes which setmaxnreg. So every other warp is assumed
    to keep the fewest registers that any of them keeps.
    """
    moved = re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s+(\d+)", ptx)
    threads = re.search(r"\.maxntid\s+(\d+)", ptx)
    most = max((int(n) for change, n in moved if change == "inc"), default=0)
    if not most or not threads or int(threads[1]) < 128:
        return
    block = int(threads[1])
    launch = min(256, 65536 // block // 8 * 8)
    kept = min([launch, *(int(n) for change, n in moved if change == "dec")])
    others = block - 128
    if most * 128 + kept * others > 65536:
        total = most * 128 + kept * others
        raise TypingError(
            f"setmaxnreg.inc to {most} can never be had: {most} x 128 + {kept} x {others} (that "
            f"the other threads keep at least) = {total:,} registers, and an SM has 65,536, so it "
            "waits for ever: ask for fewer, or let other warpgroups give back more by "
            "setmaxnreg_dec"
        )


def has_dynamic_shared(ptx: str) -> bool:
    """Return whether a kernel has shared memory whose size its launch gives."""
    return ".extern .shared" in ptx
