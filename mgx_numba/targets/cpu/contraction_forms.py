"""Forms of a contraction: other problems, operands or earlier steps that give the same result.

Each function of `FORMS` proposes a form in place of another. `forms_of` keeps proposals that are not slower by the
solvers' estimates, the preferred form first. `chosen_form` takes the first whose solver can be planned and that
earlier steps fit. Forms differ in the element types, in the left-hand side that they read (the input of a channel
shuffle in place of its copy, or bfloat16 parts that the step before writes), or in both.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...codegen.alternatives import at_lengths, has_lengths, lengths_in
from ...codegen.cpu.contraction.conv import ConvDirect
from ...codegen.cpu.contraction.solver import AnySolver, UnsuitedWeights
from ...codegen.cpu.contraction.solvers import select, solvers_of
from ...codegen.cpu.data.packing import packing_places
from ...codegen.launch import Solution
from ...codegen.problems.convolution import ConvProblem
from ...codegen.problems.gemm import BlockWeights, GemmProblem, StoredBlocks
from ...codegen.tuning.request import Candidate, Request
from ...core.dim import symbols_of
from ...core.shape import Shape, row_major_strides
from ...dataclass import dataclass
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.passes.sink_shuffle import shuffled_groups
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.contraction_problem import Contraction, chosen_solver
from ..lowering.lowering import Lowering
from .bf16_split_values import bf16_split_of, take_bf16_split
from .error_budget import over_budget

FALLBACK_SECONDS, PACKING_SECONDS = 1e-4, 7e-8
"""Time of a fallback step, and of each weight that Winograd's packing transforms in NumPy (Zen 3)."""


Problem: TypeAlias = "GemmProblem | ConvProblem"


@dataclass(frozen=True)
class ChosenSolver:
    """The solver of a form.

    Attributes:
        candidate: the solver and its blocking.
        packed: the packed weights; None if the solver reads others.
    """

    candidate: Candidate
    packed: View | None


@dataclass(frozen=True)
class ContractionForm:
    """One form of a contraction.

    Attributes:
        problem: what the solver computes.
        operands: the left-hand side ``x``, and operands that only this form has.
        take: makes earlier steps fit; returns whether they do.
    """

    problem: Problem
    operands: Mapping[str, View]
    take: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Layer:
    """A contraction that is being lowered, and questions about its forms."""

    low: Lowering
    ins: Instruction
    contraction: Contraction
    strides: tuple[tuple[int, ...], ...]

    @property
    def constant(self) -> np.ndarray | BlockWeights | StoredBlocks | None:
        """The constant right-hand side; None if it is not constant."""
        return self.contraction.weights if self.contraction.blocks is None else self.contraction.blocks

    @property
    def room(self) -> int:
        """Bytes by which packed weights may grow; weights packed in every run are not worth transforming."""
        return 0 if self.constant is None else self.low.packing_room

    def operands(self, form: ContractionForm) -> dict[str, View]:
        """Return all views that a form's launches may read or write, by operand name."""
        extras = {f"e{k}": view for k, view in enumerate(self.contraction.extras)}
        return {**self.contraction.operands, **extras, **form.operands}

    def request(self, problem: Problem) -> Request:
        """Return the tuning request of a problem."""
        return Request(problem, self.contraction.epilogue, self.strides, self.low.threads, self.low.options.fast_math)

    def unsuited(self, problem: Problem) -> list[str]:
        """Return the names of solvers whose rounding or weights do not suit the contraction."""
        saturates, slow = self.contraction.epilogue.saturates, self._slow_packers(problem)
        return [
            own.name
            for own in solvers_of(problem)
            if (self.constant is None and (own.looks_at_values or own in slow))
            or (saturates and own.rounds_weights)
            or (own.error_variance > 1 and over_budget(self.low, problem))
        ]

    def _slow_packers(self, problem: Problem) -> list[AnySolver]:
        """Return the solvers of a convolution that a kernel's packing makes needless.

        They compute when they pack weights, in a fallback step of every run, and another solver, which only moves
        weights, is as quick in all.
        """
        if self.constant is not None or not isinstance(problem, ConvProblem) or has_lengths(problem):
            return []
        lens, dtype = self.contraction.operands["w"].lens, self.contraction.operands["w"].type.numpy
        threads = self.low.threads

        def slow() -> list[AnySolver]:
            computing, moving = list[AnySolver](), math.inf
            for own in solvers_of(problem):
                if own.refusal(problem) is not None or not own.packed_lens(problem) or own.looks_at_values:
                    continue
                pack = partial(own.pack_weights, problem)
                if packing_places(pack, lens, row_major_strides(lens), dtype) is None:
                    computing.append(own)
                else:
                    moving = min(moving, own.estimate(problem, threads))
            least = FALLBACK_SECONDS + PACKING_SECONDS * math.prod(lens)
            return [own for own in computing if own.estimate(problem, threads) + least >= moving]

        return self.low.solutions.of(("slow packers", problem, lens, dtype, threads), slow)

    def quickest(self, problem: Problem, unsuited: list[str]) -> AnySolver:
        """Return the solver with the lowest estimate. Answers are cached.

        Raises:
            UnsupportedError: no solver applies.
        """
        threads, room = self.low.threads, self.room
        question = (select, problem, threads, room, tuple(sorted(unsuited)))
        return self.low.solutions.of(question, lambda: select(problem, threads, room, unsuited))

    def is_quicker(self, form: ContractionForm, other: ContractionForm) -> bool:
        """Return whether a form is not slower than another, by the estimates.

        Symbolic lengths are compared at their hints and at their least values: few rows profit most from short types.
        """
        points: list[object] = [None]
        if has_lengths(form.problem):
            symbols = symbols_of(lengths_in(form.problem))
            points = [symbols[0].scope.hints(), {s: max(s.low or 1, 1) for s in symbols}]
        return any(self._seconds(form, at) <= self._seconds(other, at) for at in points)

    def _seconds(self, form: ContractionForm, at: Any) -> float:
        problem = form.problem if at is None else at_lengths(form.problem, at)
        try:
            solver = self.quickest(problem, self.unsuited(problem))
        except UnsupportedError:
            return float("inf")
        return float(solver.estimate(problem, self.low.threads))

    def choose(self, form: ContractionForm) -> ChosenSolver:
        """Return the solver of a form: that of the tuning record or the cost model, or the quickest if that does not
        suit.

        Raises:
            UnsupportedError: no solver applies.
        """
        problem = form.problem
        request, unsuited = self.request(problem), self.unsuited(problem)
        chosen = chosen_solver(self.low, request)
        while True:
            if chosen.solver.name in unsuited or chosen.solver.packing_growth(problem) > self.room:
                chosen = Candidate(self.quickest(problem, unsuited))
            plan_of(self.low, request, chosen)
            try:
                return ChosenSolver(chosen, self._packed(chosen.solver, problem))
            except UnsuitedWeights:
                unsuited.append(chosen.solver.name)

    def _packed(self, solver: AnySolver, problem: Problem) -> View | None:
        """Return constant weights packed for a solver; None if they are not constant, or if the solver does not pack.

        Raises:
            UnsuitedWeights: their values do not fit the packed form.
            UnsupportedError: the solver reads weights of another type where they lie.
        """
        low, lens, weights = self.low, solver.packed_lens(problem), self.contraction.weights
        if not lens and weights is not None and weights.dtype.name != problem.types.b:
            raise UnsupportedError(f"{solver.name} reads weights of {weights.dtype} where they lie")
        if self.constant is None or not lens:
            return None
        if weights is None or solver.looks_at_values or solver.rounds_weights or solver.packing_growth(problem):
            return low.packed(solver, problem, self.constant)
        how = ("packed", solver.packed_as or solver.name, problem.types.b, tuple(lens), *solver.packing_key(problem))
        return low.derived(self.contraction.right, lambda right: low.packed(solver, problem, right), how)


def plan_of(low: Lowering, request: Request, chosen: Candidate) -> Solution:
    """Return the solver's launches."""
    problem, epilogue, strides, solver = request.problem, request.epilogue, request.strides, chosen.solver
    return low.solutions.of(
        (solver, problem, epilogue, strides, low.threads, chosen.blocking),
        lambda: solver.plan(problem, epilogue, strides, low.threads, chosen.blocking),
    )


def forms_of(layer: Layer, plain: ContractionForm, symbolic: bool) -> list[ContractionForm]:
    """Return the forms of a contraction in which it may be computed, the preferred form first, ``plain`` last.

    With symbolic lengths only the element types vary.
    """
    forms = [plain]
    for propose in FORMS[:1] if symbolic else FORMS:
        other = propose(layer, forms[0])
        if other is not None and layer.is_quicker(other, forms[0]):
            forms.insert(0, other)
    return forms


def chosen_form(layer: Layer, forms: Sequence[ContractionForm]) -> tuple[ContractionForm, ChosenSolver]:
    """Return the first form whose solver can be planned and that earlier steps fit, and the solver.

    Raises:
        UnsupportedError: no solver applies to the last form.
    """
    for form in forms[:-1]:
        with contextlib.suppress(UnsupportedError):
            choice = layer.choose(form)
            if form.take():
                return form, choice
    return forms[-1], layer.choose(forms[-1])


def _stored_in_16_bits(layer: Layer, plain: ContractionForm) -> ContractionForm | None:
    """Propose weights stored in 16 bits."""
    weights, types = layer.contraction.weights, plain.problem.types
    if weights is None or plain.operands["x"].type.dtype_name != layer.contraction.problem.types.a:
        return None
    dtype = weights.dtype.name
    if dtype == types.b:
        if layer.low.options.precision != "medium" or types.uniform != "float32":
            return None
        dtype = "bfloat16"
    return replace(plain, problem=replace(plain.problem, types=replace(types, b=dtype)))


def _before_shuffle(layer: Layer, plain: ContractionForm) -> ContractionForm | None:
    """Propose to read the input of a channel shuffle in place of the shuffle's copy.

    None unless the grouped convolution is the copy's only reader, and no contraction follows the copy.
    """
    low, problem, x = layer.low, plain.problem, plain.operands["x"]
    if not isinstance(problem, ConvProblem) or problem.groups == 1 or not low.draft.steps:
        return None
    source = next((i for i in layer.ins.inputs if low.values.get(i) is x), None)
    groups = shuffled_groups(source, "reshape_lazy") if source is not None else 0
    if source is None or not groups or source.inputs[0].name != "layout":
        return None
    copy = source.inputs[0]
    since = low.draft.requested[-1][-1] if low.draft.requested else 0
    copies = [k for k, step in enumerate(low.draft.steps) if k >= since and step.instruction is copy]
    if [*source.users] != [layer.ins] or [*copy.users] != [source] or len(copies) != 1:
        return None
    buffer, split = x.buffer, low.values[copy.inputs[0].inputs[0]]
    writer = low.draft.writers.get(buffer)
    if buffer.region is not Region.ARENA or buffer.bytes != x.shape.bytes or (writer is not None and writer.taken):
        return None
    image, group, channel, *pixels = split.strides
    if channel != 1 or group != split.lens[2] or split.type is not x.type:
        return None
    view = split.with_shape(Shape(x.type, x.lens, (image, 1, *pixels)))
    shuffled = replace(problem, x_strides=(image, *pixels), shuffled=groups)
    if ConvDirect().refusal(shuffled):
        return None

    def drop_copy() -> bool:
        del low.draft.steps[copies[0]]
        low.draft.writers.pop(buffer, None)
        return True

    return replace(plain, problem=shuffled, operands={"x": view}, take=drop_copy)


def _bf16_split(layer: Layer, plain: ContractionForm) -> ContractionForm | None:
    """Propose a left-hand side in bfloat16 parts, which the step before writes."""
    problem, contraction = plain.problem, layer.contraction
    if contraction.weights is None or problem.types.uniform != "float32" or not problem.fast_math or problem.prologue:
        return None
    found = bf16_split_of(layer.low, plain.operands["x"], 1 if isinstance(problem, ConvProblem) else -1)
    if found is None:
        return None
    high, writer = found
    own: Problem
    if isinstance(problem, ConvProblem):
        own = replace(problem, low_parts=writer.parts.low, x_strides=(high.strides[0], *high.strides[2:]))
    else:
        own = replace(problem, low_parts=writer.parts.low, a_strides=high.strides)

    def take() -> bool:
        return take_bf16_split(layer.low, writer, layer.ins, contraction.extras) and plain.take()

    return replace(plain, problem=own, operands={"x": high}, take=take)


FORMS: tuple[Callable[[Layer, ContractionForm], ContractionForm | None], ...] = (
    _stored_in_16_bits,
    _before_shuffle,
    _bf16_split,
)
"""Proposals in order: the element types, then the left-hand side."""
