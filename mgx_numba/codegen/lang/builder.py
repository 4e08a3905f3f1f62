"""A small builder of straight-line LLVM IR on vectors and scalars alike.

`VectorBuilder` works on the value types of `mgx_numba.codegen.lang.vector`: every method takes vectors of one
lane count or scalars, and Python numbers, which become constants of the other operand's type. LLVM intrinsics
are declared by hand because llvmlite does not name those on vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite import ir

from ..toolchain.numba_core import cgutils
from .target import has

Operand: TypeAlias = "ir.Value | float | int"

# Never nnan or ninf: models use infinities as masks.
FAST_FLAGS = ("nsz", "arcp", "contract", "afn")

_ELEMENTS: dict[str, ir.Type] = {
    "bool": ir.IntType(1),
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    **{f"{sign}int{bits}": ir.IntType(bits) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: ir.IntType(16) for name in ("float16", "bfloat16")},
    **{f"float8_{name}": ir.IntType(8) for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
}
_I32 = ir.IntType(32)
# By bits: adding it leaves no room for a fraction, which is rounded to even.
_MAGIC = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}


def element_type(dtype: str) -> ir.Type:
    """LLVM type of a dtype's element in a register."""
    return _ELEMENTS[dtype]


def is_signed(dtype: str) -> bool:
    """Whether a dtype is a signed integer."""
    return dtype.startswith("int")


class BFloat16(ir.Type):
    """LLVM's ``bfloat``, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat16)

    def __hash__(self) -> int:
        return hash(BFloat16)


class _VectorConstant(ir.Constant):
    """A vector constant by its text, shorter than the list of its elements that llvmlite would write."""

    def __init__(self, type_: ir.Type, text: str, elements: Sequence[ir.Constant] = ()) -> None:
        self.type = type_
        self.constant = elements
        self.text = text

    def _get_reference(self) -> str:
        return self.text


class VectorBuilder:
    """Writes code through `ir_builder`; float arithmetic has fast-math flags if `fast`."""

    def __init__(self, ir_builder: ir.IRBuilder, fast: bool = False) -> None:
        self.ir = ir_builder
        self.fast = fast
        self.flags: tuple[str, ...] = FAST_FLAGS if fast else ()

    def strict(self) -> VectorBuilder:
        """The same without fast-math flags, for arithmetic whose rounding errors are planned."""
        return VectorBuilder(self.ir)

    # Types and constants

    @staticmethod
    def lanes(value: ir.Value) -> int:
        """Lanes of a vector, 0 for a scalar."""
        return value.type.count if isinstance(value.type, ir.VectorType) else 0

    @staticmethod
    def element(value: ir.Value) -> ir.Type:
        """Type of one lane."""
        return value.type.element if isinstance(value.type, ir.VectorType) else value.type

    def like(self, value: ir.Value, element: ir.Type) -> ir.Type:
        """Type with the lanes of `value` and elements of another type."""
        lanes = self.lanes(value)
        return ir.VectorType(element, lanes) if lanes else element

    def width(self, value: ir.Value) -> int:
        """Bits of one lane."""
        element = self.element(value)
        if isinstance(element, ir.IntType):
            return int(element.width)
        return {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}[type(element)]

    def constant(self, type_: ir.Type, value: float | int | bool) -> ir.Constant:
        """A constant, in every lane if the type is a vector."""
        element = type_.element if isinstance(type_, ir.VectorType) else type_
        if isinstance(element, ir.IntType):
            scalar = ir.Constant(element, int(value) & ((1 << element.width) - 1))
        elif isinstance(element, ir.FloatType) and abs(value) >= 2.0**128:
            scalar = ir.Constant(element, float("inf") if value > 0 else float("-inf"))
        else:
            scalar = ir.Constant(element, float(value))
        if not isinstance(type_, ir.VectorType):
            return scalar
        return _VectorConstant(type_, f"splat ({element} {scalar.get_reference()})")

    def coerce(self, *operands: Operand) -> list[ir.Value]:
        """Operands with the Python numbers among them made constants of the type of the first value."""
        type_ = next(operand.type for operand in operands if not isinstance(operand, (int, float)))
        return [self.constant(type_, o) if isinstance(o, (int, float)) else o for o in operands]

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A scalar in every lane."""
        single = self.ir.insert_element(self.poison(ir.VectorType(value.type, lanes)), value, ir.Constant(_I32, 0))
        return self.shuffle(single, [0] * lanes)

    def poison(self, type_: ir.Type) -> ir.Constant:
        """A value that is never looked at."""
        return _VectorConstant(type_, "poison")

    def iota(self, element: ir.IntType, lanes: int) -> ir.Value:
        """0, 1, 2, ... modulo the range of the element type; 0 if `lanes` is 0."""
        if not lanes:
            return ir.Constant(element, 0)
        wrap = (1 << element.width) - 1
        return ir.Constant(ir.VectorType(element, lanes), [ir.Constant(element, k & wrap) for k in range(lanes)])

    def extract(self, vector: ir.Value, lane: int | ir.Value) -> ir.Value:
        """One lane as a scalar."""
        return self.ir.extract_element(vector, ir.Constant(_I32, lane) if isinstance(lane, int) else lane)

    def shuffle(self, vector: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """The named lanes of a vector, in that order."""
        type_, elements = ir.VectorType(_I32, len(lanes)), [ir.Constant(_I32, k) for k in lanes]
        mask = ir.Constant(type_, elements) if any(lanes) else _VectorConstant(type_, "zeroinitializer", elements)
        return self.ir.shuffle_vector(vector, self.poison(vector.type), mask)

    def joined(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Return the concatenation of two vectors of equal length."""
        places = [ir.Constant(_I32, k) for k in range(2 * low.type.count)]
        return self.ir.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, len(places)), places))

    # LLVM intrinsics and library functions

    def mangled(self, type_: ir.Type) -> str:
        """LLVM's suffix for an overloaded type: `v8f32`, `i64`, `p0`."""
        if isinstance(type_, ir.VectorType):
            return f"v{type_.count}{self.mangled(type_.element)}"
        if isinstance(type_, ir.IntType):
            return f"i{type_.width}"
        return {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}.get(type(type_), "p0")

    def function(self, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
        """Declaration of an external function or intrinsic by its full name."""
        return cgutils.get_or_insert_function(self.ir.module, ir.FunctionType(result, arguments), name)

    def intrinsic(
        self,
        name: str,
        operands: Sequence[Operand],
        result: ir.Type | None = None,
        overloads: Sequence[ir.Type] | None = None,
        extra: Sequence[ir.Value] = (),
        fastmath: Sequence[str] | None = None,
    ) -> ir.Value:
        """Call `llvm.<name>`, overloaded on the type of the first operand unless said otherwise.

        ``fastmath`` flags take the place of the builder's.
        """
        values = [*self.coerce(*operands), *extra]
        suffix = ".".join(self.mangled(t) for t in (overloads or [values[0].type]))
        result = result or values[0].type
        callee = self.function(f"llvm.{name}.{suffix}", result, [v.type for v in values])
        flags = self.flags if fastmath is None else fastmath
        return self.ir.call(callee, values, fastmath=flags if isinstance(_element(result), _FLOAT) else ())

    # Floats

    def add(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fadd(*self.coerce(x, y), flags=self.flags)

    def sub(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fsub(*self.coerce(x, y), flags=self.flags)

    def mul(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fmul(*self.coerce(x, y), flags=self.flags)

    def div(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fdiv(*self.coerce(x, y), flags=self.flags)

    def neg(self, x: ir.Value) -> ir.Value:
        return self.ir.fneg(x)

    def fabs(self, x: ir.Value) -> ir.Value:
        return self.strict().intrinsic("fabs", [x])

    def sqrt(self, x: ir.Value) -> ir.Value:
        return self.strict().intrinsic("sqrt", [x])

    def floor(self, x: ir.Value) -> ir.Value:
        return self.strict().intrinsic("floor", [x])

    def copysign(self, magnitude: Operand, sign: Operand) -> ir.Value:
        values = self.coerce(magnitude, sign)
        if self.lanes(values[0]) != 1:
            return self.strict().intrinsic("copysign", values)
        # As a number: LLVM's code generator for AMD aborts on signs of vectors of one float64.
        made = self.copysign(*(self.extract(v, 0) for v in values))
        return self.ir.insert_element(self.poison(values[0].type), made, _I32(0))

    def fused(self, x: Operand, y: Operand, z: Operand) -> ir.Value:
        """x * y + z rounded once; a library call where the CPU has no such instruction."""
        return self.strict().intrinsic("fma", [x, y, z])

    def muladd(self, x: Operand, y: Operand, z: Operand) -> ir.Value:
        """x * y + z, rounded once if the CPU can do it, else twice."""
        if has_fma():
            return self.fused(x, y, z)
        return self.ir.fadd(*self.coerce(self.ir.fmul(*self.coerce(x, y)), z))

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Sum of coefficients[k] * x**k (Horner)."""
        result: Operand = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            result = self.muladd(result, x, coefficient)
        return self.coerce(result, x)[0]

    def fcmp(self, relation: str, x: Operand, y: Operand) -> ir.Value:
        """Ordered comparison (`<`, `<=`, `>`, `>=`, `==`); `!=` is true for NaN."""
        compare = self.ir.fcmp_unordered if relation == "!=" else self.ir.fcmp_ordered
        return compare(relation, *self.coerce(x, y))

    def is_nan(self, x: ir.Value) -> ir.Value:
        return self.ir.fcmp_unordered("uno", x, x)

    def first_greater(self, x: Operand, y: Operand) -> ir.Value:
        """x > y ? x : y, one instruction; y if either is NaN."""
        x, y = self.coerce(x, y)
        return self.ir.select(self.fcmp(">", x, y), x, y)

    def first_less(self, x: Operand, y: Operand) -> ir.Value:
        """x < y ? x : y, one instruction; y if either is NaN."""
        x, y = self.coerce(x, y)
        return self.ir.select(self.fcmp("<", x, y), x, y)

    def magic_round(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """`x` rounded to an integer, and an integer vector whose low bits hold it; |x| below 2**22 (2**51).

        Rounding by adding 1.5 * 2**23 (2**52 in float64) works on every instruction set.
        """
        magic = _MAGIC[self.width(x)]
        shifted = self.ir.fadd(*self.coerce(x, magic))
        return self.ir.fsub(*self.coerce(shifted, magic)), self.bits(shifted)

    def select(self, condition: ir.Value, x: Operand, y: Operand) -> ir.Value:
        return self.ir.select(condition, *self.coerce(x, y))

    # Representations

    def bits(self, x: ir.Value) -> ir.Value:
        """Bits of a float as an integer."""
        return self.ir.bitcast(x, self.like(x, ir.IntType(self.width(x))))

    def from_bits(self, x: ir.Value) -> ir.Value:
        """Float (of the same width) with the bits of an integer."""
        element = {16: ir.HalfType, 32: ir.FloatType, 64: ir.DoubleType}[self.width(x)]()
        return self.ir.bitcast(x, self.like(x, element))

    def widen(self, x: ir.Value) -> ir.Value:
        """float32 to float64."""
        return self.ir.fpext(x, self.like(x, ir.DoubleType()))

    def narrow(self, x: ir.Value) -> ir.Value:
        """float64 to float32."""
        return self.ir.fptrunc(x, self.like(x, ir.FloatType()))

    # Integers

    def iadd(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.add(*self.coerce(x, y))

    def isub(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.sub(*self.coerce(x, y))

    def imul(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.mul(*self.coerce(x, y))

    def and_(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.and_(*self.coerce(x, y))

    def or_(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.or_(*self.coerce(x, y))

    def xor(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.xor(*self.coerce(x, y))

    def not_(self, x: ir.Value) -> ir.Value:
        return self.ir.xor(*self.coerce(x, -1))

    def shl(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.shl(*self.coerce(x, y))

    def lshr(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.lshr(*self.coerce(x, y))

    def ashr(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.ashr(*self.coerce(x, y))

    def icmp(self, relation: str, x: Operand, y: Operand, signed: bool = True) -> ir.Value:
        compare = self.ir.icmp_signed if signed else self.ir.icmp_unsigned
        return compare(relation, *self.coerce(x, y))

    # Lanes and control flow

    def any(self, mask: ir.Value) -> ir.Value:
        """i1: whether any lane of a bool vector (or the bool scalar) is true."""
        if not self.lanes(mask):
            return mask
        return self.intrinsic("vector.reduce.or", [mask], result=ir.IntType(1))

    def reserve(self, type_: ir.Type, align: int = 64) -> ir.Value:
        """Stack memory for one value of a type, allocated once in the function's entry."""
        with self.ir.goto_entry_block():
            place = self.ir.alloca(type_)
        place.align = align
        return place

    def for_lanes(self, count: int | ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Loop `body(lane)` over lane numbers (i64) below `count`."""
        i64 = ir.IntType(64)
        stop = ir.Constant(i64, count) if isinstance(count, int) else count
        with cgutils.for_range(self.ir, stop, intp=i64) as loop:
            body(loop.index)

    def per_lane(self, function: str, *operands: ir.Value) -> ir.Value:
        """Call a C library function on each lane of float operands, in a loop over stack memory."""
        element = self.element(operands[0])
        callee = self.function(function, element, [element] * len(operands))
        lanes = self.lanes(operands[0])
        if not lanes:
            return self.ir.call(callee, operands)
        places = [self.spill(operand) for operand in operands]
        result = self.reserve(operands[0].type)
        base = self.ir.bitcast(result, element.as_pointer())

        def body(lane: ir.Value) -> None:
            values = [self.ir.load(self.ir.gep(place, [lane])) for place in places]
            self.ir.store(self.ir.call(callee, values), self.ir.gep(base, [lane]))

        self.for_lanes(lanes, body)
        return self.ir.load(result, align=64)

    def per_rare_lane(self, rare: ir.Value, usual: ir.Value, function: str, *operands: ir.Value) -> ir.Value:
        """Return ``usual``, but in the lanes of the mask ``rare`` the result of a C library function, which is called
        only if there are such lanes."""
        place = self.reserve(usual.type)
        self.ir.store(usual, place)
        with self.ir.if_then(self.any(rare), likely=False):
            self.ir.store(self.select(rare, self.per_lane(function, *operands), usual), place)
        return self.ir.load(place)

    def spill(self, vector: ir.Value) -> ir.Value:
        """Store a vector (of whole bytes) on the stack; pointer to its first element."""
        place = self.reserve(vector.type)
        self.ir.store(vector, place, align=64)
        return self.ir.bitcast(place, vector.type.element.as_pointer())


_FLOAT = (ir.HalfType, ir.FloatType, ir.DoubleType)


def _element(type_: ir.Type) -> ir.Type:
    return type_.element if isinstance(type_, ir.VectorType) else type_


def has_fma() -> bool:
    """Whether a fused multiply-add is an instruction on the CPU that is compiled for."""
    return has("fma") or has("neon")
