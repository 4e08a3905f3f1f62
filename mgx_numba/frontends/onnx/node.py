"""View of an ONNX node for parser functions: its names, and its attributes, whose kinds are checked on access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ParseError, UnsupportedError
from .repeated import repeated_codes, repeated_numbers

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

    from .builder import NameScope
    from .leniency import Leniency

ATTRIBUTE_KINDS = {
    1: "float",
    2: "int",
    3: "string",
    4: "tensor",
    5: "graph",
    6: "floats",
    7: "ints",
    8: "strings",
    9: "tensors",
    10: "graphs",
    11: "sparse_tensor",
    12: "sparse_tensors",
    13: "type_proto",
    14: "type_protos",
}
_ELEMENTS = {6: 1, 7: 2, 8: 3}
"""Kind of the elements of each list kind of attribute."""
_INTEGER_FOR_FLOAT = (2, 1)  # kinds of attributes: given, expected
_OTHER_WORDS = {"SAME": "SAME_UPPER", "BILINEAR": "linear"}
"""Other frameworks' names of attribute values: TensorFlow's padding, PyTorch's interpolation."""
_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 11: "sparse_tensor", 13: "tp"}


def fits(attribute: AttributeProto, kind: int) -> bool:
    """Return whether an attribute is of ``kind``, or can be converted unambiguously.

    Convertible are integers to floats, a list of one element to its element, and an element to a list.
    """
    given = attribute.type
    if given == kind:
        return True
    of, meant = _ELEMENTS.get(given, given), _ELEMENTS.get(kind, kind)
    if meant not in _ELEMENTS.values() or (of != meant and (of, meant) != _INTEGER_FOR_FLOAT):
        return False
    return given not in _ELEMENTS or kind in _ELEMENTS or len(getattr(attribute, _FIELDS[given])) == 1


class Node:
    """A NodeProto with its place in the model.

    Attributes:
        op_type: the operator's name.
        domain: its domain, ``""`` for ai.onnx.
        opset: version of that domain's operator set in force here, or the version whose form the node has.
        name: the node's name, possibly empty.
        index: its position in its graph.
        inputs: names of the inputs, ``""`` for absent inputs; trailing absent inputs are removed.
        outputs: names of the outputs, ``""`` for unused outputs.
        attributes: the attributes by name.
        scope: the names in force around it.
    """

    def __init__(
        self,
        proto: NodeProto,
        domain: str,
        opset: int,
        index: int,
        scope: NameScope,
        leniency: Leniency,
        elements: Callable[[TensorProto], np.ndarray],
    ) -> None:
        """Wrap a NodeProto; ``elements`` reads the elements of a tensor."""
        self.proto = proto
        self._elements = elements
        self.op_type: str = proto.op_type
        self.domain = domain
        self.opset = self._imported = opset
        self.name: str = proto.name
        self.index = index
        self.scope = scope
        self._leniency = leniency
        self.inputs = list(proto.input)
        while self.inputs and not self.inputs[-1]:
            self.inputs.pop()
        self.outputs = list(proto.output)
        self.attributes: dict[str, AttributeProto] = {}
        for attribute in proto.attribute:
            if attribute.name in self.attributes:
                raise ParseError(f"{self.where}: attribute {attribute.name!r} is given twice")
            self.attributes[attribute.name] = attribute

    @property
    def where(self) -> str:
        """Return a description of the node for messages."""
        label = repr(self.name) if self.name else f"#{self.index}"
        return f"node {label} ({self.op_type}, domain {self.domain or 'ai.onnx'}, opset {self._imported})"

    def accept(self, what: str) -> None:
        """Accept a deviation of the node from the ONNX specification; see `Leniency.accept`."""
        self._leniency.accept(what, self)

    def has(self, name: str) -> bool:
        """Return whether the attribute is set."""
        return name in self.attributes

    def wants(self, output: int) -> bool:
        """Return whether an output may be used."""
        return output < len(self.outputs) and bool(self.outputs[output])

    def _value(self, name: str, kind: int, default: object) -> Any:
        attribute = self.attributes.get(name)
        if attribute is None:
            if default is None:
                raise ParseError(f"attribute {name!r} ({ATTRIBUTE_KINDS[kind]}) is missing")
            return default
        if not fits(attribute, kind):
            found = ATTRIBUTE_KINDS.get(attribute.type, f"kind {attribute.type}")
            raise ParseError(f"attribute {name!r} is of kind {found}, expected {ATTRIBUTE_KINDS[kind]}")
        value = getattr(attribute, _FIELDS[attribute.type])
        if attribute.type == kind:
            return value
        given = ATTRIBUTE_KINDS[attribute.type]
        self.accept(f"attribute {name!r} is of kind {given}, taken for {ATTRIBUTE_KINDS[kind]}")
        if attribute.type in _ELEMENTS and kind not in _ELEMENTS:
            return value[0]
        return [value] if kind in _ELEMENTS and attribute.type not in _ELEMENTS else value

    def get_int(self, name: str, default: int | None = None) -> int:
        """Return the value of an integer attribute.

        Raises:
            ParseError: the attribute has another kind, or is absent without a default; so do all accessors here.
        """
        return int(self._value(name, 2, default))

    def get_bool(self, name: str, default: bool = False) -> bool:
        """Return the value of an integer attribute that is a flag."""
        return self.get_int(name, int(default)) != 0

    def get_float(self, name: str, default: float | None = None) -> float:
        """Return the value of a float attribute, rounded to float32 even if it is the default."""
        return float(np.float32(self._value(name, 1, default)))

    def get_number(self, name: str) -> float | int:
        """Return the value of a float or integer attribute."""
        attribute = self.attributes.get(name)
        return self.get_int(name) if attribute is not None and attribute.type == 2 else self.get_float(name)

    def get_str(self, name: str, default: str | None = None) -> str:
        """Return the value of a string attribute."""
        value = self._value(name, 3, default)
        return _text(name, value) if isinstance(value, bytes) else value

    def get_choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return the value of a string attribute that must be a member of ``choices``."""
        value = self.get_str(name, default)
        if value in choices:
            return value
        meant = [c for c in choices if c.lower() == _OTHER_WORDS.get(value.upper(), value).lower()]
        if len(meant) != 1:
            raise ParseError(f"attribute {name!r} is {value!r}, expected one of {', '.join(choices)}")
        self.accept(f"attribute {name!r} is {value!r}, taken for {meant[0]!r}")
        return meant[0]

    def get_ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return the values of an integer list."""
        return [int(v) for v in self._value(name, 7, default)]

    def get_floats(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """Return the values of a float list."""
        return [float(v) for v in self._value(name, 6, default)]

    def get_strs(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """Return the values of a string list."""
        values = self._value(name, 8, default)
        return [_text(name, v) if isinstance(v, bytes) else v for v in values]

    def int_array(self, name: str, default: Sequence[int] | None = None) -> np.ndarray:
        """Return an integer list as int64, without a Python object for each element."""
        return self._number_array(name, 7, default, np.int64)

    def float_array(self, name: str, default: Sequence[float] | None = None) -> np.ndarray:
        """Return a float list as float32, without a Python object for each element."""
        return self._number_array(name, 6, default, np.float32)

    def codes(self, name: str, words: Sequence[str]) -> np.ndarray | None:
        """Return the index in ``words`` of each string of a list; None if a string is unknown. See `repeated_codes`."""
        self._value(name, 8, None)
        attribute = self.attributes[name]
        if attribute.type != 8:
            found = [words.index(text) if text in words else -1 for text in self.get_strs(name)]
            return None if -1 in found else np.array(found, np.int8)
        return repeated_codes(attribute, "strings", words)

    def _number_array(self, name: str, kind: int, default: object, dtype: DTypeLike) -> np.ndarray:
        value, attribute = self._value(name, kind, default), self.attributes.get(name)
        if attribute is not None and attribute.type in (6, 7):
            return repeated_numbers(attribute, _FIELDS[attribute.type], dtype)
        return np.array(value, dtype)

    def get_array(self, name: str) -> np.ndarray:
        """Return the elements of a tensor attribute."""
        return self._elements(self.get_tensor(name))

    def get_tensor(self, name: str) -> TensorProto:
        """Return the value of a tensor attribute."""
        return self._value(name, 4, None)

    def get_graph(self, name: str) -> GraphProto:
        """Return the value of a graph attribute."""
        return self._value(name, 5, None)

    def get_sparse(self, name: str) -> SparseTensorProto:
        """Return the value of a sparse tensor attribute."""
        return self._value(name, 11, None)

    def get_type(self, name: str) -> TypeProto:
        """Return the value of a type attribute."""
        return self._value(name, 13, None)

    def refuse(self, name: str, default: object, why: str = "") -> None:
        """Raise ``UnsupportedError`` if an integer or string attribute is set to another value than ``default``."""
        if not self.has(name):
            return
        value = self.get_str(name) if isinstance(default, str) else self.get_int(name)
        if value != default:
            raise UnsupportedError(f"attribute {name!r} is {value!r}, only {default!r} is supported{why}")


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ParseError(f"attribute {name!r} is no UTF-8 text: {value!r}") from None
