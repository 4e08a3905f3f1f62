"""Lower matrix products and convolutions, alone or fused with a prologue and an epilogue of pointwise operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.body import ScalarBody
from ...codegen.problems.convolution import ConvProblem
from ...codegen.problems.element_types import ElementTypes
from ...codegen.problems.epilogue import Epilogue, Prologue
from ...codegen.problems.fused_contraction import (
    epilogue_parameters,
    make_epilogue,
    make_prologue,
    prologue_parameters,
    weights_parameter,
)
from ...codegen.problems.gemm import BlockFormat, BlockWeights, GemmProblem, StoredBlocks
from ...codegen.tuning.request import Candidate, TuningRequest
from ...core.dim import Dim, Length, known_equal, known_in, known_less, known_less_equal
from ...core.shape import Shape, row_major_strides
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...ops.block_layouts import layout_named
from ...runtime.memory import address_of
from ...runtime.plan import Region
from .buffers import View
from .lowering import Lowering

if TYPE_CHECKING:
    from ...ops.convolution import ConvolutionBase

NO_EPILOGUE = Epilogue()
READ_IN_PLACE = 1 << 20
"""Bytes from which on weights are read where they lie with ``memory="low"``: a packed copy of less is no burden."""
PRODUCTS = ("dot", "quant_dot")
BLOCK_PRODUCTS = ("matmul_nbits",)
"""Products with constant weights quantised in blocks, of few bits an element."""
TRANSPOSED = ("convolution_backwards", "quant_convolution_backwards")
CONVOLUTIONS = ("convolution", "quant_convolution", *TRANSPOSED)


@dataclass(frozen=True)
class Contraction:
    """A contraction that is to be launched.

    Attributes:
        problem: the product or convolution.
        epilogue: pointwise operations on its result.
        operands: views by the problem's names: ``x``, ``w``, ``out``, and ``a0``, ``a1``, ... of its prologue.
        strides: strides of the epilogue's operands, in the form that solvers take.
        extras: operands of the epilogue.
        right: the right-hand side.
        weights: the right-hand side's value, if it is constant and not quantised in blocks.
        blocks: the right-hand side that is quantised in blocks.
    """

    problem: GemmProblem | ConvProblem
    epilogue: Epilogue
    strides: Sequence[Sequence[int]]
    operands: dict[str, View]
    extras: Sequence[View]
    right: Instruction
    weights: np.ndarray | None
    blocks: BlockWeights | StoredBlocks | None = None


@dataclass(frozen=True)
class ContractionSupport:
    """The contraction kernels of a target.

    Attributes:
        refused: returns why no kernel has the element types, else None. Arguments: the types of left-hand side,
            right-hand side and result, and whether the right-hand side is constant.
        check: raises `UnsupportedError` for pointwise operations that the kernels lack.
        launch: appends the steps.
        any_order: whether ``launch`` makes inputs of convolutions without prologue channels-last itself
            (`channels_last`), or takes any layout.
        line_gaps: whether ``launch`` takes convolutions with gaps between the lines of the output. For these it may
            raise `UnsupportedError`. It is also told of a readable cache line after 8-bit inputs
            (`ConvProblem.line_behind`).
        layouts: whether ``launch`` takes block-quantised weights in a layout of `ops.block_layouts`.
        in_place: whether ``launch`` has solvers of products that read constant weights where they lie.
    """

    refused: Callable[[Type, Type, Type, bool], str | None]
    check: Callable[[ScalarBody], None]
    launch: Callable[[Lowering, Instruction, Contraction], None]
    any_order: bool = False
    line_gaps: bool = False
    layouts: bool = False
    in_place: bool = False


def accepts_contraction(ins: Instruction, shape: Shape) -> bool:
    """Return whether the result can have this shape: products write contiguous columns, convolutions channels-last
    pixels."""
    core = core_of(ins)
    if core.name in (*PRODUCTS, *BLOCK_PRODUCTS):
        return known_equal(shape.lens[-1], 1) or known_equal(shape.strides[-1], 1)
    return pixel_strides(shape.lens, shape.strides) is not None and _close(shape)


def _close(shape: Shape) -> bool:
    """Return whether the channels of a pixel are contiguous."""
    return known_equal(shape.lens[1], 1) or known_equal(shape.strides[1], 1)


def chosen_solver(low: Lowering, request: TuningRequest) -> Candidate:
    """Return the solver of the tuning record, else of the cost model.

    Raises:
        UnsupportedError: no solver applies.
    """
    tuning = low.options.tuning
    if tuning is not None and low.shared is None:
        return tuning.choose(request)
    ask = low.backend.solvers.choose if tuning is None else tuning.choose
    return low.solutions.of(("choose", request), lambda: ask(request))


def note_solver(low: Lowering, ins: Instruction, request: TuningRequest, taken: Candidate) -> None:
    """Tell the tuning session which solver computes an instruction; not for symbolic plans."""
    if low.options.tuning is not None and low.shared is None:
        low.options.tuning.note_instruction(request, low.text(ins), taken)


def core_of(ins: Instruction) -> Instruction:
    """Return the contraction itself, which may be inside a ``fused_contraction``."""
    if ins.name != "fused_contraction":
        return ins
    return next(i for i in ins.module_args[0] if i.name in (*PRODUCTS, *BLOCK_PRODUCTS, *CONVOLUTIONS))


def lower_contraction(low: Lowering, ins: Instruction, support: ContractionSupport) -> None:
    """Append the steps of a product or convolution with its fused prologue and epilogue; a fallback step where there
    is no kernel."""
    core = core_of(ins)
    lens = [*core.shape.lens, *(n for i in core.inputs for n in i.shape.lens)]
    reason = "there are no elements" if any(known_in(n, 0) for n in lens) else _refused(low, ins, core, support)
    if reason is not None:
        low.host(ins, reason)
    elif core.name in (*PRODUCTS, *BLOCK_PRODUCTS):
        _lower_dot(low, ins, core, support)
    else:
        _lower_convolution(low, ins, core, support)


def _refused(low: Lowering, ins: Instruction, core: Instruction, support: ContractionSupport) -> str | None:
    a, b, out = _types(core)
    constant = all(_constant(low, i) is not None for i in _operands(low, ins, core)[0][1:])
    if core.name in BLOCK_PRODUCTS and not constant:
        return "the weights are not constant"
    return support.refused(a, b, out, constant)


def _constant(low: Lowering, ins: Instruction) -> np.ndarray | None:
    """Return the constant value of an instruction, with length 1 along symbolic axes along which the value repeats."""
    view = low.values.get(ins)
    if not isinstance(view, View) or view.buffer.region is not Region.CONSTANT or not view.shape.symbolic:
        return low.constant_value(ins)
    once = [1 if isinstance(n, Dim) and known_in(s, 0) else n for n, s in zip(view.lens, view.strides)]
    return low.constant_of(view.with_shape(Shape(view.type, once, view.strides)))


def _types(core: Instruction) -> tuple[Type, Type, Type]:
    """Return the element types of left-hand side, right-hand side and result. Block-quantised weights count as the
    left-hand side's type."""
    a, out = core.inputs[0].shape.type, core.shape.type
    return a, a if core.name in BLOCK_PRODUCTS else core.inputs[1].shape.type, out


def _element_types(core: Instruction) -> ElementTypes:
    a, b, out = (type.dtype_name for type in _types(core))
    return ElementTypes(a, b, out, out)


def _operands(low: Lowering, ins: Instruction, core: Instruction) -> tuple[list[Instruction], list[View]]:
    """Return the contraction's operands, and the views that only the epilogue reads."""
    if ins is core:
        return list(ins.inputs), []
    body = ins.module_args[0]
    outer = dict(zip(body.parameters(), ins.inputs))
    extras = [low.values[outer[p]] for p in epilogue_parameters(body, core)]
    right = [outer[weights_parameter(core)], *(outer[p] for p in core.inputs[2:])]
    return [outer[prologue_parameters(body, core)[0]], *right], extras


def _prologue(
    low: Lowering, ins: Instruction, core: Instruction, support: ContractionSupport
) -> tuple[Prologue | None, list[View]]:
    """Return the prologue of a convolution, and the views that only the prologue reads.

    Raises:
        UnsupportedError: kernels lack one of its operations.
    """
    if ins is core:
        return None, []
    body = ins.module_args[0]
    outer = dict(zip(body.parameters(), ins.inputs))
    views, places = [], []
    for parameter in prologue_parameters(body, core)[1]:
        view = low.values[outer[parameter]]
        view = view.with_shape(Shape(view.type, view.lens[:2], view.strides[:2]))  # equal for all pixels
        if view.lens[1] > 1 and not known_in(view.strides[1], 0, 1):
            view = low.materialized(view, row_major_strides(view.lens), ins)
        image = 0 if known_less_equal(view.lens[0], 1) else view.strides[0]
        views.append(view)
        places.append(("per_k" if view.lens[1] > 1 and not known_in(view.strides[1], 0) else "scalar", (image,)))
    prologue = make_prologue(body, core, places, low.options.fast_math)
    if prologue is not None:
        support.check(prologue.body)
    return prologue, views


def _epilogue(
    low: Lowering, ins: Instruction, core: Instruction, access: Sequence[str], support: ContractionSupport
) -> Epilogue:
    """Return the epilogue of a contraction.

    Raises:
        UnsupportedError: kernels lack one of its operations.
    """
    if ins is core:
        return NO_EPILOGUE
    epilogue = make_epilogue(ins.module_args[0], core, access, low.options.fast_math)
    if epilogue.body is not None:
        support.check(epilogue.body)
    return epilogue


def _lower_dot(low: Lowering, ins: Instruction, core: Instruction, support: ContractionSupport) -> None:
    (a_ins, b_ins, *more), extras = _operands(low, ins, core)
    a, b = low.values[a_ins], low.values[b_ins]
    m, k = a.lens[-2:]
    n, b_strides = core.shape.lens[-1], b.strides
    weights, blocks, form = _constant(low, b_ins), None, None
    if support.in_place and low.options.memory == "low" and weights is not None and weights.nbytes >= READ_IN_PLACE:
        weights = None
    if core.name in BLOCK_PRODUCTS:
        op: Any = core.op
        weights, blocks = None, _block_weights(low, op.layout, [b_ins, *more])
        bits, offsets = op.bits, bool(op.layout) and layout_named(op.layout).has_offsets
        if isinstance(blocks, StoredBlocks) and not support.layouts:
            identity = address_of if low.shared is None else low.shared.identity
            question = ("plain", op.layout, *((identity(part), part.shape) for part in blocks.parts))
            blocks = low.solutions.of(question, blocks.plain)
            bits = 4 if bits == 4 else 8
        points = isinstance(blocks, BlockWeights) and blocks.zero_points is not None
        form = BlockFormat(bits, op.block_size, points, op.accuracy_level == 4, offsets=offsets)
        b_strides = (*(0 for _ in a.lens[:-2]), n, 1)
    elif weights is not None:
        k = b.lens[-2]  # a number, whatever expression the shape rule found to be equal
    target = low.output(ins)
    prepared, access, strides = [], [], []
    for view in extras:
        view, kind = _row_operand(low, ins, view)
        prepared.append(view)
        access.append(kind)
        strides.append(view.strides[:-1] if kind in ("full", "per_m") else ())
    problem = GemmProblem(
        m=m, n=n, k=k, batch=a.lens[:-2], a_strides=a.strides, b_strides=b_strides, out_strides=target.strides[:-1],
        types=_element_types(core), b_constant=weights is not None or form is not None,
        fast_math=low.options.fast_math, blocks=form,
    )  # fmt: skip
    epilogue = _epilogue(low, ins, core, access, support)
    operands = {"x": a, "w": b, "out": target}
    support.launch(low, ins, Contraction(problem, epilogue, strides, operands, prepared, b_ins, weights, blocks))


def _block_weights(low: Lowering, layout: str, inputs: Sequence[Instruction]) -> BlockWeights | StoredBlocks:
    """Return the constants of a product with block-quantised weights."""
    if layout:
        parts = tuple(part for i in inputs if (part := low.constant_value(i)) is not None)
        return StoredBlocks(layout, parts)
    codes, scales, *points = (low.constant_value(i) for i in inputs)
    assert codes is not None and scales is not None
    return BlockWeights(codes, scales, points[0] if points else None)


def _row_operand(low: Lowering, ins: Instruction, view: View) -> tuple[View, str]:
    """Return an epilogue operand of a product, copied if its columns are strided, and its access pattern."""
    columns = view.strides[-1]
    if known_less_equal(view.lens[-1], 1):
        columns = 1 if any(_moves(view.strides[:-1])) else 0
    if not known_in(columns, 0, 1):
        view = low.materialized(view, row_major_strides(view.lens), ins)
        columns = 1
    rows = any(_moves(view.strides[:-1], view.lens[:-1]))
    if columns:
        return view, "full" if rows else "per_n"
    return view, "per_m" if rows else "scalar"


def _moves(strides: Sequence[Length], lens: Sequence[Length] = ()) -> list[bool]:
    """Return for each stride whether it leads to another element; for a symbolic stride, whether it may."""
    return [not known_in(s, 0) and not (k < len(lens) and known_less_equal(lens[k], 1)) for k, s in enumerate(strides)]


def _lower_convolution(low: Lowering, ins: Instruction, core: Instruction, support: ContractionSupport) -> None:
    (x_ins, w_ins), extras = _operands(low, ins, core)
    prologue, before = _prologue(low, ins, core, support)
    x = low.values[x_ins]
    if prologue or not support.any_order:
        x = channels_last(low, ins, x)
    transposed = core.name in TRANSPOSED
    if prologue or (transposed and core.name != "convolution_backwards"):
        x = _evenly_spaced(low, ins, x)
    op: Any = core.op
    rank = len(x.lens) - 2
    padding = both_paddings(op, x.lens, w_ins.shape.lens)
    weights = low.constant_value(w_ins)
    declared = low.output(ins)
    pixels = pixel_strides(declared.lens, declared.strides)
    close = _close(declared.shape)
    lines = line_strides(declared.lens, declared.strides) if support.line_gaps and pixels is None and close else None
    direct = pixels is not None and close
    target = declared if direct else low.allocate(Shape(declared.type, declared.lens, _nhwc_strides(declared.lens)))
    image, pixel = pixel_strides(target.lens, target.strides) or (0, 0)
    prepared, access, strides = [], [], []
    for view in extras:
        view, kind, own = _pixel_operand(low, ins, view)
        prepared.append(view)
        access.append(kind)
        strides.append(own)
    problem = ConvProblem(
        batch=x.lens[0], in_channels=x.lens[1], out_channels=target.lens[1], in_lens=x.lens[2:],
        kernel=w_ins.shape.lens[2:], stride=op.stride, dilation=op.dilation, pads_begin=padding[:rank],
        pads_end=padding[rank:], groups=op.group, types=_element_types(core),
        x_strides=(x.strides[0], *x.strides[2:]), out_strides=(image, pixel), transposed=transposed,
        output_padding=output_padding(op, x.lens, w_ins.shape.lens, target.lens) if transposed else (),
        fast_math=low.options.fast_math, prologue=prologue,
        line_behind=support.line_gaps and x.type.size == 1 and not any(padding) and x.line_behind,
    )  # fmt: skip
    epilogue = _epilogue(low, ins, core, access, support)
    operands = {"x": x, "w": low.values[w_ins], "out": target, **{f"a{k}": view for k, view in enumerate(before)}}
    contraction = Contraction(problem, epilogue, strides, operands, prepared, w_ins, weights)
    if lines is not None:
        apart = replace(
            contraction, problem=replace(problem, out_strides=lines), operands={**operands, "out": declared}
        )
        with contextlib.suppress(UnsupportedError):  # a solver may not support gaps between lines
            support.launch(low, ins, apart)
            return
    support.launch(low, ins, contraction)
    if target is not declared:
        low.copy(target, declared, ins)


def both_paddings(op: ConvolutionBase, lens: Sequence[int], weights: Sequence[int]) -> tuple[int, ...]:
    """Return the paddings of a convolution: before each spatial dimension, then after each."""
    before, after = zip(*op.pads(lens[2:], weights[2:]))
    return (*before, *after)


def output_padding(
    op: ConvolutionBase, x: Sequence[int], weights: Sequence[int], out: Sequence[int]
) -> tuple[int, ...]:
    """Return the extra rows at the end of a transposed convolution's result, from the lengths that its shape rule
    gave."""
    extra, rank = [], len(x) - 2
    padding = both_paddings(op, x, weights)
    for d in range(rank):
        reach = op.dilation[d] * (weights[2 + d] - 1) + 1
        natural = (x[2 + d] - 1) * op.stride[d] + reach - padding[d] - padding[rank + d]
        extra.append(out[2 + d] - natural)
    return tuple(extra)


def channels_last(low: Lowering, ins: Instruction, x: View) -> View:
    """Return a convolution's input with contiguous channels: itself, or a copy."""
    if _close(x.shape):
        return x
    return low.materialized(x, _nhwc_strides(x.lens), ins)


def _evenly_spaced(low: Lowering, ins: Instruction, x: View) -> View:
    """Return an input whose pixels have one constant stride, and whose strides say so for axes of length 1 too."""
    pixels = pixel_strides(x.lens, x.strides)
    if pixels is None:
        x = low.materialized(x, _nhwc_strides(x.lens), ins)
        pixels = pixel_strides(x.lens, x.strides)
        assert pixels is not None
    image, pixel = pixels
    spatial = (pixel * s for s in row_major_strides(x.lens[2:]))
    return x.with_shape(Shape(x.type, x.lens, (image, 1, *spatial)))


def _nhwc_strides(lens: Sequence[int]) -> tuple[int, ...]:
    order = (0, *range(2, len(lens)), 1)
    return Shape.from_permutation(Type.float_type, tuple(lens), order).strides


def pixel_strides(lens: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Return the strides of image and pixel if the spatial axes can be walked as a single axis; else None."""
    pixel = 0
    expected = -1
    for n, s in zip(reversed(lens[2:]), reversed(strides[2:])):
        if known_equal(n, 1):
            continue
        if known_less(expected, 0):
            pixel = s
        elif not known_equal(s, expected):
            return None
        expected = s * n
    return (0 if known_less_equal(lens[0], 1) else strides[0]), pixel


def line_strides(lens: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the strides of image, line and pixel if there are two spatial axes; else None."""
    if len(lens) != 4:
        return None
    return (0 if known_less_equal(lens[0], 1) else strides[0]), strides[2], strides[3]


def _pixel_operand(low: Lowering, ins: Instruction, view: View) -> tuple[View, str, tuple[int, ...]]:
    """Return an epilogue operand of a convolution (copied if it has no constant pixel stride), its access pattern and
    strides."""
    pixels = pixel_strides(view.lens, view.strides)
    channel = view.strides[1] if view.lens[1] > 1 else (1 if pixels and any(_moves(pixels)) else 0)
    if pixels is None or not known_in(channel, 0, 1):
        view = low.materialized(view, _nhwc_strides(view.lens), ins)
        pixels = pixel_strides(view.lens, view.strides)
        assert pixels is not None
        channel = 1
    moving = any(_moves(pixels))
    if channel:
        return view, "full" if moving else "per_n", pixels if moving else ()
    return view, "per_m" if moving else "scalar", pixels if moving else ()
