"""Macros: operations that expand into several instructions, MIGraphX's *op builders*, one family a file."""

from . import activation, convolution, matmul, normalization, pointwise, quantize, tile_and_rotary  # noqa: F401  (each registers its macros)
from .base import add_macro, macro_options

__all__ = ["add_macro", "macro_options"]
