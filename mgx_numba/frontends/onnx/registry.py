"""Registry of the parser functions of ONNX operators, filled by ``@register`` in the modules of operator families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..handlers import Families, Handler, ParserT, handler_of
from .custom import custom_handler

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
OWN = "mgx_numba"
"""Domain of operators of this package's own language models."""

FAMILIES = {
    "pointwise": (
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Not Reciprocal "
        "Round Sign Sin Sinh Sqrt Tan Tanh Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater "
        "GreaterOrEqual Less LessOrEqual Mul Or Sub Xor Sum Max Min Mean Mod Pow Where Clip Identity BitShift "
        "IsInf"
    ),
    "activation": (
        "Mish Relu Sigmoid Softplus LeakyRelu Elu Selu Celu PRelu HardSigmoid HardSwish Softsign Swish "
        "ThresholdedRelu Shrink Gelu BiasGelu FastGelu QuickGelu BiasAdd BiasSplitGelu"
    ),
    "cast": "Cast CastLike BitCast",
    "constant": "Constant ConstantOfShape ConstantFill Shape Size Range EyeLike",
    "layout": "Reshape Flatten Transpose Squeeze Unsqueeze Expand Tile DepthToSpace SpaceToDepth",
    "indexing": "Concat Split Slice Pad Trilu ReverseSequence",
    "gather": "Gather GatherElements GatherND ScatterElements Scatter ScatterND TensorScatter OneHot Compress",
    "matmul": "MatMul Gemm Det GemmFastGelu FusedMatMul TransposeMatMul MatMulInteger MatMulIntegerToFloat Einsum",
    "convolution": "Conv FusedConv NhwcConv ConvInteger ConvTranspose",
    "pooling": "AveragePool MaxPool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxUnpool",
    "reduction": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
        "ReduceLogSumExp ArgMax ArgMin CumSum CumProd Softmax LogSoftmax Hardmax"
    ),
    "normalization": (
        "LayerNormalization RMSNormalization BatchNormalization InstanceNormalization GroupNormalization LRN "
        "LpNormalization MeanVarianceNormalization SimplifiedLayerNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization GroupNorm SkipGroupNorm GatedRMSNorm BranchwiseRMSNorm GatedAdd ScaledSiLU"
    ),
    "resize": "Upsample Resize",
    "image": "AffineGrid GridSample Col2Im ImageScaler ImageDecoder DeformConv",
    "quantization": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "recurrent": "RNN GRU LSTM",
    "attention": "Attention",
    "contrib_attention": "Attention MultiHeadAttention DecoderMaskedMultiHeadAttention",
    "contrib_gqa": "GroupQueryAttention",
    "contrib_paged": "PagedAttention PagedGroupQueryAttention",
    "contrib_sparse": "SparseAttention",
    "contrib_linear_attention": "LinearAttention LinearAttentionGate GatedDeltaNet CausalConvWithState",
    "contrib_experts": "MoE QMoE",
    "rotary": "RotaryEmbedding MRotaryEmbedding",
    "contrib": (
        "MatMulNBits MatMulBnb4 EmbedLayerNormalization ATen FusedGemm ExpandDims NhwcMaxPool Unique Inverse CDist"
    ),
    "qlinear": (
        "QLinearConv QLinearMatMul QLinearAdd QLinearMul QLinearLeakyRelu QLinearSigmoid QLinearAveragePool "
        "QLinearGlobalAveragePool QLinearConcat"
    ),
    "contrib_quantized": (
        "QGemm DynamicQuantizeMatMul QLinearSoftmax QLinearWhere QLinearReduceMean QAttention GatherBlockQuantized "
        "MXFixNeuron MXQuantizeDequantize DynamicScale"
    ),
    "contrib_recurrent": "DynamicQuantizeLSTM",
    "detection": "TopK NonZero Unique MaxRoiPool NonMaxSuppression RoiAlign",
    "ml_features": (
        "Scaler Normalizer Imputer Binarizer FeatureVectorizer ArrayFeatureExtractor OneHotEncoder LabelEncoder "
        "CategoryMapper TfIdfVectorizer"
    ),
    "ml_maps": "ZipMap DictVectorizer CastMap",
    "ml_linear": "LinearRegressor LinearClassifier",
    "ml_svm": "SVMRegressor SVMClassifier",
    "ml_trees": "TreeEnsembleRegressor TreeEnsembleClassifier TreeEnsemble",
    "signal": "DFT STFT MelWeightMatrix",
    "random": "RandomUniform RandomUniformLike RandomNormal RandomNormalLike Dropout Multinomial",
    "sequence": (
        "SequenceConstruct SequenceEmpty SequenceAt SequenceErase SequenceInsert SequenceLength SplitToSequence "
        "ConcatFromSequence"
    ),
    "optional": "Optional OptionalGetElement OptionalHasElement",
    "text": "StringConcat RegexFullMatch StringSplit StringNormalizer",
    "training": "Adagrad Adam Momentum",
    "control_flow": "If Loop Scan",
    "contrib_search": "GreedySearch Sampling BeamSearch NGramRepeatBlock",
}
"""Operators, of all domains, by the module that holds their parser functions."""

_HANDLERS: dict[tuple[str, str], Handler] = {}
_FAMILIES = Families(__package__, FAMILIES)


def register(*op_types: str, domain: str | Sequence[str] = "") -> Callable[[ParserT], ParserT]:
    """Return a decorator that registers a parser function for operators of a domain, or of several domains."""

    def add(function: ParserT) -> ParserT:
        for one in [domain] if isinstance(domain, str) else domain:
            register_handler(handler_of(function), *op_types, domain=one)
        return function

    return add


def register_handler(handler: Handler, *op_types: str, domain: str) -> None:
    """Register a handler for operators of a domain."""
    for op_type in op_types:
        if (domain, op_type) in _HANDLERS:
            raise ValueError(f"ONNX operator {op_type!r} of domain {domain!r} has two parsers")
        _HANDLERS[domain, op_type] = handler


def find(domain: str, op_type: str) -> Handler | None:
    """Return the handler of an operator, a user's before this package's; ``None`` if there is none."""
    _FAMILIES.load(op_type)
    return custom_handler(domain, op_type) or _HANDLERS.get((domain, op_type))


def names() -> set[str]:
    """Return the names of all operators with a parser function, of all domains."""
    return _FAMILIES.names()


def handlers() -> dict[tuple[str, str], Handler]:
    """Return all handlers, by domain and operator."""
    _FAMILIES.load(*_FAMILIES.names())
    return dict(_HANDLERS)


def domains_of(op_type: str) -> list[str]:
    """Return the domains with a parser function for this operator name, for messages."""
    _FAMILIES.load(op_type)
    return sorted(domain or "ai.onnx" for domain, name in _HANDLERS if name == op_type)
