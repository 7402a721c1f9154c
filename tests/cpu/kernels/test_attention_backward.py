"""Gradients of attention: machine code without spills, operations counted, wrong arguments."""

import functools
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from numba_tma.host import driver as _driver
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.backward import launch as backward
from numba_tma.kernels.attention.backward.plan import (
    ADD_STEPS,
    BLOCK_K,
    END_STEPS,
    PLANS,
    WRITE_STEPS,
    BackwardPlan,
    block_q,
    check_plan,
    most_heads_together,
    plan_for,
    steps_of,
)
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.rows import columns as _columns
from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas
from tests.cpu.kernels.test_attention import COPY, array
from tests.cpu.kernels.test_wrappers import gpu  # noqa: F401
from tests.kernels.attention_backward_forms import PROBLEMS, add_splits, finish, form, prepare
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

by_problem = pytest.mark.parametrize("name", quick(["d128 causal", "d64 splits"], PROBLEMS))
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")


@functools.cache
def compiled(name, deterministic=False):
    return compile_ptx(*form(name, deterministic))


@by_problem
@pytest.mark.parametrize("deterministic", quick([False], [False, True]))
def test_registers_hold_everything(name, deterministic):
    ptx = compiled(name, deterministic)
    report = all_in_registers(ptx)
    assert report.shared <= 227 * 1024 - 512  # debug mode has room for what it counts
    assert report.registers == 168  # at launch; setmaxnreg makes 24 and 240 of it
    assert any("atom.global.cas" in line or "atom.cas" in line for line in instructions(ptx)) == (
        deterministic
    )


@by_problem
def test_the_pipelines_of_a_block_start_with_one_synchronisation(name):
    start = list(
        itertools.takewhile(
            lambda line: not line.startswith("setmaxnreg"), instructions(compiled(name))
        )
    )
    stages = 1 + PLANS[PROBLEMS[name].head_dim].stages  # of K and V, and of queries
    assert sum(line.startswith("mbarrier.init") for line in start) == 2 * stages
    assert sum(line.startswith("bar.sync") for line in start) == 1


@pytest.mark.parametrize("name", ["d64", "d128"])
@pytest.mark.parametrize("kernel", [prepare, finish])
def test_what_comes_before_and_after_reads_16_bytes_at_a_time(kernel, name):
    text = compile_ptx(*kernel(name))
    report = ptxas(text)
    assert (report.spill_stores, report.stack_frame, report.warnings) == (0, 0, ())
    assert report.registers <= 32  # 2048 threads at a time
    loads = [line for line in instructions(text) if "ld.global" in line]
    assert sum("v4.u32" in line for line in loads) == (2 if kernel is prepare else 4)
    assert len(loads) == (2 + 1 if kernel is prepare else 4)  # one lse for each row


@pytest.mark.parametrize("name", ["d64 splits", "d128 splits"])
def test_splits_are_read_16_bytes_at_a_time(name):
    text = compile_ptx(*add_splits(name))
    report = ptxas(text)
    assert (report.spill_stores, report.stack_frame, report.warnings) == (0, 0, ())
    assert report.registers <= 64  # 1024 threads at a time
    loads = [line for line in instructions(text) if "ld.global" in line]
    assert len(loads) % 4 == 0 and all("v4.u32" in line for line in loads)  # two of dK, two of dV


def has_products(code):
    return "HGMMA" in code


def main_loop(name):
    """Return the loop over queries."""
    return shortest_loop(compiled(name), has_products)


@needs_nvdisasm
@by_problem
def test_a_step_computes_and_moves_nothing(name):
    depth = PROBLEMS[name].head_dim
    scores, sums = block_q(depth) // 2, 32  # of a thread: of S, and of its part of dQ
    found = Counter(operation for operation, _ in main_loop(name))
    products = 2 * depth // 16 + 2 * block_q(depth) // 16 + BLOCK_K // 16
    assert found["HGMMA"] == products
    assert found["MUFU.EX2"] == scores
    assert found["FFMA"] == scores  # score * scale - lse
    assert (found["FADD"], found["FMUL"]) == (scores, scores)  # weight * (product - delta)
    assert found["F2FP"] == scores  # both operands of the next products
    assert found["LDS"] == scores // 2  # lse and delta, two at a time, of both rows
    assert (found["STSM"], found["STS"]) == (scores // 8, sums // 4)
    masked = 2 + PROBLEMS[name].causal * 1.6  # what steps with masked keys have more, by score
    assert sum(found.values()) <= (6 + masked) * scores + 420, found


@needs_nvdisasm
@by_problem
def test_products_run_while_threads_compute_and_store(name):
    order = [operation for operation, _ in main_loop(name)]
    lines = [line for _, line in main_loop(name)]
    ends = [i for i, line in enumerate(lines) if "HGMMA" in line and "gsb0" in line]
    waits = [i for i, operation in enumerate(order) if operation == "WARPGROUP.DEPBAR"]
    # dP, then dV, dQ, dK, and S of the next queries.
    assert len(ends) == 5
    exponentials = [i for i, operation in enumerate(order) if operation == "MUFU.EX2"]
    assert ends[0] < waits[0] and exponentials[0] < waits[0]
    stored = [i for i, operation in enumerate(order) if operation == "STS"]
    # dQ is stored when dV and dQ are there, while dK is computed; S is started after it.
    assert waits[0] < ends[1] and ends[3] < waits[1] < stored[0] < stored[-1] < ends[4] < waits[2]


# --------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("depth", "queries", "sharing", "heads"),
    [(128, 4096, 1, 8), (128, 16384, 1, 2), (128, 16384, 8, 1), (64, 4096, 1, 16), (64, 1, 1, 64)],
)
def test_heads_together_fit_the_l2_cache(depth, queries, sharing, heads):
    problem = AttentionProblem(depth, as_dtype("bf16"), causal=True)
    plan = plan_for(problem, queries, queries, 1024, sharing, 132)
    assert (plan.heads_together, plan.splits) == (heads, 1)


def test_without_a_mask_each_head_comes_for_itself():
    assert plan_for(AttentionProblem(128, as_dtype("bf16")), 4096, 4096, 16, 1, 132) == PLANS[128]


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (64, 128), (130, 300), (300, 130), (500, 129)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_steps_are_those_of_the_kernel(causal, queries, keys):
    """Query i sees the keys up to i + keys - queries."""
    problem = AttentionProblem(128, as_dtype("bf16"), causal)
    expected = [
        sum(
            not causal or min(first + 63, queries - 1) + keys - queries >= key
            for first in range(0, queries, 64)
        )
        for key in range(0, keys, BLOCK_K)
    ]
    assert steps_of(problem, queries, keys) == expected


@pytest.mark.parametrize(
    ("depth", "causal", "queries", "batch_heads", "group", "splits"),
    [
        (64, False, 416, 4, 8, 8),  # 16 blocks with 32 steps, on 132 SMs
        (128, True, 640, 3, 4, 4),
        (64, True, 2112, 4, 8, 4),  # 68 blocks, of which the longest has 136 steps of 4896
        (64, False, 416, 4, 1, 1),  # nothing to divide
        (128, True, 280, 220, 4, 1),  # enough blocks
    ],
)
def test_few_key_heads_split_their_query_heads(
    depth, causal, queries, batch_heads, group, splits
):
    problem = AttentionProblem(depth, as_dtype("bf16"), causal)
    assert plan_for(problem, queries, queries, batch_heads, group, 132).splits == splits


@pytest.mark.parametrize(
    ("depth", "causal", "queries", "kv_heads", "group", "sms"),
    [
        (64, False, 416, 4, 8, 132),
        (64, True, 1100, 3, 6, 17),
        (128, True, 640, 3, 4, 132),
        (128, True, 900, 5, 12, 40),
        (128, False, 1037, 9, 4, 40),
        (128, True, 2039, 20, 12, 40),  # 8 waves of blocks
        (128, True, 2039, 21, 12, 40),  # more than 8, which are not divided
    ],
)
def test_no_division_of_the_heads_is_reckoned_faster(depth, causal, queries, kv_heads, group, sms):
    """Each block goes to the first free SM; splits are written and added, by 64 columns."""
    problem = AttentionProblem(depth, as_dtype("bf16"), causal)
    steps = steps_of(problem, queries, queries)

    def time(splits):
        heads, extra = kv_heads * splits, depth / 64 if splits > 1 else 0
        together = most_heads_together(problem, queries * group // splits)
        busy = [0.0] * sms
        for group_of in np.array_split(range(heads), range(together, heads, together)):
            for count in np.repeat(steps, len(group_of)):
                free = busy.index(min(busy))
                busy[free] += count * group / splits + END_STEPS + WRITE_STEPS * extra
        return max(busy) + ADD_STEPS * extra * heads * len(steps) / sms

    plan = plan_for(problem, queries, queries, kv_heads, group, sms)
    times = {n: time(n) for n in range(1, group + 1) if group % n == 0}
    many = kv_heads * len(steps) > 8 * sms
    assert plan.splits == (1 if many else min(times, key=times.get))
    assert plan.heads_together == most_heads_together(problem, queries * group // plan.splits)


def test_a_plan_divides_the_heads_of_a_group():
    with pytest.raises(ValueError, match=r"BackwardPlan\(.*splits=3\)\): splits divides the 2 h"):
        check_plan("attention_backward", BackwardPlan(splits=3), 2)


# ----------------------------------------------------------------------------------- errors


def test_one_stage_would_wait_for_itself():
    with pytest.raises(
        ValueError, match=r"BackwardPlan\(stages=1\): stages is 2 to 64: products with two tiles"
    ):
        BackwardPlan(1)


Q, K = (2, 64, 4, 64), (2, 96, 2, 64)
SHAPES = {"dout": Q, "q": Q, "k": K, "v": K, "out": Q, "dq": Q, "dk": K, "dv": K}


def number_array(shape=(2, 4, 64), dtype=np.float32):
    return array(shape, dtype)


ALL_OF_Q = ("dout", "q", "out", "dq")
MISTAKES = {
    "depth": (
        {name: array((*shape[:3], 96)) for name, shape in SHAPES.items()},
        "attention_backward(): q has shape (2, 64, 4, 96); it takes a head dim of 64 or 128, and",
    ),
    "no queries": (
        {name: array((2, 0, 4, 64)) for name in ALL_OF_Q},
        "q has shape (2, 0, 4, 64); it takes a head dim of 64 or 128, and at least one query",
    ),
    "three axes": (
        {"dout": array((2, 64, 64))},
        "attention_backward(): dout has shape (2, 64, 64) of bf16; it takes (batch, sequence, hea",
    ),
    "no keys": ({"k": array((2, 0, 2, 64))}, "at least one key"),
    "heads": ({"k": array((2, 96, 3, 64))}, "a number of heads that divides that of q"),
    "values": ({"v": array((2, 95, 2, 64))}, "v has shape (2, 95, 2, 64), but k has (2, 96, 2, 64"),
    "gradient": ({"dout": array((2, 63, 4, 64))}, "dout has shape (2, 63, 4, 64), but q has (2, 6"),
    "result": ({"out": array((2, 64, 2, 64))}, "out has shape (2, 64, 2, 64), but q has (2, 64, 4"),
    "dq": ({"dq": array((2, 64, 4, 128))}, "dq has shape (2, 64, 4, 128), but q has (2, 64, 4, 64"),
    "dk": ({"dk": array(Q), "dv": array(Q)}, "dk has shape (2, 64, 4, 64), but k has (2, 96, 2, 6"),
    "dv": ({"dv": array(Q)}, "dv has shape (2, 64, 4, 64), but dk has (2, 96, 2, 64); they must"),
    "types": ({"dout": array(Q, np.float16)}, "dout is f16, but q is bf16; they must agree: conve"),
    "address": ({"dk": array(K, start=2)}, COPY),
    "lse": (
        {"lse": number_array((2, 64, 4))},
        "lse has shape (2, 64, 4) of f32, but q has shape (2, 64, 4, 64); lse "
        "takes (batch, heads, queries) = (2, 4, 64) of f32, contiguous, as it is returned with",
    ),
    "no lse": ({"lse": None}, "lse is None; it takes the second result of the forward pass"),
    "type of lse": ({"lse": number_array(dtype=np.float64)}, "lse has shape (2, 4, 64) of f64"),
    "scale": ({"scale": 0}, "attention_backward(scale=0): scale is a positive number; negate"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, monkeypatch):
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    given, message = MISTAKES[name]
    arrays = {name: array(shape) for name, shape in SHAPES.items()} | {"lse": number_array()}
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_backward(**arrays | given)


# ------------------------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("queries", "splits", "grids", "workspaces"),
    [
        (64, False, [(32, 256), (4, 384), (16, 256)], 4),
        (512, True, [(128, 256), (8, 384), (64, 256), (12, 256)], 6),  # dK and dV of two splits
    ],
)
def test_the_second_call_repeats_the_launches(
    gpu,  # noqa: F811
    monkeypatch,
    queries,
    splits,
    grids,
    workspaces,
):
    monkeypatch.setattr(backward, "sm_count", lambda: 132)
    monkeypatch.setattr(backward, "float_workspace", lambda *of: _columns.float_workspace(*of))
    monkeypatch.setattr(backward, "tensor_map", lambda view, tile: ("map", view.address, tile))
    monkeypatch.setattr(backward, "map_of", lambda array, tile: ("map", array.address, tile))
    shapes = {n: (2, queries, 4, 64) if s == Q else s for n, s in SHAPES.items()}
    arrays = {name: array(shape, start=i << 20) for i, (name, shape) in enumerate(shapes.items())}
    arrays["lse"] = number_array((2, 4, queries))
    for deterministic in (False, True):
        del gpu.launches[:], gpu.early[:]
        got = attention_backward(**arrays, deterministic=deterministic)
        assert got == tuple(arrays[name] for name in ("dq", "dk", "dv"))
        first, spaces = gpu.launches[:], len(gpu.spaces)
        assert [launch[1:3] for launch in first] == grids
        kernels = [launch[0] for launch in first]
        assert gpu.early == kernels[3:]  # dK and dV of splits, whose loads wait for the others
        problem = PROBLEMS["d64" + " splits" * splits]
        assert kernels[1] is backward.backward_kernel(problem, PLANS[64], deterministic)
        for _ in range(2):
            del gpu.launches[:]
            attention_backward(**arrays, deterministic=deterministic)
            assert gpu.launches == first and len(gpu.spaces) == spaces
    assert len(gpu.spaces) == 2 * workspaces
