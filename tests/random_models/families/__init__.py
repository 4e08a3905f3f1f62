"""Families of operators: each file registers steps that add a node or a few to a graph."""

from . import (
    attention,
    contrib,
    control,
    convolution,
    elementwise,
    gathering,
    layout,
    matmul,
    normalization,
    ordering,
    quantization,
    ranks,
    recurrent,
    reduction,
    resampling,
    sampling,
    shapes,
)
from .registry import STEPS

__all__ = [
    "STEPS", "attention", "contrib", "control", "convolution", "elementwise", "gathering", "layout", "matmul",
    "normalization", "ordering", "quantization", "ranks", "recurrent", "reduction", "resampling", "sampling", "shapes",
]  # fmt: skip
