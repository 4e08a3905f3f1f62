"""Emission of one ATen node: at once if all it needs is known, else as a deferred node.

A deferred node's source is JSON, so that programs are read again where PyTorch is not installed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.dim import SymbolicLengthError
from ...core.shape import Shape
from ...core.types import Type, parse_type
from ...errors import MgxError, ParseError, ShapeError, UnknownValueError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.deferred import Deferred
from ..composite import composed, is_product
from . import registry
from .builder import NARROW, AtenBuilder
from .node import AtenNode

READER = "torch"
"""Name of the reader of deferred ATen nodes."""
Results = list[Instruction | None]
_OF_ROUNDED_NUMBERS = frozenset(("fmod", "remainder"))
"""Operators for which PyTorch rounds numbers to the type of tensors of 16 bits; others take numbers as they are."""


def emit(
    g: AtenBuilder,
    node: AtenNode,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    shapes: Sequence[Shape | None],
) -> Results:
    """Emit a node and return its results.

    Args:
        args: arguments; symbolic numbers are int64 scalars.
        kwargs: arguments by name.
        shapes: shapes of the results, None for a result that is no tensor.
    """
    start = len(g.written)
    try:
        return _checked(g, node, build(g, node, args, kwargs), shapes)
    except MgxError as error:
        open_lengths = any(s is not None and s.is_dynamic for s in shapes)
        inputs = _instructions([args, dict(kwargs)])
        waits = isinstance(error, (UnknownValueError, SymbolicLengthError))
        if not waits and not (open_lengths or any(x.shape.is_dynamic for x in inputs)):
            raise
        if isinstance(error, UnsupportedError) and not waits:
            raise
        g.take_back(start)
        return _deferred(g, node, args, kwargs, shapes, inputs)


def build(g: AtenBuilder, node: AtenNode, args: Sequence[object], kwargs: Mapping[str, object]) -> Results:
    """Emit the operators of a node; values that 16-bit operators round inside are float32."""
    builder = registry.find(node.operator)
    if builder is None:
        raise UnsupportedError("the operator is not supported")
    own, named = _numbers(g, node, args, kwargs)
    if node.base in _OF_ROUNDED_NUMBERS and node.type in NARROW:
        own = [float(np.asarray(x, node.type.numpy)) if isinstance(x, (int, float)) else x for x in own]
    inputs = _instructions([own, named])

    def parsed(given: Sequence[Any]) -> Results | Instruction:
        found = iter(given)
        fresh = _replaced([own, named], lambda _: next(found))
        is_wide = any(x.shape.type is not new.shape.type for x, new in zip(inputs, given))
        return builder(g, node.widened() if is_wide else node, *fresh[0], **fresh[1])

    folded = "batch_norm" in node.operator and is_product(inputs[0])  # without rounding, as in the product's weights
    made = parsed(inputs) if folded else composed(g, parsed, inputs)
    results = [made] if isinstance(made, Instruction) else list(made)
    return [
        x if x is None or t is None or x.shape.type is t else g.cast(x, t)
        for x, t in zip(results, [*node.types, *[None] * len(results)])
    ]


def _numbers(g: AtenBuilder, node: AtenNode, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Any, Any]:
    """Return the arguments with symbolic numbers in the place of int64 scalars that stand for them."""

    def known(x: Instruction) -> Instruction | int | float:
        if x in g.lengths and x.shape.type is not Type.int64_type:
            value = g.constants.value(x)
            return x if value is None else float(value.reshape(-1)[0])
        return g.int_value(x, "length") if x in g.lengths else x

    return _replaced([list(args), dict(kwargs)], known)  # type: ignore[return-value]


def _replaced(value: object, change: Callable[[Instruction], object]) -> Any:
    """Return a tree of arguments with each instruction replaced."""
    if isinstance(value, Instruction):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_replaced(v, change) for v in value]
    if isinstance(value, dict):
        return {k: _replaced(v, change) for k, v in value.items()}
    return value


def _instructions(tree: object) -> list[Instruction]:
    """Return the instructions of a tree of arguments, in order."""
    found: list[Instruction] = []

    def note(x: Instruction) -> Instruction:
        found.append(x)
        return x

    _replaced(tree, note)
    return found


def _checked(g: AtenBuilder, node: AtenNode, results: Results, shapes: Sequence[Shape | None]) -> Results:
    """Check the lengths of results against PyTorch's."""
    for k, (x, shape) in enumerate(zip(results, shapes)):
        if x is None or shape is None or x.shape.is_dynamic or shape.is_dynamic or x.shape.symbolic:
            continue
        if x.shape.array_lens != shape.array_lens:
            raise ShapeError(f"result {k} has lengths {list(x.shape.array_lens)}, expected {list(shape.array_lens)}")
    return results


def _deferred(
    g: AtenBuilder,
    node: AtenNode,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    shapes: Sequence[Shape | None],
    inputs: Sequence[Instruction],
) -> Results:
    numbers: list[bool] = []
    places = iter(range(len(inputs)))

    def marked(x: Instruction) -> object:
        numbers.append(x in g.lengths)
        return {"input": next(places)}

    tree = _encoded(_replaced([list(args), dict(kwargs)], marked))
    document = {
        "name": node.name,
        "operator": node.operator,
        "place": node.place,
        "types": [None if t is None else t.name for t in node.types],
        "ranks": list(node.ranks),
        "used": list(node.used),
        "arguments": tree,
        "numbers": numbers,
    }
    present = node.read()
    own = [shapes[k] for k in present]
    op = Deferred(
        operator=node.operator,
        reader=READER,
        source=base64.b64encode(json.dumps(document).encode()).decode(),
        result=own[0] if len(own) == 1 else Shape.tuple(own),  # type: ignore[arg-type]
    )
    ins = g.op(op, *inputs)
    values = [ins] if len(own) == 1 else [g.op("get_tuple_elem", ins, index=k) for k in range(len(own))]
    results: Results = [None] * len(shapes)
    for k, value in zip(present, values):
        results[k] = value
    return results


def _encoded(value: object) -> object:
    if isinstance(value, Type):
        return {"type": value.name}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_encoded(v) for v in value]
    if isinstance(value, dict):
        return {k: _encoded(v) for k, v in value.items()} if "input" not in value else value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise UnsupportedError(f"an argument of type {type(value).__name__} is not supported")


def decoded(source: str, inputs: Sequence[Instruction]) -> tuple[AtenNode, list[object], dict[str, object], list[bool]]:
    """Return node and arguments of a deferred node, and of each input whether it is a symbolic number.

    Raises:
        ParseError: the source is malformed.
    """
    try:
        document = json.loads(base64.b64decode(source, validate=True))
        types = [None if t is None else parse_type(t) for t in document["types"]]
        node = AtenNode(
            document["name"], document["operator"], types, document["ranks"], document["place"], document["used"]
        )
        args, kwargs = _decoded(document["arguments"], inputs)
        numbers = [bool(n) for n in document["numbers"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ParseError(f"the source of a deferred ATen node is damaged: {error}") from None
    return node, args, kwargs, numbers


def _decoded(value: object, inputs: Sequence[Instruction]) -> Any:
    if isinstance(value, list):
        return [_decoded(v, inputs) for v in value]
    if isinstance(value, dict):
        if set(value) == {"input"}:
            return inputs[value["input"]]
        if set(value) == {"type"}:
            return parse_type(value["type"])
        if set(value) == {"float"}:
            return float.fromhex(value["float"])
        return {k: _decoded(v, inputs) for k, v in value.items()}
    return value
