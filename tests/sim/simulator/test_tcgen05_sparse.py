"""Sparse products against NumPy: A with half of its elements, and metadata in tensor memory."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.simulator.tcgen05_operands import BITS as STORED_BITS
from numba_tma.simulator.tcgen05_sparse import check_sparse, metadata_lanes, read_codes
from numba_tma.simulator.tensor_memory_instructions import _cells
from tests.kernels.tensor_products import (
    BITS,
    as_type,
    chunked,
    descriptor,
    idesc,
    integers,
    row_bytes,
    run,
)
from tests.tiers import every

#: K of a sparse product.
K = {"f16": 32, "bf16": 32, "tf32": 16}
KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "i8": "i8", "u8": "i8"}
#: By .ws, and whether A is in tensor memory.
ROWS = {
    (False, False): ptx.tcgen05_mma_sp,
    (False, True): ptx.tcgen05_mma_sp_tmem,
    (True, False): ptx.tcgen05_mma_ws_sp,
    (True, True): ptx.tcgen05_mma_ws_sp_tmem,
}
SUMS = {"i8": "i32", "u8": "i32"}


def sparse_rows(rng, name, rows):
    """Return rows with zeros, what they store, and the places: (rows, groups, places)."""
    k = K.get(name, 64)
    size = 2 if name == "tf32" else 4
    groups, kept = k // size, size // 2
    order = np.argsort(rng.random((rows, groups, size)), axis=-1)
    places = np.sort(order[..., :kept], axis=-1)
    stored = integers(rng, name, (rows, groups, kept))
    dense = np.zeros((rows, groups, size))
    np.put_along_axis(dense, places, stored, axis=-1)
    return dense.reshape(rows, k), stored.reshape(rows, -1), places


def metadata_image(name, places, m, copies, selector):
    """Return the bytes of 128 lanes x 4 columns, as a copy of 128x128b reads them.

    The places are those of CUTLASS, element by element: an element of 8 bits or fewer has one bit
    in its row's lane. Of 16 bits (and tf32, two bits each) 8 rows share a lane's halves.
    """
    words = np.zeros((128, 4), np.uint32)
    wide = BITS.get(name, 8) >= 16
    for (row, group), _ in np.ndenumerate(places[..., 0]):
        found = places[row, group]
        code = (0x4, 0xE)[found[0]] if name == "tf32" else int(found[0] | found[1] << 2)
        bit = 4 * group
        lane, column = row, bit // 32
        if wide:
            lane, column = row % 8 + 16 * (row // 16) + 8 * (bit // 16), selector
            bit = 16 * (row // 8 % 2) + bit % 16
        for copy in range(copies):
            words[lane + copy * m, column] |= np.uint32(code << bit % 32)
    return words.view(np.uint8).ravel()


def images(rng, name, m, n, copies, selector=0):
    """Return the dense A, B, and the images of stored A, of B's two halves of K, and metadata."""
    dense, stored, places = sparse_rows(rng, name, m)
    right = integers(rng, name, (n, dense.shape[1]))
    half = right.shape[1] // 2
    parts = [chunked(row_bytes(part, name)) for part in (right[:, :half], right[:, half:])]
    left = row_bytes(stored, name)
    return (
        dense,
        right,
        left,
        np.concatenate(parts),
        metadata_image(name, places, m, copies, selector),
    )


def sparse_product(name, m, n, ws=False, tmem=False, selector=0, old=False, seed=0):
    """Return what one block's product leaves, as columns of D, and what NumPy has."""
    copies, kind = 128 // m, KINDS.get(name, "f8f6f4")
    rng, d = np.random.default_rng(seed), SUMS.get(name, "f32")
    dense, right, left, b_image, metadata = images(rng, name, m, n, copies, selector)
    said = idesc(kind, m, n, name, name, d, sparse=True, selector=selector)
    in_lanes = np.tile(left, (copies, 1))

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base + 256, descriptor(at[2], 128), "128x128b", 1)
            if tmem:
                ptx.tcgen05_cp(base + 264, descriptor(at[3], 128), "128x256b", 1)
            a = base + 264 if tmem else descriptor(at[0], m)
            for step in range(1 + old):
                row = ROWS[ws, tmem]
                last = ("b0", "fill") if ws else (1,)
                row(base, a, descriptor(at[1], n), base + 256, said, step == 1, kind, *last)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    given = [chunked(left), b_image, metadata, chunked(in_lanes)]
    (memory,) = run(body, given)
    width = n // copies
    cells = as_type(memory[:, :width], d)
    found = np.concatenate([cells[i * m : (i + 1) * m] for i in range(copies)], axis=1)
    return found, (1 + old) * dense @ right.T


@pytest.mark.parametrize(
    "name", ["f16", "bf16", "tf32", "i8", "u8", "e4m3", "e5m2", "e2m1", "e3m2"]
)
def test_kinds(name):
    np.testing.assert_array_equal(*sparse_product(name, 128, 64))


@pytest.mark.parametrize("name", ["f16", "tf32", "e4m3"])
@pytest.mark.parametrize("m", [128, 64, 32])
def test_weight_stationary(name, m):
    np.testing.assert_array_equal(*sparse_product(name, m, 64, ws=True, seed=m))


@pytest.mark.parametrize("name", ["bf16", "e4m3"])
@pytest.mark.parametrize(("m", "ws"), every(2, [(128, False), (64, True), (32, True)]))
def test_a_in_tensor_memory(name, m, ws):
    np.testing.assert_array_equal(*sparse_product(name, m, 64, ws=ws, tmem=True, old=True))


@pytest.mark.parametrize("name", ["f16", "tf32"])
def test_the_selector_picks_the_second_column(name):
    np.testing.assert_array_equal(*sparse_product(name, 128, 32, selector=1))


def test_a_pair():
    rng, n = np.random.default_rng(4), 32
    blocks = [images(rng, "f16", 128, n // 2, 1) for _ in range(2)]
    dense = np.concatenate([block[0] for block in blocks])
    right = np.concatenate([block[1] for block in blocks])
    said = idesc("f16", 256, n, "f16", "f16", sparse=True)

    def body(rank, base, at, barrier):
        if rank == 0 and ptx.elect_sync():
            ptx.tcgen05_cp(base + 256, descriptor(at[2], 128), "128x128b", 2)
            ptx.tcgen05_mma_sp(
                base, descriptor(at[0], 128), descriptor(at[1], n // 2), base + 256, said, False,
                "f16", 2,
            )  # fmt: skip
            ptx.tcgen05_commit(barrier, 2, 3)
        barrier.wait(0)

    given = [np.stack(parts) for parts in zip(*((chunked(b[2]), b[3], b[4]) for b in blocks))]
    found = np.concatenate([as_type(part[:, :n], "f32") for part in run(body, given, cluster=2)])
    np.testing.assert_array_equal(found, dense @ right.T)


# ---------------------------------------------------------------------------- scale factors


def scale_image(powers):
    """Return an atom of ue8m0 factors of 128 rows, those of a row in one word: (rows, factors)."""
    codes = np.zeros((128, 4), np.uint8)
    codes[: len(powers), : powers.shape[1]] = powers + 127
    row = np.arange(128)
    image = np.zeros(512, np.uint8)
    for k in range(4):
        image[16 * (row % 32) + 4 * (row // 32) + k] = codes[:, k]
    return image


@pytest.mark.parametrize(
    ("kind", "name", "k", "block"),
    [
        ("mxf8f6f4", "e4m3", 64, "mxf8f6f4.block_scale.block32"),
        ("mxf4", "e2m1", 128, "mxf4.block_scale.block32"),
        ("mxf4nvf4", "e2m1", 128, "mxf4nvf4.block_scale.block16"),
    ],
)
@pytest.mark.parametrize("in_memory", [False, True])
def test_sparse_products_with_scale_factors(kind, name, k, block, in_memory):
    """A factor is for twice as many elements as in a dense product, in A and in B."""
    rng, unit, n = np.random.default_rng(11), 2 if k == 128 else 1, 32
    places = np.sort(rng.random((128, 16, 4)).argsort(axis=-1)[..., :2], axis=-1)
    stored = integers(rng, name, (128, 16, 2, unit))
    dense = np.zeros((128, 16, 4, unit))
    np.put_along_axis(dense, np.repeat(places[..., None], unit, -1), stored, axis=2)
    dense, right = dense.reshape(128, k), integers(rng, name, (n, k))
    words = np.zeros((128, 4), np.uint32)
    for (row, group), _ in np.ndenumerate(places[..., 0]):
        code = int(places[row, group, 0] | places[row, group, 1] << 2)
        words[row, group // 8] |= np.uint32(code << 4 * (group % 8))
    factors = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}[kind]
    powers = [rng.integers(-2, 3, (rows, factors)) for rows in (128, n)]
    halves = [chunked(row_bytes(half, name, kind)) for half in np.split(right, 2, axis=1)]
    said = idesc(kind, 128, n, name, name, sparse=True, scale_type="ue8m0")

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base + 256, descriptor(at[2], 128), "128x128b", 1)
            for i in range(2):
                ptx.tcgen05_cp(base + 264 + 4 * i, descriptor(at[3 + i], 32), "32x128b.warpx4", 1)
            right_at, scales = descriptor(at[1], n), (base + 264, base + 268)
            if in_memory:
                ptx.tcgen05_cp(base + 280, descriptor(at[0], 128), "128x256b", 1)
                ptx.tcgen05_mma_block_scaled_sp_tmem(
                    base, base + 280, right_at, base + 256, said, *scales, False, block, 1
                )
            else:
                left_at = descriptor(at[0], 128)
                ptx.tcgen05_mma_block_scaled_sp(
                    base, left_at, right_at, base + 256, said, *scales, False, block, 1
                )
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    left = chunked(row_bytes(stored.reshape(128, -1), name, kind))
    given = [left, np.concatenate(halves), words.view(np.uint8).ravel(), *map(scale_image, powers)]
    (memory,) = run(body, given)
    wide = [x * (2.0**p).repeat(k // factors, 1) for x, p in zip((dense, right), powers)]
    np.testing.assert_array_equal(as_type(memory[:, :n], "f32"), wide[0] @ wide[1].T)


# --------------------------------------------------------------------------------- mistakes


def issue(form=None, metadata=256, words=0x44444444, copied=True, **fields):
    """Issue one sparse product of f16, whose metadata are `words`."""
    said = idesc("f16", **({"m": 128, "n": 64, "a": "f16", "b": "f16", "sparse": True} | fields))
    options = {"a_in_tmem": False, "cta_group": 1, "ws": False} | (form or {})
    image = np.full((128, 4), words, np.uint32).view(np.uint8).ravel()

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            if copied:
                ptx.tcgen05_cp(base + 256, descriptor(at[1], 128), "128x128b", 1)
            place = descriptor(at[0], 128)
            sim.tcgen05_mma(
                "f16", base, place, place, said, False, sparse_metadata=base + metadata, **options
            )
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    run(body, [np.zeros(128 * 64, np.uint8), image])


def test_the_call_of_the_mistakes_is_right():
    issue()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"copied": False}, sim.UninitializedRead, "reads the metadata of a sparse A there, befo"),
        ({"words": 0x44444400}, sim.BadOperand, "the code 0x0 for row 0, elements 0 on; PTX def"),
        ({"selector": 2}, sim.BadOperand, "the sparsity selector is 2; of f16 it is 0 or 1"),
        ({"metadata": 257}, sim.TensorMemoryMisuse, "column 257; they begin at lane 0 and an even"),
        ({"sparse": False}, sim.BadOperand, "says a dense A, and the instruction is for the other"),
        ({"m": 64}, NotImplementedError, "sparse products in layout F are not simulated"),
    ],
)  # fmt: skip
def test_mistakes(given, error, text):
    with pytest.raises(error, match=text):
        issue(**given)


@pytest.mark.parametrize("layout", "ABCDEFG")
def test_where_metadata_may_lie(layout):
    if layout not in "ADEG":
        with pytest.raises(NotImplementedError, match=f"^it: .* in layout {layout} are not simul"):
            check_sparse("it", layout, "f16", 0, 0)
        return
    for name, bits in STORED_BITS.items():
        for selector in range(3):
            if selector < (2 if bits > 8 else 1):
                check_sparse("it", layout, name, 6, selector)
            else:
                with pytest.raises(sim.BadOperand, match=f"selector is {selector}; of {name} it"):
                    check_sparse("it", layout, name, 6, selector)
    for lane, column in ((0, 1), (1, 0), (32, 2)):
        where = f"begin at lane {lane} and column {column}; they"
        with pytest.raises(sim.TensorMemoryMisuse, match=where):
            check_sparse("it", layout, "f16", lane << 16 | column, 0)


@pytest.mark.parametrize(
    ("kind", "name", "word", "first"),
    [("f16", "f16", 0x44444044, 8), ("tf32", "tf32", 0x44444044, 4), ("i8", "u8", 0x44404444, 16),
     ("mxf4", "e2m1", 0x44404444, 32)],
)  # fmt: skip
def test_a_wrong_code_is_named_with_its_elements(kind, name, word, first):
    """A code is for 4 elements, for 2 of tf32, and for 8 packed ones of 4 bits."""
    scaled = {"scale_type": "ue8m0"} if kind == "mxf4" else {"d": SUMS.get(name, "f32")}
    said = idesc(kind, 128, 64, name, name, sparse=True, **scaled)
    image = np.full((128, 4), word, np.uint32).view(np.uint8).ravel()

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base + 256, descriptor(at[1], 128), "128x128b", 1)
            place, metadata = descriptor(at[0], 128), base + 256
            if kind == "mxf4":
                for i in range(2):
                    ptx.tcgen05_cp(base + 264 + 4 * i, descriptor(at[1], 32), "32x128b.warpx4", 1)
                block = "mxf4.block_scale.block32"
                ptx.tcgen05_mma_block_scaled_sp(
                    base, place, place, metadata, said, base + 264, base + 268, False, block, 1
                )
            else:
                ptx.tcgen05_mma_sp(base, place, place, metadata, said, False, kind, 1)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    with pytest.raises(sim.BadOperand, match=f"the code 0x0 for row 0, elements {first} on"):
        run(body, [np.zeros(128 * 64, np.uint8), image])


def test_copies_of_the_metadata_that_differ():
    said = idesc("f16", 64, 64, "f16", "f16", sparse=True)
    words = np.full((128, 4), 0x44444444, np.uint32)
    words[64:] = 0x88888888

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base + 256, descriptor(at[1], 128), "128x128b", 1)
            place, at_metadata = descriptor(at[0], 128), base + 256
            ptx.tcgen05_mma_ws_sp(base, place, place, at_metadata, said, False, "f16", "b0", "fill")
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    with pytest.raises(sim.TensorMemoryMisuse, match="differ between their copies in lanes 0, 64"):
        run(body, [np.zeros(128 * 64, np.uint8), words.view(np.uint8).ravel()])


def test_b_of_a_sparse_product_takes_64_bytes_of_a_row():
    swizzled_32 = 6 << 61 | 1 << 46 | 64 | 16 << 32
    with pytest.raises(sim.BadOperand, match="rows of 32 B, and a sparse product reads 64 B"):
        sim.tcgen05_operands.in_shared("product, B", swizzled_32, 64, "f16", "K", steps=2)


@pytest.mark.parametrize(("group", "legal"), [(2, (4, 14)), (4, (4, 6, 8, 9, 12, 13, 14))])
@pytest.mark.parametrize("layout", ["D", "E"])
def test_a_code_is_one_that_ptx_defines(group, legal, layout):
    lanes = metadata_lanes(layout)
    cells = SimpleNamespace(lane=np.array([[0], [1]]), column=np.array([[2], [2]]), shift=8)
    for code in range(16):
        data = np.zeros((128, 8), np.uint32)
        data[[lane + row for lane in lanes for row in (0, 1)], 7] = code << 8
        if code in legal:
            found = read_codes("it", data, 5, cells, layout, group)
            assert found.tolist() == [[code], [code]]
        else:
            with pytest.raises(sim.BadOperand, match=f"it: the metadata at 0x5 .* {code:#x} for"):
                read_codes("it", data, 5, cells, layout, group)


def test_the_copies_of_metadata_are_equal():
    cells = SimpleNamespace(lane=np.array([[0]]), column=np.array([[0]]), shift=0)
    data = np.full((128, 2), 4, np.uint32)
    data[64, 0] = 14
    assert read_codes("it", data, 0, cells, "D", 4).tolist() == [[4]]
    with pytest.raises(sim.TensorMemoryMisuse, match="differ between their copies in lanes 0, 64"):
        read_codes("it", data, 0, cells, "E", 4)


@pytest.mark.parametrize(
    ("shape", "thread", "offset", "cells"),
    [
        ("32x32b", 5, 0, [(5, 0), (5, 1), (5, 2), (5, 3)]),
        ("16x32bx2", 5, 32, [(5, 0), (5, 1), (5, 2), (5, 3)]),
        ("16x32bx2", 21, 32, [(21, 32), (21, 33), (21, 34), (21, 35)]),
        ("16x64b", 6, 0, [(1, 2), (1, 3), (1, 6), (1, 7)]),
    ],
)
def test_packed_registers_have_two_columns(shape, thread, offset, cells):
    """A register of 16-bit elements is two columns: register r of 32x32b has columns 2r, 2r + 1."""
    taddr = 64 << 16 | 100
    lanes, columns = _cells(SimpleNamespace(lane=thread), shape, taddr, 2, True, offset)
    found = list(zip(lanes.ravel().tolist(), columns.ravel().tolist()))
    assert found == [(64 + lane, 100 + column) for lane, column in cells]
    lanes, columns = _cells(SimpleNamespace(lane=thread), shape, taddr, 1, False, offset)
    first = cells[0] if shape != "16x64b" else (1, 1)
    assert (lanes.tolist(), columns.tolist()) == ([64 + first[0]], [100 + first[1]])
