"""Rewrite values of types without kernels (int4, float4e2m1, float8e8m0, ...) as the uint8 bytes that store them.

The *codes* of such a value are its bytes as uint8, by a ``bit_cast``. Operators that move elements move the codes, and
conversions are arithmetic on the codes. Other readers and producers of such values (users' functions, branches,
results of the program) are left as they are.
"""

from __future__ import annotations

from ...core.argument import Argument
from ...core.types import Type
from ...ops.base import Operator, make_op
from ...ops.pad import PadMode
from ...ops.scalar import cast_array
from ..constants import is_constant, scalar_array, uniform_value
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .storage_types import element_types

MOVES = frozenset(
    "contiguous concat pad gather gather_elements gathernd scatter_none scatternd_none reverse reshape step where"
    " identity scan_slice concat_past_present".split()
)
"""Operators, beside views, whose results are elements of their inputs."""


class RewriteNarrow(Pass):
    """``op(x: int4) -> bit_cast[int4](op(bit_cast[uint8](x)))`` where ``op`` moves elements or converts them."""

    name = "rewrite_narrow"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if any(type.coded for type in element_types([i for ins in module for i in (ins, *ins.inputs)])):
            _Codes(module).run()


class _Codes:
    """Rewrites a module; records the codes of its values."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.codes: dict[Instruction, Instruction] = {}
        self.clipped: dict[Instruction, Instruction] = {}
        """For each value converted from integers that were already clipped to its range: those integers."""

    def run(self) -> None:
        for ins in list(self.module):
            if ins.literal is not None or isinstance(ins.op, (Parameter, Return)) or ins.module_args:
                continue
            taken = [i for i in ins.inputs if i.shape.type.coded]
            if not ins.shape.type.coded and not taken:
                continue
            b = RewriteBuilder(self.module, ins)
            new = self._rewritten(b, ins)
            if new is None:
                b.discard()
            elif ins.shape.type.coded:
                value = self.module.insert_instruction(ins, _seen_as(ins.shape.type), [new])
                self.codes[value] = new
                within = _within(ins)
                if within is not None:
                    self.clipped[value] = within
                self.module.replace_instruction(ins, value)
            else:
                self.module.replace_instruction(ins, new)

    def _rewritten(self, b: RewriteBuilder, ins: Instruction) -> Instruction | None:
        """Return the value of ``ins``, or its codes if its type has codes; None if ``ins`` stays as it is."""
        source, kind = (ins.inputs[0] if ins.inputs else None), ins.shape.type
        if ins.name == "convert" and source is not None:
            if source.shape.type.coded:
                wide = self._number(b, source, kind.compute if kind.is_narrow else kind)
            else:
                wide = source
            return None if kind is Type.fp8e8m0_type else _encoded(b, wide, kind) if kind.is_narrow else wide
        if ins.name == "bit_cast" and source is not None:
            codes = self._of(b, source) if source.shape.type.coded else source
            wanted = Type.uint8_type if kind.coded else kind
            return codes if codes.shape.type is wanted else b.op("bit_cast", codes, target_type=wanted)
        moves = ins.name in MOVES or (ins.op.view and ins.name != "get_tuple_elem")
        if not moves or not kind.coded or ins.shape.sub_shapes:
            return None
        op, inputs = ins.op, [self._of(b, i) if i.shape.type is kind else i for i in ins.inputs]
        if ins.name == "pad" and ins.op.attributes()["mode"] is PadMode.constant:
            value = cast_array(scalar_array(ins.op.attributes()["value"], Type.double_type), kind)
            op = op.with_attributes(value=float(value.view("uint8").item()))
        return b.op(op, *inputs)

    def _of(self, b: RewriteBuilder, value: Instruction) -> Instruction:
        """Return the codes of a value."""
        if value not in self.codes:
            if value.literal is not None and value.literal.array is not None:
                bytes = Argument(value.shape.with_type(Type.uint8_type), value.literal.array.view("uint8"))
                self.codes[value] = b.argument(bytes)
            else:
                self.codes[value] = b.op(_seen_as(Type.uint8_type), value)
        return self.codes[value]

    def _number(self, b: RewriteBuilder, value: Instruction, kind: Type) -> Instruction:
        """Convert a value that has codes to ``kind``, a type of at least 8 bits."""
        type = value.shape.type
        if is_constant(value):
            return _to(b, value, kind)
        if value in self.clipped:
            return _to(b, self.clipped[value], kind)
        code = self._of(b, value)
        if type is Type.fp8e8m0_type:
            return _to(b, _power(b, code), kind)
        code = _to(b, code, Type.int32_type)
        code = b.op("bitwise_and", code, b.scalar((1 << type.bits) - 1, code))
        if type is Type.fp4e2m1_type:
            return _to(b, _float4(b, code), kind)
        if type.is_signed:
            half = b.scalar(1 << (type.bits - 1), code)
            low = b.op("bitwise_and", b.op("add", code, half), b.scalar((1 << type.bits) - 1, code))
            code = b.op("sub", low, half)
        return _to(b, code, kind)


def _seen_as(type: Type) -> Operator:
    return make_op("bit_cast", target_type=type)


def _to(b: RewriteBuilder, value: Instruction, type: Type) -> Instruction:
    """Convert a value to ``type``. The program asks for this rounding, so the conversion is not elidable."""
    return value if value.shape.type is type else b.op("convert", value, target_type=type)


def _within(value: Instruction) -> Instruction | None:
    """Return the source of a conversion if it holds integers clipped to the range of the value's type, else None."""
    type, source = value.shape.type, value.inputs[0] if value.name == "convert" else None
    if source is None or source.name != "clip" or not type.is_integral or not source.shape.type.is_integral:
        return None
    low, high = (uniform_value(i) for i in source.inputs[1:])
    least = -(1 << (type.bits - 1)) if type.is_signed else 0
    if low is None or high is None or not least <= int(low) <= int(high) < least + (1 << type.bits):
        return None
    return source


def _power(b: RewriteBuilder, code: Instruction) -> Instruction:
    """Convert codes of float8e8m0 to float32: the code is the exponent, 0 is 2**-127 and 255 is NaN."""
    exponent = _to(b, code, Type.uint32_type)
    bits = b.op("bitwise_shift_left", exponent, b.scalar(23, exponent))
    bits = b.op("where", b.op("equal", exponent, b.scalar(0, exponent)), b.scalar(1 << 22, bits), bits)
    bits = b.op("where", b.op("equal", exponent, b.scalar(255, exponent)), b.scalar(0x7FC00000, bits), bits)
    return b.op(_seen_as(Type.float_type), bits)


def _float4(b: RewriteBuilder, code: Instruction) -> Instruction:
    """Convert codes of float4e2m1 (int32) to float32.

    Twice the magnitude is ``max(m, 2 m - 4, 4 m - 16)`` of the low three bits ``m``: 0, 1, 2, 3, 4, 6, 8, 12.
    """
    magnitude = _to(b, b.op("bitwise_and", code, b.scalar(7, code)), Type.float_type)
    half = b.op("mul", magnitude, b.scalar(0.5, magnitude))
    above = b.op("sub", magnitude, b.scalar(2, magnitude))
    beyond = b.op("sub", b.op("mul", magnitude, b.scalar(2, magnitude)), b.scalar(8, magnitude))
    value = b.op("max", half, b.op("max", above, beyond))
    return b.op("where", b.op("less", code, b.scalar(8, code)), value, b.op("neg", value))


FLOAT4_LIMITS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Midpoints between float4e2m1's numbers 0, 0.5, 1, 1.5, 2, 3, 4, 6, and whether the midpoint rounds up, to the even
code."""


def _encoded(b: RewriteBuilder, value: Instruction, kind: Type) -> Instruction:
    """Convert numbers to codes of ``kind``, rounding as `ops.scalar.cast_array` does."""
    wide = _to(b, value, kind.compute)
    if not kind.is_floating:
        return _to(b, b.op("bitwise_and", wide, b.scalar((1 << kind.bits) - 1, wide)), Type.uint8_type)
    magnitude = b.op("where", b.op("isnan", wide), b.scalar(0, wide), b.op("abs", wide))
    bits = b.op(_seen_as(Type.uint32_type), wide)
    code = b.op("bitwise_and", b.op("bitwise_shift_right", bits, b.scalar(28, bits)), b.scalar(8, bits))
    code = b.op("where", b.op("isnan", wide), b.scalar(8, code), code)
    for limit, included in FLOAT4_LIMITS:
        least = b.scalar(limit, magnitude)
        below = b.op("less", magnitude, least) if included else b.op("not", b.op("greater", magnitude, least))
        code = b.op("add", code, _to(b, b.op("not", below), code.shape.type))
    return _to(b, code, Type.uint8_type)
