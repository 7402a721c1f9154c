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
        "numba_tma/backend/lowering/fragments/memory.py",
        "accessed(context, builder, writes, address, 9)",
    ): "An access of fewer than 16 bytes is logged as one to the 16 that it lies in.",
    (
        "numba_tma/device/fragments.py",
        "row, _ = fragment_coords(np.arange(0, 4, 3), simulator.thread_in_warpgroup())",
    ): "Elements 2 and 3 of a thread are in one row.",
    (
        "numba_tma/device/fragment_moves.py",
        "by_16 = values.reshape(-2, 2, 2, 2)  # left and right 8 columns, row, neighbours",
    ): "NumPy takes any negative extent for the one that follows from the others.",
    (
        "numba_tma/host/arrays.py",
        "self.address + sum(end for end in ends if end >= 0) + self.itemsize,",
    ): "A zero adds nothing to a sum.",
    ("numba_tma/host/arrays.py", "self.address + sum(end for end in ends if end <= 0),"): (
        "A zero adds nothing to a sum."
    ),
    (
        "numba_tma/host/boxes.py",
        "(offset, tuple(i * step for i, step in zip(self.element_strides, start, strict=True)))",
    ): "Products of integers commute.",
    ("numba_tma/host/kernel_store.py", "return 1"): (
        "A kernel's file has more than one byte, so that a limit of one keeps none either."
    ),
    ("numba_tma/host/mma_rules.py", "step = 8 if self.negates or n <= 33 else 16"): (
        "33 columns are a multiple of neither step."
    ),
    (
        "numba_tma/host/race_replay.py",
        "self._groups = np.zeros((3, self.actors), np.int32)  # closed bulk and wgmma groups",
    ): "The groups have two kinds, and nothing goes through the rows of the array.",
    ("numba_tma/host/tcgen05_rules.py", "return tuple(range(step, 258, step))"): (
        "No multiple of a step, which is at least 8, is 257."
    ),
    (
        "numba_tma/kernels/attention/split_kv/kernel.py",
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
    ("numba_tma/pipeline/circular_handle.py", "if thread == 1:"): (
        "Blocks are whole warps, and any one thread may initialise the barriers."
    ),
    (
        "numba_tma/pipeline/roles.py",
        "each = min(256, (budget - sum(asked.values())) // shared // 8 * 8) if rest else 1",
    ): "Where each role asks for registers, none takes what is left to each.",
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
        "numba_tma/simulator/async_copies.py",
        "self._numbers = np.zeros(END * WORD + 1, np.int32)",
    ): "Words are looked up by their number, and shared memory ends before a larger array does.",
    ("numba_tma/simulator/compiling.py", "assert to or answers"): (
        "A process that is started with pipes has both: the assert is for the type checker."
    ),
    (
        "numba_tma/simulator/global_memory.py",
        "self.numbers: NDArray[np.int32] = np.zeros((4, nbytes), np.int32)",
    ): "Views of the numbers have the first three rows.",
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
    **{
        ("numba_tma/simulator/sparse.py", f"return {name}.reshape(rows, -2)"): (
            "NumPy takes any negative extent for the one that follows from the others."
        )
        for name in ("halves", "dense")
    },
    ("numba_tma/simulator/protocol.py", "@dataclass(frozen=True, slots=False)"): (
        "A frozen operation gets no other attributes, and nothing asks how it keeps its own."
    ),
    ("numba_tma/simulator/tensor_memory_instructions.py", "offset: int = 1,"): (
        "Shape 16x32bx2 alone reads the offset, and its instructions pass it."
    ),
}

#: Those of kernels: (path under numba_tma/kernels, reason) to the lines with the mutation.
_OF_KERNELS: dict[tuple[str, str], list[str]] = {
    ("attention/backward/passes.py", "A share of one access has no second one for a limit."): [
        "present = 2 if row < queries else 0",
        "upper, lower = 2 if row < queries else 0, 1 if row + 8 < queries else 0",
        "upper, lower = 1 if row < queries else 0, 2 if row + 8 < queries else 0",
    ],
    ("attention/backward/passes.py", "A whole share has all its accesses, whatever the limit."): [
        "values = to_float(SUMS, load_global(SUMS, at, 0, 5)) * scale",
        "store_sums(CLEARED, sums + 4 * (place * HEAD_DIM + lane * CHUNK), 0, 3, zeros(CLEARED))",
    ],
    ("rows/backward.py", "A whole share has all its accesses, whatever the limit."): [
        "return to_float(STATISTIC, load_cached(STATISTIC, address + 4 * row, 0, 2))[0]",
    ],
    ("rows/backward.py", "A part has two sums."): ["zero = np.float32(1)"],
    ("rows/softmax.py", "A part is a maximum and a sum; the statistic is one number."): [
        "zero = np.float32(1)",
        "maximum, zero = larger(part[0], other[0]), np.float32(1)",
        "return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(1), np.float32(0))",
        "return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(0), np.float32(1))",
    ],
    ("attention/kernel.py", "Products with e4m3 alone have a second sum of O."): [
        "return RowState(p, o, 1, row_max, shift, row_sum, per_row(1), not form.votes, rows)",
        "return RowState(p, o, 1, row_max, shift, row_sum, rescale, needs_rescale, rows)",
    ],
    ("attention/softmax.py", "The mask of a tile that rows see whole hides nothing."): [
        "if rows.stop <= form.block_k:",
        "if rows.end <= form.block_k:",
        "if rows.start >= 1 - ROWS:",
    ],
    ("attention/tcgen05_softmax.py", "The mask of a tile that rows see whole hides nothing."): [
        "if rows.stop <= form.block_k:",
        "if rows.end <= form.block_k:",
        "if rows.start >= 1 - LANES:",
    ],
    ("attention/plan.py", "The tiles of a head do not depend on the number of heads."): [
        "schedule = CausalLPTScheduler(plan.block_q, plan.block_k).over(queries, keys, 2)",
    ],
    ("attention/tcgen05_plan.py", "The tiles of a head do not depend on the number of heads."): [
        "schedule = CausalLPTScheduler(plan.block_q, plan.block_k).over(queries, keys, 2)",
    ],
    ("attention/tcgen05_kernel.py", "Any one thread may do it."): ["if cuda.threadIdx.x == 1:"],
    ("attention/transpose_v.py", "Any one thread may do it."): ["if thread == 1:"],
    ("copy/grouped.py", "Any one thread may do it."): ["issues = cuda.threadIdx.x == 1"],
    ("copy/kernel.py", "Any one thread may do it."): ["if cuda.threadIdx.x == 1:"],
    ("pointwise/kernel.py", "Any one thread may do it."): ["if thread == 1:"],
    ("transpose/kernel.py", "Any one thread may do it."): ["if thread == 1:", "elif thread == 1:"],
    ("matmul/choice.py", "The number of rows is a multiple of 8."): [
        "long = 512 if n <= 17 and cluster == 1 else 256  # faster, where five such stages fit",
    ],
    ("matmul/kernel.py", "An epilogue without such a source does not use its value."): [
        "return np.float32(1)",
    ],
    **{
        (f"matmul/{name}.py", "The element is its tile's origin, and its last."): [
            f"return finish(value, np.int32({place}), before, added, here, terms)"
            for place in ("1), np.int32(0", "0), np.int32(1")
        ]
        for name in ("mma_kernel", "swapped_kernel", "tcgen05_epilogue")
    },
    ("matmul/epilogue.py", "The element is its tile's origin, and its last."): [
        "element: Any = OutputElement(np.int32(1), np.int32(0), here, old, added)",
        "element: Any = OutputElement(np.int32(0), np.int32(1), here, old, added)",
    ],
    ("pointwise/inputs.py", "A kernel calls both kinds alike; nothing launches these functions."): [
        "return cuda.jit(device=False, forceinline=True)(function)",
    ],
    ("pointwise/kernel.py", "What reads a chunk ignores its last argument."): [
        "values = read_all(inputs, chunk, i, 1)",
        "out, left, map_lanes(fn, read_ones(inputs, chunk, left, 1), numbers), SINGLE",
    ],
    ("pointwise/formulas.py", "From -14.5 on downwards float32 holds no other result than 0."): [
        "_LOWEST: Any = np.float32(-16)  # where the result has become zero, and infinity times "
        "zero is near",
    ],
}  # fmt: skip
EQUIVALENT |= {
    (f"numba_tma/kernels/{path}", line): reason
    for (path, reason), lines in _OF_KERNELS.items()
    for line in lines
}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    line = mutation.apply(source).splitlines()[mutation.line - 1].strip()
    return EQUIVALENT.get((mutation.path, line), "")
