"""Collectives that lanes of a warp reach from different lines; named barriers that collide."""

import re

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.tiers import seeds

FULL = 0xFFFFFFFF
ROLES = tma.Roles(a=tma.Warps(1), b=tma.Warps(1))
COLLECTIVES = {
    "syncwarp": (lambda: cuda.syncwarp(), "syncwarp of warp"),
    "shfl": (lambda: cuda.shfl_sync(FULL, 1, 0), "shfl_sync of warp"),
    "vote": (lambda: cuda.ballot_sync(FULL, 1), "ballot_sync of warp"),
    "elect": (lambda: tma.elect_sync(), "elect_sync of warp"),
    "syncthreads": (lambda: cuda.syncthreads(), "syncthreads: lane"),
    "syncthreads_count": (lambda: cuda.syncthreads_count(1), "syncthreads: lane"),
    "role.sync": (
        lambda: ROLES.a.sync() if ROLES.a.is_member() else ROLES.b.sync(),
        "named barrier 1 for 32 threads: lane",
    ),
}

EXCHANGES = {"shfl", "vote", "elect"}


@seeds(2, 8)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_lanes_meet_from_different_lines(name, seeds):
    call, text = COLLECTIVES[name]

    @cuda.jit
    def diverged():
        if cuda.threadIdx.x % 32 < 7:
            call()
        else:
            call()

    @cuda.jit
    def of_warps():  # each warp executes one of the two, whole
        if cuda.threadIdx.x < 32:
            call()
        else:
            call()

    for seed in seeds:
        sim.seed(seed)
        of_warps[1, 64]()
        with pytest.raises(sim.BarrierMisuse) as caught:
            diverged[1, 64]()
        assert text.replace("barrier 1", "barrier") in str(caught.value).replace(
            "barrier 1", "barrier"
        ).replace("barrier 2", "barrier")
        lane, its, others = re.search(
            r"lane (\d+) executes it at test_diverged.py:(\d+) while other lanes execute it at "
            r"test_diverged.py:(\d+): ", str(caught.value),
        ).groups()  # fmt: skip
        first = diverged.fn.__code__.co_firstlineno + 3  # of the calls of lanes 0 to 6
        lines = [str(first), str(first + 2)]
        assert [its, others] == (lines if int(lane) < 7 else lines[::-1])
        lost = "exchange values" if name in EXCHANGES else "meet there"
        assert f"the warp has diverged, and on a GPU the lanes do not {lost}." in str(caught.value)


def test_a_meeting_in_a_loop_and_again_behind_it():
    @cuda.jit
    def kernel(out):
        for _ in range(3):
            cuda.syncwarp()
            cuda.syncthreads()
        cuda.syncwarp()
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    out = np.zeros(64)
    kernel[1, 64](out)
    assert out.all()


# ------------------------------------------------------------------ named barriers that collide


def pairs(ids, ordered=False):
    """Return a kernel of two pairs of warps, which use these named barriers at the same time."""

    @cuda.jit
    def kernel():
        for _ in range(2):
            if cuda.threadIdx.x < 64:
                ptx.barrier_sync(ids[0], 64)
            if ordered:
                cuda.syncthreads()
            if cuda.threadIdx.x >= 64:
                ptx.barrier_sync(ids[1], 64)
            if ordered:
                cuda.syncthreads()

    return kernel


@seeds(4, 20)
def test_two_roles_use_one_named_barrier(seeds):
    for seed in seeds:
        sim.seed(seed)
        pairs((8, 9))[1, 128]()
        pairs((8, 8), ordered=True)[1, 128]()
        with pytest.raises(sim.BarrierMisuse) as caught:
            pairs((8, 8))[1, 128]()
        text = str(caught.value)
        assert "named barrier 8 for 64 threads" in text and "two groups of warps use it" in text
        assert str(caught.value).count("test_diverged.py:") == 2


@seeds(4, 20)
def test_warpgroups_take_turns_with_named_barriers(seeds):
    """As attention's warpgroups do: one arrives where the other waits, on a barrier each."""

    @cuda.jit
    def kernel():
        me = cuda.threadIdx.x // 32
        if me == 1:
            ptx.barrier_arrive(8, 64)
        for _ in range(3):
            ptx.barrier_sync(8 + me, 64)
            ptx.barrier_arrive(9 - me, 64)
        if me == 0:
            ptx.barrier_sync(8, 64)

    for seed in seeds:
        sim.seed(seed)
        kernel[1, 64]()
