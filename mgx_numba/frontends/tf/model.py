"""Loading of a GraphDef, or of a SavedModel's graph with the results of its signature.

Protobuf messages of TensorFlow, with the fields that the front end reads.

Numbers and types of the fields are those of tensorflow/core/framework (graph, node_def, attr_value, tensor,
tensor_shape, function, op_def) and tensorflow/core/protobuf (meta_graph, saved_model). Other fields are ignored.
Enumerations are read as integers, their wire form. The descriptors are in their own pool, so that TensorFlow may be
imported in the same process.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ...dataclass import dataclass
from ...errors import ParseError

_PACKAGE = "mgx_tensorflow"

_SCHEMA = {
    "Dim": "1 int64 size",
    "TensorShapeProto": "2 *Dim dim; 3 bool unknown_rank",
    "TensorProto": (
        "1 int32 dtype; 2 TensorShapeProto tensor_shape; 4 bytes tensor_content; 5 *float float_val;"
        " 6 *double double_val; 7 *int32 int_val; 10 *int64 int64_val; 11 *bool bool_val; 13 *int32 half_val;"
        " 16 *uint32 uint32_val; 17 *uint64 uint64_val"
    ),
    "NameAttrList": "1 string name",
    "ListValue": "2 *bytes s; 3 *int64 i; 4 *float f; 5 *bool b; 6 *int32 type",
    "AttrValue": (
        "1 |ListValue list; 2 |bytes s; 3 |int64 i; 4 |float f; 5 |bool b; 6 |int32 type; 7 |TensorShapeProto shape;"
        " 8 |TensorProto tensor; 9 |string placeholder; 10 |NameAttrList func"
    ),
    "AttrEntry": "1 string key; 2 AttrValue value",
    "NodeDef": "1 string name; 2 string op; 3 *string input; 5 *AttrEntry attr",
    "ArgDef": "1 string name; 3 int32 type",
    "OpDef": "1 string name; 2 *ArgDef input_arg; 3 *ArgDef output_arg",
    "TextEntry": "1 string key; 2 string value",
    "FunctionDef": "1 OpDef signature; 3 *NodeDef node_def; 4 *TextEntry ret",
    "FunctionDefLibrary": "1 *FunctionDef function",
    "GraphDef": "1 *NodeDef node; 2 FunctionDefLibrary library",
    "TensorInfo": "1 string name",
    "TensorInfoEntry": "1 string key; 2 TensorInfo value",
    "SignatureDef": "1 *TensorInfoEntry inputs; 2 *TensorInfoEntry outputs",
    "SignatureEntry": "1 string key; 2 SignatureDef value",
    "MetaInfoDef": "4 *string tags",
    "MetaGraphDef": "1 MetaInfoDef meta_info_def; 2 GraphDef graph_def; 5 *SignatureEntry signature_def",
    "SavedModel": "1 int64 saved_model_schema_version; 2 *MetaGraphDef meta_graphs",
}
"""Fields by message: number, type (``*`` repeated, ``|`` an alternative of a value) and name. A map is read as repeated
entries, its wire form."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SCHEMA.items():
        declared = file.message_type.add(name=name)
        for entry in fields.split("; "):
            number, type, field_name = entry.split()
            field = declared.field.add(name=field_name, number=int(number))
            field.label = _Field.LABEL_REPEATED if type[0] == "*" else _Field.LABEL_OPTIONAL
            if type[0] == "|":
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
                field.oneof_index = 0
            type = type.lstrip("*|")
            if type in _SCALARS:
                field.type = _SCALARS[type]
            else:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{type}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@functools.cache
def message(name: str) -> Any:
    """Return the class of a message: ``message("GraphDef")``."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


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
        raise ParseError(f"{name} is no TensorFlow {kind}, or a truncated one ({len(data)} bytes): {error}") from error
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
