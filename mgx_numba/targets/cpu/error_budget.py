"""Decide which convolutions may use a method with larger errors than the direct method.

Some programs end in an exponential function after the last product, as in a softmax. There an error that is small
relative to the largest sum becomes an error of the results, multiplied by the size of the sums. Only a mean over pixels
reduces it. Such a program uses methods with larger errors (`Solver.error_variance`) where they save most time. The sum
of the squared errors of all layers limits their number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ...codegen.cpu.contraction.solvers import select, solvers_of
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
from ..lowering.contraction_problem import CONVOLUTIONS, PRODUCTS, core_of
from ..lowering.lowering import Lowering
from .capabilities import bare_problem

GROWTH = 1.3
"""Maximum ratio of the sum of squared errors to that of direct products. The error of light_vgg19, relative to the
largest result, would be 6.6e-5 without a limit, 5.1e-5 with 1.4, 4.2e-5 with 1.3 and 4.1e-5 with 1."""
_EXPONENTIAL = frozenset({"exp", "softmax"})
_GATED = frozenset({"gru", "lstm", "recurrent_steps", "rnn"})
_SUMS = frozenset({"reduce_mean", "reduce_sum"})

_refused: WeakKeyDictionary[Lowering, frozenset[Hashable]] = WeakKeyDictionary()


def over_budget(low: Lowering, problem: GemmProblem | ConvProblem) -> bool:
    """Return whether a problem of the program has to use a method without larger errors than the direct method."""
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
    """Return the sizes of the convolutions that stay direct: those that exceed the error budget of their own module.

    Errors of modules add up, whichever branch runs. Bodies of loops and branches may be lowered with the enclosing
    module. A body's errors also count as magnified if an exponential function follows in any enclosing module.
    """
    magnified = False
    outer: Lowering | None = low
    while outer is not None and not magnified:
        magnified, outer = _magnifies(outer.module), outer.job.parent
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
    """Return the benefit and the cost of computing a convolution by a method with larger errors.

    Returns:
        whether the estimates choose such a method and the seconds that it saves over the quickest other method; and the
        variance of its errors. A tuning record may choose such a method where the estimates do not.
    """
    problem = replace(problem, types=FLOAT32)
    coarse = [solver for solver in solvers_of(problem) if solver.error_variance > 1]
    able = [solver for solver in coarse if solver.refusal(problem) is None]
    if not able:
        return (False, 0.0), 1.0
    try:
        quickest = select(problem, threads)
        other = select(problem, threads, unsuited={solver.name for solver in coarse})
    except UnsupportedError:
        return (False, 0.0), 1.0
    taken = quickest if quickest in able else min(able, key=lambda solver: solver.estimate(problem, threads))
    seconds = other.estimate(problem, threads) - taken.estimate(problem, threads)
    return (quickest in able, seconds), max(solver.error_variance for solver in able)


def _layer(ins: Instruction) -> Instruction | None:
    """Return the float32 product or convolution in an instruction; None if it has none."""
    if ins.name not in (*PRODUCTS, *CONVOLUTIONS, "fused_contraction"):
        return None
    core = core_of(ins)
    floats = core.shape.type is core.inputs[0].shape.type is Type.float_type
    return core if floats and not any(known_equal(n, 0) for n in core.shape.lens) else None


def _magnifies(module: Module) -> bool:
    """Return whether an exponential function magnifies the errors of the last products.

    It lies between the last products and the results, with neither a mean over pixels nor recurrent gates between it
    and the last convolutions.
    """
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
    """Return whether the results are sums over pixels, such as the mean of an image; not those inside a softmax or a
    norm."""
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
