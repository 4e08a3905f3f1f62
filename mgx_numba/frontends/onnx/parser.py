"""`parse_onnx`: translates an ONNX model to a program, graph by graph and node by node."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.shape import DynamicDimension, Shape
from ...environment import environment_flag
from ...errors import MgxError, OptionError, ParseError, UnsupportedError
from ...garbage import uncollected
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ...messages import warn
from ...nearest import did_you_mean
from ..composite import composed, is_product
from ..handlers import check_arity
from . import registry
from .builder import Builder, NameScope
from .deferred import Attempt, values_taken
from .functions import expand, function_attributes, has_body, resolve_attributes, schema_attributes, schema_body
from .legacy import modernised
from .leniency import FinalError, Leniency
from .losses import LOSSES, check_loss
from .model import OLDEST_OPSET, Model, canonical_domain, load_model
from .node import Node
from .optional import OPTIONAL_OPERATORS
from .options import ParseOptions, name_of_length
from .order import label, sorted_nodes
from .promotion import Promotion, promotion
from .schema import Schema, check_node, find_schema, form_of, home_of, implied_opset, newest_since
from .sequence import SEQUENCE_OPERATORS, drop_unused
from .tensors import declared_shape, elem_name, element_count, ir_type, replacing, type_string

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, ValueInfoProto

_FIRST_WITH_DEFAULTS = 4
"""First IR version in which only initializers that are also inputs are default values (ONNX IR.md); before, all
were."""

WIDE_PRODUCTS = frozenset("AffineGrid DFT Einsum Resize STFT Upsample".split())
"""Operators whose products stay float32 if another rounding follows inside the node; they rarely dominate a model's
time. Products of all other nodes are rounded to the operands' type, as for MatMul."""
_OF_ANY_RANK = SEQUENCE_OPERATORS | OPTIONAL_OPERATORS


@np.errstate(all="ignore")
def parse(source: object, options: ParseOptions) -> Program:
    """Parse a model with the given options; see `mgx_numba.frontends.onnx.parse_onnx`.

    Overflow and NaN in constants raise no NumPy warnings. ``MIGRAPHX_TRACE_ONNX_PARSER`` prints each node with its
    results.
    """
    with uncollected():
        model = load_model(source, options.external_data_path)
        parser = GraphParser(model, options)
        try:
            parser.parse_main()
        except Exception:
            if options.print_program_on_error:
                print(parser.program, file=sys.stderr)
            raise
        return parser.program


class GraphParser:
    """A parser of the graphs of one model into one program.

    Attributes:
        model: the decoded model.
        options: the parse options.
        program: the program so far.
        constants: values known at parse time.
        settled: the module in which a node with unknown lengths or values is an error; elsewhere the node is deferred.
        leniency: records accepted deviations from the ONNX specification.
    """

    def __init__(
        self,
        model: Model,
        options: ParseOptions,
        program: Program | None = None,
        constants: Constants | None = None,
        *,
        reread: bool = False,
    ) -> None:
        """Set up a parser; ``reread`` is set for models parsed again, whose nodes have already given their warnings."""
        self.model = model
        self.options = options
        self.program = Program() if program is None else program
        self.constants = Constants(self.program.allowance) if constants is None else constants
        self.settled: Module | None = None
        self.leniency = Leniency(options.strict, silent=reread)
        self._traces = environment_flag("MIGRAPHX_TRACE_ONNX_PARSER")

    def beside(self, model: Model, program: Program) -> GraphParser:
        """Return a parser, with the same options, of a model derived from this parser's model."""
        return GraphParser(model, self.options, program, reread=True)

    def read_into(self, module: Module, inputs: Sequence[Instruction]) -> list[Instruction]:
        """Read the main graph into a module, with the given values for its inputs; return its results.

        Raises:
            UnknownValueError: a node needs an unknown value or length; the node's instructions are removed.
            MgxError: the graph cannot be read, or does not fit the inputs.
        """
        self.settled = module
        g, scope, graph = Builder(module, self), NameScope(self.model.opsets), self.model.graph
        for info, x in zip(graph.input, inputs, strict=True):
            scope.define(info.name, x)
        return self.parse_graph(g, graph, scope)

    def parse_main(self) -> None:
        """Read the main graph.

        Raises:
            MgxError: the model has a fault; the message names the place. No other errors escape.
        """
        graph = self.model.graph
        main = self.program.main
        g = Builder(main, self)
        scope = NameScope(self.model.opsets)
        try:
            self._initializers(g, graph, scope)
            self._parameters(g, graph, scope)
            main.add_return(self.parse_graph(g, graph, scope))
            for module in reversed(self.program.modules):
                drop_unused(module)
            self._check_outputs(graph, main)
            self.program.origin = self.model.origin()
        except MgxError:
            raise
        except Exception as error:
            raise ParseError(f"graph {graph.name!r}: {type(error).__name__}: {error}") from error

    def parse_graph(self, g: Builder, graph: GraphProto, scope: NameScope) -> list[Instruction]:
        """Read a graph's nodes and return its results; ``scope`` already holds its inputs and initializers."""
        self.parse_nodes(g, graph.node, scope, graph.name)
        if not graph.output:
            raise ParseError(f"graph {graph.name!r} has no outputs")
        results = []
        for output in graph.output:
            if not output.name or not scope.knows(output.name):
                raise ParseError(f"graph {graph.name!r} has output {output.name!r}, which no node gives")
            value = scope.find(output.name)
            if value is None:
                raise ParseError(f"graph {graph.name!r} has output {output.name!r}, which is an absent optional value")
            results.append(value)
        return results

    def subgraph(
        self, g: Builder, graph: GraphProto, scope: NameScope, module: Module, inputs: Mapping[str, Instruction]
    ) -> list[Instruction]:
        """Read a node's subgraph into ``module``, with values for its inputs; outer values are captured.

        Returns:
            The graph's results; the module has no ``@return`` yet.
        """
        inner = scope.inner()
        builder = g if module is g.module else Builder(module, self)
        try:
            self._initializers(builder, graph, inner, numbered=False)
        except ParseError as error:
            raise FinalError(str(error)) from error
        for name, value in inputs.items():
            inner.define(name, value)
        return self.parse_graph(builder, graph, inner)

    def parse_nodes(self, g: Builder, nodes: Sequence[NodeProto], scope: NameScope, graph: str) -> None:
        """Read nodes in an order in which every value is defined before it is used."""
        for index, proto in sorted_nodes(nodes, scope.knows, graph, self.leniency):
            self.read_node(g, proto, index, scope, graph)

    def read_node(self, g: Builder, proto: NodeProto, index: int, scope: NameScope, graph: str) -> None:
        """Read one node of a graph; its results are defined in ``scope``.

        Raises:
            MgxError: the node has a fault; the message names the place.
        """
        try:
            node = self.node(proto, index, scope)
        except MgxError as error:
            raise type(error)(f"graph {graph!r}: {label(proto, index)}: {error}") from None
        previous, place = g.symbols, g.place
        g.place = place or node.where
        if self.options.use_debug_symbols and not previous:
            g.symbols = (node.name or f"{node.op_type}_{index}",)
        try:
            with self.leniency.one_warning(node):
                self._parse_node(g, node, scope)
        except MgxError as error:
            raise type(error)(f"{node.where}: {error}") from (error.__cause__ or error)
        except Exception as error:
            raise ParseError(f"{node.where}: {_unexpected(error, node)}") from error
        finally:
            g.symbols, g.place = previous, place

    def node(self, proto: NodeProto, index: int, scope: NameScope) -> Node:
        """Return a node with the operator set in force for it."""
        proto = resolve_attributes(proto, scope.attributes)
        domain = canonical_domain(proto.domain)
        if not domain and (domain, proto.op_type, proto.overload) not in self.model.functions:
            domain = home_of(proto.op_type)
        opset = scope.opsets.get(domain)
        if opset is None:
            opset = implied_opset(domain)
        if opset is None:
            known = ", ".join(repr(d or "ai.onnx") for d in sorted(scope.opsets)) or "none"
            raise ParseError(f"its domain {domain or 'ai.onnx'!r} is not imported; imported are: {known}")
        node = Node(proto, domain, opset, index, scope, self.leniency, self.model.tensor)
        if domain and canonical_domain(proto.domain) != domain:
            node.accept(f"its domain {domain!r} is not given")
        elif domain not in scope.opsets:
            node.accept(f"its domain {domain!r} is not imported")
        return node

    def _parse_node(self, g: Builder, node: Node, scope: NameScope) -> None:
        inputs = [scope.find(name) for name in node.inputs]
        function = self._model_function(node)
        if function is not None:
            results: Any = expand(g, node, function, inputs, function_attributes(function), scope.path)
        else:
            handler, schema, promoted = self._operator(node, inputs)
            any_rank = not node.domain and node.op_type in _OF_ANY_RANK
            attempt = Attempt(g, node, inputs, any_rank)
            if attempt.error is None:
                with attempt:
                    given = promoted.promoted(g, inputs)
                    results = promoted.restored(g, self._parse_operator(g, node, given, scope, handler, schema))
            if attempt.error is not None:
                results = attempt.deferred(promoted.results)
        single = isinstance(results, Instruction)
        values: list[Any] = [results] if single else list(results)
        if self._traces:
            print(f"{node.where}: {', '.join(map(repr, values))}")
        for position, name in enumerate(node.outputs):
            if not name:
                continue
            if position >= len(values) or values[position] is None:
                raise UnsupportedError(f"output {position} ({name!r}) is not supported")
            scope.define(name, values[position])

    def _model_function(self, node: Node) -> FunctionProto | None:
        return self.model.functions.get((node.domain, node.op_type, node.proto.overload))

    def _operator(
        self, node: Node, inputs: list[Instruction | None]
    ) -> tuple[registry.Handler | None, Schema | None, Promotion]:
        """Return a node's handler, the schema version that the node fits, and the promotion of its inputs' types."""
        promoted = Promotion()
        handler = registry.find(node.domain, node.op_type)
        schema = find_schema(node.domain, node.op_type, node.opset)
        if handler is None and (schema is None or not has_body(schema)) and not self.options.skip_unknown_operators:
            raise self._unknown(node)
        since = newest_since(node.domain, node.op_type) if schema is None and handler is not None else None
        if since is not None:
            node.accept(f"the operator exists from operator set {since} on")
            node.opset, schema = since, find_schema(node.domain, node.op_type, since)
        if schema is not None and not schema.deprecated:
            schema = form_of(node, schema)
            check_node(node, schema)
            promoted = promotion(node, schema, [self._type_string(x) for x in inputs])
        if handler is not None and not _is_old(node, schema):
            check_arity(handler, inputs)
        return handler, schema, promoted

    def _parse_operator(
        self,
        g: Builder,
        node: Node,
        inputs: list[Instruction | None],
        scope: NameScope,
        handler: registry.Handler | None,
        schema: Schema | None,
    ) -> object:
        if handler is not None:
            if schema is not None and _is_old(node, schema):
                inputs = modernised(g, node, schema, inputs)
                check_arity(handler, inputs)
            if node.op_type == "BatchNormalization" and inputs[0] is not None and is_product(inputs[0]):
                return handler.parse(g, node, *inputs)  # folded into the product's weights, without rounding inside
            return composed(g, lambda given: handler.parse(g, node, *given), inputs, node.op_type in WIDE_PRODUCTS)
        if schema is not None and schema_body(node, schema, inputs) is not None:
            return composed(g, lambda given: _expanded(g, node, schema, given, scope.path), inputs)
        if self.options.skip_unknown_operators:
            return [g.op("unknown", *(x for x in inputs if x is not None), operator=node.op_type)] * len(node.outputs)
        raise self._unknown(node)

    def _unknown(self, node: Node) -> MgxError:
        since = newest_since(node.domain, node.op_type)
        if since is not None and since > node.opset:
            return FinalError(f"the operator exists from operator set {since} on")
        if since is not None:
            return UnsupportedError("the operator is not supported")
        elsewhere = registry.domains_of(node.op_type)
        if elsewhere:
            return FinalError(f"unknown operator {node.op_type!r}; it is known in domain {', '.join(elsewhere)}")
        hint = did_you_mean(node.op_type, registry.names()) or ";"
        way = f"register_custom_op({node.domain or 'your.domain'!r}, {node.op_type!r}, ...) adds a custom one"
        return FinalError(f"unknown operator {node.op_type!r}{hint} {way}")

    def _type_string(self, x: Instruction | None) -> str | None:
        if x is None or x.shape.sub_shapes:
            return None
        return type_string(x.shape)

    def _initializers(self, g: Builder, graph: GraphProto, scope: NameScope, numbered: bool = True) -> None:
        for number, tensor in enumerate(graph.initializer):
            if not tensor.name:
                raise ParseError(f"graph {graph.name!r}: initializer #{number} has no name")
            if numbered and tensor.name in self.options.opened:
                continue
            try:
                value = self.literal(g, tensor, number if numbered else None)
            except MgxError as error:
                self.unreadable(error.__class__(f"graph {graph.name!r}: initializer {error}"), tensor.name, scope)
                continue
            scope.define(tensor.name, value)
        for sparse in graph.sparse_initializer:
            scope.define(sparse.values.name, g.literal(self.model.sparse_tensor(sparse)))

    def unreadable(self, error: MgxError, name: str, scope: NameScope) -> None:
        """Raise the error of an unreadable input or initializer; subclasses may record it instead."""
        raise error

    def literal(self, g: Builder, tensor: Any, initializer: int | None = None) -> Instruction:
        """Emit a tensor as a literal that borrows the tensor's memory."""
        given = None if initializer is None else self.options.initializers.get(tensor.name)
        return g.literal(self.model.tensor(tensor, initializer) if given is None else replacing(tensor, given))

    def _parameters(self, g: Builder, graph: GraphProto, scope: NameScope) -> None:
        names = dict.fromkeys(i.name for i in graph.input if not scope.knows(i.name))
        for option in ("map_input_dims", "map_dyn_input_dims"):
            for name in getattr(self.options, option):
                if name not in names:
                    raise OptionError(
                        f"{option} names {name!r}, which is no input; inputs are: {', '.join(names) or 'none'}"
                    )
        symbols: set[str] = set()
        overridable = self.model.proto.ir_version >= _FIRST_WITH_DEFAULTS
        for info in graph.input:
            if not info.name:
                raise ParseError(f"graph {graph.name!r} has an input without a name")
            default = None if info.name in names or not overridable else scope.find(info.name)
            if default is not None:
                self.program.defaults[info.name] = default.shape
            if info.name in names:
                try:
                    shape = self.input_shape(info, f"graph {graph.name!r}: input {info.name!r}", symbols)
                except (ParseError, UnsupportedError) as error:
                    self.unreadable(error, info.name, scope)
                    continue
                parameter = g.module.add_parameter(info.name, shape)
                scope.define(info.name, parameter)
                opened = self._open_axes(info)
                if opened:
                    self.program.open_dims[info.name] = opened
        for symbol in self.options.dim_params:
            if symbol not in symbols:
                listed = ", ".join(sorted(symbols)) or "none"
                warn(f"dim_params names {symbol!r}, which no input has; symbolic dimensions are: {listed}")

    def input_shape(self, info: ValueInfoProto, where: str, symbols: set[str]) -> Shape:
        """Return the shape of a declared input under the options, and add its symbolic dimensions to ``symbols``.

        Raises:
            ParseError: there is no type, or a dimension is invalid.
            UnsupportedError: it is a map or a sparse tensor; its element type is not supported; or neither the model
                nor the options give a shape.
            OptionError: dimensions given for it have another rank.
        """
        kind = info.type.WhichOneof("value")
        if kind is None:
            raise ParseError(f"{where} has no type")
        if kind != "tensor_type":
            try:
                return declared_shape(info.type)
            except MgxError as error:
                raise error.__class__(f"{where}: {error}") from None
        tensor = info.type.tensor_type
        try:
            type = ir_type(tensor.elem_type)
        except MgxError as error:
            raise error.__class__(f"{where}: {error}") from None
        declared = tensor.shape.dim
        for dim in declared:
            if dim.WhichOneof("value") == "dim_param" and dim.dim_param:
                symbols.add(dim.dim_param)
        dims = self.options.given_dims(info.name)
        if dims is None:
            if not tensor.HasField("shape"):
                raise UnsupportedError(f"{where} has no shape; give its dimensions in map_input_dims")
            element_count([max(0, d.dim_value) for d in declared], where)
            for axis, dim in enumerate(declared):
                if self._is_open(dim) and dim.WhichOneof("value") == "dim_value":
                    self.leniency.accept(f"{where}: axis {axis} has length {dim.dim_value}, taken for an unknown one")
            dims = [self._dim(d) for d in declared]
        elif tensor.HasField("shape"):
            if len(dims) != len(declared):
                raise OptionError(f"{where} has {len(declared)} dimensions, but {len(dims)} are given for it")
            dims = [replace(d, symbol=name_of_length(e.dim_param)) for d, e in zip(dims, declared, strict=True)]
        if not dims:
            return Shape(type)
        try:
            return Shape.dynamic(type, dims)
        except MgxError as error:
            raise ParseError(f"{where}: {error}") from None

    def _open_axes(self, info: ValueInfoProto) -> dict[int, str]:
        """Return the symbols (or "") of the axes of an input whose length comes only from ``default_dim_value``."""
        if self.options.given_dims(info.name) is not None or not self.options.default_dim_value:
            return {}
        dims, given = info.type.tensor_type.shape.dim, self.options.dim_params
        return {k: d.dim_param for k, d in enumerate(dims) if self._is_open(d) and d.dim_param not in given}

    def _is_open(self, dim: Any) -> bool:
        """Return whether a declared dimension has no length; in strict mode 0 is a length."""
        return dim.WhichOneof("value") != "dim_value" or dim.dim_value < (0 if self.options.strict else 1)

    def _dim(self, dim: Any) -> DynamicDimension:
        if not self._is_open(dim):
            return DynamicDimension(dim.dim_value, dim.dim_value)
        if dim.dim_param:
            return self.options.symbol(dim.dim_param)
        return self.options.unknown_dim

    def _check_outputs(self, graph: GraphProto, main: Module) -> None:
        for info, value in zip(graph.output, main.results(), strict=False):
            number = info.type.tensor_type.elem_type
            given = self._type_string(value)
            declared = f"tensor({elem_name(number)})"
            if number and given is not None and given != declared:
                self.leniency.accept(
                    f"graph {graph.name!r}: output {info.name!r} is declared as {declared}, its node gives {given}"
                )


def _unexpected(error: Exception, node: Node) -> str:
    """Return the message of an error that no parser function foresaw, with the shapes of the node's inputs."""
    given = ", ".join(f"{name!r} {x.shape}" for name, x in values_taken(node).items())
    return f"{type(error).__name__}: {error}; inputs are {given or 'none'}"


def _expanded(
    g: Builder, node: Node, schema: Schema, inputs: Sequence[Instruction | None], path: tuple[str, ...]
) -> list[Instruction | None]:
    """Return the results of ONNX's function body for the operator."""
    if node.op_type in LOSSES:
        check_loss(node, inputs)
    body = schema_body(node, schema, inputs)
    assert body is not None  # a body for 16-bit inputs implies a body for float32
    return expand(g, node, body, inputs, schema_attributes(schema), path)


def _is_old(node: Node, schema: Schema | None) -> bool:
    """Return whether a node may have a form older than parser functions accept."""
    return node.domain == "" and node.opset < OLDEST_OPSET and schema is not None
