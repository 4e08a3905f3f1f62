"""What is computed around a contraction: pointwise work on its left operand, and on its sums before they are stored.

It is data: each back end prints the scalar operations where its kernels need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.types import Type
from ...errors import ShapeError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.passes.prologue import varies_over_pixels
from ...ops.base import Pointwise
from ...ops.scalar import ScalarOps
from ..body import ScalarBody, evaluate_instructions, scalar_body

__all__ = [
    "NOT_COMPUTED", "Epilogue", "EpilogueOperand", "Prologue", "PrologueOperand", "epilogue_parameters",
    "make_epilogue", "make_prologue", "prologue_parameters",
]  # fmt: skip

MAX_NAME = 64
"""Characters that a kernel's name takes from its operations at most."""
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
    """

    operands: tuple[EpilogueOperand, ...] = ()
    body: ScalarBody | None = None
    fast_math: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _check_operands("epilogue", self.operands, self.body)

    @property
    def dtype(self) -> str | None:
        """Dtype of the stored values; None: the accumulator's."""
        return None if self.body is None else self.body.dtype.numpy.name

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
        _check_operands("prologue", self.operands, self.body)


NOT_COMPUTED = "the left operand has a prologue"
"""Why a solver refuses a problem that has one."""


def _check_operands(what: str, operands: Sequence[EpilogueOperand | PrologueOperand], body: ScalarBody | None) -> None:
    wanted = [] if body is None else [t.numpy.name for t in body.parameters[1:]]
    found = [operand.dtype for operand in operands]
    if body is not None and found != wanted:
        raise ShapeError(f"{what} operands of dtypes {found}; its operations take {wanted}")


def epilogue_parameters(module: Module, contraction: Instruction) -> list[Instruction]:
    """Parameters that operations after the contraction read, in order of declaration."""
    before = {contraction, *_before(contraction)}
    return [p for p in module.parameters() if any(user not in before for user in p.users)]


def prologue_parameters(module: Module, contraction: Instruction) -> tuple[Instruction, list[Instruction]]:
    """The parameter that the contraction's left operand is or is made of, pixel by pixel, and the others that the
    operations before it read, in order of declaration."""
    before = _before(contraction)
    if not before:
        return contraction.inputs[0], []
    read = [p for p in module.parameters() if any(user in before for user in p.users)]
    source = next(p for p in read if varies_over_pixels(p.shape))
    return source, [p for p in read if p is not source]


def make_epilogue(module: Module, contraction: Instruction, access: Sequence[str], fast_math: bool) -> Epilogue:
    """The epilogue of a ``fused_contraction`` module.

    Args:
        module: the contraction and the pointwise operations around it; one result.
        contraction: the contraction inside of the module.
        access: for each of the ``epilogue_parameters``, in order, how it varies over the result: ``full``, ``per_n``,
            ``per_m`` or ``scalar``.
        fast_math: whether functions may differ by 4 units in the last place.
    """
    extras = epilogue_parameters(module, contraction)
    body, name = _body(module, [contraction, *extras], module.results()[0])
    operands = tuple(EpilogueOperand(p.shape.type.numpy.name, a) for p, a in zip(extras, access))
    return Epilogue(operands, body, fast_math, name)


def make_prologue(
    module: Module, contraction: Instruction, places: Sequence[tuple[str, tuple[int, ...]]], fast_math: bool
) -> Prologue | None:
    """The prologue of a ``fused_contraction`` module, if it has one.

    Args:
        module, contraction, fast_math: as for `make_epilogue`.
        places: for each of the other ``prologue_parameters``, in order, its access (``per_k`` or ``scalar``) and its
            batch strides.
    """
    if not _before(contraction):
        return None
    source, extras = prologue_parameters(module, contraction)
    body, name = _body(module, [source, *extras], contraction.inputs[0])
    operands = tuple(PrologueOperand(p.shape.type.numpy.name, *place) for p, place in zip(extras, places))
    return Prologue(operands, body, fast_math, name)


def _before(contraction: Instruction) -> set[Instruction]:
    """The operations that make the contraction's left operand."""
    return {ins for ins in _behind(contraction.inputs[0], ()) if isinstance(ins.op, Pointwise)}


def _behind(result: Instruction, given: Iterable[Instruction]) -> set[Instruction]:
    """What a result is computed from, itself included, as far as the given instructions."""
    found = set(given)
    pending = [result]
    while pending:
        ins = pending.pop()
        if ins not in found:
            found.add(ins)
            pending += ins.inputs
    return found.difference(given)


def _body(module: Module, given: Sequence[Instruction], result: Instruction) -> tuple[ScalarBody, str]:
    """How the result is computed from the given instructions, and the names of the operations."""
    behind = _behind(result, given)
    members = [ins for ins in module if ins in behind]

    def compute(handler: ScalarOps, *arguments: Any) -> Any:
        values = dict(zip(given, arguments))
        evaluate_instructions(members, handler, values)
        return values[result]

    types: list[Type] = [ins.shape.type for ins in given]
    name = "_".join(ins.name for ins in members if isinstance(ins.op, Pointwise))
    return scalar_body(compute, types), name[:MAX_NAME]
