"""Races mode: every instruction that orders or accesses shared memory is logged beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Signature,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering import hooks
from numba_tma.backend.lowering.instructions import (
    AFTER,
    HOOKS,
    LEFT_OUT,
    Operands,
    emit,
    is_absent,
)
from numba_tma.backend.lowering.labels import labelled_memory
from numba_tma.backend.lowering.operands import BELOW, OPERANDS
from numba_tma.backend.lowering.row_operands import barrier_of, place_of, word_of
from numba_tma.backend.lowering.waiting import WAITS, nbytes_of
from numba_tma.device import races
from numba_tma.host.debug import MARKER, Site, site_number
from numba_tma.host.environment import racing
from numba_tma.host.races import Kind, events_address, header_address, line_number
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction

U32, U64 = types.uint32, types.uint64
_ALL = ir.Constant(I32, 0xFFFFFFFF)
_WAITING = "numba_tma.device.waiting"


def _word_after(address: Callable[[], int]) -> Callable[..., Any]:
    """Return the lowering of the address of a word, by its number."""

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        # A launch recognises a kernel in debug mode by the comment.
        asm = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), f"// {MARKER}", "", side_effect=True)
        builder.call(asm, [])
        offset = builder.shl(builder.zext(args[0], I64), ir.Constant(I64, 2))
        return builder.add(offset, ir.Constant(I64, address()))

    return lower


for _native, _address in ((races.header_word, header_address), (races.event_word, events_address)):
    compiler.instruction_function(_native, lambda index: signature(U64, U32), _word_after(_address))


# ------------------------------------------------------------------------------- events


def _constant(value: int) -> Any:
    return ir.Constant(I32, value)


def _line() -> Any:
    place = compiler.current_line()
    return _constant(line_number(place) if place else 0)


def _call(
    context: Context, builder: Builder, body: Callable[..., object], args: Sequence[Value]
) -> None:
    sig = signature(types.void, *(U32 for _ in args))
    compiler.BODIES[body].call(context, builder, sig, list(args))


def note(
    context: Context,
    builder: Builder,
    kind: Kind,
    address: Value | None = None,
    size: Value | None = None,
    other: Value | None = None,
    mask: Value | None = None,
    located: Value | None = None,
) -> None:
    """Emit the log of one event by each lane that is here.

    What orders steps, each lane logs beside its own step: no order between lanes is relied on.
    """
    words = (_constant(kind), address, size, other, _line(), mask, located)
    given = [_constant(0) if word is None else word for word in words]
    _call(context, builder, races.note, given)


def _converge(context: Context, builder: Builder) -> None:
    """Let the lanes of a whole warp meet again before an instruction of all of them."""
    emit(TABLE["bar_warp_sync"], context, builder, {"mask": (U32, _ALL)})


def _all_lanes(context: Context, builder: Builder) -> Any:
    """Return the mask of all lanes, as a number that ptxas does not know.

    Where ptxas takes a warp to be converged, it leaves out a sync of a mask that it knows. But the
    log lets lanes of a warp run apart, and a wgmma of a part of a warp is illegal.
    """
    halves = (emit(TABLE[n], context, builder, {}) for n in ("lanemask_lt", "lanemask_ge"))
    return builder.or_(*halves)


def _own_lane(context: Context, builder: Builder) -> Any:
    """Return the lane's bit."""
    return emit(TABLE["lanemask_eq"], context, builder, {})


def note_once(context: Context, builder: Builder, kind: Kind, *words: Value | None) -> None:
    """Emit the log of one event by the first of the lanes that are here, maybe a part of the warp.

    A sync of the part by its mask would be wrong: lanes of one mask can be at syncs of several
    masks, and wait for each other.
    """
    here = emit(TABLE["activemask"], context, builder, {})
    below = builder.and_(here, emit(TABLE["lanemask_lt"], context, builder, {}))
    with builder.if_then(builder.icmp_unsigned("==", below, _constant(0))):
        note(context, builder, kind, *words)


def note_of_warp(context: Context, builder: Builder, kind: Kind, *words: Value | None) -> None:
    """Emit the log of one event by lane 0, after all lanes have come and before any goes on.

    Parts of a warp would commit a group twice, and then put operands into the group after theirs.
    """
    _converge(context, builder)
    lane = emit(TABLE["laneid"], context, builder, {})
    with builder.if_then(builder.icmp_unsigned("==", lane, _constant(0))):
        note(context, builder, kind, *words)
    _converge(context, builder)


def _plain(value: Value | None) -> Any:
    """Return a count as a word: Numba passes it as one."""
    return _constant(1) if value is None else value


# ---------------------------------------------------------------- what rows do, by their name

Watch = Callable[[Instruction, Context, Builder, Operands], None]
BEFORE: dict[str, Watch] = {}


def _before(*names: str) -> Callable[[Watch], Watch]:
    def enter(watch: Watch) -> Watch:
        BEFORE.update(dict.fromkeys(names, watch))
        return watch

    return enter


@_before("mbarrier_init")
def _init(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at, count = barrier_of(context, builder, row, given), word_of(given, "count")
    note(context, builder, Kind.INIT, at, count, located=at)


@_before("mbarrier_inval")
def _inval(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at = barrier_of(context, builder, row, given)
    note(context, builder, Kind.INVAL, at, located=at)


@_before(*(n for n in TABLE if n.startswith(("mbarrier_arrive", "cp_async_mbarrier_arrive_noinc"))))
def _arrive(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at = barrier_of(context, builder, row, given)
    count = _plain(word_of(given, "count"))
    tx_bytes = word_of(given, "tx_bytes")
    kind = Kind.ARRIVE_COPIED if row.name.startswith("cp_async") else Kind.ARRIVE
    drops = _constant(int("drop" in row.name))  # later phases have fewer arrivals
    note(context, builder, kind, at, count, tx_bytes, drops, at)


@_before("mbarrier_expect_tx", "mbarrier_expect_tx_remote")
def _expect(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at = barrier_of(context, builder, row, given)
    nbytes = word_of(given, "tx_bytes")
    note(context, builder, Kind.EXPECT, at, None, nbytes, located=at)


@_before("mbarrier_complete_tx", "mbarrier_complete_tx_remote")
def _complete(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at = barrier_of(context, builder, row, given)
    nbytes = word_of(given, "tx_bytes")
    note(context, builder, Kind.COMPLETE, at, None, nbytes, located=at)


@_before(
    *(n for n in TABLE if n.startswith(("st_async_", "red_async_"))),
    "cp_async_bulk_copy_cluster",
    "cp_reduce_async_bulk_cluster",
    "cp_async_mbarrier_arrive",
)
def _uncounted(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    at = barrier_of(context, builder, row, given)
    note(context, builder, Kind.UNCOUNTED, at, located=at)


def _is_load(name: str) -> bool:
    if "prefetch" in name or "store" in name or "scatter" in name:
        return False
    return name.startswith("cp_async_bulk_tensor") or name.startswith("cp_async_bulk_load")


@_before(*filter(_is_load, TABLE))
def _load(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    into = place_of(context, builder, given, "destination", row.operands["destination"])
    at = barrier_of(context, builder, row, given)
    nbytes = nbytes_of(row, given)
    mask = word_of(given, "multicast")
    if mask is not None and mask.type.width < 32:
        mask = builder.zext(mask, I32)
    if nbytes is None:
        note(context, builder, Kind.UNCOUNTED, at, located=at)
    else:
        note(context, builder, Kind.LOAD, into, nbytes, at, mask, at)


def _is_store(name: str) -> bool:
    if "prefetch" in name or "cluster" in name or "cta_group" in name:
        return False
    return "source" in TABLE[name].operands and name.startswith(
        ("cp_async_bulk", "cp_reduce_async")
    )


@_before(*(n for n in TABLE if _is_store(n) and not _is_load(n)))
def _store(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    if row.operands["source"] != "TileAddress":
        return
    start = place_of(context, builder, given, "source", "TileAddress")
    nbytes = word_of(given, "nbytes")
    if nbytes is None and "tensor_map" in given:
        as_load = {**given, "destination": given["source"]}
        nbytes = nbytes_of(TABLE["cp_async_bulk_tensor_load"], as_load)
    nbytes = _constant(16) if nbytes is None else nbytes
    note(context, builder, Kind.SOURCE, start, nbytes)


def _simple(kind: Kind) -> Watch:
    def watch(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
        note_once(context, builder, kind)

    return watch


for _name, _kind in {
    "cp_async_bulk_commit_group": Kind.COMMIT,
    "cp_async_commit_group": Kind.COPY_COMMIT,
}.items():
    BEFORE[_name] = _simple(_kind)


@_before("wgmma_fence", "wgmma_wait_group")
def _aligned(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    _converge(context, builder)


@_before("wgmma_commit_group")
def _commit_products(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    _group(context, builder, None)


@_before("fence_proxy_async", "fence_proxy_async_all")
def _fence(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    space = given.get("space", (types.none, None))[0]
    if not isinstance(space, types.Literal) or space.literal_value != "global":
        note(context, builder, Kind.FENCE)


@_before(*(n for n in TABLE if n.startswith("st_shared_cluster")))
def _remote(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    note_once(context, builder, Kind.UNTRACKED)


@_before("barrier_cluster_arrive")
def _arrive_in_cluster(
    row: Instruction, context: Context, builder: Builder, given: Operands
) -> None:
    note(context, builder, Kind.CLUSTER_ARRIVE, other=_own_lane(context, builder))
    qualifiers = given.get("qualifiers", (types.none, None))[0]
    if "aligned" in str(getattr(qualifiers, "literal_value", "")):
        _converge(context, builder)


@_before("barrier_sync", "barrier_arrive")  # bar.sync and bar.arrive are of whole warps
def _meet(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    number, threads = (word_of(given, n) for n in ("barrier_id", "threads"))
    note(context, builder, Kind.MEET, number, threads, _own_lane(context, builder))
    _converge(context, builder)


@_before(*(n for n in TABLE if n.startswith(("cp_async_ca", "cp_async_cg"))))
def _copy(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    into = place_of(context, builder, given, "destination", row.operands["destination"])
    nbytes = 16
    if "nbytes" in given and isinstance(given["nbytes"][0], types.Literal):
        nbytes = int(given["nbytes"][0].literal_value)
    _access(context, builder, Kind.COPY, into, nbytes)


def _happens(context: Context, builder: Builder, typ: types.Type, value: Value) -> Any:
    """Return whether a conditional instruction is executed."""
    values = OPERANDS["Predicate"].lower(context, builder, typ, value)
    if typ == BELOW:
        return builder.icmp_signed("<", *values)
    return builder.icmp_unsigned("!=", values[0], ir.Constant(values[0].type, 0))


_SIZES = {"u16": 2, "u32": 4, "u64": 8, "f32": 4, "v2": 8, "v4": 16}


@_before(*(n for n in TABLE if n.startswith(("ld_shared_", "st_shared_")) and "cluster" not in n))
def _by_address(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    if compiler.is_compiling(_WAITING):  # a wait looks at debug mode's ledger, in no order
        return
    address = word_of(given, "location")
    offset = word_of(given, "offset")
    if offset is not None:
        address = builder.add(address, offset)
    kind = Kind.WRITE if row.name.startswith("st") else Kind.READ
    nbytes = _SIZES[row.name.split("_")[2]]
    condition = given.get("condition", (types.none, None))
    if is_absent(condition[0]):
        _access(context, builder, kind, address, nbytes)
        return
    with builder.if_then(_happens(context, builder, *condition)):
        _access(context, builder, kind, address, nbytes)


def matrix_rows(name: str) -> int:
    """Return how many lanes have the address of a row, of 16 bytes."""
    matrices = int(name.rpartition("_x")[2])
    return matrices * (16 if "m16n16" in name else 8)


@_before(*(n for n in TABLE if n.startswith(("ldmatrix_", "stmatrix_"))))
def _matrix(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    kind = Kind.WRITE if row.name.startswith("st") else Kind.READ
    rows = matrix_rows(row.name)
    lane = emit(TABLE["laneid"], context, builder, {})
    with builder.if_then(builder.icmp_unsigned("<", lane, _constant(rows))):
        _access(context, builder, kind, word_of(given, "row"), 16)
    _converge(context, builder)


def _access(
    context: Context, builder: Builder, kind: Kind, address: Value, nbytes: int, unit: int = 4
) -> None:
    """Log an access of `nbytes`, as one to the `unit` or more bytes that they lie in."""
    size, partial = max(nbytes, unit), int(nbytes < unit)
    words = [_constant(kind), address, _constant(size), _constant(partial), _line()]
    _call(context, builder, races.note_access, words)


def _is_all(given: Operands) -> bool:
    """Return whether a sync of a warp is one of all lanes."""
    typ, value = given.get("mask", (types.none, None))
    number = getattr(typ, "literal_value", getattr(typ, "value", getattr(value, "constant", None)))
    return number is None or number & 0xFFFFFFFF == 0xFFFFFFFF


def _before_row(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    if row.name == "bar_warp_sync" and _is_all(given):
        given["mask"] = U32, _all_lanes(context, builder)
    if row.name in BEFORE:
        BEFORE[row.name](row, context, builder, given)


# --------------------------------------------------------------------------- after a row


def _after_row(
    result: Value, row: Instruction, context: Context, builder: Builder, given: Operands
) -> None:
    if row.name in ("mbarrier_try_wait_parity", "mbarrier_test_wait_parity"):
        at = barrier_of(context, builder, row, given)
        parity = word_of(given, "parity")
        with builder.if_then(result):
            note(context, builder, Kind.WAITED, at, parity, located=at)
    elif row.name in ("mbarrier_try_wait", "mbarrier_test_wait"):
        at = barrier_of(context, builder, row, given)
        with builder.if_then(result):
            note(context, builder, Kind.WAITED_OWN, at, located=at)
    elif row.name.startswith("cp_async_bulk_wait_group"):
        # Of the thread's own groups, so of the one that has committed them.
        note_once(context, builder, Kind.DRAINED, None, word_of(given, "pending"))
    elif row.name == "cp_async_wait_group":
        pending = word_of(given, "pending")
        note(context, builder, Kind.COPY_DRAINED, None, pending)
    elif row.name == "cp_async_wait_all":
        note(context, builder, Kind.COPY_DRAINED, other=_constant(1))
    elif row.name == "wgmma_wait_group":
        pending = word_of(given, "pending")
        note_of_warp(context, builder, Kind.PRODUCT_DRAINED, None, pending)
    elif row.name == "barrier_sync":
        note(context, builder, Kind.MET, word_of(given, "barrier_id"))
    elif row.name == "barrier_cluster_wait":
        note(context, builder, Kind.CLUSTER_WAITED)


# ---------------------------------------------------------------- what is not a row


def _accessed(
    context: Context, builder: Builder, access: hooks.Access, address: Value, nbytes: int
) -> None:
    if access == "atomic":
        _access(context, builder, Kind.ATOMIC, address, nbytes)
        return
    kind = Kind.WRITE if access == "write" else Kind.READ
    _access(context, builder, kind, address, nbytes, 16)  # the log is shorter


def _operand(
    context: Context, builder: Builder, runs: Sequence[tuple[int, int]], low: Value
) -> None:
    start = builder.shl(builder.and_(low, _constant(0x3FFF)), _constant(4))
    for offset, nbytes in runs:
        at = builder.add(start, _constant(offset))
        note_of_warp(context, builder, Kind.PRODUCT, at, _constant(nbytes))


def _group(context: Context, builder: Builder, pending: int | None) -> None:
    if pending is None:
        note_of_warp(context, builder, Kind.PRODUCT_COMMIT)
    else:
        note_of_warp(context, builder, Kind.PRODUCT_DRAINED, None, _constant(pending))


def _synchronises(context: Context, builder: Builder, after: bool) -> None:
    """Log a cuda.syncthreads: all threads meet at the barrier 0."""
    if not after:  # the lane that initialised barriers may be behind the rest of its warp
        note(context, builder, Kind.MEET, other=_own_lane(context, builder))
        _converge(context, builder)
    else:
        note(context, builder, Kind.MET)


def _called(context: Context, builder: Builder, function: Callable[..., object]) -> None:
    """Log the line on which a user's function calls the library."""
    if function.__module__ not in (races.__name__, _WAITING):
        note_once(context, builder, Kind.LINE)


def _waited(
    context: Context, builder: Builder, barrier: types.Type, args: Sequence[Value], site: Site
) -> None:
    """Log the purpose of a wait, which names the role of the warp."""
    at = compiler.get_field(builder, barrier, args[0], "address")
    number = _constant(site_number(site))
    note_once(context, builder, Kind.SITE, at, args[3], number, None, at)


def _labelled(
    context: Context,
    builder: Builder,
    function: Callable[..., object],
    sig: Signature,
    args: Sequence[Value],
) -> None:
    """Log where a pipeline's memory is, for the names in messages."""
    if memory := labelled_memory(context, builder, function, sig, args):
        if block := getattr(memory.owner, "block", None):
            # A kernel with the log needs more registers than a large block may have.
            compiler.limit_registers(builder, int(block))
        words = memory.base, memory.barriers, _constant(memory.number)
        note_once(context, builder, Kind.LABEL, *words)


if racing():
    # A kernel has hundreds of calls of these. A role that has given registers back could not call
    # them, so none does.
    compiler.OUTLINED.update((races.note, races.note_access))
    LEFT_OUT.update(("setmaxnreg_dec", "setmaxnreg_inc"))
    HOOKS.append(_before_row)
    AFTER.append(_after_row)
    hooks.ACCESSES.append(_accessed)
    hooks.OPERANDS.append(_operand)
    hooks.BEFORE_WAITS.append(_converge)
    hooks.GROUPS.append(_group)
    WAITS.append(_waited)
    watching = compiler.watching(called=_called, labelled=_labelled, synchronises=_synchronises)
    watching.__enter__()  # for the whole process
