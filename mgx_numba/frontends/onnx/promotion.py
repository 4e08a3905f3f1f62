"""Promotion of inputs whose element types ONNX does not allow, although their meaning is unambiguous.

The same rules hold for all operators:

* Inputs that must share a type get their common type. Of floats and integers that is the float, else the narrowest type
that holds all values of each.
* An input of a type that the operator does not allow gets the narrowest allowed type that holds its values.
* Results that share the type are converted back, so the operator itself rounds nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ...core.types import Type, finfo
from ...dataclass import dataclass
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .schema import Schema, newest_form
from .tensors import IR_TYPES, onnx_type_string

NUMBERS = {
    onnx_type_string(t): t
    for t in IR_TYPES.values()
    if t in (Type.bool_type, Type.half_type, Type.bf16_type, Type.float_type, Type.double_type)
    or (t.is_integral and not t.is_narrow)
}
"""Types that may be promoted, by ONNX's type string. Conversions of other types are ambiguous."""
WHOLE = frozenset({"Sum", "Mean", "MaxPool", "GlobalMaxPool", "ThresholdedRelu"})
"""Operators that ONNX defines for floats only and that map integers to integers. On integers they compute in a float
type that holds the integers."""
BOOL = "tensor(bool)"


@dataclass
class Promotion:
    """Target types of the conversions of a node's inputs and results, by position."""

    inputs: dict[int, Type] = field(default_factory=dict)
    results: dict[int, Type] = field(default_factory=dict)

    def promoted(self, g: Builder, inputs: Sequence[Instruction | None]) -> list[Instruction | None]:
        """Return the inputs, converted."""
        return [x if x is None or k not in self.inputs else g.convert(x, self.inputs[k]) for k, x in enumerate(inputs)]

    def restored(self, g: Builder, results: Any) -> Any:
        """Return the results (an instruction, or a list of instructions), converted."""
        if not self.results or results is None:
            return results
        if isinstance(results, Instruction):
            return g.convert(results, self.results[0]) if 0 in self.results else results
        return [
            r if k not in self.results or r is None else g.convert(r, self.results[k]) for k, r in enumerate(results)
        ]


def promotion(node: Node, schema: Schema, types: Sequence[str | None]) -> Promotion:
    """Return the conversions that ``node`` needs to fit ``schema``.

    Args:
        types: ONNX type string of each input; ``None`` for absent inputs and unknown types.

    Raises:
        ParseError: the types of inputs are ambiguous together, or have no allowed type to convert to.
    """
    found = Promotion()
    groups: dict[str, list[int]] = {}
    for position, type in enumerate(types):
        if type is not None and node.inputs[position]:
            formal = schema.formal(position)
            shared = formal.type in schema.types and not (formal.variadic and not formal.homogeneous)
            groups.setdefault(formal.type if shared else f"input {position}", []).append(position)
    for variable, positions in groups.items():
        _promote(node, schema, types, variable, positions, found)
    return found


def _promote(
    node: Node, schema: Schema, types: Sequence[str | None], variable: str, positions: list[int], found: Promotion
) -> None:
    """Add the conversions of the inputs ``positions``, which share a type variable, to ``found``."""
    given = [str(types[k]) for k in positions]
    allowed = schema.allowed(positions[0])
    kinds, wanted = dict.fromkeys(given), given[0]
    if len(kinds) == 1 and wanted in allowed:
        return
    first, newest = given[0], newest_form(node)
    if len(kinds) > 1:
        if newest is not None and _are_apart(newest, types, positions):
            other = next(k for k in positions if types[k] != first)
            node.accept(f"{_described(schema, other, types)}, which only later operator sets allow beside {first}")
            return
        common = _common(given)
        plain = len(_operands(schema, positions)) > 1 or first not in NUMBERS or NUMBERS[first].is_floating
        if common is None or (common.is_floating and not plain) or _gives_sequences(schema):
            raise ParseError(_differ(schema, types, positions))
        wanted = onnx_type_string(common)
    operands = _operands(schema, positions)
    shared = _common([str(types[k]) for k in operands])
    result = first if shared is None else onnx_type_string(shared)
    outputs = [k for k, o in enumerate(schema.source.outputs) if o.type_str == variable]
    if not (wanted in allowed or f"optional({wanted})" in allowed):
        wanted = _substitute(node, schema, types, positions[0], wanted, bool(outputs))
    elif len(kinds) > 1:
        other = next(k for k in positions if types[k] != first)
        node.accept(f"{_described(schema, other, types)}, but {schema.formal(positions[0]).name} is of type {first}")
    for k in positions:
        if types[k] != wanted and wanted in NUMBERS:
            found.inputs[k] = NUMBERS[wanted]
    if result in NUMBERS and wanted != BOOL and any(k in found.inputs for k in positions):
        found.results.update((k, NUMBERS[result]) for k in outputs)


def _substitute(
    node: Node, schema: Schema, types: Sequence[str | None], position: int, wanted: str, gives: bool
) -> str:
    """Return the type for inputs of the type ``wanted``, which ``schema`` does not allow.

    Args:
        gives: whether results share the type.

    Raises:
        ParseError: no type is fit.
    """
    newest, allowed = newest_form(node), schema.allowed(position)
    told = _described(schema, position, types)
    if newest is not None and newest.inputs and wanted in newest.allowed(position):
        node.accept(f"{told}, which operator set {node.opset} does not allow and later ones do")
        return wanted
    if schema.moves(position, wanted):
        node.accept(f"{told}, which no operator set allows; its elements are moved as those of other types are")
        return wanted
    kind = _narrowest(wanted, allowed, gives and node.op_type not in WHOLE)
    if kind is None:
        tensors = sorted(t for t in allowed if t.startswith("tensor("))
        raise ParseError(f"{told}, expected {_one_of(tensors or sorted(allowed))}")
    meaning = ": what is not 0 is true" if kind is Type.bool_type else ""
    node.accept(f"{told}, taken for {onnx_type_string(kind)}{meaning}")
    return onnx_type_string(kind)


def _are_apart(newest: Schema, types: Sequence[str | None], positions: list[int]) -> bool:
    """Return whether the newest version of the schema allows these different types for the inputs ``positions``."""
    bound: dict[str, str] = {}
    for k in positions:
        variable, type = newest.formal(k).type, str(types[k])
        if type not in newest.allowed(k) or bound.setdefault(variable, type) != type:
            return False
    return True


def _operands(schema: Schema, positions: list[int]) -> list[int]:
    """Return the inputs that are operands of equal standing, such as A and B of Add, else the first input alone."""
    if schema.formal(positions[0]).variadic:
        return positions
    named = {schema.formal(k).name: k for k in positions}
    pairs = [[named[a], named[b]] for a, b in (("A", "B"), ("X", "Y")) if a in named and b in named]
    return pairs[0] if pairs else positions[:1]


def _gives_sequences(schema: Schema) -> bool:
    """Return whether a result is a sequence; its tensors must keep their types."""
    return any(t.startswith("seq(") for o in schema.source.outputs for t in o.types)


def _common(types: Sequence[str]) -> Type | None:
    """Return the common type of ``types``; None if there is none."""
    if any(t not in NUMBERS for t in types):
        return None
    kinds = list(dict.fromkeys(NUMBERS[t] for t in types))
    floats = [k for k in kinds if k.is_floating]
    if floats:
        return _least(floats, floats if len(floats) == 1 else [k for k in NUMBERS.values() if k.is_floating])
    return _least(kinds, [k for k in NUMBERS.values() if not k.is_floating])


def _least(kinds: Sequence[Type], among: Collection[Type]) -> Type | None:
    """Return the smallest type of ``among`` that holds all values of every type in ``kinds``; None if there is none."""
    fitting = [k for k in among if all(_holds(k, other) for other in kinds)]
    return min(fitting, key=lambda k: (k.is_floating, k.size, k.is_signed), default=None)


def _holds(wide: Type, narrow: Type) -> bool:
    """Return whether ``wide`` holds all values of ``narrow``.

    A float counts as holding all integers, as in NumPy's promotion of arrays with Python numbers.
    """
    if wide is narrow:
        return True
    if wide.is_floating and narrow.is_floating:
        return wide.size > narrow.size
    if wide.is_floating or wide is Type.bool_type or narrow.is_floating:
        return wide.is_floating
    if narrow is Type.bool_type:
        return True
    a, b = np.iinfo(wide.numpy), np.iinfo(narrow.numpy)
    return a.min <= b.min and b.max <= a.max


def _narrowest(type: str, allowed: Collection[str], gives: bool) -> Type | None:
    """Return the type of ``allowed`` that inputs of ``type`` are converted to; None if there is none.

    Args:
        gives: whether results share the type; integers are then not converted.
    """
    if type not in NUMBERS:
        return None
    kind, kinds = NUMBERS[type], [NUMBERS[t] for t in allowed if t in NUMBERS]
    if kind.is_floating:
        floats = [k for k in kinds if k.is_floating]
        return _least([kind], floats) or max(floats, key=lambda k: (k.size, k is Type.half_type), default=None)
    if kinds == [Type.bool_type]:
        return Type.bool_type
    if gives:
        return None
    whole = [k for k in kinds if not k.is_floating and k is not Type.bool_type]
    if whole:  # narrowing to 32 bits suits indices and lengths; 8 bits would change values
        wide = [k for k in whole if k.size >= Type.int32_type.size]
        return _least([kind], whole) or max(wide, key=lambda k: (k.size, k.is_signed), default=None)
    floats = [k for k in kinds if k.is_floating]
    exact = [k for k in floats if finfo(k.numpy).nmant >= 8 * kind.size]
    return min(exact or floats, key=lambda k: k.size if exact else -k.size, default=None)


def _described(schema: Schema, position: int, types: Sequence[str | None]) -> str:
    return f"input {position} ({schema.formal(position).name}) is of type {types[position]}"


def _differ(schema: Schema, types: Sequence[str | None], positions: list[int]) -> str:
    first = positions[0]
    other = next(k for k in positions if types[k] != types[first])
    return (
        f"{_described(schema, other, types)}, but {schema.formal(first).name} is of type {types[first]}:"
        " they must be the same"
    )


def _one_of(values: Sequence[object]) -> str:
    return str(values[0]) if len(values) == 1 else f"one of {', '.join(map(str, values))}"
