"""Registration of declarations with numba-cuda: at the first compile, and at later ones.

A walk registers every declaration once. Records, constants and bodies are registered by the
function of their kind. For natives and instructions, the modules of `numba_tma.backend.lowering`
are imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import CUDADispatcher

from numba_tma.backend import interface
from numba_tma.host.collections import without_collections
from numba_tma.host.environment import racing
from numba_tma.host.host_only import HOST_ONLY

#: The functions that register declarations, by kind.
_KINDS: dict[str, Callable[..., Any]] = {}
#: Subjects with a lowering: functions and classes, and methods by (class, name).
LOWERED: set[Any] = set()
_LOWERINGS = "numba_tma.backend.lowering"

_registered = 0  # declarations that the function of their kind has registered
_refused = 0  # functions of the host whose calls are refused
_lowered = 0  # declarations whose lowerings are imported


def registers(kind: str) -> Callable[[Any], Any]:
    """Let the decorated function register declarations of a kind."""
    return lambda function: _KINDS.setdefault(kind, function)


@global_compiler_lock  # a second thread's first compile waits for the walk of the first
def register_subjects() -> None:
    """Register the records, constants and bodies that were declared since the last walk."""
    global _registered
    declared = interface.DECLARATIONS
    while _registered < len(declared):
        declaration = declared[_registered]
        _registered += 1
        if declaration.kind in _KINDS:
            _KINDS[declaration.kind](declaration.subject, **declaration.options)


@global_compiler_lock
@without_collections
def register_declared() -> None:
    """Register all declarations since the last walk, with their lowerings."""
    global _lowered
    declared = interface.DECLARATIONS
    interface.register_at_once(register_declared)
    if racing():
        importlib.import_module("numba_tma.device.races")
    # The host makes tiles and maps: a kernel may use one before any declaration is imported.
    importlib.import_module(f"{_LOWERINGS}.types")
    refused = _refused
    _refuse_host_only()
    if _lowered == len(declared) and _refused == refused:
        return
    natives: list[Any] = []
    while _lowered < len(declared):
        register_subjects()
        declaration = declared[_lowered]
        _lowered += 1
        if declaration.kind == "instruction_row":
            lowering = importlib.import_module(f"{_LOWERINGS}.instructions")
            lowering.register(declaration.options["row"], declaration.subject)
        elif declaration.kind == "native":
            importlib.import_module(lowering_of(declaration.subject.__module__))
            natives.append(declaration.subject)
    register_subjects()
    for native in natives:
        _check(native)
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def _refuse_host_only() -> None:
    global _refused
    while _refused < len(HOST_ONLY):
        _KINDS["host_only"](HOST_ONLY[_refused])
        _refused += 1


def lowering_of(module: str) -> str:
    """Return the module of lowerings that mirrors a module.

    ``numba_tma.device.shared`` has ``shared``, ``numba_tma.pipeline.output`` ``pipeline.output``:
    `host`, `backend` and `device` have no folder in `lowering`; any other room has one.
    """
    _, room, rest = module.split(".", 2)
    return (
        f"{_LOWERINGS}.{rest}"
        if room in ("device", "host", "backend")
        else f"{_LOWERINGS}.{room}.{rest}"
    )


def _check(native: Any) -> None:
    """Raise unless a native has the lowering that its declaration promises."""
    if isinstance(native, type):
        return  # the lowering adds attributes and operators, which are not listed here
    owner = native.__qualname__.rpartition(".")[0]
    key = (f"{native.__module__}.{owner}", native.__name__) if owner else native
    if key not in LOWERED:
        raise NotImplementedError(
            f"{native.__module__}.{native.__qualname__} is declared native, and "
            f"{lowering_of(native.__module__)} has no lowering of it"
        )


_typeof_pyval = CUDADispatcher.typeof_pyval


def _typeof_registered(self: CUDADispatcher, value: Any) -> types.Type:
    """Type a launch's argument that Numba cannot type, after registering all declarations.

    cuda.core's `TensorMapDescriptor` has no `_numba_type_`, by which other arguments register them.
    """
    if _lowered == 0:
        register_declared()
    return _typeof_pyval(self, value)


CUDADispatcher.typeof_pyval = _typeof_registered

for _scalar in interface.SCALARS:
    typing_registry.register_global(_scalar, types.NumberClass(getattr(types, _scalar.name)))
