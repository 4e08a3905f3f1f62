"""Base class of macros, their registry, and the instructions that all of them emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import OperatorError, ShapeError
from ...ops.base import make_op
from ..emitter import Emitter
from ..instruction import Instruction
from ..module import Module

Values = Sequence[Instruction]

Expand = Callable[..., Any]


@dataclass(frozen=True)
class Macro:
    """``expand(e, *inputs, **options)`` gives the result or a list of results.

    Attributes:
        inputs: smallest and largest number of inputs.
        options: names and defaults; a value must be of its default's kind.
    """

    expand: Expand
    inputs: tuple[int, int]
    options: Mapping[str, object]


MACROS: dict[str, Macro] = {}


def macro(*names: str, inputs: tuple[int, int], **options: object) -> Callable[[Expand], Expand]:
    """Register the decorated function as the expansion of the named macros."""

    def add(function: Expand) -> Expand:
        for name in names:
            if name in MACROS:
                raise ValueError(f"macro {name!r} is defined twice")
            MACROS[name] = Macro(function, inputs, options)
        return function

    return add


def macro_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """All options of a macro, defaults included; those of a plain operator are its attributes.

    Raises:
        OperatorError: neither a macro nor an operator has this name, or it has no such option (the known ones
            are listed), or a value is of the wrong kind.
    """
    found = MACROS.get(name)
    if found is None:
        return make_op(name, **options).attributes()
    result = dict(found.options)
    for key, value in options.items():
        if key not in result:
            raise OperatorError(f"macro {name} has no option {key!r}; it has: {', '.join(result) or 'none'}")
        result[key] = _convert(name, key, found.options[key], value)
    return result


def _convert(name: str, key: str, default: Any, value: Any) -> object:
    try:
        if isinstance(default, bool):
            if value not in (0, 1):
                raise TypeError
            return bool(value)
        if isinstance(default, float):
            return float(value)
        if isinstance(default, str):
            if not isinstance(value, str):
                raise TypeError
            return value
        if isinstance(default, tuple):
            return tuple(v.__index__() for v in value)
        return None if value is None else value.__index__()
    except (TypeError, ValueError, AttributeError):
        kind = "int" if default is None else type(default).__name__
        raise OperatorError(f"macro {name}: option {key} must be {kind}, got {value!r}") from None


def add_macro(
    module: Module,
    before: Instruction | None,
    name: str,
    inputs: Sequence[Instruction],
    modules: Sequence[Module] = (),
    options: Mapping[str, object] | None = None,
) -> list[Instruction]:
    """Insert the instructions that a macro stands for before ``before`` (at the end for ``None``).

    A name that is no macro, or an operator given submodules, is inserted as the plain operator.

    Returns:
        The instructions that give the results.

    Raises:
        OperatorError: unknown macro, or a wrong number of inputs or option.
        ShapeError: the inputs do not fit.
    """
    found = MACROS.get(name)
    if found is None or modules:
        op = make_op(name, **(options or {}))
        return [module.insert_instruction(before, op, inputs, modules)]
    low, high = found.inputs
    if not low <= len(inputs) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise OperatorError(f"macro {name} got {len(inputs)} inputs, expected {wanted}")
    result = found.expand(MacroBuilder(module, before, name), *inputs, **macro_options(name, options or {}))
    return list(result) if isinstance(result, (list, tuple)) else [result]


class MacroBuilder(Emitter):
    """Inserts instructions for one macro."""

    def __init__(self, module: Module, before: Instruction | None, name: str) -> None:
        self._module = module
        self._before = before
        self.name = name

    def op(self, op: str, *inputs: Instruction, **attributes: object) -> Instruction:
        """Insert one operation."""
        return self._module.insert_instruction(self._before, make_op(op, **attributes), inputs)

    def literal(self, value: object, type: Type | None = None) -> Instruction:
        """A constant at the front of the module; a number becomes a scalar."""
        array = np.asarray(value)
        return self._module.add_literal(array if type is None else array.astype(type.numpy))

    def fail(self, message: str) -> ShapeError:
        """A ``ShapeError`` that names the macro."""
        return ShapeError(f"macro {self.name}: {message}")

    def common(self, *values: Instruction) -> list[Instruction]:
        """The values in their common type, broadcast to common lengths."""
        type = common_type([v.shape.type for v in values])
        return self.same_lens(*(self.convert(v, type) for v in values))

    def pointwise(self, name: str, *values: Instruction, **attributes: object) -> Instruction:
        """A pointwise operation on values of any types and lengths that go together."""
        return self.op(name, *self.common(*values), **attributes)

    def number(self, name: str, x: Instruction, value: float) -> Instruction:
        """A pointwise operation of ``x`` and a constant of its type."""
        return self.pointwise(name, x, self.like(value, x))


def common_type(types: Sequence[Type]) -> Type:
    """Type that values take before they meet: floating rather than integral, then wider, then signed."""
    return max(types, key=lambda t: (t.is_floating, t.size, t.is_signed, -int(t)))
