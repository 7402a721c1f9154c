"""The log of races mode, written by the simulator: what a GPU would write for the same steps.

The rules of `host.race_replay` are tested by it without a GPU. The simulator's own checks of
accesses are replaced by the log, so that a broken kernel runs on as it would on a GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from unittest import mock

import numpy as np

from numba_tma import simulator
from numba_tma.host.race_judgement import races_of
from numba_tma.host.races import EVENT, Kind
from numba_tma.pipeline import circular, kv, start
from numba_tma.simulator import hazards
from numba_tma.simulator.cluster import resolve
from numba_tma.simulator.thread import SimulatedThread

ALL = 0xFFFFFFFF  #: the lanes of a warp


class Recorder:
    """The events of a launch, in the order of the simulated threads' steps."""

    def __init__(self):
        self.events = []
        self.labels = []
        self._lanes = Counter()
        self._sources = set()

    def note(self, kind, address=0, size=0, other=0, at=None, mask=0, thread=None):
        thread = thread or simulator.current()
        cta = thread.cta
        blocks, warps = len(cta.cluster), -(-len(cta.threads) // 32)
        block = thread.block[0]
        where = cta.rank if at is None else at
        slot = cta.rank
        row = (int(kind), thread.warp, blocks, where, slot, address, size, other & 0xFFFFFFFF, 0)
        self.events.append((*row, block, warps, mask))

    def races(self, ended=True):
        events = np.array(self.events, EVENT)
        return races_of(events, (1 << 20, 1, 1), [], self._label, ended=ended)

    def _label(self, number, base, _):
        pipeline = self.labels[number]
        return [], int(getattr(pipeline, "storage_nbytes", 0))

    # ---------------------------------------------------------------- barriers

    def arrive(self, address, count, tx_bytes, drop=0, kind=Kind.ARRIVE):
        cta, offset = resolve(int(address))
        self.note(kind, offset, int(count or 1), int(tx_bytes), cta.rank, int(drop))

    def last_of_warp(self, key):
        thread = simulator.current()
        key = (*key, thread.cta.rank, thread.block, thread.warp)
        self._lanes[key] += 1
        return self._lanes[key] % min(32, len(thread.cta.threads)) == 0

    def come(self, number, threads):
        if self.last_of_warp(("bar", number)):
            self.note(Kind.MEET, number, threads, ALL)


def recorded(stack, recorder):
    """Replace the simulator's functions by ones that write to the recorder, in a context."""
    note = recorder.note

    def put(name, before=None, after=None):
        original = getattr(simulator, name)

        def function(*args, **kws):
            if before:
                before(*args, **kws)
            result = original(*args, **kws)
            if after:
                after(result, *args, **kws)
            return result

        stack.enter_context(mock.patch.object(simulator, name, function))

    def located(kind, address, size=0, other=0):
        cta, offset = resolve(int(address))
        note(kind, offset, int(size), int(other), cta.rank)

    put("mbarrier_init", lambda a, n: located(Kind.INIT, a, n))
    put("mbarrier_inval", lambda a: located(Kind.INVAL, a))
    put("mbarrier_arrive", lambda a, n=None, *_: recorder.arrive(a, n, 0))
    put("mbarrier_arrive_no_complete", lambda a, n: recorder.arrive(a, n, 0))
    put("mbarrier_arrive_expect_tx", lambda a, b, *_: recorder.arrive(a, 1, b))
    put("mbarrier_arrive_drop", lambda a, n=None, *_: recorder.arrive(a, n, 0, 1))
    put("mbarrier_arrive_remote", lambda a, n=None, *_: recorder.arrive(a, n, 0))
    put("mbarrier_arrive_expect_tx_remote", lambda a, b, *_: recorder.arrive(a, 1, b))
    put("mbarrier_expect_tx", lambda a, b, *_: located(Kind.EXPECT, a, 0, b))
    put("mbarrier_expect_tx_remote", lambda a, b, *_: located(Kind.EXPECT, a, 0, b))
    put("mbarrier_complete_tx", lambda a, b, *_: located(Kind.COMPLETE, a, 0, b))
    put("mbarrier_complete_tx_remote", lambda a, b, *_: located(Kind.COMPLETE, a, 0, b))
    put(
        "cp_async_mbarrier_arrive_noinc",
        lambda a, *_: recorder.arrive(a, 1, 0, kind=Kind.ARRIVE_COPIED),
    )
    put("cp_async_commit_group", lambda: note(Kind.COPY_COMMIT))
    put("cp_async_wait_group", after=lambda _, n: note(Kind.COPY_DRAINED, 0, int(n)))
    put("cp_async_wait_all", after=lambda _: note(Kind.COPY_DRAINED, 0, 0, 1))
    for name in ("mbarrier_try_wait_parity", "mbarrier_test_wait_parity"):
        put(name, after=lambda done, a, p, *_, **k: done and located(Kind.WAITED, a, p))
    for name in ("mbarrier_try_wait", "mbarrier_test_wait"):
        put(name, after=lambda done, a, *_, **k: done and located(Kind.WAITED_OWN, a))
    for module, name in (
        (start, "label_stages"), (kv, "label_ring"), (circular, "label_buffer"),
    ):  # fmt: skip
        label(stack, recorder, module, name)
    meet = lambda number, threads: recorder.come(number, threads)  # noqa: E731
    put("barrier_sync", meet, lambda _, number, threads: note(Kind.MET, number))
    put("barrier_arrive", meet)
    whole = SimulatedThread.syncthreads

    def syncthreads(self):
        recorder.come(0, 0)
        whole(self)
        note(Kind.MET, 0)

    stack.enter_context(mock.patch.object(SimulatedThread, "syncthreads", syncthreads))
    put(
        "barrier_cluster_arrive",
        lambda *_: recorder.last_of_warp(("cluster",)) and note(Kind.CLUSTER_ARRIVE, other=ALL),
    )
    put("barrier_cluster_wait", after=lambda *_: note(Kind.CLUSTER_WAITED))

    def issues():
        return id(simulator.current()) in recorder._sources

    put("cp_async_bulk_commit_group", lambda: issues() and note(Kind.COMMIT))
    for name in ("cp_async_bulk_wait_group", "cp_async_bulk_wait_group_read"):
        put(name, after=lambda _, n: issues() and note(Kind.DRAINED, 0, int(n)))
    put("wgmma_commit_group", lambda: _first() and note(Kind.PRODUCT_COMMIT))
    put(
        "wgmma_wait_group",
        after=lambda _, n: _first() and note(Kind.PRODUCT_DRAINED, 0, int(n)),
    )

    def rule(name, function):
        stack.enter_context(mock.patch.object(hazards.Hazards, name, function))

    def load(self, thread, address, nbytes, barrier):
        into = next(c for c in thread.cta.cluster if c.hazards is self)
        single = into is thread.cta
        mask = 0 if single else 1 << into.rank
        note(Kind.LOAD, address, nbytes, barrier.address, barrier.cta.rank, mask, thread)

    def store(self, thread, address, nbytes, number, *, every_byte):
        recorder._sources.add(id(thread))
        note(Kind.SOURCE, address, nbytes, thread=thread)

    def multiply(self, product):
        for thread in product.threads:
            if thread.lane == 0:
                for address, nbytes in product.reads:
                    note(Kind.PRODUCT, address, nbytes, thread=thread)

    def write_pieces(self, thread, addresses, pieces):
        for address, piece in zip(addresses.tolist(), pieces, strict=True):
            note(Kind.WRITE, address, piece.nbytes, thread=thread)

    rule("read", lambda self, t, a, n, **_: note(Kind.READ, a, n, thread=t))
    rule("write", lambda self, t, a, n, image=None, **_: note(Kind.WRITE, a, n, thread=t))
    rule("copy", lambda self, t, a, n, number: note(Kind.COPY, a, n, thread=t))
    rule("write_pieces", write_pieces)
    rule("load", load)
    rule("store", store)
    rule("multiply", multiply)
    rule("fence", lambda self, t: note(Kind.FENCE, thread=t))
    return recorder


def label(stack, recorder, module, name):
    """Log where a pipeline's memory is, where the simulator names it."""
    original = getattr(module, name)

    def function(pipeline, base, first):
        recorder.note(Kind.LABEL, int(base), int(first), len(recorder.labels))
        recorder.labels.append(pipeline)
        original(pipeline, base, first)

    for other in list(sys.modules.values()):
        if getattr(other, name, None) is original:
            stack.enter_context(mock.patch.object(other, name, function))


def _first():
    return simulator.current().lane == 0


def record(run):
    """Run a simulated launch; return its recorder and what it raised."""
    recorder = Recorder()
    with ExitStack() as stack:
        recorded(stack, recorder)
        try:
            run()
        except simulator.SimulatorError as error:
            return recorder, error
    return recorder, None
