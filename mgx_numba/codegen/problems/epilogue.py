"""Prologues and epilogues of contractions: pointwise operations on the left operand, and on accumulators before they
are stored.

They are data; each back end prints the scalar operations in its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...dataclass import dataclass
from ...errors import ShapeError
from .element_types import ITEMSIZE

if TYPE_CHECKING:
    from ..body import ScalarBody

ACCESSES = ("full", "per_n", "per_m", "scalar", "high", "low")
MOVING = frozenset({"full", "per_m", "high", "low"})
"""Accesses that depend on the row."""
ALONG_N = frozenset({"full", "high", "low"})
"""Accesses with one element per result element."""


@dataclass(frozen=True)
class EpilogueOperand:
    """An additional input of an epilogue: its dtype, and its access at output element (row m, column n).

    ``access`` is ``full`` (m and n; n contiguous), ``per_n`` (a vector over columns, such as a bias), ``per_m`` (one
    value per row) or ``scalar``. Launches name it ``e<index>``. The last two operands may be ``high`` and ``low``:
    bfloat16 outputs with the layout of a ``full`` operand, rows zero-padded to whole cache lines; they are the result
    split into parts for products in parts.
    """

    dtype: str
    access: str

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ShapeError(f"epilogue operand access {self.access!r}; expected one of {', '.join(ACCESSES)}")


@dataclass(frozen=True)
class Epilogue:
    """Pointwise operations on each accumulator before it is stored.

    ``body`` takes the accumulator, then one value per operand (None: accumulators are stored). With ``fast_math`` its
    functions may err by 4 units in the last place. ``name`` lists its operations, for kernels and tuning. With
    ``parts_alone`` the result is stored in parts only. With ``gated`` the result has half as many columns as the
    contraction, and ``body`` takes two accumulators: of the result's column, and of the corresponding column of the
    second half (Shazeer, "GLU Variants Improve Transformer").
    """

    operands: tuple[EpilogueOperand, ...] = ()
    body: ScalarBody | None = None
    fast_math: bool = False
    name: str = ""
    gated: bool = False
    parts_alone: bool = False

    def __post_init__(self) -> None:
        if self.gated and self.body is None:
            raise ShapeError("a gated epilogue has no operations; expected those that make one value of two sums")
        written = [operand.access for operand in self.operands if operand.access in ("high", "low")]
        last = [operand.access for operand in self.operands[-2:]]
        if written and (written != ["high", "low"] or last != written or (self.dtype or "float32") != "float32"):
            raise ShapeError(f"an epilogue of {self.dtype} with {written}; expected high and low last, of float32")
        if self.parts_alone and not written:
            raise ShapeError("an epilogue that stores parts alone has none")
        _check_operands("epilogue", self.read, self.body, self.sums)

    @property
    def in_parts(self) -> bool:
        """Return whether the result is stored in parts."""
        return bool(self.operands) and self.operands[-1].access == "low"

    @property
    def read(self) -> tuple[EpilogueOperand, ...]:
        """Return the operands that are inputs."""
        return self.operands[:-2] if self.in_parts else self.operands

    def stored_bytes(self, accumulator: str) -> int:
        """Return the bytes stored per result element, given the accumulator dtype."""
        whole = 0 if self.parts_alone else ITEMSIZE[self.out_dtype(accumulator)]
        return whole + 2 * ITEMSIZE["bfloat16"] * self.in_parts

    def with_parts(self, alone: bool) -> Epilogue:
        """Return the epilogue with the result stored in parts, additionally or (``alone``) only: two more operands."""
        parts = tuple(EpilogueOperand("bfloat16", access) for access in ("high", "low"))
        name = "_".join(filter(None, (self.name, "parts")))
        return replace(self, operands=(*self.read, *parts), parts_alone=alone, name=name)

    @property
    def sums(self) -> int:
        """Return the number of accumulators that ``body`` takes."""
        return 2 if self.gated else 1

    @property
    def dtype(self) -> str | None:
        """Return the dtype of stored values; None: the accumulator's."""
        return None if self.body is None else self.body.dtype.dtype_name

    def out_dtype(self, accumulator: str) -> str:
        """Return the dtype of stored values, given the accumulator dtype."""
        return self.dtype or accumulator

    @property
    def saturates(self) -> bool:
        """Return whether results are bounded by 1 for any accumulators."""
        return self.body is not None and self.body.last in ("tanh", "sigmoid")

    @property
    def moving(self) -> tuple[str, ...]:
        """Return the names of operands with one element per result element."""
        return tuple(f"e{k}" for k, operand in enumerate(self.operands) if operand.access == "full")


@dataclass(frozen=True)
class PrologueOperand:
    """An additional input of a prologue: ``per_k`` (contiguous along k) or ``scalar``.

    ``batch_strides`` are its element strides along the batch axes (of a convolution: the image); they may be 0.
    Launches name it ``a<index>``.
    """

    dtype: str
    access: str
    batch_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.access not in ("per_k", "scalar"):
            raise ShapeError(f"prologue operand access {self.access!r}; expected one of per_k, scalar")


@dataclass(frozen=True)
class Prologue:
    """Pointwise operations on each element of the left operand (a convolution's input) before it is multiplied. As
    `Epilogue`; ``body`` takes the element, then one value per operand, and returns the problem's dtype."""

    operands: tuple[PrologueOperand, ...]
    body: ScalarBody
    fast_math: bool
    name: str

    def __post_init__(self) -> None:
        _check_operands("prologue", self.operands, self.body, 1)


NOT_COMPUTED = "the left operand has a prologue"
"""Refusal of solvers that do not support prologues."""


def _check_operands(
    what: str, operands: Sequence[EpilogueOperand | PrologueOperand], body: ScalarBody | None, first: int
) -> None:
    wanted = [] if body is None else [t.dtype_name for t in body.parameters[first:]]
    found = [operand.dtype for operand in operands]
    if found != wanted:
        raise ShapeError(f"{what} operands of dtypes {found}; its operations take {wanted}")
