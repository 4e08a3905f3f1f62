"""Fuse gated linear units (Shazeer, "GLU Variants Improve Transformer"): a product's kernel combines both halves of its
result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.dim import known_same
from ...ops.base import make_op
from ..constants import is_constant
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import is_scalar_literal, parameter_name, unfusable

_PRODUCTS = ("dot", "matmul_nbits")


class FuseGated(Pass):
    """``pointwise(y[..., :n], y[..., n:], ...)`` -> ``fused_contraction``, for a product ``y`` with constants, or a
    ``fused_contraction`` of one, that nothing else reads.

    The submodule slices the product first and then works on both halves. Applies to products for which the target has
    kernels (`Capabilities.joins_halves`).
    """

    name = "fuse_gated"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.joins_halves is None:
            return
        for ins in module.named(("pointwise",)):
            if ins.shape.sub_shapes or unfusable(ins) is not None:
                continue
            halves = _halves(ins)
            if halves is None:
                continue
            product = _product(halves[0].inputs[0])
            if product is None or not can.joins_halves(product):
                self.log.refuse(self.name, ins, "kernels of the product keep the halves of its columns apart")
                continue
            self.log.apply(self.name, ins)
            _join(program, module, ins, halves, product)


def _halves(ins: Instruction) -> tuple[Instruction, Instruction] | None:
    """Return the slices of the first and second half of a value's columns, if exactly two slices read the value."""
    found = {i.op.starts: i for i in ins.inputs if i.name == "slice" and known_same(i.shape.lens, ins.shape.lens)}  # type: ignore[attr-defined]
    whole = {i.inputs[0] for i in found.values()}
    if len(found) != 2 or len(whole) != 1:
        return None
    (y,), (first, second) = whole, (found[key] for key in sorted(found))
    rank, columns = y.shape.ndim, ins.shape.lens[-1]
    if not known_same(y.shape.lens, (*ins.shape.lens[:-1], 2 * columns)) or y.module is not ins.module:
        return None
    ranges = [((rank - 1,), (0,), (columns,)), ((rank - 1,), (columns,), (2 * columns,))]
    for own, wanted in zip((first, second), ranges):
        axes, starts, ends = (tuple(getattr(own.op, name)) for name in ("axes", "starts", "ends"))
        if (axes, starts, ends) != wanted or set(own.users) != {ins}:
            return None
    return (first, second) if set(y.users) == {first, second} else None


def _product(y: Instruction) -> Instruction | None:
    """Return the product that computes ``y``, if it has a computed left operand and constant weights."""
    product, outer = y, {i: i for i in y.inputs}
    if y.name == "fused_contraction":
        body = y.module_args[0]
        product = next((i for i in body if i.name in _PRODUCTS), y)
        outer = dict(zip(body.parameters(), y.inputs))
    if product.name not in _PRODUCTS or any(i not in outer for i in product.inputs):
        return None
    typed = product.inputs if product.name == "dot" else product.inputs[:1]
    if unfusable(product) is not None or any(i.shape.type is not product.shape.type for i in typed):
        return None
    left, *right = (outer[i] for i in product.inputs)
    return product if all(map(is_constant, right)) and not is_constant(left) else None


def _join(
    program: Program,
    module: Module,
    ins: Instruction,
    halves: tuple[Instruction, Instruction],
    product: Instruction,
) -> None:
    """Replace a pointwise instruction and the product whose halves it reads by one instruction."""
    y = halves[0].inputs[0]
    body = program.unique_module(f"{module.name}:gated")
    arguments: list[Instruction] = []

    def parameter(outer: Instruction) -> Instruction:
        arguments.append(outer)
        return body.add_parameter(parameter_name(len(arguments) - 1), outer.shape)

    fused = y is not product
    outer = dict(zip(y.module_args[0].parameters(), y.inputs)) if fused else {i: i for i in y.inputs}
    operands = [parameter(outer[i]) for i in product.inputs]
    others = [i for i in outer if set(i.users) - {product}] if fused else []
    cuts = [half.op for half in halves]
    read = [[parameter(module.insert_instruction(ins, cut, [outer[p]])) for p in others] for cut in cuts]
    extras = {i: parameter(i) for i in dict.fromkeys(ins.inputs) if i not in halves}
    sums = body.add_instruction(product.op, operands)
    values: dict[Instruction, Instruction] = dict(extras)
    parts = [body.add_instruction(cut, [sums]) for cut in cuts]
    for half, part, own in zip(halves, parts, read):
        values[half] = part
        if fused:
            inner = y.module_args[0]
            known = {product: part, **dict(zip(others, own))}
            left_out = {*inner.parameters(), product}
            values[half] = _copy(body, inner, known, left_out, half.shape.lens)
    inner = ins.module_args[0]
    known = {p: values[i] for p, i in zip(inner.parameters(), ins.inputs)}
    body.add_return([_copy(body, inner, known, set(known), ins.shape.lens)])
    made = module.insert_instruction(ins, make_op("fused_contraction"), arguments, [body])
    made.debug_symbols = tuple(dict.fromkeys((*y.debug_symbols, *ins.debug_symbols)))
    module.replace_instruction(ins, made)
    for old in (ins, *halves, y):
        module.remove_instruction(old)


def _copy(
    body: Module,
    inner: Module,
    known: Mapping[Instruction, Instruction],
    left_out: Iterable[Instruction],
    lens: Sequence[int],
) -> Instruction:
    """Copy pointwise operations of one submodule to the end of another, for values of shape ``lens``, given some of
    them; return the result."""
    values, skipped = dict(known), set(left_out)
    for own in inner:
        if own in skipped or own in values or own.name == "@return":
            continue
        if own.is_literal or is_scalar_literal(own) is not None:
            source = is_scalar_literal(own)
            assert source is not None and source.literal is not None
            number = body.add_literal(source.literal)
            values[own] = body.add_instruction(make_op("multibroadcast", out_lens=tuple(lens)), [number])
        else:
            values[own] = body.add_instruction(own.op, [values[i] for i in own.inputs])
            values[own].debug_symbols = own.debug_symbols
    return values[inner.results()[0]]
