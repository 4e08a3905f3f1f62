"""Deferred nodes: nodes that can be parsed only once lengths or values are known, stored in the program until then.

A parser function requests values and lengths (`Builder.constant`, `Builder.lens`). If they are unknown, the node
becomes an `ops.deferred.Deferred` whose source is an ONNX model of this one node. Its inputs are the node's inputs and
the outer values that its subgraphs use. `reader` parses that model once more is known.

Element types and ranks of their results are inferred: ONNX's shape inference is tried first, then parsing for sample
lengths.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.shape import UNBOUNDED, DynamicDimension, Shape
from ...core.types import Type
from ...errors import MgxError, UnknownValueError, UnsupportedError
from ...graph.instruction import Instruction
from ...graph.program import Program
from ...ops.base import is_known
from ...ops.custom import custom_name
from ...ops.deferred import LENGTH_SCALARS, Deferred, is_length
from .builder import Builder, is_scalar
from .leniency import FinalError
from .model import canonical_domain, load_model, opset_versions
from .node import Node
from .onnx_package import infer_shapes, messages
from .schema import find_schema
from .tensors import declared_shape, ir_type, onnx_number, type_proto

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto


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


SHARED = {("GroupQueryAttention", 1): 3, ("GroupQueryAttention", 2): 4, ("QLinearConcat", 0): 1}
"""Input that a result shares its type with, by operator and result, for operators that ONNX does not define. Results of
all other operators named QLinear have the type of the first input."""

SAME_RANK = ("MaxUnpool", "Split")
"""Operators whose results have the first input's rank, which ONNX's inference tells only for constant lengths."""

_SMALL = 256
"""Largest number of elements of a constant that shape inference receives. Parsing for sample lengths receives a larger
constant only if it fails without: it would fold the weights once more for each sample."""

SAMPLES = (8, 1, 2, 4, 16, 64)
"""Lengths that are tried in place of ranges, until a node can be parsed for two of them. They are far apart, so that
clamped lengths are seen to vary. After them come the lengths of inputs, which other lengths may have to equal."""


def result_shapes(
    g: Builder, model: ModelProto, inputs: Sequence[Instruction], error: BaseException | None
) -> list[Shape]:
    """Infer the shape of every result of a model of one node.

    Args:
        g: the builder that the values belong to.
        model: a model whose graph inputs are ``inputs``, in order.
        inputs: values of the graph inputs.
        error: why the node is deferred; raised if a result's type cannot be inferred.

    If neither method gives a type, a result has the type of an input that must share it by the operator's schema.
    Without a schema, `SHARED` names that input, or the first floating-point input's type is assumed, which is right for
    almost all operators that ONNX does not define. Parsing the node later fails if the assumption is wrong.
    """
    found = _inferred(g, model, inputs, error)
    if any(f is None for f in found):
        tried = _tried(g, model, inputs)
        found = [f or t for f, t in zip(found, tried, strict=True)] if tried else found
    results = []
    for k, f in enumerate(found):
        type = None if f is not None else _shared_type(model, k, inputs) or _usual_type(inputs)
        if f is None and type is None:
            raise error or MgxError("types of results are not known")
        results.append(f if type is None else Shape.unranked(type))
    return [r for r in results if r is not None]


def _shared_type(model: ModelProto, result: int, inputs: Sequence[Instruction]) -> Type | None:
    """Return the type of an input that shares its type with a result by the operator's schema."""
    node = model.graph.node[0]
    domain = canonical_domain(node.domain)
    schema = find_schema(domain, node.op_type, opset_versions(model.opset_import).get(domain, 1))
    place = list(node.output).index(model.graph.output[result].name)
    values = dict(zip((i.name for i in model.graph.input), inputs))
    if schema is None or not schema.source.outputs:
        position = SHARED.get((node.op_type, place), 0 if node.op_type.startswith("QLinear") else None)
        given = None if position is None else values.get(node.input[position])
        return None if given is None else given.shape.type
    formals = schema.source.outputs
    formal = formals[min(place, len(formals) - 1)]
    for position, name in enumerate(node.input):
        if name in values and not values[name].shape.sub_shapes and schema.formal(position).type == formal.type_str:
            return values[name].shape.type
    return None


def _usual_type(inputs: Sequence[Instruction]) -> Type | None:
    """Return the first floating-point type of the inputs, else the first type."""
    types = [x.shape.type for x in inputs if not x.shape.sub_shapes]
    return next((t for t in types if t.is_floating), types[0] if types else None)


def _inferred(
    g: Builder, model: ModelProto, inputs: Sequence[Instruction], error: BaseException | None
) -> list[Shape | None]:
    if _is_open_reshape(g, model, inputs):  # its inference says nothing, and a transformer has four in each layer
        return [_ranked(model, inputs[0].shape.type, inputs)]
    copy = type(model)()
    copy.CopyFrom(model)
    ranges: dict[str, DynamicDimension] = {}
    for k, (info, x) in enumerate(zip(copy.graph.input, inputs, strict=True)):
        if not x.shape.ranked or x.shape.element is not None:
            continue
        shape = info.type.tensor_type.shape
        shape.SetInParent()
        for axis, dim in enumerate(x.shape.dims if not is_scalar(x) else ()):
            entry = shape.dim.add()
            if dim.is_fixed:
                entry.dim_value = dim.min
            else:
                entry.dim_param = dim.symbol or f"input {k} axis {axis}"
                ranges[entry.dim_param] = dim
        _show(g, copy, info.name, x)
    try:
        copy = infer_shapes(copy)
    except Exception:  # parsing the node will report the fault
        return [None] * len(model.graph.output)
    kinds = {o.type.WhichOneof("value") for o in copy.graph.output}
    if not kinds <= {None, "tensor_type", "sequence_type", "optional_type", "map_type"}:
        raise error or UnsupportedError("a result is no tensor, sequence, optional or map")
    return [_shape(copy, o.type, inputs, ranges) for o in copy.graph.output]


def _show(g: Builder, model: ModelProto, name: str, x: Instruction) -> None:
    """Add an input's known value to the model."""
    if x.shape.is_dynamic or x.shape.elements > _SMALL or x.shape.type.is_narrow or x.shape.type.holds_objects:
        return
    value = g.constants.value(x)
    if isinstance(value, np.ndarray):
        array = value.reshape(()) if is_scalar(x) else value
        tensor = model.graph.initializer.add(name=name, data_type=onnx_number(x.shape.type), dims=array.shape)
        tensor.raw_data = np.ascontiguousarray(array).tobytes()


def _shape(
    model: ModelProto, given: TypeProto, inputs: Sequence[Instruction], ranges: dict[str, DynamicDimension]
) -> Shape | None:
    if given.WhichOneof("value") in ("sequence_type", "optional_type", "map_type"):
        return declared_shape(given)
    number = given.tensor_type.elem_type
    if given.WhichOneof("value") != "tensor_type" or not number:
        return None
    type = ir_type(number)
    if not given.tensor_type.HasField("shape"):
        return _ranked(model, type, inputs)
    # onnx 1.23 treats unknown lengths as 0 in products: those of Attention's heads
    dims = [
        DynamicDimension(d.dim_value, d.dim_value)
        if d.WhichOneof("value") == "dim_value" and (d.dim_value or not ranges)
        else ranges.get(d.dim_param, DynamicDimension(0, UNBOUNDED))
        for d in given.tensor_type.shape.dim
    ]
    return Shape.dynamic(type, dims) if dims else Shape(type)


def _is_open_reshape(g: Builder, model: ModelProto, inputs: Sequence[Instruction]) -> bool:
    """Return whether a node is a Reshape of a tensor to lengths of which no value is known."""
    node = model.graph.node[0]
    if node.op_type != "Reshape" or node.domain or len(inputs) != 2 or inputs[0].shape.element is not None:
        return False
    return inputs[0].shape.ranked and (inputs[1].shape.is_dynamic or g.constants.value(inputs[1]) is None)


def _ranked(model: ModelProto, type: object, inputs: Sequence[Instruction]) -> Shape:
    """Return a shape unknown to ONNX's inference. Its rank is the first input's for `SAME_RANK`, the number of target
    lengths for Reshape."""
    node = model.graph.node[0]
    kind = inputs[0].shape.type.__class__
    assert isinstance(type, kind)
    if node.op_type == "Reshape" and not node.domain and len(inputs) > 1:
        lengths = inputs[-1].shape
        if not lengths.is_dynamic and lengths.ndim == 1 and not lengths.without_axes:
            unknown = [DynamicDimension(0, UNBOUNDED)] * lengths.lens[0]
            return Shape.dynamic(type, unknown) if unknown else Shape(type)
    if node.op_type in SAME_RANK and not node.domain and inputs[0].shape.ranked and not is_scalar(inputs[0]):
        return Shape.dynamic(type, [DynamicDimension(0, UNBOUNDED)] * len(inputs[0].shape.dims))
    return Shape.unranked(type)


def _tried(g: Builder, model: ModelProto, inputs: Sequence[Instruction]) -> list[Shape | None] | None:
    """Return the node's result shapes for sample lengths.

    Lengths that are equal for two samples are taken as fixed; with one sample only the rank is used.
    """
    if any(not x.shape.ranked for x in inputs):
        return None
    seen: list[list[Shape]] = []
    fixed_lens = sorted({d.min for x in inputs for d in x.shape.dims if d.is_fixed})
    for sample in dict.fromkeys((*SAMPLES, *fixed_lens)):
        shapes = _read_for(g, model, inputs, sample, _SMALL) or _read_for(g, model, inputs, sample, UNBOUNDED)
        if shapes is not None:
            seen.append(shapes)
        if len(seen) == 2:
            break
    if not seen:
        return None
    results: list[Shape | None] = []
    for column in zip(*seen, strict=True):
        if len({s.ndim for s in column}) > 1 or any(s.sub_shapes or s.is_dynamic for s in column):
            return None
        first = column[0]
        unknown = DynamicDimension(0, UNBOUNDED)
        fixed = [len(seen) > 1 and len({s.lens[k] for s in column}) == 1 for k in range(first.ndim)]
        dims = [n if known else unknown for n, known in zip(first.lens, fixed)]
        results.append(first if first.without_axes else Shape.dynamic(first.type, dims))
    return results


def _read_for(
    g: Builder, model: ModelProto, inputs: Sequence[Instruction], sample: int, most: int
) -> list[Shape] | None:
    """Return the node's result shapes for one sample length and the values of constants of up to ``most`` elements;
    None if it cannot be parsed so."""
    program = Program()
    values = []
    by_scalars = model.graph.node[0].op_type in LENGTH_SCALARS
    for k, x in enumerate(inputs):
        known = None if x.shape.is_dynamic or x.shape.elements > most else g.constants.value(x)
        if isinstance(known, np.ndarray):
            values.append(program.main.add_literal(known.reshape(()) if is_scalar(x) else known))
            continue
        if by_scalars and is_length(x.shape):
            values.append(program.main.add_literal(np.array(sample, x.shape.type.numpy)))
            continue
        lens = [min(max(sample, d.min), d.max) for d in x.shape.dims]
        shape = Shape(x.shape.type, lens) if x.shape.is_dynamic else x.shape
        values.append(program.main.add_parameter(f"p{k}", shape))
    try:
        return [r.shape for r in g.parser.beside(load_model(model), program).read_into(program.main, values)]
    except MgxError:
        return None
