"""What a matmul may choose, what it expects of a choice, and what it takes."""

import itertools
import math
from dataclasses import replace

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.backward.plan import BackwardPlan
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from numba_tma.kernels.matmul.choice import (
    AT_ONCE,
    CONFIGS,
    MMA_CONFIGS,
    ROW_CLUSTERS,
    SCALED_WIDTHS,
    TCGEN05_WIDTHS,
    MatmulProblem,
    candidates,
    choose,
    choose_mma,
    choose_tcgen05,
    choose_tiles,
    expected_cycles,
    expected_nanoseconds,
    expected_time,
    swapped,
    tcgen05_candidates,
    unaligned,
    unaligned_nanoseconds,
    with_parts,
)
from numba_tma.kernels.matmul.plan import (
    Config,
    MmaConfig,
    SwappedConfig,
    SwappedPlan,
    Tcgen05Config,
    UnalignedConfig,
)
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan
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
    UnalignedConfig: {"n": (8, 128), "stages": (2, 64)},
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
        assert expected <= 2.5 * (waves * max(moved, 128 * multiplied / 2048) / 128 + loaded / 3000)


def test_large_products_are_expected_at_most_of_the_peak():
    """989 TFLOP/s; the largest tiles are faster than all others."""
    problem = MatmulProblem(8192, 8192, 8192)
    seconds = {config: expected_cycles(problem, config, SMS) / 1.6e9 for config in CONFIGS}
    best = min(seconds, key=seconds.__getitem__)
    assert (best.m, best.n) == (128, 256) and best == choose(problem, SMS)
    assert 0.6 * 989e12 < 2 * 8192**3 / seconds[best] < 989e12


@pytest.mark.parametrize("rows", [1, 8, 30])
@pytest.mark.parametrize(("columns", "k"), [(512, 8192), (8192, 8192), (16384, 1024)])
def test_few_rows_are_expected_to_take_as_long_as_their_weights(rows, columns, k):
    """Memory gives 4.8 TB/s on an H200, 3.35 on an H100: many columns reach them, few do not."""
    problem = MatmulProblem(rows, columns, k)
    nbytes = 2 * columns * k
    times = {config: expected_nanoseconds(problem, config, SMS) for config in swapped(problem)}
    assert all(time > nbytes / 4800 for time in times.values())
    assert min(times.values()) < math.inf
    if k >= 8192:
        config = choose(problem, SMS)
        assert times[config] == min(times.values())
    if columns * k >= 1 << 26:
        assert times[config] < 1.3 * nbytes / 3350


def test_a_second_wave_of_few_rows_takes_longer():
    """A wave has as many clusters as run at once; one more tile is a wave of its own."""
    for config in (SwappedConfig(64, 8), SwappedConfig(128, 16, 2), SwappedConfig(64, 8, 4, 2)):
        slots = AT_ONCE[config.cluster] * config.blocks
        times = [
            expected_nanoseconds(MatmulProblem(8, config.m * tiles, 4096), config, SMS)
            for tiles in (slots - 1, slots, slots + 1, 2 * slots)
        ]
        assert times == sorted(times) and times[1] < times[2]
        assert times[3] == pytest.approx(2 * times[1], rel=0.1)


#: By blocks of a cluster: how many run at once on the 132 SMs of an H100, one block on an SM, as
#: its driver says (cuOccupancyMaxActiveClusters). A cluster is of one GPC, which leaves SMs idle.
ACTIVE_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 8: 15}


@pytest.mark.parametrize("cluster", ACTIVE_CLUSTERS)
def test_as_many_clusters_are_a_wave_as_run_at_once(cluster):
    """The last one of a wave costs next to nothing; one more waits for a cluster to end."""
    slots, config = ACTIVE_CLUSTERS[cluster], SwappedConfig(64, 8, cluster, k=512)
    last, full, more = (
        expected_nanoseconds(MatmulProblem(8, 64 * tiles, 512), config, SMS)
        for tiles in (slots - 1, slots, slots + 1)
    )
    assert 0 < full - last < 100 < 1000 < more - full


def test_a_cluster_pays_for_its_sums():
    """As many blocks, each with as much of b: of a cluster they also add up."""
    alone = expected_nanoseconds(MatmulProblem(8, 64 * 64, 4096), SwappedConfig(64, 8), SMS)
    together = expected_nanoseconds(MatmulProblem(8, 64 * 32, 8192), SwappedConfig(64, 8, 2), SMS)
    assert alone + 500 < together < alone + 1500


#: Cycles of the model, which was fitted as a whole: for other constants it would be another one.
MODEL = (Config(128, 256, 2), Config(), Config(128, 128), Config(64, 96), Config(64, 64, k=512),
         Config(64, 256, splits=2), Config(64, 64, k=256, splits=7),
         Config(64, 32, stages=2))  # fmt: skip
CYCLES = {
    (4096, 4096, 4096): [263683.5, 267283.6, 330038.4, 525714.3, 552891.7, 563352.5,
        1438594.8, 1492676.1],
    (16384, 512, 512, 1, 4, 4): [59244.9, 56688.4, 62132.1, 98166.8, 95194.1, 176730.9,
        568109.4, 227057.5],
    (1000, 300, 777, 3, 1, 2): [27318.9, 26412.0, 15702.2, 19723.8, 18139.9, 56594.0,
        104344.4, 28594.6],
    (300, 300, 300, 30): [45556.7, 44575.0, 36315.6, 41754.1, 42401.6, 124321.2, 293317.1, 72919.3],
    (130, 70, 20000): [312116.8, 310494.9, 192967.2, 118060.3, 83107.1, 119133.1, 27478.6,
        141304.2],
    (40, 1, 100): [22672.4, 21774.2, 12717.2, 9591.9, 11168.5, 28251.9, 16752.7, 7365.5],
    (64, 40, 100000, 1, 2, 4): [1465799.3, 1540954.1, 957957.6, 591416.9, 426451.2,
        510980.4, 69718.1, 1209747.0],
}  # fmt: skip
#: Nanoseconds of the model for few rows, on so many SMs.
FEW_ROWS_MODEL = (SwappedConfig(64, 8, k=512), SwappedConfig(64, 32, 2, 2),
                  SwappedConfig(128, 16, 8), SwappedConfig(64, 64, 4, k=128))  # fmt: skip
NANOSECONDS = {
    ((1, 512, 8192), 132): [13326.0, 22968.5, 8679.9, 8268.7],
    ((8, 8192, 8192), 132): [49761.9, 51694.3, 74258.7, 66976.2],
    ((30, 16384, 1024), 132): [52537.2, 18630.2, 123091.8, 47172.7],
    ((17, 700, 500, 3), 132): [2614.6, 4177.5, 20310.8, 10157.5],
    ((64, 40000, 2000, 1, 1), 132): [251455.2, 90746.8, 575606.3, 116322.4],
    ((5, 66, 9000), 1): [31036.5, 32841.7, 34424.5, 36861.7],
    ((40, 100, 100), 1): [20889.7, 8056.9, 20170.5, 10017.2],
    ((8, 64, 300), 132): [2089.5, 4021.8, 6719.9, 5002.0],
}


#: Both models where the lines of operands count: by axis, and split ones.
CYCLES_OF_LINES = {
    ((40, 5000, 3000), ("MN", "K"), (False, False)): [55087.1, 53873.6, 36362.2, 26639.6,
        25027.4, 37885.5, 41509.8, 47597.6],
    ((5000, 40, 3000), ("K", "MN"), (True, True)): [55127.2, 53943.0, 37864.9, 29097.2,
        31525.6, 53054.9, 47060.9, 48715.3],
    ((900, 1000, 5000), ("K", "K"), (True, True)): [82894.7, 105410.2, 71603.6, 89475.8,
        78709.8, 69947.1, 130007.9, 123309.6],
}  # fmt: skip
NANOSECONDS_OF_LINES = {
    ((8, 8192, 8192), ("MN", "K"), (True, False)): [49761.9, 51694.3, 76835.5, 71494.6],
    ((40, 9000, 2000), ("K", "MN"), (False, True)): [71214.8, 37722.9, 114446.4, 30167.6],
    ((64, 19200, 30000), ("K", "K"), (True, True)): [3469270.1, 903897.8, 1889859.0, 511671.2],
}


@pytest.mark.parametrize(
    ("model", "configs", "case", "expected"),
    [
        *((expected_cycles, MODEL, *row) for row in CYCLES_OF_LINES.items()),
        *((expected_nanoseconds, FEW_ROWS_MODEL, *row) for row in NANOSECONDS_OF_LINES.items()),
    ],
)
def test_both_models_count_lines(model, configs, case, expected):
    extents, majors, split = case
    problem = MatmulProblem(*extents, majors=majors, split_lines=split)
    found = [model(problem, config, SMS) for config in configs]
    assert found == pytest.approx(expected, abs=0.06, rel=0)


@pytest.mark.parametrize("problem", CYCLES, ids=str)
def test_the_model_of_cycles(problem):
    found = [expected_cycles(MatmulProblem(*problem), config, SMS) for config in MODEL]
    assert found == pytest.approx(CYCLES[problem], abs=0.06, rel=0)


@pytest.mark.parametrize(("problem", "sms"), NANOSECONDS, ids=str)
def test_the_model_of_few_rows(problem, sms):
    found = [expected_nanoseconds(MatmulProblem(*problem), c, sms) for c in FEW_ROWS_MODEL]
    assert found == pytest.approx(NANOSECONDS[problem, sms], abs=0.06, rel=0)


def test_two_stages_and_the_sums_of_a_cluster_have_to_fit():
    """Three stages of 16 KB to 128 KB in a third or a quarter of an SM's 225 KB."""
    problem = MatmulProblem(8, 64, 64)
    for config, fits in {
        SwappedConfig(128, 128, k=512): False,
        SwappedConfig(64, 64, k=512): True,
        SwappedConfig(64, 64, 1, 2, k=512): False,
        SwappedConfig(64, 64, 1, 2, k=256): True,
        SwappedConfig(64, 64, 2, 3, k=256): False,
        SwappedConfig(128, 88, 8, k=128): False,  # 11 times 8 columns, which have no shares
        SwappedConfig(128, 128, 8, k=128): True,
        SwappedConfig(64, 96, 8, 3, k=128): True,  # to the byte
    }.items():
        assert (expected_nanoseconds(problem, config, SMS) < math.inf) == fits, config


@pytest.mark.parametrize("rows", [1, 8, 9, 32, 33, 64, 128])
def test_swapped_operands_have_no_more_padded_rows_than_they_must(rows):
    found = list(swapped(MatmulProblem(rows, 4096, 4096)))
    assert len(set(found)) == len(found)
    halves = {math.ceil(rows / 16) * 8} if rows > 32 else set()
    eights = {math.ceil(rows / 8) * 8} | halves
    assert {config.n for config in found if config.cluster == 1} == eights
    sixteens = {math.ceil(n / 16) * 16 for n in eights} if rows > 8 else set()
    assert {config.n for config in found if config.cluster > 1} == eights | sixteens
    assert {config.cluster for config in found} == {1, 2, 3, 4, 5, 6, 8}
    assert {config.first for config in found} == {"b"}
    turned = list(swapped(MatmulProblem(4096, rows, 4096)))
    assert turned == [replace(config, first="a") for config in found]
    assert not list(swapped(MatmulProblem(rows, 4096, 4096, splittable=False)))
    assert not list(swapped(MatmulProblem(129, 4096, 4096)))


@pytest.mark.parametrize(
    ("rows", "extents", "k"),
    [(1, [[8]], 512), (16, [[16]], 512), (17, [[24, 32]], 256), (32, [[32]], 256),
     (33, [[40, 48], [24, 32]], 256), (128, [[128], [64]], 256)],
)  # fmt: skip
def test_what_is_tried_for_few_rows(rows, extents, k):
    """Stages of 512 B with up to 16 rows; from 33 on also of 128 B, and tiles of half the rows."""
    assert list(swapped(MatmulProblem(rows, 4096, 4096))) == [
        SwappedConfig(m, n, cluster, blocks, stage)
        for widths in extents
        for cluster in AT_ONCE
        for n in (widths if cluster > 1 else widths[:1])
        for m, blocks, longest in ((64, 1, k), (64, 2, 256), (128, 1, 256))
        for stage in ((longest, 128) if n > 32 else (longest,))
    ]


#: Operands of any alignment: microseconds on an H100, configurations, and the model's.
UNALIGNED = [
    ((1848, 19, 6839), "KK", UnalignedConfig("a", 24, 8), 28.6, 23.4),
    ((112, 14269, 857), "MK", UnalignedConfig("b", 112), 42.6, 50.1),
    ((16375, 64, 685), "MN", UnalignedConfig("a", 64), 24.0, 20.7),
    ((283, 2699, 203), "MN", UnalignedConfig("b", 64), 12.0, 10.9),
    ((257, 1192, 91), "KK", UnalignedConfig("b", 64, 2), 10.1, 9.0),
    ((1, 10377, 1161), "MN", UnalignedConfig("b", 8, k=256), 24.3, 21.9),
    ((2571, 320, 4544), "MN", UnalignedConfig("a", 64), 77.4, 92.7),
]


def odd_problem(extents, layout):
    """Return a problem of two operands that TMA cannot address."""
    majors = tuple("K" if axis == "K" else "MN" for axis in layout)
    copied = tuple(2 * n * extents[2] for n in extents[:2])
    return MatmulProblem(*extents, copied=copied, majors=majors)


@pytest.mark.parametrize(("extents", "layout", "config", "measured", "expected"), UNALIGNED)
def test_the_model_of_unaligned_operands(extents, layout, config, measured, expected):
    found = unaligned_nanoseconds(odd_problem(extents, layout), config, SMS) / 1000
    assert found == pytest.approx(expected, abs=0.1)
    assert 0.75 < found / measured < 1.55


#: Nanoseconds of the model, as of the other two.
UNALIGNED_MODEL = (UnalignedConfig("a", 24, 8), UnalignedConfig("b", 64),
                   UnalignedConfig("a", 72, 2), UnalignedConfig("b", 8, k=256),
                   UnalignedConfig("a", 8))  # fmt: skip
UNALIGNED_TIMES = {
    ((1848, 19, 6839), "KK"): [23403.1, 129225.8, 80703.1, 79542.0, 115189.7],
    ((283, 2699, 203), "MN"): [66373.3, 10886.7, 24279.5, 15962.0, 26656.5],
    ((2571, 320, 4544), "MK"): [246933.2, 92741.3, 213152.4, 224811.8, 513603.4],
    ((5, 4001, 1001), "KM"): [29840.6, 24732.7, 21903.1, 15754.3, 22055.2],
    ((70, 70, 40000), "NN"): [88024.0, 716167.0, 443884.8, 400095.8, 637920.9],
    ((1, 1, 1), "KK"): [8376.6, 7154.6, 12092.6, 6388.2, 6140.2],
}


@pytest.mark.parametrize(("extents", "layout"), UNALIGNED_TIMES)
def test_the_model_of_any_alignment(extents, layout):
    problem = odd_problem(extents, layout)
    found = [unaligned_nanoseconds(problem, config, SMS) for config in UNALIGNED_MODEL]
    assert found == pytest.approx(UNALIGNED_TIMES[extents, layout], abs=0.06, rel=0)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("bf16", "KK"), ("bf16", "MN"), ("bf16", "MK"), ("bf16", "KN"), ("e4m3", "KK")],
)
def test_a_time_is_finite_where_two_stages_fit(dtype, layout):
    """What is chosen can be compiled, and what can be compiled may be chosen."""
    size, fitting = (2, []) if dtype == "bf16" else (1, [])
    types, majors = [as_dtype(dtype)] * 2, ["K" if axis == "K" else "MN" for axis in layout]
    for few in range(1, 129, 7):
        for extents in ((few, 5000, 1001), (5000, few, 1001)):
            problem = replace(odd_problem(extents, layout), itemsize=size)
            for config in (*swapped(problem), *unaligned(problem)):
                kind = SwappedPlan if isinstance(config, SwappedConfig) else UnalignedPlan
                try:
                    fitting.append(bool(kind(*types, *majors, as_dtype("bf16"), config)))
                except ValueError:
                    fitting.append(False)
                expected = expected_time(problem, config, SMS)
                assert (expected < math.inf) == fitting[-1], (extents, config)
    assert set(fitting) == {True, False}


@pytest.mark.parametrize(
    ("extents", "layout"),
    [
        ((4001, 4001, 4001), "KK"),
        ((1000, 3000, 500), "MN"),
        ((4001, 20, 4001), "KK"),
        ((8, 4001, 300), "KK"),
    ],
)
def test_copies_are_launched_and_read_and_write(extents, layout):
    """Each takes 3 us, and one for some 1.5 MB, beside what the models leave out of all calls."""
    problem = odd_problem(extents, layout)
    aligned = replace(problem, copied=())
    for config in (choose_tiles(problem, SMS), *itertools.islice(swapped(problem), 1)):
        alone, copied = (expected_time(p, config, SMS) for p in (aligned, problem))
        assert copied - alone == pytest.approx(2 * 3140 + sum(problem.copied) / 1470)
        swaps = isinstance(config, SwappedConfig)
        model = expected_nanoseconds if swaps else expected_cycles
        rest = alone - model(aligned, config, SMS) / (1 if swaps else 1.6)
        assert rest == pytest.approx(4070 if swaps else 3580)  # as they were fitted, too
    other = UnalignedConfig()
    assert expected_time(problem, other, SMS) == unaligned_nanoseconds(problem, other, SMS)


def test_what_is_tried_for_unaligned_operands():
    """As few tiles as the narrow side has, a tile of 256 B along K where a has few chunks."""
    problem = odd_problem((5, 4001, 1001), "MN")
    found = [config for config in unaligned(problem) if config.first == "b"]
    assert {(c.n, c.cluster, c.k) for c in found} == {
        (8, cluster, k) for cluster in AT_ONCE for k in (128, 256)
    }
    assert {c.k for c in unaligned(odd_problem((5, 4001, 1001), "KK"))} == {128}
    for layout, few, lengths in (
        ("MN", 8, {128, 256}), ("MK", 8, {128, 256}), ("KN", 8, {128}), ("MN", 9, {128}),
    ):  # fmt: skip
        by_a = [c for c in unaligned(odd_problem((4001, few, 1001), layout)) if c.first == "a"]
        assert {c.k for c in by_a} == lengths
    for few, widths in ((32, {32, 16}), (33, {40, 24, 16, 32, 64})):
        by_a = [c for c in unaligned(odd_problem((4001, few, 1001), "KK")) if c.first == "a"]
        assert {c.n for c in by_a} == widths
    wide = {c.n for c in unaligned(odd_problem((300, 5000, 1001), "KK")) if c.first == "b"}
    assert wide == {32, 64, 80, 104}
    for other in (
        replace(problem, copied=()),
        replace(problem, splittable=False),
        replace(problem, itemsize=4),
    ):
        assert not list(unaligned(other))


def test_another_problem_checks_no_configuration_again(monkeypatch):
    """To make one takes longer than to expect its time, and each new shape expects a hundred."""
    odd = odd_problem((100, 4001, 4001), "KN")
    problems = [replace(odd, columns=columns) for columns in (4001, 4003)]
    first = list(candidates(problems[0], SMS))
    for kind in (Config, SwappedConfig, UnalignedConfig):
        monkeypatch.setattr(kind, "__post_init__", lambda self: pytest.fail("made again"))
    assert list(candidates(problems[1], SMS)) == first
    assert choose(problems[1], SMS) in first


def test_large_unaligned_products_are_copied():
    """Of which the tensor cores load each tile many times."""
    large, narrow = odd_problem((4001, 4001, 4001), "KK"), odd_problem((4001, 20, 4001), "KK")
    assert isinstance(choose(large, SMS), Config)
    assert isinstance(choose(narrow, SMS), UnalignedConfig)
    assert not isinstance(choose(replace(narrow, copied=()), SMS), UnalignedConfig)


def test_few_columns_have_the_kernel_of_few_rows():
    few = choose(MatmulProblem(4096, 40, 8192), SMS)
    assert isinstance(few, SwappedConfig) and few.first == "a" and few.n in (40, 48)
    for extents in ((12768, 129, 1152), (16384, 40, 64)):
        assert isinstance(choose(MatmulProblem(*extents), SMS), Config), extents
    assert isinstance(choose(MatmulProblem(4096, 40, 8192, splittable=False), SMS), Config)


@pytest.mark.parametrize("turned", [False, True])
def test_few_rows_are_split_by_two_kernels_only_where_clusters_leave_sms_idle(turned):
    """With 32 parts each of 4 tiles of 64 has an SM of 132; parts of 32 KB of K fill clusters."""
    for rows, columns, k, batch, splits in (
        (100, 256, 16392, 1, True), (100, 257, 16392, 1, False), (100, 256, 16384, 1, False),
        (1, 64, 16392, 4, True), (1, 64, 16392, 5, False), (129, 256, 16384, 1, True),
    ):  # fmt: skip
        extents = (columns, rows) if turned else (rows, columns)
        found = choose_tiles(MatmulProblem(*extents, k, batch), SMS)
        assert (found.splits > 1) == splits, (rows, columns, k, batch)


def test_lines_that_are_split_take_longer():
    """Rows of 9,584 B begin inside of cache lines: L2 was the limit, at 114 us on an H100."""
    problem = MatmulProblem(6848, 576, 4792)
    split = replace(problem, split_lines=(True, True))
    config = Config(128, 160, group=14)
    whole, found = (expected_cycles(p, config, SMS) / 1600 for p in (problem, split))
    assert whole < 90 and 92 < found < 125
    assert choose(split, SMS) == Config(192, 192, 2, group=12, out_stages=1)


def test_lines_are_split_by_operand():
    """Those of the operand of which a tile has more rows cost more, whichever kernel it is."""
    problem = MatmulProblem(8192, 8192, 8192)

    def split(a, b, config, problem=problem):
        return expected_time(replace(problem, split_lines=(a, b)), config, SMS)

    for config in (Config(192, 96), Config(64, 256)):
        whole, a, b, both = (
            split(*lines, config) for lines in itertools.product((False, True), repeat=2)
        )  # of b first, then of a
        assert whole < min(a, b) < max(a, b) < both
        assert (a < b) == (config.m > config.n)
    few = MatmulProblem(128, 65536, 4096)
    config = SwappedConfig(64, 128)
    b, a, both = (split(*lines, config, few) for lines in ((0, 1), (1, 0), (1, 1)))
    assert b < a and 0.15 < both / a - 1 < 0.2  # 384 lines of a tile beside 320
    turned = replace(few, rows=few.columns, columns=few.rows, split_lines=(True, False))
    assert turned.swapped == replace(few, split_lines=(False, True))


def test_tiles_that_begin_inside_of_lines_request_some_twice():
    """Every other tile of 224 columns begins in the middle of lines, and none of 256."""
    problem = MatmulProblem(4096, 4096, 4096, majors=("K", "MN"))
    along_k = replace(problem, majors=("K", "K"))
    split = replace(problem, split_lines=(False, True))

    def expected(config):
        return [expected_cycles(p, config, SMS) for p in (along_k, problem, split)]

    along, across, twice = expected(Config(128, 224))
    assert along < across == twice
    assert 1.15 < across / along < 1.5  # 440 us beside 342 on an H100, at 5120 cubed
    along, across, twice = expected(Config(128, 256))
    assert along == across < twice


def test_blocks_of_a_cluster_read_their_columns_once():
    """L2 gives each block its rows of a, and a cluster its columns of b once."""
    problem = MatmulProblem(8192, 8192, 8200, split_lines=(True, True))
    alone, pair = (expected_cycles(problem, Config(128, 192, n, group=14), SMS) for n in (1, 2))
    assert 0.7 < pair / alone < 0.9


def test_what_is_tuned():
    few, many = MatmulProblem(128, 512, 4096), MatmulProblem(129, 512, 4096)
    parts = [list(with_parts(CONFIGS, problem, SMS)) for problem in (few, many)]
    assert list(candidates(few, SMS)) == [*parts[0], *swapped(few)]
    assert list(candidates(many, SMS)) == parts[1]
    odd = replace(many, copied=(1,))
    assert list(candidates(odd, SMS)) == [*parts[1], *unaligned(odd)]
    static = [Tcgen05Config(256, cta_group=n, scheduler="static") for n in (2, 1)]
    pairs = [Tcgen05Config(n, cta_group=2) for n in SCALED_WIDTHS]
    for given, widths in {(): TCGEN05_WIDTHS, (True,): SCALED_WIDTHS}.items():
        found = list(tcgen05_candidates(*given))
        assert found == [*pairs, *[Tcgen05Config(n) for n in widths], *static]
    assert (TCGEN05_WIDTHS, SCALED_WIDTHS) == ((256, 192, 128, 96, 64, 32), (256, 192, 128, 64))


#: m, n, cluster, across, k, group
TABLE = [
    (128, 256, 2, 1, 128, 16), (128, 256, 1, 1, 128, 16), (192, 192, 2, 1, 128, 12),
    (192, 192, 1, 1, 128, 12), (128, 192, 2, 1, 128, 14), (128, 192, 1, 1, 128, 14),
    (128, 224, 1, 1, 128, 14), (128, 160, 1, 1, 128, 14), (128, 128, 2, 1, 128, 12),
    (128, 128, 1, 1, 128, 12), (128, 64, 1, 1, 128, 8), (64, 256, 1, 1, 128, 24),
    (64, 192, 1, 1, 128, 16), (64, 128, 1, 1, 128, 16), (64, 128, 1, 1, 256, 16),
    (64, 96, 1, 1, 128, 16), (64, 64, 1, 1, 256, 12), (64, 64, 1, 1, 512, 12),
    (64, 32, 1, 1, 256, 8), (64, 32, 1, 1, 512, 8), (192, 128, 2, 1, 128, 12),
    (192, 96, 1, 1, 128, 12), (128, 128, 1, 2, 128, 12), (128, 64, 1, 2, 128, 12),
    (128, 64, 1, 4, 128, 12), (128, 64, 2, 1, 128, 12), (128, 64, 4, 1, 128, 12),
    (64, 128, 1, 2, 128, 16), (64, 128, 2, 1, 128, 16), (64, 128, 4, 1, 128, 16),
    (64, 96, 2, 1, 128, 16), (64, 64, 1, 4, 128, 12), (64, 64, 2, 2, 128, 12),
    (64, 64, 4, 1, 128, 12), (64, 32, 1, 4, 128, 12),
]  # fmt: skip


def test_the_table():
    """Two tiles of 192 x 192 leave no room for a second epilogue tile."""
    assert CONFIGS == tuple(
        Config(m, n, down, across, k=k, group=group, out_stages=1 if m == n == 192 else 2)
        for m, n, down, across, k, group in TABLE
    )
    assert ROW_CLUSTERS == tuple(config for config in CONFIGS if config.across == 1)
    assert MMA_CONFIGS == (
        MmaConfig(128, 128), MmaConfig(128, 64), MmaConfig(64, 64), MmaConfig(64, 32, k=128)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ((32, 4096, 4096), SwappedConfig),
        ((129, 4096, 4096), Config),
        ((1, 64, 16384), SwappedConfig),
        ((1, 64, 65536), Config),  # a cluster has too few blocks for so long a K
        ((1, 128, 65536), Config),
        ((1, 257, 65536), SwappedConfig),
        ((1, 1, 65536, 4), Config),
        ((1, 1, 65536, 5), SwappedConfig),
        ((1, 65, 65536, 2), Config),
        ((1, 65, 65536, 3), SwappedConfig),
        ((1, 256, 65536, 1, 1), SwappedConfig),
        ((1, 128, 131072, 1, 1), Config),
        ((1, 64, 64, 1, 2, 2, False), Config),
    ],
)
def test_few_rows_of_a_long_k_are_split(problem, kind):
    assert type(choose(MatmulProblem(*problem), SMS)) is kind
    assert type(choose(MatmulProblem(1, 64, 65536), 32)) is SwappedConfig
    assert type(choose(MatmulProblem(1, 64, 65536), 33)) is Config


@pytest.mark.parametrize(("k", "itemsize"), [(16384, 2), (32768, 1)])
def test_k_of_few_rows_is_split_from_32_kb_on(k, itemsize):
    """A tile of few rows; clusters add up shorter ones."""
    for columns, splits in ((64, True), (4 * 64, True), (4 * 64 + 1, False)):
        problems = [MatmulProblem(1, columns, n, 1, itemsize) for n in (k, k + 1)]
        assert [choose_tiles(p, SMS).splits > 1 for p in problems] == [False, splits]


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
        assert splits <= possible and (config.blocks == 1 or not splits)
        if config.blocks == 1 and possible:
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
        (1, 32, 64), (1, 33, 64), (129, 16896, 64), (1024, 2112, 64), (1025, 1408, 64),
        (2112, 800, 64), (128, 8448, 64), (100, 128, 64, 132), (8448, 64, 64), (896, 4864, 64),
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
