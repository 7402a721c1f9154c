"""The recorder of a trace on a GPU: each launch has the rings to itself, and is waited for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from numba_tma.host import trace_buffer, tracing
from numba_tma.host.driver import (
    device_attribute,
    is_capturing,
    launching_device,
    wait_for_device,
)
from numba_tma.tools.trace.decode import decode
from numba_tma.tools.trace.spans import TracedLaunch

if TYPE_CHECKING:
    from numba_tma.tools.trace import Trace


def takes(trace: Trace, kernel: str, most: int | None) -> bool:
    """Return whether a trace has room for one more launch of a kernel; count it if not."""
    if most is None or sum(known.kernel == kernel for known in trace.launches) < most:
        return True
    trace.left_out[kernel] = trace.left_out.get(kernel, 0) + 1
    return False


class GpuRecorder:
    """Puts the launches of a thread into a trace."""

    def __init__(
        self, trace: Trace, blocks: int | range, nbytes: int, launches: int | None
    ) -> None:
        self._trace, self._blocks, self._nbytes, self._most = trace, blocks, nbytes, launches

    def launch(self, traced: tracing.Traced, run: Callable[[], None]) -> None:
        """Launch, wait for the kernel's end, and read its rings."""
        if not takes(self._trace, traced.name, self._most):
            run()
            return
        if is_capturing(traced.stream):
            raise RuntimeError(
                "trace: a traced launch waits for the kernel's end, and a stream that is being "
                "captured cannot be waited for: trace the launches without a graph"
            )
        cluster = math.prod(traced.cluster or (1,))
        sampling = trace_buffer.sampled(self._blocks, traced.grid, traced.block, cluster)
        rings = trace_buffer.Rings(sampling, self._nbytes)
        wait_for_device()  # for launches before it, of this thread and of others
        rings.begin()
        try:
            run()
            wait_for_device()
        except BaseException:
            with contextlib.suppress(Exception):  # of a context that the kernel's error has taken
                rings.end()
            raise
        rings.end()
        found = decode(rings.read(), sampling, traced.grid)
        device = launching_device()
        # Twice: a DRAM transfers at both edges of its clock. kHz x bits / 8 = 1e3 B/s.
        rate = device_attribute(device, "MEMORY_CLOCK_RATE") * 2
        bandwidth = rate * device_attribute(device, "GLOBAL_MEMORY_BUS_WIDTH") / 8 * 1e-6
        self._trace.launches.append(
            TracedLaunch(
                kernel=traced.name,
                grid=traced.grid,
                block=traced.block,
                unit="ns",
                spans=tuple(found.spans),
                roles=found.roles,
                processors=found.processors,
                dropped=found.dropped,
                pipelines=found.pipelines,
                shared_nbytes=traced.shared,
                bandwidth=bandwidth,
                num_processors=device_attribute(device, "MULTIPROCESSOR_COUNT"),
            )
        )
