"""Registry of the builder functions of ATen operators, filled by ``@register`` in operator families' modules."""

from __future__ import annotations

from collections.abc import Callable

from ..handlers import Parser, ParserT, import_families

FAMILIES = (
    "activation attention convolution creation detection gather image indexing layout matmul normalization "
    "order pointwise pooling quantization recurrent reduction special"
)
"""Modules with builder functions: a list of PyTorch's decompositions needs nearly all, so they are imported at once."""

PRIMS = frozenset(
    "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil cos eq exp floor ge gt isfinite le log lt maximum "
    "minimum mul ne neg reciprocal rsqrt sign sin sqrt sub tanh where".split()
)
"""Operators of the namespace ``prims``, which decompositions leave, that compute as ATen's of the same name."""
_HANDLERS: dict[str, Parser] = {}


def register(*names: str) -> Callable[[ParserT], ParserT]:
    """Return a decorator that registers a builder function ``build(g, node, *args, **kwargs)`` for operators.

    An operator without a namespace is ATen's. A name with an overload, such as ``max.dim``, stands for this overload,
    and a name without one for all overloads that are not registered.
    """

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
    import_families(__package__, FAMILIES)
    for key in (name, base):
        if key in _HANDLERS:
            return _HANDLERS[key]
    return None


def names(family: str = "") -> set[str]:
    """Return the names of all operators with a builder function, or of those in one module."""
    import_families(__package__, FAMILIES)
    return {name for name, builder in _HANDLERS.items() if not family or builder.__module__.endswith(f".{family}")}
