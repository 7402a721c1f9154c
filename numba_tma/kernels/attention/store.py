"""The results of attention: how a warpgroup stores O and lse of its 64 rows.

`attention_kernel` picks one function for O and one for lse. No function writes a row after the
last query of a sequence. `state` is the `RowState` of `kernel.py`, `rows` its `WarpgroupRows`.
"""

from __future__ import annotations

from typing import Any

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32, u32
from numba_tma.device.fragment_moves import store_rows
from numba_tma.host.annotations import Address, Integer, Registers
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.plan import AttentionForm
from numba_tma.kernels.attention.softmax import log_of_sum

# ------------------------------------------------------------------------------------ O


@device_function
def store_dense(
    form: AttentionForm,
    store: Any,
    out: Any,
    o: Registers,
    head: Integer,
    sequence: Any,
    row: Integer,
) -> None:
    """Round O into shared memory and store it by TMA, which writes no row after the last query."""
    stage = store.acquire()
    o.to(form.o_dtype).store(stage.o.view(form.o_rows), (0, 0))
    store.store(out, stage.o, (sequence.batch, row, head * form.packed_heads, 0))
    store.commit()


@device_function
def store_packed(
    form: AttentionForm,
    store: Any,
    out: Any,
    o: Registers,
    head: Integer,
    sequence: Any,
    row: Integer,
) -> None:
    """Do what `store_dense` does, and write no row after the end of a packed sequence."""
    stage = store.acquire()
    o.to(form.o_dtype).store(stage.o.view(form.o_rows), (0, 0))
    sequence_out = out.sequence(sequence.query, sequence.queries)  # the ragged map of this sequence
    for i in range(form.spans):
        address = u32(stage.o.address + i * (ROWS * form.span_nbytes))
        store.store(sequence_out, address, (row, head, i * form.span))
    store.commit()


@device_function
def store_partial(
    form: AttentionForm, o: Registers, sequence: Any, rows: Any, options: Any
) -> None:
    """Store the O of a split, float32, from registers to the workspace (`split_kv`).

    The splits of a row are adjacent, so a split's rows are `splits` partial results apart.
    """
    number, row_nbytes = rows.partial + rows.row * options.splits, 4 * form.head_dim
    count = i32(sequence.queries - rows.row)  # rows up to the last query
    store_rows(o, options.partials + row_nbytes * number, row_nbytes * options.splits, count)


# ---------------------------------------------------------------------------------- lse


@device_function
def no_lse(
    form: AttentionForm,
    state: Any,
    row_sum: Registers,
    queries: Integer,
    heads: Integer,
    head: Integer,
    sequence: Any,
    options: Any,
) -> None:
    """Store nothing."""


@device_function
def lse_dense(
    form: AttentionForm,
    state: Any,
    row_sum: Registers,
    queries: Integer,
    heads: Integer,
    head: Integer,
    sequence: Any,
    options: Any,
) -> None:
    """Store lse, (batch, heads, queries), or (heads, rows) of packed sequences."""
    row = state.rows.row
    first = (sequence.batch * heads + head) * form.packed_heads
    at = options.lse + 4 * (queries * first + sequence.query + row)
    store_lse_rows(form, row_sum.map(log_of_sum, state.shift), at, 4, queries, sequence, row)


@device_function
def lse_split(
    form: AttentionForm,
    state: Any,
    row_sum: Registers,
    queries: Integer,
    heads: Integer,
    head: Integer,
    sequence: Any,
    options: Any,
) -> None:
    """Store the lse of a split, (batch, heads, queries, splits)."""
    row = state.rows.row
    address = options.lse + 4 * (state.rows.partial + row * options.splits)
    values = row_sum.map(log_of_sum, state.shift)
    store_lse_rows(form, values, address, 4 * options.splits, queries, sequence, row)


@device_function
def store_lse_rows(
    form: AttentionForm,
    lse: Registers,
    address: Address,
    pitch: Integer,
    queries: Integer,
    sequence: Any,
    row: Integer,
) -> None:
    """Store the lse of the rows up to the last query, `pitch` bytes apart.

    Heads that are packed are `queries` rows apart.
    """
    count = i32((sequence.queries - row) * form.packed_heads)
    upper, lower = i32(lse.coords(0)), i32(lse.coords(1))  # this thread's two rows
    if i32(ptx.tid_x()) % 4 == 0:  # the four threads of a quad have the same rows
        if upper < count:
            ptx.st_global_f32(address + pitch * place_of_row(form, upper, queries), lse[0])
        if lower < count:
            ptx.st_global_f32(address + pitch * place_of_row(form, lower, queries), lse[1])


@device_function
def place_of_row(form: AttentionForm, row: Integer, queries: Integer) -> Any:
    """Return where a row of a warpgroup lies from its first, in an array (heads, queries)."""
    if form.packed_heads == 1:
        return row
    return row // form.packed_heads + row % form.packed_heads * queries
