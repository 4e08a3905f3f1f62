"""Quantise constant weights of contractions to 4 bits: ``dequantizelinear(unpack_int4(bytes), scale, zero_point)``.

Values are unsigned with a zero point per block: `BLOCK` rows of a product's column, or all inputs of a convolution's
output channel. Activations stay as they are.
"""

from __future__ import annotations

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...ops.base import make_op
from ..constants import compact
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .quantization_plan import constant_weights
from .selection import Selection

BLOCK = 32
"""Rows per scale: the usual block of 4-bit weights (ONNX Runtime's MatMulNBits, GGML's q4)."""
LARGEST = 15
"""Largest 4-bit number."""
FEWEST = 256
"""Least weights for 4 bits to save more than scales and instructions cost."""


class QuantizeInt4(Pass):
    """Quantise constant weights of ``dot`` and ``convolution`` of even length."""

    name = "quantize_int4_weights"

    def __init__(self, selection: Selection | None = None) -> None:
        self.selection = selection or Selection(("dot", "convolution"))
        self.quantized = 0
        """Contractions whose weights have been quantised."""

    def apply(self, program: Program, module: Module, options: Options) -> None:
        known: dict[tuple[Instruction, str], Instruction] = {}
        for ins in list(module):
            if ins not in self.selection or ins.name not in ("dot", "convolution"):
                continue
            w = ins.inputs[1]
            values = constant_weights(w)
            if values is None or not w.shape.type.is_floating or values.size < FEWEST:
                continue
            if (w, ins.name) not in known:
                if not np.isfinite(compact(values)).all():
                    continue
                new = _product_weights(module, ins, values) if ins.name == "dot" else _kernels(module, ins, values)
                if new is None:
                    continue
                known[w, ins.name] = new
            module.set_input(ins, 1, known[w, ins.name])
            self.quantized += 1


def _product_weights(module: Module, before: Instruction, values: np.ndarray) -> Instruction | None:
    """Insert weights [..., k, n] as bytes of two neighbouring columns, with scales [..., k / BLOCK, n]."""
    small = compact(values)
    if any(n != 1 for n in small.shape[:-2]) or small.shape[-2:] != values.shape[-2:] or values.shape[-1] % 2:
        return None
    rows, columns = values.shape[-2:]
    matrix = small.reshape(rows, columns)
    count = -(-rows // BLOCK)
    whole = np.pad(matrix, ((0, count * BLOCK - rows), (0, 0)), mode="edge").reshape(count, BLOCK, columns)
    q, scale, zero = _quantized(whole, 1)
    q = q.reshape(count * BLOCK, columns)[:rows]
    b = RewriteBuilder(module, before)
    unpacked = _unpacked(b, q, -1)
    type = before.inputs[1].shape.type
    spread = [_blocks(b, array, rows) for array in (scale.astype(type.numpy), zero)]
    matrix_of = b.op("dequantizelinear", unpacked, *spread)
    w = before.inputs[1]
    return b.op(w.op, matrix_of, *w.inputs[1:]) if w.shape.is_dynamic else b.broadcast(matrix_of, w.shape.lens)


def _blocks(b: RewriteBuilder, array: np.ndarray, rows: int) -> Instruction:
    """Insert values [block, 1, column] broadcast to [row, column]."""
    count, _, columns = array.shape
    literal = b.literal(array)
    wide = b.broadcast(literal, (count, BLOCK, columns))
    full = b.op("reshape", wide, dims=(count * BLOCK, columns))
    return b.slice(full, 0, 0, rows)


def _kernels(module: Module, before: Instruction, values: np.ndarray) -> Instruction | None:
    """Insert weights [o, c, *kernel] as bytes of two neighbours along an even axis, with scales [o]."""
    axis = next((a for a in reversed(range(values.ndim)) if values.shape[a] % 2 == 0), None)
    if axis is None:
        return None
    q, scale, zero = _quantized(np.ascontiguousarray(values), tuple(range(1, values.ndim)))
    b = RewriteBuilder(module, before)
    unpacked = _unpacked(b, q, axis)
    type = before.inputs[1].shape.type
    parameters = [
        b.op("broadcast", b.literal(array.reshape(-1)), axis=0, out_lens=values.shape)
        for array in (scale.astype(type.numpy), zero)
    ]
    return b.op("dequantizelinear", unpacked, *parameters)


def _quantized(values: np.ndarray, axes: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values from 0 to 15, and scales and zero points shared along ``axes`` (kept with length 1)."""
    wide = values.astype(np.float32)
    low = np.minimum(wide.min(axes, keepdims=True), 0)
    high = np.maximum(wide.max(axes, keepdims=True), 0)
    step = (high - low) / np.float32(LARGEST)
    step = np.where(step > np.finfo(np.float32).tiny, step, np.float32(1))
    zero = np.clip(np.rint(-low / step), 0, LARGEST)
    q = np.clip(np.rint(wide / step) + zero, 0, LARGEST)
    return q.astype(np.uint8), step, zero.astype(np.uint8)


def _unpacked(b: RewriteBuilder, q: np.ndarray, axis: int) -> Instruction:
    """Insert ``unpack_int4`` of a literal of bytes."""
    pack, unpack = (make_op(name, axis=axis % q.ndim) for name in ("pack_int4", "unpack_int4"))
    return b.op(unpack, b.literal(pack.compute(pack.compute_shape([Shape(Type.uint8_type, q.shape)]), [q])))
