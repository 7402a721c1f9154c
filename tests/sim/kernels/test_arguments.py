"""Empty inputs, numbers, element types and outputs, as all functions of the kernels check them."""

import math

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.attention import attention, attention_backward, attention_varlen
from numba_tma.kernels.copy import copy, grouped_copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.matmul import Config, block_scaled_matmul, grouped_matmul, matmul
from numba_tma.kernels.pointwise import add, gelu, pointwise, scale_add, swiglu
from numba_tma.kernels.rows import (
    column_sum,
    layernorm,
    layernorm_backward,
    log_softmax,
    rmsnorm,
    rmsnorm_backward,
    row_argmax,
    row_max,
    row_sum,
    softmax,
)
from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
from numba_tma.kernels.transpose import transpose

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def values(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def unwritten(*shape, dtype=np.float32):
    return np.full(shape, 7, dtype)


# ------------------------------------------------------------------- empty inputs


def test_empty_input_has_the_outputs_of_nothing():
    x, one, other = values(4, 0), unwritten(4), unwritten(4)
    np.testing.assert_array_equal(row_sum(x, out=one), np.zeros(4))
    rmsnorm(x, rstd=one)
    assert np.isnan(one).all()
    one[:] = 7
    layernorm(x, mean=one, rstd=other)
    assert np.isnan(one).all() and np.isnan(other).all()
    for function in (softmax, log_softmax):
        one[:] = 7
        function(x, logsumexp=one)
        np.testing.assert_array_equal(one, np.full(4, -np.inf))
    np.testing.assert_array_equal(column_sum(values(0, 8), out=unwritten(8)), np.zeros(8))


@pytest.mark.parametrize("function", [row_max, row_argmax])
def test_empty_input_has_no_largest_element(function):
    with pytest.raises(ValueError, match=f"{function.__name__}.*elements"):
        function(values(4, 0))


def test_empty_input_has_gradients_of_zero():
    x, statistic = values(0, 8), values(0)
    for dtype in (np.float32, np.float16, BF16):
        dweight, dbias = unwritten(8, dtype=dtype), unwritten(8, dtype=dtype)
        rmsnorm_backward(x, x, rstd=statistic, dweight=dweight)
        np.testing.assert_array_equal(dweight, np.zeros(8, dtype))
        dweight[:] = 7
        sums = {"dweight": dweight, "dbias": dbias}
        layernorm_backward(x, x, mean=statistic, rstd=statistic, **sums)
        np.testing.assert_array_equal([dweight, dbias], np.zeros((2, 8), dtype))


# -------------------------------------------------------------------- numbers

A, B = values(64, 64, dtype=BF16), values(64, 64, dtype=BF16, seed=1)
SIZES = np.array([64], np.int32)
X = values(4, 64)
Q = values(1, 8, 1, 64, dtype=BF16)
NUMBERS = {
    "matmul alpha": lambda n: matmul(A, B, alpha=n),
    "matmul beta": lambda n: matmul(A, B, unwritten(64, 64, dtype=BF16), beta=n),
    "grouped_matmul alpha": lambda n: grouped_matmul(A, B[None], SIZES, alpha=n),
    "rmsnorm eps": lambda n: rmsnorm(X, eps=n),
    "layernorm eps": lambda n: layernorm(X, eps=n),
    "rmsnorm_pipelined eps": lambda n: rmsnorm_pipelined(X, X[0], eps=n),
    "softmax scale": lambda n: softmax(X, scale=n),
    "log_softmax scale": lambda n: log_softmax(X, scale=n),
    "attention scale": lambda n: attention(Q, Q, Q, scale=n),
    "attention softcap": lambda n: attention(Q, Q, Q, softcap=n),
    "attention window": lambda n: attention(Q, Q, Q, window=n),
    "scale_add alpha": lambda n: scale_add(X, X, n, 1.0),
}
SIGNED = ("alpha", "beta", "argument")
OPTIONAL = ("attention scale", "attention softcap", "attention window", "scale_add")


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked_on_the_way_in(name):
    function, _, argument = name.partition(" ")
    senseless = [math.nan, math.inf, "2", [1], 1j, True, 1e39]
    senseless += [] if argument.startswith(SIGNED) else [-1]
    senseless += [] if name.startswith(OPTIONAL) else [None]
    for number in senseless:
        with pytest.raises((TypeError, ValueError), match=rf"{function}\(.*{argument}"):
            NUMBERS[name](number)


def test_numbers_of_numpy_are_compared_as_they_are():
    """Without a warning, too: limits of float32 overflow in float16."""
    for kind in (np.float16, np.float32, np.float64, np.longdouble):
        np.testing.assert_allclose(rmsnorm(X, eps=kind(0.5)), rmsnorm(X, eps=0.5))
    np.testing.assert_array_equal(pointwise(lambda x, n: x * n)(X, np.float16(2)), 2 * X)


def test_numbers_of_the_users_own_function_may_be_any():
    keep = pointwise(lambda x, n: n)
    for number in (math.inf, math.nan, np.float16(2)):
        np.testing.assert_array_equal(keep(X, number), np.full_like(X, number))


# -------------------------------------------------------------------- element types


def halves(*shape):
    return values(*shape, dtype=np.float16)


CONTRADICTED = {
    "add": lambda: add(halves(64), halves(64), dtype="bf16"),
    "gelu": lambda: gelu(halves(64), dtype="bf16"),
    "rmsnorm": lambda: rmsnorm(halves(4, 64), dtype="bf16"),
    "softmax": lambda: softmax(values(4, 64, dtype=BF16), dtype="f16"),
    "row_sum": lambda: row_sum(halves(4, 64), dtype="bf16"),
    "matmul": lambda: matmul(halves(64, 64), halves(64, 64), dtype="bf16"),
    "attention": lambda: attention(*[halves(1, 8, 1, 64)] * 3, dtype="bf16"),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_a_dtype_is_for_arrays_that_cannot_say_their_own(name):
    with pytest.raises(ValueError, match=rf"{name}\(\): .* holds b?f16, and dtype is b?f16; dtype"):
        CONTRADICTED[name]()


@pytest.mark.parametrize("name", ["dweight", "dbias"])
def test_integer_gradients_would_be_truncated(name):
    rstd = values(4)
    with pytest.raises(ValueError, match=f"{name} has shape .* of i32, .* of f32, f16 or bf16"):
        layernorm_backward(X, X, mean=rstd, rstd=rstd, **{name: unwritten(64, dtype=np.int32)})


# ------------------------------------------------------------------------- outputs

HEADS = (1, 8, 1, 64)
K = values(*HEADS, dtype=BF16, seed=1)
PACKED, STARTS = values(8, 1, 64, dtype=BF16), np.array([0, 8], np.int32)
LSE, STATISTIC = values(1, 1, 8), values(4)
F8 = [values(64, 64).astype(E4M3), values(64, 64).astype(E4M3).T]
SCALES = values(64, 1), values(1, 1)

#: Each function with an output of this shape and type, for the given name.
OUTPUTS = {
    "copy out": ((4, 64), np.float32, lambda o: copy(X, o)),
    "grouped_copy outs": ((4, 64), np.float32, lambda o: grouped_copy([X], [o])),
    "transpose out": ((64, 4), np.float32, lambda o: transpose(X, out=o)),
    "add out": ((4, 64), np.float32, lambda o: add(X, X, out=o)),
    "gelu out": ((4, 64), np.float32, lambda o: gelu(X, out=o)),
    "swiglu out": ((4, 64), np.float32, lambda o: swiglu(X, X, out=o)),
    "rmsnorm out": ((4, 64), np.float32, lambda o: rmsnorm(X, out=o)),
    "rmsnorm residual_out": ((4, 64), np.float32, lambda o: rmsnorm(X, residual_out=o)),
    "rmsnorm rstd": ((4,), np.float32, lambda o: rmsnorm(X, rstd=o)),
    "layernorm out": ((4, 64), np.float32, lambda o: layernorm(X, out=o)),
    "layernorm mean": ((4,), np.float32, lambda o: layernorm(X, mean=o)),
    "softmax out": ((4, 64), np.float32, lambda o: softmax(X, out=o)),
    "softmax logsumexp": ((4,), np.float32, lambda o: softmax(X, logsumexp=o)),
    "rmsnorm_backward dx": (
        *((4, 64), np.float32),
        lambda o: rmsnorm_backward(X, X, rstd=STATISTIC, dx=o),
    ),
    "rmsnorm_backward dweight": (
        *((64,), np.float32),
        lambda o: rmsnorm_backward(X, X, rstd=STATISTIC, dweight=o),
    ),
    "row_sum out": ((4,), np.float32, lambda o: row_sum(X, out=o)),
    "row_argmax out": ((4,), np.int64, lambda o: row_argmax(X, out=o)),
    "column_sum out": ((64,), np.float32, lambda o: column_sum(X, out=o)),
    "rmsnorm_pipelined out": ((4, 64), np.float32, lambda o: rmsnorm_pipelined(X, X[0], out=o)),
    "matmul out": ((64, 64), BF16, lambda o: matmul(A, B, o)),
    "grouped_matmul out": ((64, 64), BF16, lambda o: grouped_matmul(A, B[None], SIZES, o)),
    "block_scaled_matmul out": (
        *((64, 64), BF16),
        lambda o: block_scaled_matmul(*F8, *SCALES, o),
    ),
    "attention out": (HEADS, BF16, lambda o: attention(Q, K, K, o)),
    "attention lse": ((1, 1, 8), np.float32, lambda o: attention(Q, K, K, lse=o)),
    "attention_varlen out": (
        *((8, 1, 64), BF16),
        lambda o: attention_varlen(PACKED, PACKED, PACKED, STARTS, STARTS, o),
    ),
    "attention_backward dk": (
        *(HEADS, BF16),
        lambda o: attention_backward(Q, Q, K, K, Q, LSE, dk=o),
    ),
}


def refused(name, out, *texts):
    function, _, argument = name.partition(" ")
    with pytest.raises(ValueError) as caught:
        OUTPUTS[name][2](out)
    text = str(caught.value)
    assert f"{function}(): {argument}" in text and any(t in text for t in texts), text


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written(name):
    shape, dtype, _ = OUTPUTS[name]
    out = unwritten(*shape, dtype=dtype)
    out.flags.writeable = False
    refused(name, out, "is read-only")


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_whose_elements_share_memory(name):
    shape, dtype, _ = OUTPUTS[name]
    axis = next(i for i, n in enumerate(shape) if n > 1)
    one = unwritten(*shape, dtype=dtype)
    strides = [0 if i == axis else s for i, s in enumerate(one.strides)]
    expanded = np.lib.stride_tricks.as_strided(one, shape, strides)
    texts = "share memory", "no axis expanded", "gaps", "contiguous"
    refused(name, expanded, *texts)
    assert (one == 7).all()


def shifted(shape, dtype, by=64):
    """Return an input and an output of this shape whose memory overlaps, `by` elements apart."""
    memory = values(int(np.prod(shape)) + by, dtype=dtype)
    size = memory.size - by
    return memory[:size].reshape(shape), memory[by:].reshape(shape)


def test_an_output_that_overlaps_an_input():
    x, out = shifted((4, 64), np.float32)
    half, behind = shifted((64, 64), BF16)
    q, o = shifted(HEADS, BF16)
    square = values(64, 64)
    calls = {
        "copy": lambda: copy(x, out),
        "grouped_copy": lambda: grouped_copy([X, x], [unwritten(4, 64), out]),
        "transpose": lambda: transpose(square, out=square),
        "add": lambda: add(X, x, out=out),
        "add ": lambda: add(X, square[0], out=square[:4]),
        "swiglu": lambda: swiglu(x, X, out=out),
        "rmsnorm": lambda: rmsnorm(x, out=out),
        "rmsnorm ": lambda: rmsnorm(x, residual=X, residual_out=x, out=x),
        "layernorm": lambda: layernorm(X, x[0], out=x),
        "softmax": lambda: softmax(x, out=out),
        "rmsnorm_backward": lambda: rmsnorm_backward(x, X, rstd=STATISTIC, dx=out),
        "row_sum": lambda: row_sum(x, out=x[0, :4]),
        "column_sum": lambda: column_sum(x, out=x[0]),
        "matmul": lambda: matmul(half, B, behind),
        "matmul ": lambda: matmul(half, B, half),
        "matmul  ": lambda: matmul(A, B, behind, residual=half),
        "grouped_matmul": lambda: grouped_matmul(half, B[None], SIZES, behind),
        "attention": lambda: attention(q, K, K, o),
        "attention ": lambda: attention(q, K, K, q),
        "attention_backward": lambda: attention_backward(Q, q, K, K, Q, LSE, dq=o),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"{name.strip()}\(\): .* shares memory with "):
            call()


def test_results_in_place_of_inputs_stay_legal():
    x, y = values(4, 64), values(4, 64, seed=1)
    wanted = x + y
    np.testing.assert_array_equal(add(x.copy(), y, out=y), wanted)
    wanted = 2 * x
    np.testing.assert_array_equal(add(x, x, out=x), wanted)
    x, kept = values(4, 64), values(4, 64)
    np.testing.assert_array_equal(softmax(x, out=x), softmax(kept))
    x = kept.copy()
    np.testing.assert_array_equal(rmsnorm(x, out=x), rmsnorm(kept))
    residual, wanted = y.copy(), kept + y
    rmsnorm(kept, residual=residual, residual_out=residual)
    np.testing.assert_array_equal(residual, wanted)
    out = values(64, 64, dtype=BF16)
    wanted = matmul(A, B, residual=out.copy(), config=Config(64, 64))
    np.testing.assert_array_equal(matmul(A, B, out, residual=out, config=Config(64, 64)), wanted)


def test_views_of_one_buffer_that_interleave_stay_legal():
    buffer = values(4, 128)
    gate, up = buffer[:, :32], buffer[:, 32:64]
    wanted = swiglu(gate.copy(), up.copy())
    np.testing.assert_array_equal(swiglu(gate, up, out=buffer[:, 96:]), wanted)


def test_a_plan_loses_no_bytes_at_the_end():
    for threads in (1, 12, 15, 16, 31):
        with pytest.raises(
            ValueError, match=r"CopyPlan\(threads=.*\): threads is a multiple of 32"
        ):
            CopyPlan(threads=threads)
    x, out = values(17).view(np.uint8), unwritten(68, dtype=np.uint8)
    np.testing.assert_array_equal(copy(x[:67], out[:67], plan=CopyPlan(16)), x[:67])
    assert out[-1] == 7


def test_add_of_a_column_and_a_row():
    column, row = values(4, 1), values(1, 64, seed=1)
    np.testing.assert_array_equal(add(column, row), column + row)
    np.testing.assert_array_equal(add(row, column, out=unwritten(4, 64)), column + row)
