"""`KVPipelineHandle`: the two sides of a started `KVPipeline`."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import device_class
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_producer import TMAProducerPipeline


@device_class(local=True)
@dataclass
class KVPipelineHandle:
    """A started `KVPipeline`: `producer` is for the role that loads, `consumer` for all others."""

    producer: TMAProducerPipeline
    consumer: TMAConsumerPipeline
