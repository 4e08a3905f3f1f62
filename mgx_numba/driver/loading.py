"""Reading of a program by the flags of `add_loader`.

Conversion of a program's literals to parameters, so that weights are passed to each run, or left out of a file.
"""

from __future__ import annotations

import argparse
import os
import runpy
from typing import TYPE_CHECKING, Any

from ..api.functions import check_onnx, optimize, parse_onnx, parse_tf
from ..api.loading import load
from ..api.program import program
from ..core.shape import Shape, find_permutation
from ..core.types import Type
from ..errors import FormatError, MgxError, OptionError, ParseError, ShapeError, UnsupportedError
from ..graph.instruction import Instruction, Literal
from ..graph.passes import Options, run_passes
from ..graph.program import Program
from ..messages import warn
from .arguments import FILE_TYPES
from .dims import parse_dimension, parse_dynamic_inputs, parse_inputs, parse_symbols
from .quantizing import quantize_model, requested_kinds
from .trim import trim
from .variables import NO_MLIR

if TYPE_CHECKING:
    from onnx import ModelProto

    from ..frontends.onnx.check import Finding


def replace_literals(program: Program) -> None:
    """Replace the literals of the main module by parameters ``literal0``, ``literal1``, ..., in order, in place.

    Single numbers remain literals, and so do literals of submodules: a submodule's parameters are not the program's.
    """
    main = program.main
    number = 0
    for ins in [ins for ins in main if isinstance(ins.op, Literal) and _is_weight(ins)]:
        while main.parameter(f"literal{number}") is not None:
            number += 1
        given = main.add_parameter(f"literal{number}", ins.shape.to_standard())
        if given.shape != ins.shape:
            given = main.insert_instruction(ins, "layout", [given], permutation=find_permutation([ins.shape]))
        main.replace_instruction(ins, given)
        main.remove_instruction(ins)


def _is_weight(ins: Instruction) -> bool:
    return ins.shape.elements > 1 and not ins.shape.sub_shapes and not ins.shape.broadcasted


_ONNX_FLAGS = (
    "input_dim",
    "dim_param",
    "dyn_input_dim",
    "default_dyn_dim",
    "skip_unknown_operators",
    "strict",
    "debug_symbols",
    "output_names",
)
_TF_FLAGS = ("input_dim", "output_names")


def file_type(args: argparse.Namespace) -> str:
    """Return the type of the model file from the flags, or else from the file's name.

    Raises:
        OptionError: no file is given.
    """
    if args.file is None and args.file_type != "test":
        taken = "; ".join(f"{option} takes {' '.join(words)}" for option, _, words in getattr(args, "words", ()))
        raise OptionError("a model file is needed" + (f" ({taken})" if taken else ": give its name after the command"))
    if args.file is not None and args.file_type == "test":
        raise OptionError(f"--test takes no file, got {args.file}")
    if args.file_type is not None:
        return str(args.file_type)
    if os.path.isfile(os.path.join(args.file, "saved_model.pb")):
        return "tf"
    return FILE_TYPES.get(os.path.splitext(args.file)[1].lower(), "msgpack")


def title_of(args: argparse.Namespace) -> str:
    """Return the name of the model for output."""
    return os.path.basename(args.file or "test")


def load_model(args: argparse.Namespace) -> program:
    """Read the model and apply the edits that flags ask for.

    ``args.rebatched``, if present, is a pair: the batch size at the front of an ONNX model's constant shapes, and the
    batch size to put there.

    Raises:
        MgxError: the file or a flag is wrong.
    """
    kind = file_type(args)
    if args.batch is not None and args.batch < 1:
        raise OptionError(f"--batch is {args.batch}, expected a length from 1 on")
    try:
        model = _read(args, kind)
    except (FormatError, ParseError, ShapeError, UnsupportedError) as error:
        raise type(error)(_placed(str(error), args, kind)) from error
    _tell_idle_flags(model, args, kind)
    edits = any((args.trim, args.trim_size, args.optimize, args.apply_pass, args.replace_literals, args.strip_context))
    edits = edits or bool(requested_kinds(args))
    return _edited(model, args) if edits else model


def _read(args: argparse.Namespace, kind: str) -> program:
    readers = {"onnx": _read_onnx, "python": _run_python, "test": _product, "tf": _read_tf}
    return readers[kind](args) if kind in readers else load(args.file, kind, args.trust_objects)


def _placed(message: str, args: argparse.Namespace, kind: str) -> str:
    """Add the file's name to an error message, and a note if an unknown extension made it an .mxr file."""
    if args.file is None:
        return message
    place = "" if args.file in message else f"{args.file}: "
    guessed = kind == "msgpack" and args.file_type is None and not args.file.lower().endswith(".mxr")
    hint = (
        " (taken for an .mxr file; --onnx and others say what it is)" if guessed and os.path.isfile(args.file) else ""
    )
    return f"{place}{message}{hint}"


def _tell_idle_flags(model: program, args: argparse.Namespace, kind: str) -> None:
    """Warn of reading flags that have no effect on this kind of model."""
    for name in _ONNX_FLAGS if kind != "onnx" else ():
        if getattr(args, name) and not (kind == "tf" and name in _TF_FLAGS):
            warn(f"--{name.replace('_', '-')} has no effect: {args.file} is no ONNX file")
    if args.mlir:
        warn(f"--mlir has no effect: {NO_MLIR[0].lower()}{NO_MLIR[1:]}")
    if kind != "tf" and args.is_nhwc is not None:
        flag = "--nhwc" if args.is_nhwc else "--nchw"
        warn(f"{flag} has no effect: {args.file} is no TensorFlow file")
    if args.batch:
        portable = model.portable
        shapes = portable.parameter_shapes()
        follow = (kind in ("onnx", "tf") and portable.open_dims) or any(s.is_dynamic for s in shapes.values())
        if not follow and not any(args.batch in s.lens for s in shapes.values()):
            listed = ", ".join(f"{name} {list(s.lens)}" for name, s in shapes.items()) or "none"
            warn(f"--batch {args.batch} has no effect: no length is left open (inputs: {listed})")


def _edited(model: program, args: argparse.Namespace) -> program:
    """Return an edited, uncompiled copy that retains the original's saved compile options."""
    copy = model.clone()
    if not args.strip_context:
        copy._file.target, copy._file.options = model._file.target, model._file.options
    if args.trim or args.trim_size:
        copy.portable = trim(copy.portable, args.trim, args.trim_size)
    if args.replace_literals:
        replace_literals(copy.portable)
    if args.optimize:
        optimize(copy)
    if args.apply_pass:
        run_passes(copy.portable, args.apply_pass, Options(fast_math=True))
    quantize_model(copy, args)
    return copy


def findings(args: argparse.Namespace) -> list[Finding]:
    """Return everything that is wrong with the ONNX model that the flags name.

    Raises:
        OptionError: the file is not an ONNX model, or a flag is wrong.
    """
    if file_type(args) != "onnx":
        raise OptionError(f"--check reads ONNX models; {args.file} is no ONNX file")
    return check_onnx(args.file, **_onnx_dims(args), strict=args.strict)


def _onnx_dims(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "default_dim_value": args.batch or 1,
        "dim_params": parse_symbols("--dim-param", args.dim_param),
        "map_input_dims": parse_inputs("--input-dim", args.input_dim),
        "map_dyn_input_dims": parse_dynamic_inputs("--dyn-input-dim", args.dyn_input_dim),
    }


def _read_onnx(args: argparse.Namespace) -> program:
    options: dict[str, Any] = {
        **_onnx_dims(args),
        "skip_unknown_operators": args.skip_unknown_operators,
        "use_debug_symbols": args.debug_symbols,
        "strict": args.strict,
    }
    if args.default_dyn_dim:
        options["default_dyn_dim_value"] = parse_dimension("--default-dyn-dim", args.default_dyn_dim)
        options["default_dim_value"] = 0
    rebatched = getattr(args, "rebatched", None)
    if not args.output_names and rebatched is None:
        return parse_onnx(args.file, **options)
    source = read_proto(args.file)
    if args.output_names:
        set_outputs(source, args.output_names)
    if rebatched is not None:
        set_batch_of_reshapes(source, *rebatched)
    model = parse_onnx(source, **options)
    run_passes(model.portable, ["dead_code_elimination"])
    return model


def _run_python(args: argparse.Namespace) -> program:
    """Execute a Python file (as ``--python`` writes it) and return the program that it assigns to ``p``."""
    try:
        found = runpy.run_path(args.file).get("p")
    except MgxError:
        raise
    except Exception as error:
        raise ParseError(f"{args.file}: {type(error).__name__}: {error}") from error
    if not isinstance(found, program):
        raise ParseError(f"{args.file}: it leaves no program in a variable p")
    return found


def _product(args: argparse.Namespace) -> program:
    result = Program()
    a, b = (result.main.add_parameter(n, Shape(Type.float_type, lens)) for n, lens in (("a", (4, 5)), ("b", (5, 3))))
    result.main.add_return([result.main.add_instruction("dot", [a, b])])
    return program.wrap(result)


def _read_tf(args: argparse.Namespace) -> program:
    return parse_tf(
        args.file,
        is_nhwc=args.is_nhwc is not False,
        batch_size=args.batch or 1,
        map_input_dims=parse_inputs("--input-dim", args.input_dim),
        output_names=args.output_names,
    )


def read_proto(path: str) -> ModelProto:
    """Return the ``ModelProto`` of a file, with its external data.

    Raises:
        ParseError: the file cannot be read.
    """
    import onnx

    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's errors have no common base
        raise ParseError(f"{path}: {error}") from error


def set_outputs(model: ModelProto, names: list[str]) -> None:
    """Replace the results of a model.

    Raises:
        OptionError: the main graph has no value of a given name.
    """
    import onnx

    graph = model.graph
    known = {name for node in graph.node for name in node.output} | {i.name for i in graph.input}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"--output-names: the model has no value {', '.join(unknown)}")
    declared = {v.name: v for v in [*graph.output, *graph.value_info]}
    results = [declared.get(name) or onnx.ValueInfoProto(name=name) for name in names]
    copies = [onnx.ValueInfoProto.FromString(r.SerializeToString()) for r in results]
    del graph.output[:]
    graph.output.extend(copies)


def set_batch_of_reshapes(model: ModelProto, batch: int, size: int) -> None:
    """Replace the leading length ``batch`` by ``size`` in constant shapes of Reshape nodes that depend on inputs.

    The caller must verify that the replaced lengths were batch sizes.
    """
    from onnx import numpy_helper

    graph = model.graph
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    varying = {info.name for info in graph.input} - set(shapes)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            shapes[node.output[0]] = node.attribute[0].t
        if not varying.isdisjoint(node.input):
            varying.update(node.output)
    for number, node in enumerate(graph.node):
        if node.op_type != "Reshape" or len(node.input) < 2 or node.input[0] not in varying:
            continue
        shape = numpy_helper.to_array(shapes[node.input[1]]).copy() if node.input[1] in shapes else None
        if shape is not None and shape.size > 1 and shape[0] == batch:
            shape[0] = size
            node.input[1] = f"{node.input[1]}:reshape{number}:{size}"
            graph.initializer.append(numpy_helper.from_array(shape, node.input[1]))
