"""Deferred nodes: nodes that can be parsed only once lengths or values are known, stored in the program until then.

A parser function requests values and lengths (`Builder.constant`, `Builder.lens`). If they are unknown, the node
becomes an `ops.deferred.Deferred` whose source is an ONNX model of this one node. Its inputs are the node's inputs and
the outer values that its subgraphs use. `reader` parses that model once more is known.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...core.shape import Shape
from ...core.types import Type
from ...errors import UnknownValueError
from ...graph.instruction import Instruction
from ...ops.base import is_known
from ...ops.custom import custom_name
from ...ops.deferred import Deferred
from .builder import Builder
from .inferred import result_shapes
from .leniency import FinalError
from .node import Node
from .onnx_package import messages
from .value_types import type_proto

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

LIMIT = "limit_max_iterations"
"""Metadata key, in a deferred node's model, of the option of this name."""
_DECLARED = "declared lengths of "
"""Start of the metadata keys, in a deferred node's model, of lengths that the whole model declares."""


class Attempt:
    """A context in which a node is parsed, which rolls back if a value or length is still unknown.

    After a rollback ``error`` has the reason, and `deferred` emits the deferred node. Without ``any_rank``, an input of
    unknown rank sets ``error`` at once.
    """

    def __init__(self, g: Builder, node: Node, inputs: Sequence[Instruction | None], any_rank: bool = False) -> None:
        self.error: BaseException | None = None
        self._g, self._node, self._inputs = g, node, inputs
        self._written = len(g.written)
        self._modules = g.parser.program.module_count
        if not any_rank and any(isinstance(x, Instruction) and not x.shape.ranked for x in inputs):
            self.error = UnknownValueError("an input has a number of dimensions that is not known")

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            return False
        if not self._may_wait(error):
            self._take_back()
            return False
        self._take_back()
        self.error = error
        return True

    def _may_wait(self, error: BaseException) -> bool:
        """Return whether the node may be parseable once more is known."""
        if not isinstance(error, Exception) or self._g.module is self._g.parser.settled:
            return False
        if isinstance(error, FinalError):
            return False
        if isinstance(error, UnknownValueError):
            return True
        return any(x.shape.is_dynamic for x in values_taken(self._node).values())

    def _take_back(self) -> None:
        self._g.parser.program.remove_modules_since(self._modules)
        self._g.take_back(self._written)

    def deferred(self, types: Mapping[int, Type]) -> list[Instruction]:
        """Emit a deferred node; return its results. ``types`` has known element types of results, by position."""
        g, node = self._g, self._node
        taken = values_taken(node)
        if g.module is g.parser.settled:
            raise self.error or UnknownValueError("not known")
        model = _model(g, node, taken)
        shapes = result_shapes(g, model, list(taken.values()), self.error)
        places = [k for k, name in enumerate(node.outputs) if name]
        shapes = [s.with_type(types[k]) if k in types else s for k, s in zip(places, shapes, strict=True)]
        op = Deferred(
            operator=node.op_type,
            source=base64.b64encode(model.SerializeToString(deterministic=True)).decode(),
            result=shapes[0] if len(shapes) == 1 else Shape.tuple(shapes),
            needs=tuple(sorted(_custom([node.proto]))),
        )
        ins = g.op(op, *taken.values())
        values = [ins] if len(shapes) == 1 else [g.op("get_tuple_elem", ins, index=k) for k in range(len(shapes))]
        results: list[Any] = [None] * len(node.outputs)
        for k, value in zip(places, values, strict=True):
            results[k] = value
        return results


def values_taken(node: Node) -> dict[str, Instruction]:
    """Return the values that a node uses, by name, including outer values used by its subgraphs."""
    names = dict.fromkeys(node.inputs)
    for attribute in node.proto.attribute:
        for graph in [*([attribute.g] if attribute.type == 5 else ()), *attribute.graphs]:
            names.update(dict.fromkeys(_captured(graph)))
    found = {name: node.scope.find(name) for name in names if name and node.scope.knows(name)}
    return {name: x for name, x in found.items() if isinstance(x, Instruction)}


def _custom(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names of custom operators among nodes and the nodes of their subgraphs."""
    found: set[str] = set()
    for node in nodes:
        found.add(custom_name(node.domain, node.op_type))
        for attribute in node.attribute:
            for graph in [*([attribute.g] if attribute.type == 5 else ()), *attribute.graphs]:
                found |= _custom(graph.node)
    return {name for name in found if is_known(name)}


def _captured(graph: GraphProto) -> list[str]:
    """Return the names that a graph uses and does not define."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {s.values.name for s in graph.sparse_initializer} | {name for n in graph.node for name in n.output}
    used: list[str] = [o.name for o in graph.output]
    for node in graph.node:
        used += node.input
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.type == 5 else ()), *attribute.graphs]:
                used += _captured(inner)
    return [name for name in dict.fromkeys(used) if name and name not in own]


def declared_lengths(g: Builder, name: str) -> list[str]:
    """Return the lengths that the model declares for an input or a result, numbers or symbols; "" where unknown."""
    proto = g.parser.model.proto
    for entry in proto.metadata_props:
        if entry.key == _DECLARED + name:
            return list(entry.value.split("\n"))
    for info in (*proto.graph.input, *proto.graph.output):
        if info.name == name:
            return [d.dim_param or str(d.dim_value or "") for d in info.type.tensor_type.shape.dim]
    return []


def _model(g: Builder, node: Node, taken: dict[str, Instruction]) -> ModelProto:
    """Return a model of one node; its inputs have a type but no shape."""
    parts = messages()
    model: ModelProto = parts.ModelProto(ir_version=g.parser.model.proto.ir_version or parts.IR_VERSION)
    for domain, version in node.scope.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    graph.name = node.name or f"{node.op_type}_{node.index}"
    copy = graph.node.add()
    copy.CopyFrom(node.proto)
    del copy.input[:]
    copy.input.extend(name if name in taken else "" for name in node.proto.input)
    for name, x in taken.items():
        graph.input.add(name=name).type.CopyFrom(type_proto(x.shape, ranked=False))
    for name in node.outputs:
        if name:
            graph.output.add(name=name)
    if any(a.type in (5, 10) for a in node.proto.attribute):
        for function in g.parser.model.functions.values():
            model.functions.add().CopyFrom(function)
    declared = [{name: declared_lengths(g, name) for name in names if name} for names in (taken, node.outputs)]
    if all(any(lengths.values()) for lengths in declared):  # else no lengths can be compared
        for name, lengths in (declared[0] | declared[1]).items():
            model.metadata_props.add(key=_DECLARED + name, value="\n".join(lengths))
    model.metadata_props.add(key=LIMIT, value=str(g.parser.options.limit_max_iterations))
    return model
