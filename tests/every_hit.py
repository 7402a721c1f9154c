"""Every function of `numba_tma.kernels`, called where each kernel is found in the cache.

``python -m tests.every_hit [major.minor]`` calls each on arrays at made-up addresses, on a driver
that takes any code and for a GPU of a compute capability. It prints the keys under which kernels
were looked up, the launches, and what was imported. Kernels of any key are found, as if they had
been compiled; with ``--cached`` those of the cache, and with ``--compile`` others are compiled.
With ``--numba`` the process has imported Numba before.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.recording_driver import ATTRIBUTES, IN_CONTEXT, SUCCESS, Array, RecordingDriver


class _AnySizes(tuple[int, ...]):
    """Equal to the sizes of any parameters."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, other: object) -> bool:
        return False


class AnyKernel(RecordingDriver):
    """A driver that launches whatever was loaded."""

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> Any:
        entry = self._entries[int(function) % IN_CONTEXT - 1]
        grid, block = config.gridDimX, config.blockDimX
        self.launches.append(SimpleNamespace(entry=entry, grid=grid, block=block, packed=[]))
        return (SUCCESS,)


def _found(key: str) -> Any:
    """Return what stands for a kernel of the cache."""
    from numba_tma.host.launch_rules import Requirements

    return SimpleNamespace(
        **{"name": key, "entry": key, "code": b"", "sizes": _AnySizes(), "shared": 0},
        **{"requirements": Requirements(frozenset(), False, None, False), "cooperative": False},
        check_count=lambda given: None,
    )


X, Y, Z, OUT = (Array(i, (512, 4096)) for i in range(1, 5))
ROW, COLUMN, BIAS = Array(5, (4096,)), Array(6, (512,), "f4"), Array(7, (4096,), "f4")
GAPS, GAPS_OUT = (Array(i, (512, 4096), strides=(16384, 2)) for i in (8, 9))
ODD, ODD_OUT = (Array(i, (300, 129)) for i in (10, 11))
SHIFTED, SHIFTED_OUT = (Array(i, (300, 129), start=2) for i in (12, 13))
ROWS = {name: Array(i, (512,), "f4") for i, name in enumerate(("mean", "rstd"), 14)}
SIZES, STARTS = Array(16, (8,), "i4"), Array(17, (5,), "i4")


def _matrices(m: int, n: int, k: int, dtype: str = "f2", out: str = "f2") -> tuple[Array, ...]:
    return Array(20, (m, k), dtype), Array(21, (k, n), dtype), Array(22, (m, n), out)


def _bytes(m: int, n: int, k: int) -> tuple[Array, ...]:
    """Return a, b and out; b is contiguous along K."""
    return Array(20, (m, k), "u1"), Array(21, (k, n), "u1", strides=(1, k)), Array(22, (m, n))


def _heads(
    queries: int, keys: int, heads: int = 8, dim: int = 128, dtype: str = "f2", out: str = "f2"
) -> tuple[Array, ...]:
    q, k = (1, queries, heads, dim), (1, keys, heads, dim)
    return Array(30, q, dtype), Array(31, k, dtype), Array(32, k, dtype), Array(33, q, out)


def _cross(a: Any) -> Any:
    return a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1]


def _calls(capability: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Return the calls by function, and what is special; those that a GPU of the capability has."""
    from numba_tma.kernels.attention import attention, attention_backward, attention_varlen
    from numba_tma.kernels.copy import copy, grouped_copy
    from numba_tma.kernels.copy.plan import CopyPlan
    from numba_tma.kernels.matmul import block_scaled_matmul, grouped_matmul, matmul
    from numba_tma.kernels.pointwise import add, gelu, pointwise, scale_add, swiglu
    from numba_tma.kernels.pointwise.plan import plan_for
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
    from numba_tma.kernels.stencil import stencil
    from numba_tma.kernels.transpose import transpose

    calls: dict[str, Callable[[], object]] = {
        "add": lambda: add(X, Y, out=OUT),
        "add, rows with gaps": lambda: add(GAPS, Y, out=GAPS_OUT),
        "add, a vector": lambda: add(X, ROW, out=OUT),
        "add, on a stream": lambda: add(X, Y, out=OUT, stream=17),
        "add, shifted": lambda: add(SHIFTED, ODD, out=SHIFTED_OUT),
        "add, tiles": lambda: add(X, Y, out=OUT, plan=plan_for(2)),
        "add, tiles of rows with gaps": lambda: add(GAPS, Y, out=GAPS_OUT, plan=plan_for(2)),
        "scale_add": lambda: scale_add(X, Y, 2.0, 0.5, out=OUT),
        "gelu": lambda: gelu(X, out=OUT),
        "gelu, chunks": lambda: gelu(X, out=OUT, plan=plan_for(1)),
        "swiglu": lambda: swiglu(X, Y, out=OUT),
        "pointwise": lambda: pointwise(lambda x, y: x * y + x)(X, Y, out=OUT),
        "stencil": lambda: stencil(_cross, boundary="wrap")(X, out=OUT),
        "stencil, rows that are copied": lambda: stencil(_cross)(ODD, out=ODD_OUT),
        "copy": lambda: copy(X, OUT),
        "copy, rows with gaps": lambda: copy(GAPS, GAPS_OUT),
        "copy, chunks": lambda: copy(X, OUT, plan=CopyPlan()),
        "copy, tiles": lambda: copy(GAPS, GAPS_OUT, plan=CopyPlan()),
        "copy, shifted": lambda: copy(SHIFTED, ODD_OUT),
        "grouped_copy": lambda: grouped_copy([X, GAPS], [OUT, GAPS_OUT]),
        "transpose": lambda: transpose(X, out=Array(4, (4096, 512))),
        "transpose, odd rows": lambda: transpose(ODD, out=Array(11, (129, 300))),
        "rmsnorm": lambda: rmsnorm(X, ROW, out=OUT),
        "rmsnorm, odd rows": lambda: rmsnorm(ODD, Array(5, (129,)), out=ODD_OUT),
        "rmsnorm, long rows": lambda: rmsnorm(
            Array(1, (64, 65536)), Array(5, (65536,)), out=Array(4, (64, 65536))
        ),
        "rmsnorm_pipelined": lambda: rmsnorm_pipelined(X, ROW, out=OUT),
        "layernorm": lambda: layernorm(X, ROW, ROW, out=OUT, **ROWS),
        "layernorm, nothing": lambda: layernorm(
            Array(1, (8, 0)), out=Array(4, (8, 0)), mean=Array(14, (8,), "f4")
        ),
        "softmax": lambda: softmax(X, out=OUT),
        "log_softmax": lambda: log_softmax(X, out=OUT),
        "row_sum": lambda: row_sum(X, out=COLUMN),
        "row_max": lambda: row_max(X, out=COLUMN),
        "row_argmax": lambda: row_argmax(X, out=Array(6, (512,), "i8")),
        "column_sum": lambda: column_sum(X, out=BIAS),
        "rmsnorm_backward": lambda: rmsnorm_backward(
            X, Y, ROW, rstd=ROWS["rstd"], dx=OUT, dweight=BIAS
        ),
        "layernorm_backward": lambda: layernorm_backward(
            X, Y, ROW, **ROWS, dx=OUT, dweight=BIAS, dbias=Array(18, (4096,), "f4")
        ),
        "matmul": lambda: matmul(*_matrices(2048, 2048, 2048)),
        "matmul, few rows": lambda: matmul(*_matrices(16, 4096, 4096)),
        "matmul, long K": lambda: matmul(*_matrices(128, 128, 65536)),
        "matmul, a result that no map addresses": lambda: matmul(*_matrices(500, 333, 256)),
        "matmul, a result of f32": lambda: matmul(*_matrices(500, 333, 256, out="f4")),
        "matmul, operands that are copied": lambda: matmul(*_matrices(4000, 3333, 2057)),
        "matmul, bytes that are transposed": lambda: matmul(
            Array(20, (512, 512), "u1"), Array(21, (512, 512), "u1"), Array(22, (512, 512), "f4"),
            dtype=None if capability[0] != 10 else "e4m3",
        ),
        "matmul, epilogue": lambda: matmul(
            *_matrices(512, 4096, 512), bias=BIAS, residual=X, activation="gelu", beta=0.5
        ),
        "attention": lambda: attention(*_heads(2048, 2048)),
        "attention, one query": lambda: attention(*_heads(1, 16384)),
    }  # fmt: skip
    if capability[0] == 10:
        a, b, out = _bytes(512, 512, 512)
        scales = Array(25, (4, 4, 512), "u1")
        calls["matmul, mxfp8"] = lambda: matmul(
            a, b, out, a_scales=scales, b_scales=scales, dtype="e4m3", out_dtype="f16",
            scale_dtype="ue8m0",
        )  # fmt: skip
    else:
        calls |= {
            "attention, lse and window": lambda: attention(
                *_heads(2048, 2048), causal=True, window=256, lse=Array(34, (1, 8, 2048), "f4")
            ),
            "attention_varlen": lambda: attention_varlen(
                *(Array(30 + i, (2048, 8, 128)) for i in range(3)), STARTS, STARTS,
                Array(33, (2048, 8, 128)), causal=True,
            ),
        }  # fmt: skip
    if capability[0] == 9:
        from numba_tma.kernels.matmul import Config, StreamKConfig

        calls |= {
            "matmul, operands that threads load": lambda: matmul(*_matrices(500, 33, 257)),
            "matmul, few columns": lambda: matmul(*_matrices(4096, 24, 4096)),
            "matmul, split-K": lambda: matmul(
                *_matrices(128, 128, 65536), config=Config(128, 128, splits=4)
            ),
            "matmul, stream-K": lambda: matmul(
                *_matrices(3000, 3000, 3000), config=StreamKConfig()
            ),
            "attention, e4m3": lambda: attention(
                *_heads(2048, 2048, dtype="u1"), dtype="e4m3", out_dtype="f16"
            ),
            "attention_backward": lambda: attention_backward(
                *_heads(2048, 2048), Array(35, (1, 2048, 8, 128)), Array(36, (1, 8, 2048), "f4"),
                dq=Array(37, (1, 2048, 8, 128)), dk=Array(38, (1, 2048, 8, 128)),
                dv=Array(39, (1, 2048, 8, 128)),
            ),
            "grouped_matmul": lambda: grouped_matmul(
                Array(20, (2048, 512)), Array(21, (8, 512, 512)), SIZES, Array(22, (2048, 512))
            ),
            "grouped_matmul, a result that no map addresses": lambda: grouped_matmul(
                Array(20, (2048, 512)), Array(21, (8, 512, 333)), SIZES, Array(22, (2048, 333))
            ),
            "block_scaled_matmul": lambda: block_scaled_matmul(
                *_bytes(512, 512, 512)[:2], Array(23, (512, 4), "f4"), Array(24, (4, 4), "f4"),
                _bytes(512, 512, 512)[2], dtype="e4m3", out_dtype="f16",
            ),
        }  # fmt: skip
    return calls


def main() -> None:
    """Make each call once."""
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    capability = tuple(map(int, given[0].split("."))) if given else (9, 0)
    names = "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"
    ATTRIBUTES.update(zip(names, capability))
    if "--numba" in sys.argv:
        import numba.cuda

        assert numba.cuda
    from numba_tma.host import kernel_store

    compiles, driver = contextlib.nullcontext(), RecordingDriver()
    if "--compile" in sys.argv:
        from tests.cpu.backend.test_compiler import hopper_that_loads_nothing

        compiles = hopper_that_loads_nothing()
    elif "--cached" not in sys.argv:
        kernel_store.find, driver = _found, AnyKernel()
    keys, seen, imported = {}, {*sys.modules}, {}
    with driver.installed(), compiles:
        for name, call in _calls(capability).items():
            loaded = len(driver._entries)
            call()
            keys[name] = driver._entries[loaded:]
            imported[name] = sorted(sys.modules.keys() - seen)
            seen |= sys.modules.keys()
    shown = [{**vars(one), "packed": [p.hex() for p in one.packed]} for one in driver.launches]
    print(json.dumps({"kernels": keys, "launches": shown, "imported": imported}))


if __name__ == "__main__":
    main()
