"""Operators, known by name; a file of operators is imported when one of them is first requested."""

from __future__ import annotations

__all__ = ["OPERATORS", "POINTWISE_FILES"]

OPERATORS = {
    "activations": "affine hard_sigmoid scaled_tanh softsign thresholded_relu",
    "attention": "attention gqa_rotary_embedding concat_past_present",
    "binary": (
        "add mul max min bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor sub div fmod mod "
        "pow equal greater less greater_or_equal less_or_equal bitwise_shift_left bitwise_shift_right sqdiff prelu "
        "clip where"
    ),
    "broadcast": "broadcast multibroadcast broadcast_with_dims broadcast_for_dot scalar",
    "caches": "update_cache cached_attention",
    "col2im": "col2im",
    "concat": "concat",
    "control": "if if_short loop run_on_target select_module",
    "convolution": "convolution quant_convolution convolution_backwards quant_convolution_backwards im2col",
    "decode_image": "decode_image",
    "deferred": "deferred unfitting unknown",
    "detection": "roialign nonmaxsuppression max_roi_pool",
    "determinant": "determinant inverse solve_triangular",
    "dot": "dot quant_dot",
    "fused": (
        "pointwise fused_reduce split_fused_reduce fused_contraction fused_attention fused_gather fused_scatter group "
        "fused_concat get_tuple_elem"
    ),
    "gather": "gather gather_elements gathernd",
    "integer": "integer_dot integer_convolution pad_with",
    "lengths": "lengths iota",
    "linear_attention": "linear_attention",
    "lrn": "lrn",
    "maps": "zip_map dict_vectorizer map_values pairwise_coupling",
    "matmul_nbits": "matmul_nbits",
    "memory": "allocate load fill outline undefined",
    "ngrams": "tf_idf",
    "pad": "pad fixed_pad",
    "pooling": "pooling",
    "quantize": "quantizelinear dequantizelinear nearest_float8 pack_int4 unpack_int4 pack_fp4 unpack_fp4",
    "recurrent_steps": "recurrent_steps",
    "reduce": ("reduce_sum reduce_mean reduce_prod reduce_max reduce_min reduce_any reduce_all argmax argmin"),
    "reduce_parts": "reduce_parts head_mean",
    "reshape": "reshape reshape_lazy contiguous layout",
    "resize": "resize window_sum",
    "rnn": "rnn gru lstm recurrent rnn_last_hs_output rnn_last_cell_output",
    "rnn_variable": "rnn_var_sl_shift_sequence rnn_var_sl_shift_output rnn_var_sl_last_output",
    "sampling": "random_seed random_uniform multinomial",
    "scatter": (
        "scatter_none scatternd_none scatter_add scatternd_add scatter_mul scatternd_mul scatter_min scatternd_min "
        "scatter_max scatternd_max"
    ),
    "selection": "onehot nonzero unique dynamic_range",
    "sequence": (
        "sequence_construct sequence_insert sequence_erase sequence_at sequence_length split_to_sequence "
        "concat_from_sequence optional_construct optional_get_element optional_has_element"
    ),
    "slice": "slice step scan_slice reverse",
    "softmax": "softmax logsoftmax prefix_scan_sum",
    "text": "string_concat regex_full_match string_split string_normalizer string_index parse_number format_number",
    "topk": "topk",
    "tree_ensemble": "tree_ensemble",
    "unary": (
        "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log log2 nearbyint neg recip rsqrt "
        "sigmoid sign sin sinh sqrt tan tanh isnan isinf gelu_erf gelu_tanh silu softplus mish bitwise_not not "
        "identity capture relu leaky_relu elu convert"
    ),
    "views": "transpose squeeze unsqueeze as_shape bit_cast dimensions_of flatten",
}
"""Operators by the file that has their classes."""

POINTWISE_FILES = ("activations", "binary", "quantize", "unary")
"""Files that have pointwise operators, others perhaps too."""
