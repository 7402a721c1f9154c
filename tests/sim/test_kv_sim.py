"""Rings of keys and values in the simulator: every order of use, any seed."""

import pytest

from numba_tma import simulator
from tests.kv_kernels import ORDERS, Case, stages_needed

CASE = Case()
RINGS = {"one ring": True, "two rings": False}
per_ring = pytest.mark.parametrize("shared", RINGS.values(), ids=RINGS)


@per_ring
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_of_use(order, shared):
    fewest = stages_needed(order, shared)
    for seed, (stages, parts, tiles) in enumerate(
        [(fewest, 1, 4), (fewest, 2, 3), (3, 4, 4), (4, 2, 1), (2, 1, 0)]
    ):
        simulator.seed(seed)
        CASE.order(order, stages, parts, shared, 1, 1, tiles)


@per_ring
@pytest.mark.parametrize("order", ORDERS)
def test_two_consumers(order, shared):
    for seed in range(2):
        simulator.seed(seed)
        CASE.order(order, 2, 2, shared, 2, 1, 3)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_are_used_as_they_land(parts):
    for seed in range(2):
        simulator.seed(seed)
        CASE.landing(2, parts, 3)
