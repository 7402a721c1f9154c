"""Scopes open and close on a GPU as they do in Python."""

import numpy as np
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels.scope_cases import CASES, EVENTS, THREADS, Log, Scope

POISON = 0x5A5A5A5A


@on_gpu
def test_scopes_open_and_close_in_order():
    for name, scoped, explicit, first, second in CASES:
        for kernel in (scoped, explicit):
            rows = cuda.to_device(np.full((THREADS, EVENTS), POISON, np.int64))
            cuda.jit(kernel)[1, THREADS](rows, 3)
            for row, events in zip(rows.copy_to_host().tolist(), (first, second)):
                assert row == events + [POISON] * (EVENTS - len(events)), name


@tma.scopes
def cached(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, n) as s:
        log.write(2 * s.number)


@on_gpu
def test_a_cached_kernel_has_scopes():
    for _ in range(2):
        kernel = cuda.jit(cache=True)(cached)  # the second loads what the first saved
        rows = cuda.to_device(np.full((THREADS, EVENTS), POISON, np.int64))
        kernel[1, THREADS](rows, 7)
        for row in rows.copy_to_host().tolist():
            assert row == [7, 14, -7] + [POISON] * (EVENTS - 3)
    assert sum(kernel.stats.cache_hits.values()) == 1
