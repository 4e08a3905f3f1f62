"""The passes of the ``ref`` target, in order."""

from __future__ import annotations

__all__ = ["PASSES"]

PASSES = ("merge_rnn_outputs",)
