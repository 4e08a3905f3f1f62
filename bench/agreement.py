"""Comparison of a network's results with exact results, and checks of choices (NonMaxSuppression, TopK).

Results of NonMaxSuppression and TopK are positions. If scores differ slightly, another choice may be equally correct.
So the inputs of such operators become results, too (`exposed`): they must be close to the exact values, and the choice
must be the operator's result for the values found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mgx_numba.api.sensitivity import largest_difference, relative_error

__all__ = ["Agreement", "Choice", "agreement", "choices_of", "exposed", "max_relative_error"]

CHOOSING = {"NonMaxSuppression": 0, "TopK": 1}
"""Operators that choose, and the index of the result that holds the choice."""
CLOSE = 2.0**-20
"""Tolerance of scores and coordinates, relative to the largest: a few roundings of float32. Kernels compute overlaps in
float32, and the choice is checked in float64."""


@dataclass(frozen=True)
class Choice:
    """A result that holds a choice: its index, the operator's name and attributes, and the result indices of its
    inputs.

    An index is None for an absent input.
    """

    result: int
    operator: str
    attributes: Mapping[str, Any]
    inputs: tuple[int | None, ...]

    def problem(self, results: Sequence[np.ndarray]) -> str:
        """Return the reason why the result is not the operator's result for its inputs; empty if it is."""
        given = [None if k is None else np.asarray(results[k]) for k in self.inputs]
        chosen = np.asarray(results[self.result])
        if self.operator == "TopK":
            return _wrong_order(chosen, given, self.attributes)
        return _wrong_boxes(chosen, given, bool(self.attributes.get("center_point_box", 0)))


@dataclass(frozen=True)
class Agreement:
    """The outcome of a comparison.

    Attributes:
        error: largest difference in any result that is no choice, relative to that result's largest magnitude.
        rms: root mean square of the differences over that of the values; the maximum over floating results.
        chosen: number of rows or positions in the exact results that are choices.
        differing: number of choices that differ, are missing or are additional.
        problem: why a choice does not follow from its inputs; empty if all do.
    """

    error: float
    rms: float = float("inf")
    chosen: int = 0
    differing: int = 0
    problem: str = ""

    def __str__(self) -> str:
        text = f"error {self.error:.1e}"
        if self.chosen or self.differing:
            text += f", {self.differing} of {self.chosen} choices differ"
        return f"{text} (wrong: {self.problem})" if self.problem else text


def exposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model in which the inputs of choosing operators are results, too.

    The model itself is returned if there are none, or they are already results.
    """
    missing = [name for node, _ in _choosing(model) for name in node.input if name]
    missing = [name for name in dict.fromkeys(missing) if name not in {o.name for o in model.graph.output}]
    if not missing:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {t.name: helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    known.update({v.name: v for v in (*inferred.value_info, *model.graph.input)})
    copy.graph.output.extend(known[name] for name in missing)
    return copy


def choices_of(model: onnx.ModelProto) -> list[Choice]:
    """Return the results that are choices, of a model from `exposed`.

    Raises:
        ValueError: an input of a choice is not a result.
    """
    places = {output.name: k for k, output in enumerate(model.graph.output)}
    found = []
    for node, name in _choosing(model):
        absent = [i for i in node.input if i and i not in places]
        if absent:
            raise ValueError(f"{node.op_type} {node.name!r} chooses from {', '.join(absent)}: expected results")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        found.append(Choice(places[name], node.op_type, attributes, tuple(places.get(i) for i in node.input)))
    return found


def agreement(found: Sequence[Any], exact: Sequence[Any], choices: Sequence[Choice] = ()) -> Agreement:
    """Compare all results of a network with exact results; ``choices`` are the choices of their model."""
    found, exact = [np.asarray(r) for r in found], [np.asarray(r) for r in exact]
    if len(found) != len(exact):
        return Agreement(float("inf"), problem=f"{len(found)} results, expected {len(exact)}")
    chosen = {choice.result for choice in choices}
    pairs = [(a, b) for k, (a, b) in enumerate(zip(found, exact)) if k not in chosen]
    error = max_relative_error([a for a, _ in pairs], [b for _, b in pairs])
    rms = relative_error(*zip(*pairs)) if pairs and np.isfinite(error) else error
    problems = [choice.problem(found) for choice in choices if np.isfinite(error)]
    counts = [_differing(found[c.result], exact[c.result], c.operator == "TopK") for c in choices]
    total = sum(exact[c.result].size // (1 if c.operator == "TopK" else 3) for c in choices)
    return Agreement(error, rms, total, sum(counts), "; ".join(filter(None, problems)))


def max_relative_error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest difference in any output, relative to that output's largest magnitude.

    Infinite if shapes differ, or if one value is not finite (or not the same infinity) where the other is. Integer and
    bool outputs are compared as numbers.
    """
    if len(got) != len(wanted):
        return float("inf")
    return max((largest_difference(np.asarray(a), np.asarray(b)) for a, b in zip(got, wanted)), default=0.0)


def _choosing(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Yield the nodes whose choice is a result, with the result's name."""
    results = {output.name for output in model.graph.output}
    for node in model.graph.node:
        place = CHOOSING.get(node.op_type)
        if place is not None and len(node.output) > place and node.output[place] in results:
            yield node, node.output[place]


def _differing(found: np.ndarray, exact: np.ndarray, by_place: bool) -> int:
    if by_place:
        return int((found != exact).sum()) if found.shape == exact.shape else max(found.size, exact.size)
    rows, wanted = ({tuple(row) for row in rows.reshape(-1, 3).tolist()} for rows in (found, exact))
    return max(len(rows - wanted), len(wanted - rows))


def _wrong_order(chosen: np.ndarray, given: Sequence[np.ndarray | None], attributes: Mapping[str, Any]) -> str:
    """Check the result of TopK: positions [..., k, ...] along an axis of its input; return the problem."""
    values, count = given[0], given[1]
    assert values is not None and count is not None
    axis = attributes.get("axis", -1)
    lens = list(values.shape)
    lens[axis] = int(count.reshape(-1)[0])
    if list(chosen.shape) != lens:
        return f"TopK gives positions {list(chosen.shape)}, expected {lens}"
    wide = values.astype(np.float64) * (-1 if attributes.get("largest", 1) else 1)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < values.shape[axis]):
        return f"TopK gives positions beyond the {values.shape[axis]} that there are"
    in_order = np.sort(chosen, axis)
    if (np.diff(in_order, axis=axis) == 0).any():
        return "TopK gives a position twice"
    best = np.take(np.sort(wide, axis), np.arange(lens[axis]), axis)
    taken = np.take_along_axis(wide, chosen, axis)
    if not attributes.get("sorted", 1):
        taken = np.sort(taken, axis)
    apart = np.abs(taken - best) > CLOSE * _largest(wide)
    return f"TopK gives {int(apart.sum())} positions whose elements are not next in order" if apart.any() else ""


def _wrong_boxes(chosen: np.ndarray, given: Sequence[np.ndarray | None], by_centre: bool) -> str:
    """Check the result of NonMaxSuppression: rows (image, class, box), best first in each class; return the problem."""
    boxes, scores, *limits = given
    assert boxes is not None and scores is not None
    images, classes, count = scores.shape
    limits = [*limits, *[None] * (3 - len(limits))]
    keep, overlap, lowest = (None if v is None else v.reshape(-1)[0].item() for v in limits)
    rows = chosen.reshape(-1, 3)
    if len(rows) and not ((rows >= 0).all() and (rows < [images, classes, count]).all()):
        return f"NonMaxSuppression gives rows beyond {images} images, {classes} classes, {count} boxes"
    groups = rows[:, 0] * classes + rows[:, 1]
    if (np.diff(groups) < 0).any():
        return "NonMaxSuppression gives rows that are not in the order of images and classes"
    for n, c in itertools.product(range(images), range(classes)):
        kept = rows[groups == n * classes + c, 2]
        problem = _wrong_class(kept, boxes[n], scores[n, c], by_centre, int(keep or 0), overlap or 0.0, lowest)
        if problem:
            return f"NonMaxSuppression, image {n}, class {c}: {problem}"
    return ""


def _wrong_class(
    kept: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray,
    by_centre: bool,
    keep: int,
    overlap: float,
    lowest: float | None,
) -> str:
    """Check the kept boxes of one class, best first; return the problem.

    Each kept box scores above the lowest score and overlaps no better box. Every other box scores below it, overlaps a
    better box, or exceeds the number of boxes to keep.
    """
    scores = scores.astype(np.float64)
    slack = CLOSE * _largest(scores)
    if len(kept) > keep or len(set(kept.tolist())) != len(kept):
        return f"{len(kept)} boxes are kept, expected {keep} different ones at most"
    best = scores[kept]
    if lowest is not None and not (best > lowest - slack).all():
        return f"a box of score {best.min():.6g} is kept, expected more than {lowest:.6g}"
    if not (np.diff(best) <= slack).all():
        return "boxes are not in the order of their scores"
    low, high = _overlaps(boxes[kept], boxes, by_centre)
    if (np.triu(low[:, kept], 1) > overlap).any():
        return f"two boxes are kept that overlap by more than {overlap:.6g}"
    left = np.ones(len(scores), bool) if lowest is None else scores > lowest + slack
    left[kept] = False
    if len(kept) == keep:
        left &= scores > (best[-1] if keep else np.inf) + slack
    suppressed = ((high > overlap) & (best[:, None] >= scores - slack)).any(0)
    left &= ~suppressed & ~np.isnan(scores)
    return f"box {int(left.argmax())} of score {scores[left.argmax()]:.6g} is left out" if left.any() else ""


def _overlaps(some: np.ndarray, boxes: np.ndarray, by_centre: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds of the intersection over union of boxes [m, 4] and boxes [n, 4], as [m, n]."""
    slack = CLOSE * _largest(boxes)
    one, other = (_corners(b.astype(np.float64), by_centre) for b in (some[:, None], boxes[None]))
    sides = np.minimum(one[1], other[1]) - np.maximum(one[0], other[0])
    bounds = []
    for sign in (-1, 1):
        common = np.maximum(sides + 2 * sign * slack, 0).prod(-1)
        areas = [np.maximum(high - low - 2 * sign * slack, 0).prod(-1) for low, high in (one, other)]
        union = np.maximum(areas[0] + areas[1] - common, common)
        bounds.append(np.divide(common, union, out=np.zeros_like(common), where=union > 0))
    return bounds[0], bounds[1]


def _corners(boxes: np.ndarray, by_centre: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper corners of boxes [..., 4], in the boxes' order of axes."""
    if by_centre:
        return boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    return np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])


def _largest(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0
