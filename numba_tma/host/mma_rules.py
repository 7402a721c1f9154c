"""Types and shapes that wgmma multiplies, and the registers in which a warpgroup holds a matrix.

A fragment is a matrix of `ROWS` rows in the registers of the 128 threads of a warpgroup, in the
layout of wgmma's accumulator. A register holds one element of 32 bits, or 2 of 16 or 4 of 8 bits
that are neighbours along a row: so packed, the layout is that of the operand A in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.warpgroup import MAX_COLUMNS, ROWS, STEP_BYTES, THREADS

#: Element types of fragments.
FRAGMENT_DTYPES = ("f32", "i32", "f16", "bf16", "e4m3", "e5m2", "i8", "u8")

#: Types to which fragments of floats, or of i32, are converted.
CONVERTED_TO = ("f32", "f16", "bf16", "e4m3", "e5m2")


@dataclass(frozen=True)
class Form:
    """Types that one form of wgmma multiplies in any mix, and their accumulators."""

    operands: tuple[str, ...]
    accumulators: tuple[str, ...]
    transposes: bool = False  #: MN-major tiles
    negates: bool = True

    def columns(self, n: int) -> bool:
        """Return whether there is an instruction for n columns of B."""
        step = 8 if self.negates or n <= 32 else 16
        return 8 <= n <= MAX_COLUMNS and n % step == 0

    def __str__(self) -> str:
        extra = ", tiles K- or MN-major" if self.transposes else ""
        n = "multiples of 8" if self.negates else "8, 16, 24, 32 and multiples of 16"
        return f"{', '.join(self.operands)} -> {' or '.join(self.accumulators)} (n {n}{extra})"


#: The one table of legal products. A tile of f32 counts as tf32, whose 13 further bits are dropped.
FORMS = (
    Form(("f16",), ("f16", "f32"), transposes=True),
    Form(("bf16",), ("f32",), transposes=True),
    Form(("tf32",), ("f32",)),
    Form(("e4m3", "e5m2"), ("f16", "f32")),
    Form(("i8", "u8"), ("i32",), negates=False),
)


def operand_name(dtype: DType) -> str:
    """Return the name of a tile's element type in `FORMS`."""
    return "tf32" if dtype.name in ("f32", "f32_ftz", "tf32_ftz") else dtype.name


# --------------------------------------------------------------------------- fragments


def elements_per_run(itemsize: int) -> int:
    """Return how many neighbouring elements of a row a thread holds, in one or two registers."""
    return 4 if itemsize == 1 else 2


def num_elements(n: int) -> int:
    """Return how many elements of a 64 x n fragment each thread holds."""
    return n * ROWS // THREADS


def num_registers(n: int, itemsize: int) -> int:
    """Return the registers of each thread for a 64 x n fragment."""
    return num_elements(n) * itemsize // 4


def fragment_coords(i: Any, thread: Any, itemsize: int = 4) -> tuple[Any, Any]:
    """Return (row, column) of a thread's element.

    Parameters
    ----------
    i
        Index of the element, from 0 to n / 2 - 1; an integer or an array of them.
    thread
        Index of the thread in its warpgroup, from 0 to 127; likewise.
    itemsize
        Bytes of an element: 1, 2 or 4. Of 2 and 4 the layout is the same.
    """
    run = elements_per_run(itemsize)
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + 8 * (i // run % 2) + lane // 4
    column = 4 * run * (i // (2 * run)) + run * (lane % 4) + i % run
    return row, column


def check_fragment(n: object, dtype: DTypeLike, what: str) -> DType:
    """Return the dtype of a 64 x n fragment, or raise a ValueError that says what there is."""
    try:
        found = as_dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in FRAGMENT_DTYPES:
        raise ValueError(
            f"{what}: dtype is {dtype!r}; a fragment holds one of {', '.join(FRAGMENT_DTYPES)}"
        )
    step = 16 if found.itemsize == 1 else 8
    if not isinstance(n, int) or not step <= n <= MAX_COLUMNS or n % step:
        raise ValueError(
            f"{what}: n is {n!r}; a fragment of {found} has {step} to {MAX_COLUMNS} columns, a "
            f"multiple of {step}"
        )
    return found


def check_conversion(source: DType, target: DTypeLike) -> DType:
    """Return the dtype that a fragment is converted to, or raise a ValueError."""
    try:
        found = as_dtype(target)
    except TypeError:
        found = None
    if found is None or found.name not in CONVERTED_TO:
        raise ValueError(
            f"Fragment.to: dtype is {target!r}; fragments are converted to "
            f"{', '.join(CONVERTED_TO)}"
        )
    if source.itemsize == 1 and found is not source:
        raise ValueError(
            f"Fragment.to: fragments of {source} are operands only, since threads hold other "
            "elements of them: convert the one that it was made of"
        )
    return found


def check_columns(n: int, dtype: DType, first: Any, count: Any) -> tuple[int, int]:
    """Return the range of a thread's elements in `count` columns from `first` on."""
    unit = 4 * elements_per_run(dtype.itemsize)
    if first % unit or count % unit or not 0 <= first < first + count <= n:
        raise ValueError(
            f"Fragment.columns({first}, {count}) of 64 x {n}, {dtype}: both are multiples of "
            f"{unit}, and the columns are among the {n}"
        )
    return first // 2, (first + count) // 2


def can_hold(array: DTypeLike, dtype: DType) -> bool:
    """Return whether a fragment of `dtype` can be stored to an array of the dtype `array`.

    Its own, or bits of the size of narrow ones.
    """
    try:
        found = as_dtype(array)
    except TypeError:
        return False
    bits = (f"u{8 * dtype.itemsize}", f"i{8 * dtype.itemsize}")
    return found.numpy == dtype.numpy or (dtype.itemsize < 4 and found.name in bits)


def check_rows(shape: tuple[int, ...], dtype: DType, start: int | None) -> None:
    """Raise a ValueError unless a tile has an element for each of 64 rows from `start` on."""
    if len(shape) != 1 or dtype.name != "f32":
        raise ValueError(
            f"load_rows: the tile has the shape {shape} and holds {dtype}; rows have a float32 "
            "each: use a tile of one axis of f32, or a view of it as one"
        )
    if not 0 <= (start or 0) <= shape[0] - ROWS:
        raise ValueError(
            f"load_rows: {ROWS} rows from {start or 0} on are not in a tile of {shape[0]}: use a "
            "larger tile"
        )


def check_place(
    shape: tuple[int, ...], at: tuple[int | None, ...], n: int, dtype: DType, what: str
) -> None:
    """Raise a ValueError unless a 64 x n fragment fits a tile of `shape` from `at` on.

    `at` is (row, column), with None for an unknown coordinate.
    """
    if len(shape) != 2:
        raise ValueError(
            f"{what}: the tile has the shape {shape}; a fragment is a matrix: use a tile of two "
            "axes, or a view of it as one"
        )
    unit = 16 // dtype.itemsize
    if shape[1] % unit:
        raise ValueError(
            f"{what}: the tile's rows have {shape[1]} elements of {dtype}; they are moved 16 B at "
            f"a time: use a multiple of {unit}"
        )
    if at[1] is not None and at[1] % unit:
        raise ValueError(
            f"{what}: the column is {at[1]}; rows are moved 16 B at a time: use a multiple of "
            f"{unit} of {dtype}"
        )
    for axis, start, extent in zip(("row", "column"), at, (ROWS, n)):
        size = shape[axis == "column"]
        if not 0 <= (start or 0) <= size - extent:
            raise ValueError(
                f"{what}: a fragment of {ROWS} x {n} from {axis} {start or 0} on does not fit a "
                f"tile of {shape[0]} x {shape[1]}: use a larger tile, or a narrower fragment"
            )


# ---------------------------------------------------------------------------- products


@dataclass(frozen=True)
class RegisterOperand:
    """A matrix A in registers: a fragment of 64 x k."""

    dtype: DType
    k: int
    major = "K"

    @property
    def num_k_steps(self) -> int:
        """Instructions that cover all of K."""
        return self.k * self.dtype.itemsize // STEP_BYTES


@dataclass(frozen=True)
class Product:
    """The instructions of one call of wgmma: `k_steps` of one form."""

    form: Form
    n: int
    k_per_step: int
    k_steps: int


def legal_products() -> str:
    """List the types that wgmma multiplies."""
    return f"wgmma multiplies {'; '.join(map(str, FORMS))}"


def check_product(
    accumulator: DType,
    n: int,
    a: MatrixLayout | RegisterOperand,
    b: MatrixLayout,
    *,
    negates: bool = False,
    k_steps: int | None = None,
) -> Product:
    """Return the instructions that multiply two operands into a 64 x n accumulator, or raise.

    Parameters
    ----------
    accumulator, n
        Element type and columns of the accumulator.
    a, b
        The operands: descriptors, or a fragment for `a`.
    negates
        Whether an operand is negated.
    k_steps
        Steps along K from the descriptors' positions; None for all steps of the tiles.
    """
    a_dtype = a.dtype if isinstance(a, RegisterOperand) else a.tile.dtype
    names = operand_name(a_dtype), operand_name(b.tile.dtype)
    form = next((f for f in FORMS if set(names) <= set(f.operands)), None)
    pair = f"{names[0]} x {names[1]} -> {accumulator}"
    if form is None or accumulator.name not in form.accumulators:
        raise ValueError(f"wgmma: there is no {pair}. {legal_products()}")
    if isinstance(a, RegisterOperand) and names[0] == "tf32":
        raise ValueError(
            "wgmma: a is a fragment of f32, and tf32 in registers has another layout: write it to "
            "a tile and give its descriptor, or convert it with to()"
        )
    if not form.columns(n):
        raise ValueError(f"wgmma: n is {n}, which {pair} has not. {legal_products()}")
    if negates and not form.negates:
        raise ValueError(f"wgmma: integers are not negated ({pair}): subtract the product later")
    if not isinstance(a, RegisterOperand) and a.rows < ROWS:
        raise ValueError(
            f"wgmma: a is {a.tile} with {a.rows} rows; a warpgroup multiplies {ROWS} rows: use a "
            f"tile with {ROWS} rows of A or more"
        )
    if b.rows < n:
        raise ValueError(
            f"wgmma: b is {b.tile} with {b.rows} columns of B, and the accumulator has {n}: use "
            f"fragment({b.rows}), or a wider tile"
        )
    return Product(form, n, STEP_BYTES // a_dtype.itemsize, _k_steps(a, b, k_steps))


def _k_steps(a: MatrixLayout | RegisterOperand, b: MatrixLayout, given: int | None) -> int:
    if given is None:
        if a.k != b.k:
            raise ValueError(
                f"wgmma: a has K {a.k} and b has K {b.k}: use tiles of one K, or say k_steps"
            )
        return a.num_k_steps
    most = min(a.num_k_steps, b.num_k_steps)
    if not 1 <= given <= most:
        raise ValueError(
            f"wgmma: k_steps is {given}; the operands have {a.num_k_steps} and {b.num_k_steps} "
            f"steps of {STEP_BYTES} B along K: use 1 to {most}"
        )
    return given


def check_pending(pending: object) -> None:
    """Raise a ValueError unless `pending` is a number of groups that a wait can leave pending."""
    if not isinstance(pending, int) or not 0 <= pending <= 7:
        raise ValueError(
            f"wgmma_wait: pending is {pending!r}; wait until at most 0 to 7 groups are under way"
        )
