"""What maps and launches cost the host."""

from __future__ import annotations

import time
from typing import Any

from numba_tma.bench.report import host_row
from numba_tma.bench.timing import time_host


def bench_host(torch: Any) -> list[dict[str, Any]]:
    """Time what maps cost the host: to make, and to pass to a launch."""
    from numba import cuda

    from numba_tma.layout import Tile
    from numba_tma.tensor_map import tensor_map

    x = torch.zeros(64, 64, device="cuda")
    tile = Tile((8, 32), "f32")
    many = [torch.zeros(64, 64, device="cuda") for _ in range(1000)]
    start = time.perf_counter()
    for tensor in many:
        tensor_map(tensor, tile)
    encoded = (time.perf_counter() - start) / len(many) * 1e6
    cached = time_host(lambda: tensor_map(x, tile))

    @cuda.jit
    def takes(argument):  # type: ignore[no-untyped-def]
        pass

    launch, x_map = takes[1, 32], tensor_map(x, tile)
    launch(1)
    launch(x_map)
    rounds = [(time_host(lambda: launch(1)), time_host(lambda: launch(x_map))) for _ in range(3)]
    with_int, with_map = (min(times) for times in zip(*rounds))
    return [
        host_row("tensor_map", "encoded", encoded, {}),
        host_row("tensor_map", "cached", cached, {}),
        host_row("launch", "one TensorMap", with_map, {"one integer": round(with_int, 2)}),
    ]
