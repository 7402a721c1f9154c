"""Every kernel of matmul is launched with as many blocks as it has work for, and its extents."""

import math

import numpy as np
import pytest

from numba_tma.host.arrays import Array as Read
from numba_tma.host.cluster_rules import cluster_of
from numba_tma.kernels._host.device import resident_clusters
from numba_tma.kernels.matmul import (
    Config,
    MmaConfig,
    StreamKConfig,
    SwappedConfig,
    Tcgen05Config,
    UnalignedConfig,
    matmul,
)
from numba_tma.kernels.matmul import launch as module
from numba_tma.kernels.matmul.arguments import MatmulExtents
from numba_tma.kernels.matmul.kernel import matmul_kernel
from numba_tma.kernels.matmul.mma_kernel import mma_kernel
from numba_tma.kernels.matmul.stream_k_kernel import stream_k_kernel
from numba_tma.kernels.matmul.stream_k_plan import StreamK
from numba_tma.kernels.matmul.swapped_kernel import swapped_kernel
from numba_tma.kernels.matmul.tcgen05_kernel import tcgen05_kernel
from numba_tma.kernels.matmul.tcgen05_pair_kernel import tcgen05_pair_kernel
from numba_tma.kernels.matmul.unaligned_kernel import unaligned_kernel
from tests.cpu.kernels.test_matmul_host import E4M3, Array, gpu  # noqa: F401 (a fixture)

SMS = 132
CONFIGURED = [
    Config(128, 256),
    Config(64, 96, k=256),
    Config(128, 64, 2),
    Config(64, 128, 4),
    Config(64, 64, splits=3),
    StreamKConfig(128, 256),
    StreamKConfig(128, 128, 2),
    SwappedConfig(64, 16),
    SwappedConfig(128, 8, 4),
    SwappedConfig(64, 24, blocks=2),
    SwappedConfig(128, 32, 2, first="a"),
    SwappedConfig(64, 16, blocks=2, first="a"),
    UnalignedConfig("a", 24),
    UnalignedConfig("b", 40, cluster=4),
    Tcgen05Config(64),
    Tcgen05Config(128, cta_group=2),
    Tcgen05Config(32, scheduler="static"),
    Tcgen05Config(256, scheduler="static", cta_group=2),
    MmaConfig(128, 64),
    MmaConfig(64, 32, k=128),
]
BATCHES = [((), ()), ((3,), (3,)), ((3,), ()), ((), (2,))]


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """Let each kernel be its plan."""
    for name in ("tcgen05_kernel", "tcgen05_pair_kernel", "mma_kernel", "unaligned_kernel"):
        monkeypatch.setattr(module, name, lambda plan, name=name: (name, plan))
    monkeypatch.setattr("numba_tma.kernels._host.device.sm_count", lambda: SMS)


def launched(gpu, *arrays, **options):  # noqa: F811
    """Return the first launch: its plan, blocks, threads, and extents."""
    gpu.launches.clear()
    matmul(*arrays, **options)
    plan, blocks, threads, arguments = gpu.launches[0]
    (extents,) = (given for given in arguments if isinstance(given, MatmulExtents))
    return plan[1] if isinstance(plan, tuple) else plan, blocks, threads, extents


def tile_of(config):
    """Return rows and columns of an output tile of a block, or of a pair."""
    if isinstance(config, SwappedConfig | UnalignedConfig):
        wide = getattr(config, "m", 64)
        n = -(-config.n // 16) * 16 if config.first == "a" else config.n  # b lies along N
        return (wide, n) if config.first == "a" else (n, wide)
    return (128 * config.cta_group if isinstance(config, Tcgen05Config) else config.m), config.n


def blocks_for(config, rows, columns, k, batch):
    """Return how many blocks have work, or how many run at once if they take several tiles."""
    height, width = tile_of(config)
    tiles = [math.ceil(rows / height), math.ceil(columns / width)]
    match config:
        case SwappedConfig(cluster=1) | UnalignedConfig(cluster=1):
            return min(math.prod(tiles) * batch, SMS * getattr(config, "blocks", 2))
        case SwappedConfig() | UnalignedConfig():
            return math.prod(tiles) * batch * config.cluster
        case Tcgen05Config(scheduler="launch_control"):
            return math.prod(tiles) * batch * config.cta_group
    size = getattr(config, "cluster", getattr(config, "cta_group", 1))
    if isinstance(config, Config):
        tiles[0] = math.ceil(tiles[0] / size)
        batch *= config.splits
    if isinstance(config, StreamKConfig):  # at least 8 stages for each cluster
        stages = math.prod(tiles) * batch * math.ceil(k / 64)
        most = resident_clusters(size, 1)
        return min(most, max(math.prod(tiles) * batch, stages // 8)) * size
    work, most = math.prod(tiles) * batch, resident_clusters(size, 1)
    waves = math.ceil(work / most)
    return next(n for n in range(1, most + 1) if math.ceil(work / n) == waves) * size


@pytest.mark.parametrize("left, right", BATCHES, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "k"), [(5, 200, 72), (300, 520, 1040), (2000, 4096, 64)]
)
@pytest.mark.parametrize("config", CONFIGURED, ids=str)
def test_blocks_and_extents(gpu, config, rows, columns, k, left, right):  # noqa: F811
    batch = math.prod(left or right)
    a, b = Array(1, (*left, rows, k)), Array(2, (*right, k, columns))
    out = Array(3, (*(left or right), rows, columns))
    plan, blocks, threads, extents = launched(gpu, a, b, out, config=config)
    if left and not right:  # one matrix of all rows
        rows, batch = rows * batch, 1
    height, width = tile_of(config)
    size = getattr(config, "cluster", 1) if isinstance(config, Config) else 1
    tile_rows = math.ceil(math.ceil(rows / height) / size) * size
    splits = getattr(config, "splits", 1)  # each split is a matrix of its own
    assert extents[:5] == (rows, columns, tile_rows, math.ceil(columns / width), batch * splits)
    assert (extents.steps, extents.splits) == (math.ceil(k / plan.k), splits)
    assert extents.a_stride == (bool(left) and batch > 1)
    assert extents.b_stride == bool(right)
    assert blocks == blocks_for(config, rows, columns, k, batch)
    assert threads == plan.roles.threads


KERNELS = {
    Config: matmul_kernel, StreamKConfig: stream_k_kernel, SwappedConfig: swapped_kernel,
    UnalignedConfig: unaligned_kernel, MmaConfig: mma_kernel,
    Tcgen05Config: lambda p: (tcgen05_kernel, tcgen05_pair_kernel)[p.config.cta_group - 1](p),
}  # fmt: skip


@pytest.mark.parametrize(
    "config", [*CONFIGURED, Config(64, 64, across=2), Config(64, 64, 2, across=4)], ids=str
)
def test_a_kernel_has_the_clusters_of_its_plan_or_none(gpu, config):  # noqa: F811
    arrays = (Array(i, shape) for i, shape in enumerate(((300, 72), (72, 520), (300, 520))))
    plan, *_ = launched(gpu, *arrays, config=config)
    x, y = getattr(config, "cluster", getattr(config, "cta_group", 1)), getattr(config, "across", 1)
    found = cluster_of(KERNELS[type(config)](plan).py_func)
    assert found == ((x, y, 1) if x * y > 1 else None)


SPLIT, WHOLE = Array(1, (64, 72)), Array(1, (64, 128))  # rows of 144 B and 256 B
PROBLEMS = {
    "rows of a": (SPLIT, Array(2, (72, 128)), (True, False), ("K", "MN"), 0),
    "rows of b": (WHOLE, Array(2, (128, 72)), (False, True), ("K", "MN"), 0),
    "along M and K": (SPLIT.T, Array(2, (72, 64)).T, (True, False), ("MN", "K"), 0),
    "whole lines": (WHOLE.T, Array(2, (64, 128)).T.T, (False, False), ("MN", "MN"), 0),
    "a copy of a": (Array(1, (64, 65)), Array(2, (65, 72)), (False, True), ("K", "MN"), 8320),
    "copies along K": (
        *(Array(1, (64, 72), E4M3).T, Array(2, (64, 72), E4M3)),
        *((False, False), ("K", "K"), 4608 + 4608),
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_the_choice_depends_on(gpu, monkeypatch, name):  # noqa: F811
    """Lines of 128 B that rows split, and along what operands lie, once they are copied."""
    a, b, split_lines, majors, copied = PROBLEMS[name]
    given = []
    monkeypatch.setattr(module, "choose", lambda problem, sms: given.append(problem) or Config())
    out = Array(3, (a.shape[0], b.shape[1]))
    matmul(a, b, out)
    (problem,) = given
    assert (problem.split_lines, problem.majors) == (split_lines, majors)
    assert sum(problem.copied) == copied
    assert (problem.rows, problem.columns, problem.k) == (*out.shape, a.shape[1])


def test_few_rows_that_lie_along_m_are_in_one_swizzle_span_or_in_slabs(gpu):  # noqa: F811
    """A span of 128 B has 64 rows of bf16."""
    for n, span in ((8, 32), (16, 32), (24, 64), (40, 128), (72, 128), (128, 128)):
        a, b = Array(1, (96, n)).T, Array(2, (96, 200))
        plan, *_ = launched(gpu, a, b, Array(3, (n, 200)), config=SwappedConfig(64, n))
        assert (plan.a_major, plan.rows, plan.n) == ("MN", n, n)
        assert plan.a_tile.swizzle.span == span


@pytest.mark.parametrize("k", [0, 1, 65])
def test_stream_k_divides_whatever_has_a_stage(gpu, k):  # noqa: F811
    arrays = Array(1, (300, k)), Array(2, (k, 96)), Array(3, (300, 96))
    matmul(*arrays, config=StreamKConfig(64, 32))
    arguments = gpu.launches[-1][-1]
    assert sum(isinstance(given, StreamK) for given in arguments) == (k > 0)


@pytest.mark.parametrize(
    ("cores", "kind"), [("has_tcgen05", Tcgen05Config), ("has_mma_alone", MmaConfig), ("", Config)]
)
def test_a_gpu_has_the_kernel_of_its_tensor_cores(gpu, monkeypatch, cores, kind):  # noqa: F811
    for name in ("has_tcgen05", "has_mma_alone"):
        monkeypatch.setattr(module, name, lambda name=name: name == cores)
    shapes = ((300, 64), (64, 520), (300, 520))
    plan, *_ = launched(gpu, *(Array(i, shape) for i, shape in enumerate(shapes)))
    assert isinstance(plan.config, kind)


@pytest.mark.parametrize("k", [0, 64])
@pytest.mark.parametrize("group", [1, 2])
def test_pairs_have_a_kernel_of_their_own_and_no_k_no_product(gpu, group, k):  # noqa: F811
    arrays = Array(1, (300, k)), Array(2, (k, 96)), Array(3, (300, 96))
    matmul(*arrays, config=Tcgen05Config(64, cta_group=group))
    (((name, plan), *_),) = gpu.launches
    assert (name, plan.empty) == (("", "tcgen05_kernel", "tcgen05_pair_kernel")[group], k == 0)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 7, 5), (200, 20, 2)),
        ((2, 7, 5), (200, 20, 2)),
        ((1, 7, 5), (999, 20, 2)),  # of one matrix the stride counts nothing
        ((2, 1, 1), (38, 20, 2)),
        ((3, 7, 5), (0, 20, 2)),  # the same matrix for all
        ((0, 7, 5), (200, 20, 2)),
        ((2, 7, 0), (200, 20, 2)),
    ],
)
def test_threads_load_an_operand_from_its_first_to_its_last_byte(shape, strides):
    given = Read.read("matmul", "a", Array(1, shape, strides=strides))
    found, (each, line, _) = module._unaligned(given), given.strides
    ends = [given.address]
    ends += [given.address + np.dot(at, strides) + 2 for at in np.ndindex(shape)]
    between = each if shape[0] > 1 else 0
    assert tuple(found) == (given.address, max(ends), between, line, *shape[1:])


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (Array(1, (64, 72)), "bf16 K"),
        (Array(1, (72, 64)).T, "bf16 MN"),
        (Array(1, (64, 70)), "bf16 K copied"),
        (Array(1, (70, 60)).T, "bf16 MN copied"),
    ],
)
def test_measurements_tell_layouts_apart(view, text):
    """What TMA cannot load is copied first, which takes time."""
    assert module._layout(Read.read("matmul", "a", view).as_matrices()) == text


def test_swapped_operands_add_up_no_integers(gpu):  # noqa: F811
    arrays = Array(1, (8, 64), "i1"), Array(2, (64, 64), "i1").T, Array(3, (8, 64), "i4")
    with pytest.raises(ValueError, match="kernel adds up float32, but a is i8 .*: use a Config"):
        matmul(*arrays, config=SwappedConfig(64, 8))
