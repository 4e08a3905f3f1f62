"""Dynamo's backend ``mgx_numba``: ``torch.compile(model, backend="mgx_numba")``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

from ..errors import MgxError
from ..interrupts import whole_module
from .aliases import overlapping_write, with_alias_check
from .kept_graphs import KeptGraph, Recorder, graph_of, kept_path, read_kept
from .logs import warn_lacking, warn_once
from .options import BackendOptions, parse_options
from .partition import REGION, divide, of_no_cost, views_at_end
from .region import KeptTorchRegion, NotKeptError, TorchRegion
from .subclasses import with_plain_inputs
from .updates import take_updates, with_updates
from .value_checks import check_divisors, unwrap_checks

Boxed = Callable[[list[object]], Sequence[object]]

_NEEDS_GRADIENTS = (
    "a graph runs in eager mode, since it needs gradients; this backend compiles models that are called under "
    "torch.no_grad() or torch.inference_mode()"
)


def mgx_numba(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Compile a graph of Dynamo's, as ``torch.compile(model, backend="mgx_numba", mode=..., options=...)`` asks for it.

    Args:
        example_inputs: its inputs, whose shapes Dynamo guards.
        mode: a mode of `torch.compile`; those of ``max-autotune`` stand for ``exhaustive_tune``.
        options: see `options.parse_options`.

    Returns:
        A function of the graph's inputs. A graph that needs gradients runs in eager mode.

    Raises:
        OptionError: as `parse_options`.
    """
    asked = parse_options(options, mode)
    tensors = [x for x in (*example_inputs, *graph_module.parameters()) if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        warn_once(_NEEDS_GRADIENTS)
        return graph_module.forward
    write = overlapping_write(graph_module)
    if write is not None:
        warn_once("a graph runs in eager mode, since %s writes to a tensor whose elements share memory", write.name)
        return graph_module.forward

    path = kept_path(graph_module, example_inputs, asked)
    kept = None if path is None else read_kept(path)
    if kept is not None:
        return _kept_call(graph_module, kept, asked)
    return _by_autograd(graph_module, example_inputs, asked, path)


def _by_autograd(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    asked: BackendOptions,
    path: Path | None = None,
    parameters: Collection[int] | None = None,
) -> Callable[..., object]:
    """Compile a graph of Dynamo's by way of AOTAutograd.

    Args:
        path: the file for the result; None to keep nothing.
        parameters: positions of the inputs that are parameters or buffers; None: those that Dynamo has noted.
    """
    from torch._dynamo.backends.common import aot_autograd

    from ..frontends.torch.decompositions import whole_operators

    writes = False

    def compiler(graph: GraphModule, inputs: Sequence[object]) -> Boxed:
        nonlocal writes
        if parameters is not None:
            return compiled_graph(graph, parameters, asked)
        static, changed = _static_inputs()
        writes = bool(changed)
        recorder = None
        if path is not None and len(inputs) == len(example_inputs) and not changed and _is_pure():
            recorder = Recorder(path, sorted(static))
        updated = take_updates(graph)
        run = compiled_graph(graph, static - changed, asked, recorder=recorder, updated=updated)
        return with_updates(run, updated) if updated else run

    backend = aot_autograd(
        fw_compiler=compiler, inference_compiler=compiler, decompositions=decompositions(), bw_compiler=_no_backward,
        keep_inference_input_mutations=True,
    )  # fmt: skip
    try:
        with whole_operators(_is_autocast(graph_module)):
            compiled: Callable[..., object] = backend(graph_module, example_inputs)
    except (MgxError, TorchDynamoException):
        raise
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        warn_once("a graph runs in eager mode, since PyTorch's AOTAutograd refuses it: %s", reason)
        return graph_module.forward
    run = with_alias_check(compiled, graph_module.forward, example_inputs) if writes else compiled
    return with_plain_inputs(run, example_inputs)


def _is_pure() -> bool:
    """Return whether AOTAutograd's graph is all that a call runs: no input changes or is part of a result."""
    found = TracingContext.get().fw_metadata
    if found is None or found.num_mutated_inp_runtime_indices or found.tokens or found.num_intermediate_bases:
        return False
    plain = all(info.output_type.name == "non_alias" for info in found.output_info)
    return plain and not (found.is_rng_op_functionalized or found.grad_enabled_mutation is not None)


def _kept_call(graph_module: GraphModule, kept: KeptGraph, asked: BackendOptions) -> Callable[..., object]:
    """Return a function that runs a graph whose result of AOTAutograd is kept.

    If the plan cache has no program for the parameters of a call, AOTAutograd compiles the graph after all.
    """
    names = [f"{REGION}{number}" for number in range(len(kept.regions))]
    root = torch.nn.Module()
    for name, region in zip(names, kept.regions):
        root.add_module(name, _Call(KeptTorchRegion(region, asked)))
    outer = GraphModule(root, graph_of(kept.nodes, names))
    lock = threading.Lock()
    compiled: list[Callable[..., object]] = []

    def run(*args: object) -> object:
        if not compiled:
            try:
                return outer.forward(*args)
            except NotKeptError:
                with lock:
                    if not compiled:
                        mode = FakeTensorMode()
                        fakes = [mode.from_tensor(x, static_shapes=True) for x in args]
                        compiled.append(_by_autograd(graph_module, fakes, asked, parameters=kept.static))
        return compiled[0](*args)

    return run


def _is_autocast(graph_module: GraphModule) -> bool:
    """Return whether autocast is on, or a graph turns it on."""
    kinds = ("cpu", "cuda")
    entered = graph_module.graph.find_nodes(op="call_function", target=torch.amp.autocast_mode._enter_autocast)
    return bool(entered) or any(map(torch.is_autocast_enabled, kinds))


def register() -> None:
    """Register the backend under its names, except for names that an installed package's entry points give."""
    from importlib.metadata import entry_points

    installed = {entry.name for entry in entry_points(group="torch_dynamo_backends")}
    for name in ("mgx_numba", "migraphx"):
        if name not in installed and _COMPILER_FNS.get(name) is None:
            register_backend(mgx_numba, name=name)


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the frontend's table of decompositions."""
    return whole_module("mgx_numba.frontends.torch.parser").DECOMPOSITIONS


def prepared(graph_module: GraphModule) -> GraphModule:
    """Return a functional ATen graph without complex values where they can be avoided, with checks of divisors."""
    from ..frontends.torch.complex_values import without_complex

    graph_module = without_complex(graph_module)
    unwrap_checks(graph_module)
    check_divisors(graph_module)
    return graph_module


def compiled_graph(
    graph_module: GraphModule,
    static: Collection[int],
    options: BackendOptions,
    failing: Mapping[Node, str] | None = None,
    recorder: Recorder | None = None,
    updated: Sequence[int] = (),
) -> Boxed:
    """Return a function that runs a functional ATen graph, whose inputs it takes as a list.

    Args:
        graph_module: the graph; changed.
        static: positions of the inputs that are parameters or buffers, which become constants.
        options: options of the backend.
        failing: nodes whose translation has failed, and why.
        recorder: records the result.
        updated: positions of inputs whose memory the last results, in this order, may take.
    """
    from ..frontends.torch.parser import unsupported

    if not failing:
        graph_module = prepared(graph_module)
    lacking = {**dict(unsupported(graph_module)), **(failing or {})}
    ends = views_at_end(graph_module) if lacking else ()
    warn_lacking({node: reason for node, reason in lacking.items() if node not in ends})
    if any(n.op == "call_function" and not of_no_cost(n) for n in graph_module.graph.nodes):
        divide(graph_module, lacking, options.min_size)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    constant = {node for place, node in enumerate(placeholders) if place in static}
    calls = [n for n in graph_module.graph.find_nodes(op="call_module") if str(n.target).startswith(REGION)]
    regions = []
    for call in calls:
        inner = graph_module.get_submodule(str(call.target))
        assert isinstance(inner, GraphModule)
        places = [k for k, source in enumerate(call.args) if source in constant]
        regions.append(TorchRegion(inner, places, options, compiled_graph))
        setattr(graph_module, str(call.target), _Call(regions[-1]))
    if recorder is not None:
        recorder.watch(graph_module.graph, [str(call.target) for call in calls], regions)
    graph_module.recompile()
    alone = _region_alone(graph_module, calls, placeholders, updated)
    run = _boxed(graph_module.forward) if alone is None else alone
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Call(torch.nn.Module):
    """A region as a submodule of the outer graph."""

    def __init__(self, region: TorchRegion | KeptTorchRegion) -> None:
        super().__init__()
        self.region = region

    def forward(self, *args: object) -> torch.Tensor | list[torch.Tensor]:
        """Return the region's results as its graph does: one alone is no list."""
        results = self.region(list(args))
        return results[0] if self.region.single else results


def _boxed(forward: Callable[..., Sequence[object]]) -> Boxed:
    def run(args: list[object]) -> Sequence[object]:
        own = tuple(args)
        args.clear()
        return forward(*own)

    return run


def _region_alone(
    graph_module: GraphModule, calls: Sequence[Node], placeholders: Sequence[Node], updated: Sequence[int]
) -> Boxed | None:
    """Return a function that calls the one region of a graph that is nothing else; None for other graphs.

    The region is told which results, the last ones, may take the memory of the inputs at the positions ``updated``.
    """
    results = graph_module.graph.output_node().args[0]
    if len(calls) != 1 or not isinstance(results, (list, tuple)):
        return None
    call = calls[0]
    module = graph_module.get_submodule(str(call.target))
    assert isinstance(module, _Call)
    region = module.region
    members = [call] if region.single else [node for node in call.users if node.op == "call_function"]
    others = {*placeholders, *members, call, graph_module.graph.output_node()}
    if any(node not in others for node in graph_module.graph.nodes) or any(r not in members for r in results):
        return None
    places = [placeholders.index(source) for source in call.args]  # type: ignore[arg-type]
    order = [0 if region.single else int(node.args[1]) for node in results]  # type: ignore[union-attr, arg-type]
    if isinstance(region, TorchRegion):
        # A value that is a result of the graph, too, must not change with the input.
        last = order[len(order) - len(updated) :]
        region.updated = {k: places.index(at) for k, at in zip(last, updated) if at in places and order.count(k) == 1}
    takes_all, gives_all = places == list(range(len(placeholders))), order == list(range(len(order)))

    def run(args: list[object]) -> Sequence[object]:
        results = region(args if takes_all else [args[place] for place in places])
        args.clear()
        return results if gives_all else [results[k] for k in order]

    return run


def _static_inputs() -> tuple[set[int], set[int]]:
    """Return the positions of the parameters and buffers among the inputs of AOTAutograd's graph, and of all inputs
    that the graph changes."""
    metadata = TracingContext.get().fw_metadata
    if metadata is None:
        return set(), set()
    changed = {k for k, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return set(metadata.static_input_indices), changed


def _no_backward(graph_module: GraphModule, inputs: Sequence[object]) -> object:
    return graph_module
