"""Loading of a GraphDef, or of a SavedModel's graph with the results of its signature."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...dataclass import dataclass
from ...errors import ParseError
from .messages import message

SAVED_MODEL = "saved_model.pb"
_SCHEMA_VERSION = b"\x08"  # key of a SavedModel's first field, a varint; a GraphDef has no such field
_INITIALISER = "__saved_model_init_op"


@dataclass(frozen=True)
class TfModel:
    """A decoded model.

    Attributes:
        graph: the ``GraphDef``.
        outputs: names of the results of a SavedModel's signature, sorted by their keys; empty for a GraphDef.
    """

    graph: Any
    outputs: tuple[str, ...] = ()


def load_tf_model(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> TfModel:
    """Decode a model from a path or bytes.

    Raises:
        ParseError: the file cannot be read or is not a TensorFlow model.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(bytes(source), "the model")
    if not isinstance(source, (str, os.PathLike)):
        raise ParseError(f"a TensorFlow model must be a path or bytes, got {type(source).__name__}")
    path = Path(source)
    if path.is_dir():
        if not (path / SAVED_MODEL).is_file():
            raise ParseError(f"{str(path)!r} is a folder without {SAVED_MODEL}, so no SavedModel")
        path = path / SAVED_MODEL
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ParseError(f"no such file: {str(path)!r}") from None
    except OSError as error:
        raise ParseError(f"{str(path)!r} cannot be read: {error}") from error
    return _decode(data, repr(str(path)))


def _decode(data: bytes, name: str) -> TfModel:
    if not data:
        raise ParseError(f"{name} is empty")
    kind = "SavedModel" if data.startswith(_SCHEMA_VERSION) else "GraphDef"
    proto = message(kind)()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's errors have no common base
        raise ParseError(f"{name} is no TensorFlow {kind}: {error}") from error
    model = _of_saved(proto, name) if kind == "SavedModel" else TfModel(proto)
    if not model.graph.node:
        raise ParseError(f"{name} is no TensorFlow model: its graph has no nodes")
    return model


def _of_saved(saved: Any, name: str) -> TfModel:
    """Return the graph tagged ``serve`` (or the first), with the signature ``serving_default`` (or the only one)."""
    if not saved.meta_graphs:
        raise ParseError(f"{name} is a SavedModel without a graph")
    serving = [meta for meta in saved.meta_graphs if "serve" in meta.meta_info_def.tags]
    meta = (serving or saved.meta_graphs)[0]
    signatures = {entry.key: entry.value for entry in meta.signature_def if entry.key != _INITIALISER}
    chosen = signatures.get("serving_default")
    if chosen is None and len(signatures) == 1:
        chosen = next(iter(signatures.values()))
    outputs = () if chosen is None else sorted((entry.key, entry.value.name) for entry in chosen.outputs)
    return TfModel(meta.graph_def, tuple(tensor for _, tensor in outputs))
