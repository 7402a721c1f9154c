"""What plans may be, what they are by default, and the tables of measured ones, each as a whole."""

import dataclasses
import importlib
import itertools
import pkgutil

import pytest

import numba_tma.kernels
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle
from numba_tma.kernels.attention import choice as attention_plans
from numba_tma.kernels.attention import tcgen05_plan as tcgen05_attention_plans
from numba_tma.kernels.attention import times as attention_times
from numba_tma.kernels.attention.backward import plan as backward_plans
from numba_tma.kernels.attention.backward.plan import BackwardPlan
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.matmul import operands
from numba_tma.kernels.matmul.arguments import Epilogue, Terms
from numba_tma.kernels.matmul.block_scaled import CONFIGS as SCALED_CONFIGS
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig, ScaledPlan
from numba_tma.kernels.matmul.choice import MatmulProblem
from numba_tma.kernels.matmul.launch import MatmulCall
from numba_tma.kernels.matmul.mma_plan import MmaPlan
from numba_tma.kernels.matmul.plan import (
    Config,
    MatmulPlan,
    MmaConfig,
    StreamKConfig,
    SwappedConfig,
    SwappedPlan,
    Tcgen05Config,
    UnalignedConfig,
)
from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05Plan, Tcgen05ScaledPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan
from numba_tma.kernels.pointwise.plan import PointwisePlan
from numba_tma.kernels.pointwise.plan import plan_for as pointwise_plan_for
from numba_tma.kernels.rows import launching
from numba_tma.kernels.rows.backward import plan_for as backward_rows_plan_for
from numba_tma.kernels.rows.plan import (
    CACHES,
    PLAIN,
    PLANS,
    UNALIGNED,
    RowOptions,
    RowPlan,
    plan_for,
    require_room,
)
from numba_tma.kernels.transpose import plan as transpose_plans
from numba_tma.kernels.transpose.plan import PLANS as TRANSPOSE_PLANS
from numba_tma.kernels.transpose.plan import TransposePlan

# ---------------------------------------------------------------------------- fields

#: What a field takes, with the other fields as given; the other whole numbers up to 300, the
#: neighbours of the ends and all other words are refused.
POWERS_TO_8, LARGE = {1, 2, 4, 8}, range(1, (1 << 16) + 1)
STAGES, FLAG = range(2, 65), {True, False}
OF_CONFIG = {"m": {64, 128, 192}, "n": range(32, 257, 32), "cluster": POWERS_TO_8,
             "across": POWERS_TO_8, "k": {128, 256, 512},
             "out_bytes": {32, 64, 128}, "splits": range(1, 4097), "group": LARGE,
             "stages": STAGES, "out_stages": range(1, 17)}  # fmt: skip
FIELDS = [
    (Config, {}, OF_CONFIG),
    (StreamKConfig, {}, OF_CONFIG | {"splits": {1}, "across": {1}}),
    (ScaledConfig, {}, {"m": {64, 128, 256}, "n": range(32, 193, 32), "cluster": POWERS_TO_8,
                        "across": {1}, "k": {128}, "out_bytes": {32, 64, 128},
                        "splits": range(1, 4097), "group": LARGE, "stages": STAGES,
                        "out_stages": range(1, 17)}),
    (ScaledConfig, {"m": 256}, {"n": range(32, 129, 32)}),
    (SwappedConfig, {}, {"m": {64, 128}, "n": range(8, 129, 8), "cluster": range(1, 9),
                         "k": {128, 256, 512}, "first": {"a", "b"}, "blocks": range(1, 5),
                         "stages": STAGES}),
    (UnalignedConfig, {}, {"n": range(8, 129, 8), "cluster": range(1, 9), "k": {128, 256},
                           "first": {"a", "b"}, "stages": STAGES}),
    (Tcgen05Config, {}, {"n": range(32, 257, 32), "cta_group": {1, 2}, "group": LARGE,
                         "stages": STAGES, "out_stages": range(1, 5),
                         "scheduler": {"launch_control", "static"}}),
    (MmaConfig, {"n": 32}, {"m": {64, 128, 256}, "k": {64, 128}, "out_bytes": {32, 64, 128},
                            "warpgroups": {1, 2}, "group": LARGE, "stages": STAGES,
                            "out_stages": range(1, 5)}),
    (MmaConfig, {"m": 64}, {"n": range(32, 257, 32)}),
    (MmaConfig, {"m": 64, "warpgroups": 1}, {"n": range(16, 257, 16)}),
    (
        AttentionPlan,
        {},
        {"warpgroups": range(1, 4), "block_k": range(16, 257, 16), "stages": range(1, 65),
         "heads_together": range((1 << 16) + 1), "votes": FLAG, "splits": LARGE,
         "q_stages": range(1, 65), "packed_heads": range(1, 65), "turns": FLAG},
    ),
    (Tcgen05AttentionPlan, {}, {"block_k": {32, 64, 128}, "stages": STAGES,
                                "heads_together": range((1 << 16) + 1),
                                "polynomial_period": range((1 << 16) + 1)}),
    (BackwardPlan, {}, {"stages": STAGES, "sum_stages": range(1, 65), "heads_together": LARGE,
                        "splits": LARGE}),
    (RowPlan, {}, {"threads": {2**i for i in range(11)}}),
    (RowPlan, {"threads": 1}, {"rows": range(1, 1025)}),
    (RowPlan, {"threads": 32}, {"cluster": POWERS_TO_8, "bulk": FLAG,
                                "early": FLAG, "blocks": range(33),
                                "cache": {"allocate", "no_allocate", "evict_last", "evict_first"}}),
    (RowPlan, {"threads": 1, "bulk": True}, {"slot": range(0, 225 * 1024 + 1, 16)}),
    (CopyPlan, {}, {"chunk_bytes": range(16, 225 * 1024 + 1, 16), "threads": range(32, 1025, 32),
                    "store": {"tma", "registers", "vector"}}),
    (TransposePlan, {"threads": 32}, {"rows": range(1, 33), "columns": range(1, 33),
                                      "group": range(1, 65536), "store": {"tma", "registers"}}),
    (TransposePlan, {"rows": 32, "columns": 32}, {"threads": {2**i for i in range(5, 11)}}),
    (PointwisePlan, {"kernel": "ring"}, {
        "threads": range(32, 993, 32), "tile_bytes": range(16, 225 * 1024 + 1, 16),
        "stages": range(1, 33), "blocks_per_sm": range(1, 33), "store": {"tma", "registers"}}),
    (PointwisePlan, {}, {"kernel": {"ring", "chunk", "vector"}}),
]  # fmt: skip
WORDS = ("launch_control", "static", "tma", "registers", "vector", "ring", "chunk", *CACHES, "")


def takes(kind, **given):
    try:
        kind(**given)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "given", "field", "values"),
    [(kind, given, field, values) for kind, given, fields in FIELDS
     for field, values in fields.items()],
    ids=lambda value: getattr(value, "__name__", value) if isinstance(value, type | str) else "",
)  # fmt: skip
def test_what_a_field_takes(kind, given, field, values):
    ends = (min(values), max(values))
    if values == {True, False}:
        for value in (2, "yes", None):
            with pytest.raises(TypeError, match=rf"{field} is True or False"):
                kind(**given, **{field: value})
        tried = ends
    elif isinstance(ends[0], str):
        tried = {*WORDS, *values}
    else:
        tried = {*range(-1, 300), *(e + d for e in ends for d in (-16, -1, 0, 1, 16))}
    taken = {value for value in tried if takes(kind, **given, **{field: value})}
    assert taken == {value for value in tried if value in values}
    if isinstance(values, range):
        with pytest.raises(ValueError, match=rf"\b{ends[1]:,}\b"):  # names the largest
            kind(**given, **{field: ends[1] + values.step})


def test_each_field_of_a_plan_is_in_the_table():
    for kind in {kind for kind, _, _ in FIELDS}:
        held = {name for other, _, fields in FIELDS if other is kind for name in fields}
        assert held == {field.name for field in dataclasses.fields(kind)}, kind


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [Config, ScaledConfig])
def test_blocks_of_a_cluster_share_b_in_rows_of_128_bytes(kind, cluster):
    """Each loads a multiple of 16 columns of it."""
    for n in range(32, kind().n + 1, 32):
        assert takes(kind, n=n, cluster=cluster) == (n % (16 * cluster) == 0)
    for k in (256, 512):
        assert takes(Config, cluster=cluster, k=k) == (cluster == 1)


@pytest.mark.parametrize("warpgroups", [1, 2])
def test_a_thread_holds_128_sums_by_mma_or_64_of_two_warpgroups(warpgroups):
    for m, n in itertools.product((64, 128, 256), range(32, 257, 32)):
        fits = m * n // (128 * warpgroups) <= 128 // warpgroups
        assert takes(MmaConfig, m=m, n=n, warpgroups=warpgroups) == fits


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256])
def test_threads_share_blocks_equally(threads):
    for rows, columns in itertools.product((1, 2, 3, 4), repeat=2):
        fits = 64 * rows * columns % threads == 0
        assert takes(TransposePlan, rows=rows, columns=columns, threads=threads) == fits
    for nbytes in range(512, 8193, 256):
        fits = nbytes % (16 * threads) == 0
        assert takes(PointwisePlan, kernel="chunk", threads=threads, tile_bytes=nbytes) == fits
        assert takes(PointwisePlan, kernel="ring", threads=threads, tile_bytes=nbytes)
        assert takes(RowPlan, threads=32, bulk=True, slot=nbytes) == (nbytes % 512 == 0)
    assert not takes(RowPlan, threads=32, slot=512)
    assert not takes(RowPlan, threads=32, rows=2, bulk=True, slot=512)


DEFAULTS = {
    Config: (128, 256, 1, 1, 1, 128, 16, 8, 128, 2),
    StreamKConfig: (128, 256, 1, 1, 1, 128, 16, 8, 128, 2),
    ScaledConfig: (128, 128, 1, 1, 1, 128, 16, 8, 128, 2),
    SwappedConfig: (64, 8, 1, 1, 256, 16, "b"),
    UnalignedConfig: ("a", 32, 1, 128, 4),
    Tcgen05Config: (256, 16, 8, 2, 1, "launch_control"),
    MmaConfig: (128, 128, 2, 64, 16, 8, 128, 1),
    AttentionPlan: (2, 128, 2, 1, True, 1, 1, 1, False),
    Tcgen05AttentionPlan: (128, 6, 1, 8),
    BackwardPlan: (2, 1, 1, 1),
    RowPlan: (1, 1, False, 0, False, 0, "allocate"),
    RowOptions: (False, False, False, False, (False, False), True, False),
    CopyPlan: (2048, 32, "tma"),
    TransposePlan: (2, 2, 128, 256, "tma"),
    PointwisePlan: (128, 4096, 4, 1, "registers"),
    MatmulProblem: (1, 2, 2, True, (False, False), (), ("K", "K")),
    MatmulPlan: (Epilogue(), True),
    MmaPlan: (Epilogue(), True),
    Tcgen05Plan: (Epilogue(), True, False),
    Tcgen05ScaledPlan: (Epilogue(), True, False),
    ScaledPlan: (Epilogue(), True),
    SwappedPlan: (Epilogue(),),
    UnalignedPlan: (Epilogue(),),
    Epilogue: (False, False, False, False, None, None, False),
    AttentionProblem: (*[False] * 7, None, False, False, False),
    MatmulCall: (None,),
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults(kind):
    found = [field.default for field in dataclasses.fields(kind)]
    assert tuple(x for x in found if x is not dataclasses.MISSING) == DEFAULTS[kind]
    assert (Terms().alpha, *Terms()[1:]) == (1, 0, 0, 0, 0)


def test_what_kernels_are_compiled_for_does_not_change():
    """So it can be a key. A call is none, and neither are schedules in a kernel, which go on."""
    kinds = set()
    for module in pkgutil.walk_packages(numba_tma.kernels.__path__, "numba_tma.kernels."):
        found = vars(importlib.import_module(module.name)).values()
        kinds |= {x for x in found if isinstance(x, type) and dataclasses.is_dataclass(x)}
    mine = {kind for kind in kinds if kind.__module__.startswith("numba_tma.kernels")}
    assert set(DEFAULTS) <= mine
    assert {kind.__name__ for kind in mine if not kind.__dataclass_params__.frozen} == {
        "DrawnTiles", "MatmulCall", "PackedTiles", "Parts", "SequenceWalk"
    }  # fmt: skip


# ---------------------------------------------------------------------------- tables


def plan_of_packed(head_dim, causal):
    problem = AttentionProblem(head_dim, as_dtype("bf16"), causal, packed=True)
    return attention_plans.plan_for(problem, 10, 500, 1, 1, 132)


def test_plans_of_attention():
    """By head dim: usual ones, those for few queries, and for packed sequences under each mask."""
    plans, few = attention_plans.PLANS, attention_plans.FEW_QUERIES_PLANS
    assert plans == {
        64: AttentionPlan(3, 128, 3, votes=False, q_stages=2, turns=True),
        96: AttentionPlan(3, 112, 2, q_stages=2),
        128: AttentionPlan(2, 128, 2),
        256: AttentionPlan(2, 80, 2, turns=True),
    }
    assert few == {
        64: AttentionPlan(1, 192, 2, votes=False),
        96: AttentionPlan(1, 128, 2),
        128: AttentionPlan(1, 128, 2),
        256: AttentionPlan(1, 48, 2),
    }
    fp8 = {
        key: [plan for plan, _ in candidates]
        for key, candidates in attention_plans.FP8_CANDIDATES.items()
    }
    few_fp8 = attention_plans.FP8_FEW_QUERIES_PLANS
    short, three = AttentionPlan(2, 128, 2, q_stages=2), AttentionPlan(2, 128, 3, q_stages=2)
    assert fp8 == {
        (64, False): [AttentionPlan(2, 224, 2, q_stages=2), short],
        (64, True): [AttentionPlan(2, 224, 2), short],
        (128, False): [three],
        (128, True): [three],
    }
    assert few_fp8 == {64: AttentionPlan(1, 96, 6), 128: AttentionPlan(1, 96, 4)}
    two_q = AttentionPlan(2, 128, 2, q_stages=2)
    packed = {(d, c): plan_of_packed(d, c) for d in plans for c in (False, True)}
    others = {(96, True): two_q, (128, False): two_q, (128, True): two_q}
    assert packed == {(d, c): plans[d] for d, c in packed} | others
    assert attention_plans.PACKS == (1, 2, 4, 8, 16)
    assert backward_plans.PLANS == {64: BackwardPlan(2, 1), 128: BackwardPlan(2, 2)}
    assert attention_plans.HEAD_DIMS == (64, 96, 128, 256)
    assert attention_plans.FP8_HEAD_DIMS == (64, 128)
    assert tcgen05_attention_plans.TCGEN05_HEAD_DIMS == (64, 96, 128)
    powers = {2**i for i in range(8)}
    assert set(attention_times.HEAD_GROUPS) == powers | {3 * n for n in powers if 3 * n < 128}


def test_groups_of_heads_of_the_backward_pass_fit_the_cache():
    """As many, a power of 2 up to 64, as have their Q, dO and sums of dQ in 32 MiB."""
    full, causal = (AttentionProblem(64, as_dtype("bf16"), mask) for mask in (False, True))
    assert backward_plans.plan_for(full, 1, 1, 1, 1, 132) == BackwardPlan()
    together = [backward_plans.most_heads_together(causal, 4 * n) for n in (
        1, 255, 256, 257, 512, 513, 8192, 16384, 16385, 10**6)]  # fmt: skip
    assert together == [64, 64, 64, 32, 32, 16, 2, 1, 1, 1]
    wide = AttentionProblem(128, as_dtype("f16"), True)
    assert backward_plans.plan_for(wide, 2048, 2048, 64, 1, 132) == BackwardPlan(2, 2, 16)


@pytest.mark.parametrize(("head_dim", "columns"), [(64, 1), (128, 2)])
def test_steps_of_the_backward_pass(head_dim, columns):
    """As fitted: a block takes 2 beside those of its tiles; a split writes 1 for 64 columns of a
    tile, and 1.75 to add it are shared by all SMs. The next block starts on the SM that is free.
    """
    whole, halves = BackwardPlan(), BackwardPlan(splits=2)  # of two heads of Q
    for plan, sms, blocks, adding in (
        (whole, 1, (2 + 2) + (6 + 2), 0),
        (whole, 2, 6 + 2, 0),
        (halves, 1, 2 * (1 + 3) + 4 * (2 + columns), 4),
        (halves, 2, 2 * (3 + 2 + columns), 2),
    ):
        found = backward_plans.time_of(plan, [1, 3], head_dim, 1, 2, sms)
        assert found == blocks + 1.75 * columns * adding


CUT = {"bulk": True, "slot": 16384, "cache": "evict_last"}
KEPT = {"cache": "evict_last"}
SHORT = [RowPlan(32, 2), RowPlan(128), RowPlan(256, **KEPT), RowPlan(512, **KEPT),
         RowPlan(512, blocks=2, **KEPT)]  # fmt: skip
SOFTMAX = [*SHORT[:3], *[RowPlan(256, bulk=True, **KEPT)] * 2, RowPlan(512, **CUT),
           *[RowPlan(512, cluster=n, blocks=3, **CUT) for n in (2, 4, 8)]]  # fmt: skip
ROWS = {
    "rmsnorm": [*SHORT, RowPlan(512, early=True, **CUT),
                *[RowPlan(512, cluster=n, blocks=3, early=True, **CUT) for n in (2, 4, 8)]],
    "layernorm": [*SHORT[:3], RowPlan(256, **KEPT), RowPlan(512, **KEPT), RowPlan(512, **CUT),
                  RowPlan(512, cluster=2, blocks=3, early=True, **CUT),
                  *[RowPlan(512, cluster=n, blocks=3, **CUT) for n in (4, 8)]],
    "softmax": SOFTMAX, "log_softmax": SOFTMAX,
}  # fmt: skip


def test_plans_of_rows():
    """By operation; for rows of up to 2 KB, 4 KB, ... 512 KB."""
    assert {name: list(plans.values()) for name, plans in PLANS.items()} == {
        name: plans[: len(PLANS[name])] for name, plans in ROWS.items()
    }
    assert [len(plans) for plans in PLANS.values()] == [9] * 4


@pytest.mark.parametrize(
    ("columns", "options", "plan"),
    [
        (4, PLAIN, RowPlan(1, 128)),
        (8, PLAIN, RowPlan(2, 64)),
        (16, PLAIN, RowPlan(4, 32)),
        (128, PLAIN, RowPlan(4, 32)),
        (129, PLAIN, RowPlan(8, 16)),
        (1024, PLAIN, RowPlan(32, 4)),
        (1025, PLAIN, RowPlan(64)),
        (8192, PLAIN, RowPlan(256)),
        (8193, PLAIN, RowPlan(512, **CUT)),
        (16385, PLAIN, RowPlan(512, cluster=2, **CUT)),
        (460800, PLAIN, RowPlan(512, cluster=8, **CUT)),
        (460801, PLAIN, RowPlan(1024, cluster=8)),
        (8192, RowOptions(residual=True), RowPlan(256)),
        (8200, RowOptions(residual=True), RowPlan(512, cluster=2, **CUT)),
        (230400, RowOptions(residual=True), RowPlan(512, cluster=8, **CUT)),
        (230404, RowOptions(residual=True), RowPlan(1024, cluster=8)),
    ],
)
def test_rows_that_were_not_measured(columns, options, plan):
    """Of four bytes an element: 32 a thread, or slots of 16 KB where memory has room."""
    assert plan_for("row_sum", columns, 4, 16, options) == plan


@pytest.mark.parametrize(
    ("columns", "width", "plan"),
    [
        (4, 8, RowPlan(2, 64)),  # 2 threads share a sector
        (4, 4, RowPlan(4, 32)),
        (16, 4, RowPlan(16, 8)),
        (512, 4, RowPlan(16, 8)),
        (513, 4, RowPlan(32, 4)),
        (1025, 4, RowPlan(64)),
        (32768, 8, RowPlan(1024)),
        (32769, 8, RowPlan(512, cluster=4)),
        (65536, 4, RowPlan(512, cluster=4)),
        (65537, 4, RowPlan(512, cluster=8)),
        (131072, 4, RowPlan(512, cluster=8)),
        (131073, 4, RowPlan(1024, cluster=8)),
        (1 << 24, 4, RowPlan(1024, cluster=8)),
    ],
)
def test_rows_in_narrow_accesses(columns, width, plan):
    """Of four bytes an element: a thread has up to 32, and a block 512 or 1,024 threads."""
    for name in ("row_sum", "rmsnorm"):
        assert plan_for(name, columns, 4, width) == plan


def test_rows_fill_the_shared_memory_of_a_block():
    require_room("f", RowPlan(32), 225 * 1024)
    with pytest.raises(ValueError, match=r"has 230,401 B of rows, but room for 230,400 B"):
        require_room("f", RowPlan(32), 225 * 1024 + 1)


SLOTS = {"bulk": True, "slot": 8192, "blocks": 4, "cache": "evict_last"}


@pytest.mark.parametrize(
    ("name", "columns", "options", "plan"),
    [
        ("rmsnorm", 31, PLAIN, RowPlan(1, 128)),
        ("rmsnorm", 511, PLAIN, RowPlan(16, 8)),
        ("rmsnorm", 512, PLAIN, RowPlan(16, 4, early=True)),
        ("rmsnorm", 1280, PLAIN, RowPlan(32, 4, early=True)),
        ("rmsnorm", 1281, PLAIN, RowPlan(64, early=True)),
        ("rmsnorm", 16384, PLAIN, RowPlan(512, early=True)),
        ("rmsnorm", 16385, PLAIN, RowPlan(256, early=True, **SLOTS)),
        ("layernorm", 50257, RowOptions(weight=True, bias=True), RowPlan(256, 1, 2, **SLOTS)),
        ("layernorm", 50257, PLAIN, RowPlan(256, 1, 2, early=True, **SLOTS)),
        ("row_sum", 921584, PLAIN, RowPlan(256, 1, 8, **SLOTS)),
        ("row_sum", 921585, PLAIN, RowPlan(1024, 1, 8, early=True, **KEPT)),
        ("row_sum", 40961, RowOptions(residual=True), RowPlan(256, 1, 4, **SLOTS)),
        ("row_sum", 1 << 24, PLAIN, RowPlan(1024, 1, 8, early=True, **KEPT)),
    ],
)
def test_unaligned_rows(name, columns, options, plan):
    """Of two bytes an element: staged in slots of 8 KB where they are long and fit."""
    assert plan_for(name, columns, 2, UNALIGNED, options) == plan


@pytest.mark.parametrize(
    ("columns", "plan"),
    [(1, (32, 1)), (512, (32, 1)), (513, (64, 1)), (8192, (512, 1)), (8193, (512, 2)),
     (16384, (512, 2)), (32768, (512, 4)), (65536, (512, 8)), (65537, (1024, 8)),
     (1 << 20, (1024, 8))],
)  # fmt: skip
def test_a_thread_has_16_elements_of_a_gradient(columns, plan):
    threads, cluster = plan
    blocks = max(1, 512 // threads)
    assert backward_rows_plan_for(columns, 2) == RowPlan(threads, 1, cluster, blocks=blocks)


@pytest.mark.parametrize(
    ("columns", "plan"),
    [(1, (64, 1)), (512, (64, 1)), (513, (128, 1)), (4096, (512, 1)), (8192, (512, 1)),
     (16384, (512, 2)), (32768, (512, 4)), (65536, (512, 8)), (65537, (1024, 8))],
)  # fmt: skip
def test_a_thread_has_8_elements_of_a_gradient_of_f32_in_a_block(columns, plan):
    threads, cluster = plan
    blocks = max(1, 512 // threads)
    assert backward_rows_plan_for(columns, 4) == RowPlan(threads, 1, cluster, blocks=blocks)


def test_other_plans():
    assert TRANSPOSE_PLANS == {
        1: TransposePlan(1, 1, 64),
        2: TransposePlan(2, 2, 128),
        4: TransposePlan(4, 2, 256, store="registers"),
        8: TransposePlan(2, 2, 128),
    }
    assert SCALED_CONFIGS == (
        ScaledConfig(256, 128, group=8, out_bytes=64, out_stages=3),
        ScaledConfig(128, 192, group=12, out_stages=1),
        ScaledConfig(128, 128, group=12),
        ScaledConfig(128, 64, group=8),
        ScaledConfig(64, 128, group=16),
        ScaledConfig(64, 64, group=12),
    )
    ring = PointwisePlan("ring", 128, 8192, 3, 2, "tma")
    chunk = PointwisePlan("chunk", 128, 4096)
    assert [pointwise_plan_for(n) for n in (1, 2, 3)] == [chunk, ring, ring]


def test_sizes_of_the_hardware():
    """Of a cache line, which the widest swizzle spans, its sectors, and an H100's 50 MB of L2."""
    assert operands.LINE == transpose_plans.LINE == Swizzle.B128.span == 4 * transpose_plans.SECTOR
    assert launching.L2_BYTES == (50 - 2) << 20  # less what other data takes of it
