"""Wrappers called again: new contents, numbers and workspaces, on a GPU."""

import threading

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.pointwise.activations import gelu, swiglu
from numba_tma.kernels.pointwise.api import add, scale_add
from numba_tma.kernels.rows.backward import layernorm_backward
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax
from numba_tma.kernels.transpose.api import transpose
from tests.gpu.worker import on_gpu

ROWS, COLUMNS = SHAPE = 37, 264


def device(shape, dtype=np.float32):
    return cuda.to_device(np.full(shape, 77, dtype))


def by_moments(x, w, b, eps):
    mean = x.mean(1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + eps) * w + b


def exponentials(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@on_gpu(limit=90)
def test_the_same_arrays_with_new_contents():
    rng = np.random.default_rng(1)
    x, y, w, b = device(SHAPE), device(SHAPE), device(COLUMNS), device(COLUMNS)
    out, turned, mean, rstd = device(SHAPE), device(SHAPE[::-1]), device(ROWS), device(ROWS)
    sums, places, columns = device(ROWS), device(ROWS, np.int64), device(COLUMNS)
    dweight, dbias = device(COLUMNS), device(COLUMNS)
    for round in range(3):
        hx, hy = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
        hw, hb = (rng.standard_normal(COLUMNS).astype(np.float32) for _ in range(2))
        for to, values in ((x, hx), (y, hy), (w, hw), (b, hb)):
            to.copy_to_device(values)
        px, py, pw, pb = (a.astype(np.float64) for a in (hx, hy, hw, hb))
        alpha, scale, eps = 1.5 + round, 0.5 + round, (0.0, 1e-5, 0.5)[round]
        silu = px / (1 + np.exp(-px))
        rms = px / np.sqrt((px**2).mean(1, keepdims=True) + eps) * pw
        cases = {
            "copy": (lambda: copy(x, out), px),
            "transpose": (lambda: transpose(x, out=turned), px.T),
            "add": (lambda: add(x, y, out=out), px + py),
            "add a vector": (lambda: add(x, w, out=out), px + pw),
            "scale_add": (
                lambda: scale_add(x, y, alpha, -0.5, out=out),  # noqa: B023
                alpha * px - 0.5 * py,
            ),
            "swiglu": (lambda: swiglu(x, y, out=out), silu * py),
            "rmsnorm": (lambda: rmsnorm(x, w, eps=eps, out=out), rms),  # noqa: B023
            "layernorm": (
                lambda: layernorm(x, w, b, eps=eps, out=out),  # noqa: B023
                by_moments(px, pw, pb, eps),
            ),
            "softmax": (
                lambda: softmax(x, scale=scale, out=out),  # noqa: B023
                exponentials(scale * px),
            ),
            "log_softmax": (lambda: log_softmax(x, out=out), np.log(exponentials(px))),
            "row_sum": (lambda: row_sum(x, out=sums), px.sum(1)),
            "row_max": (lambda: row_max(x, out=sums), px.max(1)),
            "row_argmax": (lambda: row_argmax(x, out=places), px.argmax(1)),
            "column_sum": (lambda: column_sum(x, out=columns), px.sum(0)),
        }
        for name, (run, exact) in cases.items():
            for to in (out, turned, sums, columns):
                to.copy_to_device(np.full(to.shape, 77, np.float32))
            got = run().copy_to_host()
            np.testing.assert_allclose(
                got, exact, rtol=1e-4, atol=1e-4, err_msg=f"{name}, round {round}"
            )
        layernorm(x, w, b, mean=mean, rstd=rstd, out=out)
        layernorm_backward(y, x, w, mean=mean, rstd=rstd, dx=out, dweight=dweight, dbias=dbias)
        normal = by_moments(px, 1, 0, 1e-5)
        np.testing.assert_allclose(dweight.copy_to_host(), (py * normal).sum(0), atol=1e-3)
        np.testing.assert_allclose(dbias.copy_to_host(), py.sum(0), atol=1e-3)


@on_gpu(limit=60)
def test_gelu_of_new_arrays_where_others_lay():
    rng = np.random.default_rng(2)
    for _ in range(20):
        values = rng.uniform(0.5, 4, 4099).astype(np.float32)
        x = cuda.to_device(values)
        got = gelu(x).copy_to_host()
        assert (got < values).all() and (got > 0.6 * values).all()
        del x


@on_gpu(limit=60)
def test_workspaces_of_threads_are_their_own():
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(4):
        values = rng.integers(-4, 5, (3000, 520)).astype(np.float32)
        cases.append((cuda.to_device(values), device(520), values.sum(0)))
    for x, out, _ in cases:
        column_sum(x, out=out)
    wrong = []

    def work(x, out, exact):
        for _ in range(200):
            column_sum(x, out=out)
            if (out.copy_to_host() != exact).any():
                wrong.append(exact)
                return

    threads = [threading.Thread(target=work, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@on_gpu(limit=90)
def test_tensors_that_torch_compares_with_those_of_the_last_call():
    """They lie elsewhere, were changed in place, or are of a mode of torch; results are kept."""
    torch = pytest.importorskip("torch")
    x, y = (torch.randn(*SHAPE, device="cuda") for _ in range(2))
    kept = [add(x, y) for _ in range(4)]
    assert len({out.data_ptr() for out in kept}) == 4
    for _ in range(2):
        out = torch.empty_like(x)
        assert add(x, y, out=out) is out
        kept += [out, add(x, y)]
        with torch.inference_mode():
            kept.append(add(x, y))
    torch.cuda.synchronize()
    assert all(torch.equal(out, x + y) and not out.requires_grad for out in kept)
    other = torch.randn(64, 64, device="cuda")
    for change in (torch.Tensor.t_, lambda s: s.resize_(32, 128), lambda s: s.unsqueeze_(0)):
        before = add(other, other)
        change(other)
        if other.is_contiguous():
            assert torch.equal(add(other, other), other + other)
        else:
            with pytest.raises(ValueError, match="contiguous"):
                add(other, other)
            other.t_()
        assert torch.equal(before.flatten(), (other + other).flatten())
    with pytest.raises(TypeError, match="host memory"):
        add(x.cpu(), y)
