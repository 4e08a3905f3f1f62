"""Generators of recurrent layers: one kernel for all steps, or launches for each step."""

from .plan import recurrent_solutions

__all__ = ["recurrent_solutions"]
