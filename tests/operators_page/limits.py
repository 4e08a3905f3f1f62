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
    (MS, "GroupQueryAttention"): "no `qk_output`",
    (MS, "MultiHeadAttention"): "no `cache_indirection`",
    (MS, "DecoderMaskedMultiHeadAttention"): "no `output_qk`, no `cache_indirection` of several beams",
    (MS, "PagedAttention"): "no `kv_cache_layout` LATENT, no packed 4-bit caches",
    (MS, "LinearAttention"): "no `state_window`; more than one token on the host",
    (MS, "GatedDeltaNet"): "no `cu_seqlens`, `state_update_capacity`; more than one token on the host",
    (MS, "CausalConvWithState"): "one spatial axis, no `state_window` or CUDA's extended forms",
    (MS, "MoE"): "on a GPU every expert computes all tokens; no `use_sparse_mixer`",
    (MS, "QMoE"): "integer weights; on a GPU every expert computes all tokens; no `use_sparse_mixer`",
    ("mgx_numba", "PagedGroupQueryAttention"): "made by `mgx_numba.llm` for its server",
    (MS, "QAttention"): "no `do_rotary`, `past_present_share_buffer`",
    (MS, "CDist"): "`sqeuclidean` and `euclidean`",
    (MS, "BeamSearch"): "GPT-2's and T5's form (`model_type` 0 and 1); no buffers shared by past and present",
    (MS, "GreedySearch"): "GPT-2's form; no buffers shared by past and present",
    (MS, "Sampling"): "GPT-2's form; no `presence_penalty`, no `filtered_logits`",
}
"""By domain and name."""

SEARCH = "not yet: a loop over tokens around a subgraph; the caller's loop over the decoder does the same"
TEXT = "text becomes numbers before the model"
YET = "not yet: no model with it is known here"

REFUSED: dict[tuple[str, str], str] = {
    (
        "ai.onnx.preview.training",
        "Gradient",
    ): "differentiates the graph that it stands in, which is training's business",
    (MS, "AttnLSTM"): YET,
    (MS, "BifurcationDetector"): SEARCH,
    (MS, "ConvTransposeWithDynamicPads"): "paddings that are known at run time only give lengths that are, too",
    (MS, "CropAndResize"): YET,
    (MS, "DynamicTimeWarping"): YET,
    (MS, "EngramGate"): YET,
    (MS, "GatherPacked"): YET,
    (MS, "HyperConnectionPostMix"): YET,
    (MS, "HyperConnectionPreMix"): YET,
    (MS, "MatMulFpQ4"): "its weights lie in a layout of ONNX Runtime's kernels",
    (MS, "MatMulInteger16"): YET,
    (MS, "MaxpoolWithMask"): YET,
    (MS, "MoEGroupRouter"): YET,
    (MS, "MurmurHash3"): TEXT,
    (MS, "NGramHashMapping"): YET,
    (MS, "QEmbedLayerNormalization"): YET,
    (MS, "SampleOp"): "a sample for writers of operators",
    (MS, "SparseToDenseMatMul"): "sparse tensors are made dense where they enter a program",
    (MS, "Tokenizer"): TEXT,
    (MS, "UnfoldTensor"): YET,
    (MS, "VarlenCausalConvWithState"): YET,
    (MS, "VarlenNGramHashMapping"): YET,
    (MS, "WhisperBeamSearch"): SEARCH,
    (MS, "WordConvEmbedding"): TEXT,
}
"""Operators that ONNX has, or ONNX Runtime's CPU provider in com.microsoft, and this package has not, and why."""
