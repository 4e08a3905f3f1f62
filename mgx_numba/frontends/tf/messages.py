"""Protobuf messages of TensorFlow, with the fields that the front end reads.

Numbers and types of the fields are those of tensorflow/core/framework (graph, node_def, attr_value, tensor,
tensor_shape, function, op_def) and tensorflow/core/protobuf (meta_graph, saved_model). Other fields are ignored.
Enumerations are read as integers, their wire form. The descriptors are in their own pool, so that TensorFlow may be
imported in the same process.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
