"""Recurrent layers as primitive operations, their steps unrolled.

The product of the inputs with the input weights is done for all steps at once. The two directions of a bidirectional
layer advance together, as a batch of two: step t does position t of the forward direction and s - 1 - t of the
backward one. Equations: ONNX operators RNN, GRU and LSTM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ops.base import Operator
from ...ops.recurrence import CELLS
from ...ops.rnn import RecurrentBase, RnnDirection
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from ..shape import Shape
from ..types import Type
from .base import Options, Pass
from .build import Builder
from .constants import constant_array
from .merge_rnn_outputs import RECURRENT, last_states
from .rewriter import remove_dead

__all__ = ["RewriteRnn"]

MAX_STEPS = 1024


@dataclass(frozen=True)
class Layer:
    """A recurrent layer's operator and inputs (``None`` where missing)."""

    op: RecurrentBase
    x: Instruction
    w: Instruction
    r: Instruction
    bias: Instruction | None
    lengths: Instruction | None
    hidden: Instruction | None
    state: Instruction | None
    peephole: Instruction | None

    @classmethod
    def of(cls, ins: Instruction) -> Layer:
        """Read an instruction."""
        inputs: list[Instruction | None] = [None if i.name == "undefined" else i for i in ins.inputs]
        inputs += [None] * (8 - len(inputs))
        return cls(ins.op, *inputs)  # type: ignore[arg-type]


@dataclass
class Lanes:
    """Directions that advance together, and their weights for the products of this pass.

    Attributes:
        directions: indices of the directions.
        backward: whether each reads its sequences from the end.
        functions: activation functions f, g, h, common to the lanes.
    """

    directions: list[int]
    backward: list[bool]
    functions: tuple[Operator, ...]


class RewriteRnn(Pass):
    """Unrolls ``rnn``, ``gru``, ``lstm`` and ``recurrent`` of up to ``max_steps`` steps.

    Sequence lengths, initial states, peepholes, ``clip``, ``linear_before_reset``, ``input_forget`` and different
    functions for the directions are honoured; narrow floats are computed in float32.
    """

    name = "rewrite_rnn"

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self.max_steps = max_steps

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module):
            if ins.name not in RECURRENT and ins.name != "recurrent":
                continue
            if any(i.shape.is_dynamic for i in ins.inputs) or not 0 < ins.inputs[0].shape.lens[0] <= self.max_steps:
                continue
            if ins is module.last:
                continue
            builder = Builder(module, ins)
            results = Unroller(Layer.of(ins), builder).results()
            for new in builder.created:
                if not new.is_literal:
                    new.debug_symbols = ins.debug_symbols
            if ins.name == "recurrent":
                replaced = {user: results[user.op.attributes()["index"]] for user in ins.users}
            else:
                replaced = {user: results[position] for user, position in last_states(ins).items()}
                replaced[ins] = results[0]
            for old, new in replaced.items():
                (old.module or module).replace_instruction(old, new)
            remove_dead(module, [*replaced, ins, *builder.created])


class Unroller:
    """Builds the primitive form of one layer."""

    def __init__(self, layer: Layer, builder: Builder) -> None:
        self.layer, self.b = layer, builder
        self.cell = layer.op.cell_name
        self.type = layer.x.shape.type
        self.wide = self.type.compute
        self.steps, self.batch, self.features = layer.x.shape.lens
        self.hidden = layer.op.hidden_size
        self.rows = CELLS[self.cell].gates * self.hidden
        self.attributes = layer.op.attributes()
        self._constants: dict[float, Instruction] = {}
        self._weights: dict[tuple[int, int], Instruction] = {}

    def results(self) -> list[Instruction]:
        """Hidden states [s, d, b, h], last hidden states and last cell states [d, b, h]."""
        b = self.b
        outputs: list[Instruction] = []
        hidden: list[Instruction] = []
        state: list[Instruction] = []
        for lanes in self._lanes():
            y, h, c = self._run(lanes)
            outputs += y
            hidden.append(h)
            state.append(c)
        columns = [b.op("unsqueeze", y, axes=(1,)) for y in outputs]
        parts = [self._join(columns, 1), self._join(hidden, 0), self._join(state, 0)]
        return [b.convert(part, self.type) for part in parts]

    def _join(self, parts: list[Instruction], axis: int) -> Instruction:
        return parts[0] if len(parts) == 1 else self.b.op("concat", *parts, axis=axis)

    def _lanes(self) -> list[Lanes]:
        """One group for all directions if their functions agree, else one for each."""
        count = CELLS[self.cell].activations
        functions: tuple[Operator, ...] = self.attributes["actv_func"]
        direction: RnnDirection = self.attributes["direction"]
        if direction is not RnnDirection.bidirectional:
            return [Lanes([0], [direction is RnnDirection.reverse], functions[:count])]
        first, second = functions[:count], functions[count : 2 * count] or functions[:count]
        if first == second:
            return [Lanes([0, 1], [False, True], first)]
        return [Lanes([0], [False], first), Lanes([1], [True], second)]

    def _pick(self, value: Instruction, lanes: Lanes) -> Instruction:
        """The directions of a group of an input [d, ...], in the computing type."""
        b = self.b
        if len(lanes.directions) < value.shape.lens[0]:
            start = lanes.directions[0]
            value = b.op("slice", value, axes=(0,), starts=(start,), ends=(start + 1,))
        return b.convert(value, self.wide)

    def _run(self, lanes: Lanes) -> tuple[list[Instruction], Instruction, Instruction]:
        b, layer, n = self.b, self.layer, len(lanes.directions)
        self.functions, self.lens = lanes.functions, (n, self.batch, self.hidden)
        self._constants, self._weights = {}, {}
        projected = self._projected(lanes)
        self.recurrent = b.transpose(self._pick(layer.r, lanes), (0, 2, 1))
        self.peepholes = None if layer.peephole is None else self._pick(layer.peephole, lanes)
        zero = self._constant(0)
        hidden = None if layer.hidden is None else self._pick(layer.hidden, lanes)
        state = zero if layer.state is None else self._pick(layer.state, lanes)
        running = self._running(lanes)
        outputs: list[Instruction] = []
        for t in range(self.steps):
            start = t * self.batch
            x = b.op("slice", projected, axes=(1,), starts=(start,), ends=(start + self.batch,))
            next_hidden, next_state = getattr(self, f"_{self.cell}")(x, hidden, state)
            if running is None:
                hidden, state = next_hidden, next_state
                outputs.append(hidden)
                continue
            on = b.op("squeeze", b.op("slice", running, axes=(0,), starts=(t,), ends=(t + 1,)), axes=(0,))
            on = b.spread(on, self.lens)
            outputs.append(b.op("where", on, next_hidden, zero))
            hidden = b.op("where", on, next_hidden, zero if hidden is None else hidden)
            state = b.op("where", on, next_state, state) if next_state is not state else state
        assert hidden is not None
        return [self._column(outputs, k, back) for k, back in enumerate(lanes.backward)], hidden, state

    def _column(self, outputs: list[Instruction], lane: int, backward: bool) -> Instruction:
        """Hidden states [s, b, h] of one lane, in the order of the positions."""
        b = self.b
        parts = outputs[::-1] if backward else outputs
        if self.lens[0] > 1:
            parts = [b.op("slice", y, axes=(0,), starts=(lane,), ends=(lane + 1,)) for y in parts]
        return self._join(parts, 0)

    def _projected(self, lanes: Lanes) -> Instruction:
        """``x @ w^T + bias`` for all steps, [lanes, s * b, gates * h]; a backward lane's steps are in reverse order."""
        b, layer = self.b, self.layer
        x = b.convert(layer.x, self.wide)
        reverse = b.op("reverse", x, axes=(0,)) if any(lanes.backward) else x
        rows = [
            b.op("reshape", reverse if back else x, dims=(1, self.steps * self.batch, self.features))
            for back in lanes.backward
        ]
        weights = b.transpose(self._pick(layer.w, lanes), (0, 2, 1))
        product = b.op("dot", self._join(rows, 0), weights)
        if layer.bias is None:
            self.inner_bias = None
            return product
        bias = self._pick(layer.bias, lanes)
        outer, inner = self._columns(bias, 0, self.rows), self._columns(bias, self.rows, 2 * self.rows)
        kept = 2 * self.hidden if self._resets_after_product() else self.rows
        self.inner_bias = None
        if kept < self.rows:
            # the candidate's recurrent bias is multiplied by the reset gate: it cannot be added here
            self.inner_bias = self._row(self._columns(inner, kept, self.rows), self.lens)
            rest = b.scalar(0, Shape(self.wide, (self.lens[0], self.rows - kept)))
            inner = b.op("concat", self._columns(inner, 0, kept), rest, axis=1)
        return b.op("add", product, self._row(b.op("add", outer, inner), product.shape.lens))

    def _columns(self, value: Instruction, start: int, end: int) -> Instruction:
        axis = value.shape.ndim - 1
        if (start, end) == (0, value.shape.lens[axis]):
            return value
        return self.b.op("slice", value, axes=(axis,), starts=(start,), ends=(end,))

    def _row(self, value: Instruction, lens: tuple[int, ...]) -> Instruction:
        """Values [lanes, n] for each row of [lanes, rows, n]."""
        return self.b.spread(self.b.op("unsqueeze", value, axes=(1,)), lens)

    def _gate(self, gates: Instruction, index: int) -> Instruction:
        return self._columns(gates, index * self.hidden, (index + 1) * self.hidden)

    def _resets_after_product(self) -> bool:
        return self.cell == "gru" and bool(self.attributes.get("linear_before_reset"))

    def _running(self, lanes: Lanes) -> Instruction | None:
        """Whether each step is within each sequence, [s, lanes, b, 1]; ``None`` when all sequences are whole."""
        b, lengths = self.b, self.layer.lengths
        if lengths is None:
            return None
        values = constant_array(lengths)
        if values is not None and (values >= self.steps).all():
            return None
        step = np.arange(self.steps)
        position = np.stack([step[::-1] if back else step for back in lanes.backward], 1)
        lens = (self.steps, len(lanes.backward), self.batch, 1)
        wide = b.convert(lengths, Type.int64_type)
        limit = b.spread(b.op("unsqueeze", wide, axes=(0, 1, 3)), lens)
        return b.op("less", b.spread(b.literal(position[:, :, None, None].astype(np.int64)), lens), limit)

    def _constant(self, value: float) -> Instruction:
        """A number with the lengths of a state."""
        if value not in self._constants:
            self._constants[value] = self.b.scalar(value, Shape(self.wide, self.lens))
        return self._constants[value]

    def _apply(self, position: int, x: Instruction) -> Instruction:
        """Activation function of a gate, f or g, on clipped input."""
        clip = float(self.attributes["clip"])
        if clip > 0:
            x = self.b.op("clip", x, self._constant(-clip), self._constant(clip))
        return self.b.op(self.functions[position], x)

    def _product(self, hidden: Instruction | None, start: int, end: int) -> Instruction | None:
        """``hidden @ r^T`` for some rows of r; ``None`` for a zero state."""
        if hidden is None:
            return None
        if (start, end) not in self._weights:
            self._weights[start, end] = self._columns(self.recurrent, start, end)
        return self.b.op("dot", hidden, self._weights[start, end])

    def _plus(self, x: Instruction, y: Instruction | None) -> Instruction:
        return x if y is None else self.b.op("add", y, x)

    def _rnn(self, x: Instruction, hidden: Instruction | None, state: Instruction) -> tuple[Instruction, Instruction]:
        return self._apply(0, self._plus(x, self._product(hidden, 0, self.rows))), state

    def _gru(self, x: Instruction, hidden: Instruction | None, state: Instruction) -> tuple[Instruction, Instruction]:
        b, n = self.b, self.hidden
        inner: Instruction | None
        if self._resets_after_product():
            product = self._product(hidden, 0, 3 * n)
            gates = self._plus(self._columns(x, 0, 2 * n), product and self._columns(product, 0, 2 * n))
            inner = product and self._columns(product, 2 * n, 3 * n)
            inner = inner if self.inner_bias is None else self._plus(self.inner_bias, inner)
            reset = self._apply(0, self._gate(gates, 1))
            inner = inner and b.op("mul", reset, inner)
        else:
            gates = self._plus(self._columns(x, 0, 2 * n), self._product(hidden, 0, 2 * n))
            reset = self._apply(0, self._gate(gates, 1))
            inner = self._product(hidden and b.op("mul", reset, hidden), 2 * n, 3 * n)
        update = self._apply(0, self._gate(gates, 0))
        candidate = self._apply(1, self._plus(self._gate(x, 2), inner))
        fresh = b.op("mul", b.op("sub", self._constant(1), update), candidate)
        return self._plus(fresh, hidden and b.op("mul", update, hidden)), state

    def _lstm(self, x: Instruction, hidden: Instruction | None, state: Instruction) -> tuple[Instruction, Instruction]:
        b = self.b
        gates = self._plus(x, self._product(hidden, 0, self.rows))
        enter = self._apply(0, self._peep(self._gate(gates, 0), 0, state))
        if self.attributes.get("input_forget"):
            forget = b.op("sub", self._constant(1), enter)
        else:
            forget = self._apply(0, self._peep(self._gate(gates, 2), 2, state))
        fresh = b.op("mul", enter, self._apply(1, self._gate(gates, 3)))
        state = b.op("add", b.op("mul", forget, state), fresh)
        leave = self._apply(0, self._peep(self._gate(gates, 1), 1, state))
        return b.op("mul", leave, b.op(self.functions[2], state)), state

    def _peep(self, gate: Instruction, index: int, state: Instruction) -> Instruction:
        if self.peepholes is None:
            return gate
        weights = self._row(self._gate(self.peepholes, index), self.lens)
        return self.b.op("add", gate, self.b.op("mul", weights, state))
