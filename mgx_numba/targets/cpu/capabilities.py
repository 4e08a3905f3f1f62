"""Facts about the CPU that passes may assume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, prod
from typing import Any

from ...codegen.cpu.cluster.pointwise import LEAST_ELEMENTS
from ...codegen.cpu.cluster.vectors import Vectors, vectors_of
from ...codegen.cpu.cluster.walk import SHORTEST_PIPELINE
from ...codegen.cpu.contraction.solvers import select, solvers_of
from ...codegen.cpu.loops import lanes_for
from ...codegen.cpu.machine import machine
from ...codegen.cpu.microkernels.tile_table import declared_tile, matrix_tile, tile_for
from ...codegen.problems.cluster import Tensor
from ...codegen.problems.convolution import MOST_SPATIAL, ConvProblem
from ...codegen.problems.element_types import FLOAT32, ElementTypes, element_types
from ...codegen.problems.gemm import GemmProblem
from ...core.dim import ceil_div, hint, symbols_of
from ...core.shape import Shape
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.passes import Options
from ...graph.passes.capabilities import Capabilities, ReductionWalk
from ...graph.passes.storage_types import widens
from ...graph.program import Program
from ...graph.substitution import put_numbers, with_numbers
from ...runtime.cpu.threads import resolve_num_threads
from ..data_dependent_split import has_data_dependent_lengths
from ..lowering.contraction_problem import CONVOLUTIONS, both_paddings, output_padding
from ..options import TargetOptions

NARROW_LEFT, WIDE_LEFT = (element_types(f"{left} bfloat16 float32 float32") for left in ("bfloat16", "float32"))
UNSIGNED_LEFT = element_types("uint8 int8 int32 int32")
SHUFFLED_ROWS = 12
"""Least number of rows of a register tile with which grouped convolutions read shuffled channels, run by run, faster
than a copy of them. light_shufflenet takes 4% less on one thread of a Zen 5, but 2% more with AVX2's tiles of 6 rows.
"""
ENOUGH_TASKS = 16
"""Number of rows, or groups of columns, that gives enough tasks. A reduction with fewer is split into parts, whose
results a second launch combines."""
MOST_PARTS = 32
"""Maximum number of parts of all rows together: enough for 16 threads to end about together, and few results to
combine. No figures kept."""
FOLDED = 1024
"""Target number of columns when several steps are folded into columns: more columns fill more vectors, and leave more
to combine. No figures kept."""
LEAST_STEPS = 16
"""Least number of steps per folded column, so that few results are left to combine."""
LONG_RUN = 4096
"""`FOLDED` for data larger than the caches: memory serves runs of 4096 elements better than short ones. No figures
kept."""
ROW_SECONDS, RUN_SECONDS, ADDED_SECONDS, SPREAD_SECONDS = 2e-8, 5e-9, 1e-10, 3e-10
"""Seconds that `col2im_launch` takes for a row of an image, for a window's row that is added to it, for each element
of these, and for each pixel of a row with a stride. Zen 4: windows of 3x3 with a stride of 2 add to 3 channels of
128x128 pixels in 46 us, of 9x9 with a stride of 3 to 150x150 in 52 us, of 3x3 to 64 channels of 32x32 in 120 us."""
CONVOLUTION_SHARE, LEAST_CONVOLUTION = 0.5, 5e-5
"""Share of a convolution's estimated time that a product of its taps may take, as the epilogue and the change of the
layout are steps of their own, and the least such share in seconds. Zen 4: 128 to 3 channels of 128x128 pixels, 3x3
taps, 4.9 ms as a convolution and 2.1 as a product; 64 to 3 of 64x64, 9x9 taps, 6.3 and 1.4; 32 to 1 of 160x160, 2.0
and 0.34; 64 to 8 of 64x64, 3x3 taps, 0.35 and 0.42."""
MOST_COLUMNS = 1 << 27
"""Most elements of the columns of all taps: 512 MiB of float32. Zen 4, 64 to 3 channels of 512x512 pixels, 9x9 taps,
255 MB of columns: 132 ms, and 453 ms as a convolution."""
NARROW_IMAGE = 28
"""Longest last axis of row-major images whose poolings read and write channels-last copies. Zen 4, us in row-major
memory and with copies, 3x3 means of 64 channels: 7x7 pixels 7.3 and 3.5, 14x14 12.5 and 6.1, 28x28 31 and 18, 32x32
35 and 42; 2x2 28x28 11.7 and 10.4; with AVX2 3x3 14x14 16.8 and 6.5, 24x24 24 and 15."""
QUERIES_OF_PRODUCTS = 8
"""Most queries whose scores are computed as a product if positions are contiguous in the keys: the kernel for many
queries has queries in its lanes. Zen 4, one thread, attention and two products in us: 12 heads of 1 query, 64 features
and 512 keys 238 and 82; 128 of 4, 16 and 640 1369 and 450; 8 of 8, 64 and 300 100 and 57."""
FEW_VECTORS = 2
"""Maximum number of vectors of a row of columns that is folded: wider rows fill the registers by themselves."""


def _reads_cache(attention: Instruction) -> bool:
    """Return True: the CPU's attention kernels read every kind of cache."""
    return True


def pass_options(options: TargetOptions) -> Options:
    """Return the facts that passes may assume for plans of this process."""
    here = machine()
    return Options(
        fast_math=options.fast_math,
        later=partial(has_data_dependent_lengths, on_host=True),
        capabilities=Capabilities(
            cheap_branches=True,
            threads=resolve_num_threads(options.num_threads or None),
            walk=reduction_walk,
            tasks=ENOUGH_TASKS,
            parts=MOST_PARTS,
            part_elements=here.reduced_part_elements,
            part_share=here.reduced_share,
            repeated_elements=here.repeated_elements,
            one_pass_run=SHORTEST_PIPELINE * lanes_for(0),
            block_weights=True,
            joins_block_products=False,
            reads_cache=_reads_cache,
            byte_tables=LEAST_ELEMENTS,
            shared_texts=True,
            depthwise_integers=True,
            scattered_integers=True,
            reads_shuffled=_reads_shuffled(),
            adds_columns=_adds_columns(options),
            pools_channels=_pools_channels,
            sums_columns=True,
            queries_of_products=QUERIES_OF_PRODUCTS,
            multiplies_bfloat16=_multiplies_bfloat16(options),
            reads_padding=_reads_padding(options),
        ),
    )


def _reads_shuffled() -> bool:
    tile = declared_tile(FLOAT32)
    return tile is not None and tile.rows >= SHUFFLED_ROWS


def _pools_channels(pooling: Instruction) -> bool:
    """Return whether a pooling of row-major memory is fastest on channels-last copies."""
    lens = pooling.inputs[0].shape.lens
    return hint(lens[1]) >= lanes_for(0) and hint(lens[-1]) <= NARROW_IMAGE


def _adds_columns(options: TargetOptions) -> Callable[[Instruction], bool]:
    """Return a predicate: whether a convolution is fastest as a product of all taps, and an addition."""
    threads = resolve_num_threads(options.num_threads or None)

    def adds(ins: Instruction) -> bool:
        from ...codegen.cpu.contraction.conv import ConvDirect  # late: most programs have no convolution

        if ins.shape.type not in (Type.float_type, Type.double_type) or _has_no_problem(ins):
            return False
        problem = bare_problem(ins, hint)
        assert isinstance(problem, ConvProblem)
        if not problem.transposed and (problem.groups > 1 or max(problem.stride) > 1 or problem.taps == 1):
            return False
        types = element_types(" ".join([ins.shape.type.dtype_name] * 4))
        own = replace(problem, types=types)
        solver = select(own, threads)
        seconds = solver.estimate(own, threads)
        if not problem.transposed:
            tile = tile_for(types)
            narrow = ceil_div(problem.out_channels, tile.lanes) * tile.lanes / tile.columns
            seconds *= CONVOLUTION_SHARE * (min(narrow, 1) if solver.name == ConvDirect.name else 1)
            if problem.out_channels >= tile.lanes or seconds < LEAST_CONVOLUTION / threads:
                return False
        pixels, terms = problem.in_pixels, problem.group_in
        if problem.transposed and pixels == problem.groups == 1:
            return True  # nothing is added up
        if problem.batch * problem.taps * problem.out_channels * pixels > MOST_COLUMNS:
            return False
        product = GemmProblem(
            problem.taps * problem.group_out, pixels, terms, (problem.batch, problem.groups),
            b_strides=(problem.in_channels * pixels, terms * pixels, pixels, 1), types=types, fast_math=True,
        )  # fmt: skip
        return bool(select(product, threads).estimate(product, threads) + _col2im_seconds(problem) / threads < seconds)

    return adds


def _col2im_seconds(problem: ConvProblem) -> float:
    """Return the time of one thread that adds up the columns of all taps."""
    images = problem.batch * problem.out_channels
    columns, pixels = images * problem.taps * problem.in_pixels, images * problem.out_pixels
    added = (ADDED_SECONDS + RUN_SECONDS / problem.in_lens[-1]) * columns
    written = (SPREAD_SECONDS * (problem.stride[-1] > 1) + ROW_SECONDS / problem.out_lens[-1]) * pixels
    return float(added + written)


def _multiplies_bfloat16(options: TargetOptions) -> Callable[[Instruction], bool] | None:
    """Return a predicate: whether a product with bfloat16 weights is quickest with its left operand in bfloat16, too.

    None if the CPU has no instructions for bfloat16 products.
    """
    matrix = matrix_tile(NARROW_LEFT)
    if matrix is None and declared_tile(NARROW_LEFT) is None:
        return None
    fewest = matrix.step if matrix else 1
    threads = resolve_num_threads(options.num_threads or None)

    def seconds(problem: GemmProblem | ConvProblem, types: ElementTypes) -> float:
        problem = replace(problem, types=types)
        try:
            found: float = select(problem, threads).estimate(problem, threads)
        except UnsupportedError:
            return inf
        return found

    def multiplies(ins: Instruction) -> bool:
        rows = hint(ins.shape.elements) // max(hint(ins.shape.lens[-1 if ins.name == "dot" else 1]), 1)
        if rows < fewest or _has_no_problem(ins):
            return False
        problem = bare_problem(ins, hint)
        narrow = seconds(problem, NARROW_LEFT)
        return isfinite(narrow) and narrow <= min(seconds(problem, types) for types in (FLOAT32, WIDE_LEFT))

    return multiplies


def _has_no_problem(ins: Instruction) -> bool:
    """Return whether there is nothing to compute, or no solver for a convolution over so many axes."""
    empty = 0 in map(hint, (*ins.shape.lens, *ins.inputs[0].shape.lens))
    return empty or (ins.name in CONVOLUTIONS and ins.shape.ndim - 2 > MOST_SPATIAL)


def bare_problem(ins: Instruction, value: Callable[[int], int] | None = None) -> GemmProblem | ConvProblem:
    """Return a product with constant weights, or a channels-last convolution, as a problem that has lengths only.

    ``value`` replaces symbolic lengths by numbers.
    """
    x, weights, out = (
        i.shape.lens if value is None else tuple(map(value, i.shape.lens)) for i in (*ins.inputs[:2], ins)
    )
    if ins.name == "dot":
        n, same = out[-1], (0,) * len(x[:-2])
        return GemmProblem(x[-2], n, x[-1], batch=x[:-2], b_strides=(*same, n, 1), fast_math=True)
    op: Any = ins.op
    rank, transposed = len(x) - 2, ins.name == "convolution_backwards"
    padding = both_paddings(op, x, weights)
    return ConvProblem(
        batch=x[0], in_channels=x[1], out_channels=out[1], in_lens=x[2:], kernel=weights[2:],
        stride=op.stride, dilation=op.dilation, pads_begin=padding[:rank], pads_end=padding[rank:], groups=op.group,
        transposed=transposed, output_padding=output_padding(op, x, weights, out) if transposed else (),
        fast_math=True,
    )  # fmt: skip


def _reads_padding(options: TargetOptions) -> Callable[[Instruction], bool] | None:
    """Return a predicate: whether matrix-tile kernels compute a convolution fastest, and read an input padded in memory
    in place."""
    if matrix_tile(UNSIGNED_LEFT) is None:
        return None
    from ...codegen.cpu.contraction.conv_amx import ConvAmx
    from ...codegen.cpu.contraction.padded_input import PaddedInput, padded_input_refusal

    threads = resolve_num_threads(options.num_threads or None)

    def reads(ins: Instruction) -> bool:
        problem = _stored_problem(ins)
        tile = None if problem is None else matrix_tile(problem.types)
        if problem is None or tile is None:
            return False
        lens = tuple(map(sum, zip(problem.in_lens, problem.pads_begin, problem.pads_end)))
        padded = replace(problem, in_lens=lens, pads_begin=(), pads_end=(), x_strides=(), line_behind=True)
        if padded_input_refusal(padded) or not PaddedInput(padded, tile).in_place:
            return False
        return all(_taken(p, threads) == ConvAmx.name for p in (problem, padded))

    return reads


def line_gaps(core: Instruction) -> bool:
    """Return whether the quickest kernel of a convolution, possibly fused, writes lines with gaps."""
    problem = None if matrix_tile(UNSIGNED_LEFT) is None else _stored_problem(core)
    if problem is None:
        return False
    taken = _taken(problem, resolve_num_threads(None))
    return any(solver.name == taken and solver.line_gaps for solver in solvers_of(problem))


def _taken(problem: ConvProblem, threads: int) -> str:
    """Return the name of the solver that is chosen for a problem; empty if there is none."""
    try:
        return str(select(problem, threads).name)
    except UnsupportedError:
        return ""


def _stored_problem(ins: Instruction) -> ConvProblem | None:
    """Return a convolution as a problem with the stored types of its operands, which the convolution may widen."""
    if ins.name not in CONVOLUTIONS or _has_no_problem(ins):
        return None
    problem = bare_problem(ins, hint)
    assert isinstance(problem, ConvProblem)
    stored = (i.inputs[0] if widens(i) else i for i in ins.inputs[:2])
    left, right = (i.shape.type.dtype_name for i in stored)
    out = ins.shape.type.dtype_name
    return replace(problem, types=ElementTypes(left, right, out, out))


def reduction_walk(
    body: Module, axes: Sequence[int], inputs: Sequence[Shape], results: Sequence[Shape]
) -> ReductionWalk:
    """Return how a kernel would traverse a reduction cluster; symbolic lengths are replaced by the example lengths.

    Raises:
        CompileError: no operand is full.
    """
    symbolic = [s for s in (*inputs, *results) if s.symbolic]
    lengths = symbols_of(n for s in symbolic for n in (*s.lens, *s.strides))
    if lengths:
        usual = lengths[0].scope.hints()
        program, _ = Program.of_module(body)
        put_numbers(program, usual)
        body = program.main
        inputs, results = (with_numbers(list(shapes), usual) for shapes in (inputs, results))
    operands, outputs = ([Tensor(s.type, s.lens, s.strides) for s in shapes] for shapes in (inputs, results))
    vectors = vectors_of(body, axes, operands, outputs, parts=2)
    walk, keep_lens = vectors.walk, vectors.walk.keep_space.lens
    tasks, columns = prod(keep_lens), 1
    if not walk.row_mode:
        columns = keep_lens[-1]
        tasks = tasks // columns * -(-columns // vectors.longest_chunk)
    strides = walk.tensors[walk.lead].strides
    return ReductionWalk(
        tasks=tasks,
        row_run=walk.reduce_lens[-1] if walk.row_mode else 0,
        from_memory=walk.past_caches,
        order=tuple(sorted(range(len(strides)), key=lambda a: -strides[a])),
        loops=walk.reduce_space.axes,
        columns=columns,
        unit=vectors.lanes if walk.row_mode else 1,
        fold=_fold(vectors),
    )


def _fold(vectors: Vectors) -> int:
    """Return the number of steps that are folded into columns to fill vectors: a divisor of a column's length."""
    walk = vectors.walk
    if not walk.follow:
        return 1
    cols, length = walk.keep_space.lens[-1], walk.reduce_space.lens[-1]
    long_runs = walk.past_caches and walk.keep_space.rank == 1
    few, folded = (LONG_RUN // 4, LONG_RUN) if long_runs else (FEW_VECTORS * vectors.lanes, FOLDED)
    if cols > few:
        return 1
    return next((k for k in range(min(length // LEAST_STEPS, folded // cols), 0, -1) if length % k == 0), 1)
