"""A compiled region of a graph: a program, and conversions between tensors and its inputs and results.

Layouts of a region's inputs and results: a dense tensor in another order is passed transposed, thus row-major.

A program's inputs and results are row-major. An image in ``torch.channels_last`` becomes an input of shape
(N, H, W, C), which the graph transposes back; the compiler makes a view of that.

Parameters in a file (``options={"memory": "file"}``): only packed weights stay in memory.

The pages of a large parameter become private pages of a file without a name, at the same address and with the same
content. The compiler reads the file by a map of its own. The parameter can be read and written as before: the system
reads a page when it is needed.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node

from ..codegen.files import default_folder, make_folder
from ..dataclass import dataclass
from ..errors import IndexRangeError, MgxError, ParameterError, ShapeError, UnsupportedError
from ..interrupts import whole_module
from .content import digest_of, from_array, graph_text, host_array, ordered, quick_array
from .frozen import Frozen
from .logs import warn_once
from .partition import copied

if TYPE_CHECKING:
    from ..api.program import program
    from .kept_graphs import KeptRegion
    from .options import BackendOptions

Run = Callable[[Sequence[object]], "list[torch.Tensor]"]
Divide = Callable[..., Callable[["list[object]"], Sequence[object]]]


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
        self.updated: Mapping[int, int] = {}
        """For results that replace an input: the position of the input, whose memory may take the result."""
        self.lowered: Callable[[Lowered, Sequence[int]], None] = lambda lowered, constant: None
        """Called when the graph has been compiled with the inputs at some positions as constants."""

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
            lowered = replace(lower(copied(self._eager), args, constant, self._options), updated=self.updated)
            run = runner(lowered, args)
            self.lowered(lowered, constant)
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

        return call

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


class KeptTorchRegion:
    """A region restored from a kept graph: it has the graph's text, and finds its programs in the plan cache.

    A call raises `NotKeptError` if the plan cache has no program for the values of its parameters, or a node whose
    translation had to wait for the call cannot be translated.
    """

    def __init__(self, kept: KeptRegion, options: BackendOptions) -> None:
        self._kept, self._options = kept, options
        self.single = kept.single
        self._frozen: Frozen[Run] = Frozen(kept.constant, self._compiled)

    def __call__(self, args: Sequence[object]) -> list[torch.Tensor]:
        return self._frozen.find(args)(args)

    def _compiled(self, args: Sequence[torch.Tensor], constant: Sequence[int]) -> Run:
        kept = self._kept
        if list(constant) != list(kept.constant):
            raise NotKeptError
        constants = {kept.names[place]: args[place].detach().contiguous() for place in constant}
        target = self._options.target or "cpu"
        made = compiled_program(kept.text, constants, target, self._options.compile)
        run = runner(Lowered(made, kept.inputs, kept.results, target), args)

        def call(args: Sequence[object]) -> list[torch.Tensor]:
            try:
                return run(args)
            except IndexRangeError:
                raise
            except (UnsupportedError, ShapeError) as error:
                raise NotKeptError from error

        return call


class NotKeptError(Exception):
    """The plan cache lacks the program of a kept region."""


def compiled_program(
    graph: GraphModule | str,
    constants: Mapping[str, torch.Tensor],
    target: str,
    options: Mapping[str, Any],
    parks: bool = False,
) -> program:
    """Return the compiled program of a graph; its key in the plan cache: the graph's text and the constants' digest.

    With ``parks``, large constants move to a file.

    Args:
        graph: the graph, or its text.

    Raises:
        MgxError: the graph has an operator that the frontend lacks, or compilation fails.
        NotKeptError: the plan cache has no program of the text.
    """
    from ..api.parsing import Parsed, read_model

    def parse(content: object, external: object) -> Parsed:
        if isinstance(graph, str):
            raise NotKeptError
        whole_module("mgx_numba.frontends.torch.parser")
        from ..frontends.torch.parser import parse_graph

        return Parsed(parse_graph(graph, constants=given))

    text = graph if isinstance(graph, str) else graph_text(graph)
    asked = f"torch {digest_of(constants)}" if options.get("plan_cache", True) else ""
    given = {name: parked(x) for name, x in constants.items()} if parks else constants
    found, _ = read_model(text.encode(), asked, parse)
    return found.compile(target, **options)


@dataclass(frozen=True)
class Lowered:
    """A compiled graph.

    Attributes:
        program: the compiled program.
        inputs: for each input of the program its name, its position among the graph's inputs, and the permutation
            that makes the tensor row-major (None: it is row-major).
        results: for each result the permutation that restores PyTorch's order of axes; None for none.
        target: name of the target.
        on_device: inputs and results are tensors on a CUDA device.
        names: names of the graph's inputs.
        text: the graph's text.
        updated: for results that replace an input: its position among the graph's inputs.
    """

    program: program
    inputs: Sequence[tuple[str, int, Sequence[int] | None]]
    results: Sequence[Sequence[int] | None]
    target: str
    on_device: bool = False
    names: Sequence[str] = ()
    text: str = ""
    updated: Mapping[int, int] = field(default_factory=dict)


def lower(
    graph_module: GraphModule, args: Sequence[torch.Tensor], constant: Sequence[int], options: BackendOptions
) -> Lowered:
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
    device = _device(given.values(), results)
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
    text = "" if on_device else graph_text(graph_module)
    made = compiled_program(graph_module, constants, target, asked, options.parks)
    wanted = set(made.get_parameter_names())
    inputs = [(name, place, orders.get(name)) for place, name in enumerate(names) if name in wanted]
    return Lowered(made, inputs, back, target, on_device, names, text)


def _declare_types(graph_module: GraphModule, given: Mapping[str, object]) -> None:
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
    """Return a function that runs a compiled graph on lists of inputs like ``args``.

    Raises:
        ParameterError: the graph was compiled for a CUDA device, and all inputs lie in host memory.
    """
    if lowered.on_device:
        from .device_calls import device_runner

        return device_runner(lowered, _cuda_device(args), args)
    run, results = lowered.program.run, lowered.results
    turned = any(order is not None for order in results)
    inputs = [(name, place, _entry(name, args[place], order)) for name, place, order in lowered.inputs]

    def call(args: Sequence[object]) -> list[torch.Tensor]:
        found = [from_array(array) for array in run({name: entry(args[place]) for name, place, entry in inputs})]
        return [ordered(x, order) for x, order in zip(found, results)] if turned else found

    return call


def _entry(name: str, example: object, order: Sequence[int] | None) -> Callable[[torch.Tensor], np.ndarray]:
    """Return the function that makes an array of an input, which is a tensor like ``example`` or a number."""

    def slow(value: object) -> np.ndarray:
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

    def entry(tensor: torch.Tensor) -> np.ndarray:
        try:
            return quick(tensor if order is None else tensor.permute(order))
        except (AttributeError, RuntimeError, TypeError):  # a number, a lazy conjugate, or a tensor that requires grad
            return slow(tensor)

    return entry


def _cuda_device(args: Sequence[object]) -> torch.device:
    """Return the CUDA device of the first input that lies on a CUDA device.

    Raises:
        ParameterError: all inputs lie in host memory.
    """
    for value in args:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return value.device
    raise ParameterError("all inputs lie in host memory; the graph was compiled for tensors on a CUDA device")


def _device(values: Iterable[object], results: Iterable[Node]) -> torch.device:
    """Return the device of tensors; tensors without axes may lie elsewhere.

    Inputs in host memory are copied to the CUDA device of the others at each call, if all results lie there: a table
    of positions that is no buffer of its module is moved by the graph itself.

    Args:
        values: tensors and other inputs.
        results: nodes of the graph's results.

    Raises:
        UnsupportedError: they lie on several devices, or on one of a kind that no target has.
    """
    found = {value.device for value in values if isinstance(value, torch.Tensor) and value.dim()}
    found = found or {value.device for value in values if isinstance(value, torch.Tensor)} or {torch.device("cpu")}
    kinds = sorted(map(str, found))
    elsewhere = found - {torch.device("cpu")}
    if len(elsewhere) == 1 and len(found) == 2:
        made = {x.device for node in results if isinstance(x := node.meta.get("val"), torch.Tensor)}
        found = elsewhere if made <= elsewhere else found
    if len(found) > 1 or next(iter(found)).type not in ("cpu", "cuda"):
        raise UnsupportedError(f"tensors lie on {', '.join(kinds)}; one CPU or one CUDA device is expected")
    return next(iter(found))


Order = tuple[int, ...]


def transpose_inputs(graph_module: GraphModule) -> dict[str, Order]:
    """Make every dense input row-major, in place; return by name the order of axes of each input that was not."""
    found = {}
    graph = graph_module.graph
    for node in graph.find_nodes(op="placeholder"):
        order = _order(node)
        if order is None:
            continue
        value = node.meta["val"]
        node.meta["val"] = value.permute(order).contiguous() if _is_static(value) else value.permute(order)
        with graph.inserting_after(node):
            back = graph.call_function(torch.ops.aten.permute.default, (node, _inverse(order)))
        back.meta["val"] = value
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
        found[node.name] = order
    _moved_behind_inputs(graph_module)
    return found


def transpose_results(graph_module: GraphModule, results: Sequence[Node]) -> tuple[list[Node], list[Order | None]]:
    """Append a transpose to each result that is dense in PyTorch but not row-major; return the new results.

    Returns:
        The new results, and for each the permutation that restores PyTorch's order; None if there is no transpose.
    """
    graph, found, orders = graph_module.graph, [], []
    for node in results:
        order = _order(node)
        if order is not None:
            with graph.inserting_before(graph.output_node()):
                turned = graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
            turned.meta["val"] = node.meta["val"].permute(order)
            node, order = turned, tuple(_inverse(order))
        found.append(node)
        orders.append(order)
    return found, orders


def _order(node: Node) -> Order | None:
    """Return the axes from the slowest to the quickest of a dense tensor that is not row-major; else None."""
    from ..frontends.torch.symbols import hint

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return None
    lens, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    if None in lens or None in strides or 0 in lens:
        return None
    axes = sorted(range(len(lens)), key=lambda axis: (-strides[axis], lens[axis] == 1, axis))  # type: ignore[operator]
    axes_of_many = [axis for axis in axes if lens[axis] != 1]
    expected = 1
    for axis in reversed(axes_of_many):
        if strides[axis] != expected:
            return None
        expected *= lens[axis]  # type: ignore[operator]
    return None if axes_of_many == sorted(axes_of_many) else tuple(axes)


def _inverse(order: Order) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in value.shape)


def _moved_behind_inputs(graph_module: GraphModule) -> None:
    """Put all inputs before all other nodes, as a graph has them."""
    graph = graph_module.graph
    inputs = graph.find_nodes(op="placeholder")
    for before, node in itertools.pairwise(inputs):
        before.append(node)


LEAST_BYTES = 1 << 20
"""Least size (bytes) of a parameter that is moved to a file."""
_MAP_PRIVATE, _MAP_FIXED = 2, 16
"""Flags of mmap(2) on Linux, on every processor that PyTorch supports."""


def parked(tensor: torch.Tensor) -> torch.Tensor | np.ndarray:
    """Move a large parameter to a file; return an array over the file, or the tensor if it stays where it is."""
    bytes_ = tensor.numel() * tensor.element_size()
    local = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_shared() and not tensor.is_pinned()
    if bytes_ < LEAST_BYTES or not local or sys.platform != "linux" or tensor.is_inference():
        return tensor
    try:
        return _moved(tensor.data_ptr(), host_array(tensor))
    except OSError as error:
        warn_once("parameters stay in memory, since they cannot be moved to a file: %s", error)
        return tensor


def _moved(address: int, content: np.ndarray) -> np.ndarray:
    """Write an array's pages to a file, map the whole pages at their address, and return an array over the file."""
    first = -address % mmap.PAGESIZE
    pages = (content.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    folder = default_folder()
    make_folder(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(mmap.PAGESIZE - first) if first else b"")  # the first whole page begins a page of the file
        file.write(content.reshape(-1).view(np.uint8).data)
        file.flush()
        start = mmap.PAGESIZE if first else 0
        _map_at(address + first, pages, file.fileno(), start)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(data, np.uint8, content.nbytes, start - first)
    return flat.view(content.dtype).reshape(content.shape)


def _map_at(address: int, size: int, file: int, offset: int) -> None:
    """Replace pages of memory by private pages of a file.

    Raises:
        OSError: the system refuses.
    """
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if call(address, size, protection, _MAP_PRIVATE | _MAP_FIXED, file, offset) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
