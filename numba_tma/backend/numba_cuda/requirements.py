"""What a compiled kernel asks of its launches: stated in its PTX, and read from there.

A kernel that comes from a cache is its PTX and nothing else, so that is where a requirement is
kept: in the name of the shared memory that it comes with. A name costs nothing, whereas a comment
(of an assembler statement, which LLVM must not move) splits the blocks around it. What the PTX says
by itself, clusters and setmaxnreg, is read from there. Nothing else in the library reads PTX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from numba.cuda.core.errors import TypingError

from numba_tma.host import debug

_PREFIX = "numba_tma_"


@dataclass(frozen=True)
class Requirements:
    """What the launches of a kernel must have, or must do."""

    #: Threads of the roles of its pipelines; 0 where none are named: any whole warps, two or more.
    blocks: frozenset[int]
    #: Whether the block is one-dimensional, of whole warps, since all of it copies tiles.
    line: bool
    #: Blocks of a cluster along x, y and z.
    cluster: tuple[int, ...] | None
    #: Whether it may leave records, for one process's buffer.
    watched: bool


def shared_symbol(requirement: str, owner: str, number: int) -> str:
    """Return the name of a function's shared allocation that comes with a requirement.

    "ring384": blocks of 384 threads, those of the roles; "ring": whole warps, two or more; "line":
    whole warps in one dimension; "shared": nothing. NVVM links a kernel's functions into one
    module: `owner` and `number` make the name the function's own.
    """
    return f"{_PREFIX}{requirement}_{owner}_{number}"


def requirements_of(kernel: Any) -> Requirements:
    """Return the requirements of a compiled kernel."""
    if not hasattr(kernel, "numba_tma_requirements"):
        kernel.numba_tma_requirements = read(kernel._codelibrary.get_asm_str())
    found: Requirements = kernel.numba_tma_requirements
    return found


def read(ptx: str) -> Requirements:
    """Return the requirements that a kernel's PTX states."""
    stated = set(re.findall(rf"\b{_PREFIX}(ring\d*|line)_", ptx))
    cluster = re.search(r"\.reqnctapercluster (\d+), (\d+), (\d+)", ptx)
    return Requirements(
        blocks=frozenset(int(s[4:] or 0) for s in stated if s.startswith("ring")),
        line="line" in stated,
        cluster=tuple(map(int, cluster.groups())) if cluster else None,
        watched=debug.MARKER in ptx,
    )


def check_registers(ptx: str) -> None:
    """Raise if ptxas would drop the setmaxnreg of a kernel, which then waits for registers."""
    if "setmaxnreg" in ptx and not re.search(r"\.minnctapersm|\.maxnreg", ptx):
        raise TypingError(
            "a kernel moves registers (Role.set_registers or setmaxnreg) in a function that it "
            "calls, and has no launch bounds of its own, without which the assembler drops that: "
            "give @cuda.jit(launch_bounds=ROLES.launch_bounds)"
        )
    _check_register_sum(ptx)


def _check_register_sum(ptx: str) -> None:
    """Raise if a warpgroup asks for registers that the others cannot give back, whatever they do.

    Which warpgroup executes which setmaxnreg is not known, so all others are taken to keep no more
    than any of them does.
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
    if most > launch and most * 128 + kept * others > 65536:
        total = most * 128 + kept * others
        raise TypingError(
            f"setmaxnreg.inc to {most} can never be had: {most} x 128 + {kept} x {others} (that "
            f"the other threads keep at least) = {total:,} registers, and a multiprocessor has "
            "65,536, so it waits for ever: ask for fewer, or let other warpgroups give back more "
            "by setmaxnreg_dec"
        )
