"""Sums of products over named axes, as ONNX and TensorFlow have them."""

from __future__ import annotations

import numpy as np

from ..errors import ParseError, ShapeError
from ..graph.instruction import Instruction
from .builder import GraphBuilder

__all__ = ["einsum"]


def einsum(g: GraphBuilder, equation: str, *operands: Instruction) -> Instruction:
    """The equation taken pairwise from the left, each pair as one ``dot`` over shared axes.

    Raises:
        ParseError: the equation is malformed or does not fit the operands' ranks.
        ShapeError: a label stands for different lengths.
    """
    terms, output = _equation(equation, [len(g.lens(x)) for x in operands])
    sizes: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=False):
        for label, n in zip(term, g.lens(x), strict=False):
            if sizes.setdefault(label, n) not in (n, 1) and n != 1:
                raise ShapeError(f"label {label!r} stands for lengths {sizes[label]} and {n}")
            sizes[label] = max(sizes[label], n)
    parts = [_diagonal(g, term, x) for term, x in zip(terms, operands, strict=False)]
    term, x = parts[0]
    for position, (other, y) in enumerate(parts[1:], 2):
        needed = set(output).union(*(t for t, _ in parts[position:]))
        term, x = _contract(g, (term, x), (other, y), needed, sizes)
    gone = [k for k, label in enumerate(term) if label not in output]
    x = g.reduce("reduce_sum", x, gone, keep=False)
    kept = [label for label in term if label in output]
    if sorted(kept) != sorted(output):
        raise ParseError(f"equation's result {''.join(output)!r} has labels that no input has")
    return g.transpose(x, [kept.index(label) for label in output]) if kept else x


def _equation(text: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand and of the result; an ellipsis becomes labels ``.0``, ``.1`` ... aligned to the
    right.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise ParseError(f"equation {text!r} has {len(texts)} terms for {len(ranks)} inputs")
    dots = max([n - len(t.replace("...", "")) for t, n in zip(texts, ranks, strict=False) if "..." in t], default=0)

    def labels(term: str, count: int | None) -> list[str]:
        before, ellipsis, after = term.partition("...")
        if not (before + after).isalpha() and before + after:
            raise ParseError(f"equation {text!r} holds other characters than letters, commas, dots and an arrow")
        here = dots if count is None else count - len(before + after)
        if here < 0 or (not ellipsis and here and count is not None):
            raise ParseError(f"equation {text!r}: term {term!r} does not fit an input of {count} dimensions")
        hidden = [f".{k}" for k in range(dots - here, dots)] if ellipsis else []
        return [*before, *hidden, *after]

    terms = [labels(t, n) for t, n in zip(texts, ranks, strict=False)]
    if arrow:
        output = labels(right, None)
    else:
        flat = [label for t in terms for label in t]
        single = sorted(label for label in set(flat) if flat.count(label) == 1 and not label.startswith("."))
        output = [f".{k}" for k in range(dots)] + single
    if len(set(output)) != len(output):
        raise ParseError(f"equation {text!r}: the result repeats a label")
    return terms, output


def _diagonal(g: GraphBuilder, term: list[str], x: Instruction) -> tuple[list[str], Instruction]:
    """Axes that share a label taken together, by a mask and a sum."""
    for label in [t for t in dict.fromkeys(term) if term.count(t) > 1]:
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            lens = g.lens(x)
            if lens[first] != lens[second]:
                raise ShapeError(f"label {label!r} stands for lengths {lens[first]} and {lens[second]}")
            g.limit(lens[first] ** 2, "the diagonal's mask")
            shape = [lens[k] if k in (first, second) else 1 for k in range(len(lens))]
            mask = g.literal(np.eye(lens[first], dtype=bool).reshape(shape))
            x = g.reduce("reduce_sum", g.pointwise("where", mask, x, g.like(0, x)), [second], keep=False)
            term = term[:second] + term[second + 1 :]
    return term, x


def _contract(
    g: GraphBuilder,
    left: tuple[list[str], Instruction],
    right: tuple[list[str], Instruction],
    needed: set[str],
    sizes: dict[str, int],
) -> tuple[list[str], Instruction]:
    """Two operands as one batched matrix product: shared labels that stay are batch, the others
    are summed.
    """
    (a_term, a), (b_term, b) = (
        _sum_private(g, *one, other[0], needed) for one, other in ((left, right), (right, left))
    )
    batch = [t for t in a_term if t in b_term and t in needed]
    inner = [t for t in a_term if t in b_term and t not in needed]
    rows, columns = [t for t in a_term if t not in b_term], [t for t in b_term if t not in a_term]

    def arrange(x: Instruction, term: list[str], *groups: list[str]) -> Instruction:
        order = [label for group in groups for label in group]
        x = g.transpose(x, [term.index(label) for label in order]) if order else x
        x = (
            g.broadcast(x, [sizes[t] if t in batch + inner else n for t, n in zip(order, g.lens(x), strict=False)])
            if order
            else x
        )
        return g.reshape(x, [*(sizes[t] for t in groups[0]), *(_product(sizes, group) for group in groups[1:])])

    product = g.op("dot", arrange(a, a_term, batch, rows, inner), arrange(b, b_term, batch, inner, columns))
    term = batch + rows + columns
    return term, g.reshape(product, [sizes[t] for t in term])


def _sum_private(
    g: GraphBuilder, term: list[str], x: Instruction, other: list[str], needed: set[str]
) -> tuple[list[str], Instruction]:
    gone = [k for k, t in enumerate(term) if t not in other and t not in needed]
    return [t for k, t in enumerate(term) if k not in gone], g.reduce("reduce_sum", x, gone, keep=False)


def _product(sizes: dict[str, int], labels: list[str]) -> int:
    total = 1
    for label in labels:
        total *= sizes[label]
    return total
