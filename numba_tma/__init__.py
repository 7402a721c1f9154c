"""The Tensor Memory Accelerator of NVIDIA's Hopper and newer GPUs, for numba-cuda kernels.

Describe a tile once (`Tile`, `tensor_map`), pass the map to a ``@cuda.jit`` kernel, and write the
producer/consumer pipeline in Python (`TilePipeline`). ``import numba_tma`` touches no GPU; names
that need Numba import it when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from numba_tma._version import __version__ as __version__
from numba_tma.backend import interface
from numba_tma.host import backend as offered
from numba_tma.host.collections import without_collections
from numba_tma.host.environment import simulated, trace_file
from numba_tma.host.lazy_names import homes_of

_HOMES = homes_of(__file__)
if simulated():
    _HOMES["TensorMapType"] = "numba_tma.simulator.signatures"

__all__ = sorted(_HOMES.keys() - {"kernels", "testing"})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'numba_tma' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    if home.__name__ in ("numba_tma", "numba_tma.tools"):
        value: Any = importlib.import_module(f"{home.__name__}.{name}")
    else:
        value = getattr(home, name)
    globals()[name] = value
    interface.declared()
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)


def _attach() -> None:
    """Let the compiler know of declarations: it walks them when it compiles a kernel.

    If the first name of the package is met by a compile, that compile takes it, too.
    """
    compiler = importlib.import_module("numba_tma.backend.compiler")
    locks = sys.modules.get("numba.core.compiler_lock")
    if locks is not None and locks.global_compiler_lock.is_locked():
        interface.register_at_once(compiler.register_declared)


class _ImportOfNumba:
    """Attaches the backend when numba.cuda has been imported; finds no module by itself.

    Numba's imports make 100,000 objects that stay: no garbage is searched for among them.
    """

    _found = False  # whether the other finders are being asked

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Return the specification of Numba, or of numba.cuda, which attaches the backend."""
        if name not in ("numba", "numba.cuda") or self._found:
            return None
        self._found = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._found = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            @without_collections
            def execute_and_attach(module: ModuleType) -> None:
                execute(module)
                if name == "numba.cuda":
                    _attach()

            spec.loader.exec_module = execute_and_attach  # type: ignore[method-assign]
        return spec


def _type_of(argument: offered.KernelArgument) -> Any:
    """Register what is declared; return the compiler's type of a kernel's argument."""
    importlib.import_module("numba_tma.backend.compiler").register_declared()
    return importlib.import_module("numba_tma.backend.lowering.types").type_of(argument)


def _images() -> Any:
    """Return the compiler of kernels for the cache and for export."""
    backend = importlib.import_module("numba_tma.backend.compiler").BACKEND
    return importlib.import_module(f"{backend}.images")


def _launcher() -> Any:
    """Return the launcher of compiled kernels."""
    backend = importlib.import_module("numba_tma.backend.compiler").BACKEND
    return importlib.import_module(f"{backend}.prepared_launch").CompiledLauncher


def _traced() -> Any:
    """Return the backend's kernels with a trace."""
    backend = importlib.import_module("numba_tma.backend.compiler").BACKEND
    return importlib.import_module(f"{backend}.traced")


if simulated():
    from numba_tma import simulator

    simulator.install()
    offered.executed_by(lambda: importlib.import_module("numba_tma.device.copies"))
else:
    offered.typed_by(_type_of)
    offered.launched_by(_launcher)
    offered.traced_by(_traced)
    offered.compiled_by(lambda *given: _images().compile_image(*given))
    offered.examined_by(lambda *given: _images().examine(*given))
    offered.exported_by(lambda *given: _images().export_image(*given))
    offered.declared_by(lambda: [(d.kind, d.subject, d.options) for d in interface.DECLARATIONS])
    if "numba.cuda" in sys.modules:
        _attach()
    else:
        sys.meta_path.insert(0, _ImportOfNumba())

if trace_file():
    importlib.import_module("numba_tma.tools.trace.process").begin(trace_file())

if "IPython" in sys.modules:
    from numba_tma.tools import pictures

    pictures.install()
