"""Lower matrix products and convolutions, alone or fused with a prologue and an epilogue of pointwise operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....codegen.alternatives import at_lengths, has_lengths, lengths_in
from ....codegen.cpu.contraction.block_quant import halves_are_read, halves_hold
from ....codegen.cpu.contraction.solver import AnySolver, UnsuitedWeights
from ....codegen.cpu.contraction.solvers import packed_weights, solvers_of
from ....codegen.cpu.contraction.symbolic_lengths import SolverShare, flattened, solve_open
from ....codegen.cpu.machine import machine
from ....codegen.launch import Launch, Solution
from ....codegen.printer import check_body
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.gemm import BlockWeights, GemmProblem, StoredBlocks
from ....codegen.tuning.request import Candidate, Request, result_axes
from ....core.dim import (
    Length,
    all_of,
    any_of,
    equal,
    known_equal,
    known_in,
    known_less_equal,
    less_equal,
    maximum,
    preferred,
)
from ....core.integers import plain_ints
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....runtime.memory import address_of
from ...lowering import contraction_problem
from ...lowering.buffers import View
from ...lowering.contraction_problem import (
    BLOCK_PRODUCTS,
    CONVOLUTIONS,
    PRODUCTS,
    Contraction,
    ContractionSupport,
    accepts_contraction,
    core_of,
    line_strides,
)
from ...lowering.function_call import FunctionCall
from ...lowering.lowering import Lowering
from ..bf16_split_values import SplitValue, offer_bf16_split
from ..capabilities import line_gaps
from ..contraction_forms import ContractionForm, Layer, chosen_form, forms_of, plan_of
from ..packing import pack_in_every_run
from .table import lowering

_WIDE = (Type.float_type, Type.double_type, Type.int32_type, Type.uint32_type, Type.int64_type, Type.uint64_type)
_INT8 = (Type.int8_type, Type.uint8_type)
_SIGNED = (Type.int8_type, Type.int16_type)
LEAST_ROWS, LEAST_COLUMNS, LESS_COLUMNS, LEAST_TERMS = 16, 64, 32, 256
"""Least rows and columns of a product that copies a left-hand side with strided terms, and least columns and terms of
another. Zen 3, two threads, a transposed left-hand side, with a copy and without: 1024x768x768 6.6 and 21.1 ms,
1000x256x256 0.74 and 1.79, 16x768x768 0.11 and 0.14, 1024x32x256 0.15 and 0.27; 3000x64x64 0.17 and 0.16, 3000x32x64
0.096 and 0.085, 12x32x512 0.011 and 0.006."""


def _refused(a: Type, b: Type, out: Type, constant: bool) -> str | None:
    """Return why no kernel has these types; None if kernels do.

    Kernels multiply numbers of the same wide type, or 8-bit integers by signed integers of 8 bits (16 bits for
    depthwise convolutions).
    """
    if out in _WIDE and a is b is out:
        return None
    if out is not Type.int32_type or a not in _INT8 or b not in _SIGNED:
        return f"no solver is for these element types: {a.name} {b.name} {out.name}"
    return None


def _accepts(ins: Instruction, shape: Shape) -> bool:
    """Return whether a contraction can write this shape, including pixels with gaps between lines where that costs
    nothing."""
    if accepts_contraction(ins, shape):
        return True
    lines = line_strides(shape.lens, shape.strides)
    return (
        lines is not None
        and (known_equal(shape.lens[1], 1) or known_equal(shape.strides[1], 1))
        and line_gaps(core_of(ins))
    )


@lowering(*PRODUCTS, *BLOCK_PRODUCTS, *CONVOLUTIONS, "fused_contraction", accepts=_accepts)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """Append the launches of the solver that tuning or the cost model chooses."""
    contraction_problem.lower_contraction(low, ins, CPU_SUPPORT)


def _launch(low: Lowering, ins: Instruction, contraction: Contraction) -> None:
    contraction = _with_contiguous_terms(low, ins, contraction)
    places = tuple(map(plain_ints, contraction.strides))
    layer = Layer(low, ins, contraction, places)
    problem, x = _prepared(layer), contraction.operands["x"]
    symbolic = has_lengths((problem, places))
    forms = forms_of(layer, ContractionForm(problem, {"x": x}), symbolic)
    if symbolic:
        _launch_open(layer, layer.request(forms[0].problem))
        return
    form, choice = chosen_form(layer, forms)
    request, solver, operands = layer.request(form.problem), choice.candidate.solver, layer.operands(form)
    packed_lens = solver.packed_lens(form.problem)
    if choice.packed is not None:
        operands["w"] = choice.packed
    elif packed_lens and layer.constant is None:
        operands["w"] = _packed_at_run_time(low, ins, solver, form.problem, operands["w"])
    plan = plan_of(low, request, choice.candidate)
    if plan.scratch:
        operands["scratch"] = low.allocate(Shape(Type.uint8_type, (plan.scratch,)))
    steps = low.draft.steps
    start = len(steps)
    low.launch_all(plan, operands, ins)
    low.draft.requested.append((request, choice.candidate, operands, start, len(steps)))
    at_once = sum("out" in launch.operands for launch in plan.launches) == 1
    if at_once and solver.writes_bf16_split(form.problem) and len(steps) == start + len(plan.launches):
        _offer_bf16_split(low, request, choice.candidate, operands["out"])
    contraction_problem.note_solver(low, ins, request, choice.candidate)


def _with_contiguous_terms(low: Lowering, ins: Instruction, contraction: Contraction) -> Contraction:
    """Return a product whose left-hand side has contiguous terms: itself, or with a copy where that pays."""
    problem, x = contraction.problem, contraction.operands["x"]
    if not isinstance(problem, GemmProblem) or x.type not in (Type.float_type, Type.double_type):
        return contraction
    if known_in(x.strides[-1], 0, 1) or known_less_equal(problem.k, 1):
        return contraction
    columns = any_of(
        less_equal(LEAST_COLUMNS, problem.n),
        all_of(less_equal(LESS_COLUMNS, problem.n), less_equal(LEAST_TERMS, problem.k)),
    )
    if not preferred(all_of(less_equal(LEAST_ROWS, problem.m), columns)):
        return contraction
    once = x.without_repeats()
    x = low.materialized(once, row_major_strides(once.lens), ins).repeated(x.lens)
    problem = replace(problem, a_strides=x.strides)
    return replace(contraction, problem=problem, operands={**contraction.operands, "x": x})


def _prepared(layer: Layer) -> GemmProblem | ConvProblem:
    """Return the problem with facts that hold in all its forms: the permitted rounding, and how operands are stored."""
    low, contraction = layer.low, layer.contraction
    problem = replace(contraction.problem, fast_math=low.options.precision != "highest")
    if contraction.blocks is not None:
        problem = _with_stored_blocks(low, problem, contraction.blocks)
    stored = contraction.operands["x"].type.dtype_name
    if stored != problem.types.a:  # `store_bfloat16` stores both operands in bfloat16
        problem = replace(problem, types=replace(problem.types, a=stored, b="bfloat16"))
    return problem


def _launch_open(layer: Layer, request: Request) -> None:
    """Append the launches of a contraction with symbolic lengths, for each solver that some lengths choose.

    Raises:
        UnsupportedError: no solver applies.
    """
    low, ins, contraction = layer.low, layer.ins, layer.contraction
    unsuited, request = layer.unsuited(request.problem), flattened(request)
    growths = low.solutions.of(("growth", request.problem), partial(_growths, request.problem))
    unsuited += [name for name, growth in growths if growth > layer.room]
    tuning = low.options.tuning

    def measured(plain: Request) -> str | None:
        if tuning is None or not tuning.knows(plain.problem):
            return None
        found = tuning.recorded(plain)
        return "" if found is None else found.solver.name

    def plan(own: Request, chosen: Candidate) -> Solution:  # not cached: only for these example lengths
        solution: Solution = chosen.solver.plan(own.problem, own.epilogue, own.strides, own.threads)
        return solution

    def answer(without: tuple[str, ...]) -> tuple[list[SolverShare], Length]:
        def solve(own: Request) -> tuple[list[SolverShare], Length, dict[Request, str]]:
            known: dict[Request, str] = {}

            def chosen(problem: GemmProblem | ConvProblem, plain: Callable[[], Request]) -> str:
                if tuning is None or not tuning.knows(problem):
                    return ""
                name = measured(made := plain())
                return "" if name is None else known.setdefault(made, name)

            return *solve_open(own, plan, chosen, without), known

        question = "open contraction", without, None if tuning is None else tuning.extents
        parts, served, known = low.kept(question, request, solve)
        if any(measured(plain) != name for plain, name in known.items()):  # measured since, with another result
            parts, served, _ = solve(request)
        return parts, served

    views: list[View | None] = []
    while True:
        without = tuple(unsuited)
        parts, served = low.solutions.of(("open", request, without), partial(answer, without))
        if layer.constant is None and any(map(_packs, parts[:-1])):
            unsuited += [part.candidate.solver.name for part in parts[:-1]]  # a run packs weights in one form only
            continue
        try:
            views = [_packed_once(low, ins, part.candidate.solver, part.request.problem, contraction) for part in parts]
            break
        except _Unsuited as error:
            unsuited.append(error.args[0])
    out = contraction.operands["out"]
    low.require(any_of(served, *(equal(n, 0) for n in out.lens)))  # launches have no tasks where no solver serves
    operands = contraction.operands | {f"e{k}": view for k, view in enumerate(contraction.extras)}
    scratch = maximum(0, *(part.solution.scratch for part in parts))
    if not known_in(scratch, 0):
        operands["scratch"] = low.allocate(Shape(Type.uint8_type, (scratch,)))
    for part, packed in zip(parts, views):
        own = operands if packed is None else operands | {"w": packed}
        low.launch_all(part.solution, own, ins)


def _growths(problem: GemmProblem | ConvProblem) -> list[tuple[str, int]]:
    """Return by how many bytes the weights grow for each solver that applies to the example lengths."""
    lengths = lengths_in(problem)
    example = at_lengths(problem, lengths[0].scope.hints() if lengths else {})
    return [(s.name, s.packing_growth(example)) for s in solvers_of(example) if s.refusal(example) is None]


class _Unsuited(Exception):
    """`UnsuitedWeights` with the name of the solver."""


def _packs(part: SolverShare) -> bool:
    """Return whether a solver reads packed weights."""
    return bool(part.candidate.solver.packed_lens(part.request.problem))


def _packed_once(
    low: Lowering, ins: Instruction, solver: AnySolver, problem: GemmProblem | ConvProblem, contraction: Contraction
) -> View | None:
    """Return the packed weights of a problem with symbolic lengths; see `_packed`.

    The problem may have fewer batch dimensions than the weights. Weights that are not constant are packed in every run.

    Raises:
        UnsupportedError: the weights have another type than the solver reads, or symbolic lengths.
        _Unsuited: their values do not fit the packed form.
    """
    weights = contraction.weights if contraction.blocks is None else contraction.blocks
    lens = solver.packed_lens(problem)
    if not lens:
        if isinstance(weights, np.ndarray) and weights.dtype.name != problem.types.b:
            raise UnsupportedError(f"{solver.name} reads weights of {weights.dtype} where they lie")
        return None
    if weights is None:
        if contraction.operands["w"].shape.symbolic:
            raise UnsupportedError(f"{solver.name} packs weights, whose lengths are symbolic")
        return _packed_at_run_time(low, ins, solver, problem, contraction.operands["w"])
    if isinstance(weights, np.ndarray) and isinstance(problem, GemmProblem):
        weights = weights[(0,) * (weights.ndim - len(problem.b_strides))]
    try:
        return low.packed(solver, problem, weights)
    except UnsuitedWeights as error:
        raise _Unsuited(solver.name) from error


def _with_stored_blocks(low: Lowering, problem: Any, blocks: BlockWeights | StoredBlocks) -> GemmProblem:
    """Return the problem with facts about its block-quantised weights: whether they come from memory, and whether
    scales are float16.

    Scales are float16 if that keeps their values, or if rows may be int8, whose error is larger.
    """
    if _constant_bytes(low) > machine().last_cache_bytes:
        problem = replace(problem, blocks=replace(problem.blocks, from_memory=True))
    if not halves_are_read():
        return problem
    identity = address_of if low.shared is None else low.shared.identity
    question = ("halves hold", *((identity(array), array.shape, array.strides) for array in blocks.arrays))
    rough = problem.blocks.int8_rows and problem.fast_math
    half = rough or low.solutions.of(question, lambda: halves_hold(blocks.scale_rows()))
    return replace(problem, blocks=replace(problem.blocks, half_scales=half))


def _constant_bytes(low: Lowering) -> int:
    """Return the bytes of the program's constants that a run reads, without constants of which only rows are
    gathered."""
    while low.job.parent is not None:
        low = low.job.parent
    return low.solutions.of("constant bytes", lambda: sum(map(_bytes_read, low.program.modules)))


def _bytes_read(module: Module) -> int:
    literals = (ins for ins in module if ins.literal is not None)
    return sum(ins.shape.bytes for ins in literals if any(user.name != "gather" for user in ins.users))


def _offer_bf16_split(low: Lowering, request: Request, chosen: Candidate, out: View) -> None:
    """Record that the last step can write its result in bfloat16 parts."""
    problem, epilogue = request.problem, request.epilogue
    columns, count = result_axes(problem)[0][-1], len(epilogue.operands)
    if (epilogue.dtype or problem.types.out) != "float32" or epilogue.gated:
        return

    def remake(parts: SplitValue, alone: bool) -> tuple[Launch, Mapping[str, View]]:
        high = parts.high
        strides = high.strides[:-1]
        if isinstance(problem, ConvProblem):
            strides = contraction_problem.pixel_strides(high.lens, high.strides) or ()
        own = replace(request, epilogue=epilogue.with_parts(alone), strides=(*request.strides, strides, strides))
        results = {f"e{count}": high, f"e{count + 1}": parts.behind} | ({"out": high} if alone else {})
        return plan_of(low, own, chosen).launches[-1], results

    offer_bf16_split(low, low.draft.steps[-1], out, columns, remake, besides=False)


def _packed_at_run_time(
    low: Lowering, ins: Instruction, solver: AnySolver, problem: GemmProblem | ConvProblem, weights: View
) -> View:
    """Append a step that packs weights, which are not constant, in every run; return the packed weights."""
    call = FunctionCall(packed_weights, solvers_of(problem).index(solver), problem)
    return pack_in_every_run(low, ins, f"cpu::pack_{solver.name}", call, weights)


CPU_SUPPORT = ContractionSupport(_refused, check_body, _launch, line_gaps=True, layouts=True, in_place=True)
