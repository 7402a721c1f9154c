"""Attention on Blackwell's tensor cores, compiled: registers, targets, the loop; and its plans."""

import functools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention import attention, attention_varlen
from numba_tma.kernels.attention.plan import E4M3, AttentionProblem
from numba_tma.kernels.attention.tcgen05_kernel import ROLES
from numba_tma.kernels.attention.tcgen05_plan import (
    TCGEN05_HEAD_DIMS,
    TILES,
    Tcgen05AttentionForm,
    Tcgen05AttentionPlan,
    check_tcgen05,
    tcgen05_plan_for,
)
from numba_tma.tools.testing import compile_ptx, find_tool
from tests.kernels.attention_tcgen05_forms import FORMS, tcgen05_form
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

TARGETS = [(10, 0, "a"), (10, 3, "a"), (11, 0, "a")]
PLAN = Tcgen05AttentionPlan()
BF16 = as_dtype("bf16")


@functools.cache
def compiled(name, cc=TARGETS[0]):
    return compile_ptx(*tcgen05_form(name), cc=cc)


@pytest.mark.parametrize("name", quick(["d96 causal"], FORMS))
def test_nothing_is_in_local_memory(name):
    report = all_in_registers(compiled(name))
    assert report.registers == 128  # at launch: 65536 registers for 512 threads


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["d64 causal lse", "d96", "d96 causal", "d128 left right softcap lse"]
)
@pytest.mark.parametrize("cc", TARGETS[1:])
def test_every_target(cc, name):
    all_in_registers(compiled(name, cc))


def test_registers_are_those_of_the_launch():
    counts = {role.name: role.registers for role in ROLES.roles}
    assert counts == {"softmax": 192, "correction": 80, "mma": 48, "load": 48, "idle": 48}
    assert ROLES.threads == PLAN.threads


@pytest.mark.slow
def test_products_and_commits():
    """Two S to begin with, S and O += P V in the loop, two P V at the end; d128, 16 a step."""
    ptx = compiled("d128")
    products = re.findall(r"\btcgen05\.mma\.cta_group::1\.kind::f16 \[%r\d+\], (.)", ptx)
    assert Counter(products) == {"%": 3 * 8, "[": 3 * 8}  # Q in shared memory, P in tensor memory
    # S 3, O 2; the first K, a V and a K in the loop, the last V; Q0, Q1.
    assert len(re.findall(r"\btcgen05\.commit\.", ptx)) == 3 + 2 + 4 + 2


@pytest.mark.slow
@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
def test_a_step_of_softmax_computes_and_moves_nothing():
    code = shortest_loop(compiled("d128 causal"), lambda text: text.count("MUFU.EX2") > 100)
    found = Counter(operation for operation, _ in code)
    scores = PLAN.block_k  # of a thread
    polynomials = scores // PLAN.polynomial_period
    assert found["MUFU.EX2"] == scores - polynomials + 1  # and the rescaling
    assert found["FFMA"] == scores + 5 * polynomials + 1
    assert found["FADD"] == scores + 3 * polynomials
    assert found["F2FP"] == scores // 2
    assert found["LDTM"] == scores // 32 and found["STTM"] == scores // 64
    masked = 2 * scores  # comparison and selection, around which steps without a mask branch
    assert sum(found.values()) < 4.6 * scores + masked + 11 * polynomials + 100, found


#: What an SM of a B200 does in a cycle: bf16 multiply-adds, exponentials, bytes of shared memory.
PRODUCT_RATE, EXPONENTIAL_RATE, SHARED_RATE = 4096, 16, 128


@pytest.mark.parametrize("head_dim", TCGEN05_HEAD_DIMS)
def test_the_model_in_the_documentation(head_dim):
    form = Tcgen05AttentionForm(AttentionProblem(head_dim, BF16), PLAN)
    scores = form.block_q * form.block_k
    kv_nbytes = form.problem.tile(form.block_k).nbytes
    products = 2 * scores * head_dim // PRODUCT_RATE
    read = TILES * (form.q_nbytes + 2 * kv_nbytes) // SHARED_RATE
    exponentials = scores - scores // PLAN.polynomial_period
    row = f"| {head_dim} | {products} | {exponentials // EXPONENTIAL_RATE} | {read} + "
    row += f"{2 * kv_nbytes // SHARED_RATE} |"
    page = Path(__file__).parents[3] / "docs" / "kernels" / "attention.md"
    assert row in page.read_text()


# ------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("head_dim", "stages", "columns", "kib"),
    [(64, 6, 384, 160), (96, 5, 448, 216), (128, 3, 512, 224)],
)
def test_what_a_block_has(head_dim, stages, columns, kib):
    form = Tcgen05AttentionForm(AttentionProblem(head_dim, BF16), PLAN)
    assert (form.stages, form.columns, form.memory.nbytes) == (stages, columns, kib << 10)
    assert (form.block_q, form.plan.threads, form.plan.splits) == (256, 512, 1)


def test_the_plan_that_is_chosen():
    full, causal = (AttentionProblem(128, BF16, causal) for causal in (False, True))
    assert tcgen05_plan_for(full, 4096, 4096, 64, 1, 148) == PLAN
    for heads, queries, together in ((64, 4096, 0), (4, 4096, 1), (64, 65536, 1)):
        chosen = tcgen05_plan_for(causal, queries, queries, heads, 1, 148)
        assert chosen == replace(PLAN, heads_together=together)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            AttentionProblem(128, BF16, packed=True),
            "sequences are packed; attention on Blackwell's tensor cores takes bf16 and f16 with a "
            "head dim of 64, 96, 128, and no packed sequences: call attention for each sequence",
        ),
        (AttentionProblem(128, E4M3), "q is e4m3; .* convert q, k and v to bf16"),
        (AttentionProblem(256, BF16), "q has a head dim of 256; .* fill tensor memory: use a GPU"),
    ],
)
def test_what_the_kernel_does_not_have(problem, message):
    with pytest.raises(ValueError, match=message):
        check_tcgen05("attention", problem)


@pytest.mark.parametrize(
    "plan", [{"block_k": 96}, {"stages": 1}, {"heads_together": -1}, {"polynomial_period": -1}]
)
def test_plans_that_the_kernel_cannot_follow(plan):
    (field,) = plan
    with pytest.raises(ValueError, match=rf"Tcgen05AttentionPlan\({field}=.*\): {field} is "):
        Tcgen05AttentionPlan(**plan)


class Held:
    """An array as a GPU library shows it; nothing reads its memory."""

    def __init__(self, shape, typestr="<u2", address=1 << 20):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (address, False), "version": 3,
        }  # fmt: skip


def test_a_plan_is_a_plan():
    q, out = Held((1, 64, 1, 64)), Held((1, 64, 1, 64), address=1 << 30)
    with pytest.raises(TypeError, match="it is an AttentionPlan, on Blackwell a Tcgen05Attention"):
        attention(q, q, q, out, dtype="bf16", plan=128)


def test_packed_sequences_are_refused_with_a_plan_of_blackwell():
    q, starts = Held((64, 1, 64)), Held((2,), "<i4")
    out = Held((64, 1, 64), address=1 << 30)
    with pytest.raises(ValueError, match=r"attention_varlen\(\): sequences are packed"):
        attention_varlen(q, q, q, starts, starts, out, dtype="bf16", plan=PLAN)


def test_a_gpu_with_these_tensor_cores_has_this_kernel(monkeypatch):
    """What is missing is named there without a plan, too."""
    monkeypatch.setattr("numba_tma.kernels.attention.launch.has_tcgen05", lambda: True)
    q, out = Held((1, 64, 1, 256)), Held((1, 64, 1, 256), address=1 << 30)
    with pytest.raises(ValueError, match="q has a head dim of 256; attention on Blackwell"):
        attention(q, q, q, out, dtype="bf16")
