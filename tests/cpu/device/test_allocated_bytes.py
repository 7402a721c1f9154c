"""What `start` allocates in shared memory: the bytes that the error of too much of it sums."""

import re

import pytest

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx
from tests.kernels import started_scopes as started
from tests.tiers import quick

TILE = tma.Tile((8, 32), "f32")
ROLES = tma.Roles(load=tma.Warps(1), mma=tma.Warps(1))
OWNERS = {name: made for name, made in vars(started).items() if hasattr(made, "shared_parts")}
OWNERS |= started.BUFFERS | {
    "tiles of groups": tma.TilePipeline(2, x=TILE, y=TILE, k_group=2),
    "ring in debug mode": tma.TilePipeline(3, x=TILE, debug=True),
    "buffer in debug mode": tma.CircularBuffer(3, x=TILE, debug=True),
    "stores in debug mode": tma.StorePipeline(2, x=TILE, debug=True),
    "turns": tma.OrderedSequenceBarrier(2, (ROLES.load, ROLES.mma)),
}


QUICK = ["SHARED", "KV", "STORE", "TMEM", "mbarrier, each", "buffer in debug mode", "turns"]


@pytest.mark.parametrize("name", quick(QUICK, OWNERS))
def test_memory_is_of_its_parts(name):
    OWNER = OWNERS[name]

    def kernel():
        OWNER.start()

    cluster = getattr(OWNER, "cluster", None)
    placed = tma.cluster(cluster)(kernel) if cluster and cluster != (1, 1) else kernel
    ptx = compile_ptx(placed, (), cc=(10, 0, "a"))
    allocated = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx)
    assert sum(map(int, allocated)) == sum(OWNER.shared_parts("it").values())
