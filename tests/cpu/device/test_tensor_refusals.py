"""Mistakes in kernels for Blackwell: each error of a compile names both sides and the repair."""

import pytest
from numba.core import errors
from numba.cuda.core import errors as cuda_errors

import numba_tma as tma
from numba_tma.host.architectures import capability_of
from numba_tma.host.scale_factors import scale_tile
from numba_tma.tools.testing import compile_ptx
from tests.frozen import changing

SWIZZLE = tma.Swizzle.B128
A, B = tma.Tile((128, 64), "bf16", SWIZZLE), tma.Tile((64, 64), "bf16", SWIZZLE)
ALL = tma.TensorMemory(512)
HAVING = "sm_100a, 100f, 103a, 103f, 107a, 107f, 110a or 110f"


def refusal(kernel, target="100a", signature=()):
    with pytest.raises((errors.TypingError, cuda_errors.TypingError)) as caught:
        compile_ptx(kernel, signature, cc=capability_of(target))
    return str(caught.value)


# --------------------------------------------------------------------- the wrong architecture


def of_hopper():
    a = tma.shared_tile(A).matrix_descriptor()
    tma.wgmma(tma.fragment(128), a, a)


def of_blackwell():
    tmem, a, b = ALL.start(), tma.shared_tile(A), tma.shared_tile(B)
    tma.tcgen05_mma(tmem.tile(128, 64), a, b, accumulate=False)
    tmem.close()


def a_row():
    tma.ptx.tcgen05_wait_ld()


INTEGERS = tma.Tile((128, 128), "i8", SWIZZLE)


def integers():
    tmem, a = ALL.start(), tma.shared_tile(INTEGERS)
    tma.tcgen05_mma(tmem.tile(128, 128, "i32"), a, a, accumulate=False)
    tmem.close()


@pytest.mark.parametrize(
    ("kernel", "target", "text"),
    [
        (
            of_hopper,
            "100a",
            "wgmma() needs sm_90a; this kernel is compiled for sm_100a: no GPU of compute "
            "capability 10.0 has it; there use tcgen05_mma, whose accumulators are in tensor mem",
        ),
        (
            of_blackwell,
            "90a",
            f"TensorMemory.start() of TensorMemory(512) needs {HAVING}; this kernel is compiled "
            "for sm_90a: no GPU of compute capability 9.0 has it; there use wgmma, whose "
            "accumulators are fragments in registers",
        ),
        (
            of_blackwell,
            "120a",
            "for sm_120a: no GPU of compute capability 12.0 has it; there use mma.sync "
            "(tma.ptx.mma_m16n8k16 and its kin), whose accumulators are in registers",
        ),
        (of_hopper, "90", "wgmma() needs sm_90a; this kernel is compiled for sm_90: compile it "
                          "for sm_90a"),
        (
            of_blackwell,
            "100",
            f"needs {HAVING}; this kernel is compiled for sm_100: compile it for sm_100a or "
            "sm_100f",
        ),
        (a_row, "110", "for sm_110: compile it for sm_110a or sm_110f"),
        (integers, "100f", "tcgen05_mma() [i8, 1] needs sm_100a or 110a; this kernel is compiled "
                           "for sm_100f: compile it for sm_100a"),
    ],
)  # fmt: skip
def test_another_target(kernel, target, text):
    assert text in refusal(kernel, target)


# ------------------------------------------------------------------------------ tensor memory


def beyond_the_columns():
    tmem = ALL.start()
    tmem.tile(128, 256)
    tmem.tile(128, 256, column=256)
    tmem.tile(128, 64, column=512)


def test_accumulators_beyond_the_columns():
    assert (
        "tile(128, 64, f32) from column 512 on takes columns 512 to 575, and TensorMemory(512) has "
        "512: use a column from 0 to 448"
    ) in refusal(beyond_the_columns)
    with pytest.raises(ValueError, match="a block has 512 columns of tensor memory: use 1 to 512"):
        tma.TensorMemory(640)
    roles = tma.Roles(epilogue=tma.Warpgroups(1), mma=tma.Warps(1))
    with pytest.raises(ValueError, match="3 stages x 256 .* = 768 columns .* use at most 2 stages"):
        tma.OutputTilePipeline(
            3, tma.Tile((128, 256), "f32"), mma=roles.mma, epilogue=roles.epilogue, memory="tensor"
        )


PAIR = tma.TensorMemory(64, cta_group=2)


@tma.cluster(3)
def odd_memory():
    PAIR.start().close()


def no_pair():
    PAIR.start().close()


@tma.cluster(3)
def odd_load(m):
    m.load(tma.shared_tile(A), (0, 0), tma.shared_barrier(), cta_group=2)


def test_an_odd_pair():
    repair = "put @tma.cluster((2, 1)) below @cuda.jit"
    given = "is for clusters of (2, 1), but the kernel runs in clusters of"
    assert f"{given} (3, 1, 1): {repair}" in refusal(odd_memory)
    assert f"{given} (1, 1, 1): {repair}" in refusal(no_pair)
    text = refusal(odd_load, signature=(tma.TensorMapType(2, A),))
    assert "along x of the cluster, but the kernel runs in clusters of (3, 1, 1): put @tma." in text
    for make in (
        lambda: tma.TensorMemory(64, cta_group=2, cluster=3),
        lambda: tma.TilePipeline(2, a=A, cta_group=2, cluster=3, released_by="tcgen05"),
    ):
        with pytest.raises(ValueError, match=r"cluster=.*3.* even number there: give clus"):
            make()


# ------------------------------------------------------------------- scale factors, K, layouts

BYTES, FOURS = tma.Tile((128, 256), "e4m3", SWIZZLE), tma.Tile((128, 256), "e2m1", SWIZZLE)
SHORT, LONG, NVFP4 = scale_tile(128, 128), scale_tile(128, 256), scale_tile(128, 256, "nvfp4")


def scaled(tile, scales, block=None):
    """Return a kernel that multiplies a tile by itself, with scale factors."""

    def kernel():
        tmem, a = ALL.start(), tma.shared_tile(tile)
        sa, sb = tmem.scales(scales, 256, block), tmem.scales(scales, 300, block)
        tma.tcgen05_mma(tmem.tile(128, 128), a, a, accumulate=False, a_scale=sa, b_scale=sb)
        tmem.close()

    return kernel


def multiplied(tile):
    """Return a kernel that multiplies a tile by itself."""

    def kernel():
        tmem, a = ALL.start(), tma.shared_tile(tile)
        tma.tcgen05_mma(tmem.tile(128, 128), a, a, accumulate=False)
        tmem.close()

    return kernel


def tile_of(shape, dtype="bf16", swizzle=SWIZZLE):
    return tma.Tile(shape, dtype, swizzle)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            scaled(BYTES, SHORT),
            "a_scale is scales of 128 rows x 128 (ue8m0 for 32); the product takes factors of 128 "
            "rows x 256 elements, with cta_group 1: use scale_tile(128, 256, ...)",
        ),
        (
            scaled(BYTES, SHORT, 64),
            "scales: block is 64; a factor of ue8m0 is for 32 or 16 elements along K",
        ),
        (
            scaled(BYTES, NVFP4),
            "there is no e4m3 x e4m3 -> f32 with a ue4m3 for 16 elements. tcgen05.mma multiplies ",
        ),
        (multiplied(FOURS), 'Packed e2m1 needs scale factors; without them use "e2m1_unpacked".'),
        (
            multiplied(tile_of((128, 24), swizzle=tma.Swizzle.B64)),
            "Tile((128, 24), bf16, B64) is no K-major operand of tcgen05: its K is 24: use a "
            "multiple of 16, which one instruction takes",
        ),
        (
            multiplied(tile_of((128, 64), swizzle=tma.Swizzle.NONE)),
            "an unswizzled operand has chunks of 16 B as its first axis: use Tile((chunks, rows, "
            "8), bf16), or a swizzle",
        ),
        (
            multiplied(tile_of((128, 64), swizzle=tma.Swizzle.B128_ATOM_32B)),
            "swizzle B128_ATOM_32B is not read so: use NONE, B32, B64, B128",
        ),
        (
            multiplied(tile_of((128, 32), "u32")),
            "the tensor cores have no u32 here: use ",
        ),
    ],
)
def test_tiles_that_no_product_takes(kernel, text):
    assert text in refusal(kernel)


def test_only_what_a_loop_moves_on_changes():
    assert changing("device") == {
        "CausalSchedule", "PersistentGridHandle", "Schedule", "SharedRecord", "TileAccesses",
        "TileIndices", "TileWalk",
    }  # fmt: skip
