"""What moves the source position of an indexed copy."""

from __future__ import annotations

from dataclasses import dataclass

from ....core.types import Type

__all__ = ["Term"]


@dataclass(frozen=True)
class Term:
    """One integer tensor that moves the source position.

    Attributes:
        operand: name of the launch operand that holds it.
        type: its element type; int64 for a table.
        strides: its element strides along the axes of the output.
        offset: where it starts, in elements of the operand.
        length: length of the source axis that it indexes; 0 for a table.
        stride: elements of the source between neighbours on that axis.
        axis: which axis that is, for messages.
        checked: whether its values may be out of range, which is an error.
    """

    operand: str
    type: Type
    strides: tuple[int, ...]
    offset: int = 0
    length: int = 0
    stride: int = 1
    axis: int = 0
    checked: bool = False

    @property
    def fits(self) -> str:
        """What its values have to fit."""
        return f"axis {self.axis} of length {self.length}"
