"""The kernels that the library ships, each as it is compiled for one typical call."""

from __future__ import annotations

import functools
from typing import Any

from numba import types

from numba_tma import Tile
from numba_tma.dtypes import as_dtype
from numba_tma.kernels.copy import copy_chunks, copy_tiles_kernel
from numba_tma.kernels.pointwise import scale_add_kernel
from numba_tma.kernels.rmsnorm import block_per_row, plan_for, warp_per_row
from numba_tma.testing import compile_ptx
from numba_tma.types import TensorMapType
from tests.circular_kernels import CIRCULAR

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


BYTE_TILE, BF16_TILE = Tile((32, 256), "u8"), Tile((16, 256), BF16)

#: Name of the golden: kernel, argument types. A new kernel is one line here, and `make goldens`.
SHIPPED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "copy_chunks": (copy_chunks, (BYTES, BYTES)),
    "copy_tiles": (
        copy_tiles_kernel(BYTE_TILE, 2),
        (_map((32, 256), "u8"),) * 2 + (COUNTER, INT, INT),
    ),
    "rmsnorm_8192": _rmsnorm(8192, 32, 256),
    "rmsnorm_1024": _rmsnorm(1024, 4, 256),
    "scale_add": (
        scale_add_kernel(BF16_TILE),
        (_map((16, 256), BF16),) * 3 + (F32, F32, COUNTER, INT, INT),
    ),
}


@functools.cache
def compiled(name: str, cc: tuple[Any, ...]) -> str:
    """Return the PTX of a shipped kernel, or of a pipeline's demonstration."""
    kernel, signature = SHIPPED[name] if name in SHIPPED else CIRCULAR[name][0]()
    return compile_ptx(kernel, signature, cc=cc)
