"""`KVPipelineHandle`: the two sides of a started `KVPipeline`."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import device_class
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_producer import TMAProducerPipeline


@device_class(local=True)
@dataclass
class KVPipelineHandle:
    """A started `KVPipeline`."""

    _producer: TMAProducerPipeline
    _consumer: TMAConsumerPipeline

    def producer(self) -> TMAProducerPipeline:
        """Return the side of the role that loads."""
        return self._producer

    def consumer(self) -> TMAConsumerPipeline:
        """Return the side of the roles that read the tiles."""
        return self._consumer
