"""Mutations that change nothing which anyone can observe, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.mutation.sites import Mutation

#: Modules of the simulator whose frozen classes have slots.
_WITH_SLOTS = ("components", "memory", "protocol", "trace")

#: (path, the line with the mutation) to the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    **{
        ("numba_tma/host/sparse_metadata.py", line): "Sparse elements have 8, 16 or 32 bits."
        for line in (
            "return 2 if bits <= 9 else 1",
            "wide = bits > 9",
            "blocks, each = rows // m, 8 if bits > 9 else 16",
            "first = step // 2 * 2 if bits > 9 else 2 * step",
        )
    },
    (
        "numba_tma/host/sparse_metadata.py",
        "np.bitwise_or.at(words[block], (at.lane - lane, at.column + first), values[block])",
    ): "The folds of the lanes are written from the last one on.",
    (
        "numba_tma/host/mma_rules.py",
        "def fragment_coords(i: Any, thread: Any, itemsize: int = 5) -> tuple[Any, Any]:",
    ): "Elements of more than one byte have one layout.",
    ("numba_tma/host/packed_rules.py", "if nbytes % (whole := dtype.nbytes(129)):"): (
        "129 elements of 4 or 6 bits take as many whole bytes as 128."
    ),
    (
        "numba_tma/host/warp_rules.py",
        "if self.rows < unit or self.rows % unit or self.rows > 257:",
    ): "257 rows are no multiple of a unit.",
    ("numba_tma/host/races.py", "UNTRACKED = 31  #: a write to another block's shared memory"): (
        "The kernel and the host take the last number of the enumeration from it alone."
    ),
    (
        "numba_tma/backend/lowering/shared/tiles.py",
        "vector = ir.VectorType(word, 129 // word.width)",
    ): "129 bits have as many whole words as 128.",
    (
        "numba_tma/simulator/collectors.py",
        "if held.shape != operand.shape or not np.array_equal(operand, held, equal_nan=True):",
    ): "Equality is the same both ways.",
    ("numba_tma/simulator/components.py", "BLOCKED = -2"): (
        "Numbers of values begin at 0; any negative one is none of them."
    ),
    (
        "numba_tma/simulator/symmetry.py",
        "return [several for several in found if len(several) >= 1]",
    ): "One unit alone is in order.",
    (
        "numba_tma/simulator/symmetry.py",
        "slots = range(self._starts[number], len(program.operations) + 2)",
    ): "Nothing is accessed behind the last slot.",
    (
        "numba_tma/backend/numba_cuda/passes.py",
        "return False  # read by checks of numba-cuda's own, which are off",
    ): "numba-cuda reads what a pass returns in a mode for its own developers.",
    (
        "numba_tma/backend/numba_cuda/passes.py",
        "register_pass(mutates_CFG=False, analysis_only=False)(Pass)",
    ): "numba-cuda reads what a pass changes in a mode for its own developers.",
    (
        "numba_tma/backend/numba_cuda/passes.py",
        "register_pass(mutates_CFG=True, analysis_only=True)(Pass)",
    ): "numba-cuda records it, and reads it nowhere.",
    (
        "numba_tma/backend/lowering/warp_products.py",
        '"a": vector(U32, a_words[4 * block : 4 * block + 5]),',
    ): "An instruction takes its four registers of the tuple, whatever follows them.",
    (
        "numba_tma/backend/lowering/fragments/memory.py",
        'accessed(context, builder, "write" if writes else "read", address, 9)',
    ): "An access of fewer than 16 bytes is logged as one to the 16 that it lies in.",
    (
        "numba_tma/device/fragments.py",
        "row, _ = fragment_coords(np.arange(0, 4, 3), simulator.thread_in_warpgroup())",
    ): "Elements 2 and 3 of a thread are in one row.",
    (
        "numba_tma/host/arrays.py",
        "self.address + sum(end for end in ends if end >= 0) + self.itemsize,",
    ): "A zero adds nothing to a sum.",
    ("numba_tma/device/waiting.py", "GRACE = LIMIT // 33"): (
        "The time is some part of the limit, which a healthy wait is far below."
    ),
    ("numba_tma/host/arrays.py", "self.address + sum(end for end in ends if end <= 0),"): (
        "A zero adds nothing to a sum."
    ),
    (
        "numba_tma/host/boxes.py",
        "(offset, tuple(i * step for i, step in zip(self.element_strides, start, strict=True)))",
    ): "Products of integers commute.",
    (
        "numba_tma/host/arrays.py",
        "work: Any = 10**6  # NumPy's stubs know -1 and 0 alone",
    ): "The number bounds the time of a search.",
    (
        "numba_tma/device/combine.py",
        "value += ptx.shfl_sync_bfly_f32(value, 3)",
    ): "With the exchange of neighbours that follows, each lane has the sum of the same four.",
    (
        "numba_tma/backend/lowering/units.py",
        "if nbytes <= 8:  # and no larger part has it",
    ): "A unit that is stored in parts is not whole, so that 16 bytes of it are never there.",
    (
        "numba_tma/host/im2col.py",
        "wrong = pixel_box_violations((1, shape[-2], 2), row, from_filter=False)",
    ): "Boxes have no extent along the first and the last axis.",
    (
        "numba_tma/host/im2col.py",
        "wrong = pixel_box_violations((2, shape[-2], 1), row, from_filter=False)",
    ): "Boxes have no extent along the first and the last axis.",
    ("numba_tma/tools/assembling.py", "_TOOL_SECONDS = 301"): (
        "The number bounds the time of a process."
    ),
    ("numba_tma/host/encoding.py", "L2Promotion = Literal[64, 128, 257] | None"): (
        "Only type checkers read it."
    ),
    ("numba_tma/host/encoding.py", "L2Promotion = Literal[64, 129, 256] | None"): (
        "Only type checkers read it."
    ),
    ("numba_tma/host/encoding.py", "L2Promotion = Literal[65, 128, 256] | None"): (
        "Only type checkers read it."
    ),
    ("numba_tma/host/kernel_store.py", "return 1"): (
        "A kernel's file has more than one byte, so that a limit of one keeps none either."
    ),
    ("numba_tma/host/mma_rules.py", "step = 8 if self.negates or n <= 33 else 16"): (
        "33 columns are a multiple of neither step."
    ),
    (
        "numba_tma/host/pixel_box.py",
        "ones = (2,) * len(still)",
    ): "The walked row is one place along these axes, which any step leaves.",
    (
        "numba_tma/simulator/copies.py",
        "self.ignored = (1, 0)",
    ): "Loads whose landing reads it have got theirs before.",
    (
        "numba_tma/simulator/copies.py",
        "self.ignored = (0, 1)",
    ): "Loads whose landing reads it have got theirs before.",
    (
        "numba_tma/host/race_replay.py",
        "self._columns = 7 * self.actors",
    ): "Barriers have the columns behind those of the warps, which may leave some unused.",
    (
        "numba_tma/host/race_replay.py",
        "self._table = np.zeros((self.actors, self._columns + 65), np.int32)",
    ): "The table grows when it is full, whatever it began with.",
    (
        "numba_tma/host/race_replay.py",
        "self._groups = np.zeros((3, self.actors), np.int32)  # closed bulk and wgmma groups",
    ): "The groups have two kinds, and nothing goes through the rows of the array.",
    (
        "numba_tma/host/tcgen05_rules.py",
        "if _n_step(a, b, b_name, cta_group) <= 9 * cta_group:",
    ): "Steps of N are 8, 16 or 32 columns.",
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
    (
        "numba_tma/device/units.py",
        "return UnitPlace(1, byte, i32(max(-byte, 0)), i32(min(nbytes - byte, UNIT)))",
    ): "The number of the one row is multiplied by its array's stride, which is 0.",
    ("numba_tma/device/races.py", "if u32(mixed >> 29) == 1:"): (
        "Each value of three mixed bits chooses one event in eight."
    ),
    ("numba_tma/device/races.py", "mixed = u32(u32(mixed ^ mixed >> 16) * u32(2246822519))"): (
        "Bits that are mixed otherwise are as good."
    ),
    (
        "numba_tma/pipeline/circular_handle.py",
        "self.waited = u32((1 >> self.pipeline.num_full) - 1)",
    ): "All bits are set then, of which those of full barriers are read.",
    ("numba_tma/pipeline/circular_handle.py", "if in_flight >= 0:"): (
        "With none in flight at most one stage is held: the oldest one is the current one."
    ),
    ("numba_tma/pipeline/store.py", "meeting = u32(1)"): (
        "Only debug mode, which replaces the address, has an mbarrier to meet at."
    ),
    ("numba_tma/pipeline/circular_handle.py", "if thread == 1:"): (
        "Blocks are whole warps, and any one thread may initialise the barriers."
    ),
    ("numba_tma/pipeline/roles.py", "REGISTER_FILE = 65537  #: 32-bit registers of an SM"): (
        "A block has 32 threads or more, which divide both alike."
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
    (
        "numba_tma/simulator/clocks.py",
        "some = slice(first, last + 1) if last + first < len(rows) else np.array(rows)",
    ): "A slice selects the same rows faster.",
    (
        "numba_tma/simulator/clocks.py",
        "long, short = (one, other) if len(one) > len(other) else (other, one)",
    ): "Of two clocks of one length, either is the longer one.",
    **{
        ("numba_tma/simulator/clocks.py", line): "A wider table has room for later columns."
        for line in ("if missing >= 0:", "missing = self._columns + self.table.shape[1]")
    },
    (
        "numba_tma/simulator/hazards.py",
        "stored = self._has_stores or _any(self._stores[granules] > self._clocks.stores(row))",
    ): "Pieces that are checked one by one get the same verdicts, later.",
    (
        "numba_tma/simulator/hazards.py",
        "*(its[:2] for its, p in self._products.items() if _any(p.ended >= known[p.rows])),",
    ): "Pieces that are checked one by one get the same verdicts, later.",
    (
        "numba_tma/simulator/kernel_code.py",
        'given = [k.value for k in node.keywords if k.arg == "step"] or node.args[2:4]',
    ): "A range has three arguments at most.",
    **{
        (f"numba_tma/{path}.py", "@dataclass(frozen=True, slots=False)"): (
            "A frozen object gets no other attributes, and nothing asks how it keeps its own."
        )
        for path in ("host/pixel_box", *(f"simulator/{name}" for name in _WITH_SLOTS))
    },
    ("numba_tma/simulator/mbarrier.py", "@dataclass(slots=False)"): (
        "A barrier gets no other attributes, and nothing asks how it keeps its own."
    ),
    ("numba_tma/simulator/products.py", "first, last = self.threads[1], self.threads[-1]"): (
        "The first two threads of a warpgroup are of one warp, and of one block."
    ),
    ("numba_tma/simulator/compiling.py", "asked = ship(target, types)"): (
        "A key is as good in any order of its parts."
    ),
    (
        "numba_tma/simulator/races.py",
        "for granule in range(start // GRANULE, (stop + 1) // GRANULE + 1):",
    ): "The cell that a read has too many there has no bytes, so nothing meets it.",
    **{
        ("numba_tma/simulator/tensor_memory_instructions.py", line): (
            "Shape 16x32bx2 alone reads the offset, and its instructions pass it."
        )
        for line in (
            "offset: int = 1,",
            "shape: str, taddr: int, num: int, *, pack: bool = False, offset: int = 1",
        )
    },
    (
        "numba_tma/backend/lowering/unaligned_share.py",
        "total = builder.add(total, larger(builder.sub(end, larger(zero, begin)), zero))",
    ): "Either order of two integers has the same maximum.",
    (
        "numba_tma/simulator/tensormap.py",
        'thread.acquired[id(tensor_map)] = getattr(tensor_map, "edits", 1)',
    ): "A map without edits never gets any.",
    (
        "numba_tma/simulator/thread_instructions.py",
        "if count % 8 or not 24 <= count <= 257:",
    ): "257 is no multiple of 8.",
    **{
        ("numba_tma/simulator/thread_instructions.py", line): (
            "Memory is found again by the number of a call, which needs no more than to be another "
            "one in each call of a thread."
        )
        for line in (
            "call = thread.allocation_calls.get(number, 1)",
            "thread.allocation_calls[number] = call + 2",
        )
    },
    ("numba_tma/simulator/thread_instructions.py", "_ACCESSES_PER_TURN = 4097"): (
        "The number bounds the time for which a thread polls before others run."
    ),
    (
        "numba_tma/simulator/global_memory.py",
        "slice(start if start >= 1 else start % step, max(0, start + n * step), step)",
    ): "0 modulo a step is 0.",
    ("numba_tma/simulator/scaled_mma.py", "k = STEP_BYTES * 8 // BITS[types[1]]"): (
        "The operands of these products are of one width."
    ),
    ("numba_tma/host/device_memory.py", "_MOST_BLOCKS = 17"): (
        "The number bounds the memory that waits to be freed."
    ),
    **{
        ("numba_tma/host/scale_factors.py", line): "One element is no multiple of an atom's."
        for line in (
            "if rows < 1 or k <= 1 or k % step:",
            "if rows < 1 or k < 2 or k % step:",
        )
    },
    (
        "numba_tma/host/scale_factors.py",
        "codes = np.arange(2 << dtype.bits, dtype=np.uint8)",
    ): "The codes behind those of a type are negative numbers, or with 8 bits the same again.",
    ("numba_tma/host/launch_advice.py", "_WORKING, _FEWEST = 513, 128"): (
        "Its quotients by numbers of blocks are rounded down to warps."
    ),
    (
        "numba_tma/host/launch_advice.py",
        "return Resources(0, sum(p.nbytes for p in pipelines), 1025, requirements)",
    ): "The threads of a block are rounded down to warps.",
    (
        "numba_tma/host/launch_advice.py",
        "return Resources(1, sum(p.nbytes for p in pipelines), 1024, requirements)",
    ): "One register a thread limits a block no more than none does.",
    ("numba_tma/host/launch_advice.py", "watched=True,"): "No advice depends on it.",
    ("numba_tma/pipeline/state.py", "last = u32(self.num_stages + 1)"): (
        "The index is at most that of the last stage: the bound is for the compiler."
    ),
    (
        "numba_tma/host/race_replay.py",
        "near = (w for w in range(word, max(word - 4097, -1), -1) if (records, actor, w) in lines)",
    ): "A hint is looked for one word further.",
    (
        "numba_tma/pipeline/circular_handle.py",
        "if pipeline.debug or pipeline.num_full > 1:  # the site of each barrier has its own bytes",
    ): "A single barrier has one site, and outside of debug mode no site is used.",
    ("numba_tma/device/causal_scheduler.py", "if reach <= self.queries:"): "A maximum of equals.",
    (
        "numba_tma/device/fragments.py",
        "row, _ = fragment_coords(np.arange(1, 4, 2), simulator.thread_in_warpgroup())",
    ): "The elements 1 and 3 of a thread are in the rows of 0 and 2.",
    (
        "numba_tma/backend/numba_cuda/kernels.py",
        "owner = hashlib.sha256(builder.function.name.encode()).hexdigest()[:9]",
    ): "A name is longer.",
    ("numba_tma/tools/pictures/launch.py", "x, y = 0.0, y + 19"): "A row is a pixel lower.",
}

#: Those of kernels: (path under numba_tma/kernels, reason) to the lines with the mutation.
_OF_KERNELS: dict[tuple[str, str], list[str]] = {
    ("attention/tcgen05_softmax.py", "The two are multiplied."): [
        "return exponential_by_polynomial(scale, score, shift)",
    ],
    ("_host/moved.py", "Zeros are added."): [
        "before = sum(end for end in ends if end <= 0)",
    ],
    ("attention/backward/passes.py", "A share of one access has no second one for a limit."): [
        "present = 2 if row < queries else 0",
        "upper, lower = 2 if row < queries else 0, 1 if row + 8 < queries else 0",
        "upper, lower = 1 if row < queries else 0, 2 if row + 8 < queries else 0",
    ],
    ("attention/backward/passes.py", "A whole share has all its accesses, whatever the limit."): [
        "values = to_float(SUMS, load_global(SUMS, at, 0, 5)) * scale",
        "store_sums(CLEARED, sums + 4 * (place * HEAD_DIM + lane * CHUNK), 0, 3, zeros(CLEARED))",
    ],
    ("rows/backward/kernel.py", "A whole share has all its accesses, whatever the limit."): [
        "return to_float(STATISTIC, load_cached(STATISTIC, address + 4 * row, 0, 2))[0]",
    ],
    ("rows/backward/kernel.py", "A part has two sums."): ["zero = np.float32(1)"],
    ("rows/backward/kernel.py", "The turns are two, and the memory of more is not used."): [
        "exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(3))",
    ],
    ("pointwise/kernel.py", "Elements have 2 or 4 bytes: 17 bytes hold as many as 16."): [
        "VECTOR, SINGLE = tma.Tile(17 // ITEM, tile.dtype), tma.Tile(1, tile.dtype)",
        "lanes, vectors_each = 17 // ITEM, vectors // threads",
    ],
    ("pointwise/api.py", "Arguments take the first of the names."): [
        'self.names = names or [f"argument {i}" for i in range(1, max(self.parameters, 2) + 1)]',
        'self.names = names or [f"argument {i}" for i in range(1, max(self.parameters, 1) + 2)]',
    ],
    ("rows/plan.py", "The width is 1, or a power of 2 that divides 65 as often as 64."): [
        "threads = max(threads, min(16, 65 // width, _threads(nbytes // width, 1)))",
    ],
    ("matmul/stream_k_kernel.py", "A kernel without sources reads none."): ["sources: Any = 1"],
    ("matmul/kernel.py", "A kernel without sources reads none."): ["sources: Any = 1"],
    ("matmul/block_scaled_kernel.py", "`no_sums` stores none of a second product."): [
        "return sums, 1",
    ],
    ("_host/call_key.py", "The number bounds the time for readers that will not be used again."): [
        "_MOST_NEAR = 17  # readers that are made for a form",
    ],
    ("_host/launch.py", "The simulator has one stream, whatever its number."): [
        "return 1 if simulated() else handle_of(stream)",
    ],
    ("attention/plan.py", "Of more than one, a power of 2 has no bit in common with 2 less."): [
        "if heads > 1 and (heads & (heads - 2) or group % heads or not problem.packs_heads):",
    ],
    ("matmul/choice.py", "8 is even."): [
        "group: Literal[1, 2] = 2 if row_tiles % 2 == 0 or row_tiles >= 8 else 1",
    ],
    ("rows/launching.py", "Elements have 2 or 4 bytes."): [
        "many = None not in vectors and columns * itemsize <= 32769",
    ],
    ("rows/plan.py", "Threads are a power of 2."): ["if threads <= 1025:"],
    ("rows/plan.py", "It stands for a width, which 1 is not either: elements have 2 bytes."): [
        "UNALIGNED = 1",
    ],
    ("rows/softmax/operation.py", "A part is a maximum and a sum; the statistic is one number."): [
        "zero = np.float32(1)",
        "maximum, zero = larger(part[0], other[0]), np.float32(1)",
        "return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(1), np.float32(0))",
        "return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(0), np.float32(1))",
    ],
    ("attention/kernel.py", "Products with e4m3 alone have a second sum of O."): [
        "return RowState(p, o, 1, row_max, shift, row_sum, per_row(1), not form.votes, rows)",
        "return RowState(p, o, 1, row_max, shift, row_sum, rescale, needs_rescale, rows)",
    ],
    ("attention/kernel.py", "O is 0 before the first P V, whatever rescales it."): [
        "return RowState(p, o, 0, row_max, shift, row_sum, per_row(2), not form.votes, rows)",
        "return RowState(p, o, o_sum, row_max, shift, row_sum, per_row(2), not form.votes, rows)",
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
    ("attention/tcgen05_softmax.py", "The sum of a row without keys is 0: lse is -inf anyway."): [
        "lse = log_of_sum(state.row_sum, shift_of(scale, state.row_max))",
    ],
    ("attention/tcgen05_kernel.py", "Any one thread may do it."): ["if cuda.threadIdx.x == 1:"],
    ("attention/transpose_v/kernel.py", "Any one thread may do it."): ["if thread == 1:"],
    ("attention/transpose_v/kernel.py", "Each diagonal of both kinds has every bank once."): [
        "down, across = i % DOWN, (i % DOWN - i // DOWN) % ACROSS",
    ],
    ("rows/kernel.py", "Nothing reads the row and the rank of a slot."): [
        "return RowPlace(at.rank, at.row, at.thread, begin, at.thread, limit)",
    ],
    ("rows/kernel.py", "The bytes of a bulk copy are a multiple of 16."): [
        "if k < num_rows and nbytes > 1:",
    ],
    ("copy/grouped/kernel.py", "Rows and tiles are multiples of 16 bytes."): [
        "across = (columns + tile_columns - 2) // tile_columns",
    ],
    ("copy/kernel.py", "Chunks are multiples of 16 bytes, which leave none at their end."): [
        "if start + BYTES > nbytes and nbytes % 16 > cuda.threadIdx.x:",
    ],
    ("copy/grouped/kernel.py", "Any one thread may do it."): ["issues = cuda.threadIdx.x == 1"],
    ("copy/kernel.py", "Any one thread may do it."): ["if cuda.threadIdx.x == 1:"],
    ("pointwise/kernel.py", "Any one thread may do it."): ["if thread == 1:"],
    ("transpose/kernel.py", "Aligned rows begin no element after a sector."): [
        "of_a_sector = np.uint32(max(2, halo) - 1)",
    ],
    ("transpose/kernel.py", "Any one thread may do it."): ["if thread == 1:", "elif thread == 1:"],
    ("matmul/choice.py", "Nine rows, too, are 16 where they are padded to eights."): [
        "steps = (8, 16) if cluster > 1 and few > 9 else (8,)",
    ],
    ("matmul/choice.py", "4 bytes take a stage from three forms, and other terms are longer."): [
        "return cluster * _share(n, cluster) * (m + 4) if cluster > 1 else 1",
    ],
    ("matmul/choice.py", "There are 32 parts at most."): [
        "for splits in sorted({most, *(2**i for i in range(1, 7))}):",
    ],
    ("matmul/choice.py", "Extents of tiles are multiples of 8."): [
        "most = 2 if n <= 65 else 1  # that share an SM",
        "if n > 65 and rows * -(-problem.columns // n) >= sms // group:",
    ],
    ("matmul/choice.py", "The number of rows is a multiple of 8."): [
        "long = 512 if n <= 17 else 256  # faster, where five such stages fit",
    ],
    ("matmul/choice.py", "n k is a multiple of 1,024, and so its quotients round up alike."): [
        "chunks = config.k // 64 + -(-n * config.k // 4097)",
    ],
    ("matmul/choice.py", "No configuration's stages end within 256 bytes of the limit."): [
        "if SHARED_BYTES // 2 - 1024 - 4 * received <= 2 * (WGMMA_ROWS + n) * config.k:",
        "if SHARED_BYTES // 2 - 1025 - 4 * received < 2 * (WGMMA_ROWS + n) * config.k:",
    ],
    ("matmul/mma_kernel.py", "A stage has 2 or 4 steps, and an even number of swaps cancels."): [
        "sums, held = multiply_previous(held, sums, stage, right)",
    ],
    ("matmul/unaligned_kernel.py", "All chunks are one group, and no chunk is left."): [
        "if len(moves) < at_once:",
    ],
    ("matmul/kernel.py", "An epilogue without such a source does not use its value."): [
        "return np.float32(1)",
    ],
    ("matmul/epilogue.py", "The element is its tile's origin, and its last."): [
        "return finish(value, np.int32(1), np.int32(0), before, added, here, terms)",
        "return finish(value, np.int32(0), np.int32(1), before, added, here, terms)",
        "element: Any = OutputElement(np.int32(1), np.int32(0), here, old, added)",
        "element: Any = OutputElement(np.int32(0), np.int32(1), here, old, added)",
    ],
    ("matmul/epilogue.py", "A kernel calls both kinds alike; nothing launches this function."): [
        "return cuda.jit(device=False)(lambda value, element, terms: value)",
    ],
    ("pointwise/inputs.py", "A kernel calls both kinds alike; nothing launches these functions."): [
        "return cuda.jit(device=False, forceinline=True)(function)",
    ],
    ("pointwise/kernel.py", "What reads a chunk ignores its last argument."): [
        "values = read_all(inputs, chunk, i, 1)",
        "out, left, map_lanes(fn, read_ones(inputs, chunk, left, 1), numbers), SINGLE",
    ],
}  # fmt: skip
EQUIVALENT |= {
    (f"numba_tma/kernels/{path}", line): reason
    for (path, reason), lines in _OF_KERNELS.items()
    for line in lines
}


def reason_of(mutation: Mutation, source: str) -> str:
    """Return why a mutation is equivalent; "" if it is not."""
    return EQUIVALENT.get((mutation.path, _changed(mutation, source)), "")


def stale(sites: Iterable[Mutation], root: Path) -> set[tuple[str, str]]:
    """Return what is listed here and is no mutation of the library: a file may have moved."""
    listed, sources = {path for path, _ in EQUIVALENT}, dict[str, str]()
    left = set(EQUIVALENT)
    for mutation in sites:
        if mutation.path in listed:
            if mutation.path not in sources:
                sources[mutation.path] = (root / mutation.path).read_text()
            left.discard((mutation.path, _changed(mutation, sources[mutation.path])))
    return left


def _changed(mutation: Mutation, source: str) -> str:
    """Return the first line of a mutation, as it is with the bug."""
    return mutation.apply(source).splitlines()[mutation.line - 1].strip()
