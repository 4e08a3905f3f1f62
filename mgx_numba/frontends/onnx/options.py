"""Options of `parse_onnx`: defaults, conflicts, and their effect on an input's dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ...core.shape import UNBOUNDED, DynamicDimension
from ...dataclass import dataclass
from ...errors import OptionError

_UNKNOWN = frozenset(("?", "None", "-1"))
"""Symbols that exporters (Paddle2ONNX, tf2onnx, keras2onnx) write for every unknown length: equal symbols do not mean
equal lengths."""


@dataclass(frozen=True)
class ParseOptions:
    """Options of `parse_onnx`; the fields are its keyword arguments, and the following.

    Attributes:
        initializers: arrays in place of initializers of the main graph, by name.
        opened: initializers that are also inputs of the model, and become inputs of the program.

    Raises:
        OptionError: a value has the wrong kind, or two options contradict each other.
    """

    default_dim_value: int = 0
    default_dyn_dim_value: DynamicDimension | None = None
    dim_params: Mapping[str, int | DynamicDimension] = field(default_factory=dict)
    map_input_dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    map_dyn_input_dims: Mapping[str, Sequence[int | DynamicDimension]] = field(default_factory=dict)
    skip_unknown_operators: bool = False
    print_program_on_error: bool = False
    max_loop_iterations: int = 10
    limit_max_iterations: int = 65535
    use_debug_symbols: bool = False
    external_data_path: str = ""
    strict: bool = False
    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)
    opened: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("default_dim_value", "max_loop_iterations", "limit_max_iterations"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
                raise OptionError(f"{name} must be an integer that is not negative, got {value!r}")
        dynamic = self.default_dyn_dim_value
        if dynamic is not None and not isinstance(dynamic, DynamicDimension):
            raise OptionError(f"default_dyn_dim_value must be a dynamic dimension, got {dynamic!r}")
        if self.default_dim_value and self.has_dynamic_default:
            raise OptionError(
                f"default_dim_value={self.default_dim_value} and default_dyn_dim_value={dynamic} are both set: give one"
            )
        if self.map_input_dims and self.map_dyn_input_dims:
            raise OptionError("map_input_dims and map_dyn_input_dims are both set: give one")
        for name, dims in self.map_input_dims.items():
            _check_dims("map_input_dims", name, dims, dynamic=False)
        for name, ranges in self.map_dyn_input_dims.items():
            _check_dims("map_dyn_input_dims", name, ranges, dynamic=True)
        for symbol, dim in self.dim_params.items():
            _check_dim("dim_params", symbol, dim, dynamic=True)

    @property
    def has_dynamic_default(self) -> bool:
        """Return whether unnamed unknown dimensions become a range (MIGraphX's default, 1 to 1, counts as not set)."""
        return self.default_dyn_dim_value not in (None, DynamicDimension(1, 1))

    @property
    def unknown_dim(self) -> DynamicDimension:
        """Return the default for a dimension without value or mapping: any length, unless an option sets it."""
        if self.has_dynamic_default and self.default_dyn_dim_value is not None:
            return self.default_dyn_dim_value
        if not self.default_dim_value:
            return DynamicDimension(0, UNBOUNDED)
        return DynamicDimension(self.default_dim_value, self.default_dim_value)

    def given_dims(self, name: str) -> list[DynamicDimension] | None:
        """Return the dimensions that the caller gave for input ``name``, or ``None``."""
        dims = self.map_input_dims.get(name, self.map_dyn_input_dims.get(name))
        return None if dims is None else [as_range(d) for d in dims]

    def symbol(self, name: str) -> DynamicDimension:
        """Return the range of the symbolic dimension ``name``."""
        dim = self.dim_params.get(name)
        return replace(self.unknown_dim if dim is None else as_range(dim), symbol=name_of_length(name))


def name_of_length(symbol: str) -> str:
    """Return the symbol of a declared dimension, or "" for a symbol that stands for any unknown length."""
    return "" if symbol in _UNKNOWN else symbol


def as_range(dim: int | DynamicDimension) -> DynamicDimension:
    """Return a dimension as a range; an integer is a fixed range."""
    return dim if isinstance(dim, DynamicDimension) else DynamicDimension(int(dim), int(dim))


def _check_dims(option: str, name: str, dims: object, dynamic: bool) -> None:
    if isinstance(dims, (str, bytes)) or not hasattr(dims, "__iter__"):
        raise OptionError(f"{option}[{name!r}] must be a list of dimensions, got {dims!r}")
    for dim in dims:
        _check_dim(option, name, dim, dynamic)


def _check_dim(option: str, name: str, dim: object, dynamic: bool) -> None:
    if dynamic and isinstance(dim, DynamicDimension):
        return
    if isinstance(dim, bool) or not hasattr(dim, "__index__") or dim.__index__() < 0:
        kinds = "an integer that is not negative" + (" or a dynamic dimension" if dynamic else "")
        raise OptionError(f"{option}[{name!r}] holds {dim!r}, expected {kinds}")
