"""All steps of a recurrent layer after the inputs' products: what ``rewrite_rnn`` makes of rnn, gru and lstm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic
from .recurrence import CELLS, Recurrence, reverse_sequences
from .rnn import apply_function

T = TypeVar("T")


@register
@dataclass(frozen=True)
class RecurrentSteps(Operator):
    """All steps of a recurrent layer's directions, after the products with the input weights.

    s steps, b sequences, d directions with the same activation functions, h hidden values. Gates are in ONNX's order
    (gru: z r h, lstm: i o f c). Inputs:

    - x [s, b, d, gates * h]: products of the layer's inputs with the input weights, plus all biases that can be added
      in advance
    - r [d, gates * h, h]: recurrent weights
    - then the inputs that ``given`` names (separated by blanks), in this order:
      - ``bias`` [d, h]: a gru's recurrent bias of the candidate, which the reset gate multiplies
      - ``lengths`` [b]: lengths of the sequences, integers
      - ``hidden``, ``state`` [d, b, h]: initial states
      - ``peephole`` [d, 3 * h]
      - ``scales`` [d, gates * h]: scales of the rows of r, which is int8 then
      - ``points`` [d, gates * h]: int32 zero points of the rows of r; only with ``dynamic``

    With ``scales`` the states are quantised to int8 for their products (`recurrence.quantized_product`); with
    ``dynamic`` to uint8, by the range of all sequences (`recurrence.dynamic_product`).

    If bit k of ``backward`` is set, direction k reads x[:, :, k] from the last step to the first. After the end of a
    sequence its results are 0 and its states are constant. Results: the hidden states [s, d, b, h], the last hidden
    states [d, b, h] and, for lstm, the last cell states [d, b, h].
    """

    name: ClassVar[str] = "recurrent_steps"
    OPTIONAL: ClassVar[tuple[str, ...]] = ("bias", "lengths", "hidden", "state", "peephole", "scales", "points")
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("dynamic",)
    cell: str = "lstm"
    hidden_size: int = 1
    backward: int = 0
    actv_func: tuple[Operator, ...] = ()
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    given: str = ""
    dynamic: bool = False

    def named(self, inputs: Sequence[T]) -> dict[str, T]:
        """Return the optional inputs by name."""
        return dict(zip(self.given.split(), inputs[2:]))

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2 + len(self.given.split()))
        if self.cell not in CELLS:
            raise self.fail(f"cell is {self.cell!r}, expected one of {', '.join(CELLS)}")
        x, r = inputs[:2]
        if x.ndim != 4:
            raise self.fail(f"the products must be [steps, batch, directions, gates * hidden], got {x}")
        h, rows = self.hidden_size, CELLS[self.cell].gates * self.hidden_size
        if any_dynamic(inputs):
            return self._dynamic_shape(x, r)
        steps, batch, d, width = x.lens
        expected = {
            "bias": (d, h), "lengths": (batch,), "hidden": (d, batch, h), "state": (d, batch, h),
            "peephole": (d, 3 * h), "scales": (d, rows), "points": (d, rows),
        }  # fmt: skip
        if width != rows or r.lens != (d, rows, h):
            raise self.fail(f"products {x} and recurrent weights {r} do not fit {h} hidden units")
        named = self.named(inputs)
        kind = Type.int8_type if "scales" in named else x.type
        if ("points" in named and not self.dynamic) or (self.dynamic and "scales" not in named):
            raise self.fail("zero points are of products with a dynamic range alone, which have scales")
        if r.type is not kind:
            raise self.fail(f"recurrent weights are {r.type.name}, expected {kind.name}")
        for name, shape in named.items():
            if name not in expected or shape.lens != expected[name]:
                raise self.fail(f"input {name!r} is {shape}, expected lengths {expected.get(name, 'of no such input')}")
        if len(self.actv_func) != CELLS[self.cell].activations:
            raise self.fail(f"{len(self.actv_func)} activation functions, expected {CELLS[self.cell].activations}")
        last = Shape(x.type, (d, batch, h))
        states = [last, last] if self.cell == "lstm" else [last]
        return Shape.tuple([Shape(x.type, (steps, d, batch, h)), *states])

    def _dynamic_shape(self, x: Shape, r: Shape) -> Shape:
        """Shapes of the results where lengths are not known."""
        steps, batch, _, _ = x.dims
        d = r.dims[0]
        last = Shape.dynamic(x.type, [d, batch, self.hidden_size])
        states = [last, last] if self.cell == "lstm" else [last]
        return Shape.tuple([Shape.dynamic(x.type, [steps, d, batch, self.hidden_size]), *states])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        x, r = args[:2]
        steps, batch, d, rows = x.shape
        h, named = self.hidden_size, self.named(args)
        lengths = named["lengths"].astype(np.int64) if "lengths" in named else np.full(batch, steps)
        zero = np.zeros((d, batch, h), x.dtype)
        hidden, state = named.get("hidden", zero), named.get("state", zero)
        columns = []
        for k in range(d):
            bias = np.zeros((2, rows), x.dtype)
            if "bias" in named:
                bias[1, rows - h :] = named["bias"][k]
            scales, points = (named[name][k] if name in named else None for name in ("scales", "points"))
            peephole = named["peephole"][k].reshape(3, h) if "peephole" in named else np.zeros((3, h), x.dtype)
            layer = Recurrence(
                cell=self.cell, w=r[k], r=r[k], bias=bias, peephole=peephole,
                activations=[partial(apply_function, f) for f in self.actv_func], clip=self.clip,
                linear_before_reset=self.linear_before_reset, input_forget=self.input_forget, scales=scales,
                dynamic=self.dynamic, points=points,
            )  # fmt: skip
            back = self.backward >> k & 1
            source = reverse_sequences(x[:, :, k], lengths) if back else x[:, :, k]
            y, last, last_state = layer.advance(source, lengths, hidden[k], state[k])
            columns.append((reverse_sequences(y, lengths) if back else y, last, last_state))
        results = [np.stack(parts, axis) for parts, axis in zip(zip(*columns), (1, 0, 0))]
        return results[: len(output.sub_shapes)]

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * inputs[0].elements * self.hidden_size
