"""`with` over pipelines compiles to the same code as the explicit calls."""

from __future__ import annotations

import re

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels import scope_pipelines as scoped
from tests.tiers import every, quick

W = tma.Warps
MAP_A, MAP_B = (TensorMapType(2, tile) for tile in (scoped.A, scoped.B))
HALF = TensorMapType(2, tma.Tile((scoped.ROWS // 2, scoped.COLUMNS), "u32"))
OUT, N = types.uint32[:, :, ::1], types.int64
PAYLOAD = (MAP_A, MAP_B, OUT, OUT, N)
SKIPPING = (types.uint32[:, ::1], OUT, N, N)

FORMS = {
    "TMA": (lambda: scoped.payload_kernels(4, (W(1), W(4)), 2), PAYLOAD),
    "one stage": (lambda: scoped.payload_kernels(1, (W(1), W(1)), 1), PAYLOAD),
    "several consumers": (lambda: scoped.payload_kernels(2, (W(1), W(2), W(1)), 1), PAYLOAD),
    "cp.async": (lambda: scoped.cp_async_kernels(3, (W(2), W(1))), SKIPPING),
    "threads": (lambda: scoped.thread_kernels(3, (W(2), W(1))), SKIPPING),
    "arrivals by thread": (lambda: scoped.thread_kernels(2, (tma.Threads(40), W(1))), SKIPPING),
    "a cluster": (lambda: scoped.cluster_kernels(3, (W(1), W(2))), (HALF, OUT, N, N)),
    "left early": (lambda: scoped.early_kernels(3, (W(1), W(2))), (MAP_A, OUT, N, types.boolean)),
    "left early in a cluster": (
        lambda: scoped.early_kernels(3, (W(1), W(2)), 2),
        (HALF, OUT, N, types.boolean),
    ),
    "a persistent loop": (
        lambda: scoped.persistent_kernels(3, (W(1), W(2)), 8),
        (MAP_A, OUT, N, N),
    ),
    "stores": (lambda: scoped.store_kernels(3, (W(1), W(2))), (MAP_A, MAP_A, N)),
}


def code(ptx):
    """Return the instructions, with shared memory that is named alike in every kernel."""
    return [re.sub(r"(numba_tma_\w+?)_[0-9a-f]{8}_", r"\1_", line) for line in instructions(ptx)]


@pytest.mark.parametrize("form", quick(["TMA"], FORMS))
def test_scopes_cost_what_the_calls_cost(form):
    make, signature = FORMS[form]
    with_scopes, with_calls = (compile_ptx(kernel, signature) for kernel in make()[2:])
    ours, theirs = code(with_scopes), code(with_calls)
    if form == "a cluster":  # the same instructions, of which one stands elsewhere
        ours, theirs = (sorted(line.split()[0] for line in lines) for lines in (ours, theirs))
    assert ours == theirs
    assert_in_registers(with_scopes)


def assert_in_registers(ptx):
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert not re.search(r"^\s*call\b", ptx, re.M) and ".local" not in ptx


@pytest.mark.parametrize("which", every(2, [2, 3]))
def test_several_stages_are_held_in_registers(which):
    kernel = scoped.held_kernels(4, (W(1), W(2)))[which]
    assert_in_registers(compile_ptx(kernel, (MAP_A, OUT, N)))


@pytest.mark.parametrize("make", [scoped.device_function_kernel, scoped.two_pipelines_kernel])
def test_scopes_in_device_functions_and_over_two_pipelines(make):
    assert_in_registers(compile_ptx(make(3, (W(1), W(2)))[2], (MAP_A, OUT, N)))


def test_a_producers_scope_elects_a_thread_when_it_is_entered_and_no_more():
    """At its end the elected thread may be alone: it has left by return, or its warp is ahead."""
    kernel = scoped.early_kernels(3, (W(1), W(2)), 2)[2]
    ptx = compile_ptx(kernel, (HALF, OUT, N, types.boolean))
    assert ptx.count("elect.sync") == 1


@pytest.mark.parametrize("shared", [1, 2])
def test_a_wrong_number_of_bytes_shows_the_sum(shared):
    PIPE = tma.TilePipeline(2, a=scoped.A, b=scoped.B, k_group=shared)
    wrong = PIPE.tx_bytes + 4

    @tma.scopes
    def kernel(n):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                with producer.acquire() as tiles:
                    tiles.expect_bytes(wrong)

    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, (N,))
    terms = f"{scoped.A.nbytes} (a) + {scoped.B.nbytes:,} (b)"
    total = f"{shared} x ({terms})" if shared > 1 else terms
    text = re.sub(r"\s+", " ", str(caught.value))
    assert f"expect_bytes({wrong:,}): " in text
    assert f"receives {total} = {PIPE.tx_bytes:,} B, which it expects by itself" in text
