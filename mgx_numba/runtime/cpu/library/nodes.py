"""What the program of a library runs: a plan, the first of several nodes that serves the lengths, or two stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ....core.dim import Dim
from ....dataclass import dataclass
from ....errors import UnsupportedError
from ...completed import Counted, Spaced
from ..executor import Executable

Lens: TypeAlias = "tuple[int | None, ...]"
"""Lengths of a tensor; None where they are known only in a run."""
Tensor: TypeAlias = "tuple[str, Lens]"
"""Element type, by NumPy or ml_dtypes name, and lengths."""

SPACED_TYPES = ("int16", "int32", "int64", "float32", "float64")
"""Element types of evenly spaced numbers that the C sources make."""


@dataclass(frozen=True, eq=False)
class PlanNode:
    """One plan."""

    executable: Executable


@dataclass(frozen=True, eq=False)
class ChoiceNode:
    """Nodes, at least one, of which the first runs that serves the lengths of the inputs."""

    members: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class StagesNode:
    """Two stages.

    Attributes:
        results: for each result, whether the first stage computes it, and its number among that stage's results.
        completed: results of the first stage that take their lengths from other results.
        passed: inputs of the second stage that are results of the first, by name.
        sizes: names of ``passed`` whose element is a size. The second stage takes arrays without elements in their
            place, with lengths from which the size follows (`size_array` of the compiler).
        shared: names of inputs of the first stage that the second takes, too.
        lengths: inputs of the second stage, of shape ``(length, 0)``, by name: the input of the first stage and the
            axis with the length.
    """

    head: Node
    tail: Node
    results: tuple[tuple[bool, int], ...]
    completed: tuple[Counted | Spaced, ...]
    passed: Mapping[str, int]
    sizes: frozenset[str]
    shared: tuple[str, ...]
    lengths: Mapping[str, tuple[str, int]]


Node: TypeAlias = "PlanNode | ChoiceNode | StagesNode"


def nodes_of(node: Node) -> list[Node]:
    """Return a node and all nodes below it, each after those that it runs."""
    below: Sequence[Node] = ()
    if isinstance(node, ChoiceNode):
        below = node.members
    elif isinstance(node, StagesNode):
        below = (node.head, node.tail)
    return [*(one for child in below for one in nodes_of(child)), node]


def executables_of(node: Node) -> list[Executable]:
    """Return the executables of all plans, in the order of `nodes_of`."""
    return [one.executable for one in nodes_of(node) if isinstance(one, PlanNode)]


def parameters_of(node: Node) -> dict[str, Tensor]:
    """Return the inputs of a node, by name."""
    if isinstance(node, PlanNode):
        return {p.name: (p.dtype, _known(p.lens)) for p in node.executable.plan.parameters}
    found: dict[str, Tensor] = {}
    if isinstance(node, StagesNode):
        own = parameters_of(node.tail)
        return {**{name: own[name] for name in node.shared}, **parameters_of(node.head)}
    for member in node.members:
        for name, tensor in parameters_of(member).items():
            found[name] = _common(name, found.get(name, tensor), tensor)
    return found


def outputs_of(node: Node) -> list[Tensor]:
    """Return the results of a node.

    Raises:
        UnsupportedError: the C sources cannot make a result.
    """
    if isinstance(node, PlanNode):
        return [(o.dtype, _known(o.lens or ())) for o in node.executable.plan.outputs]
    if isinstance(node, ChoiceNode):
        every = [outputs_of(member) for member in node.members]
        found = every[0]
        for other in every[1:]:
            found = [_common("a result", *pair) for pair in zip(found, other, strict=True)]
        return found
    head = list(_completed(node))
    tail = outputs_of(node.tail)
    return [(head if early else tail)[k] for early, k in node.results]


def _completed(node: StagesNode) -> Iterator[Tensor]:
    """Yield the results of the first stage with the lengths that they have once they are complete."""
    made = {one.number: one for one in node.completed}
    found = outputs_of(node.head)
    for number, (dtype, lens) in enumerate(found):
        one = made.get(number)
        if isinstance(one, Counted):
            lens = tuple([None if n < 0 else n for n in one.lens])
        elif one is not None:
            if dtype not in SPACED_TYPES:
                raise UnsupportedError(
                    f"export_library: numbers of a range are {dtype}; a library makes {', '.join(SPACED_TYPES)}"
                )
            lens = (None,)
        yield dtype, lens


def _known(lens: Sequence[int]) -> Lens:
    return tuple([None if isinstance(length, Dim) else length for length in lens])


def _common(what: str, a: Tensor, b: Tensor) -> Tensor:
    """Return the declaration of a tensor that several plans take or make."""
    if a == b:
        return a
    if a[0] != b[0] or len(a[1]) != len(b[1]):
        raise UnsupportedError(f"export_library: plans of the program disagree on the type or rank of {what}")
    return a[0], tuple([m if m == n else None for m, n in zip(a[1], b[1])])
