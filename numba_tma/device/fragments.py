"""Fragments: matrices that the 128 threads of a warpgroup hold together, in registers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from numba_tma import simulator
from numba_tma.backend.interface import native
from numba_tma.device.shared import SharedTile, _narrow, _widen
from numba_tma.host.annotations import DeviceArray, DTypeLike
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.mma_rules import (
    can_hold,
    check_columns,
    check_conversion,
    check_fragment,
    check_place,
    check_rows,
    elements_per_run,
    fragment_coords,
    num_elements,
)

Array = NDArray[Any]
T = TypeVar("T")


class _Arithmetic:
    """The arithmetic operators of fragments and rows; `_combine` applies them."""

    __array_ufunc__ = None  # NumPy's scalars then defer to the operators of this class

    def __add__(self, other: Any) -> Any:
        return self._combine(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._combine(operator.sub, other)

    def __mul__(self, other: Any) -> Any:
        return self._combine(operator.mul, other)

    def __truediv__(self, other: Any) -> Any:
        return self._combine(_divide, other)

    def __radd__(self, other: Any) -> Any:
        return self._combine(lambda a, b: b + a, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(lambda a, b: b - a, other)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(lambda a, b: b * a, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combine(lambda a, b: _divide(b, a), other)

    def _combine(self, operation: Callable[[Array, Any], Array], other: Any) -> Any:
        raise NotImplementedError


@native
class Fragment(_Arithmetic):
    """A matrix of 64 rows and n columns in the registers of a warpgroup (128 threads).

    An immutable value, made by `fragment`, `load_fragment` or arithmetic. Each thread holds ``n /
    2`` elements, in the layout of wgmma's accumulator. Element i
    of thread t stands at ``f.coords(i)``; for 16 and 32 bits that is, with warp w = t // 32 and
    lane l = t % 32, row ``16 w + 8 (i // 2 % 2) + l // 4`` and column
    ``8 (i // 4) + 2 (l % 4) + i % 2``. Elements of 16 bits are packed in pairs of neighbours, and
    of 8 bits in fours (so that a thread has other columns), which is how wgmma takes the matrix A
    from registers.

    ``+``, ``-``, ``*`` and ``/`` work element by element with fragments of the same type, with
    numbers, and with `Rows`, whose number is used for all columns of the row. Floats narrower than
    32 bits are computed in float32 and rounded to nearest even. The threads that hold the fragment
    execute its methods; where a method says so, whole warps do.

    The result of `wgmma` is not ready: until `wgmma_wait` has returned it, it may only be passed
    as `acc` to another `wgmma`. The simulator raises `UnfinishedProduct` for any other use.
    """

    def __init__(
        self, dtype: DType, n: int, elements: Array, product: simulator.PendingProduct | None = None
    ) -> None:
        self._dtype, self._n = dtype, n
        self._elements, self._product = elements, product

    def __repr__(self) -> str:
        return f"Fragment(64 x {self._n}, {self._dtype})"

    @property
    def num_elements(self) -> int:
        """How many elements each thread holds: n / 2, a compile-time constant."""
        return num_elements(self._n)

    def coords(self, i: int) -> tuple[int, int]:
        """Return (row, column), in the 64 x n matrix, of the thread's element `i`."""
        self._check_index(i)
        return fragment_coords(i, simulator.thread_in_warpgroup(), self._dtype.itemsize)

    def __getitem__(self, i: int) -> Any:
        """Return the thread's element `i`, a literal: registers have no addresses."""
        self._check_index(i)
        return self._values("Fragment[...]")[i]

    def map(self, function: Callable[..., Any], *others: Any) -> Fragment:
        """Return the fragment of ``function(value, *others)``, one call for each element.

        `function` is a device function from the kernel's globals and returns the type of its first
        argument. For another fragment it gets the element at the same place, for `Rows` the row's
        number; numbers and arrays are passed as they are.
        """
        values = self._values("Fragment.map")
        return self._mapped(function, values, *map(self._by_element, others))

    def map_coords(self, function: Callable[..., Any], *others: Any) -> Fragment:
        """Return the fragment of ``function(value, row, column, *others)``, as `map` does.

        `row` and `column` are int32 and count from the fragment's corner: for masks, and for
        biases, which the function reads from an array of `others`.
        """
        values = self._values("Fragment.map_coords")
        row, column = self._places()
        given = map(self._by_element, others)
        return self._mapped(function, values, row.astype(np.int32), column.astype(np.int32), *given)

    def row_max(self, quad: bool = True) -> Rows:
        """Return the largest element of each row; NaN only if all are (max.f32).

        The four threads of a quad hold a row. Two shuffles, executed by the whole warp, give all
        four the result. With ``quad=False`` each has the maximum of its own columns, and
        `Rows.quad_max` completes it.
        """
        return self._reduced("Fragment.row_max", np.fmax, quad)

    def row_sum(self, quad: bool = True) -> Rows:
        """Return the sum of each row; with ``quad=False`` of the thread's columns, as `row_max`.

        A thread adds neighbours in chains of their own, from left to right, and then the chains.
        """
        return self._reduced("Fragment.row_sum", np.add, quad)

    def to(self, dtype: DTypeLike) -> Fragment:
        """Return the same matrix with elements of another type, rounded to nearest even.

        f32, i32, f16 and bf16 become f32, f16, bf16, e4m3 or e5m2 (these two saturate). For 8 bits
        the threads of a quad exchange elements, executed by the whole warp: then four neighbours
        along a row are one thread's. Fragments of 8 bits are not converted back.
        """
        values = self._values("Fragment.to")
        found = _checked(check_conversion, self._dtype, dtype)
        _checked(check_fragment, self._n, found, "Fragment.to")
        if elements_per_run(found.itemsize) != self._run:
            quad = np.stack(simulator.exchange_in_quad("Fragment.to", values))
            values = quad[_in_quad(self._n)]
            values = values[simulator.lane_id() % 4]
        return Fragment(found, self._n, _narrow(values.astype(found.compute), found))

    def columns(self, first: int, n: int) -> Fragment:
        """Return `n` columns from `first` on, both literals and multiples of 8 (of 16 for 8 bits).

        The result is a part of the registers; no data moves.
        """
        elements = self._ready("Fragment.columns")
        start, stop = _checked(check_columns, self._n, self._dtype, first, n)
        return Fragment(self._dtype, n, elements[start:stop])

    def store(self, tile: SharedTile, at: tuple[int, int]) -> None:
        """Write the fragment to a shared tile of its type, from the element `at` (row, column) on.

        Through the tile's swizzle; the column is a multiple of 16 B. st.shared for 32 bits, else
        stmatrix, executed by whole warps. These are ordinary writes of all 128 threads: before a
        copy or a wgmma reads the tile, each executes `fence_proxy_async` and then they synchronise,
        which the stores of pipelines do by themselves.
        """
        elements = self._ready("Fragment.store")
        _check_tile("Fragment.store", tile, at, self._n, self._dtype)
        pieces = elements.reshape(-1, self._run)
        simulator.shared_write_pieces(self._addresses(tile, at), pieces)
        tile.accesses.unfenced = True

    def store_global(self, array: DeviceArray, row: int, column: int) -> None:
        """Write the fragment to a Numba array of two axes, from the element (row, column) on.

        The array has elements of the fragment's type, or, for those narrower than 32 bits, integers
        of their size, which take the bits. Elements outside its shape are not written. Neighbours
        that a thread holds are one access of memory where the array's layout allows it.
        """
        elements = self._ready("Fragment.store_global")
        target: Any = getattr(array, "_ary", array)
        if target.ndim != 2 or not can_hold(target.dtype, self._dtype):
            raise simulator.BadOperand(
                "Fragment.store_global(array=...) takes a two-dimensional array of "
                f"{self._dtype}, not one of {target.dtype} with {target.ndim} axes: convert the "
                "fragment with to()"
            )
        rows, columns = (start + place for start, place in zip((row, column), self._places()))
        inside = (rows >= 0) & (rows < target.shape[0])
        inside &= (columns >= 0) & (columns < target.shape[1])
        target[rows[inside], columns[inside]] = elements[inside].view(target.dtype)

    # Simulator.

    def _ready(self, what: str) -> Array:
        """Return the stored elements, unless they are still computed."""
        if self._product is not None:
            raise simulator.UnfinishedProduct(
                f"{what}: the fragment is what wgmma (at {self._product.site}) returned, which may "
                "still be under way: pass it through wgmma_wait first, fragment = "
                "tma.wgmma_wait(fragment), and use what that returns"
            )
        return self._elements

    def _after_wait(self) -> Fragment:
        """Return the fragment as `wgmma_wait` returns it."""
        if self._product is None or not simulator.has_waited(self._product):
            return self
        return Fragment(self._dtype, self._n, self._elements)

    def _values(self, what: str) -> Array:
        return _widen(self._ready(what), self._dtype.compute)  # type: ignore[no-any-return]

    def _check_index(self, i: int) -> None:
        if not 0 <= i < self.num_elements:
            raise simulator.BadOperand(
                f"element {i} of {self!r}: each thread holds elements 0 to {self.num_elements - 1}"
            )

    @property
    def _run(self) -> int:
        """How many neighbours along a row lie together in a thread."""
        return elements_per_run(self._dtype.itemsize)

    def _places(self) -> tuple[Array, Array]:
        return _places(self._n, self._dtype.itemsize, simulator.thread_in_warpgroup())

    def _halves(self) -> Array:
        """Return which of the thread's two rows each element is in."""
        return _halves(self._n, self._run)

    def _addresses(self, tile: SharedTile, at: tuple[int, int]) -> NDArray[np.intp]:
        """Return where in a tile each run of neighbours that the thread holds has its place."""
        thread = simulator.thread_in_warpgroup()
        return tile.address + _offsets(tile.tile, *at, self._n, self._dtype.itemsize, thread)

    def _by_element(self, other: Any) -> Any:
        if isinstance(other, Rows):
            return other._numbers[self._halves()]
        if isinstance(other, Fragment):
            self._check_same_layout(other)
            return other._values("Fragment.map")
        return repeat(other)

    def _check_same_layout(self, other: Fragment) -> None:
        if (self._n, self._run) != (other._n, other._run):
            raise simulator.BadOperand(
                f"{self!r} and {other!r} do not go together: their elements are at other places in "
                "a thread"
            )

    def _mapped(self, function: Callable[..., Any], *lanes: Iterable[Any]) -> Fragment:
        with np.errstate(all="ignore"):
            results = [function(*given) for given in zip(*lanes)]
        return self._of(np.array(results, self._dtype.compute))

    def _of(self, values: Array) -> Fragment:
        return Fragment(self._dtype, self._n, _narrow(values, self._dtype))

    def _combine(self, operation: Callable[[Array, Any], Array], other: Any) -> Any:
        values = self._values("arithmetic")
        if isinstance(other, Fragment):
            if (other._dtype, other._n) != (self._dtype, self._n):
                raise simulator.BadOperand(
                    f"arithmetic with {self!r} and {other!r}: convert one with to(), or use map()"
                )
            operand = other._values("arithmetic")
        elif isinstance(other, Rows):
            operand = other._numbers[self._halves()]
        else:
            operand = values.dtype.type(other)
        with np.errstate(all="ignore"):
            return self._of(operation(values, operand).astype(values.dtype))

    def _reduced(self, what: str, combine: np.ufunc, quad: bool) -> Rows:
        values = self._values(what)
        if values.itemsize == 1:
            raise simulator.BadOperand(
                f'{what}: {self!r} has no reduction: convert it first, with to("f32")'
            )
        by_half = values.reshape(-1, 2, self._run)
        with np.errstate(all="ignore"):
            chains = combine.accumulate(by_half, axis=0)[-1]
            rows = Rows(combine.accumulate(chains, axis=1)[:, -1])
        return rows._across_quad(what, combine) if quad else rows


# The threads of every warpgroup ask for the same places.


@functools.cache
def _places(n: int, itemsize: int, thread: int) -> tuple[Array, Array]:
    places = fragment_coords(np.arange(num_elements(n)), thread, itemsize)
    for each in places:
        each.flags.writeable = False
    return places


@functools.cache
def _halves(n: int, run: int) -> Array:
    halves = np.arange(num_elements(n)) // run % 2
    halves.flags.writeable = False
    return halves


@functools.lru_cache(maxsize=4096)
def _offsets(
    tile: Tile, row: int, column: int, n: int, itemsize: int, thread: int
) -> NDArray[np.intp]:
    """Return where in a tile the runs of neighbours are that a thread of a fragment holds."""
    rows, columns = (each[:: elements_per_run(itemsize)] for each in _places(n, itemsize, thread))
    offsets: NDArray[np.intp] = np.asarray(tile.offset(row + rows, column + columns))
    offsets.flags.writeable = False
    return offsets


@native
class Rows(_Arithmetic):
    """A number for each row of a fragment: each thread holds those of its two rows.

    Made by `Fragment.row_max`, `Fragment.row_sum`, `load_rows` and `rows`. ``+ - * /`` work with
    other rows, with numbers, and with fragments, where each row's number counts for all its
    columns.
    """

    def __init__(self, numbers: Array) -> None:
        self._numbers = numbers

    def __getitem__(self, i: int) -> Any:
        """Return the number of the thread's row `i`, a literal: 0, or 1 for the row 8 below."""
        return self._numbers[_row_index(i)]

    def coords(self, i: int) -> int:
        """Return which row of the 64 the thread's row `i` is."""
        row, _ = fragment_coords(2 * _row_index(i), simulator.thread_in_warpgroup())
        return int(row)

    def map(self, function: Callable[..., Any], *others: Any) -> Rows:
        """Return the rows of ``function(number, *others)``; of other rows it gets the number."""
        given = [o._numbers if isinstance(o, Rows) else repeat(o) for o in others]
        with np.errstate(all="ignore"):
            results = [function(*each) for each in zip(self._numbers, *given)]
        return Rows(np.array(results, self._numbers.dtype))

    def quad_max(self) -> Rows:
        """Return the largest of what the four threads of the quad hold, executed by whole warps."""
        return self._across_quad("Rows.quad_max", np.fmax)

    def quad_sum(self) -> Rows:
        """Return the sum of what the four threads of the quad hold, executed by whole warps."""
        return self._across_quad("Rows.quad_sum", np.add)

    def _combine(self, operation: Callable[[Array, Any], Array], other: Any) -> Any:
        if isinstance(other, Fragment):
            return NotImplemented  # the fragment's own operator knows the row of each element
        operand = other._numbers if isinstance(other, Rows) else self._numbers.dtype.type(other)
        with np.errstate(all="ignore"):
            return Rows(operation(self._numbers, operand).astype(self._numbers.dtype))

    def _across_quad(self, what: str, combine: np.ufunc) -> Rows:
        a, b, c, d = simulator.exchange_in_quad(what, self._numbers)
        with np.errstate(all="ignore"):
            return Rows(combine(combine(a, b), combine(c, d)))  # as two shuffles do


@native
def fragment(n: int, dtype: DTypeLike = "f32") -> Fragment:
    """Return a fragment of 64 x `n` zeros, such as an accumulator to start from.

    `n` is a multiple of 8 up to 256 (of 16 for types of 8 bits), `dtype` f32, i32, f16, bf16, e4m3,
    e5m2, i8 or u8. Both are compile-time constants. A thread holds n / 2 registers of it for
    32-bit types, n / 4 for 16 and n / 8 for 8.
    """
    found = _checked(check_fragment, n, dtype, "fragment")
    return Fragment(found, n, np.zeros(num_elements(n), found.numpy))


@native
def load_fragment(tile: SharedTile, at: tuple[int, int], n: int) -> Fragment:
    """Return the 64 x `n` elements of a shared tile from the element `at` (row, column) on.

    The reverse of `Fragment.store`, in the tile's type, for example for a matrix A in registers.
    The tile's copy must be complete. Executed by whole warps. PTX: ld.shared for 32 bits, else
    ldmatrix.
    """
    dtype = _checked(check_fragment, n, tile.tile.dtype.numpy, "load_fragment")  # of tf32: f32
    _check_tile("load_fragment", tile, at, n, dtype)
    count = elements_per_run(dtype.itemsize)
    places = fragment(n, dtype)._addresses(tile, at)
    parts = [simulator.shared_read(place, dtype.numpy, count) for place in places.tolist()]
    tile.accesses.unfenced = True
    return Fragment(dtype, n, np.concatenate(parts))


@native
def load_rows(tile: SharedTile, start: int) -> Rows:
    """Return the float32 that a shared tile of one axis has for each of 64 rows, from `start` on.

    For example the scales of rows. Each thread reads the numbers of its two rows. The tile's copy
    must be complete.
    """
    _checked(check_rows, tile.tile.shape, tile.tile.dtype, int(start))
    row, _ = fragment_coords(np.arange(0, 4, 2), simulator.thread_in_warpgroup())
    places = np.add(tile.address, tile.tile.offset(int(start) + row))
    tile.accesses.unfenced = True
    kind = tile.tile.dtype.numpy
    return Rows(np.array([simulator.shared_read(place, kind) for place in places.tolist()], kind))


@native
def rows(value: float) -> Rows:
    """Return rows that all have the number `value`, as float32."""
    return Rows(np.full(2, value, np.float32))


def _in_quad(n: int) -> tuple[Array, Array]:
    """Return where each element of 8 bits is before the exchange: thread of the quad, and index."""
    thread, i = np.ogrid[:4, : num_elements(n)]
    row, column = fragment_coords(i, thread, 1)
    return column % 8 // 2, 4 * (column // 8) + 2 * (row // 8) + column % 2


def _divide(dividend: Array, divisor: Array) -> Array:
    if dividend.dtype.kind != "f":
        raise simulator.BadOperand('a division of integers: convert them first, with to("f32")')
    return dividend / divisor


def _row_index(i: int) -> int:
    if i not in (0, 1):
        raise simulator.BadOperand(f"row {i}: each thread holds rows 0 and 1")
    return i


def _checked(rule: Callable[..., T], *args: Any, **named: Any) -> T:
    """Apply a rule of the compiler; its ValueError becomes a BadOperand."""
    try:
        return rule(*args, **named)
    except ValueError as error:
        raise simulator.BadOperand(str(error)) from None


def _check_tile(what: str, tile: SharedTile, at: tuple[int, int], n: int, dtype: DType) -> None:
    if tile.tile.dtype.numpy != dtype.numpy:
        raise simulator.BadOperand(
            f"{what}: the tile is {tile.tile} and the fragment of {dtype}: use a tile of {dtype}, "
            "or convert the fragment with to()"
        )
    _checked(check_place, tile.tile.shape, (int(at[0]), int(at[1])), n, dtype, what)
