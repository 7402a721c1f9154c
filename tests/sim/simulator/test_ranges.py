"""Bytes that an instruction reads or writes in shared memory lie inside one allocation."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.device.matrix_descriptor import matrix_descriptor
from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.errors import BarrierMisuse
from numba_tma.simulator.memory import BASE
from tests.kernels.tensor_products import descriptor, idesc, run

TILE, BAR = BASE, BASE + 1024  # neighbours
END = BAR - 112
X = np.zeros(128, np.uint8)
MAP = tma.tensor_map(np.zeros((4, 8), np.uint32), tma.Tile((4, 8), "u32"))
ROWS = tma.gather_map(X.reshape(4, 32), tma.Tile((4, 32), "u8"))

CALLS = {
    "mbarrier_init": lambda: sim.mbarrier_init(BAR + 8, 1),
    "shared_read": lambda: sim.shared_read(END, np.dtype(np.float32), 29),
    "shared_write": lambda: sim.shared_write(END, np.zeros(29, np.float32)),
    "pieces": lambda: sim.shared_write_pieces(END + 16 * np.arange(8), X.reshape(8, 16)),
    "pieces before": lambda: sim.shared_write_pieces(TILE - 16 * np.arange(8), X.reshape(8, 16)),
    "cp_async": lambda: sim.cp_async("cp_async", BAR, X[:16], 16, 16),
    "bulk load": lambda: sim.cp_async_bulk_load(END, X, BAR),
    "bulk load, part": lambda: sim.cp_async_bulk_load_ignore_oob(END, X, 128, (0, 15), BAR),
    "tensor load": lambda: sim.cp_async_bulk_tensor_load(BAR, MAP, (0, 0), BAR),
    "gather": lambda: sim.cp_async_bulk_tensor_gather4(BAR, ROWS, (0, 1, 2, 3), 0, BAR),
    "bulk store": lambda: sim.cp_async_bulk_store(X, END),
    "bulk reduction": lambda: sim.cp_reduce_async_bulk_store(X, END, "add.u32"),
    "tensor store": lambda: sim.cp_async_bulk_tensor_store(MAP, (0, 0), BAR),
    "tensor reduction": lambda: sim.cp_reduce_async_bulk_tensor(MAP, (0, 0), BAR, "add"),
    "scatter": lambda: sim.cp_async_bulk_tensor_scatter4(ROWS, (0, 1, 2, 3), 0, BAR),
    "copy to a block": lambda: sim.cp_async_bulk_copy_cluster(TILE, END, 128, BAR),
    "copy from a block": lambda: sim.cp_async_bulk_copy_cluster(END, TILE, 128, BAR),
    "reduction to": lambda: sim.cp_reduce_async_bulk_cluster(TILE, END, 128, BAR, "add.u32"),
    "reduction from": lambda: sim.cp_reduce_async_bulk_cluster(END, TILE, 128, BAR, "add.u32"),
    "read of a block": lambda: sim.shared_cluster_read(BAR + 8, np.dtype(np.uint32)),
    "write to a block": lambda: sim.shared_cluster_write(BAR + 8, np.uint32(1)),
    "combination": lambda: sim.shared_cluster_reduce(BAR + 8, np.uint32(1), "add"),
    "red_async": lambda: sim.red_async(BAR + 8, np.uint32(1), BAR, "add"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_instruction_stays_inside_an_allocation(name):
    @cuda.jit
    def kernel():
        sim.allocate_shared("tile", 1024, 128)
        sim.allocate_shared("barrier", 8, 8)
        sim.mbarrier_init(BAR, 1)
        sim.fence_mbarrier_init()
        CALLS[name]()

    with pytest.raises(sim.BadOperand, match=r"shared bytes \d+ to \d+ are out of range: "):
        kernel[1, 1]()


@pytest.mark.parametrize("outside", ["a", "b"])
def test_operands_of_wgmma_lie_inside_an_allocation(outside):
    tile = tma.Tile((64, 64), "f16", tma.Swizzle.B128)

    @cuda.jit
    def kernel():
        inside = tma.shared_tile(tile).address
        sim.allocate_shared("more", tile.nbytes - 16, 1024)
        a, b = (matrix_descriptor(tile, inside + tile.nbytes * (each == outside)) for each in "ab")
        tma.wgmma(tma.fragment(64), a, b)

    with pytest.raises(sim.BadOperand, match="^.*wgmma, operand in shared memory: .*out of range"):
        kernel[1, 128]()


@pytest.mark.parametrize("outside", [0, 1, 2])
def test_operands_of_tcgen05_lie_inside_an_allocation(outside):
    def body(rank, base, at, barrier):
        if sim.elect_sync():
            a, b, source = (descriptor(at[0] + 4096 * (outside == i), 128) for i in range(3))
            said = idesc("f16", 128, 128, "f16", "f16")
            if outside < 2:
                sim.tcgen05_mma(
                    "f16", base, a, b, said, False, a_in_tmem=False, cta_group=1,
                )  # fmt: skip
            sim.tcgen05_cp("128x256b", base, source, 1)

    with pytest.raises(sim.BadOperand, match="operand in shared memory: .*out of range"):
        run(body, [np.zeros(4096, np.uint8)])


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (0, 5), (15, 15)])
def test_ignored_bytes_of_a_load_are_not_there(left, right):
    found = []

    @cuda.jit
    def kernel():
        sim.allocate_shared("tile", 1024, 128)
        sim.allocate_shared("barrier", 8, 8)
        sim.mbarrier_init(BAR, 1)
        sim.fence_mbarrier_init()
        sim.mbarrier_arrive_expect_tx(BAR, 64)
        sim.cp_async_bulk_load_ignore_oob(TILE, X[:64], 64, (left, right), BAR)
        while not sim.mbarrier_try_wait_parity(BAR, 0):
            pass
        for place in range(64):
            try:
                found.append(int(sim.shared_read(TILE + place, np.dtype(np.uint8))))
            except sim.UninitializedRead:
                found.append(None)

    kernel[1, 1]()
    assert found == [None] * left + [0] * (64 - left - right) + [None] * right


# ------------------------------------------------------------------ bytes over live mbarriers


@pytest.mark.parametrize("places", [[], [16], [0, 8, 16], [8, 40], [*range(0, 80, 8)]], ids=len)
def test_a_write_over_a_byte_of_a_live_mbarrier_is_refused(places):
    """Whether the mbarriers are more than the words of 8 bytes that are written, or fewer."""
    barriers = {place: SimpleNamespace(name=f"the one at {place}") for place in places}
    for address, nbytes in itertools.product(range(48), (1, 2, 4, 8, 16, 30)):
        hit = [p for p in places if p < address + nbytes and address < p + 8]
        if not hit:
            check_over_none(barriers, "it", address, nbytes)
            continue
        with pytest.raises(BarrierMisuse) as caught:
            check_over_none(barriers, "it", address, nbytes)
        text = f"it: bytes {address} to {address + nbytes - 1} lie over the one at {hit[0]}, a live"
        assert str(caught.value).startswith(text)
