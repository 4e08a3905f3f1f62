"""Loading of a model from a path, bytes or a ModelProto, with checks that need no graph.

External tensor data is read from files in the model's folder (never outside), or from the caller's memory. ONNX
`ExternalData.md`: ``location`` is a path relative to the model, ``offset`` and ``length`` are in bytes. A model
reached through a link has two folders, the link's and the file's. Data may be in either folder, as in ONNX Runtime. The
cache of Hugging Face is an example: ``snapshots/<revision>`` links to ``blobs``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass
from ...errors import FormatError, ParseError, UnsupportedError
from ...graph.content import FileContent, FileWindow
from ...graph.origin import Origin
from .onnx_package import messages, newest_opset
from .tensors import sparse_array, tensor_array
from .wire import ByteRange, split_raw_data

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto


OLDEST_OPSET = 7
"""Oldest operator set that parser functions accept; operators of older sets are converted to this set (`legacy.py`)."""


class NotProtobufError(ParseError):
    """A file or bytes are not a protobuf message of ONNX."""


class NoGraphError(ParseError):
    """A message has no graph, as an empty file."""


def canonical_domain(domain: str) -> str:
    """Return the domain with ``ai.onnx``, the long name of the default domain, replaced by ""."""
    return "" if domain == "ai.onnx" else domain


@dataclass
class Model:
    """A decoded model and the location of its weights.

    Attributes:
        proto: the message; large ``raw_data`` of its graph's initializers may be left out.
        opsets: version of each imported operator set, by domain (``""`` for ai.onnx).
        functions: the model's own functions by (domain, name, overload).
    """

    proto: ModelProto
    external: ExternalData
    opsets: dict[str, int]
    functions: dict[tuple[str, str, str], FunctionProto]
    raw: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def graph(self) -> GraphProto:
        """Return the main graph."""
        return self.proto.graph

    def origin(self) -> Origin:
        """Return the model's metadata."""
        m, g = self.proto, self.graph
        return Origin(
            output_names=tuple(output.name for output in g.output),
            output_dims=tuple(tuple(map(_declared, o.type.tensor_type.shape.dim)) for o in g.output),
            producer_name=m.producer_name,
            graph_name=g.name,
            graph_description=g.doc_string,
            domain=m.domain,
            description=m.doc_string,
            version=m.model_version,
            properties={entry.key: entry.value for entry in m.metadata_props},
        )

    def tensor(self, tensor: TensorProto, initializer: int | None = None) -> np.ndarray:
        """Return the elements of a tensor; ``initializer`` is its index among the main graph's initializers, if any."""
        return tensor_array(tensor, self.external, None if initializer is None else self.raw.get(initializer))

    def sparse_tensor(self, sparse: SparseTensorProto) -> np.ndarray:
        """Return the elements of a sparse tensor as a dense array."""
        return sparse_array(sparse, self.external)


def _declared(dim: Any) -> int | str:
    """Return a dimension's length, or else its symbol, or "" without a symbol."""
    return dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0 else dim.dim_param


def load_model(source: Any, external_data_path: str = "", files: Mapping[str, memoryview] | None = None) -> Model:
    """Decode a model.

    Args:
        source: a path, the bytes of a file, or an ``onnx.ModelProto``; a `Model` is returned unchanged.
        external_data_path: folder of external data. If empty and ``source`` is a path: the folder of the path, or of
            the file to which it links.
        files: contents of external data by location, in place of files.

    Raises:
        ParseError: the file cannot be read or is not an ONNX model, or its operator set imports are invalid.
        UnsupportedError: an operator set is not supported.
    """
    if isinstance(source, Model):
        return source
    folders = [Path(external_data_path)] if external_data_path else []
    raw: dict[int, np.ndarray] = {}
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        proto, raw = _read_file(path)
        folders = folders or [path.parent, path.resolve().parent]
    elif isinstance(source, (bytes, bytearray, memoryview)):
        proto, raw = _read_bytes(source, "the model")
    elif hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        proto = source
    else:
        raise ParseError(f"a model must be a path, bytes or an onnx.ModelProto, got {type(source).__name__}")
    if not proto.HasField("graph"):
        raise NoGraphError("the model has no graph")
    functions = {(canonical_domain(f.domain), f.name, f.overload): f for f in proto.functions}
    if len(functions) != len(proto.functions):
        raise ParseError("the model defines a function twice")
    opsets = opset_versions(proto.opset_import, {domain for domain, _, _ in functions})
    if not opsets:
        raise ParseError("the model imports no operator set")
    return Model(proto, ExternalData(folders, files), opsets, functions, raw)


def opset_versions(imports: Any, own_domains: set[str] | None = None) -> dict[str, int]:
    """Return the imported operator set version by domain.

    Raises:
        ParseError: a domain is imported in two versions.
        UnsupportedError: a version is newer than the installed ``onnx`` defines.
    """
    versions: dict[str, int] = {}
    for entry in imports:
        domain = canonical_domain(entry.domain)
        name = domain or "ai.onnx"
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ParseError(f"domain {name!r} is imported in versions {versions[domain]} and {entry.version}")
        if domain == "" and entry.version > newest_opset():
            raise UnsupportedError(
                f"operator set {entry.version} of domain 'ai.onnx' is not supported; 1 to {newest_opset()} are"
            )
        if entry.version < 1 and domain not in (own_domains or ()):
            raise ParseError(f"domain {name!r} is imported in version {entry.version}, expected at least 1")
    return versions


def _read_bytes(data: bytes | bytearray | memoryview, name: str) -> tuple[ModelProto, dict[int, np.ndarray]]:
    proto, spans = _decode(data, name)
    whole = np.frombuffer(data, np.uint8)
    return proto, {number: _aligned(whole[span.begin : span.end]) for number, span in spans.items()}


def _read_file(path: Path) -> tuple[ModelProto, dict[int, np.ndarray]]:
    """Decode a file; large weights are read directly into separate arrays."""
    raw: dict[int, np.ndarray] = {}
    try:
        if path.is_dir():
            raise NotProtobufError(f"{str(path)!r} is a folder, expected an ONNX file")
        content = FileContent(path)
        proto, spans = _decode(FileWindow(content), repr(str(path)))
        for number, span in spans.items():
            raw[number] = content.array(span.begin, span.end - span.begin)
    except FileNotFoundError:
        raise ParseError(f"no such file: {str(path)!r}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"{str(path)!r} cannot be read: {error}") from error
    return proto, raw


def _decode(data: Any, name: str) -> tuple[ModelProto, dict[int, ByteRange]]:
    view = data if isinstance(data, FileWindow) else memoryview(data).cast("B")
    if len(view) == 0:
        raise NoGraphError(f"{name} is empty")
    try:
        small, spans = split_raw_data(view)
    except FormatError as error:
        raise NotProtobufError(str(error)) from None
    except ParseError as error:
        raise NotProtobufError(f"{name}: {error}") from None
    proto = messages().ModelProto()
    try:
        proto.ParseFromString(small)
    except Exception as error:
        raise NotProtobufError(f"{name} is not an ONNX model: {error}") from error
    return proto, spans


def _aligned(data: np.ndarray) -> np.ndarray:
    return data if data.__array_interface__["data"][0] % 8 == 0 else data.copy()


class ExternalData:
    """A reader of external data.

    Args:
        folders: folders to search, in order; with none, files are an error.
        files: contents in memory by location, which take precedence over files.

    Attributes:
        opened: path of each file that was read, by location, and its status before reading.
    """

    def __init__(self, folders: Sequence[Path], files: Mapping[str, memoryview] | None = None) -> None:
        self._folders = folders
        self._files = files or {}
        self.opened: dict[str, tuple[Path, os.stat_result]] = {}
        self._read: weakref.WeakValueDictionary[tuple[Path, int, int], np.ndarray] = weakref.WeakValueDictionary()

    def __call__(self, tensor: TensorProto, length: int) -> np.ndarray:
        """Return ``length`` bytes of ``tensor``'s data, read-only; the same memory for the same bytes of a file.

        Raises:
            ParseError: there is no folder, the path is illegal or absent, or the range exceeds the file.
        """
        where = f"tensor {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not self._folders and location not in self._files:
            given = f"; in memory are: {', '.join(map(repr, self._files))}" if self._files else ""
            raise ParseError(
                f"{where} has its data in {location!r}: give external_data_path, the folder of that file{given}"
            )
        offset = _number(entries, "offset", 0, where)
        stated = _number(entries, "length", length, where)
        if stated != length:
            raise ParseError(
                f"{where}: external data has length {stated}, expected {length} for its type and dimensions"
            )
        if location in self._files:
            content = self._files[location]
            _check_range(offset, length, len(content), location, where)
            found = np.frombuffer(content[offset : offset + length], np.uint8)
            aligned = found.__array_interface__["data"][0] % 8 == 0  # the widest element of ONNX
            return found if aligned and content.readonly else found.copy()
        path = _resolve(self._folders, location, where)
        data = self._read.get((path, offset, length))
        if data is None:
            self._read[path, offset, length] = data = self._read_file(path, offset, length, location, where)
        elif location not in self.opened:
            self.opened[location] = next(found for found in self.opened.values() if found[0] == path)
        return data

    def _read_file(self, path: Path, offset: int, length: int, location: str, where: str) -> np.ndarray:
        try:
            content = FileContent(path)
            self.opened.setdefault(location, (path, content.status()))
            _check_range(offset, length, content.size, path.name, where)
            return content.array(offset, length)
        except (OSError, FormatError) as error:
            raise ParseError(f"{where}: external data file {path.name!r} cannot be read: {error}") from error


def _check_range(offset: int, length: int, size: int, name: str, where: str) -> None:
    if offset + length > size:
        raise ParseError(f"{where}: external data is bytes {offset} to {offset + length} of {name!r}, which has {size}")


def _resolve(folders: Sequence[Path], location: str, where: str) -> Path:
    if not location or "\0" in location:
        raise ParseError(f"{where}: external data has no location, or one that is no path: {location!r}")
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(location)
        if pure.is_absolute() or pure.drive or pure.root or ".." in pure.parts:
            raise ParseError(f"{where}: external data at {location!r} would leave the model's folder")
    roots = [folder.resolve() for folder in folders]
    for root in roots:
        path = (root / location).resolve()
        if not path.is_file():
            continue
        if not any(path.is_relative_to(allowed) for allowed in roots):
            raise ParseError(f"{where}: external data at {location!r} leaves the model's folder through a link")
        return path
    searched = " or ".join(dict.fromkeys(repr(str(root)) for root in roots))
    raise ParseError(f"{where}: external data file {location!r} does not exist in {searched}")


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ParseError(f"{where}: external data has {key} {text!r}, expected a number of bytes")
    return int(text)
