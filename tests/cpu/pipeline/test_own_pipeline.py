"""The pipeline that docs/development/add-a-pipeline.md adds compiles to registers alone."""

from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.layout import Tile
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.frozen import changing
from tests.page_code import module_of

VECTOR = types.float32[::1]


def test_the_pipeline_of_the_page_needs_no_local_memory(tmp_path):
    page = module_of("development/add-a-pipeline.md", tmp_path)
    map_type = TensorMapType(2, Tile((4, 32), "f32"))
    report = ptxas(compile_ptx(page.column_sums, (map_type, VECTOR, types.int64)))
    assert report.stack_frame == report.spill_stores == report.spill_loads == 0
    assert report.shared == page.ROWS.nbytes


def test_two_starts_have_memory_of_their_own(tmp_path):
    page = module_of("development/add-a-pipeline.md", tmp_path)
    rows = page.ROWS

    def twice(x, out):
        first, second = rows.start(), rows.start()
        first.load(x, (0, 0))
        second.load(x, (4, 0))
        out[0] = first.wait()[0, 0] + second.wait()[0, 0]

    ptx = compile_ptx(twice, (TensorMapType(2, Tile((4, 32), "f32")), VECTOR))
    assert ptxas(ptx).shared >= 2 * rows.nbytes


#: Handles, their stages, and loops over stages: the objects of a kernel.
CHANGING = """
CircularBufferHandle Consume ConsumeFrom ConsumerStage FullStage KVPipelineHandle
LaunchControlHandle LaunchedTiles LoadStage Loads OrderedSequence OutputConsume OutputConsumer
OutputProduce OutputProducer OutputStage OutputTilePipelineHandle PipelineState Produce
ProduceFrom ProducerStage Stage StageTiles StagedPipeline StorePipelineHandle StoreStage
StoreStages TMAConsumerPipeline TMAProducerPipeline TileConsumer TilePipelineHandle TileProducer
TileQueue Tiles Turn WindowStage Windows
"""


def test_only_objects_of_kernels_change():
    assert changing("pipeline") == set(CHANGING.split())
