"""Writing of a program by the flags of `add_output`."""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from collections.abc import Mapping

import numpy as np

from ..api.program import program
from ..api.saving import save, save_buffer, saved_options
from ..core.types import from_numpy
from ..errors import FormatError, OptionError
from ..graph.export import to_cpp, to_dot, to_py
from ..graph.mxr import save_buffer as json_buffer
from .netron import to_netron

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
