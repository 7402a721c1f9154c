"""Mutations that change nothing which anyone can observe, each with the reason."""

from __future__ import annotations

from tests.mutation.sites import Mutation

#: (path, the line with the mutation) to the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "numba_tma/kernels/attention/split_kv.py",
        "OUT = Share(dtype, dtype.itemsize * CHUNK, 1, 2, True)",
    ): "A share of one access has no second one that `step` could place.",
    (
        "numba_tma/kernels/attention/tcgen05_kernel.py",
        "i = u32(cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 1))",
    ): "All lanes of a warp have the same number of a warpgroup, so any of them may give it.",
    (
        "numba_tma/kernels/matmul/operands.py",
        "return matrices.view((1, batch * rows, columns), (pitch + batch * rows, pitch, step))",
    ): "The stride of an axis of one element is multiplied by 0, or replaced by `map_source`.",
}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    line = mutation.apply(source).splitlines()[mutation.line - 1].strip()
    return EQUIVALENT.get((mutation.path, line), "")
