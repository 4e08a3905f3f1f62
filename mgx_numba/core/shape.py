"""Shapes: element type, lengths and strides; strides are in elements and express every view without copying.

A tensor without elements is row-major, whatever strides are given, since it has no elements to place. So shapes of
empty tensors of the same lengths are equal.

The flags have MIGraphX's meaning:

- ``standard``: packed and row-major;
- ``packed``: as many elements as the element space;
- ``transposed``: strides do not descend;
- ``broadcasted``: some stride is zero;
- ``scalar``: all strides are zero.

A dynamic shape has ranges instead of lengths, a tuple shape has sub-shapes. A shape whose number of axes is known only
at run time is unranked: it has a type and nothing else. A sequence, an optional and a map have the shape of their
elements, and no lengths.

A tensor without axes (rank 0 in ONNX and NumPy) is written as MIGraphX writes it: one length 1 with stride 0,
``float_type, {1}, {0}``. This is the only form of a model's rank 0, in programs and in files. A vector of one element
has stride 1, also if it is a view (`Shape.view`). So `Shape.rank` is part of a value's type, and passes keep it
(`graph.module`). Operators compute both as arrays of shape (1,). Arrays that users give and get have
`Shape.array_lens`; arrays of unranked values have their true rank everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any

from ..dataclass import dataclass
from ..errors import ShapeError
from .dim import Dim, known_equal, known_less, known_less_equal, known_same, known_stretched, range_of, same, typical
from .types import Type

MAX_BYTES = 1 << 62
"""Most bytes of a tensor, counting repeated elements and axes beside an empty axis: NumPy's products of lengths stay
within int64, with room for a sign."""
_HOLDERS = (Type.sequence_type, Type.optional_type, Type.map_type)
UNBOUNDED = (1 << 64) - 1
"""Upper end of the range of an unbounded length: MIGraphX's largest ``size_t``."""
_PLAIN = frozenset({int})
"""The class of lengths and strides that are numbers."""
_class_of = type  # the name `type` is an element type below
MAX_RANK = 64
"""Most axes of a tensor: NumPy's ``NPY_MAXDIMS``."""
MOST_KNOWN = 1024
"""Shapes that are kept, of about 1 KB each; all are dropped when it is reached. Six networks of 100 to 300 nodes have
60 to 310 shapes without symbols, and up to 240 with symbols."""


@dataclass(frozen=True)
class DynamicDimension:
    """A length known only to be in ``[min, max]``; ``optimals`` are lengths worth tuning for.

    ``symbol`` is the model's name for it, for readers; it is not part of the dimension's value.
    """

    min: int = 0
    max: int = 0
    optimals: frozenset[int] = frozenset()
    symbol: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.min, Dim) and self.min is self.max:  # a symbolic length
            object.__setattr__(self, "optimals", frozenset())
            return
        if isinstance(self.min, Dim) or isinstance(self.max, Dim):  # the range must hold for all symbol values
            low, high = range_of(self.min)[0], range_of(self.max)[1]
            object.__setattr__(self, "min", max(low or 0, 0))
            object.__setattr__(self, "max", UNBOUNDED if high is None else high)
        if isinstance(self.min, Dim) or isinstance(self.max, Dim):  # between symbolic lengths: the widest extent
            object.__setattr__(self, "min", max(range_of(self.min)[0] or 0, 0))
            most = range_of(self.max)[1]
            object.__setattr__(self, "max", UNBOUNDED if most is None else most)
        if self.min < 0 or self.max < self.min:
            raise ShapeError(f"dynamic dimension needs 0 <= min <= max, got min={self.min}, max={self.max}")
        if self.max > UNBOUNDED:
            object.__setattr__(self, "max", UNBOUNDED)
        if self.optimals or not isinstance(self.optimals, frozenset):
            object.__setattr__(self, "optimals", frozenset() if self.min == self.max else frozenset(self.optimals))

    @property
    def is_fixed(self) -> bool:
        """Whether only one length is possible; it may be symbolic."""
        return self.min is self.max or self.min == self.max

    def clamp(self, length: int) -> int:
        """Return the length in the range that is nearest to ``length``."""
        return min(max(length, self.min), self.max)

    def __str__(self) -> str:
        if self.is_fixed:
            return str(self.min)
        if self.symbol and self.max == UNBOUNDED:
            return self.symbol
        optimals = f", {{{', '.join(map(str, sorted(self.optimals)))}}}" if self.optimals else ""
        return f"[{self.min}..{self.max}{optimals}]"


Lens = tuple[int, ...]
Ranges = tuple[DynamicDimension, ...]
Members = tuple["Shape", ...]


def _check_rank(rank: int) -> None:
    if rank > MAX_RANK:
        raise ShapeError(f"shape has {rank} axes, more than the {MAX_RANK} that are supported")


def _integers(values: Iterable[int]) -> Lens:
    """Convert bool and NumPy integers to int; int and `Dim` stay."""
    own = tuple(values)
    if _PLAIN.issuperset(map(type, own)):
        return own
    return tuple([v if isinstance(v, Dim) else int(v) for v in own])


def _plain(dims: Iterable[DynamicDimension | int]) -> list[DynamicDimension | int]:
    """Convert NumPy integers to int; int, `Dim` and `DynamicDimension` stay."""
    return [d if isinstance(d, (DynamicDimension, int, Dim)) else int(d) for d in dims]


def row_major_strides(lens: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a packed row-major tensor of these lengths."""
    return tuple([*accumulate(lens[:0:-1], mul, initial=1)][::-1]) if lens else ()


def invert_permutation(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse permutation."""
    inverse = [0] * len(permutation)
    for position, axis in enumerate(permutation):
        inverse[axis] = position
    return tuple(inverse)


def same_lengths(a: Sequence[DynamicDimension], b: Sequence[DynamicDimension]) -> bool:
    """Return whether dimensions have the same lengths in every run; equal ranges may turn out to be 1 and another
    length."""
    return len(a) == len(b) and all(
        x == y and (x.is_fixed or (x.symbol != "" and x.symbol == y.symbol)) for x, y in zip(a, b)
    )


def common_range(dims: Sequence[DynamicDimension]) -> DynamicDimension | None:
    """Return the intersection of ranges; None if it is empty.

    Equality of symbolic lengths may record a guard. Whether a symbolic length is in the other ranges is checked at run
    time.
    """
    if any(isinstance(d.min, Dim) for d in dims):
        fixed = [d for d in dims if d.is_fixed]
        if any(a.min != b.min for a, b in pairwise(fixed)):
            return None
        return next((d for d in fixed if not isinstance(d.min, Dim)), fixed[0])
    if all(d == dims[0] for d in dims):
        return dims[0]
    low, high = max(d.min for d in dims), min(d.max for d in dims)
    if low > high:
        return None
    return DynamicDimension(low, high, frozenset.intersection(*(d.optimals for d in dims)))


def common_lens(*lens: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths that arrays broadcast to, by NumPy's rule; NumPy's own function supports at most 32 axes.

    Raises:
        ValueError: the lengths do not broadcast.
    """
    rank = max(map(len, lens), default=0)
    result = []
    for column in zip(*((1,) * (rank - len(n)) + tuple(n) for n in lens)):
        wide = list(dict.fromkeys(n for n in column if not known_equal(n, 1)))
        wide = [n for n in wide if not any(known_stretched(n, other) for other in wide)]
        numbers = [n for n in wide if not isinstance(n, Dim)]
        if numbers:  # a symbolic length equals the number or 1; the broadcast decides
            wide = numbers
        elif any(a != b for a, b in pairwise(wide)):  # equal lengths may all be 1
            wide = [n for n in wide if n != 1]
        if any(a != b for a, b in pairwise(wide)):
            raise ValueError(f"lengths do not broadcast: {', '.join(str(list(n)) for n in lens)}")
        # the simplest of the equal lengths, so that fewer shapes depend on a guard
        result.append(min(wide, key=lambda n: len(str(n))) if len(wide) > 1 else wide[0] if wide else 1)
    return tuple(result)


def other_rank(a: Shape, b: Shape) -> bool:
    """Return whether the shapes are a scalar and a one-element vector."""
    if len(a.strides) != 1 or len(b.strides) != 1 or known_equal(a.strides[0], 0) == known_equal(b.strides[0], 0):
        return False  # compare lengths last: a trace records each comparison of a length
    return known_equal(a.lens[0], 1) and known_equal(b.lens[0], 1)


class Shape:
    """Type, lengths and strides of a tensor. Immutable, hashable, compared by value, including strides.

    Shapes with symbolic lengths are equal if they are equal for all lengths. Shapes of equal arguments are one object,
    which keeps its properties: passes and lowering make each shape of a model some ten times.

    Args:
        type: element type.
        lens: lengths, outermost first. Without lengths the shape is a scalar: lens ``{1}``, strides ``{0}``. Only
            `absent` has no lengths in a program.
        strides: elements between neighbours on each axis; row-major packed when absent.

    Raises:
        ShapeError: lengths are negative, lens and strides differ in rank, or the shape has more than 64 axes or more
            than 2**62 bytes. Repeated elements and axes beside an empty axis count.
    """

    __slots__ = (
        "__dict__",
        "dyn_dims",
        "element",
        "is_dynamic",
        "lens",
        "ranked",
        "strides",
        "sub_shapes",
        "symbolic",
        "type",
    )

    type: Type
    lens: Lens
    strides: Lens
    dyn_dims: Ranges
    sub_shapes: Members
    ranked: bool
    element: Shape | None
    is_dynamic: bool
    """Whether a length (or a sub-shape's length) is a range, the rank is unknown, or this is a sequence, an optional or
    a map."""

    def __new__(cls, type: Type, lens: Iterable[int] | None = None, strides: Iterable[int] | None = None) -> Shape:
        key = type, None if lens is None else tuple(lens), None if strides is None else tuple(strides)
        found = _known.get(key)
        if found is not None:
            return found
        given: list[object] = [*(key[1] or ()), *(key[2] or ())]
        space = next((n.space for n in given if isinstance(n, Dim)), None)
        known = _known if space is None else space.shapes
        found = known.get(key)
        if found is None:
            found = object.__new__(cls)
            found._set(*key)
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[key] = found
        return found

    def _set(self, type: Type, lens: Lens | None, strides: Lens | None) -> None:
        self.type = type
        self.dyn_dims = ()
        self.sub_shapes = ()
        self.ranked = True
        self.element = None
        self.is_dynamic = self.symbolic = False
        if type in _HOLDERS:
            raise ShapeError(f"a shape of {type.name} has no lengths, but the shape of what it holds")
        own = () if lens is None else _integers(lens)
        if not own and strides is None:
            self.lens, self.strides = (1,), (0,)
            return
        self.lens = own
        self.strides = row_major_strides(own) if strides is None else _integers(strides)
        if len(own) != len(self.strides):
            raise ShapeError(f"shape has {len(own)} lengths but {len(self.strides)} strides")
        _check_rank(len(own))
        if not _PLAIN.issuperset(map(_class_of, own + self.strides)):
            self.symbolic = any(isinstance(v, Dim) for v in own + self.strides)
            elements = 1
            for n in own:
                if n < 0 if not isinstance(n, Dim) else known_less(n, 0):
                    raise ShapeError(f"shape has a negative length: {list(own)}")
                elements *= n
            if isinstance(elements, Dim):  # a plan's sizes are checked when its lengths are known
                self.elements = elements
                return
        else:
            if own and min(own) < 0:
                raise ShapeError(f"shape has a negative length: {list(own)}")
            elements = prod(own)
        if strides is not None and not elements:
            self.strides = row_major_strides(own)  # there are no elements: all strides are equivalent
        space = elements
        if elements and strides is not None:
            space = 1
            for n, stride in zip(own, self.strides):
                space += (n - 1) * stride
        most = MAX_BYTES // max(1, type.size)  # a tuple's element size is 0
        # max() would record a comparison of traced lengths
        if (elements or prod([n for n in own if not isinstance(n, Dim) and n])) > most or space > most:
            raise ShapeError(f"shape {list(own)} of {type.name} exceeds 2**62 bytes")
        self.elements, self.element_space = elements, space

    @classmethod
    def dynamic(cls, type: Type, dims: Iterable[DynamicDimension | int]) -> Shape:
        """Return a shape with ranges for lengths; plain integers are fixed dimensions. If all are fixed, the shape is
        static."""
        own = _plain(dims)
        ranges = tuple(d if isinstance(d, DynamicDimension) else DynamicDimension(d, d) for d in own)
        if all(d.is_fixed for d in ranges):
            return cls(type, [d.min for d in ranges])
        return cls.ranged(type, ranges)

    @classmethod
    def ranged(cls, type: Type, dims: Iterable[DynamicDimension]) -> Shape:
        """Return a shape with ranges for lengths that stays dynamic even if all are fixed."""
        ranges = tuple(dims)
        _check_rank(len(ranges))
        return cls._without_lens(type, ranges, ())

    @classmethod
    def tuple(cls, shapes: Iterable[Shape]) -> Shape:
        """Return the shape of a tuple of values (results of multi-output operators)."""
        return cls._without_lens(Type.tuple_type, (), tuple(shapes))

    @classmethod
    def unranked(cls, type: Type) -> Shape:
        """Return the shape of a value whose rank is known only at run time; its arrays then have their true rank, 0
        included."""
        shape = cls._without_lens(type, (), ())
        shape.ranked, shape.is_dynamic = False, True
        return shape

    @classmethod
    def view(cls, type: Type, lens: Sequence[int], strides: Sequence[int]) -> Shape:
        """Return the shape of a view with at least one axis.

        A vector of one element gets stride 1, because stride 0 marks a scalar.
        """
        alone = len(lens) == 1 and known_equal(strides[0], 0) and known_equal(lens[0], 1)
        return cls(type, lens, (1,) if alone else strides)

    @classmethod
    def absent(cls, type: Type) -> Shape:
        """Return the shape of an absent optional input, ``{}, {}``."""
        return cls(type, (), ())

    @classmethod
    def sequence(cls, element: Shape) -> Shape:
        """Return the shape of a sequence of any number of tensors of one element type."""
        return cls.holding(Type.sequence_type, element)

    @classmethod
    def optional(cls, element: Shape) -> Shape:
        """Return the shape of an optional tensor or sequence."""
        return cls.holding(Type.optional_type, element)

    @classmethod
    def map(cls, key: Type, value: Type) -> Shape:
        """Return the shape of a map from numbers or strings to numbers or strings."""
        return cls.holding(Type.map_type, cls.tuple([cls(key), cls(value)]))

    @classmethod
    def holding(cls, type: Type, element: Shape) -> Shape:
        """Return the shape of a value of ``type`` that holds values of the shape ``element``."""
        shape = cls._without_lens(type, (), ())
        shape.element, shape.is_dynamic = element, True
        return shape

    @classmethod
    def _without_lens(cls, type: Type, dyn_dims: Ranges, sub_shapes: Members) -> Shape:
        shape = object.__new__(cls)
        shape.type, shape.lens, shape.strides = type, (), ()
        shape.dyn_dims, shape.sub_shapes = dyn_dims, sub_shapes
        shape.ranked, shape.element = True, None
        shape.is_dynamic = bool(dyn_dims) or any(s.is_dynamic for s in sub_shapes)
        shape.symbolic = any(s.symbolic for s in sub_shapes)
        return shape

    @classmethod
    def from_permutation(cls, type: Type, lens: Sequence[int], permutation: Sequence[int]) -> Shape:
        """Return a packed shape whose axes have the memory order ``permutation`` (slowest first)."""
        if sorted(permutation) != list(range(len(lens))):
            raise ShapeError(f"{list(permutation)} is not a permutation of {len(lens)} axes")
        strides, stride = [1] * len(lens), 1
        for axis in reversed(permutation):
            strides[axis] = stride
            stride *= lens[axis]
        return cls(type, lens, strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.dyn_dims) if self.dyn_dims else len(self.lens)

    @cached_property
    def elements(self) -> int:
        """Number of logical elements (the largest possible number for a dynamic shape)."""
        if self.sub_shapes:
            return 0
        count = 1
        for n in self.max_lens:
            count *= n
        return count if self.max_lens else (1 if self.type is not Type.tuple_type else 0)

    @cached_property
    def element_space(self) -> int:
        """Elements of memory from the first to the last used element."""
        if self.is_dynamic:
            return self.elements
        if not self.symbolic and 0 in self.lens:
            return 0
        return 1 + sum([(n - 1) * s for n, s in zip(self.lens, self.strides)])

    @property
    def bytes(self) -> int:
        """Bytes of memory from the first to the last element, summed over sub-shapes."""
        if self.sub_shapes:
            return sum(s.bytes for s in self.sub_shapes)
        return self.element_space * self.type.size

    @property
    def max_lens(self) -> Lens:
        """Lengths, or the upper ends of the ranges."""
        return tuple(d.max for d in self.dyn_dims) if self.dyn_dims else self.lens

    @cached_property
    def dims(self) -> Ranges:
        """Every axis as a range."""
        return self.dyn_dims or tuple(DynamicDimension(n, n) for n in self.lens)

    @cached_property
    def packed(self) -> bool:
        """Whether every place in the element space holds exactly one element."""
        return not self.is_dynamic and not self.sub_shapes and known_equal(self.elements, self.element_space)

    @cached_property
    def transposed(self) -> bool:
        """Whether non-zero strides do not descend from the first axis to the last."""
        strides = [s for s in self.strides if not known_equal(s, 0)] if self.broadcasted else list(self.strides)
        if not self.symbolic:
            return strides != sorted(strides, reverse=True)
        return any(known_less(a, b) for a, b in pairwise(strides))

    @cached_property
    def broadcasted(self) -> bool:
        """Whether some stride is zero."""
        return any(known_equal(s, 0) for s in self.strides) if self.symbolic else 0 in self.strides

    @cached_property
    def standard(self) -> bool:
        """Whether the shape is packed and row-major."""
        if self.symbolic and not self.sub_shapes:  # strides must descend for all lengths
            descends = all(known_less_equal(b, a) for a, b in pairwise(self.strides))
            return known_same(self.strides, row_major_strides(self.lens)) or (self.packed and descends)
        return self.packed and not self.transposed and not (self.broadcasted and self.elements > 1)

    @cached_property
    def scalar(self) -> bool:
        """Whether all strides are zero."""
        return not self.is_dynamic and bool(self.strides) and all(known_equal(s, 0) for s in self.strides)

    @property
    def without_axes(self) -> bool:
        """Whether this is a tensor of rank 0: lens ``{1}``, strides ``{0}`` (or no lengths at all)."""
        if self.symbolic:
            return False
        alone = self.strides in ((0,), ()) and self.lens in ((1,), ())  # in this order: see `other_rank`
        return alone and not self.is_dynamic and not self.sub_shapes

    @property
    def rank(self) -> int | None:
        """Number of axes of its arrays: 0 for a tensor without axes, None if it is known only at run time."""
        if not self.ranked:
            return None
        return 0 if self.without_axes else self.ndim

    @property
    def array_lens(self) -> Lens:
        """Lengths of a user's array of this (static) shape: none for a tensor without axes."""
        return () if self.without_axes else self.lens

    def with_lens(self, lens: Sequence[int]) -> Shape:
        """Return a packed shape of other lengths whose axes keep this shape's memory order."""
        if len(lens) != len(self.lens):
            raise ShapeError(f"with_lens: rank {len(lens)} does not match {self}")
        return Shape.from_permutation(self.type, lens, find_permutation([self]))

    def with_type(self, type: Type) -> Shape:
        """Return the same lengths and strides with another element type."""
        if self.sub_shapes or self.element is not None:
            raise ShapeError(f"a shape of {self.type.name} has no element type to change: {self}")
        if type is self.type and not self.is_dynamic:
            return self
        if self.dyn_dims:
            return Shape.dynamic(type, self.dyn_dims)
        return Shape(type, self.lens, self.strides) if self.ranked else Shape.unranked(type)

    def to_standard(self) -> Shape:
        """Return the row-major packed shape of the same type and lengths (a dynamic shape itself)."""
        return self if self.is_dynamic or self.sub_shapes else Shape(self.type, self.lens)

    def row_major(self) -> Shape:
        """Return the row-major packed shape as `to_standard`, but keep a tensor without axes."""
        return Shape(self.type) if self.without_axes else self.to_standard()

    def opened(self) -> Shape:
        """Return a sequence or an optional with elements of any lengths; a map stays unchanged."""
        if self.type is Type.map_type:
            return self
        if self.element is None:
            return Shape.unranked(self.type)
        return Shape.holding(self.type, self.element.opened())

    def to_dynamic(self) -> Shape:
        """Return the shape with every axis as a range, dynamic even if all are fixed."""
        return Shape.ranged(self.type, self.dims)

    def flatten(self) -> list[Shape]:
        """Return the leaf shapes of a tuple shape, or the shape itself."""
        return [leaf for s in self.sub_shapes for leaf in s.flatten()] if self.sub_shapes else [self]

    @cached_property
    def plain(self) -> bool:
        """Whether its values are arrays of known lengths and of a type that kernels support."""
        return not (self.sub_shapes or self.is_dynamic or self.type.hosted)

    def __reduce__(self) -> Any:
        """Return how `copy` and `pickle` make an equal shape, of any kind."""
        return object.__new__, (Shape,), (None, {name: getattr(self, name) for name in _MADE_OF})

    @property
    def _key(self) -> object:
        return (self.type, self.lens, self.strides, self.dyn_dims, self.sub_shapes, self.ranked, self.element)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shape) and same(self._key, other._key))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash of numbers only: hashes of strings differ between processes, and cached shapes travel between
        processes."""
        ends = tuple([(d.min, d.max) for d in self.dyn_dims])
        return hash((self.type.value, self.lens, self.strides, ends, self.sub_shapes, self.ranked, self.element or 0))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.sub_shapes or self.type is Type.tuple_type:
            return f"[{', '.join(map(str, self.sub_shapes))}]"
        if self.element is not None:
            return f"{self.type.name}[{self.element}]"
        if self.is_dynamic:
            dims = ", ".join(map(str, self.dyn_dims)) if self.ranked else "..."
            return f"dynamic, {self.type.name}, {{{dims}}}"
        lens, strides = (", ".join(map(str, values)) for values in (self.lens, self.strides))
        return f"{self.type.name}, {{{lens}}}, {{{strides}}}"

    def __repr__(self) -> str:
        return f"Shape({self})"


_MADE_OF = [name for name in Shape.__slots__ if name != "__dict__"]
_known: dict[object, Shape] = {}
"""Shapes of plain lengths by the arguments that they were made of; `ExpressionSpace.shapes` has those with symbols."""


def find_permutation(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Return the memory order of the axes (slowest first) that most shapes have; row-major wins ties.

    Axes of length 1 have any place in an order. Broadcast and one-element shapes have no definite order: no vote.
    """
    votes: dict[tuple[int, ...], int] = {}
    rank = shapes[0].ndim if shapes else 0
    identity = tuple(range(rank))
    voters: list[Shape] = []
    for shape in shapes:
        if shape.is_dynamic or shape.broadcasted or known_less_equal(shape.elements, 1) or shape.ndim != rank:
            continue
        order = identity
        if not shape.standard:
            # Any order is correct for symbolic lengths, since views and copies use strides.
            lens, strides = (list(map(typical, own)) for own in (shape.lens, shape.strides))
            order = tuple(sorted(range(rank), key=lambda axis: (-strides[axis], -lens[axis], axis)))
        votes[order] = votes.get(order, 0) + 1
        voters.append(shape)
    if not votes:
        return identity
    if len(votes) > 1:
        votes = {order: sum(_has_order(shape, order) for shape in voters) for order in votes}
    best = max(votes.values())
    return identity if votes.get(identity, 0) == best else next(p for p, n in votes.items() if n == best)


def _has_order(shape: Shape, order: tuple[int, ...]) -> bool:
    """Return whether the axes longer than 1 lie in an order, slowest first."""
    strides = [typical(shape.strides[axis]) for axis in order if not known_equal(shape.lens[axis], 1)]
    return all(slow >= fast for slow, fast in pairwise(strides))
