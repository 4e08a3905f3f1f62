"""Printing of kernel source: a code buffer, and a handler that prints scalar operations as vector calls.

It needs no Numba: text is printed, and looked up in the object store, without compiling anything.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..core.types import Type, from_numpy, numpy_dtype
from ..dataclass import dataclass
from ..errors import UnsupportedError
from ..ops.scalar_functions import FUNCTIONS, NEAREST, PREDICATES, SAME_TYPE, is_defined
from .body import ScalarBody
from .statements import INDENT, dtype_name, literal

LARGEST_FLOAT8 = {
    Type.fp8e4m3fn_type: 448.0,
    Type.fp8e4m3fnuz_type: 240.0,
    Type.fp8e5m2_type: 57344.0,
    Type.fp8e5m2fnuz_type: 57344.0,
}
"""The largest finite number of each float8 type, by definition."""
EIGHT_BITS = (Type.int8_type, Type.uint8_type)
_ANY = (-math.inf, math.inf)
_FLOAT8 = {name: t for t, name in NEAREST.items()}
_EITHER_ORDER = frozenset(("add", "mul"))
"""Operations whose operands are printed in one order, so that x + y and y + x share a kernel. The value of max and min
depends on the order for zeros and NaNs."""


class CodeBuffer:
    """Lines of Python at a current indentation, and single-assignment names for expressions.

    An expression that was emitted before in this block or an enclosing block is not emitted again. So it may only read
    names that are assigned once or through `assign`, and memory that the kernel does not write meanwhile. `lines` may
    be taken out and cleared; the names stay known.
    """

    def __init__(self, prefix: str = "v") -> None:
        self._prefix = prefix
        self.lines: list[str] = []
        self._scopes: list[dict[str, str]] = [{}]
        self._count = 0

    def line(self, *texts: str) -> None:
        """Append statements, one per line."""
        indent = INDENT * (len(self._scopes) - 1)
        self.lines.extend(indent + text if text else "" for text in texts)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Append `header` (ending in a colon) and indent the lines of the ``with`` block; names emitted inside end with
        the block."""
        self.line(header)
        self._scopes.append({})
        start = len(self.lines)
        try:
            yield
            if len(self.lines) == start:
                self.line("pass")
        finally:
            self._scopes.pop()

    def emit(self, expression: str) -> str:
        """Return the name that holds an expression's value; assign it unless it is already assigned."""
        for scope in reversed(self._scopes):
            if expression in scope:
                return scope[expression]
        name = self.fresh()
        self.line(f"{name} = {expression}")
        self._scopes[-1][expression] = name
        return name

    def fresh(self) -> str:
        """Return an unused name."""
        self._count += 1
        return f"{self._prefix}{self._count - 1}"

    def assign(self, name: str, expression: str) -> None:
        """Assign a variable that may be assigned more than once; forget the expressions that read it."""
        self.line(f"{name} = {expression}")
        reads = re.compile(rf"\b{re.escape(name)}\b")
        for scope in self._scopes:
            for known in [text for text in scope if reads.search(text)]:
                del scope[known]

    def drain(self) -> list[str]:
        """Remove and return the lines so far; names that they assigned stay known."""
        lines, self.lines = self.lines, []
        return lines

    def text(self) -> str:
        """Return all lines, ending in a newline."""
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class VectorValue:
    """A vector in printed code.

    `name` holds it, as elements of `dtype` if `raw` (the form in memory), else in the compute type of `dtype`.
    `constant` is its value if all lanes have the same known number.
    """

    name: str
    dtype: Type
    raw: bool = False
    constant: float | int | bool | None = None


class VectorPrinter:
    """Handler of the scalar-operation protocol that prints vector calls of `lang` into a buffer.

    Values are `VectorValue`s of `lanes` lanes. An operation that `lang` lacks for an element type raises
    `UnsupportedError`. Narrow floats are computed in float32 and rounded only when they are stored or cast, even to
    wider types. With `fast_math` they are rounded where they become narrow, and float32 operations use their ``_fast``
    names. Conversions of float32 that are stored, or that the compiler added, then use `FAST_CASTS`.
    """

    FAST_CASTS: ClassVar[Mapping[str, str]] = {"bfloat16": "round_bfloat16"}
    """`lang`'s fast conversions from float32, by result dtype."""
    ROUNDERS: ClassVar[Mapping[Type, str]] = {t: f"round_{dtype_name(t)}" for t in EIGHT_BITS}
    """`lang`'s functions that round float32 to integers within limits and add a zero point, by result type."""
    NEAREST: ClassVar[Mapping[Type, str]] = NEAREST
    """`lang`'s functions that round float32 to a storage-only type and keep the result in float32, by type. With fast
    math the name ends in ``_fast``."""

    def __init__(self, buffer: CodeBuffer, lanes: int, fast_math: bool = False) -> None:
        self.buffer = buffer
        self.lanes = lanes
        self.fast_math = fast_math
        self._points: dict[str, tuple[Type, str]] = {}
        """Of names that hold numbers of 8 bits in another type their own type, and the name in it."""
        self._rounded: dict[str, tuple[str, VectorValue | None]] = {}
        """Of names that hold whole numbers what was rounded, and what was added to that."""
        self._narrowed: dict[str, VectorValue] = {}
        """Of names that hold elements of `NEAREST` what was cast to these."""
        self._exact: set[str] = set()
        """The subset of these names whose value comes from a cast of the model's author."""
        self._spans: dict[str, tuple[float, float]] = {}
        """Of names the least and the greatest number that they hold besides NaN, where there are limits."""
        self._raised: dict[str, str] = {}
        """Of names that hold the greater of a number and something else that."""
        self._limited: dict[str, tuple[str, float]] = {}
        """Of names that hold no numbers beyond one, of either sign, what was limited, and that number."""
        self._limits: dict[str, tuple[str, str, str]] = {}
        """Of names that hold the greater or the lesser of a constant and another number the word, and both names."""
        self._silu: dict[str, str] = {}
        """Of names that hold silu by fast math its argument."""
        self._scaled_silu: dict[str, tuple[str, str]] = {}
        """Of names that hold such a silu times another number the argument and that number."""

    # Loads and stores

    def loaded(self, expression: str, dtype: str | Type) -> VectorValue:
        """Return the value of an expression (`load`, ...) that gives elements of `dtype` in their memory form."""
        dtype = dtype if isinstance(dtype, Type) else from_numpy(numpy_dtype(dtype))
        name = expression if expression.isidentifier() else self.buffer.emit(expression)
        return VectorValue(name, dtype, raw=dtype.compute != dtype)

    def register(self, x: VectorValue) -> str:
        """Return the name of `x` in the compute type of its dtype."""
        return self.stored(x, x.dtype.compute)

    def stored(self, x: VectorValue, dtype: str | Type | None = None) -> str:
        """Return the name of `x` as elements of `dtype` (its own by default), as `store` to memory of this type
        requires."""
        target = dtype if isinstance(dtype, str) else dtype_name(x.dtype if dtype is None else dtype)
        held = dtype_name(x.dtype if x.raw else x.dtype.compute)
        if target == "float32" and x.name in self._narrowed:
            exact = x.name in self._exact
            return self._nearest(x.dtype, self._narrowed[x.name].name, self.const(1.0, Type.float_type), exact)
        return x.name if held == target else self.buffer.emit(f"{self._caster(held, target)}({x.name})")

    def _nearest(self, type: Type, name: str, scale: VectorValue, exact: bool = False) -> str:
        """Round a named value to constant ``scale`` times numbers of ``type``; ``exact`` keeps signs of zeros."""
        least, greatest = self._spans.get(name, _ANY)
        limited = max(-least, greatest) <= LARGEST_FLOAT8[type] * float(scale.constant or 0)
        word = f"{self.NEAREST[type]}{'_fast' * (self.fast_math and not exact)}"
        limits = limited + (limited and least >= 0)
        coarse = "" if exact else self._coarse(name)
        return self.buffer.emit(f"{word}({coarse or name}, {scale.name}, {limits})")

    def _coarse(self, name: str) -> str:
        """Return a name that holds a value in the precision that float8 requires, if that is faster; else ""."""
        if name in self._scaled_silu:
            return self.buffer.emit("scaled_silu_coarse({}, {})".format(*self._scaled_silu[name]))
        if name in self._silu:
            return self.buffer.emit(f"scaled_silu_coarse({self._silu[name]}, {self.const(1.0, Type.float_type).name})")
        word, limit, inner = self._limits.get(name, ("", "", ""))
        coarse = self._coarse(inner) if inner else ""
        return self.buffer.emit(f"{word}({limit}, {coarse})") if coarse else ""

    def _caster(self, held: str, target: str) -> str:
        """Return `lang`'s conversion from dtype ``held`` to dtype ``target``."""
        fast = self.FAST_CASTS.get(target) if self.fast_math and self.lanes and held == "float32" else None
        return fast or f"cast_{target}"

    def splat(self, x: VectorValue) -> VectorValue:
        """Broadcast a scalar value to all lanes; a vector stays."""
        return replace(x, name=self.buffer.emit(f"splat({x.name}, {self.lanes})"))

    # The scalar-operation protocol

    def dtype(self, x: VectorValue) -> Type:
        return x.dtype

    def const(self, value: float | int | bool, dtype: Type) -> VectorValue:
        exact = np.asarray(value).astype(dtype.numpy)
        number = float(exact) if dtype.is_floating else exact.item()
        name = self.buffer.emit(f"const_{dtype_name(dtype.compute)}({literal(number)}, {self.lanes})")
        return VectorValue(name, dtype, constant=number)

    def cast(self, x: VectorValue, dtype: Type) -> VectorValue:
        """Convert a value to another type, after rounding it to its own type."""
        if x.dtype == dtype:
            return x
        if x.constant is None and not x.raw and x.dtype.compute != x.dtype:
            x = self._exactly(x, x.dtype)
        if x.constant is None and x.dtype.compute is Type.float_type and dtype_name(dtype) in self.FAST_CASTS:
            return self._exactly(x, dtype)
        made = self._cast(x, dtype)
        if made.name in self._narrowed:
            self._exact.add(made.name)
        return made

    def _exactly(self, x: VectorValue, dtype: Type) -> VectorValue:
        """Convert a value to the memory form of a narrower type, denormal numbers included."""
        return VectorValue(self.buffer.emit(f"cast_{dtype_name(dtype)}({self.register(x)})"), dtype, raw=True)

    def cast_loosely(self, x: VectorValue, dtype: Type) -> VectorValue:
        """Convert a value to another type; some printers keep extra precision."""
        return self._cast(x, dtype)

    def _cast(self, x: VectorValue, dtype: Type) -> VectorValue:
        if x.dtype == dtype:
            return x
        if x.constant is not None and dtype.is_floating and math.isfinite(x.constant):
            return self.const(x.constant, dtype)
        source, point = self._rounded.get(x.name, ("", None))
        if source and self.lanes and dtype in self.ROUNDERS and self._is_point(point, dtype):
            numbers = ", ".join(self._limits_of(dtype, point))
            return VectorValue(self.buffer.emit(f"{self.ROUNDERS[dtype]}({source}, {numbers})"), dtype)
        if not (x.raw or self.fast_math or x.dtype.compute is x.dtype):
            x = VectorValue(self.stored(x), x.dtype, raw=True)  # round extra precision to its type
        name = self.register(x)
        if dtype.compute != dtype:
            caster = self._caster(dtype_name(x.dtype.compute), dtype_name(dtype))
            made = VectorValue(self.buffer.emit(f"{caster}({name})"), dtype, raw=True)
            if dtype in self.NEAREST and x.dtype.compute is Type.float_type and self.lanes:
                self._narrowed[made.name] = VectorValue(name, Type.float_type)
            return made
        if x.dtype.compute == dtype:
            return VectorValue(name, dtype)
        made = VectorValue(self.buffer.emit(f"cast_{dtype_name(dtype)}({name})"), dtype)
        if x.dtype in EIGHT_BITS:
            self._points[made.name] = x.dtype, x.name
        return made

    def nearbyint(self, x: VectorValue) -> VectorValue:
        """Round to the nearest integer, ties to even."""
        made = self._call("nearbyint", x.dtype, x)
        if x.dtype.compute is Type.float_type:
            self._rounded[made.name] = self.register(x), None
        return made

    def add(self, x: VectorValue, y: VectorValue) -> VectorValue:
        """Add two values."""
        made = self._call("add", x.dtype, x, y)
        source, point = self._rounded.get(x.name, ("", None))
        if source and point is None:
            self._rounded[made.name] = source, y
        return made

    def _is_point(self, point: VectorValue | None, dtype: Type) -> bool:
        """Return whether ``point`` is a zero point of the 8-bit type ``dtype``."""
        if point is None:
            return True
        if point.constant is None:
            return self._points.get(point.name, ("", ""))[0] is dtype
        ends = np.iinfo(dtype.numpy)
        return float(point.constant).is_integer() and ends.min <= point.constant <= ends.max

    def _limits_of(self, dtype: Type, point: VectorValue | None) -> tuple[str, str, str, str]:
        """Return the least and the greatest number whose sum with a zero point has 8 bits, and the zero point in
        `dtype` and in int16. `hoisted` finds that they do not vary."""
        ends, word = np.iinfo(dtype.numpy), Type.int16_type
        if point is None or point.constant is not None:
            zero = 0 if point is None else int(point.constant or 0)
            floats = (self.const(float(end - zero), Type.float_type).name for end in (int(ends.min), int(ends.max)))
            return *floats, self.const(zero, dtype).name, self.const(zero, word).name  # type: ignore[return-value]
        floats = (self.const(float(end), Type.float_type).name for end in (ends.min, ends.max))
        limits = (self.buffer.emit(f"sub({end}, {self.register(point)})") for end in floats)
        octet = self._points[point.name][1]
        return *limits, octet, self.buffer.emit(f"cast_int16({octet})")  # type: ignore[return-value]

    def where(self, condition: VectorValue, a: VectorValue, b: VectorValue) -> VectorValue:
        raw = a.raw and b.raw
        names = (a.name, b.name) if raw else (self.register(a), self.register(b))
        mask = condition.name
        if condition.dtype is not Type.bool_type:
            mask = self.buffer.emit(f"cast_bool({self.register(condition)})")
        return VectorValue(self.buffer.emit(f"where({mask}, {names[0]}, {names[1]})"), a.dtype, raw)

    def fma(self, a: VectorValue, b: VectorValue, c: VectorValue) -> VectorValue:
        return self._call("fma", a.dtype, a, b, c)

    def pow(self, x: VectorValue, y: VectorValue) -> VectorValue:
        """Compute ``x**y``; the exponents 1, 2 and 3 become products."""
        if y.constant == 1:
            return x
        if y.constant == 2:
            return self._call("mul", x.dtype, x, x)
        if y.constant == 3:
            return self._call("mul", x.dtype, self._call("mul", x.dtype, x, x), x)
        return self._call("pow", x.dtype, x, y)

    def max(self, x: VectorValue, y: VectorValue) -> VectorValue:
        return self._extreme("max", x, y)

    def min(self, x: VectorValue, y: VectorValue) -> VectorValue:
        return self._extreme("min", x, y)

    def __getattr__(self, name: str) -> Callable[..., VectorValue]:
        if name in _FLOAT8:
            return lambda *x: self._quantized(_FLOAT8[name], *x)
        if name in PREDICATES:
            return lambda *x: self._call(name, Type.bool_type, *x)
        if name in SAME_TYPE:
            return lambda *x: self._call(name, x[0].dtype, *x)
        raise AttributeError(f"{type(self).__name__} has no operation {name!r}")

    def _quantized(self, type: Type, x: VectorValue, scale: VectorValue) -> VectorValue:
        """Quantise ``x`` to ``type`` with a constant scale and convert it back, in float32."""
        step = float(scale.constant or 0)
        if type not in self.NEAREST or not self.lanes:
            x = self.mul(x, self.const(1 / step, x.dtype))
        limit = LARGEST_FLOAT8[type] * (step if type in self.NEAREST and self.lanes else 1)
        near = self.min(self.max(x, self.const(-limit, x.dtype)), self.const(limit, x.dtype))
        if type in self.NEAREST and self.lanes:
            return VectorValue(self._nearest(type, self.register(near), scale), x.dtype)
        return self.mul(self._cast(self._cast(near, type), x.dtype), scale)

    def _extreme(self, name: str, x: VectorValue, y: VectorValue) -> VectorValue:
        if y.constant is not None and y.constant == y.constant:  # a constant as first operand saves a comparison
            x, y = y, x
        if x.constant is None or y.constant is not None or x.dtype.compute is not Type.float_type:
            return self._call(name, x.dtype, x, y)
        limit, (least, greatest) = float(x.constant), self._spans.get(y.name, _ANY)
        if limit <= least if name == "max" else limit >= greatest:
            return y
        made = self._call(name, x.dtype, x, y)
        self._limits[made.name] = name, self.register(x), self.register(y)
        if name == "max":
            self._spans[made.name] = limit, max(limit, greatest)
            self._raised[made.name] = self.register(y)
        else:
            self._spans[made.name] = min(limit, least), limit
            if least == -limit and y.name in self._raised:
                self._limited[made.name] = self._raised[y.name], limit
        return made

    def _call(self, name: str, result: Type, *operands: VectorValue) -> VectorValue:
        if not is_defined(name, operands[0].dtype):
            raise UnsupportedError(f"kernels have no {name} of {operands[0].dtype.name}")
        function = FUNCTIONS.get(name)  # None for fma
        fast = self.fast_math and function is not None and function.fast
        fast = fast and operands[0].dtype.compute is Type.float_type
        names = [self.register(x) for x in operands]
        if name in _EITHER_ORDER:
            names.sort()
        made = self.buffer.emit(f"{name}{'_fast' * fast}({', '.join(names)})")
        if function is not None and function.span != _ANY and operands[0].dtype.compute is Type.float_type:
            self._spans[made] = function.span
        if fast and name == "silu":
            self._silu[made] = names[0]
        elif fast and name == "mul":
            for silu, factor in (names, names[::-1]):
                if silu in self._silu:
                    self._scaled_silu[made] = self._silu[silu], factor
        return VectorValue(made, result)


@functools.lru_cache(maxsize=256)
def print_body(
    body: ScalarBody, names: tuple[str, ...], lanes: int, fast_math: bool, prefix: str = "v"
) -> tuple[tuple[str, ...], str]:
    """Print statements that compute a body; return them and the name of the result, as elements of its dtype.

    Args:
        body: the operations.
        names: names of the parameters, in memory form, in vectors of `lanes`.
        lanes: lanes of a vector.
        fast_math: whether to use fast operations.
        prefix: the statements assign names of this prefix and a number.

    Raises:
        UnsupportedError: `lang` lacks an operation for its element type.
    """
    buffer = CodeBuffer(prefix)
    printer = VectorPrinter(buffer, lanes, fast_math)
    parameters = [printer.loaded(name, dtype) for name, dtype in zip(names, body.parameters)]
    result = printer.stored(body.evaluate(printer, parameters))
    return tuple(buffer.drain()), result


def check_body(body: ScalarBody) -> None:
    """Check that `print_body` can print a body.

    Raises:
        UnsupportedError: `lang` lacks an operation for its element type.
    """
    print_body(body, tuple(f"x{k}" for k in range(len(body.parameters))), 1, fast_math=False)
