"""Errors of attention against float64, beside its peers on the same inputs.

``python tests/benchmarks/sweeps/attention_errors.py`` from the repository's root, whose library it
measures, writes tests/benchmarks/results/attention_errors.json: of every case and everyone, the
root mean square of the errors and the largest one, both in units of the result's root mean square.
It fails if ours is further off than `SLACK` times the best peer. FlashAttention-4 stands beside
them if it is installed.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.backward import attention_backward

RESULTS = Path("tests/benchmarks/results/attention_errors.json")
#: Of the best peer's error: as many values as there are have errors that agree to a percent.
#: The largest error is that of one value, and more of a matter of chance.
SLACK, SLACK_OF_LARGEST = 1.01, 2.0
LENGTHS = (1, 63, 64, 65, 1000, 4096, 16384)
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "torch FLASH": SDPBackend.FLASH_ATTENTION}
HEADS = 32  #: of gradients: a few rows of each head have much of the error
ROWS = 2048  #: of scores in float64 at a time


def cases():
    """Yield (name, length, heads, heads of k and v, depth, causal, the scores' deviation)."""
    for depth in (64, 128):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            for length in LENGTHS:
                yield f"{mask} 1 x {length} x 4 x {depth}", length, 4, 4, depth, causal, 1.0
            for shared in (4, 8):
                name = f"{mask} 1 x 1000 x 8 x {depth}, {shared} heads share keys"
                yield name, 1000, 8, 8 // shared, depth, causal, 1.0
            for length in (1000, 4096):
                for size in (3.0, 10.0):  # where one weight is a good part of its row
                    name = f"{mask} 1 x {length} x 4 x {depth}, scores of {size:g}"
                    yield name, length, 4, 4, depth, causal, size


def exact(q, k, v, causal):
    """Return attention in float64, (heads, rows, depth)."""
    heads, length, depth = q.shape
    k, v = (t.double().repeat_interleave(heads // len(t), 0) for t in (k, v))
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for head in range(heads):
        for start in range(0, length, ROWS):
            rows = torch.arange(start, min(start + ROWS, length), device=q.device)
            scores = q[head, rows].double() @ k[head].T * depth**-0.5
            if causal:
                later = torch.arange(length, device=q.device) > rows[:, None]
                scores.masked_fill_(later, float("-inf"))
            out[head, rows] = torch.softmax(scores, -1) @ v[head]
    return out


def exact_gradients(dout, q, k, v, causal):
    """Return the gradients in float64, by torch's derivatives of `exact`, which is small here."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    heads, length, depth = q.shape
    keys, values = (t.repeat_interleave(heads // len(t), 0) for t in leaves[1:])
    scores = leaves[0] @ keys.mT * depth**-0.5
    if causal:
        later = torch.ones(length, length, device=q.device).triu(1).bool()
        scores = scores.masked_fill(later, float("-inf"))
    return torch.autograd.grad(torch.softmax(scores, -1) @ values, leaves, dout.double())


def error(result, expected):
    """Return the errors' root mean square, and the largest, in units of the result's."""
    assert torch.isfinite(result).all(), "not finite"
    wrong, size = (result.double() - expected), expected.square().mean().sqrt()
    return [
        float(f"{x.item():.4g}")
        for x in (wrong.square().mean().sqrt() / size, wrong.abs().max() / size)
    ]


def by_torch(backend, q, k, v, causal):
    """Return torch's attention by one backend; arrays are (1, rows, heads, depth)."""
    arrays = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    function = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(backend):
        shared = q.shape[2] != k.shape[2]
        return function(*arrays, is_causal=causal, enable_gqa=shared).transpose(1, 2)


def by_flash_attention_4(q, k, v, causal):
    """Return FlashAttention-4's."""
    result = importlib.import_module("flash_attn.cute").flash_attn_func(q, k, v, causal=causal)
    return result[0] if isinstance(result, tuple) else result


def peers():
    """Return who else computes attention."""
    found = {name: functools.partial(by_torch, backend) for name, backend in BACKENDS.items()}
    return {**found, "FlashAttention-4": by_flash_attention_4}


def measure(name, runs, expected):
    """Return the errors of all that can do a case, of each result."""
    errors = {}
    for who, run in runs.items():
        try:
            results = run()
            torch.cuda.synchronize()
            errors[who] = [error(r, e) for r, e in zip(results, expected, strict=True)]
        except Exception as problem:  # not installed, or not for this shape
            if who == "numba_tma":
                raise
            print(f"{name}: no {who}: {str(problem)[:100]}", flush=True)
    return errors


def forward(name, length, heads, shared, depth, causal, size):
    """Return the errors of a case."""
    q, k, v = (
        torch.randn(1, length, h, depth, device="cuda").bfloat16() for h in (heads, shared, shared)
    )
    q *= size
    expected = exact(*(t[0].transpose(0, 1) for t in (q, k, v)), causal).transpose(0, 1)[None]
    everyone = {"numba_tma": lambda q, k, v, causal: attention(q, k, v, causal=causal), **peers()}
    runs = {who: lambda run=run: (run(q, k, v, causal=causal),) for who, run in everyone.items()}
    return {who: errors[0] for who, errors in measure(name, runs, (expected,)).items()}


def backward(length, depth, causal):
    """Yield the errors of a case's gradients: of which one, who has which."""
    q, k, v, dout = (
        torch.randn(1, length, HEADS, depth, device="cuda").bfloat16() for _ in range(4)
    )
    heads = [t[0].transpose(0, 1) for t in (dout, q, k, v)]
    expected = [t.transpose(0, 1)[None] for t in exact_gradients(*heads, causal)]

    def ours():
        out, lse = attention(q, k, v, causal=causal, return_lse=True)
        return attention_backward(dout, q, k, v, out, lse, causal=causal)

    def theirs(run):
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(run(*leaves, causal=causal), leaves, dout)

    runs = {"numba_tma": ours, **{w: functools.partial(theirs, run) for w, run in peers().items()}}
    found = measure(f"gradients of {length}", runs, expected)
    for i, which in enumerate(("dq", "dk", "dv")):
        yield which, {who: errors[i] for who, errors in found.items()}


def main():
    torch.manual_seed(1)
    found = {name: forward(name, *rest) for name, *rest in cases()}
    for depth in (64, 128):
        for causal in (False, True):
            case = f"{'causal' if causal else 'full'} 1 x 1000 x {HEADS} x {depth}"
            for which, errors in backward(1000, depth, causal):
                found[f"{which}, {case}"] = errors
    result = {"gpu": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat()}
    RESULTS.write_text(json.dumps({**result, "errors": found}, indent=1) + "\n")
    bad = []
    for name, errors in found.items():
        ours, others = errors["numba_tma"], [e for who, e in errors.items() if who != "numba_tma"]
        print(name, errors, flush=True)
        assert others, f"{name}: nobody to compare with"
        for mine, best, slack in zip(ours, map(min, zip(*others)), (SLACK, SLACK_OF_LARGEST)):
            if mine > slack * best + 1e-6:
                bad.append(f"{name}: {mine} beside {best}")
    assert not bad, "\n".join(bad)


if __name__ == "__main__":
    main()
