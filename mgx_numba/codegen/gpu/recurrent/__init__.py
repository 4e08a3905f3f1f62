"""Generators of recurrent layers: one kernel for all steps, or launches for each step."""

from .plan import open_solutions, recurrent_solutions

__all__ = ["open_solutions", "recurrent_solutions"]
