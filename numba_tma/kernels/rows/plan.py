"""How kernels over rows cut up their work: the plan, the measured plans, and the choice of one.

The arguments of a launch are here, too: the host makes them without the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numba_tma.device.share import Share
from numba_tma.host.annotations import Address, Integer
from numba_tma.host.dtypes import DType
from numba_tma.host.values import FLAG, check_fields, one_of, power_of_2, whole
from numba_tma.kernels._host.limits import SHARED_BYTES

#: In place of a width: accesses of 16 B to rows that begin and end anywhere (`Share.aligned`).
UNALIGNED = 0
CACHES = ("allocate", "no_allocate", "evict_last", "evict_first")


@dataclass(frozen=True)
class RowPlan:
    """How rows are shared among threads and blocks.

    Parameters
    ----------
    threads
        Threads per row in a block, a power of 2; 32 or fewer share a warp.
    rows
        Rows per block; 1 if more than 32 threads share a row.
    cluster
        Blocks per row: 1, 2, 4 or 8. The blocks of a row form a cluster.
    bulk
        Load rows by bulk copies (TMA) into shared memory; if False, loads go straight to registers.
    blocks
        Minimum resident blocks per SM (launch bounds); 0 leaves the registers to the compiler.
    early
        Load weights before the reduction, which costs registers, instead of after it. With `slot`,
        the weights of the next slot are loaded from the L2 cache while a slot is stored.
    slot
        Bytes of a row that registers hold at a time; needs `bulk`. The row stays in shared memory
        and is read slot by slot twice: to reduce it, and to write the result. 0: registers hold
        all that the block has of the row.
    cache
        Cache policy of row loads: "allocate" caches in L1, "no_allocate" bypasses L1, "evict_last"
        and "evict_first" set the L2 priority. Bulk copies ignore the first two.

    Raises
    ------
    ValueError
        If the fields do not go together.
    """

    threads: int
    rows: int = 1
    cluster: int = 1
    bulk: bool = False
    blocks: int = 0
    early: bool = False
    slot: int = 0
    cache: str = "allocate"

    def __post_init__(self) -> None:
        check_fields(
            self,
            threads=power_of_2(1, 1024),
            rows=whole(1, 1024),
            cluster=one_of(1, 2, 4, 8),
            bulk=FLAG,
            blocks=whole(0, 32),
            early=FLAG,
            slot=whole(0, SHARED_BYTES),
            cache=one_of(*CACHES),
        )
        threads, slot = self.threads, self.slot
        rules = (
            (threads * self.rows <= 1024, "a block has up to 1,024 threads for all of its rows"),
            (
                self.rows == 1 or (threads <= 32 and self.cluster == 1),
                "several rows are of up to 32 threads each, without a cluster",
            ),
            (threads >= 32 or self.cluster == 1, "blocks of a cluster have 32 threads or more"),
            (not slot or (self.bulk and self.rows == 1), "slot goes with bulk=True and rows=1"),
            (slot % (16 * threads) == 0, f"slot is a multiple of {16 * threads:,}: 16 B a thread"),
        )
        for holds, rule in rules:
            if not holds:
                raise ValueError(f"{self}: {rule}")

    @property
    def block_threads(self) -> int:
        """Threads per block."""
        return self.threads * self.rows

    @property
    def launch_bounds(self) -> int | tuple[int, int]:
        """Threads per block, and the minimum of resident blocks if there is one."""
        return (self.block_threads, self.blocks) if self.blocks else self.block_threads


@dataclass(frozen=True)
class RowOptions:
    """Which inputs and outputs a call has besides `x`; each combination is another kernel.

    Parameters
    ----------
    weight, bias
        Scale the result by a weight; add a bias to it.
    residual
        Add a residual to `x` first.
    residual_out
        Write the sum of `x` and the residual.
    statistics
        Which of the operation's two statistics to write.
    output
        Write the rows; False for reductions, which only write statistics.
    index
        The second statistic is a column, written as int64.
    """

    weight: bool = False
    bias: bool = False
    residual: bool = False
    residual_out: bool = False
    statistics: tuple[bool, bool] = (False, False)
    output: bool = True
    index: bool = False


PLAIN = RowOptions()


def bytes_per_block(nbytes: int, blocks: int) -> int:
    """Return the bytes of a row of `nbytes` for each of `blocks`, a multiple of 16.

    The last blocks may have fewer, or none.
    """
    return -(-nbytes // (16 * blocks)) * 16


def require_room(name: str, plan: object, nbytes: int) -> None:
    """Raise a ValueError unless `nbytes` of rows fit into the shared memory of a block."""
    if nbytes > SHARED_BYTES:
        raise ValueError(
            f"{name}(plan={plan}): a block has {nbytes:,} B of rows, but room for "
            f"{SHARED_BYTES:,} B in shared memory: give a row more blocks (cluster=, up to 8), a "
            "block fewer rows or stages, or no plan"
        )


def share_of(columns: int, rows: int, element: DType, width: int, plan: RowPlan) -> Share:
    """Return what a thread holds of a row of `columns`, in accesses of `width` bytes.

    `width` may be `UNALIGNED`.
    """
    sharing = plan.threads * plan.cluster
    if width == UNALIGNED:
        accesses = -(-(columns * element.itemsize + 16 - element.itemsize) // 16)
        return Share(element, 16, -(-accesses // sharing), plan.threads, False, plan.cache, False)
    accesses = columns * element.itemsize // width
    count = -(-accesses // sharing)
    whole = accesses == count * sharing and rows % plan.rows == 0
    return Share(element, width, count, plan.threads, whole, plan.cache)


# ------------------------------------------------------------------- arguments of a launch

# The address of an array that the call does not have is 0. A kernel without that array never loads
# from it.


class RowMemory(NamedTuple):
    """The rows of an array in global memory."""

    address: Address = 0  #: Address of row 0.
    stride: Integer = 0  #: Bytes from one row to the next.


class RowArrays(NamedTuple):
    """The arrays of a norm, a softmax or a reduction."""

    x: RowMemory
    residual: RowMemory  #: Added to `x` first.
    weight: Address
    bias: Address
    y: RowMemory  #: The result.
    total: RowMemory  #: Gets `x` plus the residual.
    statistics: tuple[Address, Address]  #: Each array gets one number per row.


class RowSizes(NamedTuple):
    """The sizes of the rows."""

    rows: Integer
    accesses: Integer  #: Per row, of `Share.width` bytes; the elements if shares are unaligned.
    columns: Integer


# --------------------------------------------------------------------------- measured plans


def _kept(threads: int, **how: Any) -> RowPlan:
    """Return a plan whose loads are marked evict_last: the L2 cache then evicts results first."""
    return RowPlan(threads, cache="evict_last", **how)


def _staged(cluster: int, **how: Any) -> RowPlan:
    return _kept(512, cluster=cluster, bulk=True, slot=16384, **how)


_SHORT = {
    2048: RowPlan(32, 2),
    4096: RowPlan(128),
    8192: _kept(256),
    16384: _kept(512),
    32768: _kept(512, blocks=2),
}
_SOFTMAX = {
    **_SHORT,
    16384: _kept(256, bulk=True),
    32768: _kept(256, bulk=True),
    65536: _staged(1),
    131072: _staged(2, blocks=3),
    262144: _staged(4, blocks=3),
    524288: _staged(8, blocks=3),
}

#: The fastest plan on an H200 for rows of up to so many bytes, and more than half as many.
PLANS: dict[str, dict[int, RowPlan]] = {
    "rmsnorm": {
        **_SHORT,
        65536: _staged(1, early=True),
        131072: _staged(2, blocks=3, early=True),
        262144: _staged(4, blocks=3, early=True),
        524288: _staged(8, blocks=3, early=True),
    },
    "layernorm": {
        **_SHORT,
        16384: _kept(256),
        32768: _kept(512),
        65536: _staged(1),
        131072: _staged(2, blocks=3, early=True),
        262144: _staged(4, blocks=3),
        524288: _staged(8, blocks=3),
    },
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
}

#: Elements of the longest row: 2,048 for each of 1,024 threads of 8 blocks.
LONGEST = 1 << 24


def plan_for(
    name: str, columns: int, itemsize: int, width: int = 16, options: RowOptions = PLAIN
) -> RowPlan:
    """Return the plan of the operation `name` for rows of `columns`, accessed by `width` bytes.

    `width` may be `UNALIGNED`.

    `PLANS` decides if it has an entry and there is no residual. Otherwise rows above 32 KB are
    staged in shared memory if that of 8 blocks has room for them, and shorter rows give each thread
    about 32 elements.
    """
    if columns > LONGEST:
        raise ValueError(
            f"{name}(): x has rows of {columns:,} elements; they are of up to {LONGEST:,}: cut "
            "them into shorter ones"
        )
    if width == UNALIGNED:
        return _unaligned(name, columns, itemsize, options)
    nbytes, copies = columns * itemsize, 1 + options.residual
    full = 1 << (nbytes - 1).bit_length()
    plan = PLANS.get(name, {}).get(full)
    if width == 16:
        if plan and options.output and not options.residual and not options.residual_out:
            return plan
        blocks = min(8, max(1, copies * full // 65536))
        if nbytes > 32768 and copies * bytes_per_block(nbytes, blocks) <= SHARED_BYTES:
            return _staged(blocks)
    threads = _threads(columns, 32)
    if threads <= 32:
        # Neighbouring threads access whole sectors, of 32 B, even if they access few bytes each.
        threads = max(threads, min(16, 64 // width, _threads(nbytes // width, 1)))
        return RowPlan(threads, max(1, 128 // threads))
    if threads <= 1024:
        return RowPlan(threads)
    blocks = min(8, threads // 512)
    return RowPlan(min(1024, threads // blocks), 1, blocks)


def _threads(columns: int, each: int) -> int:
    """Return the power of 2 of threads that have up to `each` of the columns."""
    return 1 << max(0, -(-columns // each) - 1).bit_length()


def _unaligned(name: str, columns: int, itemsize: int, options: RowOptions) -> RowPlan:
    """Return the plan for unaligned rows: measured on an H100 from 100 to 50,257 columns of bf16.

    Long rows are staged as aligned ones, in smaller slots: weights take more registers.
    """
    nbytes = columns * itemsize
    if nbytes > 32768:
        touched = columns + 32 // itemsize  # elements of the units that a row touches, and more
        staged = plan_for(name, min(touched, LONGEST), itemsize, 16, options)
        if staged.slot:
            early = staged.early and not options.bias
            return replace(staged, threads=256, slot=8192, blocks=4, early=early)
    if columns < 512:
        threads = _threads(columns, 32)
        return RowPlan(threads, max(1, 128 // threads))
    threads = _threads(columns, 40)  # 4 accesses each, and 1 for the ends
    if threads <= 32:
        return RowPlan(threads, 4, early=True)
    if threads <= 1024:
        return RowPlan(threads, early=True)
    return _kept(1024, cluster=8, early=True)
