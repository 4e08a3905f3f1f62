"""Generators of recurrent layers: one kernel for all steps, or launches for each step."""

from .open_plan import open_solutions
from .plan import recurrent_solutions

__all__ = ["open_solutions", "recurrent_solutions"]
