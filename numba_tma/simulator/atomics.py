"""``cuda.atomic`` in kernels. An atomic operation is relaxed: with a fence on both sides it orders.

So a thread that has executed ``cuda.threadfence()`` before publishes what it did before the fence,
and one that executes the fence after learns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numba.cuda.simulator import kernelapi

from numba_tma.host.atomic_rules import atomic_violation, no_array
from numba_tma.host.dtypes import complex_refusal
from numba_tma.host.layout import Tile
from numba_tma.simulator import shared_arrays
from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.clocks import join
from numba_tma.simulator.global_memory import accessed
from numba_tma.simulator.shared_arrays import Index, SharedArray, element
from numba_tma.simulator.thread import current
from numba_tma.simulator.thread_instructions import yield_turn


def atomics() -> object:
    """Return ``cuda.atomic``; other threads may run before each operation, so that spins end."""
    operations = kernelapi.FakeCUDAAtomic()
    names = [name for name in dir(operations) if not name.startswith("_")]
    return SimpleNamespace(**{name: _checked(name, getattr(operations, name)) for name in names})


def _checked(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(array: Any, *args: Any) -> Any:
        if getattr(type(array), "shared_kind", None) == "tile":
            return _on_tile(name, operation, array, args)
        if not hasattr(array, "ndim"):
            raise TypeError(no_array(name, array))
        yield_turn()
        if isinstance(array, SharedArray):
            index = (0,) * array.ndim if name == "compare_and_swap" else args[0]
            _order(shared_arrays.read(array, index, atomic=True))
            shared_arrays.write(array, index, None, atomic=True)
            array = shared_arrays.plain(array)
        elif hasattr(array, "_item"):  # an array in global memory
            index = (0,) * array.ndim if name == "compare_and_swap" else args[0]
            array = array._item._ary
            accessed(element(array, index), writes=True, atomic=True)
        return operation(array, *args)

    return atomic


class _SharedTile(Protocol):
    """What of a `SharedTile` an operation uses."""

    tile: Tile
    accesses: Any

    def address_of(self, index: Index) -> int: ...


def _on_tile(
    name: str, operation: Callable[..., Any], shared: _SharedTile, args: Sequence[Any]
) -> Any:
    """Execute an operation on an element of a shared tile, through its swizzle."""
    if wrong := atomic_violation(name, shared.tile):
        raise TypeError(wrong)
    index, *values = args
    address, dtype = shared.address_of(index), shared.tile.dtype.kernel_storage
    if np.iscomplexobj(values):
        raise TypeError(complex_refusal(shared.tile.dtype))
    values = [np.asarray(value).astype(dtype)[()] for value in values]
    yield_turn()
    thread = current()
    check_over_none(thread.cta.barriers, f"cuda.atomic.{name}", address, dtype.itemsize)
    shared_arrays.read_at(thread, address, dtype.itemsize, atomic=True)
    _order(address)
    shared_arrays.write_at(thread, address, dtype.itemsize, None, atomic=True)
    shared.accesses.unfenced = True
    element = thread.cta.memory.data[address : address + dtype.itemsize].view(dtype)
    with np.errstate(over="ignore"):  # integers wrap round
        old = operation(element, 0, *values)
    thread.cta.scheduler.wrote()
    return old


def _order(address: int) -> None:
    """Pass on what fences before the atomic operations at an address have published there."""
    thread = current()
    clocks = thread.cta.atomic_clocks
    before = clocks.get(address)
    if thread.fenced is not None:
        clocks[address] = thread.fenced if before is None else join(before, thread.fenced)
    if before is not None:
        thread.seen = before if thread.seen is None else join(thread.seen, before)
