"""Results of AOTAutograd in the cache folder, keyed by Dynamo's graphs: a second process skips AOTAutograd.

``<cache folder>/plans/models/<key>.json`` has the outer graph, and the text, inputs and results of each region.
The plan cache has the programs, keyed by these texts. The key has everything on which AOTAutograd's result depends.

A graph has a key only under these conditions:

- All inputs are strided tensors on the CPU, of known lengths and of no subclass.
- Its functions are PyTorch's public ones, operators of ``aten`` and methods of tensors, with plain constants.
- No mode is active: ``TorchDispatchMode``, ``torch.func``, a default device.

A result is kept only if no result of the graph shares memory with an input and no input changes.
"""

from __future__ import annotations

import functools
import json
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..api.digests import plans_folder
from ..api.lineage import environment
from ..api.parsing import option_text
from ..codegen.files import mark_used, read_trusted
from ..dataclass import dataclass
from ..digest import digest, text_digest
from .content import argument_text

if TYPE_CHECKING:
    from .options import BackendOptions
    from .region import Lowered, TorchRegion

_MODULES = ("torch", "torch.functional", "torch.nn.functional", "torch.special", "_operator", "math")
"""Modules whose functions a key names; and all modules of ``torch._C``."""
_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoKeyError(Exception):
    """A graph has a part that a key cannot name."""


@dataclass(frozen=True)
class KeptRegion:
    """A region of a kept graph.

    Attributes:
        text: `graph_text` of the region when its program was compiled, the source of the plan cache.
        names: names of its inputs.
        constant: positions of the inputs that are constants of the program.
        inputs, results: see `region.Lowered`.
        single: the graph gives one result, not a sequence.
    """

    text: str
    names: Sequence[str]
    constant: Sequence[int]
    inputs: Sequence[tuple[str, int, Sequence[int] | None]]
    results: Sequence[Sequence[int] | None]
    single: bool


@dataclass(frozen=True)
class KeptGraph:
    """What a file has.

    Attributes:
        static: positions of the graph's inputs that are parameters or buffers.
        nodes: the outer graph; see `outer_nodes`.
        regions: its regions.
    """

    static: Sequence[int]
    nodes: Sequence[list[object]]
    regions: Sequence[KeptRegion]


def kept_path(graph_module: GraphModule, inputs: Sequence[object], options: BackendOptions) -> Path | None:
    """Return the path of the file of a graph of Dynamo's and inputs; None if there is no key."""
    common = environment()
    asked = options.compile
    if common is None or options.calibrates or options.parks or not asked.get("plan_cache", True):
        return None
    try:
        of_graph = [*_state(), *map(_input, inputs), *_nodes(graph_module)]
    except _NoKeyError:
        return None
    text = "\n".join((common, option_text(asked), f"{options.target} {options.min_size}", *of_graph))
    return plans_folder() / "models" / f"{text_digest(text)[:32]}.json"


def read_kept(path: Path) -> KeptGraph | None:
    """Return the content of a file; None if there is none, or it is damaged."""
    try:
        seal, _, body = read_trusted(path).partition(b"\n")
        if digest(body).hex().encode() != seal:
            return None
        found = json.loads(body)
        regions = [KeptRegion(**region) for region in found.pop("regions")]
        mark_used(path)
        return KeptGraph(regions=regions, **found)
    except (OSError, KeyError, TypeError, ValueError):
        return None


def write_kept(path: Path, kept: KeptGraph) -> None:
    """Write a file."""
    from ..api.saved_plans import write

    content = {"static": kept.static, "nodes": kept.nodes, "regions": [vars(region) for region in kept.regions]}
    body = json.dumps(content).encode()
    write(path, [digest(body).hex().encode(), b"\n", body])


class Recorder:
    """Writes the file of a graph as soon as all its regions have been compiled.

    Args:
        path: path of the file.
        static: positions of the graph's inputs that are parameters or buffers.
    """

    def __init__(self, path: Path, static: Sequence[int]) -> None:
        self._path, self._static = path, static
        self._found: dict[int, KeptRegion] = {}

    def watch(self, graph: Graph, names: Sequence[str], regions: Sequence[TorchRegion]) -> None:
        """Wait for the compilation of regions, which are submodules of some names of the outer graph."""
        nodes = outer_nodes(graph, {name: number for number, name in enumerate(names)})
        if nodes is None or not regions:
            return

        def note(number: int, lowered: Lowered, constant: Sequence[int]) -> None:
            if not self._found.keys() < set(range(len(regions))) or number in self._found or not lowered.text:
                return
            of, single = (lowered.text, lowered.names, list(constant)), regions[number].single
            self._found[number] = KeptRegion(*of, lowered.inputs, lowered.results, single)
            if len(self._found) == len(regions):
                write_kept(self._path, KeptGraph(self._static, nodes, [self._found[k] for k in range(len(regions))]))

        for number, region in enumerate(regions):
            region.lowered = functools.partial(note, number)


def _state() -> Iterable[str]:
    """Yield the state of PyTorch that AOTAutograd's result depends on."""
    from torch._functorch import config

    modes = _get_current_dispatch_mode(), torch._C._functorch.peek_interpreter_stack()
    if any(mode is not None for mode in modes) or torch._C._len_torch_function_stack():
        raise _NoKeyError
    yield torch.__version__
    yield repr(sorted(config.save_config_portable().items()))
    yield f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()} {torch.get_default_dtype()}"
    yield f"{torch.get_deterministic_debug_mode()} {torch.utils.deterministic.fill_uninitialized_memory}"
    yield f"{torch.backends.cpu.get_cpu_capability()} {torch.backends.mkldnn.enabled}"
    for kind in torch._C._autocast_supported_devices():
        if torch.is_autocast_enabled(kind):
            yield f"{kind} {torch.get_autocast_dtype(kind)} {torch.is_autocast_cache_enabled()}"
    sdp = torch.backends.cuda
    yield f"{sdp.flash_sdp_enabled()} {sdp.mem_efficient_sdp_enabled()} {sdp.math_sdp_enabled()}"


def _input(x: object) -> str:
    """Return the text of an input of a graph."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise _NoKeyError
    assert isinstance(x, torch.Tensor)
    if x.layout is not torch.strided or x.device.type != "cpu" or torch._is_functional_tensor(x):
        raise _NoKeyError
    if not all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset())):
        raise _NoKeyError
    flags = x.requires_grad, x.is_conj(), x.is_neg(), x.is_inference(), getattr(x, "_dynamo_static_input_type", None)
    return f"{type(x).__name__} {x.dtype} {tuple(x.shape)} {x.stride()} {x.storage_offset()} {flags}"


def _nodes(graph_module: GraphModule) -> Iterable[str]:
    """Yield a line for each node of a graph of Dynamo's."""
    numbers = {node: f"%{k}" for k, node in enumerate(graph_module.graph.nodes)}
    for node in numbers:
        value = node.meta.get("example_value")
        if node.op == "placeholder":
            lengths = value.shape if isinstance(value, torch.Tensor) else (None,)
            if not all(type(n) is int for n in lengths):
                raise _NoKeyError
            yield f"{node.target}"
            continue
        if node.op == "call_method":
            first = node.args[0] if node.args else None
            of = first.meta.get("example_value") if isinstance(first, Node) else None
            if not isinstance(of, torch.Tensor):
                raise _NoKeyError
            name = str(node.target)
        elif node.op == "call_function":
            name = _function(node.target)
        elif node.op == "output":
            name = ""
        else:  # modules and attributes
            raise _NoKeyError
        yield f"{node.op} {name} {argument_text((node.args, node.kwargs), numbers, _constant)}"


def _function(target: object) -> str:
    """Return a name from which a function can be found, and nothing else."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    if module in _MODULES or str(module).startswith("torch._C"):
        found = getattr(sys.modules.get(str(module)), name, None)
        if found is target:
            return f"{module}.{name}"
    raise _NoKeyError


def _constant(value: object) -> str:
    """Return the text of a constant argument."""
    if type(value) in _PLAIN or value is ...:
        return repr(value)
    raise _NoKeyError


def outer_nodes(graph: Graph, regions: Mapping[str, int]) -> list[list[object]] | None:
    """Return a graph of calls of regions, operators of ``aten`` and members of tuples as JSON values; None for others.

    Args:
        regions: numbers of the submodules that are regions.
    """
    numbers = {node: k for k, node in enumerate(graph.nodes)}

    def plain(value: object) -> object:
        if isinstance(value, Node):
            return {"node": numbers[value]}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise _NoKeyError

    found: list[list[object]] = []
    try:
        for node in graph.nodes:
            target = node.target
            if node.op == "call_module" and target in regions:
                name: str | int = regions[target]
            elif isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
                name = f"{target._schema.name.removeprefix('aten::')} {target._overloadname}"
            elif node.op in ("placeholder", "output") or target is operator.getitem:
                name = node.op
            else:
                return None
            arguments = [] if node.op == "placeholder" else plain(node.args)
            found.append([name, arguments, {k: plain(v) for k, v in node.kwargs.items()}])
    except _NoKeyError:
        return None
    return found


def graph_of(nodes: Sequence[Any], regions: Sequence[str]) -> Graph:
    """Return the graph of `outer_nodes`, with the given names of submodules."""
    graph = Graph()
    made: list[Node] = []

    def value(plain: Any) -> object:
        if isinstance(plain, dict):
            return made[plain["node"]] if "node" in plain else getattr(torch, plain["dtype"])
        return [value(v) for v in plain] if isinstance(plain, list) else plain

    for name, args, kwargs in nodes:
        given = tuple(map(value, args)), {k: value(v) for k, v in kwargs.items()}
        if name == "placeholder":
            made.append(graph.placeholder(f"input_{len(made)}"))
        elif name == "output":
            graph.output(*given[0])
        elif name == "call_function":
            made.append(graph.call_function(operator.getitem, *given))
        elif isinstance(name, int):
            made.append(graph.call_module(regions[name], *given))
        else:
            packet, overload = name.split(" ")
            target: Callable[..., object] = getattr(getattr(torch.ops.aten, packet), overload)
            made.append(graph.call_function(target, *given))
    return graph
