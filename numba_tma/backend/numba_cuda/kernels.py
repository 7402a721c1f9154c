"""Kernels as a whole: tensor-map parameters, shared memory, clusters, launch bounds."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, compiler, dispatcher
from numba.cuda.core import targetconfig
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target

from numba_tma.backend.numba_cuda.facts import COMPILING, facts_of
from numba_tma.backend.numba_cuda.functions import (
    FUNCTIONS,
    OUTLINED,
    compile_target,
    exact,
    toolkit,
)
from numba_tma.backend.numba_cuda.kernel_globals import declare_shared, define_shared
from numba_tma.backend.numba_cuda.refusals import shorten
from numba_tma.backend.numba_cuda.registration import register_declared
from numba_tma.backend.numba_cuda.requirements import shared_symbol
from numba_tma.host.architectures import (
    BLACKWELL,
    PLAIN_SHARED,
    architecture_of,
    static_shared,
    target_of,
)
from numba_tma.host.cluster_rules import check_device_function, cluster_of
from numba_tma.host.collections import without_collections
from numba_tma.host.loop_rules import WITHOUT_SCOPES
from numba_tma.host.progress import ticking
from numba_tma.host.tensor_tiles import ColumnClaim
from numba_tma.host.tracing import compiles_traced

I32, I64 = ir.IntType(32), ir.IntType(64)


class _GridConstant(ir.values.ArgumentAttributes):
    """Parameter attributes of a tensor map, which hold once the function is a kernel."""

    is_kernel = False
    typed = False

    def _to_list(self, typ: Any) -> list[str]:
        if not self.is_kernel:
            return []
        # libNVVM speaks LLVM 7 before Blackwell, where byval has no type.
        return [f"byval({typ.pointee})" if self.typed else "byval", "align 64"]


def grid_constant(argument: Any) -> Any:
    """Pass `argument` (a pointer) by value in ``__grid_constant__`` space if this is a kernel."""
    if isinstance(argument, ir.Argument):
        attributes = _GridConstant()
        flags = targetconfig.ConfigStack.top_or_none()
        debug = flags.debuginfo and not flags.dbg_directives_only
        attributes.typed = debug or BLACKWELL.allow(compile_target())
        argument.attributes = attributes
    return argument


def _annotate_tensor_maps(function: Any) -> None:
    positions = []
    for position, argument in enumerate(function.args, 1):
        if isinstance(argument.attributes, _GridConstant):
            argument.attributes.is_kernel = True
            positions.append(ir.Constant(I32, position))
    if positions:
        module = function.module
        annotation = module.add_metadata(
            (function, ir.MetaDataString(module, "grid_constant"), module.add_metadata(positions))
        )
        cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(annotation)


def parameter_sizes(kernel: dispatcher._Kernel) -> tuple[int, ...]:
    """Return the bytes of each parameter of a compiled kernel."""
    function = kernel._codelibrary.get_function(kernel.entry_name)
    return tuple(_nbytes(_passed(argument)) for argument in function.args)


def _passed(argument: ir.Argument) -> ir.Type:
    by_value = isinstance(argument.attributes, _GridConstant)
    return argument.type.pointee if by_value else argument.type


def _check_shared_sum(function: Any) -> None:
    """Raise if a kernel's shared memory, the library's and the user's, exceeds the block's."""
    variables = [g for g in function.module.global_values if _in_shared_memory(g)]
    facts = facts_of(function)
    if facts.allocates:
        parts: dict[str, int] = {}
        for i, variable in enumerate(variables, 1):  # ptxas lays them out in this order
            gap = -sum(parts.values()) % (variable.align or 1)
            if gap:
                parts[f"alignment of {i}."] = gap
            what = getattr(variable, "what", "cuda.shared.array")
            parts[f"{i}. {what}"] = _nbytes(variable.type.pointee)
        _check_sum("the kernel", parts, facts.shared_limit, facts.target)


def _in_shared_memory(variable: Any) -> bool:
    return isinstance(variable, ir.GlobalVariable) and variable.addrspace == nvvm.ADDRSPACE_SHARED


def _nbytes(llvm_type: ir.Type) -> int:
    return int(llvm_type.get_abi_size(cuda_target.target_context.target_data))


def _annotate_cluster(function: Any) -> None:
    module = function.module
    annotations = cgutils.get_or_insert_named_metadata(module, "nvvm.annotations")
    for axis, blocks in zip("xyz", getattr(function, "cluster", ())):
        name = ir.MetaDataString(module, f"cluster_dim_{axis}")
        annotations.add(module.add_metadata((function, name, ir.Constant(I32, blocks))))


_compile_cuda = compiler.compile_cuda


@functools.wraps(_compile_cuda)
@without_collections
def _compile_declared(pyfunc: Any, *args: Any, **kwargs: Any) -> Any:
    """Register new declarations; keep the cluster size with the function until it is a kernel."""
    register_declared()
    size = cluster_of(pyfunc)
    if size and not architecture_of(target_of(kwargs["cc"])).cluster:
        raise TypingError(
            f"{pyfunc.__qualname__}: clusters need compute capability 9.0 (Hopper) or newer, and "
            "it is compiled for {}.{}".format(*kwargs["cc"])
        )
    first = not COMPILING
    COMPILING.append(pyfunc)
    try:
        with ticking(f"compiling {pyfunc.__qualname__}") if first else contextlib.nullcontext():
            result = _compile_cuda(pyfunc, *args, **kwargs)
    except Exception as error:  # the class of Numba's error differs between its releases
        if "'with (context manager)" not in str(error):
            if first:  # an error of a device function passes its callers
                shorten(error)
            raise
        raise TypingError(f"{pyfunc.__qualname__}: {WITHOUT_SCOPES}") from None
    finally:
        COMPILING.pop()
    if size:
        result.library.get_function(result.fndesc.llvm_func_name).cluster = size
    if compiles_traced() and compiles_device_function():
        function = result.library.get_function(result.fndesc.llvm_func_name)
        function.attributes.add("alwaysinline")
    if pyfunc in OUTLINED:
        result.library.get_function(result.fndesc.llvm_func_name).attributes.add("noinline")
    return result


@functools.wraps(_compile_cuda)
def _compile_as_asked(pyfunc: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile for the target that `numba.cuda.compile` is asked for, not for a GPU's own."""
    return _compile_declared(pyfunc, *args, **kwargs | {"cc": exact(kwargs["cc"])})


compiler.compile_cuda = _compile_as_asked
dispatcher.compile_cuda = _compile_declared


#: Device functions that this thread compiles, one in another.
_device_functions = threading.local()


def compiles_device_function() -> bool:
    """Return whether the function under compilation is a device function, and no kernel."""
    return getattr(_device_functions, "depth", 0) > 0


_compile_device = dispatcher.CUDADispatcher.compile_device


@functools.wraps(_compile_device)
def _compile_device_without_cluster(self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        check_device_function(self.py_func)
    except ValueError as error:
        raise TypingError(str(error)) from None
    _device_functions.depth = getattr(_device_functions, "depth", 0) + 1
    try:
        return _compile_device(self, *args, **kwargs)
    finally:
        _device_functions.depth -= 1


dispatcher.CUDADispatcher.compile_device = _compile_device_without_cluster


_set_cuda_kernel = nvvm.set_cuda_kernel
#: Called with the LLVM function of a kernel, which is complete: traces.
FINISHED: list[Callable[[Any], None]] = []


def _set_cuda_kernel_and_finish(function: Any) -> None:
    _set_cuda_kernel(function)
    for finish in FINISHED:
        finish(function)
    _annotate_tensor_maps(function)
    _annotate_cluster(function)
    _check_cluster(function)
    _check_shared_sum(function)


nvvm.set_cuda_kernel = _set_cuda_kernel_and_finish


def require_launch_bounds(builder: Any, bounds: tuple[int, int]) -> None:
    """Set launch bounds of the kernel under `builder`, unless the user gives the same."""
    facts_of(builder.function).require_launch_bounds(bounds)


def limit_registers(builder: ir.IRBuilder, block: int) -> None:
    """Let the kernel under `builder` have the registers of a block of so many threads at most."""
    facts_of(builder.function).block = block


def require_cluster(builder: Any, size: tuple[int, int], rule: Callable[[Any], str]) -> None:
    """Require clusters of `size` of the kernel under `builder`; `rule(size)` is the error."""
    facts_of(builder.function).clusters.append((lambda given: given == (*size, 1), rule))


def require_pairs(builder: Any, rule: Callable[[Any], str]) -> None:
    """Require clusters of an even number of blocks along x; `rule(size)` is the error."""
    facts_of(builder.function).clusters.append((lambda given: given[0] % 2 == 0, rule))


def claim_columns(builder: Any, claim: ColumnClaim) -> None:
    """Let a matrix of the kernel under `builder` have columns of tensor memory."""
    facts_of(builder.function).claim_columns(claim)


def _check_cluster(function: Any) -> None:
    size = getattr(function, "cluster", (1, 1, 1))
    for fits, rule in facts_of(function).clusters:
        if not fits(size):
            raise TypingError(rule(size))


_set_launch_bounds = nvvm.set_launch_bounds


def _set_launch_bounds_of_roles(function: Any, launch_bounds: Any) -> None:
    facts = facts_of(function)
    required = facts.launch_bounds
    if required and launch_bounds is not None:
        given = launch_bounds if isinstance(launch_bounds, tuple) else (launch_bounds,)
        if tuple(given[:2]) != required:
            raise TypingError(
                f"launch_bounds={launch_bounds}: the kernel's roles move registers between "
                f"{required[0]} threads, one block per SM: leave launch_bounds out, "
                f"or give {required}, which Roles.launch_bounds says"
            )
    if launch_bounds is None:
        launch_bounds = required or ((facts.block, 1) if facts.block else None)
    _set_launch_bounds(function, launch_bounds)


nvvm.set_launch_bounds = _set_launch_bounds_of_roles


def shared_limit() -> int:
    """Return the limit of a block's static shared memory on the target, in bytes."""
    return PLAIN_SHARED if toolkit()[0] < 13 else static_shared(compile_target())


def check_shared_size(what: str, parts: dict[str, int]) -> None:
    """Raise a TypingError with the sum if `parts` (bytes by name) exceed the shared memory."""
    _check_sum(what, parts, shared_limit(), compile_target())


def _check_sum(what: str, parts: dict[str, int], limit: int, target: str) -> None:
    total = sum(parts.values())
    if total <= limit:
        return
    terms = " + ".join(f"{n:,} B ({name})" for name, n in parts.items())
    raise TypingError(
        f"{what} needs {terms} = {total:,} B of shared memory, but a block has {limit:,} B on "
        f"sm_{target}{_other_compiler(target)}: use fewer stages or smaller tiles"
    )


def _other_compiler(target: str) -> str:
    """Say what would allow more shared memory: CUDA 13, or the architecture's own target."""
    if toolkit()[0] < 13 and static_shared(target) > PLAIN_SHARED:
        return (
            f" with CUDA {toolkit()[0]}, whose ptxas refuses more than 48 KiB of static shared "
            f"memory (CUDA 13 allows {static_shared(target):,} B: install numba-cuda[cu13])"
        )
    own = f"{architecture_of(target).number}a"
    if static_shared(own) > static_shared(target):
        return f" ({static_shared(own):,} B on sm_{own})"
    return ""


def allocate_shared(
    builder: Any, nbytes: int, alignment: int, what: str, kind: str = "shared"
) -> Any:
    """Return the shared-memory address (i32) of a new static allocation of this function.

    `kind` is a requirement on launches; `shared_symbol` lists them.
    """
    owner = hashlib.sha256(builder.function.name.encode()).hexdigest()[:8]
    mine = sum(g.name.startswith("numba_tma_") for g in builder.module.global_values)
    name = shared_symbol(kind, owner, mine)
    facts = facts_of(builder.function)
    facts.allocates, facts.shared_limit, facts.target = True, shared_limit(), compile_target()
    make = declare_shared if COMPILING and COMPILING[-1] in FUNCTIONS else define_shared
    variable = make(builder, name, nbytes, alignment, what)
    return builder.ptrtoint(variable, I32)
