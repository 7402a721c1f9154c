"""`key_reader`: what tells calls apart, read by code that is written out for the arrays' classes.

Reading three tensors is most of what a repeated call costs the host. So nothing is looked up or
called for them that need not be. The code is generated as `dataclasses` generates an ``__init__``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import read_array, readers, view_source

#: Takes a context's number, a stream's handle, options and arrays. None for other classes.
KeyReader = Callable[..., Hashable | None]

_SOURCE = """
def read(context, stream, options, arrays):
    if len(arrays) == {count}:
        ({names}) = arrays
        if {fits}:
            return context, stream, options, {views}
"""


def key_reader(arrays: tuple[DeviceArray | None, ...]) -> KeyReader:
    """Return the function that makes the keys of calls with arrays of these classes, or None.

    Arrays at one place have equal views, and no view equals the parts of another library's.

    Raises
    ------
    NoDeviceArray
        If one is no array in device memory.
    """
    for array in arrays:
        if array is not None:
            read_array(array)  # which finds its reader
    return _written_out(tuple(map(type, arrays)))


@functools.lru_cache(1024)
def _written_out(classes: tuple[type, ...]) -> KeyReader:
    names = [f"array{i}" for i in range(len(classes))]
    given = [(name, cls) for name, cls in zip(names, classes) if cls is not type(None)]
    empty = [name for name, cls in zip(names, classes) if cls is type(None)]
    tests = [f"type({n}) is {n}_class" for n, _ in given] + [f"{n} is None" for n in empty]
    views = [view_source(c, n, f"{n}_reader") if (n, c) in given else "None"
             for n, c in zip(names, classes)]  # fmt: skip
    source = _SOURCE.format(
        count=len(names),
        names="".join(f"{name}, " for name in names),
        fits=" and ".join(tests) or "True",
        views=", ".join(views),
    )
    namespace: dict[str, Any] = {f"{n}_class": cls for n, cls in given}
    namespace |= {f"{n}_reader": readers[cls] for n, cls in given}
    exec(source, namespace)
    reader: KeyReader = namespace["read"]
    return reader
