"""The seeds' examples with products of the tensor cores, compiled; and the payload's scales."""

import pytest
from numba import types

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.architectures import capability_of
from numba_tma.tools.testing import compile_ptx
from tests.kernels import seed_attention, seed_usage
from tests.machine_code import all_in_registers
from tests.tiers import quick

SCALED, KV = seed_usage.SCALED, seed_attention.KV
OUT, N = types.float32[:, ::1], types.int64
KERNELS = {
    seed_usage.usage: (seed_usage.A, seed_usage.B, OUT, N, N),
    seed_usage.block_scaled: (SCALED.a, SCALED.b, SCALED.sfa, SCALED.sfb, OUT, N),
    seed_attention.attend: (seed_attention.Q, KV.k_tile, KV.v_tile, OUT, N),
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("target", quick(["100a"], ["100a", "103a", "110a"]))
def test_the_examples_compile(target, kernel):
    given = [TensorMapType(t.ndim, t) if isinstance(t, tma.Tile) else t for t in KERNELS[kernel]]
    text = compile_ptx(kernel, tuple(given), cc=capability_of(target))
    all_in_registers(text)
    assert "tcgen05.mma" in text and "tcgen05.commit" in text


def test_the_scales_of_a_payload_follow_from_its_tiles():
    assert SCALED.sfa == tma.scale_tile(128, 128, "mxfp8")
    assert SCALED.sfb == tma.scale_tile(16, 128, "mxfp8")
    a = tma.Tile((128, 256), "e2m1")
    of = tma.BlockScaledTilePayload.of(a, a, dtype="ue4m3", block=16)
    assert of.sfa == of.sfb == tma.scale_tile(128, 256, dtype="ue4m3", block=16)


@pytest.mark.parametrize("given", [(tma.Tile(4, "e4m3"), SCALED.b), (SCALED.a, "b")])
def test_tiles_without_rows_and_k_are_refused(given):
    with pytest.raises(TypeError, match="a tile of two axes, rows and K, whose scales are made"):
        tma.BlockScaledTilePayload.of(*given, "mxfp8")
