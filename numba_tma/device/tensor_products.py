"""tcgen05: products of tiles into tensor memory, and what is copied there for them."""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

from numba_tma import ptx
from numba_tma.backend.interface import native
from numba_tma.device.fragments import _checked as checked
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout
from numba_tma.host.scale_layout import COPY_HIGH
from numba_tma.host.tensor_products import (
    ProductOptions,
    TensorProductCall,
    copy_call,
    product_call,
)
from numba_tma.simulator import BadOperand

#: An operand in shared memory. A `SharedTile` is K-major.
SharedMatrix: TypeAlias = MatrixDescriptor | SharedTile
#: What a buffer of an operand does; see `tcgen05_mma`.
Collector: TypeAlias = Literal["fill", "use", "lastuse", "discard"]
#: A buffer of B.
BufferB: TypeAlias = Literal["b0", "b1", "b2", "b3"]

_call = functools.lru_cache(product_call)
_layout = functools.lru_cache(MatrixLayout)


@native
def tcgen05_mma(
    accumulator: TensorTile,
    a: SharedMatrix | TensorTile,
    b: SharedMatrix,
    *,
    accumulate: bool,
    scale_input_d: int | None = None,
    a_scale: TensorTile | None = None,
    b_scale: TensorTile | None = None,
    a_metadata: TensorTile | None = None,
    disable_output_lanes: tuple[int, ...] | None = None,
    collector: Collector | None = None,
    k_steps: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
) -> None:
    """Start D = A B, or D += A B, with the accumulator D in tensor memory.

    Executed by one thread: that which `elect_sync` elects, and which also executes the commit. In a
    CTA pair, one thread of the even block for both. It returns at once. The product is complete
    when the barrier of a later `tcgen05_commit` of the thread completes its phase; pipelines commit
    by themselves. Until then no tile may be written, and the accumulator not be loaded. Products of
    one thread into one accumulator are executed in the order of their start.

    Shape, kind, types and steps along K follow from the tiles. M and N are those of `accumulator`,
    of both blocks of a pair; each block of a pair has M / 2 rows of A and N / 2 of B. Kinds: f16
    (f16, bf16), tf32 (f32), f8f6f4 (e4m3, e5m2, e3m2, e2m3, e2m1_unpacked in any mix), i8 (i8, u8).
    With scale factors: mxf8f6f4 (the types of f8f6f4), mxf4 and mxf4nvf4 (e2m1). Another
    combination is an error that lists these.

    It orders no memory: wait for the copies of the tiles first. Threads that wrote a tile execute
    `fence_proxy_async` and then synchronise.

    Parameters
    ----------
    accumulator
        ``tmem.tile(m, n)``, or the `accumulator` of a stage of an `OutputTilePipeline`.
    a
        (M, K) in shared memory: a descriptor, or a tile that is K-major. Or an operand in tensor
        memory.
    b
        (N, K) in shared memory.
    accumulate
        Whether D = A B is added to D; False overwrites D. May be a run-time value.
    scale_input_d
        A literal from 0 to 15: D is divided by 2 to its power first. Kinds f16 and tf32.
    a_scale, b_scale
        Scale factors in tensor memory, ``tmem.scales(tile)``, which a `tcgen05_copy` of this thread
        has filled.
    a_metadata
        ``tmem.metadata(m, k, dtype)`` of a sparse A, filled by a `tcgen05_copy` of this thread. `a`
        has the stored half of A, so that its K is half of that of `b`: see `sparse_compress`. Not
        with scale factors.
    disable_output_lanes
        Four words, or eight in a CTA pair: a set bit i mod 32 of word i / 32 leaves lane i of D as
        it is. Not with scale factors.
    collector
        The buffer of A in the tensor cores: ``"fill"`` keeps this A, and ``"use"`` and
        ``"lastuse"`` read it there. It holds A of one instruction, so that `k_steps` is 1. A hint:
        the tile holds A all the same until the products are complete. A literal.
    k_steps
        Instructions along K, each of 32 bytes of every row of A; all that the tiles have by
        default. A literal.
    negate_a, negate_b
        Whether elements change their sign; not of integers. Literals.
    saturate
        Whether sums of i8 and u8 stop at the ends of i32; they wrap otherwise. A literal.

    Notes
    -----
    PTX: ``tcgen05.mma.cta_group.kind``, one for each step along K; ``.sp`` with `a_metadata`.
    """
    if (a_scale is None) != (b_scale is None):
        raise BadOperand(both_scales())
    options = ProductOptions(
        negate_a=negate_a,
        negate_b=negate_b,
        saturate=saturate,
        k_steps=k_steps,
        scale_input_d=scale_input_d,
        collector=collector,
    )
    _multiply(
        options, accumulator, a, b, accumulate, a_metadata,
        scale_a=a_scale, scale_b=b_scale, disable_output_lane=disable_output_lanes,
    )  # fmt: skip


@native
def tcgen05_mma_ws(
    accumulator: TensorTile,
    a: SharedMatrix | TensorTile,
    b: SharedMatrix,
    *,
    accumulate: bool,
    buffer: BufferB = "b0",
    collector: Collector = "discard",
    zero_columns: int | None = None,
    a_metadata: TensorTile | None = None,
    k_steps: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
) -> None:
    """Start D = A B, or D += A B, with B in a buffer: a weight-stationary product of one block.

    For products of few rows with the same B: M is 32, 64 or 128, and N 64, 128 or 256. All that is
    not named here is as for `tcgen05_mma`. There are no scale factors and no CTA pairs.

    Parameters
    ----------
    accumulator
        ``tmem.tile(m, n, ws=True)``.
    a
        As for `tcgen05_mma`; in tensor memory ``tmem.operand(m, k, dtype, ws=True)``.
    buffer
        The buffer of B, of four.
    collector
        ``"fill"`` keeps this B in the buffer, ``"use"`` and ``"lastuse"`` read it there. The buffer
        holds B of one instruction, so that `k_steps` is 1 with these. A hint, as for `tcgen05_mma`.
    zero_columns
        Columns of B that count as zeros: a `zero_column_mask`.
    a_metadata
        As for `tcgen05_mma`: ``tmem.metadata(m, k, dtype, ws=True)``.

    Notes
    -----
    PTX: ``tcgen05.mma.ws.cta_group::1.kind.collector``, one for each step along K.
    """
    options = ProductOptions(
        negate_a=negate_a,
        negate_b=negate_b,
        saturate=saturate,
        k_steps=k_steps,
        collector=collector,
        buffer=buffer,
    )
    _multiply(options, accumulator, a, b, accumulate, a_metadata, zero_column_mask=zero_columns)


def _multiply(
    options: ProductOptions,
    accumulator: TensorTile,
    a: SharedMatrix | TensorTile,
    b: SharedMatrix,
    accumulate: bool,
    metadata: TensorTile | None,
    scale_a: TensorTile | None = None,
    scale_b: TensorTile | None = None,
    **operands: Any,
) -> None:
    """Start the instructions of a product, with `operands` of each instruction (simulator)."""
    left = a if isinstance(a, TensorTile) else _descriptor(options.function, "a", a)
    right = _descriptor(options.function, "b", b)
    call: TensorProductCall = checked(
        _call,
        accumulator.layout,
        left.layout,
        right.layout,
        None if scale_a is None or scale_b is None else (scale_a.layout, scale_b.layout),
        None if metadata is None else metadata.layout,
        options,
    )
    given = {name: value for name, value in operands.items() if value is not None}
    if problem := call.refuses(given):
        raise BadOperand(problem)
    start = getattr(ptx, call.row)
    for i, step in enumerate(call.steps):
        first = left.address + step.a if isinstance(left, TensorTile) else _at(left, step.a)
        if scale_a is not None and scale_b is not None:
            given["scale_a"] = scale_a.address + step.scale_a
            given["scale_b"] = scale_b.address + step.scale_b
        if metadata is not None:
            given["sparse_metadata"] = metadata.address + step.metadata
        if options.scale_input_d is not None:
            given["scale_input_d"] = options.scale_input_d if i == 0 else None
        start(
            d=accumulator.address,
            a=first,
            b=_at(right, step.b),
            idesc=step.idesc,
            enable_input_d=bool(accumulate) or i > 0,
            **given,
            **call.forms,
        )


@native
def tcgen05_copy(destination: TensorTile, tile: SharedTile) -> None:
    """Start to copy scale factors, or metadata, from a tile in shared memory to their columns.

    Executed by one thread, which then starts the products that read them: these find the copy
    complete, without a wait. In a CTA pair each block copies its own tile. The tile may be written
    again when a later commit of the thread has arrived. It orders no memory: wait for the copy of
    the tile first.

    Parameters
    ----------
    destination
        ``tmem.scales(tile)``, or ``tmem.metadata(m, k, dtype)``.
    tile
        The tile of a stage. Of scale factors: atoms of 128 rows x 4 factors, as `scale_tile` has
        them. Of metadata: ``metadata_tile(k, dtype)``.

    Notes
    -----
    PTX: ``tcgen05.cp.cta_group.32x128b.warpx4``, one for each atom; of metadata ``128x128b``, one
    for each 4 columns.
    """
    copies = checked(copy_call, destination.layout, tile.tile)
    copy: Any = ptx.tcgen05_cp
    for column, offset in copies.places:
        source = COPY_HIGH << 32 | (tile.address + offset) // CHUNK_BYTES
        copy(destination.address + column, source, copies.shape, copies.cta_group)


def both_scales() -> str:
    """Say that one operand cannot be scaled alone."""
    return (
        "tcgen05_mma: one of a_scale and b_scale is missing; both operands have scale factors, or "
        "none has"
    )


def _descriptor(what: str, name: str, operand: SharedMatrix) -> MatrixDescriptor:
    """Return an operand's descriptor for tcgen05 (simulator)."""
    if isinstance(operand, SharedTile):
        operand = operand.matrix_descriptor()
    if not isinstance(operand, MatrixDescriptor):
        raise BadOperand(operand_rule(what, name, operand))
    layout = checked(_layout, operand.layout.tile, operand.layout.major, "tcgen05")
    return MatrixDescriptor(layout, operand.lo, layout.high)


def operand_rule(what: str, name: str, given: object) -> str:
    """Return the error of an operand that is no matrix."""
    tensor = ", or a tile in tensor memory (tmem.operand)" if name == "a" else ""
    return f"{what}({name}=...) takes a shared tile, its matrix_descriptor(){tensor}, not {given}"


def _at(descriptor: MatrixDescriptor, nbytes: int) -> int:
    return (descriptor + nbytes).value
