"""The kernels that the library ships, each as it is compiled for one typical call."""

from __future__ import annotations

import dataclasses
from typing import Any

from numba import types

from numba_tma import Swizzle, Tile
from numba_tma.dtypes import as_dtype
from numba_tma.kernels import copy, pointwise, transpose
from numba_tma.kernels.activations import GELU, SWIGLU
from numba_tma.kernels.pointwise import plan_for as pointwise_plan
from numba_tma.kernels.rmsnorm import block_per_row, plan_for, warp_per_row
from numba_tma.types import TensorMapType

BYTES, COUNTER, INT, F32 = types.uint8[::1], types.uint32[::1], types.int64, types.float32
BF16 = as_dtype("bf16")


def _map(shape: tuple[int, ...], dtype: Any) -> TensorMapType:
    return TensorMapType(len(shape), Tile(shape, dtype))


def _rmsnorm(columns: int, chunks: int, width: int) -> tuple[Any, tuple[Any, ...]]:
    plan = plan_for(columns, BF16)
    if plan.rows_per_stage:
        kernel = warp_per_row(columns, BF16, plan.stages, plan.rows_per_stage)
    else:
        kernel = block_per_row(columns, BF16, plan.stages, plan.threads)
    rows = _map((max(1, plan.rows_per_stage), chunks, width), BF16)
    return kernel, (rows, _map((1, chunks, width), BF16), rows, COUNTER, INT, F32)


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
    "copy_vectors": (copy.copy_vectors_kernel(16), (BYTES, BYTES, *(INT,) * 4)),
    "gelu": (
        pointwise.chunk_kernel(GELU["bf16"].fn, 1, 0, BF16, pointwise_plan(1)),
        (BYTES, BYTES, INT),
    ),
    "gelu_vectors": (
        pointwise.vector_kernel(GELU["bf16"].fn, ("full",), 0, BF16, 2, False),
        (BYTES, BYTES, *(INT,) * 4),
    ),
    "rmsnorm_8192": _rmsnorm(8192, 32, 256),
    "rmsnorm_1024": _rmsnorm(1024, 4, 256),
    "scale_add": (
        pointwise.ring_kernel(pointwise.scale_add.fn, ("full",) * 2, 2, BF16_TILE, RING),
        (BF16_MAP,) * 3 + (F32, F32, *SIZES),
    ),
    "swiglu": (
        pointwise.ring_kernel(SWIGLU.fn, ("full",) * 2, 0, BF16_TILE, SWIGLU.plan),
        (BF16_MAP,) * 3 + SIZES,
    ),
    "add_row": (
        pointwise.ring_kernel(pointwise.add.fn, ("full", "row"), 0, BF16_TILE, RING),
        (BF16_MAP, BYTES, BF16_MAP, *SIZES),
    ),
    "transpose_registers": _transpose(4, "registers"),
    "transpose_patches": (
        transpose.patch_kernel(as_dtype("u16")),
        (types.Array(types.uint16, 3, "A"),) * 2 + (INT, INT),
    ),
    "transpose_2": _transpose(2),
    "transpose_4": _transpose(4),
}
