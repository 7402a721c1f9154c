"""How kernels hold rows in registers: the compiled half of `_registers`."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, I64, TypingError, ir, signature, types
from numba_tma.backend.lowering.shared import _floats_to_pair, _pair_to_floats
from numba_tma.backend.lowering.vector_type import VectorType, pack, unpack
from numba_tma.device import registers as registers
from numba_tma.device.registers import Share
from numba_tma.ptx import CachePolicy

FLOAT = ir.FloatType()
_FLOATS = types.float32


def _share(typ: types.Type, function: str) -> Share:
    value = compiler.static_of(typ, f"{function}(share=...)")
    if not isinstance(value, Share):
        raise TypingError(f"{function}(share=...) takes a Share, not {value!r}")
    return value


def _packed(share: Share) -> VectorType:
    return VectorType(types.uint32, share.words)


def _vector(share: Share) -> VectorType:
    return VectorType(_FLOATS, share.values)


def _asm(builder: Any, results: int, text: str, constraints: str, *values: Any) -> list[Any]:
    """Emit memory accesses: volatile, so that they stay in the order of the source."""
    kind: Any = ir.VoidType()
    if results:
        kind = I32 if results == 1 else ir.LiteralStructType([I32] * results)
    function = ir.FunctionType(kind, [v.type for v in values])
    constraints = ",".join([*["=&r"] * results, constraints, "~{memory}"])
    value = builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), values)
    if results > 1:
        return [builder.extract_value(value, i) for i in range(results)]
    return [value]


def _access(share: Share, results: int) -> tuple[str, str, str, str]:
    """Return the suffix of an access, its registers, and what stands before and after a load."""
    names = [f"${i}" for i in range(results)]
    if share.width == 2:
        return ".b16", "h", "mov.b16 h, 0; ", " cvt.u32.u16 $0, h;"
    zero = "".join(f"mov.b32 {n}, 0; " for n in names)
    if results == 1:
        return ".b32", "$0", zero, ""
    return f".v{results}.b32", "{" + ", ".join(names) + "}", zero, ""


#: `Share.cache`: what is written behind ld.global.
_CACHES = {
    "allocate": "",
    "no_allocate": ".L1::no_allocate",
    "evict_first": ".L2::cache_hint",
    "evict_last": ".L2::cache_hint",
}


def _load(space: str, address_constraint: str, streams: bool = False) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        share = sig.args[0].static[0]
        _, location, first, limit = args
        results = share.words // share.count
        suffix, names, zero, after = _access(share, results)
        half = ".reg .b16 h; " if share.width == 2 else ""
        cache, hint = share.cache if streams else "allocate", ""
        if cache.startswith("evict"):
            policy = int(CachePolicy[cache.upper()])
            half += f".reg .b64 policy; mov.b64 policy, {policy}; "
            hint = ", policy"
        base = builder.add(location, _offset(builder, first, share, location.type))
        words: list[Any] = []
        for k in range(share.count):
            place = f"[${results}+{k * share.step * share.width}]"
            load = f"ld.{space}{_CACHES[cache]}{suffix} {names}, {place}{hint};{after}"
            if share.whole:
                text = f"{{ {half}{load} }}" if half else load
                words += _asm(builder, results, text, address_constraint, base)
                continue
            index = builder.add(first, ir.Constant(I32, k * share.step))
            text = (
                f"{{ .reg .pred p; {half}setp.lt.s32 p, ${results + 1}, ${results + 2}; "
                f"{zero}@p {load} }}"
            )
            constraints = f"{address_constraint},r,r"
            words += _asm(builder, results, text, constraints, base, index, limit)
        return pack(builder, words)

    return lower


def _offset(builder: Any, first: Any, share: Share, kind: Any) -> Any:
    wide = builder.sext(first, kind) if kind == I64 else first
    return builder.mul(wide, ir.Constant(kind, share.width))


def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    _, location, first, limit, packed = args
    each = share.words // share.count
    base = builder.add(location, _offset(builder, first, share, I64))
    words = unpack(builder, packed)
    names = [f"${i + 1}" for i in range(each)]
    for k in range(share.count):
        place = f"[$0+{k * share.step * share.width}]"
        if share.width == 2:
            store = f"cvt.u16.u32 h, $1; @p st.global.b16 {place}, h;"
        elif each == 1:
            store = f"@p st.global.b32 {place}, $1;"
        else:
            store = f"@p st.global.v{each}.b32 {place}, {{{', '.join(names)}}};"
        values = [base, *words[k * each : (k + 1) * each]]
        declared = ".reg .b16 h; " if share.width == 2 else ""
        if share.whole:
            text = f"{{ {declared}{store.replace('@p ', '')} }}"
            _asm(builder, 0, text, ",".join(["l", *["r"] * each]), *values)
            continue
        index = builder.add(first, ir.Constant(I32, k * share.step))
        text = f"{{ .reg .pred p; {declared}setp.lt.s32 p, ${each + 1}, ${each + 2}; {store} }}"
        constraints = ",".join(["l", *["r"] * (each + 2)])
        _asm(builder, 0, text, constraints, *values, index, limit)
    return context.get_dummy_value()


def _register_load(
    function: Any, space: str, location: types.Type, constraint: str, streams: bool = False
) -> None:
    def typer(share: Any, location_: Any, first: Any, limit: Any) -> Any:
        static = _share(share, function.__name__)
        return signature(_packed(static), share, location, types.int32, types.int32)

    def by_name(**given: Any) -> Any:
        return typer(given["share"], given["location"], given["first"], given["limit"])

    compiler.instruction_function(function, by_name, _load(space, constraint, streams))


_register_load(registers.load_global, "global", types.int64, "l", streams=True)
_register_load(registers.load_cached, "global", types.int64, "l")
_register_load(registers.load_shared, "shared", types.uint32, "r")


def _type_store(share: Any, location: Any, first: Any, limit: Any, packed: Any) -> Any:
    expected = _packed(_share(share, "store_global"))
    return signature(types.void, share, types.int64, types.int32, types.int32, expected)


compiler.instruction_function(registers.store_global, _type_store, _lower_store)


def _lower_store_float(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    bits = builder.bitcast(args[1], I32)
    _asm(builder, 0, "st.global.b32 [$0], $1;", "l,r", args[0], bits)
    return context.get_dummy_value()


compiler.instruction_function(
    registers.store_float,
    lambda location, value: signature(types.void, types.int64, _FLOATS),
    _lower_store_float,
)


def _lower_send_four(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    location, vector, barrier = args
    text = (
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
        "[$0], {$2, $3, $4, $5}, [$1];"
    )
    values = [builder.bitcast(v, I32) for v in unpack(builder, vector)]
    _asm(builder, 0, text, "r,r,r,r,r,r", location, barrier, *values)
    return context.get_dummy_value()


compiler.instruction_function(
    registers.send_four,
    lambda location, values, barrier: signature(
        types.void, types.uint32, VectorType(_FLOATS, 4), types.uint32
    ),
    _lower_send_four,
)

compiler.instruction_function(
    registers.global_memory,
    lambda location, nbytes: signature(types.int64, types.int64, types.int64),
    lambda context, builder, sig, args: args[0],
)


# --------------------------------------------------------------------------- conversions


def _lower_to_float(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    values: list[Any] = []
    for word in unpack(builder, args[1]):
        if share.dtype.itemsize == 4:
            values.append(builder.bitcast(word, FLOAT))
        else:
            values += _pair_to_floats(builder, share.dtype, word)[: min(2, share.lanes)]
    return pack(builder, values)


def _lower_from_float(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    values = unpack(builder, args[1])
    if share.dtype.itemsize == 4:
        return pack(builder, [builder.bitcast(v, I32) for v in values])
    if share.lanes == 1:
        zero = ir.Constant(FLOAT, 0.0)
        return pack(builder, [_floats_to_pair(builder, share.dtype, v, zero) for v in values])
    pairs = zip(values[::2], values[1::2])
    return pack(builder, [_floats_to_pair(builder, share.dtype, *pair) for pair in pairs])


def _type_to_float(share: Any, packed: Any) -> Any:
    static = _share(share, "to_float")
    return signature(_vector(static), share, _packed(static))


def _type_from_float(share: Any, values: Any) -> Any:
    static = _share(share, "from_float")
    return signature(_packed(static), share, _vector(static))


compiler.instruction_function(registers.to_float, _type_to_float, _lower_to_float)
compiler.instruction_function(registers.from_float, _type_from_float, _lower_from_float)


def _is_there(builder: Any, share: Share, k: int, first: Any, limit: Any) -> Any:
    index = builder.add(first, ir.Constant(I32, k * share.step))
    return builder.icmp_signed("<", index, limit)


def _type_keep(share: Any, values: Any, first: Any, limit: Any, other: Any) -> Any:
    vector = _vector(_share(share, "keep"))
    return signature(vector, share, vector, types.int32, types.int32, _FLOATS)


def _lower_keep(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    _, vector, first, limit, other = args
    if share.whole:
        return vector
    kept = []
    for i, value in enumerate(unpack(builder, vector)):
        if i % share.lanes == 0:
            there = _is_there(builder, share, i // share.lanes, first, limit)
        kept.append(builder.select(there, value, other))
    return pack(builder, kept)


compiler.instruction_function(registers.keep, _type_keep, _lower_keep)


compiler.instruction_function(
    registers.zeros,
    lambda share: signature(_vector(_share(share, "zeros")), share),
    lambda context, builder, sig, args: pack(
        builder, [ir.Constant(FLOAT, 0.0)] * sig.args[0].static[0].values
    ),
)


def _type_num_present(share: Any, first: Any, limit: Any) -> Any:
    _share(share, "num_present")
    return signature(_FLOATS, share, types.int32, types.int32)


def _lower_num_present(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    if share.whole:
        return ir.Constant(FLOAT, float(share.values))
    total = ir.Constant(FLOAT, 0.0)
    for k in range(share.count):
        there = _is_there(builder, share, k, args[1], args[2])
        some, none = ir.Constant(FLOAT, float(share.lanes)), ir.Constant(FLOAT, 0.0)
        total = builder.fadd(total, builder.select(there, some, none))
    return total


compiler.instruction_function(registers.num_present, _type_num_present, _lower_num_present)


# ---------------------------------------------------------------------------- arithmetic


compiler.instruction_function(
    registers.four,
    lambda a, b, c, d: signature(VectorType(_FLOATS, 4), *[_FLOATS] * 4),
    lambda context, builder, sig, args: pack(builder, list(args)),
)


def _instruction(builder: Any, text: str, *values: Any) -> Any:
    constraints = ",".join(["=f", *["f"] * len(values)])
    kind = ir.FunctionType(FLOAT, [FLOAT] * len(values))
    return builder.call(ir.InlineAsm(kind, text, constraints), values)


def _unary(function: Any, text: str) -> None:
    def typer(x: Any) -> Any:
        kind = x if isinstance(x, VectorType) else _FLOATS
        return signature(kind, kind)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(sig.return_type, VectorType):
            return pack(builder, [_instruction(builder, text, v) for v in unpack(builder, args[0])])
        return _instruction(builder, text, args[0])

    compiler.instruction_function(function, typer, lower)


_unary(registers.exp2, "ex2.approx.ftz.f32 $0, $1;")
_unary(registers.log2, "lg2.approx.f32 $0, $1;")
_unary(registers.rsqrt, "rsqrt.approx.f32 $0, $1;")
_unary(registers.reciprocal, "rcp.approx.f32 $0, $1;")


def _lower_fused(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    x, *others = args
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return pack(builder, [_instruction(builder, text, v, *others) for v in unpack(builder, x)])


compiler.instruction_function(
    registers.fused,
    lambda x, slope, shift: signature(x, x, _FLOATS, _FLOATS),
    _lower_fused,
)


def _type_weighted(share: Any, values: Any, weights: Any) -> Any:
    static = _share(share, "weighted")
    kinds = VectorType(_FLOATS, static.values), VectorType(_FLOATS, static.count)
    return signature(VectorType(_FLOATS, static.lanes), share, *kinds)


def _lower_weighted(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    values, weights = unpack(builder, args[1]), unpack(builder, args[2])
    result = [ir.Constant(FLOAT, 0.0)] * share.lanes
    for i, value in enumerate(values):
        access, lane = divmod(i, share.lanes)
        terms = value, weights[access], result[lane]
        result[lane] = _instruction(builder, "fma.rn.f32 $0, $1, $2, $3;", *terms)
    return pack(builder, result)


compiler.instruction_function(registers.weighted, _type_weighted, _lower_weighted)

_MAX = "max.f32 $0, $1, $2;"

compiler.instruction_function(
    registers.larger,
    lambda a, b: signature(_FLOATS, _FLOATS, _FLOATS),
    lambda context, builder, sig, args: _instruction(builder, _MAX, *args),
)


def _tree(combine: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = unpack(builder, args[0])
        while len(values) > 1:
            odd = values[len(values) // 2 * 2 :]
            values = [combine(builder, a, b) for a, b in zip(values[::2], values[1::2])] + odd
        return values[0]

    return lower


def _reduction(function: Any, combine: Any) -> None:
    compiler.instruction_function(
        function, lambda values: signature(_FLOATS, values), _tree(combine)
    )


_reduction(registers.largest, lambda builder, a, b: _instruction(builder, _MAX, a, b))
_reduction(registers.total, lambda builder, a, b: builder.fadd(a, b))


def _lower_swapped(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = ir.FunctionType(FLOAT, [FLOAT, I32])
    text = "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;"
    asm = ir.InlineAsm(kind, text, "=f,f,r", side_effect=True)
    return builder.call(asm, args, attrs=("convergent",))


compiler.instruction_function(
    registers.swapped,
    lambda value, distance: signature(_FLOATS, _FLOATS, types.int32),
    _lower_swapped,
)


def _type_first_largest(share: Any, values: Any, first: Any, limit: Any) -> Any:
    vector = _vector(_share(share, "first_largest"))
    return signature(VectorType(_FLOATS, 4), share, vector, types.int32, types.int32)


def _lower_first_largest(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    _, vector, first, limit = args
    zero = ir.Constant(FLOAT, 0.0)
    best = ir.Constant(FLOAT, float("-inf"))
    column = ir.Constant(I32, 1 << 24)
    base = builder.mul(first, ir.Constant(I32, share.lanes))
    for i, value in enumerate(unpack(builder, vector)):
        k, lane = divmod(i, share.lanes)
        larger = builder.fcmp_unordered(">", value, best)  # or either is a NaN
        number = builder.fcmp_ordered("ord", best, best)
        nothing = builder.icmp_signed("==", column, ir.Constant(I32, 1 << 24))
        taken = builder.or_(builder.and_(larger, number), nothing)
        if not share.whole:
            taken = builder.and_(taken, _is_there(builder, share, k, first, limit))
        best = builder.select(taken, value, best)
        here = builder.add(base, ir.Constant(I32, k * share.step * share.lanes + lane))
        column = builder.select(taken, here, column)
    return pack(builder, [best, builder.sitofp(column, FLOAT), zero, zero])


compiler.instruction_function(registers.first_largest, _type_first_largest, _lower_first_largest)


def _lower_store_index(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    function = ir.FunctionType(ir.VoidType(), [I64, I64])
    asm = ir.InlineAsm(function, "st.global.b64 [$0], $1;", "l,l,~{memory}", side_effect=True)
    builder.call(asm, [args[0], builder.fptosi(args[1], I64)])
    return context.get_dummy_value()


compiler.instruction_function(
    registers.store_index,
    lambda location, value: signature(types.void, types.int64, _FLOATS),
    _lower_store_index,
)


def _type_store_sums(share: Any, location: Any, first: Any, limit: Any, values: Any) -> Any:
    vector = _vector(_share(share, "store_sums"))
    return signature(types.void, share, types.int64, types.int32, types.int32, vector)


def _lower_store_sums(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    share = sig.args[0].static[0]
    _, location, first, limit, vector = args
    values = [builder.bitcast(v, I32) for v in unpack(builder, vector)]
    each, nbytes = min(4, share.lanes), 4 * share.lanes
    base = builder.add(location, builder.mul(builder.sext(first, I64), ir.Constant(I64, nbytes)))
    names = ", ".join(f"${i + 3}" for i in range(each))
    kind = f".v{each}.b32" if each > 1 else ".b32"
    for i in range(0, len(values), each):
        k, lane = divmod(i, share.lanes)
        index = builder.add(first, ir.Constant(I32, k * share.step))
        place = f"[$0+{k * share.step * nbytes + lane * 4}]"
        text = (
            f"{{ .reg .pred p; setp.lt.s32 p, $1, $2; @p st.global{kind} {place}, {{{names}}}; }}"
        )
        if each == 1:
            text = text.replace("{$3}", "$3")
        constraints = ",".join(["l", "r", "r", *["r"] * each])
        _asm(builder, 0, text, constraints, base, index, limit, *values[i : i + each])
    return context.get_dummy_value()


compiler.instruction_function(registers.store_sums, _type_store_sums, _lower_store_sums)
