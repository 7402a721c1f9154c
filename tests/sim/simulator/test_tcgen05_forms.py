"""Which optional operands, lanes and columns a tcgen05 operation may have."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma import simulator as sim
from numba_tma.host.tensor_memory_layout import LANES, copy_lanes
from numba_tma.simulator import tcgen05_instructions
from numba_tma.simulator.tcgen05_instructions import (
    _blocks,
    _check_forms,
    _check_lane,
    _collector,
    _first_chunks,
)
from numba_tma.simulator.tcgen05_operands import (
    BITS,
    Place,
    decoded_scales,
    decompressed,
    has_gaps,
    in_bytes,
    in_shared,
    unpacked_codes,
)
from numba_tma.simulator.tcgen05_products import MatrixProduct
from tests.kernels.tensor_products import TYPES, codes, descriptor, idesc, integers, row_bytes, run


def refuses(call, *given, kind=sim.BadOperand):
    try:
        call(*given)
    except kind:
        return True
    return False


def test_which_optional_operands_go_together():
    masks = (None, [0] * 4, [0] * 8, [0] * 3)
    kinds, scales_d = ("f16", "tf32", "i8"), (None, 0, 15, 16, -1)
    every = itertools.product(kinds, (0, 4), (False, True), (1, 2), masks, scales_d, (None, 0))
    for kind, scales, ws, group, mask, scale_d, zero_mask in every:
        wrong = (
            ws and (scales > 0 or mask is not None or scale_d is not None or group == 2),
            zero_mask is not None and not ws,
            mask is not None and len(mask) != 4 * group,
            scale_d is not None and not (kind in ("f16", "tf32") and 0 <= scale_d <= 15),
        )
        shape = SimpleNamespace(scales=scales)
        given = f"tcgen05_mma kind::{kind}", shape, ws, group, mask, scale_d, zero_mask
        assert refuses(_check_forms, *given) == any(wrong), given


@pytest.mark.parametrize("layout", "ABCDEFG")
def test_a_matrix_begins_at_a_lane_of_its_layout(layout):
    for lane in range(0, LANES, 8):
        legal = lane == 0 or lane == 16 and layout in "CF"
        given = "it", "A", lane << 16 | 40, layout
        assert refuses(_check_lane, *given, kind=sim.TensorMemoryMisuse) == (not legal), given


@pytest.mark.parametrize(
    ("given", "ws", "found"),
    [
        (None, False, ("a", "discard")), (None, True, ("b0", "discard")),
        ("a::fill", False, ("a", "fill")), ("use", False, ("a", "use")),
        ("b2::lastuse", True, ("b2", "lastuse")), ("fill", True, ("b0", "fill")),
    ],
)  # fmt: skip
def test_a_buffer_and_what_is_done_with_it(given, ws, found):
    assert _collector(given, ws) == found


def test_the_first_16_bytes_of_each_row():
    place = in_shared("it", descriptor(1024, 8), 8, "u8", "K")
    first = _first_chunks(place)
    np.testing.assert_array_equal(first.addresses, place.addresses[:, :16])
    assert first.runs == tuple((1024 + 16 * row, 16) for row in range(8))
    assert isinstance(first, Place) and place.addresses.shape == (8, 32)


@pytest.mark.parametrize(("size", "rank", "group", "ranks"), [
    (1, 0, 1, [0]), (2, 1, 1, [1]), (2, 0, 2, [0, 1]), (2, 1, 2, [0, 1]), (4, 2, 2, [2, 3]),
    (4, 3, 2, [2, 3]), (4, 1, 2, [0, 1]), (1, 0, 2, None), (3, 0, 2, None),
])  # fmt: skip
def test_the_blocks_of_an_operation(size, rank, group, ranks, monkeypatch):
    cluster = [SimpleNamespace(rank=n) for n in range(size)]
    for block in cluster:
        block.cluster = cluster
    thread = SimpleNamespace(cta=cluster[rank])
    monkeypatch.setattr(tcgen05_instructions, "current", lambda: thread)
    if ranks is None:
        assert refuses(_blocks, "it", group)
    else:
        assert [block.rank for block in _blocks("it", group)] == ranks


# ------------------------------------------------------------------------- bits of elements


@pytest.mark.parametrize("name", [name for name, bits in BITS.items() if bits < 8])
def test_narrow_elements_are_unpacked(name):
    """Of 16 bytes the first ones hold 16 elements, the first in the low bits."""
    values, bits = integers(np.random.default_rng(1), name, (6, 32)), BITS[name]
    packed = row_bytes(values, name)
    found = unpacked_codes(packed, bits)
    np.testing.assert_array_equal(found, codes(values, name))
    spread = decompressed(packed, bits)
    np.testing.assert_array_equal(spread, found << (2 if bits == 4 else 0))
    for noise in (0, 0xC0 if bits == 6 else 0xC3):
        np.testing.assert_array_equal(in_bytes(spread | np.uint8(noise), name), values)
    kinds = ("f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4")
    assert [has_gaps(name, kind) for kind in kinds] == [True, True, False, False]


def test_wide_elements_have_no_gaps():
    wide = [name for name, bits in BITS.items() if bits >= 8]
    assert not any(has_gaps(name, "f8f6f4") for name in wide) and set(wide) | {
        "e2m3", "e3m2", "e2m1"} == set(TYPES)  # fmt: skip


def test_scale_factors_are_powers_of_two_or_numbers_without_a_sign():
    given = np.array([0, 126, 127, 128, 254], np.uint8)
    expected = 2.0 ** np.array([-127, -1, 0, 1, 127])
    np.testing.assert_array_equal(decoded_scales(given, "ue8m0"), expected)
    given = np.array([0, 0x38, 0xB8, 0x40, 0x7E, 0xFE], np.uint8)
    np.testing.assert_array_equal(decoded_scales(given, "ue4m3"), [0, 1, 1, 2, 448, 448])


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_mask_has_a_bit_for_each_lane(blocks):
    random = np.random.default_rng(blocks)
    words = tuple(int(n) for n in random.integers(0, 2**32, 4 * blocks))
    given = dict.fromkeys(MatrixProduct.__dataclass_fields__) | {
        "blocks": (None,) * blocks, "lane_mask": words}  # fmt: skip
    expected = [
        [not words[4 * block + lane // 32] >> lane % 32 & 1 for lane in range(LANES)]
        for block in range(blocks)
    ]
    np.testing.assert_array_equal(MatrixProduct(**given).unmasked, expected)
    assert MatrixProduct(**given | {"lane_mask": ()}).unmasked.all()


# ------------------------------------------------------------------------- whole operations


@pytest.mark.parametrize("shape", ["4x256b", "32x128b.warpx4", "128x128b"])
def test_a_copy_is_recorded_where_it_writes(shape):
    found = []

    def body(rank, base, at, barrier):
        memory = sim.thread.current().cta.tensor_memory
        if sim.elect_sync():
            place = base + 64 + ((5 << 16) if shape == "4x256b" else 0)
            sim.tcgen05_cp(shape, place, descriptor(at[0], 128), 1)
            (records,) = memory.matrix._writes.values()
            found.append((records.copy(), memory.written.copy()))
            sim.tcgen05_commit(barrier.address, 1, None)
        barrier.wait(0)

    run(body, [np.zeros(4096, np.uint8)])
    ((records, written),) = found
    lanes = (copy_lanes(shape) + (5 if shape == "4x256b" else 0)).ravel()
    columns = range(64, 64 + (8 if shape == "4x256b" else 4))
    halves = range(min(lanes) // 16, max(lanes) // 16 + 1)
    assert np.flatnonzero(written.any(axis=0)).tolist() == [*columns]
    assert np.flatnonzero(written.any(axis=1)).tolist() == sorted({*lanes.tolist()})
    assert np.flatnonzero(records.any(axis=0)).tolist() == [*columns]
    assert np.flatnonzero(records.any(axis=1)).tolist() == [*halves]


def test_a_shift_takes_eight_columns_that_were_written():
    def body(rank, base, at, barrier):
        if sim.elect_sync():
            sim.tcgen05_cp("128x256b", base + 64, descriptor(at[0], 128), 1)
            sim.tcgen05_shift(base + 64 + (32 << 16), 1)
            for column in (63, 65):
                with pytest.raises(sim.UninitializedRead, match="moves cells never written"):
                    sim.tcgen05_shift(base + column, 1)
            sim.tcgen05_commit(barrier.address, 1, None)
        barrier.wait(0)

    rows = np.arange(128, dtype=np.uint8)[:, None].repeat(32, axis=1)
    (memory,) = run(body, [np.concatenate([rows[:, :16].ravel(), rows[:, 16:].ravel()])])
    shifted = np.arange(128)
    for first in (32, 64, 96):
        shifted[first : first + 31] += 1
    np.testing.assert_array_equal(memory[:, 64:72] & 0xFF, shifted[:, None].repeat(8, axis=1))


def test_a_product_with_a_wrong_descriptor_says_which():
    for bit, text in ((1 << 15, "A in tensor memory is K-major"), (0, None)):
        said = idesc("f16", 128, 16, "f16", "f16") | bit

        def body(rank, base, at, barrier, said=said):
            if sim.elect_sync():
                sim.tcgen05_cp("128x256b", base + 64, descriptor(at[0], 128), 1)
                sim.tcgen05_mma("f16", base, base + 64, descriptor(at[0], 128), said, False,
                                a_in_tmem=True, cta_group=1)  # fmt: skip
                sim.tcgen05_commit(barrier.address, 1, None)
            barrier.wait(0)

        if text is None:
            run(body, [np.zeros(4096, np.uint8)])
            continue
        with pytest.raises(sim.BadOperand, match=text):
            run(body, [np.zeros(4096, np.uint8)])
