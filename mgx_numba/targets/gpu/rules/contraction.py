"""Lower matrix products and convolutions, alone or fused with a prologue and an epilogue of pointwise operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import prod

from ....codegen.alternatives import has_lengths, only_where
from ....codegen.body import ScalarBody
from ....codegen.gpu.contraction.gemv import gemv_refusal
from ....codegen.gpu.contraction.gpu_contraction import (
    LINE_BYTES,
    VECTOR_BYTES,
    GpuContraction,
    line_padded,
)
from ....codegen.gpu.contraction.im2row import ChannelPadding, channel_padding
from ....codegen.gpu.contraction.solvers import SOLVER_SET, SOLVERS, Tiles, in_vectors
from ....codegen.gpu.contraction.symbolic_lengths import solve_open
from ....codegen.gpu.contraction.wgmma_operands import PIECE
from ....codegen.gpu.data.channels import channel_padding_launch
from ....codegen.gpu.driver.device import known_architecture
from ....codegen.gpu.machine import machine
from ....codegen.gpu.printer import ThreadPrinter
from ....codegen.gpu.products import product_of
from ....codegen.launch import Solution
from ....codegen.printer import CodeBuffer
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.element_types import ITEMSIZE, ElementTypes
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.fused_contraction import reading_second_half
from ....codegen.problems.gemm import GemmProblem
from ....codegen.tuning.request import Candidate, Request, least_bytes
from ....core.dim import (
    Length,
    known_equal,
    known_in,
    known_same,
)
from ....core.integers import plain_int
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.convolution import Convolution
from ...lowering import contraction_problem
from ...lowering.buffers import View
from ...lowering.contraction_problem import (
    BLOCK_PRODUCTS,
    CONVOLUTIONS,
    PRODUCTS,
    Contraction,
    ContractionSupport,
    accepts_contraction,
)
from ...lowering.lowering import Lowering
from .block_products import joins_blocks_of, with_blocks, with_open_blocks
from .contraction_weights import (
    column_order,
    filter_packing,
    matrix_strides,
    packed_columns,
    packed_depth,
    packed_filters,
    repacked_filters,
)
from .product_rows import aligned, alignment, planes_as_rows
from .table import lowering

COPIED_SINGLY, COPIED, COPYING = 0.55, 1.0, 2000
"""Part of the bandwidth that copies into whole rows reach, of rows with an odd number of elements and of others; and
cycles of their launch. From 80 products of `bench.gpu_random` on an H200 with copies of 40 KB to 300 MB."""
JOINED_BYTES = 1 << 20
"""Bytes of copies that are so small that they become one launch (`joined_launches`)."""
CLEAR_GAIN = 0.85
"""Estimated part of the time from which rows that kernels could read are copied into whole lines, and from which groups
are joined."""
MOST_JOINED = 256
"""Most input channels of joined groups: more multiply more zeros than they fill instructions (64 channels are whole
lines of 128 bytes in float16)."""
FLOATS = (Type.float_type, Type.double_type, Type.half_type, Type.bf16_type)
"""Floating-point types for which contractions have kernels with an epilogue."""


@lowering(*PRODUCTS, *BLOCK_PRODUCTS, *CONVOLUTIONS, "fused_contraction", accepts=accepts_contraction)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """Append the contraction with its fused prologue and epilogue."""
    contraction_problem.lower_contraction(low, ins, GPU_SUPPORT)


def _refused(a: Type, b: Type, out: Type, constant: bool) -> str | None:
    """Return why no kernel has these types; None if a kernel does: a single float type, int32, or products of 8-bit
    types."""
    if out in (*FLOATS, Type.int32_type) and a is b is out:
        return None
    names = (t.dtype_name for t in (a, b, out, out))
    if product_of(ElementTypes(*names)) is not None:
        return None
    return f"no kernel is for these element types: {a.name} {b.name} {out.name}"


def joins_halves(precision: str, product: Instruction) -> bool:
    """Return whether the quickest kernel of a product can combine a column of the first half of its result with one of
    the second.

    See `Capabilities.joins_halves`; ``precision`` is as in `GpuContraction`.
    """
    if product.name in BLOCK_PRODUCTS:
        return joins_blocks_of(product, product.shape.lens[-1])
    a, b = (i.shape for i in product.inputs)
    (m, k), n, name = a.lens[-2:], b.lens[-1], product.shape.type.dtype_name
    if a.symbolic or b.symbolic:  # either column order suits only some lengths
        return False
    if 0 in product.shape.lens or k == 0 or product.shape.type not in FLOATS:
        return False
    right = (*(0 for _ in a.lens[:-2]), 1, k)
    problem = GemmProblem(m, n, k, a.lens[:-2], b_strides=right, types=ElementTypes(name, name, name, name))
    problem, _ = planes_as_rows(problem, ())
    contraction = GpuContraction(Request(problem, Epilogue(), (), 1, False), constant=True, precision=precision)
    quickest = SOLVER_SET.own_candidates(contraction)[0].solver.name
    return quickest == "few_rows" or (quickest == "warpgroup" and n % (2 * PIECE) == 0)


def joins_products(precision: str, product: Instruction) -> bool:
    """Return whether two products of one input and of one shape should be joined, for kernels that combine both halves
    of the result (`joins_halves`).

    See `Capabilities.joins_products`; ``precision`` is as in `GpuContraction`.
    """
    columns, type = 2 * product.shape.lens[-1], product.shape.type
    if product.name in BLOCK_PRODUCTS:
        return joins_blocks_of(product, columns)
    arch = known_architecture()
    narrow = type in (Type.half_type, Type.bf16_type) or (type is Type.float_type and precision == "medium")
    return arch is not None and arch.warpgroups and narrow and columns % (2 * PIECE) == 0


def joined_groups(precision: str, convolution: Instruction) -> int:
    """Return how many neighbouring groups of a convolution should be one, see `Capabilities.joined_groups`.

    8 images of 56 x 56, 128 channels in 32 groups, take 50 us by 3 x 3 on an H200; in two groups some 10.
    """
    x, w = (i.shape for i in convolution.inputs)
    op = convolution.operator(Convolution)
    if x.symbolic or w.symbolic or x.type not in FLOATS or w.lens[1] == 1 or 0 in convolution.shape.lens:
        return 1
    pads, name = op.pads(x.lens[2:], w.lens[2:]), x.type.dtype_name

    def seconds(factor: int) -> float:
        problem = ConvProblem(
            x.lens[0], x.lens[1], w.lens[0], x.lens[2:], w.lens[2:], op.stride, op.dilation,
            tuple(begin for begin, _ in pads), tuple(end for _, end in pads), op.group // factor,
            ElementTypes(name, name, name, name),
        )  # fmt: skip
        contraction = GpuContraction(Request(problem, Epilogue(), (), 1, True), constant=True, precision=precision)
        found = SOLVER_SET.own_candidates(contraction)
        return found[0].solver.estimate(contraction) if found else float("inf")

    factors = [n for n in range(2, op.group + 1) if op.group % n == 0 and n * w.lens[1] <= MOST_JOINED]
    best = min(factors, key=seconds, default=1)
    return best if best > 1 and seconds(best) < CLEAR_GAIN * seconds(1) else 1


def _check(body: ScalarBody) -> None:
    """Raise `UnsupportedError` for a scalar body with an operation that the kernel language lacks."""
    printer = ThreadPrinter(CodeBuffer(), 1)
    body.evaluate(printer, [printer.loaded(f"x{k}", type) for k, type in enumerate(body.parameters)])


def _launch(low: Lowering, ins: Instruction, fused: Contraction) -> None:
    problem, operands, weights = fused.problem, fused.operands, fused.weights
    filled = None
    if isinstance(problem, ConvProblem):
        problem = _single_channels(low, ins, problem, operands)
    if isinstance(problem, ConvProblem) and weights is not None:
        filled = _images_of(low, problem, operands["x"])
    if filled is not None:
        problem = filled.problem
        operands["x"] = _filled_up(low, ins, filled, operands["x"])
    elif isinstance(problem, ConvProblem) and problem.prologue is None:
        x = operands["x"] = contraction_problem.channels_last(low, ins, operands["x"])
        problem = replace(problem, x_strides=(x.strides[0], *x.strides[2:]))
    places = tuple(tuple(plain_int(s) for s in own) for own in fused.strides)
    gated = isinstance(problem, GemmProblem) and fused.epilogue.gated
    if isinstance(problem, GemmProblem) and gated and not known_same(problem.a_strides[-2:], (problem.k, 1)):
        x = operands["x"] = low.materialized(operands["x"], row_major_strides(operands["x"].lens), ins)
        problem = replace(problem, a_strides=x.strides)
    alone: Length = 1
    if isinstance(problem, GemmProblem) and fused.blocks is not None and has_lengths((problem, places)):
        problem, places, alone = with_open_blocks(low, ins, problem, fused, places, operands)
    elif isinstance(problem, GemmProblem) and fused.blocks is not None:
        problem = with_blocks(low, ins, problem, fused, places, operands)
    if isinstance(problem, GemmProblem) and weights is not None:
        depth = packed_depth(problem, low.options.precision)
        problem = replace(problem, b_strides=(*matrix_strides(weights, depth), 1, depth))
    if isinstance(problem, GemmProblem) and gated and fused.blocks is not None and problem.blocks is None:
        problem, places, fused = _halves_apart(low, ins, problem, places, fused, operands, alone)
    _launch_with(low, ins, problem, places, fused, operands, filled, alone)


def _halves_apart(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    places: tuple[tuple[int, ...], ...],
    fused: Contraction,
    operands: dict[str, View],
    where: Length,
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...], Contraction]:
    """Append the product with the second half of unpacked columns under a condition.

    Returns:
        the product with the first half, whose epilogue reads the result of the other one.
    """
    half, whole = replace(problem, n=problem.n // 2), operands["w"]
    lens = (*problem.batch, problem.m, half.n)
    strides = row_major_strides(lens)
    stored = low.allocate(Shape(operands["out"].type, lens))
    first, second = (
        whole.with_shape(Shape(whole.type, (half.n, whole.lens[1])), k * half.n * whole.lens[1]) for k in (0, 1)
    )
    alone = replace(fused, epilogue=Epilogue(), extras=(), strides=())
    other = replace(half, out_strides=strides[:-1])
    _launch_with(low, ins, other, (), alone, {**operands, "w": second, "out": stored}, None, where)
    operands["w"] = first
    epilogue = reading_second_half(fused.epilogue, problem.types.out)
    return half, (*places, strides[:-1]), replace(fused, epilogue=epilogue, extras=(*fused.extras, stored))


def _launch_with(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem | ConvProblem,
    places: tuple[tuple[int, ...], ...],
    fused: Contraction,
    operands: dict[str, View],
    filled: ChannelPadding | None,
    alone: Length,
) -> None:
    """Append a contraction that runs under the condition ``alone``; ``places`` has the strides of each operand of the
    epilogue."""
    weights = fused.weights
    if isinstance(problem, GemmProblem):
        problem = _in_whole_rows(low, ins, problem, fused, places, operands)
    for name in ("x", "w") if weights is None else ("x",):
        copied = aligned(low, ins, operands[name])
        if copied.strides != operands[name].strides:
            problem = _with_strides(problem, name, copied.strides)
        operands[name] = copied
    if isinstance(problem, GemmProblem):
        problem, places = planes_as_rows(problem, places)
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    constant = weights is not None
    contraction = GpuContraction(
        request,
        alignment(fused, operands),
        low.options.precision,
        constant,
        constant and low.shared is None,
        0 if filled is None else filled.first_channel,
    )
    operands |= {f"e{k}": view for k, view in enumerate(fused.extras)}
    if has_lengths(contraction):
        parts, condition = low.solutions.of(("open", contraction, alone), lambda: solve_open(contraction, alone))
        low.require(condition)
        for part in parts:
            solution = only_where(alone, part.solution)
            _append(low, ins, fused, contraction, filled, part.candidate, solution, operands)
        return
    chosen, solution = _solved(low, contraction)
    _append(low, ins, fused, contraction, filled, chosen, solution, operands)
    contraction_problem.note_solver(low, ins, contraction, chosen)


def _with_strides(problem: GemmProblem | ConvProblem, name: str, strides: Sequence[int]) -> GemmProblem | ConvProblem:
    """Return the problem with other strides of the operand ``x`` or ``w``."""
    if isinstance(problem, ConvProblem):
        return replace(problem, x_strides=(strides[0], *strides[2:])) if name == "x" else problem
    own = tuple(plain_int(s) for s in strides)
    own = (*(0,) * (len(problem.batch) + 2 - len(own)), *own)
    return replace(problem, a_strides=own) if name == "x" else replace(problem, b_strides=own)


def _append(
    low: Lowering,
    ins: Instruction,
    fused: Contraction,
    contraction: GpuContraction,
    filled: ChannelPadding | None,
    chosen: Candidate,
    solution: Solution,
    operands: dict[str, View],
) -> None:
    """Append a solution's launches, with the weights packed in the order that the launches read."""
    problem, constant = contraction.problem, fused.weights is not None
    operands = dict(operands)
    depth = problem.b_strides[-1] if isinstance(problem, GemmProblem) else 0
    if isinstance(problem, ConvProblem):
        order = chosen.solver.order
        if constant:
            how = filter_packing(problem, order, filled, solution)
            made = partial(packed_filters, low, problem, order, filled, solution)
            operands["w"] = low.derived(fused.right, made, how)
        else:
            operands["w"] = repacked_filters(low, ins, problem, order, operands["w"])
    elif fused.weights is not None and low.values[fused.right].shape.symbolic:  # broadcast along symbolic axes
        operands["w"] = packed_columns(low, solution, depth, fused.weights)
    elif constant:
        operands["w"] = low.derived(
            fused.right, partial(packed_columns, low, solution, depth), column_order(solution, depth)
        )
    if not known_equal(solution.scratch, 0):
        operands["scratch"] = low.allocate(Shape(Type.uint8_type, (solution.scratch,)))
    for launch in solution.launches:
        if filled is not None and launch.flops:
            launch = replace(launch, flops=fused.problem.flops, bytes=least_bytes(fused.problem))
        low.launch(launch, operands, ins)


def _solved(low: Lowering, contraction: GpuContraction) -> tuple[Candidate, Solution]:
    """Return the chosen solver and its launches. Symbolic plans call no libraries, whose calls are for fixed
    lengths."""
    chosen = contraction_problem.chosen_solver(low, contraction)
    if low.shared is not None and chosen.solver not in SOLVERS:
        chosen = SOLVER_SET.own_candidates(contraction)[0]
    tiling = chosen.blocking or chosen.solver.chosen(contraction)
    key = (chosen.solver.name, tiling, contraction)
    return chosen, low.solutions.of(key, lambda: chosen.solver.plan(contraction, tiling))


def _single_channels(low: Lowering, ins: Instruction, problem: ConvProblem, operands: dict[str, View]) -> ConvProblem:
    """Return a convolution of single channels to several as a depthwise one, of a copy with each channel repeated.

    Other kernels compute such groups without vectors: 8 images of 16 x 16, 512 channels to 1024 by 3 x 3 at stride 2,
    take 270 us on an H200.
    """
    x, many = operands["x"], problem.group_out
    single = problem.group_in == 1 and problem.groups > 1
    if not single or many == 1 or problem.transposed or problem.prologue is not None:
        return problem
    lens = (*x.lens[:2], many, *x.lens[2:])
    repeated = x.with_shape(Shape(x.type, lens, (*x.strides[:2], 0, *x.strides[2:])))
    rank = len(lens)
    copied = low.allocate(Shape.from_permutation(x.type, lens, (0, *range(3, rank), 1, 2)))
    low.copy(repeated, copied, ins)
    strides = (copied.strides[0], 1, *copied.strides[3:])
    channels = problem.in_channels * many
    operands["x"] = copied.with_shape(Shape(x.type, (x.lens[0], channels, *x.lens[2:]), strides))
    return replace(problem, in_channels=channels, groups=channels, x_strides=(strides[0], *strides[2:]))


def _images_of(low: Lowering, problem: ConvProblem, x: View) -> ChannelPadding | None:
    """Return the copy of the images, with aligned channel vectors, from which a convolution should be computed; None
    for no copy.

    There is none if no copy lets kernels read vectors. Nor is there if the convolution, of the input or of its
    channels-last copy, already is a product of few rows.
    """

    def contraction(problem: ConvProblem, first_channel: int = 0) -> GpuContraction:
        request = Request(problem, Epilogue(), (), 1, False)
        return GpuContraction(request, precision=low.options.precision, constant=True, first_channel=first_channel)

    last = problem
    if not known_equal(x.lens[1], 1) and not known_in(x.strides[1], 1):
        lens = (problem.batch, *problem.in_lens, problem.in_channels)
        last = replace(problem, x_strides=row_major_strides(lens)[:-1])
    if not has_lengths(last) and not gemv_refusal(contraction(last)):
        return None
    aligned = problem.in_channels % (VECTOR_BYTES // x.type.size) == 0
    if aligned and has_lengths(last):
        return None
    found = [f for f in channel_padding(problem) if in_vectors(contraction(f.problem, f.first_channel))]
    if not found or has_lengths(last):
        return found[0] if found else None
    filled, direct = found[0], SOLVER_SET.own_candidates(contraction(last))[0]
    copied = x.shape.bytes + prod(filled.lens) * x.type.size
    seconds = copied / (COPIED_SINGLY * machine().bandwidth) + COPYING / machine().clock
    whole = contraction(filled.problem, filled.first_channel)
    seconds += SOLVER_SET.own_candidates(whole)[0].solver.estimate(whole)
    beside = isinstance(direct.solver, Tiles)  # which would leave the tensor cores
    return filled if beside or seconds < direct.solver.estimate(contraction(last)) else None


def _filled_up(low: Lowering, ins: Instruction, filled: ChannelPadding, x: View) -> View:
    """Append the copy that makes the images with aligned channel vectors, and return them."""
    lens = filled.lens
    out = low.allocate(Shape.from_permutation(x.type, lens, (0, *range(2, len(lens)), 1)))
    how = filled.channels, filled.before, filled.step, filled.block, filled.taken
    launch = channel_padding_launch(x.tensor, out.tensor, *how, low.origin(ins))
    low.launch(launch, {"x": x, "out": out}, ins)
    return out


def _in_whole_rows(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem,
    fused: Contraction,
    places: tuple[tuple[int, ...], ...],
    operands: dict[str, View],
) -> GemmProblem:
    """Return the product with operands copied into rows of whole lines or vectors, if kernels gain more than copies
    take.

    TMA reads no other rows than whole vectors, and rows of whole lines two to three times as fast as others.
    """
    if problem.prologue is not None or product_of(problem.types) is None or has_lengths((problem, places)):
        return problem
    views = {"x": operands["x"]} if fused.weights is not None else {"x": operands["x"], "w": operands["w"]}
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    strides = {
        name: _padded_strides(view, lanes, name == "w")
        for name, view in views.items()
        if ITEMSIZE[view.type.dtype_name] * lanes == VECTOR_BYTES
        and not _in_vectors(view, LINE_BYTES // VECTOR_BYTES * lanes, either=name == "w")
    }
    needed = not all(_in_vectors(view, lanes, either=name == "w") for name, view in views.items())
    chosen: tuple[str, ...] = ()
    best, least = problem, _estimate(low, problem, fused, places)
    for count in range(1, len(strides) + 1):
        for names in combinations(strides, count):
            own = {"x": problem.a_strides, "w": problem.b_strides}
            for name in names:  # a view may lack the batch axes along which it repeats
                own[name] = (*(0,) * (len(own[name]) - len(strides[name])), *strides[name])
            padded = replace(problem, a_strides=own["x"], b_strides=own["w"])
            seconds = _copying_seconds([views[name] for name in names]) + _estimate(low, padded, fused, places)
            if seconds < (least if needed or chosen else CLEAR_GAIN * least):
                best, least, chosen = padded, seconds, names
    for name in chosen:
        view, apart = views[name], strides[name]
        once = [n if s else 1 for n, s in zip(view.lens, apart)]
        rows = [s or prod(view.lens) * lanes for s in apart]
        copied = low.materialized(view.with_shape(Shape(view.type, once, view.strides)), rows, ins)
        operands[name] = copied.with_shape(Shape(view.type, view.lens, apart))
    return best


def _copying_seconds(views: list[View]) -> float:
    """Return the estimated seconds of copies of views into whole rows."""
    seconds = 0.0
    for view in views:
        singly = any(known_in(s % 2, 1) for s, n in zip(view.strides, view.lens) if n > 1 and s != 1)
        seconds += 2 * view.shape.bytes / ((COPIED_SINGLY if singly else COPIED) * machine().bandwidth)
    launches = max(1, sum(view.shape.bytes > JOINED_BYTES for view in views))
    return seconds + launches * COPYING / machine().clock


def _in_vectors(view: View, lanes: int, either: bool) -> bool:
    """Return whether the last axis (``either``: one of the last two) is contiguous, and all others move by whole
    vectors of ``lanes`` elements."""
    for axis in (-1, -2) if either else (-1,):
        rest = [s for k, (n, s) in enumerate(zip(view.lens, view.strides)) if k != len(view.lens) + axis and n > 1]
        if view.strides[axis] == 1 and not any(s % lanes for s in rest):
            return True
    return False


def _padded_strides(view: View, lanes: int, either: bool) -> tuple[int, ...]:
    """Return strides of a copy whose rows are whole vectors of ``lanes`` elements, or whole lines; batch axes without a
    stride keep none. With ``either``, columns that are contiguous stay so."""
    turned = either and view.strides[-2] == 1 != view.strides[-1]
    row, column = (-2, -1) if turned else (-1, -2)
    padded = line_padded(view.lens[row], VECTOR_BYTES // lanes)
    strides, size = [1, 1], padded * view.lens[column]
    strides[column] = padded
    for axis in range(len(view.lens) - 3, -1, -1):
        repeated = view.strides[axis] == 0
        strides.insert(0, 0 if repeated else size)
        size *= 1 if repeated else view.lens[axis]
    return tuple(strides)


def _estimate(low: Lowering, problem: GemmProblem, fused: Contraction, places: tuple[tuple[int, ...], ...]) -> float:
    """Return the estimated seconds of the best kernel of a product."""
    problem, places = planes_as_rows(problem, places)
    request = Request(problem, fused.epilogue, places, low.threads, low.options.fast_math)
    constant = fused.weights is not None
    contraction = GpuContraction(
        request, VECTOR_BYTES, low.options.precision, constant, constant and low.shared is None
    )
    found = SOLVER_SET.own_candidates(contraction)
    return found[0].solver.estimate(contraction) if found else float("inf")


GPU_SUPPORT = ContractionSupport(_refused, _check, _launch, any_order=True)
