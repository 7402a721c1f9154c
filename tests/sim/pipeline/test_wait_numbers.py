"""The stage, parity and number that each wait of a pipeline names in debug mode."""

from collections import defaultdict

import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator
from numba_tma.pipeline import (
    circular_handle,
    consumer,
    launch_control_handle,
    ordered,
    producer,
)
from numba_tma.simulator.thread import current
from tests.kernels import launch_control
from tests.kernels import started_scopes as started
from tests.sim.pipeline.test_started_scopes import KERNELS

#: The launches of kernels that walk round the stages of each pipeline.
LAUNCHES = {name: lambda of=name: launch_on_tiles(*KERNELS[of]) for name in KERNELS} | {
    "launch control": lambda: launch_control.count[12, 64](np.zeros((4, 3)), 4, 3),
    "launch control of one slot": lambda: launch_control.count_by_threads[
        12, launch_control.MIXED_ROLES.threads
    ](np.zeros((4, 3)), 4, 3),
}


def launch_on_tiles(kernel, block):
    x = started.words(9)
    kernel[1, block](tma.tensor_map(x, started.TILE), np.zeros_like(x), 9, -1)


@pytest.mark.parametrize("name", LAUNCHES)
def test_waits_count_from_0_and_walk_round_the_stages(name, monkeypatch):
    waits = defaultdict(list)

    def noted(original):
        def wait_for(barrier, parity, site, stage, iteration):
            waits[current(), site.what].append((int(iteration), int(stage), int(parity)))
            original(barrier, parity, site, stage, iteration)

        return wait_for

    for module in (circular_handle, consumer, launch_control_handle, ordered, producer):
        monkeypatch.setattr(module, "wait_for", noted(module.wait_for))
    simulator.seed(2)
    LAUNCHES[name]()
    assert waits
    for what in {what for _, what in waits}:
        of_threads = [found for (_, each), found in waits.items() if each == what]
        stages = max(stage for found in of_threads for _, stage, _ in found) + 1
        for found in of_threads:
            flipped = found[0][2] ^ found[0][0] // stages & 1
            assert found == [(i, i % stages, flipped ^ i // stages & 1) for i, *_ in found], what
        numbers = {i for found in of_threads for i, *_ in found}
        assert numbers == set(range(len(numbers))), what
