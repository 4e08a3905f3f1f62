"""Which function parses which TensorFlow operator: filled by ``@register`` in the files of the operator families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..handlers import Families, Handler, ParserT, handler_of

__all__ = ["FAMILIES", "find", "names", "output_names", "register"]

FAMILIES = (
    "pointwise",
    "activation",
    "constant",
    "layout",
    "indexing",
    "matmul",
    "convolution",
    "pooling",
    "reduction",
    "normalization",
    "image",
)

_HANDLERS: dict[str, Handler] = {}
_OUTPUTS: dict[str, tuple[str, ...]] = {}
_FAMILIES = Families(__package__, FAMILIES)


def register(*op_types: str, outputs: Sequence[str] = ()) -> Callable[[ParserT], ParserT]:
    """Decorator: the function parses these operators.

    ``outputs`` are the names of the operator's results where it has several, by which nodes of functions call them.
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
    """The parser of an operator, ``None`` if it has none."""
    _FAMILIES.load()
    return _HANDLERS.get(op_type)


def names() -> set[str]:
    """Names of all operators that have a parser."""
    _FAMILIES.load()
    return set(_HANDLERS)


def output_names(op_type: str) -> tuple[str, ...]:
    """Names of an operator's results, if it has several that are not a list."""
    _FAMILIES.load()
    return _OUTPUTS.get(op_type, ())
