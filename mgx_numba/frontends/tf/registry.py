"""Registry of the parser functions of TensorFlow operators, filled by ``@register`` in operator families' modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..handlers import Handler, ParserT, handler_of, import_families

FAMILIES = "constant convolution image indexing layout matmul normalization pointwise pooling reduction"
"""Modules with parser functions, which are imported together: all take 8 ms."""

_HANDLERS: dict[str, Handler] = {}
_OUTPUTS: dict[str, tuple[str, ...]] = {}


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
    import_families(__package__, FAMILIES)
    return _HANDLERS.get(op_type)


def names() -> set[str]:
    """Return the names of all operators with a parser function."""
    import_families(__package__, FAMILIES)
    return set(_HANDLERS)


def output_names(op_type: str) -> tuple[str, ...]:
    """Return the names of an operator's results, if it has several that are not a list."""
    import_families(__package__, FAMILIES)
    return _OUTPUTS.get(op_type, ())
