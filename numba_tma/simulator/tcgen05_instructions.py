"""tcgen05.mma, .cp and .shift: checked when they are issued, executed later in order of issue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.tcgen05_descriptor import InstructionDescriptor
from numba_tma.host.tensor_memory_layout import (
    COPY_SHAPES,
    LANES,
    WARP_LANES,
    accumulator_layout,
    copy_lanes,
    copy_rows,
    halves_of_lanes,
)
from numba_tma.host.zero_columns import zero_columns
from numba_tma.simulator.column_accesses import HALF_WARP, Region
from numba_tma.simulator.errors import (
    BadOperand,
    EarlyOverwrite,
    TensorMemoryMisuse,
    UninitializedRead,
)
from numba_tma.simulator.protocol import ByteSpan, Multiply
from numba_tma.simulator.tcgen05_descriptor import ProductShape, product_shape
from numba_tma.simulator.tcgen05_operands import (
    Place,
    check_swizzle,
    decompressed,
    has_gaps,
    in_shared,
)
from numba_tma.simulator.tcgen05_products import (
    MatrixProduct,
    column_shift,
    scales_at,
)
from numba_tma.simulator.tcgen05_queue import queue_of
from numba_tma.simulator.tcgen05_sparse import check_sparse
from numba_tma.simulator.thread import SimulatedThread, current

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.tensor_memory import CtaTensorMemory

#: Columns that a tcgen05.shift moves: 32 bytes.
_SHIFTED_COLUMNS = 8
#: Bits of an element, by the format of a copy that decompresses.
_COMPRESSED = {"b8x16.b6x16_p32": 6, "b8x16.b4x16_p64": 4}
#: The most bytes of a row in a swizzled operand.
_ROW_BYTES = 128


def tcgen05_mma(
    kind: str,
    d: int,
    a: int,
    b: int,
    idesc: int,
    enable: bool,
    *,
    a_in_tmem: bool,
    cta_group: int,
    mask: Sequence[int] | None = None,
    scale_d: int | None = None,
    sparse_metadata: int | None = None,
    scale_a: int | None = None,
    scale_b: int | None = None,
    block: str | None = None,
    ws: bool = False,
    zero_mask: int | None = None,
    collector: str | None = None,
) -> None:
    """Start a product.

    `collector` is what the row has: an operation on the buffer of A, or of .ws ``b2::fill``.
    """
    scheduler, what = current().cta.scheduler, f"tcgen05_mma kind::{kind}"
    shape = product_shape(kind, int(idesc), cta_group, ws=ws, block=block)
    says = shape.says
    if says.sparse != (sparse_metadata is not None):
        said = "a sparse A" if says.sparse else "a dense A"
        raise BadOperand(
            f"{what}: idesc {int(idesc):#010x} says {said}, and the instruction is for the other: "
            "sparse products are those of the _sp rows"
        )
    layout = accumulator_layout(says.m, cta_group, ws=ws, sparse=says.sparse)
    if sparse_metadata is not None:
        check_sparse(what, layout, says.a, int(sparse_metadata), says.selector)
    blocks = _blocks(what, cta_group)
    _check_forms(what, shape, ws, cta_group, mask, scale_d, zero_mask)
    d = int(d)
    _check_lane(what, "the accumulator", d, layout)
    operand: Place | int = int(a)
    if a_in_tmem:
        if says.a_major != "K":
            raise BadOperand(
                f"{what}: A in tensor memory is K-major; clear bit 15 of the descriptor"
            )
        _check_lane(what, "A", int(a), layout)
        if (int(a) >> 16) != (d >> 16):
            raise TensorMemoryMisuse(
                f"{what}: A begins at lane {int(a) >> 16} and the accumulator at lane {d >> 16}; "
                "row m of A is in the lane of row m of the accumulator: use one half for both"
            )
    else:
        rows = says.m // len(blocks)
        operand = in_shared(f"{what}, A", int(a), rows, says.a, says.a_major)
    steps = 2 if says.sparse else 1
    shift = column_shift(int(zero_mask or 0), says.m, says.max_shift)
    right = in_shared(
        f"{what}, B", int(b), says.n // len(blocks), says.b, says.b_major, shift, steps
    )
    product = MatrixProduct(
        kind, shape, layout, blocks, d, operand, right, bool(enable),
        scale_d=int(scale_d or 0), lane_mask=tuple(int(word) & 0xFFFFFFFF for word in mask or ()),
        zero_columns=None if zero_mask is None else _zero_columns(int(zero_mask), says),
        metadata=None if sparse_metadata is None else int(sparse_metadata),
        scale_a=int(scale_a or 0), scale_b=int(scale_b or 0), collector=_collector(collector, ws),
    )  # fmt: skip
    for number, cta in enumerate(blocks):
        if isinstance(operand, Place):
            check_swizzle(f"{what}, A", cta, operand, int(a))
        check_swizzle(f"{what}, B", cta, right, int(b))
        _check_written(what, cta.tensor_memory, product, number)
    sources = [] if isinstance(operand, int) else [(operand, has_gaps(says.a, kind))]
    sources.append((right, has_gaps(says.b, kind)))
    regions = product.accumulator_regions
    reads = product.operand_regions + (regions if product.accumulate else [])
    _start(what, cta_group, blocks, sources, reads, regions, product.execute)
    for number, cta in enumerate(blocks):
        cta.tensor_memory.written[product.cells(number)] |= product.changes(number)
    scheduler.point()


def _zero_columns(mask: int, says: InstructionDescriptor) -> NDArray[np.bool_] | None:
    """Return the columns of the product for which a mask makes B zero."""
    try:
        return zero_columns(mask, says.m, says.n)
    except ValueError as error:
        raise BadOperand(f"tcgen05_mma: {error}") from None


def _collector(given: str | None, ws: bool) -> tuple[str, str]:
    """Return the buffer of an operand, and the operation on it."""
    buffer, _, operation = (given or "discard").rpartition("::")
    return buffer or ("b0" if ws else "a"), operation


def _check_forms(
    what: str,
    shape: ProductShape,
    ws: bool,
    cta_group: int,
    mask: Sequence[int] | None,
    scale_d: int | None,
    zero_mask: int | None,
) -> None:
    """Raise unless the optional operands go with the form."""
    if ws and (shape.scales or mask is not None or scale_d is not None or cta_group == 2):
        raise BadOperand(
            f"{what}: the .ws form takes no scale factors, no mask of lanes, no scale_d and no "
            "cta_group 2"
        )
    if zero_mask is not None and not ws:
        raise BadOperand(f"{what}: a zero-column mask goes with the .ws form alone")
    if mask is not None and len(mask) != 4 * cta_group:
        raise BadOperand(
            f"{what}: the mask of lanes has {len(mask)} words; with cta_group {cta_group} it has "
            f"{4 * cta_group}, one for each 32 lanes"
        )
    if scale_d is not None:
        if not what.endswith(("f16", "tf32")) or not 0 <= int(scale_d) <= 15:
            raise BadOperand(
                f"{what}: scale_d is {scale_d}; it is 0 to 15, for kind::f16 and kind::tf32"
            )


def _check_lane(what: str, name: str, address: int, layout: str) -> None:
    """Raise unless a matrix begins at a lane that its layout allows."""
    lane = address >> 16
    legal = (0, HALF_WARP) if halves_of_lanes(layout) else (0,)
    if lane not in legal:
        raise TensorMemoryMisuse(
            f"{what}: {name} begins at lane {lane} (address {address:#x}); in layout {layout} it "
            f"begins at lane {' or '.join(map(str, legal))}: use the address of the allocation"
        )


def _check_written(
    what: str,
    memory: CtaTensorMemory,
    product: MatrixProduct,
    number: int,
) -> None:
    """Raise if the product reads cells of tensor memory that nothing has written."""
    for region in product.accumulator_regions + product.operand_regions:
        memory.check_allocated(current(), what, region)
    written = memory.written[product.cells(number)] | ~product.changes(number)
    if product.accumulate and not written.all():
        raise UninitializedRead(
            f"{product.accumulator_regions[0].describe()}: {what} adds to an accumulator that was "
            "never written: the first product of a tile has a false enable-input-d"
        )
    shape = product.shape
    says = shape.says
    for name, address, rows, first in (
        ("A", product.scale_a, product.rows, says.scale_a_id),
        ("B", product.scale_b, says.n, says.scale_b_id),
    ):
        if not shape.scales:
            continue
        at = scales_at(rows, shape.scales, first)
        columns = at.column + (address & 0xFFFF)
        copies = [memory.written[at.lane + lane, columns] for lane in range(0, LANES, WARP_LANES)]
        if not np.all(copies):
            raise UninitializedRead(
                f"tensor memory, columns {columns.min()} to {columns.max()}: {what} reads scale "
                f"factors of {name} there that were never copied: execute tcgen05_cp with "
                "32x128b.warpx4, which writes all four groups of 32 lanes, before the product"
            )
    for region in product.metadata_regions:
        if not memory.written[region.lanes, region.columns].all():
            raise UninitializedRead(
                f"{region.describe()}: {what} reads the metadata of a sparse A there, before all "
                "of them were written"
            )
    for region in product.left_regions:
        if not memory.written[region.lanes, region.columns].all():
            raise UninitializedRead(
                f"{region.describe()}: {what} reads A there, before all of it was written"
            )


def tcgen05_cp(shape: str, taddr: int, sdesc: int, cta_group: int, fmt: str | None = None) -> None:
    """Start to copy a matrix from shared to tensor memory; with cta_group 2, in both blocks.

    With `fmt` each element of 4 or 6 bits gets a byte.
    """
    scheduler, what = current().cta.scheduler, f"tcgen05_cp {shape}"
    if shape not in COPY_SHAPES:
        raise BadOperand(f"{what}: the shapes are {', '.join(COPY_SHAPES)}")
    bits = _COMPRESSED.get(str(fmt))
    if fmt is not None and bits is None:
        raise BadOperand(f"{what}.{fmt}: the formats are {', '.join(_COMPRESSED)}")
    rows, nbytes = copy_rows(shape)
    whole = in_shared(what, int(sdesc), rows, "u8", "K")
    source = whole if nbytes == 32 else _first_chunks(whole)
    lane, column = int(taddr) >> 16, int(taddr) & 0xFFFF
    lanes = copy_lanes(shape) + lane
    if lanes.max() >= LANES or (lane and shape != "4x256b"):
        raise TensorMemoryMisuse(
            f"{what}: the address begins at lane {lane}, and the rows reach lane {lanes.max()}; "
            + ("use lane 0 to 31" if shape == "4x256b" else "use lane 0")
        )
    columns = column + np.arange(nbytes // 4)
    blocks = _blocks(what, cta_group)
    for cta in blocks:
        check_swizzle(what, cta, source, int(sdesc))

    def execute() -> None:
        for cta in blocks:
            image = np.ascontiguousarray(cta.memory.data[source.addresses])
            if bits is not None:
                image = decompressed(image, bits)
            cta.tensor_memory.data[lanes[..., None], columns] = image.view(np.uint32)

    region = Region(slice(lane, int(lanes.max()) + 1), slice(column, column + len(columns)))
    _start(what, cta_group, blocks, [(source, bits is not None)], [], [region], execute)
    for cta in blocks:
        cta.tensor_memory.written[lanes[..., None], columns] = True
    scheduler.point()


def _first_chunks(place: Place) -> Place:
    """Return the first 16 bytes of each row."""
    addresses = place.addresses[:, :16]
    return Place(addresses, tuple((int(first), 16) for first in addresses[:, 0]))


def tcgen05_shift(taddr: int, cta_group: int) -> None:
    """Start to move 8 columns by one lane: a lane gets what the next has, up to its group of 32.

    The direction is inferred: the documentation calls it down, and shows it in a figure.
    """
    what = "tcgen05_shift"
    lane, column = int(taddr) >> 16, int(taddr) & 0xFFFF
    if lane % WARP_LANES or lane >= LANES:
        raise TensorMemoryMisuse(f"{what}: the address begins at lane {lane}; use 0, 32, 64 or 96")
    columns = slice(column, column + _SHIFTED_COLUMNS)
    region = Region(slice(lane, LANES), columns)
    blocks = _blocks(what, cta_group)
    for cta in blocks:
        if not cta.tensor_memory.written[region.lanes, columns].all():
            raise UninitializedRead(f"{region.describe()}: {what} moves cells never written")

    def execute() -> None:
        for cta in blocks:
            part = cta.tensor_memory.data[region.lanes, columns]
            groups = part.reshape(-1, WARP_LANES, _SHIFTED_COLUMNS)
            groups[:, :-1] = groups[:, 1:].copy()

    _start(what, cta_group, blocks, [], [region], [region], execute)
    current().cta.scheduler.point()


def _blocks(what: str, cta_group: int) -> tuple[Cta, ...]:
    """Return the calling thread's block, or both blocks of its pair."""
    cta = current().cta
    if cta_group == 1:
        return (cta,)
    if len(cta.cluster) % 2:
        raise BadOperand(
            f"{what} with cta_group 2 is for pairs of blocks, and the cluster has "
            f"{len(cta.cluster)}: use @tma.cluster with an even number"
        )
    first = cta.rank & ~1
    return tuple(cta.cluster[first : first + 2])


def _start(
    what: str,
    cta_group: int,
    blocks: Sequence[Cta],
    sources: Sequence[tuple[Place, bool]],
    reads: list[Region],
    writes: list[Region],
    execute: Callable[[], None],
) -> None:
    """Check an operation in each block, record it, and put it into the thread's queue.

    A thread that knows an allocation in the other block knows that the block has started.
    The caller then marks the cells that it writes, and lets other threads run. A source is the
    bytes in shared memory, and whether not all of them hold data.
    """
    thread = current()
    for cta in blocks:
        cta.tensor_memory.check_group(what, cta_group)
        _check_cells(thread, what, cta.tensor_memory, reads, writes)
    queue = queue_of(thread)
    number = queue.issued + 1
    for cta in blocks:
        for place, gaps in sources:
            for address, nbytes in place.runs:
                cta.memory.check_range(f"{what}, operand in shared memory", address, nbytes)
                cta.hazards.matrix_read(thread, address, nbytes, queue, number, every_byte=not gaps)
        cta.tensor_memory.matrix.record(queue, number, reads, writes)
    if thread.log is not None:
        read = [(cta, *run) for cta in blocks for place, _ in sources for run in _merged(place)]
        for cta, address, nbytes in read:
            thread.log.read(cta, address, nbytes)
        spans = [ByteSpan(cta.rank, address, address + nbytes) for cta, address, nbytes in read]
        thread.note(Multiply, queue.commits + 1, tuple(spans))
    scheduler = thread.cta.scheduler
    scheduler.start_copy(queue.issue(what, execute))


def _merged(place: Place) -> list[tuple[int, int]]:
    """Return the runs of an operand, of which those of adjacent rows are one."""
    merged: list[tuple[int, int]] = []
    for address, nbytes in place.runs:
        if merged and address - sum(merged[-1]) < _ROW_BYTES:
            address, nbytes = merged[-1][0], address + nbytes - merged.pop()[0]
        merged.append((address, nbytes))
    return merged


def _check_cells(
    thread: SimulatedThread,
    what: str,
    memory: CtaTensorMemory,
    reads: list[Region],
    writes: list[Region],
) -> None:
    """Raise unless the operations of other threads on these regions are ordered before."""
    queue = queue_of(thread)
    for region in (*reads, *writes):
        memory.check_allocated(thread, what, region)
    for region in reads:
        memory.check_load(thread, region, f"read by {what}", queue)
    for region in writes:
        for accesses in (memory.loads, memory.stores):
            accesses.check(thread, region, EarlyOverwrite, f"overwritten by {what}")
        memory.matrix.check(thread, region, EarlyOverwrite, f"overwritten by {what}", queue)
