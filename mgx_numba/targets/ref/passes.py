"""The passes of the ``ref`` target, in order."""

from __future__ import annotations

PASSES = ("merge_rnn_outputs",)
