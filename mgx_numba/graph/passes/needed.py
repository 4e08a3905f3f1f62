"""Operators that passes start from, known without importing the passes."""

from __future__ import annotations

from collections.abc import Mapping

from ..program import Program

_CONVOLUTIONS = frozenset("convolution convolution_backwards quant_convolution quant_convolution_backwards".split())
_INTEGER_PRODUCTS = frozenset("integer_dot quant_dot integer_convolution quant_convolution".split())
_PAIRS = frozenset({"quantizelinear", "dequantizelinear"})
_SUMS = frozenset({"quant_dot", "quant_convolution", "quant_convolution_backwards"})

NEEDED: Mapping[str, frozenset[str]] = {
    "eliminate_pad": frozenset({"pad"}),
    "fuse_attention": frozenset({"softmax"}),
    "fuse_matmul_nbits": frozenset({"dequantizelinear", "matmul_nbits"}),
    "layout_convolution": _CONVOLUTIONS,
    "merge_rnn_outputs": frozenset({"rnn", "gru", "lstm"}),
    "pad_convolutions": _CONVOLUTIONS,
    "rewrite_float8": frozenset({"dequantizelinear"}),
    "rewrite_gelu": frozenset({"erf", "exp", "sigmoid", "tanh"}),
    "rewrite_layernorm": frozenset({"pow", "sqdiff", "sqrt"}),
    "rewrite_pooling": frozenset({"pooling"}),
    "rewrite_quantization": _PAIRS | _SUMS | {"unpack_int4", "unpack_fp4"},
    "rewrite_resize": frozenset({"resize"}),
    "rewrite_rnn": frozenset({"rnn", "gru", "lstm", "recurrent"}),
    "rewrite_softmax": frozenset({"exp", "softmax"}),
    "simplify_qdq": _PAIRS | _INTEGER_PRODUCTS,
    "sink_shuffle": _CONVOLUTIONS,
}
"""Operators by the name of a pass that changes only programs with at least one of these operators."""


def is_needless(name: str, program: Program) -> bool:
    """Return whether the program has no operator that the pass ``name`` needs."""
    needed = NEEDED.get(name)
    return needed is not None and not any(module.has(needed) for module in program.modules)
