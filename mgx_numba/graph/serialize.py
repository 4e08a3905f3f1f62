"""Conversion of programs, shapes and arguments to and from value trees, in the structure of MIGraphX's ``to_value``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np

from ..core.argument import Argument, strided
from ..core.shape import DynamicDimension, Shape, row_major_strides
from ..core.types import Type
from ..errors import FormatError, ValidationError
from ..json_types import JsonArray
from ..ops.base import Operator, make_op
from .instruction import Instruction
from .printer import instruction_names
from .program import Program
from .wire import Blob

MAX_RANK = 64  # NumPy's own limit


def shape_to_value(shape: Shape) -> dict[str, object]:
    """Return a shape as a map.

    Keys that MIGraphX has are always present. ``unranked``, ``element`` (of a sequence, an optional or a map) and a
    dimension's ``symbol`` are present where needed.
    """
    value: dict[str, object] = {
        "type": shape.type.name,
        "sub_shapes": [shape_to_value(s) for s in shape.sub_shapes],
        "lens": list(shape.lens),
        "strides": list(shape.strides),
        "dynamic_dimensions": [_dimension_to_value(d) for d in shape.dyn_dims],
    }
    if shape.element is not None:
        value["element"] = shape_to_value(shape.element)
    return value if shape.ranked else {**value, "unranked": True}


def shape_from_value(value: object) -> Shape:
    """Return the shape that a map describes.

    Raises:
        FormatError: a key is missing or holds an invalid value.
    """
    fields = _map(value, "shape")
    name = fields.get("type")
    type = Type.__members__.get(name) if isinstance(name, str) else None
    if type is None:
        raise FormatError(f"type {_short(name)} is none of {', '.join(Type.__members__)}")
    members = _list(fields.get("sub_shapes", []), "sub_shapes")
    if type is Type.tuple_type:
        return Shape.tuple(_within(f"sub_shapes[{k}]", shape_from_value, m) for k, m in enumerate(members))
    if members:
        raise FormatError(f"a shape of {type.name} has sub_shapes, which only tuple_type has")
    if type in (Type.sequence_type, Type.optional_type, Type.map_type):
        return _holder(type, _within("element", shape_from_value, fields.get("element")))
    if fields.get("unranked") is True:
        return Shape.unranked(type)
    dimensions = _list(fields.get("dynamic_dimensions", []), "dynamic_dimensions")
    if len(dimensions) > MAX_RANK:
        raise FormatError(f"a shape of {len(dimensions)} axes; at most {MAX_RANK} are supported")
    if dimensions:
        return Shape.ranged(type, [_dimension_from_value(d) for d in dimensions])
    lens, strides = (_integers(fields.get(key), key) for key in ("lens", "strides"))
    if len(lens) > MAX_RANK:
        raise FormatError(f"a shape of {len(lens)} axes; at most {MAX_RANK} are supported")
    return Shape(type, lens, strides)


def _holder(type: Type, element: Shape) -> Shape:
    """Return the shape of a sequence, an optional or a map of ``element``."""
    if type is not Type.map_type:
        return Shape.sequence(element) if type is Type.sequence_type else Shape.optional(element)
    both = element.sub_shapes
    if len(both) != 2 or Shape.map(both[0].type, both[1].type).element != element:
        raise FormatError(f"a map holds {element}, expected a key and a value without axes")
    return Shape.map(both[0].type, both[1].type)


def _dimension_to_value(dimension: DynamicDimension) -> dict[str, Any]:
    bounds = {"min": dimension.min, "max": dimension.max}
    value = {"range": bounds, "optimals": sorted(dimension.optimals)}
    return {**value, "symbol": dimension.symbol} if dimension.symbol else value


def _dimension_from_value(value: object) -> DynamicDimension:
    fields = _map(value, "dynamic dimension")
    bounds = _map(fields.get("range", fields), "range")
    low, high = _integers([bounds.get("min"), bounds.get("max")], "range")
    symbol = fields.get("symbol", "")
    if not isinstance(symbol, str):
        raise FormatError(f"symbol is {_short(symbol)}, expected a string")
    return DynamicDimension(low, high, frozenset(_integers(fields.get("optimals", []), "optimals")), symbol)


def argument_to_value(argument: Argument) -> dict[str, object]:
    """Return a tensor as shape and data. The data are its element space, so a broadcast tensor stores each element
    once."""
    shape = shape_to_value(argument.shape)
    if argument.array is None:
        return {"shape": shape, "sub": [argument_to_value(member) for member in argument.sub]}
    if argument.shape.type is Type.string_type:
        return {"shape": shape, "strings": _storage(argument).tolist()}
    return {"shape": shape, "data": Blob(_storage(argument).view(np.uint8).data if argument.shape.bytes else b"")}


def _storage(argument: Argument) -> np.ndarray:
    """Return the element space as a one-dimensional array, without a copy where the elements fill it without gaps."""
    shape, array = argument.shape, argument.numpy()
    if array.dtype != shape.type.numpy:
        array = array.astype(shape.type.numpy)
    kept = [axis for axis, n in enumerate(shape.lens) if shape.strides[axis] and n != 1]
    kept.sort(key=lambda axis: -shape.strides[axis])
    lens = [shape.lens[axis] for axis in kept]
    if [shape.strides[axis] for axis in kept] == list(row_major_strides(lens)):
        once = array[(*(slice(None) if axis in kept else 0 for axis in range(array.ndim)), ...)]  # keep 0-d arrays
        solid = once.transpose([sorted(kept).index(axis) for axis in kept])
        return np.ascontiguousarray(solid).reshape(-1)
    filler = "" if shape.type is Type.string_type else 0
    flat = np.full(shape.element_space, filler, array.dtype)
    strided(flat, shape.lens, shape.strides)[...] = array
    return flat


def argument_from_value(value: object) -> Argument:
    """Return the tensor that a map describes: a read-only view of the blob if the blob is aligned.

    Raises:
        FormatError: data and shape do not fit each other.
    """
    fields = _map(value, "literal")
    shape = _within("shape", shape_from_value, fields.get("shape"))
    if shape.type is Type.tuple_type:
        members = [argument_from_value(m) for m in _list(fields.get("sub"), "sub")]
        if Shape.tuple(m.shape for m in members) != shape:
            raise FormatError(f"the members of a tuple do not have its shape {shape}")
        return Argument.from_tuple(members)
    if shape.is_dynamic:
        raise FormatError(f"data have the dynamic shape {shape}")
    if any(stride < 0 for stride in shape.strides):
        raise FormatError(f"data have negative strides: {shape}")
    if shape.type is Type.string_type:
        texts = strings(fields.get("strings"), "strings")
        if len(texts) != shape.element_space:
            raise FormatError(f"{len(texts)} strings for a shape of {shape.element_space}: {shape}")
        return Argument.from_flat(shape, np.array(texts, object))
    data = _blob(fields.get("data"))
    if len(data) != shape.bytes:
        raise FormatError(f"{len(data)} bytes of data for a shape of {shape.bytes} bytes: {shape}")
    flat = np.frombuffer(data, np.uint8)
    if shape.type is Type.bool_type and flat.size and flat.max() > 1:
        raise FormatError("a bool is neither 0 nor 1")
    if flat.ctypes.data % shape.type.size:
        flat = flat.copy()
    return Argument.from_flat(shape, flat.view(shape.type.numpy))


def _blob(value: object) -> memoryview:
    if isinstance(value, memoryview):
        return value
    chunks = _list(value, "data")
    if not all(isinstance(chunk, memoryview) for chunk in chunks):
        raise FormatError("data must be binary, or an array of binaries")
    if len(chunks) == 1:
        return chunks[0]
    return memoryview(b"".join(chunks))


def attribute_to_value(value: object) -> object:
    """Return an operator's attribute as a value tree; enumerations and element types become integers."""
    if isinstance(value, Enum):
        return int(value.value)
    if isinstance(value, Shape):
        return shape_to_value(value)
    if isinstance(value, DynamicDimension):
        return _dimension_to_value(value)
    if isinstance(value, Operator):
        return {"name": value.name, "operator": operator_to_value(value)}
    if isinstance(value, (tuple, list)):
        return [attribute_to_value(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValidationError(f"an attribute of type {type(value).__name__} cannot be saved: {value!r}")


def operator_to_value(operator: Operator) -> dict[str, object]:
    """Return the attributes of an operator by name."""
    return {key: attribute_to_value(value) for key, value in operator.attributes().items()}


def operator_from_value(name: str, value: object) -> Operator:
    """Return the operator with this name and these attributes.

    Raises:
        MgxError: the operator or an attribute is unknown, or an attribute has the wrong kind.
    """
    fields = _map(value, "operator")
    return make_op(name, **{key: _within(f"operator.{key}", _attribute_from_value, v) for key, v in fields.items()})


def _attribute_from_value(value: object) -> object:
    if isinstance(value, list):
        return [_attribute_from_value(v) for v in value]
    if not isinstance(value, dict):
        if isinstance(value, memoryview):
            raise FormatError("an attribute is binary")
        return value
    if "lens" in value:
        return shape_from_value(value)
    if "operator" in value and isinstance(value.get("name"), str):
        return operator_from_value(value["name"], value["operator"])
    return _dimension_from_value(value)


def program_modules(program: Program) -> dict[str, object]:
    """Return all modules of a program by name, the main module first.

    Raises:
        ValidationError: two modules have the same name.
    """
    modules = list(dict.fromkeys([*program.reachable_modules(), *program.modules]))
    names = _unique(instruction_names(modules))
    result: dict[str, object] = {}
    for module in modules:
        if module.name in result:
            raise ValidationError(f"two modules of the program are called {module.name!r}")
        result[module.name] = {"name": module.name, "nodes": [_node(ins, names) for ins in module]}
    return result


def _unique(names: Mapping[Instruction, str]) -> dict[Instruction, str]:
    """Return the printed names, with quotes added to duplicates."""
    taken: set[str] = set()
    result = {}
    for ins, name in names.items():
        while name in taken:
            name += "'"
        taken.add(name)
        result[ins] = name
    return result


def _node(ins: Instruction, names: Mapping[Instruction, str]) -> dict[str, object]:
    node: dict[str, object] = {
        "output": names[ins],
        "name": ins.op.name,
        "shape": shape_to_value(ins.shape),
        "normalized": ins.normalized,
        "operator": operator_to_value(ins.op),
        "inputs": [names[i] for i in ins.inputs],
    }
    if ins.literal is not None:
        node["literal"] = argument_to_value(ins.literal)
    if ins.module_args:
        node["module_inputs"] = [m.name for m in ins.module_args]
    if ins.target_id:
        node["target_id"] = ins.target_id
    if ins.debug_symbols:
        node["debug_symbols"] = list(ins.debug_symbols)
    return node


def strings(value: object, what: str) -> list[str]:
    """Return ``value`` if it is a list of strings.

    Raises:
        FormatError: it is not.
    """
    items = _list(value, what)
    for item in items:
        if not isinstance(item, str):
            raise FormatError(f"{what} holds {_short(item)}, expected strings")
    return items


def _within(place: str, function: Callable[[object], object], value: object) -> Any:
    try:
        return function(value)
    except ValueError as error:
        raise FormatError(f"{place}: {error}") from None


def _map(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError(f"{what} is {_short(value)}, expected a map")
    return value


def _list(value: object, what: str) -> JsonArray:
    if not isinstance(value, list):
        raise FormatError(f"{what} is {_short(value)}, expected an array")
    return value


def _integers(value: object, what: str) -> list[int]:
    items = _list(value, what)
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool):
            raise FormatError(f"{what} holds {_short(item)}, expected integers")
    return items


def _short(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, (dict, list, memoryview)):
        return {dict: "a map", list: "an array", memoryview: "binary"}[type(value)]
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
