"""Why backend tests do not pass whose failure does not say it."""

from __future__ import annotations

__all__ = ["REASONS"]

_BERNOULLI = "the expected output is drawn from the generator of ONNX's own evaluator, which the operator leaves open"

_DROPOUT = "the expected mask is drawn from the generator of ONNX's own evaluator, which the operator leaves open"
_ALIGNED = "the expected values align corners by the unrounded length, scale times input length; ours is whole"

REASONS: dict[str, str] = {
    f"test_bernoulli{suffix}{expanded}": _BERNOULLI
    for suffix in ("", "_double", "_seed")
    for expanded in ("", "_expanded")
} | {
    "test_resize_downsample_scales_cubic_align_corners": _ALIGNED,
    "test_resize_downsample_scales_linear_align_corners": _ALIGNED,
    "test_training_dropout": _DROPOUT,
    "test_training_dropout_default": _DROPOUT,
    "test_training_dropout_default_mask": _DROPOUT,
    "test_training_dropout_mask": _DROPOUT,
}
