"""Pipelines: stages of shared memory that some threads fill while others work on them.

A producer waits until a stage is *empty*, fills it and commits it. A consumer waits until a stage
is *full*, works on it and releases it. Both walk round the stages with an index and a phase bit,
which flips at each turn of the ring. The producer's phase starts at 1, so that its first waits for
*empty* return at once. Both sides step before they wait: in a loop, the stage that was worked on
and the stage that comes next are then one register.

A pipeline has two classes: a constant, made on the host, and the handle that its `start` returns.
Both are plain Python; docs/development/add-a-pipeline.md adds one.

- `tile`, `tile_handle`: `TilePipeline` and its handle; `start`: its barriers; `tile_rules`: its
  errors;
- `producer`, `consumer`, `stages`: its two sides and their stages; `loops`: loops over tiles;
- `roles`: the roles of a block; `multicast`: the blocks of a cluster that share a tile;
- `payload`: the tiles in a matmul's stage; `stage_layout`, `memory`: where stages and barriers lie;
- `state`: the index and the phase of a walk; `ports`: short names of the handles;
- `store`, `store_handle`: `StorePipeline`, for tiles that threads write and the copy engine stores;
- `launch_control`, `launch_control_handle`: `LaunchControl`, whose blocks take the tiles of blocks
  that have not begun;
- `ordered`: `OrderedSequenceBarrier`, for roles that take turns;
- `output`, `output_handle`: `OutputTilePipeline`, for accumulators, from the multiplication to the
  epilogue; `columns`: accumulators in tensor memory;
- `kv`, `kv_handle`: `KVPipeline`, the ring of attention's K and V tiles; `kv_producer`,
  `kv_consumer`, `kv_side`: its two sides; `kv_rules`: its errors; `staged`: barriers of sub-stages;
- `circular`, `circular_handle`, `circular_stages`: `CircularBuffer`, whose threads load and work.
"""

from numba_tma.pipeline.circular import CircularBuffer
from numba_tma.pipeline.circular_handle import CircularBufferHandle
from numba_tma.pipeline.circular_stages import LoadStage, Stage
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_handle import KVPipelineHandle
from numba_tma.pipeline.kv_producer import TMAProducerPipeline
from numba_tma.pipeline.launch_control import LaunchControl
from numba_tma.pipeline.launch_control_handle import LaunchControlHandle
from numba_tma.pipeline.loops import TileQueue
from numba_tma.pipeline.ordered import OrderedSequence, OrderedSequenceBarrier, Turn
from numba_tma.pipeline.output import OutputTilePipeline
from numba_tma.pipeline.output_handle import (
    OutputConsumer,
    OutputProducer,
    OutputStage,
    OutputTilePipelineHandle,
)
from numba_tma.pipeline.payload import BlockScaledTilePayload, StandardTilePayload
from numba_tma.pipeline.ports import Consumer, OutputPipeline, Pipeline, Producer, Ring
from numba_tma.pipeline.producer import TileProducer
from numba_tma.pipeline.roles import NamedBarrier, Role, Roles, Threads, Warpgroups, Warps
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.stages import ConsumerStage, ProducerStage
from numba_tma.pipeline.state import PipelineState
from numba_tma.pipeline.store import StorePipeline
from numba_tma.pipeline.store_handle import StorePipelineHandle, StoreStage
from numba_tma.pipeline.tile import TilePipeline
from numba_tma.pipeline.tile_handle import TilePipelineHandle

__all__ = [
    "TileConsumer",
    "TileProducer",
    "TilePipelineHandle",
    "OutputTilePipelineHandle",
    "CircularBufferHandle",
    "BlockScaledTilePayload",
    "CircularBuffer",
    "Consumer",
    "ConsumerStage",
    "KVPipeline",
    "KVPipelineHandle",
    "LaunchControl",
    "LaunchControlHandle",
    "LoadStage",
    "NamedBarrier",
    "OrderedSequence",
    "OrderedSequenceBarrier",
    "OutputConsumer",
    "OutputPipeline",
    "OutputProducer",
    "OutputStage",
    "OutputTilePipeline",
    "Pipeline",
    "PipelineState",
    "Producer",
    "ProducerStage",
    "Ring",
    "Role",
    "Roles",
    "Stage",
    "StagedPipeline",
    "StandardTilePayload",
    "StorePipelineHandle",
    "StorePipeline",
    "StoreStage",
    "TMAConsumerPipeline",
    "TMAProducerPipeline",
    "Threads",
    "TilePipeline",
    "TileQueue",
    "Turn",
    "Warpgroups",
    "Warps",
]
