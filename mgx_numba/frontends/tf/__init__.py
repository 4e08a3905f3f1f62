"""TensorFlow models: `parse_tf` parses a frozen graph, `get_tf_operators` lists the supported operators."""

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
    """Parse a frozen TensorFlow graph, whose variables have been converted to constants.

    As in MIGraphX, with ``is_nhwc`` the program takes and returns four-dimensional tensors as [n, c, h, w] where the
    graph has [n, h, w, c].

    Args:
        model: path of a GraphDef (``.pb``), of a SavedModel's folder or file, or the bytes of such a file.
        is_nhwc: convert four-dimensional inputs and results to channels first.
        batch_size: length of dimensions that the graph leaves open.
        map_input_dims: dimensions of inputs, by name, in the program's layout.
        output_names: results, as ``node`` or ``node:1``. Default: the results of a SavedModel's signature, or all nodes
            whose results no other node uses, in the file's order.

    Raises:
        ParseError: the model is malformed; the message names the node.
        UnsupportedError: the model uses an unsupported feature, such as variables.
        ShapeError: lengths do not fit an operator.
        OptionError: an option names an input or a result that does not exist.
    """
    from .options import TfOptions
    from .parser import parse

    options = TfOptions(is_nhwc, batch_size, map_input_dims or {}, tuple(output_names or ()))
    return parse(model, options)


def get_tf_operators() -> list[str]:
    """Return the names of the supported TensorFlow operators, sorted."""
    from . import registry
    from .parser import OWN_OPERATORS

    return sorted(registry.names() | OWN_OPERATORS)
