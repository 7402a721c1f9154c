"""tcgen05: products of tiles into tensor memory, and scale factors that are copied there."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

from numba_tma import ptx
from numba_tma.backend.interface import native
from numba_tma.device.fragments import _checked as checked
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout
from numba_tma.host.scale_layout import COPY_SHAPE
from numba_tma.host.tensor_products import check_copy, product_call
from numba_tma.host.tensor_tiles import tensor_scales
from numba_tma.simulator import BadOperand

#: An operand in shared memory. A `SharedTile` is K-major.
SharedMatrix: TypeAlias = MatrixDescriptor | SharedTile

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
    k_steps: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
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
    k_steps
        Instructions along K, each of 32 bytes of every row; all that the tiles have by default. A
        literal.
    negate_a, negate_b
        Whether elements change their sign; not of integers. Literals.

    Notes
    -----
    PTX: ``tcgen05.mma.cta_group.kind``, one for each step along K.
    """
    left = a if isinstance(a, TensorTile) else _descriptor("a", a)
    right = _descriptor("b", b)
    if (a_scale is None) != (b_scale is None):
        raise BadOperand(both_scales())
    call = checked(
        _call,
        accumulator.layout,
        left.layout,
        right.layout,
        None if a_scale is None or b_scale is None else (a_scale.layout, b_scale.layout),
        negate_a=negate_a,
        negate_b=negate_b,
        k_steps=k_steps,
        scale_input_d=scale_input_d,
    )
    start = getattr(ptx, call.row)
    for i, step in enumerate(call.steps):
        first = left.address + step.a if isinstance(left, TensorTile) else _at(left, step.a)
        given = {"kind": call.kind, "cta_group": call.product.cta_group}
        if a_scale is not None and b_scale is not None:
            given["scale_a"] = a_scale.address + step.scale_a
            given["scale_b"] = b_scale.address + step.scale_b
        elif i == 0 and scale_input_d is not None:
            given["scale_input_d"] = scale_input_d
        start(
            d=accumulator.address,
            a=first,
            b=_at(right, step.b),
            idesc=step.idesc,
            enable_input_d=bool(accumulate) or i > 0,
            **given,
        )


@native
def tcgen05_copy(scales: TensorTile, tile: SharedTile) -> None:
    """Start to copy scale factors from a tile in shared memory to their columns.

    Executed by one thread, which then starts the products that read them: these find the copy
    complete, without a wait. In a CTA pair each block copies its own tile. The tile may be written
    again when a later commit of the thread has arrived. It orders no memory: wait for the copy of
    the tile first.

    Parameters
    ----------
    scales
        ``tmem.scales(tile)``.
    tile
        Atoms of 128 rows x 4 factors, as `scale_tile` has them: that of a stage.

    Notes
    -----
    PTX: ``tcgen05.cp.cta_group.32x128b.warpx4``, one for each atom.
    """
    block = getattr(scales.layout, "block", None)
    held = checked(tensor_scales, tile.tile, block, getattr(scales.layout, "cta_group", 1))
    layout = checked(check_copy, scales.layout, held, tile.tile)
    copy: Any = ptx.tcgen05_cp
    for column, offset in layout.atoms():
        source = layout.source.high << 32 | (tile.address + offset) // CHUNK_BYTES
        copy(scales.address + column, source, COPY_SHAPE, layout.cta_group)


def both_scales() -> str:
    """Say that one operand cannot be scaled alone."""
    return (
        "tcgen05_mma: one of a_scale and b_scale is missing; both operands have scale factors, or "
        "none has"
    )


def _descriptor(name: str, operand: SharedMatrix) -> MatrixDescriptor:
    """Return an operand's descriptor for tcgen05 (simulator)."""
    if isinstance(operand, SharedTile):
        operand = operand.matrix_descriptor()
    if not isinstance(operand, MatrixDescriptor):
        raise BadOperand(operand_rule(name, operand))
    layout = checked(_layout, operand.layout.tile, operand.layout.major, "tcgen05")
    return MatrixDescriptor(layout, operand.lo, layout.high)


def operand_rule(name: str, given: object) -> str:
    """Return the error of an operand that is no matrix."""
    tensor = ", or a tile in tensor memory (tmem.operand)" if name == "a" else ""
    return (
        f"tcgen05_mma({name}=...) takes a shared tile, its matrix_descriptor(){tensor}, not {given}"
    )


def _at(descriptor: MatrixDescriptor, nbytes: int) -> int:
    return (descriptor + nbytes).value
