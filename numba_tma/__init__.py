"""The Tensor Memory Accelerator of NVIDIA's Hopper and newer GPUs, for numba-cuda kernels.

Describe a tile once (`Tile`, `tensor_map`), pass the map to a ``@cuda.jit`` kernel, and write the
producer/consumer pipeline in Python (`TilePipeline`). ``import numba_tma`` touches no GPU; names
that need Numba import it when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from numba_tma._version import __version__
from numba_tma.backend import interface
from numba_tma.host import arguments
from numba_tma.host.arguments import KernelArgument
from numba_tma.host.debug import ByteLedgerError, CoordinateError, PipelineError, PipelineTimeout
from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.im2col import Im2colMap, im2col_map, im2col_wide_map
from numba_tma.host.layout import (
    Swizzle,
    Tile,
    reference_reduce,
    reference_store,
    reference_tile,
    swizzle_index,
)
from numba_tma.host.matrix_layout import MatrixLayout, reference_matrix
from numba_tma.host.pixel_box import PixelBox, reference_im2col, reference_im2col_store
from numba_tma.host.ragged import RaggedTensorMap, ragged_tensor_map
from numba_tma.host.tensor_map import TensorMap, tensor_map
from numba_tma.host.tensor_map_array import TensorMapArray

#: Where the names are that need Numba, which is imported only when one of them is used.
_HOME = {
    "Barrier": "device.barrier",
    "BarrierArray": "device.barrier",
    "BlockScaledTilePayload": "pipeline",
    "CachePolicy": "ptx",
    "CausalLPTScheduler": "device.causal_scheduler",
    "CircularBuffer": "pipeline",
    "DESCRIPTOR": "device.edit_map",
    "Fragment": "device.mma",
    "GridStridedScheduler": "device.scheduler",
    "GroupedScheduler": "device.scheduler",
    "HilbertScheduler": "device.scheduler",
    "KVPipeline": "pipeline",
    "MatrixDescriptor": "device.matrix_descriptor",
    "MatrixDescriptorPair": "device.matrix_descriptor",
    "NamedBarrier": "pipeline",
    "OrderedSequenceBarrier": "pipeline",
    "OutputConsumer": "pipeline",
    "OutputPipeline": "pipeline",
    "OutputProducer": "pipeline",
    "OutputStage": "pipeline",
    "OutputTilePipeline": "pipeline",
    "Pipeline": "pipeline",
    "PipelineState": "pipeline",
    "Role": "pipeline",
    "Roles": "pipeline",
    "Rows": "device.mma",
    "SharedTile": "device.shared",
    "StagedPipeline": "pipeline",
    "StandardTilePayload": "pipeline",
    "StorePipeline": "pipeline",
    "TMAConsumerPipeline": "pipeline",
    "TMAProducerPipeline": "pipeline",
    "TensorMapType": "backend.lowering.types",
    "Threads": "pipeline",
    "TilePipeline": "pipeline",
    "TileQueue": "pipeline",
    "Warpgroups": "pipeline",
    "Warps": "pipeline",
    "cluster": "device.clusters",
    "cluster_sync": "device.clusters",
    "edit_map": "device.edit_map",
    "elect_sync": "ptx",
    "fence_mbarrier_init": "ptx",
    "fence_proxy_async": "ptx",
    "fragment": "device.mma",
    "launcher": "host.launching",
    "load_fragment": "device.mma",
    "load_partitioned": "device.multicast",
    "load_rows": "device.mma",
    "rows": "device.mma",
    "scopes": "device.scope",
    "shared_barrier": "device.shared",
    "shared_barriers": "device.shared",
    "shared_tile": "device.shared",
    "wgmma": "device.mma",
    "wgmma_wait": "device.mma",
}

__all__ = [  # noqa: PLE0604
    "ByteLedgerError",
    "CoordinateError",
    "DType",
    "Im2colMap",
    "MatrixLayout",
    "PipelineError",
    "PipelineTimeout",
    "PixelBox",
    "RaggedTensorMap",
    "Swizzle",
    "TensorMap",
    "TensorMapArray",
    "Tile",
    "__version__",
    "im2col_map",
    "im2col_wide_map",
    "ptx",
    "ragged_tensor_map",
    "reference_im2col",
    "reference_im2col_store",
    "reference_matrix",
    "reference_reduce",
    "reference_store",
    "reference_tile",
    "swizzle_index",
    "tensor_map",
    *_HOME,
]

if TYPE_CHECKING:
    from numba_tma import ptx as ptx
    from numba_tma.backend.lowering.types import TensorMapType as TensorMapType
    from numba_tma.device.barrier import Barrier as Barrier
    from numba_tma.device.barrier import BarrierArray as BarrierArray
    from numba_tma.device.causal_scheduler import CausalLPTScheduler as CausalLPTScheduler
    from numba_tma.device.clusters import cluster as cluster
    from numba_tma.device.clusters import cluster_sync as cluster_sync
    from numba_tma.device.edit_map import DESCRIPTOR as DESCRIPTOR
    from numba_tma.device.edit_map import edit_map as edit_map
    from numba_tma.device.matrix_descriptor import MatrixDescriptor as MatrixDescriptor
    from numba_tma.device.matrix_descriptor import MatrixDescriptorPair as MatrixDescriptorPair
    from numba_tma.device.mma import Fragment as Fragment
    from numba_tma.device.mma import Rows as Rows
    from numba_tma.device.mma import fragment as fragment
    from numba_tma.device.mma import load_fragment as load_fragment
    from numba_tma.device.mma import load_rows as load_rows
    from numba_tma.device.mma import rows as rows
    from numba_tma.device.mma import wgmma as wgmma
    from numba_tma.device.mma import wgmma_wait as wgmma_wait
    from numba_tma.device.multicast import load_partitioned as load_partitioned
    from numba_tma.device.scheduler import GridStridedScheduler as GridStridedScheduler
    from numba_tma.device.scheduler import GroupedScheduler as GroupedScheduler
    from numba_tma.device.scheduler import HilbertScheduler as HilbertScheduler
    from numba_tma.device.scope import scopes as scopes
    from numba_tma.device.shared import SharedTile as SharedTile
    from numba_tma.device.shared import shared_barrier as shared_barrier
    from numba_tma.device.shared import shared_barriers as shared_barriers
    from numba_tma.device.shared import shared_tile as shared_tile
    from numba_tma.host.launching import launcher as launcher
    from numba_tma.pipeline import BlockScaledTilePayload as BlockScaledTilePayload
    from numba_tma.pipeline import CircularBuffer as CircularBuffer
    from numba_tma.pipeline import KVPipeline as KVPipeline
    from numba_tma.pipeline import NamedBarrier as NamedBarrier
    from numba_tma.pipeline import OrderedSequenceBarrier as OrderedSequenceBarrier
    from numba_tma.pipeline import OutputConsumer as OutputConsumer
    from numba_tma.pipeline import OutputPipeline as OutputPipeline
    from numba_tma.pipeline import OutputProducer as OutputProducer
    from numba_tma.pipeline import OutputStage as OutputStage
    from numba_tma.pipeline import OutputTilePipeline as OutputTilePipeline
    from numba_tma.pipeline import Pipeline as Pipeline
    from numba_tma.pipeline import PipelineState as PipelineState
    from numba_tma.pipeline import Role as Role
    from numba_tma.pipeline import Roles as Roles
    from numba_tma.pipeline import StagedPipeline as StagedPipeline
    from numba_tma.pipeline import StandardTilePayload as StandardTilePayload
    from numba_tma.pipeline import StorePipeline as StorePipeline
    from numba_tma.pipeline import Threads as Threads
    from numba_tma.pipeline import TilePipeline as TilePipeline
    from numba_tma.pipeline import TileQueue as TileQueue
    from numba_tma.pipeline import TMAConsumerPipeline as TMAConsumerPipeline
    from numba_tma.pipeline import TMAProducerPipeline as TMAProducerPipeline
    from numba_tma.pipeline import Warpgroups as Warpgroups
    from numba_tma.pipeline import Warps as Warps
    from numba_tma.ptx import CachePolicy as CachePolicy
    from numba_tma.ptx import elect_sync as elect_sync
    from numba_tma.ptx import fence_mbarrier_init as fence_mbarrier_init
    from numba_tma.ptx import fence_proxy_async as fence_proxy_async


if simulated():
    __all__.remove("TensorMapType")  # a type of the compiler, which the simulator replaces


def __getattr__(name: str) -> Any:
    if name in ("kernels", "ptx"):
        return importlib.import_module(f"numba_tma.{name}")
    if name == "testing":
        return importlib.import_module("numba_tma.tools.testing")
    if name not in _HOME or name not in __all__:
        raise AttributeError(f"module 'numba_tma' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"numba_tma.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "kernels", "testing"})


def _attach() -> None:
    """Let the compiler know of declarations: it walks them when it compiles a kernel."""
    importlib.import_module("numba_tma.backend.compiler")


def _type_of(argument: KernelArgument) -> Any:
    """Register what is declared; return the compiler's type of a kernel's argument."""
    importlib.import_module("numba_tma.device.shared")  # a map's methods
    importlib.import_module("numba_tma.backend.compiler").register_declared()
    return importlib.import_module("numba_tma.backend.lowering.types").type_of(argument)


if simulated():
    from numba_tma import simulator

    simulator.install()
else:
    interface.when_declared(_attach)
    arguments.typed_by(_type_of)
    if "numba.cuda" in sys.modules:
        _attach()
