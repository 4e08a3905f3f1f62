"""View of a TensorFlow node for parser functions: its attributes, whose kinds are checked on access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.types import Type
from ...errors import ParseError, UnsupportedError
from .tensors import tf_type


class TfNode:
    """A NodeDef with checked access to its attributes.

    Attributes:
        name: the node's name.
        op_type: the operator's name.
        inputs: names of its input tensors, without control dependencies.
        attributes: ``AttrValue`` by name.
    """

    def __init__(self, proto: Any, bindings: Mapping[str, Any] | None = None) -> None:
        """Wrap a NodeDef; ``bindings`` has the values of attributes that a function's body takes from the call."""
        self.name: str = proto.name
        self.op_type: str = proto.op
        self.inputs = [name for name in proto.input if not name.startswith("^")]
        self.attributes: dict[str, Any] = {}
        for entry in proto.attr:
            value = entry.value
            if value.WhichOneof("value") == "placeholder" and bindings and value.placeholder in bindings:
                value = bindings[value.placeholder]
            self.attributes[entry.key] = value

    @property
    def where(self) -> str:
        """Return a description of the node for messages."""
        return f"node {self.name!r} ({self.op_type})"

    def has(self, name: str) -> bool:
        """Return whether the attribute is set."""
        return name in self.attributes

    def value(self, name: str, kind: str, default: object = None) -> Any:
        """Return the value of an attribute of a kind (the field's name in ``AttrValue``).

        Raises:
            ParseError: the attribute has another kind, or is absent without a default; so do all accessors here.
        """
        attribute = self.attributes.get(name)
        if attribute is None:
            if default is None:
                raise ParseError(f"attribute {name!r} is missing")
            return default
        found = attribute.WhichOneof("value")
        if found != kind:
            raise ParseError(f"attribute {name!r} is of kind {found}, expected {kind}")
        return getattr(attribute, kind)

    def get_int(self, name: str, default: int | None = None) -> int:
        """Return the value of an integer attribute."""
        return int(self.value(name, "i", default))

    def get_bool(self, name: str, default: bool = False) -> bool:
        """Return the value of a bool attribute."""
        return bool(self.value(name, "b", default))

    def get_float(self, name: str, default: float | None = None) -> float:
        """Return the value of a float attribute."""
        return float(self.value(name, "f", default))

    def get_str(self, name: str, default: str | None = None) -> str:
        """Return the value of a string attribute."""
        value = self.value(name, "s", default)
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise ParseError(f"attribute {name!r} is no UTF-8 text: {value!r}") from None

    def get_choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return the value of a string attribute that must be a member of ``choices``.

        Raises:
            UnsupportedError: the value is not a member.
        """
        value = self.get_str(name, default)
        if value not in choices:
            raise UnsupportedError(f"attribute {name!r} is {value!r}, supported are {', '.join(choices)}")
        return value

    def get_ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return the values of an integer list."""
        value = self.value(name, "list", default)
        return [int(v) for v in getattr(value, "i", value)]

    def get_type(self, name: str, default: Type | None = None) -> Type:
        """Return the value of an element type attribute."""
        if default is not None and not self.has(name):
            return default
        return tf_type(self.value(name, "type"))

    def get_tensor(self, name: str) -> object:
        """Return the value of a tensor attribute, a ``TensorProto``."""
        return self.value(name, "tensor")
