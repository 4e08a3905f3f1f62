"""Reader of a session's model from a file or bytes, with replaced initializers, or with some initializers as inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..api.file_kinds import taken_for
from ..api.loading import load, load_buffer
from ..api.parsing import Parsed, external_folders, option_text, read_model
from ..api.program import program
from ..core.shape import Shape
from ..core.shape_json import shape_from_json, shape_to_json
from ..errors import MgxError, OptionError, ParseError
from ..interrupts import whole_module
from ..messages import recorded, warn
from .exceptions import Fail, InvalidArgument, InvalidProtobuf, ModelLoadCanceled, NoSuchFile, error_of
from .options import SessionOptions

if TYPE_CHECKING:
    from ..api.lineage import Lineage
    from ..frontends.onnx.model import Model
    from ..graph.program import Program

_MXR = (".mxr", ".migraphx")


class Source:
    """The source of a session's model.

    Args:
        path_or_bytes: an ONNX or ``.mxr`` file, or the bytes of such a file.
        options: the session's options.
        trust_objects: as the argument of ``load``.

    Attributes:
        path: path of the file; None for a model given as bytes.
        defaults: shapes of the initializers that a run may override, by name.
        declared: declared dimensions of these initializers, by name: lengths, symbols or None.
    """

    def __init__(self, path_or_bytes: Any, options: SessionOptions, trust_objects: bool) -> None:
        in_memory = isinstance(path_or_bytes, (bytes, bytearray, memoryview))
        if not in_memory and not isinstance(path_or_bytes, (str, os.PathLike)):
            kind = type(path_or_bytes).__name__
            raise error_of(InvalidArgument, ParseError, f"a session needs the path or the bytes of a model, got {kind}")
        self.path = None if in_memory else os.fspath(path_or_bytes)
        self.defaults: Mapping[str, Shape] = {}
        self.declared: dict[str, list[int | str | None]] = {}
        self._options = options
        given = {**options._initializers, **options._external}
        self._initializers = {name: value.numpy() for name, value in given.items()}
        self._lens = options.free_dimensions()
        self._given = path_or_bytes
        self._trusted = trust_objects
        self._model: Model | None = None
        self._lineage: Lineage | None = None  # of the program; decodes the model later

    def read(self) -> program:
        """Return the program, with every initializer a constant.

        Raises:
            NoSuchFile, InvalidProtobuf, MgxError: the model cannot be read.
        """
        if self.path is not None and not os.path.exists(self.path):
            raise error_of(NoSuchFile, ParseError, f"no such file: {self.path!r}")
        if self._is_mxr():
            return self._loaded()
        if self._options._cancelled:
            raise ModelLoadCanceled("the session's options say that no model is to be loaded")
        folders = external_folders(self._given, self._folder())
        found, beside = read_model(self._given, self._asked(), self._first_parsed, folders=folders)
        self._lineage = found._source.lineage
        self.defaults = {name: shape_from_json(entry) for name, entry in beside["defaults"].items()}
        self.declared = beside["declared"]
        return found

    def _asked(self) -> str:
        """Return the text that determines the program together with the content of files; empty if no text does."""
        o = self._options
        if o._initializers or o._external or o._files or o.optimized_model_filepath:
            return ""
        options = {"lens": self._lens, "denoted": o._free_denotations, "symbols": o.enable_profiling}
        return f"session {option_text(options)}"

    def _folder(self) -> str:
        return self._options.external_data_folder() if self.path is None else ""

    def _first_parsed(self, given: object, files: Mapping[str, memoryview] | None) -> Parsed:
        """Return the program with every initializer a constant; keep the model for other sets of inputs."""
        self._model = model = self._decoded(given, files)
        found = self._parsed(frozenset())
        declared: dict[str, list[int | str | None]] = {}
        for info in model.graph.input:
            if info.name in found.defaults:
                dims = info.type.tensor_type.shape.dim
                fixed = [d.WhichOneof("value") == "dim_value" for d in dims]
                pairs = zip(dims, fixed, strict=True)
                declared[info.name] = [d.dim_value if known else d.dim_param or None for d, known in pairs]
        defaults = {name: shape_to_json(shape) for name, shape in found.defaults.items()}
        return Parsed(found, model.external.opened, {"defaults": defaults, "declared": declared})

    def release(self) -> None:
        """Release the model unless a run may override initializers (`defaults`), which reads the model again."""
        if not self.defaults:
            self._model = self._lineage = None

    def read_with_inputs(self, opened: frozenset[str]) -> program:
        """Return the program in which the initializers ``opened``, a subset of `defaults`, are inputs."""
        if self._model is None:
            assert self._lineage is not None
            with recorded(quiet=True):
                self._model = self._decoded(*self._lineage.source.whole())
        return program.wrap(self._parsed(opened))

    def save(self, path: str, compiled: program) -> None:
        """Write the file ``optimized_model_filepath``: the compiled program, or the model as it was read.

        Raises:
            OptionError: the extension is unknown, or ``path`` is an ONNX file and the model is an ``.mxr`` file.
        """
        if path.endswith(_MXR):
            compiled.save(path)
        elif not path.endswith(".onnx") or self._model is None:
            kind = "an .mxr file, as the model is one" if self._model is None else "an .mxr or .onnx file"
            raise OptionError(f"optimized_model_filepath is {path!r}, expected the name of {kind}")
        else:
            warn(
                f"optimized_model_filepath={path!r}: an ONNX file gets the model as it was read; the name of an .mxr"
                " file keeps the compiled program",
                RuntimeWarning,
            )
            whole_module("mgx_numba.session.writing")
            from .writing import write_onnx

            name, smallest = self._options.external_file()
            write_onnx(self._model, path, self._initializers, self._lens, name, smallest)

    def _is_mxr(self) -> bool:
        if self.path is None:
            return _is_map(self._given)
        if self.path.endswith(_MXR):
            return True
        try:
            with open(self.path, "rb") as file:
                return _is_map(file.read(1))
        except OSError:
            return False

    def _loaded(self) -> program:
        for what, given in (
            ("dimensions can be overridden", self._lens or self._options._free_denotations),
            ("initializers can be given", self._initializers or self._options._files),
        ):
            if given:
                raise OptionError(f"{what} when an ONNX file is read, not those of an .mxr file")
        if self.path is None:
            return load_buffer(self._given, self._trusted)
        return load(self.path, trust_objects=self._trusted)

    def _decoded(self, given: object, files: Mapping[str, memoryview] | None) -> Model:
        whole_module("mgx_numba.frontends.onnx.parser")
        from ..frontends.onnx.model import NoGraphError, NotProtobufError, load_model

        try:
            with taken_for(self.path, "onnx"):
                model = load_model(given, self._folder(), self._options._files if files is None else files)
        except NotProtobufError as error:
            raise error_of(InvalidProtobuf, ParseError, str(error)) from None
        except NoGraphError as error:
            raise error_of(InvalidArgument, ParseError, str(error)) from None
        for info in model.graph.input if self._options._free_denotations else ():
            for dim in info.type.tensor_type.shape.dim:
                if dim.denotation in self._options._free_denotations and dim.WhichOneof("value") != "dim_value":
                    dim.dim_value = self._options._free_denotations[dim.denotation]
        _check_external(model, self._options._external)
        unknown = self._options._initializers.keys() - {t.name for t in model.graph.initializer}
        for name in sorted(unknown):
            warn(f"add_initializer names {name!r}, which the model has not", RuntimeWarning)
        return model

    def _parsed(self, opened: frozenset[str]) -> Program:
        from ..frontends.onnx.options import ParseOptions
        from ..frontends.onnx.parser import parse

        # Without declared dimensions the dimensions of the default value apply.
        unknown = [name for name in opened if not self.declared[name]]
        options = ParseOptions(
            dim_params=self._lens,
            map_input_dims={name: list(self.defaults[name].array_lens) for name in unknown},
            initializers=self._initializers,
            opened=opened,
            use_debug_symbols=self._options.enable_profiling,
        )
        return parse(self._model, options)


def _is_map(data: bytes | bytearray | memoryview) -> bool:
    """Return whether bytes begin with a msgpack map.

    No ``ModelProto`` begins with such a byte: its protobuf wire type would be 6 or 7, or its field number unknown.
    """
    first = data[0] if len(data) else 0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def _check_external(model: Model, given: Mapping[str, object]) -> None:
    """Check that each array replaces an initializer of the model whose data is external."""
    places = {tensor.name: tensor.data_location for tensor in model.graph.initializer} if given else {}
    for name in given:
        if name not in places:
            raise _refused(f"add_external_initializers names {name!r}, which the model has not")
        if places[name] != 1:
            raise _refused(f"add_external_initializers names {name!r}, whose data is not external")


def _refused(message: str) -> MgxError:
    return error_of(Fail, OptionError, message)
