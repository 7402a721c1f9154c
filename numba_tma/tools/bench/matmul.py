"""Matmuls beside cuBLAS, torch.compile and Triton: squares, fp8, block-scaled, real layers.

All have M x N x K in their names, and weights as layers hold them: a row of K for each of N.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.compiled import MODES, compiled_peers
from numba_tma.tools.bench.peers import check, offered, shipped, with_fastest, working
from numba_tma.tools.bench.results import Cases, Measured, operations
from numba_tma.tools.bench.timing import Run, worse_of_two

Shape = tuple[int, int, int]

BF16: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024))
FP8: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 16384))
BLOCK_SCALED: Shape = (4096, 7168, 16384)

TUNED = {"torch.compile max-autotune": MODES["torch.compile max-autotune"]}
E4M3, SLOW = "fp8 e4m3", "cuBLASLt slow accumulation"

LAYER_MATMUL = "layer matmul"
#: N and K of layers, and the tokens (M) that they are measured with, each four times in all.
LAYERS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Llama-3 8B qkv": (6144, 4096, (1, 256, 8192)),
    "Llama-3 8B o": (4096, 4096, (16, 1024)),
    "Llama-3 8B gate-up": (28672, 4096, (64, 4096)),
    "Llama-3 8B down": (4096, 14336, (1, 1024, 16384)),
    "Llama-3 70B qkv": (10240, 8192, (16, 4096)),
    "Llama-3 70B o": (8192, 8192, (64, 8192)),
    "Llama-3 70B gate-up": (57344, 8192, (1, 256, 8192)),
    "Llama-3 70B down": (8192, 28672, (16, 1024, 16384)),
    "DeepSeek-V3 q_b": (24576, 1536, (64, 4096)),
    "DeepSeek-V3 kv_b": (32768, 512, (256, 8192, 16384)),
    "DeepSeek-V3 o": (7168, 16384, (1, 4096, 16384)),
    "DeepSeek-V3 moe gate-up": (4096, 7168, (64, 256)),
    "DeepSeek-V3 moe down": (7168, 2048, (16, 1024)),
}

# cuBLAS may add parts of K in bf16, and fast accumulation of fp8 keeps 13 bits at each step of K.
BF16_TOLERANCE, FP8_TOLERANCE = 2**-6, 2**-4


def check_product(
    torch: ModuleType, tolerance: float, a: DeviceArray, w: DeviceArray, c: DeviceArray
) -> None:
    """Hold c to a @ w.T in float64, some rows at a time."""
    wide = w.double().T
    for rows, got in zip(a.split(2048), c.split(2048)):
        check(torch, got, rows.double() @ wide, tolerance)


def _inputs(torch: ModuleType, shape: Shape, dtype: Any) -> list[Any]:
    return [torch.randn(n, shape[2], device="cuda").to(dtype) for n in shape[:2]]


def _empty(torch: ModuleType, a: DeviceArray, w: DeviceArray) -> Any:
    """Return a bf16 result that is wrong wherever nothing is written."""
    size = (a.shape[0], w.shape[0])
    return torch.full(size, float("nan"), device="cuda", dtype=torch.bfloat16)


def _selected(
    torch: ModuleType,
    case: str,
    a: DeviceArray,
    w: DeviceArray,
    peers: dict[str, Run],
    right: Callable[[Any], None],
) -> dict[str, Run]:
    """Return the peers that are right, with the fastest plan of each of Triton's languages."""
    from numba_tma.tools.bench import matmul_gluon, matmul_triton

    count = torch.cuda.get_device_properties(0).multi_processor_count
    out = _empty(torch, a, w)
    sources = {
        "Triton": functools.partial(matmul_triton.candidates, a, w, out, count),
        "Gluon": functools.partial(matmul_gluon.candidates, a, w, out, count),
    }
    found = working(torch, case, peers | offered(case, sources), right)
    for family in sources:
        found = with_fastest(found, family)
    return found


def _rate(shape: Shape, ours: Run, peers: dict[str, Run]) -> Measured:
    M, N, K = shape
    return operations(2 * M * N * K, worse_of_two({"numba_tma": ours, **peers}))


def bench_bf16(torch: ModuleType, shape: Shape) -> Measured:
    """Time a matmul of bf16 beside all that can do one."""
    matmul = shipped("matmul", "matmul")
    a, w = _inputs(torch, shape, torch.bfloat16)
    c, d = _empty(torch, a, w), _empty(torch, a, w)
    ours = functools.partial(matmul, a, w.T, out=c)
    right = functools.partial(check_product, torch, BF16_TOLERANCE, a, w)
    ours()
    right(c)
    peers = {
        "cuBLAS": lambda: torch.mm(a, w.T, out=d),
        **compiled_peers(torch, lambda a, w: a @ w.T, a, w, modes=TUNED),
    }
    case = f"matmul {_named(shape)}"
    return _rate(shape, ours, _selected(torch, case, a, w, peers, right))


def bench_layer(torch: ModuleType, shape: Shape) -> Measured:
    """Time the matmul of a layer of bf16 beside cuBLAS."""
    matmul = shipped("matmul", "matmul")
    a, w = _inputs(torch, shape, torch.bfloat16)
    c, d = _empty(torch, a, w), _empty(torch, a, w)
    ours = functools.partial(matmul, a, w.T, out=c)
    right = functools.partial(check_product, torch, BF16_TOLERANCE, a, w)
    ours()
    right(c)
    cublas = {"cuBLAS": lambda: torch.mm(a, w.T, out=d)}
    return _rate(shape, ours, working(torch, f"{LAYER_MATMUL} {_named(shape)}", cublas, right))


def cublaslt(
    torch: ModuleType,
    a: DeviceArray,
    w: DeviceArray,
    a_scale: DeviceArray,
    w_scale: DeviceArray,
    fast: bool,
) -> Run:
    """Return torch's product of fp8, with a scale for each matrix or for each block of them."""
    return functools.partial(
        torch._scaled_mm,
        *(a, w.T, a_scale, w_scale.T),
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def bench_fp8(torch: ModuleType, shape: Shape) -> Measured:
    """Time a matmul of e4m3 to bf16, beside both accumulations of cuBLASLt."""
    matmul = shipped("matmul", "matmul")
    a, w = _inputs(torch, shape, torch.float8_e4m3fn)
    c, one = _empty(torch, a, w), torch.ones(1, 1, device="cuda")
    ours = functools.partial(matmul, a, w.T, out=c)
    right = functools.partial(check_product, torch, FP8_TOLERANCE, a, w)
    ours()
    right(c)
    peers = {
        "cuBLASLt": cublaslt(torch, a, w, one, one, fast=True),
        SLOW: cublaslt(torch, a, w, one, one, fast=False),
    }
    case = f"matmul {_named(shape, E4M3)}"
    return _rate(shape, ours, _selected(torch, case, a, w, peers, right))


def bench_block_scaled(torch: ModuleType, shape: Shape) -> Measured:
    """Time a matmul of e4m3 that has a scale for each 1 x 128 of a and each 128 x 128 of w."""
    matmul = shipped("matmul", "block_scaled_matmul")
    M, N, K = shape
    a, w = _inputs(torch, shape, torch.float8_e4m3fn)
    # Those of all rows for one step along K lie beside each other, as cuBLASLt wants them.
    a_scales = torch.rand(K // 128, M, device="cuda").add_(0.5).T
    w_scales = torch.rand(N // 128, K // 128, device="cuda").add_(0.5)
    c, one = _empty(torch, a, w), torch.ones(1, 1, device="cuda")
    ours = functools.partial(matmul, a, w.T, a_scales, w_scales.T, out=c)
    wide = a.double() * a_scales.double().repeat_interleave(128, 1)
    weights = w.double() * w_scales.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    right = functools.partial(check_product, torch, FP8_TOLERANCE, wide, weights)
    ours()
    right(c)
    case = f"block-scaled matmul {_named(shape, E4M3)}"
    scaled = {"cuBLASLt block-scaled": cublaslt(torch, a, w, a_scales, w_scales, fast=False)}
    unscaled = {f"{SLOW}, unscaled": cublaslt(torch, a, w, one, one, fast=False)}
    peers = working(torch, case, scaled, right) | working(torch, case, unscaled)
    return _rate(shape, ours, peers)


def _named(shape: Shape, dtype: str = "bf16") -> str:
    return f"{dtype} {' x '.join(map(str, shape))}"


CASES: Cases = {
    **{("matmul", _named(shape)): functools.partial(bench_bf16, shape=shape) for shape in BF16},
    **{("matmul", _named(shape, E4M3)): functools.partial(bench_fp8, shape=shape) for shape in FP8},
    ("block-scaled matmul", _named(BLOCK_SCALED, E4M3)): functools.partial(
        bench_block_scaled, shape=BLOCK_SCALED
    ),
    **{
        (LAYER_MATMUL, _named((M, N, K), layer)): functools.partial(bench_layer, shape=(M, N, K))
        for layer, (N, K, tokens) in LAYERS.items()
        for M in tokens
    },
}
