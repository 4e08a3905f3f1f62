"""Join the two products of a gated linear unit into one product; a kernel then combines the halves of its columns."""

from __future__ import annotations

from ...core.dim import known_same
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .rewriter import remove_dead
from .rules.horizontal import Branch, biased, is_activation, joined


class JoinGates(Pass):
    """Rewrite ``mul(act(dot(x, v) + c), dot(x, w) + d)`` so that one product computes both operands.

    The product is ``dot(x, concat(v, w)) + concat(c, d)``, and slices of it are the operands; ``matmul_nbits`` is
    rewritten alike. Weights are constants of equal shapes, biases are optional. The pass applies where the target has
    kernels for it (`Capabilities.joins_products`); `FuseGated` then fuses the result.
    """

    name = "join_gates"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.joins_products is None:
            return
        for ins in list(module):
            if ins.name != "mul" or ins.module is not module or len(set(ins.inputs)) != 2:
                continue
            found = _unit(*ins.inputs) or _unit(*reversed(ins.inputs))
            if found is None:
                continue
            gate, other = found
            root = gate.root
            if not can.joins_products(root):
                self.log.refuse(self.name, ins, "no kernel makes one value of both halves of a product's columns")
                continue
            self.log.apply(self.name, ins)
            patch = joined(RewriteBuilder(module, root.inputs[0]._next), root.inputs[0], [gate, other], -1, -1)
            for old, new in patch.items():
                module.replace_instruction(old, new)
            remove_dead(module, patch)


def _unit(activated: Instruction, plain: Instruction) -> tuple[Branch, Branch] | None:
    """Return both products of a gated linear unit, the product under the activation first; None if the operands of the
    multiplication are not one."""
    if not is_activation(activated) or activated.shape.is_dynamic:
        return None
    gate, other = (_branch(i) for i in (activated.inputs[0], plain))
    if gate is None or other is None or any(len(i.users) != 1 for i in (activated, gate.result, other.result)):
        return None
    (x, *v), (y, *w) = gate.root.inputs, other.root.inputs
    if x is not y or x.module is not gate.root.module or gate.root is other.root or gate.root.op != other.root.op:
        return None
    if len(v) != len(w):
        return None
    alike = (known_same(a.shape.lens, b.shape.lens) and a.shape.type is b.shape.type for a, b in zip(v, w))
    return (gate, other) if all(alike) else None


def _branch(result: Instruction) -> Branch | None:
    """Return the product with constant weights, and its optional bias, that compute ``result``; None if none does."""
    roots = [result, *result.inputs] if result.name == "add" else [result]
    for root in roots:
        stored = root.name == "matmul_nbits" and all(i.literal is not None for i in root.inputs[1:])
        branch = biased(root, -1) if stored or root.name == "dot" else None
        if branch is not None and branch.result is result:
            return branch
    return None
