"""Scalar expressions in NumPy's notation: what users write in place of calls of the protocol in `scalar.py`.

``lambda x: x / (1 + np.exp(-x))`` is run once for each handler, on an `ScalarElement` for each input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import DTypeLike

from ..core.types import Type, parse_type
from ..errors import OperatorError, ShapeError
from .scalar import ScalarOps
from .scalar_functions import FUNCTIONS, UNARY

_UFUNCS: dict[np.ufunc, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.power: "pow",
    np.maximum: "max", np.minimum: "min", np.fmod: "fmod", np.remainder: "mod",
    np.negative: "neg", np.absolute: "abs", np.sqrt: "sqrt", np.reciprocal: "recip",
    np.exp: "exp", np.log: "log", np.log2: "log2", np.sign: "sign",
    np.sin: "sin", np.cos: "cos", np.tan: "tan", np.arcsin: "asin", np.arccos: "acos", np.arctan: "atan",
    np.sinh: "sinh", np.cosh: "cosh", np.tanh: "tanh", np.arcsinh: "asinh", np.arccosh: "acosh", np.arctanh: "atanh",
    np.floor: "floor", np.ceil: "ceil", np.rint: "nearbyint", np.isnan: "isnan", np.isinf: "isinf",
    np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge", np.equal: "eq", np.not_equal: "ne",
    np.logical_and: "logical_and", np.logical_or: "logical_or", np.logical_xor: "logical_xor",
    np.logical_not: "logical_not", np.bitwise_and: "bitwise_and", np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor", np.invert: "bitwise_not",
    np.left_shift: "shift_left", np.right_shift: "shift_right",
}  # fmt: skip


class ScalarElement(np.lib.mixins.NDArrayOperatorsMixin):
    """One element of a tensor: a handler's value, to which operators and NumPy's functions apply.

    Operands are of one element type, which the result has (comparisons give bool); numbers become constants of it.
    ``x.astype(type)`` converts; ``x.erf()``, ``x.sigmoid()`` and the like are functions of the protocol that NumPy
    lacks.

    Args:
        owner: the operator's name, for messages.
        handler: gives the calls their meaning.
        value: the handler's.
    """

    def __init__(self, owner: str, handler: ScalarOps, value: object) -> None:
        self._owner = owner
        self._handler = handler
        self.value = value

    @property
    def type(self) -> Type:
        """Its element type."""
        return self._handler.dtype(self.value)

    @property
    def dtype(self) -> np.dtype:
        """NumPy's name for its element type."""
        return self.type.numpy

    def astype(self, dtype: Type | DTypeLike) -> ScalarElement:
        """The value in another element type: floats to integers truncate and saturate, to bool is ``!= 0``."""
        try:
            wanted = parse_type(dtype if isinstance(dtype, (str, Type)) else np.dtype(dtype).name)
        except (TypeError, ValueError) as error:
            raise OperatorError(f"{self._owner}: {error}") from None
        return self._of(self._handler.cast(self.value, wanted))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> ScalarElement:
        name = _UFUNCS.get(ufunc)
        if ufunc is np.square:
            name, inputs = "mul", (self, self)
        if name is None or method != "__call__" or options:
            self._refuse(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
        return self._call(name, *inputs)

    def __array_function__(
        self, function: Callable[..., object], types: object, args: Sequence[object], options: object
    ) -> ScalarElement:
        if function is np.where and len(args) == 3 and not options:
            condition, *values = args
            a, b = self._operands("where", values)
            mask = self._operands("where", [condition])[0]
            return self._of(self._handler.where(mask.value, a.value, b.value))
        if function is np.clip and len(args) == 3 and not options:
            return self._call("min", self._call("max", *args[:2]), args[2])
        self._refuse(f"np.{function.__name__}")

    def __getattr__(self, name: str) -> Callable[[], ScalarElement]:
        if name not in UNARY:
            raise AttributeError(f"{self._owner}: an element has no {name!r}")
        return lambda: self._call(name, self)

    def __bool__(self) -> bool:
        raise OperatorError(f"{self._owner}: an element has no truth value; choose by np.where(condition, a, b)")

    def __float__(self) -> float:
        raise OperatorError(f"{self._owner}: an element is no number; use NumPy's functions, np.exp for math.exp")

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def _call(self, name: str, *operands: object) -> ScalarElement:
        values = self._operands(name, operands)
        type = values[0].type
        floats_only = name == "div" or not FUNCTIONS[name].integers
        if floats_only and not type.is_floating:
            raise ShapeError(f"{self._owner}: {name} of {type.name}, expected a floating-point type; convert by astype")
        return self._of(getattr(self._handler, name)(*(v.value for v in values)))

    def _operands(self, name: str, operands: Sequence[object]) -> list[ScalarElement]:
        """Return operands of a common type; Python numbers become constants of that type."""
        types = {x.type: None for x in operands if isinstance(x, ScalarElement)}
        if len(types) > 1:
            listed = " and ".join(t.name for t in types)
            raise ShapeError(f"{self._owner}: {name} of {listed}, expected one type; convert by astype")
        type = next(iter(types), self.type)
        return [x if isinstance(x, ScalarElement) else self._constant(x, type) for x in operands]

    def _constant(self, number: object, type: Type) -> ScalarElement:
        array = np.asarray(number)
        kind = array.dtype.kind
        fits = kind == "b" or (kind in "iu" and type is not Type.bool_type) or (kind == "f" and type.is_floating)
        if array.ndim or not fits:
            raise ShapeError(f"{self._owner}: {number!r} is no constant of {type.name}")
        return self._of(self._handler.const(array.item(), type))

    def _of(self, value: object) -> ScalarElement:
        return ScalarElement(self._owner, self._handler, value)

    def _refuse(self, what: str) -> NoReturn:
        known = ", ".join(sorted(f"np.{name}" for name in [*(f.__name__ for f in _UFUNCS), "square", "where", "clip"]))
        raise OperatorError(f"{self._owner}: elements have no {what}; they have: {known}, {', '.join(sorted(UNARY))}")
