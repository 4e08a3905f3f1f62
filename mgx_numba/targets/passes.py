"""The passes of the compiling targets, each with the passes that must run before and after it, and why.

A run of a pass is named by the pass; later runs of the same pass have a number behind a colon (``optimize_module:2``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from ..dataclass import dataclass

Reasons: TypeAlias = Mapping[str, str]
CPU, GPU = ("cpu",), ("gpu",)


@dataclass(frozen=True)
class PassRun:
    """A run of a pass.

    Attributes:
        run: name of the run.
        after: reason why this run comes after another, by the other's name.
        before: reason why this run comes before another, by the other's name.
        targets: targets that have this run; other targets lack kernels for its results, or the need for it.
    """

    run: str
    after: Reasons = field(default_factory=dict)
    before: Reasons = field(default_factory=dict)
    targets: tuple[str, ...] = (*CPU, *GPU)

    @property
    def name(self) -> str:
        """Return the name of the pass."""
        return self.run.partition(":")[0]


ORDER: tuple[PassRun, ...] = (
    PassRun("normalize_ops", before={"inline_module": "all rewrites take axes to be non-negative"}),
    PassRun("eliminate_identity", before={"simplify_qdq": "patterns match neighbours, without an identity between"}),
    PassRun(
        "dead_code_elimination",
        after={"eliminate_identity": "identities leave unused values"},
        before={"inline_module": "a module that nothing runs need not be rewritten"},
    ),
    PassRun(
        "inline_module",
        before={"rewrite_narrow": "values that a branch returns keep their type, inlined values do not"},
    ),
    PassRun("rewrite_narrow", before={"rewrite_quantization": "4-bit codes are read as bytes"}),
    PassRun(
        "rewrite_cached_attention",
        before={"rewrite_attention": "it makes attention with a mask, which may have no kernel either"},
        targets=GPU,
    ),
    PassRun(
        "simplify_qdq",
        before={
            "rewrite_float8": "float8 that the target multiplies is no longer rounded beside the product",
            "rewrite_quantization": "pairs become integer contractions while they are still pairs",
        },
    ),
    PassRun(
        "fuse_matmul_nbits",
        after={
            "simplify_qdq": "weights with one scale a column make integer contractions, if both operands have scales"
        },
        before={"rewrite_quantization": "the weights' dequantizelinear would become arithmetic"},
    ),
    PassRun("rewrite_float8", before={"rewrite_quantization": "the pairs would become arithmetic"}),
    PassRun("rewrite_quantization", before={"optimize_module": "the constants of the arithmetic are folded"}),
    PassRun("rewrite_resize", before={"optimize_module": "its broadcasts and reshapes are merged with others"}),
    PassRun(
        "rewrite_narrow_convolution",
        after={"rewrite_quantization": "transposed convolutions of integers are recognised before"},
        before={"optimize_module": "the weights are folded, and the reshapes merged with others"},
        targets=CPU,
    ),
    PassRun(
        "rewrite_transposed_convolution",
        after={"rewrite_quantization": "transposed convolutions of integers are recognised before"},
        before={"optimize_module": "the weights are folded, and the reshapes merged with others"},
        targets=GPU,
    ),
    PassRun("pad_columns", before={"optimize_module": "the padded weights are folded"}, targets=GPU),
    PassRun(
        "rewrite_col2im",
        after={"rewrite_narrow_convolution": "it makes windows that may lie side by side"},
        before={"optimize_module": "its reshapes and transposes are merged with others"},
    ),
    PassRun("eliminate_pad", before={"rewrite_pooling": "a reduction cannot take the padding of its input"}),
    PassRun("rewrite_pooling", before={"optimize_module": "its reductions are merged with others"}),
    PassRun("rewrite_gelu", before={"optimize_module": "the constants of the formula move into other factors"}),
    PassRun(
        "rewrite_attention",
        before={"optimize_module": "the products and the softmax that it makes are simplified"},
        targets=GPU,
    ),
    PassRun("rewrite_softmax"),
    PassRun("optimize_module"),
    PassRun("rewrite_gelu:2", after={"optimize_module": "it looks again at formulas that were simplified"}),
    PassRun(
        "rewrite_layernorm",
        after={"optimize_module": "it matches formulas in their simplified form"},
        before={"fuse_reduce": "reduction fusion knows only this form"},
    ),
    PassRun("rewrite_rnn", before={"optimize_module:2": "packed weights are folded, their slices and views merged"}),
    PassRun(
        "merge_rnn_outputs",
        after={"rewrite_rnn": "layers that became products and steps have no instructions for last states left"},
    ),
    PassRun(
        "optimize_module:2",
        before={"eliminate_data_type": "conversions are merged as the program has them, before others are added"},
    ),
    PassRun(
        "eliminate_data_type",
        before={"fuse_attention": "products in bfloat16 are marked, and the marks tell how attention rounds"},
        targets=CPU,
    ),
    PassRun(
        "dead_code_elimination:2",
        after={"optimize_module:2": "patterns that need a value with a single user do not count unused users"},
        before={"fuse_attention": "patterns that need a value with a single user do not count unused users"},
    ),
    PassRun(
        "fuse_attention",
        after={
            "rewrite_softmax": "attention is recognised by its softmax",
            "rewrite_attention": "attention without a kernel is expanded, attention that is recognised here has one",
        },
        before={"rewrite_reduce": "the softmax is decomposed there"},
    ),
    PassRun(
        "join_gates",
        after={"rewrite_gelu:2": "the activation of the gate is one operator by then"},
        before={"fuse_contraction": "both products become one, whose epilogue is fused"},
        targets=GPU,
    ),
    PassRun("rewrite_reduce", before={"fuse_reduce": "softmax becomes reductions, which are fused with their users"}),
    PassRun("sink_shuffle", before={"layout_convolution": "a shuffle is found by the reshape of its channel axis"}),
    PassRun(
        "join_groups",
        after={"optimize_module:2": "factors of channels are in the weights by then"},
        before={"layout_convolution": "weights are laid out there"},
        targets=GPU,
    ),
    PassRun(
        "split_channel_groups",
        before={"layout_convolution": "operands with separate image axes can be channels-last"},
        targets=GPU,
    ),
    PassRun("layout_convolution", before={"fuse_contraction": "fused regions take the memory order of their operands"}),
    PassRun(
        "eliminate_common_subexpression", after={"layout_convolution": "equal changes of one value's layout are merged"}
    ),
    PassRun(
        "dead_code_elimination:3",
        after={"eliminate_common_subexpression": "merged values leave unused ones"},
        before={"fuse_contraction": "fusion needs values with a single user"},
    ),
    PassRun(
        "store_bfloat16",
        after={"eliminate_data_type": "it restores conversions that were taken out there"},
        before={"fuse_contraction": "the conversion joins the region of the kernel that computes the value"},
        targets=CPU,
    ),
    PassRun(
        "pad_convolutions",
        after={"store_bfloat16": "an image that is stored in bfloat16 is padded in bfloat16"},
        before={"fuse_contraction": "the kernel that computes an image writes it inside the padding"},
    ),
    PassRun(
        "round_once",
        before={"fuse_pointwise": "the conversion joins the region of the kernel that computes the value"},
        targets=GPU,
    ),
    PassRun("fuse_contraction", before={"fuse_reduce": "the epilogue of a product takes pointwise operations first"}),
    PassRun(
        "fuse_attention_epilogue",
        after={"fuse_attention": "there is one operator whose result is quantised"},
        before={"fuse_pointwise": "attention's kernel takes the quantisation, before a kernel of its own does"},
        targets=GPU,
    ),
    PassRun("fuse_reduce", before={"fuse_pointwise": "reductions take pointwise operations before other regions do"}),
    PassRun(
        "distribute_concat",
        after={"fuse_reduce": "what a reduction's kernel computes is taken by then"},
        before={"fuse_pointwise": "operations on each value are fused with those that compute it"},
        targets=GPU,
    ),
    PassRun(
        "sink_conversions",
        after={
            "fuse_contraction": "the kernel of a product converts its result itself",
            "distribute_concat": "it counts the readers of a conversion, which are halves of rotated values",
        },
        before={"fuse_pointwise": "each reader's kernel takes the conversion"},
        targets=GPU,
    ),
    PassRun("fuse_pointwise"),
    PassRun("rewrite_requantization", after={"fuse_pointwise": "it changes values inside the bodies of fused kernels"}),
    PassRun("eliminate_contiguous", after={"fuse_pointwise": "regions take any strides, single operators may not"}),
    PassRun("dead_code_elimination:4", after={"fuse_pointwise": "fusion leaves unused values"}),
    PassRun(
        "fuse_gated",
        after={
            "fuse_pointwise": "it fuses a region that combines both halves of a product",
            "join_gates": "it fuses the product that join_gates made",
        },
    ),
    PassRun(
        "shift_variance",
        after={"fuse_reduce": "it rewrites bodies of fused reductions"},
        before={"split_reduce": "mean and variance are split together"},
        targets=GPU,
    ),
    PassRun("split_reduce", after={"fuse_reduce": "it splits fused reductions"}),
    PassRun(
        "one_pass_variance",
        after={"fuse_reduce": "it rewrites bodies of fused reductions"},
        targets=CPU,
    ),
    PassRun(
        "lift_constants",
        after={
            "fuse_pointwise": "it adds operands to the bodies of fused kernels",
            "rewrite_requantization": "it recognises numbers in bodies",
            "fuse_gated": "it compares the numbers of two bodies",
            "split_reduce": "it recognises numbers in bodies",
            "one_pass_variance": "it recognises numbers in bodies",
        },
        before={"schedule": "it adds instructions"},
    ),
    PassRun(
        "fuse_indexed",
        after={"lift_constants": "bodies of pointwise operators have all their operands"},
        before={"schedule": "it removes instructions"},
        targets=GPU,
    ),
    PassRun("schedule", after={"split_reduce": "the instructions are final"}),
)
"""All runs of passes, in order."""


def passes_of(target: str) -> tuple[str, ...]:
    """Return the names of a target's passes, in order."""
    return tuple(entry.name for entry in ORDER if target in entry.targets)


PASSES: tuple[str, ...] = passes_of("cpu")
"""The passes of the ``cpu`` target, in order."""

GPU_PASSES: tuple[str, ...] = passes_of("gpu")
"""The passes of the ``gpu`` target, in order."""

SOURCE_PASSES: tuple[str, ...] = ("propagate_constant", "eliminate_common_subexpression", "dead_code_elimination")
"""Passes that run once for all plans of a program with dynamic inputs; they leave instructions with dynamic shapes
alone."""
