"""Attention as one kernel that never writes the score matrix: problems, and the launches that compute them.

Nothing here imports Numba.
"""

from __future__ import annotations

from ...problems.attention import AttentionProblem, MaskLayout
from .select import cached_refusal, plan, reads_transposed_masks

__all__ = ["AttentionProblem", "MaskLayout", "cached_refusal", "plan", "reads_transposed_masks"]
