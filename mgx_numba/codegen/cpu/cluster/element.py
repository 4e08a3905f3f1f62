"""The code of one stage of a reduction cluster for one vector of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....graph.instruction import Instruction
from ...printer import CodeBuffer, VectorPrinter, VectorValue
from ...statements import dtype_name, load_text, store_text
from .accumulators import initial_text
from .bf16_split_results import store_parts_text
from .reduction_layout import Names, ReduceLayout, head_lines
from .stages import cache_elements
from .vectors import Strategy


class Element:
    """Prints one stage's code for one vector of elements at ``c``, or its first ``left`` elements.

    Args:
        row: prints a row value, outside of the loop.
        keeps: whether values that later stages re-read are stored, and values that earlier stages stored are loaded.
        known: values that are in registers already; printed values are added.

    ``buffer`` takes the lines, ``read`` the numbers of the inputs that they load.
    """

    def __init__(
        self,
        layout: ReduceLayout,
        names: Names,
        row: Callable[[Instruction], VectorValue],
        stage: int,
        left: str = "",
        keeps: bool = True,
        known: dict[Instruction, VectorValue] | None = None,
    ) -> None:
        self.buffer = CodeBuffer(prefix=f"{'w' if left else 'v'}{stage}_")
        self.read: set[int] = set()
        self._layout, self._names, self._row = layout, names, row
        self._stage, self._left, self._keeps = stage, left, keeps
        self._place = "c" if layout.walk.row_mode else "place"
        self._printer = VectorPrinter(self.buffer, layout.lanes, fast_math=layout.fast_math)
        self._known: dict[Instruction, VectorValue] = {} if known is None else known
        self._at = "q"

    def register(self, ins: Instruction) -> str:
        """Return the name of the register that holds a full value."""
        return self._printer.register(self._value(ins))

    def contribution(self, ins: Instruction) -> VectorValue:
        """Return the elements' contribution to a reduction."""
        operand = ins.inputs[0]
        return self._layout.stages.reduction(ins).contribution(self._printer, self._value(operand), operand.shape.type)  # type: ignore[no-any-return]

    def contributions(self, reductions: Sequence[Instruction], at: str) -> list[str]:
        """Return the names of the contributions to each reduction of the elements at pointers named ``at``."""
        self._at, self._known = at, {}
        return [self._printer.register(self.contribution(ins)) for ins in reductions]

    def lines(self, reductions: Sequence[Instruction], stores: Sequence[tuple[int, Instruction]]) -> list[str]:
        """Return lines that add the elements to the accumulators of ``reductions`` and store the numbered results of
        ``stores``."""
        for ins in reductions:
            accumulator, combine = self._names.accumulators[ins], self._layout.stages.reduction(ins).combine
            self.buffer.line(f"{accumulator} = {combine}({accumulator}, {self.joined(ins)})")
        return self._stored(stores)

    def joined(self, ins: Instruction) -> str:
        """Return the name of the elements' contribution to a reduction in all lanes: the neutral element in lanes
        without an element."""
        return self._masked(ins, self._printer.register(self.contribution(ins)))

    def whole_row_lines(
        self, reductions: Sequence[Instruction], stores: Sequence[tuple[int, Instruction]]
    ) -> list[str]:
        """Return the lines of `lines` for elements that are the whole row: they initialise the accumulators."""
        for ins in reductions:
            value = self.contribution(ins)
            if self._layout.stages.row_value[ins.inputs[0]]:
                value = self._printer.splat(value)
            joined = self._masked(ins, self._printer.register(value))
            self.buffer.line(f"{self._names.accumulators[ins]} = {joined}")
        return self._stored(stores)

    def _masked(self, ins: Instruction, name: str) -> str:
        """Return a contribution with the neutral element in the lanes without an element."""
        layout = self._layout
        if not (self._left and layout.walk.row_mode):
            return name
        mask = self.buffer.emit(f"lane_mask({self._left}, {layout.lanes})")
        neutral = initial_text(layout.stages.reduction(ins), ins.inputs[0].shape.type, layout.lanes)
        return self.buffer.emit(f"where({mask}, {name}, {neutral})")

    def _stored(self, stores: Sequence[tuple[int, Instruction]]) -> list[str]:
        """Return all lines so far and the lines that store results."""
        layout = self._layout
        for k, result in stores:
            position = len(layout.walk.inputs) + k
            value = self._value(result)
            if layout.stages.row_value[result]:
                value = self._printer.splat(value)
            stored = self._printer.stored(value)
            inner, step = layout.inner[position], self._names.steps[position]
            if k in layout.walk.parts:
                if k == layout.walk.parts[0]:
                    self.buffer.line(store_parts_text("q_out", layout.walk.parts, stored, self._left))
                continue
            self.buffer.line(store_text(f"q_out{k}", "c", inner, step, stored, self._left, layout.walk.streamed))
        return self.buffer.drain()

    def _value(self, ins: Instruction) -> VectorValue:
        layout = self._layout
        if layout.stages.row_value[ins]:
            return self._row(ins)
        if ins in self._known:
            return self._known[ins]
        kept_by = layout.cached.get(ins) if self._keeps else None
        result = layout.in_result.get(ins) if self._keeps else None
        if result is not None and self._stage == layout.stages.count - 1:
            text = load_text(f"{self._at}_out{result}", "c", 1, "", layout.lanes, self._left)
            value = self._printer.loaded(text, ins.shape.type)
        elif kept_by is not None and kept_by < self._stage:
            text = self.buffer.emit(f"load({self._names.caches[ins]}, {self._place}, {layout.lanes})")
            value = VectorValue(text, ins.shape.type)
        elif ins.is_param:
            k = layout.stages.parameters.index(ins)
            inner, step = layout.inner[k], self._names.steps[k]
            text = load_text(f"{self._at}_x{k}", "c", inner, step, layout.lanes, self._left)
            self.read.add(k)
            value = self._printer.loaded(text, ins.shape.type)
        elif ins.name == "multibroadcast":
            value = self._value(ins.inputs[0])
        else:
            value = ins.op.scalar(self._printer, *(self._value(i) for i in ins.inputs))  # type: ignore[attr-defined]
        self._known[ins] = value
        if result is not None and self._stage == layout.stages.count - 2:
            text = self._printer.register(value)
            self.buffer.line(store_text(f"q_out{result}", "c", 1, "", text, self._left))
        if kept_by == self._stage:
            place = f"{self._names.caches[ins]}, {self._place}, {self._printer.register(value)}"
            # In a pipeline, the place behind the last elements of a row holds elements of another row.
            bounded = self._left and layout.strategy is Strategy.ROW_PIPELINE
            self.buffer.line(f"store_tail({place}, {self._left})" if bounded else f"store({place})")
        return value


def lines_of_head(
    layout: ReduceLayout, names: Names, row: Callable[[Instruction], VectorValue], at: str, ins: Instruction
) -> list[str]:
    """Return lines that compute the shift of variances, the mean of the head of the row at ``at``, before its first
    pass."""
    element = Element(layout, names, row, 0, keeps=False)
    value = element.register(ins.inputs[0])
    lines = head_lines(names.heads[ins], dtype_name(ins.shape.type), layout.lanes, element.buffer.drain(), value)
    return [*(f"q_{name} = {at}_{name}" for name in names.operands), *lines]


def cache_memory(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that reserve memory for the values that stages keep."""
    return [
        f"{names.caches[i]} = local_{dtype_name(i.shape.type.compute)}({cache_elements(i) + 2 * layout.lanes})"
        for i in layout.cached
    ]
