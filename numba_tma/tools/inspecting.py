"""`inspect`: what a kernel takes of an SM, and what it tells the GPU, line by line."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba_tma.host.annotations import ComputeCapability, Signature
from numba_tma.host.launch_advice import Processors, blocks_by_limit
from numba_tma.ptx import TABLE
from numba_tma.tools.assembling import PtxasReport, compile_ptx, find_tool, ptxas, sass

#: In PTX: registers in braces, an address in brackets, or text without either.
_OPERAND = r"\{[^}]*\}|\[[^]]*\]|[^][,{}]+"
_COLUMN = 72  #: of a listing's comments
#: What instructions of sm_90 and sm_100 do, by the beginnings of their names in machine code.
SASS = {
    "UTMALDG": "the copy engine loads a box through a tensor map",
    "UTMASTG": "the copy engine stores a box through a tensor map",
    "UTMAREDG": "the copy engine combines a box with global memory",
    "UTMAPF": "the copy engine brings a box to the L2 cache",
    "UTMACCTL": "the cache of tensor maps: fetches a map, or drops a changed one",
    "UTMACMDFLUSH": "closes a group of bulk copies",
    "UBLKCP": "the copy engine copies bytes in a row",
    "UBLKRED": "the copy engine combines bytes in a row with memory",
    "UBLKPF": "the copy engine brings bytes in a row to the L2 cache",
    "SYNCS.EXCH": "initialises a barrier",
    "SYNCS.PHASECHK": "asks whether a barrier's phase has completed",
    "SYNCS.ARRIVE": "arrives at a barrier, or lets it expect bytes",
    "SYNCS.CCTL": "ends the use of a barrier's memory",
    "DEPBAR": "waits for copies or loads in flight",
    "LDGDEPBAR": "closes a group of cp.async copies",
    "ARRIVES.LDGSTSBAR": "a barrier is told when cp.async copies have landed",
    "LDGSTS": "cp.async: copies global memory to shared memory",
    "HGMMA": "multiplies on the tensor cores (wgmma, 16 bits)",
    "QGMMA": "multiplies on the tensor cores (wgmma, 8 bits)",
    "IGMMA": "multiplies on the tensor cores (wgmma, integers)",
    "UTCHMMA": "multiplies on the tensor cores into tensor memory (16 bits)",
    "UTCQMMA": "multiplies on the tensor cores into tensor memory (8 bits and fewer)",
    "UTCOMMA": "multiplies on the tensor cores into tensor memory (4 bits)",
    "UTCBAR": "a barrier is told when products have ended",
    "LDTM": "loads tensor memory into registers",
    "STTM": "stores registers to tensor memory",
    "HMMA": "a warp multiplies on the tensor cores",
    "QMMA": "a warp multiplies on the tensor cores (8 bits and fewer)",
    "WARPGROUP.ARRIVE": "orders registers before products (wgmma.fence)",
    "WARPGROUP.DEPBAR": "waits for products in flight",
    "WARPSYNC": "lanes of a warp meet",
    "USETMAXREG": "a warpgroup gives registers back, or takes more",
    "FENCE.VIEW.ASYNC": "orders writes of threads before the copy engine and the tensor cores",
    "FENCE.VIEW": "orders what threads and other units access",
    "UCGABAR_ARV": "arrives at the cluster's barrier",
    "UCGABAR_WAIT": "waits at the cluster's barrier",
    "BAR": "threads of the block meet at a named barrier",
    "MEMBAR": "orders memory accesses",
    "ELECT": "chooses one lane",
    "LDSM": "loads matrices from shared memory (ldmatrix)",
    "STSM": "stores matrices to shared memory (stmatrix)",
    "REDUX": "combines a value over the lanes of a warp",
    "LDL": "LOCAL MEMORY: a spilled or an indexed register is read",
    "STL": "LOCAL MEMORY: a spilled or an indexed register is written",
}
#: The same of PTX that is in no row of the table.
PTX = {
    "wgmma.mma_async": "multiplies on the tensor cores, behind the products before it",
    "mma.sync": "a warp multiplies on the tensor cores",
}
#: SMs that are not like those of 9.0 and 10.0, by the major number.
_SM = {12: Processors(1, shared=102400, threads=1536, blocks=24)}


@dataclass(frozen=True)
class Inspection:
    """A kernel that was compiled without a GPU; its repr is a table of what it takes."""

    name: str
    ptx: str
    threads: int  #: of a block, for the occupancy
    report: PtxasReport | None  #: ptxas's; None where ptxas is not found
    _sm: Processors

    @functools.cached_property
    def _limits(self) -> dict[str, int]:
        assert self.report is not None
        r = self.report
        return blocks_by_limit(r.registers, r.shared, self.threads, self._sm)

    @property
    def blocks(self) -> int | None:
        """Blocks that an SM holds at once; None without ptxas's report."""
        return min(self._limits.values()) if self.report else None

    @property
    def limited_by(self) -> str:
        """What lets an SM hold no more blocks."""
        return min(self._limits, key=lambda name: self._limits[name]) if self.report else ""

    @property
    def occupancy(self) -> float | None:
        """Share of an SM's threads that these blocks have."""
        blocks = self.blocks
        return None if blocks is None else blocks * self.threads / self._sm.threads

    @functools.cached_property
    def sass(self) -> str:
        """The machine code, as nvdisasm prints it."""
        return sass(self.ptx)

    def ptx_listing(self) -> str:
        """Return the PTX with what this library's instructions do, beside them."""
        return "\n".join(_commented(self.ptx.splitlines(), _of_ptx))

    def sass_listing(self) -> str:
        """Return the machine code with what copies, barriers and products are, beside them."""
        return "\n".join(_commented(self.sass.splitlines(), _of_sass))

    def __repr__(self) -> str:
        rows = [("block", f"{self.threads} threads")]
        if r := self.report:
            spilled = f"{r.spill_stores} B stored, {r.spill_loads} B loaded"
            rows += [
                ("registers", f"{r.registers} a thread; spilled: {spilled}"),
                ("shared", f"{r.shared:,} B"),
                ("occupancy", f"{self.blocks} x {self.threads} of an SM's {self._sm.threads:,} "
                 f"threads, limited by {self.limited_by}"),
                *(("warning", text) for text in r.warnings),
            ]  # fmt: skip
        else:
            rows.append(("registers", "unknown: ptxas was not found"))
        head = f"{self.name} for {_target(self.ptx)}"
        return "\n".join([head, *(f"  {name:<10} {text}" for name, text in rows)])


def inspect_kernel(
    kernel: Callable[..., Any], signature: Signature, threads: int, cc: ComputeCapability
) -> Inspection:
    """Do what `numba_tma.testing.inspect` says."""
    ptx = compile_ptx(kernel, signature, cc)
    report = ptxas(ptx) if find_tool("ptxas") else None
    name = getattr(kernel, "py_func", kernel).__name__
    return Inspection(name, ptx, threads, report, _SM.get(cc[0], Processors(1)))


def _target(ptx: str) -> str:
    found = re.search(r"^\s*\.target\s+(\w+)", ptx, flags=re.M)
    return found[1] if found else "an unknown target"


def _commented(lines: list[str], comment_of: Callable[[str], str]) -> Iterator[str]:
    for line in lines:
        if re.match(r"\s*// (begin|end) inline asm", line):
            continue
        text = line.expandtabs(4).rstrip()
        comment = comment_of(line)
        yield f"{text:<{_COLUMN}} // {comment}" if comment else text


@functools.cache
def _patterns() -> dict[str, list[tuple[re.Pattern[str], str]]]:
    """Return what matches an instruction of the table, by its first word, and its comment."""
    found: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for name, row in TABLE.items():
        template = re.sub(r"^(<condition:)?@!?\{condition\} >?", "", row.template)
        word = re.split(r"[.{< ]", template, maxsplit=1)[0]
        pattern = re.escape(template).replace("RANK", r"\d")
        pattern = re.sub(r"<\w+:((?:(?!>).)*)>", r"(?:\1)?", pattern)
        for operand in re.findall(r"\{(\w+)\}", template):
            values = row.choices.get(operand, ())
            text = "|".join(re.escape(str(value)) for value in values) or _OPERAND
            pattern = pattern.replace(re.escape(f"{{{operand}}}"), f"(?:{text})")
        said = (row.body.__doc__ or "").split(". ")[0].split("\n")[0].rstrip(".")
        entry = re.compile(pattern.rstrip(";")), f"{name}: {said[0].lower()}{said[1:]}"
        found.setdefault(word, []).append(entry)
    # The longest text first: a form with fewer parts may match it, too.
    for entries in found.values():
        entries.sort(key=lambda entry: -len(entry[0].pattern))
    return found


def _of_ptx(line: str) -> str:
    comments = map(_of_statement, line.strip().removeprefix("{ ").split(";"))
    return "; ".join(dict.fromkeys(filter(None, comments)))


def _of_statement(text: str) -> str:
    text = " ".join(re.sub(r"^\s*(@!?%\w+\s+)?", "", text).split())
    word = re.split(r"[.{< ]", text, maxsplit=1)[0]
    for pattern, comment in _patterns().get(word, ()):
        if pattern.fullmatch(text):
            return comment
    return next((said for name, said in PTX.items() if text.startswith(name)), "")


def _of_sass(line: str) -> str:
    found = re.match(r"\s*/\*\w+\*/\s+(?:@!?U?P\w+\s+)?(?:\{\s*)?([A-Z][\w.]*)", line)
    if found:
        for name, comment in SASS.items():
            if found[1] == name or found[1].startswith(f"{name}."):
                return comment
    return ""
