"""The cost of a pipelined copy beside the same loop by hand, in instructions."""

import functools
import re

import pytest
from numba import cuda, int64, types, uint32

from numba_tma import Tile, TilePipeline, ptx
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.device.shared import shared_tile
from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.tiers import every, quick

STAGES, ROWS = 4, 16
TILE = Tile((ROWS, 256), "u8")
NBYTES = TILE.nbytes
PIPE = TilePipeline(STAGES, x=TILE)
MEMORY = Tile(STAGES * (NBYTES + 16), "u8")  # the stages, then the full and the empty barriers

MAP = TensorMapType(2, TILE)
SIGNATURE = (MAP, MAP, types.int64)


def with_pipeline(in_flight):
    @cuda.jit
    def copy(source, destination, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                source.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(first, n_tiles, step, in_flight=in_flight):
                pipe.store(destination, stage.x, (tile * ROWS, 0), written=False)
            if in_flight:
                pipe.release_pending()

    return copy


def by_hand(in_flight):
    """Write the shortest loop that does the same."""

    @cuda.jit
    def copy(source, destination, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * NBYTES)
        empty = uint32(full + STAGES * 8)
        thread = ptx.tid_x()
        consumers = uint32(ptx.ntid_x() - 32)
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full + stage * 8, 1)
                ptx.mbarrier_init(empty + stage * 8, consumers >> 5)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, ptx.ntid_x())

        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= consumers:
            if ptx.elect_sync():
                phase = uint32(1)  # a wait for the phase before the first passes
                while tile < n_tiles:
                    while not ptx.mbarrier_try_wait_parity(empty + index * 8, phase):
                        pass
                    barrier = full + index * 8
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * NBYTES, source, (tile * ROWS, 0), barrier
                    )
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index = uint32(0)
                        phase = uint32(phase ^ 1)
        else:
            previous = uint32(STAGES)  # none yet
            while tile < n_tiles:
                while not ptx.mbarrier_try_wait_parity(full + index * 8, phase):
                    pass
                if thread == 0:
                    ptx.cp_async_bulk_tensor_store(
                        destination, (tile * ROWS, 0), stages + index * NBYTES
                    )
                    ptx.cp_async_bulk_commit_group()
                    ptx.cp_async_bulk_wait_group_read(in_flight)
                leaving = previous if in_flight else index
                if in_flight == 0 or leaving < STAGES:
                    ptx.bar_warp_sync()
                    if ptx.elect_sync():
                        ptx.mbarrier_arrive(empty + leaving * 8)
                previous = index
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index = uint32(0)
                    phase = uint32(phase ^ 1)
            if in_flight and previous < STAGES:
                if thread == 0:
                    ptx.cp_async_bulk_wait_group_read(0)
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(empty + previous * 8)

    return copy


@functools.cache
def compiled(write, in_flight, cc=(9, 0, "a")):
    return compile_ptx(write(in_flight), SIGNATURE, cc=cc)


def ptx_count(ptx):
    listed = instructions(ptx)
    return sum(not line.endswith(":") for line in listed)


def machine_count(ptx):
    """Count machine instructions, less the padding at the end."""
    code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(ptx), re.M)
    return sum(not instruction.startswith("NOP") for instruction in code)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_ptx_is_within_2_percent_of_the_loop_by_hand(in_flight):
    ours, hand = (ptx_count(compiled(write, in_flight)) for write in (with_pipeline, by_hand))
    assert ours <= 1.02 * hand, f"{ours} PTX instructions with TilePipeline, {hand} by hand"


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("in_flight", quick([1], [0, 1]))
def test_machine_code_is_within_2_percent_of_the_loop_by_hand(in_flight):
    ours, hand = (machine_count(compiled(write, in_flight)) for write in (with_pipeline, by_hand))
    assert ours <= 1.02 * hand, f"{ours} machine instructions with TilePipeline, {hand} by hand"


@pytest.mark.parametrize("write", [with_pipeline, by_hand])
@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize(
    "cc", every(2, [((9, 0, "a"),), ((10, 0, "a"),)]), ids=["sm_90a", "sm_100a"]
)
def test_nothing_is_spilled(write, in_flight, cc):
    text = compiled(write, in_flight, cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [line for line in instructions(text) if ".local" in line] == []
