"""The arithmetic of PTX on the bits of registers, by the names of its instructions.

Each operation takes the instruction's modifiers, of which the last is the type, and the operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

#: Where the shared and the local memory of a thread begin among generic addresses.
SHARED_WINDOW, LOCAL_WINDOW = 1 << 50, 1 << 51


def signed(value: int, bits: int) -> int:
    """Return the number that the low bits mean in two's complement."""
    value %= 1 << bits
    return value - (value >> bits - 1 << bits)


FLOATS = {
    "f16": (np.uint16, np.float16), "bf16": (np.uint16, ml_dtypes.bfloat16),
    "f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64),
    "e4m3": (np.uint8, ml_dtypes.float8_e4m3fn), "e5m2": (np.uint8, ml_dtypes.float8_e5m2),
}  # fmt: skip


def to_float(value: int, kind: str) -> Any:
    """Return the number that bits are, of a type of PTX."""
    word, number = FLOATS[kind]
    return np.array(value % (1 << 8 * np.dtype(word).itemsize), word).view(number)[()]


def from_float(value: Any, kind: str) -> int:
    """Return the bits of a number, rounded to nearest even."""
    word, number = FLOATS[kind]
    with np.errstate(all="ignore"):
        return int(np.array(value, number).view(word))


def arithmetic(function: Callable[..., Any]) -> Callable[..., int]:
    """Return an operation on the values of the last modifier's type, pairs of halves included."""

    def apply(modifiers: list[str], *values: int) -> int:
        kind = modifiers[-1]
        if kind == "pred":
            return int(function(*values)) & 1
        if kind.endswith("x2"):
            low, high = (apply([kind[:-2]], *(v >> s & 0xFFFF for v in values)) for s in (0, 16))
            return low | high << 16
        if kind in FLOATS:
            with np.errstate(all="ignore"):
                return from_float(function(*(to_float(v, kind) for v in values)), kind)
        bits = int(kind[1:])
        if kind[0] == "s":
            return int(function(*[signed(v, bits) for v in values])) % (1 << bits)
        return int(function(*[v % (1 << bits) for v in values])) % (1 << bits)

    return apply


def product(modifiers: list[str], a: int, b: int, c: int = 0) -> int:
    """Compute mul and mad of integers: the low half, the high half, or all of the product."""
    kind = modifiers[-1]
    bits = int(kind[1:])
    a, b = (signed(v, bits) if kind[0] == "s" else v % (1 << bits) for v in (a, b))
    if "wide" in modifiers:
        return (a * b + c) % (1 << 2 * bits)
    return ((a * b >> bits if "hi" in modifiers else a * b) + c) % (1 << bits)


def multiply(modifiers: list[str], a: int, b: int) -> int:
    return (
        arithmetic(operator.mul)(modifiers, a, b)
        if modifiers[-1] in FLOATS
        else product(modifiers, a, b)
    )


def fma(a: Any, b: Any, c: Any) -> Any:
    return np.float64(a) * np.float64(b) + np.float64(c)


def divide(a: Any, b: Any) -> Any:
    if not isinstance(a, int):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shift_right(modifiers: list[str], a: int, count: int) -> int:
    bits = int(modifiers[-1][1:])
    a = signed(a, bits) if modifiers[-1][0] == "s" else a % (1 << bits)
    return (a >> min(count % (1 << 32), bits)) % (1 << bits)


def shift_left(modifiers: list[str], a: int, count: int) -> int:
    bits = int(modifiers[-1][1:])
    return a << min(count % (1 << 32), bits) & (1 << bits) - 1


def funnel(modifiers: list[str], low: int, high: int, count: int) -> int:
    count = min(count, 32) if "clamp" in modifiers else count % 32
    word = (high % (1 << 32)) << 32 | low % (1 << 32)
    return (word >> count if "r" in modifiers else word << count >> 32) % (1 << 32)


COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip


def compare(modifiers: list[str], a: int, b: int, other: int = 1) -> Any:
    """Compute setp, whose comparisons with a trailing u hold for NaN."""
    comparison, kind = modifiers[0], modifiers[-1]
    if kind in FLOATS:
        a, b = to_float(a, kind), to_float(b, kind)
        unordered = bool(np.isnan(a) or np.isnan(b))
        if comparison in ("num", "nan"):
            found = unordered == (comparison == "nan")
        else:
            ordered = bool(COMPARISONS[comparison[:2]](a, b))
            found = comparison.endswith("u") if unordered else ordered
    else:
        bits = int(kind[1:])
        a, b = (signed(v, bits) if kind[0] == "s" else v % (1 << bits) for v in (a, b))
        found = COMPARISONS[comparison](a, b)
    joined = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    join = next((joined[m] for m in modifiers if m in joined), operator.and_)
    return int(join(int(found), other))


def convert(modifiers: list[str], a: int, *others: int) -> int:
    """Compute cvt; of pairs, the first operand is the upper half."""
    target, source = modifiers[-2:]
    if source.endswith("x2"):
        bits = 16 if "16" in source else 8
        halves = (convert([target[:-2], source[:-2]], a >> n) for n in (0, bits))
        return sum(half << i * 16 for i, half in enumerate(halves))
    if target.endswith("x2"):
        low, high = (to_float(v, source) for v in (*others, a))
        if "satfinite" in modifiers:
            limit = float(ml_dtypes.finfo(FLOATS[target[:-2]][1]).max)
            low, high = (np.clip(v, -limit, limit) for v in (low, high))
        low, high = (from_float(v, target[:-2]) for v in (low, high))
        return high << (16 if "16" in target else 8) | low
    rounding = next((r for m in modifiers if (r := ROUNDINGS.get(m))), None)
    if source in FLOATS:
        value = to_float(a, source)
    else:
        bits = int(source[1:])
        value = signed(a, bits) if source[0] == "s" else a % (1 << bits)
    if rounding and np.isfinite(value):
        value = rounding(value)
    if "sat" in modifiers and target in FLOATS:
        value = min(max(value, 0), 1)
    if target in FLOATS:
        return from_float(value, target)
    bits = int(target[1:])
    if source in FLOATS:  # saturates
        low, high = (
            (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
        )
        value = 0 if np.isnan(value) else min(max(value, low), high)
    return int(value) % (1 << bits)


ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def extract(modifiers: list[str], a: int, position: int, length: int) -> int:
    bits = int(modifiers[-1][1:])
    length = min(length, bits)
    field = (a % (1 << bits) >> position) & (1 << length) - 1
    return signed(field, length) % (1 << bits) if modifiers[-1][0] == "s" and length else field


def insert(modifiers: list[str], a: int, b: int, position: int, length: int) -> int:
    mask = (1 << length) - 1 << position & (1 << int(modifiers[-1][1:])) - 1
    return b & ~mask | a << position & mask


def permute(modifiers: list[str], a: int, b: int, selector: int) -> int:
    if modifiers != ["b32"]:
        raise NotImplementedError(f"the machine does not know prmt.{'.'.join(modifiers)}")
    data, result = (a % (1 << 32)) | (b % (1 << 32)) << 32, 0
    for i in range(4):
        choice = selector >> 4 * i & 15
        byte = data >> 8 * (choice & 7) & 255
        result |= (255 * (byte >> 7) if choice & 8 else byte) << 8 * i
    return result


def look_up(modifiers: list[str], a: int, b: int, c: int, table: int) -> int:
    result = 0
    for i in range(8):
        if table >> i & 1:
            term = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
            result |= term
    return result % (1 << 32)


def move(modifiers: list[str], a: Any) -> Any:
    """Compute mov, which also packs a vector into a register and takes a register apart."""
    bits = 1 if modifiers[-1] == "pred" else int(modifiers[-1][1:])
    if isinstance(a, tuple):
        each = bits // len(a)
        return sum(value % (1 << each) << i * each for i, value in enumerate(a))
    return a % (1 << bits) if isinstance(a, int) else a


def generic(modifiers: list[str], a: int) -> int:
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
    size = next((window[m.split("::")[0]] for m in modifiers if m.split("::")[0] in window), 0)
    return a - size if "to" in modifiers else a + size


OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": arithmetic(abs), "neg": arithmetic(operator.neg), "not": arithmetic(operator.invert),
    "add": arithmetic(operator.add), "sub": arithmetic(operator.sub), "mul": multiply,
    "mad": product, "fma": arithmetic(fma), "div": arithmetic(divide),
    "rem": arithmetic(lambda a, b: a - b * divide(a, b)),
    "and": arithmetic(operator.and_), "or": arithmetic(operator.or_),
    "xor": arithmetic(operator.xor),
    "min": arithmetic(lambda a, b: min(a, b) if isinstance(a, int) else np.fmin(a, b)),
    "max": arithmetic(lambda a, b: max(a, b) if isinstance(a, int) else np.fmax(a, b)),
    "sqrt": arithmetic(np.sqrt), "rcp": arithmetic(lambda a: 1 / a), "ex2": arithmetic(np.exp2),
    "lg2": arithmetic(np.log2), "rsqrt": arithmetic(lambda a: 1 / np.sqrt(a)),
    "shl": shift_left, "shr": shift_right, "shf": funnel, "setp": compare, "cvt": convert,
    "selp": lambda _, a, b, p: a if p else b, "bfe": extract, "bfi": insert, "prmt": permute,
    "lop3": look_up, "mov": move, "cvta": generic,
    "popc": lambda _, a: (a % (1 << 64)).bit_count(),
    "clz": lambda m, a: int(m[-1][1:]) - a.bit_length(),
    "mapa": lambda _, a, rank: a % (1 << 24) | rank << 24, "getctarank": lambda _, a: a >> 24,
}  # fmt: skip
