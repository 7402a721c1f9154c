"""wgmma as bare instructions, to see what a matrix descriptor makes the hardware read.

The accumulator is a value of n/2 registers in each thread of a warpgroup, passed through every
instruction as an operand tied to its result: so the compiler knows that the registers change.
"""

import functools
from dataclasses import dataclass

from llvmlite import ir
from numba import types
from numba.cuda.extending import core_models, intrinsic, register_model

I32, F32, I64 = ir.IntType(32), ir.FloatType(), ir.IntType(64)


@dataclass(frozen=True)
class Shape:
    """One form of wgmma: the types' names in PTX, and what stands after the operands."""

    k: int
    operand: str
    accumulator: str
    transposes: bool = False

    @property
    def result(self):
        return types.float32 if self.accumulator == "f32" else types.int32


SHAPES = {
    "bf16": Shape(16, "bf16", "f32", True),
    "f16": Shape(16, "f16", "f32", True),
    "tf32": Shape(8, "tf32", "f32"),
    "e4m3": Shape(32, "e4m3", "f32"),
    "i8": Shape(32, "s8", "s32"),
}


class Accumulator(types.Type):
    """`count` registers of a thread."""

    def __init__(self, element, count):
        self.element, self.count = element, count
        super().__init__(name=f"Accumulator({element}, {count})")


@register_model(Accumulator)
class _AccumulatorModel(core_models.PrimitiveModel):
    def __init__(self, manager, typ):
        element = F32 if typ.element == types.float32 else I32
        super().__init__(manager, typ, ir.ArrayType(element, typ.count))


def _through(builder, accumulator, text, operands, constraints, clobbers=()):
    """Emit an instruction that changes an accumulator; return what it becomes."""
    element, n = accumulator.type.element, accumulator.type.count
    registers = [builder.extract_value(accumulator, i) for i in range(n)]
    letter = "=f" if element == F32 else "=r"
    given = [*registers, *operands]
    function = ir.FunctionType(ir.LiteralStructType([element] * n), [v.type for v in given])
    tied = [letter] * n + [str(i) for i in range(n)] + [*constraints, *clobbers]
    asm = ir.InlineAsm(function, text, ",".join(tied), side_effect=True)
    changed = builder.call(asm, given)
    for i in range(n):
        accumulator = builder.insert_value(accumulator, builder.extract_value(changed, i), i)
    return accumulator


def _bare(text):
    @intrinsic
    def instruction(typingctx):
        def emit(context, builder, sig, args):
            function = ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.InlineAsm(function, text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), emit

    return instruction


fence = _bare("wgmma.fence.sync.aligned;")
commit_group = _bare("wgmma.commit_group.sync.aligned;")


@functools.cache
def instructions(dtype, n, trans_a=False, trans_b=False):
    """Return zeros, mma, wait and store for accumulators of 64 x n; mma takes 32 bytes along K."""
    shape = SHAPES[dtype]
    accumulator = Accumulator(shape.result, n // 2)
    u64 = types.uint64

    @intrinsic
    def zeros(typingctx):
        def emit(context, builder, sig, args):
            return ir.Constant(context.get_value_type(accumulator), [0] * accumulator.count)

        return accumulator(), emit

    @intrinsic
    def mma(typingctx, acc, a, b):
        def emit(context, builder, sig, args):
            count = accumulator.count
            registers = ", ".join(f"${i}" for i in range(count))
            kind = f"m64n{n}k{shape.k}.{shape.accumulator}.{shape.operand}.{shape.operand}"
            # scale-d; integers have no negation (scale-a, scale-b), 16-bit types transposition
            rest = ["1", "1"] if shape.accumulator == "f32" else []
            rest += [str(int(trans_a)), str(int(trans_b))] if shape.transposes else []
            text = (
                "{ .reg .pred p; setp.eq.b32 p, 0, 0; "
                f"wgmma.mma_async.sync.aligned.{kind} {{{registers}}}, "
                f"${2 * count}, ${2 * count + 1}, {', '.join(['p', *rest])}; }}"
            )
            return _through(builder, args[0], text, args[1:], ["l", "l"], ["~{memory}"])

        return accumulator(accumulator, u64, u64), emit

    @intrinsic
    def wait(typingctx, acc):
        def emit(context, builder, sig, args):
            text = "wgmma.wait_group.sync.aligned 0;"
            return _through(builder, args[0], text, [], [], ["~{memory}"])

        return accumulator(accumulator), emit

    @intrinsic
    def store(typingctx, acc, address, row_bytes):
        """Store the 64 x n block whose first element is at `address`, as this thread holds it."""

        def emit(context, builder, sig, args):
            acc, address, row_bytes = args
            eight_rows = builder.mul(row_bytes, ir.Constant(I64, 8))
            for i in range(accumulator.count):
                column, lower, odd = i // 4 * 8, i // 2 % 2, i % 2
                place = builder.add(address, ir.Constant(I64, 4 * (column + odd)))
                place = builder.add(place, eight_rows) if lower else place
                value = builder.extract_value(acc, i)
                builder.store(value, builder.inttoptr(place, ir.PointerType(value.type, 1)))
            return context.get_dummy_value()

        return types.void(accumulator, u64, u64), emit

    return zeros, mma, wait, store
