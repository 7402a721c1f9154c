"""The numbers of attention's softmax, and what heads are scaled with, without a kernel."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention import kernel, softmax
from numba_tma.kernels.attention.plan import AttentionForm, AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.softmax import apply_mask, scale_function

F32 = np.float32
LEAST = F32(-np.inf)


@pytest.mark.parametrize("q_scale", [False, True])
@pytest.mark.parametrize("k_scale", [False, True])
@pytest.mark.parametrize("v_scale", [False, True])
@pytest.mark.parametrize("softcap", [False, True])
def test_scales_of_a_head(q_scale, k_scale, v_scale, softcap):
    """Of 3 sequences with 4 heads, two of which share one of K and V."""
    problem = AttentionProblem(
        64, as_dtype("e4m3"), softcap=softcap, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale
    )
    q, k, v = (np.random.default_rng(i).uniform(1, 2, n).astype(F32) for i, n in
               enumerate((12, 6, 6)))  # fmt: skip
    options = SimpleNamespace(q_scale=q, k_scale=k, v_scale=v, softcap=F32(0.25))
    scales_of = scale_function(problem)
    for batch in range(3):
        for head in range(4):
            found = scales_of(F32(0.5), batch, head, 4, 2, options)
            factor = (q[4 * batch + head] if q_scale else 1) * (
                k[2 * batch + head // 2] if k_scale else 1
            )
            values = v[2 * batch + head // 2] if v_scale else 1
            expected = (0.5, 0.25 * factor, values) if softcap else (0.5 * factor, 1, values)
            assert tuple(map(float, found)) == pytest.approx(expected, rel=1e-6)


class Scores:
    """The scores of 64 queries, whose functions NumPy applies."""

    def __init__(self, values):
        self.values = values

    def map(self, fn, *more):
        return Scores(np.array([[fn(v, *more) for v in row] for row in self.values], F32))

    def map_coords(self, fn, *more):
        found = np.empty_like(self.values)
        for place, value in np.ndenumerate(self.values):
            found[place] = fn(value, *place, *more)
        return Scores(found)


@pytest.mark.parametrize(
    ("masks", "start", "end", "stop"),
    [
        ({}, 0, 13, 0),
        ({}, 0, 16, 0),
        ({"causal": True}, 0, 0, 1),
        ({"causal": True}, 0, 0, -40),
        ({"right": True}, 0, 14, 3),
        ({"left": True}, -4, 16, 0),
        ({"left": True}, -62, 16, 0),
        ({"left": True}, -200, 16, 0),
        ({"left": True, "causal": True}, -30, 0, -20),
    ],
)
def test_rows_see_the_keys_of_their_windows(masks, start, end, stop):
    """Row r sees columns from start + r on, before stop + r, and before the end."""
    form = AttentionForm(AttentionProblem(64, as_dtype("bf16"), **masks), AttentionPlan(1, 16))
    scores = np.random.default_rng(2).standard_normal((64, 16)).astype(F32)
    rows = SimpleNamespace(start=np.int32(start), end=np.int32(end), stop=np.int32(stop))
    found = apply_mask(form, Scores(scores), rows, None).values
    row, column = np.ogrid[:64, :16]
    seen = np.ones((64, 16), bool)
    if "left" in masks:
        seen &= column >= start + row
    if "right" in masks or "causal" in masks:
        seen &= column < stop + row
    if "causal" not in masks:
        seen &= column < end
    np.testing.assert_array_equal(found, np.where(seen, scores, LEAST))


def test_a_row_without_keys_has_a_sum_of_nothing():
    """Its shift is 0 and its maximum stays, so that P is 0 and no number is NaN."""
    assert softmax.shift_of(LEAST, F32(2)) == softmax.fp8_shift_of(LEAST, F32(2)) == 0
    assert softmax.shift_of(F32(3), F32(2)) == -6
    assert softmax.fp8_shift_of(F32(3), F32(2)) == 8 - 6
    assert softmax.rescale_of(LEAST, LEAST, F32(2)) == 1
    assert softmax.rescale_of(LEAST, F32(1), F32(2)) == 0
    assert softmax.rescale_of(F32(1), F32(3), F32(2)) == 2.0**-4
    assert (softmax.inverse(F32(0)), softmax.inverse(F32(4))) == (0, 0.25)
    assert softmax.log_of_sum(F32(0), F32(0)) == LEAST
    assert softmax.log_of_sum(F32(8), F32(-5)) == pytest.approx(8 * math.log(2), rel=1e-6)
    assert softmax.exponential(F32(3), F32(2), F32(-5)) == 2
    assert softmax.capped(F32(3), F32(0.25)) == pytest.approx(math.tanh(0.75), abs=1e-3)


class Stop(Exception):
    """Ends a function after its first product."""


@pytest.mark.parametrize(
    ("function", "others"), [("first_scores", 4), ("step_16bit", 7), ("step_fp8", 7)]
)
def test_the_scores_of_a_tile_begin_anew(monkeypatch, function, others):
    """Their product overwrites its registers, which no instruction has to clear before."""

    def wgmma(start, a, b, *, scale_d):
        products.append((start, scale_d))
        raise Stop

    products = []
    monkeypatch.setattr(kernel, "fragment", lambda n: f"zeros of {n} columns")
    monkeypatch.setattr(kernel, "wgmma", wgmma)
    form = SimpleNamespace(block_k=96, head_dim=64, turns=False)
    with pytest.raises(Stop):
        getattr(kernel, function)(form, *(MagicMock() for _ in range(others)))
    assert products == [("zeros of 96 columns", False)]


@pytest.mark.parametrize("votes", [False, True])
@pytest.mark.parametrize("function", ["first_16bit", "first_fp8"])
def test_the_step_after_the_first_tile_rescales_only_if_every_step_does(
    monkeypatch, function, votes
):
    """O is still 0: with votes the warp's answer is known, and without them it never changes."""
    for name in ("first_scores", "packed_e4m3", "fragment", "per_row"):
        monkeypatch.setattr(kernel, name, MagicMock())
    form = SimpleNamespace(votes=votes, head_dim=64, dtype=None)
    state = getattr(kernel, function)(form, *(MagicMock() for _ in range(5)))
    assert state.needs_rescale is (not votes)
    if not votes:
        assert kernel.vote_on_rescale(form, state, None) is state.needs_rescale
