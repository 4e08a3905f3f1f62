"""Lowering rules of operators with one kernel on any back end; the back end supplies a function that makes the launch.

Also the reasons why an operator has no kernel on any back end, and launches of kernels that read tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...codegen.launch import Launch
from ...codegen.problems.cluster import Tensor
from ...graph.instruction import Instruction
from ...ops.lrn import Lrn
from ...ops.resize import Resize
from ...ops.selection import OneHot
from .buffers import View
from .lowering import Lowering

Rule = Callable[[Lowering, Instruction], None]


def launch_with_tables(
    low: Lowering, ins: Instruction, launch: Launch, tables: Mapping[str, np.ndarray], x: View, out: View
) -> None:
    """Append a kernel with operands ``x`` and ``out`` that reads ``tables``, by name, as constants."""
    constants = {name: low.constant(array) for name, array in tables.items()}
    low.launch(launch, {"x": x, "out": out, **constants}, ins)


def lrn_rule(launch_of: Callable[[Lrn, Tensor, Tensor, str], Launch]) -> Rule:
    """Return the rule of local response normalisation: a kernel with operands ``x`` and ``out``; a fallback step for
    integers."""

    def lower_lrn(low: Lowering, ins: Instruction) -> None:
        if not ins.shape.type.is_floating:
            low.host(ins, f"kernels normalise floats, not {ins.shape.type.name}")
            return
        assert isinstance(ins.op, Lrn)
        x, out = low.input(ins, 0), low.output(ins)
        low.launch_all(low.solve(launch_of, ins.op, x.tensor, out.tensor, low.origin(ins)), {"x": x, "out": out}, ins)

    return lower_lrn


def onehot_rule(launch_of: Callable[[int, Tensor, Tensor, Tensor, str], Launch]) -> Rule:
    """Return the rule of one-hot encoding: a kernel with operands ``indices``, ``values`` and ``out``.

    A depth that is known only at run time needs a fallback step.
    """

    def lower_onehot(low: Lowering, ins: Instruction) -> None:
        op = ins.op
        assert isinstance(op, OneHot)
        if op.depth is None:
            low.host(ins, "the depth is known at run time only")
            return
        indices, values, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
        axis = op.axis % len(out.lens)
        tensors = indices.tensor, values.tensor, out.tensor
        solution = low.solve(launch_of, axis, *tensors, low.origin(ins))
        low.launch_all(solution, {"indices": indices, "values": values, "out": out}, ins)

    return lower_onehot


def resize_refusal(ins: Instruction) -> str | None:
    """Return why a resize needs a fallback step; None if there is a kernel."""
    op = ins.op
    assert isinstance(op, Resize)
    if len(ins.inputs) != 1:
        return "the sizes are known at run time only"
    if op.mode != "nearest" and not ins.shape.type.is_floating:
        return f"kernels interpolate floats, not {ins.shape.type.name}"
    return None
