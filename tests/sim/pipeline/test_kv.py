"""Rings of keys and values in the simulator: every order of use, any seed."""

import inspect

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.pipeline import kv_consumer, kv_producer, staged
from numba_tma.pipeline.kv import label_ring
from tests.kernels.kv_kernels import ORDERS, Case, stages_needed
from tests.tiers import quick, seeds

CASE = Case()
RINGS = {"one ring": True, "two rings": False}
per_ring = pytest.mark.parametrize("shared", RINGS.values(), ids=RINGS)


SIZES = [("fewest", 1, 4), ("fewest", 2, 3), (3, 4, 4), (4, 2, 1), (2, 1, 0)]


@per_ring
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("stages", "parts", "tiles"), quick(SIZES[1::3], SIZES))
def test_an_order_of_use(order, shared, stages, parts, tiles):
    fewest = stages_needed(order, shared)
    stages = {"fewest": fewest}.get(stages, stages)
    simulator.seed(parts)
    CASE.order(order, stages, parts, shared, 1, 1, tiles)


@seeds(1, 2)
@per_ring
@pytest.mark.parametrize("order", ORDERS)
def test_two_consumers(order, shared, seeds):
    for seed in seeds:
        simulator.seed(seed)
        CASE.order(order, 2, 2, shared, 2, 1, 3)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_are_used_as_they_land(parts):
    for seed in range(2):
        simulator.seed(seed)
        CASE.landing(2, parts, 3)


ROLES = tma.Roles(use=tma.Warps(1), load=tma.Warps(2))
KEYS = tma.KVPipeline(2, 16, 64, "bf16", holds="k", producer=ROLES.load, consumer=ROLES.use)


@cuda.jit
def enter(entered):
    pipe = KEYS.start()
    if ROLES.load.is_member():
        if pipe.producer().enters():
            entered[cuda.threadIdx.x] = 1


def test_one_thread_of_a_role_of_two_warps_loads():
    entered = np.zeros(ROLES.threads, np.int32)
    enter[1, ROLES.threads](entered)
    (threads,) = entered.nonzero()
    assert threads.tolist() == [ROLES.load.first]


@pytest.mark.parametrize(("stages", "parts"), [(1, 1), (2, 1), (3, 1), (1, 4), (2, 4), (3, 2)])
def test_every_sub_stage_has_its_names(monkeypatch, stages, parts):
    ring = tma.KVPipeline(
        stages, 16, 256, "bf16", parts, holds="k", producer=ROLES.load, consumer=ROLES.use
    )  # fmt: skip
    named = {}
    monkeypatch.setattr(simulator, "labelled", lambda address, name: False)
    monkeypatch.setattr(simulator, "label", named.__setitem__)
    label_ring(ring, 4096, 64)
    where = [
        f"[{stage}] of {f'sub-stage {part} of ' if parts > 1 else ''}{ring}"
        for stage in range(stages)
        for part in range(parts)
    ]
    assert named == {
        **{64 + 8 * i: f"full{text}" for i, text in enumerate(where)},
        **{64 + ring.empty_offset + 8 * i: f"empty{text}" for i, text in enumerate(where)},
        **{4096 + ring.full_kv_bytes // parts * i: f"k{text}" for i, text in enumerate(where)},
    }


def test_a_stage_has_one_sub_stage_unless_its_number_is_given():
    """All methods mean the first one by default, or the only one."""
    found = set()
    for module in (kv_producer, kv_consumer, staged):
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                for method in filter(inspect.isfunction, vars(cls).values()):
                    given = inspect.signature(method).parameters.get("qk_stage")
                    found |= {(method.__qualname__, given.default)} if given else set()
    unset = {None, inspect.Parameter.empty}
    assert len(found) > 9 and {default for _, default in found} - unset == {0}
