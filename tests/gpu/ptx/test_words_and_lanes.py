"""Words of global memory, lanes of a warp and fast functions, against NumPy."""

import numpy as np
from numba import cuda

from tests.gpu.worker import on_gpu
from tests.kernels import word_kernels as kernels

RNG = np.random.default_rng(0)


@on_gpu
def test_words_of_global_memory():
    source = RNG.integers(0, 256, 64, np.uint8)
    floats, number = RNG.standard_normal(4).astype(np.float32), np.uint64(2**63 + 5)
    out = cuda.to_device(np.zeros(64, np.uint8))
    cuda.jit(kernels.move_words)[1, 1](cuda.to_device(source), out, number, floats)
    np.testing.assert_array_equal(out.copy_to_host(), kernels.moved_words(source, number, floats))


@on_gpu
def test_a_predicate_that_is_false_accesses_nothing():
    out, loaded = cuda.to_device(np.zeros(8, np.uint32)), cuda.to_device(np.ones(8, np.uint32))
    cuda.jit(kernels.move_if)[1, 1](np.uint64(16), out, loaded, False)  # no such address
    np.testing.assert_array_equal(loaded.copy_to_host(), 0)
    np.testing.assert_array_equal(out.copy_to_host(), 0)


@on_gpu
def test_a_predicate_that_is_true():
    source = RNG.integers(0, 2**32, 4, np.uint32)
    out, loaded = cuda.to_device(np.zeros(8, np.uint32)), cuda.to_device(np.ones(8, np.uint32))
    cuda.jit(kernels.move_if)[1, 1](cuda.to_device(source), out, loaded, True)
    expected = [source[0] & 0xFFFF, source[0], *source[:2], *source]
    np.testing.assert_array_equal(loaded.copy_to_host(), expected)
    np.testing.assert_array_equal(out.copy_to_host(), [7, 0, 0, 0, 1, 2, 3, 4])


@on_gpu
def test_a_relaxed_load_returns_the_word():
    source = RNG.integers(0, 2**32, 4, np.uint32)
    loaded = cuda.to_device(np.zeros(4, np.uint32))
    cuda.jit(kernels.read_relaxed)[1, 1](cuda.to_device(source), loaded)
    np.testing.assert_array_equal(loaded.copy_to_host(), source)


@on_gpu
def test_atomics_return_what_the_word_held():
    words = cuda.to_device(np.array([2**32 - 1, 64], np.uint32))
    old = cuda.to_device(np.zeros((64, 2), np.uint32))
    cuda.jit(kernels.replace_words)[1, 64](words, old)
    added, exchanged = old.copy_to_host().T
    np.testing.assert_array_equal(np.sort(added), np.sort((2**32 - 1 + 3 * np.arange(64)) % 2**32))
    held = np.append(exchanged, words.copy_to_host()[1])  # each number is held once
    np.testing.assert_array_equal(np.sort(held), np.arange(65))
    assert words.copy_to_host()[0] == 3 * 64 - 1


@on_gpu
def test_lanes():
    words = RNG.integers(0, 2**32, 32, np.uint32)
    out, sums = cuda.to_device(np.zeros((32, 5), np.uint32)), cuda.to_device(np.zeros(32, "f4"))
    cuda.jit(kernels.exchange)[1, 32](
        cuda.to_device(words), cuda.to_device(np.arange(32, dtype=np.float32)), out, sums
    )
    np.testing.assert_array_equal(out.copy_to_host(), kernels.exchanged(words))
    np.testing.assert_array_equal(sums.copy_to_host(), 496)


@on_gpu
def test_fast_functions():
    x = np.exp2(RNG.uniform(-10, 10, 256)).astype(np.float32)
    out = cuda.to_device(np.zeros((256, 5), np.float32))
    cuda.jit(kernels.compute)[1, 256](cuda.to_device(x), out)
    found, expected = out.copy_to_host(), kernels.computed(x)
    np.testing.assert_allclose(found[:, :3], expected[:, :3], rtol=2.0**-21, atol=2.0**-21)
    np.testing.assert_array_equal(found[:, 3:], expected[:, 3:])
