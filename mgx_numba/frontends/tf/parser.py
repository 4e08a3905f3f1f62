"""`parse_tf`: translates a frozen TensorFlow graph to a program, from the results back to the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.shape import Shape
from ...errors import MgxError, OptionError, ParseError, UnsupportedError
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.origin import Origin
from ...graph.program import Program
from ...nearest import did_you_mean
from ..builder import GraphBuilder, rank
from ..composite import composed, is_product
from ..handlers import check_arity
from . import registry
from .data_format import FROM_NCHW, TO_NCHW
from .model import TfModel, load_tf_model
from .node import TfNode
from .options import TfOptions
from .tensors import tf_type

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
OWN_OPERATORS = CALLS | {"Placeholder"}
"""Operators that this module reads, not an operator family's module."""
_IGNORED = frozenset({"Assert", "NoOp"})
"""Operators without results, which do not count as outputs of a graph."""
_VARIABLES = frozenset({"ReadVariableOp", "VarHandleOp", "Variable", "VariableV2"})
LARGEST_RANK = 32
"""Largest rank of an input; NumPy's own limit before version 2."""


@np.errstate(all="ignore")
def parse(source: Any, options: TfOptions) -> Program:
    """Parse a model with the given options; see `mgx_numba.frontends.tf.parse_tf`."""
    return TfGraphParser(load_tf_model(source), options).parse_main()


class TfGraphParser:
    """A parser of one graph into one program.

    Attributes:
        model: the decoded model.
        options: the parse options.
        program: the program so far.
    """

    def __init__(self, model: TfModel, options: TfOptions) -> None:
        self.model = model
        self.options = options
        self.program = Program()
        self.functions = {f.signature.name: f for f in model.graph.library.function}
        self.builder = GraphBuilder(self.program.main, Constants(self.program.allowance))

    def parse_main(self) -> Program:
        """Read the graph.

        Raises:
            MgxError: the model has a fault; the message names the place. No other errors escape.
        """
        scope = TfScope(self.model.graph.node)
        results = self._results(scope)
        reached = set(scope.order(results))
        self._parameters(scope, reached)
        values = [self._value(scope, name) for name in results]
        if self.options.is_nhwc:
            values = [self.builder.transpose(v, TO_NCHW) if rank(v) == 4 else v for v in values]
        self.program.main.add_return(values)
        self.program.origin = Origin(output_names=tuple(results))
        return self.program

    def _results(self, scope: TfScope) -> list[str]:
        for name in self.options.output_names:
            if scope.node_of(name) is None:
                hint = did_you_mean(name, scope.nodes)
                raise OptionError(f"output_names has {name!r}, but the graph has no such node{hint}")
        found = list(self.options.output_names or self.model.outputs)
        if not found:
            used = scope.used()
            found = [n for n, node in scope.nodes.items() if n not in used and node.op_type not in _IGNORED | {"Const"}]
            found = [n for n in found if not self._is_input_alone(scope, n)] or found
        if not found:
            raise ParseError("the graph has no results; name them in output_names")
        return found

    @staticmethod
    def _is_input_alone(scope: TfScope, name: str) -> bool:
        return scope.nodes[name].op_type == "Placeholder"

    def _parameters(self, scope: TfScope, reached: set[str]) -> None:
        inputs = {n: node for n, node in scope.nodes.items() if node.op_type == "Placeholder"}
        for name in self.options.map_input_dims:
            if name not in inputs:
                listed = ", ".join(inputs) or "none"
                raise OptionError(f"map_input_dims names {name!r}, which is no input; inputs are: {listed}")
        for name, node in inputs.items():
            if name not in reached:
                continue
            try:
                element, dims = tf_type(node.value("dtype", "type")), self._dims(node)
                x = self.program.main.add_parameter(name, Shape(element, dims) if dims else Shape(element))
            except MgxError as error:
                raise type(error)(f"{node.where}: {error}") from error
            nhwc = self.options.is_nhwc and rank(x) == 4
            scope.define(name, [self.builder.transpose(x, FROM_NCHW) if nhwc else x])

    def _dims(self, node: TfNode) -> list[int]:
        """Return the dimensions of an input of the program."""
        given = self.options.map_input_dims.get(node.name)
        shape = node.value("shape", "shape") if node.has("shape") else None
        if shape is None or shape.unknown_rank:
            if given is None:
                raise UnsupportedError("it has no shape; give its dimensions in map_input_dims")
            return [int(d) for d in given]
        declared = [int(d.size) for d in shape.dim]
        if len(declared) > LARGEST_RANK:
            raise UnsupportedError(f"it has {len(declared)} dimensions, at most {LARGEST_RANK} are supported")
        order = TO_NCHW if self.options.is_nhwc and len(declared) == 4 else range(len(declared))
        own = [declared[k] for k in order]
        if given is None:
            opened = {k: "" for k, d in enumerate(own) if d < 0}
            if opened:
                self.program.open_dims[node.name] = opened
            return [self.options.batch_size if d < 0 else d for d in own]
        dims = [int(d) for d in given]
        if len(dims) != len(own):
            raise OptionError(f"it has {len(own)} dimensions, but map_input_dims gives {dims}")
        if own != declared and not _agrees(dims, own) and _agrees(dims, declared):
            wanted = [dims[k] for k in order]
            raise OptionError(f"map_input_dims gives {dims}, but with is_nhwc the program takes [n, c, h, w]: {wanted}")
        return dims

    def _value(self, scope: TfScope, name: str) -> Instruction:
        """Return the tensor of a name, after reading the nodes that it depends on."""
        for pending in scope.order([name]):
            if not scope.knows(pending):
                self._parse_node(scope, scope.nodes[pending])
        return scope.find(name)

    def _parse_node(self, scope: TfScope, node: TfNode) -> None:
        try:
            inputs = [scope.find(name) for name in node.inputs]
            results = self._parse_operator(scope, node, inputs)
        except MgxError as error:
            raise type(error)(f"{scope.prefix}{node.where}: {error}") from (error.__cause__ or error)
        except Exception as error:
            raise ParseError(f"{scope.prefix}{node.where}: {type(error).__name__}: {error}") from error
        scope.define(node.name, [results] if isinstance(results, Instruction) else list(results))

    def _parse_operator(self, scope: TfScope, node: TfNode, inputs: list[Instruction]) -> Any:
        if node.op_type in CALLS or node.op_type in self.functions:
            name = node.value("f", "func").name if node.op_type in CALLS else node.op_type
            return self._call(scope, name, node, inputs)
        handler = registry.find(node.op_type)
        if handler is None:
            raise self._unknown(node.op_type)
        check_arity(handler, inputs)
        if node.op_type.startswith("FusedBatchNorm") and inputs and is_product(inputs[0]):
            return handler.parse(self.builder, node, *inputs)  # folded into the product's weights
        return composed(self.builder, lambda given: handler.parse(self.builder, node, *given), inputs)

    def _call(self, scope: TfScope, name: str, node: TfNode, inputs: list[Instruction]) -> list[Instruction]:
        function = self.functions.get(name)
        if function is None:
            raise ParseError(f"it calls function {name!r}, which the model does not have")
        if name in scope.path:
            raise UnsupportedError(f"function {name!r} calls itself")
        arguments = [a.name for a in function.signature.input_arg]
        if len(arguments) != len(inputs):
            raise ParseError(f"function {name!r} takes {len(arguments)} inputs, got {len(inputs)}")
        values: Mapping[str, Instruction] = dict(zip(arguments, inputs, strict=True))
        inner = TfScope(function.node_def, node.attributes, values, (*scope.path, name))
        given = {entry.key: entry.value for entry in function.ret}
        results = []
        for output in function.signature.output_arg:
            if output.name not in given:
                raise ParseError(f"function {name!r} gives no {output.name!r}")
            results.append(self._value(inner, given[output.name]))
        return results

    @staticmethod
    def _unknown(op_type: str) -> MgxError:
        if op_type in _VARIABLES:
            return UnsupportedError("it is a variable: freeze the model, so that it has constants")
        if op_type == "Placeholder":
            return UnsupportedError("an input inside of a function is not supported")
        return UnsupportedError(f"the operator is not supported{did_you_mean(op_type, registry.names())}")


def _agrees(dims: list[int], declared: list[int]) -> bool:
    return all(d < 0 or d == n for n, d in zip(dims, declared, strict=True))


class TfScope:
    """Nodes by name, and the results of the nodes read so far.

    A tensor's name is ``node`` or ``node:1`` in a graph; in a function it is an argument, or ``node:output:0``.

    Attributes:
        nodes: the nodes in the file's order.
        path: names of the functions that are being called, outermost first.
    """

    def __init__(
        self,
        nodes: Iterable[Any],
        bindings: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Instruction] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.nodes: dict[str, TfNode] = {}
        self._values: dict[str, Sequence[Instruction]] = {n: [x] for n, x in (arguments or {}).items()}
        for number, proto in enumerate(nodes):
            if not proto.name:
                raise ParseError(f"{self.prefix}node #{number} ({proto.op}) has no name")
            if proto.name in self.nodes or proto.name in self._values:
                raise ParseError(f"{self.prefix}two nodes are called {proto.name!r}")
            self.nodes[proto.name] = TfNode(proto, bindings)

    @property
    def prefix(self) -> str:
        """Return a description of the scope for messages."""
        return f"function {self.path[-1]!r}: " if self.path else ""

    def node_of(self, tensor: str) -> str | None:
        """Return the name of the node or argument that defines a tensor; ``None`` if there is none."""
        name = tensor.partition(":")[0]
        return name if name in self.nodes or name in self._values else None

    def used(self) -> set[str]:
        """Return the names of the nodes that occur as inputs of nodes."""
        return {name.partition(":")[0] for node in self.nodes.values() for name in node.inputs}

    def knows(self, node: str) -> bool:
        """Return whether a node has been read."""
        return node in self._values

    def define(self, node: str, values: Sequence[Instruction]) -> None:
        """Store a node's results."""
        self._values[node] = values

    def find(self, tensor: str) -> Instruction:
        """Return a tensor whose node has been read.

        Raises:
            ParseError: the node has no such result.
        """
        node, _, rest = tensor.partition(":")
        values = self._values[node]
        position = self._position(node, rest) if rest else 0
        if position is None or not 0 <= position < len(values):
            raise ParseError(f"{self.prefix}tensor {tensor!r} is not there: its node gives {len(values)}")
        return values[position]

    def _position(self, node: str, rest: str) -> int | None:
        name, colon, number = rest.rpartition(":")
        if not number.isascii() or not number.isdigit():
            return None
        known = registry.output_names(self.nodes[node].op_type) if node in self.nodes else ()
        first = known.index(name) if colon and name in known else 0
        return first + int(number)

    def order(self, tensors: Iterable[str]) -> list[str]:
        """Return the unread nodes that the tensors depend on, in topological order.

        Raises:
            ParseError: a node depends on a node that does not exist, or on itself.
        """
        result: list[str] = []
        done: set[str] = set()
        open_nodes: set[str] = set()
        stack = [(name, False) for name in reversed([self._existing(t, None) for t in tensors])]
        while stack:
            name, finished = stack.pop()
            if finished:
                open_nodes.discard(name)
                done.add(name)
                result.append(name)
                continue
            if name in done or name in self._values:
                continue
            if name in open_nodes:
                raise ParseError(f"{self.prefix}the graph has a cycle through {self.nodes[name].where}")
            open_nodes.add(name)
            stack.append((name, True))
            stack += [(self._existing(t, name), False) for t in reversed(self.nodes[name].inputs)]
        return result

    def _existing(self, tensor: str, taker: str | None) -> str:
        found = self.node_of(tensor)
        if found is None:
            place = f"{self.nodes[taker].where} takes" if taker is not None else "a result is"
            raise ParseError(f"{self.prefix}{place} {tensor!r}, but there is no such node")
        return found
