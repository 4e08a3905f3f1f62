"""Tuning requests, one for each contraction, their answers, and the memory that a contraction's operands take: plain
data, the same for all back ends."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

from ...dataclass import dataclass
from ...errors import MgxError, UnsupportedError
from ..problems.convolution import ConvProblem
from ..problems.element_types import ITEMSIZE, element_types
from ..problems.epilogue import Epilogue, PrologueOperand
from ..problems.gemm import BlockFormat, GemmProblem
from .record import Problem, TuningRecord


class TuningRequest(Protocol):
    """A request to choose a solver: a `Request`, or a back end's own form with further data for its solvers."""

    @property
    def problem(self) -> GemmProblem | ConvProblem:
        """The contraction to compute."""

    def key(self) -> Problem:
        """Return the problem under which records are stored."""


@dataclass(frozen=True)
class Candidate:
    """A solver of a back end and its blocking, which is None for the solver's own choice.

    A blocking is a dataclass of integers, or has a ``configuration`` of integers by name.
    """

    solver: Any
    blocking: Any = None

    @property
    def configuration(self) -> dict[str, int]:
        """The blocking's parameters by name; empty for the solver's own choice."""
        if self.blocking is None:
            return {}
        own: dict[str, int] | None = getattr(self.blocking, "configuration", None)
        return dataclasses.asdict(self.blocking) if own is None else own

    def __str__(self) -> str:
        return f"{self.solver.name}{format_configuration(self.configuration)}"


def format_configuration(configuration: Mapping[str, int]) -> str:
    """Return a blocking's parameters as the suffix of a solver's name, ``[rows=8,depth=2]``; empty for no
    parameters."""
    values = ",".join(f"{k}={v}" for k, v in configuration.items())
    return f"[{values}]" if values else ""


@dataclass(frozen=True)
class Estimate:
    """The cost model's estimate of a solver for one problem: seconds of one run, or the reason why the solver does not
    apply."""

    solver: str
    seconds: float | None
    refusal: str = ""

    def __str__(self) -> str:
        return (
            f"{self.solver}: {self.refusal}" if self.seconds is None else f"{self.solver}: {self.seconds * 1e3:.4g} ms"
        )


@dataclass(frozen=True)
class Request:
    """A contraction that a plan needs: the problem with its epilogue, and the layouts of its operands.

    ``replaced`` names the epilogue operand whose memory the result takes, if the solver's kernel supports that
    (`Launch.replaceable`). It is measured so, but is not part of the problem.
    """

    problem: GemmProblem | ConvProblem
    epilogue: Epilogue
    strides: tuple[tuple[int, ...], ...]
    threads: int
    fast_math: bool
    replaced: str = ""

    def key(self) -> Problem:
        """Return the problem under which records are stored, see `fields`."""
        operation = "dot" if isinstance(self.problem, GemmProblem) else "convolution"
        return Problem.of(operation, self.threads, self.fields())

    def fields(self) -> dict[str, object]:
        """Return the fields that identify the problem, without operation and threads.

        The types are one text, ``dtype``. A prologue or epilogue is identified by its name (its operations) and
        operands: values of constants do not affect speed.
        """
        fields: dict[str, object] = {name: _plain(getattr(self.problem, name)) for name in _numbers(self.problem)}
        fields["dtype"] = str(self.problem.types)
        fields["fast_math"] = self.fast_math
        if isinstance(self.problem, ConvProblem) and self.problem.line_behind:
            fields["line_behind"] = True
        if isinstance(self.problem, ConvProblem) and self.problem.shuffled:
            fields["shuffled"] = self.problem.shuffled
        epilogue = self.epilogue
        fields["epilogue"] = {
            "operands": [[o.dtype, o.access] for o in epilogue.operands],
            "strides": _plain(self.strides),
            "dtype": epilogue.dtype,
            "name": epilogue.name,
            **({"gated": True} if epilogue.gated else {}),
        }
        prologue = self.problem.prologue
        if prologue:
            fields["prologue"] = {
                "operands": [[o.dtype, o.access, _plain(o.batch_strides)] for o in prologue.operands],
                "name": prologue.name,
            }
        if isinstance(self.problem, GemmProblem) and self.problem.blocks:
            form = self.problem.blocks
            flags = [form.zero_points, form.int8_rows, form.half_scales, form.from_memory, form.offsets]
            while len(flags) > 1 and not flags[-1]:  # older records lack the last flags
                flags.pop()
            fields["blocks"] = [form.bits, form.size, *map(int, flags)]
        if self.problem.low_parts:
            fields["low_parts"] = self.problem.low_parts
        return fields


def problem_of(record: TuningRecord) -> GemmProblem | ConvProblem | None:
    """Return the contraction of a record, without a prologue, or None if its fields are no contraction's."""
    kind: type[Any] = GemmProblem if record.problem.operation == "dot" else ConvProblem
    names = _numbers(kind)
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in record.problem.fields.items() if k in names}
    try:
        if "blocks" in record.problem.fields:
            bits, size, *flags = record.problem.fields["blocks"]
            fields["blocks"] = BlockFormat(bits, size, *map(bool, flags))
        if record.problem.fields.get("line_behind"):
            fields["line_behind"] = True
        if "shuffled" in record.problem.fields:
            fields["shuffled"] = record.problem.fields["shuffled"]
        fields["low_parts"] = record.problem.fields.get("low_parts", 0)
        return kind(**fields, types=element_types(record.problem.fields["dtype"]))
    except (MgxError, AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def least_bytes(problem: GemmProblem | ConvProblem) -> int:
    """Return the bytes that any solver must move: each operand once, and the result."""
    types = problem.types
    a, b, out = ITEMSIZE[types.a], ITEMSIZE[types.b], ITEMSIZE[types.out]
    if isinstance(problem, GemmProblem):
        m, n, k = problem.m, problem.n, problem.k
        return problem.batch_count * (a * m * k + b * k * n + out * m * n)
    inputs, results = problem.in_pixels * problem.in_channels, problem.out_pixels * problem.out_channels
    return problem.batch * (a * inputs + out * results) + b * math.prod(problem.weight_lens)


def _numbers(problem: Any) -> list[str]:
    """Return the names of a problem's fields, except types, prologue and forms of operands."""
    others = ("types", "prologue", "blocks", "line_behind", "low_parts", "shuffled")
    return [f.name for f in dataclasses.fields(problem) if f.init and f.name not in others]


def _plain(value: Any) -> object:
    """Convert tuples to lists and NumPy integers to int."""
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, str)) or value is None else int(value)


LINE_ELEMENTS = 64
"""Most elements in a cache line: 64 of one byte."""


def extents(request: Request) -> tuple[int, int, int, list[int]]:
    """Return the elements that a plan may touch: of the left operand, the unpacked right operand, the result, and each
    epilogue operand.

    Raises:
        UnsupportedError: an operand has a negative stride.
    """
    problem = request.problem
    if isinstance(problem, GemmProblem):
        x = _reach((*problem.batch, problem.m, problem.k), problem.a_strides)
        w = _reach((*problem.batch, problem.k, problem.n), problem.b_strides)
    else:
        x = _reach((problem.batch, *problem.in_lens, problem.in_channels), (*problem.x_strides, 1))
        x += LINE_ELEMENTS if problem.line_behind else 0
        w = math.prod(problem.weight_lens)
    if problem.low_parts:  # two 16-bit parts take the space of one element; zeros end the last row
        x = (problem.low_parts + x + LINE_ELEMENTS) // 2
    (*rows, columns), out_strides = result_axes(problem)
    out = _reach((*rows, columns), out_strides)
    if isinstance(problem, ConvProblem) and problem.line_gap:
        out += (problem.out_lens[-2] - 1) * problem.line_gap
    extras = []
    for k, operand in enumerate(request.epilogue.operands):
        width = columns if operand.access in ("full", "per_n") else 1
        strides = request.strides[k] if k < len(request.strides) else ()
        if operand.access not in ("full", "per_m"):
            extras.append(width)
        elif strides:
            extras.append(_reach((*rows, width), (*strides, 1)))
        else:
            extras.append(math.prod(rows) * width)
    return x, w, out, extras


def result_axes(problem: GemmProblem | ConvProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lengths and strides of a result's batch axes, rows and columns.

    The gaps between the lines of a convolution's result are left out.
    """
    if isinstance(problem, GemmProblem):
        return (*problem.batch, problem.m, problem.n), (*problem.out_strides, 1)
    image, *_, pixel = problem.out_strides
    return (problem.batch, problem.out_pixels, problem.out_channels), (image, pixel, 1)


def prologue_extent(problem: GemmProblem | ConvProblem, operand: PrologueOperand) -> int:
    """Return the number of elements that a prologue operand spans."""
    batch = (problem.batch,) if isinstance(problem, ConvProblem) else problem.batch
    depth = problem.in_channels if isinstance(problem, ConvProblem) else problem.k
    return _reach((*batch, depth if operand.access == "per_k" else 1), (*operand.batch_strides, 1))


def _reach(lens: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last element of a tensor."""
    if min(strides, default=0) < 0:
        raise UnsupportedError(f"operands with strides {strides} are not measured")
    return 1 + sum((n - 1) * s for n, s in zip(lens, strides) if n > 0)
