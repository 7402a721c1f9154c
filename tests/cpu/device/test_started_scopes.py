"""``with PIPE.start() as pipe`` compiles for every kind of pipeline, without spills or calls."""

import re

import pytest
from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels import started_scopes as started
from tests.tiers import quick

MAP, HALF = (TensorMapType(2, tile) for tile in (started.TILE, started.HALF))
KEYS, VALUES = (TensorMapType(2, tile) for tile in (started.KV.k_tile, started.KV.v_tile))
WORDS, NOTES = types.uint32[:, ::1], types.int64[:, ::1]
ROWS, N = types.float32[:, ::1], types.int64
SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")
BUFFERS = {
    f"circular buffer: {name}": (
        started.buffered(BUFFER, BUFFER.barriers == "each"), (MAP, WORDS, N, N), SM_90A
    )
    for name, BUFFER in started.BUFFERS.items()
}  # fmt: skip
KERNELS = BUFFERS | {
    "ring": (started.ring(started.RING), (MAP, WORDS, N, N), SM_90A),
    "ring without roles": (started.ring(started.NO_ROLES), (MAP, WORDS, N, N), SM_90A),
    "turns": (started.taking_turns, (MAP, WORDS, N, N), SM_90A),
    "cluster": (started.in_cluster, (HALF, WORDS, N, N), SM_90A),
    "pair": (started.in_pair, (MAP, NOTES, N, N), SM_100A),
    "keys and values": (started.keys_and_values, (KEYS, VALUES, ROWS, N), SM_90A),
    "stores": (started.with_stores, (MAP, MAP, N, N), SM_90A),
    "circular buffer of a role": (started.buffer_of_a_role, (MAP, WORDS, N, N), SM_90A),
    "tensor memory": (started.columns_of_tensor_memory, (ROWS, ROWS, N, N), SM_100A),
}


@pytest.mark.parametrize("name", quick(["pair", "circular buffer of a role", "stores"], KERNELS))
def test_the_scope_of_a_started_pipeline_compiles(name):
    kernel, signature, target = KERNELS[name]
    ptx = compile_ptx(kernel, signature, cc=target)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert not re.search(r"^\s*call\b", ptx, re.M) and ".local" not in ptx
