"""ONNX models: `parse_onnx` parses a model into a program, `get_onnx_operators` lists the supported operators."""

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
    """Parse an ONNX model.

    Unambiguous deviations from the ONNX specification are accepted, each with one warning that names the node:

    * an operator of com.microsoft or ai.onnx.ml whose domain is not imported or left out;
    * an operator, an element type or an absent input that only a later operator set allows;
    * int32 for int64 inputs, integers for float attributes;
    * per-channel scales of GroupNormalization before operator set 21;
    * a result of another element type than declared;
    * nodes that are not sorted;
    * input lengths that are 0 or negative (taken as unknown).

    A dimension without a value is determined by the first of these that is given: ``map_input_dims`` or
    ``map_dyn_input_dims`` for the input, ``dim_params`` for the symbol, ``default_dyn_dim_value`` or
    ``default_dim_value``. Otherwise it stays open: a run may give it any length, the same for all dimensions of one
    symbol.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        default_dim_value: length of dimensions that the model leaves open.
        default_dyn_dim_value: range of dimensions that the model leaves open.
        dim_params: length or range of symbolic dimensions, by symbol.
        map_input_dims: dimensions of inputs, by name.
        map_dyn_input_dims: dimensions (lengths or ranges) of inputs, by name.
        skip_unknown_operators: represent unknown operators by ``unknown`` instructions.
        print_program_on_error: on an error, print the part of the program that was parsed.
        max_loop_iterations: no effect. MIGraphX sizes scan outputs of loops with unknown trip count by it; here scan
            outputs have their exact length.
        limit_max_iterations: largest number of iterations of a loop.
        use_debug_symbols: instructions carry the names of the nodes they came from.
        external_data_path: folder of external data (the model's own if ``model`` is a path).
        strict: refuse deviations that are otherwise accepted with a warning; a length of 0 then means 0.

    Raises:
        ParseError: the model is malformed; the message names the place.
        UnsupportedError: the model is valid, but uses an unsupported feature.
        ShapeError: lengths do not fit an operator.
        OptionError: options contradict each other or name inputs that do not exist.
    """
    whole_module("mgx_numba.frontends.onnx.parser")
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
    """Return the names of the supported ONNX operators, of all domains, sorted."""
    from . import registry
    from .functions import EXPANDED

    return sorted(registry.names() | EXPANDED)
