"""Mutations that change nothing which anyone can observe, each with the reason."""

from __future__ import annotations

from tests.mutation.sites import Mutation

#: (path, the line with the mutation) to the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "numba_tma/backend/lowering/warp_products.py",
        '"a": vector(U32, a_words[4 * block : 4 * block + 5]),',
    ): "An instruction takes its four registers of the tuple, whatever follows them.",
    (
        "numba_tma/backend/lowering/fragments/memory.py",
        "start = builder.add(corner, builder.mul(row_stride, row))",
    ): "Products of integers commute.",
    (
        "numba_tma/backend/lowering/fragments/memory.py",
        "start = builder.add(start, builder.mul(column_stride, right))",
    ): "Products of integers commute.",
    (
        "numba_tma/backend/lowering/fragments/memory.py",
        "return builder.add(builder.add(start, base), nbytes)",
    ): "Sums of integers commute.",
    (
        "numba_tma/backend/numba_cuda/functions.py",
        "REFUSALS: collections.deque[str] = collections.deque(maxlen=33)",
    ): "The error of a compile is among the newest few: the limit bounds memory alone.",
    (
        "numba_tma/backend/numba_cuda/vectors.py",
        "return builder.fadd(a, b) if isinstance(typ, types.Float) else builder.add(b, a)",
    ): "Sums of integers commute.",
    (
        "numba_tma/device/fragments.py",
        "row, _ = fragment_coords(np.arange(0, 4, 3), simulator.thread_in_warpgroup())",
    ): "Elements 2 and 3 of a thread are in one row.",
    (
        "numba_tma/device/fragment_moves.py",
        "by_16 = values.reshape(-2, 2, 2, 2)  # left and right 8 columns, row, neighbours",
    ): "NumPy takes any negative extent for the one that follows from the others.",
    ("numba_tma/host/mma_rules.py", "step = 8 if self.negates or n <= 33 else 16"): (
        "33 columns are a multiple of neither step."
    ),
    ("numba_tma/host/tcgen05_rules.py", "return tuple(range(step, 258, step))"): (
        "No multiple of a step, which is at least 8, is 257."
    ),
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
    ("numba_tma/pipeline/ordered.py", "return self.roles[1].arrivals"): (
        "A sequence has two roles or more, of equal arrivals."
    ),
    ("numba_tma/pipeline/ordered.py", "return self.roles[1].block"): (
        "The roles of a sequence are of one block."
    ),
    ("numba_tma/pipeline/ordered.py", "return self.roles[1].group.unit == 1"): (
        "The roles of a sequence are of one kind."
    ),
    (
        "numba_tma/simulator/global_memory.py",
        "if atomic and view.size * view.itemsize <= 9:",
    ): "No atomic operation is on 9 bytes.",
    (
        "numba_tma/simulator/kernel_code.py",
        "if node.func.attr == what and node.lineno <= frame.f_lineno <= (node.end_lineno or 1):",
    ): "Every node of parsed source has an end.",
    (
        "numba_tma/simulator/matrix_instructions.py",
        "words.append(_word(np.array(pair)[:, [byte, byte - 8]].T))",
    ): "Rows have 16 bytes, so that byte - 8 counts from the end to byte + 8.",
    ("numba_tma/simulator/protocol.py", "@dataclass(frozen=True, slots=False)"): (
        "A frozen operation gets no other attributes, and nothing asks how it keeps its own."
    ),
    ("numba_tma/simulator/tensor_memory_instructions.py", "offset: int = 1,"): (
        "Shape 16x32bx2 alone reads the offset, and its instructions pass it."
    ),
}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    line = mutation.apply(source).splitlines()[mutation.line - 1].strip()
    return EQUIVALENT.get((mutation.path, line), "")
