"""Steps of kernels whose order no simulated run shows, as calls: fences, turns, early loads."""

import itertools
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.device.fragments import Fragment
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.backward import kernel as backward
from numba_tma.kernels.matmul import Tcgen05Config, matmul, mma_kernel, unaligned_kernel
from numba_tma.kernels.rows import steps
from numba_tma.kernels.rows.plan import RowOptions, RowPlan
from numba_tma.pipeline import TilePipeline
from numba_tma.pipeline.tile_handle import TilePipelineHandle


class Calls:
    """Logs the calls of its methods, of any name, with their arguments."""

    def __init__(self, log, name="", **results):
        self.log, self.name, self.results = log, name, results

    def __getattr__(self, name):
        return Calls(self.log, f"{self.name}.{name}".lstrip("."), **self.results)

    def __call__(self, *given):
        self.log.append((self.name, *given))
        return self.results.get(self.name.rpartition(".")[2])


# ------------------------------------------------------------- blocks add to dQ in turn

OWN = [
    ("cp_async_bulk_wait_group", 0), ("fence_proxy_async_all",), ("fence_acq_rel", "gpu"),
    ("atomic.add", "turns", "added", 1),
]  # fmt: skip
AWAITED = [("atomic.cas", "turns", "part", 3, 3), ("fence_acq_rel", "gpu"),
           ("fence_proxy_async_all",)]  # fmt: skip


@pytest.fixture
def turns(monkeypatch):
    """Return the log of a block's calls, and its registers."""
    log = []
    monkeypatch.setattr(backward, "ptx", Calls(log))
    monkeypatch.setattr(backward, "cuda", Calls(log, cas=3))
    monkeypatch.setattr(backward, "store_by_thread", Calls(log, "store_by_thread"))
    monkeypatch.setattr(backward, "BOTH", Calls(log, "both"))
    stage = SimpleNamespace(dq="stage")

    def started(thread):
        sums = Calls(log, "sums", acquire=stage)
        sums.thread = thread
        state = SimpleNamespace(walk=SimpleNamespace(added="added", part="part"))
        return sums, state

    return log, started


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("thread", [0, 1])
def test_a_block_adds_to_a_part_in_its_turn(turns, thread, more):
    """The part before is added by now, which the block of the next keys may know."""
    log, started = turns
    sums, state = started(thread)
    backward.add_dq_in_turn(sums, "dq", "grads", "turns", state, 3, more)
    mine = thread == 0
    assert log == [
        *(OWN if mine and more else []), ("sums.acquire",), ("store_by_thread", "grads", "stage"),
        *(AWAITED if mine else []), ("sums.reduce", "dq", "stage", ("part", 0, 0), "add"),
        ("sums.commit",),
    ]  # fmt: skip


def test_the_last_part_s_turn_is_passed_on_at_the_end(turns):
    log, started = turns
    backward.end_dq_in_turn(started(0)[0], "turns", started(0)[1])
    assert log == [*OWN, ("both.sync",)]
    log.clear()
    backward.end_dq(*started(0)[:1], "turns", None)
    assert log == [("both.sync",)]


def test_a_block_waits_until_it_is_its_turn(turns):
    log, started = turns
    answers = iter([0, 1, 2, 3])
    backward.cuda.atomic = SimpleNamespace(cas=lambda *given: next(answers))
    backward.await_turn(started(0)[0], "turns", "part", 3)
    assert next(answers, None) is None and log == AWAITED[1:]


# ------------------------------------------------------------------- weights and biases

class Arrays(NamedTuple):
    weight: int = 1000
    bias: int = 2000


class At(NamedTuple):
    begin: int = 64
    first: int = 5
    limit: int = 9


@pytest.mark.parametrize(
    ("weight", "bias", "early", "slot"), [*itertools.product([False, True], repeat=4)]
)
def test_when_weights_and_biases_are_loaded(weight, bias, early, slot, monkeypatch):
    """Early ones before the reduction; a slot's bias after its weight has been used."""
    log = []
    monkeypatch.setattr(steps, "load_cached", lambda share, *at: log.append(("early", *at)) or at)
    monkeypatch.setattr(steps, "load_late", lambda share, *at: log.append(("late", *at[:3])) or at)
    monkeypatch.setattr(steps, "times", lambda share, values, by: log.append("times") or values)
    monkeypatch.setattr(steps, "plus", lambda share, values, by: log.append("plus") or values)
    share = SimpleNamespace(dtype=as_dtype("f32"))
    options = RowOptions(weight=weight, bias=bias)
    plan = RowPlan(32, early=early and not slot, bulk=bool(slot), slot=1024 * slot)
    load_early, finish = steps.affine_steps(share, options, plan)
    loaded = load_early(Arrays(), At())
    places = {"weight": (1064, 5, 9), "bias": (2064, 5, 9)}
    given = [name for name, present in (("weight", weight), ("bias", bias)) if present]
    early = plan.early
    assert log == [("early", *places[name]) for name in given if early]
    log.clear()
    finish("values", Arrays(), At(), loaded)
    late = {name: [("late", *places[name])] if not early else [] for name in given}
    uses = {"weight": ["times"], "bias": ["plus"]}
    if slot:
        assert log == [step for name in given for step in late[name] + uses[name]]
    else:
        assert log == sum((late[n] for n in given), []) + sum((uses[n] for n in given), [])


# ------------------------------------------------------------------------ mma's sums


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_warpgroup_has_sums_of_each_64_rows(blocks):
    plan = SimpleNamespace(columns=16, accumulator=as_dtype("f32"), blocks=blocks)
    zero_sums, found = mma_kernel.zero_sums(plan), []
    cuda.jit(lambda: found.extend(zero_sums()))[1, 1]()
    assert len(found) == blocks and all(type(part) is Fragment for part in found)


# -------------------------------------------- chunks of unaligned operands are loaded some at once


@pytest.mark.parametrize(
    ("blocks", "chunks", "inner", "last"),
    [
        (1, (3, 5), [8], [8]),
        (1, (4, 5), [5, 4], [5, 4]),
        (1, (8, 9), [6, 6, 5], [6, 6, 5]),
        (2, (2, 2), [4], [4]),
        (2, (4, 1), [5], [3, 2]),
        (2, (4, 2), [3, 3], [3, 3]),
        (2, (4, 4), [4, 4], [4, 4]),
    ],
)
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("length", [63, 64, 71, 72])
def test_as_many_chunks_are_loaded_at_once_as_registers_hold(
    monkeypatch, blocks, chunks, inner, last, first, length
):
    """The groups of a stage differ by one chunk at most. 8 elements along K follow an inner one."""
    KINDS = "read", "write"
    log, numbers = [], dict(zip(("a", "b") if first == "a" else ("b", "a"), chunks))

    def moves(plan, side, *, last):
        read, write = (partial(lambda *step: log.append(step), k, side, last) for k in KINDS)
        return [unaligned_kernel.ChunkMove(read, write, i) for i in range(numbers[side])]

    monkeypatch.setattr(unaligned_kernel, "chunk_moves", moves)
    plan = SimpleNamespace(
        a_major="K", b_major="MN", k=64, blocks=blocks, config=SimpleNamespace(first=first)
    )
    a, b = SimpleNamespace(columns=length, lines=99), SimpleNamespace(columns=99, lines=length)
    fill, places = unaligned_kernel.tile_fill(plan), ((5, 0, "A"), (0, 6, "B"))
    cuda.jit(lambda: fill(a, b, (5, 6, 0, "A", "B"), "stage", "loader"))[1, 1]()
    steps = [(kind, len([*group])) for kind, group in itertools.groupby(step[0] for step in log)]
    groups = inner if length >= 72 else last
    assert steps == [(kind, number) for number in groups for kind in KINDS]
    every = [(side, i) for side in numbers for i in range(numbers[side])]
    assert [(step[1], step[-1]) for step in log if step[0] == "read"] == every
    assert sorted((step[1], step[-1]) for step in log if step[0] == "write") == sorted(every)
    told = (length < 72, a, b, places, "stage", "loader")
    assert all((step[2], *step[-6:-1]) == told for step in log)


# ---------------------------- a block does not exit before commits have arrived on its barriers


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_every_thread_that_starts_a_ring_of_commits_closes_it(scaled, group, monkeypatch):
    open_rings, start, close = Counter(), TilePipeline.start, TilePipelineHandle.close

    def started(ring, *given, **options):
        open_rings[ring] += 1
        return start(ring, *given, **options)

    def closed(handle):
        open_rings[handle._producer.pipeline] -= 1
        return close(handle)

    monkeypatch.setattr(TilePipeline, "start", started)
    monkeypatch.setattr(TilePipelineHandle, "close", closed)
    x, scales = tma.quantize(np.ones((8, 32)), "mxfp8")
    options = dict.fromkeys(("a_scales", "b_scales"), tma.to_blocked(scales)) if scaled else {}
    matmul(x, x.T, config=Tcgen05Config(64, stages=2, cta_group=group), **options)
    assert open_rings and not any(open_rings.values())
