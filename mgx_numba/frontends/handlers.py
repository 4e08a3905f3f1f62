"""Parser functions of operators, with the number of inputs that each accepts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..dataclass import dataclass
from ..errors import ParseError
from ..graph.instruction import Instruction
from ..interrupts import whole_module

Parser = Callable[..., Any]
ParserT = TypeVar("ParserT", bound=Parser)

SHARED_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "neg",
    "Reciprocal": "recip",
    "Round": "nearbyint",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
}
"""Operators of one operand that ONNX and TensorFlow name alike, with the operators of the IR."""
SHARED_BINARY = {
    "Add": "add",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "div",
    "Equal": "equal",
    "Greater": "greater",
    "Less": "less",
    "Mul": "mul",
    "Sub": "sub",
}
"""Operators of two operands that ONNX and TensorFlow name alike, with the operators of the IR."""


@dataclass(frozen=True)
class Handler:
    """A parser function ``parse(g, node, *inputs)`` and the number of inputs it accepts.

    Absent optional inputs are ``None``. ``optional`` lists optional inputs that precede required inputs.
    """

    parse: Parser
    required: int
    most: int | None
    optional: frozenset[int] = frozenset()


class Families:
    """Modules of a package whose operators register their parser functions on import."""

    def __init__(self, package: str, families: Mapping[str, str]) -> None:
        """Store the modules; ``families`` maps each module to the names of its operators, separated by spaces."""
        self._loaded: set[str] = set()
        self._modules: dict[str, list[str]] = {}
        for module, names in families.items():
            for name in names.split():
                self._modules.setdefault(name, []).append(f"{package}.{module}")

    def names(self) -> set[str]:
        """Return the names of all operators."""
        return set(self._modules)

    def load(self, *names: str) -> None:
        """Import the modules of the named operators; interrupts are raised afterwards (see `whole_module`)."""
        for name in names:
            if name not in self._loaded:
                for module in self._modules.get(name, ()):
                    whole_module(module)
                self._loaded.add(name)


@functools.cache
def import_families(package: str, families: str) -> None:
    """Import modules of a package (names separated by spaces), as `Families.load` does."""
    for family in families.split():
        whole_module(f"{package}.{family}")


def unary(op: str) -> Parser:
    """Return the parser function of a node that maps to one operator of the IR."""

    def parse(g: Any, node: object, x: Instruction) -> Instruction:
        return g.op(op, x)

    return parse


def binary(op: str) -> Parser:
    """Return the parser function of a node that maps to one binary pointwise operator, with broadcast operands."""

    def parse(g: Any, node: object, a: Instruction, b: Instruction) -> Instruction:
        return g.pointwise(op, a, b)

    return parse


def handler_of(function: Parser) -> Handler:
    """Return the handler of a parser function, with the number of inputs from its signature."""
    code = getattr(function, "__code__", None)
    if code is not None and not hasattr(function, "__wrapped__") and not inspect.ismethod(function):
        # `inspect.signature` takes a tenth of a millisecond, and a family's module has dozens of functions.
        names = code.co_varnames[2 : code.co_argcount]
        required = max(0, len(names) - len(getattr(function, "__defaults__", None) or ()))
        absent = [str(getattr(function, "__annotations__", {}).get(name, "")) for name in names[:required]]
        optional = frozenset(k for k, annotation in enumerate(absent) if annotation.endswith("| None"))
        return Handler(function, required, None if code.co_flags & inspect.CO_VARARGS else len(names), optional)
    parameters = list(inspect.signature(function).parameters.values())[2:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unbounded = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is p.empty for p in positional)
    optional = frozenset(k for k, p in enumerate(positional[:required]) if str(p.annotation).endswith("| None"))
    return Handler(function, required, None if unbounded else len(positional), optional)


def check_arity(handler: Handler, inputs: Sequence[Instruction | None]) -> None:
    """Check the number of inputs.

    Raises:
        ParseError: there are too many or too few inputs, or a required input is absent.
    """
    if handler.most is not None and len(inputs) > handler.most:
        raise ParseError(f"got {len(inputs)} inputs, expected at most {handler.most}")
    if len(inputs) < handler.required:
        raise ParseError(f"got {len(inputs)} inputs, expected at least {handler.required}")
    for position in range(handler.required):
        if inputs[position] is None and position not in handler.optional:
            raise ParseError(f"input {position} is missing")
