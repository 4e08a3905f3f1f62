"""The passes of the ``gpu`` target, in order: those whose results have kernels here."""

from __future__ import annotations

from ..passes import PASSES as OF_COMPILERS

__all__ = ["PASSES"]

WITHOUT_KERNEL = frozenset(("one_pass_variance", "rewrite_reduce_max", "eliminate_data_type", "store_bfloat16"))
"""Passes that make operators which only the CPU has a kernel for, and those that make float32 of 16-bit floats, and
bfloat16 of that again: tensor cores take these as they are."""

BEFORE = {
    "rewrite_softmax": "rewrite_attention",
    "fuse_attention": "narrow_biases",
    "layout_convolution": "split_channel_groups",
    "rewrite_reduce": "join_gates",
    "fuse_contraction": "round_once",
    "fuse_reduce": "fuse_attention_epilogue",
    "eliminate_contiguous": "lift_zero_points",
}
"""Passes of this target alone, by the one that each comes before: attention that has no kernel is written out before
what it is made of is looked at, biases are rounded before anything is fused with them, gated linear units are joined
when their activations are known, what channels-last values are seen as before these are made, what is in 16 bits before
regions are made of the rest, what attention's kernel quantises before other kernels would, and zero points become
operands when what is fused is settled."""

PASSES: tuple[str, ...] = tuple(
    name for own in OF_COMPILERS for name in (BEFORE.get(own), own) if name is not None and name not in WITHOUT_KERNEL
)
