"""Text of the operators page that cannot be computed: limits, and reasons for missing operators."""

from __future__ import annotations

__all__ = ["LIMITS", "REFUSED"]

MS, ML = "com.microsoft", "ai.onnx.ml"

LIMITS: dict[tuple[str, str], str] = {
    ("", "ATen"): "`embedding_bag` alone, without weights of samples",
    ("org.pytorch.aten", "ATen"): "`embedding_bag` alone, without weights of samples",
    ("", "Bernoulli"): "numbers are those of this package's generator",
    ("", "ImageDecoder"): "needs Pillow (the extra `image`)",
    ("", "Loop"): "with scan outputs at most `limit_max_iterations`",
    ("", "Multinomial"): "numbers are those of this package's generator",
    ("", "RandomNormal"): "numbers are those of this package's generator",
    ("", "RandomNormalLike"): "numbers are those of this package's generator",
    ("", "RandomUniform"): "numbers are those of this package's generator",
    ("", "RandomUniformLike"): "numbers are those of this package's generator",
    ("", "RegexFullMatch"): "without the extra `regex`: only expressions that Python matches in linear time",
    ("", "Scan"): "no `sequence_lens` at operator set 8",
    ("", "StringNormalizer"): "case is Unicode's, `locale` has no effect",
    (ML, "LinearClassifier"): "no `PROBIT` for one row of coefficients",
    (MS, "Attention"): "no `do_rotary`",
    (MS, "FusedMatMul"): "no `transBatchA`, `transBatchB`",
    (MS, "GroupQueryAttention"): "causal; caches of floats as long as what they hold",
    (MS, "MultiHeadAttention"): "no `past_sequence_length`, `cache_indirection`",
    (MS, "QAttention"): "no `do_rotary`, `past_present_share_buffer`",
    (MS, "QLinearConv"): "no `channels_last`",
    (MS, "CDist"): "`sqeuclidean` and `euclidean`",
}
"""By domain and name."""

REFUSED: dict[tuple[str, str], str] = {
    (
        "ai.onnx.preview.training",
        "Gradient",
    ): "differentiates the graph that it stands in, which is training's business",
}
"""Operators that ONNX has and this package has not, and why."""
