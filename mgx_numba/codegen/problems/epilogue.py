"""What is computed around a contraction: pointwise work on its left operand, and on its sums before they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ShapeError

__all__ = ["NOT_COMPUTED", "Epilogue", "EpilogueOperand", "Prologue", "PrologueOperand"]

ACCESSES = ("full", "per_n", "per_m", "scalar")


@dataclass(frozen=True)
class EpilogueOperand:
    """An extra input of an epilogue: its dtype and how it is read at output element (row m, column n).

    ``access`` is ``full`` (m and n; n contiguous), ``per_n`` (a vector over columns, such as a bias), ``per_m`` (one
    value a row) or ``scalar``. In the kernel it appears as ``e<index>``, a vector over columns in every case.
    """

    dtype: str
    access: str

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ShapeError(f"epilogue operand access {self.access!r}; expected one of {', '.join(ACCESSES)}")


@dataclass(frozen=True)
class Epilogue:
    """Pointwise work on each accumulated vector before it is stored.

    ``lines`` are assignments in the kernel language (`codegen.cpu.vocabulary`) over the names ``acc`` (the
    accumulated vector), ``e0``, ``e1``, ... and ``LANES`` (its number of lanes, a literal), one statement a line.
    ``result`` names the value that is stored, of dtype ``dtype`` (None: the accumulator's).
    """

    operands: tuple[EpilogueOperand, ...] = ()
    lines: tuple[str, ...] = ()
    result: str = "acc"
    dtype: str | None = None
    name: str = ""

    def out_dtype(self, accumulator: str) -> str:
        """Dtype of the stored values when accumulating in ``accumulator``."""
        return self.dtype or accumulator

    @property
    def moving(self) -> tuple[str, ...]:
        """Names of the operands that have an element for each of the result."""
        return tuple(f"e{k}" for k, operand in enumerate(self.operands) if operand.access == "full")


@dataclass(frozen=True)
class PrologueOperand:
    """An extra input of a prologue: ``per_k`` is contiguous along the sum, ``scalar`` is one value for all of it.

    ``batch_strides`` are its element strides along the batch dimensions (of a convolution: the image), which may be 0.
    """

    dtype: str
    access: str
    batch_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.access not in ("per_k", "scalar"):
            raise ShapeError(f"prologue operand access {self.access!r}; expected one of per_k, scalar")


@dataclass(frozen=True)
class Prologue:
    """Pointwise work on each vector of the left operand (of a convolution: its input) before it is multiplied.

    As `Epilogue`, with the names ``term`` for the vector and ``a0``, ``a1``, ... for the operands. ``result`` has the
    problem's dtype.
    """

    operands: tuple[PrologueOperand, ...]
    lines: tuple[str, ...]
    result: str
    name: str


NOT_COMPUTED = "the left operand has a prologue"
"""Why a solver refuses a problem that has one."""
