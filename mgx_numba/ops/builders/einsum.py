"""Sums of products over labelled axes, as matrix products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...core.types import Type
from ...errors import OperatorError
from .base import MacroBuilder, macro

if TYPE_CHECKING:
    from ...graph.instruction import Instruction

MOST_INPUTS = 26  # letters of the alphabet


@macro("einsum", inputs=(1, MOST_INPUTS), equation="")
def einsum(e: MacroBuilder, *operands: Instruction, equation: str) -> Instruction:
    """The equation (NumPy's notation, ellipsis included), operands taken pairwise from the left."""
    terms, output = _parse(equation, [x.shape.ndim for x in operands])
    values = [_without_repeats(e, list(term), x) for term, x in zip(terms, operands)]
    labels, value = values[0]
    for position, (other, y) in enumerate(values[1:], 1):
        later = set(output).union(*(term for term, _ in values[position + 1 :]))
        labels, value = _product(e, labels, value, other, y, later)
    labels, value = _sum(e, labels, value, [label for label in labels if label not in output])
    missing = [label for label in output if label not in labels]
    if missing:
        raise OperatorError(f"macro einsum: equation {equation!r}: no input has {', '.join(missing)}")
    return _permute(e, value, [labels.index(label) for label in output])


def _parse(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of the operands and of the result; an ellipsis' axes are ``...0``, ``...1`` from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")

    def fail(message: str) -> OperatorError:
        return OperatorError(f"macro einsum: equation {equation!r}: {message}")

    if len(terms) != len(ranks):
        raise fail(f"{len(terms)} terms for {len(ranks)} inputs")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks)]
    widest = max((n for n, term in zip(hidden, terms) if "..." in term), default=0)

    def labels(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        if not (before + after).isalpha() and before + after:
            raise fail(f"term {term!r} holds other characters than letters and one ellipsis")
        return [*before, *(f"...{k}" for k in reversed(range(count)) if dots), *after]

    result = []
    for term, count in zip(terms, hidden):
        if count < 0 or (count and "..." not in term):
            raise fail(f"term {term!r} does not fit the number of axes of its input")
        result.append(labels(term, count))
    if arrow:
        output = labels(right, widest)
    else:
        every = [label for term in result for label in term]
        output = [f"...{k}" for k in reversed(range(widest))]
        output += sorted(label for label in set(every) if every.count(label) == 1 and label[0] != ".")
    if len(set(output)) != len(output):
        raise fail("the result has a label twice")
    return result, output


def _without_repeats(e: MacroBuilder, labels: list[str], x: Instruction) -> tuple[list[str], Instruction]:
    """Axes of one label become one: everything off the diagonal is masked out, then summed away."""
    for label in [t for t in dict.fromkeys(labels) if labels.count(t) > 1]:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            lens = e.lens(x)
            if lens[first] != lens[second]:
                raise e.fail(f"label {label!r} stands for lengths {lens[first]} and {lens[second]}")
            mask = np.eye(lens[first]).reshape([n if k in (first, second) else 1 for k, n in enumerate(lens)])
            zero = e.literal(0, x.shape.type)
            diagonal = e.op("where", *e.same_lens(e.literal(mask, Type.bool_type), x, zero))
            total = e.op("reduce_sum", diagonal, axes=(second,))
            x = e.op("squeeze", total, axes=(second,))
            del labels[second]
    return labels, x


def _product(
    e: MacroBuilder, a_labels: list[str], a: Instruction, b_labels: list[str], b: Instruction, later: set[str]
) -> tuple[list[str], Instruction]:
    """Product of two operands; labels of both that nobody needs later are summed over."""
    lone = [label for label in a_labels if label not in b_labels and label not in later]
    a_labels, a = _sum(e, a_labels, a, lone)
    b_labels, b = _sum(e, b_labels, b, [t for t in b_labels if t not in a_labels and t not in later])
    sizes: dict[str, int] = {}
    for label, n in [*zip(a_labels, e.lens(a)), *zip(b_labels, e.lens(b))]:
        known = sizes.setdefault(label, n)
        if n != known and 1 not in (n, known):
            raise e.fail(f"label {label!r} stands for lengths {known} and {n}")
        sizes[label] = max(n, known)
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in later]
    inner = [label for label in shared if label not in later]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]

    def matrix(x: Instruction, labels: list[str], left: list[str], right: list[str]) -> Instruction:
        x = _permute(e, x, [labels.index(label) for label in (*batch, *left, *right)])
        x = e.broadcast(x, [sizes[label] for label in (*batch, *left, *right)])
        groups = (prod(sizes[label] for label in group) for group in (left, right))
        return _reshape(e, x, [*(sizes[label] for label in batch), *groups])

    product = e.op("dot", matrix(a, a_labels, rows, inner), matrix(b, b_labels, inner, columns))
    labels = [*batch, *rows, *columns]
    return labels, _reshape(e, product, [sizes[label] for label in labels] or [1])


def _sum(e: MacroBuilder, labels: list[str], x: Instruction, gone: list[str]) -> tuple[list[str], Instruction]:
    axes = tuple(k for k, label in enumerate(labels) if label in gone)
    if not axes:
        return labels, x
    total = e.op("reduce_sum", x, axes=axes)
    kept = [label for label in labels if label not in gone]
    return kept, e.op("squeeze", total, axes=axes)


def _permute(e: MacroBuilder, x: Instruction, order: list[int]) -> Instruction:
    return x if order == sorted(order) else e.op("transpose", x, permutation=tuple(order))


def _reshape(e: MacroBuilder, x: Instruction, lens: list[int]) -> Instruction:
    return x if x.shape.lens == tuple(lens) else e.op("reshape", x, dims=tuple(lens))
