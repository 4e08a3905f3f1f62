"""What tuning is asked, contraction by contraction, and its answers: plain data, the same for every back end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

from ...dataclass import dataclass
from ...errors import MgxError
from ..problems.convolution import ConvProblem
from ..problems.element_types import ITEMSIZE, element_types
from ..problems.epilogue import Epilogue
from ..problems.gemm import BlockFormat, GemmProblem
from .record import Problem, TuningRecord

__all__ = ["Asked", "Candidate", "Estimate", "Request", "format_configuration", "least_bytes", "problem_of"]


class Asked(Protocol):
    """What a back end is asked to choose a solver for: a `Request`, or one with more that its solvers must know."""

    @property
    def problem(self) -> GemmProblem | ConvProblem:
        """What is computed."""

    def key(self) -> Problem:
        """The problem under which records are kept."""


@dataclass(frozen=True)
class Candidate:
    """A solver of a back end and its blocking, None for its own choice: a dataclass of integers, or one with a
    ``configuration`` of integers by name."""

    solver: Any
    blocking: Any = None

    @property
    def configuration(self) -> dict[str, int]:
        """The blocking's parameters by name, empty for the solver's own choice."""
        if self.blocking is None:
            return {}
        own: dict[str, int] | None = getattr(self.blocking, "configuration", None)
        return dataclasses.asdict(self.blocking) if own is None else own

    def __str__(self) -> str:
        return f"{self.solver.name}{format_configuration(self.configuration)}"


def format_configuration(configuration: Mapping[str, int]) -> str:
    """A blocking's parameters as they follow a solver's name, ``[rows=8,depth=2]``; empty for its own choice."""
    values = ",".join(f"{k}={v}" for k, v in configuration.items())
    return f"[{values}]" if values else ""


@dataclass(frozen=True)
class Estimate:
    """What the cost model says of a solver for one problem: the seconds of a run, or why it does not apply."""

    solver: str
    seconds: float | None
    refusal: str = ""

    def __str__(self) -> str:
        return (
            f"{self.solver}: {self.refusal}" if self.seconds is None else f"{self.solver}: {self.seconds * 1e3:.4g} ms"
        )


@dataclass(frozen=True)
class Request:
    """A contraction that a plan needs: the problem with its epilogue and how its operands lie.

    ``replaced`` names the operand of the epilogue that the result takes the place of, if the solver's kernel can do
    that (`Launch.replaceable`); it is measured so, and no part of the problem.
    """

    problem: GemmProblem | ConvProblem
    epilogue: Epilogue
    strides: tuple[tuple[int, ...], ...]
    threads: int
    fast_math: bool
    replaced: str = ""

    def key(self) -> Problem:
        """The problem under which records are kept, see `fields`."""
        operation = "dot" if isinstance(self.problem, GemmProblem) else "convolution"
        return Problem.of(operation, self.threads, self.fields())

    def fields(self) -> dict[str, Any]:
        """What tells the problem from others, but for its operation and threads.

        The types are one text, ``dtype``. A prologue or epilogue counts by its name (its operations) and operands:
        constants do not change what is fast.
        """
        fields: dict[str, Any] = {name: _plain(getattr(self.problem, name)) for name in _numbers(self.problem)}
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
            flags = [form.zero_points, form.int8_rows, form.half_scales, form.from_memory]
            while len(flags) > 1 and not flags[-1]:  # records are older than the last ones
                flags.pop()
            fields["blocks"] = [form.bits, form.size, *map(int, flags)]
        if self.problem.low_parts:
            fields["low_parts"] = self.problem.low_parts
        return fields


def problem_of(record: TuningRecord) -> GemmProblem | ConvProblem | None:
    """The contraction that a record is about, without a prologue, or None if its fields are not those of one."""
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
    """What any solver must move: operands once, and the result."""
    types = problem.types
    a, b, out = ITEMSIZE[types.a], ITEMSIZE[types.b], ITEMSIZE[types.out]
    if isinstance(problem, GemmProblem):
        m, n, k = problem.m, problem.n, problem.k
        return problem.batch_count * (a * m * k + b * k * n + out * m * n)
    inputs, results = problem.in_pixels * problem.in_channels, problem.out_pixels * problem.out_channels
    return problem.batch * (a * inputs + out * results) + b * math.prod(problem.weight_lens)


def _numbers(problem: Any) -> list[str]:
    """Names of a problem's fields, but for its types, its prologue and the forms of its operands."""
    others = ("types", "prologue", "blocks", "line_behind", "low_parts", "shuffled")
    return [f.name for f in dataclasses.fields(problem) if f.init and f.name not in others]


def _plain(value: Any) -> Any:
    """Tuples as lists, NumPy's integers as Python's."""
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, str)) or value is None else int(value)
