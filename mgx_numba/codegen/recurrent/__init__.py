"""Recurrent layers as one kernel over all steps."""

from .plan import plan
from .problem import RecurrenceProblem
from .weights import pack_weights, packed_lens

__all__ = ["RecurrenceProblem", "pack_weights", "packed_lens", "plan"]
