"""The Tensor Memory Accelerator of NVIDIA's Hopper and newer GPUs, for numba-cuda kernels.

Describe a tile once (`Tile`, `tensor_map`), pass the map to a ``@cuda.jit`` kernel, and write the
producer/consumer pipeline in Python (`TilePipeline`). ``import numba_tma`` touches no GPU; names
that need Numba import it when they are first used.
"""

from __future__ import annotations

import ast
import importlib
import sys
from typing import Any

from numba_tma._version import __version__ as __version__
from numba_tma.backend import interface
from numba_tma.host import backend as offered
from numba_tma.host.environment import simulated


def _listed() -> dict[str, str]:
    """Return the home of each public name, which the stub beside this file lists."""
    with open(f"{__file__}i", encoding="utf-8") as stub:
        lines = [n for n in ast.parse(stub.read()).body if isinstance(n, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


_HOMES = _listed()
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


def _type_of(argument: offered.KernelArgument) -> Any:
    """Register what is declared; return the compiler's type of a kernel's argument."""
    importlib.import_module("numba_tma.backend.compiler").register_declared()
    return importlib.import_module("numba_tma.backend.lowering.types").type_of(argument)


def _launcher() -> Any:
    """Return the launcher of compiled kernels."""
    backend = importlib.import_module("numba_tma.backend.compiler").BACKEND
    return importlib.import_module(f"{backend}.prepared_launch").CompiledLauncher


if simulated():
    from numba_tma import simulator

    simulator.install()
    offered.executed_by(lambda: importlib.import_module("numba_tma.device.copies"))
else:
    interface.when_declared(_attach)
    offered.typed_by(_type_of)
    offered.launched_by(_launcher)
    if "numba.cuda" in sys.modules:
        _attach()
