"""Names, declared dimensions and metadata of a model's file, which do not affect the computed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, fields

from ..dataclass import dataclass
from ..errors import FormatError
from ..messages import deprecated


@dataclass(frozen=True)
class Origin:
    """Names, dimensions and metadata that a model's file declares; ONNX's ``ModelProto`` has the same fields.

    Attributes:
        output_names: names of the results, in order; empty if the model has none.
        output_dims: declared dimensions of each result: a length, a symbol, or "" for neither. Empty for a result
            without declared dimensions.
        properties: ``metadata_props``, values by key.
    """

    output_names: tuple[str, ...] = ()
    output_dims: tuple[tuple[int | str, ...], ...] = ()
    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def names(self, count: int) -> list[str]:
        """Return the names of a program's ``count`` results: the model's, or ``output_0`` and so on if their number
        differs."""
        known = self.output_names
        return list(known) if len(known) == count else [f"output_{k}" for k in range(count)]

    def to_json(self) -> dict[str, object]:
        """Return a value tree without empty fields."""
        found = {name: value for name, value in asdict(self).items() if value}
        lists = {"output_names": list(self.output_names), "output_dims": list(map(list, self.output_dims))}
        return found | {name: value for name, value in lists.items() if name in found}

    @classmethod
    def from_json(cls, found: object) -> Origin:
        """Return the origin in a value tree of `to_json`.

        Raises:
            FormatError: the tree is malformed.
        """
        if not isinstance(found, dict):
            raise FormatError("mgx_numba: 'origin' must be a map")
        if "output_symbols" in found:  # of version 0.2, which stored symbols alone
            deprecated("the form of .mxr files of version 0.2", "save the program again", "0.4")
            found = {("output_dims" if name == "output_symbols" else name): value for name, value in found.items()}
        kinds = {f.name: type(getattr(_NONE, f.name)) for f in fields(cls)}
        kinds |= {"output_names": list, "output_dims": list}
        for name, value in found.items():
            if type(value) is not kinds.get(name):
                raise FormatError(f"mgx_numba: 'origin' has {str(name)[:40]!r} of type {type(value).__name__}")
        names, properties = found.get("output_names", []), found.get("properties", {})
        dims = found.get("output_dims", [])
        if not all(type(axes) is list for axes in dims):
            raise FormatError("mgx_numba: 'output_dims' of 'origin' must be arrays")
        if not all(type(dim) is str or (type(dim) is int and dim > 0) for axes in dims for dim in axes):
            raise FormatError("mgx_numba: 'output_dims' of 'origin' must hold symbols and lengths")
        strings = [*names, *properties, *properties.values()]
        if not all(type(text) is str for text in strings):
            raise FormatError("mgx_numba: names and properties of 'origin' must be strings")
        return cls(**{**found, "output_names": tuple(names), "output_dims": tuple(map(tuple, dims))})


_NONE = Origin()
