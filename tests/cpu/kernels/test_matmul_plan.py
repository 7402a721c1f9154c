"""The plans of matmul, against sums of bytes: how many stages a block's shared memory has."""

import itertools
import math
import random
from functools import partial

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig, ScaledPlan
from numba_tma.kernels.matmul.plan import (
    Config,
    MatmulPlan,
    NarrowPlan,
    SwappedConfig,
    SwappedPlan,
    UnalignedConfig,
)
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

ROOM = 225 * 1024  # bytes of a block for tiles
KB = 1024


def up(n, unit):
    return -(-n // unit) * unit


def sampled(*choices, seed, most=150):
    """Return some of all combinations."""
    every = list(itertools.product(*choices))
    return random.Random(seed).sample(every, min(most, len(every)))


def span(n, major):
    """Return the extent of `n` rows of 16 bits: one span of 32 to 128 bytes, or some of 128."""
    return n if major == "K" else up(n, 64) if n > 32 else 32 if n > 16 else 16


def operand(dtype, rows, k, major):
    """Return a tile whose rows, along K or along the other axis, are cut into the widest spans."""
    k = k // dtype.itemsize
    nbytes = min(128, dtype.itemsize * (k if major == "K" else span(rows, major)))
    return Tile((1, rows, k) if major == "K" else (1, k, rows), dtype, Swizzle[f"B{nbytes}"])


def check(make, stage, room):
    """A plan has as many stages as it asks for and as fit; two of them at least."""
    (config,) = (x for x in make.args if hasattr(x, "stages"))
    fitting = min(config.stages, room // stage)
    if fitting < 2:
        given = max(0, room) if issubclass(make.func, NarrowPlan) else ROOM
        with pytest.raises(ValueError, match=rf"of {stage:,} B, and two .* into the {given:,} B "):
            make()
        return fitting
    plan = make()
    assert (plan.stages, plan.stage_nbytes) == (fitting, stage)
    assert plan.threads == plan.roles.threads
    assert len(plan.consumers) == len(plan.roles.roles) - 1
    return fitting


def test_stages_and_the_results_share_the_memory_of_a_block():
    """Beside the tiles in which each warpgroup stores, and two of the sums' inputs if any."""
    found = set()
    for m, n, (cluster, k), majors, names, nbytes, out_stages, residual, stages in sampled(
        (64, 128), (32, 96, 256), ((1, 128), (2, 128), (1, 256), (1, 512)), ("KK", "MM", "KM"),
        (("bf16", "f32"), ("f16", "f16"), ("e4m3", "bf16")), (32, 64, 128), (1, 2, 5),
        (False, True), (2, 3, 8, 64), seed=1,
    ):  # fmt: skip
        config = Config(m, n, cluster, k=k, stages=stages, out_bytes=nbytes, out_stages=out_stages)
        a, out = map(as_dtype, names)
        majors = ["K" if major == "K" or a.itemsize == 1 else "MN" for major in majors]
        width = math.gcd(n, nbytes // out.itemsize)
        results = m * out_stages * width * out.itemsize
        sources = 2 * m * width * out.itemsize if residual else 0
        epilogue = Epilogue(residual=residual)
        plan = partial(MatmulPlan, a, a, *majors, out, config, epilogue)
        found.add(fitting := check(plan, (m + span(n, majors[1])) * k, ROOM - results - sources))
        if fitting >= 2:
            assert plan().epilogue_tiles * width == n
            assert plan().a_tile == operand(a, m, k, majors[0])
            assert plan().b_tile == operand(a, n, k, majors[1])
            if cluster == 2 and majors[1] == "K":
                assert plan().b_copy.shape == (1, n // 2, k // a.itemsize)
            elif cluster == 2:  # half of the lines of every slab
                assert plan().b_copy.shape == (1, k // a.itemsize // 2, min(64, n))
    assert {0, 1, 2, 3, 8} < found


def test_scales_of_a_are_in_its_stages():
    found = set()
    for m, n, out_stages, stages in sampled(
        (64, 128, 256), (32, 64, 128), (1, 2, 16), (2, 5, 64), seed=2
    ):
        config = ScaledConfig(m, n, stages=stages, out_stages=out_stages)
        e4m3, bf16 = as_dtype("e4m3"), as_dtype("bf16")
        results = min(2, m // 64) * 64 * out_stages * math.gcd(n, 64) * 2
        plan = partial(ScaledPlan, e4m3, e4m3, "K", "K", bf16, config)
        found.add(fitting := check(plan, (m + n) * 128 + 4 * m, ROOM - results))
        if fitting >= 2:
            assert (plan().warpgroups, plan().products) == {64: (1, 1), 128: (2, 1), 256: (2, 2)}[m]
    assert {2, 3, 4, 5} < found


def received(m, n, cluster):
    """Return the bytes of a share's sums: the columns of 8 are divided evenly among most blocks."""
    shares = [count for count in range(1, cluster + 1) if n % (8 * count) == 0]
    return 4 * cluster * (n // max(shares)) * (m + 4) * (cluster > 1)


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "MN"), ("K", "MN"), ("MN", "K")])
def test_blocks_of_an_sm_and_the_sums_of_a_cluster_share_its_memory(first, majors):
    """The other operand has a whole number of spans; CUDA takes 1 KB of each of several blocks."""
    dtype, found = as_dtype("bf16"), set()
    for m, n, cluster, blocks, k, stages in sampled(
        (64, 128), (8, 24, 64, 88), (1, 2, 3, 8), (1, 2, 4), (128, 256, 512), (2, 3, 16), seed=3
    ):
        config = SwappedConfig(m, n, cluster, blocks, k, stages, first)
        room = ROOM // blocks - received(m, n, cluster) - KB * (blocks > 1)
        plan = partial(SwappedPlan, dtype, dtype, *majors, dtype, config)
        found.add(check(plan, (m + span(n, majors[first == "a"])) * k, room))
    assert {2, 3} < found and min(found) < 2


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "MN"), ("K", "MN"), ("MN", "K")])
def test_stages_of_any_alignment_have_half_of_an_sm(first, majors):
    dtype, found = as_dtype("f16"), set()
    for n, cluster, k, stages, bias in sampled(
        (8, 24, 32, 40, 64, 72, 128), (1, 2, 5, 8), (128, 256), (2, 3, 16), (False, True), seed=4
    ):
        config = UnalignedConfig(first, n, cluster, k, stages)
        held = max(16, 1 << (n - 1).bit_length()) if majors[first == "a"] == "MN" else n
        room = ROOM // 2 - KB - received(64, held, cluster)
        epilogue = Epilogue(bias=dtype if bias else None)
        plan = partial(UnalignedPlan, dtype, dtype, *majors, dtype, config, epilogue)
        found.add(fitting := check(plan, (64 + held) * k, room))
        if fitting >= 2:
            assert plan().blocks == (2 if held <= (32 if bias else 64) else 1)
    assert {2, 3} < found and min(found) < 2
