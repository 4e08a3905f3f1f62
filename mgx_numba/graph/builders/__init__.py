"""Macros: operations that expand into several instructions, MIGraphX's *op builders*."""

from . import macros  # noqa: F401  (registers the macros)
from .base import add_macro, macro_options

__all__ = ["add_macro", "macro_options"]
