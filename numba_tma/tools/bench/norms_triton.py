"""The norms as Triton's users write them: a program for each row, held in registers."""

# mypy: ignore-errors
from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # then there is nothing to run
    triton = None

runs = {}

if triton is not None:

    @triton.jit
    def rms_rows(X, W, Y, N, eps, BLOCK: tl.constexpr):
        """Normalise one row."""
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        x = tl.load(X + row * N + at, mask=at < N, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
        w = tl.load(W + at, mask=at < N, other=0.0).to(tl.float32)
        tl.store(Y + row * N + at, (x * scale * w).to(Y.dtype.element_ty), mask=at < N)

    @triton.jit
    def layer_rows(X, W, B, Y, N, eps, BLOCK: tl.constexpr):
        """Normalise one row."""
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        x = tl.load(X + row * N + at, mask=at < N, other=0.0).to(tl.float32)
        mean = tl.sum(x, 0) / N
        d = tl.where(at < N, x - mean, 0.0)
        scale = tl.rsqrt(tl.sum(d * d, 0) / N + eps)
        w = tl.load(W + at, mask=at < N, other=0.0).to(tl.float32)
        b = tl.load(B + at, mask=at < N, other=0.0).to(tl.float32)
        tl.store(Y + row * N + at, (d * scale * w + b).to(Y.dtype.element_ty), mask=at < N)

    @triton.jit
    def softmax_rows(X, Y, N, BLOCK: tl.constexpr):
        """Exponentials of one row over their sum."""
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        x = tl.load(X + row * N + at, mask=at < N, other=float("-inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(Y + row * N + at, (e / tl.sum(e, 0)).to(Y.dtype.element_ty), mask=at < N)

    def _grid(x):
        return (x.shape[0],), x.shape[1], triton.next_power_of_2(x.shape[1])

    def _rms(x, w, b, y, warps):
        grid, n, block = _grid(x)
        rms_rows[grid](x, w, y, n, 1e-6, BLOCK=block, num_warps=warps)

    def _layer(x, w, b, y, warps):
        grid, n, block = _grid(x)
        layer_rows[grid](x, w, b, y, n, 1e-5, BLOCK=block, num_warps=warps)

    def _softmax(x, w, b, y, warps):
        grid, n, block = _grid(x)
        softmax_rows[grid](x, y, n, BLOCK=block, num_warps=warps)

    runs = {"rmsnorm": _rms, "layernorm": _layer, "softmax": _softmax}
