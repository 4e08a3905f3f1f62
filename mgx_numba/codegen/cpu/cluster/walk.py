"""How the operands of a reduction cluster are walked: which are full, along which axes, in which order.

Lanes run along the reduced axis when it is contiguous (row mode), else along the contiguous kept axis (column mode), so
no tensor is transposed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....core.dim import Length, SharedLength, is_symbolic, known_equal, known_in, known_less_equal, known_same, typical
from ....dataclass import dataclass
from ....errors import CompileError, UnsupportedError
from ....graph.module import Module
from ...body import cluster_name
from ...problems.cluster import Tensor
from ...reductions import REDUCTIONS
from ...space import Space, collapse
from ..loops import is_streamed
from .bf16_split_results import parts_of_outputs

SHORTEST_PIPELINE = 8
"""Vectors of the shortest row for which prefetching it, or reading it once, while another row is computed pays."""


TINY_ROW, TINY_LIGHT_ROW, LIGHT_OF_TINY = 6, 3, 2
"""Elements of the longest rows that are reduced across lanes (`_are_rows_tiny`), in general, and where the cluster has
only so many instructions and no maximum, which takes longer across lanes than a sum.

Zen 3, 50,000 rows of 2, 4, 6 and 8 elements: softmax in 212, 269, 406, 529 us instead of 734, 655, 797, 472 us; maxima
in 42, 74, 161, 204 us instead of 578, 315, 230, 129 us; sums in 57, 99, 153, 181 us instead of 64, 56, 75, 63 us."""
FEWEST_TINY = 64
"""Least number of such rows: some vectors of any width. No figures kept."""


@dataclass(frozen=True)
class Walk:
    """The operands of a cluster and the two spaces over which they are walked, independent of the cluster's values.

    Attributes:
        name: name of the kernel.
        full: lengths of the elements.
        axes: the reduced axes.
        inputs, outputs, tensors: the operands, and all of them, inputs first.
        is_full: for each operand, whether it has an element, rather than a row, for each combination of indices.
        past_caches: whether inputs come from memory.
        streamed: whether results go to memory.
        lead: operand whose memory order is followed.
        reduce_space: the reduced dimensions, merged, with strides of the full operands only, in their order.
        keep_space: the other dimensions, with strides of every operand.
        row_mode: whether lanes run along the innermost reduced dimension rather than the innermost kept dimension.
        parts: numbers of the outputs for the high and the low parts of a result, if there are any.
    """

    name: str
    full: tuple[Length, ...]
    axes: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]
    is_full: tuple[bool, ...]
    past_caches: bool
    streamed: bool
    lead: int
    reduce_space: Space
    keep_space: Space
    row_mode: bool
    parts: tuple[int, ...]

    @property
    def reduce_lens(self) -> tuple[SharedLength, ...]:
        """Return the lengths of the reduced dimensions, at least one."""
        return self.reduce_space.lens or (1,)

    @property
    def follow(self) -> bool:
        """Return whether every input is full and in columns that are contiguous in memory from step to step, or is one
        value everywhere."""
        if self.row_mode or not self.reduce_space.rank or not all(self.is_full[: len(self.inputs)]):
            return False
        cols, full = self.keep_space.lens[-1], [k for k, is_full in enumerate(self.is_full) if is_full]
        return all(
            (known_equal(row[-1], cols) and known_in(self.keep_space.strides[k][-1], 1))
            or all(known_in(s, 0) for s in (row[-1], self.keep_space.strides[k][-1]))
            for k, row in zip(full, self.reduce_space.strides)
        )

    def repeats_along_rows(self, tensor: Tensor) -> bool:
        """Return whether an operand has one value a row, by its lengths or by its strides."""
        repeated = (known_in(tensor.strides[a], 0) or known_in(self.full[a], 1) for a in self.axes)
        return not _is_full(tensor, self.full, self.axes) or all(repeated)


def is_long(length: Length) -> bool:
    """Return whether a dimension has several elements; an unknown length counts as several."""
    return is_symbolic(length) or length > 1


def _is_full(tensor: Tensor, full: Sequence[Length], axes: Sequence[int]) -> bool:
    """Return whether an operand has all lengths of the elements.

    An operand of symbolic lengths counts as full, unless it is known to have one element along each reduced axis.
    """
    if known_same(tensor.lens, full):
        return True
    symbolic = any(is_symbolic(n) for n in (*tensor.lens, *full))
    return symbolic and not all(known_in(tensor.lens[a], 1) for a in axes)


def walk_of(
    module: Module,
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    fold: int = 1,
    again: tuple[int, ...] = (),
) -> Walk:
    """Return the walk over the operands of a cluster; arguments are those of the problem.

    Raises:
        CompileError: no operand is full.
        UnsupportedError: ``fold`` steps cannot become columns.
    """
    name, tensors = cluster_name(module, "reduce"), (*inputs, *outputs)
    full = next(i for i in module if i.name in REDUCTIONS).inputs[0].shape.lens
    is_full = tuple(_is_full(t, full, axes) for t in tensors)
    fulls = [k for k in range(len(tensors)) if is_full[k]]
    if not fulls:
        raise CompileError(f"{name}: a reduction cluster needs a full operand")
    once = (k for k in fulls if not any(known_in(s, 0) and is_long(n) for s, n in zip(tensors[k].strides, full)))
    lead = next(once, fulls[0])
    kept = [a for a in range(len(full)) if a not in axes]
    reduce_space = collapse(full, [tensors[k].strides for k in fulls], order_by=fulls.index(lead), axes=axes)
    keep_space = collapse(full, [t.strides for t in tensors], order_by=lead, axes=kept)
    row_mode = _innermost(reduce_space, fulls.index(lead)) <= _innermost(keep_space, lead)
    row_mode = row_mode and not _are_rows_tiny(module, reduce_space, keep_space)
    walk = Walk(
        name=name,
        full=full,
        axes=tuple(axes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        tensors=tensors,
        is_full=is_full,
        past_caches=is_streamed(inputs),
        streamed=is_streamed(outputs),
        lead=lead,
        reduce_space=reduce_space,
        keep_space=keep_space,
        row_mode=row_mode,
        parts=parts_of_outputs(module, outputs, again),
    )
    if fold == 1:
        return walk
    if not walk.follow or not known_in(reduce_space.lens[-1] % fold, 0):
        raise UnsupportedError(f"{name}: {fold} steps do not follow one another as columns")
    reduce_space, keep_space = _folded(reduce_space, keep_space, fold)
    return replace(walk, reduce_space=reduce_space, keep_space=keep_space)


def _are_rows_tiny(module: Module, reduce_space: Space, keep_space: Space) -> bool:
    """Return whether rows are so short, and so many, that lanes had better run across them.

    The elements of a vector are then loaded one by one, but results need no reduction across its lanes.
    """
    if reduce_space.rank != 1 or not keep_space.rank or typical(keep_space.lens[-1]) < FEWEST_TINY:
        return False
    computed = [i.name for i in module if i.name not in ("@param", "@literal", "@return")]
    is_light = len(computed) <= LIGHT_OF_TINY and not {"reduce_max", "reduce_min"} & set(computed)
    return known_less_equal(reduce_space.lens[0], TINY_LIGHT_ROW if is_light else TINY_ROW)


def _innermost(space: Space, operand: int) -> int:
    """Return the distance of an operand's neighbours along the innermost dimension."""
    return abs(typical(space.strides[operand][-1])) if space.rank else 1 << 60


def _folded(reduce_space: Space, keep_space: Space, fold: int) -> tuple[Space, Space]:
    """Return both spaces with ``fold`` steps of the inner reduced dimension turned into columns."""
    lens, strides = reduce_space.lens, reduce_space.strides
    steps = tuple((*row[:-1], row[-1] * fold) for row in strides)
    columns = (*keep_space.lens[:-1], keep_space.lens[-1] * fold)
    return replace(reduce_space, lens=(*lens[:-1], lens[-1] // fold), strides=steps), replace(keep_space, lens=columns)
