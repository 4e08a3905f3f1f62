"""TensorFlow models: `parse_tf` reads a frozen graph into a program, `get_tf_operators` lists what it knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ...graph.program import Program

__all__ = ["get_tf_operators", "parse_tf"]


def parse_tf(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    is_nhwc: bool = True,
    batch_size: int = 1,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    output_names: Sequence[str] | None = None,
) -> Program:
    """Read a frozen TensorFlow graph: one whose variables have become constants.

    As in MIGraphX, with ``is_nhwc`` the program takes inputs of four dimensions, which the graph has as [n, h, w, c],
    as [n, c, h, w], and gives such results so.

    Args:
        model: path of a GraphDef (``.pb``), of a SavedModel's folder or file, or the bytes of such a file.
        is_nhwc: inputs and results of four dimensions are exchanged with channels first.
        batch_size: length of dimensions that the graph leaves open.
        map_input_dims: dimensions of inputs, by name, in the program's order.
        output_names: results, as ``node`` or ``node:1``; by default those of a SavedModel's signature, or all nodes
            whose results no other node takes, in the file's order.

    Raises:
        ParseError: the model is malformed; the message names the node.
        UnsupportedError: it uses what this package does not support, such as variables.
        ShapeError: lengths do not fit an operator.
        OptionError: options that name inputs or results that do not exist.
    """
    from .options import TfOptions
    from .parser import parse

    options = TfOptions(is_nhwc, batch_size, map_input_dims or {}, tuple(output_names or ()))
    return parse(model, options)


def get_tf_operators() -> list[str]:
    """Names of the TensorFlow operators that can be read, sorted."""
    from . import registry
    from .parser import OWN_OPERATORS

    return sorted(registry.names() | OWN_OPERATORS)
