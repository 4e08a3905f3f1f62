"""A residual network in 8 bits finds the classes of float32; `resnet50` has the command for the full size."""

from __future__ import annotations

from .resnet50 import agreement


def test_a_small_one_agrees() -> None:
    found = agreement("tiny", 64)
    assert found.classes > 5 and found.right > 0.2  # of ten: the images tell the classes apart
    assert found.share >= 0.95 and found.error < 0.05
