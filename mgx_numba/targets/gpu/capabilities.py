"""Facts about the GPU that passes may assume."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from math import prod

from ...codegen.alternatives import fixed, has_lengths
from ...codegen.gpu.cluster.thread_layout import RowLayout, row_layout
from ...codegen.gpu.driver.device import known_architecture
from ...codegen.gpu.machine import machine, multiprocessors
from ...codegen.gpu.matrix_tiles import matrix_tiles
from ...codegen.gpu.products import PRODUCTS
from ...codegen.problems.cluster import Tensor
from ...codegen.problems.element_types import ElementTypes
from ...core.dim import Dim, SharedLength, known_same
from ...core.shape import Shape
from ...core.types import Type
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.passes import Options
from ...graph.passes.capabilities import Capabilities, ReductionWalk
from ...graph.substitution import with_numbers
from ...interrupts import whole_module
from ..data_dependent_split import has_data_dependent_lengths
from ..options import TargetOptions
from .rules.contraction import FLOATS, joined_groups, joins_halves, joins_products

FLOAT8 = "float8_e4m3fn"
MOST_PARTS = 1024
"""Maximum number of parts of all rows together: several blocks for each multiprocessor, so that none waits long for the
last."""
PART_ELEMENTS = 1 << 14
"""Least number of elements of a part: 64 KiB of float32, several microseconds of a multiprocessor's share of the
bandwidth, which equals the cost of another launch."""
PART_SHARE = 16
"""Least number of elements of a part per result: the results are then at most an eighth of the memory traffic."""
REPEATED_SHARE = 50
"""Bytes of the L2 cache per element from which rows that are read twice are split; fewer elements stay in the cache."""
LINE_BYTES = 128
"""Bytes of a cache line: CUDA C++ programming guide, "Device memory accesses"."""
SHORT_RUN_ELEMENTS = 1 << 22
"""Number of elements from which channels are combined after pixels (`ReductionWalk.short_run`). A group norm of 2
million elements takes 13 us in one kernel on an H200, about as long as the launches of a split one; of 8 million 43."""


def pass_options(options: TargetOptions) -> Options:
    """Return the facts that passes may assume for plans of a device of any size."""
    return Options(
        fast_math=options.fast_math,
        later=has_data_dependent_lengths,
        attention_refusal=partial(_attention_refusal, options.precision),
        epilogue_types=FLOATS,
        capabilities=Capabilities(
            threads=_enough_blocks(),
            walk=reduction_walk,
            tasks=_enough_blocks(),
            parts=MOST_PARTS,
            part_elements=PART_ELEMENTS,
            part_share=PART_SHARE,
            repeated_elements=machine().l2_bytes // REPEATED_SHARE,
            one_pass_run=sys.maxsize,
            block_weights=True,
            reads_cache=partial(_reads_cache, options.precision),
            joins_block_products=True,
            signed_left=True,
            narrow_results=True,
            float8_products=_multiplies_float8(),
            prologues=not _has_warpgroups(),
            joins_halves=partial(joins_halves, options.precision),
            joins_products=partial(joins_products, options.precision),
            joined_groups=partial(joined_groups, options.precision),
            computes_updates=partial(_computes_updates, options.fast_math),
        ),
    )


def _enough_blocks() -> int:
    """Return the number of blocks with which a reduction need not be split: about two for each multiprocessor."""
    return 15 * multiprocessors() // 8


def _attention_refusal(precision: str, type: Type, depth: int, width: int) -> str:
    """Return the result of `features_refusal`, whose module is imported only for programs with attention."""
    whole_module("mgx_numba.targets.gpu.rules.attention")
    from .rules.attention import features_refusal

    return features_refusal(precision, type, depth, width)


def _reads_cache(precision: str, attention: Instruction) -> bool:
    """Return whether a kernel computes a ``cached_attention``; see `cache_refusal`."""
    whole_module("mgx_numba.targets.gpu.rules.attention")
    from .rules.attention import cache_refusal

    return not cache_refusal(precision, attention)


def _computes_updates(fast_math: bool, scatter: Instruction) -> bool:
    """Return the result of `computes_updates`."""
    whole_module("mgx_numba.targets.gpu.rules.indexed")
    from .rules.indexed import computes_updates

    return computes_updates(fast_math, scatter)


def _has_warpgroups() -> bool:
    """Return whether tensor cores read operands from shared memory, to which the copy engine writes them unchanged.

    On an H200 such tensor cores and a separate launch for a prologue take half as long as a kernel with the prologue
    inside.
    """
    arch = known_architecture()
    return arch is not None and arch.warpgroups


def _multiplies_float8() -> bool:
    """Return whether the architecture's tensor cores multiply float8."""
    arch = known_architecture()
    if arch is not None and not arch.nvidia:
        return bool(matrix_tiles(arch, ElementTypes(FLOAT8, FLOAT8, "float32", "float32"), "highest"))
    return arch is None or arch.capability >= PRODUCTS[FLOAT8, FLOAT8].capability


def reduction_walk(
    body: Module, axes: Sequence[int], inputs: Sequence[Shape], results: Sequence[Shape]
) -> ReductionWalk:
    """Return how a kernel would traverse a reduction cluster; symbolic lengths are replaced by example lengths.

    If the number of rows is symbolic, it is taken to be large enough to keep a device busy.
    """
    lengths: list[SharedLength] = [n for s in (*inputs, *results) for n in (*s.lens, *s.strides) if isinstance(n, Dim)]
    is_open = any(isinstance(n, Dim) for s in inputs for a, n in enumerate(s.lens) if a not in axes)
    if lengths:
        usual = lengths[0].scope.hints()
        inputs, results = (with_numbers(list(shapes), usual) for shapes in (inputs, results))
    operands, outputs = ([Tensor(s.type, s.lens, s.strides) for s in shapes] for shapes in (inputs, results))
    layout = row_layout(axes, operands, outputs)
    (reduced, order), blocks = layout.walked, fixed(layout.blocks)
    return ReductionWalk(
        tasks=max(blocks, _enough_blocks()) if is_open else blocks,
        row_run=0 if layout.columns else layout.reduce.lens[-1],
        from_memory=True,
        order=order,
        loops=(reduced or tuple(axes),),
        columns=layout.keep.lens[-1] if layout.columns else 1,
        unit=1 if layout.columns else layout.lanes,
        fold=1,
        short_run=_short_run(layout, operands),
    )


def _short_run(layout: RowLayout, operands: Sequence[Tensor]) -> tuple[int, ...]:
    """Return `ReductionWalk.short_run`: channels of a group of channels-last images, for instance."""
    keep, reduce = layout.keep, layout.reduce
    if reduce.rank < 2 or has_lengths((keep.lens, reduce.lens)) or prod(layout.full) < SHORT_RUN_ELEMENTS:
        return ()
    run, found = reduce.lens[-1], False
    for k, operand in enumerate(operands):
        along, across = reduce.strides[k][-1], keep.strides[k][-1]
        if not known_same(operand.lens, layout.full) or (along, across) == (0, 0):
            continue
        size = operand.type.size
        if along != 1 or across != run or run * size >= LINE_BYTES or run * keep.lens[-1] * size < LINE_BYTES:
            return ()
        found = True
    return reduce.axes[-1] if found else ()
