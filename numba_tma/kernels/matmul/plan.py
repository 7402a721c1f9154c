"""How a matmul is cut up: the configurations that there are, and which is expected to be fastest.

The expectation is a sum of cycles. A step along K takes a multiprocessor as long as its shared
memory is busy with it (copies write, and each warpgroup reads), or as long as a step takes at
least; a tile takes some more at its end; and the last wave of tiles takes as long as a full one.
DRAM takes as long as the matrices need, or longer, if the stages have too little under way.

`tests/benchmarks/sweeps/matmul.py` measures the table, and what is expected of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from numba_tma.kernels._host.limits import SHARED_BYTES

#: Rows of a result up to which factors change places, and up to which that is measured (`tune`).
FEW_ROWS, MOST_ROWS = 32, 64


@dataclass(frozen=True)
class Config:
    """How a matmul is cut up: tiles of the result, and how they are made."""

    m: int = 128  #: rows of a tile, 64 for each warpgroup that multiplies
    n: int = 256  #: columns of a tile, a multiple of 32
    cluster: int = 1  #: blocks, one below the other, that share what they load of b
    splits: int = 1  #: parts of K, each a tile of its own, that are added up afterwards
    k: int = 128  #: bytes along K in a stage: once or several times what the widest swizzle spans
    group: int = 16  #: rows of tiles that blocks take before they move to the right
    stages: int = 8  #: of what is loaded, at most: as many as fit
    out_bytes: int = 128  #: of the rows of the pieces in which a result is stored
    out_stages: int = 2  #: of such pieces, for each warpgroup

    HEIGHTS: ClassVar[tuple[int, ...]] = (64, 128)

    def __post_init__(self) -> None:
        rules = {
            "m": (self.m in self.HEIGHTS, f"one of {', '.join(map(str, self.HEIGHTS))}"),
            "n": (self.n % 32 == 0 and 32 <= self.n <= 256, "a multiple of 32 up to 256"),
            "cluster": (self.cluster in (1, 2, 4, 8), "1, 2, 4 or 8"),
            "splits": (self.splits >= 1, "at least 1"),
            "k": (self.k in (128, 256, 512), "128, 256 or 512 bytes"),
            "group": (self.group >= 1, "at least 1"),
            "stages": (self.stages >= 2, "at least 2: one is read while another is filled"),
            "out_bytes": (self.out_bytes in (32, 64, 128), "32, 64 or 128"),
            "out_stages": (self.out_stages >= 1, "at least 1"),
        }
        for name, (fits, rule) in rules.items():
            if not fits:
                raise ValueError(f"Config({name}={getattr(self, name)}): it is {rule}")
        if self.cluster > 1 and self.k > 128:
            raise ValueError(
                f"Config(cluster={self.cluster}, k={self.k}): blocks share tiles of b that are 128 "
                "bytes wide: use k=128"
            )
        if self.n % self.cluster or self.n // self.cluster % 16:
            raise ValueError(
                f"Config(n={self.n}, cluster={self.cluster}): each block loads {self.n} / "
                f"{self.cluster} columns of b for all of them: use an n of which that is a "
                "multiple of 16"
            )


@dataclass(frozen=True)
class SwappedConfig:
    """How a matmul with few rows is cut up, whose factors change places (`_matmul_swapped_kernel`).

    b is the first factor of the tensor cores then, so that `m` counts columns of the result.
    """

    m: int = 64  #: columns of the result in a tile, 64 for each warpgroup that multiplies
    n: int = 8  #: rows of the result in a tile, a multiple of 8
    cluster: int = 1  #: blocks, each of which adds up a part of K
    blocks: int = 1  #: of a multiprocessor, which share its memory
    k: int = 256  #: bytes along K in a stage
    stages: int = 16  #: of what is loaded, at most: as many as fit

    def __post_init__(self) -> None:
        rules = {
            "m": (self.m in (64, 128), "64 or 128"),
            "n": (self.n % 8 == 0 and 8 <= self.n <= 128, "a multiple of 8 up to 128"),
            "cluster": (self.cluster in (1, 2, 4, 8), "1, 2, 4 or 8"),
            "blocks": (1 <= self.blocks <= 4, "1 to 4"),
            "k": (self.k in (128, 256, 512), "128, 256 or 512 bytes"),
            "stages": (self.stages >= 2, "at least 2: one is read while another is filled"),
        }
        for name, (fits, rule) in rules.items():
            if not fits:
                raise ValueError(f"SwappedConfig({name}={getattr(self, name)}): it is {rule}")


AnyConfig = Config | SwappedConfig


def check_config(function: str, config: object, *kinds: type) -> None:
    """Raise unless a configuration is of one of these classes, or None."""
    if config is not None and type(config) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{function}(config={config!r}): it is a {names}, of this function's module, or None "
            "for what is expected to be fast"
        )


C = TypeVar("C", bound=Config)

#: Of several that are expected to be equally fast, the first is taken.
CONFIGS = (
    Config(128, 256, 2, group=16),
    Config(128, 256, group=16),
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
)


@dataclass(frozen=True)
class Problem:
    """What the choice depends on: extents, and bytes of the elements."""

    rows: int
    columns: int
    k: int
    batch: int = 1
    itemsize: int = 2  #: of a and b
    out_itemsize: int = 2
    splittable: bool = True  #: whether K may be cut into parts, whose sums are float32

    def steps(self, config: AnyConfig) -> int:
        """Return how many stages there are along K."""
        return -(-self.k * self.itemsize // config.k)


# Fitted to what 35 products took on an H200, in cycles of 1.6 GHz. Bytes a cycle: of a
# multiprocessor's shared memory; of all of DRAM, and of the parts of K that are added up.
_SHARED, _DRAM, _PARTS = 135, 4700, 470
_LATENCY = 3600  # cycles that what a stage holds is under way
_FIRST, _SECOND_KERNEL = 2450, 1600  # cycles until the first stage has come; of another launch
_STAGE, _TILE = 320, 2750  # cycles that a stage takes at least; of a tile's end
_APART = 0.7  # of loading and multiplying, the part of the shorter that is not hidden


def expected_cycles(problem: Problem, config: Config, multiprocessors: int) -> float:
    """Return how many cycles a matmul is expected to take."""
    p, m, n = problem, config.m, config.n
    together = multiprocessors // config.cluster
    clusters = -(-p.rows // (m * config.cluster)) * -(-p.columns // n) * p.batch * config.splits
    waves = -(-clusters // together)
    written = m + n
    read = m + m // 64 * n  # each warpgroup reads its rows, and all columns
    stage = max((written + read) / _SHARED * config.k, _STAGE)
    tile = -(-p.steps(config) // config.splits) * stage + _TILE
    elements = p.batch * p.rows * p.columns
    factors = p.batch * (p.rows + p.columns) * p.k * p.itemsize
    loaded = (min(m, p.rows) + min(n, p.columns)) * config.k
    free = SHARED_BYTES - m * config.out_stages * config.out_bytes
    under_way = (min(config.stages, free // ((m + n) * config.k)) - 1) * loaded
    busy = min(1, clusters / together) * multiprocessors
    rate = min(_DRAM, busy * under_way / _LATENCY)
    one, all_ = _FIRST + waves * tile, (factors + elements * p.out_itemsize) / rate
    cycles = max(one, all_) + _APART * min(one, all_)
    if config.splits > 1:
        cycles += _SECOND_KERNEL + 8 * elements * config.splits / _PARTS
    return cycles


# Of matmuls with few rows, fitted to 130 times of 8 layers on an H200. Bytes a nanosecond: of all
# DRAM, and of what a multiprocessor takes. Nanoseconds: that a stage is under way; that a tile of a
# cluster takes besides, since no other is loaded then; until the sums of its blocks are in one.
_STREAM, _PORT = 4490, 102
_UNDER_WAY, _ALONE, _TOGETHER = 1300, 1400, 270


def expected_nanoseconds(problem: Problem, config: SwappedConfig, multiprocessors: int) -> float:
    """Return how long a matmul with few rows is expected to take, but for what all of them do.

    Infinitely long, if two stages do not fit into a block.
    """
    p, slots = problem, max(1, multiprocessors * config.blocks // config.cluster)
    tiles = -(-p.rows // config.n) * -(-p.columns // config.m) * p.batch
    loaded = config.m + min(config.n, p.rows)  # rows of K elements, of which a's are in L2
    free = SHARED_BYTES // config.blocks - 4 * (config.cluster - 1) * config.m * config.n
    most_stages = free // ((config.m + config.n) * config.k) - 1
    if most_stages < 1:
        return math.inf
    under_way = min(most_stages, max(1, p.steps(config) / config.cluster)) * loaded * config.k

    def wave(tiles: int) -> float:
        blocks = tiles * config.cluster
        most = min(blocks * under_way / _UNDER_WAY, min(blocks, multiprocessors) * _PORT)
        return tiles * p.k * p.itemsize * max(loaded / most, config.m / _STREAM)

    waves, rest = divmod(tiles, slots)
    time = waves * wave(slots) + (wave(rest) if rest else 0)
    if config.cluster > 1:
        time += -(-tiles // slots) * _ALONE + _TOGETHER
    return time


def swapped(problem: Problem) -> Iterator[SwappedConfig]:
    """Yield the configurations with which factors change places, if a problem has few rows."""
    if problem.splittable and problem.rows <= MOST_ROWS:
        n = -(-problem.rows // 8) * 8
        for cluster in (1, 2, 4, 8):
            long = 512 if n <= 16 and cluster == 1 else 256  # faster, where five such stages fit
            for m, blocks, k in ((64, 1, long), (64, 2, 256), (128, 1, 256)):
                yield SwappedConfig(m, n, cluster, blocks, k)


def candidates(problem: Problem, multiprocessors: int) -> Iterator[AnyConfig]:
    """Yield every configuration that makes sense for a problem, those of `CONFIGS` first."""
    yield from with_parts(CONFIGS, problem, multiprocessors)
    yield from swapped(problem)


def with_parts(configs: tuple[C, ...], problem: Problem, multiprocessors: int) -> Iterator[C]:
    """Yield configurations, and those of them that make sense with K in parts."""
    yield from configs
    if problem.splittable:
        for config in configs:
            tiles = -(-problem.rows // config.m) * -(-problem.columns // config.n) * problem.batch
            most = min(multiprocessors // tiles, problem.steps(config) // 4, 32)
            for splits in sorted({most, *(2**i for i in range(1, 6))}):
                if 1 < splits <= most and config.cluster == 1:
                    yield replace(config, splits=splits)


def _is_long(problem: Problem, multiprocessors: int) -> bool:
    """Return whether clusters are too small for the parts of K that would occupy the GPU."""
    tiles = -(-problem.columns // 64) * problem.batch
    return 32 * tiles < multiprocessors and problem.k * problem.itemsize > 1 << 17


@functools.lru_cache(maxsize=4096)
def choose(problem: Problem, multiprocessors: int) -> AnyConfig:
    """Return the configuration that is expected to be fastest."""
    if problem.rows <= FEW_ROWS and problem.splittable and not _is_long(problem, multiprocessors):
        return min(
            swapped(problem),
            key=lambda config: expected_nanoseconds(problem, config, multiprocessors),
        )
    return choose_from(CONFIGS, problem, multiprocessors)


@functools.lru_cache(maxsize=4096)
def choose_from(configs: tuple[C, ...], problem: Problem, multiprocessors: int) -> C:
    """Return which of some configurations, whole or in parts of K, is expected to be fastest."""
    return min(
        with_parts(configs, problem, multiprocessors),
        key=lambda config: expected_cycles(problem, config, multiprocessors),
    )
