"""Operators on strings, as ONNX defines them. No kernel computes with them.

Regular expressions in RE2's syntax, matched in time that is linear in the text.

The package ``google-re2`` matches all of RE2's syntax. Without the package, Python's `re` matches, which backtracks: an
expression is refused if its number of attempts may grow faster than the length of the text.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, repeat, zip_longest
from typing import Any, ClassVar

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape, common_lens
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .constant_tables import kept_for_constants

_FOREIGN = re.compile(r"(?<!\\)(?:\\\\)*(\\[1-9]|\(\?<?[=!]|\(\?P=|\(\?\()")
"""Backreferences, lookaround and conditions, which `re` supports and RE2 does not."""
_NOT_FINITE = {"inf": "INF", "-inf": "-INF", "nan": "NaN", "-nan": "NaN"}
_MOST_WAYS = 10_000
"""Largest number of attempts for each position where an unbounded repetition may end: 1 ms of work for `re`."""


@lru_cache(maxsize=64)
def full_match(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether ``pattern`` matches a whole text.

    Raises:
        ValueError: the pattern is not valid in RE2's syntax, or needs ``google-re2``, which is not installed.
    """
    try:
        import re2
    except ImportError:
        compiled = _of_python(pattern)
        return lambda text: compiled.fullmatch(text) is not None
    else:
        options = re2.Options()
        options.log_errors = False
        try:
            in_bytes = re2.compile(pattern.encode(), options)  # no positions of characters: a third of the time
        except re2.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression of RE2's: {_text(error)}") from None
        return lambda text: in_bytes.fullmatch(text.encode()) is not None


def _text(error: Exception) -> str:
    what = error.args[0] if error.args else ""
    return what.decode(errors="replace") if isinstance(what, bytes) else str(what)


def _of_python(pattern: str) -> re.Pattern[str]:
    foreign = _FOREIGN.search(pattern)
    if foreign:
        raise ValueError(f"pattern {pattern!r} has {foreign[1]!r}, which RE2 does not know")
    try:
        compiled = re.compile(pattern, re.ASCII)  # RE2's \w, \d, \s and \b are ASCII
        ways, loops = _ways(_parsed(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None
    if ways > _MOST_WAYS or loops > 1:
        raise ValueError(
            f"pattern {pattern!r} may take Python's regular expressions more than linear time; "
            "install google-re2, which needs linear time for every pattern"
        )
    return compiled


def _parsed(pattern: str) -> Any:
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return parser.parse(pattern, re.ASCII)


def _ways(items: Any) -> tuple[int, int]:
    """Return a bound on the attempts of `re` to match a parsed sequence at one position of a text.

    Returns:
        The number of attempts for fixed ends of the unbounded repetitions, and the number of unbounded repetitions in a
        row. A repetition whose body has several ways to match counts as two, as the ways multiply with each iteration.
    """
    ways, loops = 1, 0
    for name, argument in items:
        kind = str(name)
        if kind == "BRANCH":
            found = [_ways(branch) for branch in argument[1]]
            inner, deep = sum(w for w, _ in found), max(d for _, d in found)
        elif kind == "SUBPATTERN":
            inner, deep = _ways(argument[-1])
        elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            inner, deep = _repeated(*argument)
        elif kind == "ATOMIC_GROUP":
            inner, deep = _ways(argument)
        else:  # one character, or an assertion
            inner, deep = 1, 0
        ways, loops = min(ways * inner, _MOST_WAYS + 1), loops + deep
    return ways, loops


def _repeated(low: Any, high: Any, body: Any) -> tuple[int, int]:
    inner, deep = _ways(body)
    if str(high) == "MAXREPEAT":
        if inner == 1 and not deep and body.getwidth()[0] > 0:
            return 1, 1
        return 1, 2
    if inner == 1:
        return int(high) - int(low) + 1, deep * int(high)
    ways, rounds = 1, 0
    while rounds < int(high) and ways <= _MOST_WAYS:
        ways, rounds = 1 + ways * inner, rounds + 1
    return ways, deep * int(high)


ANY = DynamicDimension(0, UNBOUNDED)


def each(function: Callable[..., Any], dtype: Any, *arrays: np.ndarray) -> np.ndarray:
    """Apply a function elementwise to arrays of equal shapes."""
    result = np.empty(arrays[0].shape, dtype)
    result.reshape(-1)[:] = list(map(function, *(a.reshape(-1).tolist() for a in arrays)))
    return result


@dataclass(frozen=True)
class _OfStrings(Operator):
    """Base class of operators whose inputs are all strings."""

    def strings(self, inputs: Sequence[Shape], count: int) -> None:
        """Raise ``ShapeError`` unless all inputs hold strings and their number is ``count``."""
        self.expect_inputs(inputs, count)
        for position, shape in enumerate(inputs):
            if shape.type is not Type.string_type:
                raise self.fail(f"input {position} is {shape}, expected strings")


@register
@dataclass(frozen=True)
class StringConcat(_OfStrings):
    """Each string of the first input followed by that of the second."""

    name: ClassVar[str] = "string_concat"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 2)
        if not any(s.is_dynamic for s in inputs) and inputs[0].lens != inputs[1].lens:
            raise self.fail(f"inputs have different lengths: {inputs[0]}; {inputs[1]}")
        return inputs[inputs[0].without_axes].row_major()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        a, b = args
        return np.add(a, b, out=np.empty(common_lens(a.shape, b.shape), object))


@register
@dataclass(frozen=True)
class RegexFullMatch(_OfStrings):
    """Whether a regular expression matches all of each string.

    ONNX's expressions are those of RE2; see `regular_expression`.
    """

    name: ClassVar[str] = "regex_full_match"
    pattern: str = ""

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 1)
        self.matcher()
        return inputs[0].row_major().with_type(Type.bool_type)

    def matcher(self) -> Callable[[str], bool]:
        """Return the function that tells whether the expression matches all of a string.

        Raises:
            ShapeError: it is no expression of RE2's, or cannot be matched in linear time.
        """
        try:
            return full_match(self.pattern)
        except ValueError as error:
            raise self.fail(str(error)) from None

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        match, texts = self.matcher(), args[0].reshape(-1).tolist()
        known = {text: match(text) for text in set(texts)}
        return np.fromiter(map(known.get, texts), bool, len(texts)).reshape(args[0].shape)


@register
@dataclass(frozen=True)
class StringSplit(_OfStrings):
    """Parts of each string, along a new last axis as long as the most parts that one has (others end with empty
    strings), and their number. An empty ``delimiter`` is any run of white space; ``maxsplit`` -1 sets no limit."""

    name: ClassVar[str] = "string_split"
    delimiter: str = ""
    maxsplit: int = -1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 1)
        x = inputs[0]
        if not x.ranked:
            return Shape.tuple([x, Shape.unranked(Type.int64_type)])
        dims = () if x.without_axes else x.dims
        return Shape.tuple([Shape.dynamic(x.type, [*dims, ANY]), x.row_major().with_type(Type.int64_type)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        x = args[0]
        ranked = output.sub_shapes[0].ndim if output.sub_shapes[0].ranked else x.ndim + 1
        parts = [s.split(self.delimiter or None, self.maxsplit) for s in x.reshape(-1).tolist()]
        most = max(map(len, parts), default=0)
        pieces = np.empty((most, len(parts)), object)
        pieces.reshape(-1)[:] = list(chain.from_iterable(zip_longest(*parts, fillvalue="")))
        counts = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(x.shape)
        return pieces.T.reshape((*x.shape, most)[-ranked:]), counts


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@register
@dataclass(frozen=True)
class StringNormalizer(_OfStrings):
    """Strings [C] or [1, C] without stop words, in another case; one empty string if none is left.

    ``case_change_action`` is ``LOWER``, ``UPPER`` or ``NONE``. Unless ``is_case_sensitive``, strings and stop words are
    compared in that case, or in lower case if there is none.
    """

    name: ClassVar[str] = "string_normalizer"
    case_change_action: str = "NONE"
    is_case_sensitive: bool = False
    stopwords: tuple[str, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 1)
        x = inputs[0]
        if self.case_change_action not in _CASES:
            raise self.fail(f"case_change_action is {self.case_change_action!r}, expected one of {', '.join(_CASES)}")
        if not x.ranked:
            return x
        if x.without_axes or x.ndim > 2 or (x.ndim == 2 and not x.dims[0].min <= 1 <= x.dims[0].max):
            raise self.fail(f"the input is {x}, expected lengths [C] or [1, C]")
        return Shape.dynamic(x.type, [*([1] if x.ndim == 2 else []), ANY])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        change = _CASES[self.case_change_action]
        key = str if self.is_case_sensitive else str.upper if change is str.upper else str.lower
        stops = set(map(key, self.stopwords))
        kept = [change(s) for s in args[0].reshape(-1) if key(s) not in stops] or [""]
        return np.array(kept, object).reshape((1,) * (args[0].ndim - 1) + (-1,))


@kept_for_constants
def _places(keys: np.ndarray) -> dict[str, int]:
    """Return the position of each string; of equal strings the last."""
    return {key: k for k, key in enumerate(keys)}


@register
@dataclass(frozen=True)
class StringIndex(_OfStrings):
    """For each string of the first input its position in the second, a vector; of several the last, the vector's length
    if there is none."""

    name: ClassVar[str] = "string_index"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 2)
        if inputs[1].ndim != 1 or not inputs[1].ranked:
            raise self.fail(f"the keys are {inputs[1]}, expected a vector")
        return inputs[0].row_major().with_type(Type.int64_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, keys = args
        places = _places(keys)
        found = map(places.get, x.reshape(-1).tolist(), repeat(len(keys)))
        return np.fromiter(found, np.int64, x.size).reshape(x.shape)


@register
@dataclass(frozen=True)
class ParseNumber(_OfStrings):
    """Strings as numbers: decimals, exponents, ``INF``, ``NaN`` as C's ``strtod`` reads them; integers truncated."""

    name: ClassVar[str] = "parse_number"
    target_type: Type = Type.float_type

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.strings(inputs, 1)
        if not (self.target_type.is_floating or self.target_type.is_integral):
            raise self.fail(f"strings are no numbers of {self.target_type.name}")
        return inputs[0].row_major().with_type(self.target_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        dtype = self.target_type.numpy
        read = float if self.target_type.is_floating else _whole
        try:
            return each(read, object, args[0]).astype(dtype)
        except (ValueError, OverflowError) as error:
            raise self.fail(f"a string is no number of {self.target_type.name}: {error}") from None


@register
@dataclass(frozen=True)
class FormatNumber(Operator):
    """Numbers as strings: integers in decimal, bools as ``0`` and ``1``, floats as C's ``%.8g``, with
    ``INF``, ``-INF`` and ``NaN`` for what is not finite: as ONNX Runtime writes them."""

    name: ClassVar[str] = "format_number"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if not (inputs[0].type.is_floating or inputs[0].type.is_integral):
            raise self.fail(f"the input is {inputs[0]}, expected numbers")
        return inputs[0].row_major().with_type(Type.string_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        if x.dtype.kind in "iub":
            return each(str, object, x.view(np.uint8) if x.dtype == bool else x)
        texts = each("{:.8g}".format, object, x.astype(np.float64))
        for k in np.argwhere(~np.isfinite(x)):
            texts[tuple(k)] = _NOT_FINITE[texts[tuple(k)]]
        return texts


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))
