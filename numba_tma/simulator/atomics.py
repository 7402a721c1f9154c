"""``cuda.atomic`` in kernels. An atomic operation is relaxed: with a fence on both sides it orders.

So a thread that has executed ``cuda.threadfence()`` before publishes what it did before the fence,
and one that executes the fence after learns of it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from numba.cuda.simulator import kernelapi

from numba_tma.host.host_only import ATOMIC_REFUSAL
from numba_tma.simulator import shared_arrays
from numba_tma.simulator.clocks import join
from numba_tma.simulator.global_memory import accessed
from numba_tma.simulator.shared_arrays import SharedArray, element
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
            raise TypeError(ATOMIC_REFUSAL)
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


def _order(address: int) -> None:
    """Pass on what fences before the atomic operations at an address have published there."""
    thread = current()
    clocks = thread.cta.atomic_clocks
    before = clocks.get(address)
    if thread.fenced is not None:
        clocks[address] = thread.fenced if before is None else join(before, thread.fenced)
    if before is not None:
        thread.seen = before if thread.seen is None else join(thread.seen, before)
