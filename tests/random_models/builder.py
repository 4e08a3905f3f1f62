"""An ONNX graph under construction in which every value is known, as in NNSmith.

Each node is evaluated by ONNX Runtime when it is added, so that a step of the generator can see whether indices are
valid, a divisor is zero or a product has overflowed, and take the node back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..values import small
from .choices import Choices
from .known import oracle_defect
from .oracle import OracleError, runtime

__all__ = ["FLOATS", "INTEGERS", "LENGTHS", "MAX_ELEMENTS", "Builder", "Value", "free_names", "random_array"]

MAX_ELEMENTS = 1500
"""Small enough that generating, compiling and comparing a graph takes about a second."""
FLOATS = (np.float32,) * 6 + (np.float64, np.float16)
INTEGERS = (np.int64, np.int64, np.int32, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
LENGTHS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33)
OPSETS = (13, 17, 18, 20, 21, 23)
"""Versions at which many operators changed: axes as inputs, norms, pads of axes, GELU, 4-bit types, attention."""
IR_VERSION = 10
MOST = {2: 200.0, 4: 1e4, 8: 1e6}
"""The largest magnitude of values by bytes of their type: far enough from overflow for a product or two."""


def random_array(type: Any, lens: Sequence[int], rng: np.random.Generator, special: bool = False) -> np.ndarray:
    """Small values, half of the time multiples of a quarter; ``special`` adds NaN, infinities and zeros."""
    quarters = np.dtype(type).kind == "f" and not rng.integers(2)
    return small(type, lens, rng, quarters, special)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph: its name, what it is, and whether the model holds it as an initializer."""

    name: str
    array: np.ndarray
    constant: bool = False

    @property
    def lens(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def type(self) -> np.dtype:
        return self.array.dtype

    @property
    def floating(self) -> bool:
        return self.type.kind == "f"

    @property
    def integral(self) -> bool:
        return self.type.kind in "iu"

    @property
    def finite(self) -> bool:
        return not self.floating or bool(np.isfinite(self.array).all())


class Builder(Choices):
    """A graph, or the body of a node of ``outer``, whose values it may capture.

    Args:
        seed: decides everything.
        outer: the graph around; a body has no inputs of its own but those that `enter` makes.
    """

    def __init__(self, seed: int, outer: Builder | None = None) -> None:
        self.rng = np.random.default_rng(seed) if outer is None else outer.rng
        super().__init__(lambda low, high: int(self.rng.integers(low, high, endpoint=True)))
        self.outer = outer
        self.names: Iterator[int] = itertools.count() if outer is None else outer.names
        self.opset: int = self.pick(OPSETS) if outer is None else outer.opset
        self.special: bool = self.chance(6) if outer is None else outer.special
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[Value] = []
        self.constants: list[Value] = []
        self.pool: list[Value] = [] if outer is None else list(outer.pool)
        self.leaves: list[Value] = []
        self.wrong: dict[str, np.ndarray] = {}
        self.steps: list[Callable[[Builder], Any]] = [] if outer is None else outer.steps
        self.depth: int = 0 if outer is None else outer.depth + 1

    # Values

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self.names)}"

    def value(self, accept: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value of the pool, the newer the likelier; one in four times one of any age that no chain reaches."""
        found = [v for v in self.pool if accept(v)]
        if not found:
            return None
        return found[-1 - min(self.integer(0, len(found) - 1), self.integer(0, len(found) - 1))]

    def tensor(self, accept: Callable[[Value], bool] = lambda v: True, type: Any = None) -> Value:
        """A value of the pool, or a new one of one to four dimensions."""
        return self.value(accept) or self.new(self.lens((1, 4), MAX_ELEMENTS, LENGTHS), type or self.pick(FLOATS))

    def new(self, lens: Sequence[int], type: Any, special: bool | None = None) -> Value:
        """An input or an initializer with random values."""
        array = random_array(type, lens, self.rng, self.special if special is None else special)
        return self.constant(array) if self.outer is not None or self.chance(2) else self.input(array)

    def input(self, array: np.ndarray) -> Value:
        made = Value(self.fresh("x"), array)
        self.inputs.append(made)
        self.pool.append(made)
        return made

    def constant(self, array: Any, type: Any = None) -> Value:
        made = Value(self.fresh("c"), np.array(array, type), constant=True)
        self.constants.append(made)
        return made

    def enter(self, array: np.ndarray) -> Value:
        """An input of a body, with its value in the first iteration."""
        made = Value(self.fresh("b"), np.array(array))
        self.inputs.append(made)
        self.pool.append(made)
        return made

    def ints(self, values: Any, type: Any = np.int64) -> Value:
        """Indices, axes or lengths: an initializer, or computed from one where a frontend must fold it."""
        made = self.constant(values, type)
        return (self.node("Identity", [made], keep=False) or made) if self.chance(8) else made

    # Nodes

    def node(
        self, op: str, inputs: Sequence[Value | None], *, domain: str = "", keep: bool = True, **attributes: Any
    ) -> Value | None:
        """A node with one output, as `outputs` makes it."""
        made = self.outputs(op, inputs, 1, domain=domain, keep=keep, **attributes)
        return made[0] if made else None

    def outputs(
        self,
        op: str,
        inputs: Sequence[Value | None],
        count: int,
        *,
        domain: str = "",
        keep: bool = True,
        captured: Sequence[Value] = (),
        missing: Sequence[int] = (),
        **attributes: Any,
    ) -> list[Value]:
        """A node's outputs, or none if ONNX Runtime refuses it or its values are useless.

        Args:
            op, inputs, domain, attributes: the node; attributes that are ``None`` or empty are left out.
            count: number of outputs.
            keep: whether later steps may use the outputs.
            captured: values that the node's bodies take from around it.
            missing: numbers of outputs that the node does not have.
        """
        names = ["" if k in missing else self.fresh("v") for k in range(count)]
        given = {k: v for k, v in attributes.items() if v is not None and v != []}
        made = helper.make_node(op, [v.name if v else "" for v in inputs], names, domain=domain, **given)
        if oracle_defect(made, inputs, self.opset):
            return []
        return self._add([made], [v for v in (*inputs, *captured) if v is not None], [n for n in names if n], keep)

    def chain(self, x: Value, steps: Sequence[tuple[str, dict[str, Any]]]) -> Value | None:
        """Unary nodes in a row, between which types may be such as NumPy has not."""
        names = [x.name, *(self.fresh("v") for _ in steps)]
        made = [helper.make_node(op, [a], [c], **given) for (op, given), a, c in zip(steps, names, names[1:])]
        found = self._add(made, [x], names[-1:], keep=True)
        return found[0] if found else None

    def _add(self, made: list[onnx.NodeProto], inputs: list[Value], names: list[str], keep: bool) -> list[Value]:
        used = {v.name: v for v in inputs}
        graph = _graph(made, [v for v in used.values() if not v.constant], names, used.values())
        try:
            results = runtime(_model(graph, self.opset), {n: v.array for n, v in used.items() if not v.constant})
        except OracleError:
            return []
        values = [Value(n, np.asarray(r)) for n, r in zip(names, results)]
        if any(not self._useful(v, used.values()) for v in values):
            return []
        self.nodes.extend(made)
        if keep:
            self.pool.extend(values)
        return values

    def _useful(self, value: Value, inputs: Any) -> bool:
        """Whether something can be said of what is computed from the value."""
        if value.array.size > 4 * MAX_ELEMENTS or value.type.kind not in "fiub" or value.rank > 6:
            return False
        if not value.floating:
            return True
        wide = np.abs(value.array.astype(np.float64))
        finite = np.isfinite(wide)
        if not finite.all() and all(v.finite for v in inputs):
            return False
        return not finite.any() or float(wide[finite].max()) <= MOST[value.type.itemsize]

    def leaf(self, value: Value) -> Value:
        """Make a value a result of the model."""
        self.leaves.append(value)
        return value

    def graph(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> onnx.GraphProto:
        """The nodes so far as a graph."""
        return _graph(self.nodes, inputs, [v.name for v in outputs], self.constants, name, outputs)

    def captured(self) -> list[Value]:
        """Return the values of outer graphs that the nodes read."""
        return self.outer.visible(free_names(self.nodes)) if self.outer is not None else []

    def visible(self, names: set[str]) -> list[Value]:
        """Return the values of these names in this graph and outer graphs."""
        known = {v.name: v for v in (*self.pool, *self.inputs, *self.constants)}
        found = [known[n] for n in names if n in known]
        return found + (self.outer.visible(names - known.keys()) if self.outer is not None else [])

    def model(self, outputs: Sequence[Value]) -> onnx.ModelProto:
        """The whole as a model."""
        used = free_names(self.nodes) | {v.name for v in outputs}
        self.inputs = [v for v in self.inputs if v.name in used]
        self.constants = [v for v in self.constants if v.name in used]
        return _model(self.graph("graph", self.inputs, outputs), self.opset)

    def shape_elements(self, *lens: int) -> bool:
        """Return whether a tensor of these lengths is within the size limit."""
        return prod(lens) <= 2 * MAX_ELEMENTS


def free_names(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the names that nodes and their bodies read, whether or not the nodes define them."""
    found: set[str] = set()
    for node in nodes:
        found.update(n for n in node.input if n)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= free_names(attribute.g.node) | {o.name for o in attribute.g.output}
    return found


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.type), value.lens)


def _graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Any,
    name: str = "graph",
    known: Sequence[Value] = (),
) -> onnx.GraphProto:
    """A graph; outputs that are not known are declared by name only, which ONNX Runtime completes."""
    types = {
        v.name: helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.type), [None] * v.rank)
        for v in known
    }
    declared = [types.get(n) or onnx.ValueInfoProto(name=n) for n in outputs]
    held = [numpy_helper.from_array(v.array, v.name) for v in constants if v.constant]
    return helper.make_graph(list(nodes), name, [_info(v) for v in inputs], declared, held)


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
