"""docs/reference/instructions.md, which `make goldens` writes from the instruction table.

A row says everything that stands in the table but the section of NVIDIA's manual, which follows
from the instruction's name: the heading is its longest prefix in `CHAPTERS`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from numba_tma import ptx
from numba_tma.host.architectures import NAMED, Targets
from numba_tma.ptx import Instruction

FILE = Path(__file__).parents[1] / "docs" / "reference" / "instructions.md"
MANUAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/index.html"

#: Headings of the manual's chapters, by the chapter's part of their anchor.
CHAPTERS = {
    "data-movement-and-conversion-instructions": """
        applypriority cp.async cp.async.bulk cp.async.bulk.commit_group cp.async.bulk.prefetch
        cp.async.bulk.prefetch.tensor cp.async.bulk.tensor cp.async.bulk.wait_group
        cp.async.commit_group cp.reduce.async.bulk cp.reduce.async.bulk.tensor createpolicy cvt
        cvt.pack cvta discard getctarank isspacep ld ld.global.nc mapa mov prmt shfl.sync st
        st.async st.bulk tensormap.replace""",
    "parallel-synchronization-and-communication-instructions": """
        activemask atom bar.warp.sync barrier.cluster clusterlaunchcontrol.query_cancel
        clusterlaunchcontrol.try_cancel cp.async.mbarrier.arrive elect.sync
        griddepcontrol match.sync mbarrier.arrive mbarrier.arrive_drop mbarrier.complete_tx
        mbarrier.expect_tx mbarrier.init mbarrier.inval mbarrier.pending_count red red.async
        redux.sync tensormap.cp_fenceproxy vote.sync""",
    "warp-level-matrix-instructions": "ldmatrix mma mma.sp movmatrix stmatrix",
    "asynchronous-warpgroup-level-matrix-instructions": """
        wgmma.commit_group wgmma.fence wgmma.wait_group""",
    "tcgen05-instructions": "tcgen05.cp tcgen05.ld tcgen05.shift tcgen05.st tcgen05.wait",
    "floating-point-instructions": "ex2 fma lg2 max min rcp rsqrt tanh",
    "miscellaneous-instructions": "brkpt nanosleep pmevent setmaxnreg trap",
}
_DATA, _SYNC, *_ = CHAPTERS
#: Headings that name several instructions, or have an anchor of their own: first words, anchor.
SHARED_HEADINGS = {
    ("bar", "barrier"): f"{_SYNC}-bar",
    ("membar", "fence"): f"{_SYNC}-membar",
    ("mbarrier.test_wait", "mbarrier.try_wait"): f"{_SYNC}-mbarrier-test-wait-try-wait",
    ("cp.async.wait_group", "cp.async.wait_all"): f"{_DATA}-cp-async-wait-group",
    ("prefetch", "prefetchu"): f"{_DATA}-prefetch-prefetchu",
    ("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit"): (
        "tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit"
    ),
    ("tcgen05.mma",): "tcgen05-mma-instructions-mma",
    ("tcgen05.mma.sp",): "tcgen05-mma-instructions-mma-sp",
    ("tcgen05.mma.ws",): "tcgen05-mma-instructions-mma-ws",
    ("tcgen05.mma.ws.sp",): "tcgen05-mma-instructions-mma-ws-sp",
    ("tcgen05.commit",): "tcgen-async-sync-operations-commit",
    ("tcgen05.fence",): "tcgen05-special-sync-operations-fence",
}
#: First words of an instruction: heading, anchor.
SECTIONS = {
    name: (name, f"{chapter}-{re.sub('[._]', '-', name)}")
    for chapter, names in CHAPTERS.items()
    for name in names.split()
}
for together, anchor_ in SHARED_HEADINGS.items():
    SECTIONS |= dict.fromkeys(together, (", ".join(together), anchor_))

#: Operand kinds in plain words, where those are not the kind's own.
KINDS = {
    "Predicate": "bool",
    "Immediate": "int literal",
    "ScaleExponent": "int literal to 15",
    "b128": "two u64",
    "BarrierAddress": "barrier",
    "TileAddress": "shared tile",
    "GlobalAddress": "global array",
    "TensorMapOperand": "tensor map",
    "EditableTensorMap": "map in an array",
    "Coordinates": "ints",
    "CacheHint": "cache policy",
}

HEAD = """\
# Instructions

`numba_tma.ptx` has one function per PTX instruction. `make goldens` writes this page from the table
of instructions; a test fails when the page is stale. [`ptx/`](../../ptx/README.md) shows the
instructions as commented PTX that `ptxas` assembles. `help(tma.ptx.NAME)` says who executes an
instruction and what it orders.

- In the PTX, a word without `%` is the operand of that name, and `N` is the number of dimensions.
  `<...>` is one of the values that are listed for the operand. Text in `{.`...`}` or `{, `...`}` is
  present only if its operand is given; other braces hold several registers.
- *PTX ISA* is the first version that has the instruction, and *architecture* says which targets do.
  sm_90 means "sm_90 and newer", and sm_80 "sm_80 or older"; sm_90a is that target alone; a name in
  capitals is a set of targets (below), some with a later version. A narrower form follows, with the
  value or operand that selects it.
- A kernel passes an operand with listed values as a literal, one of these values.

| operand | is |
|---|---|
"""


def section(row: Instruction) -> tuple[str, str]:
    """Return the heading of the manual's section on a row's instruction, and its anchor."""
    text = re.sub(r"<\w+:[^<>]*>", "", row.template)
    if text.startswith("mov.") and (register := re.search(r"%(\w+)", text)):
        return f"%{register[1]}", f"special-registers-{register[1].replace('_', '-')}"
    words = re.match(r"(?:@\{\w+\} )?([\w.]+)", text)[1].split(".")
    for length in range(len(words), 0, -1):
        if found := SECTIONS.get(".".join(words[:length])):
            return found
    raise ValueError(
        f"{row.name}: no section of the PTX ISA manual is known for {text!r}; add its heading to "
        "CHAPTERS in tests/instruction_table.py"
    )


def kind(row: Instruction, operand: str) -> str:
    """Return what an operand may be, in plain words."""
    if operand in row.choices:
        return _either(row.choices[operand])
    name = row.operands[operand]
    return KINDS.get(name, _words(_vector(name)))


def _either(values: Iterable[Any]) -> str:
    return ", ".join(f'`"{v}"`' if isinstance(v, str) else f"`{v}`" for v in values)


def _vector(name: str) -> str:
    match = re.fullmatch(r"([uif]\d+)x(\d*)(num|group)?(and1)?", name)
    if match is None:
        return name
    times = match[3] and match[3].replace("group", "cta_group")
    return " ".join(filter(None, (match[2], times, match[1], match[4] and "and 1")))


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def legend(rows: Iterable[Instruction]) -> str:
    """Return what the kinds are that the rows have, as the comments where they are defined say."""
    source = inspect.getsource(sys.modules[Instruction.__module__])
    comments = dict(re.findall(r"^([A-Z]\w+): TypeAlias = .*?#: (.*)$", source, re.M))
    kinds = {name for row in rows for name in row.operands.values()} & comments.keys()
    lines = {KINDS.get(name, _words(name)): comments[name] for name in kinds}
    return "\n".join(f"| {word} | {_sentence(lines[word])} |" for word in sorted(lines))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def call(row: Instruction) -> str:
    """Return the Python call of a row, and below it what its operands are."""
    parameters = [
        f"{name}={_default(row.defaults[name])}" if name in row.defaults else name
        for name in row.operands
    ]
    result = "" if row.returns == "None" else f" → {_vector(row.returns)}"
    operands = [f"{name}: {kind(row, name)}" for name in row.operands if not _plain(row, name)]
    return f"`{row.name}({', '.join(parameters)})`{result}" + "".join(f"<br>{o}" for o in operands)


def _plain(row: Instruction, operand: str) -> bool:
    """Tell whether an operand's name says its kind."""
    return operand.replace("_", " ") == kind(row, operand)


def _default(value: Any) -> str:
    return hex(value) if isinstance(value, int) and value > 0xFFFF else repr(value)


def instruction(row: Instruction) -> str:
    """Return the PTX of a row, and its ranks."""
    ranks = f"<br>N: {', '.join(map(str, row.ranks))}" if row.ranks else ""
    return f"`{row.syntax}`{ranks}"


def since(row: Instruction) -> tuple[str, str]:
    """Return a row's first PTX ISA version and its first architecture, with newer forms."""
    tags = {tag for form in row.forms() for tag in form.tags}  # rows may share one mapping
    newer = {tag: first for tag, first in row.since.items() if tag in tags}
    isas = {tag: _version(isa) for tag, (isa, _) in newer.items() if isa > row.isa}
    architectures = {tag: _shown(of) for tag, (_, of) in newer.items() if of != row.targets}
    return _with_newer(_version(row.isa), isas), _with_newer(_shown(row.targets), architectures)


def _shown(targets: Targets) -> str:
    """Return a set of targets as a marker names it."""
    return targets.name if targets.name in NAMED else f"sm_{targets.name}"


def sets(rows: Iterable[Instruction]) -> str:
    """Return the table of the named sets that rows have, each target with its first PTX ISA."""
    used = {of.name for row in rows for of in [row.targets, *(s for _, s in row.since.values())]}
    lines = (
        f"| {name} | {', '.join(f'{t} ({_version(isa)})' for t, isa in NAMED[name].items())} |"
        for name in sorted(used & NAMED.keys())
    )
    return "\n".join(["| set | targets, each with its first PTX ISA |", "|---|---|", *lines])


def _with_newer(first: str, newer: dict[str, str]) -> str:
    lines = [first]
    for value in sorted(set(newer.values())):
        tags = ", ".join(f"`{tag}`" for tag in newer if newer[tag] == value)
        lines.append(f"{tags}: {value}")
    return "<br>".join(lines)


def _version(isa: tuple[int, int]) -> str:
    return f"{isa[0]}.{isa[1]}"


def line(row: Instruction) -> str:
    """Return the row's line in the table of its family."""
    about = inspect.getdoc(row.body).splitlines()[0].replace("**", r"\*\*")
    cells = [call(row), instruction(row), f"[{section(row)[0]}]", *since(row), about]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def family(name: str, rows: Iterable[Instruction]) -> str:
    """Return the part of the page on one family."""
    rows = list(rows)
    about = inspect.getdoc(sys.modules[f"numba_tma.ptx.{name}"]).replace("``", "`")
    return "\n".join(
        [
            f"## {name}\n",
            f"{about}\n",
            f"The PTX, commented: [`ptx/{name}.ptx`](../../ptx/{name}.ptx).\n",
            "| Python | PTX | section of the manual | PTX ISA | architecture | what it does |",
            "|---|---|---|---|---|---|",
            *map(line, rows),
            "",
        ]
    )


@functools.cache
def page() -> str:
    """Return what docs/reference/instructions.md should say now."""
    rows = sorted(ptx.TABLE.values(), key=lambda row: row.family)  # a family's in source order
    families = [family(name, group) for name, group in groupby(rows, lambda row: row.family)]
    sections = sorted({section(row) for row in rows})
    links = [f"[{heading}]: {MANUAL}#{anchor}" for heading, anchor in sections]
    return "\n".join([HEAD + legend(rows), "", sets(rows), "", *families, *links, ""])


def write() -> bool:
    """Write the page anew; return whether it changed."""
    FILE.parent.mkdir(exist_ok=True)
    text = page()
    if FILE.exists() and FILE.read_text() == text:
        return False
    FILE.write_text(text)
    return True
