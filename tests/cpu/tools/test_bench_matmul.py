"""The bench's cases of matmuls and attention, with NumPy in the place of torch."""

import collections
import contextlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from numba_tma.tools import bench
from numba_tma.tools.bench import (
    attention,
    attention_backward,
    attention_few,
    attention_varlen,
    first_call,
    matmul,
    matmul_gluon,
    matmul_grouped,
    matmul_triton,
    peers,
    timing,
)


class Tensor(np.ndarray):
    """An array with those of torch's methods that the cases call."""

    device = "cuda"

    def to(self, dtype):
        return self.astype(dtype).view(Tensor)

    def double(self):
        return self.to(np.float64)

    def long(self):
        return self.to(np.int64)

    def bfloat16(self):
        return self.to(np.float32)

    def abs(self):
        return abs(self)

    def square(self):
        return self * self

    def mean(self, axis, keepdim):
        return np.mean(np.asarray(self), axis, keepdims=keepdim).view(Tensor)

    def sqrt(self):
        return np.sqrt(self)

    def numel(self):
        return self.size

    def split(self, rows):
        return [self[i : i + rows] for i in range(0, len(self), rows)]

    def add_(self, value):
        self += value
        return self

    def repeat_interleave(self, times, axis):
        return np.repeat(self, times, axis)

    def masked_fill_(self, where, value):
        self[where] = value


def softmax(x, axis):
    e = np.exp(x - np.max(x, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)


def scaled_mm(a, b, a_scale, b_scale, out_dtype, use_fast_accum):
    return a @ b if a_scale.size == 1 and not use_fast_accum else 0 * (a @ b)


@pytest.fixture
def torch(monkeypatch):
    """Return what stands for torch; times are seconds in the order of the runs."""
    rng = np.random.default_rng(0)
    made = {
        "randn": lambda *shape: rng.standard_normal(shape[0] if len(shape) == 1 else shape),
        "rand": lambda *shape: rng.random(shape),
        "full": lambda shape, value, dtype: np.full(shape, value, dtype),
        "ones": lambda *shape: np.ones(shape),
        "linspace": np.linspace,
        "arange": np.arange,
        "tensor": np.array,
    }

    def on_gpu(make):
        return lambda *args, device, **how: make(*args, **how).view(Tensor)

    def times(runs):
        for run in runs.values():
            run()
        return {name: 1e-12 * (n + 1) for n, name in enumerate(runs)}

    for module in (
        matmul,
        matmul_grouped,
        attention,
        attention_backward,
        attention_few,
        attention_varlen,
    ):
        monkeypatch.setattr(module, "worse_of_two", times)
    monkeypatch.setattr(timing, "time_alternating", lambda runs, repeats: times(runs))
    monkeypatch.setattr(matmul_triton, "triton", None)
    monkeypatch.setattr(matmul_gluon, "gluon", None)
    count = types.SimpleNamespace(multi_processor_count=132)
    return types.SimpleNamespace(
        **{name: on_gpu(make) for name, make in made.items()},
        full_like=np.full_like,
        bfloat16=np.float32,
        float8_e4m3fn=np.float16,
        int32=np.int32,
        mm=np.matmul,
        softmax=softmax,
        cat=lambda parts: np.concatenate(parts).view(Tensor),
        _scaled_mm=scaled_mm,
        compile=lambda function, dynamic, mode: function,
        _dynamo=types.SimpleNamespace(reset=lambda: None),
        cuda=types.SimpleNamespace(
            synchronize=lambda: None, get_device_properties=lambda device: count
        ),
    )


def ship(monkeypatch, family, name, function):
    """Let a function of a family of kernels be this one; what was shipped before stays."""
    key = f"numba_tma.kernels.{family}"
    there = sys.modules.get(key)
    before = vars(there) if isinstance(there, types.SimpleNamespace) else {}
    monkeypatch.setitem(sys.modules, key, types.SimpleNamespace(**before | {name: function}))


def test_a_layers_matmul_is_a_row_beside_cublas(torch, monkeypatch):
    ship(monkeypatch, "matmul", "matmul", np.matmul)
    row = matmul.bench_layer(torch, (5, 48, 64))
    operations = 2 * 5 * 48 * 64
    assert (row["unit"], row["numba_tma"]) == ("TFLOP/s", operations)
    assert row["peers"] == {"cuBLAS": operations / 2}


@pytest.mark.parametrize("wrong", [0.0, float("nan")])
def test_a_wrong_product_is_not_timed(torch, monkeypatch, wrong):
    def one_is_wrong(a, b, out):
        np.matmul(a, b, out=out)
        out[3, 7] = wrong

    ship(monkeypatch, "matmul", "matmul", one_is_wrong)
    with pytest.raises(AssertionError, match="1 of 240 values are wrong"):
        matmul.bench_layer(torch, (5, 48, 64))


def test_a_matmul_has_the_fastest_right_plan_of_triton_beside_it(torch, monkeypatch, capsys):
    def plans(a, w, c, sms):
        assert sms == 132
        return {
            "Triton, wrong": lambda: 0 * (a @ w.T),
            "Triton, fast": lambda: np.matmul(a, w.T, out=c),
            "Triton, slow": lambda: np.matmul(a, w.T, out=c),
        }

    ship(monkeypatch, "matmul", "matmul", np.matmul)
    monkeypatch.setattr(matmul_triton, "candidates", plans)
    row = matmul.bench_bf16(torch, (5, 48, 64))
    assert list(row["peers"]) == ["cuBLAS", "torch.compile max-autotune", "Triton"]
    said = capsys.readouterr().out
    assert "matmul bf16 5 x 48 x 64: no Gluon beside it: no Gluon of Triton 3.6" in said
    assert re.search(r"48 x 64: Triton, wrong fails: 2\d\d of 240 values are wrong", said)
    assert said.count("\n") == 2


def test_fp8_is_beside_both_accumulations_of_cublaslt(torch, monkeypatch, capsys):
    ship(monkeypatch, "matmul", "matmul", np.matmul)
    row = matmul.bench_fp8(torch, (5, 48, 64))
    assert list(row["peers"]) == ["cuBLASLt slow accumulation"]
    said = capsys.readouterr().out
    assert "no Triton beside it: triton is not installed" in said
    assert re.search(r"matmul fp8 e4m3 5 x 48 x 64: cuBLASLt fails: 2\d\d of 240", said)


def test_block_scales_are_those_of_rows_and_of_squares(torch, monkeypatch, capsys):
    given = []

    def block_scaled_matmul(a, b, a_scales, b_scales, out):
        given.append((a_scales.shape, a_scales.strides, b_scales.shape))
        steps = [slice(128 * k, 128 * k + 128) for k in range(len(b_scales))]
        parts = (
            a[:, step] @ b[step] * a_scales[:, k : k + 1] * np.repeat(b_scales[k], 128)
            for k, step in enumerate(steps)
        )
        out[:] = sum(parts)

    ship(monkeypatch, "matmul", "block_scaled_matmul", block_scaled_matmul)
    row = matmul.bench_block_scaled(torch, (5, 256, 384))
    assert given[0] == ((5, 3), (8, 40), (3, 2))
    assert list(row["peers"]) == ["cuBLASLt slow accumulation, unscaled"]
    assert "cuBLASLt block-scaled fails" in capsys.readouterr().out


def grouped(a, b, out, offsets):
    """Multiply groups of rows that end at `offsets`."""
    for weights, rows in zip(b, map(slice, [0, *offsets], offsets)):
        np.matmul(a[rows], weights, out=out[rows])
    return out


def test_groups_are_beside_torchs_and_a_matmul_for_each(torch, monkeypatch, capsys):
    def grouped_mm(a, b, offs, out_dtype):
        assert offs.dtype == np.int32 and out_dtype == np.float32 and b.shape == (3, 64, 48)
        return grouped(a, b, np.zeros((96, 48), out_dtype).view(Tensor), offs)

    monkeypatch.setattr(matmul_grouped, "TOKENS", 96)
    ship(monkeypatch, "matmul", "grouped_matmul", grouped)
    torch._grouped_mm = grouped_mm
    row = matmul_grouped.bench_grouped(torch, 3, (48, 64), "bf16")
    assert row["numba_tma"] == 2 * 96 * 48 * 64 and capsys.readouterr().out == ""
    assert list(row["peers"]) == ["torch", "cuBLAS, group by group"]
    torch._grouped_mm = lambda a, b, offs, out_dtype: grouped_mm(a[::-1], b, offs, out_dtype)
    row = matmul_grouped.bench_grouped(torch, 3, (48, 64), "bf16")
    assert list(row["peers"]) == ["cuBLAS, group by group"]
    assert "grouped matmul bf16 3 groups 96 x 48 x 64: torch fails" in capsys.readouterr().out


def test_groups_of_fp8_have_scales_of_1_in_torch(torch, monkeypatch):
    def scaled_grouped_mm(a, b, a_scales, b_scales, offs, out_dtype, use_fast_accum):
        assert (a_scales == 1).all() and (b_scales == 1).all() and use_fast_accum
        assert a_scales.shape == (96,) and b_scales.shape == (3, 48)
        return grouped(a, b, np.zeros((96, 48), out_dtype).view(Tensor), offs)

    monkeypatch.setattr(matmul_grouped, "TOKENS", 96)
    torch._scaled_grouped_mm = scaled_grouped_mm
    ship(monkeypatch, "matmul", "grouped_matmul", grouped)
    row = matmul_grouped.bench_grouped(torch, 3, (48, 64), "fp8 e4m3")
    assert list(row["peers"]) == ["torch"]
    swapped = lambda a, b, out, offsets: grouped(a, b[::-1], out, offsets)  # noqa: E731
    ship(monkeypatch, "matmul", "grouped_matmul", swapped)
    with pytest.raises(AssertionError, match="values are wrong"):
        matmul_grouped.bench_grouped(torch, 3, (48, 64), "fp8 e4m3")


def exact(*arrays):
    *qkv, causal = arrays
    return np.swapaxes(of_heads(*(np.swapaxes(t, 1, 2) for t in qkv), causal), 1, 2)


def of_heads(q, k, v, causal):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return softmax(scores, -1) @ v


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_right_or_is_not_timed(torch, monkeypatch, capsys, causal):
    def ours(q, k, v, out, causal):
        out[:] = exact(q, k, v, causal)

    for module in ("torch.nn.attention", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, module, None)
    ship(monkeypatch, "attention", "attention", ours)
    row = attention.bench_attention(torch, 96, 16, causal)
    assert row["numba_tma"] == 4 * 4 * 16 * 96**2 * 16 / (2 if causal else 1)
    said = capsys.readouterr().out
    assert "no SDPA beside it" in said and "no FlashAttention-4 beside it" in said
    ship(monkeypatch, "attention", "attention", lambda *args, **how: ours(*args[::-1], **how))
    with pytest.raises(AssertionError, match="values are wrong"):
        attention.bench_attention(torch, 96, 16, causal)


def fake_sdpa(torch, monkeypatch, attention_of_torch):
    monkeypatch.setattr(Tensor, "transpose", np.swapaxes)
    monkeypatch.setattr(Tensor, "contiguous", np.ndarray.copy, raising=False)
    functional = types.SimpleNamespace(scaled_dot_product_attention=attention_of_torch)
    torch.nn = types.SimpleNamespace(functional=functional)
    named = types.SimpleNamespace(CUDNN_ATTENTION="cudnn", FLASH_ATTENTION="flash")
    backends = types.SimpleNamespace(SDPBackend=named, sdpa_kernel=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", backends)


def test_each_gets_its_own_order_of_axes(torch, monkeypatch):
    def flash_attn_func(q, k, v, causal):
        assert q.shape == (4, 96, 16, 8)
        return exact(q, k, v, causal), None

    def attention_of_torch(q, k, v, is_causal):
        assert q.shape == (4, 16, 96, 8) and q.flags.c_contiguous
        return of_heads(q, k, v, is_causal)

    fake_sdpa(torch, monkeypatch, attention_of_torch)
    theirs = types.SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", theirs)
    ship(
        *(monkeypatch, "attention", "attention"),
        lambda q, k, v, out, causal: np.copyto(out, exact(q, k, v, causal)),
    )
    row = attention.bench_attention(torch, 96, 8, True)
    assert list(row["peers"]) == ["cuDNN", "torch FLASH", "FlashAttention-4"]


@pytest.mark.parametrize(("queries", "unit"), [(1, "GB/s"), (16, "TFLOP/s")])
def test_few_queries_share_keys_by_heads(torch, monkeypatch, queries, unit):
    """One is measured by the bytes of all arrays, more by operations."""

    def of_shared_heads(q, k, v, enable_gqa=True):
        assert enable_gqa
        return of_heads(q, *(np.repeat(t, 4, axis=1) for t in (k, v)), False)

    def ours(q, k, v, out):
        out[:] = np.swapaxes(of_shared_heads(*(np.swapaxes(t, 1, 2) for t in (q, k, v))), 1, 2)

    fake_sdpa(torch, monkeypatch, of_shared_heads)
    ship(monkeypatch, "attention", "attention", ours)
    row = attention_few.bench_attention_few(torch, attention_few.Shape(2, queries, 8, 16, 96, 2))
    assert (row["unit"], list(row["peers"])) == (unit, ["cuDNN", "torch FLASH"])
    wrong = lambda q, k, v, out: ours(q, k[:, :, ::-1], v, out)  # noqa: E731
    ship(monkeypatch, "attention", "attention", wrong)
    with pytest.raises(AssertionError, match="values are wrong"):
        attention_few.bench_attention_few(torch, attention_few.Shape(2, queries, 8, 16, 96, 2))


def attention_of_fp8(q, k, v, out, causal, **scales):
    """Compute as if weights were rounded; without scales, exactly."""
    of_heads = [s[:, None, :, None] for s in scales.values()] or [1, 1, 1]
    assert not scales or set(np.ravel(scales["v_scale"])) == {0.5, 1.0}
    result = exact(*(t.astype(np.float64) * s for t, s in zip((q, k, v), of_heads)), causal)
    noise = np.random.default_rng(1).standard_normal(result.shape) if scales else 0
    out[:] = result * (1 + 2**-5 * noise)
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_fp8_is_beside_bf16_of_the_same_values(torch, monkeypatch, causal):
    fake_sdpa(torch, monkeypatch, lambda q, k, v, is_causal: of_heads(q, k, v, is_causal))
    ship(monkeypatch, "attention", "attention", attention_of_fp8)
    row = attention.bench_fp8(torch, 96, 16, causal)
    assert row["numba_tma"] == 4 * 4 * 16 * 96**2 * 16 / (2 if causal else 1)
    assert list(row["peers"]) == ["numba_tma bf16", "cuDNN bf16"]


def test_attention_of_fp8_without_its_scales_is_not_timed(torch, monkeypatch):
    def unscaled(*arrays, q_scale, **how):
        return attention_of_fp8(*arrays, q_scale=1 + 0 * q_scale, **how)

    ship(monkeypatch, "attention", "attention", unscaled)
    with pytest.raises(AssertionError, match="wrong"):
        attention.bench_fp8(torch, 96, 16, False)


def test_many_small_errors_are_wrong_as_a_whole():
    right = np.ones((3, 4)).view(Tensor)
    peers.check_whole(1.06 * right, right, 2**-4)
    with pytest.raises(AssertionError, match="as a whole are wrong"):
        peers.check_whole(1.07 * right, right, 2**-4)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_each_by_itself(torch, monkeypatch, capsys, causal):
    def packed(q, k, v, starts, also, out, causal):
        assert starts.dtype == np.int32 and (starts == also).all()
        for rows in map(slice, starts, starts[1:]):
            out[rows] = exact(q[None, rows], k[None, rows], v[None, rows], causal)[0]
        return out

    def of_torch(q, k, v, starts, also, longest, too, dropout, causal, debug):
        assert (longest, too, dropout, debug) == (40, 40, 0.0, False)
        return packed(q, k, v, starts, also, np.zeros_like(q), causal), None

    aten = types.SimpleNamespace(_flash_attention_forward=of_torch)
    torch.ops = types.SimpleNamespace(aten=aten)
    monkeypatch.setattr(attention_varlen, "DEPTH", 16)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    ship(monkeypatch, "attention", "attention_varlen", packed)
    row = attention_varlen.bench_attention_varlen(torch, (3, 40, 12), causal)
    assert row["numba_tma"] == 4 * 16 * (9 + 1600 + 144) * 16 // (2 if causal else 1)
    assert list(row["peers"]) == ["torch FLASH"]
    assert "no FlashAttention-4 beside it" in capsys.readouterr().out

    def of_one(q, k, v, starts, also, out, causal):
        out[:] = exact(q[None], k[None], v[None], causal)[0]

    ship(monkeypatch, "attention", "attention_varlen", of_one)
    with pytest.raises(AssertionError, match="values are wrong"):
        attention_varlen.bench_attention_varlen(torch, (3, 40, 12), causal)


def gradients(dout, q, k, v, causal):
    """Return those of arrays in our order of axes."""
    dout, q, k, v = (np.swapaxes(t, 1, 2) for t in (dout, q, k, v))
    scale, same = q.shape[-1] ** -0.5, np.eye(k.shape[2])
    weights = of_heads(q, k, np.broadcast_to(same, (*k.shape[:2], *same.shape)), causal)
    product = dout @ np.swapaxes(v, -1, -2)
    ds = weights * (product - np.sum(dout * (weights @ v), -1, keepdims=True)) * scale
    found = ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ dout
    return tuple(np.swapaxes(t, 1, 2).view(Tensor) for t in found)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_are_right_or_are_not_timed(torch, monkeypatch, capsys, causal):
    def ours(dout, q, k, v, out, lse, causal, **into):
        for target, gradient in zip(into.values(), gradients(dout, q, k, v, causal)):
            target[:] = gradient

    monkeypatch.setattr(attention_backward, "ROWS_AT_ONCE", 40)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", None)
    ship(monkeypatch, "attention", "attention", lambda q, k, v, **how: (q, None))
    ship(monkeypatch, "attention", "attention_backward", ours)
    row = attention_backward.bench_attention_backward(torch, 96, 16, causal)
    assert row["numba_tma"] == 10 * 4 * 16 * 96**2 * 16 / (2 if causal else 1)
    said = capsys.readouterr().out
    assert "no cuDNN beside it" in said and "no torch FLASH beside it" in said
    wrong = lambda dout, q, k, v, *rest, **how: ours(dout, k, q, v, *rest, **how)  # noqa: E731
    ship(monkeypatch, "attention", "attention_backward", wrong)
    with pytest.raises(AssertionError, match="values are wrong"):
        attention_backward.bench_attention_backward(torch, 96, 16, causal)


def test_torchs_gradients_are_those_of_its_own_result(torch, monkeypatch):
    monkeypatch.setattr(Tensor, "transpose", np.swapaxes)
    monkeypatch.setattr(Tensor, "contiguous", np.ndarray.copy, raising=False)
    monkeypatch.setattr(Tensor, "requires_grad_", lambda self: self, raising=False)

    def grad(out, leaves, dout, retain_graph):
        assert out == "of torch" and retain_graph and dout.shape == (4, 16, 96, 8)
        found = gradients(*(np.swapaxes(t, 1, 2) for t in (dout, *leaves)), True)
        return tuple(np.swapaxes(t, 1, 2) for t in found)

    functional = types.SimpleNamespace(
        scaled_dot_product_attention=lambda q, k, v, is_causal: "of torch"
    )
    torch.nn = types.SimpleNamespace(functional=functional)
    torch.autograd = types.SimpleNamespace(grad=grad)
    named = types.SimpleNamespace(CUDNN_ATTENTION="cudnn", FLASH_ATTENTION="flash")
    backends = types.SimpleNamespace(SDPBackend=named, sdpa_kernel=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", backends)
    ship(monkeypatch, "attention", "attention", lambda q, k, v, **how: (q, None))

    def ours(dout, q, k, v, out, lse, causal, **into):
        for target, gradient in zip(into.values(), gradients(dout, q, k, v, causal)):
            target[:] = gradient

    ship(monkeypatch, "attention", "attention_backward", ours)
    row = attention_backward.bench_attention_backward(torch, 96, 8, True)
    assert list(row["peers"]) == ["cuDNN", "torch FLASH"]


def test_the_layers_are_32_with_each_number_of_rows_four_times():
    cases = [case for kernel, case in bench.CASES if kernel == matmul.LAYER_MATMUL]
    assert len(cases) == 32
    rows = collections.Counter(int(case.split()[-5]) for case in cases)
    assert rows == dict.fromkeys((1, 16, 64, 256, 1024, 4096, 8192, 16384), 4)
    assert "DeepSeek-V3 o 1 x 7168 x 16384" in cases


MATMUL = "matmul bf16 4096 x 4096 x 4096"


def test_first_calls_are_of_fresh_processes_without_caches(monkeypatch, capsys):
    ran, found = [], {"numba_tma": [3.0, 2.0], "cuBLAS": [1.0, 1.5], "Triton": [4.0, 5.0]}

    def run(command, env, **how):
        case, name = command[-1].split("'")[1::2]
        caches = {env[name] for name in first_call.CACHES}
        ran.append((name, *caches))
        if name not in found:
            return subprocess.CompletedProcess(command, 1, "", "no such compiler")
        return subprocess.CompletedProcess(command, 0, f"some words\n{found[name].pop(0)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    row = first_call.bench_first_call(None, MATMUL)
    assert (row["unit"], row["numba_tma"]) == ("s on the host", 2.0)
    assert row["peers"] == {"cuBLAS": 1.0, "Triton": 4.0}
    assert capsys.readouterr().out == "first call: torch.compile fails: no such compiler\n"
    assert len(ran) == len({cache for _, cache in ran}) == 7
    assert "NUMBA_TMA_CACHE" in first_call.CACHES


def test_cached_calls_find_what_the_first_one_has_kept(monkeypatch):
    times, caches = iter((9.0, 5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0)), set()

    def run(command, env, **how):
        caches.add(env["NUMBA_TMA_CACHE"])
        return subprocess.CompletedProcess(command, 0, f"{next(times)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    row = first_call.bench_cached_call(None, "rmsnorm f16 512 x 4096")
    assert row["numba_tma"] == 4.0 and row["peers"] == {} and len(caches) == 1


def test_a_first_call_is_timed_from_its_imports_until_its_result_is_there(
    torch, monkeypatch, capsys
):
    clock, called = iter((10.0, 12.5)), []
    call = {"numba_tma": lambda: called.append("import") or (lambda: called.append("call"))}
    torch.cuda.synchronize = lambda: called.append("wait")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(
        first_call.time, "perf_counter", lambda: called.append("time") or next(clock)
    )
    monkeypatch.setitem(first_call.CALLS, MATMUL, lambda torch: call)
    first_call.main(MATMUL, "numba_tma")
    assert called == ["wait", "time", "import", "call", "wait", "time"]
    assert capsys.readouterr().out == "2.5\n"
