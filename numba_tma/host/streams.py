"""Streams of all libraries: the driver's handle."""

from __future__ import annotations

import reprlib

from numba_tma.host.annotations import StreamLike


def handle_of(stream: StreamLike) -> int:
    """Return the handle of a stream, 0 for the default one, or raise."""
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not 0 <= stream < 1 << 64:
            shown = reprlib.repr(stream)
            raise ValueError(f"stream is {shown}, which is no handle: give None or a stream")
        return stream
    if getattr(stream, "is_closed", False):
        raise ValueError(f"stream {stream!r} is closed: give a living one")
    # torch's, CuPy's, numba's and cuda.core's own
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    inner = getattr(stream, "stream", None)  # cuda.core's GraphBuilder has one
    if inner is not None:
        return handle_of(inner)
    raise TypeError(
        f"stream is a {type(stream).__module__}.{type(stream).__qualname__}: give a numba, CuPy, "
        "torch or cuda.core stream, an object with __cuda_stream__, a handle, or None"
    )


def closable(stream: StreamLike) -> StreamLike:
    """Return `stream` if its owner can close it, else None."""
    return stream if hasattr(stream, "is_closed") else None
