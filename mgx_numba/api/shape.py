"""``shape`` and ``dynamic_dimension`` of MIGraphX's Python module."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type, parse_type
from ..errors import OptionError, ShapeError


class dynamic_dimension:
    """A range of lengths: ``()`` is {0, 0}; otherwise ``(min, max)`` or ``(min, max, optimals)``.

    Raises:
        ShapeError: a value is no integer, or ``min`` exceeds ``max``.
    """

    def __init__(self, min: int = 0, max: int = 0, optimals: Any = ()) -> None:
        try:
            least, most, best = operator.index(min), operator.index(max), frozenset(map(operator.index, optimals))
        except TypeError:
            given = f"{min!r}, {max!r} and {optimals!r}"
            raise ShapeError(f"dynamic_dimension: min, max and optimals must be integers, got {given}") from None
        self._value = DynamicDimension(least, most, best)

    @property
    def min(self) -> int:
        """Return the smallest length."""
        return self._value.min

    @property
    def max(self) -> int:
        """Return the largest length."""
        return self._value.max

    @property
    def optimals(self) -> set[int]:
        """Return the lengths worth tuning for."""
        return set(self._value.optimals)

    def is_fixed(self) -> bool:
        """Return whether ``min`` equals ``max``."""
        return self._value.is_fixed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dynamic_dimension) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return str(self._value)


def unwrap_shape(value: object) -> Shape:
    """Return the IR's form of a ``shape``.

    Raises:
        ShapeError: ``value`` is not a ``shape``.
    """
    if not isinstance(value, shape):
        raise ShapeError(f"a shape is needed, got {value!r}")
    return value._value


def unwrap_dimension(value: Any) -> DynamicDimension | int:
    """Return the IR's form of a dimension: a ``dynamic_dimension``, an int, or a mapping with min, max and optimals.

    Raises:
        OptionError: ``value`` has another type.
    """
    if isinstance(value, dynamic_dimension):
        return value._value
    if isinstance(value, DynamicDimension):
        return value
    try:
        if isinstance(value, Mapping):
            optimals = frozenset(operator.index(o) for o in value.get("optimals", ()))
            return DynamicDimension(operator.index(value["min"]), operator.index(value["max"]), optimals)
        return operator.index(value)
    except (KeyError, TypeError):
        raise OptionError(
            f"a dimension must be an integer, a dynamic_dimension or a mapping with min and max, got {value!r}"
        ) from None


class shape:
    """Element type, lengths and strides of a tensor.

    The first of these keyword arguments that is given decides: ``dyn_dims``, ``strides``, ``permutation``. They are
    combined with ``type`` (enum or C++ name, default ``float``) and ``lens`` (default ``[1]``). As a sequence, a shape
    yields its lengths (of a dynamic shape the largest, or 1 if unbounded).

    Lengths ``[1]`` with strides ``[0]`` are a scalar, a tensor without axes: its arrays have the shape ().

    Raises:
        ShapeError: the type is unknown, a length is negative, ranks differ, or ``lens()`` is called on a dynamic shape.
    """

    type_t: ClassVar[type[Type]] = Type
    dynamic_dimension: ClassVar[type] = dynamic_dimension
    __slots__ = ("_value",)

    def __init__(
        self,
        *,
        type: object = "float",
        lens: Sequence[int] = (1,),
        strides: Sequence[int] | None = None,
        permutation: Sequence[int] | None = None,
        dyn_dims: Sequence[object] | None = None,
    ) -> None:
        try:
            kind = parse_type(type)
        except ValueError as error:
            raise ShapeError(str(error)) from None
        if dyn_dims:
            dims = [unwrap_dimension(d) for d in dyn_dims]
            value = Shape.dynamic(kind, dims)
            self._value = value if value.is_dynamic else value.to_dynamic()
        elif strides is not None:
            self._value = Shape(kind, _integers("lens", lens), _integers("strides", strides))
        elif permutation is not None:
            self._value = Shape.from_permutation(kind, _integers("lens", lens), _integers("permutation", permutation))
        else:
            self._value = Shape(kind, _integers("lens", lens))

    @classmethod
    def wrap(cls, value: Shape) -> shape:
        """Return the public form of an IR shape."""
        self = cls.__new__(cls)
        self._value = value
        return self

    def _static(self, what: str) -> Shape:
        if self._value.is_dynamic:
            hint = ""
            if any(dim.max == UNBOUNDED for dim in self._value.dyn_dims):
                hint = "; parse_onnx(..., default_dim_value=1) reads what a model leaves open as 1, as MIGraphX does"
            raise ShapeError(f"SHAPE: {what}() called on a dynamic shape: {self._value}{hint}")
        return self._value

    def type(self) -> Type:
        """Return the element type, a ``shape.type_t``."""
        return self._value.type

    def lens(self) -> list[int]:
        """Return the lengths, outermost axis first."""
        return list(self._static("lens").lens)

    def strides(self) -> list[int]:
        """Return the stride of each axis, in elements."""
        return list(self._static("strides").strides)

    def ndim(self) -> int:
        """Return the number of axes."""
        return self._value.ndim

    def elements(self) -> int:
        """Return the number of elements."""
        return self._static("elements").elements

    def bytes(self) -> int:
        """Return the bytes from the first to the last element (for the largest lengths, if dynamic)."""
        return self._value.bytes

    def type_string(self) -> str:
        """Return the name of the element type, such as ``float_type``."""
        return self._value.type.name

    def type_size(self) -> int:
        """Return the size of an element in bytes."""
        return self._value.type.size

    def dyn_dims(self) -> list[Any]:
        """Return the ranges of a dynamic shape."""
        return [dynamic_dimension(d.min, d.max, d.optimals) for d in self._value.dyn_dims]

    def packed(self) -> bool:
        """Return whether the element space has no gaps and no repeated elements."""
        return self._value.packed

    def transposed(self) -> bool:
        """Return whether strides are not in descending order."""
        return self._value.transposed

    def broadcasted(self) -> bool:
        """Return whether some stride is zero."""
        return self._value.broadcasted

    def standard(self) -> bool:
        """Return whether the shape is packed and row-major."""
        return self._value.standard

    def scalar(self) -> bool:
        """Return whether all strides are zero."""
        return self._value.scalar

    def dynamic(self) -> bool:
        """Return whether lengths are ranges."""
        return self._value.is_dynamic

    def __len__(self) -> int:
        return self._value.ndim

    def __getitem__(self, index: Any) -> Any:
        return self._longest()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._longest())

    def _longest(self) -> list[int]:
        return [1 if n == UNBOUNDED else n for n in self._value.max_lens]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, shape) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return str(self._value)


def _integers(what: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(v) for v in values)
    except TypeError:
        raise ShapeError(f"shape: {what} must be a sequence of integers, got {values!r}") from None


class shape_map(dict[str, shape]):
    """Shapes by name; an integer key gives the shape at that position in the order of declaration."""

    def __missing__(self, key: object) -> shape:
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(f"{key!r}; the parameters are: {', '.join(self) or 'none'}")
