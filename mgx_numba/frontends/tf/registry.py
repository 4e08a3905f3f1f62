"""Registry of the parser functions of TensorFlow operators, filled by ``@register`` in operator families' modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..handlers import Families, Handler, ParserT, handler_of

FAMILIES = {
    "pointwise": (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Invert IsInf IsNan Log LogicalNot Neg "
        "Reciprocal Rint Round Rsqrt Sign Sin Sinh Sqrt Tan Add AddV2 BitwiseAnd BitwiseOr BitwiseXor Div Equal "
        "FloorMod Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul Pow RealDiv "
        "SquaredDifference Sub TruncateDiv TruncateMod AddN Cast ClipByValue DivNoNan Erfc Expm1 Log1p FloorDiv "
        "IsFinite NotEqual Square Select SelectV2"
    ),
    "activation": "Relu Sigmoid Softplus Softsign Tanh Relu6 Elu LeakyRelu Selu Softmax LogSoftmax",
    "constant": (
        "Const CheckNumerics EnsureShape Identity PlaceholderWithDefault PreventGradient Snapshot StopGradient "
        "IdentityN Shape ShapeN Rank Size Fill OnesLike ZerosLike Range"
    ),
    "layout": "Reshape ExpandDims Squeeze Transpose BroadcastTo Tile DepthToSpace SpaceToDepth",
    "indexing": (
        "ConcatV2 Concat Pack Unpack Split SplitV Slice StridedSlice Pad PadV2 MirrorPad Gather GatherV2 GatherNd "
        "OneHot ReverseV2 TopKV2"
    ),
    "matmul": "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum",
    "convolution": "BiasAdd Conv2D Conv3D DepthwiseConv2dNative Conv2DBackpropInput",
    "pooling": "AvgPool AvgPool3D MaxPool MaxPool3D MaxPoolV2",
    "reduction": "All Any Max Mean Min Prod Sum ArgMax ArgMin Cumsum",
    "normalization": "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 LRN",
    "image": "ResizeBilinear ResizeNearestNeighbor SpaceToBatchND BatchToSpaceND",
}
"""Operators by the module that holds their parser functions."""

_HANDLERS: dict[str, Handler] = {}
_OUTPUTS: dict[str, tuple[str, ...]] = {}
_FAMILIES = Families(__package__, FAMILIES)


def register(*op_types: str, outputs: Sequence[str] = ()) -> Callable[[ParserT], ParserT]:
    """Return a decorator that registers a parser function for operators.

    ``outputs`` names an operator's results if it has several; nodes of functions refer to results by these names.
    """

    def add(function: ParserT) -> ParserT:
        handler = handler_of(function)
        for op_type in op_types:
            if op_type in _HANDLERS:
                raise ValueError(f"TensorFlow operator {op_type!r} has two parsers")
            _HANDLERS[op_type] = handler
            _OUTPUTS[op_type] = tuple(outputs)
        return function

    return add


def find(op_type: str) -> Handler | None:
    """Return the handler of an operator; ``None`` if there is none."""
    _FAMILIES.load(op_type)
    return _HANDLERS.get(op_type)


def names() -> set[str]:
    """Return the names of all operators with a parser function."""
    return _FAMILIES.names()


def output_names(op_type: str) -> tuple[str, ...]:
    """Return the names of an operator's results, if it has several that are not a list."""
    _FAMILIES.load(op_type)
    return _OUTPUTS.get(op_type, ())
