"""Fuse products with constant block-quantised weights, keeping the weights' bits.

``dot(x, dequantizelinear(codes, scale, zero_point)) -> matmul_nbits(x, codes, scale, zero_point)`` for constant 4-bit
or 8-bit codes, with or without ``unpack_int4``, and scales and zero points that repeat along the sum in blocks: ONNX's
block-wise DequantizeLinear, MatMulNBits, ``quantize_int4_weights``, and one block per column. Products of one input
become one where the target's kernels gain by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dim import known_equal
from ...core.types import Type
from ...ops.base import Operator, make_op
from ...ops.matmul_nbits import BLOCK_SIZES, ROW_TYPES
from ..constants import CONSTANT_VIEWS, constant_array, viewed
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .eliminate_convert import is_exact
from .rules.horizontal import Branch, joined

CODES = {Type.int8_type: 128, Type.uint8_type: 0}
"""Offset that makes a type's values unsigned."""


class FuseMatMulNBits(Pass):
    """Rewrite for targets whose kernels read block-quantised weights; see the module."""

    name = "fuse_matmul_nbits"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if not options.reads_blocks:
            return
        known: dict[Instruction, tuple[Operator, list[Instruction]] | str] = {}
        for ins in module.named(("dot",)):
            views = _views_of_dequantized(ins.inputs[1])
            if views is None:
                continue
            w = ins.inputs[1]
            if ins.shape.type not in ROW_TYPES:
                self.log.refuse(self.name, ins, f"no kernel is for rows of {ins.shape.type.name}")
                continue
            if w not in known:
                known[w] = _weights(module, ins, *views)
            made = known[w]
            if isinstance(made, str):
                self.log.refuse(self.name, ins, made)
                continue
            op, literals = made
            op = op.with_attributes(accuracy_level=ins.op.attributes().get("accuracy_level", 0))
            new = module.insert_instruction(ins, op, [ins.inputs[0], *literals])
            new.debug_symbols = ins.debug_symbols
            self.log.apply(self.name, ins)
            module.replace_instruction(ins, new)
        if known:
            module.remove_unused()  # dequantised weights, which later passes would fold
        if options.capabilities is not None and options.capabilities.joins_block_products:
            self._join(module)

    def _join(self, module: Module) -> None:
        """Join the products of one input, such as queries, keys and values, and slice the result.

        A product stays alone if a pointwise operation follows, which its kernel computes.
        """
        groups: dict[tuple[Any, ...], list[Instruction]] = {}
        for ins in module:
            if ins.name != "matmul_nbits" or any(i.literal is None for i in ins.inputs[1:]):
                continue
            if not any(user.op.pointwise or user.module is not module for user in ins.users):
                groups.setdefault((ins.inputs[0], ins.op, len(ins.inputs)), []).append(ins)
        for (x, op, _), products in groups.items():
            if len(products) < 2 or op.layout or x.module is not module:
                continue
            branches = [Branch(ins, ins.inputs[1], None, None, ins) for ins in products]
            for old, new in joined(RewriteBuilder(module, products[0]), x, branches, -1, -1).items():
                new.debug_symbols = old.debug_symbols
                self.log.apply(self.name, old)
                module.replace_instruction(old, new)


def _views_of_dequantized(w: Instruction) -> tuple[Instruction, list[Instruction]] | None:
    """Return the ``dequantizelinear`` below an instruction, and the views above it, innermost first."""
    views: list[Instruction] = []
    while w.name != "dequantizelinear":
        if w.name not in CONSTANT_VIEWS and not _keeps_numbers(w):
            return None
        if len(w.inputs) != 1 or w.shape.is_dynamic:
            return None
        if w.name != "convert":
            views.insert(0, w)
        w = w.inputs[0]
    return w, views


def _keeps_numbers(w: Instruction) -> bool:
    """Return whether an instruction converts weights to the left operand's type without a rounding by the model's
    author."""
    if w.name != "convert" or w.shape.type not in ROW_TYPES:
        return False
    return bool(w.op.elidable) or is_exact(w.inputs[0].shape.type, w.shape.type)  # type: ignore[attr-defined]


def _weights(
    module: Module, before: Instruction, dequantized: Instruction, views: Sequence[Instruction]
) -> tuple[Operator, list[Instruction]] | str:
    """Return the operator and its literals, or the reason why there are none."""
    kind = dequantized.inputs[0].shape.type
    if kind not in CODES or known_equal(before.inputs[1].shape.elements, 0):
        return "the weights are no 8-bit integers, or there are none"
    matrices = [_matrix(i, views) for i in dequantized.inputs]
    if any(m is None for m in matrices):
        return "the weights, a scale or a zero point is computed, or differs from matrix to matrix"
    q, scales, *points = (m for m in matrices if m is not None)
    size = _block_size(scales, *points)
    if size is None:
        return f"scales and zero points do not repeat in blocks of {', '.join(map(str, BLOCK_SIZES))}"
    low, high = int(q.min()), int(q.max())
    first = [points[0][::size] if points else np.zeros_like(q[::size])]
    low, high = min(low, int(first[0].min())), max(high, int(first[0].max()))
    signed = CODES[kind] > 0
    bits = 4 if (low >= -8 and high <= 7 if signed else high <= 15) else 8
    shift = (1 << (bits - 1)) if signed else 0
    codes, less = (np.ascontiguousarray((m.astype(np.uint8) + np.uint8(shift)).T) for m in (q, first[0]))
    blocks = less.shape[1]
    codes = np.pad(codes, ((0, 0), (0, blocks * size - codes.shape[1]))).reshape(len(codes), blocks, size)
    if bits == 4:
        codes = np.bitwise_or(codes[..., ::2], codes[..., 1::2] << 4, dtype=np.uint8)
    b = RewriteBuilder(module, before)
    made = [b.literal(codes), b.literal(np.ascontiguousarray(scales[::size].T.astype(np.float32)))]
    if (less != 1 << (bits - 1)).any():
        made.append(b.literal(less))
    return make_op("matmul_nbits", bits=bits, block_size=size), made


def _matrix(ins: Instruction, views: Sequence[Instruction]) -> np.ndarray | None:
    """Return a constant after some views as one matrix for all outer axes; None if it is not."""
    chain = list(views[::-1])
    while ins.name in CONSTANT_VIEWS or ins.name == "unpack_int4":
        if len(ins.inputs) != 1:
            return None
        chain.append(ins)
        ins = ins.inputs[0]
    array = constant_array(ins) if ins.literal is not None else None
    for step in reversed(chain):
        unpacks = step.name == "unpack_int4"
        if array is not None:
            array = step.op.compute(step.shape, [array]) if unpacks else viewed(step, array)
    if array is None or array.ndim < 2:
        return None
    outer = zip(array.shape[:-2], array.strides[:-2])
    return None if any(n > 1 and s for n, s in outer) else array[(0,) * (array.ndim - 2)]


def _block_size(*matrices: np.ndarray) -> int | None:
    """Return the largest of `BLOCK_SIZES` for which the rows of each matrix within a block are equal; None without."""
    differ = np.any([(m[1:] != m[:-1]).any(axis=1) for m in matrices], axis=0)  # from the row before
    return next((size for size in BLOCK_SIZES if not ((np.flatnonzero(differ) + 1) % size).any()), None)
