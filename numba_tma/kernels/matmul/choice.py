"""Which configuration a matmul uses: the one that is expected, or was measured, to be fastest.

The expectation is a cost model in cycles. A stage takes an SM as long as its shared memory is busy
with it (TMA writes it, each MMA warpgroup reads it), or as its copies request cache lines, or the
minimum of a stage. A tile adds its prologue and epilogue, and the last wave of tiles takes as long
as a full one. DRAM takes as long as the matrices need, or longer if the stages have too few bytes
in flight. L2 takes as long as all stages together need. Blocks of a cluster request the lines that
they share once. Rows that begin inside of cache lines take two. An operand of few lines occupies
few slices of L2, and takes longer. The three hide each other in part: the whole time is the p-norm
of their times. The constants are fitted to times that ``tests/benchmarks/sweeps/matmul.py
--survey`` measures.

Operands that TMA cannot address are copied, or loaded by the kernel for such operands: that of both
which is expected to take less time.

A `StreamKConfig` is never chosen, nor a candidate of `tune`: whole tiles were faster on every shape
that was measured.

`measurements` finds and keeps what ``tune=True`` measures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.plan import (
    SLAB_ROWS,
    WGMMA_ROWS,
    AnyConfig,
    Config,
    MmaConfig,
    SwappedConfig,
    Tcgen05Config,
    UnalignedConfig,
    shares_of,
    stored,
    unaligned_extent,
)

#: Blocks of a cluster that add up K, and how many such clusters run at once on 132 SMs, as the
#: driver says of an H100.
AT_ONCE = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 8: 15}

#: Rows, or columns, up to which the kernel for few of them is tried (swap A/B).
FEW = 128

C = TypeVar("C", bound=Config)
N = TypeVar("N", SwappedConfig, UnalignedConfig)

#: The table. Of configurations that are expected to be equally fast, the first is taken.
CONFIGS = (
    Config(128, 256, 2, group=16),
    Config(128, 256, group=16),
    Config(192, 192, 2, group=12, out_stages=1),
    Config(192, 192, group=12, out_stages=1),
    Config(128, 192, 2, group=14),
    Config(128, 192, group=14),
    Config(128, 224, group=14),
    Config(128, 160, group=14),
    Config(128, 128, 2, group=12),
    Config(128, 128, group=12),
    Config(128, 64, group=8),
    Config(64, 256, group=24),
    Config(64, 192, group=16),
    Config(64, 128, group=16),
    Config(64, 128, k=256, group=16),
    Config(64, 96, group=16),
    Config(64, 64, k=256, group=12),
    Config(64, 64, k=512, group=12),
    Config(64, 32, k=256, group=8),
    Config(64, 32, k=512, group=8),
    Config(192, 128, 2, group=12),
    Config(192, 96, group=12),
    Config(128, 128, across=2, group=12),
    Config(128, 64, across=2, group=12),
    Config(128, 64, across=4, group=12),
    Config(128, 64, 2, group=12),
    Config(128, 64, 4, group=12),
    Config(64, 128, across=2, group=16),
    Config(64, 128, 2, group=16),
    Config(64, 128, 4, group=16),
    Config(64, 96, 2, group=16),
    Config(64, 64, across=4, group=12),
    Config(64, 64, 2, across=2, group=12),
    Config(64, 64, 4, group=12),
    Config(64, 32, across=4, group=12),
)
#: Those whose blocks share no tiles of a.
ROW_CLUSTERS = tuple(config for config in CONFIGS if config.across == 1)


@dataclass(frozen=True)
class MatmulProblem:
    """What the choice depends on: extents of the product and sizes of the elements."""

    rows: int
    columns: int
    k: int
    batch: int = 1
    itemsize: int = 2  #: bytes of an element of a and b
    out_itemsize: int = 2
    splittable: bool = True  #: whether K may be split: sums of parts are float32
    #: Whether rows of a and b that TMA loads begin inside of 128-byte lines, so that each of a box
    #: takes two.
    split_lines: tuple[bool, bool] = (False, False)
    copied: tuple[int, ...] = ()  #: bytes of each operand that TMA cannot address
    majors: tuple[str, str] = ("K", "K")  #: along what a and b are contiguous, as in plans

    @property
    def scattered(self) -> bool:
        """Whether threads store the result: rows of a contiguous one are no multiples of 16 B."""
        return self.columns * self.out_itemsize % 16 != 0

    @functools.cached_property
    def swapped(self) -> MatmulProblem:
        """The transposed problem, whose rows are columns."""
        turned = replace(self, rows=self.columns, columns=self.rows)
        return replace(turned, majors=self.majors[::-1], split_lines=self.split_lines[::-1])

    def steps(self, config: Config | SwappedConfig | UnalignedConfig) -> int:
        """Return how many stages there are along K."""
        return -(-self.k * self.itemsize // config.k)


# Fitted, as the constants below, to 8,600 times of 740 products on an H200 and an H100
# (`matmul_times_*.json`); in cycles of 1.6 GHz.
# Bytes per cycle: an SM's shared memory, DRAM, and the split-K reduction.
_SHARED, _DRAM, _PARTS = 143, 1620, 1540
_LATENCY = 1340  # cycles from a load's issue to the full stage
_FIRST, _SECOND_KERNEL = 1550, 8310  # cycles until the first load arrives; of a second launch
_CLUSTER = 900  # cycles until the blocks of a cluster have met
_TOGETHER = 0.08  # relative time that DRAM takes longer if blocks wait for each other's copies
_REQUEST = 1.58  # cycles of an SM for a line that it requests
_WAITING = 0.845  # relative time that an epilogue with one tile in flight takes longer
_SCATTERED = 3.18  # relative time that an epilogue takes longer if threads store the result
_ARRIVING = 14.3  # bytes of the first stage per cycle
_STAGE, _TILE, _COLUMN = 343, 503, 13.5  # cycles of a stage at least; of a tile, and its columns
_L2 = 17800  # bytes per cycle, of whole lines
_SLICED = 300  # lines that occupy all slices of L2
_POWER = 2.41  # the exponent p of the norm
_ALIGNED = 3580  # nanoseconds of a launch


def _at_once(cluster: int, sms: int) -> int:
    """Return how many clusters run at once, one block on an SM."""
    return max(1, sms * AT_ONCE[cluster] // 132)


def _requests(rows: int, major: str, split: bool) -> int:
    """Return how many cache lines the copies of `rows` rows request for each 128 bytes along K.

    A K-major row requests one. An MN-major slab requests one for each element of K: 64, as many as
    it has rows. If the operand is `split`, each of these is two.
    """
    slabs = -(-rows // SLAB_ROWS)
    return (rows if major == "K" else slabs * SLAB_ROWS) * (1 + split)


def _crowding(extent: int, problem: MatmulProblem) -> float:
    """Return how much longer, relatively, requests of an operand take than those of a large one.

    Blocks of one row or column of tiles request the same lines. If these are few, they lie in few
    of L2's slices, each of which serves a request in two cycles.
    """
    lines = problem.batch * extent * problem.k * problem.itemsize / 128
    return max(0, _SLICED / max(1, lines) - 1)


def expected_cycles(problem: MatmulProblem, config: Config, sms: int) -> float:
    """Return how many cycles a matmul is expected to take."""
    p, m, n = problem, config.m, config.n
    together, down, right = _at_once(config.blocks, sms), m * config.cluster, n * config.across
    clusters = -(-p.rows // down) * -(-p.columns // right) * p.batch * config.splits
    waves = -(-clusters // together)
    wide = stored(n, p.majors[1])
    written = m + wide
    read = m + m // 64 * n  # each warpgroup reads its rows of a, and all of b
    # Every other tile of b begins in the middle of lines.
    halves = p.majors[1] == "MN" and n % SLAB_ROWS != 0
    a_lines = _requests(min(down, p.rows), p.majors[0], p.split_lines[0])
    b_lines = _requests(min(right, p.columns), p.majors[1], halves or p.split_lines[1])
    lines = (a_lines + b_lines) / config.blocks
    stage = max(max((written + read) / _SHARED, lines * _REQUEST / 128) * config.k, _STAGE)
    column = _COLUMN * (1 + (config.out_stages == 1) * _WAITING + p.scattered * _SCATTERED)
    tile = -(-p.steps(config) // config.splits) * stage + _TILE + column * max(n, 64)
    elements = p.batch * p.rows * p.columns
    factors = p.batch * (p.rows + p.columns) * p.k * p.itemsize
    loaded = (min(m, p.rows) + min(wide, p.columns)) * config.k
    free = SHARED_BYTES - m * config.out_stages * config.out_bytes
    in_flight = (min(config.stages, free // (written * config.k)) - 1) * loaded
    busy = min(1, clusters / together) * sms
    rate = min(_DRAM, busy * in_flight / _LATENCY)
    first = _FIRST + (m + n) * config.k / _ARRIVING + (config.blocks > 1) * _CLUSTER
    crowded = a_lines * _crowding(p.rows, p) + b_lines * _crowding(p.columns, p)
    from_l2 = clusters // config.splits * (a_lines + b_lines + crowded) * p.k * p.itemsize / _L2
    # All blocks wait for their first stage at the same time.
    first += min(clusters, together) * crowded * min(config.k, p.k * p.itemsize) / _L2
    waiting = 1 + (config.blocks > 1) * _TOGETHER
    from_dram = (factors + elements * p.out_itemsize) / rate * waiting
    times = first + waves * tile, from_dram, from_l2
    cycles = sum(time**_POWER for time in times) ** (1 / _POWER)
    if config.splits > 1:
        cycles += _SECOND_KERNEL + 8 * elements * config.splits / _PARTS
    return cycles


# Few rows or columns.
_STREAM, _PORT = 2720, 80.7  # bytes per nanosecond: DRAM; lines that one SM takes
_IN_FLIGHT = 1960  # nanoseconds from a load's issue to the full stage
_ALONE = 825  # nanoseconds of a tile of a cluster besides, since it overlaps with no other
_SUMMED = 2.22  # sums that a block receives per nanosecond
_END = 15.9  # nanoseconds of the end of a tile, for each column of it that a block stores
_WRITTEN = 226  # elements of the result per nanosecond
_STRAIGHT = 287  # elements per nanosecond where each element of a pair is stored alone
_NARROW = 4070  # nanoseconds of a launch


def _received(m: int, n: int, cluster: int) -> int:
    """Return how many sums a block of a cluster receives, the padding of their rows included."""
    return cluster * _share(n, cluster) * (m + 4) if cluster > 1 else 0


def _share(n: int, cluster: int) -> int:
    """Return how many columns of a tile's accumulator each block of a cluster stores."""
    return n // shares_of(n, cluster)


def _straight(problem: MatmulProblem, config: SwappedConfig | UnalignedConfig) -> float:
    """Return the time of stores whose threads hold pairs of a row, and store each element alone.

    With b as the first operand, neighbouring threads store neighbouring elements.
    """
    alone = config.first == "a" and problem.scattered
    return alone * problem.batch * problem.rows * problem.columns / _STRAIGHT


def expected_nanoseconds(problem: MatmulProblem, config: SwappedConfig, sms: int) -> float:
    """Return the expected time of a matmul with swapped operands, less what all of them take.

    It is infinite if two stages do not fit into a block.
    """
    p = problem if config.first == "b" else problem.swapped
    slots = _at_once(config.cluster, sms) * config.blocks
    tiles = -(-p.rows // config.n) * -(-p.columns // config.m) * p.batch
    loaded = config.m + min(config.n, p.rows)  # rows of K elements; those of a come from L2
    received = _received(config.m, config.n, config.cluster)
    free = SHARED_BYTES // config.blocks - 4 * received - 1024 * (config.blocks > 1)
    most_stages = free // ((config.m + stored(config.n, p.majors[0])) * config.k) - 1
    if most_stages < 1:
        return math.inf
    in_flight = min(most_stages * config.k, max(1, p.k * p.itemsize / config.cluster)) * loaded

    lines = _requests(config.m, p.majors[1], p.split_lines[1])
    lines += _requests(min(config.n, p.rows), p.majors[0], p.split_lines[0])

    def wave(tiles: int) -> float:
        blocks = tiles * config.cluster
        arriving = loaded * _IN_FLIGHT / (blocks * in_flight)
        passing = max(-(-blocks // sms) * lines / (blocks * _PORT), config.m / _STREAM)
        return tiles * p.k * p.itemsize * max(arriving, passing)

    waves, rest = divmod(tiles, slots)
    time = waves * wave(slots) + (wave(rest) if rest else 0)
    if config.cluster > 1:
        time += -(-tiles // slots) * (_ALONE + received / _SUMMED)
    time += -(-tiles // slots) * _share(config.n, config.cluster) * _END
    time += p.batch * p.rows * p.columns / _WRITTEN
    return time + _straight(problem, config)


def swapped(problem: MatmulProblem) -> Iterator[SwappedConfig]:
    """Yield the configurations of a problem with few rows, or else with few columns."""
    first: Literal["a", "b"] = "b" if problem.rows <= problem.columns else "a"
    few = min(problem.rows, problem.columns)
    if problem.splittable and few <= FEW:
        for parts in (1, 2) if few > 32 else (1,):
            for cluster in AT_ONCE:
                # Multiples of 16 have more shares than those of 8 alone.
                steps = (8, 16) if cluster > 1 and few > 8 else (8,)
                for n in sorted({-(-few // (step * parts)) * step for step in steps}):
                    long = 512 if n <= 16 else 256  # faster, where five such stages fit
                    for m, blocks, k in ((64, 1, long), (64, 2, 256), (128, 1, 256)):
                        yield _made(SwappedConfig, m, n, cluster, blocks, k, first=first)
                        if n > 32:  # shorter stages leave less of the memory unused
                            yield _made(SwappedConfig, m, n, cluster, blocks, 128, first=first)


# Operands of any alignment, in nanoseconds.
_LAUNCHED, _TILES, _REDUCED = 4430, 572, 276  # of all; of a tile; of a cluster's tile
_ROUND, _CHUNK = 639, 124  # of a stage, and of each chunk that a thread moves
_STAGED = 27.4  # bytes per nanosecond and SM
_READ = 14500  # bytes per nanosecond of reads from DRAM that no other work hides
_COPY, _COPIED = 3140, 1470  # of a launch; bytes of an operand, each read and written


def unaligned_nanoseconds(problem: MatmulProblem, config: UnalignedConfig, sms: int) -> float:
    """Return the expected time of a matmul whose threads load the operands.

    A stage takes a round trip to memory, or the two blocks of an SM as long as its load units. The
    result is infinite if two stages do not fit into a block.
    """
    p = problem if config.first == "a" else problem.swapped
    n = unaligned_extent(config.n, p.majors[1])
    received = _received(WGMMA_ROWS, n, config.cluster)
    if SHARED_BYTES // 2 - 1024 - 4 * received < 2 * (WGMMA_ROWS + n) * config.k:
        return math.inf
    blocks = -(-p.rows // WGMMA_ROWS) * -(-p.columns // n) * p.batch * config.cluster
    most = 2 if n <= 64 else 1  # that share an SM
    slots = _at_once(config.cluster, sms) * config.cluster * most
    chunks = config.k // 64 + -(-n * config.k // 4096)
    staged = min(most, -(-blocks // sms)) * (WGMMA_ROWS + n) * config.k
    stage = max(_ROUND + _CHUNK * chunks, staged / _STAGED)
    stages = -(-p.steps(config) // config.cluster)
    tile = stages * stage + _TILES + _share(n, config.cluster) * _END
    if config.cluster > 1:
        tile += _REDUCED + received / _SUMMED
    time = _LAUNCHED + -(-blocks // slots) * tile + _straight(problem, config)
    return time + p.batch * (p.rows + p.columns) * p.k * p.itemsize / _READ


def unaligned(problem: MatmulProblem) -> Iterator[UnalignedConfig]:
    """Yield the configurations for operands of any alignment, if a problem has such operands."""
    sides: tuple[Literal["a", "b"], ...] = ("a", "b")
    if problem.copied and problem.splittable and problem.itemsize == 2:
        for first in sides:
            p = problem if first == "a" else problem.swapped
            fewest = -(-p.columns // 128)
            widths = {-(-p.columns // (8 * parts)) * 8 for parts in range(fewest, fewest + 3)}
            # A stage may be long if it has few chunks, and their lines differ by whole words.
            long = p.columns <= 8 and p.majors[0] == "MN"
            for n in sorted({32, 64, *widths} if p.columns > 32 else widths):
                for cluster in AT_ONCE:
                    yield _made(UnalignedConfig, first, n, cluster)
                    if long:
                        yield _made(UnalignedConfig, first, n, cluster, 256)


def candidates(problem: MatmulProblem, sms: int) -> Iterator[AnyConfig]:
    """Yield every configuration that `tune` measures for a problem, those of `CONFIGS` first."""
    yield from with_parts(CONFIGS, problem, sms)
    yield from swapped(problem)
    yield from unaligned(problem)


def tcgen05_candidates(scaled: bool = False) -> Iterator[AnyConfig]:
    """Yield every configuration that `tune` measures on a GPU with Blackwell's tensor cores."""
    yield from (Tcgen05Config(n, cta_group=2) for n in SCALED_WIDTHS)
    yield from (Tcgen05Config(n) for n in (SCALED_WIDTHS if scaled else TCGEN05_WIDTHS))
    yield from (Tcgen05Config(256, cta_group=group, scheduler="static") for group in (2, 1))


#: Widths of tiles on Blackwell's tensor cores; those of block-scaled operands.
TCGEN05_WIDTHS, SCALED_WIDTHS = (256, 192, 128, 96, 64, 32), (256, 192, 128, 64)

#: Configurations by mma.sync, the largest tile first.
MMA_CONFIGS = (
    MmaConfig(128, 128),
    MmaConfig(128, 64),
    MmaConfig(64, 64),
    MmaConfig(64, 32, k=128),
)


@functools.cache
def _made(kind: type[N], *fields: Any, **others: Any) -> N:
    """Return a configuration; its fields are checked once, not for each problem."""
    return kind(*fields, **others)


@functools.cache
def _in_parts(config: C, splits: int) -> C:
    return replace(config, splits=splits)


def with_parts(configs: tuple[C, ...], problem: MatmulProblem, sms: int) -> Iterator[C]:
    """Yield configurations, and then their split-K variants that fill idle SMs."""
    yield from configs
    if problem.splittable:
        for config in configs:
            tiles = -(-problem.rows // config.m) * -(-problem.columns // config.n) * problem.batch
            most = min(sms // tiles, problem.steps(config) // 4, 32)
            for splits in sorted({most, *(2**i for i in range(1, 6))}):
                if 1 < splits <= most and config.blocks == 1:
                    yield _in_parts(config, splits)


def _is_long(problem: MatmulProblem, sms: int) -> bool:
    """Return whether K needs more parts than a cluster has blocks, to occupy all SMs."""
    tiles = -(-max(problem.rows, problem.columns) // 64) * problem.batch
    return 32 * tiles < sms and problem.k * problem.itemsize > 1 << 15


def expected_time(problem: MatmulProblem, config: AnyConfig, sms: int) -> float:
    """Return how many nanoseconds a call is expected to take, copies of its operands included."""
    if isinstance(config, UnalignedConfig):
        return unaligned_nanoseconds(problem, config, sms)
    copies = sum(_COPY + nbytes / _COPIED for nbytes in problem.copied)
    if isinstance(config, SwappedConfig):
        return copies + _NARROW + expected_nanoseconds(problem, config, sms)
    assert isinstance(config, Config)
    return copies + _ALIGNED + expected_cycles(problem, config, sms) / 1.6


@functools.lru_cache(maxsize=4096)
def choose(problem: MatmulProblem, sms: int) -> AnyConfig:
    """Return the configuration that is expected to be fastest."""
    tried: list[AnyConfig] = [choose_tiles(problem, sms), *swapped(problem), *unaligned(problem)]
    return min(tried, key=lambda config: expected_time(problem, config, sms))


def choose_tiles(problem: MatmulProblem, sms: int) -> Config:
    """Return the fastest of `CONFIGS`; K is split only where clusters cannot add up the parts."""
    narrow = min(problem.rows, problem.columns) <= FEW and not _is_long(problem, sms)
    return choose_from(CONFIGS, replace(problem, splittable=False) if narrow else problem, sms)


def choose_tcgen05(problem: MatmulProblem, sms: int, scaled: bool = False) -> Tcgen05Config:
    """Return the configuration for Blackwell's tensor cores: the widest whose tiles occupy all SMs.

    No GPU has measured it. CTA pairs compute the tiles if the tile rows of 128 are even in number,
    or more than 8, so that few rows of the last pair are beyond the matrix. If no width occupies
    all SMs, the narrowest of 64 columns or more is taken that the problem fills.
    """
    row_tiles = -(-problem.rows // 128)
    group: Literal[1, 2] = 2 if row_tiles % 2 == 0 or row_tiles > 8 else 1
    rows = -(-row_tiles // group) * problem.batch
    widths = SCALED_WIDTHS if scaled else TCGEN05_WIDTHS
    for n in widths:
        if n > 64 and rows * -(-problem.columns // n) >= sms // group:
            return Tcgen05Config(n, cta_group=group)
    return Tcgen05Config(64 if problem.columns > 32 else widths[-1])


def choose_mma(problem: MatmulProblem, sms: int) -> MmaConfig:
    """Return the configuration by mma.sync: the largest tile of which there is one for each SM.

    No GPU has measured it. If no size occupies all SMs, the smallest is taken.
    """
    for config in MMA_CONFIGS:
        tiles = -(-problem.rows // config.m) * -(-problem.columns // config.n) * problem.batch
        if tiles >= sms:
            return config
    return MMA_CONFIGS[-1]


@functools.lru_cache(maxsize=4096)
def choose_from(configs: tuple[C, ...], problem: MatmulProblem, sms: int) -> C:
    """Return the configuration, with or without split-K, that is expected to be fastest."""
    return min(
        with_parts(configs, problem, sms),
        key=lambda config: expected_cycles(problem, config, sms),
    )
