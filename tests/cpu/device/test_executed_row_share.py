"""A thread's share of a row in compiled kernels, executed, against NumPy."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda, types

from numba_tma.backend.compiler import VectorType
from numba_tma.backend.lowering import row_share as lowering
from numba_tma.device.row_share import (
    first_largest,
    from_float,
    keep,
    load_cached,
    load_global,
    load_shared,
    num_present,
    store_global,
    store_sums,
    to_float,
    weighted,
    write_floats,
)
from numba_tma.device.share import Share
from numba_tma.device.vectors import largest, total
from numba_tma.host.dtypes import as_dtype
from numba_tma.ptx import CachePolicy
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import ARRAYS, Machine

STEP, LIMIT, THREADS = 5, 13, (0, 3, 4)
SHARES = [
    Share(as_dtype("f32"), 16, 3, STEP, False),
    Share(as_dtype("bf16"), 16, 2, STEP, True, "no_allocate"),
    Share(as_dtype("f16"), 8, 3, STEP, False, "evict_first"),
    Share(as_dtype("bf16"), 4, 2, STEP, False, "evict_last"),
    Share(as_dtype("f16"), 2, 3, STEP, False),
    Share(as_dtype("f32"), 8, 1, STEP, True),
    Share(as_dtype("f32"), 4, 3, STEP, False, "no_allocate"),
]
SOURCE, CACHED, TO, SUMS, WEIGHTS, CACHED_TO, NEAR_TO, KEPT, WEIGHED = (
    ARRAYS + n * 4096 for n in range(1, 10)
)
SHARED = 0x2000


def kernel_of(share):
    weight = Share(as_dtype("f32"), 4, share.count, 1, True)
    every, one = replace(share, whole=True), replace(share, whole=True, count=1)

    def kernel(out, first, limit):
        packed = load_global(share, np.int64(SOURCE), first, limit)
        values = to_float(share, packed)
        kept = keep(share, values, first, limit, np.float32(-7))
        store_global(share, np.int64(TO), first, limit, from_float(share, values))
        store_sums(share, np.int64(SUMS), first, limit, values)
        best = first_largest(share, values, first, limit)
        out[0], out[1], out[2] = best[0], best[1], num_present(share, first, limit)
        out[4], out[5] = total(values), largest(values)
        cached = to_float(share, load_cached(share, np.int64(CACHED), first, limit))
        near = to_float(share, load_shared(share, np.uint32(SHARED), first, limit))
        weights = to_float(weight, load_global(weight, np.int64(WEIGHTS), 0, share.count))
        store_sums(every, np.int64(CACHED_TO), first, limit, cached)
        store_sums(every, np.int64(NEAR_TO), first, limit, near)
        store_sums(every, np.int64(KEPT), first, limit, kept)
        store_sums(one, np.int64(WEIGHED), 0, limit, weighted(share, values, weights))

    kinds = types.float32[::1], types.int32, types.int32
    return compile_ptx(cuda.jit(kernel), kinds, cc=(9, 0, "a"))


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_a_share_of_a_row(share):
    ptx, rng = kernel_of(share), np.random.default_rng(3)
    accesses = STEP * share.count if share.whole else LIMIT
    rows = rng.integers(-9, 9, (3, accesses, share.lanes)).astype(share.dtype.numpy)
    weights = rng.integers(-3, 4, share.count).astype(np.float32)
    for first in THREADS:
        out = np.zeros(6, np.float32)
        machine = Machine(ptx, out, first, accesses)
        machine.poke(SOURCE, rows[0].tobytes() + b"\x11" * 512)
        machine.poke(CACHED, rows[1].tobytes() + b"\x11" * 512)
        machine.poke_shared(SHARED, rows[2].tobytes() + b"\x11" * 512)
        machine.poke(WEIGHTS, weights.tobytes())
        machine.run()

        own = [i for i in share.indices(first) if i < accesses]
        held = np.zeros((3, share.count, share.lanes), np.float32)  # 0 past the limit
        held[:, : len(own)] = rows[:, own].astype(np.float32)
        elements = held[0, : len(own)].reshape(-1)
        access, lane = divmod(int(elements.argmax()), share.lanes)
        column = own[access] * share.lanes + lane
        expected = [elements.max(), column, len(elements), 0, held[0].sum(), held[0].max()]
        assert out.tolist() == expected
        np.testing.assert_array_equal(floats(machine, CACHED_TO, share, first), held[1])
        np.testing.assert_array_equal(floats(machine, NEAR_TO, share, first), held[2])
        kept = held[0].copy()
        kept[len(own) :] = -7
        np.testing.assert_array_equal(floats(machine, KEPT, share, first), kept)
        weighed = np.frombuffer(machine.peek(WEIGHED, 4 * share.lanes), np.float32)
        np.testing.assert_array_equal(weighed, weights @ held[0])
        stored, sums = np.zeros_like(rows[0]), np.zeros(rows[0].shape, np.float32)
        stored[own], sums[own] = rows[0, own], rows[0, own].astype(np.float32)
        assert machine.peek(TO, stored.nbytes + 64) == stored.tobytes() + bytes(64)
        assert machine.peek(SUMS, sums.nbytes + 64) == sums.tobytes() + bytes(64)
        check_accesses(machine.accesses, share, own)


def floats(machine, address, share, first):
    """Return what `store_sums` stored of a whole share."""
    each = 4 * share.lanes
    found = (machine.peek(address + each * i, each) for i in share.indices(first))
    return [np.frombuffer(raw, np.float32) for raw in found]


def check_accesses(accesses, share, own):
    """Each access is one instruction of the share's width, and has its cache policy."""
    wide = [each for each in accesses if each[2] == share.width]
    for start, cache in ((SOURCE, share.cache), (CACHED, "allocate")):
        names = {at: name for name, at, _ in wide if start <= at < start + 4096}
        assert sorted(names) == [start + i * share.width for i in own]
        for name in names.values():
            assert ("L1::no_allocate" in name) == (cache == "no_allocate")
            assert ("cache_hint" in name) == cache.startswith("evict")
    stores = [at for name, at, _ in accesses if TO <= at < TO + 4096]
    assert stores == [TO + i * share.width for i in own]


@pytest.mark.parametrize(
    "share",
    [
        Share(as_dtype("f32"), 16, 1, 1, True),
        Share(as_dtype("bf16"), 16, 1, 1, True),
        Share(as_dtype("f16"), 4, 1, 1, True),
        Share(as_dtype("f32"), 4, 1, 1, True),
        Share(as_dtype("bf16"), 16, 1, 1, False, aligned=False),
        Share(as_dtype("f32"), 16, 1, 1, False, aligned=False),
    ],
    ids=str,
)
def test_floats_are_written_where_the_row_has_them(share):
    """By four where accesses are aligned and have four; else each by itself."""

    def kernel(first, limit):
        values = to_float(share, load_global(share, np.int64(SOURCE), 0, share.lanes))
        write_floats(share, np.uint32(SHARED), first, limit, values)

    ptx = compile_ptx(cuda.jit(kernel), (types.int32, types.int32), cc=(9, 0, "a"))
    values = np.arange(1, 1 + share.lanes).astype(share.dtype.numpy)
    lanes, each = share.lanes, 4 if share.aligned and share.lanes >= 4 else 1
    firsts = (0, lanes, 3 * lanes) if share.aligned else (-lanes, -1, 0, 3, 2 * lanes - 3)
    for first, limit in itertools.product(firsts, (lanes, 2 * lanes, 4 * lanes)):
        machine = Machine(ptx, first, limit)
        machine.poke(SOURCE, values.tobytes())
        machine.run()
        written = {first + i: float(v) for i, v in enumerate(values) if 0 <= first + i < limit}
        stores = [(at, n) for name, at, n in machine.accesses if name.startswith("st.shared")]
        assert stores == [(SHARED + 4 * n, 4 * each) for n in [*written][::each]]
        for number, value in written.items():
            assert np.frombuffer(machine.peek_shared(SHARED + 4 * number, 4), np.float32) == value


@pytest.mark.parametrize("cache", ["evict_first", "evict_last"])
def test_a_hint_is_the_policy_of_its_name(cache):
    share = Share(as_dtype("f32"), 16, 1, 1, True, cache)
    assert share.load_operands == {"cache_hint": int(CachePolicy[cache.upper()])}
    assert f"{share.load_operands['cache_hint']:#x}" in hexadecimal(kernel_of(share))


def hexadecimal(ptx):
    """Return the numbers of a kernel, as hexadecimal ones."""
    words = (word.strip(",;") for word in ptx.split())
    return [f"{int(word) % (1 << 64):#x}" for word in words if word.lstrip("-").isdigit()]


@pytest.mark.parametrize(
    ("elements", "largest", "column"),
    [
        ([1, 5, 5, 2], 5, 1),  # of equal elements the first
        ([np.nan, 3, np.nan, 9], np.nan, 0),  # NaN is larger than any number, and the first counts
        ([3, np.inf, np.nan, 9], np.nan, 2),
        ([-np.inf, -np.inf, -np.inf, -np.inf], -np.inf, 0),
        ([], -np.inf, 1 << 24),
        ([-3], -3, 0),
    ],
)
def test_the_largest_element_is_the_first_of_equals_or_nan(elements, largest, column):
    share = Share(as_dtype("f32"), 4, 4, 1, False)

    def kernel(out, limit):
        values = to_float(share, load_global(share, np.int64(SOURCE), 0, limit))
        best = first_largest(share, values, 0, limit)
        out[0], out[1], out[2], out[3] = best[0], best[1], best[2], best[3]

    ptx = compile_ptx(cuda.jit(kernel), (types.float32[::1], types.int32), cc=(9, 0, "a"))
    out = np.ones(4, np.float32)
    machine = Machine(ptx, out, len(elements))
    machine.poke(SOURCE, np.float32(elements).tobytes())
    machine.run()
    np.testing.assert_array_equal(out, np.float32([largest, column, 0, 0]))


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_vectors_have_as_many_lanes_as_those_of_the_simulator(share, monkeypatch):
    monkeypatch.setattr(lowering, "_share", lambda static, function: share)
    floats, words = (VectorType(types.float32, share.values), VectorType(types.uint32, share.words))
    index, values = types.int32, np.zeros(share.values, np.float32)
    weights = VectorType(types.float32, share.count)
    results = {
        lowering._type_to_float(None, words): values,
        lowering._type_keep(None, floats, index, index, types.float32): values,
        lowering._type_weighted(None, floats, weights): np.zeros(share.lanes),
        lowering._type_first_largest(None, floats, index, index): first_largest(
            share, values, 0, LIMIT
        ),
    }
    for sig, simulated in results.items():
        assert sig.return_type == VectorType(types.float32, len(simulated))
    assert lowering._type_from_float(None, floats).return_type == words
    assert share.words == max(1, share.lanes * share.dtype.itemsize // 4) * share.count
    assert lowering._type_num_present(None, index, index).return_type == types.float32
