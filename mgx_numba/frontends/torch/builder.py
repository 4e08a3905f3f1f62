"""The builder that builder functions of ATen operators use."""

from __future__ import annotations

import numpy as np

from ...core.dim import Dim, Length, exact_quotient
from ...core.types import Type
from ...errors import ShapeError
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ..builder import GraphBuilder, is_scalar, rank
from .types import Lens, Number, Operand, Sizes, is_number, promoted

__all__ = ["AtenBuilder", "is_scalar", "rank"]

_WRAPPED = (Type.int8_type, Type.uint8_type, Type.int16_type, Type.uint16_type)
NARROW = (Type.half_type, Type.bf16_type)


class AtenBuilder(GraphBuilder):
    """A builder that appends instructions to one module; operands may be instructions or Python numbers.

    Attributes:
        lengths: int64 scalars that stand for symbolic numbers of PyTorch.
        program: the program that gets submodules; None where no operator has a body.
    """

    def __init__(self, module: Module, constants: Constants, program: Program | None = None) -> None:
        super().__init__(module, constants)
        self.lengths: set[Instruction] = set()
        self.program = program
        self._bodies: list[AtenBuilder] = []

    def inner(self, suffix: str) -> AtenBuilder:
        """Return a builder of a new submodule, whose instructions may use values of this builder's module."""
        assert self.program is not None
        name = self.symbols[0] if self.symbols else self.module.name
        made = AtenBuilder(self.program.unique_module(f"{name}_{suffix}"), self.constants, self.program)
        made.lengths, made.symbols = self.lengths, self.symbols
        self._bodies.append(made)
        return made

    def take_back(self, count: int) -> None:
        """Remove all appended instructions after the first ``count``, and the submodules that no instruction runs."""
        for ins in reversed(self.written[count:]):
            self._remove_bodies()  # before the instructions whose values they capture
            self.module.remove_instruction(ins)
        self._remove_bodies()
        del self.written[count:]

    def _remove_bodies(self) -> None:
        for body in [body for body in self._bodies if not body.module.is_run]:
            body._remove_bodies()
            body.program.remove_module(body.module)  # type: ignore[union-attr]
            self._bodies.remove(body)

    def value(self, x: Operand, type: Type) -> Instruction:
        """Return an operand as an instruction of a type; a number becomes a scalar constant."""
        if isinstance(x, Instruction):
            return self.cast(x, type)
        return self.literal(x, type)

    def cast(self, x: Instruction, type: Type) -> Instruction:
        """Emit the conversion of ``x`` as PyTorch defines it: the model asked for it, so passes keep it.

        Floats become integers of 8 and 16 bits by way of int32, of which the lower bits remain.
        """
        if x.shape.type.is_floating and type in _WRAPPED:
            x = self.op("convert", x, target_type=Type.int32_type)
        return x if x.shape.type is type else self.op("convert", x, target_type=type)

    def combined(self, op: str, type: Type, *operands: Operand) -> Instruction:
        """Emit a pointwise operator on operands converted to ``type``.

        PyTorch computes with 16-bit tensors and Python numbers in float32, so a number that 16 bits do not hold exactly
        is not rounded.
        """
        inner = type
        if type in NARROW and any(is_number(x) and not _exact(x, type) for x in operands):
            inner = Type.float_type
        wide = inner is not type  # no model asked for conversions to and from the type that PyTorch computes in
        given = (self.convert(x, inner) if wide and isinstance(x, Instruction) else x for x in operands)
        made = self.pointwise(op, *(self.value(x, inner) for x in given))
        return made if made.shape.type is not inner else self.convert(made, type)

    def compared(self, op: str, *operands: Operand) -> Instruction:
        """Emit a pointwise operator on operands converted to their common type."""
        return self.combined(op, promoted(operands), *operands)

    def resolved(self, x: Instruction, sizes: Lens) -> list[Length]:
        """Return the lengths that PyTorch's ``view`` gives ``x``: one -1 takes the remaining elements.

        Raises:
            ShapeError: the number of elements differs.
        """
        lens = self.lens(x)
        dims = list(sizes)
        total: Length = 1
        for length in lens:
            total *= length
        places = [k for k, n in enumerate(dims) if not isinstance(n, Dim) and n == -1]
        if places:
            known: Length = 1
            for k, n in enumerate(dims):
                known *= 1 if k == places[0] else n
            rest = exact_quotient(total, known)
            if rest is None:
                if known == 0 or total % known != 0:
                    raise ShapeError(f"shape {dims} does not fit an input of lengths {list(lens)}")
                rest = total // known
            dims[places[0]] = rest
        return dims

    def all_axes(self, x: Instruction, dims: Sizes | None) -> list[int]:
        """Return the axes of a reduction; None and an empty list stand for all."""
        if dims is None or dims == []:
            return list(range(rank(x)))
        listed = [dims] if isinstance(dims, int) else list(dims)
        return self.axes(listed, max(rank(x), 1)) if rank(x) else []

    def zeros(self, lens: Lens, type: Type, value: Operand = 0) -> Instruction:
        """Emit a tensor of one value."""
        if any(not isinstance(n, Dim) and n == 0 for n in lens) and not any(isinstance(n, Dim) for n in lens):
            return self.literal(np.empty(tuple(lens), type.numpy))
        return self.broadcast(self.value(value, type), lens)


def _exact(value: Number, type: Type) -> bool:
    if isinstance(value, Dim):
        return False
    return bool(float(np.asarray(value).astype(type.numpy)) == value or value != value)
