"""Names of MIGraphX's passes that are not passes here."""

from __future__ import annotations

_ALLOCATION = "memory of results is planned when the program is lowered (`memory_coloring`)"
_CONCAT = "when the program is lowered, kernels get the parts of a concatenation as the place of their results"

_FLOAT8 = "kernels convert every float8 type"

OTHER_NAMES = {"eliminate_dead_code": "dead_code_elimination", "layout_nhwc": "layout_convolution"}
"""Other names that versions of MIGraphX have for passes."""

NEEDLESS: dict[str, str] = {
    "adjust_allocation": _ALLOCATION,
    "auto_contiguous": "kernels read operands of any strides, so no copies have to be inserted",
    "eliminate_allocation": _ALLOCATION,
    "eliminate_concat": _CONCAT,
    "eliminate_fp8": _FLOAT8,
    "fp8_ocp_to_fnuz": _FLOAT8,
    "fuse_concat": _CONCAT,
    "fuse_horizontal": "each look-up is a step of its own",
    "fuse_pointwise_reduce": "`fuse_pointwise` and `fuse_reduce` are applied one by one",
    "insert_pad": "convolutions and pooling take padding that differs between the sides",
    "memory_coloring": _ALLOCATION,
    "preallocate_param": _ALLOCATION,
    "promote_literals": "constants may be in any module",
    "propagate_precision": "kernels hold intermediate values of 16 bits and fewer in float32",
    "replace_allocate": _ALLOCATION,
    "rewrite_dot": "a 1x1 convolution is computed as a product by a solver",
    "rewrite_low_precision": "a power of 2 is a product in every type",
    "rewrite_topk": "topk has a kernel for any length",
    "simplify_dyn_ops": "lengths are inferred when an instruction is added",
    "split_single_dyn_dim": "one plan serves all lengths of a range",
    "write_literals": "constants are part of the plan",
}
"""Why the IR does not need a pass of MIGraphX, by its name."""
