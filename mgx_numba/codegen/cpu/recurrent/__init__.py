"""Recurrent layers as one kernel that runs all time steps."""

from ...problems.recurrence import RecurrenceProblem
from .plan import plan
from .weights import pack_weights, packed_lens

__all__ = ["RecurrenceProblem", "pack_weights", "packed_lens", "plan"]
