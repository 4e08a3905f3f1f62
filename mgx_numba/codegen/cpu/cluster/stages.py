"""How a reduction cluster is walked: along which axis, in which stages, and what a stage keeps for a later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....errors import CompileError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...body import cluster_name
from ...problems.cluster import Tensor
from ...reductions import REDUCTIONS, Reduction
from ...space import Space, collapse
from .. import host
from ..loops import is_streamed, lanes_for
from ..machine import machine
from .maxima import maxima_without_nan
from .variance import LEAST_SHARE, HeadMean, with_one_pass_variances

__all__ = ["CHEAP", "SHORTEST_PIPELINE", "ReduceStages", "cache_elements"]

ALIASING = 2048
MOST_CACHED = 3
CHEAP = 4
LONG_ROW = 32
WIDER_COLUMNS = 8
LIGHT = 6
FEWEST_CHUNKS = 16
SHORTEST_PIPELINE = 8
FEWEST_KEPT = 4
KEPT_BYTES = 16 << 10
WHOLE_ROW = 8
"""Registers of the longest row that is held in them."""
EXPENSIVE = frozenset(
    "exp log log2 erf sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid pow gelu_erf gelu_tanh silu"
    " softplus mish div sqrt rsqrt".split()
)


class ReduceStages:
    """A cluster and its operands, the order in which they are walked, and the stage of each value."""

    def __init__(
        self,
        module: Module,
        axes: tuple[int, ...],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        fast_math: bool,
        origin: str,
        fold: int = 1,
        parts: int = 1,
    ) -> None:
        self.axes, self.fast_math, self.origin = axes, fast_math, origin
        self.inputs, self.outputs = inputs, outputs
        self.tensors = [*inputs, *outputs]
        self.names = [f"x{k}" for k in range(len(inputs))] + [f"out{k}" for k in range(len(outputs))]
        self.past_caches = is_streamed(inputs)
        self.name = cluster_name(module, "reduce")
        reduction = next(i for i in module if i.name in REDUCTIONS)
        self.full = reduction.inputs[0].shape.lens
        self.is_full = [t.lens == self.full for t in self.tensors]
        self.lead = lead = self._lead()
        kept = [a for a in range(len(self.full)) if a not in axes]
        strides = [t.strides for t in self.tensors]
        full_strides = [s for s, full in zip(strides, self.is_full) if full]
        self.reduce_space = collapse(self.full, full_strides, order_by=self._full_index(lead), axes=axes)
        self.keep_space = collapse(self.full, strides, order_by=lead, axes=kept)
        self.row_mode = self._inner(self.reduce_space, self._full_index(lead)) <= self._inner(self.keep_space, lead)
        if fold > 1:
            self.reduce_space, self.keep_space = _folded(self.reduce_space, self.keep_space, fold)
        one_pass = self._is_one_pass()
        self.module = with_one_pass_variances(module) if one_pass else module
        self.maxima_without_nan = maxima_without_nan(self.module)
        self.parameters = self.module.parameters()
        self.results = self.module.results()
        self.reductions = [i for i in self.module if i.name in REDUCTIONS]
        self._assign_stages()
        self.keeps_columns = self._keeps_columns()
        self.streamed = is_streamed(outputs)
        self.whole_row = parts == 1 and self._is_whole_row()
        self.lanes = self._lanes()
        self.place = "c" if self.row_mode else "place"
        self.heads = [i for i in self.module if isinstance(i.op, HeadMean)]

    def reduction(self, ins: Instruction) -> Reduction:
        """How a reduction of the cluster is computed."""
        found = REDUCTIONS[ins.name]
        if ins in self.maxima_without_nan:
            return replace(found, combine="first_greater")
        return found

    def _lanes(self) -> int:
        """Long rows take more registers at a time: reductions are chains, which wait unless there are several.

        So do columns, where each step reads as much memory in one place, as long as all threads have some.
        """
        lanes = lanes_for(len(self.module))
        if self.keeps_columns:
            return lanes
        if self.whole_row:
            return max(host.lanes("float32"), 1 << (self.reduce_space.lens[-1] - 1).bit_length())
        if self.row_mode:
            return 2 * lanes if (self.reduce_space.lens or (1,))[-1] >= LONG_ROW * lanes else lanes
        wider = WIDER_COLUMNS if self.stages == 1 and len(self.module) <= LIGHT else 2
        kept = self.keep_space.lens
        if self.stages > 1 and self.past_caches and self._cached_columns() >= 2 * wider * lanes:
            wider *= 2
        while wider > 1 and kept[-1] >= 2 * lanes and prod(kept) >= FEWEST_CHUNKS * lanes:
            lanes, wider = 2 * lanes, wider // 2
        return lanes

    def _cached_columns(self) -> int:
        """Columns of which all elements fit into what is kept on the stack."""
        return machine().l1_bytes // (prod(self.reduce_space.lens) * self.tensors[self.lead].type.compute.size)

    def _keeps_columns(self) -> bool:
        """Whether columns come from memory and are best read row by row, with all accumulators in memory.

        Otherwise a column's accumulators are in registers, and rows are read in short runs.
        """
        wide = self.keep_space.rank > 0 and self.keep_space.lens[-1] >= FEWEST_KEPT * lanes_for(len(self.module))
        stores_rows_only = all(t.lens != self.full for t in self.outputs)
        return not self.row_mode and self.past_caches and self.stages == 1 and wide and stores_rows_only

    def _is_whole_row(self) -> bool:
        """Whether registers hold a row, so that no stage reads or computes again what one before it had.

        Unless vectors fill lines, no part of such rows goes past the caches.
        """
        if not self.row_mode or self.reduce_space.rank != 1:
            return False
        cols, one = self.reduce_space.lens[-1], host.lanes("float32")
        full = (i for i in self.module if i.name != "@return" and i.shape.lens == self.full)
        widest = max(i.shape.type.compute.size for i in full)
        held = cols <= host.MAX_LANES and cols * widest <= WHOLE_ROW * 4 * one
        return held and (not self.streamed or cols <= 2 * one or cols & (cols - 1) == 0)

    @property
    def longest_chunk(self) -> int:
        """Most columns of a task."""
        if self.keeps_columns:
            types = [REDUCTIONS[i.name].accumulator(i.inputs[0].shape.type) for i in self.reductions]
            return KEPT_BYTES // sum(t.size for t in types)
        return max(4 * lanes_for(len(self.module)), self.lanes)

    def _is_one_pass(self) -> bool:
        lens = self.reduce_space.lens or (1,)
        shortest = max(SHORTEST_PIPELINE * lanes_for(0), prod(lens) // LEAST_SHARE)
        return self.row_mode and self.past_caches and lens[-1] >= shortest

    def _lead(self) -> int:
        """Operand whose memory order decides: the first full input that is not broadcast, else the first full one."""
        full = [k for k, is_full in enumerate(self.is_full) if is_full]
        if not full:
            raise CompileError(f"{self.name}: a reduction cluster needs a full operand")
        solid = [k for k in full if all(s for s, n in zip(self.tensors[k].strides, self.full) if n > 1)]
        return (solid or full)[0]

    def _full_index(self, k: int) -> int:
        return sum(self.is_full[:k])

    @staticmethod
    def _inner(space: Space, operand: int) -> int:
        return abs(space.strides[operand][-1]) if space.rank else 1 << 60

    def _assign_stages(self) -> None:
        self.stage: dict[Instruction, int] = {}
        self.row_value: dict[Instruction, bool] = {}
        for ins in self.module:
            if ins.name == "@return":
                break
            depth = max((self.stage[i] for i in ins.inputs), default=0)
            self.stage[ins] = depth + 1 if ins.name in REDUCTIONS else depth
            if ins.is_literal or ins.name == "multibroadcast":
                self.row_value[ins] = not ins.inputs or self.row_value[ins.inputs[0]]
            elif ins.is_param:
                self.row_value[ins] = self._repeats_along_rows(self.inputs[self.parameters.index(ins)])
            elif ins.name in REDUCTIONS or isinstance(ins.op, HeadMean):
                self.row_value[ins] = True
            else:
                self.row_value[ins] = all(self.row_value[i] for i in ins.inputs)
        self.stages = 1 + max(
            [self.stage[i.inputs[0]] for i in self.module if i.name in REDUCTIONS]
            + [self.stage[r] for r in self.results if r.shape.lens == self.full]
        )

    def _repeats_along_rows(self, tensor: Tensor) -> bool:
        """Whether an operand has one value a row, be it by its lengths or by its strides."""
        return tensor.lens != self.full or all(tensor.strides[a] == 0 or self.full[a] == 1 for a in self.axes)

    def _cost(self, ins: Instruction) -> int:
        """What computing a full value from the operands takes."""
        needed: set[Instruction] = set()
        pending = [ins]
        while pending:
            current = pending.pop()
            if not (current in needed or self.row_value[current] or current.is_param):
                needed.add(current)
                pending.extend(current.inputs)
        return sum(0 if i.name == "multibroadcast" else 10 if i.name in EXPENSIVE else 1 for i in needed)

    def _cached_values(self, cols: int) -> dict[Instruction, int]:
        """Full values that a later stage reads again from a stack buffer instead of computing them again.

        Each comes with the stage that computes and keeps it.
        """
        if self.whole_row or (self.row_mode and self.reduce_space.rank > 1):
            return {}
        elements = cols if self.row_mode else prod(self.reduce_space.lens) * self.lanes
        computed: dict[Instruction, int] = {}
        cached: dict[Instruction, int] = {}
        for stage in range(self.stages):
            fresh: set[Instruction] = set()
            pending = list(self._roots(stage))
            while pending:
                ins = pending.pop()
                if self.row_value[ins] or ins in fresh or (ins.is_param and not self._is_aliased(ins)):
                    continue
                costly = ins.is_param or self._cost(ins) > CHEAP
                known = ins in computed and elements <= cache_elements(ins) and costly
                if known and (ins in cached or len(cached) < MOST_CACHED):
                    cached[ins] = computed[ins]
                    continue
                fresh.add(ins)
                pending.extend(ins.inputs)
            computed = dict.fromkeys(fresh, stage) | computed
        return cached

    def _is_aliased(self, parameter: Instruction) -> bool:
        """Whether the steps of a column compete for the same few places of the caches."""
        if self.row_mode:
            return False
        tensor = self.inputs[self.parameters.index(parameter)]
        steps = [tensor.strides[a] * tensor.type.size for a in self.axes if self.full[a] > 1]
        return min(steps, default=1) % ALIASING == 0

    def _roots(self, stage: int) -> list[Instruction]:
        reductions = [i.inputs[0] for i in self.module if i.name in REDUCTIONS and self.stage[i.inputs[0]] == stage]
        stores = [
            r for r, t in zip(self.results, self.outputs) if t.lens == self.full and self._store_stage(r) == stage
        ]
        return [*reductions, *stores]

    def _store_stage(self, result: Instruction) -> int:
        return min(self.stage[result], self.stages - 1)


def _folded(reduce_space: Space, keep_space: Space, fold: int) -> tuple[Space, Space]:
    """Both spaces with so many steps of the inner reduced dimension as columns."""
    lens, strides = reduce_space.lens, reduce_space.strides
    fewer = Space((*lens[:-1], lens[-1] // fold), tuple((*row[:-1], row[-1] * fold) for row in strides))
    return fewer, Space((*keep_space.lens[:-1], keep_space.lens[-1] * fold), keep_space.strides)


def cache_elements(ins: Instruction) -> int:
    """Elements of the longest row that is kept on the stack."""
    return machine().l1_bytes // ins.shape.type.compute.size
