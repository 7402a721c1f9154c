"""Rings of keys and values in the simulator: every order of use, any seed."""

import pytest

from numba_tma import simulator
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
