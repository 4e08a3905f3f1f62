"""The passes of targets that compile, in order."""

from __future__ import annotations

__all__ = ["PASSES", "SOURCE_PASSES"]

PASSES: tuple[str, ...] = (
    "normalize_ops",
    "eliminate_identity",
    "dead_code_elimination",
    "inline_module",
    "rewrite_narrow",
    "rewrite_cached_attention",
    "simplify_qdq",
    "fuse_matmul_nbits",
    "rewrite_float8",
    "rewrite_quantization",
    "rewrite_resize",
    "eliminate_pad",
    "rewrite_pooling",
    "rewrite_gelu",
    "rewrite_softmax",
    "optimize_module",
    "rewrite_gelu",
    "rewrite_layernorm",
    "rewrite_rnn",
    "merge_rnn_outputs",
    "optimize_module",
    "eliminate_data_type",
    "dead_code_elimination",
    "fuse_attention",
    "rewrite_reduce",
    "sink_shuffle",
    "layout_convolution",
    "eliminate_common_subexpression",
    "dead_code_elimination",
    "store_bfloat16",
    "pad_convolutions",
    "fuse_contraction",
    "fuse_reduce",
    "fuse_pointwise",
    "rewrite_requantization",
    "eliminate_contiguous",
    "dead_code_elimination",
    "fuse_gated",
    "split_reduce",
    "one_pass_variance",
    "rewrite_reduce_max",
    "schedule",
)

SOURCE_PASSES: tuple[str, ...] = ("propagate_constant", "eliminate_common_subexpression", "dead_code_elimination")
"""Passes that run once for all plans of a program with dynamic inputs; they leave instructions with dynamic shapes
alone."""
