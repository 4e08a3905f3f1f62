"""Graph passes, one a file; importing the package makes all of them known by name."""

from . import (
    dead_code_elimination,
    eliminate_common_subexpression,
    eliminate_contiguous,
    eliminate_convert,
    eliminate_identity,
    eliminate_pad,
    fuse_attention,
    fuse_contraction,
    fuse_pointwise,
    fuse_reduce,
    inline_module,
    layout_convolution,
    merge_rnn_outputs,
    normalize_ops,
    optimize_module,
    propagate_constant,
    rewrite_gelu,
    rewrite_layernorm,
    rewrite_pooling,
    rewrite_quantization,
    rewrite_reduce,
    rewrite_resize,
    rewrite_rnn,
    rewrite_softmax,
    schedule,
    simplify_algebra,
    simplify_reshapes,
)
from .base import Options, Pass, known_passes, make_pass, run_passes

__all__ = ["Options", "Pass", "known_passes", "make_pass", "run_passes"]
