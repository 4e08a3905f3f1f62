"""Sums of products over named axes, written as matrix products: Einsum of ONNX, TensorFlow and MIGraphX's builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..core.dim import known_equal
from ..errors import MgxError
from .emitter import Emitter
from .instruction import Instruction

Labelled = tuple[list[str], Instruction]  # a value, and the label of each of its axes

_MOST_LABELS = 52
"""Labels that NumPy's path finder takes: the letters of both cases."""


def einsum(
    e: Emitter, equation: str, operands: Sequence[Instruction], malformed: Callable[[str], MgxError]
) -> Instruction:
    """Contract operands pairwise, each pair as one ``dot`` over the axes that they share.

    Of three or more operands, the pair whose product shrinks the values most comes first, as `numpy.einsum_path` finds.

    Args:
        e: writes the instructions.
        equation: in NumPy's notation, ellipsis included.
        operands: one for each term of the equation.
        malformed: makes the error of an equation that is wrong in itself or does not fit the operands' ranks.

    Raises:
        ShapeError: a label stands for different lengths.
    """
    terms, output = _equation(equation, [len(e.lens(x)) for x in operands], malformed)
    values = [_without_repeats(e, term, x) for term, x in zip(terms, operands)]
    for first, second in _order(e, values, output):
        left, right = values[first], values[second]
        values = [value for k, value in enumerate(values) if k not in (first, second)]
        later = set(output).union(*(labels for labels, _ in values))
        values.append(_product(e, left, right, later))
    labels, x = _summed(e, values[0], set(output))
    return e.transpose(x, [labels.index(label) for label in output])


def _order(e: Emitter, values: Sequence[Labelled], output: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of positions to contract; each pair leaves the list of values, and its product joins the end."""
    count = len(values)
    labels = sorted({label for term, _ in values for label in term})
    if count <= 2 or len(labels) > _MOST_LABELS:
        return [(0, 1)] + [(count - k - 1, 0) for k in range(2, count)] if count > 1 else []
    arguments: list[Any] = []
    for term, x in values:
        arguments += [np.broadcast_to(np.float32(0), e.lens(x)), [labels.index(label) for label in term]]
    try:
        path, _ = np.einsum_path(*arguments, [labels.index(label) for label in output], optimize="greedy")
    except ValueError as error:  # lengths that do not fit
        raise e.fail(str(error)) from None
    pairs = []
    for group in path[1:]:
        positions = sorted(group)
        pairs.append((positions[0], positions[1]))
        size = count - len(pairs)
        for k, position in enumerate(positions[2:], 2):  # a group of more goes on with the product, which is the last
            pairs.append((size - 1, position - k))
            size -= 1
    return pairs


def _equation(
    text: str, ranks: Sequence[int], malformed: Callable[[str], MgxError]
) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand and of the result; the axes of an ellipsis are ``.0``, ``.1`` ... aligned to the right."""
    left, arrow, right = text.replace(" ", "").partition("->")
    texts = left.split(",")

    def fail(message: str) -> MgxError:
        return malformed(f"equation {text!r}: {message}")

    if len(texts) != len(ranks):
        raise fail(f"{len(texts)} terms for {len(ranks)} inputs")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(texts, ranks)]
    for term, rank, count in zip(texts, ranks, hidden):
        if count < 0 or (count and "..." not in term):
            raise fail(f"term {term!r} does not fit an input of {rank} dimensions")
    widest = max((count for term, count in zip(texts, hidden) if "..." in term), default=0)

    def labels(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        if not (before + after).isalpha() and before + after:
            raise fail(f"term {term!r} holds other characters than letters and one ellipsis")
        return [*before, *(f".{k}" for k in range(widest - count, widest) if dots), *after]

    terms = [labels(term, count) for term, count in zip(texts, hidden)]
    every = [label for term in terms for label in term]
    if arrow:
        output = labels(right, widest)
    else:
        single = sorted(label for label in set(every) if every.count(label) == 1 and label[0] != ".")
        output = [f".{k}" for k in range(widest)] + single
    if len(set(output)) != len(output):
        raise fail("the result has a label twice")
    missing = [label for label in output if label not in every]
    if missing:
        raise fail(f"no input has the result's {', '.join(missing)}")
    return terms, output


def _without_repeats(e: Emitter, labels: list[str], x: Instruction) -> Labelled:
    """Axes of one label become one: everything off the diagonal is masked out, then summed away."""
    for label in [t for t in dict.fromkeys(labels) if labels.count(t) > 1]:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            lens = e.lens(x)
            if lens[first] != lens[second]:
                raise e.fail(f"label {label!r} stands for lengths {lens[first]} and {lens[second]}")
            e.limit(lens[first] ** 2, "the diagonal's mask")
            shape = [n if k in (first, second) else 1 for k, n in enumerate(lens)]
            mask = e.literal(np.eye(lens[first], dtype=bool).reshape(shape))
            diagonal = e.op("where", *e.same_lens(mask, x, e.like(0, x)))
            x = e.reduce("reduce_sum", diagonal, [second], keep=False)
            labels = labels[:second] + labels[second + 1 :]
    return labels, x


def _product(e: Emitter, left: Labelled, right: Labelled, later: set[str]) -> Labelled:
    """Product of two operands as one batched matrix product: of the labels that both have, those that are needed
    ``later`` are batch axes, the others are summed."""
    a_labels, a = _summed(e, left, later.union(right[0]))
    b_labels, b = _summed(e, right, later.union(left[0]))
    sizes: dict[str, int] = {}
    for label, n in [*zip(a_labels, e.lens(a)), *zip(b_labels, e.lens(b))]:
        known = sizes.setdefault(label, n)
        if known_equal(n, known):
            continue
        if n != known and 1 not in (n, known):
            raise e.fail(f"label {label!r} stands for lengths {known} and {n}")
        sizes[label] = n if known == 1 else known
    batch = [label for label in a_labels if label in b_labels and label in later]
    inner = [label for label in a_labels if label in b_labels and label not in later]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]

    def matrix(x: Instruction, labels: list[str], *sides: list[str]) -> Instruction:
        order = [*batch, *sides[0], *sides[1]]
        x = e.transpose(x, [labels.index(label) for label in order])
        x = e.broadcast(x, [sizes[label] for label in order]) if order else x
        return e.reshape(x, [*(sizes[t] for t in batch), *(prod(sizes[t] for t in side) for side in sides)])

    product = e.op("dot", matrix(a, a_labels, rows, inner), matrix(b, b_labels, inner, columns))
    labels = [*batch, *rows, *columns]
    return labels, e.reshape(product, [sizes[label] for label in labels])


def _summed(e: Emitter, value: Labelled, kept: set[str]) -> Labelled:
    """Return a value summed over the axes of labels that are not in ``kept``."""
    labels, x = value
    gone = [k for k, label in enumerate(labels) if label not in kept]
    return [label for label in labels if label in kept], e.reduce("reduce_sum", x, gone, keep=False)
