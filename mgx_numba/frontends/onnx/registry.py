"""Which function parses which ONNX operator: filled by ``@register`` in the files of the
operator families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..handlers import Families, Handler, ParserT, handler_of
from .custom import custom_handler

__all__ = ["FAMILIES", "MICROSOFT", "ML", "find", "handlers", "names", "register"]

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"

FAMILIES = (
    "pointwise",
    "activation",
    "cast",
    "constant",
    "layout",
    "indexing",
    "gather",
    "matmul",
    "einsum",
    "convolution",
    "pooling",
    "reduction",
    "normalization",
    "contrib_normalization",
    "resize",
    "image",
    "deform",
    "quantization",
    "qlinear",
    "recurrent",
    "attention",
    "contrib_attention",
    "rotary",
    "contrib",
    "contrib_quantized",
    "contrib_recurrent",
    "contrib_tensors",
    "detection",
    "ml_features",
    "ml_maps",
    "ml_linear",
    "ml_svm",
    "ml_trees",
    "signal",
    "random",
    "sequence",
    "optional",
    "text",
    "training",
    "control_flow",
)

_HANDLERS: dict[tuple[str, str], Handler] = {}
_FAMILIES = Families(__package__, FAMILIES)


def register(*op_types: str, domain: str | Sequence[str] = "") -> Callable[[ParserT], ParserT]:
    """Decorator: the function parses these operators of this domain (or of each of several)."""

    def add(function: ParserT) -> ParserT:
        handler = handler_of(function)
        for one in [domain] if isinstance(domain, str) else domain:
            for op_type in op_types:
                if (one, op_type) in _HANDLERS:
                    raise ValueError(f"ONNX operator {op_type!r} of domain {one!r} has two parsers")
                _HANDLERS[one, op_type] = handler
        return function

    return add


def find(domain: str, op_type: str) -> Handler | None:
    """The parser of an operator, a user's before one of this package; ``None`` if it has none."""
    _FAMILIES.load()
    return custom_handler(domain, op_type) or _HANDLERS.get((domain, op_type))


def names() -> set[str]:
    """Names of all operators that have a parser, of all domains."""
    _FAMILIES.load()
    return {op_type for _, op_type in _HANDLERS}


def handlers() -> dict[tuple[str, str], Handler]:
    """All parsers, by domain and operator."""
    _FAMILIES.load()
    return dict(_HANDLERS)


def domains_of(op_type: str) -> list[str]:
    """Domains in which an operator of this name has a parser, for messages."""
    _FAMILIES.load()
    return sorted(domain or "ai.onnx" for domain, name in _HANDLERS if name == op_type)
