"""The passes of the ``gpu`` target, in order, without passes whose results have no kernel here."""

from __future__ import annotations

from ..passes import PASSES as OF_COMPILERS

__all__ = ["PASSES"]

WITHOUT_KERNEL = frozenset(("one_pass_variance", "rewrite_reduce_max", "eliminate_data_type", "store_bfloat16"))
"""Passes left out: some produce operators with CPU kernels only; others widen 16-bit floats to float32 or store
bfloat16, while tensor cores read 16-bit floats directly."""

BEFORE = {
    "rewrite_softmax": "rewrite_attention",
    "fuse_attention": "narrow_biases",
    "layout_convolution": "split_channel_groups",
    "rewrite_reduce": "join_gates",
    "fuse_contraction": "round_once",
    "fuse_reduce": "fuse_attention_epilogue",
    "eliminate_contiguous": "lift_zero_points",
}
"""Passes of this target alone, by the pass that each precedes. Reasons for the order:

- ``rewrite_attention``: attention without a kernel is expanded before its parts are rewritten.
- ``narrow_biases``: biases are rounded before they are fused.
- ``split_channel_groups``: channel groups are split before values become channels-last.
- ``join_gates``: gated linear units are joined once their activations are known.
- ``round_once``: 16-bit values are settled before the remaining operations are fused into regions.
- ``fuse_attention_epilogue``: attention's kernel quantises its result before other kernels would.
- ``lift_zero_points``: zero points become operands once fusion is final.
"""

PASSES: tuple[str, ...] = tuple(
    name for own in OF_COMPILERS for name in (BEFORE.get(own), own) if name is not None and name not in WITHOUT_KERNEL
)
