"""Registry of the builder functions of ATen operators, filled by ``@register`` in operator families' modules."""

from __future__ import annotations

from collections.abc import Callable

from ..handlers import Families, Parser, ParserT

FAMILIES = {
    "pointwise": (
        "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp floor isnan isinf log log2 neg "
        "reciprocal round rsqrt sign sin sinh sqrt tan trunc add sub mul div true_divide floor_divide remainder "
        "fmod pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar maximum minimum max.other min.other fmax fmin "
        "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __and__ "
        "__or__ __xor__ logical_and logical_or logical_xor logical_not eq ne lt le gt ge where clamp exp2 expm1 "
        "log1p log10 sgn addcmul addcdiv logaddexp hypot atan2 signbit copysign deg2rad rad2deg angle prims::div"
    ),
    "activation": (
        "relu gelu silu sigmoid tanh elu leaky_relu hardtanh hardsigmoid hardswish mish softplus softmax "
        "softmax.int _softmax log_softmax log_softmax.int _log_softmax _safe_softmax prelu _prelu_kernel rrelu "
        "rrelu_with_noise_functional"
    ),
    "creation": (
        "full full_like zeros ones empty.memory_format scalar_tensor arange arange.start arange.start_step linspace "
        "empty_strided fill.Scalar fill.Tensor lift_fresh_copy lift_fresh lift empty_permuted tril_indices "
        "triu_indices"
    ),
    "layout": (
        "view _unsafe_view reshape _reshape_alias _reshape_copy view_copy expand expand_copy permute permute_copy "
        "transpose.int transpose_copy.int t t_copy squeeze squeeze_copy unsqueeze unsqueeze_copy clone alias "
        "alias_copy detach detach_copy contiguous copy _to_copy to.dtype to.device prims::convert_element_type "
        "to.dtype_layout to.other type_as float double half bfloat16 int long bool repeat view.dtype dropout "
        "native_dropout feature_dropout alpha_dropout as_strided as_strided_copy as_strided_scatter "
        "prims::as_strided_scatter unfold unfold_copy resolve_conj resolve_neg _conj conj real conj_physical "
        "_assert_tensor_metadata diagonal diagonal_copy diagonal_scatter"
    ),
    "indexing": (
        "cat slice.Tensor slice_copy.Tensor select.int select_copy.int split.Tensor split_copy.Tensor "
        "split_with_sizes split_with_sizes_copy unbind.int unbind_copy.int flip constant_pad_nd reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d tril triu "
        "select_scatter slice_scatter"
    ),
    "gather": (
        "embedding index_select index.Tensor _unsafe_index.Tensor gather index_put _unsafe_index_put scatter.src "
        "scatter.value scatter_add scatter_reduce.two index_add index_copy index_fill.int_Scalar masked_scatter "
        "nonzero one_hot masked_select embedding_bag _embedding_bag_forward_only _embedding_bag scatter.reduce "
        "scatter.value_reduce unfold_backward index_reduce put repeat_interleave.Tensor _unique2 unique_dim "
        "unique_consecutive"
    ),
    "order": (
        "median median.dim nanmedian nanmedian.dim histc topk sort sort.stable searchsorted.Tensor "
        "bucketize.Tensor searchsorted.Scalar bucketize.Scalar kthvalue mode bincount"
    ),
    "reduction": (
        "sum sum.dim_IntList mean mean.dim amax amin max max.dim min min.dim prod prod.dim_int any any.dim "
        "any.dims all all.dim all.dims argmax argmin var.correction std.correction var_mean.correction cumsum "
        "cumprod linalg_vector_norm cummax cummin logcumsumexp std_mean.correction"
    ),
    "matmul": (
        "_grouped_mm transformers::grouped_mm_fallback mm bmm addmm baddbmm matmul linear dot mv vdot addmv inner "
        "_int_mm cdist _cdist_forward linalg_inv_ex addbmm _trilinear _pdist_forward _linalg_det"
    ),
    "convolution": "convolution conv_tbc",
    "pooling": (
        "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d "
        "avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
        "_adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool1d adaptive_max_pool3d"
    ),
    "normalization": (
        "layer_norm native_layer_norm native_group_norm batch_norm _native_batch_norm_legit_no_training "
        "native_batch_norm _native_batch_norm_legit.no_stats _native_batch_norm_legit cudnn_batch_norm "
        "_batch_norm_no_update instance_norm rms_norm _fused_rms_norm"
    ),
    "attention": (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math"
    ),
    "image": (
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d upsample_bicubic2d grid_sampler grid_sampler_2d grid_sampler_3d im2col col2im "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ),
    "special": "lgamma prims::lgamma digamma prims::digamma erfinv prims::erf_inv nextafter prims::nextafter",
    "recurrent": "lstm.input gru.input rnn_tanh.input rnn_relu.input",
    "divisors": "gcd prims::gcd",
    "detection": "torchvision::nms torchvision::roi_align",
    "quantization": (
        "quantized_decomposed::quantize_per_tensor quantized_decomposed::dequantize_per_tensor "
        "quantized_decomposed::quantize_per_channel quantized_decomposed::dequantize_per_channel "
        "quantized_decomposed::choose_qparams.tensor quantized_decomposed::choose_qparams_symmetric.tensor"
    ),
}
"""Operators by the module that holds their builder functions.

An operator without a namespace is ATen's. A name with an overload, such as ``max.dim``, stands for this overload, and a
name without one for all overloads that are not listed.
"""

PRIMS = frozenset(
    "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil cos eq exp floor ge gt isfinite le log lt maximum "
    "minimum mul ne neg reciprocal rsqrt sign sin sqrt sub tanh where".split()
)
"""Operators of the namespace ``prims``, which decompositions leave, that compute as ATen's of the same name."""
_HANDLERS: dict[str, Parser] = {}
_FAMILIES = Families(__package__, FAMILIES)


def register(*names: str) -> Callable[[ParserT], ParserT]:
    """Return a decorator that registers a builder function ``build(g, node, *args, **kwargs)`` for operators."""

    def add(function: ParserT) -> ParserT:
        for name in names:
            if name in _HANDLERS:
                raise ValueError(f"ATen operator {name!r} has two builders")
            _HANDLERS[name] = function
        return function

    return add


def find(operator: str) -> Parser | None:
    """Return the builder of an operator such as ``aten::max.dim``; ``None`` if there is none."""
    name = operator.removeprefix("aten::")
    if name.startswith("prims::") and name.removeprefix("prims::") in PRIMS:
        name = name.removeprefix("prims::")
    base = name.partition(".")[0]
    _FAMILIES.load(name, base, f"{base}.default")
    for key in (name, base):
        if key in _HANDLERS:
            return _HANDLERS[key]
    return None


def names() -> set[str]:
    """Return the names of all operators with a builder function."""
    return _FAMILIES.names()
