"""Contractions of symbolic lengths: which kernels compute them for which lengths, and their launches.

Solvers and their tilings are compared for sample lengths, by estimates over plain numbers. A few are chosen that lose
little anywhere; thresholds of one length, the rows as a rule, say where each is taken. Then each plans the symbolic
problem (`codegen.alternatives`). The *general* one takes all lengths that no other does, such as rows that are no whole
vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ....core.dim import Dim, Length, evaluate, is_symbolic, maximum, negate, symbols_of
from ....dataclass import dataclass
from ....errors import ShapeError, UnsupportedError
from ...alternatives import at_lengths, fastest_where, lengths_in, loss, shares, worth_having
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...tuning.request import Candidate
from .gpu_contraction import GpuContraction
from .operands import Extent
from .solvers import SOLVERS, refusal_of

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)
"""Lengths to compare solvers for; the odd numbers beside them stand for lengths of no whole vectors."""
IMAGES = (8, 16, 32, 64, 128, 256, 512)
"""The same of images' axes."""
MOST_KERNELS = 4
"""Kernels of one contraction besides a general one: each is compiled."""

Sample = dict[Dim, int]
Costs = Mapping[Candidate, float]


@dataclass(frozen=True)
class CandidateShare:
    """The launches of one solver and tiling. They have no blocks at lengths that another candidate serves."""

    candidate: Candidate
    solution: Solution


def solve_open(contraction: GpuContraction, needed: Length = 1) -> tuple[list[CandidateShare], Length]:
    """Return what computes a contraction of symbolic lengths, and the condition that it is computed; ``needed`` is the
    condition under which it must be.

    Raises:
        UnsupportedError: no solver applies to any of the lengths that were tried.
    """
    symbols = symbols_of(lengths_in(contraction))
    feature = _feature(contraction)
    even, odd = (
        [one for one in _samples(contraction, symbols, feature, odd) if evaluate(needed, one)] for odd in (0, 1)
    )
    even_costs, odd_costs = ([(one, _costs(contraction, one)) for one in samples] for samples in (even, odd))
    even_costs, odd_costs = ([one for one in costs if one[1]] for costs in (even_costs, odd_costs))
    if not odd_costs:
        raise UnsupportedError(f"no kernel computes {contraction.problem} for the lengths that were tried")
    general = _general(odd_costs, even_costs)
    even_costs = [(sample, _alike(contraction, general, costs)) for sample, costs in even_costs]
    picked = worth_having(general, [costs for _, costs in even_costs], MOST_KERNELS)
    where = fastest_where(feature, even_costs, picked)

    def planned(candidate: Candidate, own: GpuContraction) -> Solution:
        reason = refusal_of(candidate.solver, own)
        if reason:
            raise UnsupportedError(reason)
        solution: Solution = candidate.solver.plan(own, candidate.blocking)
        return solution

    order = [*(one for one in picked if one != general), general]
    found, covered = shares(contraction, order, where, [*even_costs, *odd_costs], planned)
    if not found:
        raise UnsupportedError(f"no kernel computes {contraction.problem} for the lengths that were tried")
    return [CandidateShare(candidate, solution) for candidate, solution in found], maximum(negate(needed), covered)


def _feature(contraction: GpuContraction) -> Dim | None:
    """Return the symbolic length that matters most for which kernel is the quickest."""
    extent = Extent.of(contraction.problem)
    lengths = [extent.rows, extent.columns, extent.depth, extent.planes]
    return next((length for length in lengths if isinstance(length, Dim)), None)


def _samples(contraction: GpuContraction, symbols: Sequence[Dim], feature: Dim | None, odd: int) -> Iterator[Sample]:
    """Yield values of the symbols for which ``feature`` grows from sample to sample.

    - Growing symbols: the image axes of a convolution, else the last symbol of ``feature``.
    - Other symbols of ``feature`` have their least value.
    - Symbols outside ``feature`` have the value of the growing symbol, at most 64.
    """
    problem = contraction.problem
    inside = symbols_of(problem.in_lens) if isinstance(problem, ConvProblem) else []
    own = symbols_of([feature]) if feature is not None else []
    growing = inside or own[-1:] or list(symbols)
    least = [s for s in own if all(s is not g for g in growing)]
    for size in IMAGES if inside else SIZES:
        sample = {}
        for s in symbols:
            if any(s is one for one in least):
                value = 1
            else:
                value = size if any(s is one for one in growing) else min(size, 64)
                value = value | odd if value > 1 else value
            low, high = s.low or 1, s.high
            sample[s] = max(low, 1, value if high is None else min(value, high))
        yield sample


def _costs(contraction: GpuContraction, sample: Sample) -> Costs:
    """Return seconds of each solver that applies and of its tilings, for sample lengths."""
    try:
        plain = at_lengths(contraction, sample)
    except ShapeError:  # an image that is smaller than the kernel
        return {}
    open_sum = is_symbolic(Extent.of(contraction.problem).depth)
    constant_gate = contraction.constant and contraction.request.epilogue.gated
    found: dict[Candidate, float] = {}
    for solver in SOLVERS:
        if refusal_of(solver, plain) or (constant_gate and solver.name == "few_rows"):
            continue  # both orders of gates' columns would be held
        for seconds, tiling in solver.weighed(plain):
            if open_sum and getattr(tiling, "splits", 1) > 1:
                continue
            found[Candidate(solver, tiling)] = seconds
    return found


def _alike(contraction: GpuContraction, general: Candidate, costs: Costs) -> Costs:
    """Leave out what would hold constant weights of a convolution once more, in another order."""
    if not contraction.constant or not isinstance(contraction.problem, ConvProblem):
        return costs
    return {one: seconds for one, seconds in costs.items() if one.solver.order == general.solver.order}


def _general(odd: Sequence[tuple[Sample, Costs]], even: Sequence[tuple[Sample, Costs]]) -> Candidate:
    """Return the general candidate: of the candidates that compute any lengths, the fastest on the mean."""
    everywhere = [one for one in odd[0][1] if all(one in costs for _, costs in odd)]
    tables = [costs for _, costs in (*odd, *even)]

    def total(one: Candidate) -> float:
        return sum(min(loss(costs, [one]), 100.0) for costs in tables)

    return min(everywhere or list(odd[-1][1]), key=total)
