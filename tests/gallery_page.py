"""docs/guide/gallery.md, written by ``make goldens`` from the table of mutants."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from pathlib import Path

from tests.mutants.mistakes import SYMPTOMS
from tests.mutants.mutants import IMPOSSIBLE, MUTANTS, PROGRAMS
from tests.mutants.table import CATCHERS, MUTATIONS, Mistake, Mutant

FILE = Path(__file__).parents[1] / "docs" / "guide" / "gallery.md"

HEAD = """\
# Gallery of broken kernels

Written by `make goldens` from the mutants that the tests run. Each entry is a correct kernel with a
few lines broken, and the checks that report it. Look up your message in the first table, or your
symptom below it.

## Where to begin

**It does not compile.** The error begins with what is wrong, and ends with the line of your kernel.
`NUMBA_TMA_FULL_ERRORS=1` shows all that Numba says around it.

**It hangs.** Run it with `NUMBA_TMA_DEBUG=1`. The launch then ends with an exception that names the
barrier, the stage, and the missing arrivals and bytes ([how to read it](debugging.md)). If it still
hangs, the library cannot bound the wait: a loop of your own over `try_wait`, `cuda.syncthreads()`
in divergent code, a named barrier, `setmaxnreg`. The simulator reports these waits, too.

**Values are wrong.** Run a small input in the simulator, `NUMBA_ENABLE_CUDASIM=1 python script.py`,
with `numba_tma.simulator.seed(n)` for several n. It names the thread and the bytes that it accessed
too early. It checks the order that barriers guarantee, so it reports a race even when the run's
values are right. Plain reads and writes of different threads are not checked against each other.

**The context is lost** (an illegal instruction or address, and every call after it fails). Run it
with `NUMBA_TMA_DEBUG=1`, which checks coordinates before they fault; then in the simulator; then
under `compute-sanitizer`.

**Nothing helps.** Take the kernel of the nearest entry and change it into yours, step by step.
"""


def anchor(title: str) -> str:
    """Return the address of a heading in the page."""
    return "#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def link(mistake: Mistake) -> str:
    """Return a link to the entry of a mistake."""
    return f"[{mistake.title}]({anchor(mistake.title)})"


def difference(mutant: Mutant) -> str:
    """Return the mutant's edits, as a diff with two lines of context."""
    before, after = mutant.program.source.splitlines(), mutant.source.splitlines()
    lines = list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]
    hunks = "\n".join("  ..." if line.startswith("@@") else line for line in lines[1:])
    return f"```diff\n{hunks}\n```"


def words(caught: tuple[str, str]) -> str:
    """Return an error and a part of its message."""
    names = " or ".join(f"`{name}`" for name in caught[0].split())
    return f'{names}: "{caught[1]}"'


def by_message() -> str:
    """Return the table from messages to entries."""
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for mutant in MUTANTS:
        for names, text in mutant.caught.values():
            for name in names.split():
                found[name, text if name == names.split()[0] else ""][link(mutant.mistake)] = None
    merged: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (name, text), links in found.items():
        merged[name][text] = list(links)
    lines = ["| error | says | see |", "|---|---|---|"]
    for name in sorted(merged):
        said = {text: links for text, links in merged[name].items() if text}
        known = {one for links in said.values() for one in links}
        rest = [one for one in merged[name].get("", []) if one not in known]
        for text in sorted(said):
            lines.append(f"| `{name}` | {text} | {', '.join(said[text])} |")
        if rest:
            lines.append(f"| `{name}` | | {', '.join(rest)} |")
    return "\n".join(lines)


def entry(mistake: Mistake) -> str:
    """Return the entry of a mistake, with the first of its mutants as the example."""
    mutants = [mutant for mutant in MUTANTS if mutant.mistake is mistake]
    example = mutants[0]
    parts = [f"### {mistake.title}"]
    if example.edits:
        parts.append(difference(example))
    else:
        names = ", ".join(f"`{name}`" for _, name, _ in example.patched)
        parts.append(f"The library prevents this mistake; the tests replace its {names}.")
    parts.append(f"**You see:** {mistake.sees}")
    parts.append(f"**Cause:** {mistake.cause}")
    parts.append(f"**Repair:** {mistake.repair}")
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mutant in mutants:
        for catcher, caught in mutant.caught.items():
            rows[CATCHERS[catcher], words(caught)].append(mutant.pipeline)
    parts.append(
        "\n".join(
            f"- {by}: {said}{where(pipelines, mutants)}" for (by, said), pipelines in rows.items()
        )
    )
    parts += [mutant.note for mutant in mutants if mutant.note]
    if any(mutant.some_orders for mutant in mutants):
        parts.append("The simulator reports it in some orders of the threads: try several seeds.")
    return "\n\n".join(parts)


def where(pipelines: list[str], mutants: list[Mutant]) -> str:
    """Return the pipelines in parentheses, unless they are all pipelines with the mistake."""
    if set(pipelines) == {mutant.pipeline for mutant in mutants}:
        return ""
    return f" ({'; '.join(dict.fromkeys(pipelines))})"


def matrix() -> str:
    """Return the table of catchers: a line for each pipeline, a column for each mutation."""
    letters = {name: name[0].upper() for name in CATCHERS}
    reasons: dict[str, int] = {}
    lines = ["| pipeline | " + " | ".join(MUTATIONS) + " |", "|---" * (len(MUTATIONS) + 1) + "|"]
    for program in PROGRAMS:
        cells = []
        for mutation in MUTATIONS:
            here = program.pipeline, mutation
            found = {
                catcher
                for mutant in MUTANTS
                if (mutant.pipeline, mutant.mutation) == here
                for catcher in mutant.caught
            }
            why = [row.reason for row in IMPOSSIBLE if (row.pipeline, row.mutation) == here]
            number = reasons.setdefault(why[0], len(reasons) + 1) if why else 0
            cell = " ".join(letters[c] for c in CATCHERS if c in found)
            cells.append(cell or f"({number})")
        lines.append(f"| {program.pipeline} | {' | '.join(cells)} |")
    key = ", ".join(f"{letters[name]} {text}" for name, text in CATCHERS.items())
    notes = [f"- ({number}) {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", f"Caught: {key}.", "", *notes])


def page() -> str:
    """Return the page."""
    parts = [HEAD.rstrip(), "## What a message means", by_message()]
    used = {mutant.mistake.title: mutant.mistake for mutant in MUTANTS}
    for symptom in SYMPTOMS:
        parts.append(f"## {symptom}")
        parts += [entry(mistake) for mistake in used.values() if mistake.symptom == symptom]
    parts += ["## Who catches what", matrix()]
    return "\n\n".join(parts) + "\n"


def write() -> bool:
    """Write the page anew; return whether it changed."""
    before = FILE.read_text() if FILE.exists() else ""
    FILE.write_text(page())
    return page() != before
