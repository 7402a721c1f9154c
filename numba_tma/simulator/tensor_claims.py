"""The columns of tensor memory that a block's matrices take."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from numba_tma.simulator.thread import current

if TYPE_CHECKING:
    from numba_tma.host.tensor_tiles import ColumnClaim
    from numba_tma.simulator.block import Cta

_CLAIMS: WeakKeyDictionary[Cta, dict[ColumnClaim, None]] = WeakKeyDictionary()


def claim_columns(claim: ColumnClaim) -> None:
    """Let a matrix have columns; raise a ValueError if another one has some of them."""
    claims = _CLAIMS.setdefault(current().cta, {})
    if claim not in claims:
        for other in claims:
            claim.check(other)
        claims[claim] = None
