"""Lengths that stand for a range: what a program with dynamic inputs is lowered for when it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, zip_longest
from math import prod

from ..core.shape import UNBOUNDED, DynamicDimension
from ..graph.program import Program

__all__ = ["Lens", "sample_lengths"]

Lens = dict[str, tuple[int, ...]]

LENGTHS = (16, 1, 64, 300, 2, 3, 4, 37, 11, 22, 5, 30, 9, 26, 6, 7, 33, 13, 128, 1024, 8, 4096, 0, 20, 512)
"""In the order of what they are likely to add: kernels differ where an axis has one element, where rows are shorter
than a vector or a tile, by the runs that a line of pixels is best cut into, and where estimates prefer another
algorithm; between those lengths are arguments."""

USUAL = (1, 16, 64)
"""Lengths of all dimensions but one: those of a single token or image, and two beyond the sizes of tiles."""
ALONE = (2, 1, 3, 64, 4, 300)
"""Lengths that one dimension has while the others have usual ones: products of up to four rows have kernels of their
own (`codegen.cpu.contraction.gemv`), and large ones other blockings."""

UNALIKE = ((37, 41, 43, 47, 53, 59), (67, 71, 73, 79, 83, 89), (17, 19, 23, 29, 31, 61), (11, 13, 7, 19, 17, 23))
"""Lengths that dimensions have in turn: no product of some is one of others, so that what passes do for these shows how
it follows from lengths (`graph.replay`). Primes beyond the sizes of vectors, smaller ones for models that take few
positions or pixels: the first `TELLING` sets that fit the model are enough."""

TELLING = 2
"""Sets of lengths by which a rewriting is traced: one to compare with, and one to trace."""

MOST_ELEMENTS = 1 << 24
"""Of an input."""


def sample_lengths(
    program: Program, refused: Sequence[Lens] = (), telling: bool = False, together: Sequence[int] = ()
) -> Iterator[Lens]:
    """Lengths of the dynamic inputs, the most telling ones first: optimal ones, some that tell dimensions apart, then
    all dimensions together and one by one in turn. Dimensions of one symbol are equal.

    Args:
        program: whose inputs they are.
        refused: gets those that do not fit the program as soon as that shows; others are tried in their place.
        telling: stop after those that tell dimensions apart.
        together: lengths that all dimensions shall have together, in the place of all others.
    """
    given = program.parameter_shapes()
    shapes = {name: s for name, s in given.items() if s.is_dynamic and s.element is None}
    keys = {name: [d.symbol or f"{name}.{k}" for k, d in enumerate(s.dims)] for name, s in shapes.items()}
    ranges: dict[str, DynamicDimension] = {}
    for name, shape in shapes.items():
        for key, d in zip(keys[name], shape.dims):
            known = ranges.get(key, d)
            ranges[key] = DynamicDimension(
                max(d.min, known.min), max(d.min, known.min, min(d.max, known.max)), d.optimals | known.optimals
            )
    seen: set[tuple[int, ...]] = set()
    open_ = {key: d for key, d in ranges.items() if not d.is_fixed}
    given_lengths = ({key: d.clamp(length) for key, d in open_.items()} for length in together)
    for lengths in given_lengths if together else _assignments(open_, refused, telling):
        if tuple(lengths.values()) in seen:
            continue
        seen.add(tuple(lengths.values()))
        lens = {n: tuple(lengths.get(key, ranges[key].min) for key in keys[n]) for n in shapes}
        if all(prod(n) <= MOST_ELEMENTS for n in lens.values()):
            yield lens


def _assignments(
    ranges: dict[str, DynamicDimension], refused: Sequence[Lens], telling: bool
) -> Iterator[dict[str, int]]:
    optimals = max((len(d.optimals) for d in ranges.values()), default=0)
    for k in range(optimals):
        yield {key: sorted(d.optimals)[k % len(d.optimals)] if d.optimals else d.clamp(16) for key, d in ranges.items()}
    for short in _short(ranges, telling):
        before = len(refused)
        for number, primes in enumerate(UNALIKE):
            if number - (len(refused) - before) >= TELLING:
                break
            lengths = {key: _within(d, n) for (key, d), n in zip(ranges.items(), cycle(primes))}
            yield {**lengths, **short}
    if telling:
        return
    together = [{key: d.clamp(length) for key, d in ranges.items()} for length in LENGTHS]
    apart = [
        {other: r.clamp(length if other == key else usual) for other, r in ranges.items()}
        for length in (ALONE if len(ranges) > 1 else ())
        for usual in USUAL
        for key in ranges
    ]
    for one, other in zip_longest(together, apart):
        yield from (lengths for lengths in (one, other) if lengths is not None)
    for edge in ("min", "max"):
        yield {key: getattr(d, edge) for key, d in ranges.items()}


def _short(ranges: dict[str, DynamicDimension], paired: bool) -> Iterator[dict[str, int]]:
    """Lengths that passes treat as no others: 1 of each dimension. Where they are ``paired``, since no other lengths
    follow that have these, also beside 1 of the first, which mostly is a number of sequences or images, such as a step
    of a single sequence; and 0 of each but that which is said to be so short and has an end, such as a cache at its
    beginning."""
    yield {}
    first = next(iter(ranges), None)
    for key, d in ranges.items():
        yield {key: d.clamp(1)}
        if paired and first is not None and key != first:
            yield {first: ranges[first].clamp(1), key: d.clamp(1)}
            if d.min == 0 and d.max < UNBOUNDED:
                yield {key: 0}


def _within(d: DynamicDimension, length: int) -> int:
    """A length of the range, another one for other lengths if there are as many."""
    return length if d.min <= length <= d.max else d.min + length % (d.max - d.min + 1)
