"""Short names of handles, which kernels ported from other libraries import."""

from numba_tma.pipeline.circular_handle import CircularBufferHandle as Ring
from numba_tma.pipeline.consumer import TileConsumer as Consumer
from numba_tma.pipeline.output_handle import OutputTilePipelineHandle as OutputPipeline
from numba_tma.pipeline.producer import TileProducer as Producer
from numba_tma.pipeline.tile_handle import TilePipelineHandle as Pipeline

__all__ = ["Consumer", "OutputPipeline", "Pipeline", "Producer", "Ring"]
