"""What a matmul may choose, what it expects of a choice, and what it takes."""

import math
from dataclasses import replace

import pytest

from numba_tma.kernels.attention.backward.plan import BackwardPlan
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from numba_tma.kernels.matmul.choice import (
    CONFIGS,
    MMA_CONFIGS,
    SCALED_WIDTHS,
    TCGEN05_WIDTHS,
    MatmulProblem,
    choose,
    choose_mma,
    choose_tcgen05,
    expected_cycles,
    expected_nanoseconds,
    swapped,
    with_parts,
)
from numba_tma.kernels.matmul.plan import Config, MmaConfig, SwappedConfig, Tcgen05Config
from numba_tma.kernels.rows.plan import RowPlan

SMS = 132
GHZ = 1.98 / 1.6  # an H200 runs at up to 1.98 GHz; the model counts cycles of 1.6

# ------------------------------------------------------------------- what may be chosen

#: The least and the most of each field, with the other fields as they are by default.
ENDS = {
    Config: {"n": (32, 256), "splits": (1, 4096), "group": (1, 65536), "stages": (2, 64),
             "out_stages": (1, 16)},
    ScaledConfig: {"n": (32, 192), "splits": (1, 4096), "group": (1, 65536), "stages": (2, 64)},
    SwappedConfig: {"n": (8, 128), "blocks": (1, 4), "stages": (2, 64)},
    Tcgen05Config: {"n": (32, 256), "group": (1, 65536), "stages": (2, 64), "out_stages": (1, 4)},
    MmaConfig: {"n": (32, 128), "group": (1, 65536), "stages": (2, 64), "out_stages": (1, 4)},
    AttentionPlan: {"warpgroups": (1, 3), "block_k": (16, 256), "stages": (1, 64),
                    "heads_together": (0, 65536), "splits": (1, 65536)},
    BackwardPlan: {"stages": (2, 64), "sum_stages": (1, 64), "heads_together": (1, 65536)},
    Tcgen05AttentionPlan: {"stages": (2, 64), "heads_together": (0, 65536),
                           "polynomial_period": (0, 65536)},
    RowPlan: {"blocks": (0, 32)},
}  # fmt: skip
FIELDS = [(kind, field, *ends) for kind, fields in ENDS.items() for field, ends in fields.items()]


@pytest.mark.parametrize(
    ("kind", "field", "least", "most"), FIELDS, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_least_and_the_most_of_a_field(kind, field, least, most):
    given = {"threads": 32} if kind is RowPlan else {}
    for value in (least, most):
        assert getattr(kind(**given, **{field: value}), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=rf"{kind.__name__}\({field}={value}|{field}={value}"):
            kind(**given, **{field: value})


# ------------------------------------------------------------------- what is expected of it


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("extents", [(128, 256, 1 << 17), (4096, 4096, 4096), (8192, 8192, 512)])
def test_no_product_is_expected_to_be_faster_than_an_h200(config, extents):
    """An SM multiplies 2,048 pairs of bf16 a cycle, and moves 128 B to or from shared memory.

    A tile is padded, and its operands are written once and read by each of its warpgroups.
    """
    rows, columns, k = extents
    problem = MatmulProblem(rows, columns, k)
    tiles = math.ceil(rows / config.m) * math.ceil(columns / config.n)
    waves = math.ceil(tiles / SMS)
    moved = 2 * k * (2 * config.m + config.n * (1 + config.m // 64))
    multiplied = config.m * config.n * k
    least = waves * max(moved / 128, multiplied / 2048) / GHZ
    expected = expected_cycles(problem, config, SMS)
    assert expected >= least
    if rows == 4096:
        loaded = 2 * k * (rows + columns) + 2 * rows * columns
        assert expected <= 1.5 * (waves * max(moved, 128 * multiplied / 2048) / 128 + loaded / 3000)


def test_large_products_are_expected_at_most_of_the_peak():
    """989 TFLOP/s; the largest tiles are faster than all others."""
    problem = MatmulProblem(8192, 8192, 8192)
    seconds = {config: expected_cycles(problem, config, SMS) / 1.6e9 for config in CONFIGS}
    best = min(seconds, key=seconds.__getitem__)
    assert best in CONFIGS[:2] and best == choose(problem, SMS)
    assert 0.6 * 989e12 < 2 * 8192**3 / seconds[best] < 989e12


@pytest.mark.parametrize("rows", [1, 8, 30])
@pytest.mark.parametrize(("columns", "k"), [(512, 8192), (8192, 8192), (16384, 1024)])
def test_few_rows_are_expected_to_take_as_long_as_their_weights(rows, columns, k):
    """The memory of an H200 gives 4.8 TB/s, which many columns reach and few do not."""
    problem = MatmulProblem(rows, columns, k)
    nbytes = 2 * columns * k
    times = {config: expected_nanoseconds(problem, config, SMS) for config in swapped(problem)}
    assert all(time > nbytes / 4800 for time in times.values())
    config = choose(problem, SMS)
    assert times[config] == min(times.values()) < math.inf
    if columns * k >= 1 << 26:
        assert times[config] < 1.25 * nbytes / 4800


def test_a_second_wave_of_few_rows_takes_longer():
    """A wave has 132 blocks; one more tile is a wave of its own."""
    for config in (SwappedConfig(64, 8), SwappedConfig(128, 16, 2), SwappedConfig(64, 8, 4, 2)):
        slots = SMS * config.blocks // config.cluster
        times = [
            expected_nanoseconds(MatmulProblem(8, config.m * tiles, 4096), config, SMS)
            for tiles in (slots - 1, slots, slots + 1, 2 * slots)
        ]
        assert times == sorted(times) and times[1] < times[2]
        assert times[3] == pytest.approx(2 * times[1], rel=0.1)


def test_a_cluster_pays_for_its_sums():
    """As many blocks, each with as much of b: of a cluster they also add up."""
    alone = expected_nanoseconds(MatmulProblem(8, 64 * 64, 4096), SwappedConfig(64, 8), SMS)
    together = expected_nanoseconds(MatmulProblem(8, 64 * 32, 8192), SwappedConfig(64, 8, 2), SMS)
    assert alone + 1000 < together < alone + 3000


@pytest.mark.parametrize("rows", [1, 8, 9, 32, 64])
def test_swapped_operands_have_no_more_padded_rows_than_they_must(rows):
    found = list(swapped(MatmulProblem(rows, 4096, 4096)))
    assert len(set(found)) == len(found)
    assert {config.n for config in found} == {math.ceil(rows / 8) * 8}
    assert {config.cluster for config in found} == {1, 2, 4, 8}
    assert not list(swapped(MatmulProblem(rows, 4096, 4096, splittable=False)))
    assert not list(swapped(MatmulProblem(rows + 64, 4096, 4096)))


# --------------------------------------------------------------------------------- splits


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("rows", "columns", "k"), [(64, 256, 65536), (200, 300, 2000), (64, 64, 9)]
)
def test_splits_fill_idle_sms_and_no_more(rows, columns, k, batch):
    """A part has four steps or more, and a wave all of the parts."""
    problem = MatmulProblem(rows, columns, k, batch)
    found = list(with_parts(CONFIGS, problem, SMS))
    assert found[: len(CONFIGS)] == list(CONFIGS)
    for config in CONFIGS:
        tiles = math.ceil(rows / config.m) * math.ceil(columns / config.n) * batch
        steps = math.ceil(2 * k / config.k)
        possible = {s for s in range(2, 33) if tiles * s <= SMS and 4 * s <= steps}
        splits = {c.splits for c in found if replace(c, splits=1) == config} - {1}
        assert splits <= possible and (config.cluster == 1 or not splits)
        if config.cluster == 1 and possible:
            assert splits == {s for s in possible if s == max(possible) or s & (s - 1) == 0}
    assert list(with_parts(CONFIGS, replace(problem, splittable=False), SMS)) == list(CONFIGS)


@pytest.mark.parametrize("config", [Config(128, 128), Config(64, 64, k=256)], ids=str)
def test_splits_are_expected_to_help_where_sms_are_idle(config):
    def gain(problem):
        split = replace(config, splits=4)
        return expected_cycles(problem, config, SMS) / expected_cycles(problem, split, SMS)

    assert gain(MatmulProblem(64, 64, 1 << 17)) > 3  # near 4: the parts run at a time
    assert gain(MatmulProblem(64, 64, 64)) < 1  # a second kernel takes longer
    assert gain(MatmulProblem(4096, 4096, 4096)) < 1  # no SM is idle


# ------------------------------------------------------------------------ other tensor cores

PROBLEMS = [
    MatmulProblem(*extents)
    for extents in (
        (1, 8, 64), (1, 40, 64), (128, 4096, 64), (256, 4096, 64), (384, 8192, 64), (512, 2400, 64),
        (1100, 1100, 64), (1152, 8192, 64), (4096, 4096, 64), (16384, 96, 64), (128, 600, 64, 30),
    )
]  # fmt: skip


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_widest_tiles_that_occupy_a_blackwell_gpu(problem, scaled):
    config = choose_tcgen05(problem, SMS, scaled)
    widths = SCALED_WIDTHS if scaled else TCGEN05_WIDTHS
    assert config.n in widths

    def blocks(n, group):
        tile_rows = math.ceil(problem.rows / (128 * group))
        return tile_rows * math.ceil(problem.columns / n) * problem.batch * group

    row_tiles = math.ceil(problem.rows / 128)
    group = 2 if row_tiles % 2 == 0 or row_tiles > 8 else 1  # a pair's half may lie outside
    enough = [n for n in widths if n > 64 and blocks(n, group) >= SMS]
    if enough:
        assert (config.n, config.cta_group) == (max(enough), group)
    else:
        assert config.cta_group == 1
        assert config.n == (64 if problem.columns > 32 or scaled else 32)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_largest_tiles_by_mma_that_occupy_all_sms(problem):
    def tiles(config):
        return (
            math.ceil(problem.rows / config.m)
            * math.ceil(problem.columns / config.n)
            * problem.batch
        )

    enough = [config for config in MMA_CONFIGS if tiles(config) >= SMS]
    assert choose_mma(problem, SMS) == (enough or MMA_CONFIGS[-1:])[0]
    areas = [config.m * config.n for config in MMA_CONFIGS]
    assert areas == sorted(areas, reverse=True)
