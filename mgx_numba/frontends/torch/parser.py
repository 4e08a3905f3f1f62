"""`parse_graph`: translates a functional ATen graph of PyTorch to a program, node by node."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from sympy import Expr
from torch.fx import GraphModule, Node
from torch.utils._sympy.value_ranges import ValueRanges

from ...core.shape import Shape
from ...core.types import Type
from ...errors import MgxError, ParseError, UnsupportedError
from ...garbage import uncollected
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.program import Program
from . import registry
from .builder import AtenBuilder
from .control_flow import BUILDERS as BODIES
from .decompositions import decomposition_table
from .emission import emit
from .node import AtenNode, located
from .symbols import Symbols
from .types import TYPES, ir_type

DECOMPOSITIONS = decomposition_table()
"""PyTorch's decompositions of the operators that have no builder here."""
IGNORED = frozenset(
    {
        "aten::_assert_scalar",
        "aten::_assert_async.msg",
        "aten::_assert_async",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
        "aten::_assert_tensor_metadata",
        "aten::_linalg_check_errors",
    }
)
"""Operators that check and give no result."""
COMPLEX_VIEWS = frozenset({"aten::view_as_real", "aten::view_as_complex"})
"""Operators that do nothing to a complex tensor of a program, whose parts are a last axis of length 2."""
OF_MEMORY = "the strides are those of a tensor whose elements have no known order in memory"
"""Reason why a view of memory is not supported."""
DEVICES = ("cpu", "cuda")
"""Kinds of devices that programs compute on."""
SKIPPED = frozenset("device layout pin_memory memory_format non_blocking copy generator requires_grad".split())
"""Arguments that do not affect the values of a result."""


@np.errstate(all="ignore")
def parse_graph(
    graph_module: GraphModule,
    *,
    constants: Mapping[str, torch.Tensor | np.ndarray],
    ranges: Mapping[Expr, ValueRanges] | None = None,
) -> Program:
    """Return the program of a functional ATen graph.

    Args:
        graph_module: the graph, whose nodes have their values' types and shapes in ``meta["val"]``.
        constants: tensors (or arrays) of placeholders that become constants, which use their memory.
        ranges: ranges of symbols (SymPy's) that hold instead of those that PyTorch has assumed for tracing.

    Raises:
        MgxError: an operator is not supported or does not fit; the message names the node and its source line.
    """
    with uncollected():
        return AtenGraphParser(graph_module, constants, ranges or {}).parse()


def unsupported(graph_module: GraphModule) -> list[tuple[Node, str]]:
    """Return the nodes of an ATen graph that have no builder, or a type that has no counterpart, each with a reason."""
    found = []
    for node in graph_module.graph.nodes:
        name = operator_name(node)
        if node.op != "call_function" or Symbols.is_symbolic(node.meta.get("val")) or name in COMPLEX_VIEWS:
            continue
        if is_higher_order(node):
            reason = _body_unsupported(graph_module, node)
            if reason:
                found.append((node, reason))
            continue
        trains = name == "aten::native_dropout" and node.args[2] is not False
        if name not in IGNORED and not _is_member(node) and (trains or registry.find(name) is None):
            found.append((node, "it takes random numbers" if trains else "there is no builder for it"))
            continue
        device = next((x.device for x in _tensors(node.meta.get("val")) if x.device.type not in DEVICES), None)
        if device is not None:
            found.append((node, f"its result is on {device}"))
            continue
        if "as_strided" in name and _memory_order(node) is None:
            found.append((node, OF_MEMORY))
            continue
        values = [x.meta.get("val") for x in node.all_input_nodes]
        types = [x.dtype for x in _tensors([node.meta.get("val"), *values])]
        lacking = [t for t in types if str(t) not in TYPES or TYPES[str(t)].hosted]
        if lacking:
            found.append((node, f"element type {lacking[0]} is not supported"))
    return found


def _memory_order(node: Node) -> list[int] | None:
    """Return the axes of the tensor that a view of memory takes, from the slowest to the quickest.

    Returns:
        The order of the axes. None if the tensor has gaps or does not begin at the start of its storage; and, unless
        the tensor is row-major, for an input of the graph and for a write to the view. An input that becomes a constant
        is copied row-major, which loses the order of its axes in memory.
    """
    source = node.args[0]
    value = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor) or value.storage_offset():
        return None
    axes, strides = list(range(value.dim())), value.stride()
    if value.is_contiguous():
        return axes
    if source.op == "placeholder" or "scatter" in operator_name(node):  # type: ignore[union-attr]
        return None
    if not all(isinstance(n, int) for n in (*value.shape, *strides)):
        return None
    order = sorted(axes, key=lambda axis: -strides[axis])
    return order if value.permute(order).is_contiguous() else None


def is_higher_order(node: Node) -> bool:
    """Return whether a node's operator has bodies, such as ``cond``."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def bodies(graph_module: GraphModule, node: Node) -> list[GraphModule]:
    """Return the graphs that a node of a higher-order operator runs."""
    named = (x for x in node.all_input_nodes if x.op == "get_attr")
    found = (graph_module.get_submodule(str(x.target)) for x in named if hasattr(graph_module, str(x.target)))
    return [x for x in found if isinstance(x, GraphModule)]


def _body_unsupported(graph_module: GraphModule, node: Node) -> str:
    """Return why a higher-order operator is not supported; an empty text if it is."""
    if operator_name(node) not in BODIES:
        return "there is no builder for it"
    values = node.meta.get("val")
    if not isinstance(values, (list, tuple)) or not all(isinstance(x, torch.Tensor) for x in values):
        return "a result is no tensor"
    lacking = [pair for graph in bodies(graph_module, node) for pair in unsupported(graph)]
    return f"in its body {operator_name(lacking[0][0])}: {lacking[0][1]}" if lacking else ""


def operator_name(node: Node) -> str:
    """Return the operator of a node, such as ``aten::add.Tensor``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}".removesuffix(".default")
    return getattr(target, "__name__", str(target))


def _is_member(node: Node) -> bool:
    return operator_name(node) == "getitem"


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for v in value for x in _tensors(v)] if isinstance(value, (list, tuple)) else []


class AtenGraphParser:
    """A parser of one graph into one program.

    Attributes:
        program: the program so far.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        constants: Mapping[str, torch.Tensor | np.ndarray],
        ranges: Mapping[Expr, ValueRanges],
    ) -> None:
        self.graph_module = graph_module
        self.given = constants
        self.program = Program()
        self.builder = AtenBuilder(self.program.main, Constants(self.program.allowance), self.program)
        self.symbols = Symbols(self.builder, ranges)
        self.values: dict[Node, Any] = {}
        self._literals: dict[object, Instruction] = {}

    def parse(self) -> Program:
        """Read the graph."""
        for node in self.graph_module.graph.find_nodes(op="placeholder"):
            self.values[node] = self._placeholder(node)
        results = self._results(self.graph_module)
        self.program.main.add_return(
            [x if isinstance(x, Instruction) else self.builder.literal(x) for x in results if x is not None]
        )
        self.program.main.remove_unused()
        return self.program

    def _results(self, graph_module: GraphModule) -> list[Any]:
        """Read the nodes of a graph whose inputs have values; return the values of its results."""
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = self._attribute(graph_module, node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op not in ("placeholder", "output"):
                raise UnsupportedError(f"node {node.name!r} is a {node.op}, which no ATen graph has")
        found = graph_module.graph.output_node().args[0]
        return [self._argument(x) for x in (found if isinstance(found, (list, tuple)) else [found])]

    def _inlined(self, graph_module: GraphModule, values: Sequence[object], g: AtenBuilder) -> list[Instruction]:
        """Emit the graph of a body by a builder, with values for its inputs; return its results."""
        own, literals = self.builder, self._literals
        self.builder, self._literals = g, {}
        try:
            self.values.update(zip(graph_module.graph.find_nodes(op="placeholder"), values, strict=True))
            return [
                g.value(x, x.shape.type) if isinstance(x, Instruction) else g.literal(x)
                for x in self._results(graph_module)
            ]
        finally:
            self.builder, self._literals = own, literals

    def _placeholder(self, node: Node) -> object:
        name, value = node.name, node.meta.get("val")
        if node.name in self.given:
            return self._constant(self.given[node.name])
        if isinstance(value, torch.Tensor):
            try:
                shape = self.shape(value)
            except MgxError as error:
                raise type(error)(f"input {name!r}: {error}") from error
            x = self.program.main.add_parameter(name, shape)
            self.symbols.learn(x, value.shape)
            return x
        if isinstance(value, torch.SymInt):
            return self.symbols.placeholder(name, value)
        return value

    def _constant(self, tensor: torch.Tensor | np.ndarray) -> Instruction:
        """Return the literal of a tensor, the same for tensors of the same memory and shape."""
        if isinstance(tensor, np.ndarray):
            return self.builder.literal(tensor)
        tensor = _parts(tensor)
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        found = self._literals.get(key) if tensor.numel() else None
        if found is None:
            found = self._literals[key] = self.builder.literal(array_of(tensor))
        return found

    def _attribute(self, graph_module: GraphModule, node: Node) -> object:
        value = operator.attrgetter(str(node.target))(graph_module)
        return self._constant(value) if isinstance(value, torch.Tensor) else value

    def shape(self, value: torch.Tensor) -> Shape:
        """Return the shape of a value of a graph, with ranges for open lengths."""
        if value.layout is not torch.strided:
            raise UnsupportedError(f"a tensor of layout {value.layout} is not supported")
        value = _parts(value)
        type = ir_type(value.dtype)
        return Shape.dynamic(type, [self.symbols.dimension(n) for n in value.shape]) if value.dim() else Shape(type)

    def _call(self, node: Node) -> None:
        name, value = operator_name(node), node.meta.get("val")
        if Symbols.is_symbolic(value):
            self.values[node] = value
            if name == "aten::_local_scalar_dense" and isinstance(value, (torch.SymInt, torch.SymFloat)):
                self.symbols.number(value, self._argument(node.args[0]))
            return
        if name == "getitem":
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if name in IGNORED:
            return
        if name in COMPLEX_VIEWS:
            self.values[node] = self.values[node.args[0]]  # type: ignore[index]
            return
        described = self._described(node, name)
        try:
            self.values[node] = self._built(node, described)
        except MgxError as error:
            culprit = "" if is_higher_order(node) else error.node
            raise located(error, described, culprit) from (error.__cause__ or error)
        except Exception as error:
            raise located(ParseError(f"{type(error).__name__}: {error}"), described) from error
        if node.meta.get("unbacked_bindings"):  # the graph's first mention of lengths that follow from data
            made = self.values[node]
            pairs = zip(*((x if isinstance(x, (list, tuple)) else [x]) for x in (made, value)))
            for x, tensor in pairs:
                if isinstance(x, Instruction) and isinstance(tensor, torch.Tensor):
                    self.symbols.learn(x, tensor.shape)

    def _described(self, node: Node, name: str) -> AtenNode:
        value = node.meta.get("val")
        members = list(value) if isinstance(value, (list, tuple)) else [value]
        types: list[Type | None] = [ir_type(v.dtype) if isinstance(v, torch.Tensor) else None for v in members]
        ranks = [v.dim() if isinstance(v, torch.Tensor) else 0 for v in members]
        read = {user.args[1] for user in node.users if _is_member(user)}
        used = [k in read for k in range(len(members))] if isinstance(value, (list, tuple)) else []
        return AtenNode(node.name, name, types, ranks, _source_line(node), used)

    def _built(self, node: Node, described: AtenNode) -> object:
        if is_higher_order(node):
            self.builder.symbols = (node.name,)
            body = BODIES.get(described.operator)
            if body is None:
                raise UnsupportedError("the operator is not supported")
            return body(self.builder, self._inlined, *map(self._argument, node.args))
        if registry.find(described.operator) is None:
            raise UnsupportedError("the operator is not supported")
        g = self.builder
        g.symbols = (node.name,)
        args = [self._argument(a) for a in node.args]
        if "as_strided" in described.operator:
            order = _memory_order(node)
            if order is None:
                raise UnsupportedError(OF_MEMORY)
            if order != sorted(order):
                args[0] = g.op("transpose", args[0], permutation=order)
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items() if k not in SKIPPED}
        value = node.meta.get("val")
        members = list(value) if isinstance(value, (list, tuple)) else [value]
        shapes = [self.shape(v) if isinstance(v, torch.Tensor) else None for v in members]
        results = emit(g, described, args, kwargs, shapes)
        return results if isinstance(value, (list, tuple)) else results[0] if results else None

    def _argument(self, value: object) -> Any:
        """Return an argument of a node as builders take it: instructions, numbers, strings, types and lists."""
        if isinstance(value, Node):
            found = self.values.get(value)
            if found is None and isinstance(value.meta.get("val"), torch.Tensor):
                source = value.args[0] if _is_member(value) else value
                missing = UnsupportedError(f"result {value.name!r} is read, and its operator does not give it")
                missing.node = getattr(source, "name", value.name)
                raise missing
            return self._argument(found) if Symbols.is_symbolic(found) else found
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbols.instruction(value)
        if isinstance(value, torch.dtype):
            return ir_type(value)
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        return value


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; a complex tensor with its parts as a last axis."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _source_line(node: Node) -> str:
    """Return the last line of a node's stack trace that names a file."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return lines[-1].removeprefix("File ") if lines else ""


_BY_BITS: dict[torch.dtype, tuple[torch.dtype, object]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
"""Types without a NumPy type of PyTorch's own: a type of equal size, and NumPy's type."""


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return an array over a tensor's memory; tensors on a device are copied to the host."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.dtype not in _BY_BITS:
        return plain.numpy()
    bits, dtype = _BY_BITS[plain.dtype]
    return plain.view(bits).numpy().view(dtype)
