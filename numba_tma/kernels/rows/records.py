"""Records of kernels over rows: the arguments of a launch, and the place of a thread in a row.

An array is given by the address of its first element. The address of an array that the call does
not have is 0, and a kernel without that array never loads from it.
"""

from __future__ import annotations

from typing import NamedTuple

from numba_tma.host.annotations import Address, Integer


class RowMemory(NamedTuple):
    """The rows of an array in global memory."""

    address: Address = 0  #: Address of row 0.
    stride: Integer = 0  #: Bytes from one row to the next.


class RowArrays(NamedTuple):
    """The arrays of a norm, a softmax or a reduction."""

    x: RowMemory
    residual: RowMemory  #: Added to `x` first.
    weight: Address
    bias: Address
    y: RowMemory  #: The result.
    total: RowMemory  #: Gets `x` plus the residual.
    statistics: tuple[Address, Address]  #: Each array gets one number per row.


class RowSizes(NamedTuple):
    """The sizes of the rows."""

    rows: Integer
    accesses: Integer  #: Accesses per row, of `Share.width` bytes each.
    columns: Integer


class RowPlace(NamedTuple):
    """A thread's row, and the accesses of the row (or of one slot) that the thread makes.

    Accesses have `Share.width` bytes and are counted from byte `begin` of the row. `first` and
    `limit` are what the functions of device/row_share.py take.
    """

    row: Integer
    rank: Integer  #: Rank of the block in its cluster.
    thread: Integer  #: Index of the thread among the threads of the block that share the row.
    begin: Integer  #: 0 in `rows_in_registers`; in `rows_in_shared`, where the part or slot begins.
    first: Integer  #: The thread's first access.
    limit: Integer  #: Accesses up to the end of the row or part; 0 if there is no such row.
