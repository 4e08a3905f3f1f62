"""``torch_migraphx.fx``: replacement of the supported parts of a PyTorch module by compiled programs."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..errors import OptionError, ParameterError, UnsupportedError
from ..frontends.torch.export import example_call, exported_module
from ..frontends.torch.flex_attention import plain_flex_attention
from .backend import decompositions, prepared
from .logs import log_info, warn_lacking
from .module import MGXModule, check_flags
from .options import BackendOptions, parse_options
from .partition import REGION, copied, divide, views_at_end
from .region import lower

__all__ = ["LowerPrecision", "MGXModule", "SplitModule", "lower_to_mgx"]


class LowerPrecision(enum.Enum):
    """Precision of the contractions in a module that `lower_to_mgx` returns."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class SplitModule(torch.nn.Module):
    """A module whose compiled parts are `MGXModule` objects; PyTorch runs the operators between these parts.

    Attributes:
        graph_module: the outer graph, over flat inputs and results.
    """

    def __init__(
        self, graph_module: GraphModule, in_spec: object, out_spec: object, fixed: Mapping[int, tuple[str, object]]
    ) -> None:
        super().__init__()
        self.graph_module = graph_module
        self._in_spec, self._out_spec, self._fixed = in_spec, out_spec, fixed

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the module.

        Raises:
            ParameterError: the arguments have another structure than the example's, or another number, string or None.
        """
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise ParameterError(f"arguments have the structure {spec}, the example inputs had {self._in_spec}")
        for place, (name, example) in self._fixed.items():
            value = flat[place]
            if type(value) is not type(example) or value != example:
                given = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
                raise ParameterError(f"argument {name!r} is {given}; the module was lowered for {example!r} alone")
        with torch.no_grad():
            return pytree.tree_unflatten(self.graph_module(*flat), self._out_spec)

    def compiled_parts(self) -> list[MGXModule]:
        """Return the compiled parts, in order."""
        return [module for module in self.modules() if isinstance(module, MGXModule)]

    def print_all_subgraphs(self) -> None:
        """Print the programs, and the graph around them."""
        print(self.graph_module.graph)
        for number, module in enumerate(self.compiled_parts()):
            print(f"Submodule: {REGION}{number}\n{module.program}")


def lower_to_mgx(
    module: torch.nn.Module | ExportedProgram,
    input: torch.Tensor | Sequence[object] | Mapping[str, object],
    lower_precision: LowerPrecision | str = LowerPrecision.FP32,
    min_acc_module_size: int = 10,
    use_aten: bool = True,
    verbose_log: bool = False,
    suppress_accuracy_check: bool = False,
    save_subgraph_programs: bool = False,
    tracer_base_cls: object = None,
    leaf_modules: object = None,
    *,
    fp16: bool = False,
    bf16: bool = False,
    int8: bool = False,
    exhaustive_tune: bool = False,
    target: str | None = None,
) -> SplitModule:
    """Return a module that computes what ``module`` does in eval mode, compiled for inputs like ``input``.

    The module is exported by `torch.export`.

    Args:
        module: the module, which is put in eval mode; or an exported module.
        input: example inputs, from which int8 takes its ranges: a tensor, a sequence of arguments, or a dict of them.
        lower_precision: precision of contractions; ``fp16``, ``bf16`` and ``int8`` say the same.
        min_acc_module_size: least number of operators of a compiled part, if PyTorch runs some.
        save_subgraph_programs: write each program into the working directory, as ``mgx_region_0.mxr`` and so on.
        verbose_log: log which parts are compiled.
        exhaustive_tune: measure kernels, as ``program.compile`` does.
        target: ``cpu`` or ``gpu``; None for that of the inputs' device.
        use_aten, suppress_accuracy_check, tracer_base_cls, leaf_modules: torch_migraphx's arguments, without effect.

    Raises:
        OptionError: an argument has another type or value than described here.
        MgxError: a part cannot be compiled, or the module changes its buffers.
    """
    flags = {"fp16": fp16, "bf16": bf16, "int8": int8}
    check_flags(**flags, verbose_log=verbose_log, save_subgraph_programs=save_subgraph_programs)
    kinds = _precisions(lower_precision, flags)
    given = {"quantize": kinds, "exhaustive_tune": exhaustive_tune, "target": target}
    options = parse_options({**given, "min_acc_module_size": min_acc_module_size})
    of = module.module() if isinstance(module, ExportedProgram) else module
    args, kwargs = example_call(of, input)
    with contextlib.suppress(NotImplementedError):  # a module that was exported, such as PT2E's, has no modes
        of.eval()
    with torch.no_grad(), plain_flex_attention():
        exported = module if isinstance(module, ExportedProgram) else exported_module(module, args, kwargs)
        made = _split(exported.run_decompositions(decompositions()), args, kwargs, options)
    for number, part in enumerate(made.compiled_parts()):
        assert part.program is not None
        if verbose_log:
            log_info("compiled %s%d: %s", REGION, number, part.program)
        if save_subgraph_programs:
            part.program.save(f"{REGION}{number}.mxr")
    return made


def _precisions(lower_precision: LowerPrecision | str, asked: Mapping[str, bool]) -> list[str]:
    """Return the quantisations that arguments of `lower_to_mgx` ask for."""
    try:
        precision = LowerPrecision(lower_precision)
    except ValueError:
        known = ", ".join(p.value for p in LowerPrecision)
        raise OptionError(f"lower_precision must be a LowerPrecision, or of {known}, got {lower_precision!r}") from None
    own = [] if precision is LowerPrecision.FP32 else [precision.value]
    return list(dict.fromkeys([*(name for name, value in asked.items() if value), *own]))


def _split(
    exported: ExportedProgram, args: tuple[object, ...], kwargs: dict[str, object], options: BackendOptions
) -> SplitModule:
    """Return an exported program whose supported operators are in `MGXModule` objects."""
    from ..frontends.torch.parser import unsupported

    signature = exported.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedError(f"the module changes {', '.join(changed)} in place; torch.compile compiles such modules")
    graph_module = prepared(exported.graph_module)
    values = {**exported.state_dict, **exported.constants}
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    held.update(signature.inputs_to_lifted_tensor_constants)
    lacking = dict(unsupported(graph_module))
    ends = views_at_end(graph_module) if lacking else ()
    warn_lacking({node: reason for node, reason in lacking.items() if node not in ends})
    divide(graph_module, lacking, options.min_size)
    constants = _hold(graph_module, {name: values[of] for name, of in held.items()})
    for call in graph_module.graph.find_nodes(op="call_module"):
        if str(call.target).startswith(REGION):
            inner = graph_module.get_submodule(str(call.target))
            assert isinstance(inner, GraphModule)
            setattr(graph_module, str(call.target), _First(inner, [s in constants for s in call.args], options))
    graph_module.recompile()
    flat, in_spec = pytree.tree_flatten((args, kwargs))
    graph_module(*flat)
    for call in graph_module.graph.find_nodes(op="call_module"):
        part = graph_module.get_submodule(str(call.target))
        if isinstance(part, _First):
            assert part.made is not None
            setattr(graph_module, str(call.target), part.made)
            call.args = tuple(call.args[place] for place in part.places)
    graph_module.graph.eliminate_dead_code()
    outer = copied(graph_module)  # has only what the graph refers to, and can be pickled
    given = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    fixed = {k: (arg.name, arg.value) for k, arg in enumerate(given) if isinstance(arg, ConstantArgument)}
    return SplitModule(outer, in_spec, exported.call_spec.out_spec, fixed)


def _hold(graph_module: GraphModule, values: dict[str, torch.Tensor]) -> set[Node]:
    """Replace the inputs that are parameters by buffers of the outer graph; return the nodes that read the buffers."""
    graph, found = graph_module.graph, set()
    for node in graph.find_nodes(op="placeholder"):
        if node.name not in values:
            continue
        name = f"held_{node.name}"
        graph_module.register_buffer(name, values[node.name].detach())
        with graph.inserting_before(node):
            read = graph.get_attr(name)
        read.meta = dict(node.meta)
        node.replace_all_uses_with(read)
        graph.erase_node(node)
        found.add(read)
    inputs = graph.find_nodes(op="placeholder")
    for node in reversed(inputs):
        next(iter(graph.nodes)).prepend(node)
    return found


class _First(torch.nn.Module):
    """A region that its first call, on example inputs, compiles."""

    def __init__(self, graph_module: GraphModule, constant: Sequence[bool], options: BackendOptions) -> None:
        super().__init__()
        self._graph_module, self._constant, self._options = graph_module, constant, options
        self.made: MGXModule | None = None
        self.places: list[int] = []

    def forward(self, *args: object) -> Any:
        """Compile the region and run it."""
        constant = [place for place, is_constant in enumerate(self._constant) if is_constant]
        lowered = lower(self._graph_module, args, constant, self._options)
        self.made, self.places = MGXModule.of(lowered), [place for _, place, _ in lowered.inputs]
        return self.made(*(args[place] for place in self.places))
