"""The launches of a matmul whose arrays have been read and checked."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.tensor_map import TensorMap, tensor_map
from numba_tma.kernels._host.device import (
    fewest_in_same_waves,
    has_mma_alone,
    has_tcgen05,
    resident_clusters,
    sm_count,
)
from numba_tma.kernels._host.launch import Grid, launch
from numba_tma.kernels._host.workspace import float_workspace, zero_counters
from numba_tma.kernels.matmul.arguments import (
    REDUCTION_THREADS,
    Epilogue,
    MatmulExtents,
    MatrixBytes,
    ReductionExtents,
    Terms,
    UnalignedMatrix,
)
from numba_tma.kernels.matmul.choice import MatmulProblem, choose, choose_mma, choose_tcgen05
from numba_tma.kernels.matmul.operands import (
    LINE,
    MN_MAJOR,
    Workspace,
    as_loadable,
    as_one,
    as_operand,
    contiguous_axis,
    elements,
    is_one,
    loadable_axis,
    major_axis,
    map_source,
    padded,
)
from numba_tma.kernels.matmul.plan import (
    AnyConfig,
    Config,
    MatmulPlan,
    MmaConfig,
    StreamKConfig,
    SwappedConfig,
    SwappedPlan,
    Tcgen05Config,
    UnalignedConfig,
    accumulator_of,
)

if TYPE_CHECKING:
    from numba_tma.kernels.matmul.mma_plan import MmaPlan
    from numba_tma.kernels.matmul.scales import BlockScales
    from numba_tma.kernels.matmul.stream_k_plan import StreamK

_PAGES = "numba_tma.kernels.matmul."
matmul_kernel = shipped(_PAGES + "kernel", "matmul_kernel")
swapped_kernel = shipped(_PAGES + "swapped_kernel", "swapped_kernel")
stream_k_kernel = shipped(_PAGES + "stream_k_kernel", "stream_k_kernel")
split_k_kernel = shipped(_PAGES + "epilogue", "split_k_kernel")
unaligned_kernel = shipped(_PAGES + "unaligned_kernel", "unaligned_kernel")
mma_kernel = shipped(_PAGES + "mma_kernel", "mma_kernel")
tcgen05_kernel = shipped(_PAGES + "tcgen05_kernel", "tcgen05_kernel")
tcgen05_pair_kernel = shipped(_PAGES + "tcgen05_pair_kernel", "tcgen05_pair_kernel")
tcgen05_scaled_kernel = shipped(_PAGES + "tcgen05_scaled_kernel", "tcgen05_scaled_kernel")

P = TypeVar("P", bound=MatmulPlan)


@dataclass
class MatmulCall:
    """A matmul whose arrays fit each other, each (batch, rows, columns); b is (batch, K, N)."""

    a: Array
    b: Array
    out: Array
    residual: Array | None
    epilogue: Epilogue
    terms: Terms
    scales: BlockScales | None = None

    def __post_init__(self) -> None:
        rest = self.out if self.residual is None else self.residual
        batch, rows, _ = self.out.shape
        same = all(is_one(m) and m.shape[0] == batch for m in (self.a, self.out, rest))
        whole = self.scales is None or self.scales.have_whole_atoms(rows)
        if same and whole and self.b.shape[0] == 1:
            # One matrix with all rows has fuller tiles than many with a few.
            self.a, self.out = as_one(self.a), as_one(self.out)
            self.residual = None if self.residual is None else as_one(rest)

    @property
    def operand_types(self) -> tuple[DType, DType]:
        """The types as which the tensor cores read a and b."""
        if self.scales is not None:
            return self.scales.operand_types
        return operand_type(self.a), operand_type(self.b)

    @property
    def problem(self) -> MatmulProblem:
        """What the choice of a configuration depends on."""
        batch, rows, columns = self.out.shape
        factors = self.a, self.b.transposed()
        loaded = [loadable_axis(factor) for factor in factors]
        return MatmulProblem(
            *(rows, columns, self.a.shape[2], batch, self.a.itemsize, self.out.itemsize),
            splittable=accumulator_of(self.a.dtype).is_float,
            split_lines=(_splits_lines(loaded[0]), _splits_lines(loaded[1])),
            copied=tuple(m.nbytes for m, found in zip(factors, loaded) if not found and m.size),
            majors=(major_axis(factors[0]), major_axis(factors[1])),
        )

    def __str__(self) -> str:
        operands = " x ".join(_layout(m) for m in (self.a, self.b.transposed()))
        steps = [f.name for f in dataclasses.fields(Epilogue) if getattr(self.epilogue, f.name)]
        scaled = "" if self.scales is None else f" scaled by {self.scales.factors}"
        done = " ".join(steps) or "plain"
        return f"{operands}{scaled} -> {_layout(self.out)}, {self.problem}, {done}"


def _splits_lines(loaded: tuple[Array, str] | None) -> bool:
    """Return whether rows of an operand that TMA loads begin inside of 128-byte lines."""
    return loaded is not None and loaded[0].strides[1] % LINE > 0


def _layout(matrices: Array) -> str:
    """Return element type and major axis, and whether TMA needs a copy."""
    major = "K" if matrices.has_contiguous_rows else "MN"
    along = matrices if major == "K" else matrices.transposed()
    return f"{matrices.dtype} {major}{'' if along.is_loadable else ' copied'}"


def operand_type(operand: Array) -> DType:
    """Return the type as which the tensor cores read an operand: TMA rounds f32 to tf32."""
    return as_dtype("tf32") if operand.dtype.name == "f32" else operand.dtype


def run(call: MatmulCall, config: AnyConfig | None, stream: StreamLike) -> Workspace:
    """Launch a matmul that is not empty, and return its workspace."""
    out, residual, k = call.out, call.residual, call.a.shape[2]
    workspace: Workspace = []
    if config is None:
        config = _choice(call)
    if isinstance(config, UnalignedConfig):
        _multiply_unaligned(call, config, stream)
        return workspace
    mn_major = _mn_major(config)
    a, a_major = as_operand(call.a, stream, workspace, mn_major)
    b, b_major = as_operand(call.b.transposed(), stream, workspace, mn_major)
    if isinstance(config, MmaConfig):
        _multiply_mma(call, config, a, b, a_major, b_major, stream)
        return workspace
    if isinstance(config, Tcgen05Config):
        _multiply_tcgen05(call, config, a, b, a_major, b_major, stream, workspace)
        return workspace
    if isinstance(config, SwappedConfig):
        _multiply_swapped(call, config, a, b, a_major, b_major, stream)
        return workspace
    plan = MatmulPlan(
        *(operand_type(a), operand_type(b), a_major, b_major, out.dtype, config),
        *(call.epilogue, out.is_storable),
    )
    if config.splits == 1:
        old = as_loadable(out, stream, workspace) if plan.epilogue.beta else None
        added = None if residual is None else as_loadable(residual, stream, workspace)
        _multiply(plan, a, b, k, out, old, added, call.terms, stream, workspace)
        return workspace
    if plan.accumulator.name != "f32":
        raise ValueError(
            f"matmul(): config has splits={config.splits}, whose results are added up as float32, "
            "but sums of integers are exact: use splits=1"
        )
    parts = parts_of(out, config.splits, workspace)
    _multiply(part_plan(plan), a, b, k, parts, None, None, Terms(), stream, workspace)
    add_up(plan, parts, out, residual, call.terms, stream)
    return workspace


def _choice(call: MatmulCall) -> AnyConfig:
    """Return the configuration of the current device's kernel that is expected to be fastest."""
    problem, sms, scaled = call.problem, sm_count(), call.scales is not None
    if scaled or has_tcgen05():
        return choose_tcgen05(problem, sms, scaled)
    return choose_mma(problem, sms) if has_mma_alone() else choose(problem, sms)


def _mn_major(config: AnyConfig) -> tuple[str, ...]:
    """Return the types that the kernel of a configuration also reads along M or N.

    The rows of such a tile are at least the narrowest swizzle, 32 B.
    """
    if isinstance(config, Tcgen05Config) and config.n // config.cta_group % 32 == 0:
        return (*MN_MAJOR, "e4m3", "e5m2")
    return MN_MAJOR


def _multiply(
    plan: MatmulPlan,
    a: Array,
    b: Array,
    k: int,
    out: Array,
    old: Array | None,
    residual: Array | None,
    terms: Terms,
    stream: StreamLike,
    workspace: Workspace,
) -> None:
    """Launch the kernel of a plan on matrices that it reads as they are."""
    extents, blocks = grid_of(plan, a, b, k, out)
    division: tuple[StreamK, ...] = ()
    if isinstance(plan.config, StreamKConfig) and k > 0:  # a K of 0 has no stages to divide
        kernel = stream_k_kernel(plan)
        blocks, stream_k = _stream_k(plan, extents, workspace)
        division = (stream_k,)
    else:
        kernel = matmul_kernel(plan.of_any_splits)
    launch(
        kernel,
        blocks,
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_copy, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_copy, dtype=plan.b),
        target(plan, out),
        *(0 if m is None else tensor_map(map_source(m), plan.source_tile) for m in (old, residual)),
        extents,
        terms,
        *division,
    )


def _stream_k(
    plan: MatmulPlan, extents: MatmulExtents, workspace: Workspace
) -> tuple[int, StreamK]:
    """Return the blocks of a stream-K kernel and how they divide the tiles.

    The slots and flags by which they hand over sums are added to the workspace.
    """
    from numba_tma.kernels.matmul.stream_k_plan import StreamK, divide, slot_nbytes

    cluster = plan.config.cluster
    tiles = extents.tile_rows // cluster * extents.tile_columns * extents.batch
    division = divide(tiles, extents.steps, resident_clusters(cluster, 1))
    slots = division.clusters * cluster * plan.warpgroups
    spaces = [float_workspace(slots, slot_nbytes(plan) // 4), zero_counters(4 * slots)]
    workspace.extend(spaces)
    memory = (Array.read("workspace", "sums", space).address for space in spaces)
    return division.clusters * cluster, StreamK(*division[1:], *memory)


def _multiply_tcgen05(
    call: MatmulCall,
    config: Tcgen05Config,
    a: Array,
    b: Array,
    a_major: str,
    b_major: str,
    stream: StreamLike,
    workspace: Workspace,
) -> None:
    """Launch the kernel of Blackwell's tensor cores on operands that it reads as they are."""
    # Here and below, because the plans of other GPUs take longer to import than a launch does.
    from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05Plan, Tcgen05ScaledPlan

    out, residual, epilogue = call.out, call.residual, call.epilogue
    k, group = elements(call.a), config.cta_group
    described = (
        *(*call.operand_types, a_major, b_major, out.dtype, config),
        *(epilogue, out.is_storable, k == 0),
    )
    if call.scales is None:
        plan = Tcgen05Plan(*described)
        kernel = tcgen05_kernel(plan) if group == 1 else tcgen05_pair_kernel(plan)
        scale_maps = []
    else:
        scaled = Tcgen05ScaledPlan(*described, factors=call.scales.factors)
        plan, kernel = scaled, tcgen05_scaled_kernel(scaled)
        sources = call.scales.as_map_sources(stream, workspace)
        scale_maps = [tensor_map(*of) for of in zip(sources, plan.scale_tiles)]
    batch, rows, columns = out.shape
    tiles = -(-rows // plan.rows), -(-columns // config.n)
    clusters = math.prod(tiles) * batch
    if config.scheduler == "static":
        clusters = fewest_in_same_waves(clusters, resident_clusters(group, 1))
    launch(
        kernel,
        clusters * group,
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_tile, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_tile, dtype=plan.b),
        *scale_maps,
        tensor_map(map_source(out), plan.out_tile) if plan.addressable else _bytes(out),
        *(_bytes(m) for m in (out if epilogue.beta else None, residual)),
        _extents(tiles, a, b, -(-k // plan.k), out),
        call.terms,
    )


def _multiply_mma(
    call: MatmulCall,
    config: MmaConfig,
    a: Array,
    b: Array,
    a_major: str,
    b_major: str,
    stream: StreamLike,
) -> None:
    """Launch the kernel by mma.sync on operands that it reads as they are."""
    from numba_tma.kernels.matmul.mma_plan import MmaPlan

    out, residual, epilogue = call.out, call.residual, call.epilogue
    plan = MmaPlan(
        *(operand_type(a), operand_type(b), a_major, b_major, out.dtype, config),
        *(epilogue, out.is_storable),
    )
    batch, rows, columns = out.shape
    tiles = -(-rows // config.m), -(-columns // config.n)
    launch(
        mma_kernel(plan),
        fewest_in_same_waves(math.prod(tiles) * batch, sm_count()),
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_tile, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_tile, dtype=plan.b),
        target(plan, out),
        *(_bytes(m) for m in (out if epilogue.beta else None, residual)),
        _extents(tiles, a, b, -(-call.a.shape[2] // plan.k), out),
        call.terms,
    )


def _multiply_swapped(
    call: MatmulCall,
    config: SwappedConfig,
    a: Array,
    b: Array,
    a_major: str,
    b_major: str,
    stream: StreamLike,
) -> None:
    """Launch the kernel with swapped operands on operands that it reads as they are."""
    if not accumulator_of(a.dtype).is_float:
        raise ValueError(
            f"matmul(): config is {config}, whose kernel adds up float32, but a is {a.dtype} and "
            "sums of integers are exact: use a Config"
        )
    out, residual, epilogue = call.out, call.residual, call.epilogue
    plan = SwappedPlan(
        operand_type(a), operand_type(b), a_major, b_major, out.dtype, config, epilogue
    )
    batch, rows, columns = out.shape
    tiles = -(-rows // plan.rows), -(-columns // plan.columns)
    extents = _extents(tiles, a, b, -(-call.a.shape[2] // plan.k), out)
    blocks = math.prod(tiles) * batch * config.cluster
    if config.cluster == 1:
        blocks = min(blocks, sm_count() * config.blocks)
    launch(
        swapped_kernel(plan),
        blocks,
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_tile, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_tile, dtype=plan.b),
        _elements(out if config.first == "a" else out.transposed()),
        *(_bytes(m) for m in (out if epilogue.beta else None, residual)),
        extents,
        call.terms,
    )


def _multiply_unaligned(call: MatmulCall, config: UnalignedConfig, stream: StreamLike) -> None:
    """Launch the kernel that reads operands wherever their rows begin."""
    from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

    (a, a_major), (b, b_major) = map(contiguous_axis, (call.a, call.b.transposed()))
    out, residual, epilogue = call.out, call.residual, call.epilogue
    plan = UnalignedPlan(
        operand_type(a), operand_type(b), a_major, b_major, out.dtype, config, epilogue
    )
    batch, rows, columns = out.shape
    tiles = -(-rows // plan.rows), -(-columns // plan.columns)
    blocks = math.prod(tiles) * batch * config.cluster
    if config.cluster == 1:
        blocks = min(blocks, sm_count() * plan.blocks)
    launch(
        unaligned_kernel(plan),
        blocks,
        plan.threads,
        stream,
        *map(_unaligned, (a, b)),
        _elements(out if config.first == "a" else out.transposed()),
        *(_bytes(m) for m in (out if epilogue.beta else None, residual)),
        _extents(tiles, a, b, -(-call.a.shape[2] // plan.k), out),
        call.terms,
    )


def _unaligned(operand: Array) -> UnalignedMatrix:
    (batch, lines, columns), (each, line, _) = operand.shape, operand.strides
    last = (batch - 1) * each + (lines - 1) * line + columns * operand.itemsize
    end = operand.address + (last if operand.size else 0)
    return UnalignedMatrix(operand.address, end, each * (batch > 1), line, lines, columns)


# --------------------------------------------------------------------------------- split-K


def part_plan(plan: P) -> P:
    """Return the plan of the kernel that computes parts of the sums, which `add_up` finishes."""
    return dataclasses.replace(plan, out=plan.accumulator, epilogue=Epilogue(), addressable=True)


def parts_of(out: Array, splits: int, workspace: Workspace) -> Array:
    """Return memory for the parts of a result, with rows of whole 16-byte chunks."""
    batch, rows, columns = out.shape
    return padded((batch * splits, rows, -(-columns // 4) * 4), as_dtype("f32"), workspace)


def add_up(
    plan: MatmulPlan,
    parts: Array,
    out: Array,
    residual: Array | None,
    terms: Terms,
    stream: StreamLike,
) -> None:
    """Launch the kernel that adds up parts and applies the plan's epilogue."""
    batch, rows, columns = out.shape
    launch(
        split_k_kernel(plan.epilogue, out.dtype),
        -(-out.size // REDUCTION_THREADS),
        REDUCTION_THREADS,
        stream,
        *map(_bytes, (parts, out, residual)),
        ReductionExtents(batch, rows, columns, plan.config.splits),
        terms,
        pdl=True,
    )


def _bytes(matrices: Array | None) -> MatrixBytes:
    if matrices is None:
        return MatrixBytes(0, 0, 0)
    return MatrixBytes(matrices.as_bytes(), *matrices.strides[:2])


# ------------------------------------------------------------------------ a kernel's arguments


def grid_of(
    plan: MatmulPlan, a: Array, b: Array, k: int, out: Array
) -> tuple[MatmulExtents, Grid]:
    """Return the extents of a matmul in tiles, and the grid of blocks that computes them."""
    config: Config = plan.config
    batch, rows, columns = out.shape
    tile_rows, tile_columns = -(-rows // config.m), -(-columns // config.n)
    down, right = -(-tile_rows // config.cluster), -(-tile_columns // config.across)
    tiles = down * config.cluster, right * config.across
    extents = _extents(tiles, a, b, -(-k // plan.k), out, config.splits)
    at_once = fewest_in_same_waves(down * right * batch, resident_clusters(config.blocks, 1))
    blocks = at_once * config.cluster
    return extents, blocks if config.across == 1 else (blocks, config.across)


def _extents(
    tiles: tuple[int, int], a: Array, b: Array, steps: int, out: Array, splits: int = 1
) -> MatmulExtents:
    batch, rows, columns = out.shape
    return MatmulExtents(
        rows=rows,
        columns=columns,
        tile_rows=tiles[0],
        tile_columns=tiles[1],
        batch=batch,
        steps=steps,
        a_stride=int(a.shape[0] > 1),
        b_stride=int(b.shape[0] > 1),
        splits=splits,
    )


def target(plan: MatmulPlan | MmaPlan, out: Array) -> TensorMap | DeviceArray:
    """Return the result as the kernel takes it: a map, or an array that threads write to."""
    if plan.addressable:
        return tensor_map(map_source(out), plan.out_tile)
    return _elements(out)


def _elements(out: Array) -> DeviceArray:
    """Return the array that threads write to: of f32, or of the bits that they load."""
    bits = as_dtype(f"u{8 * out.itemsize}")
    return out.as_dtype(out.dtype if out.dtype.name == "f32" else bits).as_argument()
