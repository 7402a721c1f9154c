"""Attention's machine code: no spills, no serialised products, operations counted; and errors."""

import functools
import itertools
import re
from collections import Counter
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host import driver as _driver
from numba_tma.kernels.attention import attention, attention_varlen
from numba_tma.kernels.attention.choice import FP8_HEAD_DIMS
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.transpose_v import transpose_tiles, transpose_v_kernel
from numba_tma.tools.testing import compile_ptx, find_tool, instructions
from tests.kernels.attention_forms import PROBLEMS, form, plan_of
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
QUICK = ["d64 causal", "d256 causal left softcap lse", "d256 splits lse few"]
by_problem = pytest.mark.parametrize("name", quick(QUICK, PROBLEMS))
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")


@functools.cache
def compiled(name):
    return compile_ptx(*form(name))


@by_problem
def test_registers_hold_everything(name):
    report = all_in_registers(compiled(name))
    assert report.registers == min(255, 65536 // plan_of(name).threads // 8 * 8)  # at launch


def has_both_products(code):
    """Return whether A comes from shared memory in one product, and from registers in another."""
    return {"R", "gdesc"} <= set(re.findall(r"GMMA\S+ R\d+, (R|gdesc)", code))


@functools.cache
def main_loop(name):
    """Return the loop over keys: the next one outside it is over tiles."""
    return shortest_loop(compiled(name), has_both_products)


@needs_nvdisasm
@by_problem
def test_a_step_computes_and_moves_nothing(name):
    problem, plan = PROBLEMS[name], plan_of(name)
    scores, outputs = plan.block_k // 2, problem.head_dim // 2  # of a thread
    added = outputs * problem.is_fp8  # by the threads, not the tensor cores
    found = Counter(operation for operation, _ in main_loop(name))
    product, depth = ("QGMMA", 32) if problem.is_fp8 else ("HGMMA", 16)
    assert found[product] == problem.head_dim // depth + plan.block_k // depth
    assert found["MUFU.EX2"] == scores + 2  # and of each of the two rows the decay
    lifts = 2 * problem.is_fp8  # the shifts of e4m3 are sums, others products
    assert found["FFMA"] == scores + 2 + lifts  # score * scale + shift
    assert found["MUFU.TANH"] == scores * problem.softcap
    assert found["FMUL"] == outputs + 4 - lifts + scores * problem.softcap
    assert found["VOTE"] == plan.votes
    assert found["FADD"] == scores + added
    assert found["SHFL"] == 4  # maxima of two rows, over four threads
    assert found["FMNMX"] == scores + 4
    assert found["F2FP"] == scores // 2
    assert (found["WARPGROUP.ARRIVE"], found["WARPGROUP.DEPBAR"]) == (2, 2)
    # What a step with masked keys has more, for each score; other steps branch around it.
    masked = 3.6 * (problem.causal + problem.left + problem.right) + 2 * (not problem.causal)
    masked += 2 * problem.softcap
    # Waits, and where the tiles are, for which ptxas uses other registers in a smaller block.
    around = 110 + (7 if plan.warpgroups == 1 else 5) * found[product]
    around += 4 * (plan.packed_heads > 1)  # a row's query is the row over the heads
    around += 4 * plan.turns  # waits for the turn, and ends it
    assert sum(found.values()) <= (4.5 + masked) * scores + outputs + added + around, found


@needs_nvdisasm
@by_problem
def test_exponentials_are_computed_while_products_run(name):
    """ptxas is free to wait for the product with V at once, which would cost all the overlap."""
    order = [operation for operation, _ in main_loop(name)]
    exponentials = [i for i, operation in enumerate(order) if operation == "MUFU.EX2"]
    products = [i for i, operation in enumerate(order) if operation.endswith("GMMA")]
    waits = [i for i, operation in enumerate(order) if operation == "WARPGROUP.DEPBAR"]
    # Both products, the wait for the first, the softmax, the wait for the second.
    assert products[-1] < waits[0] < exponentials[0] < exponentials[-1] < waits[1]


@pytest.mark.parametrize("depth", FP8_HEAD_DIMS)
def test_values_turn_round_in_registers(depth):
    maps = [TensorMapType(4, tile) for tile in transpose_tiles(depth)]
    ptx = compile_ptx(transpose_v_kernel(depth), (*maps, types.int64, types.int64))
    all_in_registers(ptx)
    code = instructions(ptx)
    # Blocks of 16 x 16 bytes are read and written 16 B at a time.
    for access in ("ld.shared.v4", "st.shared.v4"):
        assert sum(access in line for line in code) % 16 == 0 < sum(access in line for line in code)


# ----------------------------------------------------------------------------------- errors


USUAL = (2, 64, 4, 64)


NUMBERS = itertools.count()


def array(shape=USUAL, dtype=BF16, strides=None, start=0):
    """Return a device array over memory of its own that does not exist."""
    interface = {
        "shape": shape,
        "strides": strides,
        "typestr": np.dtype(dtype).str,
        "data": ((1 << 41) + (next(NUMBERS) << 28) + start, False),
        "version": 3,
    }
    return SimpleNamespace(dtype=np.dtype(dtype), __cuda_array_interface__=interface)


COPY = "other strides are multiples of 16 B: pass a contiguous copy"
MISTAKES = {
    "three axes": (
        {"q": array((2, 64, 64))},
        "q has shape (2, 64, 64) of bf16; it takes (batch, sequence, heads, head_dim) of bf16 "
        "or f16",
    ),
    "bits of another size": (
        {"v": array(dtype=np.float32), "dtype": "bf16"},
        "v holds f32, whose bits cannot be bf16: give a dtype of 4 B",
    ),
    "float32": (
        {name: array(dtype=np.float32) for name in ("q", "k", "v", "out")},
        "q has shape (2, 64, 4, 64) of f32; it takes bf16 and f16 with a head dim of 64, 96, 128",
    ),
    "depth": (
        {name: array((2, 64, 4, 192)) for name in ("q", "k", "v", "out")},
        "q has shape (2, 64, 4, 192) of bf16; it takes bf16 and f16 with a head dim of 64, 96, 128",
    ),
    "batch": (
        {"k": array((1, 64, 4, 64))},
        "k has shape (1, 64, 4, 64), but q (2, 64, 4, 64); k takes the same batch and head dim",
    ),
    "depth of the keys": ({"k": array((2, 64, 4, 128))}, "k takes the same batch and head dim"),
    "no keys": ({"k": array((2, 0, 4, 64))}, "at least one key"),
    "no heads": ({"k": array((2, 64, 0, 64))}, "a number of heads that divides that of q"),
    "heads": ({"k": array((2, 64, 3, 64))}, "a number of heads that divides that of q"),
    "values": (
        {"v": array((2, 65, 4, 64))},
        "v has shape (2, 65, 4, 64), but k has (2, 64, 4, 64); they must agree",
    ),
    "result": (
        {"out": array((2, 63, 4, 64))},
        "out has shape (2, 63, 4, 64), but q has (2, 64, 4, 64); they must agree",
    ),
    "types": (
        {"k": array(dtype=np.float16)},
        "k is f16, but q is bf16; they must agree: convert one",
    ),
    "type of the result": ({"out": array(dtype=np.float16)}, "out is f16, but q is bf16"),
    "depth not contiguous": (
        {"q": array(strides=(32768, 512, 2, 8))},
        "with strides (32768, 512, 2, 8) B; no axis is reversed, the head dim is contiguous, "
        f"and the address and the {COPY}",
    ),
    "strides": ({"v": array(strides=(33280, 520, 128, 2))}, COPY),
    "reversed": ({"k": array(strides=(-32768, 512, 128, 2))}, "no axis is reversed"),
    "address": ({"out": array(start=2)}, "2 with strides"),
    "logarithms": (
        {"lse": array((2, 64, 4), np.float32)},
        "lse has shape (2, 64, 4) of f32, but q has shape (2, 64, 4, 64); lse "
        "takes (batch, heads, queries) = (2, 4, 64) of f32, contiguous, as it is returned wi",
    ),
    "type of the logarithms": ({"lse": array((2, 4, 64))}, "lse has shape (2, 4, 64) of bf16"),
    "logarithms apart": (
        {"lse": array((2, 4, 64), np.float32, (2048, 512, 8))},
        "lse has shape (2, 4, 64) of f32 and strides (2048, 512, 8) B, but",
    ),
    "e4m3 of another depth": (
        {name: array((2, 64, 4, 96), E4M3) for name in "qkv"},
        "q has shape (2, 64, 4, 96) of e4m3; it takes bf16 and f16 with a head dim of 64, 96, 128, "
        "256, and e4m3 with 64 or 128",
    ),
    "e5m2": (
        {name: array(dtype=ml_dtypes.float8_e5m2) for name in "qkv"},
        "q has shape (2, 64, 4, 64) of e5m2; it takes bf16 and f16 with",
    ),
    "keys of another type": (
        {"q": array(dtype=E4M3)},
        "k is bf16, but q is e4m3; they must agree: convert one",
    ),
    "a result of e4m3": (
        {name: array(dtype=E4M3) for name in ("q", "k", "v", "out")},
        "out is e4m3; the result of e4m3 is bf16 or f16: say which of them its bits are by",
    ),
    "strides of e4m3": (
        {name: array(dtype=E4M3, strides=(18432, 288, 72, 1)) for name in "qkv"},
        COPY,
    ),
    "scales of bf16": (
        {"q_scale": array((2, 4), np.float32)},
        "q is bf16; q_scale, k_scale, v_scale and out_dtype are for e4m3: leave them out",
    ),
    "another result": ({"out_dtype": "f16"}, "q is bf16; q_scale, k_scale, v_scale and out_dtype"),
    "scales of too few heads": (
        {"v_scale": array((2, 1), np.float32)} | {name: array(dtype=E4M3) for name in "qkv"},
        "v_scale has shape (2, 1) of f32, but v has shape (2, 64, 4, 64); v_scale "
        "takes (batch, heads) = (2, 4) of f32, contiguous, or None where nothing is to be",
    ),
    "scales of bits": (
        {"k_scale": array((2, 4), np.int32)} | {name: array(dtype=E4M3) for name in "qkv"},
        "k_scale has shape (2, 4) of i32",
    ),
    "scales apart": (
        {"q_scale": array((2, 4), np.float32, (32, 8))}
        | {name: array(dtype=E4M3) for name in "qkv"},
        "q_scale has shape (2, 4) of f32 and strides (32, 8) B, but q",
    ),
    "scale": ({"scale": 0}, "attention(scale=0): scale is a positive number; negate q for a"),
    "cap": ({"softcap": 0.0}, "attention(softcap=0.0): softcap is a positive number, or None"),
    "no cap": ({"softcap": float("inf")}, "attention(softcap=inf): softcap is a positive number"),
    "window": (
        {"window": -1},
        "attention(window=-1): a window is (left, right), the numbers of keys that a query sees",
    ),
    "windows": ({"window": (1, 2, 3)}, "attention(window=(1, 2, 3)): a window is (left, right)"),
    "half a key": ({"window": (1, 0.5)}, "whole numbers from 0, or None for all; or one number"),
    "a window of truth": ({"window": True}, "attention(window=True): a window is"),
    "a plan of e4m3": (
        {"plan": AttentionPlan(3, 112)} | {name: array(dtype=E4M3) for name in "qkv"},
        "attention(plan=AttentionPlan(warpgroups=3, block_k=112, stages=2, heads_together=1, "
        "votes=True, splits=1, q_stages=1, packed_heads=1, turns=False)): block_k is a multiple "
        "of 32 up to 256, since a product with e4m3 takes 32 keys",
    ),
    "a plan of packed heads": (
        {"plan": AttentionPlan(2, 128, packed_heads=4)}
        | {name: array((2, 64, 2, 64)) for name in "kv"},
        "packed_heads is a power of 2 that divides the 2 heads of q that share a head of k",
    ),
    "no scale": ({"scale": float("nan")}, "attention(scale=nan): scale is a positive number"),
}


PACKED = (64, 4, 64)
STARTS = (
    "(sequences + 1,) of i32, contiguous, as of cumsum: where each sequence begins, and the last"
)
VARLEN_MISTAKES = {
    "a batch": (
        {"q": array()},
        "attention_varlen(): q has shape (2, 64, 4, 64) of bf16; it takes (rows, heads, head_"
        "dim) of",
    ),
    "e4m3": (
        {name: array((64, 4, 64), E4M3) for name in "qkv"},
        "attention_varlen(): q has shape (64, 4, 64) of e4m3; it takes bf16 and f16 with a head",
    ),
    "heads": (
        {"k": array((64, 3, 64))},
        "attention_varlen(): k has shape (64, 3, 64), but q (64, 4, 64); k takes the same batch",
    ),
    "starts of 64 bits": (
        {"cu_seqlens_q": array((4,), np.int64)},
        f"cu_seqlens_q has shape (4,) of i64; it takes {STARTS}",
    ),
    "no starts": ({"cu_seqlens_k": array((0,), np.int32)}, "cu_seqlens_k has shape (0,) of i32"),
    "starts of two axes": ({"cu_seqlens_k": array((1, 4), np.int32)}, STARTS),
    "starts apart": ({"cu_seqlens_k": array((4,), np.int32, (8,))}, "and strides (8,) B; it takes"),
    "different numbers": (
        {"cu_seqlens_k": array((3,), np.int32)},
        "cu_seqlens_q has shape (4,), but cu_seqlens_k (3,); they have an element for each",
    ),
    "logarithms": (
        {"lse": array((64, 4), np.float32)},
        "lse has shape (64, 4) of f32, but q has shape (64, 4, 64); lse takes "
        "(heads, rows) = (4, 64) of f32",
    ),
    "parts": (
        {"plan": AttentionPlan(splits=2)},
        "splits is 1 for packed sequences, whose lengths only the device knows",
    ),
    "window": ({"window": -1}, "attention_varlen(window=-1): a window is (left, right)"),
    "scale": ({"scale": -1}, "attention_varlen(scale=-1): scale is a positive number"),
}


@pytest.mark.parametrize("name", VARLEN_MISTAKES)
def test_mistakes_with_packed_sequences(name, monkeypatch):
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    given, message = VARLEN_MISTAKES[name]
    arrays = {name: array(PACKED) for name in ("q", "k", "v", "out")}
    arrays |= {name: array((4,), np.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_varlen(**arrays | given)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, monkeypatch):
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    given, message = MISTAKES[name]
    arrays = {name: array() for name in ("q", "k", "v", "out")}
    with pytest.raises(ValueError, match=re.escape(message)):
        attention(**arrays | given)
