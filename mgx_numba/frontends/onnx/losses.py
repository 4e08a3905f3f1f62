"""Shape checks for losses, whose function bodies would broadcast mismatched lengths."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.shape import DynamicDimension
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .builder import rank
from .node import Node

LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def check_loss(node: Node, inputs: Sequence[Instruction | None]) -> None:
    """Check scores [n, c, d...], labels [n, d...] and optional weights [c].

    Raises:
        ParseError: scores have fewer than two axes, or the reduction is unknown.
        ShapeError: labels or weights have other lengths than the scores.
    """
    node.get_choice("reduction", ("mean", "none", "sum"), "mean")
    scores, labels, weights = [*inputs, None][:3]
    assert scores is not None and labels is not None  # required by the schema
    if rank(scores) < 2:
        raise ParseError(f"input 0 has {rank(scores)} dimensions, expected at least 2: [n, classes, ...]")
    count, classes, *others = scores.shape.dims
    _check("labels", labels, [count, *others])
    if weights is not None:
        _check("weights", weights, [classes])


def _check(what: str, x: Instruction, wanted: Sequence[DynamicDimension]) -> None:
    given = x.shape.dims if rank(x) else ()
    meet = len(given) == len(wanted) and all(a.min <= b.max and b.min <= a.max for a, b in zip(given, wanted))
    if not meet:
        listed = [", ".join(map(str, dims)) for dims in (given, wanted)]
        raise ShapeError(f"{what} are of lengths [{listed[0]}], expected [{listed[1]}] as the scores have")
