"""The names of the seed documents, and their rows in docs/guide/migration.md."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba_tma as tma
from numba_tma import pipeline
from numba_tma.device import barrier, shared
from numba_tma.host import layout

FILE = Path(__file__).parents[1] / "docs" / "guide" / "migration.md"
COLUMNS = ("numba_tma", "CUTLASS/CuTe", "Gluon", "cuda::ptx", "remark")
NONE = "–"

#: What the names of answers begin with.
ROOTS: dict[str, Any] = {"tma": tma} | {
    name: getattr(module, name)
    for module in (layout, barrier, shared, pipeline, tma)
    for name in dir(module)
    if inspect.isclass(getattr(module, name, None))
}

#: Every name that a seed document or its system's page of methods has, under the heading that its
#: table has in docs/guide/migration.md.
SEEDS = {
    "TileLang: contrib.cutedsl.cpasync": """
        cp_async_gs cp_async_gs_conditional extract_tensormap_ptr tma_load tma_store tma_reduce
        tma_store_arrive tma_store_wait cp_async_shared_global prefetch_tma_descriptor mbarrier_wait
        mbarrier_cp_async_arrive fence_proxy_async fence_barrier_init
        mbarrier_init mbarrier_expect_tx mbarrier_arrive mbarrier_arrive_and_expect_tx
        mbarrier_cp_async_arrive_noinc""".split(),
    "Mojo: layout.tma_async": """
        TMATensorTile SharedMemBarrier PipelineState create_tma_tile SplitLastDimTMATensorTile
        rank dtype smem_shape swizzle_mode RaggedTensorMap TMATensorTileArray create_split_tma
        create_tma_tile_template
        TMATensorTile.descriptor TMATensorTile.prefetch_descriptor TMATensorTile.async_copy
        TMATensorTile.async_copy_3d TMATensorTile.async_copy_4d TMATensorTile.async_copy_5d
        TMATensorTile.async_copy_elect TMATensorTile.async_multicast_load
        TMATensorTile.async_multicast_load_3d TMATensorTile.async_multicast_load_4d
        TMATensorTile.async_multicast_load_partitioned TMATensorTile.async_copy_gather4
        TMATensorTile.gather4_tile_bytes TMATensorTile.async_copy_gather4_tile
        TMATensorTile.async_store TMATensorTile.async_reduce TMATensorTile.commit_group
        TMATensorTile.wait_group TMATensorTile.smem_tensormap_init
        TMATensorTile.replace_tensormap_global_address_in_gmem
        TMATensorTile.replace_tensormap_global_address_in_shared_mem
        TMATensorTile.replace_tensormap_global_dim_strides_in_shared_mem
        TMATensorTile.tensormap_fence_acquire TMATensorTile.tensormap_fence_release
        TMATensorTile.tensormap_cp_fence_release
        SharedMemBarrier.init SharedMemBarrier.expect_bytes SharedMemBarrier.expect_bytes_relaxed
        SharedMemBarrier.arrive_and_expect_bytes SharedMemBarrier.arrive
        SharedMemBarrier.arrive_cluster SharedMemBarrier.wait SharedMemBarrier.wait_acquire
        SharedMemBarrier.wait_relaxed SharedMemBarrier.try_wait
        SharedMemBarrier.complete_transaction SharedMemBarrier.unsafe_ptr
        PipelineState.index PipelineState.phase PipelineState.count PipelineState.step
        PipelineState.next
        create_tensor_tile create_tma_descriptor TMADescriptor TensorMapSwizzle store_ragged_tile
        RaggedTMA3DTile TMATensorTileIm2col fold_chunks""".split(),
    "Mojo: tile_pipeline": """
        MbarPtr BlockScaledTilePayload ConsumerStage InputConsumer InputConsumerStage InputProducer
        InputProducerStage InputTilePipeline OutputConsumer OutputProducer OutputStage
        OutputTilePipeline ProducerStage StandardTilePayload TileConsumer TilePipeline TileProducer
        TilePayload producer consumer acquire tiles.expect_bytes get_tile
        payload get_a_tile get_b_tile barrier mbar stage ProducerConsumerPipeline wait_producer
        wait_consumer producer_step consumer_step producer_signal_and_step consumer_signal_and_step
        init_mbars init_barriers produce consume consume_explicit acquire_producer release_producer
        acquire_consumer release_consumer drain try_acquire acquire_if_needed acquire_stage
        acquire_for_mma release_from_mma acquire_for_epilogue release_from_epilogue""".split(),
    "Mojo: TMAConsumerPipeline": """
        TMAConsumerPipeline dtype config is_k FA4Config pipeline StagedPipeline smem_desc
        MMASmemDescriptorPair AnyType Copyable ImplicitlyCopyable ImplicitlyDestructible Movable
        RegisterPassable TrivialRegisterPassable __copyinit__is_trivial __del__is_trivial
        __moveinit__is_trivial BK BMN full_kv_bytes is_k_major num_qk_stages_effective
        staged_k_bytes __init__ get wait release get_k wait_k release_k get_v wait_v release_v
        TMAProducerPipeline tile_bytes get_smem get_tile acquire acquire_k acquire_v
        producer_acquire commit_step consumer_wait consumer_release consumer_release_at num_mbars
        RolePipeline MBarPipeline""".split(),
    "nvFuser: issue 2197": [
        *"mbarrier::init mbarrier::arriveExpectTX mbarrier::wait mbarrier::inval".split(),
        *"Hopper::cpAsyncBulkTensorTileG2S Hopper::CpAsyncBulkTensorTileG2SIndex".split(),
        *"toSmem __syncthreads NVFUSER_UPDATE_MAGIC_ZERO".split(),
        "for each stage of producer TV",
        "for each stage of consumer",
    ],
}


@dataclass(frozen=True)
class Answer:
    """A line of a table: what a name is called elsewhere."""

    names: tuple[str, ...]
    numba_tma: str
    others: tuple[str, ...]
    remark: str


def spans(cell: str) -> list[str]:
    """Return what stands in code font."""
    return re.findall(r"`([^`]+)`", cell)


def tables() -> dict[str, list[Answer]]:
    """Return the lines of each table, by the heading above it."""
    found: dict[str, list[Answer]] = {}
    for part in re.split(r"^## ", FILE.read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert rows[0][1:] == list(COLUMNS), f"the columns under {heading!r} are {rows[0]}"
        answers = []
        for cells in rows[2:]:
            assert len(cells) == 1 + len(COLUMNS), f"{len(cells)} cells in {cells}"
            name, here, *others, remark = cells
            answers.append(Answer(tuple(spans(name)), here, tuple(others), remark))
        found[heading] = answers
    return found


def answers() -> dict[str, dict[str, Answer]]:
    """Return the answer to each name, by seed."""
    return {
        seed: {name: answer for answer in lines for name in answer.names}
        for seed, lines in tables().items()
    }


def given() -> list[str]:
    """Return the names of ours that the tables give as answers."""
    cells = [answer.numba_tma for lines in tables().values() for answer in lines]
    return sorted({span for cell in cells for span in spans(cell)})


def resolve(span: str) -> tuple[Any, str, Any]:
    """Return what a name in code font stands for, after its owner and its name there.

    ``f(x=...)`` also has the parameter x.
    """
    path, _, arguments = span.partition("(")
    root, *parts = path.split(".")
    assert root in ROOTS, f"{root} is no public name of numba_tma"
    owner, found = None, ROOTS[root]
    for part in parts:
        fields = getattr(found, "__dataclass_fields__", {})
        assert hasattr(found, part) or part in fields, f"{found!r} has no {part}"
        owner, found = found, getattr(found, part, None)
    for keyword in re.findall(r"(\w+)=", arguments):
        assert keyword in inspect.signature(found).parameters, f"{path} takes no {keyword}"
    return owner, path.rpartition(".")[2], found
