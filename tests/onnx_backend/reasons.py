"""Why backend tests do not pass whose failure does not say it."""

from __future__ import annotations

__all__ = ["REASONS"]

_BERNOULLI = "the expected output is drawn from the generator of ONNX's own evaluator, which the operator leaves open"

_SCANNED = "scan outputs of a loop of unknown length have room for max_loop_iterations"

REASONS: dict[str, str] = {
    f"test_bernoulli{suffix}{expanded}": _BERNOULLI
    for suffix in ("", "_double", "_seed")
    for expanded in ("", "_expanded")
} | {
    "test_loop11": _SCANNED,
    "test_range_bfloat16_type_positive_delta_expanded": _SCANNED,
    "test_range_float16_type_positive_delta_expanded": _SCANNED,
    "test_range_float_type_positive_delta_expanded": _SCANNED,
    "test_range_int32_type_negative_delta_expanded": _SCANNED,
}
