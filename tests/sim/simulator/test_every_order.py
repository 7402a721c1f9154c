"""Every order of a small instance of each pipeline and of each shipped protocol.

Each test is one line on its launch: `explored` asserts that no order has a mistake. The run ends
with the numbers of states. docs/guide/exhaustive_check.md lists what is not explored, and why.
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_tma import simulator as sim
from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.matmul import matmul
from numba_tma.kernels.rows import softmax
from tests.kernels.kv_kernels import ORDERS, Case, stages_needed
from tests.mutants.mutants import PROGRAMS
from tests.mutants.table import built, run
from tests.sim.kernels import test_attention as forward
from tests.sim.kernels import test_attention_backward as backward
from tests.sim.kernels import test_block_scaled as scaled
from tests.sim.kernels import test_grouped_matmul as grouped
from tests.sim.kernels.test_matmul import ONE, factors
from tests.tiers import quick

#: Programs of tests/mutants that have too many states, or whose threads do as the order says.
NOT_EXPLORED = {
    "TilePipeline, filled_by='cp_async'": sim.TooManyStates,
    "OutputTilePipeline, memory='tensor'": sim.TooManyStates,
    "LaunchControl": sim.TimingDependent,
}
#: Each thread's arrival at a cluster's barrier is a step of its own: no limit is reached in time.
CLUSTERS = {"TilePipeline, multicast"}
SMALLER = {"KVPipeline"}  # below
SLOW = {"barriers by hand", "CircularBuffer, war='mbarrier'", "TilePipeline, filled_by='threads'"}


@pytest.mark.parametrize(
    "program",
    quick(
        lambda program: program.pipeline not in SLOW,
        [p for p in PROGRAMS if p.pipeline not in NOT_EXPLORED.keys() | CLUSTERS | SMALLER],
    ),
    ids=lambda program: program.pipeline,
)
def test_pipelines(program, explored):
    kernel = built(program, program.source)
    explored(lambda: run(program, kernel))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_EXPLORED)
def test_what_is_not_explored_says_so(name):
    program = next(p for p in PROGRAMS if p.pipeline == name)
    kernel = built(program, program.source)
    with pytest.raises(NOT_EXPLORED[name]):
        sim.explore(lambda: run(program, kernel), limit=60_000)


# ------------------------------------------------------------------ smaller instances

CASE = Case()


@pytest.mark.parametrize("shared", [True, False], ids=["one ring", "two rings"])
@pytest.mark.parametrize("order", quick(list(ORDERS)[:1], ORDERS))
def test_keys_and_values(order, shared, explored):
    explored(lambda: CASE.order(order, stages_needed(order, shared), 1, shared, 1, 1, 2))


# ------------------------------------------------------------------ shipped protocols


def gradients():
    given = dout, q, k, v = backward.arrays(64, 64)
    attention_backward(*given, *backward.exact(dout, q, k, v)[:2])


PROTOCOLS = {
    "matmul": lambda: matmul(*factors(64, 64, 192), config=ONE),
    "matmul, split-K": lambda: matmul(*factors(64, 64, 256), config=replace(ONE, splits=2)),
    "attention": lambda: attention(*forward.arrays(64, 128), plan=forward.ONE),
    "attention backward": gradients,
    "rows": lambda: softmax(np.ones((4, 256), np.float32)),
    "grouped matmul": lambda: grouped.check(np.array([5, 66, 1])),
    "block-scaled matmul": lambda: scaled.check(*scaled.operands(64, 64, 256)),
}


@pytest.mark.parametrize(
    "name", quick(["matmul", "attention", "rows", "block-scaled matmul"], PROTOCOLS)
)
def test_shipped_protocols(name, explored):
    explored(PROTOCOLS[name], limit=200_000)
