"""Requests that a C++ program may send to the compiler process: one ``do_`` method each.

Values are encoded as follows. A shape is a map of ``type`` (MIGraphX's number), ``lens`` and ``strides``, or
``dyn_dims``. A tensor is a map of ``type``, ``lens``, ``strides`` (in answers) and ``data``, its elements in row-major
order.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from ...api.argument import argument
from ...api.functions import get_onnx_operators, parse_onnx, parse_onnx_buffer, parse_tf, parse_tf_buffer
from ...api.loading import load
from ...api.module import instruction_ref, module, op
from ...api.program import program
from ...api.quantization import quantize_bf16, quantize_fp8, quantize_fp16, quantize_int8
from ...api.saving import save
from ...api.shape import shape
from ...api.target import get_target
from ...api.traced_run import trace_info
from ...core.shape import Shape
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import CompileError, FormatError, OperatorError, OptionError, ParameterError, UnsupportedError
from ...graph.export import to_dot
from ...json_types import JsonObject
from ...ops.custom import define_remote
from ..logs import LOG

_BARE = re.compile(r"""("(?:[^"\\]|\\.)*")|([A-Za-z_]\w*)(?=\s*:)""")
"""Pattern of a string, which stays as it is, or of an unquoted name before a colon."""


def described(s: shape) -> dict[str, object]:
    """Return the encoding of a shape."""
    inner = s._value
    if inner.is_dynamic:
        dims = [{"min": d.min, "max": d.max, "optimals": sorted(d.optimals)} for d in inner.dyn_dims]
        return {"type": int(inner.type), "dyn_dims": dims}
    return {"type": int(inner.type), "lens": list(inner.lens), "strides": list(inner.strides)}


def shape_of(given: JsonObject) -> shape:
    """Return the shape that a C++ program sent."""
    name = Type(given["type"]).name
    if "dyn_dims" in given:
        return shape(type=name, dyn_dims=given["dyn_dims"])
    return shape(type=name, lens=given["lens"], strides=given["strides"])


def packed(value: argument) -> dict[str, object]:
    """Return the encoding of a result.

    Raises:
        ParameterError: C++ has no counterpart of the element type.
    """
    s = value.get_shape()
    if not isinstance(value, argument) or s._value.type.holds_objects or s._value.sub_shapes:
        raise ParameterError(f"a result of {s} has no form in C++")
    array = np.ascontiguousarray(np.asarray(value))
    standard = shape(type=s._value.type.name, lens=s.lens()) if not s._value.scalar else s
    return {**described(standard), "data": array.tobytes()}


def tensor_of(given: JsonObject) -> np.ndarray:
    """Return the array that a C++ program sent, read-only."""
    return np.frombuffer(given["data"], Type(given["type"]).numpy).reshape(given["lens"])


def attributes_of(given: object) -> dict[str, object]:
    """Return an operator's attributes from a map, or from JSON text with names that need no quotes.

    Raises:
        OperatorError: the text is not JSON.
    """
    if isinstance(given, str):
        text = _BARE.sub(lambda found: found[1] or f'"{found[2]}"', given or "{}")
        try:
            given = json.loads(text)
        except ValueError as error:
            raise OperatorError(f"attributes {given!r} are no JSON: {error}") from None
    if not isinstance(given, dict):
        raise OperatorError(f"attributes must be an object, got {given!r}")
    return {key: _attribute(value) for key, value in given.items()}


def _attribute(value: object) -> object:
    if isinstance(value, list):
        return [_attribute(member) for member in value]
    if isinstance(value, dict) and list(value) == ["float"]:
        return float.fromhex(value["float"])
    return value


Answer = dict[str, Any]


def _nobody(call: Answer) -> Answer:
    raise OptionError(f"there is no process to call {call['call']}")


@dataclass
class _Held:
    """A program, with the modules and instructions that C++ refers to by number, and the folder of its library."""

    model: program
    modules: list[module] = field(default_factory=list)
    instructions: list[instruction_ref] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def take(self, one: instruction_ref) -> Answer:
        self.instructions.append(one)
        return {"instruction": len(self.instructions) - 1}

    def take_module(self, one: module) -> Answer:
        self.modules.append(one)
        return {"module": len(self.modules) - 1}


class Service:
    """The programs of one C++ process. A failed request raises `MgxError`.

    ``call`` sends a call to that process, which names a function and has its arguments, and returns what the function
    gives; it raises `MgxError` with the function's error.
    """

    def __init__(self, call: Callable[[Answer], Answer] = _nobody) -> None:
        self._call = call
        self.held_models: dict[int, _Held] = {}
        self._numbers = itertools.count()

    def answer(self, request: Mapping[str, object]) -> Answer:
        """Execute a request and return the answer; ``do`` names the method, the other entries are its arguments.

        Raises:
            MgxError: the request fails or is unknown.
        """
        arguments = dict(request)
        method = getattr(self, f"do_{arguments.pop('do')}", None)
        if method is None:
            raise OptionError(f"the compiler does not know the request {request['do']!r}: header and package differ")
        number = arguments.pop("program", None)
        if number is not None:
            if number not in self.held_models:
                raise OptionError("the compiler does not know the program")
            arguments["held"] = self.held_models[number]
        found: Answer = method(**arguments)
        return found

    def close(self) -> None:
        """Release all programs."""
        for held in self.held_models.values():
            _drop_folder(held)
        self.held_models.clear()

    def do_create(self) -> Answer:
        """Create an empty program."""
        return self._hold(program())

    def do_drop(self, held: _Held) -> Answer:
        """Release a program."""
        _drop_folder(held)
        self.held_models = {number: other for number, other in self.held_models.items() if other is not held}
        return {}

    def do_parse_onnx(self, file: str, **options: object) -> Answer:
        """Read a program from an ONNX file."""
        return self._hold(parse_onnx(file, **_onnx_options(options)))

    def do_parse_onnx_buffer(self, data: bytes, **options: object) -> Answer:
        """Read a program from the bytes of an ONNX file."""
        for name in ("max_loop_iterations", "limit_max_iterations"):  # only parse_onnx has these, as in Python
            options.pop(name)
        return self._hold(parse_onnx_buffer(data, **_onnx_options(options)))

    def do_parse_tf(self, file: str, output_names: list[str], **options: Any) -> Answer:
        """Read a program from a TensorFlow model's file."""
        return self._hold(parse_tf(file, output_names=output_names or None, **options))

    def do_parse_tf_buffer(self, data: bytes, output_names: list[str], **options: Any) -> Answer:
        """Read a program from the bytes of a TensorFlow model."""
        return self._hold(parse_tf_buffer(data, output_names=output_names or None, **options))

    def do_load(self, file: str, format: str, trust_objects: bool) -> Answer:
        """Read a program from an ``.mxr`` file."""
        return self._hold(load(file, format=format, trust_objects=trust_objects))

    def do_save(self, held: _Held, file: str, format: str, embed_library: bool) -> Answer:
        """Write a program to an ``.mxr`` file."""
        save(held.model, file, format, embed_library=embed_library)
        return {}

    def do_describe(self, held: _Held) -> Answer:
        """Return names and shapes of parameters and results."""
        outputs = zip(held.model.get_output_names(), held.model.get_output_shapes(), strict=True)
        return {
            "parameters": [{"name": name, **described(s)} for name, s in held.model.get_parameter_shapes().items()],
            "outputs": [{"name": name, **described(s)} for name, s in outputs],
        }

    def do_text(self, held: _Held) -> Answer:
        """Return a program's text form."""
        return {"text": str(held.model)}

    def do_graph(self, held: _Held, brief: bool) -> Answer:
        """Return a program's graph in Graphviz's language."""
        return {"text": to_dot(held.model.shown, brief)}

    def do_is_compiled(self, held: _Held) -> Answer:
        """Return whether a program is compiled."""
        return {"compiled": held.model.is_compiled()}

    def do_equal(self, held: _Held, other: int) -> Answer:
        """Return whether two programs are equal."""
        return {"equal": held.model == self.held_models[other].model}

    def do_sort(self, held: _Held) -> Answer:
        """Sort the instructions topologically."""
        held.model.sort()
        return self._changed(held)

    def do_compile(self, held: _Held, target: str, **options: Any) -> Answer:
        """Compile a program; return the library to run, if there is one."""
        held.model.compile(get_target(target), **options)
        return self._changed(held)

    def do_quantize(
        self, held: _Held, kind: str, target: str, names: Sequence[str], batches: Sequence[JsonObject]
    ) -> Answer:
        """Quantise a program."""
        chosen: dict[str, Any] = {"ins_names": tuple(names)} if names else {}
        calibration = [{name: tensor_of(value) for name, value in batch.items()} for batch in batches]
        if kind in ("fp16", "bf16"):
            (quantize_fp16 if kind == "fp16" else quantize_bf16)(held.model, **chosen)
        elif kind == "int8":
            quantize_int8(held.model, get_target(target), calibration, **chosen)
        else:
            quantize_fp8(held.model, get_target(target), calibration)
        return self._changed(held)

    def do_reshape(self, held: _Held, lengths: Mapping[str, Sequence[int]]) -> Answer:
        """Change the lengths of inputs, and recompile a compiled program."""
        target, options = held.model.compile_target, held.model.compile_options
        held.model.reshape(lengths)
        if options is not None and not held.model.is_compiled():
            held.model.compile(target, asdict(options))
        return self._changed(held)

    def do_run(self, held: _Held, inputs: JsonObject) -> Answer:
        """Run a program in this process, for programs without a library."""
        results = held.model.run({name: tensor_of(value) for name, value in inputs.items()})
        return {"results": [packed(result) for result in results]}

    def do_run_trace(self, held: _Held, inputs: JsonObject) -> Answer:
        """Run a program in this process, and call ``trace`` after each instruction, with its first result."""

        def told(info: trace_info) -> None:
            results = [packed(result) for result in info.results[:1]]
            self._call({"call": "trace", "index": info.index, "name": info.name, "results": results})

        results = held.model.run_trace({name: tensor_of(value) for name, value in inputs.items()}, told)
        return {"results": [packed(result) for result in results]}

    def do_register_op(self, name: str) -> Answer:
        """Make an operator known whose shape rule and function are in the other process."""

        def rule(*inputs: Shape) -> Shape:
            shapes = [described(shape.wrap(s)) for s in inputs]
            return shape_of(self._call({"call": "compute_shape", "name": name, "inputs": shapes})["shape"])._value

        def function(*inputs: np.ndarray) -> np.ndarray:
            tensors = [packed(argument(value)) for value in inputs]
            return tensor_of(self._call({"call": "compute", "name": name, "inputs": tensors})["result"])

        define_remote(name, function, rule)
        return {}

    def do_check_operation(self, name: str, attributes: object) -> Answer:
        """Raise an error if there is no such operator, or if it has no such attributes."""
        op(name, **attributes_of(attributes))
        return {}

    def do_main_module(self, held: _Held) -> Answer:
        """Return the main module's number."""
        return held.take_module(held.model.get_main_module())

    def do_create_module(self, held: _Held, name: str) -> Answer:
        """Add a submodule and return its number."""
        return held.take_module(held.model.create_module(name))

    def do_add_parameter(self, held: _Held, module: int, name: str, shape: Mapping[str, object]) -> Answer:
        """Add a parameter to a module."""
        return held.take(held.modules[module].add_parameter(name, shape_of(shape)))

    def do_add_literal(self, held: _Held, module: int, value: Mapping[str, object]) -> Answer:
        """Add a literal to a module."""
        return held.take(held.modules[module].add_literal(tensor_of(value)))

    def do_add_instruction(
        self,
        held: _Held,
        module: int,
        name: str,
        attributes: object,
        inputs: Sequence[int],
        modules: Sequence[tuple[int, int]],
    ) -> Answer:
        """Append an instruction to a module; a body is given by its program's and its own number."""
        added = op(name, **attributes_of(attributes))
        bodies = [self.held_models[owner].modules[number] for owner, number in modules]
        for body in bodies:
            held.model.portable.adopt(body._value)
        return held.take(held.modules[module].add_instruction(added, self._instructions(held, inputs), bodies))

    def do_add_return(self, held: _Held, module: int, inputs: Sequence[int]) -> Answer:
        """Append a return instruction to a module."""
        return held.take(held.modules[module].add_return(self._instructions(held, inputs)))

    def do_add_allocation(self, held: _Held, module: int, shape: Mapping[str, object]) -> Answer:
        """Append an allocation of uninitialised memory to a module."""
        allocated = op("allocate", shape=shape_of(shape))
        return held.take(held.modules[module].add_instruction(allocated, []))

    def do_module_text(self, held: _Held, module: int) -> Answer:
        """Return a module's text form."""
        return {"text": str(held.modules[module])}

    def do_get_onnx_operators(self) -> Answer:
        """Return the names of the supported ONNX operators."""
        return {"names": get_onnx_operators()}

    def _instructions(self, held: _Held, numbers: Sequence[int]) -> list[instruction_ref]:
        return [held.instructions[number] for number in numbers]

    def _hold(self, model: program) -> Answer:
        held = _Held(model)
        number = next(self._numbers)
        self.held_models[number] = held
        return {"program": number, **self._changed(held)}

    def _changed(self, held: _Held) -> Answer:
        """Build the library that runs a changed program and return its path.

        The path is None if the program is not compiled, cannot be exported, or its steps are traced.
        """
        _drop_folder(held)
        if held.model._form is None or held.model._form.level:
            return {"library": None}
        if any(shape.dynamic() for shape in held.model.get_parameter_shapes().values()):  # C++ has no dynamic shapes
            return {"library": None}
        held.folder = tempfile.TemporaryDirectory(prefix="mgx_numba_")
        try:
            return {"library": str(held.model.export_library(held.folder.name, "program", link=True))}
        except (UnsupportedError, OptionError, CompileError, FormatError) as error:
            LOG.info("the compiler's process runs the program: %s", error)
            _drop_folder(held)
            return {"library": None}


def _drop_folder(held: _Held) -> None:
    if held.folder is not None:
        held.folder.cleanup()
        held.folder = None


def _onnx_options(given: JsonObject) -> dict[str, Any]:
    """Return options for `parse_onnx`; a C++ program sends the default range as a list of at most one range."""
    ranges = given.get("default_dyn_dim_value", [])
    return {**given, "default_dyn_dim_value": ranges[0] if ranges else None}
