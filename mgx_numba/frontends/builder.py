"""Emission of IR for the nodes of a model: instructions, literals, broadcasting, and values needed at parse time.

Tensors without axes, in ONNX and TensorFlow, are MIGraphX scalars in the IR: lengths ``{1}``, strides ``{0}``
(`is_scalar`). A vector of one element never has that shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.dim import Dim, Length, UnfollowedLengthError, known_equal, known_same
from ..core.types import Type
from ..errors import ParseError, UnknownValueError
from ..graph.emitter import Emitter
from ..graph.folding import Constants, integers
from ..graph.instruction import Instruction
from ..graph.length_arithmetic import has_symbolic_elements
from ..graph.module import Module
from ..ops.base import Operator
from ..ops.scalar import cast_array


def is_scalar(x: Instruction) -> bool:
    """Return whether the value is a tensor without axes."""
    return x.shape.without_axes


def rank(x: Instruction) -> int:
    """Return the rank that the model sees.

    Raises:
        UnknownValueError: the rank is known only at run time.
    """
    if x.shape.rank is None:
        raise UnknownValueError("a value has a number of dimensions that is not known")
    return x.shape.rank


class GraphBuilder(Emitter):
    """A builder that appends instructions to one module.

    Attributes:
        module: the module that receives the instructions.
        constants: values known at parse time.
        symbols: debug symbols for new instructions.
        place: description of the source node of new instructions, for error messages.
        written: appended instructions, in order.
    """

    def __init__(self, module: Module, constants: Constants) -> None:
        self.module = module
        self.constants = constants
        self.symbols: tuple[str, ...] = ()
        self.place = ""
        self.written: list[Instruction] = []

    def op(
        self, op: str | Operator, *inputs: Instruction, modules: Sequence[Module] = (), **attributes: Any
    ) -> Instruction:
        """Append an instruction."""
        ins = self.module.add_instruction(op, inputs, modules, **attributes)
        self._note(ins)
        return ins

    def literal(self, value: object, type: Type | None = None) -> Instruction:
        """Append a constant; an array without axes becomes a scalar, and floats saturate in integer types.

        Integers that include symbolic lengths (`graph.length_arithmetic.array_of_lengths`) become ``lengths``.
        """
        array = np.asarray(value)
        if has_symbolic_elements(array):
            made = self.op("lengths", values=tuple(array.flat), lens=array.shape)
            return made if type is None else self.convert(made, type)
        if type is not None and array.dtype != type.numpy:
            array = cast_array(array, type)
        ins = self.module.add_literal(np.ascontiguousarray(array) if array.ndim else array)
        self._note(ins)
        return ins

    def _note(self, ins: Instruction) -> None:
        ins.debug_symbols, ins.place = self.symbols, self.place
        self.written.append(ins)

    def take_back(self, count: int) -> None:
        """Remove all appended instructions after the first ``count``."""
        for ins in reversed(self.written[count:]):
            self.module.remove_instruction(ins)
        del self.written[count:]

    def lens(self, x: Instruction) -> tuple[int, ...]:
        """Return the lengths that the model sees (none for a scalar).

        Raises:
            UnknownValueError: the value has dynamic dimensions.
        """
        if x.shape.is_dynamic:
            raise UnknownValueError(f"needs fixed dimensions, but a value has {x.shape}; give the input's dimensions")
        return () if is_scalar(x) else x.shape.lens

    def axis(self, value: int, axes: int, what: str = "axis") -> int:
        """Return an axis, which may count from the end, counted from the front.

        Raises:
            ParseError: the axis is out of range.
        """
        if not -axes <= value < axes:
            raise ParseError(f"{what} is {value}, expected {-axes} to {axes - 1} for a tensor of {axes} dimensions")
        return value % axes

    def axes(self, values: Sequence[int], axes: int, what: str = "axes") -> list[int]:
        """Return distinct axes, which may count from the end, counted from the front."""
        found = [self.axis(v, axes, what) for v in values]
        if len(set(found)) != len(found):
            raise ParseError(f"{what} {list(values)} name an axis twice")
        return found

    def constant(self, x: Instruction, what: str) -> np.ndarray:
        """Return the value of an input that must be known at parse time.

        Raises:
            UnknownValueError: the value depends on an input of the model; the message names the input.
        """
        value = self.constants.value(x)
        if value is None:
            reason = self.constants.reason(x)
            if self.constants.follows_lengths(x):
                raise UnfollowedLengthError(f"input {what!r} follows from lengths that are known when the program runs")
            raise UnknownValueError(f"input {what!r} must be constant, but it {reason}")
        return value

    def ints(self, x: Instruction, what: str) -> list[int]:
        """Return the elements of a constant integer input, flat; they may be symbolic lengths."""
        value = self.constant(x, what)
        found = integers(value)
        if found is None:
            raise ParseError(f"input {what!r} is of type {value.dtype}, expected integers")
        return found

    def int_value(self, x: Instruction, what: str) -> int:
        """Return the only element of a constant integer input."""
        values = self.ints(x, what)
        if len(values) != 1:
            raise ParseError(f"input {what!r} has {len(values)} elements, expected 1")
        return values[0]

    def from_start(self, indices: Instruction) -> Instruction:
        """Reinterpret indices as unsigned, so that negative indices are out of range."""
        return self.op("bit_cast", indices, target_type=indices.shape.type.unsigned)

    def pointwise(self, op: str | Operator, *values: Instruction, **attributes: Any) -> Instruction:
        """Append a pointwise operation on operands that are broadcast."""
        return self.op(op, *self.same_lens(*values), **attributes)

    def divided_down(self, a: Instruction, b: Instruction) -> Instruction:
        """Emit the quotient of integers rounded down: ``a / b`` rounded towards 0, less 1 where both remainders differ.

        ``(a - mod(a, b)) / b`` overflows for ``a`` near the least integer.
        """
        whole = self.pointwise("equal", self.pointwise("mod", a, b), self.pointwise("fmod", a, b))
        below = self.op("convert", self.op("not", whole), target_type=a.shape.type)
        return self.pointwise("sub", self.pointwise("div", a, b), below)

    def chain(self, name: str, values: Sequence[Instruction]) -> Instruction:
        """Apply a binary pointwise operation from left to right."""
        result = values[0]
        for value in values[1:]:
            result = self.pointwise(name, result, value)
        return result

    def reshape(self, x: Instruction, dims: Sequence[Length]) -> Instruction:
        """Reshape ``x`` to ``dims`` (without 0 or -1 unless dynamic); empty ``dims`` give a scalar."""
        dims = tuple(dims)
        if not x.shape.is_dynamic and known_same(self.lens(x), dims):
            return x
        if not x.shape.is_dynamic and any(known_equal(n, 0) for n in dims):
            lens = [1 if isinstance(n, Dim) else n for n in dims]
            return self.broadcast(self.literal(np.empty(lens, x.shape.type.numpy)), dims)
        if not dims:
            one = x if known_same(x.shape.lens, (1,)) else self.op("reshape", x, dims=(1,))
            return self.op("squeeze", one, axes=(0,))
        return self.op("reshape", x, dims=dims)

    def flat(self, x: Instruction) -> Instruction:
        """Flatten ``x`` to one axis, whose length may be known only at run time."""
        return self.reshape(x, (-1 if x.shape.is_dynamic else x.shape.elements,))

    def unsqueeze(self, x: Instruction, axes: Sequence[int]) -> Instruction:
        """Insert axes of length 1 into ``x``, which may be a scalar; ``axes`` are positions in the result."""
        if is_scalar(x) and axes:
            return self.reshape(x, (1,) * len(axes))
        return super().unsqueeze(x, axes)

    def undefined(self) -> Instruction:
        """Append a placeholder for an absent optional operand of an IR operator."""
        return self.op("undefined")
