"""A compiled region of a graph: a program, and how tensors become its inputs and its results tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule

from ..dataclass import dataclass
from ..errors import IndexRangeError, MgxError, ParameterError, ShapeError, UnsupportedError
from ..interrupts import whole_module
from .content import digest_of, graph_text
from .exchange import from_array, from_device, host_array, quick_array
from .frozen import Frozen
from .layouts import transpose_inputs, transpose_results
from .logs import warn_once
from .parked import parked
from .partition import copied

if TYPE_CHECKING:
    from ..api.program import program
    from .options import BackendOptions

Run = Callable[[Sequence[Any]], "list[torch.Tensor]"]
Divide = Callable[..., Callable[["list[Any]"], Any]]


class TorchRegion:
    """A graph that is compiled when it is first called, and again for other values of its parameters.

    A call takes a list of the graph's inputs and returns a list of its results. Calls may come from any thread.

    Args:
        graph_module: the graph, all of whose operators can be compiled.
        static: positions of the inputs that are parameters or buffers, which become constants of the program.
        options: options of the backend.
        divide: compiles a graph, with the given positions of inputs as constants, without a node.
    """

    def __init__(
        self, graph_module: GraphModule, static: Sequence[int], options: BackendOptions, divide: Divide
    ) -> None:
        self._eager, self._options = graph_module, options
        self.single = not isinstance(graph_module.graph.output_node().args[0], (list, tuple))
        self._frozen: Frozen[Run] = Frozen(static, self._compiled)
        self._divide = divide
        self._divided: Run | None = None

    def __call__(self, args: Sequence[object]) -> list[torch.Tensor]:
        return self._frozen.find(args)(args)

    def _compiled(self, args: Sequence[object], constant: Sequence[int]) -> Run:
        """Return a function that runs the graph, compiled with the inputs at some positions as constants.

        PyTorch runs a node that cannot be translated, and what is before and after it is compiled. If the graph cannot
        be compiled for another reason PyTorch runs all of it. A line of the log says why.
        """
        if self._divided is not None:
            return self._divided
        try:
            run = runner(lower(copied(self._eager), args, constant, self._options), args)
        except MgxError as error:
            self._divided = self._without(error, constant)
            return self._divided

        def call(args: Sequence[object]) -> list[torch.Tensor]:
            if self._divided is None:
                try:
                    return run(args)
                except IndexRangeError:
                    raise
                except (UnsupportedError, ShapeError) as error:  # a node whose translation had to wait for the lengths
                    self._divided = self._without(error, constant)
            return self._divided(args)

        return call if any(isinstance(n, torch.SymInt) for n in _lengths(self._eager)) else run

    def _without(self, error: MgxError, constant: Sequence[int]) -> Run:
        """Return a function that runs the graph without compiling the node that an error names, if it does."""
        module, single = copied(self._eager), self.single
        found: BaseException | None = error
        while isinstance(found, MgxError) and not found.node:
            found = found.__cause__
        name = found.node if isinstance(found, MgxError) else ""
        node = next((n for n in module.graph.nodes if n.name == name and n.op == "call_function"), None)
        if node is None:
            warn_once("a graph runs in eager mode, since it cannot be compiled: %s", error)
            return lambda args: [module(*args)] if single else list(module(*args))
        divided = self._divide(module, constant, self._options, {node: str(error)})
        return lambda args: [divided(list(args))] if single else list(divided(list(args)))


def _lengths(graph_module: GraphModule) -> list[Any]:
    """Return the lengths of a graph's inputs, and the inputs that are numbers."""
    values = [node.meta.get("val") for node in graph_module.graph.find_nodes(op="placeholder")]
    return [n for x in values for n in (x.shape if isinstance(x, torch.Tensor) else [x])]


def compiled_program(
    graph_module: GraphModule,
    constants: Mapping[str, torch.Tensor],
    target: str,
    options: Mapping[str, Any],
    parks: bool = False,
) -> program:
    """Return the compiled program of a graph; its key in the plan cache: the graph's text and the constants' digest.

    With ``parks``, large constants move to a file.

    Raises:
        MgxError: the graph has an operator that the frontend lacks, or compilation fails.
    """
    from ..api.parsing import Parsed, read_model

    def parse(content: Any, external: Any) -> Parsed:
        whole_module("mgx_numba.frontends.torch.parser")
        from ..frontends.torch.parser import parse_graph

        return Parsed(parse_graph(graph_module, constants=given))

    text = graph_text(graph_module)
    asked = f"torch {digest_of(constants)}" if options.get("plan_cache", True) else ""
    given = {name: parked(x) for name, x in constants.items()} if parks else constants
    found, _ = read_model(text.encode(), asked, parse)
    return found.compile(target, **options)


@dataclass(frozen=True)
class Lowered:
    """A compiled graph.

    Attributes:
        program: the compiled program.
        inputs: of each of its inputs the name, the position among the graph's inputs, and the order in which the
            tensor's axes are row-major (None: as they are).
        results: of each result the order of axes that gives PyTorch's form back, likewise.
        target: name of the target.
        on_device: inputs and results are tensors on a CUDA device.
    """

    program: program
    inputs: Sequence[tuple[str, int, Sequence[int] | None]]
    results: Sequence[Sequence[int] | None]
    target: str
    on_device: bool = False


def lower(graph_module: GraphModule, args: Sequence[Any], constant: Sequence[int], options: BackendOptions) -> Lowered:
    """Compile a graph for inputs like ``args``.

    Args:
        graph_module: the graph; changed.
        args: example inputs, from which a quantisation takes its ranges.
        constant: positions of the inputs that become constants.
        options: options of the backend.

    Raises:
        MgxError: as `compiled_program`; or the tensors lie on several devices, or not on the target's.
    """
    graph = graph_module.graph
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    given = dict(zip(names, args))
    _declare_types(graph_module, given)
    constants = _row_major(graph_module, {names[place]: args[place].detach() for place in constant})
    orders = transpose_inputs(graph_module)
    output = graph.output_node()
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    new, back = transpose_results(graph_module, results)  # type: ignore[arg-type]
    output.args = (tuple(new),)
    graph_module.recompile()
    device = _device(given.values())
    target = options.target or ("cpu" if device.type == "cpu" else "gpu")
    on_device = device.type == "cuda"
    if on_device and target != "gpu":
        raise UnsupportedError(f"the target {target} does not run tensors that are on {device}")
    asked = dict(options.compile)
    if on_device:
        asked.update(offload_copy=False, device_id=device.index or 0)
    if options.calibrates:
        tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor) and name not in constants}
        asked["calibration"] = [{name: host_array(ordered(x, orders.get(name))) for name, x in tensors.items()}]
    made = compiled_program(graph_module, constants, target, asked, options.parks)
    wanted = set(made.get_parameter_names())
    inputs = [(name, place, orders.get(name)) for place, name in enumerate(names) if name in wanted]
    return Lowered(made, inputs, back, target, on_device)


def _declare_types(graph_module: GraphModule, given: Mapping[str, Any]) -> None:
    """Convert inputs that a graph declares in another type: Dynamo declares numbers of ``random.Random`` as float32."""
    graph = graph_module.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in graph.find_nodes(op="placeholder"):
        declared, found = node.meta.get("val"), given[node.name]
        if isinstance(declared, torch.Tensor) and isinstance(found, torch.Tensor) and declared.dtype != found.dtype:
            with graph.inserting_before(first):
                as_declared = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": declared.dtype})
            node.replace_all_uses_with(as_declared, delete_user_cb=lambda user, new=as_declared: user is not new)
            as_declared.meta["val"], node.meta["val"] = declared, declared.to(found.dtype)


def _row_major(graph_module: GraphModule, constants: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return constants row-major in host memory, and note in the graph that they are row-major."""
    for node in graph_module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name in constants and isinstance(value, torch.Tensor):
            node.meta["val"] = value.contiguous()
    return {name: tensor.cpu().contiguous() for name, tensor in constants.items()}


def runner(lowered: Lowered, args: Sequence[object]) -> Run:
    """Return a function that runs a compiled graph on lists of inputs like ``args``."""
    if lowered.on_device:
        return _on_device(lowered, _device(args))
    run, results = lowered.program.run, lowered.results
    turned = any(order is not None for order in results)
    inputs = [(name, place, _entry(name, args[place], order)) for name, place, order in lowered.inputs]

    def call(args: Sequence[object]) -> list[torch.Tensor]:
        found = [from_array(array) for array in run({name: entry(args[place]) for name, place, entry in inputs})]
        return [ordered(x, order) for x, order in zip(found, results)] if turned else found

    return call


def _on_device(lowered: Lowered, device: torch.device) -> Run:
    """Return the function that submits a program to PyTorch's current stream of a device."""
    submit, results, inputs = lowered.program.run_async, lowered.results, lowered.inputs

    def entry(value: object, order: Sequence[int] | None) -> torch.Tensor:
        tensor = torch.as_tensor(value, device=device).detach()
        return ordered(tensor, order).contiguous()

    def call(args: Sequence[object]) -> list[torch.Tensor]:
        given = {name: entry(args[place], order) for name, place, order in inputs}
        stream = torch.cuda.current_stream(device).cuda_stream
        return [ordered(from_device(x), order) for x, order in zip(submit(given, stream, "cudaStream_t"), results)]

    return call


def _entry(name: str, example: object, order: Sequence[int] | None) -> Callable[[Any], Any]:
    """Return the function that makes an array of an input, which is a tensor like ``example`` or a number."""

    def slow(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            if isinstance(value, (int, float, complex)):
                return np.asarray(value)
            raise ParameterError(f"input {name!r} must be a tensor or a number, got {type(value).__name__}")
        if value.layout is not torch.strided or value.is_meta or isinstance(value, FakeTensor):
            of = f"layout {value.layout}, device {value.device}, class {type(value).__name__}"
            raise ParameterError(f"input {name!r} must be a dense tensor with elements in memory, got one of {of}")
        return host_array(ordered(value, order))

    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return slow
    quick = quick_array(example)

    def entry(tensor: torch.Tensor) -> Any:
        try:
            return quick(tensor if order is None else tensor.permute(order))
        except (AttributeError, RuntimeError, TypeError):  # a number, a lazy conjugate, or a tensor that requires grad
            return slow(tensor)

    return entry


def ordered(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a tensor with its axes in another order; None for as they are."""
    return tensor if order is None else tensor.permute(order)


def _device(values: Iterable[object]) -> torch.device:
    """Return the device of tensors; tensors without axes may lie elsewhere.

    Raises:
        UnsupportedError: they lie on several devices, or on one of a kind that no target has.
    """
    found = {value.device for value in values if isinstance(value, torch.Tensor) and value.dim()}
    found = found or {value.device for value in values if isinstance(value, torch.Tensor)} or {torch.device("cpu")}
    kinds = sorted(map(str, found))
    if len(found) > 1 or next(iter(found)).type not in ("cpu", "cuda"):
        raise UnsupportedError(f"tensors lie on {', '.join(kinds)}; one CPU or one CUDA device is expected")
    return next(iter(found))
