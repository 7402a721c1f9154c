"""Words of global memory, lanes of a warp and fast functions in the simulator."""

import itertools

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx, simulator
from tests.kernels import word_kernels as kernels

RNG = np.random.default_rng(0)


def test_words_of_global_memory():
    source = RNG.integers(0, 256, 64, np.uint8)
    floats, number = RNG.standard_normal(4).astype(np.float32), np.uint64(2**63 + 5)
    out = np.zeros(64, np.uint8)
    cuda.jit(kernels.move_words)[1, 1](source, out, number, floats)
    np.testing.assert_array_equal(out, kernels.moved_words(source, number, floats))


def test_a_predicate_that_is_false_accesses_nothing():
    out, loaded = np.zeros(8, np.uint32), np.ones(8, np.uint32)
    cuda.jit(kernels.move_if)[1, 1](np.uint64(16), out, loaded, False)  # no such address
    np.testing.assert_array_equal(loaded, 0)
    np.testing.assert_array_equal(out, 0)


def test_a_predicate_that_is_true():
    source = RNG.integers(0, 2**32, 4, np.uint32)
    out, loaded = np.zeros(8, np.uint32), np.ones(8, np.uint32)
    cuda.jit(kernels.move_if)[1, 1](source, out, loaded, True)
    expected = [source[0] & 0xFFFF, source[0], *source[:2], *source]
    np.testing.assert_array_equal(loaded, expected)
    np.testing.assert_array_equal(out, [7, 0, 0, 0, 1, 2, 3, 4])


def test_a_relaxed_load_returns_the_word():
    source, loaded = RNG.integers(0, 2**32, 4, np.uint32), np.zeros(4, np.uint32)
    cuda.jit(kernels.read_relaxed)[1, 1](source, loaded)
    np.testing.assert_array_equal(loaded, source)


def test_atomics_return_what_the_word_held():
    words = np.array([2**32 - 1, 64], np.uint32)
    old = np.zeros((64, 2), np.uint32)
    cuda.jit(kernels.replace_words)[1, 64](words, old)
    added, exchanged = old.T
    np.testing.assert_array_equal(np.sort(added), np.sort((2**32 - 1 + 3 * np.arange(64)) % 2**32))
    held = np.append(exchanged, words[1])  # each number is held once
    np.testing.assert_array_equal(np.sort(held), np.arange(65))
    assert words[0] == 3 * 64 - 1


def test_lanes():
    words = RNG.integers(0, 2**32, 32, np.uint32)
    out, sums = np.zeros((32, 5), np.uint32), np.zeros(32, "f4")
    cuda.jit(kernels.exchange)[1, 32](words, np.arange(32, dtype=np.float32), out, sums)
    np.testing.assert_array_equal(out, kernels.exchanged(words))
    np.testing.assert_array_equal(sums, 496)


def exchange_in_segments(words, cases, out):
    """Write `words` of other lanes into `out` (cases, 3, 32); a case is (clamp, lane)."""
    own = cuda.laneid
    for i, (clamp, lane) in enumerate(cases):
        out[i, 0, own] = ptx.shfl_sync_bfly_b32(words[own], lane, clamp)
        out[i, 1, own] = ptx.shfl_sync_bfly_f32(np.float32(words[own]), lane, clamp)
        out[i, 2, own] = ptx.shfl_sync_idx_b32(words[own], lane, clamp)


def test_lanes_of_segments():
    segments = 0b00000, 0b10000, 0b11000, 0b11100, 0b11110, 0b11111, 0b00011
    clamps = [segment << 8 | last for segment in segments for last in (31, 24, 7, 4, 0)]
    cases = list(itertools.product(clamps, (0, 1, 2, 5, 8, 16, 31)))
    words, own = RNG.integers(0, 2**20, 32, np.uint32), np.arange(32)
    out = np.zeros((len(cases), 3, 32), np.uint32)
    cuda.jit(exchange_in_segments)[1, 32](words, np.array(cases), out)
    for (clamp, lane), found in zip(cases, out):  # as the PTX ISA defines shfl.sync
        segment = clamp >> 8
        lowest, highest = own & segment, own & segment | clamp & 31 & ~segment
        for source, values in ((own ^ lane, found[0]), (lowest | lane & ~segment, found[2])):
            expected = words[np.where(source <= highest, source, own)]
            np.testing.assert_array_equal(values, expected, f"{clamp:#x}, {lane}")
        np.testing.assert_array_equal(found[1], found[0])


def test_fast_functions():
    x = np.exp2(RNG.uniform(-10, 10, 256)).astype(np.float32)
    out = np.zeros((256, 5), np.float32)
    cuda.jit(kernels.compute)[1, 256](x, out)
    found, expected = out, kernels.computed(x)
    np.testing.assert_allclose(found[:, :3], expected[:, :3], rtol=2.0**-21, atol=2.0**-21)
    np.testing.assert_array_equal(found[:, 3:], expected[:, 3:])


def test_an_access_is_aligned_to_all_its_bytes():
    room = np.zeros(32, np.uint8)
    start = room[-room.ctypes.data % 16 :][8:]

    def body():
        ptx.ld_global_v4_u32(start)

    with pytest.raises(simulator.BadOperand, match="not a multiple of the 16 bytes of the access"):
        cuda.jit(body)[1, 1]()
