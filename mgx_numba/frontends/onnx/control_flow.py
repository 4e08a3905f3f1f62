"""Control flow: subgraphs whose execution depends on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.covering import covering
from ...core.dim import SymbolicLengthError, maximum
from ...core.shape import UNBOUNDED, DynamicDimension, Shape
from ...core.types import Type
from ...errors import MgxError, ParseError, ShapeError, UnknownValueError, UnsupportedError
from ...graph.instruction import Instruction
from ...graph.length_arithmetic import array_of_lengths
from ...graph.module import Module
from ...messages import warn
from ...ops.deferred import Unfitting
from ..loops import as_entered, members
from .builder import Builder, rank
from .deferred import values_taken
from .leniency import FinalError
from .node import Node
from .registry import register
from .tensors import declared_shape

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto


def _module(g: Builder, node: Node, suffix: str) -> Module:
    """Create a module named after its node, ``If_0_if`` or ``outer_loop``."""
    program = g.parser.program
    name = f"{node.name or f'{node.op_type}_{node.index}'}_{suffix}"
    return program.create_module(name) if program.module(name) is None else program.unique_module(f"{name}_")


@register("If")
def if_node(g: Builder, node: Node, condition: Instruction) -> Sequence[Instruction]:
    """Emit If: a constant condition inlines its branch; otherwise both branches become submodules."""
    branches = [node.get_graph("then_branch"), node.get_graph("else_branch")]
    for graph in branches:
        if len(graph.output) != len(node.outputs) or graph.input:
            raise ParseError(
                f"branch {graph.name!r} has {len(graph.input)} inputs and {len(graph.output)} outputs,"
                f" expected none and {len(node.outputs)}"
            )
    if condition.shape.is_dynamic or condition.shape.elements != 1:
        raise ShapeError(f"the condition must have one element, got {condition.shape}")
    value = g.constants.value(condition)
    if value is not None:
        chosen = branches[0 if value.ravel()[0] else 1]
        return g.parser.subgraph(g, chosen, node.scope, g.module, {})
    modules = [_module(g, node, suffix) for suffix in ("if", "else")]
    found = [_read(g, node, graph, module, {}) for graph, module in zip(branches, modules, strict=True)]
    fitting = [f for f in found if isinstance(f, list)]
    if not fitting:
        reasons = (f"branch {graph.name!r}: {reason}" for graph, reason in zip(branches, found, strict=True))
        raise ShapeError("; ".join(reasons))
    for k, (a, b) in enumerate(zip(fitting[0], fitting[-1], strict=True)):
        if covering(a.shape, b.shape) is None:
            raise FinalError(f"result {k} is {a.shape} in one branch and {b.shape} in the other, expected one type")
    for graph, module, results in zip(branches, modules, found, strict=True):
        if isinstance(results, UnsupportedError) and not g.parser.leniency.silent:
            warn(f"{node.where}: branch {graph.name!r} fails if it is taken: {results}")
        made = results if isinstance(results, list) else _failing(g, module, results, [r.shape for r in fitting[0]])
        module.add_return(made)
    result = g.op("if", condition, modules=modules)
    return [g.op("get_tuple_elem", result, index=k) for k in range(len(node.outputs))]


def _read(
    g: Builder, node: Node, graph: GraphProto, module: Module, parameters: Mapping[str, Instruction]
) -> list[Instruction] | MgxError:
    """Read a subgraph that may never run; return its results, or the error if it does not fit the shapes of its inputs.

    If the subgraph does not fit, only its parameters remain in ``module``.

    Raises:
        MgxError: the subgraph is wrong for any inputs, or may fit once more is known of its inputs.
    """
    program = g.parser.program
    count = program.module_count
    try:
        return g.parser.subgraph(g, graph, node.scope, module, parameters)
    except (FinalError, SymbolicLengthError, UnknownValueError):
        raise
    except MgxError as error:
        if any(x.shape.is_dynamic or x.shape.symbolic for x in values_taken(node).values()):
            raise
        program.remove_modules_since(count)
        for ins in reversed(list(module)):
            if not ins.is_param:
                module.remove_instruction(ins)
        return error


def _failing(g: Builder, module: Module, reason: MgxError, shapes: Sequence[Shape]) -> list[Instruction]:
    """Emit results of the given shapes; computing such a result raises ``reason``."""
    inner = Builder(module, g.parser)
    return [inner.op(Unfitting(str(reason), shape)) for shape in shapes]


def _declared(infos: Sequence[ValueInfoProto], reason: MgxError) -> list[Shape]:
    """Return the declared shapes of results; raise ``reason`` if a result has no declared shape."""
    try:
        return [declared_shape(info.type) for info in infos]
    except MgxError:
        raise reason from None


def _check_carried(names: Sequence[str], given: Sequence[Instruction], results: Sequence[Instruction]) -> None:
    for name, before, after in zip(names, given, results, strict=False):
        if before.shape.type != after.shape.type:
            raise ParseError(
                f"carried value {name!r} enters as {before.shape} and leaves an iteration as {after.shape}"
            )


def _inside(g: Builder, x: Instruction) -> Shape:
    """Return the shape of a parameter that receives ``x``, and later its value after an iteration.

    The shape is row-major; tensors in a sequence or an optional may have any lengths.
    """
    return x.shape.row_major() if x.shape.element is None else x.shape.opened()


def _wider(entered: Shape, kept: Instruction, info: ValueInfoProto) -> Shape:
    """Return the shape of a parameter widened to hold also its value after an iteration, ``kept``.

    Lengths that differ become ranges with the symbols of the body. A range is widened to its limit at once, so that few
    readings reach the fixed point.
    """
    made = kept.shape
    if entered.element is not None or entered.rank is None:
        return entered
    if entered.rank != made.rank:
        return Shape.unranked(entered.type)
    declared = info.type.tensor_type.shape.dim
    symbols = [d.dim_param for d in declared] if len(declared) == entered.ndim else [""] * entered.ndim
    dims = [
        d
        if d.min <= m.min and m.max <= d.max
        else DynamicDimension(d.min if d.min <= m.min else 0, d.max if m.max <= d.max else UNBOUNDED, symbol=symbol)
        for d, m, symbol in zip(entered.dims, made.dims, symbols)
    ]
    return entered if dims == list(entered.dims) else Shape.dynamic(entered.type, dims)


@register("Loop")
def loop(
    g: Builder,
    node: Node,
    trips: Instruction | None = None,
    condition: Instruction | None = None,
    *carried: Instruction,
) -> Sequence[Instruction]:
    """Emit a submodule that runs repeatedly; scan outputs have one entry per iteration.

    More than ``limit_max_iterations`` iterations are an error.
    """
    body = node.get_graph("body")
    count = len(carried)
    if any(c is None for c in carried):
        raise ParseError("a carried value is missing")
    if len(body.input) != count + 2 or len(body.output) < count + 1:
        raise ParseError(
            f"body has {len(body.input)} inputs and {len(body.output)} outputs,"
            f" expected {count + 2} and at least {count + 1}"
        )
    scans = len(body.output) - count - 1
    options = g.parser.options
    known = None if trips is None else g.constants.value(trips)
    longest = 0 if known is None or trips is None else g.int_value(trips, "M")
    most = options.limit_max_iterations if known is None else maximum(0, longest)
    if scans and most > options.limit_max_iterations and (condition is None or known is None):
        raise UnsupportedError(f"{most} iterations exceed limit_max_iterations={options.limit_max_iterations}")
    if most > options.limit_max_iterations:
        most = options.limit_max_iterations
    start = condition if condition is not None else g.literal(np.array([True]))
    limit = trips if trips is not None else g.literal(np.array([np.iinfo(np.int64).max]))
    names = [i.name for i in body.input]
    shapes = [Shape(Type.int64_type), Shape(Type.bool_type), *(_inside(g, c) for c in carried)]
    while True:
        module = _module(g, node, "loop")
        parameters = {n: module.add_parameter(_free(module, n), s) for n, s in zip(names, shapes, strict=False)}
        read = _read(g, node, body, module, parameters)
        if isinstance(read, MgxError):
            first = g.constants.value(start)
            if longest > 0 and first is not None and first.all():
                raise read
            rows = _declared(body.output[1 + count :], read)
        results = read if isinstance(read, list) else _failing(g, module, read, [*shapes[1:], *rows])
        unwrapped = _hold_again(Builder(module, g.parser), carried, results)
        _check_carried(names[2:], carried, results[1:])
        wider = [*shapes[:2], *map(_wider, shapes[2:], results[1:], body.input[2:])]
        if wider == shapes:
            break
        g.parser.program.remove_module(module)
        shapes = wider
    certain = known is not None and (most == 0 or _goes_on(g, start, parameters[names[1]], results[0]))
    if longest > options.limit_max_iterations and certain:
        raise UnsupportedError(f"{longest} iterations exceed limit_max_iterations={options.limit_max_iterations}")
    module.add_return(results)
    attributes = {"max_iterations": most, "use_dyn_output": bool(scans) and not certain}
    result = g.op("loop", limit, start, *carried, modules=[module], **attributes)
    values = members(g, result, module)
    for k in unwrapped:
        values[k] = g.op("optional_get_element", values[k])
    return [as_entered(g, v, c) for v, c in zip(values, carried, strict=False)] + values[count:]


def _hold_again(inner: Builder, carried: Sequence[Instruction], results: list[Instruction]) -> list[int]:
    """Wrap in optionals the carried values that enter a loop as optionals and leave its body as plain values.

    Return the positions of carried values that are not optionals after the loop, either.
    """
    found = []
    for k, (before, after) in enumerate(zip(carried, results[1:], strict=False)):
        if before.shape.type is Type.optional_type and after.shape.type is not Type.optional_type:
            results[1 + k] = inner.op("optional_construct", after)
            found.append(k)
    return found


def _goes_on(g: Builder, start: Instruction, condition: Instruction, after: Instruction) -> bool:
    """Return whether a loop's condition is true at first, and true or unchanged after each iteration."""
    first = g.constants.value(start)
    while after.name == "identity":
        after = after.inputs[0]
    if first is None or not first.all():
        return False
    if after is condition:
        return True
    value = g.constants.value(after)
    return value is not None and bool(value.all())


def _free(module: Module, name: str) -> str:
    """Return a parameter name that the module does not have yet."""
    if not name:
        raise ParseError("an input of the body has no name")
    if module.parameter(name) is not None:
        raise ParseError(f"the body has two inputs {name!r}")
    return name


@register("Scan")
def scan(g: Builder, node: Node, *inputs: Instruction) -> Sequence[Instruction]:
    """Emit a loop over slices of the scan inputs; in operator set 8, one for every batch entry."""
    if node.opset < 9:
        return _scan_batches(g, node, *inputs)
    return _scan(g, node, list(inputs), node.get_graph("body"))


def _scan_batches(g: Builder, node: Node, lengths: Instruction | None, *inputs: Instruction) -> Sequence[Instruction]:
    """Emit Scan of operator set 8: a leading batch axis, scans along axis 1."""
    if lengths is not None:
        raise UnsupportedError("input 'sequence_lens' is not supported")
    if not inputs or any(rank(x) == 0 for x in inputs):
        raise ShapeError("an input has no batch axis")
    batch = g.lens(inputs[0])[0]
    runs = []
    for entry in range(batch):
        slices = [g.squeeze(g.slice(x, 0, entry, entry + 1), [0]) for x in inputs]
        runs.append(_scan(g, node, slices, node.get_graph("body")))
    if not runs:
        raise ShapeError("the batch is empty")
    columns = [[g.unsqueeze(v, [0]) for v in column] for column in zip(*runs, strict=False)]
    return [g.op("concat", *column, axis=0) if len(column) > 1 else column[0] for column in columns]


def _scan(g: Builder, node: Node, inputs: list[Instruction], body: GraphProto) -> list[Instruction]:
    count = node.get_int("num_scan_inputs")
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    outputs = len(body.output) - len(states)
    if count < 1 or len(scanned) != count or len(body.input) != len(inputs) or outputs < 0:
        raise ParseError(
            f"body has {len(body.input)} inputs and {len(body.output)} outputs for {len(inputs)} inputs,"
            f" {count} of them scanned"
        )
    in_axes, in_ways, out_axes, out_ways = _scan_attributes(g, node, scanned, outputs)
    steps = [g.lens(x)[axis] for x, axis in zip(scanned, in_axes, strict=False)]
    length = steps[0]
    if any(n != length for n in steps):
        raise ShapeError(f"scanned inputs have different lengths {steps}")
    shapes = [_inside(g, state) for state in states]
    while True:
        module = _module(g, node, "scan")
        number = module.add_parameter(_fresh("iteration", body), Shape(Type.int64_type))
        module.add_parameter(_fresh("condition", body), Shape(Type.bool_type))
        values = {}
        for info, shape in zip(body.input, shapes, strict=False):
            values[info.name] = module.add_parameter(_free(module, info.name), shape)
        inner = Builder(module, g.parser)
        inner.symbols = g.symbols
        for info, x, axis, way in zip(body.input[len(states) :], scanned, in_axes, in_ways, strict=False):
            part = inner.op("scan_slice", x, number, axis=axis, direction=way)
            values[info.name] = inner.squeeze(part, [axis])
        results = g.parser.subgraph(g, body, node.scope, module, values)
        left = [Shape.unranked(s.type) if r.shape.rank is None else s for s, r in zip(shapes, results, strict=False)]
        if left == shapes:
            break
        g.parser.program.remove_module(module)  # the rank of a state is known only at run time
        shapes = left
    _check_carried([i.name for i in body.input], states, results)
    module.add_return([inner.literal(np.array([True])), *results])
    result = g.op(
        "loop",
        g.literal(array_of_lengths([length], (1,))),
        g.literal(np.array([True])),
        *states,
        modules=[module],
        max_iterations=length,
        scan_output_directions=tuple(out_ways),
    )
    final = members(g, result, module)
    kept = [as_entered(g, v, s) for v, s in zip(final, states, strict=False)]
    return kept + [_moved(g, v, axis) for v, axis in zip(final[len(states) :], out_axes, strict=False)]


def _scan_attributes(
    g: Builder, node: Node, scanned: Sequence[Instruction], outputs: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return axes and directions of the scanned inputs, then of the scan outputs.

    Axes of scan outputs counted from the end stay negative.
    """
    count = len(scanned)
    if node.opset < 9:
        zeros = [0] * count
        return zeros, node.get_ints("directions", zeros), [0] * outputs, [0] * outputs
    axes = node.get_ints("scan_input_axes", (0,) * count)
    ways = node.get_ints("scan_input_directions", (0,) * count)
    out_axes = node.get_ints("scan_output_axes", (0,) * outputs)
    out_ways = node.get_ints("scan_output_directions", (0,) * outputs)
    for name, values, wanted in (
        ("scan_input_axes", axes, count),
        ("scan_input_directions", ways, count),
        ("scan_output_axes", out_axes, outputs),
        ("scan_output_directions", out_ways, outputs),
    ):
        if len(values) != wanted:
            raise ParseError(f"{name} {values} must have {wanted} values")
    if any(w not in (0, 1) for w in ways + out_ways):
        raise ParseError(f"directions {ways} and {out_ways} must be 0 or 1")
    return [g.axis(a, rank(x)) for a, x in zip(axes, scanned, strict=False)], ways, out_axes, out_ways


def _moved(g: Builder, x: Instruction, axis: int) -> Instruction:
    """Move the first axis of ``x`` to another position; a negative position counts from the end."""
    if axis == 0:
        return x
    if not x.shape.ranked:
        return g.op("concat_from_sequence", g.op("split_to_sequence", x, keepdims=False), axis=axis, new_axis=True)
    count = rank(x)
    order = list(range(1, count))
    order.insert(g.axis(axis, count, "scan_output_axes"), 0)
    return g.transpose(x, order)


def _fresh(stem: str, body: GraphProto) -> str:
    taken = {i.name for i in body.input}
    while stem in taken:
        stem += "_"
    return stem
