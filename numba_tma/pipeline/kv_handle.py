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

    def enters(self) -> bool:
        """Return True: every thread of the block executes the pipeline's scope."""
        return True

    def close(self) -> None:
        """End the pipeline's use. With commits, the block must wait for a later commit's arrival.

        The commit of the accumulator, for which the epilogue waits, is a later one. Without such a
        commit the producer calls `TMAProducerPipeline.tail`.
        """

    def producer(self) -> TMAProducerPipeline:
        """Return the side of the role that loads."""
        return self._producer

    def consumer(self) -> TMAConsumerPipeline:
        """Return the side of the roles that read the tiles."""
        return self._consumer
