"""Every function of `numba_tma.kernels`, called again with its arrays at other addresses.

``python -m tests.moved_calls`` makes the calls of `tests.every_hit` three times, each time with all
arrays elsewhere, and prints for each call whether the third was prepared, and whether its launches
have the bytes of one that was.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from types import SimpleNamespace
from typing import Any

from tests.every_hit import AnyKernel, _calls, _found
from tests.recording_driver import ATTRIBUTES, Array


def main() -> None:
    """Make the calls."""
    capability = tuple(map(int, sys.argv[1].split("."))) if len(sys.argv) > 1 else (9, 0)
    names = "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"
    ATTRIBUTES.update(zip(names, capability))
    from numba_tma.host import array_interface, kernel_store
    from numba_tma.host.loaded_kernel import LoadedKernel
    from numba_tma.kernels._host import memo

    kernel_store.find = _found
    launched: list[Any] = []
    prepared: list[int] = []
    bind, recorded = LoadedKernel.bind, memo.recorded

    def bind_and_note(self: Any, configuration: Any, parameters: Any, *, here: bool) -> Any:
        run = bind(self, configuration, parameters, here=here)

        def note() -> Any:
            sizes = [struct.calcsize(form) for form, _ in parameters.fields]
            memory = [ctypes.string_at(p, n) for p, n in zip(parameters._pointers, sizes)]
            values = [struct.unpack(form, m)[0] for (form, _), m in zip(parameters.fields, memory)]
            assert values == [value for _, value in parameters.fields]
            grid, block = configuration.gridDimX, configuration.blockDimX
            launched.append((self.image.entry, grid, block, memory))
            return run()

        return note

    def recorded_and_counted() -> Any:
        prepared.append(1)
        return recorded()

    LoadedKernel.bind, memo.recorded = bind_and_note, recorded_and_counted
    now, read = SimpleNamespace(step=0), array_interface._read_protocol

    def elsewhere(array: Any) -> Any:
        view, *rest = read(array)
        place = view[0] >> 32 if isinstance(array, Array) else -1  # not the library's own memory
        return (view[0] + 512 * now.step * (1 + place) ** 2, *view[1:]), *rest

    array_interface._read_protocol = elsewhere
    shown = {}
    with AnyKernel().installed():
        for name, call in _calls(capability).items():
            memo.forget_all()
            for now.step in (0, 1, 2):
                del launched[:], prepared[:]
                call()
            third, was_prepared = launched[:], bool(prepared)
            memo.forget_all()
            del launched[:]
            call()
            shown[name] = {"prepared": was_prepared, "equal": third == launched}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
