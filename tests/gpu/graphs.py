"""Calls that CUDA graphs captured."""

from collections.abc import Callable
from typing import Any

import torch


def check_replays(call: Callable[[Any, Any], object], expected: Any) -> None:
    """Compare with `expected` what two graphs of ``call(out, stream)`` write, at work together.

    The graphs are captured on one stream, at its first calls, and replayed on two.
    """
    outs, graphs = [torch.empty_like(expected) for _ in range(2)], []
    captured_on = torch.cuda.Stream()
    for out in outs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=captured_on):
            call(out, captured_on)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        for out, stream in zip(outs, streams):
            with torch.cuda.stream(stream):  # as soon as its own graph has ended
                assert torch.equal(out, expected)
