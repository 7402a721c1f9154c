"""Searches in machine code."""

from __future__ import annotations

import re
from collections.abc import Callable

from numba_tma.tools.testing import PtxasReport, instructions, ptxas, sass


def all_in_registers(ptx: str) -> PtxasReport:
    """Assert that nothing is in local memory, and return what ptxas says.

    It says so itself (C7508 to C7514) when it waits after each wgmma, or ignores setmaxnreg.
    Registers that threads give away are taken by others, unless each has the most that there are,
    as in blocks of two warpgroups; and none are taken that nobody gave.
    """
    given, taken = (f"setmaxnreg.{how}." in ptx for how in ("dec", "inc"))
    threads = re.search(r"\.maxntid (\d+)", ptx)
    assert given == taken or (given and threads and int(threads[1]) <= 256)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [line for line in instructions(ptx) if ".local" in line] == []
    # Lanes exchange values in whole warps: ptxas takes any mask.
    constants = dict(re.findall(r"\bmov\.\w+\s+(%r\d+), (\S+);", ptx))
    masks = re.findall(r"\b(?:shfl|vote)\.sync\..*, (\S+);", ptx)
    assert {constants.get(mask, mask) for mask in masks} <= {"-1", str(0xFFFFFFFF), "0xffffffff"}
    return report


def shortest_loop(ptx: str, holds: Callable[[str], object]) -> list[tuple[str, str]]:
    """Return the machine code of a loop that `holds` is true of, as (operation, instruction)."""
    text = re.sub(r"/\*.*?\*/", "", sass(ptx))
    code = [line.strip() for line in text.splitlines() if line.strip()]
    places = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    loops = []
    for end, line in enumerate(code):
        back = re.search(r"BRA.* `\((\.L_x_\d+)\)", line)
        if back and places[back[1]] < end:
            loops.append([i for i in code[places[back[1]] : end + 1] if not i.startswith(".")])
    body = min((loop for loop in loops if holds("\n".join(loop))), key=len)
    body = [re.sub(r"^@!?U?P\d ", "", i) for i in body]
    return [(re.match(r"[A-Z0-9]+(\.(DEPBAR|ARRIVE|EX2|TANH))?", i)[0], i) for i in body]
