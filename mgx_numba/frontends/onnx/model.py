"""Loading of a model from a path, bytes or a ModelProto, with checks that need no graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass
from ...errors import FormatError, ParseError, UnsupportedError
from ...graph.content import FileContent, FileWindow
from ...graph.origin import Origin
from .external import ExternalData
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
