"""Numba's front end as kernels need it: its own passes in order, without what only other functions pay for.

Kernels count no references, yield nothing, catch nothing, and call the same few hundred functions again and again.
So the lifetimes of variables are never computed, the IR is not checked after each pass, nothing is noted for a
debugger, and what a call with given types returns is found once in a process.

Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, errors, types
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering, NoPythonBackend, PreLowerStripPhis
from numba.core.typeinfer import ConstraintNetwork, TypeInferer
from numba.core.untyped_passes import FixupArgs, TranslateByteCode

from .ssa import reconstruct_ssa

__all__ = ["KernelPipeline"]

_signatures: dict[tuple[types.Function, tuple[types.Type, ...]], Any] = {}


class KernelPipeline(CompilerBase):
    """From byte code to LLVM IR."""

    def define_pipelines(self) -> list[PassManager]:
        return [_Passes("kernel")]


class _Passes(PassManager):
    def run(self, state: Any) -> None:
        """Take the function of ``state`` to LLVM IR in its code library.

        Raises:
            NumbaError: the function does not type or does not lower.
        """
        TranslateByteCode().run_pass(state)
        FixupArgs().run_pass(state)
        state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)
        reconstruct_ssa(state.func_ir.blocks)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        state.typemap, state.return_type, state.calltypes = _infer(state)
        state.func_ir = PreLowerStripPhis()._strip_phi_nodes(state.func_ir)
        _Lowering().run_pass(state)
        NoPythonBackend().run_pass(state)


def _infer(state: Any) -> tuple[dict, types.Type, dict]:
    """Types of variables by name, the type that is returned, and signatures of calls by instruction."""
    warnings: Any = errors.WarningsFixer(errors.NumbaWarning)  # type: ignore[attr-defined]
    inferer = _Inferer(state.typingctx, state.func_ir, warnings)
    inferer.constraints = _Constraints()
    frame = state.typingctx.callstack.register(state.targetctx.target, inferer, state.func_id, state.args)
    with frame, warnings:
        for index, (name, argument) in enumerate(zip(state.func_ir.arg_names, state.args, strict=True)):
            inferer.seed_argument(name, index, argument)
        inferer.seed_return(state.return_type)
        inferer.build_constraint()
        inferer.propagate()
        return inferer.unify()


class _Inferer(TypeInferer):
    def resolve_call(self, fnty: Any, pos_args: Any, kw_args: Any) -> Any:
        """The signature of a call."""
        if kw_args or not isinstance(fnty, types.Function):
            return super().resolve_call(fnty, pos_args, kw_args)
        return _signature(self.context, fnty, tuple(pos_args))


def _signature(context: Any, function: types.Function, arguments: tuple[types.Type, ...]) -> Any:
    """The signature of an intrinsic or operator, which depends on nothing but the types; None if there is none."""
    key = function, arguments
    if key not in _signatures:
        _signatures[key] = context.resolve_function_type(function, arguments, {})
    return _signatures[key]


class _Constraints(ConstraintNetwork):
    def propagate(self, typeinfer: Any) -> list[Exception]:
        """As Numba's, which for each constraint prepares to catch warnings; only if one fails is that done here."""
        try:
            for constraint in self.constraints:
                constraint(typeinfer)
        except errors.NumbaError:
            return super().propagate(typeinfer)
        return []


class _Lower(Lower):
    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """A stack slot for a variable, without telling a debugger its size."""
        return cgutils.alloca_once(self.builder, lltype, name=name)

    def lower_binop(self, resty: types.Type, expr: Any, op: Any) -> Any:
        """The value of an operator, whose operands are not known while compiling."""
        context, builder, signature = self.context, self.builder, self.fndesc.calltypes[expr]
        function = context.typing_context.resolve_value_type(op)
        operands = [
            context.cast(builder, self.loadvar(operand.name), self.typeof(operand.name), wanted)
            for operand, wanted in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        general = _signature(context.typing_context, function, signature.args)
        result = context.get_function(function, general)(builder, operands)
        return context.cast(builder, result, signature.return_type, resty)


class _Lowering(NativeLowering):
    @property
    def lowering_class(self) -> type[Lower]:
        return _Lower
