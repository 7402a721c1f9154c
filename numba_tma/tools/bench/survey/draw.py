"""Which calls a survey measures: drawn at random from the domain of each family, by a seed.

Sizes are log-uniform. The first cases of a longer survey are those of a shorter one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Random = random.Random

SIZES = {"f32": 4, "bf16": 2, "f16": 2, "e4m3": 1}  #: bytes of an element
#: What a length is a multiple of: a tile's side, 16 B, or nothing, and then it is odd.
STEPS = (64, 8, 1)

MATMUL_DTYPES = ("bf16", "f16", "bf16", "f16", "e4m3")
#: The axes along which a and b are contiguous.
LAYOUTS = ("KK", "KN", "MK", "MN")

HEAD_DIMS, BACKWARD_HEAD_DIMS = (64, 96, 128, 256), (64, 128)
HEADS, GROUPS = (1, 2, 4, 6, 8, 12, 16, 20, 32), (1, 1, 2, 4, 8)
ATTENTION_OPERATIONS = 2e9, 1.2e12  #: of a call; more would take several milliseconds
ATTENTION_BYTES = 1 << 28  #: of the largest array

ROW_KERNELS = (
    *("rmsnorm", "layernorm", "softmax", "row_sum", "column_sum"),
    *("add", "gelu", "swiglu", "transpose", "copy"),
)
ROW_DTYPES = ("f32", "bf16", "f16")
#: Rows of whole multiples of 16 B; of an odd number of elements; of any number from the second
#: element of an allocation on; and the same with a gap between them.
ALIGNMENTS = ("aligned", "aligned", "odd", "shifted", "view")
ROW_BYTES = 1 << 20, 1 << 28  #: of the largest array


@dataclass(frozen=True)
class Case:
    """One call: M x N x K, rows x columns, or the six lengths of attention, and what else it is."""

    family: str
    kernel: str
    dtype: str
    shape: tuple[int, ...]
    form: str

    @property
    def name(self) -> str:
        """What the row of the case is called."""
        query, keys = self.shape[:4], self.shape[4:]
        on = f" on {keys[0]} x {keys[1]}" if keys else ""
        return f"{self.dtype} {' x '.join(map(str, query))}{on}, {self.form}"

    @property
    def key(self) -> tuple[str, str]:
        """What tells the case from all others."""
        return self.kernel, self.name


def log_uniform(rng: Random, low: int, high: int) -> int:
    """Return a number whose logarithm is uniform."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def length(rng: Random, low: int, high: int, step: int | None = None) -> int:
    """Return such a number, rounded down to a multiple of `step`, or of one of `STEPS`."""
    number = log_uniform(rng, low, high)
    chosen = step or rng.choice(STEPS)
    if chosen == 1:
        return number - 1 + number % 2
    if number < chosen:
        return step or number
    return number - number % chosen


def draw_matmul(rng: Random, n: int) -> Case:
    """Return a matmul; a quarter has few rows, and a quarter few columns.

    torch multiplies e4m3 only if both are contiguous along K, with N and K multiples of 16.
    """
    dtype = MATMUL_DTYPES[n % len(MATMUL_DTYPES)]
    narrow = dtype == "e4m3"
    step = 16 if narrow else None
    kind = rng.choice(("any", "any", "few rows", "few columns"))
    rows = {"few rows": (1, 128), "few columns": (1024, 16384)}.get(kind, (64, 8192))
    columns = {"few rows": (1024, 16384), "few columns": (16, 128)}.get(kind, (64, 8192))
    shape = length(rng, *rows), length(rng, *columns, step), length(rng, 64, 8192, step)
    return Case("matmul", "matmul", dtype, shape, "KK" if narrow else rng.choice(LAYOUTS))


def _draw_attention(rng: Random, family: str, head_dims: tuple[int, ...], products: int) -> Case:
    """Return attention whose sequences are long, or many, or of unequal lengths."""
    while True:
        depth, group = rng.choice(head_dims), rng.choice(GROUPS)
        heads = rng.choice([heads for heads in HEADS if heads % group == 0])
        kind = rng.choice(("long", "long", "many", "unequal"))
        many = kind == "many"
        batch = log_uniform(rng, *((16, 256) if many else (1, 8)))
        keys = length(rng, *((64, 2048) if many else (256, 16384)))
        queries = length(rng, 16, 4096) if kind == "unequal" else keys
        operations = 2 * products * batch * heads * queries * keys * depth
        largest = 2 * batch * heads * max(queries, keys) * depth
        low, high = ATTENTION_OPERATIONS
        if low <= operations <= high and largest <= ATTENTION_BYTES:
            break
    # torch counts positions from the starts, we from the ends: so lengths with a mask are equal.
    form = "full" if queries != keys else rng.choice(("full", "causal"))
    shape = batch, queries, heads, depth, keys, heads // group
    return Case(family, family, rng.choice(("bf16", "f16")), shape, form)


def draw_attention(rng: Random, n: int) -> Case:
    """Return a forward pass of attention."""
    return _draw_attention(rng, "attention", HEAD_DIMS, 2)


def draw_attention_backward(rng: Random, n: int) -> Case:
    """Return gradients of attention."""
    return _draw_attention(rng, "attention_backward", BACKWARD_HEAD_DIMS, 5)


def draw_rows(rng: Random, n: int) -> Case:
    """Return a call of one of `ROW_KERNELS`, which take turns."""
    kernel, dtype = ROW_KERNELS[n % len(ROW_KERNELS)], rng.choice(ROW_DTYPES)
    form = rng.choice(ALIGNMENTS)
    step = {"aligned": rng.choice(STEPS[:2]), "odd": 1}.get(form)
    columns = length(rng, 32, 16384 if kernel == "transpose" else 1 << 18, step)
    rows = max(1, log_uniform(rng, *ROW_BYTES) // (columns * SIZES[dtype]))
    if kernel == "transpose" and form == "aligned":
        rows = -(-rows // 8) * 8  # they are the columns of the result
    return Case("rows", kernel, dtype, (rows, columns), form)


#: By family: what draws its case number n, and how many a survey has.
FAMILIES: dict[str, tuple[Callable[[Random, int], Case], int]] = {
    "matmul": (draw_matmul, 150),
    "attention": (draw_attention, 60),
    "attention_backward": (draw_attention_backward, 20),
    "rows": (draw_rows, 150),
}


def cases_of(family: str, count: int, seed: int) -> list[Case]:
    """Return so many different cases of a family."""
    rng, (draw, _) = Random(f"{family} {seed}"), FAMILIES[family]
    found: dict[tuple[str, str], Case] = {}
    while len(found) < count:
        case = draw(rng, len(found))
        found.setdefault(case.key, case)
    return list(found.values())


def cases(counts: Mapping[str, int], seed: int) -> list[Case]:
    """Return the cases of families, mixed, so that a run that is cut has some of each."""
    placed = [
        ((n + 0.5) / count, case)
        for family, count in counts.items()
        for n, case in enumerate(cases_of(family, count, seed))
    ]
    return [case for _, case in sorted(placed, key=lambda pair: pair[0])]
