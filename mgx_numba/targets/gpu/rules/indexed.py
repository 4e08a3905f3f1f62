"""Lower scatters and pointwise operators that compute with gathered values."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.alternatives import has_lengths
from ....codegen.gpu.data import scatter
from ....codegen.gpu.data.atomic_scatter import UpdateScatter, element_scatter
from ....codegen.gpu.data.gathered import gathered_launch
from ....codegen.problems.cluster import Tensor
from ....codegen.problems.indexed_copy import IndexedCopy, gather_copy
from ....core.shape import row_major_strides
from ....graph.instruction import Instruction
from ....ops.gather import Gather
from ....ops.scatter import ScatterBase
from ...lowering.buffers import View
from ...lowering.gathers import may_be_out_of_range
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .gather_scatter import combine_atomically, is_checked
from .table import lowering


def computes_updates(fast_math: bool, ins: Instruction) -> bool:
    """Return whether a scatter's updates are combined atomically, by a kernel that may compute them."""
    op, updates = ins.op, ins.inputs[2].shape
    if not isinstance(op, ScatterBase) or has_lengths((updates.lens, ins.shape.lens)) or not ins.shape.elements:
        return False
    many = updates.elements * updates.lens[op.axis % updates.ndim] > scatter.MOST_SEARCHED
    return many and scatter.combines_in_any_order(op.combine, ins.shape.type, fast_math)


@lowering("fused_gather", accepts=keeps_inner_axis)
def lower_fused_gather(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that gathers values and computes a module of them."""
    body = ins.module_args[0]
    (last,) = body.results()
    out = low.output(ins)
    sources, operands = _sources(low, ins, last.inputs, out.tensor)
    given = sources, out.tensor, low.options.fast_math, low.origin(ins)
    solution = low.solve(gathered_launch, last.module_args[0], *given)
    low.launch_all(solution, {**operands, "out": out}, ins, *_gathers(last.inputs))


@lowering("fused_scatter")
def lower_fused_scatter(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the data, and a kernel that computes updates and combines them with it."""
    body = ins.module_args[0]
    (last,) = body.results()
    given = dict(zip(body.parameters(), zip(ins.inputs, low.inputs(ins))))
    op, updates = last.operator(ScatterBase), last.inputs[2]
    (_, data), (outside, indices) = (given[i] for i in last.inputs[:2])
    module, values = (updates.module_args[0], updates.inputs) if updates.module_args else (None, (updates,))
    shape = Tensor(updates.shape.type, indices.lens, row_major_strides(indices.lens))
    sources, operands = _sources(low, ins, values, shape)
    out, axis = low.output(ins), op.axis % len(data.lens)
    checked = is_checked(low, op, outside, out)

    def problem(total: Tensor) -> UpdateScatter:
        return element_scatter(op.combine, axis, sources, module, shape, indices.tensor, total, checked)

    combine_atomically(low, ins, data, out, problem, {**operands, "indices": indices}, *_gathers(values), last)


def _gathers(values: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Return the gathers among the values of a submodule, in the order of `GatheredValues.checks`."""
    return tuple(value for value in values if value.name == "gather")


def _sources(
    low: Lowering, ins: Instruction, values: Sequence[Instruction], out: Tensor
) -> tuple[list[Tensor | IndexedCopy], dict[str, View]]:
    """Return the sources of `GatheredValues` and their views, for values of the submodule with the lengths of ``out``:
    its parameters and gathers of these."""
    given = dict(zip(ins.module_args[0].parameters(), zip(ins.inputs, low.inputs(ins))))
    sources: list[Tensor | IndexedCopy] = []
    operands: dict[str, View] = {}
    for k, value in enumerate(values):
        if value in given:
            operands[f"x{k}"] = given[value][1]
            sources.append(operands[f"x{k}"].tensor)
            continue
        (_, read), (places, at) = (given[i] for i in value.inputs)
        axis = value.operator(Gather).axis % len(read.lens)
        checked = may_be_out_of_range(low, places, read.lens[axis])
        sources.append(gather_copy(axis, read.tensor, at.tensor, out, "", checked))
        operands |= {f"x{k}": read, f"indices{k}": at}
    return sources, operands
