"""Functions that parse operators, and how many inputs they take."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..dataclass import dataclass
from ..errors import ParseError
from ..graph.instruction import Instruction
from ..interrupts import unbroken

__all__ = ["Families", "Handler", "Parser", "ParserT", "binary", "check_arity", "handler_of", "unary"]

Parser = Callable[..., Any]
ParserT = TypeVar("ParserT", bound=Parser)


@dataclass(frozen=True)
class Handler:
    """A parser ``parse(g, node, *inputs)`` and how many inputs it takes; absent optional inputs
    are ``None``, and so are those of ``optional``, which have a place before required ones.
    """

    parse: Parser
    required: int
    most: int | None
    optional: frozenset[int] = frozenset()


class Families:
    """Files of a package whose operators register their parsers when they are imported."""

    def __init__(self, package: str, names: Sequence[str]) -> None:
        self._package, self._names = package, names
        self._loaded = False

    def load(self) -> None:
        """Import all of them, once; an interrupt is raised meanwhile (see `unbroken`)."""
        if not self._loaded:
            unbroken(self._import)

    def _import(self) -> None:
        for name in self._names:
            importlib.import_module(f"{self._package}.{name}")
        self._loaded = True


def unary(op: str) -> Parser:
    """The parser of a node that is one operator of the IR."""

    def parse(g: Any, node: Any, x: Instruction) -> Instruction:
        return g.op(op, x)

    return parse


def binary(op: str) -> Parser:
    """The parser of a node that is one pointwise operator of two inputs, which are broadcast."""

    def parse(g: Any, node: Any, a: Instruction, b: Instruction) -> Instruction:
        return g.pointwise(op, a, b)

    return parse


def handler_of(function: Parser) -> Handler:
    """What the parser's signature says of its inputs."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unbounded = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is p.empty for p in positional)
    optional = frozenset(k for k, p in enumerate(positional[:required]) if str(p.annotation).endswith("| None"))
    return Handler(function, required, None if unbounded else len(positional), optional)


def check_arity(handler: Handler, inputs: Sequence[Instruction | None]) -> None:
    """Check the number of inputs.

    Raises:
        ParseError: too many, too few, or a required one is absent.
    """
    if handler.most is not None and len(inputs) > handler.most:
        raise ParseError(f"got {len(inputs)} inputs, expected at most {handler.most}")
    if len(inputs) < handler.required:
        raise ParseError(f"got {len(inputs)} inputs, expected at least {handler.required}")
    for position in range(handler.required):
        if inputs[position] is None and position not in handler.optional:
            raise ParseError(f"input {position} is missing")
