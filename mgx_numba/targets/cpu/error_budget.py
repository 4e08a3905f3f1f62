"""Which convolutions may be computed by a method whose errors are larger than the direct one's.

Where an exponential function follows the last product, as in a softmax, errors of its sums that are small beside the
largest sum are errors of the results beside the largest result times as large as the sums are, unless a mean over
pixels has made them small. There a program takes such a method (`Solver.error_variance`) where that saves most time,
and only as often as the sum of the squares of all layers' errors allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ...codegen.cpu.contraction.select import select
from ...codegen.cpu.contraction.solvers import CONV_SOLVERS
from ...codegen.cpu.microkernels.tile_table import matrix_tile
from ...codegen.problems.convolution import ConvProblem
from ...codegen.problems.element_types import FLOAT32
from ...codegen.problems.gemm import GemmProblem
from ...core.dim import hint, known_equal
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops.control import If, Loop
from ...ops.pooling import PoolingMode
from ..lowering.contraction import CONVOLUTIONS, PRODUCTS, core_of
from ..lowering.lowering import Lowering
from .capabilities import bare_problem

__all__ = ["over_budget"]

GROWTH = 1.3
"""How much larger the sum of squares may be than that of direct products. light_vgg19 would have an error of 6.6e-5 of
the largest result without a limit, 5.1e-5 with 1.4, 4.2e-5 with 1.3 and 4.1e-5 with 1."""
_EXPONENTIAL = frozenset({"exp", "softmax"})
_GATED = frozenset({"gru", "lstm", "recurrent_steps", "rnn"})
_SUMS = frozenset({"reduce_mean", "reduce_sum"})
_COARSE = frozenset(solver.name for solver in CONV_SOLVERS if solver.error_variance > 1)

_refused: WeakKeyDictionary[Lowering, frozenset[Hashable]] = WeakKeyDictionary()


def over_budget(low: Lowering, problem: GemmProblem | ConvProblem) -> bool:
    """Whether no method with larger errors than the direct one shall compute a problem of the program."""
    if not isinstance(problem, ConvProblem) or problem.types != FLOAT32:
        return False
    tile = matrix_tile(FLOAT32)
    if tile is None or tile.packing.parts == 1:
        return False
    found = _refused.get(low)
    if found is None:
        found = _refused[low] = _over_budget(low)
    return _size(problem) in found


def _over_budget(low: Lowering) -> frozenset[Hashable]:
    """Return the sizes of the convolutions that stay direct: those that the budget of their own module refuses.

    The budgets of modules add up, whichever branch runs. Bodies of loops and branches may be lowered with the module
    around them; an exponential function behind any module around counts.
    """
    magnified = False
    outer: Lowering | None = low
    while outer is not None and not magnified:
        magnified, outer = _magnifies(outer.module), outer.outer
    modules = [module for module in _with_bodies(low.module) if magnified or _magnifies(module)]
    return frozenset().union(*(_refused_sizes(low, module) for module in modules))


def _with_bodies(module: Module) -> Iterator[Module]:
    """Yield a module and the bodies of its loops and branches, nested ones too."""
    yield module
    for ins in module:
        if isinstance(ins.op, (If, Loop)):
            for body in ins.module_args:
                yield from _with_bodies(body)


def _refused_sizes(low: Lowering, module: Module) -> set[Hashable]:
    """Return the sizes of a module's convolutions that would exceed its budget of errors."""
    layers = [core for ins in module if (core := _layer(ins)) is not None]
    saved: dict[Hashable, tuple[bool, float]] = {}
    counts: dict[Hashable, int] = {}
    variances: dict[Hashable, float] = {}
    for core in layers:
        if core.name not in CONVOLUTIONS:
            continue
        problem = bare_problem(core, hint)
        assert isinstance(problem, ConvProblem)
        size = _size(problem)
        counts[size] = counts.get(size, 0) + 1
        if size not in saved:
            ask = partial(_saving, problem, low.threads)
            saved[size], variances[size] = low.solutions.of(("error budget", size, low.threads), ask)
    left = (GROWTH - 1) * len(layers)
    refused: set[Hashable] = set()
    for size in sorted(counts, key=saved.__getitem__, reverse=True):
        grown = counts[size] * (variances[size] - 1)
        if grown <= left:
            left -= grown
        else:
            refused.add(size)
    return refused


def _saving(problem: ConvProblem, threads: int) -> tuple[tuple[bool, float], float]:
    """Whether the estimates take a method with larger errors, the seconds that it saves beside the quickest that has
    none, and the variance of its errors. A tuning record may take one where the estimates do not."""
    problem = replace(problem, types=FLOAT32)
    able = [solver for solver in CONV_SOLVERS if solver.name in _COARSE and solver.refusal(problem) is None]
    if not able:
        return (False, 0.0), 1.0
    try:
        quickest = select(problem, threads)
        other = select(problem, threads, unsuited=_COARSE)
    except UnsupportedError:
        return (False, 0.0), 1.0
    coarse = quickest if quickest in able else min(able, key=lambda solver: solver.estimate(problem, threads))
    seconds = other.estimate(problem, threads) - coarse.estimate(problem, threads)
    return (quickest in able, seconds), max(solver.error_variance for solver in able)


def _layer(ins: Instruction) -> Instruction | None:
    """The product or convolution of float32 in an instruction."""
    if ins.name not in (*PRODUCTS, *CONVOLUTIONS, "fused_contraction"):
        return None
    core = core_of(ins)
    floats = core.shape.type is core.inputs[0].shape.type is Type.float_type
    return core if floats and not any(known_equal(n, 0) for n in core.shape.lens) else None


def _magnifies(module: Module) -> bool:
    """Whether an exponential function is between the last products and the results, and neither a mean over pixels nor
    recurrent gates between these and the last convolutions."""
    waiting, exponential = [(ins, False) for ins in module.results()], False
    met = set()
    while waiting:
        ins, behind = waiting.pop()
        if (ins, behind) in met:
            continue
        met.add((ins, behind))
        if ins.name in _GATED or _averages(ins):
            return False
        bodies = [inner for body in ins.module_args for inner in body]
        exponential |= not behind and any(inner.name in _EXPONENTIAL for inner in (ins, *bodies))
        core = _layer(ins)
        if core is None or core.name not in CONVOLUTIONS:
            waiting += [(one, behind or core is not None) for one in ins.inputs]
    return exponential


def _averages(ins: Instruction) -> bool:
    """Whether sums over pixels are results, as of a mean of a whole image; those of a softmax or a norm are not."""
    if ins.name == "pooling":
        op: Any = ins.op
        return op.mode is not PoolingMode.max and all(n == 1 for n in ins.shape.lens[2:])
    if ins.name != "fused_reduce":
        return False
    results = [shape.lens for shape in ins.shape.flatten()]
    for inner in (one for body in ins.module_args for one in body):
        if getattr(inner.op, "operation", inner.name) in _SUMS and len(inner.inputs[0].shape.lens) > 3:
            lens, axes = inner.inputs[0].shape.lens, inner.op.attributes()["axes"]
            if any(axis > 1 and result[axis] < lens[axis] for axis in axes for result in results):
                return True
    return False


def _size(problem: ConvProblem) -> Hashable:
    p = problem
    return (
        hint(p.batch), p.in_channels, p.out_channels, tuple(map(hint, p.in_lens)), p.kernel, p.stride, p.dilation,
        p.pads_begin, p.pads_end, p.groups, p.transposed,
    )  # fmt: skip
