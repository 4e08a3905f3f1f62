"""Options of `parse_tf`, with validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ...dataclass import dataclass
from ...errors import OptionError


@dataclass(frozen=True)
class TfOptions:
    """Options of `parse_tf`; the fields are its keyword arguments.

    Raises:
        OptionError: a value has the wrong kind.
    """

    is_nhwc: bool = True
    batch_size: int = 1
    map_input_dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _is_length(self.batch_size) or self.batch_size < 1:
            raise OptionError(f"batch_size must be a length from 1 on, got {self.batch_size!r}")
        for name, dims in self.map_input_dims.items():
            if isinstance(dims, (str, bytes)) or not hasattr(dims, "__iter__"):
                raise OptionError(f"map_input_dims[{name!r}] must be a list of dimensions, got {dims!r}")
            for dim in dims:
                if not _is_length(dim):
                    raise OptionError(f"map_input_dims[{name!r}] holds {dim!r}, expected an integer from 0 on")
        for name in self.output_names:
            if not isinstance(name, str) or not name:
                raise OptionError(f"output_names holds {name!r}, expected the name of a node")


def _is_length(value: object) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and value.__index__() >= 0
