"""Matrix products and convolutions, alone or with pointwise operations around them as a prologue and an epilogue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd

import numpy as np

from ....codegen.body import ScalarBody
from ....codegen.gpu.contraction.fma import fma_refusal
from ....codegen.gpu.contraction.placed import VECTOR_BYTES, PlacedRequest
from ....codegen.gpu.contraction.ring import pack_columns
from ....codegen.gpu.contraction.tensor import refusal
from ....codegen.gpu.contraction.tiled import pack_weights, packed_lens
from ....codegen.gpu.data.channels import filled_channels_launch
from ....codegen.gpu.printer import ThreadPrinter
from ....codegen.printer import CodeBuffer
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.element_types import ITEMSIZE
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.gemm import GemmProblem
from ....codegen.tuning.request import Request
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ...lowering import contraction
from ...lowering.buffers import View
from ...lowering.contraction import CONVOLUTIONS, PRODUCTS, Contraction, Contractions, accepts_contraction
from ...lowering.lowering import Lowering
from .table import lowering

FLOATS = (Type.float_type, Type.double_type, Type.half_type, Type.bf16_type)
"""Element types of contractions that have kernels, with pointwise work after them."""
MOST_FILLED = 4
"""How often as much is multiplied at most where channels are filled up: tensor cores are as much faster than what
gathers single elements, and more. For images of 3 channels it is 8/3. No figures kept of more."""


@lowering(*PRODUCTS, *CONVOLUTIONS, "fused_contraction", accepts=accepts_contraction)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """One launch, with the pointwise operations around the contraction compiled in."""
    contraction.lower_contraction(low, ins, _HERE)


def _refused(a: Type, b: Type, out: Type, constant: bool) -> str | None:
    """Why kernels do not have the types, which are one float."""
    if out in FLOATS and a is b is out:
        return None
    return f"no kernel is for these element types: {a.name} {b.name} {out.name}"


def _check(body: ScalarBody) -> None:
    """Raises `UnsupportedError` for a body that the language has no words for."""
    printer = ThreadPrinter(CodeBuffer(), 1)
    body.evaluate(printer, [printer.loaded(f"x{k}", type) for k, type in enumerate(body.parameters)])


def _launch(low: Lowering, ins: Instruction, what: Contraction) -> None:
    problem, operands, weights = what.problem, what.operands, what.weights
    if isinstance(problem, ConvProblem) and weights is not None and _is_narrow(low, problem):
        problem, operands["x"] = _in_whole_vectors(low, ins, problem, operands["x"])
    places = tuple(tuple(int(s) for s in own) for own in what.strides)
    if isinstance(problem, GemmProblem) and weights is not None:
        operands["w"] = low.packed_constant(weights, "columns", lambda: _columns(weights))
        problem = replace(problem, b_strides=(*operands["w"].strides[:-2], 1, problem.k))
    for name in ("x", "w"):
        operands[name] = _aligned(low, ins, operands[name])
    request = Request(problem, what.epilogue, places, low.threads, low.options.fast_math)
    offsets = [operands["out"].byte_offset, *(view.byte_offset for view in what.extras)]
    placed = PlacedRequest(request, gcd(VECTOR_BYTES, *offsets), low.options.precision, weights is not None)
    chosen = contraction.chosen_solver(low, placed)
    solution = low.solutions.of(
        (chosen.solver.name, chosen.blocking, placed), lambda: chosen.solver.plan(placed, chosen.blocking)
    )
    operands |= {f"e{k}": view for k, view in enumerate(what.extras)}
    if isinstance(problem, ConvProblem):
        operands["w"] = _packed(low, ins, problem, chosen.solver.columns, operands["w"], weights)
    if solution.scratch:
        operands["scratch"] = low.allocate(Shape(Type.uint8_type, (solution.scratch,)))
    for launch in solution.launches:
        low.launch(launch, operands, ins)
    contraction.note_solver(low, ins, placed, chosen)


def _is_narrow(low: Lowering, problem: ConvProblem) -> bool:
    """Whether operands of a convolution can come in vectors if its few channels are filled up to whole ones."""
    filled = _filled(problem)
    if filled is problem or problem.groups > 1 or problem.transposed or problem.prologue is not None:
        return False
    if filled.in_channels > MOST_FILLED * problem.in_channels:
        return False
    placed = PlacedRequest(Request(filled, Epilogue(), (), 1, False), precision=low.options.precision)
    return not (refusal(placed) and fma_refusal(placed))


def _filled(problem: ConvProblem) -> ConvProblem:
    """The problem itself if its channels are whole vectors, else the one that they are filled up for."""
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    channels = -(-problem.in_channels // lanes) * lanes
    whole = problem.in_channels == channels
    return problem if whole else replace(problem, in_channels=channels, x_strides=())


def _in_whole_vectors(low: Lowering, ins: Instruction, problem: ConvProblem, x: View) -> tuple[ConvProblem, View]:
    """A convolution and its input with zeros in channels besides its own, up to whole vectors."""
    filled = _filled(problem)
    lens = (x.lens[0], filled.in_channels, *x.lens[2:])
    wide = low.allocate(Shape.from_permutation(x.type, lens, (0, *range(2, len(lens)), 1)))
    low.launch(filled_channels_launch(x.tensor, wide.tensor, low.origin(ins)), {"x": x, "out": wide}, ins)
    return filled, wide


def _pack(problem: ConvProblem, columns: bool, weights: np.ndarray) -> np.ndarray:
    """Weights in the order that kernels read, zeros for channels that they do not have."""
    missing = problem.weight_lens[1] - weights.shape[1]
    whole = np.pad(weights, [(0, missing if axis == 1 else 0) for axis in range(weights.ndim)]) if missing else weights
    return (pack_columns if columns else pack_weights)(problem, whole)


def _columns(weights: np.ndarray) -> np.ndarray:
    """A constant right operand with its columns contiguous; matrices that repeat are kept once."""
    once = weights[tuple(slice(1 if s == 0 else None) for s in weights.strides[:-2])]
    kept = np.ascontiguousarray(once.swapaxes(-1, -2))
    return np.broadcast_to(kept, (*weights.shape[:-2], *kept.shape[-2:]))


def _aligned(low: Lowering, ins: Instruction, view: View) -> View:
    """The tensor itself if it begins where vectors do, else a copy that does, with the same strides."""
    if view.byte_offset % VECTOR_BYTES == 0:
        return view
    if view.shape.broadcasted or view.shape.element_space > 2 * view.shape.elements:
        raise UnsupportedError("an operand that begins between vectors and repeats elements")
    copied = low.allocate(view.shape)
    low.copy(view, copied, ins)
    return copied


def _packed(
    low: Lowering, ins: Instruction, problem: ConvProblem, columns: bool, view: View, weights: np.ndarray | None
) -> View:
    """Weights in the order that kernels read; those that are not constant are copied in every run."""
    pack = partial(_pack, problem, columns)
    how = (columns, problem.groups, problem.taps, problem.transposed, problem.in_channels)
    if weights is not None:
        return low.packed_constant(weights, how, lambda: np.ascontiguousarray(pack(weights)))
    groups, taps, inputs, outputs = packed_lens(problem)
    lens = (groups, outputs, taps, inputs) if columns else (groups, taps, inputs, outputs)
    packed = view.aliased(pack)
    if packed is None:
        packed = low.materialized(view, row_major_strides(view.lens), ins).aliased(pack)
    assert packed is not None
    return low.materialized(packed, row_major_strides(lens), ins)


_HERE = Contractions(_refused, _check, _launch)
