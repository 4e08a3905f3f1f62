"""Operators that users define: a class of operators for each, known by the name ``domain::name`` like any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar, cast

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..errors import MgxError, OperatorError, UnknownValueError
from .base import Operator, Pointwise, forget, is_known, known_operators, operator_class, register
from .elements import ScalarElement
from .scalar import ScalarOps, V


@dataclass(frozen=True)
class CustomKernel:
    """How a target's kernel computes a custom operator for given shapes.

    Attributes:
        text: source of ``def kernel(args, begin, end)`` in the kernel language. The words of ``args`` are the addresses
            of the inputs, of the outputs (all packed, in row-major order), then ``arguments``.
        tasks: the kernel is called for parts of the tasks 0 to this number, by several threads.
        arguments: integers that the text reads after the addresses.
    """

    text: str
    tasks: int
    arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """
        Raises:
            OperatorError: a field has another type, or is out of range.
        """
        if not isinstance(self.text, str):
            raise OperatorError(f"custom_kernel: text is {type(self.text).__name__}, expected the kernel's source")
        if not _is_int64(self.tasks) or self.tasks < 0:
            raise OperatorError(f"custom_kernel: tasks is {self.tasks!r}, expected an integer from 0 on")
        given = self.arguments
        if not isinstance(given, (tuple, list)) or not all(map(_is_int64, given)):
            raise OperatorError(f"custom_kernel: arguments is {given!r}, expected a tuple of 64-bit integers")


def _is_int64(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


class CustomOperator(Operator):
    """An operator whose meaning is a NumPy function and whose shape rule is another one.

    Subclasses, which `define` makes, have both, and may have what gives kernels.
    """

    custom: ClassVar[bool] = True
    function: ClassVar[Callable[..., Any]]
    rule: ClassVar[Callable[..., object]]
    kernel: ClassVar[Callable[..., CustomKernel] | None] = None
    arity: ClassVar[tuple[int, int | None]]

    @property
    def rule_name(self) -> str:
        return "custom"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        _expect_inputs(self, len(inputs), *self.arity)
        if any(s.is_dynamic for s in inputs):
            raise UnknownValueError(
                f"{self.name}: its shape rule needs fixed lengths, got {'; '.join(map(str, inputs))}"
            )
        found = self._called("its shape rule", self.rule, *inputs)
        shapes = list(found) if isinstance(found, (tuple, list)) else [found]
        if not shapes or not all(isinstance(s, Shape) and not s.is_dynamic and not s.sub_shapes for s in shapes):
            raise self.fail(f"its shape rule gives {found!r}, expected a shape of fixed lengths, or a list of them")
        shapes = [s if s.without_axes else s.to_standard() for s in shapes]
        return Shape.tuple(shapes) if isinstance(found, (tuple, list)) else shapes[0]

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        found = self._called("its function", self.function, *args)
        shapes = output.sub_shapes or (output,)
        values = list(found) if output.sub_shapes and isinstance(found, (tuple, list)) else [found]
        if len(values) != len(shapes):
            raise self.fail(f"its function gives {len(values)} results, its shape rule says {len(shapes)}")
        results = [self._checked(k, np.asarray(v), s) for k, (v, s) in enumerate(zip(values, shapes))]
        return tuple(results) if output.sub_shapes else results[0]

    def kernel_for(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> CustomKernel | None:
        """The kernel for these shapes; ``None`` if the function is to compute it."""
        if self.kernel is None:
            return None
        found = self._called("its kernel", self.kernel, inputs, outputs)
        if found is not None and not isinstance(found, CustomKernel):
            raise self.fail(f"its kernel is {found!r}, expected a custom_kernel or None")
        return found

    def _checked(self, position: int, value: np.ndarray, shape: Shape) -> np.ndarray:
        found = f"{value.dtype} {list(value.shape)}"
        if value.dtype != shape.type.numpy or (value.shape != shape.lens and value.shape != shape.array_lens):
            wanted = f"{shape.type.numpy} {list(shape.array_lens)}"
            raise self.fail(f"its function gives {found} as result {position}, its shape rule says {wanted}")
        return value.reshape(shape.lens)

    def _called(self, what: str, function: Callable[..., object], *args: object) -> Any:
        try:
            return function(*args, **self.attributes())
        except MgxError as error:
            raise type(error)(f"{self.name}: {what}: {error}") from error
        except Exception as error:
            raise self.fail(f"{what}: {type(error).__name__}: {error}") from error


class CustomPointwise(Pointwise):
    """An operator that acts on each element, by an expression over `ScalarElement`; subclasses have it."""

    custom: ClassVar[bool] = True
    expression: ClassVar[Callable[..., object]]

    @property
    def rule_name(self) -> str:
        return "custom_pointwise"

    def input_types(self, types: Sequence[Type]) -> None:
        """Accept any types: the expression checks how types combine."""

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        try:
            found = self.expression(*(ScalarElement(self.name, s, v) for v in x), **self.attributes())
        except MgxError:
            raise
        except Exception as error:
            raise self.fail(f"its expression: {type(error).__name__}: {error}") from error
        if not isinstance(found, ScalarElement):
            raise self.fail(f"its expression gives {found!r}, expected one made of its inputs")
        return cast(V, found.value)


def custom_name(domain: str, op_type: str) -> str:
    """Name of the operator of a domain's ``op_type``."""
    return f"{domain or 'ai.onnx'}::{op_type}"


def custom_domains() -> set[str]:
    """Domains that have custom operators."""
    return {name.partition("::")[0] for name in known_operators() if "::" in name}


def define(
    domain: str,
    op_type: str,
    *,
    scalar: Callable[..., object] | None = None,
    function: Callable[..., object] | None = None,
    rule: Callable[..., object] | None = None,
    kernel: Callable[..., CustomKernel] | None = None,
) -> type[Operator]:
    """Make a custom operator known: by a scalar expression, or by a function and a shape rule.

    Positional parameters of ``scalar`` or ``function`` are inputs, those after ``*`` attributes with their defaults.

    Raises:
        OperatorError: the name cannot be, or is taken; or a parameter that is neither an input nor an attribute.
    """
    name = custom_name(domain, op_type)
    if not domain or not op_type or ":" in domain + op_type:
        raise OperatorError(f"a custom operator needs a domain and a name without colons, got {domain!r}, {op_type!r}")
    if is_known(name):
        raise OperatorError(f"custom operator {name!r} is registered already")
    meaning = scalar if scalar is not None else function
    assert meaning is not None
    if not callable(meaning):
        raise OperatorError(f"{name}: a function is needed, got {meaning!r}")
    least, most, attributes = _signature(name, meaning)
    members: dict[str, object] = {"name": name, "__doc__": inspect.getdoc(meaning) or name}
    if scalar is not None:
        if most != least or not least:
            raise OperatorError(f"{name}: a scalar expression takes a fixed number of inputs, at least one")
        members |= {"expression": staticmethod(scalar), "arity": least}
        base: type[Operator] = CustomPointwise
    else:
        assert rule is not None
        members |= {"function": staticmethod(meaning), "rule": staticmethod(rule), "arity": (least, most)}
        members["kernel"] = None if kernel is None else staticmethod(kernel)
        base = CustomOperator
    members["__annotations__"] = {attribute: kind for attribute, kind, _ in attributes}
    members |= {attribute: default for attribute, _, default in attributes}
    return _registered(op_type, base, members)


def define_remote(name: str, function: Callable[..., object], rule: Callable[..., object]) -> None:
    """Make an operator of another process known: by its plain name, without attributes, for any number of inputs.

    An operator of this kind that has the name is replaced.

    Raises:
        OperatorError: the name is that of another operator, or empty.
    """
    if not name or (is_known(name) and not operator_class(name).custom):
        raise OperatorError(f"a custom operator cannot be called {name!r}" + (": an operator is" if name else ""))
    members: dict[str, object] = {"name": name, "__doc__": name, "arity": (0, None), "__annotations__": {}}
    members |= {"function": staticmethod(function), "rule": staticmethod(rule)}
    if is_known(name):
        forget(name)
    _registered(name, CustomOperator, members)


def _registered(title: str, base: type[Operator], members: dict[str, object]) -> type[Operator]:
    class_name = title if title.isidentifier() else base.__name__
    return register(dataclass(frozen=True)(type(class_name, (base,), members)))


def undefine(domain: str, op_type: str) -> None:
    """Forget a custom operator.

    Raises:
        OperatorError: there is none of this name.
    """
    name = custom_name(domain, op_type)
    if not operator_class(name).custom:
        raise OperatorError(f"{name!r} is no custom operator")
    forget(name)


def _expect_inputs(op: Operator, count: int, least: int, most: int | None) -> None:
    if count < least or (most is not None and count > most):
        wanted = str(least) if most == least else f"{least} or more"
        raise op.fail(f"got {count} inputs, expected {wanted}")


def _signature(name: str, function: Callable[..., object]) -> tuple[int, int | None, list[tuple[str, str, object]]]:
    """Least and largest number of inputs (``None``: any), and attributes: names, kinds, defaults."""
    least, variadic, attributes = 0, False, []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            variadic = True
        elif p.kind is p.KEYWORD_ONLY:
            attributes.append((p.name, _kind(name, p), field(default=_frozen(p.default))))
        elif p.kind is p.VAR_KEYWORD or p.default is not p.empty:
            raise OperatorError(f"{name}: parameter {p.name!r} is no input; attributes come after *, with a default")
        else:
            least += 1
    return least, None if variadic else least, attributes


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _kind(name: str, parameter: inspect.Parameter) -> str:
    """Return the type of an attribute, by its default."""
    value = parameter.default
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    if isinstance(value, (tuple, list)):
        for item in (int, float):
            if all(isinstance(v, item) and not isinstance(v, bool) for v in value):
                return f"tuple[{item.__name__}, ...]"
    found = "none" if value is parameter.empty else repr(value)
    raise OperatorError(
        f"{name}: attribute {parameter.name!r} has the default {found}, expected a bool, an int, a float, a str, or a"
        " tuple of ints or floats"
    )
