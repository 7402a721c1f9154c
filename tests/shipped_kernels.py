"""The kernels that the library ships, each as it is compiled for one typical call."""

from __future__ import annotations

from typing import Any

from numba import types

from numba_tma import Tile
from numba_tma.dtypes import as_dtype
from numba_tma.kernels._columns import add_parts
from numba_tma.kernels._registers import Share
from numba_tma.kernels._row_rings import row_per_stage, slots_per_row
from numba_tma.kernels._rows import Operation, Options, Plan, at_once, share_of
from numba_tma.kernels.copy import copy_chunks, copy_tiles_kernel
from numba_tma.kernels.layernorm import LAYERNORM
from numba_tma.kernels.norm_backward import backward_kernel
from numba_tma.kernels.pointwise import scale_add_kernel
from numba_tma.kernels.rmsnorm import RMSNORM
from numba_tma.kernels.softmax import SOFTMAX
from numba_tma.types import TensorMapType

BYTES, COUNTER, INT, F32 = types.uint8[::1], types.uint32[::1], types.int64, types.float32
BF16 = as_dtype("bf16")


def _map(shape: tuple[int, ...], dtype: Any) -> TensorMapType:
    return TensorMapType(len(shape), Tile(shape, dtype))


#: Addresses and strides of `x` and all that goes with it, rows, accesses, columns; a number.
ROWS = (INT,) * 15 + (F32,)
PLAIN, WEIGHT, AFFINE = Options(), Options(weight=True), Options(weight=True, bias=True)
EVERYTHING = Options(True, True, True, True, (True, True))


def _rows(
    op: Operation, columns: int, plan: Plan, options: Options = PLAIN, width: int = 16
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel over bf16 rows of `columns`, of which there are as many as fit."""
    if plan.slot or plan.stages:
        make = slots_per_row if plan.slot else row_per_stage
        return make(op, BF16, 2 * columns, plan, options), (COUNTER, *ROWS)
    share = share_of(columns, plan.rows, BF16, width, plan)
    return at_once(op, share, plan, options), ROWS


BYTE_TILE, BF16_TILE = Tile((32, 256), "u8"), Tile((16, 256), BF16)

#: Name of the golden: kernel, argument types. A new kernel is one line here, and `make goldens`.
SHIPPED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "copy_chunks": (copy_chunks, (BYTES, BYTES)),
    "copy_tiles": (
        copy_tiles_kernel(BYTE_TILE, 2),
        (_map((32, 256), "u8"),) * 2 + (COUNTER, INT, INT),
    ),
    "rmsnorm_1024": _rows(RMSNORM, 1024, Plan(32, 4), WEIGHT),
    "rmsnorm_stages": _rows(RMSNORM, 8192, Plan(512, blocks=2, stages=4), WEIGHT),
    "layernorm_cluster": _rows(LAYERNORM, 65536, Plan(512, 1, 4, bulk=True), AFFINE),
    "layernorm_odd": _rows(LAYERNORM, 8191, Plan(256), EVERYTHING, 2),
    "softmax_cluster_slots": _rows(
        SOFTMAX, 262144, Plan(512, 1, 4, blocks=1, stages=13, slot=16384)
    ),
    "layernorm_backward": (
        backward_kernel(share_of(8192, 1, BF16, 16, Plan(512)), Plan(512), True, True, 2),
        (INT,) * 14,
    ),
    "column_sum": (add_parts(Share(BF16, 16, 1, 128, False), 128), (INT,) * 8),
    "scale_add": (
        scale_add_kernel(BF16_TILE),
        (_map((16, 256), BF16),) * 3 + (F32, F32, COUNTER, INT, INT),
    ),
}
