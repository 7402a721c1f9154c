"""Mutations that change nothing which anyone can observe, each with the reason."""

from __future__ import annotations

from tests.mutation.sites import Mutation

#: (path, the line with the mutation) to the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "numba_tma/backend/lowering/warp_products.py",
        '"a": vector(U32, a_words[4 * block : 4 * block + 5]),',
    ): "an instruction takes its four registers of the tuple, whatever follows them",
    (
        "numba_tma/backend/lowering/fragments/memory.py",
        "start = builder.add(corner, builder.mul(row_stride, row))",
    ): "products of integers commute",
    (
        "numba_tma/backend/numba_cuda/vectors.py",
        "return builder.fadd(a, b) if isinstance(typ, types.Float) else builder.add(b, a)",
    ): "sums of integers commute",
    (
        "numba_tma/device/fragments.py",
        "row, _ = fragment_coords(np.arange(0, 4, 3), simulator.thread_in_warpgroup())",
    ): "elements 2 and 3 of a thread are in one row",
    (
        "numba_tma/device/fragment_moves.py",
        "by_16 = values.reshape(-2, 2, 2, 2)  # left and right 8 columns, row, neighbours",
    ): "NumPy takes any negative extent for the one that follows from the others",
}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    line = mutation.apply(source).splitlines()[mutation.line - 1].strip()
    return EQUIVALENT.get((mutation.path, line), "")
