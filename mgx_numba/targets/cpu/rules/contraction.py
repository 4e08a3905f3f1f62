"""Lower matrix products and convolutions, alone or fused with a prologue and an epilogue of pointwise operations."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....codegen.alternatives import at_lengths, has_lengths, lengths_in
from ....codegen.cpu.contraction.block_quant import halves_are_read, halves_hold
from ....codegen.cpu.contraction.conv import ConvDirect
from ....codegen.cpu.contraction.runtime_packing import SOLVERS, packed_weights
from ....codegen.cpu.contraction.select import select
from ....codegen.cpu.contraction.solver import UnsuitedWeights
from ....codegen.cpu.contraction.symbolic_lengths import SolverShare, flattened, solve_open, solvers_of
from ....codegen.cpu.machine import machine
from ....codegen.launch import Launch, Solution
from ....codegen.printer import check_body
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.gemm import GemmProblem
from ....codegen.tuning.extents import result_axes
from ....codegen.tuning.request import Candidate, Request
from ....core.dim import known_equal, known_in, maximum, symbols_of
from ....core.integers import plain_int
from ....core.shape import Shape
from ....core.types import Type, from_numpy
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....runtime.memory import address_of
from ....runtime.plan import Region
from ...lowering import contraction_problem
from ...lowering.buffers import Buffer, View
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
from ...lowering.slow_steps import warn_if_slow
from ...lowering.steps import function_step
from ..bf16_split_values import SplitValue, Writer, bf16_split_of, offer_bf16_split, take_bf16_split
from ..capabilities import line_gaps
from ..error_budget import over_budget
from ..joining import drop_product, first_of_pair, joined_product
from ..shuffling import before_shuffle, drop_shuffle
from .table import lowering

_WIDE = (Type.float_type, Type.double_type)
_INT8 = (Type.int8_type, Type.uint8_type)
_SIGNED = (Type.int8_type, Type.int16_type)


def _refused(a: Type, b: Type, out: Type, constant: bool) -> str | None:
    """Return why no kernel has these types; None if kernels do.

    Kernels multiply floats of the same wide type, or 8-bit integers by signed integers of 8 bits (16 bits for depthwise
    convolutions).
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
    precise = low.options.precision
    problem, operands, weights = (
        replace(contraction.problem, fast_math=precise != "highest"),
        contraction.operands,
        contraction.weights,
    )
    constant = weights if contraction.blocks is None else contraction.blocks
    if contraction.blocks is not None:
        problem = _with_stored_blocks(low, problem, contraction.blocks.scales)
    if operands["x"].type.dtype_name != problem.types.a:  # `store_bfloat16` stores both operands in bfloat16
        types = replace(problem.types, a=operands["x"].type.dtype_name, b="bfloat16")
        problem = replace(problem, types=types)
    elif weights is not None and weights.dtype.name != problem.types.b:
        problem = _with_stored_weights(low, problem, weights.dtype.name)
    elif weights is not None and precise == "medium" and problem.types.uniform == "float32":
        problem = _with_stored_weights(low, problem, "bfloat16")
    places = tuple(tuple(map(plain_int, own)) for own in contraction.strides)
    saturates = contraction.epilogue.saturates
    unsuited = [
        own.name
        for own in SOLVERS
        if (constant is None and own.looks_at_values)
        or (saturates and own.rounds_weights)
        or (own.error_variance > 1 and over_budget(low, problem))
    ]
    room = 0 if constant is None else low.packing_room  # weights packed in every run are not worth transforming
    if has_lengths((problem, places)):
        request = Request(problem, contraction.epilogue, places, low.threads, low.options.fast_math)
        _launch_open(low, ins, request, replace(contraction, operands=operands), room, unsuited)
        return
    shuffle, x = None, operands["x"]
    if isinstance(problem, ConvProblem) and problem.groups > 1:
        shuffle = before_shuffle(low, ins, problem, x)
        if shuffle is not None and _select(low, problem, room, unsuited).name == ConvDirect.name:
            problem, operands["x"], _ = shuffle
        else:
            shuffle = None
    plain = Request(problem, contraction.epilogue, places, low.threads, low.options.fast_math)
    found, in_parts = None, _in_parts(low, problem, operands["x"], weights)
    if in_parts is not None:
        problem, high, writer = in_parts
        with contextlib.suppress(UnsupportedError):
            found = _chosen(low, ins, replace(plain, problem=problem), contraction, room, unsuited)
        if found is not None and take_bf16_split(low, writer, ins, contraction.extras):
            operands["x"] = high
        else:
            found = None
    chosen, request, plan, packed = found or _chosen(low, ins, plain, contraction, room, unsuited)
    problem, solver = request.problem, chosen.solver
    if shuffle is not None:
        drop_shuffle(low, x, shuffle[-1])
    if packed is not None:
        operands["w"] = packed
    operands |= {f"e{k}": view for k, view in enumerate(contraction.extras)}
    along: tuple[Instruction, ...] = ()
    taken, joined = chosen, joined_product(low, ins, request, chosen, operands)
    if joined is not None:
        chosen, before = joined
        solver, plan = chosen.solver, _plan(low, request, chosen)
        operands |= before
        along = (drop_product(low),)
    packed_lens = solver.packed_lens(problem)
    if not packed_lens and weights is not None and weights.dtype.name != problem.types.b:
        raise UnsupportedError(f"{solver.name} reads weights of {weights.dtype} where they lie")
    if packed_lens and constant is None:
        operands["w"] = _packed_at_run_time(low, ins, solver, problem, packed_lens, operands["w"])
    if plan.scratch:
        scratch = Shape(Type.uint8_type, (plan.scratch,))
        operands["scratch"] = View(Buffer(Region.ARENA, 0, plan.scratch), scratch)
    start = len(low.steps)
    for launch in plan.launches:
        low.launch(launch, operands, ins)
    if along:
        low.steps[-1].along = along
    low.requested.append((request, chosen, operands, start, len(low.steps)))
    at_once = sum("out" in launch.operands for launch in plan.launches) == 1
    if at_once and solver.writes_bf16_split(problem) and len(low.steps) == start + len(plan.launches):
        _offer_bf16_split(low, request, chosen, operands["out"])
    contraction_problem.note_solver(low, ins, request, taken)


def _launch_open(
    low: Lowering, ins: Instruction, request: Request, contraction: Contraction, room: int, unsuited: Collection[str]
) -> None:
    """Append the launches of a contraction with symbolic lengths, for each solver that some lengths choose.

    Raises:
        UnsupportedError: no solver applies.
    """
    request, unsuited = flattened(request), [*unsuited]
    example = at_lengths(request.problem, lengths_in((request.problem, request.strides))[0].scope.hints())
    unsuited += [s.name for s in solvers_of(example) if s.refusal(example) is None and s.packing_growth(example) > room]
    tuning = low.options.tuning

    def measured(plain: Request) -> str:
        found = None if tuning is None or not tuning.knows(plain) else tuning.recorded(plain)
        return "" if found is None else found.solver.name

    def plan(own: Request, chosen: Candidate) -> Solution:  # not cached: only for these example lengths
        solution: Solution = chosen.solver.plan(own.problem, own.epilogue, own.strides, own.threads)
        return solution

    views: list[View | None] = []
    while True:
        without = tuple(unsuited)
        solve = partial(solve_open, request, plan, measured, without)
        parts, served = low.solutions.of(("open", request, without), solve)
        if contraction.weights is None and contraction.blocks is None and any(map(_packs, parts[:-1])):
            unsuited += [part.candidate.solver.name for part in parts[:-1]]  # a run packs weights in one form only
            continue
        try:
            views = [_packed_once(low, ins, part.candidate.solver, part.request.problem, contraction) for part in parts]
            break
        except _Unsuited as error:
            unsuited.append(error.args[0])
    low.require(served)
    operands = contraction.operands | {f"e{k}": view for k, view in enumerate(contraction.extras)}
    scratch = maximum(0, *(part.solution.scratch for part in parts))
    if not known_in(scratch, 0):
        operands["scratch"] = View(Buffer(Region.ARENA, 0, scratch), Shape(Type.uint8_type, (scratch,)))
    for part, packed in zip(parts, views):
        own = operands if packed is None else operands | {"w": packed}
        for launch in part.solution.launches:
            low.launch(launch, own, ins)


class _Unsuited(Exception):
    """`UnsuitedWeights` with the name of the solver."""


def _packs(part: SolverShare) -> bool:
    """Return whether a solver reads packed weights."""
    return bool(part.candidate.solver.packed_lens(part.request.problem))


def _packed_once(
    low: Lowering, ins: Instruction, solver: Any, problem: GemmProblem | ConvProblem, contraction: Contraction
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
        return _packed_at_run_time(low, ins, solver, problem, lens, contraction.operands["w"])
    if isinstance(weights, np.ndarray) and isinstance(problem, GemmProblem):
        weights = weights[(0,) * (weights.ndim - len(problem.b_strides))]
    try:
        return low.packed(solver, problem, weights)
    except UnsuitedWeights as error:
        raise _Unsuited(solver.name) from error


def _chosen(
    low: Lowering,
    ins: Instruction,
    request: Request,
    contraction: Contraction,
    room: int,
    unsuited: Collection[str],
) -> tuple[Candidate, Request, Solution, View | None]:
    """Return the solver of a contraction, its request, its launches, and the packed weights if it has any.

    Args:
        low: the lowering.
        ins: the instruction.
        request: the contraction.
        contraction: the contraction with its operands.
        room: bytes by which the packed weights may grow.
        unsuited: names of solvers that must not be chosen.

    Raises:
        UnsupportedError: no solver applies.
    """
    problem, unsuited = request.problem, [*unsuited]
    chosen = first_of_pair(low, ins, request, contraction_problem.chosen_solver(low, request))
    while True:
        if chosen.solver.name in unsuited or chosen.solver.packing_growth(problem) > room:
            chosen = Candidate(_select(low, problem, room, unsuited))
        solver = chosen.solver
        plan = _plan(low, request, chosen)
        try:
            return chosen, request, plan, _packed(low, solver, problem, contraction)
        except UnsuitedWeights:
            unsuited.append(solver.name)


def _packed(low: Lowering, solver: Any, problem: GemmProblem | ConvProblem, contraction: Contraction) -> View | None:
    """Return constant weights packed for a solver; None if they are not constant, or if the solver does not pack.

    Raises:
        UnsuitedWeights: their values do not fit the packed form.
    """
    lens, weights = (
        solver.packed_lens(problem),
        contraction.weights if contraction.blocks is None else contraction.blocks,
    )
    if weights is None or not lens:
        return None
    if contraction.weights is None or solver.looks_at_values or solver.rounds_weights or solver.packing_growth(problem):
        return low.packed(solver, problem, weights)
    how = ("packed", solver.packed_as or solver.name, problem.types.b, tuple(lens), *solver.packing_key(problem))
    return low.derived(contraction.right, lambda own: low.packed(solver, problem, own), how)


def _select(
    low: Lowering, problem: GemmProblem | ConvProblem, room: int | None = None, unsuited: Collection[str] = ()
) -> Any:
    """Return the answer of `select`, cached."""
    question = (select, problem, low.threads, room, tuple(sorted(unsuited)))
    return low.solutions.of(question, lambda: select(problem, low.threads, room, unsuited))


def _plan(low: Lowering, request: Request, chosen: Candidate) -> Solution:
    """Return the solver's launches."""
    problem, epilogue, strides, solver = request.problem, request.epilogue, request.strides, chosen.solver
    return low.solutions.of(
        (solver, problem, epilogue, strides, low.threads, chosen.blocking),
        lambda: solver.plan(problem, epilogue, strides, low.threads, chosen.blocking),
    )


def _with_stored_blocks(low: Lowering, problem: Any, scales: np.ndarray) -> GemmProblem:
    """Return the problem with facts about its block-quantised weights: whether they come from memory, and whether
    scales are float16.

    Scales are float16 if that keeps their values, or if rows may be int8, whose error is larger.
    """
    if _constant_bytes(low) > machine().last_cache_bytes:
        problem = replace(problem, blocks=replace(problem.blocks, from_memory=True))
    if not halves_are_read():
        return problem
    identity = address_of if low.shared is None else low.shared.identity
    question = ("halves hold", identity(scales), scales.shape, scales.strides)
    rough = problem.blocks.int8_rows and problem.fast_math
    half = rough or low.solutions.of(question, lambda: halves_hold(scales))
    return replace(problem, blocks=replace(problem.blocks, half_scales=half))


def _constant_bytes(low: Lowering) -> int:
    """Return the bytes of the program's constants that a run reads, without constants of which only rows are
    gathered."""
    while low.parent is not None:
        low = low.parent
    return low.solutions.of("constant bytes", lambda: sum(map(_bytes_read, low.program.modules)))


def _bytes_read(module: Module) -> int:
    literals = (ins for ins in module if ins.literal is not None)
    return sum(ins.shape.bytes for ins in literals if any(user.name != "gather" for user in ins.users))


def _with_stored_weights(low: Lowering, problem: GemmProblem | ConvProblem, dtype: str) -> GemmProblem | ConvProblem:
    """Return the problem with weights of ``dtype`` if a solver for it is the quickest; else with float32 weights."""
    stored = replace(problem, types=replace(problem.types, b=dtype))
    if has_lengths(problem):  # one type for all lengths: the shorter one if few rows profit
        symbols = symbols_of(lengths_in(problem))
        points = [symbols[0].scope.hints(), {s: max(s.low or 1, 1) for s in symbols}]
        plain = [(at_lengths(stored, point), at_lengths(problem, point)) for point in points]
    else:
        plain = [(stored, problem)]
    return stored if any(_cheaper(low, *pair) for pair in plain) else problem


def _cheaper(low: Lowering, problem: GemmProblem | ConvProblem, other: GemmProblem | ConvProblem) -> bool:
    """Return whether some solver for ``problem`` is quicker than all solvers for ``other``."""
    try:
        quickest = _select(low, problem, low.packing_room)
    except UnsupportedError:
        return False
    wide = _select(low, other, low.packing_room)
    return bool(quickest.estimate(problem, low.threads) <= wide.estimate(other, low.threads))


def _in_parts(
    low: Lowering, problem: GemmProblem | ConvProblem, x: View, weights: np.ndarray | None
) -> tuple[GemmProblem | ConvProblem, View, Writer] | None:
    """Return the problem with a left-hand side in bfloat16 parts, the view of the high parts, and their writer.

    None if that is not possible, or not quicker than reading the left-hand side unsplit.
    """
    if weights is None or problem.types.uniform != "float32" or not problem.fast_math or problem.prologue:
        return None
    found = bf16_split_of(low, x, 1 if isinstance(problem, ConvProblem) else -1)
    if found is None:
        return None
    high, writer = found
    own: GemmProblem | ConvProblem
    if isinstance(problem, ConvProblem):
        own = replace(problem, low_parts=writer.parts.low, x_strides=(high.strides[0], *high.strides[2:]))
    else:
        own = replace(problem, low_parts=writer.parts.low, a_strides=high.strides)
    try:
        solver, other = (_select(low, one, low.packing_room) for one in (own, problem))
    except UnsupportedError:
        return None
    quicker = solver.estimate(own, low.threads) <= other.estimate(problem, low.threads)
    return (own, high, writer) if quicker else None


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
        return _plan(low, own, chosen).launches[-1], results

    offer_bf16_split(low, low.steps[-1], out, columns, remake, besides=False)


def _packed_at_run_time(
    low: Lowering, ins: Instruction, solver: Any, problem: Any, lens: tuple[int, ...], weights: View
) -> View:
    """Append a fallback step that packs weights, which are not constant, in every run; return the packed weights."""
    form = solver.pack_weights(problem, np.zeros(weights.lens, weights.type.numpy)).dtype
    target = low.allocate(Shape(from_numpy(form), lens))
    reason = "the weights are not constant, and no kernel packs them"
    warn_if_slow(ins, reason)
    call = FunctionCall(packed_weights, SOLVERS.index(solver), problem)
    low.steps.append(function_step(f"cpu::pack_{solver.name}", ins, call, [weights], target, reason))
    return target


CPU_SUPPORT = ContractionSupport(_refused, check_body, _launch, line_gaps=True)
