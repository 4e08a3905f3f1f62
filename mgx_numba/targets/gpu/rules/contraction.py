"""Matrix products and convolutions, alone or with pointwise operations around them as a prologue and an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....codegen.body import ScalarBody
from ....codegen.cpu.printer import CodeBuffer
from ....codegen.gpu.contraction.tiled import pack_weights, packed_lens
from ....codegen.gpu.printer import ThreadPrinter
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.gemm import GemmProblem
from ....codegen.tuning.request import Request
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ...lowering import contraction
from ...lowering.buffers import View
from ...lowering.contraction import Contractions, accepts_contraction
from ...lowering.lowering import Lowering, PendingStep
from .table import lowering


@lowering("dot", "convolution", "convolution_backwards", "fused_contraction", accepts=accepts_contraction)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """One launch, with the pointwise operations around the contraction compiled in."""
    contraction.lower_contraction(low, ins, _HERE)


@lowering("quant_dot", accepts=accepts_contraction)
def lower_quantized_product(low: Lowering, ins: Instruction) -> None:
    """8-bit integers times constant signed ones; any other is left to the operator's NumPy meaning."""
    contraction.lower_quantized_product(low, ins, _HERE)


def _check(body: ScalarBody) -> None:
    """Raises `UnsupportedError` for a body that the language has no words for."""
    printer = ThreadPrinter(CodeBuffer(), 1)
    body.evaluate(printer, [printer.loaded(f"x{k}", type) for k, type in enumerate(body.parameters)])


def _launch(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem | ConvProblem,
    epilogue: Epilogue,
    strides: Sequence[Sequence[int]],
    operands: dict[str, View],
    extras: Sequence[View],
    weights: np.ndarray | None,
) -> None:
    places = tuple(tuple(int(s) for s in own) for own in strides)
    solution = low.backend.plan(Request(problem, epilogue, places, low.threads, low.options.fast_math))
    operands |= {f"e{k}": view for k, view in enumerate(extras)}
    if isinstance(problem, ConvProblem):
        operands["w"] = _packed(low, ins, problem, operands["w"], weights)
    for launch in solution.launches:
        low.launch(launch, operands, ins)


def _packed(low: Lowering, ins: Instruction, problem: ConvProblem, view: View, weights: np.ndarray | None) -> View:
    """Weights in the order that kernels read; those that are not constant are packed by a host step in every run."""
    pack = partial(pack_weights, problem)
    if weights is not None:
        return low.packed_constant(weights, ("tiled", packed_lens(problem), problem.transposed), lambda: pack(weights))
    target = low.allocate(Shape(view.type, packed_lens(problem)))

    def host(arrays: list) -> list:
        return [pack(arrays[0])]

    low.steps.append(PendingStep(None, {}, "ref::pack_weights", ins, host, [view], [target]))
    return target


_HERE = Contractions((Type.float_type, Type.double_type, Type.half_type, Type.bf16_type), _check, _launch)
