"""`from_module`: exports a PyTorch model by ``torch.export`` and translates the graph."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import re
import traceback
from collections.abc import Mapping, Sequence

import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import AdditionalInputs, ExportedProgram, ShapesCollection
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn.parameter import is_lazy
from torch.utils._pytree import SUPPORTED_NODES, keystr, tree_leaves, tree_leaves_with_path

from ...errors import OptionError, UnsupportedError
from ...graph.program import Program
from ...graph.safetensors import Safetensors
from .complex_values import without_complex
from .decompositions import export_table, open_steps
from .flex_attention import plain_flex_attention
from .parser import parse_graph

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def from_module(
    model: object,
    example_inputs: object,
    dynamic_shapes: object,
    decompositions: Mapping[object, object] | None,
    weights: str | os.PathLike[str] | None,
) -> Program:
    """Return the program of a model; see `mgx_numba.from_torch`."""
    if not isinstance(decompositions, (Mapping, type(None))):
        raise OptionError(f"decompositions must be a dict by operator, got {_kind(decompositions)}")
    if not isinstance(weights, (str, os.PathLike, type(None))):
        raise OptionError(f"weights must be the path of a safetensors file or a folder, got {_kind(weights)}")
    for op, made in (decompositions or {}).items():
        if not isinstance(op, torch._ops.OpOverload) or not callable(made):
            expected = "a function for each overload of an operator, such as torch.ops.aten.relu.default"
            raise OptionError(f"decompositions must have {expected}, got {made!r} for {op!r}")
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise OptionError("dynamic_shapes are of no use for an ExportedProgram: torch.export.export takes them")
        exported = model
    elif example_inputs is None:
        raise OptionError("from_torch needs example_inputs to export a module")
    else:
        exported = exported_module(model, *example_call(model, example_inputs), dynamic_shapes)
    table = export_table()
    table.update(decompositions or {})
    with plain_flex_attention(), open_steps():
        exported = exported.run_decompositions(table)
    signature = exported.graph_signature
    kinds = {spec.kind for spec in signature.output_specs} - {OutputKind.USER_OUTPUT, OutputKind.TOKEN}
    if kinds:
        changed = sorted(str(s.target) for s in signature.output_specs if s.kind in kinds)
        raise UnsupportedError(f"the model changes {', '.join(changed)} in place, which a program cannot")
    constants = _constants(exported, weights)
    return parse_graph(without_complex(exported.graph_module), constants=constants, ranges=exported.range_constraints)


def exported_module(
    model: object, args: tuple[object, ...], kwargs: dict[str, object], dynamic_shapes: object = None
) -> ExportedProgram:
    """Return a module, exported by ``torch.export``, whose errors and the module's own are passed on.

    Raises:
        OptionError: ``torch.export`` does not take the type of ``dynamic_shapes``, of an argument or of a result, or
            ``dynamic_shapes`` does not fit the arguments or the model.
    """
    kinds = (Mapping, list, tuple, ShapesCollection, AdditionalInputs, type(None))
    if not isinstance(dynamic_shapes, kinds):
        raise OptionError(f"dynamic_shapes must be a dict or a sequence, got {_kind(dynamic_shapes)}")
    try:
        shapes = dynamic_shapes
        if isinstance(shapes, (ShapesCollection, AdditionalInputs)):
            shapes = shapes.dynamic_shapes(model, args, kwargs)
        if shapes:
            call = inspect.signature(model.forward).bind(*args, **kwargs)  # type: ignore[attr-defined]
            bound, parameters = call.arguments, call.signature.parameters
            of_all = next((name for name in bound if parameters[name].kind is inspect.Parameter.VAR_KEYWORD), None)
            if of_all is not None:
                raise OptionError(f"dynamic_shapes do not fit: PyTorch exports **{of_all} with fixed lengths alone")
            _check_axes(shapes, bound if isinstance(shapes, Mapping) else list(bound.values()), "dynamic_shapes")
        with torch.no_grad(), open_steps():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)  # type: ignore[arg-type]
    except (UserError, ConstraintViolationError, AssertionError, ValueError, RuntimeError) as error:
        _check_leaves(args, kwargs, error)
        if not dynamic_shapes or not _is_of_shapes(error):
            raise
        text = str(error).partition("\n\nThe error above")[0].partition("\nFor more information")[0]
        raise OptionError(f"dynamic_shapes do not fit: {text}") from error


def _check_leaves(args: tuple[object, ...], kwargs: dict[str, object], error: Exception) -> None:
    """Raise an OptionError for an error about the type of an argument or of a result."""
    found = re.match(r"(Unsupported input type|Found) (<class '[^']*'>)", str(error))
    if found is None:
        return
    kind, register = found[2], "torch.export.register_dataclass"
    if found[1] == "Found":
        where = "the module returns"
    else:
        path, value = next((p, v) for p, v in tree_leaves_with_path((args, kwargs)) if str(type(v)) == kind)
        where = f"example input {keystr(path[1:])} is of"
        if not dataclasses.is_dataclass(value):
            register = "torch.utils._pytree.register_constant"
    raise OptionError(f"{where} {kind}, which PyTorch cannot export; see {register}") from error


def _check_axes(shapes: object, values: object, where: str) -> None:
    """Check that each axis that ``dynamic_shapes`` name is one of the tensor's; PyTorch checks all else.

    Raises:
        OptionError: an axis is no number, or the tensor has no such axis; or the shapes of a class that is registered
            with PyTorch are no list.
    """
    kind = type(values)
    if isinstance(values, torch.Tensor):
        for axis in shapes if isinstance(shapes, Mapping) else ():
            if type(axis) is not int or not 0 <= axis < values.dim():
                rank = values.dim()
                raise OptionError(f"{where} has axis {axis!r}; the tensor has {rank} axes, which count from 0")
    elif shapes and kind in SUPPORTED_NODES and kind.__module__ not in ("builtins", "collections"):
        if not isinstance(shapes, list):
            raise OptionError(f"{where} must be a list with the shapes of the members of {kind}, got {_kind(shapes)}")
    elif isinstance(shapes, Mapping) and isinstance(values, Mapping):
        for key in shapes.keys() & values.keys():
            _check_axes(shapes[key], values[key], f"{where}[{key!r}]")
    elif isinstance(shapes, Sequence) and isinstance(values, Sequence):
        for place, (shape, value) in enumerate(zip(shapes, values)):
            _check_axes(shape, value, f"{where}[{place}]")


def _is_of_shapes(error: Exception) -> bool:
    """Return whether an error of PyTorch's is about ``dynamic_shapes``."""
    if isinstance(error, UserError):
        return error.error_type in (UserErrorType.INVALID_INPUT, UserErrorType.CONSTRAINT_VIOLATION)
    if isinstance(error, ConstraintViolationError):
        return True
    own = inspect.getfile(ShapesCollection)
    return any(frame.filename == own for frame in traceback.extract_tb(error.__traceback__))


def example_call(model: object, example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and the named arguments of a module's call with example inputs.

    Args:
        model: the module.
        example_inputs: a tensor, a sequence of arguments, or a dict of arguments by name.

    Raises:
        OptionError: ``model`` is no module, has parameters without a shape, or does not take the inputs.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise OptionError(f"the model must be an nn.Module or an ExportedProgram, got {_kind(model)}")
    name = type(model).__name__
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    lazy = next((own for own, value in named if is_lazy(value)), None)
    if lazy is not None:
        raise OptionError(f"{lazy!r} of {name} has no shape yet: call the module once on an example")
    args, kwargs = _arguments(example_inputs)
    for value in tree_leaves((args, kwargs)):
        if type(value).__module__ == "numpy":
            raise OptionError(f"an example input must be a tensor or a number, got {_kind(value)}: see torch.as_tensor")
        if isinstance(value, torch.Tensor):
            kind = f"layout {value.layout}" if value.layout is not torch.strided else ""
            kind = "type nested" if value.is_nested else f"type {value.dtype}" if value.is_quantized else kind
            if kind:
                raise OptionError(f"an example input must be a dense tensor, got one of {kind}")
    try:
        takes = inspect.signature(model.forward)
    except ValueError:  # a method that is not Python's
        return args, kwargs
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        raise OptionError(f"the example inputs do not fit {name}.forward{takes}: {error}") from None
    return args, kwargs


def _arguments(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Sequence) and not isinstance(example_inputs, str):
        return tuple(example_inputs), {}
    expected = "a tensor, a sequence of arguments, or a dict of arguments by name"
    raise OptionError(f"the example inputs must be {expected}, got {_kind(example_inputs)}")


def _kind(value: object) -> str:
    return "a NumPy array" if type(value).__name__ == "ndarray" else type(value).__name__


def _constants(exported: ExportedProgram, weights: str | os.PathLike[str] | None) -> dict[str, object]:
    """Return the tensors of the placeholders that are parameters, buffers and constants.

    Raises:
        OptionError: a tensor has no memory, and ``weights`` does not have it.
    """
    stored = None if weights is None else Safetensors(weights)
    found: dict[str, object] = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind not in _CONSTANTS or spec.target is None:
            continue
        name = spec.target
        tensor = exported.state_dict[name] if name in exported.state_dict else exported.constants[name]
        if stored is not None and (given := stored.array(name)) is not None:
            if given.shape != tuple(tensor.shape):
                raise OptionError(f"{name!r} has lengths {given.shape} in the weights, not {list(tensor.shape)}")
            found[spec.arg.name] = given
        elif tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
            where = "give weights=PATH of its safetensors file" if weights is None else f"{weights} does not have it"
            raise OptionError(f"{name!r} has no elements: {where}")
        else:
            found[spec.arg.name] = tensor
    return found
