"""The sizes of a stencil's kernel, by simple rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import MAX_BOX, Tile
from numba_tma.host.values import check_fields, whole
from numba_tma.kernels._host.limits import SHARED_BYTES

Radii = tuple[int, int, int]  #: of planes, rows and columns

# The reads of 8 results at a time, or of 16 in a single plane, hide a thread's latency: of the
# plans in tests/benchmarks/results/stencil_h200.json these are the fastest.
ELEMENTS = 2048  #: of a tile: eight for each of 256 threads
ROWS, ROWS_OF_A_PLANE = 16, 32  #: of a tile among planes, and of one in a single plane
ROW_NBYTES = 512  #: of a tile's row
COLUMNS = 128  #: of a tile at most, if the arrays have as many
NARROWEST = 32  #: columns of a tile that is made smaller: a warp's
IN_FLIGHT = 32 << 10  #: bytes that a block has in flight; two blocks reach the 64 KB of an SM
MOST_STAGES = 16
BLOCKS = 2  #: of an SM: 288 threads with up to 112 registers each
MOST_PLANES = 256  #: of a chunk; each chunk loads the planes beside it once more


@dataclass(frozen=True)
class StencilPlan:
    """The sizes of a stencil's kernel. Plans are part of cache keys."""

    rows: int = ROWS  #: of a tile
    columns: int = COLUMNS  #: of a tile
    stages: int = 4  #: of the pipeline; one for each plane of a window, and one or more
    warps: int = 8  #: that compute
    blocks_per_sm: int = BLOCKS
    planes: int = MOST_PLANES  #: of a chunk

    def __post_init__(self) -> None:
        check_fields(
            self,
            rows=whole(1, MAX_BOX),
            columns=whole(1, MAX_BOX),
            stages=whole(1, 1 << 10),
            warps=whole(1, 16),
            blocks_per_sm=whole(1, 32),
            planes=whole(1, 1 << 31),
        )

    def boxes(self, dtype: DType, radii: Sequence[Radii]) -> tuple[Tile, ...]:
        """Return what is loaded of each array, of one plane: `Halo.tile`."""
        columns = whole_chunks(self.columns, dtype)
        return tuple(
            Tile((1, self.rows + 2 * r, columns + 2 * whole_chunks(beside, dtype)), dtype)
            for _, r, beside in radii
        )


def whole_chunks(elements: int, dtype: DType) -> int:
    """Return a number of elements, rounded up to a multiple of 16 bytes."""
    return -(-elements // dtype.chunk) * dtype.chunk


def nbytes_of(boxes: Sequence[Tile], stages: int) -> int:
    """Return the shared memory of a block."""
    return stages * sum(-(-box.nbytes // 128) * 128 for box in boxes)


def problem_of(plan: StencilPlan, dtype: DType, radii: Sequence[Radii]) -> str:
    """Return why a plan does not hold such radii; "" if it does."""
    boxes = plan.boxes(dtype, radii)
    for box in boxes:
        if max(box.shape) > MAX_BOX:
            return f"its box of {box.shape} elements has more than {MAX_BOX} along an axis"
    window = 2 * max(planes for planes, _, _ in radii) + 1
    if plan.stages < window:
        return f"it has {plan.stages} stages, and a window has {window} planes"
    if (nbytes := nbytes_of(boxes, plan.stages)) > SHARED_BYTES:
        return f"it has {nbytes:,} B in shared memory, of {SHARED_BYTES:,}"
    return ""


def plan_for(dtype: DType, radii: Sequence[Radii], rows: int) -> StencilPlan | None:
    """Return the plan for arrays of so many rows in a plane; None if no tile holds the radii."""
    window = 2 * max(r for r, _, _ in radii) + 1
    for fewest in (max(4, window + 1), window + 1, window):
        for height, width in _tiles(dtype, radii, rows):
            boxes = StencilPlan(height, width).boxes(dtype, radii)
            stages = max(fewest, min(IN_FLIGHT // nbytes_of(boxes, 1), MOST_STAGES))
            blocks = min(BLOCKS, max(1, SHARED_BYTES // nbytes_of(boxes, stages)))
            plan = StencilPlan(height, width, stages, blocks_per_sm=blocks)
            if not problem_of(plan, dtype, radii):
                return plan
    return None


def _tiles(dtype: DType, radii: Sequence[Radii], rows: int) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of tiles, from the best on; wide ones have a small halo."""
    tallest = ROWS if any(planes for planes, _, _ in radii) else ROWS_OF_A_PLANE
    height = min(tallest, 1 << (rows - 1).bit_length())
    most = MAX_BOX - 2 * whole_chunks(max(r for _, _, r in radii), dtype)
    widest = min(COLUMNS, ROW_NBYTES // dtype.itemsize)
    width = min(widest if height == tallest else ELEMENTS // height, most)
    width = width // NARROWEST * NARROWEST
    height = min(height, MAX_BOX - 2 * max(r for _, r, _ in radii))
    while width >= NARROWEST and height >= 1:
        yield height, width
        height, width = (height // 2, width) if height > 1 else (height, width // 2)


def planes_of(plan: StencilPlan, depth: int, tiles: int, radius: int, blocks: int) -> int:
    """Return the planes of a chunk: few enough for all blocks, and many beside its halo."""
    fair = -(-depth // max(1, blocks // tiles))  # no more chunks than run at a time
    return min(depth, plan.planes, max(8 * radius, fair, 1))
