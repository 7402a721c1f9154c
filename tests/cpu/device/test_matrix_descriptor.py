"""Descriptors in compiled kernels: the values of MatrixLayout, at no cost, or an error."""

import operator
import re

import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import MatrixLayout, Swizzle, Tile, TilePipeline
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.cpu.kernels.test_kernel_errors import holds, message
from tests.kernels.matrix_operands import operands
from tests.tiers import every

U64, I64, U32, I32 = types.uint64, types.int64, types.uint32, types.int32
OUT = U64[::1]
SWIZZLED = Tile((128, 128), "bf16", Swizzle.B128)
TARGETS = {"wgmma": (9, 0, "a"), "tcgen05": (10, 0, "a")}
BASE = 2048  # where the tiles lie

OPERATIONS = {
    "add": operator.add,
    "and": operator.and_,
    "bfi": lambda a, b, position, length: b % (1 << position) | a << position,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "mad": lambda a, b, c: a * b + c,
    "mov": lambda a: a,
    "mul": operator.mul,
    "or": operator.or_,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "sub": operator.sub,
}


def executed(body, **parameters):
    """Execute a kernel without branches; return what it stores to its first argument, in order.

    Its array is at 0, its tile at BASE; `parameters` by their number are integers.
    """
    held, stored = {"numba_tma_shared": BASE}, {}
    for line in body:
        name, _, rest = re.sub(r"(numba_tma_shared)\w+", r"\1", line).partition(" ")
        kind, *modifiers = name.split(".")
        target, *sources = rest.split(", ")
        if kind == "ld":
            held[target] = parameters.get(sources[0].strip("[]"), 0)
            continue
        values = [
            held[s] if s in held else int(s) for s in re.findall(r"[^{}, ]+", " ".join(sources))
        ]
        if kind == "st":
            base, offset = re.fullmatch(r"\[(%\w+)\+?(\d*)\]", target).groups()
            start = held[base] + int(offset or 0)
            stored |= {start + 8 * i: value for i, value in enumerate(values)}
        elif kind != "ret":
            if kind == "mov" and len(values) == 2:
                values = [values[0] | values[1] << 32]
            # cvt names what it gives first; all others end with the type that they work in
            work = modifiers[-2] if kind == "cvt" else modifiers[-1]
            bits = int(work[1:])
            if work[0] == "s" and kind == "shr":
                values[0] -= (values[0] >> bits - 1) << bits
            bits = 64 if "wide" in modifiers else bits
            held[target] = OPERATIONS[kind](*values) & ((1 << bits) - 1)
    return [stored[place] for place in sorted(stored)]


def compiled(kernel, *arguments, instruction="wgmma"):
    ptx = compile_ptx(kernel, (OUT, *arguments), cc=TARGETS[instruction])
    report = ptxas(ptx)
    assert (report.stack_frame, report.spill_stores, report.warnings) == (0, 0, ())
    assert "call" not in ptx
    return instructions(ptx)


def first_of_each(instruction):
    """Return the largest operand of each (dtype, major-ness, swizzle)."""
    kinds = {}
    for operand in operands(instruction, dtypes=("bf16", "tf32", "i8")):
        kind = kinds.setdefault((operand.dtype, operand.major, operand.swizzle), operand)
        if operand.rows * operand.k > kind.rows * kind.k:
            kinds[operand.dtype, operand.major, operand.swizzle] = operand
    return [(instruction, operand) for operand in kinds.values()]


# ----------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("instruction", "operand"),
    every(3, first_of_each("wgmma") + first_of_each("tcgen05")),
    ids=str,
)
def test_a_kernel_builds_what_the_layout_says(instruction, operand):
    tile, major = operand.tile, operand.major

    def kernel(out, k_step, row):
        descriptor = tma.shared_tile(tile).matrix_descriptor(major)
        out[0] = descriptor.value
        out[1] = descriptor.advance(k_step, row).value
        out[2] = descriptor.advance(row=row).advance(k_step).value

    body = compiled(kernel, I64, I32, instruction=instruction)
    layout = MatrixLayout(tile, major, instruction)
    for k_step in range(layout.num_k_steps):
        for row in range(0, layout.rows, layout.row_unit):
            expected = layout.descriptor(BASE, k_step, row)
            found = executed(body, param_5=0, param_7=k_step, param_8=row)
            assert found == [layout.descriptor(BASE), expected, expected]


def test_literals_are_constants():
    def kernel(out):
        descriptor = tma.shared_tile(SWIZZLED).matrix_descriptor(major="K")
        out[0] = descriptor.advance(5, 64).value
        out[1] = descriptor.advance(row=8).value
        for k_step in range(8):
            out[2 + k_step] = descriptor.advance(k_step).value

    body = compiled(kernel)
    layout = MatrixLayout(SWIZZLED)
    expected = [layout.descriptor(BASE, 5, 64), layout.descriptor(BASE, 0, 8)]
    expected += [layout.descriptor(BASE, k_step) for k_step in range(8)]
    assert executed(body) == expected
    assert not [line for line in body if line.startswith(("bra", "mul", "mad", "div", "rem"))]


def test_bytes_are_added_to_the_low_word():
    def kernel(out, nbytes):
        descriptor = tma.shared_tile(SWIZZLED).matrix_descriptor("MN")
        out[0] = (descriptor + 4096).value
        out[1] = (descriptor + nbytes).value
        out[2] = (descriptor.pair + nbytes).value
        moved = descriptor.pair
        moved += nbytes
        out[3] = moved.lo
        out[4] = moved.hi
        out[5] = (descriptor + nbytes).advance(2).value

    body = compiled(kernel, U32)
    base = MatrixLayout(SWIZZLED, "MN").descriptor(BASE)
    for nbytes in (0, 16, 32768, 65536):
        moved = base + nbytes // 16
        expected = [base + 256, moved, moved, moved & 0xFFFFFFFF, moved >> 32, moved + 256]
        assert executed(body, param_7=nbytes) == expected
    back = executed(body, param_7=-1024 & 0xFFFFFFFF)
    assert back[1] == base - 64


def test_a_pair_of_plain_words():
    def kernel(out, low, high):
        out[0] = (tma.MatrixDescriptorPair(low, high) + 32).value

    body = compiled(kernel, U32, U32)
    assert executed(body, param_7=5, param_8=9) == [9 << 32 | 7]


def test_what_is_known_of_the_matrix_is_constant():
    def kernel(out):
        descriptor = tma.shared_tile(SWIZZLED).matrix_descriptor("MN")
        layout = descriptor.layout
        out[0] = layout.num_k_steps
        out[1] = layout.rows
        out[2] = layout.leading

    assert executed(compiled(kernel)) == [8, 128, 16384]


# ------------------------------------------------------------------------------- cost

PIPE = TilePipeline(4, a=SWIZZLED)


def over_stages(out, first, n):
    pipe = PIPE.start()
    if pipe.is_consumer():
        for i, stage in pipe.consume(first, n):
            descriptor = stage.a.matrix_descriptor()
            for k_step in range(8):
                out[8 * i + k_step] = descriptor.advance(k_step).value


def over_stages_by_hand(out, first, n):
    pipe = PIPE.start()
    if pipe.is_consumer():
        for i, stage in pipe.consume(first, n):
            low = U32((U32(stage.a.address) & U32(0x3FFFF)) >> U32(4)) | U32(1 << 16)
            for k_step in range(8):
                moved = U32(low + U32(k_step % 4 * 2 + k_step // 4 * 1024))
                out[8 * i + k_step] = U64(moved) | U64(1 << 62 | 64 << 32)


def test_descriptors_of_stages_cost_what_they_cost_by_hand():
    ours, theirs = (compiled(k, I64, I64) for k in (over_stages, over_stages_by_hand))
    assert sum(line.startswith("st.global") for line in ours) == 8
    assert len(ours) <= len(theirs)


def sum_of(descriptor, k_steps):
    total = U64(0)
    for k_step in range(k_steps):
        total += descriptor.advance(k_step).value
    return total


def test_a_descriptor_goes_through_branches_and_functions():
    device = cuda.jit(device=True)(sum_of)

    def kernel(out, k_steps, which):
        a = tma.shared_tile(SWIZZLED).matrix_descriptor()
        b = tma.shared_tile(SWIZZLED).matrix_descriptor()
        chosen = a
        if which > 3:
            chosen = b
        out[0] = device(chosen, k_steps)

    compiled(kernel, I64, I64)


# ----------------------------------------------------------------------------- errors


def with_descriptor(use, tile=SWIZZLED, major="K"):
    def kernel(out, n):
        out[0] = use(tma.shared_tile(tile).matrix_descriptor(major), n).value

    use = cuda.jit(device=True)(use)
    return kernel


@pytest.mark.parametrize(
    ("tile", "major", "said"),
    [
        (Tile((64, 64), "bf16"), "K", "its first axis: use Tile((chunks, rows, 8), bf16)"),
        (Tile((64, 32), "f32", Swizzle.B128), "MN", "only types of 16 bits can be MN-major"),
        (Tile((60, 64), "bf16", Swizzle.B128), "K", "it has 60 rows (M or N): use a multiple of 8"),
        (SWIZZLED, "N", "major is 'N': use \"K\" for a tile with K innermost"),
    ],
)
def test_what_cannot_be_read_does_not_compile(tile, major, said):
    kernel = with_descriptor(lambda d, n: d, tile, major)
    holds(message(kernel, OUT, I64), "SharedTile.matrix_descriptor: ", said)


def test_what_tcgen05_reads_besides():
    tile = Tile((64, 128), "e4m3", Swizzle.B128)
    kernel = with_descriptor(lambda d, n: d, tile, "MN")
    holds(message(kernel, OUT, I64), "no MN-major operand of wgmma", "MN-major (K, rows) of f16")
    compile_ptx(kernel, (OUT, I64), cc=TARGETS["tcgen05"])


@pytest.mark.parametrize("cc", [(8, 9), (12, 0)])
def test_gpus_without_either(cc):
    def kernel(out):
        out[0] = tma.shared_tile(SWIZZLED).matrix_descriptor().value

    text = message(kernel, OUT, cc=cc)
    holds(
        text, f"compiled for sm_{cc[0]}{cc[1]}, which has neither: read the tile with", "ldmatrix"
    )


def advance_far(out):
    out[0] = tma.shared_tile(SWIZZLED).matrix_descriptor().advance(8).value


def advance_half_a_row(out):
    out[0] = tma.shared_tile(SWIZZLED).matrix_descriptor().advance(row=4).value


def advance_a_float(out):
    out[0] = tma.shared_tile(SWIZZLED).matrix_descriptor().advance(1.5).value


def add_three(out):
    out[0] = (tma.shared_tile(SWIZZLED).matrix_descriptor() + 3).value


def add_three_to_a_pair(out):
    out[0] = (tma.shared_tile(SWIZZLED).matrix_descriptor().pair + 3).value


def add_a_float(out):
    out[0] = (tma.shared_tile(SWIZZLED).matrix_descriptor() + 1.5).value


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (advance_far, "MatrixDescriptor.advance: k_step is 8; Tile((128, 128), bf16, B128) has"),
        (advance_half_a_row, "MatrixDescriptor.advance: row is 4; parts of"),
        (advance_a_float, "MatrixDescriptor.advance(k_step=...) takes an integer, not float64"),
        (add_three, "a matrix descriptor + 3: descriptors count chunks of 16 B, so add a"),
        (add_three_to_a_pair, "a matrix descriptor + 3: descriptors count chunks of 16 B"),
        (add_a_float, "a matrix descriptor + nbytes takes an integer, not float64"),
    ],
)
def test_what_is_no_part(kernel, said):
    holds(message(kernel, OUT), said)


def test_major_is_a_constant():
    def kernel(out, n):
        out[0] = tma.shared_tile(SWIZZLED).matrix_descriptor(n).value

    holds(message(kernel, OUT, I64), "matrix_descriptor(major=...) must be a compile-time constant")
