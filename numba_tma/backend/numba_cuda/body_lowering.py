"""The lowering of bodies: Numba's, without what serves exceptions, reference counts and debuggers.

Numba loads a variable before each store, to release what it held, and clears it after its last use.
LLVM removes both, but combines instructions differently where they are missing, so they stay.

The names of bodies are short, since LLVM's text has a function's name at each call.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir as llvm
from numba.core import types
from numba.core.datamodel import ArgPacker
from numba.cuda import cgutils
from numba.cuda.compiler import CUDANativeLowering, _LowerResult
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_use_defs, must_use_alloca
from numba.cuda.core.callconv import RETCODE_OK, CUDACallConv, Status
from numba.cuda.core.compiler import StateDict
from numba.cuda.core.errors import NumbaError
from numba.cuda.core.funcdesc import PythonFunctionDescriptor
from numba.cuda.lowering import CUDALower

#: The LLVM names of compiled functions that return no status but 0.
_SAFE: set[str] = set()


@functools.lru_cache(4096)
def _packer(manager: object, argtypes: tuple[types.Type, ...]) -> ArgPacker:
    """Return what maps arguments to LLVM's; Numba makes it four times for each call."""
    return ArgPacker(manager, argtypes)


class CheckedCallConv(CUDACallConv):
    """Numba's calling convention, with one comparison at a call of a function that cannot fail.

    The branch on it stays too: without it, LLVM orders and combines what is inlined differently.
    """

    def _get_arg_packer(self, argtypes: Sequence[types.Type]) -> ArgPacker:
        return _packer(self.context.data_model_manager, tuple(argtypes))

    def call_function(
        self,
        builder: llvm.IRBuilder,
        callee: llvm.Function,
        resty: types.Type,
        argtys: Sequence[types.Type],
        args: Sequence[llvm.Value],
    ) -> tuple[Status, llvm.Value]:
        """Call a function; return its status and its result."""
        if callee.name not in _SAFE:
            return super().call_function(builder, callee, resty, argtys, args)
        result = cgutils.alloca_once(builder, callee.args[0].type.pointee)
        packed = self._get_arg_packer(argtys).as_arguments(builder, args)
        code = builder.call(callee, [result, *packed])
        error = builder.icmp_signed("!=", code, RETCODE_OK)
        status = Status(**dict.fromkeys(Status._fields) | {"code": code, "is_error": error})
        return status, self.context.get_returned_value(builder, resty, builder.load(result))


class BodyCallConv(CheckedCallConv):
    """The calling convention of bodies."""

    def mangler(
        self, name: str, argtypes: object, *, abi_tags: object = (), uid: int | None = None
    ) -> str:
        """Return a name that is unique in the process: `uid` is the compile's."""
        mangled: str = super().mangler(name, (), uid=uid)
        return mangled

    def decorate_function(self, fn: llvm.Function, *args: object, **kws: object) -> None:
        """Name no argument: Numba names all of them for each call."""


class FoldingBuilder(llvm.IRBuilder):
    """A builder that takes an element of an aggregate from where it was inserted.

    Objects, tuples and fragments are made of their elements, and mostly used for them.
    """

    def extract_value(self, agg: llvm.Value, idx: Any, name: str = "") -> llvm.Value:
        """Return an element of an aggregate."""
        if isinstance(agg, llvm.instructions.InsertValue):
            path = tuple(idx) if isinstance(idx, list | tuple) else (idx,)
            if (element := inserted(agg).get(path)) is not None:
                return element
        return super().extract_value(agg, idx, name)


def inserted(aggregate: llvm.instructions.InsertValue) -> dict[tuple[int, ...], llvm.Value]:
    """Return the elements that were inserted into an aggregate, by their places."""
    if (known := vars(aggregate).get("numba_tma_elements")) is None:
        chain, base = [], aggregate
        while isinstance(base, llvm.instructions.InsertValue) and len(base.indices) == 1:
            chain.append(base)
            base = base.aggregate
        known = {tuple(link.indices): link.value for link in reversed(chain)}
        aggregate.numba_tma_elements = known
    return known


class LeanLower(CUDALower):
    """The lowering of one body: no references are counted, and no variable is described."""

    def lower(self) -> None:
        super().lower()
        if not isinstance(self.fndesc.restype, types.Optional):
            if all(_is_safe(block.terminator) for block in self.function.blocks):
                _SAFE.add(self.function.name)

    def setup_function(self, fndesc: PythonFunctionDescriptor) -> None:
        super().setup_function(fndesc)
        self.builder = FoldingBuilder(self.entry_block)
        self.call_helper = self.call_conv.init_call_helper(self.builder)

    def _find_singly_assigned_variable(self) -> None:
        """Find the variables that need no place in memory: one definition, uses in its block."""
        counts = collections.Counter(
            assign.target.name
            for block in self.blocks.values()
            for assign in block.find_insts(ir.Assign)
        )
        used: set[str] = set()
        if len(self.blocks) > 1:
            used.update(*compute_use_defs(self.blocks).usemap.values())
        kept = {name for name, count in counts.items() if count == 1 and name not in used}
        self._singly_assigned_vars = kept - set(must_use_alloca(self.blocks))
        self._blk_local_varmap: dict[str, llvm.Value] = {}

    def pre_block(self, block: ir.Block) -> None:
        self._cur_ir_block = block

    def lower_block(self, block: ir.Block) -> None:
        self.pre_block(block)
        for statement in block.body:
            self.loc = statement.loc
            try:
                self.lower_inst(statement)
            except NumbaError as error:
                error.add_context(f'lowering "{statement}" at {self.loc}')
                raise

    def lower_inst(self, inst: ir.Inst) -> Any:
        if type(inst) is ir.Del:
            return self.delvar(inst.value)
        if type(inst) is not ir.Assign:
            return super().lower_inst(inst)
        name = inst.target.name
        argument = inst.value.index if type(inst.value) is ir.Arg else None
        return self.storevar(self.lower_assign(self.typeof(name), inst), name, argument)

    def storevar(self, value: llvm.Value, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
            return
        place = self.getvar(name)
        if argidx is None:
            self.builder.load(place)
        self.builder.store(value, place)

    def delvar(self, name: str) -> None:
        if name not in self._blk_local_varmap:
            self._singly_assigned_vars.discard(name)
            place = self.getvar(name)
            self.builder.load(place)
            self.builder.store(llvm.Constant(place.type.pointee, None), place)

    def alloca_lltype(self, name: str, lltype: llvm.Type, datamodel: object = None) -> llvm.Value:
        return cgutils.alloca_once(self.builder, lltype, name=name)


def _is_safe(terminator: llvm.Instruction) -> bool:
    if not isinstance(terminator, llvm.Ret):
        return True
    status = terminator.return_value
    if isinstance(status, llvm.CallInstr):
        return status.callee.name in _SAFE
    return isinstance(status, llvm.Constant) and status.constant == RETCODE_OK.constant


class LeanLowering(CUDANativeLowering):
    """The pass that lowers a function of the library."""

    def run_pass(self, state: StateDict) -> bool:
        """Lower a function into its library, without statistics of what no GPU code has."""
        flags, convention = state.flags, state.call_conv
        is_body = isinstance(convention, BodyCallConv)
        description = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir,
            state.typemap,
            state.return_type,
            state.calltypes,
            mangler=convention.mangler,
            inline=flags.forceinline,
            noalias=flags.noalias,
            abi_tags=[] if is_body else [flags.get_mangle_string()],
            call_conv=convention,
            abi_info=state.abi_info,
        )
        target = state.targetctx
        with target.push_code_library(state.library):
            lower = LeanLower(target, state.library, description, state.func_ir, state.metadata)
            lower.lower()
        state["cr"] = _LowerResult(description, lower.call_helper, cfunc=None, env=lower.env)
        return True
