"""`from_module`: exports a PyTorch model by ``torch.export`` and translates the graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ...errors import OptionError, UnsupportedError
from ...graph.program import Program
from .complex_values import without_complex
from .decompositions import export_table
from .flex_attention import plain_flex_attention
from .parser import parse_graph
from .safetensors import tensors_of

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def from_module(
    model: object,
    example_inputs: object,
    dynamic_shapes: object,
    decompositions: Mapping[object, object] | None,
    weights: str | os.PathLike[str] | None,
) -> Program:
    """Return the program of a model; see `mgx_numba.from_torch`."""
    exported = model if isinstance(model, ExportedProgram) else _exported(model, example_inputs, dynamic_shapes)
    table = export_table()
    for op, made in (decompositions or {}).items():
        table[op] = made
    with plain_flex_attention():
        exported = exported.run_decompositions(table)
    signature = exported.graph_signature
    kinds = {spec.kind for spec in signature.output_specs} - {OutputKind.USER_OUTPUT, OutputKind.TOKEN}
    if kinds:
        changed = sorted(str(s.target) for s in signature.output_specs if s.kind in kinds)
        raise UnsupportedError(f"the model changes {', '.join(changed)} in place, which a program cannot")
    constants = _constants(exported, weights)
    return parse_graph(without_complex(exported.graph_module), constants=constants, ranges=exported.range_constraints)


def _exported(model: object, example_inputs: Any, dynamic_shapes: object) -> ExportedProgram:
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"from_torch takes an nn.Module or an ExportedProgram, not {type(model).__name__}")
    if example_inputs is None:
        raise OptionError("from_torch needs example_inputs to export a module")
    if isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    else:
        single = isinstance(example_inputs, torch.Tensor)
        args, kwargs = ((example_inputs,) if single else tuple(example_inputs)), {}
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


def _constants(exported: ExportedProgram, weights: str | os.PathLike[str] | None) -> dict[str, object]:
    """Return the tensors of the placeholders that are parameters, buffers and constants.

    Raises:
        OptionError: a tensor has no memory, and ``weights`` does not have it.
    """
    stored = {} if weights is None else tensors_of(weights)
    found: dict[str, object] = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind not in _CONSTANTS or spec.target is None:
            continue
        name = spec.target
        tensor = exported.state_dict[name] if name in exported.state_dict else exported.constants[name]
        if name in stored:
            if stored[name].shape != tuple(tensor.shape):
                raise OptionError(f"{name!r} has lengths {stored[name].shape} in the weights, not {list(tensor.shape)}")
            found[spec.arg.name] = stored[name]
        elif tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
            where = "give weights=PATH of its safetensors file" if weights is None else f"{weights} does not have it"
            raise OptionError(f"{name!r} has no elements: {where}")
        else:
            found[spec.arg.name] = tensor
    return found
