"""Evaluating a fused module through a handler of the scalar-operation protocol, and naming it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.instruction import Instruction
from ..graph.module import Module
from ..ops.base import Pointwise
from ..ops.scalar import ScalarOps

__all__ = ["cluster_name", "evaluate_scalar_module", "scalar_flops"]

MAX_NAME = 96


def evaluate_scalar_module(module: Module, handler: ScalarOps, arguments: Sequence[Any]) -> list[Any]:
    """Results of a module of pointwise instructions, with a handler's values for its parameters."""
    values: dict[Instruction, Any] = dict(zip(module.parameters(), arguments))
    for ins in module:
        if ins.literal is not None:
            values[ins] = handler.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        elif isinstance(ins.op, Pointwise):
            values[ins] = ins.op.scalar(handler, *(values[i] for i in ins.inputs))
    return [values[r] for r in module.results()]


def cluster_name(module: Module, fallback: str) -> str:
    """MIGraphX-style kernel name: the fused operations in order, ``mul_add_relu_kernel``."""
    skipped = ("@literal", "@param", "@return", "multibroadcast", "broadcast")
    operations = [ins.name for ins in module if ins.name not in skipped]
    stem = "_".join(operations) or fallback
    return f"{stem[:MAX_NAME].replace(':', '_')}_kernel"


def scalar_flops(module: Module) -> int:
    """Operations for one element."""
    return sum(isinstance(ins.op, Pointwise) and ins.name not in ("identity", "convert") for ins in module)
