"""``shape`` and its dynamic dimensions, as MIGraphX's Python module has them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type, parse_type
from ..errors import OptionError, ShapeError

__all__ = ["dynamic_dimension", "shape", "shape_map"]


class dynamic_dimension:
    """A range of lengths: ``()`` is {0, 0}, ``(min, max)``, ``(min, max, optimals)``."""

    def __init__(self, min: int = 0, max: int = 0, optimals: Any = ()) -> None:
        self._value = DynamicDimension(int(min), int(max), frozenset(int(o) for o in optimals))

    @property
    def min(self) -> int:
        """Smallest length."""
        return self._value.min

    @property
    def max(self) -> int:
        """Largest length."""
        return self._value.max

    @property
    def optimals(self) -> set[int]:
        """Lengths worth tuning for."""
        return set(self._value.optimals)

    def is_fixed(self) -> bool:
        """Whether ``min`` equals ``max``."""
        return self._value.is_fixed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dynamic_dimension) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return str(self._value)


def unwrap_shape(value: Any) -> Shape:
    """The IR's form of a ``shape``.

    Raises:
        ShapeError: it is none.
    """
    if not isinstance(value, shape):
        raise ShapeError(f"a shape is needed, got {value!r}")
    return value._value


def unwrap_dimension(value: Any) -> DynamicDimension | int:
    """The IR's form of a dimension given as ``dynamic_dimension``, int or mapping with min, max and optimals.

    Raises:
        OptionError: it is none of these.
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
    """Element type, lengths and strides.

    Keyword arguments (the first given of these decides): ``dyn_dims``, ``strides``, ``permutation``; with ``type``
    (enum or C++ name, default ``float``) and ``lens`` (default ``[1]``). As a sequence it is its lengths
    (the longest ones of a dynamic shape, 1 where they have no end).

    Lens ``[1]`` with strides ``[0]`` is a scalar, a tensor without axes: arrays of it have the shape ().

    Raises:
        ShapeError: unknown type, negative lengths, ranks that differ, or ``lens()`` of a dynamic shape.
    """

    type_t: ClassVar[type[Type]] = Type
    dynamic_dimension: ClassVar[type] = dynamic_dimension
    __slots__ = ("_value",)

    def __init__(
        self,
        *,
        type: Any = "float",
        lens: Sequence[int] = (1,),
        strides: Sequence[int] | None = None,
        permutation: Sequence[int] | None = None,
        dyn_dims: Sequence[Any] | None = None,
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
        """The public form of an IR shape."""
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
        """Element type, a ``shape.type_t``."""
        return self._value.type

    def lens(self) -> list[int]:
        """Lengths, outermost first."""
        return list(self._static("lens").lens)

    def strides(self) -> list[int]:
        """Elements between neighbours on each axis."""
        return list(self._static("strides").strides)

    def ndim(self) -> int:
        """Number of axes."""
        return self._value.ndim

    def elements(self) -> int:
        """Number of elements."""
        return self._static("elements").elements

    def bytes(self) -> int:
        """Bytes from the first to the last element (of the longest lengths, if dynamic)."""
        return self._value.bytes

    def type_string(self) -> str:
        """Name of the element type, ``float_type``."""
        return self._value.type.name

    def type_size(self) -> int:
        """Bytes of an element."""
        return self._value.type.size

    def dyn_dims(self) -> list[Any]:
        """Ranges of a dynamic shape."""
        return [dynamic_dimension(d.min, d.max, d.optimals) for d in self._value.dyn_dims]

    def packed(self) -> bool:
        """As many elements as its element space."""
        return self._value.packed

    def transposed(self) -> bool:
        """Strides do not descend."""
        return self._value.transposed

    def broadcasted(self) -> bool:
        """Some stride is zero."""
        return self._value.broadcasted

    def standard(self) -> bool:
        """Packed and row-major."""
        return self._value.standard

    def scalar(self) -> bool:
        """All strides are zero."""
        return self._value.scalar

    def dynamic(self) -> bool:
        """Whether lengths are ranges."""
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

    def __missing__(self, key: Any) -> shape:
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(f"{key!r}; the parameters are: {', '.join(self) or 'none'}")
