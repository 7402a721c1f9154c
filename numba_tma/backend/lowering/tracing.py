"""Traces: a record is written beside every wait, copy, arrival and mark of a kernel.

A record must cost its warp little: it takes 80 cycles in a loop that does nothing else, and fewer
elsewhere. So it is one assembler statement, without a call, which blocks that are not traced jump
over. The address of the warp's ring and the count of its records are registers that the kernel's
first statement declares and the others name: LLVM knows nothing of them, and every function of a
traced kernel is inlined into it. Lane 0 writes. Its count is right because nobody else has it;
where lane 0 is elsewhere, the first of the active lanes writes to a small ring of its own, whose
count is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, Builder, Context, Signature, Value, ir, types
from numba_tma.backend.lowering import hooks
from numba_tma.backend.lowering.instructions import AFTER, HOOKS, Operands
from numba_tma.backend.lowering.labels import labelled_memory
from numba_tma.backend.lowering.row_operands import barrier_of, place_of, word_of
from numba_tma.backend.lowering.waiting import nbytes_of
from numba_tma.host import debug
from numba_tma.host.trace_buffer import launch_address
from numba_tma.host.trace_records import (
    COUNTERS,
    RECORDS,
    SIDE_CAPACITY,
    SIDE_COUNT,
    SIDE_RECORDS,
    RecordKind,
    RecordSite,
    label_slot,
    number_of,
)
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction

_VOID = ir.VoidType()

#: Executed first. Afterwards `tma_ring` is the address of the warp's ring, 0 in a block that is not
#: traced, `tma_count` the count of its records and `tma_mask` their mask, both times 16.
_ENTER = """.reg .b64 tma_ring; .reg .b32 tma_count, tma_mask; .reg .pred tma_traced, tma_writes;
{{ .reg .b32 x, y, z, w, nbytes, first, step, count; .reg .b64 base, t, s;
mov.u64 base, {launch};
ld.global.v4.u32 {{nbytes, first, step, count}}, [base+16];
ld.global.u64 base, [base];
mov.u32 x, %clusterid.z; mov.u32 y, %nclusterid.y; mov.u32 z, %clusterid.y;
mad.lo.u32 x, x, y, z;
mov.u32 y, %nclusterid.x; mov.u32 z, %clusterid.x;
mad.lo.u32 x, x, y, z;
sub.u32 x, x, first; div.u32 y, x, step; mul.lo.u32 z, y, step;
setp.eq.u32 tma_traced, x, z; setp.lt.and.u32 tma_traced, y, count, tma_traced;
setp.ne.and.u64 tma_traced, base, 0, tma_traced;
mov.u32 x, %cluster_nctarank; mov.u32 z, %cluster_ctarank;
mad.lo.u32 y, y, x, z;
mov.u32 x, %tid.z; mov.u32 z, %ntid.y; mov.u32 w, %tid.y; mad.lo.u32 x, x, z, w;
mov.u32 w, %ntid.x; mul.lo.u32 z, z, w; mov.u32 first, %tid.x; mad.lo.u32 x, x, w, first;
and.b32 first, x, 31; setp.eq.and.u32 tma_writes, first, 0, tma_traced;
shr.u32 x, x, 5;
mov.u32 w, %ntid.z; mad.lo.u32 z, z, w, 31; shr.u32 z, z, 5;
mad.lo.u32 y, y, z, x;
mad.wide.u32 base, y, nbytes, base;
selp.b64 tma_ring, base, 0, tma_traced;
mov.u32 tma_count, 0; mov.u32 tma_mask, 0;
@tma_traced ld.global.u32 tma_mask, [tma_ring+4];
mov.u32 x, %smid; mov.u32 y, %ctaid.z; mov.u32 z, %nctaid.y; mov.u32 w, %ctaid.y;
mad.lo.u32 y, y, z, w; mov.u32 z, %nctaid.x; mov.u32 w, %ctaid.x; mad.lo.u32 y, y, z, w;
mov.u64 t, %clock64; mov.u64 s, %globaltimer;
@tma_writes st.global.v2.b32 [tma_ring+8], {{x, y}};
@tma_writes st.global.v2.b64 [tma_ring+{counters}], {{t, s}}; }}"""

#: The clock is read first: what is timed ends before the record is written. A read of all 64 bits
#: takes 7 cycles, one of 32 bits takes 24. So each word of a record needs both halves of a counter:
#: the second one mixes the clock's high half with both of the timer's, and a range is in units of
#: two cycles.
_NOTE = """{{ .reg .pred p; .reg .b32 n, m, c, d, g, h, v; .reg .b64 a, s, t;
@!tma_traced bra.uni WRITTEN;
{late}
mov.u64 t, %clock64; mov.u64 s, %globaltimer;
{value}
mov.b64 {{c, d}}, t; mov.b64 {{g, h}}, s; xor.b32 g, g, h; xor.b32 g, g, d;
and.b32 h, $0, 0x3fff8; shl.b32 h, h, 13; or.b32 h, h, {site};
and.b32 n, tma_count, tma_mask; cvt.u64.u32 a, n; add.u64 a, a, tma_ring;
add.u32 tma_count, tma_count, 16;
@tma_writes st.global.v4.b32 [a+{records}], {{c, g, h, v}};
@tma_writes st.global.b32 [tma_ring], tma_count;
activemask.b32 m; and.b32 n, m, 1; setp.eq.u32 p, n, 1;
@p bra.uni WRITTEN;
mov.u32 n, %lanemask_lt; and.b32 n, n, m; setp.eq.u32 p, n, 0;
@p ld.global.b32 n, [tma_ring+{side}];
and.b32 m, n, {side_mask}; mad.wide.u32 a, m, 16, tma_ring;
@p st.global.v4.b32 [a+{side_records}], {{c, g, h, v}};
add.u32 n, n, 1;
@p st.global.b32 [tma_ring+{side}], n;
WRITTEN: }}"""
_RANGE = "shr.u64 a, t, 1; cvt.u32.u64 v, a; sub.u32 v, v, $1;"
#: The hardware stops a warp behind a bar.sync at its next access to memory, not before.
_LATE = "@tma_writes st.global.b32 [tma_ring], tma_count;"

_LABEL = """@tma_traced st.global.v4.b32 [tma_ring+{slot}], {{{number}, $0, $1, 0}};"""


def _constant(value: int) -> Any:
    return ir.Constant(I32, value)


def _asm(
    builder: Builder, result: ir.Type, text: str, constraints: str = "", *values: Value
) -> Any:
    kind = ir.FunctionType(result, [value.type for value in values])
    clobbered = ",".join(filter(None, (constraints, "~{memory}")))
    asm = ir.InlineAsm(kind, text.replace("\n", " "), clobbered, side_effect=True)
    return builder.call(asm, values, attrs=("convergent",))


def clock(builder: Builder) -> Any:
    """Return the clock for the begin of a range, in units of two cycles."""
    text = "{ .reg .b64 t; mov.u64 t, %clock64; shr.u64 t, t, 1; cvt.u32.u64 $0, t; }"
    return _asm(builder, I32, text, "=r")


def note(
    builder: Builder,
    site: RecordSite,
    place: Value | None = None,
    value: Value | None = None,
    begun: Value | None = None,
) -> None:
    """Emit a record. `place` is a shared address; `begun` is the clock at a range's begin."""
    text = _NOTE.format(
        late=_LATE if site.kind in (RecordKind.MEET, RecordKind.CLUSTER) else "",
        value="mov.b32 v, $1;" if begun is None else _RANGE,
        site=number_of(site),
        records=RECORDS,
        side=SIDE_COUNT,
        side_mask=SIDE_CAPACITY - 1,
        side_records=SIDE_RECORDS,
    )
    _asm(builder, _VOID, text, "r,r", place or _constant(0), begun or value or _constant(0))


def _numbered(builder: Builder, number: Value) -> Any:
    """Return a small number in the place of an address, of which 15 bits over 8 are kept."""
    return builder.shl(number, _constant(3))


def _line() -> str:
    place = compiler.current_line()
    return f"{place[0].rpartition('/')[2]}:{place[1]}" if place else ""


# --------------------------------------------------------------------------- a kernel's ends


def _enclose(function: ir.Function) -> None:
    """Put records at the begin and the ends of a kernel."""
    entry = ir.IRBuilder(function.entry_basic_block)
    entry.position_at_start(function.entry_basic_block)
    _asm(entry, _VOID, _ENTER.format(launch=launch_address(), counters=COUNTERS))
    note(entry, RecordSite(RecordKind.BEGIN))
    for basic_block in function.blocks:
        if isinstance(basic_block.terminator, ir.Ret):
            end = ir.IRBuilder(basic_block)
            end.position_before(basic_block.terminator)
            note(end, RecordSite(RecordKind.END))


# --------------------------------------------------------------------------------- rows

#: Ranges: the rows that wait.
_WAITS = {
    **{n: RecordKind.DRAIN for n in TABLE if n.startswith("cp_async_bulk_wait_group")},
    **dict.fromkeys(("cp_async_wait_group", "cp_async_wait_all"), RecordKind.DRAIN),
    **{"barrier_sync": RecordKind.MEET, "barrier_cluster_wait": RecordKind.CLUSTER},
    "wgmma_wait_group": RecordKind.PRODUCT,
}
#: The clocks at which the ranges that are being emitted begin.
_begun: list[Value] = []


def _before_row(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    if row.name in _WAITS:
        _begun.append(clock(builder))


def _after_row(
    result: Value, row: Instruction, context: Context, builder: Builder, given: Operands
) -> None:
    name = row.name
    if name in _WAITS:
        place = None
        if name == "barrier_sync":
            place = _numbered(builder, word_of(given, "barrier_id"))
        note(builder, RecordSite(_WAITS[name], line=_line()), place, begun=_begun.pop())
    elif name.startswith(("mbarrier_arrive", "tcgen05_commit", "cp_async_mbarrier_arrive")):
        if "expect_tx" not in name:  # the loads that follow say when a stage is filled
            place = barrier_of(context, builder, row, given)
            note(builder, RecordSite(RecordKind.ARRIVE, line=_line()), place)
    elif _is_bulk(name) and "destination" in row.operands and "barrier" in row.operands:
        nbytes = nbytes_of(row, given)
        place = barrier_of(context, builder, row, given)
        mask = word_of(given, "multicast")
        if nbytes is not None and mask is not None:  # in each of these blocks
            blocks = builder.ctpop(mask)
            nbytes = builder.mul(nbytes, blocks if mask.type == I32 else builder.zext(blocks, I32))
        note(builder, RecordSite(RecordKind.LOAD, line=_line()), place, nbytes)
    elif _is_bulk(name) and row.operands.get("source") == "TileAddress":
        as_load = {**given, "destination": given["source"]}
        nbytes = word_of(given, "nbytes")
        if nbytes is None and "tensor_map" in given:
            nbytes = nbytes_of(TABLE["cp_async_bulk_tensor_load"], as_load)
        place = place_of(context, builder, given, "source", "TileAddress")
        note(builder, RecordSite(RecordKind.STORE, line=_line()), place, nbytes)


def _is_bulk(name: str) -> bool:
    return name.startswith(("cp_async_bulk", "cp_reduce_async_bulk")) and "prefetch" not in name


# -------------------------------------------------------------------- what is not a row


def _wait_begins(context: Context, builder: Builder) -> Any:
    return clock(builder)


def _wait_ends(
    builder: Builder, begun: Value, barrier: types.Type, value: Value, site: debug.Site
) -> None:
    place = compiler.get_field(builder, barrier, value, "address")
    what = RecordSite(RecordKind.WAIT, site.what, site.role, _line())
    note(builder, what, place, begun=begun)


def _products_are_awaited(context: Context, builder: Builder) -> None:
    _begun.append(clock(builder))


def _grouped(context: Context, builder: Builder, pending: int | None) -> None:
    if pending is not None:
        note(builder, RecordSite(RecordKind.PRODUCT, line=_line()), begun=_begun.pop())


def _synchronises(context: Context, builder: Builder, after: bool) -> None:
    if after:
        note(builder, RecordSite(RecordKind.MEET, line=_line()), begun=_begun.pop())
    else:
        _begun.append(clock(builder))


def _labelled(
    context: Context,
    builder: Builder,
    function: Callable[..., object],
    sig: Signature,
    args: Sequence[Value],
) -> None:
    """Put the address of a pipeline's memory into the ring, for its name in the trace."""
    if memory := labelled_memory(context, builder, function, sig, args):
        text = _LABEL.format(slot=label_slot(memory.number), number=memory.number)
        _asm(builder, _VOID, text, "r,r", memory.base, memory.barriers)


@contextmanager
def attached() -> Iterator[None]:
    """Let kernels that are compiled meanwhile write records."""
    lists: list[tuple[list[Any], Any]] = [
        (HOOKS, _before_row),
        (AFTER, _after_row),
        (hooks.AROUND_WAITS, (_wait_begins, _wait_ends)),
        (hooks.BEFORE_WAITS, _products_are_awaited),
        (hooks.GROUPS, _grouped),
        (compiler.FINISHED, _enclose),
    ]
    for hooked, hook in lists:
        hooked.append(hook)
    try:
        with compiler.watching(labelled=_labelled, synchronises=_synchronises):
            yield
    finally:
        for hooked, hook in lists:
            hooked.remove(hook)
        _begun.clear()
