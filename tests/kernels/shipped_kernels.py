"""The kernels that the library ships, each as it is compiled for one typical call."""

from __future__ import annotations

import dataclasses
from typing import Any

from numba import typeof, types

from numba_tma import Swizzle, Tile
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.rows import Divisor, PlacedRows
from numba_tma.kernels.attention import split_kv as _attention_splits
from numba_tma.kernels.copy import api as copy
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.epilogue import split_k_kernel
from numba_tma.kernels.pointwise import api as pointwise
from numba_tma.kernels.pointwise.activations import GELU, SWIGLU
from numba_tma.kernels.pointwise.api import plan_for as pointwise_plan
from numba_tma.kernels.rows.backward import BackwardArrays, backward_kernel
from numba_tma.kernels.rows.columns import column_sums_kernel, few_rows_kernel
from numba_tma.kernels.rows.columns.plan import ColumnSizes
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.launching import kernel_for
from numba_tma.kernels.rows.layernorm import LAYERNORM
from numba_tma.kernels.rows.pipelined import pipelined_kernel
from numba_tma.kernels.rows.plan import (
    PLANS,
    UNALIGNED,
    RowArrays,
    RowMemory,
    RowOptions,
    RowPlan,
    RowSizes,
    plan_for,
    share_of,
)
from numba_tma.kernels.rows.rmsnorm import RMSNORM
from numba_tma.kernels.rows.softmax import SOFTMAX
from numba_tma.kernels.transpose import api as transpose
from tests.kernels import matmul_forms

BYTES, COUNTER, INT, F32 = types.uint8[::1], types.uint32[::1], types.int64, types.float32
BF16, FLOAT = as_dtype("bf16"), as_dtype("f32")


def _map(shape: tuple[int, ...], dtype: Any) -> TensorMapType:
    return TensorMapType(len(shape), Tile(shape, dtype))


MEMORY = RowMemory(0, 0)
#: What kernels over rows take: arrays, sizes, a number.
ROWS = (
    typeof(RowArrays(MEMORY, MEMORY, 0, 0, MEMORY, MEMORY, (0, 0))),
    typeof(RowSizes(0, 0, 0)),
    F32,
)
#: What kernels over units of rows take: an input, the output, its rows, their bytes and units.
UNIT_ROWS = (*(typeof(PlacedRows(0, 0, 0)),) * 2, INT, INT, typeof(Divisor(0, 0, 0)))
COLUMN_SUMS = (typeof(MEMORY), typeof(ColumnSizes(*(0,) * 10)), INT, INT, INT)
UNALIGNED_PLAN = plan_for("layernorm", 50257, 2, UNALIGNED)
PLAIN, WEIGHT, AFFINE = RowOptions(), RowOptions(weight=True), RowOptions(weight=True, bias=True)
EVERYTHING = RowOptions(True, True, True, True, (True, True))
RESIDUAL = RowOptions(weight=True, residual=True, residual_out=True)


def _rows(
    op: RowOperation, columns: int, plan: RowPlan, options: RowOptions = PLAIN, width: int = 16
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel over bf16 rows of `columns`, of which there are as many as fit."""
    return kernel_for(op, plan.rows, columns, BF16, width, plan, options), ROWS


def _transpose(itemsize: int, store: str = "tma") -> tuple[Any, tuple[Any, ...]]:
    plan = dataclasses.replace(transpose.PLANS[itemsize], store=store)
    bits = as_dtype(f"u{8 * itemsize}")
    side = 128 // itemsize
    shape = (plan.rows * side, plan.columns * side)
    source, target = (
        TensorMapType(3, Tile((1, *sides), bits, Swizzle.B128)) for sides in (shape, shape[::-1])
    )
    return transpose.transpose_kernel(bits, plan), (
        source,
        target if store == "tma" else BYTES,
        *(INT,) * 6,
    )


BYTE_TILE, BF16_TILE = Tile((32, 256), "u8"), Tile((16, 256), BF16)
BF16_MAP = _map((16, 256), BF16)
RING = pointwise_plan(2)
SIZES = (COUNTER, INT, INT, INT)

#: Name of the golden: kernel, argument types. A new kernel is one line here, and `make goldens`.
SHIPPED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "copy_chunks": (copy.copy_chunks_kernel(copy.Plan()), (BYTES, BYTES)),
    "copy_tiles": (
        copy.copy_tiles_kernel(BYTE_TILE, 2),
        (_map((32, 256), "u8"),) * 2 + (COUNTER, INT, INT),
    ),
    "rmsnorm_1024": _rows(RMSNORM, 1024, RowPlan(32, 4), WEIGHT),
    "rmsnorm_stages": (
        pipelined_kernel(8192, BF16, threads=512, stages=4),
        (COUNTER, typeof(MEMORY), INT, typeof(MEMORY), INT, INT, F32),
    ),
    "layernorm_cluster": _rows(LAYERNORM, 65536, RowPlan(512, 1, 4, bulk=True), AFFINE),
    "layernorm_odd": _rows(LAYERNORM, 8191, RowPlan(256), EVERYTHING, 2),
    "rmsnorm_unaligned": _rows(RMSNORM, 1023, RowPlan(32, 4, early=True), WEIGHT, UNALIGNED),
    "layernorm_unaligned": _rows(LAYERNORM, 50257, UNALIGNED_PLAN, AFFINE, UNALIGNED),
    "rmsnorm_staged": _rows(RMSNORM, 65536, PLANS["rmsnorm"][131072], WEIGHT),
    "rmsnorm_staged_residual": _rows(
        RMSNORM, 40000, plan_for("rmsnorm", 40000, 2, 16, RESIDUAL), RESIDUAL
    ),
    "softmax_staged": _rows(SOFTMAX, 65536, PLANS["softmax"][131072]),
    "layernorm_backward": (
        backward_kernel(
            share_of(8192, 1, BF16, 16, RowPlan(512)),
            RowPlan(512),
            centred=True,
            weighted=True,
            sums=2,
        ),
        (typeof(BackwardArrays(MEMORY, MEMORY, 0, 0, 0, MEMORY, 0, 0)), ROWS[1]),
    ),
    "column_sum": (column_sums_kernel(BF16, 16, FLOAT), COLUMN_SUMS),
    "column_sum_unaligned": (column_sums_kernel(BF16, UNALIGNED, FLOAT), COLUMN_SUMS),
    "column_sum_few": (few_rows_kernel(BF16, FLOAT), (typeof(MEMORY), INT, INT, INT)),
    "copy_units": (copy.copy_units_kernel(2, 256, False, "any"), UNIT_ROWS),
    "gelu": (
        pointwise.chunk_kernel(GELU["bf16"].fn, 1, 0, BF16, pointwise_plan(1)),
        (BYTES, BYTES, INT),
    ),
    "gelu_units": (
        pointwise.unit_kernel(GELU["bf16"].fn, ("full",), 0, BF16, False, "alike"),
        UNIT_ROWS,
    ),
    "scale_add": (
        pointwise.ring_kernel(pointwise.SCALE_ADD.fn, ("full",) * 2, 2, BF16_TILE, RING),
        (BF16_MAP,) * 3 + (F32, F32, *SIZES),
    ),
    "swiglu": (
        pointwise.ring_kernel(SWIGLU.fn, ("full",) * 2, 0, BF16_TILE, SWIGLU.plan),
        (BF16_MAP,) * 3 + SIZES,
    ),
    "add_row": (
        pointwise.ring_kernel(pointwise.ADD.fn, ("full", "row"), 0, BF16_TILE, RING),
        (BF16_MAP, BYTES, BF16_MAP, *SIZES),
    ),
    "transpose_registers": _transpose(4, "registers"),
    "transpose_patches": (
        transpose.patch_kernel(as_dtype("u16"), False),
        (types.Array(types.uint16, 3, "A"),) * 2 + (INT,) * 5,
    ),
    "matmul_parts": (split_k_kernel(Epilogue(bias=BF16), BF16), matmul_forms.ADDING),
    "attention_parts": (
        _attention_splits.combine_kernel(BF16, 128, True, 8),
        (*[INT] * 4, types.UniTuple(INT, 3), *[INT] * 4),
    ),
    "transpose_2": _transpose(2),
    "transpose_4": _transpose(4),
}
