"""The sweep of attention's plans, without a GPU: its shapes, and the plans that it tries."""

import argparse
import json
import runpy
from pathlib import Path

import pytest

SWEEP = runpy.run_path("tests/benchmarks/sweeps/attention.py", run_name="sweep")
RESULTS = "tests/benchmarks/results/survey_h100.json"


def test_a_shape_is_that_of_a_survey():
    case = SWEEP["parsed"]("27x175x16x256/175x2c")
    assert case.shape == (27, 175, 16, 256, 175, 2) and case.form == "causal"
    assert case in SWEEP["drawn"](None, RESULTS)


@pytest.mark.parametrize("text", ["27x175x16x256", "27x175x16/175x2", "27x175x16x256/175x2C", ""])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no shape such as 27x175x16x256/175x2c"):
        SWEEP["parsed"](text)


def test_only_slow_cases_are_left():
    rows = json.loads(Path(RESULTS).read_text())["rows"]
    ratios = {row["case"]: row["ratio"] for row in rows if row["family"] == "attention"}
    slow = SWEEP["drawn"](0.95, RESULTS)
    assert slow and all(ratios[case.name] < 0.95 for case in slow)
    assert len(slow) == sum(ratio < 0.95 for ratio in ratios.values())


def test_the_chosen_plan_is_among_those_that_are_tried_and_all_are_legal():
    case = SWEEP["parsed"]("5x656x8x64/656x2c")
    chosen = SWEEP["chosen_plan"](case, 132)
    tried = SWEEP["plans"](case, chosen)
    assert tried[0] == chosen and len({SWEEP["short"](plan) for plan in tried}) == len(tried)
    assert {plan.packed_heads for plan in tried} == {1, 2, 4}  # of 4 heads that share keys
    assert {plan.q_stages for plan in tried} == {1, 2}


def test_packed_sequences_have_one_head_in_a_tile():
    every = SWEEP["packed_cases"]([])
    assert len(every) == 16 and len({case.name for case in every}) == 16
    assert {case.head_dim for case in SWEEP["packed_cases"]([64])} == {64}
    for case in every:
        chosen = SWEEP["chosen_plan"](case, 132)
        tried = SWEEP["plans"](case, chosen)
        assert SWEEP["problem_of"](case).packed and tried[0] == chosen
        assert len({SWEEP["short"](plan) for plan in tried}) == len(tried)
        assert {plan.packed_heads for plan in tried} == {1}
