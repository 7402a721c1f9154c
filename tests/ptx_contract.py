"""What the files of ptx/ say, and what a kernel emits, in a form in which the two can be compared.

In the files a register has the name of the Python parameter that it holds; one that is written is
`%result` or `%predicate`, and `%c0`, `%c1`, ... are the coordinates along axis 0, 1, ... of the
array, `%o0`, `%o1`, ... the offsets along its spatial axes. `inline_asm` brings compiled PTX to the
same form.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from numba_tma.host.architectures import NAMED, TCGEN05, WGMMA, Targets, Version, at_least, only
from numba_tma.ptx import _instruction as instruction_table
from numba_tma.tools.assembling import PtxasReport

FOLDER = Path(__file__).parents[1] / "ptx"
#: The number that stands for every literal: one that each instruction with a literal takes.
IMMEDIATE = 32
#: Kinds of literals that do not reach it.
SMALLER = {"ScaleExponent": 3}
FILES = sorted(FOLDER.glob("*.ptx"))

MARKER = re.compile(
    r"^ *// numba_tma\.ptx\.(?P<name>\w+(\[[\w.:, ]+\])?)"
    r"  ptx>=(?P<isa>\d\.\d) (?P<sm>sm>?=[\w+]+)$"
)
#: What may stand beside the forms and their uses: PTX that has nothing to do with TMA.
PLAIN = re.compile(
    r"(@!?%\w+ )?(ld\.param|st\.global|mov|cvta|add|shl|shr|mul\.wide|setp|bra|ret|bar\.sync #"
    r"|wgmma\.mma_async)(\W|$)"
)


@dataclass(frozen=True)
class Form:
    """One instruction under its marker line."""

    name: str
    isa: Version
    targets: Targets
    text: str
    registers: dict[str, str]  #: name, or name<count>, to type

    def isa_on(self, target: str) -> Version:
        """Return the first PTX ISA version of the instruction on a target."""
        return max(self.isa, self.targets[target])

    def entry(self, name: str, instructions: list[str] | None = None) -> str:
        """Return a kernel of this instruction alone, or of others with the same registers."""
        declared = " ".join(f".reg {kind} {name};" for name, kind in self.registers.items())
        text = "; ".join(instructions or [self.text]).replace("#", str(IMMEDIATE))
        return f".visible .entry {name}() {{ {declared} {text}; ret; }}\n"


def module(entries: Iterable[str], isa: Version, target: str) -> str:
    """Return a module of kernels, each a line from the fourth on."""
    head = f".version {isa[0]}.{isa[1]}\n.target sm_{target}\n.address_size 64\n"
    return head + "".join(entries)


def marked(text: str) -> Targets:
    """Return the targets that a marker names: ``sm>=90``, ``sm=90a`` or ``sm=TCGEN05``."""
    if text.startswith("sm>="):
        return at_least(int(text[4:]))
    return NAMED.get(text[3:]) or only(*text[3:].split("+"))


def architectures(file: Path) -> Targets:
    """Return the targets for which a file says that it assembles."""
    return marked(re.search(r"^// Assembles for: (.*)$", file.read_text(), re.M)[1])


def forms(file: Path) -> list[Form]:
    """Return what stands under the markers of a file: the first instruction after each."""
    found = []
    scopes: list[dict[str, str]] = [{}]
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip() == "{":
            scopes.append(dict(scopes[-1]))
        elif line.strip() == "}":
            scopes.pop()
        elif declaration := re.match(r" *\.reg (\.\w+) (.*);$", line):
            scopes[-1] |= dict.fromkeys(declaration[2].split(", "), declaration[1])
        elif marker := MARKER.match(line):
            major, minor = marker["isa"].split(".")
            text = statements("\n".join(lines[number:]))[0]
            isa = int(major), int(minor)
            targets = marked(marker["sm"])
            found.append(Form(marker["name"], isa, targets, text, dict(scopes[-1])))
    return found


def form_text(form: instruction_table.InstructionForm) -> str:
    """Return a form of the table with every register named after the parameter that it holds."""
    row = form.row
    operands = {name: f"%{name}" for name in row.operands} | {"result": "%result"}
    for name, kind in {**row.operands, "result": row.returns}.items():
        if kind == "Coordinates":
            reversed_axes = reversed(range(form.rank))
            operands[name] = "{" + ", ".join(f"%c{axis}" for axis in reversed_axes) + "}"
        elif kind == "Offsets":
            reversed_axes = reversed(range(form.rank - 2))
            operands[name] = "{" + ", ".join(f"%o{axis}" for axis in reversed_axes) + "}"
        elif kind in ("Immediate", "RegisterCount", *SMALLER):
            operands[name] = str(SMALLER.get(kind, IMMEDIATE))
        elif vector := instruction_table.vector_of(kind, form.choices):
            several = vector[1] > 1 or name != "result"
            names = [f"%{name}{i}" if several else "%result" for i in range(vector[1])]
            if kind.endswith("and1"):
                operands["apart"] = names.pop()
            operands[name] = "{" + ", ".join(names) + "}"
    operands |= {name: str(value) for name, value in form.choices.items()}
    operands["predicate"] = "%predicate"
    given = set(form.given) | set(form.choices)
    return normal(row.text(operands, given, form.rank))


def statements(ptx: str) -> list[str]:
    """Return the instructions of hand-written PTX, without declarations, labels and comments."""
    code = re.sub(r"//[^\n]*", "", ptx)
    code = re.sub(r"^ *(\w+:|[{}]) *$", "", code, flags=re.M)  # labels and scopes
    found = [normal(part) for part in code.split(";")[:-1]]
    return [statement for statement in found if not statement.startswith(".")]


def instructions(file: Path) -> list[str]:
    """Return all instructions of a file's kernel."""
    return statements(file.read_text().split("\n{\n", 1)[1])


def normal(instruction: str) -> str:
    """Return an instruction with single blanks, and with `#` for an immediate that stands alone.

    A number behind other operands is a choice, such as the size of a copy.
    """
    text = " ".join(instruction.strip().removesuffix(";").split())
    return re.sub(r"(?<=\w )\d+$", "#", text)


def without_names(instruction: str) -> str:
    """Return an instruction with all registers alike."""
    return re.sub(r"%[a-z]\w*(?!\w*\.)", "%", instruction)


#: The forms of the table, and those of the files.
FORMS = {form.name: form for row in instruction_table.TABLE.values() for form in row.forms()}
WRITTEN = {form.name: form for file in FILES for form in forms(file)}

#: ptxas's advice about multicast for targets without fast multicast.
ADVISORY = "Advisory: '.multicast::cluster' modifier on instruction 'cp.async.bulk{.tensor}' should"
#: ptxas's warning about a group without a wait, as a single instruction has none.
UNWAITED = "(C7517) wgmma.wait_group is injected"


def warnings(report: PtxasReport) -> list[str]:
    """Return ptxas's warnings, but for its advice on multicast where that is slow."""
    fast = report.arch[3:] in {*WGMMA, *TCGEN05}
    found = [w for w in report.warnings if UNWAITED not in w]
    return [w for w in found if fast or ADVISORY not in w]


def inline_asm(ptx: str, names: dict[str, str]) -> list[str]:
    """Return the inline-asm blocks of compiled PTX, with the names of what their registers hold.

    A register is followed back through moves, loads of parameters, conversions of addresses and of
    truth values, and what it comes from is looked up in `names`: ``param_0``, or a shared variable.
    A register that comes from nowhere is the block's result, `%predicate` for a predicate register.

    A block is one instruction. The only wrapping is that of a predicate, which no operand of inline
    asm can be: ``{ .reg .pred p; <instruction>; selp.u32 <result>, 1, 0, p; }`` is read as the
    instruction, with `%predicate` for p, and ``{ .reg .pred p; setp.ne.u32 p, <operand>, 0; mov.b32
    <result>, 0; <instruction>; }`` as the instruction with the operand's name for p. The zero, one
    for each result, is what a load returns where the predicate is false.
    """
    block = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.S)
    moves = re.compile(
        r"^\s*(?:ld\.param|mov|cvta?|setp\.ne|selp)\.\S+\s+(%\w+), (?:1, 0, )?\[?([^;,\]]+)",
        re.M,
    )
    sources = dict(moves.findall(block.sub("", ptx)))

    def name(match: re.Match[str]) -> str:
        source = match[0]
        while source in sources:
            source = sources[source]
        if source == match[0]:
            return "%predicate" if re.fullmatch(r"%p\d+", source) else "%result"
        parameter = re.search(r"param_\d+$", source)
        return "%" + names[parameter[0] if parameter else source]

    def results(text: str) -> str:
        """Number the results of an instruction that has several."""
        if text.count("%result") < 2:
            return text
        count = itertools.count()
        return re.sub(r"%result", lambda _: f"%result{next(count)}", text)

    found = []
    for text in block.findall(ptx):
        wrapped = re.fullmatch(
            r"\s*\{ \.reg \.pred p; (.*;) selp\.u32 %r\d+, 1, 0, p; \}\s*", text, re.S
        )
        if wrapped:
            text = re.sub(r"(?<=[ |])p(?=,)", "%predicate", wrapped[1])
        taken = re.fullmatch(
            r"\s*\{ \.reg \.pred p; setp\.ne\.u32 p, (%r\d+), 0; "
            r"(?:mov\.b\d+ %\w+, 0; )*(.*;) \}\s*",
            text,
            re.S,
        )
        if taken:
            text = re.sub(r"\bp\b", taken[1], taken[2])
        wide = re.fullmatch(
            r"\s*\{ \.reg \.b128 q; mov\.b128 q, \{(%rd\d+), %rd\d+\}; (.*;) \}\s*", text, re.S
        )
        if wide:  # named after the operand's first half
            half = name(re.match(r".*", wide[1]))
            text = re.sub(r"\bq\b", half.removesuffix("0"), wide[2])
        found.append(normal(results(re.sub(r"%[a-z]{1,2}\d+\b", name, text))))
    return found
