"""Registers, memory, matrices, conversions, policies, fences and clocks in the simulator."""

import itertools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx, simulator
from tests import conversions
from tests.fragments import fragments

SEEDS = range(5)


def launch(body, grid, block, *args, seeds=SEEDS):
    for seed in seeds:
        simulator.seed(seed)
        cuda.jit(body)[grid, block](*args)


# ------------------------------------------------------------------------- registers


def test_indices_and_sizes():
    def body(out):
        t = ptx.tid_x(), ptx.tid_y(), ptx.tid_z()
        b = ptx.ctaid_x(), ptx.ctaid_y(), ptx.ctaid_z()
        assert (ptx.ntid_x(), ptx.ntid_y(), ptx.ntid_z()) == (4, 3, 2)
        assert (ptx.nctaid_x(), ptx.nctaid_y(), ptx.nctaid_z()) == (2, 1, 3)
        out[b + t] += 1

    out = np.zeros((2, 1, 3, 4, 3, 2))
    launch(body, (2, 1, 3), (4, 3, 2), out, seeds=[0])
    np.testing.assert_array_equal(out, np.ones_like(out))


def test_lanes_warps_and_sms():
    def body():
        lane = ptx.laneid()
        assert lane == cuda.threadIdx.x % 32
        assert ptx.warpid() == cuda.threadIdx.x // 32 < ptx.nwarpid()
        assert 0 <= ptx.smid() < ptx.nsmid()
        below, this = (1 << lane) - 1, 1 << lane
        assert (ptx.lanemask_eq(), ptx.lanemask_lt()) == (this, below)
        assert ptx.lanemask_le() == this | below
        assert ptx.lanemask_ge() == 0xFFFFFFFF ^ below
        assert ptx.lanemask_gt() == 0xFFFFFFFF ^ below ^ this

    launch(body, 1, 64, seeds=[0])


def test_clocks_go_forward():
    def body():
        cycles, now = ptx.clock64(), ptx.globaltimer()
        for _ in range(10):
            ptx.nanosleep(100)
            later, after = ptx.clock64(), ptx.globaltimer()
            assert later > cycles and after > now
            cycles, now = later, after

    launch(body, 1, 32)


def test_a_time_limit_ends_a_wait_that_nothing_else_would():
    def body(out):
        barrier = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(2)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        start = ptx.globaltimer()
        while not barrier.try_wait(0):
            if ptx.globaltimer() - start > 20_000_000:
                out[cuda.threadIdx.x] += 1
                break

    out = np.zeros(32)
    launch(body, 1, 32, out)
    np.testing.assert_array_equal(out, np.full(32, len(SEEDS)))


# ---------------------------------------------------------------------------- memory


def test_words_and_vectors():
    def body(out):
        space = simulator.allocate_shared("space", 16, 16)
        ptx.st_shared_v4_u32(space, (1, 2, 3, 0xFFFFFFFF))
        assert ptx.ld_shared_v4_u32(space) == (1, 2, 3, 0xFFFFFFFF)
        assert ptx.ld_shared_v2_u32(space + 8) == (3, 0xFFFFFFFF)
        assert ptx.ld_shared_u64(space) == 1 | 2 << 32
        assert ptx.ld_shared_u16(space + 14) == 0xFFFF
        ptx.st_shared_v2_u32(space, (7, 8))
        ptx.st_shared_u64(space + 8, 2**63 + 5)
        assert ptx.ld_shared_v4_u32(space) == (7, 8, 5, 1 << 31)
        ptx.st_shared_u16(space + 2, 0xABCD)
        assert ptx.ld_shared_u32(space) == 0xABCD0007
        ptx.st_shared_f32(space + 4, 0.5)
        assert ptx.ld_shared_f32(space + 4) == 0.5
        ptx.st_shared_v4_f32(space, (0.5, -1.0, 3e38, float("inf")))
        assert ptx.ld_shared_v4_f32(space)[:2] == (0.5, -1.0)
        assert ptx.ld_shared_u32(space + 12) == 0x7F800000
        out[0] += 1

    out = np.zeros(1)
    launch(body, 1, 1, out, seeds=[0])
    assert out[0] == 1


def test_a_vector_is_aligned_to_all_its_bytes():
    def body(load):
        load(simulator.allocate_shared("space", 32, 16) + 8)

    for access in (ptx.ld_shared_v4_u32, lambda a: ptx.st_shared_v4_f32(a, (0, 0, 0, 0))):
        with pytest.raises(simulator.BadOperand, match="not a multiple of the 16 bytes of the vec"):
            launch(body, 1, 1, access, seeds=[0])


# -------------------------------------------------------------------------- matrices

LOADS = {1: ptx.ldmatrix_x1, 2: ptx.ldmatrix_x2, 4: ptx.ldmatrix_x4}
STORES = {1: ptx.stmatrix_x1, 2: ptx.stmatrix_x2, 4: ptx.stmatrix_x4}


@pytest.mark.parametrize("trans", [None, "trans"])
@pytest.mark.parametrize("count", LOADS)
def test_matrices_and_fragments(count, trans):
    rng = np.random.default_rng(count)
    matrices = rng.integers(0, 2**16, (count, 8, 8), np.uint16)
    places = rng.permutation(32)[: 8 * count]  # rows lie anywhere
    expected = fragments(matrices, bool(trans))

    def body():
        source = simulator.allocate_shared("source", 512, 16)
        target = simulator.allocate_shared("target", 512, 16)
        lane = ptx.laneid()
        row = 0
        if lane < 8 * count:
            row = 16 * int(places[lane])
            simulator.shared_write(source + row, matrices.reshape(-1, 8)[lane])
        ptx.bar_warp_sync()
        fragment = LOADS[count](source + row, trans)
        assert np.array_equal(np.atleast_1d(fragment), expected[lane])
        STORES[count](target + row, fragment, trans)
        ptx.bar_warp_sync()
        if lane < 8 * count:
            stored = simulator.shared_read(target + row, np.dtype(np.uint16), 8)
            assert np.array_equal(stored, matrices.reshape(-1, 8)[lane])

    launch(body, 1, 32, seeds=[0, 1])


def test_matrix_misuse():
    def part():
        space = simulator.allocate_shared("space", 512, 16)
        ptx.stmatrix_x1(space + 16 * ptx.laneid(), 0)

    with pytest.raises(simulator.BadOperand, match="20 threads of the warp execute it; it takes"):
        launch(part, 1, 20, seeds=[0])

    def off():
        space = simulator.allocate_shared("space", 512, 16)
        ptx.stmatrix_x4(space + 8 * ptx.laneid(), (0, 0, 0, 0))

    with pytest.raises(simulator.BadOperand, match=r"lane \d+ gives a row at .* a multiple of 16"):
        launch(off, 1, 32, seeds=[0])


def test_stored_fragments_need_the_fence_of_every_lane():
    def body(out, fenced):
        tile = simulator.allocate_shared("tile", 128, 128)
        ptx.stmatrix_x1(tile + 16 * (ptx.laneid() % 8), 1)
        if fenced or ptx.laneid() == 0:
            ptx.fence_proxy_async()
        ptx.bar_warp_sync()
        if ptx.laneid() == 0:
            ptx.cp_async_bulk_store(out, tile, 128)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    out = np.zeros(128, np.uint8)
    launch(body, 1, 32, out, True)
    np.testing.assert_array_equal(out.view(np.uint32), np.ones(32))
    with pytest.raises(simulator.MissingFence, match="without a fence_proxy_async"):
        launch(body, 1, 32, out, False, seeds=[0])


# --------------------------------------------------------------------------- registers


def test_setmaxnreg():
    def body():
        for _ in range(2):
            if cuda.threadIdx.x < 128:
                ptx.setmaxnreg_dec(40)
            else:
                ptx.setmaxnreg_inc(232)
            cuda.syncthreads()

    launch(body, 1, 256, seeds=[0])


def test_setmaxnreg_waits_for_what_others_give_back():
    order = []

    def body():
        group = cuda.threadIdx.x // 128
        if group == 2:
            for _ in range(20):
                ptx.nanosleep(100)
            order.append("dec")
            ptx.setmaxnreg_dec(40)
        else:
            ptx.setmaxnreg_inc(232)
            order.append("inc")

    launch(body, 1, 384, seeds=[0])
    # 168 registers each at launch: 2 x 64 x 128 more are there only when the third has given all.
    assert order.index("inc") > 0 and order[: order.index("inc")].count("dec") == 128


@pytest.mark.parametrize(
    ("threads", "dec", "inc", "text"),
    [
        (384, 40, 240, "128 x (240 - 168) = 9,216 more and"),
        (384, None, 176, "1,024 more and 0 are free: the block has 64,512, the warpgroups 168 x"),
        (512, 24, 248, "128 x (248 - 128) = 15,360 more and"),
    ],
)
def test_setmaxnreg_over_budget(threads, dec, inc, text):
    def body():
        if cuda.threadIdx.x >= 128 or dec is None:
            ptx.setmaxnreg_inc(inc)
        else:
            ptx.setmaxnreg_dec(dec)

    with pytest.raises(simulator.Deadlock) as caught:
        launch(body, 1, threads, seeds=[0])
    assert f"setmaxnreg_inc({inc}) of warpgroup" in str(caught.value)
    assert text in str(caught.value)


REGISTER_MISUSES = {
    "not a multiple": (lambda: ptx.setmaxnreg_inc(100), "24 to 256 registers, in multiples of 8"),
    "inc takes fewer": (
        lambda: (ptx.setmaxnreg_inc(128), ptx.setmaxnreg_inc(120)),
        "has 128 registers per thread since its last setmaxnreg, and inc takes at least",
    ),
    "dec takes more": (
        lambda: (ptx.setmaxnreg_dec(40), ptx.setmaxnreg_dec(48)),
        "has 40 registers per thread since its last setmaxnreg, and dec takes at most",
    ),
}


@pytest.mark.parametrize("name", REGISTER_MISUSES)
def test_setmaxnreg_misuse(name):
    body, message = REGISTER_MISUSES[name]
    with pytest.raises(simulator.BadOperand, match=message):
        launch(lambda: body(), 1, 128, seeds=[0])


def test_setmaxnreg_takes_the_whole_warpgroup():
    def body():
        if cuda.threadIdx.x < 32:
            ptx.setmaxnreg_dec(40)
        cuda.syncthreads()

    with pytest.raises(simulator.Deadlock) as caught:
        launch(body, 1, 128, seeds=[0])
    assert "setmaxnreg_dec(40) of warpgroup 0: 32 of 128 threads have arrived" in str(caught.value)


# -------------------------------------------------------- conversions, policies, fences


@pytest.mark.parametrize("relu", [None, "relu"])
def test_conversions(relu):
    low, high = conversions.hard_floats(64, 5), conversions.hard_floats(64, 6)
    halves = conversions.packed(*(conversions.rounded(x, "f16") for x in (high, low)))
    bytes_ = np.random.default_rng(0).integers(0, 2**16, 64, np.uint16)
    from_f32 = {
        "f16": ptx.cvt_f16x2_f32,
        "bf16": ptx.cvt_bf16x2_f32,
        "e4m3": ptx.cvt_e4m3x2_f32,
        "e5m2": ptx.cvt_e5m2x2_f32,
    }
    from_f16 = {"e4m3": ptx.cvt_e4m3x2_f16x2, "e5m2": ptx.cvt_e5m2x2_f16x2}
    to_f16 = {"e4m3": ptx.cvt_f16x2_e4m3x2, "e5m2": ptx.cvt_f16x2_e5m2x2}

    def expected(pair, name):
        return conversions.packed(*(conversions.rounded(x, name, bool(relu)) for x in pair))

    def body(out):
        i = ptx.tid_x()
        for name, convert in from_f32.items():
            assert convert(high[i], low[i], relu) == expected((high, low), name)[i]
        for name in from_f16:
            wide = expected(conversions.unpacked(halves, "f16"), name)
            assert from_f16[name](halves[i], relu) == wide[i]
            narrow = expected(conversions.unpacked(bytes_, name), "f16")
            assert to_f16[name](bytes_[i], relu) == narrow[i]
        assert ptx.cvt_tf32_f32(1.0, "rn") == ptx.cvt_tf32_f32(1.0) == 0x3F800000
        out[i] += 1

    out = np.zeros(64)
    launch(body, 1, 64, out, seeds=[0])
    np.testing.assert_array_equal(out, np.ones(64))


PRIORITIES = "evict_last", "evict_normal", "evict_first", "evict_unchanged"


def test_policies():
    def body(x):
        whole = ptx.createpolicy_fractional(1.0, "evict_first")
        assert whole == ptx.createpolicy_evict_first() == ptx.createpolicy_cvt(whole)
        for given in itertools.product(PRIORITIES, (None, "evict_first", "evict_unchanged")):
            # Every address has the primary priority.
            assert ptx.createpolicy_range(x, 16, 32, *given) == (
                ptx.createpolicy_fractional(1.0, *given)
            )

    launch(body, 1, 1, np.zeros(8), seeds=[0])
    for fraction in (0, 1.5):
        with pytest.raises(simulator.BadOperand, match="it is above 0 and at most 1"):
            launch(
                lambda f: ptx.createpolicy_fractional(f, "evict_last"), 1, 1, fraction, seeds=[0]
            )


FENCES = {
    "default": ptx.fence_proxy_async,
    "cluster": lambda: ptx.fence_proxy_async("shared::cluster"),
    "all": ptx.fence_proxy_async_all,
    "release": ptx.fence_proxy_async_generic_release,
}
NO_FENCES_OF_SHARED_MEMORY = {
    "global": lambda: ptx.fence_proxy_async("global"),
    "acquire": ptx.fence_proxy_async_generic_acquire,
    "acq_rel": lambda: ptx.fence_acq_rel("gpu"),
    "sc": lambda: ptx.fence_sc("sys"),
    "alias": ptx.fence_proxy_alias,
    "griddepcontrol": lambda: (ptx.griddepcontrol_launch_dependents(), ptx.griddepcontrol_wait()),
}


def store_after(fence, out):
    tile = simulator.allocate_shared("tile", 16, 16)
    ptx.st_shared_v4_u32(tile, (1, 2, 3, 4))
    fence()
    ptx.cp_async_bulk_store(out, tile, 16)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


@pytest.mark.parametrize("name", FENCES)
def test_fences_that_let_the_copy_engine_see_shared_memory(name):
    out = np.zeros(16, np.uint8)
    launch(store_after, 1, 1, FENCES[name], out)
    np.testing.assert_array_equal(out.view(np.uint32), [1, 2, 3, 4])


@pytest.mark.parametrize("name", NO_FENCES_OF_SHARED_MEMORY)
def test_fences_that_do_not(name):
    fence = NO_FENCES_OF_SHARED_MEMORY[name]
    with pytest.raises(simulator.MissingFence, match="without a fence_proxy_async"):
        launch(store_after, 1, 1, fence, np.zeros(16, np.uint8), seeds=[0])
