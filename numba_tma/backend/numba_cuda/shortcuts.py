"""Shortcuts in Numba's compiler: the same results, computed once or where they are needed.

`tests/benchmarks/sweeps/compile_times.py` measures what is left.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numba.core.errors
from llvmlite.ir import Module
from numba.core import types
from numba.cuda import dispatcher, lowering, typing, utils
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core import base, errors, ir, ir_utils, typeinfer
from numba.cuda.core.postproc import PostProcessor, VariableLifetime
from numba.cuda.core.transforms import canonicalize_cfg
from numba.cuda.core.typeinfer import ConstraintNetwork, TypeInferer
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.target import CUDATypingContext
from numba.cuda.typing import templates
from numba.cuda.typing.templates import Signature

from numba_tma.backend.numba_cuda.refusals import note_place
from numba_tma.host.collections import without_collections

# ------------------------------------------------------------------ collections of garbage

CUDACodeLibrary.get_asm_strs = without_collections(CUDACodeLibrary.get_asm_strs)

# ------------------------------------------------------------------ operators on numbers

_OPERATORS = {bool, *(f for f in vars(operator).values() if callable(f))}
_NUMBERS = {
    types.Integer,
    types.Float,
    types.Boolean,
    types.IntegerLiteral,
    types.BooleanLiteral,
}

_get_call_type = types.Function.get_call_type


def _get_call_type_once(
    self: types.Function,
    context: CUDATypingContext,
    args: tuple[types.Type, ...],
    kws: dict[str, types.Type],
) -> Signature | None:
    """Type an operator on numbers once for its argument types: it has about 20 templates."""
    if (
        self.typing_key not in _OPERATORS
        or kws
        or context is not cuda_target.typing_context
        or not all(type(arg) in _NUMBERS for arg in args)
    ):
        return _get_call_type(self, context, args, kws)
    known = vars(self).setdefault("numba_tma_signatures", {})
    args = tuple(args)
    if args not in known:
        sig = _get_call_type(self, context, args, kws)
        if sig is None or self.get_impl_key(sig) is not self.typing_key:
            return sig  # its implementation is compiled for the flags of this compile
        known[args] = sig
    return known[args]


types.Function.get_call_type = _get_call_type_once

# ------------------------------------------------------------------ registries

_get_target_registry = templates._TemplateTargetHelperMixin._get_target_registry


def _get_target_registry_once(self: templates._TemplateTargetHelperMixin, reason: str) -> Any:
    """Return where a template's lowering is registered: Numba loads all registries for each one.

    What it loads then is loaded by the next compile, or where a lowering is not found.
    """
    first = next(iter(cuda_target.target_context._registries), None)
    return _get_target_registry(self, reason) if first is None else first


templates._TemplateTargetHelperMixin._get_target_registry = _get_target_registry_once

# ------------------------------------------------------------------ implementations by types


def _match_arguments(
    self: base.OverloadSelector, formal_args: tuple[Any, ...], actual_args: tuple[Any, ...]
) -> bool:
    """Return whether an implementation is for these types: Numba calls a method for each type."""
    if formal_args and isinstance(formal_args[-1], types.VarArg):
        rest = len(actual_args) - len(formal_args) + 1
        formal_args = formal_args[:-1] + (formal_args[-1].dtype,) * rest
    if len(formal_args) != len(actual_args):
        return False
    for formal, actual in zip(formal_args, actual_args):
        if formal is actual or formal is types.Any:
            continue
        if not isinstance(formal, type):
            if formal != actual:
                return False
        elif not (
            issubclass(actual, formal) if isinstance(actual, type) else isinstance(actual, formal)
        ):
            return False
    return True


base.OverloadSelector._match_arglist = _match_arguments

# ------------------------------------------------------------------ isinstance of types

# No class is registered as a virtual subclass of a type, which Numba's metaclass of types, an
# `ABCMeta`, looks for in Python at each `isinstance`.
for _name in ("__instancecheck__", "__subclasscheck__"):
    setattr(type(types.Type), _name, getattr(type, _name))

# ------------------------------------------------------------------ signatures and arguments

_signature_once = functools.lru_cache(4096)(inspect.signature)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature; Numba asks for it at each call that it types or lowers."""
    try:
        return _signature_once(function)
    except TypeError:  # it has no hash, or no signature
        return inspect.signature(function)


utils.pysignature = _signature

_fold = templates.fold_arguments
_BY_PLACE = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def _fold_arguments(
    pysig: inspect.Signature,
    args: Sequence[object],
    kws: Mapping[str, object] | Sequence[tuple[str, object]],
    normal: Callable[..., object],
    *others: Callable[..., object],
) -> tuple[object, ...]:
    """Return a call's arguments as a function takes them; Numba binds those given in order, too."""
    parameters = pysig.parameters.values()
    if kws or len(args) != len(parameters) or any(p.kind not in _BY_PLACE for p in parameters):
        return _fold(pysig, args, kws, normal, *others)
    return tuple(normal(i, p, arg) for i, (p, arg) in enumerate(zip(parameters, args)))


templates.fold_arguments = typing.fold_arguments = dispatcher.fold_arguments = _fold_arguments

_has_loc = base._has_loc


def _takes_loc(function: Callable[..., Any]) -> bool:
    """Return whether a lowering takes `loc`, which Numba asks for at each use."""
    if type(function) is not FunctionType or vars(function).keys() & _OTHER_SIGNATURE:
        return _has_loc(function)
    code = function.__code__
    return "loc" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


_OTHER_SIGNATURE = {"__wrapped__", "__signature__"}
base._has_loc = _takes_loc

# ------------------------------------------------------------------ lifetimes of variables

_run = PostProcessor.run


def _run_as_needed(
    self: PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False
) -> None:
    """Leave out the live variables of blocks, which only generators need, after each pass."""
    func_ir = self.func_ir
    if func_ir.is_generator:
        _run(self, emit_dels, extend_lifetimes)
        return
    if _has_loops(func_ir.blocks):
        func_ir.blocks = canonicalize_cfg(func_ir.blocks)
    func_ir.variable_lifetime = VariableLifetime(func_ir.blocks)
    func_ir.generator_info = None
    if emit_dels:
        self._insert_var_dels(extend_lifetimes=extend_lifetimes)


def _has_loops(blocks: dict[int, ir.Block]) -> bool:
    return any(
        target <= label
        for label, block in blocks.items()
        for target in block.terminator.get_targets()
    )


PostProcessor.run = _run_as_needed


# ------------------------------------------------------------------ variables of statements

_list = ir.Inst._rec_list_vars
_list_statement = ir_utils.compat_list_vars_stmt
#: What holds no variable.
_WITHOUT_VARIABLES = {ir.Loc, ir.Const, ir.Global, ir.FreeVar, ir.Arg, str, int, bool, type(None)}


def _list_variables(self: ir.Inst, value: object) -> list[ir.Var]:
    """Return the variables in `value`: Numba looks for them in each place and each value."""
    found: list[ir.Var] = []
    _add_variables(self, value, found)
    return found


def _add_variables(self: ir.Inst, value: Any, found: list[ir.Var]) -> None:
    kind = type(value)
    if kind is ir.Var:
        found.append(value)
    elif kind is ir.Expr:
        _add_variables_of(value, value._kws.values(), found)
    elif kind is dict:
        _add_variables_of(self, value.values(), found)
    elif kind is list or kind is tuple:
        _add_variables_of(self, value, found)
    elif kind not in _WITHOUT_VARIABLES:
        found += _list(self, value)


def _add_variables_of(self: ir.Inst, parts: Iterable[object], found: list[ir.Var]) -> None:
    for part in parts:
        kind = type(part)
        if kind is ir.Var:
            found.append(part)
        elif kind not in _WITHOUT_VARIABLES:
            _add_variables(self, part, found)


def _list_of_statement(statement: ir.Stmt) -> list[ir.Var]:
    """Return the variables of a statement; Numba makes the statement anew to find them."""
    if type(statement) is ir.Assign:
        return statement.list_vars()
    return _list_statement(statement)


ir.Inst._rec_list_vars = _list_variables
ir_utils.compat_list_vars_stmt = _list_of_statement

# ------------------------------------------------------------------ rounds of type inference

_propagate = TypeInferer.propagate


def _propagate_once(self: TypeInferer, raise_errors: bool = True) -> list[Exception] | None:
    """Run the constraints of a function without loops once: no type changes after its first use."""
    if _is_in_order(self) and not self.constraints.propagate(self):
        types_ = [variable.type for variable in self.typevars.values()]
        if all(typ is not None and typ.is_precise() for typ in types_):
            return None
    return _propagate(self, raise_errors)


def _is_in_order(inferer: TypeInferer) -> bool:
    """Return whether each variable has one definition, before its uses."""
    counts = collections.Counter(
        assign.target.name
        for block in inferer.blocks.values()
        for assign in block.find_insts(ir.Assign)
    )
    return max(counts.values()) == 1 and not _has_loops(inferer.blocks)


TypeInferer.propagate = _propagate_once

# ------------------------------------------------------------------ errors and warnings


class _ErrorContext:
    """Numba's `new_error_context`, which adds words to an error, without a generator for each."""

    def __init__(self, fmt_: str, *args: object, **kwargs: Any) -> None:
        self.given = fmt_, args, kwargs
        loc = kwargs.get("loc")
        if loc is not None and not loc.filename.startswith(errors._numba_path):
            errors.loc_info.update(kwargs)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, errors.NumbaError):
            error.add_context(errors._format_msg(*self.given))


errors.new_error_context = lowering.new_error_context = _ErrorContext
typeinfer.new_error_context = _ErrorContext


def _propagate_constraints(self: ConstraintNetwork, inferer: TypeInferer) -> list[Exception]:
    """Execute all constraints; return errors. Numba catches warnings around each of them."""
    found, kept = [], inferer.warnings
    others: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", kept._category)
        for constraint in self.constraints:
            try:
                constraint(inferer)
            except numba.core.errors.TypingError as error:  # numba-cuda's own are others
                called = inferer.typevars.get(getattr(constraint, "func", None))
                note_place(error, getattr(called, "type", None), constraint.loc)
                raise
            except errors.ForceLiteralArg as error:
                found.append(error)
            except errors.TypingError as error:
                known = errors.TypingError(str(error), loc=constraint.loc, highlighting=False)
                found.append(utils.chain_exception(known, error))
            for warning in caught:
                if issubclass(warning.category, kept._category):
                    place = constraint.loc.filename, constraint.loc.line, warning.category
                    kept._warnings[place].add(str(warning.message))
                else:
                    others.append(warning)
            caught.clear()
    for other in others:
        warnings.warn_explicit(str(other.message), other.category, other.filename, other.lineno)
    return found


ConstraintNetwork.propagate = _propagate_constraints

# ------------------------------------------------------------------ what libNVVM gets

_replace = nvvm.llvm_replace
_modules = CUDACodeLibrary.modules.fget
_compile_ir = nvvm.compile_ir
_make = CUDACodeLibrary.__init__


def _replace_where_found(llvmir: str) -> str:
    """Return the text of a module with Numba's atomics, which it looks for in each module."""
    found = any(word in llvmir for word in ("___numba_atomic_", "attributes #", "immarg"))
    return _replace(llvmir) if found else llvmir


def _modules_once(self: CUDACodeLibrary) -> list[Module]:
    """Return each module once: Numba lists a function's module for each of its callers."""
    return list(dict.fromkeys(_modules(self)))


def _compile_without_libdevice(llvmir: str | list[str], **options: object) -> bytes:
    """Compile modules that call no function of libdevice, which Numba finds, reads and adds."""
    modules = [llvmir] if isinstance(llvmir, str) else llvmir
    if options.get("fastmath") or any("__nv_" in module for module in modules):
        return _compile_ir(llvmir, **options)
    options.pop("fastmath", None)
    unit = nvvm.CompilationUnit(options)
    for module in modules:
        unit.add_module(nvvm.llvm_replace(module).encode())
    unit.verify()  # of what is invalid, libNVVM may end the process
    return unit.compile()


class _InOrder(dict[CUDACodeLibrary, None]):
    """A set in the order of additions, by which a kernel's code is the same in each process.

    Numba's set has the order of addresses, and LLVM's choices depend on the order of functions.
    """

    def add(self, library: CUDACodeLibrary) -> None:
        self[library] = None


def _make_library(self: CUDACodeLibrary, *args: object, **kws: object) -> None:
    _make(self, *args, **kws)
    self._linking_libraries = _InOrder()


CUDACodeLibrary.__init__ = _make_library
nvvm.llvm_replace = _replace_where_found
nvvm.compile_ir = _compile_without_libdevice
CUDACodeLibrary.modules = property(_modules_once)
