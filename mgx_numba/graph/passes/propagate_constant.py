"""Constant folding: operations on literals are evaluated by their NumPy meaning.

Broadcasts stay views of small literals; pointwise operations on them are folded without expanding them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.dim import known_less_equal
from ...environment import environment_flag
from ...errors import MgxError
from ...ops.reduce import ReduceOperator
from ..constants import STORED, compact, constant_array, is_constant, laid_out, uniform, uniform_value
from ..folding import awaits_lengths
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .merge_rnn_outputs import last_states
from .rewriter import remove_dead

NONDETERMINISTIC = frozenset("random_uniform random_seed random_normal multinomial allocate load undefined".split())
"""Operators whose value is not a function of their inputs."""

BROADCASTS = frozenset({"broadcast", "multibroadcast", "scalar"})
GROWTH = 4
"""Most growth of a computed literal over its operands, in bytes."""
SMALL_BYTES = 1 << 20  # of what may be computed whatever it grows from
COMPRESS_FROM = 32  # elements from which a literal of one value is kept as that value, spread


class PropagateConstant(Pass):
    """``f(literals) -> literal``, unless the result needs much more memory than the operands or the program's allowance
    is used up; the rest is computed at run time."""

    name = "propagate_constant"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.fold(module)

    def fold(self, module: Module) -> int:
        """Fold a module's constants; return the number of replaced instructions."""
        count, trace = 0, environment_flag("MIGRAPHX_TRACE_PROPAGATE_CONSTANT")
        for ins in list(module):
            if ins.module is not module or ins is module.last or not _is_candidate(ins):
                continue
            builder = RewriteBuilder(module, ins)
            value = _fold(ins, builder)
            if value is None:
                builder.discard()
                continue
            if trace:
                print(f"Constant replace: {ins.op} -> {ins.shape}")
            for new in builder.created:
                if not new.is_literal:
                    new.debug_symbols = ins.debug_symbols
            module.replace_instruction(ins, value)
            remove_dead(module, [ins])
            count += 1
        return count


def _is_candidate(ins: Instruction) -> bool:
    name = ins.op.name
    if not ins.inputs or ins.module_args or name in BROADCASTS or name in STORED or name in NONDETERMINISTIC:
        return False
    if not is_constant(ins.inputs[0]) or name.startswith("@") or ins.shape.is_dynamic or ins.shape.sub_shapes:
        return False
    if last_states(ins):  # they stand for results of the layer that its literal would not have
        return False
    return all(map(is_constant, ins.inputs))


def _fold(ins: Instruction, builder: RewriteBuilder) -> Instruction | None:
    if ins.op.pointwise:
        folded = builder.op(ins.op, *ins.inputs)
        return folded if is_constant(folded) else None
    repeated = uniform_value(ins)
    if repeated is not None and not known_less_equal(ins.shape.elements, 1):
        if ins.inputs[0].name in BROADCASTS:
            return builder.scalar(repeated, ins)
    elif ins.op.view and not ins.inputs[0].is_literal and ins.name != "bit_cast":
        # a view of a broadcast that differs along some axis: expanding it would cost memory
        return None
    if awaits_lengths(ins) or any(i.shape.symbolic for i in ins.inputs):
        return None
    arrays = [a for i in ins.inputs if (a := constant_array(i)) is not None]
    if ins.shape.bytes > max(SMALL_BYTES, GROWTH * sum(compact(a).nbytes for a in arrays)):
        return None
    allowance = builder.module.allowance
    if not allowance.take(_work(ins, arrays), ins.shape.bytes):
        return None
    if ins.name == "layout":
        laid = laid_out(arrays[0], ins.shape)
        allowance.hold(laid.numpy())
        return builder.argument(laid)
    value = _evaluate(ins, arrays)
    if value is None:
        return None
    allowance.hold(value)
    if value.size >= COMPRESS_FROM and not ins.op.view and uniform(value):
        return builder.scalar(value[(0,) * value.ndim], ins)
    return builder.constant(value, ins.shape)


def _work(ins: Instruction, arrays: Sequence[np.ndarray]) -> int:
    """Return the operations of an evaluation; reductions do not traverse repeated elements."""
    if isinstance(ins.op, ReduceOperator) and ins.op.repeated != "":
        return ins.shape.elements + sum(compact(a).size for a in arrays)
    return max(ins.op.flops(ins.shape, [i.shape for i in ins.inputs]), ins.shape.elements + sum(a.size for a in arrays))


def _evaluate(ins: Instruction, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the value; None if the operator fails, which is then reported at run time."""
    try:
        value = ins.op.compute(ins.shape, arrays)
    except (MgxError, NotImplementedError):
        return None
    value = np.asarray(value)
    if ins.name == "slice" and not value.flags.c_contiguous:
        value = np.ascontiguousarray(value)
    return value if value.shape == ins.shape.lens else None
