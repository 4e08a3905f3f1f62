"""Reasons for failing backend tests whose error message does not state one."""

from __future__ import annotations

__all__ = ["REASONS"]

_DRAWN = "the expected output is drawn from the generator of ONNX's own evaluator, which the operator leaves open"
_FRACTION = (
    "the expected values divide by a result's length before it is rounded; ONNX Runtime's by the rounded one, too"
)

_PLACES = "the expected values take indices in other lengths than output_shape; MaxPool's are in these"

_GRADIENT = "the operator differentiates the graph that it stands in, which is training's business"

REASONS: dict[str, str] = {
    **{f"test_gradient_of_{kind}": _GRADIENT for kind in ("add", "add_and_mul")},
    "test_maxunpool_export_with_output_shape": _PLACES,
    **{f"test_bernoulli{kind}{form}": _DRAWN for kind in ("", "_double", "_seed") for form in ("", "_expanded")},
    **{f"test_training_dropout{kind}": _DRAWN for kind in ("", "_default", "_default_mask", "_mask")},
    **{f"test_resize_downsample_scales_{mode}_align_corners": _FRACTION for mode in ("cubic", "linear")},
}
