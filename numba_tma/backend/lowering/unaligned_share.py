"""Unaligned shares: the compiled half of `Share.aligned` being False.

An access is whole if the row has all of its elements. A thread that has other accesses takes a
branch, in which it loads, stores or selects element by element; few warps of a long row do.

Element n is in the row if 0 <= n < limit: if n is below the limit as an unsigned number. Conditions
of instructions compare signed numbers (`BELOW`), so 2**31 is added to both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Value,
    VectorType,
    ir,
    pack,
    types,
    unpack,
)
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.operands import BELOW
from numba_tma.backend.lowering.units import shifted_words
from numba_tma.device.share import Share
from numba_tma.ptx import TABLE

SHORT = 64  #: Rows of fewer accesses are short.
_I16, _BIAS = ir.IntType(16), ir.Constant(I32, 1 << 31)


class Row:
    """A thread's accesses of a row: where they are, and which elements the row has."""

    def __init__(
        self, builder: Builder, share: Share, first: Value, limit: Value, units: int = 1
    ) -> None:
        """With more `units`, an access is whole if the row also has the next accesses' elements."""
        self.builder, self.share, self.first, self.limit = builder, share, first, limit
        zero = ir.Constant(I32, 0)
        end = builder.sub(limit, ir.Constant(I32, units * share.lanes - 1))
        end = builder.select(builder.icmp_signed(">", end, zero), end, zero)
        self._biased = builder.add(first, _BIAS)
        self._limit, self._end = builder.add(limit, _BIAS), builder.add(end, _BIAS)

    def whole(self, access: int) -> tuple[Any, Any]:
        """Return two numbers; the first is below the second if an access is whole."""
        return self._number(access, 0), self._end

    def there(self, access: int, lane: int) -> tuple[Any, Any]:
        """Return two numbers; the first is below the second if the row has an element."""
        return self._number(access, lane), self._limit

    def holds(self, access: int, lane: int) -> Any:
        """Return whether the row has an element."""
        return self.builder.icmp_signed("<", *self.there(access, lane))

    def is_whole(self, access: int) -> Any:
        """Return whether an access is whole."""
        return self.builder.icmp_signed("<", *self.whole(access))

    def has_edges(self) -> Any:
        """Return whether the thread has accesses that are not whole."""
        result = self.builder.not_(self.is_whole(0))
        for access in range(1, self.share.count):
            result = self.builder.or_(result, self.builder.not_(self.is_whole(access)))
        return result

    def without_whole(self, access: int, lane: int) -> tuple[Any, Any]:
        """As `there`, but False for the elements of a whole access."""
        number, none = self._number(access, lane), _BIAS
        return number, self.builder.select(self.is_whole(access), none, self._limit)

    def base(self, location: Value) -> Any:
        """Return the address of the thread's first access."""
        nbytes = ir.Constant(I64, self.share.dtype.itemsize)
        return self.builder.add(
            location, self.builder.mul(self.builder.sext(self.first, I64), nbytes)
        )

    def offset(self, access: int, lane: int = 0) -> dict[str, Any]:
        """Return the operand `offset` of an element, from the thread's first access; {} for 0."""
        share = self.share
        offset = access * share.step * share.width + lane * share.dtype.itemsize
        return {"offset": (types.literal(offset), None)} if offset else {}

    def _number(self, access: int, lane: int) -> Any:
        """Return the number of an element in the row, plus 2**31."""
        share = self.share
        return self.builder.add(
            self._biased, ir.Constant(I32, access * share.step * share.lanes + lane)
        )


def load(
    context: Context, builder: Builder, share: Share, place: Sequence[Value], cache: dict[str, Any]
) -> Any:
    """Load a share from `place`: the row's address, the thread's first element, and the limit."""
    location, first, limit = place
    row, words = Row(builder, share, first, limit), []
    base, instruction = row.base(location), TABLE[f"ld_global_{share.access}"]
    for k in range(share.count):
        given = {"source": (types.uint64, base), "condition": (BELOW, row.whole(k))}
        words += unpack(
            builder, emit(instruction, context, builder, given | row.offset(k) | cache)
        )
    return pack(builder, _with_edges(context, builder, row, base, words))


def load_anywhere(
    context: Context, builder: Builder, share: Share, place: Sequence[Value]
) -> Any:
    """Load a share as `load` does, from a row that begins anywhere relative to the share's.

    An access lies in two units of 16 B, which are loaded and shifted against each other; the second
    unit ends within the row if the row has the next access's elements, too. In a short row most
    threads have an edge, so that all of them load elements.
    """
    location, first, limit = place
    if share.step * share.count < SHORT:
        row = Row(builder, share, first, limit)
        base = row.base(location)
        return pack(builder, _load_elements(context, builder, row, base, row.there))
    row, words = Row(builder, share, first, limit, units=2), []
    base, instruction = row.base(location), TABLE[f"ld_global_{share.access}"]
    fifteen = ir.Constant(I64, 15)
    shift = builder.trunc(builder.and_(base, fifteen), I32)
    start = builder.and_(base, builder.not_(fifteen))
    for k in range(share.count):
        units: list[Any] = []
        for n in (0, share.lanes):
            given = {"source": (types.uint64, start), "condition": (BELOW, row.whole(k))}
            units += unpack(
                builder, emit(instruction, context, builder, given | row.offset(k, n))
            )
        words += shifted_words(builder, units, shift)
    return pack(builder, _with_edges(context, builder, row, base, words))


def _with_edges(
    context: Context, builder: Builder, row: Row, base: Value, words: list[Any]
) -> list[Any]:
    """Return the words of whole accesses, with the elements of the others."""
    before = builder.block
    with builder.if_then(row.has_edges(), likely=False):
        elements = _load_elements(context, builder, row, base, row.without_whole)
        # What is not loaded is zero; shifted words of nothing are zero, too.
        both = [builder.or_(*pair) for pair in zip(words, elements)]
        after = builder.block
    return _merged(builder, words, before, both, after)


def _load_elements(
    context: Context,
    builder: Builder,
    row: Row,
    base: Value,
    condition: Callable[[int, int], tuple[Any, Any]],
) -> list[Any]:
    """Load the elements that meet a condition, and return words."""
    share, loaded = row.share, []
    instruction = TABLE[f"ld_global_u{8 * share.dtype.itemsize}"]
    for k in range(share.count):
        for n in range(share.lanes):
            given = {"source": (types.uint64, base), "condition": (BELOW, condition(k, n))}
            loaded.append(emit(instruction, context, builder, given | row.offset(k, n)))
    if share.dtype.itemsize == 4:
        return loaded
    wide, shift = [builder.zext(half, I32) for half in loaded], ir.Constant(I32, 16)
    return [builder.or_(a, builder.shl(b, shift)) for a, b in zip(wide[::2], wide[1::2])]


def store(
    context: Context, builder: Builder, share: Share, place: Sequence[Value], packed: Value
) -> None:
    """Store a share to `place`, as `load` has it."""
    location, first, limit = place
    row, words = Row(builder, share, first, limit), unpack(builder, packed)
    base, each = row.base(location), share.words // share.count
    nbytes = share.dtype.itemsize
    for k in range(share.count):
        values = VectorType(types.uint32, each), pack(builder, words[k * each : (k + 1) * each])
        given = {"destination": (types.uint64, base), "values": values}
        given |= {"condition": (BELOW, row.whole(k))} | row.offset(k)
        emit(TABLE[f"st_global_{share.access}"], context, builder, given)
    one, kind = TABLE[f"st_global_u{8 * nbytes}"], types.uint16 if nbytes == 2 else types.uint32
    with builder.if_then(row.has_edges(), likely=False):
        elements = words if nbytes == 4 else [h for word in words for h in _halves(builder, word)]
        for i, element in enumerate(elements):
            k, n = divmod(i, share.lanes)
            given = {"destination": (types.uint64, base), "value": (kind, element)}
            given |= {"condition": (BELOW, row.without_whole(k, n))} | row.offset(k, n)
            emit(one, context, builder, given)


def _halves(builder: Builder, word: Value) -> list[Any]:
    high = builder.lshr(word, ir.Constant(I32, 16))
    return [builder.trunc(half, _I16) for half in (word, high)]


def keep(builder: Builder, row: Row, values: list[Any], other: Value) -> list[Any]:
    """Return the values, with `other` in place of elements that the row does not have."""
    before = builder.block
    with builder.if_then(row.has_edges(), likely=False):
        lanes = row.share.lanes
        kept = [
            builder.select(row.holds(*divmod(i, lanes)), value, other)
            for i, value in enumerate(values)
        ]
        after = builder.block
    return _merged(builder, values, before, kept, after)


def num_present(builder: Builder, row: Row) -> Any:
    """Return how many elements the row has of the thread's, as an integer."""
    share, zero = row.share, ir.Constant(I32, 0)

    def smaller(a: Value, b: Value) -> Any:
        return builder.select(builder.icmp_signed("<", a, b), a, b)

    def larger(a: Value, b: Value) -> Any:
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    total = zero
    for k in range(share.count):
        begin = builder.add(row.first, ir.Constant(I32, k * share.step * share.lanes))
        end = smaller(builder.add(begin, ir.Constant(I32, share.lanes)), row.limit)
        total = builder.add(total, larger(builder.sub(end, larger(begin, zero)), zero))
    return total


def _merged(
    builder: Builder, values: list[Any], before: Any, others: list[Any], after: Any
) -> list[Any]:
    """Return the values of a branch that was taken, or those from before it."""
    merged = []
    for value, other in zip(values, others):
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phi.add_incoming(other, after)
        merged.append(phi)
    return merged
