"""The small families: compile-time errors, instructions kept in place, and results."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, types, uint32, uint64
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

from numba_tma import CachePolicy, ptx
from numba_tma.backend.numba_cuda.requirements import check_registers
from numba_tma.simulator import conversions as _convert
from numba_tma.tools.testing import compile_ptx, ptxas
from tests import conversions
from tests.fragments import fragments

# ------------------------------------------------------------------------- refusals


def refusal(body, *arguments, cc=(9, 0, "a")):
    with pytest.raises(TypingError) as caught:
        compile_ptx(cuda.jit(body), arguments, cc=cc)
    return str(caught.value)


REFUSED = {
    "registers, not a multiple": (
        lambda: ptx.setmaxnreg_dec(44),
        "setmaxnreg_dec(registers=...) is 44; a thread can have 24 to 256 registers, in "
        "multiples of 8",
    ),
    "registers, too few": (lambda: ptx.setmaxnreg_dec(16), "is 16; a thread can have 24 to 256"),
    "registers, too many": (lambda: ptx.setmaxnreg_inc(264), "is 264; a thread can have 24 to"),
    "scope": (
        lambda: ptx.fence_acq_rel("block"),
        "one of 'cta', 'cluster', 'gpu', 'sys', not 'block'",
    ),
    "state space": (
        lambda: ptx.fence_proxy_async("shared"),
        "one of 'shared::cta', 'shared::cluster', 'global', not 'shared'",
    ),
    "trans": (lambda: ptx.ldmatrix_x4(0, "t"), "ldmatrix_x4(trans=...) is part of the instruction"),
    "rounding": (lambda: ptx.cvt_tf32_f32(1.0, "rz"), "one of 'rna', 'rn', not 'rz'"),
    "priority": (
        lambda: ptx.createpolicy_fractional(0.5, "evict_last", "evict_normal"),
        "one of 'evict_first', 'evict_unchanged', not 'evict_normal'",
    ),
    "vector": (
        lambda: ptx.st_shared_v4_u32(0, (1, 2)),
        "st_shared_v4_u32(values=...) takes a tuple of 4 numbers (uint32)",
    ),
    "fragment": (lambda: ptx.stmatrix_x2(0, 1), "takes a tuple of 2 numbers (uint32), not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    body, message = REFUSED[name]
    assert message in refusal(body)


def test_registers_are_a_literal():
    def kernel(registers):
        ptx.setmaxnreg_inc(registers)

    message = refusal(kernel, uint32)
    assert "setmaxnreg_inc(registers=...) is part of the instruction and must be a lit" in message


def test_8_bit_matrices_are_sm_100as():
    def kernel():
        ptx.ldmatrix_m16n16_x1(0, "b8")

    assert "ldmatrix_m16n16_x1() needs sm_100a, 100f" in refusal(kernel)


# ------------------------------------------------------------------------- emission


def test_a_fence_without_a_state_space_is_of_the_blocks_shared_memory():
    def kernel():
        ptx.fence_proxy_async()

    assert "fence.proxy.async.shared::cta;" in compile_ptx(cuda.jit(kernel), ())


def test_clocks_and_places_are_read_each_time_and_indices_once():
    def kernel(out):
        out[0] = ptx.clock64()
        out[1] = ptx.clock64()
        out[2] = ptx.globaltimer()
        out[3] = ptx.globaltimer()
        out[4] = ptx.smid()
        out[5] = ptx.smid()
        out[6] = ptx.tid_y()
        out[7] = ptx.tid_y()

    text = compile_ptx(cuda.jit(kernel), (uint64[::1],))
    counts = [text.count(f"%{name};") for name in ("clock64", "globaltimer", "smid", "tid.y")]
    assert counts == [2, 2, 2, 1]


def redistribute():
    if cuda.threadIdx.x < 128:
        ptx.setmaxnreg_dec(40)
    else:
        ptx.setmaxnreg_inc(232)


def test_setmaxnreg_needs_to_know_the_registers_at_launch():
    """What its docstring says: without the second launch bound ptxas leaves it out."""
    bounded = ptxas(compile_ptx(cuda.jit(launch_bounds=(384, 1))(redistribute), ()))
    assert (bounded.registers, bounded.warnings) == (168, ())
    for bounds in ({}, {"launch_bounds": 384}):
        report = ptxas(compile_ptx(cuda.jit(**bounds)(redistribute), ()))
        assert "'setmaxnreg' ignored" in report.warnings[0]


@pytest.mark.parametrize(
    ("block", "given_back", "more", "fits"),
    [
        *((384, 136, 240, True), (384, 136, 248, False), (384, 144, 240, False)),
        *((256, 24, 256, True), (512, 88, 240, True), (512, 96, 248, False)),
    ],
)
def test_registers_that_an_sm_has_are_had(block, given_back, more, fits):
    """An SM has 65,536; one warpgroup asks for more, and the other threads give some back."""

    def kernel():
        if cuda.threadIdx.x < 128:
            ptx.setmaxnreg_inc(more)
        else:
            ptx.setmaxnreg_dec(given_back)

    assert fits == (128 * more + (block - 128) * given_back <= 65536)
    text = compile_ptx(cuda.jit(launch_bounds=(block, 1))(kernel), ())
    if fits:
        check_registers(text)
    else:
        with pytest.raises(CudaTypingError, match=f"setmaxnreg.inc to {more} can never be had"):
            check_registers(text)


# ---------------------------------------------------------------------- conversions


@pytest.mark.parametrize("relu", [None, "relu"])
@pytest.mark.parametrize("name", conversions.FORMATS)
def test_pairs_are_rounded_to_the_nearest(name, relu):
    low, high = conversions.hard_floats(4000, 1), conversions.hard_floats(4000, 2)
    bits = [conversions.rounded(x, name, bool(relu)) for x in (high, low)]
    computed = [_convert.to_pair(name, pair, relu) for pair in zip(low, high)]
    np.testing.assert_array_equal(computed, conversions.packed(*bits))


def test_rounding_agrees_with_ml_dtypes_where_nothing_overflows():
    """The search for the nearest value is checked too."""
    values = conversions.hard_floats(100_000, 3)
    for name, (numpy, _, _) in conversions.FORMATS.items():
        largest = float(ml_dtypes.finfo(numpy).max)
        kept = values[np.abs(values) <= largest]
        expected = kept.astype(numpy)
        found = conversions.rounded(kept, name)
        np.testing.assert_array_equal(found, expected.view(found.dtype))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_8_bit_value_widens_to_itself(name):
    convert = {"e4m3": ptx.cvt_f16x2_e4m3x2, "e5m2": ptx.cvt_f16x2_e5m2x2}[name]
    pairs = np.arange(256, dtype=np.uint16) * 0x101 ^ 0x8000
    high, low = conversions.unpacked(pairs, name)
    expected = conversions.packed(*(conversions.rounded(x, "f16") for x in (high, low)))
    np.testing.assert_array_equal([convert(int(pair)) for pair in pairs], expected)


def test_tf32_by_hand():
    one = 0x3F800000
    for bits, away, even in (
        (one, one, one),
        (one + 0xFFF, one, one),
        (one + 0x1000, one + 0x2000, one),
        (one + 0x3000, one + 0x4000, one + 0x4000),
        (one + 0x1001, one + 0x2000, one + 0x2000),
        (0x80000001, 0x80000000, 0x80000000),
        (0x7F7FFFFF, 0x7F800000, 0x7F800000),
        (0xFF800000, 0xFF800000, 0xFF800000),
    ):
        value = np.uint32(bits).view(np.float32)
        assert ptx.cvt_tf32_f32(value) == ptx.cvt_tf32_f32(value, "rna") == away
        assert ptx.cvt_tf32_f32(value, "rn") == even
    assert np.isnan(np.uint32(ptx.cvt_tf32_f32(np.float32("nan"))).view(np.float32))


# ---------------------------------------------------------------- policies, fragments


def test_policies_of_fraction_1_are_the_named_ones():
    for name, policy in (
        ("evict_first", CachePolicy.EVICT_FIRST),
        ("evict_normal", CachePolicy.EVICT_NORMAL),
        ("evict_last", CachePolicy.EVICT_LAST),
    ):
        assert ptx.createpolicy_fractional(1.0, name) == policy
        assert ptx.createpolicy_fractional(1.0, name, "evict_unchanged") == policy
        assert ptx.createpolicy_fractional(1.0, name, "evict_first") == policy + (1 << 56)
    assert ptx.createpolicy_fractional(0.5, "evict_last") == 0x1470000000000000


def test_fragments_by_hand():
    matrix = np.arange(64, dtype=np.uint16).reshape(1, 8, 8)
    numbers = matrix[0].astype(int)
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        pair = numbers[row, column], numbers[row, column + 1]
        assert fragments(matrix)[lane, 0] == pair[0] | pair[1] << 16
        pair = numbers[column, row], numbers[column + 1, row]
        assert fragments(matrix, trans=True)[lane, 0] == pair[0] | pair[1] << 16


def test_16_bit_operands_and_results():
    """The kind u16 is a register of 16 bits, whatever integer it comes from."""

    def kernel(out, high):
        narrow = ptx.cvt_e4m3x2_f32(high, 1.0)
        out[0] = ptx.cvt_f16x2_e4m3x2(narrow)
        ptx.st_shared_u16(0, 70000)

    text = compile_ptx(cuda.jit(kernel), (types.uint32[::1], float32))
    assert "cvt.rn.f16x2.e4m3x2" in text and "st.shared.u16" in text
    ptxas(text)
