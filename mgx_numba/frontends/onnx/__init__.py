"""ONNX models: `parse_onnx` reads one into a program, `get_onnx_operators` lists what it knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...interrupts import whole_module

if TYPE_CHECKING:
    from typing import TypeAlias

    import onnx

    from ...core.shape import DynamicDimension
    from ...graph.program import Program

    Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto"

__all__ = ["get_onnx_operators", "parse_onnx"]


def parse_onnx(
    model: Source,
    *,
    default_dim_value: int = 0,
    default_dyn_dim_value: DynamicDimension | None = None,
    dim_params: Mapping[str, int | DynamicDimension] | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[int | DynamicDimension]] | None = None,
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    max_loop_iterations: int = 10,
    limit_max_iterations: int = 65535,
    use_debug_symbols: bool = False,
    external_data_path: str = "",
    strict: bool = False,
) -> Program:
    """Read an ONNX model.

    Files that are not as ONNX wants them are accepted where nobody doubts what is meant, with one warning each that
    names the node: an operator of com.microsoft or ai.onnx.ml whose domain is not imported or left out, one of a later
    operator set, an element type or an absent input that only a later one allows, int32 for int64, integers for floats
    among attributes, per-channel scales of GroupNormalization before operator set 21, a result of another element type
    than declared, nodes that are not sorted, lengths of inputs that are 0 or negative (taken for unknown ones).

    Dimensions without a value are, in this order: what ``map_input_dims`` or ``map_dyn_input_dims`` say for
    the input, what ``dim_params`` says for the symbol, ``default_dyn_dim_value`` or ``default_dim_value`` if
    given; else they stay open: a run may give them any length, the same to all dimensions of one symbol.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        default_dim_value: length of dimensions that the model leaves open.
        default_dyn_dim_value: range of dimensions that the model leaves open.
        dim_params: length or range of symbolic dimensions, by symbol.
        map_input_dims: dimensions of inputs, by name.
        map_dyn_input_dims: dimensions (lengths or ranges) of inputs, by name.
        skip_unknown_operators: put ``unknown`` instructions for operators that are not known.
        print_program_on_error: print the program as far as it was read when reading fails.
        max_loop_iterations: MIGraphX's room for scan outputs of loops whose trip count is not known; here they
            have their exact length, and this has no effect.
        limit_max_iterations: most iterations of a loop.
        use_debug_symbols: instructions carry the names of the nodes they came from.
        external_data_path: folder of external data (the model's own if ``model`` is a path).
        strict: refuse what is accepted with a warning; a length of 0 is then one.

    Raises:
        ParseError: the model is malformed; the message names the place.
        UnsupportedError: it is valid, but uses what this package does not support.
        ShapeError: lengths do not fit an operator.
        OptionError: options that contradict each other or name inputs that do not exist.
    """
    whole_module("onnx.defs")
    from .options import ParseOptions
    from .parser import parse

    options = ParseOptions(
        default_dim_value=default_dim_value,
        default_dyn_dim_value=default_dyn_dim_value,
        dim_params=dim_params or {},
        map_input_dims=map_input_dims or {},
        map_dyn_input_dims=map_dyn_input_dims or {},
        skip_unknown_operators=skip_unknown_operators,
        print_program_on_error=print_program_on_error,
        max_loop_iterations=max_loop_iterations,
        limit_max_iterations=limit_max_iterations,
        use_debug_symbols=use_debug_symbols,
        external_data_path=os.fspath(external_data_path),
        strict=strict,
    )
    return parse(model, options)


def get_onnx_operators() -> list[str]:
    """Names of the ONNX operators that can be read, of all domains, sorted."""
    from . import registry
    from .functions import EXPANDED

    return sorted(registry.names() | EXPANDED)
