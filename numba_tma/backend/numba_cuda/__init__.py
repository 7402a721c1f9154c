"""The backend of numba-cuda: the one layer that imports the insides of its compiler.

- `functions`: a plain ``def`` becomes an instruction of a kernel, or is compiled and inlined;
- `objects`: a dataclass becomes an object that a kernel holds, by value or by reference;
- `kernels`: tensor-map parameters in ``__grid_constant__`` space, shared memory, clusters, launch
  bounds;
- `launches`: the calls of a prepared launch into numba-cuda;
- `passes`, `prune`, `returns`, `scopes`, `releases`, `left_loops`, `loops`, `destinations`: passes
  around type inference; `handles`: what `releases` looks for;
- `body_compiler`, `body_lowering`, `translation`, `shortcuts`: short compiles;
- `variables`: places of variables that hold objects;
- `initialization`: threads wait for the driver's initialisation;
- `cache`: the library's part of the disk cache's key;
- `images`, `targeting`: kernels compiled for the cache and for `export`, which nothing loads;
- `symbols`: such kernels without PTX;
- `atomics`: numba-cuda's atomic operations on objects of the library.

The simulator runs none of these modules: there, the same functions and classes are ordinary Python.
"""

from typing import TypeAlias

from llvmlite import ir
from numba.core import types
from numba.core.typeconv import Conversion
from numba.cuda import cgutils
from numba.cuda.core.base import BaseContext as Context
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.extending import core_models, register_model, typeof_impl
from numba.cuda.np.numpy_support import as_dtype, from_dtype
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, Signature, signature
from numba.cuda.typing.typeof import typeof

from numba_tma.backend.numba_cuda import body_compiler as body_compiler
from numba_tma.backend.numba_cuda import cache as cache
from numba_tma.backend.numba_cuda import destinations as destinations
from numba_tma.backend.numba_cuda import global_lists as global_lists
from numba_tma.backend.numba_cuda import initialization as initialization
from numba_tma.backend.numba_cuda import left_loops as left_loops
from numba_tma.backend.numba_cuda import loops as loops
from numba_tma.backend.numba_cuda import prune as prune
from numba_tma.backend.numba_cuda import releases as releases
from numba_tma.backend.numba_cuda import returns as returns
from numba_tma.backend.numba_cuda import scopes as scopes
from numba_tma.backend.numba_cuda import shortcuts as shortcuts
from numba_tma.backend.numba_cuda import variables as variables
from numba_tma.backend.numba_cuda.atomics import type_atomics
from numba_tma.backend.numba_cuda.constants import run_rule
from numba_tma.backend.numba_cuda.functions import (
    BODIES,
    OUTLINED,
    LiteralTemplate,
    compile_target,
    device_function,
    instruction_function,
    require_isa,
    require_targets,
)
from numba_tma.backend.numba_cuda.guards import ARGUMENTS
from numba_tma.backend.numba_cuda.kernel_globals import load_use_flag, set_use_flags
from numba_tma.backend.numba_cuda.kernels import (
    FINISHED,
    I32,
    I64,
    allocate_shared,
    check_shared_size,
    claim_columns,
    grid_constant,
    limit_registers,
    require_cluster,
    require_launch_bounds,
    require_pairs,
)
from numba_tma.backend.numba_cuda.object_types import (
    ObjectType,
    constant_type,
    constant_value,
    get_field,
    make_object,
    set_field,
    static_of,
)
from numba_tma.backend.numba_cuda.objects import NativeMethod, describe, native_method
from numba_tma.backend.numba_cuda.registration import LOWERED, register_declared
from numba_tma.backend.numba_cuda.targeting import compiling_for
from numba_tma.backend.numba_cuda.vectors import OPERATORS, VectorType, pack, unpack
from numba_tma.backend.numba_cuda.watching import current_line, is_compiling, watching

#: The writer of a function's LLVM, for annotations.
Builder: TypeAlias = ir.IRBuilder
#: A value of LLVM, for annotations.
Value: TypeAlias = ir.Value

#: What `backend.compiler` offers to lowerings.
__all__ = [
    "ARGUMENTS",
    "BODIES",
    "FINISHED",
    "I32",
    "I64",
    "LOWERED",
    "OPERATORS",
    "OUTLINED",
    "AbstractTemplate",
    "AttributeTemplate",
    "Builder",
    "Context",
    "Conversion",
    "LiteralTemplate",
    "NativeMethod",
    "ObjectType",
    "Signature",
    "TypingError",
    "Value",
    "VectorType",
    "allocate_shared",
    "as_dtype",
    "cgutils",
    "check_shared_size",
    "claim_columns",
    "compile_target",
    "compiling_for",
    "constant_type",
    "constant_value",
    "core_models",
    "current_line",
    "describe",
    "device_function",
    "from_dtype",
    "get_field",
    "grid_constant",
    "instruction_function",
    "ir",
    "is_compiling",
    "load_use_flag",
    "lowering_registry",
    "make_object",
    "native_method",
    "pack",
    "register_declared",
    "register_model",
    "require_isa",
    "require_targets",
    "require_cluster",
    "require_pairs",
    "limit_registers",
    "require_launch_bounds",
    "run_rule",
    "scopes",
    "set_field",
    "set_use_flags",
    "signature",
    "static_of",
    "type_atomics",
    "typeof",
    "typeof_impl",
    "types",
    "typing_registry",
    "unpack",
    "watching",
]
