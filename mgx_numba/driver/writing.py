"""Writing of a program by the flags of `add_output`.

Export of any program, also a compiled one, as an ONNX model for the viewer Netron.

Nodes have the IR's operators in the domain ``mgx_numba``, so no engine can run the model.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .._version import __version__
from ..api.program import program
from ..api.saving import save, save_buffer, saved_options
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..errors import FormatError, OptionError
from ..graph.export import to_cpp, to_dot, to_py
from ..graph.instruction import Instruction, Parameter, Return
from ..graph.module import Module
from ..graph.mxr import save_buffer as json_buffer
from ..graph.printer import instruction_names
from ..graph.program import Program
from ..graph.serialize import attribute_to_value

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

DOMAIN = "mgx_numba"
LARGE_LITERAL = 1024
"""Number of elements from which a literal is exported without values, since the model is only for viewing."""


def to_netron(program: Program) -> bytes:
    """Return the model's protobuf, which `onnx.load` reads; submodules are graph attributes."""
    from onnx import helper

    names = instruction_names(program.reachable_modules())
    model = helper.make_model(
        _graph(program.main, names),
        producer_name=DOMAIN,
        producer_version=__version__,
        opset_imports=[helper.make_opsetid(DOMAIN, 1)],
    )
    return bytes(model.SerializeToString())


def _graph(module: Module, names: dict[Instruction, str]) -> GraphProto:
    from onnx import helper

    nodes, literals, values = [], [], []
    for ins in module:
        if isinstance(ins.op, (Parameter, Return)):
            continue
        if ins.literal is not None and ins.literal.array is not None:
            literals.append(_literal(names[ins], ins.literal.array, ins.shape))
            continue
        nodes.append(_node(ins, names))
        values.append(_value(names[ins], ins.shape))
    inputs = [_value(names[p], p.shape) for p in module.parameters()]
    results = [_value(names[r], r.shape) for r in module.results()]
    return helper.make_graph(nodes, module.name, inputs, results, literals, value_info=values)


def _node(ins: Instruction, names: dict[Instruction, str]) -> NodeProto:
    from onnx import helper

    node = helper.make_node(
        ins.name, [names[i] for i in ins.inputs], [names[ins]], ", ".join(ins.debug_symbols), domain=DOMAIN
    )
    for key, value in ins.op.attributes().items():
        plain = attribute_to_value(value)
        if plain is not None and plain != []:
            node.attribute.append(helper.make_attribute(key, plain if _is_simple(plain) else str(plain)))
    for module in ins.module_args:
        node.attribute.append(helper.make_attribute(module.name, _graph(module, names)))
    return node


def _is_simple(value: object) -> bool:
    if isinstance(value, list):
        return all(type(v) is type(value[0]) and isinstance(v, (int, float, str)) for v in value)
    return isinstance(value, (int, float, str))


def _literal(name: str, array: np.ndarray, shape: Shape) -> TensorProto:
    from onnx import TensorProto, numpy_helper

    if array.size < LARGE_LITERAL and shape.type is not Type.fp4x2_type:
        return numpy_helper.from_array(np.ascontiguousarray(array), name)
    return TensorProto(name=name, data_type=_element(shape), dims=shape.lens)


def _value(name: str, shape: Shape) -> ValueInfoProto:
    from onnx import ValueInfoProto, helper

    if shape.sub_shapes:
        return ValueInfoProto(name=name, doc_string=str(shape))
    if shape.is_dynamic:
        lens: list[int | str] = [d.min if d.is_fixed else str(d) for d in shape.dims]
    else:
        lens = list(shape.lens)
    return helper.make_tensor_value_info(name, _element(shape), lens, str(shape))


def _element(shape: Shape) -> int:
    from onnx import TensorProto, helper

    packed = shape.type is Type.fp4x2_type  # two elements to a byte, exported as bytes
    return int(TensorProto.UINT8 if packed else helper.np_dtype_to_tensor_dtype(np.dtype(shape.type.numpy)))


_FORMS = {".json": "json", ".py": "python", ".cpp": "cpp", ".dot": "graphviz"}
"""Form of output by extension, so that a written file can be read by its name; other extensions are binary."""


def check_output(args: argparse.Namespace) -> None:
    """Raise early, before compiling, if `write_model` cannot write the requested output.

    Raises:
        OptionError: binary output to a terminal is requested, or machine code in another form than a binary file.
        FormatError: the file's folder is missing or not writable.
    """
    form = _form(args)
    for flag, given in (("--embed-objects", args.embed_objects), ("--embed-library", args.embed_library)):
        if given and form != "binary":
            raise OptionError(f"{flag} needs a binary file: give --output FILE (the form is {form})")
    if args.output:
        check_writable(args.output)
    elif form in ("binary", "netron") and sys.stdout.isatty():
        raise OptionError(f"--{form} writes no text: give --output FILE, or redirect the output")


def write_model(model: program, args: argparse.Namespace) -> None:
    """Write a program: as text to standard output unless flags say otherwise.

    Text, graph and Netron output show the compiled form of a compiled program; the other forms hold the portable form.

    Raises:
        OptionError: as `check_output`, or there is no machine code to embed.
        FormatError: the file cannot be written.
    """
    check_output(args)
    form = _form(args)
    if form in ("binary", "json") and args.output:
        save(model, args.output, "json" if form == "json" else "msgpack", args.embed_objects, args.embed_library)
        return
    if form == "binary":
        content = save_buffer(model, args.embed_objects, args.embed_library)
    elif form == "netron":
        content = to_netron(model.shown)
    else:
        text = _text(model, form, args.brief)
        if args.output is None:
            sys.stdout.write(text)
            return
        content = text.encode()
    if args.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        with open(args.output, "wb") as file:
            file.write(content)
    except OSError as error:
        raise FormatError(f"{args.output}: cannot be written: {error.strerror or error}") from None


def write_results(path: str, results: Mapping[str, object]) -> None:
    """Write results by name as an ``.npz`` file; types that NumPy's files lack are widened to float32 or int8.

    Raises:
        FormatError: the file cannot be written, or a result is not a tensor.
    """
    for name, result in results.items():
        if not isinstance(result, np.ndarray):
            raise FormatError(f"{path}: the result {name} is a {type(result).__name__}, which an .npz file cannot hold")
    try:
        with zipfile.ZipFile(path, "w") as file:  # numpy.savez cannot store an array named "file"
            for name, result in results.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _of_numpy(np.asarray(result)), allow_pickle=False)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _of_numpy(array: np.ndarray) -> np.ndarray:
    if array.dtype == object:
        return array.astype(str)
    if array.dtype.kind != "V":
        return array
    return array.astype(np.float32 if from_numpy(array.dtype).is_floating else np.int8)


def _form(args: argparse.Namespace) -> str:
    if args.form or not args.output:
        return args.form or "text"
    return _FORMS.get(os.path.splitext(args.output)[1].lower(), "binary")


def check_writable(path: str) -> None:
    """Raise early if a file cannot be written.

    Raises:
        FormatError: its folder is missing or not writable, or the path is a folder.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FormatError(f"{path}: cannot be written: there is no folder {folder}")
    if os.path.isdir(path):
        raise FormatError(f"{path}: cannot be written: it is a folder")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise FormatError(f"{path}: cannot be written: no permission")


def _text(model: program, form: str, brief: bool) -> str:
    if form == "graphviz":
        return to_dot(model.shown, brief)
    if form == "python":
        return to_py(model.portable)
    if form == "cpp":
        return to_cpp(model.portable)
    if form == "json":
        return json_buffer(model.portable, saved_options(model), "json").decode() + "\n"
    return str(model)
