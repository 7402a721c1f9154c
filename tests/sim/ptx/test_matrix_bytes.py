"""ldmatrix and stmatrix of bytes: which lane has which byte, in the simulator."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx, simulator


def run(body):
    """Run `body(lane, place)` by a warp, with 1024 bytes of shared memory."""

    def kernel():
        place = simulator.allocate_shared("rows", 1024, 16)
        body(ptx.laneid(), place)

    cuda.jit(kernel)[1, 32]()


def fill(lane, place, rows):
    """Write row i of 16 bytes, by lane i."""
    if lane < len(rows):
        simulator.shared_write(place + 16 * lane, rows[lane])
    ptx.bar_warp_sync()


def registers(places):
    """Return the registers of bytes, the first in the low bits."""
    return np.ascontiguousarray(places, np.uint8).view(np.uint32).ravel()


@pytest.mark.parametrize(
    ("count", "load"), [(1, ptx.ldmatrix_m16n16_x1), (2, ptx.ldmatrix_m16n16_x2)]
)
def test_transposed_matrices(count, load):
    rows = np.random.default_rng(count).integers(0, 256, (16 * count, 16), np.uint8)

    def body(lane, place):
        fill(lane, place, rows)
        found = load(place + 16 * min(lane, 16 * count - 1), "b8")
        q, g = lane % 4, lane // 4
        for matrix in range(count):
            r = 16 * matrix + 4 * q
            first = [rows[r, g], rows[r + 1, g], rows[r, g + 8], rows[r + 1, g + 8]]
            second = [rows[r + 2, g], rows[r + 3, g], rows[r + 2, g + 8], rows[r + 3, g + 8]]
            assert list(found[2 * matrix : 2 * matrix + 2]) == [
                *registers(first), *registers(second)
            ]  # fmt: skip

    run(body)


@pytest.mark.parametrize(("bits", "elements"), [(4, "b8x16.b4x16_p64"), (6, "b8x16.b6x16_p32")])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_widened_elements(bits, elements, count):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (8 * count, 16)).astype(np.uint8)
    rows = np.full((8 * count, 16), 0xEE, np.uint8)  # behind the elements there is anything
    for i in range(8 * count):
        number = sum(int(code) << bits * j for j, code in enumerate(codes[i]))
        rows[i, : 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    load = {1: ptx.ldmatrix_m8n16_x1, 2: ptx.ldmatrix_m8n16_x2, 4: ptx.ldmatrix_m8n16_x4}[count]

    def body(lane, place):
        fill(lane, place, rows)
        found = np.atleast_1d(load(place + 16 * min(lane, 8 * count - 1), elements))
        first = 4 * (lane % 4)
        mine = [codes[8 * m + lane // 4, first : first + 4] for m in range(count)]
        assert list(found) == list(registers(mine))

    run(body)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stored_matrices(count):
    rows = np.random.default_rng(count).integers(0, 256, (8 * count, 16), np.uint8)
    store = {1: ptx.stmatrix_m16n8_x1, 2: ptx.stmatrix_m16n8_x2, 4: ptx.stmatrix_m16n8_x4}[count]

    def body(lane, place):
        q, g = lane % 4, lane // 4
        parts = [
            [rows[r, g], rows[r + 1, g], rows[r, g + 8], rows[r + 1, g + 8]]
            for r in (8 * m + 2 * q for m in range(count))
        ]
        words = tuple(int(word) for word in registers(parts))
        store(place + 16 * min(lane, 8 * count - 1), words[0] if count == 1 else words)
        ptx.bar_warp_sync()
        if lane < 8 * count:
            stored = simulator.shared_read(place + 16 * lane, np.dtype(np.uint8), 16)
            np.testing.assert_array_equal(stored, rows[lane])

    run(body)


WIDE = "b8x16.b4x16_p64"
#: Instructions with the lanes that give rows.
BY_LANES = [
    *(((lambda at, call=call: call(at)), 8 * count, f"ldmatrix x{count}") for call, count in
      ((ptx.ldmatrix_x1, 1), (ptx.ldmatrix_x2, 2), (ptx.ldmatrix_x4, 4))),
    *(((lambda at, call=call: call(at, "b8")), 16 * count, f"ldmatrix_m16n16 x{count}")
      for call, count in ((ptx.ldmatrix_m16n16_x1, 1), (ptx.ldmatrix_m16n16_x2, 2))),
    *(((lambda at, call=call: call(at, WIDE)), 8 * count, f"ldmatrix_m8n16 x{count}")
      for call, count in
      ((ptx.ldmatrix_m8n16_x1, 1), (ptx.ldmatrix_m8n16_x2, 2), (ptx.ldmatrix_m8n16_x4, 4))),
    *(((lambda at, call=call, count=count: call(at, 0 if count == 1 else (0,) * count)),
       8 * count, f"{call.__name__}") for call, count in
      ((ptx.stmatrix_x1, 1), (ptx.stmatrix_x2, 2), (ptx.stmatrix_x4, 4),
       (ptx.stmatrix_m16n8_x1, 1), (ptx.stmatrix_m16n8_x2, 2), (ptx.stmatrix_m16n8_x4, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "lanes"), [case[:2] for case in BY_LANES],
                         ids=[case[2] for case in BY_LANES])  # fmt: skip
def test_the_lanes_that_give_rows_give_aligned_ones(call, lanes):
    def body(odd):
        def by_lane(lane, place):
            simulator.shared_write(place + 32 * lane, np.zeros(32, np.uint8))
            ptx.bar_warp_sync()
            call(place + 16 * lane + 8 * (lane == odd))

        return by_lane

    with pytest.raises(simulator.BadOperand, match=f"lane {lanes - 1} gives a row at shared addr"):
        run(body(lanes - 1))
    run(body(lanes))  # another lane's address is not used


def test_a_row_that_is_not_aligned():
    with pytest.raises(simulator.BadOperand, match=r"lane \d gives a row at .* a multiple of 16"):
        run(lambda lane, place: ptx.ldmatrix_m8n16_x1(place + 8 * (lane % 2), "b8x16.b4x16_p64"))
