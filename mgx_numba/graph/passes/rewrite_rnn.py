"""Rewrite recurrent layers as one product of all inputs with the input weights, and one operator for the steps.

Equations: ONNX operators RNN, GRU and LSTM.
"""

from __future__ import annotations

from ...core.dim import is_symbolic, known_equal
from ...core.shape import Shape
from ...dataclass import dataclass
from ...ops.base import Operator
from ...ops.recurrence import CELLS
from ...ops.recurrent_steps import RecurrentSteps
from ...ops.rnn import RecurrentBase, RnnDirection
from ..constants import constant_array
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .merge_rnn_outputs import RECURRENT, last_states
from .rewriter import remove_dead


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent layer's operator and inputs (None where missing)."""

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
    def of(cls, ins: Instruction) -> RecurrentLayer:
        """Read an instruction."""
        inputs: list[Instruction | None] = [None if i.name == "undefined" else i for i in ins.inputs]
        inputs += [None] * (8 - len(inputs))
        return cls(ins.op, *inputs)  # type: ignore[arg-type]


@dataclass
class Lanes:
    """Directions that are computed together: their activation functions f, g, h are equal."""

    directions: list[int]
    backward: list[bool]
    functions: tuple[Operator, ...]


class RewriteRnn(Pass):
    """``rnn``, ``gru``, ``lstm`` and ``recurrent`` -> ``dot`` and ``recurrent_steps``.

    16-bit floats are computed in float32. Directions with different functions become separate instructions.
    """

    name = "rewrite_rnn"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module.named({*RECURRENT, "recurrent"}):
            empty = any(known_equal(n, 0) for n in ins.inputs[0].shape.lens)
            if any(i.shape.is_dynamic for i in ins.inputs) or empty or ins is module.last:
                continue
            builder = RewriteBuilder(module, ins)
            results = _Rewriter(RecurrentLayer.of(ins), builder).results()
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


class _Rewriter:
    """Builds the new form of one layer."""

    def __init__(self, layer: RecurrentLayer, builder: RewriteBuilder) -> None:
        self.layer, self.b = layer, builder
        self.cell = layer.op.cell_name
        self.type = layer.x.shape.type
        self.wide = self.type.compute
        self.steps, self.batch, self.features = layer.x.shape.lens
        self.hidden = layer.op.hidden_size
        self.rows = CELLS[self.cell].gates * self.hidden
        self.attributes = layer.op.attributes()
        self.resets_after = self.cell == "gru" and bool(self.attributes.get("linear_before_reset"))

    def results(self) -> list[Instruction]:
        """Return hidden states [s, d, b, h], last hidden states and, for LSTM, last cell states [d, b, h]."""
        groups = [self._run(lanes) for lanes in self._lanes()]
        whole = [
            parts[0] if len(parts) == 1 else self.b.op("concat", *parts, axis=axis)
            for parts, axis in zip(zip(*groups), (1, 0, 0))
        ]
        return [self.b.convert(part, self.type) for part in whole]

    def _lanes(self) -> list[Lanes]:
        """Return one group of all directions if their functions are equal, else one per direction."""
        count = CELLS[self.cell].activations
        functions: tuple[Operator, ...] = self.attributes["actv_func"]
        direction: RnnDirection = self.attributes["direction"]
        if direction is not RnnDirection.bidirectional:
            return [Lanes([0], [direction is RnnDirection.reverse], functions[:count])]
        first, second = functions[:count], functions[count : 2 * count] or functions[:count]
        if first == second:
            return [Lanes([0, 1], [False, True], first)]
        return [Lanes([0], [False], first), Lanes([1], [True], second)]

    def _run(self, lanes: Lanes) -> list[Instruction]:
        b, layer = self.b, self.layer
        optional: dict[str, Instruction | None] = {"bias": None, "lengths": self._lengths()}
        x = self._projected(lanes, optional)
        for name in ("hidden", "state", "peephole"):
            value: Instruction | None = getattr(layer, name) if self.cell == "lstm" or name == "hidden" else None
            optional[name] = None if value is None else self._pick(value, lanes)
        given = {name: value for name in RecurrentSteps.OPTIONAL if (value := optional.get(name)) is not None}
        op = RecurrentSteps(
            cell=self.cell,
            hidden_size=self.hidden,
            backward=sum(1 << k for k, back in enumerate(lanes.backward) if back),
            actv_func=lanes.functions,
            clip=float(self.attributes["clip"]),
            linear_before_reset=self.resets_after,
            input_forget=bool(self.attributes.get("input_forget")),
            given=" ".join(given),
        )
        steps = b.op(op, x, self._pick(layer.r, lanes), *given.values())
        return [b.op("get_tuple_elem", steps, index=k) for k in range(len(steps.shape.sub_shapes))]

    def _pick(self, value: Instruction, lanes: Lanes) -> Instruction:
        """Return a group's directions of an input [d, ...] in the compute type."""
        both = self.attributes["direction"] is RnnDirection.bidirectional
        if both and len(lanes.directions) < 2:
            start = lanes.directions[0]
            value = self.b.slice(value, 0, start, start + 1)
        return self.b.convert(value, self.wide)

    def _lengths(self) -> Instruction | None:
        """Return the sequence lengths; None if all sequences are complete."""
        lengths = self.layer.lengths
        values = None if lengths is None else constant_array(lengths)
        if values is None or is_symbolic(self.steps):
            return lengths
        return None if (values >= self.steps).all() else lengths

    def _projected(self, lanes: Lanes, optional: dict[str, Instruction | None]) -> Instruction:
        """Return ``x @ w^T + bias`` of all steps, [s, b, lanes, gates * h]; a bias to be added later goes to
        ``optional``."""
        b, layer, count = self.b, self.layer, len(lanes.directions)
        x = b.reshape(b.convert(layer.x, self.wide), (self.steps * self.batch, self.features))
        w = b.reshape(self._pick(layer.w, lanes), (count * self.rows, self.features))
        product = b.op("dot", x, b.transpose(w, (1, 0)))
        if layer.bias is not None:
            bias = self._pick(layer.bias, lanes)
            outer, inner = self._columns(bias, 0, self.rows), self._columns(bias, self.rows, 2 * self.rows)
            if self.resets_after:
                # the candidate's recurrent bias is multiplied by the reset gate
                kept = 2 * self.hidden
                optional["bias"] = self._columns(inner, kept, self.rows)
                rest = b.scalar(0, Shape(self.wide, (count, self.hidden)))
                inner = b.op("concat", self._columns(inner, 0, kept), rest, axis=1)
            total = b.reshape(b.op("add", outer, inner), (count * self.rows,))
            product = b.op("add", product, b.broadcast(total, product.shape.lens))
        return b.reshape(product, (self.steps, self.batch, count, self.rows))

    def _columns(self, value: Instruction, start: int, end: int) -> Instruction:
        return self.b.slice(value, 1, start, end)
