"""Pointwise kernels against float64: every form, shape and kind of operand; all 16-bit inputs."""

import math

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx
from numba_tma.kernels._host import memo
from numba_tma.kernels.copy import api as copies
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.pointwise.activations import SWIGLU, gelu, swiglu
from numba_tma.kernels.pointwise.api import Plan, add, plan_for, pointwise, scale_add
from tests.gpu.kernels.test_kernels import (
    EPS32,
    TYPES,
    assert_close,
    normal,
    to_device,
    to_host,
    ulp,
)
from tests.gpu.worker import IMPORT_SECONDS, on_gpu

PLANS = {
    "chunk": Plan("chunk", 128, 4096),
    "chunk of one warp": Plan("chunk", 32, 2048),
    "vector": Plan("vector"),
    "ring, TMA stores": Plan("ring", 128, 8192, 3, 2, "tma"),
    "ring of more threads": Plan("ring", 256, 8192, 4, 2, "tma"),
    "ring, threads store": Plan("ring", 256, 8192, 3, 2, "registers"),
}
LENGTHS = (1, 7, 8, 9, 255, 256, 257, 2048, 4099, 100_000, 1_048_576 + 5)


# ------------------------------------------------------------------------ instructions


@cuda.jit
def compute(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = ptx.ex2_approx_ftz_f32(x[i])
        out[1, i] = ptx.rcp_approx_ftz_f32(x[i])
        out[2, i] = ptx.min_f32(x[i], y[i])
        out[3, i] = ptx.max_nan_f32(x[i], y[i])
        out[4, i] = ptx.tanh_approx_f32(y[i])
        out[5, i] = ptx.ex2_approx_f32(x[i])


@on_gpu
def test_arithmetic():
    rng = np.random.default_rng(0)
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 2.0**-126, 3e38, 127.9], np.float32
    )
    x = np.concatenate([special, rng.uniform(-150, 128, 4087).astype(np.float32)])
    y = np.concatenate([special[::-1], rng.standard_normal(4087).astype(np.float32)])
    out = cuda.to_device(np.full((6, 4096), 7, np.float32))
    compute[16, 256](cuda.to_device(x), cuda.to_device(y), out)
    power, inverse, smaller, larger, tangent, whole = out.copy_to_host()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(power, ptx.ex2_approx_ftz_f32(x), rtol=2.0**-21)
        np.testing.assert_allclose(whole, ptx.ex2_approx_f32(x), rtol=2.0**-21, atol=2.0**-149)
        np.testing.assert_allclose(inverse, ptx.rcp_approx_ftz_f32(x), rtol=2.0**-22)
    np.testing.assert_allclose(tangent, np.tanh(y.astype(float)), rtol=2.0**-10.9, atol=2.0**-126)
    np.testing.assert_array_equal(smaller, np.fmin(x, y))
    np.testing.assert_array_equal(larger, np.maximum(x, y))


# --------------------------------------------------------------------------- pointwise


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TYPES)
@on_gpu(limit=60)
def test_contiguous_arrays_of_any_length(name, plan):
    for length in LENGTHS:
        x, y = normal(length, name, 1), normal(length, name, 2)
        memory = to_device(np.full(length + 64, 7, TYPES[name]))
        whole = memory.array if hasattr(memory, "array") else memory
        part = whole[32 : 32 + length]
        bits = dict(dtype=name) if name == "bf16" else {}
        sources = [cuda.to_device(v.view(np.uint16) if name == "bf16" else v) for v in (x, y)]
        add(*sources, out=part, plan=PLANS[plan], **bits)
        result = to_host(memory)
        expected = x.astype(np.float64) + y.astype(np.float64)
        slack = EPS32 * np.abs(expected)
        what = f"add {name} {length} by {plan}"
        assert_close(result[32:-32], expected, np.dtype(TYPES[name]), slack, 0.5, what)
        gaps = np.concatenate([result[:32], result[-32:]]).astype(np.float32)
        np.testing.assert_array_equal(gaps, np.full(64, 7, np.float32), what)


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8])
@on_gpu
def test_arrays_that_start_anywhere(offset):
    for dtype in ("f4", "f2"):
        for length in (1, 33, 1000, 70_001):
            x = np.random.default_rng(0).standard_normal(length + 16).astype(dtype)
            source, out = cuda.to_device(x), cuda.to_device(np.full(length + 16, 7, dtype))
            add(
                source[offset : offset + length], source[:length], out=out[offset : offset + length]
            )
            expected = np.full(length + 16, 7, dtype)
            parts = x[offset : offset + length].astype("f4"), x[:length].astype("f4")
            expected[offset : offset + length] = (parts[0] + parts[1]).astype(dtype)
            np.testing.assert_array_equal(out.copy_to_host(), expected, f"{dtype} {length}")


@pytest.mark.parametrize("rows", [1, 2, 37, 500])
@on_gpu(limit=60)
def test_rows_with_gaps(rows):
    for columns, pitch, start in (
        *((8, 16, 0), (264, 300, 0), (264, 304, 8), (61, 64, 0), (64, 72, 1), (1024, 1032, 0)),
        *((1000, 1001, 0), (4096, 4096, 0), (3, 5, 2)),
    ):
        memory, y = normal((rows, pitch), "f32", 1), normal((rows, columns), "f32", 2)
        expected = memory.copy()
        expected[:, start : start + columns] += y
        for plan in (None, plan_for(2)):
            device = cuda.to_device(memory)
            view = device[:, start : start + columns]
            add(view, cuda.to_device(y), out=view, plan=plan)
            np.testing.assert_array_equal(device.copy_to_host(), expected, f"{columns} of {pitch}")


@pytest.mark.parametrize("store", ["tma", "registers"])
@pytest.mark.parametrize("name", TYPES)
@on_gpu(limit=60)
def test_rows_and_columns_are_broadcast(name, store):
    total = pointwise(lambda x, row, column, one, n: x * row + column * one + n)
    for rows, columns in ((1, 8), (9, 16), (100, 264), (33, 61), (513, 1000), (7, 8192)):
        x, row = normal((rows, columns), name, 1), normal(columns, name, 2)
        column, one = normal((rows, 1), name, 3), normal((1, 1), name, 4)
        out = to_device(np.full_like(x, 7))
        given = map(to_device, (x, row, column, one))
        total(*given, 0.5, out=out, plan=Plan("ring", 128, 8192, 3, 1, store))
        x, row, column, one = (v.astype(np.float64) for v in (x, row, column, one))
        size = np.abs(x * row) + np.abs(column * one) + 0.5
        expected = x * row + column * one + 0.5
        what = f"{name} {rows} x {columns}"
        assert_close(to_host(out), expected, np.dtype(TYPES[name]), 4 * EPS32 * size, 0.5, what)


@on_gpu(limit=90)
def test_one_to_four_inputs_again_and_again():
    functions = (
        pointwise(lambda a: -a),
        pointwise(lambda a, b: a - b),
        pointwise(lambda a, b, c: a - b * c),
        pointwise(lambda a, b, c, d: a * d - b * c),
    )
    arrays = [normal((300, 512), "f32", seed) for seed in range(4)]
    a, b, c, d = arrays
    expected = -a, a - b, a - b.astype("f8") * c, a * d.astype("f8") - b * c.astype("f8")
    device = [cuda.to_device(array) for array in arrays]
    for plan in (None, *PLANS.values()):
        for count, (function, want) in enumerate(zip(functions, expected), 1):
            got = function(*device[:count], plan=plan).copy_to_host()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@on_gpu
def test_a_stream_of_its_own_and_numbers():
    stream = cuda.stream()
    x, y = normal(5000, "f32", 1), normal(5000, "f32", 2)
    device = [cuda.to_device(v, stream=stream) for v in (x, y)]
    out = cuda.device_array(5000, np.float32, stream=stream)
    assert scale_add(*device, 2, np.float32(-0.5), out=out, stream=stream) is out
    stream.synchronize()
    np.testing.assert_allclose(out.copy_to_host(), 2 * x - 0.5 * y, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------- activations


def every(name):
    return np.arange(65536, dtype=np.uint16).view(TYPES[name])


def exact_gelu(x):
    return np.array([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(np.float64)])


@pytest.mark.parametrize("plan", ["chunk", "vector", "ring, TMA stores"])
@pytest.mark.parametrize("name", ["bf16", "f16"])
@on_gpu
def test_gelu_of_every_16_bit_input(name, plan):
    dtype = np.dtype(TYPES[name])
    x = every(name)
    out = to_device(np.full_like(x, 7))
    gelu(to_device(x), out=out, plan=PLANS[plan])
    y = to_host(out).astype(np.float64)
    wide = x.astype(np.float64)
    assert np.isnan(y[np.isnan(wide)]).all()
    assert (y[wide == np.inf] == np.inf).all() and (y[wide == -np.inf] == 0).all()
    finite = np.isfinite(wide)
    exact = exact_gelu(wide[finite])
    error = np.abs(y[finite] - exact) / ulp(exact, dtype)
    print(f"gelu {name}: {error.max():.3f} ulp at {wide[finite][error.argmax()]}")
    assert error.max() < 0.7


@on_gpu
def test_gelu_of_float32():
    x = np.concatenate([np.linspace(-14, 14, 100_001), [1e30, -1e30, 1e-38, -0.0]]).astype("f4")
    y = gelu(cuda.to_device(x)).copy_to_host()
    exact = exact_gelu(x)
    bound = (x.astype("f8") ** 2 + 8) * 2.0**-23 * np.abs(exact) + 2.0**-145
    worst = np.argmax(np.abs(y - exact) / bound)
    assert (np.abs(y - exact) <= bound)[np.abs(x) < 20].all(), f"at {x[worst]}: {y[worst]}"
    special = gelu(cuda.to_device(np.array([np.nan, np.inf, -np.inf], "f4"))).copy_to_host()
    assert np.isnan(special[0]) and special[1] == np.inf and special[2] == 0


@pytest.mark.parametrize("name", ["bf16", "f16"])
@on_gpu
def test_gelu_by_tanh_and_swiglu_of_every_16_bit_input(name):
    dtype = np.dtype(TYPES[name])
    x = every(name)
    wide = x.astype(np.float64)
    finite = np.isfinite(wide)
    with np.errstate(all="ignore"):
        u = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        silu, by_tanh = wide / (1 + np.exp(-wide)), wide / (1 + np.exp(-2 * u))
    ones = np.ones_like(x)
    results = (
        (gelu(to_device(x), approximate="tanh", out=to_device(np.full_like(x, 7))), by_tanh),
        (swiglu(to_device(x), to_device(ones), out=to_device(np.full_like(x, 7))), silu),
    )
    for result, exact in results:
        y = to_host(result).astype(np.float64)
        assert np.isnan(y[np.isnan(wide)]).all() and (y[wide == np.inf] == np.inf).all()
        kept = finite & (np.abs(exact) > 2.0**-118)
        assert (np.abs(y[kept] - exact[kept]) / ulp(exact[kept], dtype)).max() < 0.6
        assert (np.abs(y[finite & ~kept]) <= 2.0**-117).all()


@pytest.mark.parametrize("name", TYPES)
@on_gpu(limit=60)
def test_swiglu_of_any_shape(name):
    for shape in ((1,), (100_003,), (37, 520), (5, 7, 96), (64, 61)):
        gate, up = normal(shape, name, 1, 3.0), normal(shape, name, 2)
        out = to_device(np.full_like(gate, 7))
        swiglu(to_device(gate), to_device(up), out=out)
        wide = gate.astype(np.float64)
        expected = wide / (1 + np.exp(-wide)) * up.astype(np.float64)
        slack = 64 * EPS32 * np.abs(expected)
        assert_close(to_host(out), expected, np.dtype(TYPES[name]), slack, 0.5, f"swiglu {name}")


# -------------------------------------------------------------------------------- copy


@pytest.mark.parametrize("store", ["tma", "registers", "vector"])
@on_gpu
def test_copies_by_every_plan(store):
    for chunk_bytes, threads in ((2048, 32), (4096, 64), (8192, 128)):
        for length in (*range(1, 40, 5), 4095, 4096, 4097, 8192 * 3 + 16, 1_000_003):
            source = np.random.default_rng(length).integers(0, 256, length, np.uint8)
            memory = cuda.to_device(np.full(length + 128, 0xAA, np.uint8))
            plan = copies.Plan(chunk_bytes, threads, store)
            copy(cuda.to_device(source), memory[64 : 64 + length], plan=plan)
            expected = np.pad(source, 64, constant_values=0xAA)
            np.testing.assert_array_equal(memory.copy_to_host(), expected, f"{length} {plan}")


def test_what_is_planned_has_a_test():
    assert {plan_for(1), plan_for(2), SWIGLU.plan} <= set(PLANS.values())


# ----------------------------------------------------------------------- tile queues


@on_gpu(limit=IMPORT_SECONDS)
def test_partial_results_of_graphs():
    """Graphs captured on one stream, at its first calls, are replayed on two at a time."""
    torch = pytest.importorskip("torch")
    from tests.gpu.graphs import check_replays

    x, y = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    add(x, y)  # compile before the capture

    def call(out, stream):
        add(x, y, out=out, stream=stream)

    check_replays(call, x + y)


@on_gpu(limit=60)
def test_partial_results_after_a_failed_launch():
    """The counter of a failed launch, wherever it is left, serves no other launch."""
    x = to_device(normal((4096, 4096), "f32"))
    outs = [to_device(np.full((4096, 4096), np.nan, np.float32)) for _ in range(2)]
    memo.forget_all()
    add(x, x, out=outs[0])
    (call,) = (call for calls in memo._tables for call in calls.table.values())
    (counter,) = call.recording.workspace

    def fails():
        cuda.as_cuda_array(counter).copy_to_device(np.full(1, 777, np.uint32))
        raise RuntimeError("as a kernel that was stopped")

    call.recording.launches.append(fails)
    with pytest.raises(RuntimeError, match="stopped"):
        add(x, x, out=outs[0])
    for out in outs:
        out.copy_to_device(np.full((4096, 4096), np.nan, np.float32))
        add(x, x, out=out)
        np.testing.assert_array_equal(out.copy_to_host(), 2 * x.copy_to_host())
