"""Each hazard of the tensor cores has its error, which says what is wrong and the repair.

The hazards stand in mutants of two matmuls, but for those of scale factors, which these do not use.
"""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.kernels import tensor_matmul
from tests.kernels.tensor_products import chunked, descriptor, idesc, row_bytes
from tests.mutants.tensor import MUTANTS
from tests.tiers import seeds

NAMED = {mutant.mistake: mutant for mutant in MUTANTS}
HAZARDS = {
    "a product reads a stage too early": "a product that does not wait for its stage",
    "a stage is overwritten under a product": "a stage that an arrival releases",
    "an epilogue reads before the commit": "an epilogue that does not wait",
    "an epilogue waits for no commit at all": "a result that is not committed",
    "no fence after": "an epilogue without a fence after its wait",
    "no fence before": "an epilogue without a fence before its arrival",
    "no fence between proxies": "an ordinary write without a fence",
    "no wait of the load": "an accumulator that is released before its loads are over",
    "tensor memory that is not freed": "columns that nobody frees",
    "tensor memory that is allocated twice": "columns that are allocated twice",
    "tensor memory that is freed twice": "columns that are freed twice",
    "tensor memory that was never allocated": "an accumulator past the allocation",
    "an allocation after the permit": "an allocation after the permit was given back",
    "two cta_groups in a kernel": "two groups in a kernel",
    "two cta_groups of products": "a product of one block",
    "a mask of too few words": "a mask of three words",
    "a mask of the other cta_group": "a mask of lanes for one block",
    "a mask of blocks that there are not": "a commit to blocks outside the cluster",
    "a layout that the tile has not": "a descriptor with another swizzle than the tile's",
    "a layout of another instruction": "a descriptor for wgmma",
    "a layout of another accumulator": "an accumulator that begins in the middle of the lanes",
    "an accumulator that nothing began": "a product that adds to nothing",
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_hazard_has_its_error(hazard):
    """Under one of a few seeds it is the first of the mutant's errors, with its text."""
    mutant = NAMED[HAZARDS[hazard]]
    kernel, found = mutant.build(), []
    for seed in range(4):
        sim.seed(seed)
        with pytest.raises(sim.SimulatorError) as caught:
            tensor_matmul.launch(kernel)
        found.append(f"{type(caught.value).__name__}: {caught.value}")
        name = mutant.errors.split()[0]
        if found[-1].startswith(f"{name}: ") and mutant.text in found[-1]:
            return
    pytest.fail("\n".join(found))


# ------------------------------------------------------------------------------ scale factors

HELD = tma.Tile(4, np.uint32)
FACTORS = tma.Tile(512, "u8")
MATRIX = tma.Tile(128 * 32, "u8")
SCALED = idesc("mxf8f6f4", 128, 16, "e4m3", "e4m3", scale_type="ue8m0")
KIND = "mxf8f6f4.block_scale.block32"


def scaled_product(same_thread, waits, copies=2):
    """Copy scale factors and multiply: in one thread, or in two, of which one may wait."""

    @cuda.jit
    def kernel():
        held, bars = tma.shared_tile(HELD), tma.shared_barriers(2)
        a, factors = tma.shared_tile(MATRIX), tma.shared_tile(FACTORS)
        t = cuda.threadIdx.x
        if t == 0:
            bars[0].init(1)
            bars[1].init(1)
            sim.shared_write(a.address, chunked(row_bytes(np.ones((128, 32)), "e4m3")))
            sim.shared_write(factors.address, np.full(512, 127, np.uint8))
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_async()
        if t < 32:
            cuda.syncwarp()
            ptx.tcgen05_alloc(held, 64, 1)
        ptx.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        ptx.tcgen05_fence_after_thread_sync()
        base = ptx.ld_shared_u32(held.address)
        copier = 0 if same_thread else 32
        if t == copier:
            for i in range(copies):
                place = factors.address // 16 | 8 << 32 | 1 << 46
                ptx.tcgen05_cp(base + 32 + 4 * i, place, "32x128b.warpx4", 1)
            if not same_thread:
                ptx.tcgen05_commit(bars[0], 1)
        if t == 0:
            if waits:
                bars[0].wait(0)
                ptx.tcgen05_fence_after_thread_sync()
            if not same_thread and not waits:
                cuda.nanosleep(1)
            left, right = descriptor(a.address, 128), descriptor(a.address, 128)
            ptx.tcgen05_mma_block_scaled(
                base, left, right, SCALED, base + 32, base + 36, False, KIND, 1
            )
            ptx.tcgen05_commit(bars[1], 1)
        bars[1].wait(0)
        if not waits and not same_thread:
            bars[0].wait(0)
        ptx.tcgen05_fence_after_thread_sync()
        if t < 32:
            cuda.syncwarp()
            ptx.tcgen05_dealloc(base, 64, 1)

    kernel[1, 64]()


@seeds(4, 12)
def test_scale_factors_that_are_copied_in_order(seeds):
    for seed in seeds:
        sim.seed(seed)
        scaled_product(same_thread=True, waits=False)
        scaled_product(same_thread=False, waits=True)


@seeds(4, 12)
def test_scale_factors_that_are_not_copied_yet(seeds):
    """Another thread's copy is under way, or not even issued: the product is an error in each."""
    names = set()
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises((sim.EarlyRead, sim.UninitializedRead)) as caught:
            scaled_product(same_thread=False, waits=False)
        names.add(type(caught.value).__name__)
        text = str(caught.value)
        assert "scale factors of A there that were never copied" in text or "tcgen05_cp" in text
    assert "EarlyRead" in names


def test_scale_factors_of_b_that_are_forgotten():
    with pytest.raises(sim.UninitializedRead, match="scale factors of B there that were never"):
        scaled_product(same_thread=True, waits=False, copies=1)
