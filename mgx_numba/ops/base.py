"""Operators: everything the IR knows about an operation, as one frozen dataclass per kind.

A subclass declares its MIGraphX name, its attributes (dataclass fields in MIGraphX's order with its defaults), its
shape rule, and its meaning in NumPy. A pointwise operator gives its meaning as a scalar expression instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any, ClassVar, SupportsFloat, SupportsIndex, TypeVar

import numpy as np

from ..core.dim import Dim, Length, same
from ..core.shape import DynamicDimension, Shape
from ..core.strided import Strided
from ..core.types import Type, parse_type
from ..dataclass import dataclass
from ..errors import IndexRangeError, OperatorError, ShapeError
from ..interrupts import whole_module
from ..nearest import did_you_mean
from . import OPERATORS
from .dims import broadcast_dims
from .scalar import NumpyScalar, ScalarOps, TypeScalar, V, from_storage


@dataclass(frozen=True)
class Operator:
    """Base class of all operators.

    ``name`` is MIGraphX's. ``view`` operators return memory of their first input. ``AXES`` lists attributes that hold
    axes, which normalisation makes non-negative; ``UNLESS_SET`` lists attributes that MIGraphX lacks, which are printed
    only if they differ from the default. Operators with ``true_ranks`` get zero-dimensional tensors as arrays of shape
    (), others as (1,). ``custom`` operators are defined by users (`ops/custom.py`).
    """

    name: ClassVar[str] = ""
    view: ClassVar[bool] = False
    pointwise: ClassVar[bool] = False
    reduction: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    true_ranks: ClassVar[bool] = False
    custom: ClassVar[bool] = False
    AXES: ClassVar[tuple[str, ...]] = ()
    UNLESS_SET: ClassVar[tuple[str, ...]] = ()
    _kinds: ClassVar[dict[str, str]]

    @property
    def rule_name(self) -> str:
        """Return the name of the operator's lowering rule in targets."""
        return self.name

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the output shape for these input shapes.

        Raises:
            ShapeError: the number, types, ranks or lengths of the inputs are invalid; the message says which.
        """
        raise NotImplementedError(f"{self.name} has no shape rule")

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> Any:
        """Evaluate the operation in NumPy; return an array of shape ``output.lens`` (a tuple of arrays for a tuple
        shape).

        Args:
            output: the (static) output shape.
            args: input values; strides are arbitrary.

        If the number of elements depends on the data, ``output`` is dynamic and the array has the actual lengths.
        """
        raise NotImplementedError(f"{self.name} has no reference implementation")

    def result_shape(self, inputs: Sequence[Shape], bodies: Sequence[object] = ()) -> Shape:
        """Return `compute_shape`, which reads the submodules ``bodies`` where the operator is a `BodyOperator`."""
        return self.compute_shape(inputs)

    def result_value(self, output: Shape, args: Sequence[Any], run: Any) -> object:
        """Return `compute`, to which a `BodyOperator` passes ``run``, the evaluator of the submodules (`RunModule`)."""
        return self.compute(output, args)

    def counted(self, inputs: Sequence[Shape]) -> tuple[Operator, list[tuple[int, ...]]] | None:
        """Return the form of an operator with a data-dependent length that also returns this length, and the lengths of
        each of its results, -1 for that one; None if there is no such form.

        The form's result is a tuple: the operator's results in flat memory with room for the most elements that they
        may have, and the length (int64, one element).
        """
        return None

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        """Return the strided description of the result in the first input's memory; None if the result is not a view of
        it.

        Args:
            output: the (static) output shape; its strides are ignored.
            source: the first input's lengths and actual strides.
            inputs: shapes of all inputs.
        """
        return None

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        """Return the operator in canonical form for these inputs: non-negative axes (attributes in ``AXES``)."""
        rank = self.axes_rank(inputs) if self.AXES else 0
        changes: dict[str, object] = {}
        for name in self.AXES:
            value = getattr(self, name)
            if isinstance(value, int):
                changes[name] = self.resolve_axis(value, rank, name)
            elif value is not None:
                changes[name] = tuple(self.resolve_axis(v, rank, name) for v in value)
        return self.with_attributes(**changes) if changes else self

    def with_values(self, inputs: Sequence[Shape], values: Sequence[np.ndarray]) -> Operator | None:
        """Return the equivalent operator on the first input alone, given the values of the other inputs; None if there
        is none.

        Args:
            inputs: (static) shapes of all inputs.
            values: values of all inputs but the first.
        """
        return None

    def axes_rank(self, inputs: Sequence[Shape]) -> int:
        """Return the rank that the attributes in ``AXES`` refer to: by default the first input's."""
        return inputs[0].ndim

    def attributes(self) -> dict[str, Any]:
        """Return attribute names and values in declaration order."""
        values = {name: getattr(self, name) for name in self.attribute_kinds()}
        if self.UNLESS_SET:
            usual = {f.name: f.default for f in fields(self) if f.name in self.UNLESS_SET}
            values = {name: v for name, v in values.items() if name not in usual or v != usual[name]}
        return values

    @classmethod
    def attribute_kinds(cls) -> dict[str, str]:
        """Return the names of all attributes in declaration order, with their annotated types."""
        found: dict[str, str] | None = cls.__dict__.get("_kinds")
        if found is None:
            found = cls._kinds = {f.name: str(f.type) for f in fields(cls)}
        return found

    def with_attributes(self, **changes: object) -> Operator:
        """Return the operator with some attributes changed."""
        return replace(self, **changes)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        """Return the floating-point operations of one evaluation (0 where none are counted)."""
        return 0

    @functools.cached_property
    def symbolic(self) -> bool:
        """Return whether an attribute is, or holds, a symbolic length."""
        return any(_has_dim(getattr(self, name)) for name in self.attribute_kinds())

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if _REGISTRY.get(self.name) is type(self):  # some of these classes have no name in a module
            return _again, (self.name, self.attributes())
        return super().__reduce_ex__(protocol)

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        attributes = self.attributes()
        if not attributes:
            return self.name
        return f"{self.name}[{','.join(f'{k}={format_attribute(v)}' for k, v in attributes.items())}]"

    def fail(self, message: str) -> ShapeError:
        """Return a ``ShapeError`` that names the operator."""
        return ShapeError(f"{self.name}: {message}")

    def bad_index(self, message: str) -> IndexRangeError:
        """Return the error for an index among the values of a run; it names the operator."""
        return IndexRangeError(f"{self.name}: {message}")

    def expect_inputs(self, inputs: Sequence[Shape], *counts: int) -> Sequence[Shape]:
        """Return ``inputs``; raise ``ShapeError`` unless their number is one of ``counts``."""
        if len(inputs) not in counts:
            wanted = " or ".join(map(str, counts))
            raise self.fail(f"got {len(inputs)} inputs, expected {wanted}")
        return inputs

    def expect_same_type(self, inputs: Sequence[Shape]) -> None:
        """Raise ``ShapeError`` unless all inputs have one element type."""
        if len({s.type for s in inputs}) > 1:
            raise self.fail(f"inputs have different types: {', '.join(s.type.name for s in inputs)}")

    def resolve_axis(self, value: int, rank: int, what: str = "axis") -> int:
        """Return ``value`` as a non-negative axis of a tensor of ``rank`` axes."""
        if not -rank <= value < rank:
            raise self.fail(f"{what} {value} is out of range for {rank} dimensions")
        return value % rank


def _has_dim(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_dim, value))
    return isinstance(value, Dim) or (isinstance(value, Shape) and value.symbolic)


def format_attribute(value: object) -> str:
    """Format an attribute value as MIGraphX prints it: bools as 0/1, sequences in braces, types as wire values."""
    if value is None:
        return "nullopt"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Type):
        return str(int(value))
    if isinstance(value, Enum):
        return value.name if not isinstance(value, int) else str(int(value))
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, (tuple, list)):
        return "{" + ", ".join(map(format_attribute, value)) + "}"
    return str(value)


def format_float(value: float) -> str:
    """Format a float as C++ streams do: six significant digits."""
    return f"{value:.6g}"


_REGISTRY: dict[str, type[Operator]] = {}
_MODULES = {name: f"{__package__}.{module}" for module, names in OPERATORS.items() for name in names.split()}
OperatorClass = TypeVar("OperatorClass", bound=type[Operator])


def register(cls: OperatorClass) -> OperatorClass:
    """Register an operator class under its ``name`` (class decorator)."""
    if not cls.name or cls.name in _REGISTRY:
        raise ValueError(f"operator name {cls.name!r} is empty or taken")
    _REGISTRY[cls.name] = cls
    return cls


def is_known(name: str) -> bool:
    """Return whether there is an operator of this name."""
    return name in _REGISTRY or name in _MODULES


def forget(name: str) -> None:
    """Unregister an operator."""
    del _REGISTRY[name]


def known_operators() -> list[str]:
    """Return the names of all operators, sorted."""
    return sorted({*_REGISTRY, *_MODULES})


def operator_class(name: str) -> type[Operator]:
    """Return the operator class of this name.

    Raises:
        OperatorError: the name is unknown; the message lists close names.
    """
    cls = _REGISTRY.get(name)
    if cls is None and name in _MODULES:
        whole_module(_MODULES[name])
        cls = _REGISTRY[name]
    if cls is None:
        if "::" in name:
            raise OperatorError(
                f"unknown operator {name!r}; a custom operator is to be registered (register_custom_op) before it is "
                "used, or a file has it"
            )
        raise OperatorError(f"unknown operator {name!r}{did_you_mean(name, known_operators())}")
    return cls


def make_op(name: str, **attributes: object) -> Operator:
    """Return an operator by name; attribute values are converted to the declared types (lists to tuples, ints to
    floats).

    Raises:
        OperatorError: the operator or an attribute is unknown, or a value has the wrong type; known attributes are
            listed.
    """
    cls = operator_class(name)
    known = cls.attribute_kinds()
    values = {}
    for key, value in attributes.items():
        if key not in known:
            listed = ", ".join(known) or "none"
            raise OperatorError(f"{name} has no attribute {key!r}; it has: {listed}")
        values[key] = _convert(name, key, known[key], value)
    try:
        return cls(**values)
    except TypeError as error:
        raise OperatorError(f"{name}: {error}") from None


def _again(name: str, attributes: dict[str, object]) -> Operator:
    """Restore a pickled operator."""
    return make_op(name, **attributes)


def _convert(op: str, key: str, kind: str, value: Any) -> object:
    """Convert a user's attribute value to the declared field type ``kind`` (annotations are strings)."""
    if kind.endswith(" | None"):
        if value is None:
            return None
        kind = kind.removesuffix(" | None")
    enum = _ENUM_KINDS.get(kind)
    try:
        if enum is not None:
            return value if isinstance(value, enum) else enum[value] if isinstance(value, str) else enum(int(value))
        convert = _CONVERSIONS.get(kind)
        if convert is not None:
            return convert(value)
        return tuple(value) if kind.startswith("tuple") else value
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        wanted = kind if enum is None else f"one of {', '.join(e.name for e in enum)}"
        raise OperatorError(f"{op}: attribute {key} must be {wanted}, got {value!r}") from None


def _instance(value: object, *types: type) -> object:
    """Return the value if it is of one of the types.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, types):
        raise TypeError
    return value


def _number(value: SupportsFloat | str) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _exact_number(value: SupportsFloat) -> float | int:
    """Return the number as a float, or as the integer that it is where float64 does not hold it exactly."""
    number = _number(value)
    return int(value) if isinstance(value, (int, np.integer)) and int(number) != value else number


def _integer(value: SupportsIndex | Dim) -> Length:
    return value if isinstance(value, Dim) else value.__index__()


def _integers(value: int | Dim | Iterable[SupportsIndex | Dim]) -> tuple[Length, ...]:
    items = [value] if isinstance(value, (int, np.integer, Dim)) else value
    return tuple(_integer(v) for v in items)


_CONVERSIONS: dict[str, Callable[[Any], object]] = {
    "Shape": lambda value: _instance(value, Shape),
    "Type": parse_type,
    "bool": lambda value: bool(_instance(value, bool, int, np.bool_)),
    "int": _integer,
    "float": _number,
    "float | int": _exact_number,
    "str": lambda value: _instance(value, str),
    "tuple[int, ...]": _integers,
    "tuple[float, ...]": lambda value: tuple(float(v) for v in value),
    "tuple[DynamicDimension, ...]": lambda value: tuple(
        v if isinstance(v, DynamicDimension) else DynamicDimension(int(v), int(v)) for v in value
    ),
    "tuple[Operator, ...]": lambda value: tuple(v if isinstance(v, Operator) else make_op(v) for v in value),
}
"""Conversion functions by attribute type; they raise for invalid values."""


_ENUM_KINDS: dict[str, type[Enum]] = {}


def register_enum(cls: type[Enum]) -> type[Enum]:
    """Let attributes declared with this enum accept its names and values (class decorator)."""
    _ENUM_KINDS[cls.__name__] = cls
    return cls


@dataclass(frozen=True)
class Pointwise(Operator):
    """An operator that acts on each element; its meaning is ``scalar``, over the scalar-operation protocol."""

    pointwise: ClassVar[bool] = True
    arity: ClassVar[int] = 1

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        """Return the result for one element, in calls on the handler ``s``."""
        raise NotImplementedError

    def input_types(self, types: Sequence[Type]) -> None:
        """Check operand types; by default all must be the same."""
        if len(set(types)) > 1:
            raise self.fail(f"inputs have different types: {', '.join(t.name for t in types)}")

    def output_type(self, types: Sequence[Type]) -> Type:
        """Return the element type of the result."""
        return self.scalar(TypeScalar(), *types)

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, self.arity)
        self.input_types([s.type for s in inputs])
        type = self.output_type([s.type for s in inputs])
        return pointwise_shape(self, inputs).with_type(type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(self.scalar(NumpyScalar(), *map(from_storage, args))).astype(
                output.type.numpy, copy=False
            )

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return output.elements


def pointwise_shape(op: Operator, inputs: Sequence[Shape]) -> Shape:
    """Return the shape of a pointwise result: the inputs' common lengths, in the memory order of the packed
    non-broadcast inputs."""
    first = inputs[0]
    if first.packed:
        for s in inputs:
            if s is not first and (first.symbolic or s.symbolic or s.strides != first.strides or s.lens != first.lens):
                break
        else:
            return first
    if any(s.is_dynamic for s in inputs):
        dims = [s.dims for s in inputs]
        if any(len(d) != len(dims[0]) for d in dims):
            raise op.fail(f"inputs have different ranks: {'; '.join(map(str, inputs))}")
        if all(d == dims[0] for d in dims):
            return Shape.ranged(inputs[0].type, dims[0])
        return Shape.ranged(inputs[0].type, broadcast_dims(op, *inputs))  # a range may turn out to be any length, or 1
    if any(s.lens != first.lens for s in inputs[1:]):
        raise op.fail(f"inputs have different lengths: {'; '.join(map(str, inputs))}")
    if all(s.scalar for s in inputs):
        return first
    packed = [s for s in inputs if s.packed and not s.scalar]
    if packed and all(same(s.strides, packed[0].strides) for s in packed):
        return packed[0]
    solid = packed or [s for s in inputs if not s.broadcasted]
    from ..core.shape import find_permutation

    return Shape.from_permutation(first.type, first.lens, find_permutation(solid or [first]))
