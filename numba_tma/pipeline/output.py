"""`OutputTilePipeline`: stages of accumulators, from the warps that multiply to the epilogue.

In shared memory the stages are a ring that threads fill. In tensor memory the stages are
columns, the ring has only barriers, and the tensor cores arrive.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

from numba_tma.backend.interface import constant_class, u32
from numba_tma.backend.primitives import allocate_shared
from numba_tma.device.tensor_columns import claim_columns
from numba_tma.device.tensor_memory import TensorMemory, allocate
from numba_tma.host.cluster_rules import check_group, pair_cluster
from numba_tma.host.debug import is_bounded
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.tensor_tiles import (
    COLUMNS,
    LANES,
    Accumulator,
    ColumnClaim,
    allocated_columns,
)
from numba_tma.pipeline.output_handle import (
    OutputConsumer,
    OutputProducer,
    OutputTilePipelineHandle,
    check_target,
)
from numba_tma.pipeline.roles import WARP, Role
from numba_tma.pipeline.stage_layout import positive
from numba_tma.pipeline.tile import TilePipeline
from numba_tma.ptx import (
    cluster_ctarank,
    laneid,
    ld_shared_u32,
    tcgen05_commit,
    tcgen05_fence_after_thread_sync,
    tcgen05_fence_before_thread_sync,
)

#: Warps that together access all lanes: warp w accesses the 32 lanes from 32 (w mod 4) on.
WARPS_OF_LANES = LANES // WARP


@dataclass(frozen=True)
class OutputTilePipeline:
    """A ring of `num_stages` accumulators, which the role `mma` fills and `epilogue` releases.

    Made on the host, used from a kernel's globals.

    Parameters
    ----------
    num_stages
        Accumulators, at least 1. With 2 the next product begins while the epilogue works on the
        previous one.
    acc
        One accumulator. In tensor memory: 128 lanes x columns of 32 bits, one element each.
    mma, epilogue
        Two different roles of the kernel's `Roles`.
    memory
        ``"shared"``: the threads of `mma` write ``stage.acc`` in shared memory. ``"tensor"``, only
        on sm_100a: the tensor cores write tensor memory at ``stage.address``.
    stage_stride_cols
        Columns from one stage to the next in tensor memory; by default those of `acc`.
    extra_columns
        Columns behind the stages in tensor memory, for operands and scale factors:
        ``pipe.tensor_memory`` has them.
    cta_group
        2 if two blocks of a cluster multiply as a CTA pair. The even block starts the products, and
        both blocks have an epilogue.
    cluster
        The blocks of the kernel's cluster along x and y; with `cta_group` 2 a pair by default.
    debug
        Whether waits that take too long raise an exception, as in `TilePipeline`.

    Examples
    --------
    >>> from numba_tma import Roles, Warpgroups, Warps
    >>> ROLES = Roles(epilogue=Warpgroups(1), mma=Warps(1))
    >>> OUT = OutputTilePipeline(
    ...     3, Tile((128, 64), "f32"), mma=ROLES.mma, epilogue=ROLES.epilogue, memory="tensor"
    ... )
    >>> OUT.stage_stride_cols, OUT.num_columns
    (64, 256)
    """

    device_methods = ("start", "_fence_after", "_fence_before", "_commit")
    num_stages: int
    acc: Tile
    mma: Role
    epilogue: Role
    memory: str
    stage_stride_cols: int
    extra_columns: int
    cta_group: int
    cluster: tuple[int, int]
    debug: bool = False

    def __init__(
        self,
        num_stages: int,
        acc: Tile,
        *,
        mma: Role,
        epilogue: Role,
        memory: Literal["shared", "tensor"] = "shared",
        stage_stride_cols: int | None = None,
        extra_columns: int = 0,
        cta_group: Literal[1, 2] = 1,
        cluster: int | tuple[int, int] | None = None,
        debug: bool | None = None,
    ) -> None:
        _check(num_stages, acc, mma, epilogue, memory)
        if memory == "tensor":
            _check_tensor(
                num_stages, acc, mma, epilogue, stage_stride_cols, extra_columns, cta_group
            )
        elif (stage_stride_cols, extra_columns, cta_group, cluster) != (None, 0, 1, None):
            raise ValueError(
                f"OutputTilePipeline(memory={memory!r}): stage_stride_cols, extra_columns, "
                "cta_group and cluster apply to tensor memory; leave them out, or give "
                "memory='tensor'"
            )
        values = {
            "num_stages": operator.index(num_stages),
            "acc": acc,
            "mma": mma,
            "epilogue": epilogue,
            "memory": memory,
            "stage_stride_cols": (stage_stride_cols or acc.shape[-1]) if memory == "tensor" else 0,
            "extra_columns": operator.index(extra_columns),
            "cta_group": cta_group,
            "cluster": pair_cluster("OutputTilePipeline", cta_group, cluster),
            "debug": is_bounded(OutputTilePipeline, debug),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = f"{self.num_stages}, {self.acc}, mma={self.mma}, epilogue={self.epilogue}"
        if self.in_tensor_memory:
            shown += f", memory='tensor', stage_stride_cols={self.stage_stride_cols}"
        if self.extra_columns:
            shown += f", extra_columns={self.extra_columns}"
        if self.cta_group == 2:
            shown += f", cta_group=2, cluster={self.cluster}"
        if self.debug:
            shown += ", debug=True"
        return f"OutputTilePipeline({shown})"

    @property
    def in_tensor_memory(self) -> bool:
        """Whether the stages are columns of tensor memory."""
        return self.memory == "tensor"

    @property
    def num_columns(self) -> int:
        """Columns of tensor memory to allocate: a power of two, or 0 in shared memory."""
        return allocated_columns(self._stage_columns + self.extra_columns)

    @property
    def _stage_columns(self) -> int:
        return self.num_stages * self.stage_stride_cols

    @property
    def stage_claim(self) -> ColumnClaim:
        """The columns of the stages."""
        return ColumnClaim(repr(self.tensor_memory), 0, self._stage_columns, "the stages")

    @property
    def tensor_memory(self) -> TensorMemory:
        """The columns, which the epilogue's first warp allocates."""
        return TensorMemory(
            self._stage_columns + self.extra_columns,
            role=self.epilogue,
            cta_group=self.cta_group,
            cluster=self.cluster,
        )

    @property
    def accumulator_layout(self) -> Accumulator:
        """The accumulator of a stage; with `cta_group` 2 that of both blocks."""
        rows, columns = self.acc.shape
        return Accumulator(rows * self.cta_group, columns, self.acc.dtype, self.cta_group)

    @property
    def ring(self) -> TilePipeline:
        """The `TilePipeline` whose barriers pass the stages on."""
        if self.in_tensor_memory:
            return ColumnRing(self)
        return TilePipeline(
            self.num_stages,
            acc=self.acc,
            producer=self.mma,
            consumer=self.epilogue,
            filled_by="threads",
            debug=self.debug,
        )

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        return self.ring.nbytes

    def start(self) -> OutputTilePipelineHandle:
        """Allocate the stages, initialise their barriers and return the handle.

        Executed once by every thread of the block, so not inside a loop. `start` synchronises the
        block, or with `cta_group` 2 the cluster. The handle's `close` ends the pipeline. A block
        starts only one `OutputTilePipeline` in tensor memory: `start` relinquishes the permit to
        allocate, so that other blocks can allocate.
        """
        check_target(self)
        destination, address = u32(0), u32(0)
        if self.in_tensor_memory:
            claim_columns(self.stage_claim)
            destination = allocate_shared(self, 4, 4, "address")
            allocate(self.tensor_memory, destination)
        pipe = self.ring.start()
        if self.in_tensor_memory:
            address = ld_shared_u32(destination)
        if self.cta_group == 2:
            pipe._consumer.is_sender = laneid() == cluster_ctarank() & ~1
        return OutputTilePipelineHandle(
            self,
            OutputProducer(self, pipe._producer, address),
            OutputConsumer(self, pipe._consumer, address),
        )

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        return {what: 4}

    # Operations on tensor memory, which do nothing if the stages are in shared memory.

    def _fence_after(self) -> None:
        if self.in_tensor_memory:
            tcgen05_fence_after_thread_sync()

    def _fence_before(self) -> None:
        if self.in_tensor_memory:
            tcgen05_fence_before_thread_sync()

    def _commit(self, barrier: Any) -> None:
        if not self.in_tensor_memory:
            return
        if self.cta_group == 2:
            tcgen05_commit(barrier, 2, 3 << (cluster_ctarank() & ~1))
        else:
            tcgen05_commit(barrier, 1)


@dataclass(frozen=True)
class ColumnRing(TilePipeline):
    """The ring of an `OutputTilePipeline` in tensor memory: barriers without tiles.

    The tensor cores arrive for each warp that multiplies. In a CTA pair the empty barriers of the
    even block count the releases of both blocks.
    """

    output: OutputTilePipeline = None  # type: ignore[assignment]

    storage_nbytes = 0
    alignment = 8
    _name = "acc"

    def __init__(self, output: OutputTilePipeline) -> None:
        values = {
            "output": output,
            "num_stages": output.num_stages,
            "tiles": (),
            "producer": output.mma,
            "consumers": (output.epilogue,),
            "filled_by": "threads",
            "cluster": output.cluster,
            "cta_group": output.cta_group,
            "debug": output.debug,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return repr(self.output)

    @property
    def num_peers(self) -> int:
        """Blocks whose epilogues release a stage."""
        return self.output.cta_group


def _check(num_stages: Any, acc: Any, mma: Any, epilogue: Any, memory: Any) -> None:
    rule = "at least 1 accumulator; 2 are usual"
    positive("OutputTilePipeline", "num_stages", num_stages, rule)
    if memory not in ("shared", "tensor"):
        raise ValueError(f"OutputTilePipeline(memory={memory!r}): 'shared' or 'tensor'")
    if not isinstance(acc, Tile):
        raise TypeError(f"OutputTilePipeline(acc=...) takes a Tile, not {acc!r}")
    for name, role in (("mma", mma), ("epilogue", epilogue)):
        if not isinstance(role, Role):
            raise TypeError(
                f"OutputTilePipeline({name}=...) takes a role, as ROLES.{name} with ROLES = "
                f"Roles(mma=Warpgroups(1), epilogue=Warpgroups(1)), not {role!r}"
            )
    if mma.block != epilogue.block or mma.index == epilogue.index:
        raise ValueError(
            f"OutputTilePipeline: mma {mma} and epilogue {epilogue} must be different roles of the "
            "same Roles"
        )


def _check_tensor(
    num_stages: int,
    acc: Tile,
    mma: Role,
    epilogue: Role,
    stride: int | None,
    extra: int,
    cta_group: int,
) -> None:
    in_cells = acc.dtype.bits == 32 or acc.dtype.name == "f16"
    if acc.ndim != 2 or acc.shape[0] != LANES or not in_cells or acc.swizzle != Swizzle.NONE:
        raise ValueError(
            f"OutputTilePipeline(acc={acc}, memory='tensor'): a stage is {LANES} lanes x columns "
            f"of 32 bits: give Tile(({LANES}, columns), 'f32'), or 'f16' or 'i32'"
        )
    check_group("OutputTilePipeline", cta_group)
    for role in (mma, epilogue):
        if role.group.unit == 1:
            raise ValueError(
                f"OutputTilePipeline({role}, memory='tensor'): whole warps execute the "
                f"instructions of tensor memory: use Warps({role.sync_threads // WARP})"
            )
    if epilogue.arrivals < WARPS_OF_LANES:
        raise ValueError(
            f"OutputTilePipeline(epilogue={epilogue.group}, memory='tensor'): a warp accesses "
            f"{WARP} of the {LANES} lanes, so {WARPS_OF_LANES} warps together read an "
            "accumulator: use Warpgroups(1)"
        )
    columns = acc.shape[1] if stride is None else operator.index(stride)
    if columns < acc.shape[1]:
        raise ValueError(
            f"OutputTilePipeline(stage_stride_cols={columns}): {acc} has {acc.shape[1]} columns, "
            f"so stages would overlap: use at least {acc.shape[1]}"
        )
    if extra < 0:
        raise ValueError(f"OutputTilePipeline(extra_columns={extra}): at least 0 columns")
    if num_stages * columns + extra > COLUMNS:
        fit = max(0, COLUMNS - extra) // columns
        repair = f"use at most {fit} stages, or narrower accumulators"
        more = f" + {extra} extra columns" if extra else ""
        raise ValueError(
            f"OutputTilePipeline: {num_stages} stages x {columns} columns{more} = "
            f"{num_stages * columns + extra:,} columns of tensor memory, but a block has "
            f"{COLUMNS}: {repair if fit else 'use narrower accumulators'}"
        )


constant_class(OutputTilePipeline)
constant_class(ColumnRing)
