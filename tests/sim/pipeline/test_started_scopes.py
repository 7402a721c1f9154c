"""Every started pipeline is a scope: it ends well, however its block is left."""

import inspect

import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import started_scopes as started
from tests.tiers import seeds

COUNTS = [(0, -1), (1, 0), (7, -1), (7, 3)]
KERNELS = {
    "ring": (started.ring(started.RING), 96),
    "ring without roles": (started.ring(started.NO_ROLES), 64),
    "turns": (started.taking_turns, 96),
    "circular buffer of a role": (started.buffer_of_a_role, 96),
} | {
    f"circular buffer: {name}": (started.buffered(BUFFER, BUFFER.barriers == "each"), 64)
    for name, BUFFER in started.BUFFERS.items()
}


def expected(x, last, whole):
    """Return what a kernel writes that stops after tile `last`, unless it is `whole`."""
    end = (last + 1) * started.ROWS if last >= 0 and not whole else len(x)
    return np.where(np.arange(len(x))[:, None] < end, x, 0)


@seeds(1, 6)
@pytest.mark.parametrize("name", KERNELS)
def test_tiles_are_right_however_the_scopes_are_left(name, seeds):
    kernel, block = KERNELS[name]
    for seed in seeds:
        for n, last in COUNTS:
            sim.seed(seed)
            x, out = started.words(max(n, 1)), np.zeros_like(started.words(max(n, 1)))
            # A producer fills what its consumers release: it stops where they do.
            produced = last + 1 if "ring" in name and last >= 0 else n
            kernel[1, block](tma.tensor_map(x, started.TILE), out, produced, last)
            right = expected(x, last, name == "turns") if n else 0
            np.testing.assert_array_equal(out, right)


@seeds(1, 6)
def test_a_cluster_that_shares_its_tiles(seeds):
    for seed in seeds:
        for n in (0, 1, 7):
            sim.seed(seed)
            x, out = started.words(max(n, 1)), np.zeros_like(started.words(max(n, 1)))
            started.in_cluster[2, 96](tma.tensor_map(x, started.HALF), out, n, -1)
            np.testing.assert_array_equal(out, x if n else 0)


@seeds(1, 6)
def test_a_pair(seeds):
    for seed in seeds:
        for n in (0, 1, 5):
            sim.seed(seed)
            x, out = started.words(2 * max(n, 1)), np.zeros((2, 5), np.int64)
            started.in_pair[2, 96](tma.tensor_map(x, started.TILE), out, n, n - 1)
            np.testing.assert_array_equal(out[0, :n], np.arange(n) % 2 + 1)
            assert not out[1].any() and not out[0, n:].any()


@seeds(1, 6)
def test_keys_and_values(seeds):
    k = np.arange(16 * 7 * 64, dtype=np.uint16).reshape(-1, 64)
    v = (k + 1000).astype(np.uint16)
    for seed in seeds:
        sim.seed(seed)
        out = np.zeros((7, 2))
        maps = [
            tma.tensor_map(a, t, dtype="bf16")
            for a, t in ((k, started.KV.k_tile), (v, started.KV.v_tile))
        ]
        started.keys_and_values[1, 96](*maps, out, 7)
        bits = np.stack([k[::16, 0], v[::16, 0]], 1).astype(np.uint32) << 16
        np.testing.assert_array_equal(out, bits.view(np.float32))


@seeds(1, 6)
def test_stores_beside_a_ring(seeds):
    for seed in seeds:
        for n in (1, 7):
            sim.seed(seed)
            x, y = started.words(n), np.zeros_like(started.words(n))
            maps = [tma.tensor_map(array, started.TILE) for array in (x, y)]
            started.with_stores[1, 96](*maps, n, n - 1)
            np.testing.assert_array_equal(y, x)


def test_tensor_memory_is_freed_by_a_return():
    x = np.arange(3 * 128, dtype=np.float32).reshape(3, 128)
    out = np.zeros_like(x)
    started.columns_of_tensor_memory[1, 128](x, out, 3, 1)
    np.testing.assert_array_equal(out, [x[0], x[1], np.zeros(128)])


def test_every_pipeline_starts_as_a_scope():
    """The handle of each public class with `start` has enters() and close()."""
    found = {}
    for name in dir(tma):
        public = getattr(tma, name)
        if isinstance(public, type) and hasattr(public, "start"):
            result = inspect.signature(public.start, eval_str=False).return_annotation
            handle = getattr(inspect.getmodule(public), result)
            found[name] = hasattr(handle, "enters") and hasattr(handle, "close")
    assert {"TilePipeline", "KVPipeline", "CircularBuffer", "TensorMemory"} <= found.keys()
    # Roles take turns of an ordered sequence: each turn is a scope, and the sequence has no end.
    # Schedulers end with their loops.
    no_scopes = ["LaunchControl", "OrderedSequenceBarrier", "PersistentGrid"]
    assert sorted(name for name, scope in found.items() if not scope) == no_scopes
