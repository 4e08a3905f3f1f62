"""What is computed around a contraction: pointwise work on its left operand, and on its sums before they are stored.

It is data: each back end prints the scalar operations where its kernels need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dataclass import dataclass
from ...errors import ShapeError

if TYPE_CHECKING:
    from ..body import ScalarBody

__all__ = ["ACCESSES", "NOT_COMPUTED", "Epilogue", "EpilogueOperand", "Prologue", "PrologueOperand"]

ACCESSES = ("full", "per_n", "per_m", "scalar")


@dataclass(frozen=True)
class EpilogueOperand:
    """An extra input of an epilogue: its dtype and how it is read at output element (row m, column n).

    ``access`` is ``full`` (m and n; n contiguous), ``per_n`` (a vector over columns, such as a bias), ``per_m`` (one
    value a row) or ``scalar``. Launches call it ``e<index>``.
    """

    dtype: str
    access: str

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ShapeError(f"epilogue operand access {self.access!r}; expected one of {', '.join(ACCESSES)}")


@dataclass(frozen=True)
class Epilogue:
    """Pointwise work on each sum before it is stored.

    ``body`` takes the sum, then one value of each operand (None: sums are stored as they are). With ``fast_math`` its
    functions may differ by 4 units in the last place. ``name`` is that of its operations, for kernels and tuning.
    With ``gated`` the result has half as many columns as the contraction, and ``body`` takes two sums: that of the
    result's column, and that of the column as far into the second half (Shazeer, "GLU Variants Improve Transformer").
    """

    operands: tuple[EpilogueOperand, ...] = ()
    body: ScalarBody | None = None
    fast_math: bool = False
    name: str = ""
    gated: bool = False

    def __post_init__(self) -> None:
        if self.gated and self.body is None:
            raise ShapeError("a gated epilogue has no operations; expected those that make one value of two sums")
        _check_operands("epilogue", self.operands, self.body, self.sums)

    @property
    def sums(self) -> int:
        """How many of them ``body`` takes."""
        return 2 if self.gated else 1

    @property
    def dtype(self) -> str | None:
        """Dtype of the stored values; None: the accumulator's."""
        return None if self.body is None else self.body.dtype.dtype_name

    def out_dtype(self, accumulator: str) -> str:
        """Dtype of the stored values when accumulating in ``accumulator``."""
        return self.dtype or accumulator

    @property
    def saturates(self) -> bool:
        """Whether results stay below 1 however large the sums are."""
        return self.body is not None and self.body.last in ("tanh", "sigmoid")

    @property
    def moving(self) -> tuple[str, ...]:
        """Names of the operands that have an element for each of the result."""
        return tuple(f"e{k}" for k, operand in enumerate(self.operands) if operand.access == "full")


@dataclass(frozen=True)
class PrologueOperand:
    """An extra input of a prologue: ``per_k`` is contiguous along the sum, ``scalar`` is one value for all of it.

    ``batch_strides`` are its element strides along the batch dimensions (of a convolution: the image), which may be 0.
    Launches call it ``a<index>``.
    """

    dtype: str
    access: str
    batch_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.access not in ("per_k", "scalar"):
            raise ShapeError(f"prologue operand access {self.access!r}; expected one of per_k, scalar")


@dataclass(frozen=True)
class Prologue:
    """Pointwise work on each element of the left operand (of a convolution: its input) before it is multiplied.

    As `Epilogue`; ``body`` takes the element, then one value of each operand, and gives the problem's dtype.
    """

    operands: tuple[PrologueOperand, ...]
    body: ScalarBody
    fast_math: bool
    name: str

    def __post_init__(self) -> None:
        _check_operands("prologue", self.operands, self.body, 1)


NOT_COMPUTED = "the left operand has a prologue"
"""Why a solver refuses a problem that has one."""


def _check_operands(
    what: str, operands: Sequence[EpilogueOperand | PrologueOperand], body: ScalarBody | None, first: int
) -> None:
    wanted = [] if body is None else [t.dtype_name for t in body.parameters[first:]]
    found = [operand.dtype for operand in operands]
    if found != wanted:
        raise ShapeError(f"{what} operands of dtypes {found}; its operations take {wanted}")
