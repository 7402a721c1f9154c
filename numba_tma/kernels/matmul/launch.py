"""From the arrays of a matmul to its launches."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import (
    in_even_rounds,
    launch,
    multiprocessors,
    resident_clusters,
)
from numba_tma.kernels.matmul.choice import MatmulProblem, choose
from numba_tma.kernels.matmul.epilogue import (
    REDUCTION_THREADS,
    Epilogue,
    MatrixBytes,
    ReductionExtents,
    Terms,
    split_k_kernel,
)
from numba_tma.kernels.matmul.kernel import MatmulExtents, matmul_kernel
from numba_tma.kernels.matmul.operands import Matrices, as_factor, as_readable, padded
from numba_tma.kernels.matmul.plan import (
    AnyConfig,
    MatmulPlan,
    SwappedConfig,
    SwappedPlan,
    accumulator_of,
)
from numba_tma.kernels.matmul.swapped_kernel import swapped_kernel

F = TypeVar("F", bound=MatmulPlan)


@dataclass
class MatmulCall:
    """A matmul whose arrays fit each other: b is (batch, K, N), and `residual` may be None."""

    a: Matrices
    b: Matrices
    out: Matrices
    residual: Matrices | None
    epilogue: Epilogue
    terms: Terms

    def __post_init__(self) -> None:
        rest = self.out if self.residual is None else self.residual
        together = (self.a, self.out, rest)
        same = all(m.is_one and m.batch == self.out.batch for m in together)
        if same and self.b.batch == 1:
            # One matrix with all rows has fuller tiles than many with a few.
            self.a, self.out = self.a.as_one(), self.out.as_one()
            self.residual = self.residual and rest.as_one()

    @property
    def problem(self) -> MatmulProblem:
        """What the choice of a configuration depends on."""
        out, size = self.out, self.a.dtype.itemsize
        extents = out.rows, out.columns, self.a.columns, out.batch
        return MatmulProblem(
            *extents, size, out.dtype.itemsize, accumulator_of(self.a.dtype).is_float
        )

    def __str__(self) -> str:
        factors = " x ".join(_lies(m) for m in (self.a, self.b.transposed))
        steps = [f.name for f in dataclasses.fields(Epilogue) if getattr(self.epilogue, f.name)]
        return f"{factors} -> {_lies(self.out)}, {self.problem}, {' '.join(steps) or 'plain'}"


def _lies(matrices: Matrices) -> str:
    """Say what matrices hold, along what they are contiguous, and if TMA reads them."""
    along = matrices if matrices.has_rows else matrices.transposed
    major = "K" if matrices.has_rows else "MN"
    return f"{matrices.dtype} {major}{'' if along.is_readable else ' copied'}"


def factor_type(matrices: Matrices) -> DType:
    """Return the type as which the tensor cores take a factor: copies round f32 to tf32."""
    return as_dtype("tf32") if matrices.dtype.name == "f32" else matrices.dtype


def run(product: MatmulCall, config: AnyConfig | None, stream: Any) -> list[Any]:
    """Launch a product that is not empty, and return the memory that it needs besides."""
    a, out, residual = product.a, product.out, product.residual
    kept: list[Any] = []
    left, a_major = as_factor(a, stream, kept)
    right, b_major = as_factor(product.b.transposed, stream, kept)
    config = config or choose(product.problem, multiprocessors())
    if isinstance(config, SwappedConfig):
        _multiply_swapped(product, config, left, right, a_major, b_major, stream)
        return kept
    form = MatmulPlan(
        *(factor_type(left), factor_type(right), a_major, b_major, out.dtype, config),
        *(product.epilogue, out.is_writable),
    )
    if config.splits == 1:
        old = as_readable(out, stream, kept) if form.epilogue.beta else None
        added = as_readable(residual, stream, kept) if residual else None
        _multiply(form, left, right, a.columns, out, old, added, product.terms, stream)
        return kept
    if form.accumulator.name != "f32":
        raise ValueError(
            f"matmul(): config has splits={config.splits}, whose results are added up as float32, "
            "but sums of integers are exact: use splits=1"
        )
    parts = parts_of(out, config.splits, kept)
    plain = in_parts(form)
    _multiply(plain, left, right, a.columns, parts, None, None, Terms(), stream)
    add_up(form, parts, out, residual, product.terms, stream)
    return kept


def in_parts(form: F) -> F:
    """Return the form that computes parts of the sums of K, which `add_up` finishes."""
    return dataclasses.replace(form, out=form.accumulator, epilogue=Epilogue(), addressable=True)


def parts_of(out: Matrices, splits: int, kept: list[Any]) -> Matrices:
    """Return memory for the parts of a result; it is added to `kept`."""
    whole = -(-out.columns // 4) * 4  # so that TMA writes all of it
    parts = padded("parts", (out.batch * splits, out.rows, whole), as_dtype("f32"))
    kept.append(parts.array)
    return parts


def add_up(
    form: MatmulPlan,
    parts: Matrices,
    out: Matrices,
    residual: Matrices | None,
    terms: Terms,
    stream: Any,
) -> None:
    """Launch the kernel that adds up parts, and does what the form's epilogue says."""
    launch(
        split_k_kernel(form.epilogue, out.dtype),
        -(-out.batch * out.rows * out.columns // REDUCTION_THREADS),
        REDUCTION_THREADS,
        stream,
        *(_rows(m) if m else MatrixBytes(0, 0, 0) for m in (parts, out, residual)),
        ReductionExtents(out.batch, out.rows, out.columns, form.config.splits),
        terms,
        pdl=True,
    )


def _rows(matrices: Matrices) -> MatrixBytes:
    return MatrixBytes(matrices.span(), *matrices.steps[:2])


def _multiply(
    form: MatmulPlan,
    a: Matrices,
    b: Matrices,
    k: int,
    out: Matrices,
    old: Matrices | None,
    residual: Matrices | None,
    terms: Terms,
    stream: Any,
) -> None:
    """Launch the kernel of a form on matrices that it reads as they are."""
    sizes, blocks = cut(form, a, b, k, out)
    launch(
        matmul_kernel(form.of_any_splits),
        blocks,
        form.roles.threads,
        stream,
        tensor_map(a.view(form.a), form.a_tile, dtype=form.a),
        tensor_map(b.view(form.b), form.b_copy, dtype=form.b),
        target(form, out),
        *(tensor_map(m.view(), form.source_tile) if m else 0 for m in (old, residual)),
        sizes,
        terms,
    )


def _multiply_swapped(
    product: MatmulCall,
    config: SwappedConfig,
    a: Matrices,
    b: Matrices,
    a_major: str,
    b_major: str,
    stream: Any,
) -> None:
    """Launch the kernel whose factors change places on factors that it reads as they are."""
    if not accumulator_of(a.dtype).is_float:
        raise ValueError(
            f"matmul(): config is {config}, whose kernel adds up float32, but a is {a.dtype} and "
            "sums of integers are exact: use a Config"
        )
    out, residual, epilogue = product.out, product.residual, product.epilogue
    if a_major == "MN":  # of which the narrowest swizzle has 16
        config = dataclasses.replace(config, n=-(-config.n // 16) * 16)
    form = SwappedPlan(
        factor_type(a), factor_type(b), a_major, b_major, out.dtype, config, epilogue
    )
    tiles = -(-out.rows // config.n), -(-out.columns // config.m)
    sizes = _sizes(tiles, a, b, -(-product.a.columns // form.k), out)
    blocks = math.prod(tiles) * out.batch * config.cluster
    if config.cluster == 1:
        blocks = min(blocks, multiprocessors() * config.blocks)
    old = out if epilogue.beta else None
    launch(
        swapped_kernel(form),
        blocks,
        form.roles.threads,
        stream,
        tensor_map(a.view(form.a), form.a_tile, dtype=form.a),
        tensor_map(b.view(form.b), form.b_tile, dtype=form.b),
        _elements(out.transposed),
        *(_rows(m) if m else MatrixBytes(0, 0, 0) for m in (old, residual)),
        sizes,
        product.terms,
    )


def cut(
    form: MatmulPlan, a: Matrices, b: Matrices, k: int, out: Matrices
) -> tuple[MatmulExtents, int]:
    """Return how a product is cut into tiles, and how many blocks work on them."""
    config = form.config
    tile_rows, tile_columns = -(-out.rows // config.m), -(-out.columns // config.n)
    cluster_rows = -(-tile_rows // config.cluster)
    clusters = cluster_rows * tile_columns * out.batch
    tiles = cluster_rows * config.cluster, tile_columns
    sizes = _sizes(tiles, a, b, -(-k // form.k), out, config.splits)
    at_once = in_even_rounds(clusters, resident_clusters(config.cluster, 1))
    return sizes, at_once * config.cluster


def _sizes(
    tiles: tuple[int, int], a: Matrices, b: Matrices, steps: int, out: Matrices, splits: int = 1
) -> MatmulExtents:
    """Return the extents that a kernel needs, of so many tiles along rows and columns."""
    return MatmulExtents(
        rows=out.rows,
        columns=out.columns,
        tile_rows=tiles[0],
        tile_columns=tiles[1],
        batch=out.batch,
        steps=steps,
        a_batch=int(a.batch > 1),
        b_batch=int(b.batch > 1),
        splits=splits,
    )


def target(form: MatmulPlan, out: Matrices) -> Any:
    """Return the result as the kernel takes it: a map, or an array that threads write to."""
    if form.addressable:
        return tensor_map(out.view(), form.out_tile)
    return _elements(out)


def _elements(out: Matrices) -> Any:
    """Return the array that threads write a result to, as bits where Numba lacks the type."""
    return out.array_of(as_dtype("u16") if out.dtype.itemsize == 2 else out.dtype)
