"""Parsing of a model's file or bytes into a program, by way of the cache of model metadata."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dataclass import dataclass
from ..errors import FormatError
from ..garbage import uncollected
from ..interrupts import whole_module
from ..messages import recorded, repeat_messages
from .kept_models import find_known, note
from .lineage import Lineage, open_source
from .portable import PortableForm
from .program import program

if TYPE_CHECKING:
    from ..frontends.onnx.options import ParseOptions
    from ..graph.program import Program

_OF_ERRORS = ("print_program_on_error", "external_data_path")
"""Options of `parse_onnx` that do not affect its result; external data is identified by content, not by path."""


@dataclass(frozen=True)
class Parsed:
    """The result of a front end.

    Attributes:
        program: the portable form.
        external: path of each external data file by location, and its status before it was read.
        beside: JSON values that `read_model` returns with the program.
    """

    program: Program
    external: Mapping[str, tuple[Path, os.stat_result]] = field(default_factory=dict)
    beside: Mapping[str, object] = field(default_factory=dict)


Parse = Callable[[Any, "Mapping[str, memoryview] | None"], Parsed]


def read_model(
    given: object, requested: str, parse: Parse, path: object = None, folders: Sequence[Path] = ()
) -> tuple[program, Mapping[str, Any]]:
    """Return the program of a model, with `Parsed.beside`; parsing is deferred if the cache has the model's metadata.

    Args:
        given: the model, as ``parse`` accepts it.
        requested: the front end and all options that its result depends on; empty disables caching.
        parse: parses the model; or its bytes, with the bytes of its external data by location.
        path: path of the model's file, if it differs from ``given``.
        folders: folders that may hold external data.

    Raises:
        MgxError: as ``parse``.
    """
    at = given if path is None else path
    source = open_source(at) if requested else None
    if source is None:
        _expect_compilation()
        parsed = parse(given, None)
        return program.wrap(parsed.program), parsed.beside
    lineage = Lineage(source, requested)

    def decode() -> Program:
        with recorded(quiet=True):
            return parse(*source.whole()).program

    known = find_known(lineage, folders)
    if known is not None:
        repeat_messages(known.messages)
        return program.wrap(PortableForm(decode, lineage, known)), known.beside
    _expect_compilation()
    with recorded() as messages, uncollected():
        parsed = parse(given, None)
    form = PortableForm.of(parsed.program)
    try:
        unchanged = source.is_at(at) and source.take_external(parsed.external)
    except (OSError, FormatError):
        unchanged = False
    if unchanged:
        note(form, lineage, messages, decode, parsed.beside)
    return program.wrap(form), parsed.beside


def _expect_compilation() -> None:
    """Let worker processes start while the model is read; see `compile_soon`."""
    whole_module("mgx_numba.runtime.cpu.early")
    from ..runtime.cpu.early import compile_soon

    compile_soon()


def parsed_onnx(given: object, options: Mapping[str, object]) -> program:
    """Return the program of an ONNX model.

    Args:
        given: a path, the bytes of a file, or a ``ModelProto``.
        options: keyword arguments of `frontends.onnx.parse_onnx`.

    Raises:
        MgxError: as `parse_onnx`.
    """
    checked = _onnx_options(options)
    requested = f"onnx {option_text({k: v for k, v in vars(checked).items() if k not in _OF_ERRORS})}"
    folders = external_folders(given, checked.external_data_path)
    return read_model(given, requested, _onnx_reader(checked), folders=folders)[0]


def onnx_parser(options: Mapping[str, object]) -> Parse:
    """Return the parser for ONNX models with the given options, for `read_model`."""
    return _onnx_reader(_onnx_options(options))


def _onnx_options(options: Mapping[str, Any]) -> ParseOptions:
    from ..frontends.onnx.options import ParseOptions

    return ParseOptions(**{**options, "external_data_path": os.fspath(options.get("external_data_path", ""))})


def _onnx_reader(options: ParseOptions) -> Parse:
    def parse(given: object, files: Mapping[str, memoryview] | None) -> Parsed:
        whole_module("mgx_numba.frontends.onnx.parser")
        from ..frontends.onnx.model import load_model
        from ..frontends.onnx.parser import parse as parse_model

        model = load_model(given, options.external_data_path, files)
        return Parsed(parse_model(model, options), model.external.opened)

    return parse


def parsed_tf(given: str | os.PathLike[str] | bytes, **options: Any) -> program:
    """Return the program of a TensorFlow model.

    Args:
        given: the path of a file or of a SavedModel's folder, or the bytes of a file.
        options: keyword arguments of `frontends.tf.parse_tf`.

    Raises:
        MgxError: as `parse_tf`.
    """

    def parse(source: Any, files: Mapping[str, memoryview] | None) -> Parsed:
        whole_module("mgx_numba.frontends.tf.parser")
        from ..frontends.tf import parse_tf

        return Parsed(parse_tf(source, **options))

    path: object = given
    if not isinstance(given, bytes) and os.path.isdir(given):
        path = os.path.join(given, "saved_model.pb")
    return read_model(given, f"tf {option_text(options)}", parse, path)[0]


def option_text(options: Mapping[str, object]) -> str:
    """Return a text that is unique to the values of the options."""

    def plain(value: object) -> Any:
        if isinstance(value, Mapping):
            return sorted((repr(key), plain(member)) for key, member in value.items())
        return list(value) if isinstance(value, (tuple, list)) else value

    return repr([(name, plain(value)) for name, value in sorted(options.items())])


def external_folders(given: object, folder: str = "") -> list[Path]:
    """Return the folders that may hold a model's external data: ``folder`` if given, else the model file's folder."""
    if folder:
        return [Path(folder)]
    return [Path(given).parent, Path(given).resolve().parent] if isinstance(given, (str, os.PathLike)) else []
