"""The collector: buffers in the tensor cores that keep an operand for following products.

A product may read its operand from a buffer or from memory, whichever the hardware has. Both have
to hold the same values, so that a product that uses a buffer with others is an error.
"""

from __future__ import annotations

import numpy as np

from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.tcgen05_operands import Values


class Collectors:
    """The buffers of a block: one of A, and four of B for weight-stationary products."""

    def __init__(self) -> None:
        self._held: dict[str, Values] = {}

    def pass_through(self, what: str, buffer: str, operation: str, operand: Values) -> None:
        """Do what a product says of a buffer: fill, use, lastuse or discard."""
        if operation in ("use", "lastuse"):
            self._check(what, buffer, operation, operand)
        if operation == "fill":
            self._held[buffer] = operand.copy()
        elif operation != "use":
            self._held.pop(buffer, None)

    def _check(self, what: str, buffer: str, operation: str, operand: Values) -> None:
        held, name = self._held.get(buffer), "A" if buffer == "a" else "B"
        if held is None:
            raise BadOperand(
                f"{what}.collector::{buffer}::{operation}: the buffer is empty: the product before "
                "that keeps it has collector fill or use; any other discards it"
            )
        if held.shape != operand.shape or not np.array_equal(held, operand, equal_nan=True):
            raise BadOperand(
                f"{what}.collector::{buffer}::{operation}: {name} in memory is not the {name} of "
                "the product that filled the buffer, and the hardware may read either: fill it "
                f"again, or leave {name} as it is until the last use"
            )
