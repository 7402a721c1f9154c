"""A machine for PTX: it executes a compiled kernel, one thread after the other.

It computes integers, floats, addresses, branches, and loads and stores. Every other instruction,
such as a copy, a barrier or a matrix product, is logged with the values of its operands, and its
result is what the test's `answer` says. So tests compare what threads tell the hardware with the
references of the host. Threads of a warp that exchange values run together (`run_together`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma.tools.assembling import _braced
from tests.ptx_arithmetic import LOCAL_WINDOW, OPERATIONS, SHARED_WINDOW, from_float, signed
from tests.ptx_warps import TOGETHER

#: An instruction that was logged: its name, and the values of its operands.
Logged = tuple[str, tuple[Any, ...]]

ARRAYS, PARAMETERS, VARIABLES = 1 << 32, 1 << 40, 1 << 52  # where they begin
MOST_STEPS = 1_000_000
START_NANOSECONDS = 10**18  # of the clock, which counts from 1970
STEP_NANOSECONDS = 10**9  # of an instruction: the waits of debug mode end soon
CYCLES = 2  # in a nanosecond
START_CYCLES = 0x5A5A << 32

#: What is logged. Of these, the first operand of those in RESULTS is written.
LOGGED = {
    *("cp", "mbarrier", "wgmma", "fence", "elect"),
    *("tcgen05", "prefetch", "griddepcontrol", "setmaxnreg", "membar", "nanosleep"),
    *("createpolicy", "clusterlaunchcontrol", "tensormap", "discard", "activemask", "multimem"),
}
RESULTS = re.compile(
    r"(mbarrier\.(try_wait|test_wait|arrive|pending_count)|elect|tcgen05\.ld"
    r"|createpolicy|clusterlaunchcontrol\.query_cancel|activemask)\b"
)


PAGE = 4096  # bytes of what is kept together
_EMPTY = bytes(PAGE)


def usual(name: str, operands: Sequence[Any]) -> Any:
    """Answer an instruction: every wait has ended, lane 0 is elected, and all else is 0."""
    return int("_wait" in name)


class Machine:
    """A kernel with its arguments and its memory.

    Arguments are integers, floats, bytes (a parameter by value), and NumPy arrays, which the kernel
    gets as Numba passes them and changes in place. `special` has further special registers. `step`
    is the nanoseconds of an instruction, if not STEP_NANOSECONDS.
    """

    def __init__(
        self,
        ptx: str,
        *arguments: Any,
        block: tuple[int, int, int] = (128, 1, 1),
        grid: tuple[int, int, int] = (1, 1, 1),
        shared: int = 0x10000,
        answer: Callable[[str, Sequence[Any]], Any] = usual,
        special: dict[str, int] | None = None,
        step: int | None = None,
    ) -> None:
        self.step = STEP_NANOSECONDS if step is None else step
        self.pages: dict[int, bytearray] = {}  # of generic addresses
        self.block, self.grid, self.answer, self.special = block, grid, answer, special or {}
        self.shared_names: list[str] = []
        module = read_module(ptx)
        self.entry, self.functions = module.entry, module.functions
        self.symbols = self._place_symbols(module.variables, shared)
        self.arrays: list[tuple[int, Any]] = []
        #: The loads and stores of the last run: instruction, address in its space, bytes.
        self.accesses: list[tuple[str, int, int]] = []
        self._bind(module.parameters, arguments)

    def _place_symbols(self, variables: list[tuple[str, ...]], shared: int) -> dict[str, int]:
        """Give every variable an address in its state space."""
        found, free = {}, {"shared": shared, "local": 0, "global": 1 << 20, "const": 1 << 24}
        for space, align, kind, name, _, count in variables:
            start = -(-free[space] // int(align)) * int(align)
            found[name] = start
            if space == "shared":
                self.shared_names.append(name)
            free[space] = start + int(kind[1:]) // 8 * int(count or 1)
        return found

    def _bind(self, parameters: list[tuple[str, ...]], arguments: Sequence[Any]) -> None:
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                base = ARRAYS + sum(-(-a.nbytes // 256) * 256 for _, a in self.arrays)
                self.arrays.append((base, argument))
                self.poke(base, argument.tobytes("A"))
                values += [0, 0, argument.size, argument.itemsize, base]
                values += [*argument.shape, *argument.strides]
            else:
                values.append(argument)
        if len(values) != len(parameters):
            raise ValueError(f"{len(values)} values for {len(parameters)} parameters")
        start = PARAMETERS
        for (letter, bits, name, size), value in zip(parameters, values):
            if not isinstance(value, bytes):
                kind = f"{letter}{bits}"
                number = from_float(value, kind) if letter == "f" else int(value) % (1 << int(bits))
                value = number.to_bytes(int(bits) // 8, "little")
            elif not size:
                raise ValueError(f"bytes for parameter {name}, which is a number")
            self.symbols[name] = start = -(-start // 128) * 128
            self.poke(start, value)
            start += len(value)

    @property
    def shared(self) -> list[int]:
        """The addresses of the shared variables, in the order of their declaration."""
        return [self.symbols[name] for name in self.shared_names]

    def poke(self, address: int, data: bytes) -> None:
        """Write bytes at a generic address."""
        while data:
            page, start = divmod(address, PAGE)
            if page not in self.pages:
                self.pages[page] = bytearray(PAGE)
            part = data[: PAGE - start]
            self.pages[page][start : start + len(part)] = part
            address, data = address + len(part), data[len(part) :]

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read bytes at a generic address; those that nobody wrote are 0."""
        page, start = divmod(address, PAGE)
        found = self.pages.get(page, _EMPTY)[start : start + nbytes]
        while len(found) < nbytes:
            page += 1
            found = found + self.pages.get(page, _EMPTY)[: nbytes - len(found)]
        return bytes(found)

    def poke_shared(self, address: int, data: bytes) -> None:
        """Write bytes at a shared address."""
        self.poke(SHARED_WINDOW + address, data)

    def peek_shared(self, address: int, nbytes: int) -> bytes:
        """Read bytes at a shared address."""
        return self.peek(SHARED_WINDOW + address, nbytes)

    def run(
        self, thread: int = 0, block: tuple[int, int, int] = (0, 0, 0), **special: int
    ) -> list[Logged]:
        """Execute a thread; return what it tells the hardware."""
        (log,) = self.run_together([thread], block, **special)
        return log

    def run_together(
        self, threads: Iterable[int], block: tuple[int, int, int] = (0, 0, 0), **special: int
    ) -> list[list[Logged]]:
        """Execute threads that shuffle and synchronise with each other; return the log of each."""
        self.accesses = []
        running = {t: _Thread(self, t, block, special) for t in threads}
        logs = [thread.log for thread in running.values()]
        steps = {t: thread.run() for t, thread in running.items()}
        at: dict[int, Any] = dict.fromkeys(steps)
        given: dict[int, Any] = dict.fromkeys(steps)
        while at:
            for t, result in given.items():
                try:
                    at[t] = steps[t].send(result)
                except StopIteration:
                    del at[t]
            together = [t for t in at if at[t] is not None]
            given = {}
            for first in sorted({t - t % 32 for t in together}):
                warp = range(first, first + 32)
                own = [t for t in warp if t in at]
                kind = at[own[0]][0].partition(".")[0]
                if len(own) < 32 and (kind != "shfl" or len(own) > 1):
                    raise RuntimeError(f"{kind} of {len(own)} threads of a warp")
                # A thread that runs alone stands for a warp of 32 such threads.
                results = TOGETHER[kind](self, [at[t if t in at else own[0]] for t in warp])
                given |= {t: results[t - first] for t in own}
            given = given or dict.fromkeys(at)
        for base, array in self.arrays:
            found = self.peek(base, array.nbytes)
            array[...] = np.ndarray(array.shape, array.dtype, found, strides=array.strides)
        return logs


@dataclass(frozen=True)
class Function:
    """The code of a kernel, or of a function that it calls, whose first parameter is the result."""

    code: list[tuple[Any, ...]]
    labels: dict[str, int]
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """What a machine reads of a module of PTX."""

    entry: Function
    functions: dict[str, Function]
    parameters: list[tuple[str, ...]]
    variables: list[tuple[str, ...]]


@functools.cache
def read_module(ptx: str) -> Module:
    """Return the one kernel of a module, with the functions and variables."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*\.(?:loc|file)\b[^\n]*", "", ptx, flags=re.S | re.M)
    (entry,) = re.finditer(r"\.entry\s+[\w$]+\s*\(([^)]*)\)", text)
    variable = r"\.(shared|local|global|const)\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(\[(\d*)\])?"
    parameter = r"\.([bfsu])(\d+)[^,]*?\s([\w$]+)(\[\d+\])?\s*(?:,|$)"
    return Module(
        Function(*parse(_braced(text, text.index("{", entry.end())))),
        dict(functions_of(text)),
        re.findall(parameter, entry[1]),
        re.findall(variable, text),
    )


def functions_of(text: str) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module by name."""
    for found in re.finditer(r"\.func\s*(\([^)]*\))?\s*([\w$]+)\s*(\([^)]*\))[^;{]*\{", text):
        result, name, given = found.groups()
        names = re.findall(r"([\w$]+)(?:\[\d+\])?\s*[,)]", (result or "") + given)
        yield name, Function(*parse(_braced(text, found.end() - 1)), tuple(names))


def parse(body: str) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """Return the instructions, and the places of the labels.

    An instruction is (predicate, name, first part of the name, others, operands, scope). Labels in
    braces become labels of their own: two pieces of inline assembly may use one name.
    """
    code: list[tuple[Any, ...]] = []
    labels: dict[str, int] = {}
    scopes, count = [""], 0
    pieces = list(re.finditer(r"\s*(?:([{}])|([\w$]+)\s*:(?!:)|([^;]*);)", body))
    for piece in pieces:
        brace, label, statement = piece.groups()
        if brace == "{":
            count += 1
            scopes.append(f"{scopes[-1]}/{count}")
        elif brace:
            scopes.pop()
        elif label:
            labels[f"{scopes[-1]}:{label}"] = len(code)
        elif statement and not statement.startswith("."):
            guard, name, rest = re.fullmatch(
                r"(?:@(!?[\w%]+)\s+)?(\S+)\s*(.*)", statement, re.S
            ).groups()
            kind, *modifiers = name.split(".")
            code.append((guard, name, kind, modifiers, split(rest), scopes[-1]))
    return code, labels


@functools.cache
def constant(text: str) -> int | None:
    """Return the bits of an immediate operand; None if it is none."""
    if match := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text):
        return int(match[1], 16)
    return int(text, 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text) else None


@functools.cache
def split(text: str) -> list[str]:
    """Split operands at the commas outside of brackets."""
    return [
        " ".join(o.split())
        for o in re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,])+", text)
        if o.strip()
    ]


class _Thread:
    def __init__(
        self, machine: Machine, thread: int, block: tuple[int, int, int], special: dict[str, int]
    ) -> None:
        self.machine, self.thread, self.next = machine, thread, 0
        self.log: list[Logged] = []
        x, y, _ = machine.block
        tid = (thread % x, thread // x % y, thread // (x * y))
        lane = 1 << thread % 32
        self.registers: dict[str, int] = {
            **{"%laneid": thread % 32, "%warpid": thread // 32, "%lanemask_eq": lane},
            **{"%lanemask_lt": lane - 1, "%lanemask_ge": (1 << 32) - lane},
            **{"%cluster_ctarank": 0, "%cluster_nctarank": 1},
        }
        for name, values in zip(
            ("tid", "ntid", "ctaid", "nctaid"), (tid, machine.block, block, machine.grid)
        ):
            self.registers |= {f"%{name}.{axis}": v for axis, v in zip("xyz", values)}
        for name, value in (machine.special | special).items():
            self.registers["%" + name.replace("__", ".")] = value
        self.special = dict(self.registers)
        self.function = machine.entry
        self.callers: list[Any] = []
        self.names: dict[str, int] = {}
        self.variables = 0

    def run(self) -> Generator[Any, Any, None]:
        """Execute; yield what a warp executes together, and None at a barrier."""
        for step in range(MOST_STEPS):
            elapsed = step * self.machine.step
            self.registers["%globaltimer"] = START_NANOSECONDS + elapsed
            self.registers["%clock64"] = START_CYCLES + CYCLES * elapsed
            guard, name, kind, modifiers, operands, scope = self.function.code[self.next]
            self.next += 1
            if guard and self.read(guard.lstrip("!")) == guard.startswith("!"):
                continue
            if kind == "exit" or kind == "ret" and not self.callers:
                return
            if kind == "ret":
                self.function, self.next, self.registers, self.names = self.callers.pop()
            elif kind == "call":
                self._call(re.findall(r"[\w$]+", " ".join(operands)))
            elif kind == "bra":
                self.next = self._label(operands[0], scope)
            elif kind in ("bar", "barrier"):
                self.log.append((name, tuple(self.read(o) for o in operands)))
                self._check_mask(name)
                yield None
            elif kind in TOGETHER:
                written = kind != "stmatrix"
                self.log.append((name, tuple(self.read(o) for o in operands[written:])))
                self._check_mask(name)
                result = yield self.log[-1]
                if written:
                    self.write(operands[0].partition("|")[0], result)
            elif kind == "trap":
                raise RuntimeError(f"the kernel traps after {self.log[-3:]}")
            else:
                self._execute(name, kind, modifiers, operands)
        raise RuntimeError(f"the thread does not end within {MOST_STEPS} instructions")

    def _check_mask(self, name: str) -> None:
        """Raise unless the thread is one of the lanes that it synchronises with."""
        if name.startswith(("bar.warp", "shfl")):
            mask = self.log[-1][1][-1]
            if not mask >> self.registers["%laneid"] & 1:
                raise RuntimeError(f"{name} of the lanes {mask:#x} by another lane")

    def _label(self, name: str, scope: str) -> int:
        labels = self.function.labels
        while f"{scope}:{name}" not in labels:
            scope = scope.rpartition("/")[0]
        return labels[f"{scope}:{name}"]

    def _call(self, words: list[str]) -> None:
        """Go on in a function; its parameters are the caller's variables."""
        (name,) = (word for word in words if word in self.machine.functions)
        function = self.machine.functions[name]
        given = [self._variable(word) for word in words if word != name]
        self.callers.append((self.function, self.next, self.registers, self.names))
        self.function, self.next, self.registers = function, 0, dict(self.special)
        self.names = dict(zip(function.parameters, given, strict=True))

    def _variable(self, name: str) -> int:
        """Return the address of a variable for parameters."""
        if name not in self.names:
            self.variables += 64
            self.names[name] = VARIABLES + (self.thread << 32) + self.variables
        return self.names[name]

    def _execute(self, name: str, kind: str, modifiers: list[str], operands: list[str]) -> None:
        if kind in LOGGED or "async" in modifiers:
            self._log(name, operands)
        elif kind in ("ld", "ldu", "st"):
            self._access(name, modifiers, operands)
        elif kind in ("red", "atom"):
            self._atomic(modifiers, *(["_"] if kind == "red" else []), *operands)
        else:
            target, *sources = operands
            if kind not in OPERATIONS:
                raise NotImplementedError(f"the machine does not know {name} {operands}")
            result = OPERATIONS[kind](modifiers, *map(self.read, sources))
            if kind == "mov" and target[0] == "{":  # takes a register apart
                count = target.count(",") + 1
                bits = int(modifiers[-1][1:]) // count
                result = [result >> i * bits & (1 << bits) - 1 for i in range(count)]
            self.write(target, result)

    def _log(self, name: str, operands: list[str]) -> None:
        written = bool(RESULTS.match(name))
        values = tuple(self.read(o, missing=True) for o in operands[written:])
        if name == "elect.sync":
            result: Any = (0, int(self.registers["%laneid"] == 0))
        else:
            result = self.machine.answer(name, values) if written else None
        self.log.append((name, values))
        if written:
            self.write(operands[0], result)

    def _access(self, name: str, modifiers: list[str], operands: list[str]) -> None:
        store, kind = name.startswith("st"), modifiers[-1]
        nbytes = int(kind[1:]) // 8
        place, data = operands[:2] if store else operands[1::-1]  # a cache policy may follow
        if "param" in modifiers and (name_of := re.match(r"\[([\w$]+)", place)):
            if name_of[1] not in self.machine.symbols:
                self._variable(name_of[1])
        address = self.read(place)
        count = data.count(",") + 1
        if "param" not in modifiers:
            self.machine.accesses.append((name, address, nbytes * count))
        address = self._generic(address, modifiers)
        if address % (nbytes * count):
            raise RuntimeError(f"a misaligned access of {nbytes * count} B at {address:#x}")
        if not store:
            self._load(data, self.machine.peek(address, nbytes * count), kind, nbytes)
            return
        values = self.read(data)
        for i, value in enumerate(values if isinstance(values, tuple) else (values,)):
            low = value % (1 << 8 * nbytes)
            self.machine.poke(address + i * nbytes, low.to_bytes(nbytes, "little"))

    def _atomic(self, modifiers: list[str], target: str, place: str, given: str) -> None:
        (name,) = (m for m in modifiers if m in ("add", "exch", "inc"))
        address, nbytes = self._generic(self.read(place), modifiers), int(modifiers[-1][1:]) // 8
        before = int.from_bytes(self.machine.peek(address, nbytes), "little")
        value = self.read(given)
        if name == "inc":
            after = before + 1 if before < value else 0
        else:
            after = (value + before * (name == "add")) % (1 << 8 * nbytes)
        self.machine.poke(address, after.to_bytes(nbytes, "little"))
        self.write(target, before)

    def _generic(self, address: int, modifiers: list[str]) -> int:
        if any(m.startswith("shared") for m in modifiers):
            return address + SHARED_WINDOW
        return address + LOCAL_WINDOW + (self.thread << 32) if "local" in modifiers else address

    def _load(self, target: str, raw: bytes, kind: str, nbytes: int) -> None:
        for i, name in enumerate(target.strip("{}").split(",")):
            value = int.from_bytes(raw[i * nbytes : (i + 1) * nbytes], "little")
            # A register may be wider than what is loaded: a signed value is extended.
            self.write(
                name.strip(), signed(value, 8 * nbytes) % (1 << 64) if kind[0] == "s" else value
            )

    def write(self, target: str, value: Any) -> None:
        """Write registers: all of a vector, and all of several results."""
        if isinstance(value, int) and target[-1] != "}":
            self.registers[target] = value
            return
        names = [name.strip() for name in re.split(r"[|,]", target.strip("{}"))]
        values = value if isinstance(value, (tuple, list)) else [value] * len(names)
        for name, each in zip(names, values, strict=True):
            self.registers[name] = each

    def read(self, text: str, missing: bool = False) -> Any:
        """Return the value of an operand; vectors and addresses with coordinates are tuples."""
        if text in self.registers:
            return self.registers[text]
        if text[0] == "{":
            return tuple(self.read(part, missing) for part in split(text[1:-1]))
        if text[0] == "[":
            parts = split(text[1:-1])
            values = tuple(self.read(part, missing) for part in parts)
            return values if len(values) > 1 else values[0]
        if text[0] == "!":
            return 1 - self.read(text[1:])
        if (number := constant(text)) is not None:
            return number
        if match := re.fullmatch(r"(.+?)\+(-?\w+)", text):
            return self.read(match[1]) + int(match[2], 0)
        if text in self.names:
            return self.names[text]
        if text in self.machine.symbols:
            return self.machine.symbols[text]
        if missing:
            return None
        raise KeyError(f"{text} is read, and nothing has written it")
