"""The first few elements of a row in sorted order (``topk``).

A row is dealt to groups, more than the k wanted elements, and each group gives its best element. The k best of these
give a bound. The elements of the row that are not worse than the bound, hardly more than k, are collected; the place of
each is the number of elements that beat it. The bound is found by counting, too, or by bisection if there are many
groups of floats.

The elements of short rows are all ranked by counting, if that takes less time than to insert the best of them.

For many integers, longer rows or many ties, the best elements so far are kept sorted. Vectors without an element that
beats the worst of them cost one comparison each. Elements of other vectors that beat the worst are inserted one after
the other: the place is found, and later elements are moved on, by vectors.

Insertion takes time in proportion to k; for more than a few elements `row_sort` takes less.

Few long rows are cut into parts, and another launch takes the best of the parts' results: equal elements are in order
there.

Of strided or very short rows, for a few elements, the lanes of vectors are rows (`topk_columns_launch`): each element
is compared with the k best so far, all of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, prod

import numpy as np

from ....core.dim import (
    Dim,
    Length,
    SharedLength,
    is_symbolic,
    known_equal,
    known_in,
    known_less_equal,
    less_equal,
    permitted,
    typical,
)
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, const_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..cluster.walk import FEWEST_TINY
from ..loops import AHEAD_BYTES, is_streamed
from .row_sort import RANKED, sort_cycles
from .row_tasks import RowLoop, column_lanes, lanes_across, row_share, rows_ahead

LARGEST_K = 1024
"""Most elements that are kept sorted on the stack of a kernel. For larger k rows are sorted (`row_sort`)."""
SHORT_K = 64
"""Most elements of a row that are inserted, if its length or their number is unknown and there are no groups: more may
cost more than a sort. Zen 4, 64 rows of 1000 int64, k at run time, us by insertion and by sorting: 10 27 and 764, 64
2000 and 2900."""
SKIPPED = 4
"""Vectors that one branch skips: fewer branches, but elements are tested twice after a hit."""
# Numbers of vectors of groups; the least sufficient number is used. Few are searched faster, many give a tighter bound.
GROUP_VECTORS = (1, 4, 16)
WANTED_OF_GROUPS = 0.625
"""Largest ratio of k to the number of groups: beyond it, many of the best elements share a group, and too many pass the
bound."""
LEAST_OF_GROUP = 4
"""Least mean number of elements in a group: with fewer, dealing saves nothing. No figures kept."""
COLLECTED = 512
"""Most candidates, several times the 160 that groups of 16 lanes serve. If ties bring more, elements are inserted."""
BISECTIONS = 12
"""Bisections of the range of the groups' best: enough to separate 256 groups, unless their values are very uneven."""
COUNTED_VECTORS = 4
"""Most vectors of groups of which each is compared with all, which takes quadratic time; larger numbers are
bisected."""
DEALT = 4
"""Vectors of the row in a step of dealing, so that loads and maxima are independent."""
RANKING, INSERTING = 3.0, 90.0
"""Cycles to compare a vector of a row with one element, and to insert an element, besides the comparisons.

Zen 5: 466 rows of 16 elements, of which 5 are wanted, take 19 us by ranking, and 94 us by insertion. Zen 3: 300 of
12,800 elements take 143 us by insertion, 500 of 87,965 take 322 us."""
MOST_COMPARED = 600
"""Most comparisons of vectors by ranking a row of 32-bit elements: sorting it takes less time than more of them, for
64-bit elements twice as many.

Zen 4, ns a row by ranking and by sorting: 64 float32 498 and 872, 100 1144 and 1079, 500 22,000 and 3,600; 64 float64
784 and 1765, 100 1806 and 2194, 128 2784 and 2553."""
WANTED_OF_PART = 16
"""Least length of a part for each wanted element: results of parts are elements of the next launch."""

MOST_OF_COLUMNS = 8
"""Most elements that are kept in registers for each column."""
SHORT_ROW = 64
"""Longest rows of adjacent elements of which many are searched side by side. CPU time on Zen 3: 5000 rows of 8 float32
take 108 us (k = 1) and 234 us (k = 8) row by row, 20 and 75 us side by side; of 1031 elements row by row is quicker.
Rows that are too short for groups are searched so, too."""


def topk_share(k: Length, axis: int, x: Tensor) -> SharedLength:
    """Return the elements of a row that one task takes: fewer than the row has if few long rows are cut into parts."""
    lanes, length = host.lanes(dtype_name(x.type.compute)), x.lens[axis]
    if any(map(is_symbolic, (k, *x.lens))):
        return length
    share = row_share(prod(x.lens) // max(length, 1), length, lanes, -(-k // WANTED_OF_PART))
    return share if length - (length - 1) // share * share >= k else length


def is_sorted_faster(k: Length, axis: int, x: Tensor) -> bool:
    """Return whether sorting whole rows takes less time than `topk_launch`, or k is too large for that."""
    length, lanes = x.lens[axis], host.lanes(dtype_name(x.type.compute))
    if isinstance(k, Dim):
        if known_less_equal(k, LARGEST_K):
            return False
        grouped = int(_group_vectors(x.type.is_floating)[-1] * lanes * WANTED_OF_GROUPS)
        return known_equal(k, length) or not permitted(less_equal(k, max(grouped, SHORT_K)))
    if k > LARGEST_K:
        return True
    groups = _fitting(k, lanes, x.type.is_floating)
    if isinstance(length, Dim):
        return not groups and k > SHORT_K
    if _ranks(k, x.type.size, length, lanes, groups) or (groups and length >= LEAST_OF_GROUP * groups[0] * lanes):
        return False
    return sort_cycles(k, length) * max(1, x.type.size // 4) < _insertion_cycles(k, length, lanes)


def _fitting(k: Length, lanes: int, floats: bool) -> list[int]:
    """Return the numbers of vectors of groups that give a bound for ``k`` elements; integers are not bisected."""
    return [n for n in _group_vectors(floats) if known_less_equal(k, int(n * lanes * WANTED_OF_GROUPS))]


def _group_vectors(floats: bool) -> list[int]:
    return [n for n in GROUP_VECTORS if floats or n <= COUNTED_VECTORS]


def topk_launch(
    k: Length,
    axis: int,
    largest: bool,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    origin: str = "",
    share: int = 0,
    places: bool = False,
) -> Launch:
    """Return the launch for the ``k`` (up to `LARGEST_K`) largest or smallest elements along an axis, best first.

    The axis is shorter than 2**31. Operands are named ``x``, ``values`` and ``positions`` (int64). Of equal elements
    the one with the lower position comes first; NaN counts as larger than any number.

    Args:
        k: number of elements.
        axis: has length k in the results.
        largest: the largest elements, else the smallest.
        x: the input.
        values: the elements.
        positions: their positions.
        origin: the computation, for comments.
        share: each row is cut into parts of this many elements, with results that follow one another, row by row. They
            are packed, whatever ``values`` and ``positions`` say.
        places: an operand ``places`` (int64), packed as ``x`` is, has the positions to write for its elements; the axis
            is the last axis.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    lens = tuple(1 if a == axis else n for a, n in enumerate(x.lens))
    space = collapse(lens, [x.strides, values.strides, positions.strides], order_by=0, axes=kept)
    text = _TopkLines(x, axis, largest)
    arguments, lanes, storage = text.arguments, text.lanes, text.storage
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_values", "values", storage)
    arguments.pointer("p_positions", "positions", "int64")
    length = x.lens[axis]
    if share:
        loop = RowLoop(arguments, space.lens, space.strides, length, lanes, 4, longest=share, least=share)
    else:
        loop = RowLoop(arguments, space.lens, space.strides, length, lanes, 4, whole=True)
    arguments.integer("k", k)
    text.step = arguments.step("t0", text.stride)
    arguments.integer("value_step", 1 if share else values.strides[axis])
    arguments.integer("position_step", 1 if share else positions.strides[axis])
    fitting = _fitting(k, lanes, text.floats)
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_values = offset(p_values, {'task * k' if share else loop.offset(1)})",
        f"r_positions = offset(p_positions, {'task * k' if share else loop.offset(2)})",
    ]
    if share:
        begin = f"first * {text.step}" if text.step else "0" if known_in(text.stride, 0) else "first"
        inside += [f"r_x = offset(r_x, {begin})", "base = first", "last = last - first", "first = 0"]
        text.position = "({}) + base"
    if places:
        arguments.pointer("p_places", "places", "int64")
        inside.append("r_places = offset(p_places, row * cols)")
        text.position = "load_scalar(r_places, {})"
    if _ranks(k, x.type.size, length, lanes, fitting):
        inside += text.rank_all()
    elif isinstance(length, Dim) and not known_less_equal(k, MOST_OF_COLUMNS):
        found = text.find(k, fitting)
        inside += [f"if last <= {RANKED}:", *indent(text.rank_all()), "else:", *indent(found)]
    else:
        inside += text.find(k, fitting)
    prologue = [
        f"best = local_{text.compute}({max(LARGEST_K, COLLECTED) + lanes})",
        f"at = local_int32({max(LARGEST_K, COLLECTED) + lanes})",
        f"candidates = local_{text.compute}({lanes})",
        f"candidates_at = local_int32({lanes})",
        f"order = local_int64({COLLECTED + lanes})",
    ]
    moved = x.footprint + values.footprint + positions.footprint
    return loop.launch(loop.kernel("topk_kernel", inside, origin, prologue), [*x.lens, k], moved, prod(x.lens))


def is_by_columns(k: Length, axis: int, x: Tensor) -> bool:
    """Return whether `topk_columns_launch` takes less time than a kernel that searches row by row."""
    kept = [a for a in range(len(x.lens)) if a != axis]
    lens = tuple(1 if a == axis else n for a, n in enumerate(x.lens))
    space, lanes = collapse(lens, [x.strides], order_by=0, axes=kept), host.lanes(dtype_name(x.type.compute))
    if not isinstance(k, int) or k > MOST_OF_COLUMNS or not space.rank:
        return False
    if typical(space.lens[-1]) < lanes or typical(prod(space.lens)) < FEWEST_TINY:
        return False
    short = max(SHORT_ROW, LEAST_OF_GROUP * lanes - 1)
    return lanes_across(space, x.lens[axis], x.strides[axis], short, few=0)


def topk_columns_launch(
    k: int, axis: int, largest: bool, x: Tensor, values: Tensor, positions: Tensor, origin: str = ""
) -> Launch:
    """Return the launch of `topk_launch` with other rows in the lanes of vectors; ``k`` is part of the text."""
    kept = [a for a in range(len(x.lens)) if a != axis]
    lens = tuple(1 if a == axis else n for a, n in enumerate(x.lens))
    space = collapse(lens, [x.strides, values.strides, positions.strides], order_by=0, axes=kept)
    text = _TopkLines(x, axis, largest)
    length, cols = x.lens[axis], space.lens[-1]
    arguments, lanes, storage = text.arguments, column_lanes(text.lanes, cols), text.storage
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_values", "values", storage)
    arguments.pointer("p_positions", "positions", "int64")
    outer = [strides[:-1] for strides in space.strides]
    loop = RowLoop(arguments, space.lens[:-1], outer, cols, lanes, 2 * k * length)
    arguments.integers(length=length, step=text.stride, value_step=values.strides[axis])
    arguments.integers(position_step=positions.strides[axis], ahead=text.stride * rows_ahead(lanes * x.type.size))
    steps = [arguments.step(f"t{n}", strides[-1]) for n, strides in enumerate(space.strides)]
    inner = [strides[-1] for strides in space.strides]

    def load(left: str) -> str:
        return cast_text(load_text("q", "c", inner[0], steps[0], lanes, left), storage, text.compute)

    def insert(slots: int, free: int, position: str) -> list[str]:
        """Return lines that insert ``v`` behind all elements of the first ``slots`` that it does not beat; ``free``
        more slots (0 or 1) are empty."""
        lines = [f"take{slot} = {text.beats('v', f'best{slot}')}" for slot in range(slots)]
        for slot in reversed(range(slots + free)):
            for name, new in (("best", "v"), ("at", position)):
                own = f"where(take{slot}, {new}, {name}{slot})" if slot < slots else new
                lines.append(f"{name}{slot} = " + (f"where(take{slot - 1}, {name}{slot - 1}, {own})" if slot else own))
        return lines

    def select(left: str) -> list[str]:
        lines = ["q = r_x"]
        for j in range(k):  # there are no fewer elements
            lines += [f"v = {load(left)}", *insert(j, 1, f"const_int32({j}, {lanes})"), "q = offset(q, step)"]
        asked = range(0, lanes, host.CACHE_LINE // x.type.size) if known_in(inner[0], 1) and not left else ()
        each = [
            *(f"prefetch(q, c + ahead + {a})" for a in asked),
            f"v = {load(left)}",
            *insert(k, 0, f"splat(cast_int32(j), {lanes})"),
            "q = offset(q, step)",
        ]
        lines += [f"for j in range({k}, length):", *indent(each)]
        for j in range(k):
            value = cast_text(f"best{j}", text.compute, storage)
            lines += [
                f"to = offset(r_values, {j} * value_step)",
                store_text("to", "c", inner[1], steps[1], value, left),
                f"goal = offset(r_positions, {j} * position_step)",
                store_text("goal", "c", inner[2], steps[2], f"cast_int64(at{j})", left),
            ]
        return lines

    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_values = offset(p_values, {loop.offset(1)})",
        f"r_positions = offset(p_positions, {loop.offset(2)})",
        *vector_loop(lanes, select),
    ]
    moved = x.footprint + values.footprint + positions.footprint
    return loop.launch(loop.kernel("topk_columns_kernel", inside, origin), [*x.lens, k], moved, prod(x.lens))


def _ranks(k: Length, size: int, length: Length, lanes: int, groups: list[int]) -> bool:
    """Return whether all elements of a row are ranked: it is too short for ``groups``, and insertion and sorting take
    longer. An element has ``size`` bytes."""
    if isinstance(k, Dim) or isinstance(length, Dim) or not 0 < k <= length <= COLLECTED:
        return False
    if groups and length >= LEAST_OF_GROUP * groups[0] * lanes:
        return False
    compared = length * -(-length // lanes)
    if compared > MOST_COMPARED * max(1, size // 4):
        return False
    return RANKING * compared < _insertion_cycles(k, length, lanes)


def _insertion_cycles(k: int, length: int, lanes: int) -> float:
    """Return the expected cycles of insertion for elements in random order."""
    inserted = k * (1 + log(max(length, 1) / max(k, 1)))
    return inserted * (INSERTING + RANKING * k / lanes)


class _TopkLines:
    """Lines of the kernel, for the row ``r_x`` of ``last`` elements."""

    def __init__(self, x: Tensor, axis: int, largest: bool) -> None:
        self.storage, self.largest, self.floats = dtype_name(x.type), largest, x.type.is_floating
        self.compute = "uint8" if self.storage == "bool" else dtype_name(x.type.compute)
        self.position = "{}"
        self.lanes, self.stride, self.step = host.lanes(self.compute), x.strides[axis], ""
        self.arguments, self.size, self.asked = Arguments(), x.type.size, known_in(self.stride, 1) and is_streamed([x])
        lowest = float("nan") if self.floats and not largest else self.extreme(not largest)
        self.worst = const_text(self.compute, lowest, self.lanes)

    def extreme(self, largest: bool) -> float | int:
        """Return the largest or smallest number of the type."""
        if self.floats:
            return float("inf") if largest else float("-inf")
        limits = np.iinfo(self.compute)
        return int(limits.max if largest else limits.min)

    def beats(self, a: str, b: str) -> str:
        """Return the expression that is true where ``a`` comes before ``b`` whatever their positions are."""
        if self.largest:
            return f"arg_gt({a}, {b})"
        if not self.floats:
            return f"lt({a}, {b})"
        return f"logical_or(lt({a}, {b}), logical_and(isnan({b}), logical_not(isnan({a}))))"

    def loaded(self, place: str, left: str = "") -> str:
        return cast_text(load_text("r_x", place, self.stride, self.step, self.lanes, left), self.storage, self.compute)

    def skip(self, vectors: int, test: Callable[[str], str]) -> list[str]:
        """Return lines that skip ``vectors`` vectors at a time if the test is true of no lane."""
        found = test(self.loaded("c"))
        for j in range(1, vectors):
            found = f"logical_or({found}, {test(self.loaded(f'(c + {j * self.lanes})'))})"
        lines = [f"if reduce_or({found}):", "    break", f"c += {vectors * self.lanes}"]
        return [f"while c + {vectors * self.lanes} <= last:", *indent(lines)]

    def put(self, place: str, source: str) -> list[str]:
        """Return lines that write an element of ``best`` to a place of the result."""
        value = cast_text(f"load_scalar(best, {source})", self.compute, self.storage)
        position = self.position.format(f"cast_int64(load_scalar(at, {source}))")
        return [
            f"store_scalar(r_values, ({place}) * value_step, {value})",
            f"store_scalar(r_positions, ({place}) * position_step, {position})",
        ]

    def find(self, k: Length, fitting: Sequence[int]) -> list[str]:
        """Return lines that find the result by a bound from one of ``fitting`` numbers of vectors, or by insertion."""
        if isinstance(k, Dim):
            lines = ["done = False"]
            for vectors in _group_vectors(self.floats):
                lines.append(f"if not done and k <= {int(vectors * self.lanes * WANTED_OF_GROUPS)}:")
                lines += indent(self.collect(vectors))
            return [*lines, "if not done:", *indent(self.insert())]
        if fitting:
            return ["done = False", *self.collect(fitting[0]), "if not done:", *indent(self.insert())]
        return self.insert()

    # Selection by a bound

    def collect(self, vectors: int) -> list[str]:
        """Return lines that set ``done`` if they have found the result by a bound from ``vectors`` vectors of
        groups."""
        lanes = self.lanes
        start = const_text(self.compute, self.extreme(not self.largest), lanes)
        ahead = range(0, max(vectors, DEALT) * lanes, host.CACHE_LINE // self.size) if self.asked else ()
        asked = [f"prefetch(r_x, c + {AHEAD_BYTES // self.size + k})" for k in ahead]
        places = [f"(c + {j * lanes})" for j in range(max(vectors, DEALT))]
        deal = [f"v{j} = {self.loaded(place)}" for j, place in enumerate(places)]
        one = list(deal[:vectors])
        many = DEALT // vectors
        for half in (2, 1) if many == DEALT else ():
            deal += [f"v{j} = {self.better(f'v{j}', f'v{j + half}')}" for j in range(half)]
        keep = [f"m{j} = {self.better(f'v{j}', f'm{j}')}" for j in range(vectors)]
        rest = [
            f"while c + {vectors * lanes} <= last:",
            *indent([*(asked if vectors >= DEALT else ()), *one, *keep, f"c += {vectors * lanes}"]),
        ]
        if many == DEALT:
            rest = [
                f"while c + {DEALT * lanes} <= last:",
                *indent([*asked, *deal, *keep, f"c += {DEALT * lanes}"]),
                *rest,
            ]
        return [
            f"if last >= {LEAST_OF_GROUP * vectors * lanes}:",
            *indent(
                [
                    *(f"m{j} = {start}" for j in range(vectors)),
                    "c = 0",
                    *rest,
                    *(self._counted(vectors) if vectors <= COUNTED_VECTORS else self._bisected(vectors)),
                    *self._collect_within(),
                ],
            ),
        ]

    def better(self, a: str, b: str) -> str:
        """Return the expression of the better element in each lane, the second if one is NaN."""
        return f"where({'gt' if self.largest else 'lt'}({a}, {b}), {a}, {b})"

    def _counted(self, vectors: int) -> list[str]:
        """Return lines that set ``bound`` to the worst of the best k groups: the groups that fewer than k others
        beat."""
        lanes, best, worst = self.lanes, *(("gt", "min") if self.largest else ("lt", "max"))
        none = const_text(self.compute, self.extreme(self.largest), lanes)
        kept = [f"where(lt(above{j}, splat(cast_int32(k), {lanes})), m{j}, {none})" for j in range(vectors)]
        while len(kept) > 1:
            kept = [f"{worst}({a}, {b})" for a, b in zip(kept[::2], kept[1::2])]
        return [
            *(f"store(best, {j * lanes}, m{j})" for j in range(vectors)),
            *(f"above{j} = const_int32(0, {lanes})" for j in range(vectors)),
            f"for e in range({vectors * lanes}):",
            f"    other = load_splat(best, e, {lanes})",
            *(f"    above{j} = add(above{j}, cast_int32({best}(other, m{j})))" for j in range(vectors)),
            f"bound = splat(reduce_{worst}({kept[0]}), {lanes})",
        ]

    def _bisected(self, vectors: int) -> list[str]:
        """Return lines that set ``bound`` such that k groups, and few others, are not worse."""
        lanes, largest = self.lanes, self.largest
        least, most = ("reduce_min", "reduce_max") if largest else ("reduce_max", "reduce_min")
        total, low, high = f"const_int32(0, {lanes})", "m0", "m0"
        for j in range(vectors):
            total = f"add({total}, cast_int32({'ge' if largest else 'le'}(m{j}, middle)))"
            if j:
                low, high = (f"{'min' if f == largest else 'max'}({v}, m{j})" for f, v in ((True, low), (False, high)))
        return [
            # k groups are never worse than low.
            f"low = {least}({low})",
            f"high = {most}({high})",
            f"for part in range({BISECTIONS}):",
            f"    half = add(low, mul(sub(high, low), cast_{self.compute}(0.5)))",
            f"    middle = splat(half, {lanes})",
            f"    if reduce_add({total}) >= k:",
            "        low = half",
            "    else:",
            "        high = half",
            f"bound = splat(low, {lanes})",
        ]

    def _collect_within(self) -> list[str]:
        """Return lines that collect the elements that are not worse than ``bound`` and sort them."""
        lanes = self.lanes

        def within(v: str) -> str:
            return f"logical_not(lt({v}, bound))" if self.largest else f"le({v}, bound)"

        collecting = [
            *self.skip(SKIPPED, within),
            *self.skip(1, within),
            f"left = imin({lanes}, last - c)",
            f"v = {self.loaded('c', 'left')}",
            f"mask = logical_and(lane_mask(left, {lanes}), {within('v')})",
            f"store_where(at, count, add(iota_int32({lanes}), c), mask)",
            "count += store_where(best, count, v, mask)",
            "c += left",
        ]
        return [
            "count = 0",
            "c = 0",
            f"while c < last and count <= {COLLECTED - lanes}:",
            *indent(collecting),
            "done = c >= last and count >= k",
            "if done:",
            f"    store(best, count, {self.worst})",
            *indent(self._rank()),
        ]

    def rank_all(self) -> list[str]:
        """Return lines that rank all elements of the row."""
        lanes = self.lanes
        every = [
            f"left = imin({lanes}, last - c)",
            f"store(best, c, {self.loaded('c', 'left')})",
            f"store(at, c, add(iota_int32({lanes}), c))",
            f"c += {lanes}",
        ]
        return ["c = 0", "while c < last:", *indent(every), "count = last", *self._rank()]

    def _rank(self) -> list[str]:
        """Return lines that write the ``count`` elements in ``best`` to their places."""
        lanes = self.lanes

        def counted(ends: str, before: str) -> list[str]:
            lines = [f"other = load_splat(best, e, {lanes})", f"before = add(before, cast_int32({before}))"]
            return [f"for e in range({ends}):", *indent(lines)]

        tie = f"logical_and(gt(place, splat(cast_int32(e), {lanes})), logical_not({self.beats('a', 'other')}))"
        return [
            "p = 0",
            "while p < count:",
            *indent(
                [
                    f"a = load(best, p, {lanes})",
                    f"place = add(iota_int32({lanes}), p)",
                    f"before = const_int32(0, {lanes})",
                    *counted("p", f"logical_not({self.beats('a', 'other')})"),
                    *counted(f"p, imin(count, p + {lanes})", f"logical_or({self.beats('other', 'a')}, {tie})"),
                    *counted(f"p + {lanes}, count", self.beats("other", "a")),
                    "store(candidates_at, 0, before)",
                    f"for e in range(imin({lanes}, count - p)):",
                    "    store_scalar(order, cast_int64(load_scalar(candidates_at, e)), p + e)",
                    f"p += {lanes}",
                ],
            ),
            "for e in range(k):",
            "    p = load_scalar(order, e)",
            *indent(self.put("e", "p")),
        ]

    # Selection by insertion

    def insert(self) -> list[str]:
        """Return lines that find the result by insertion."""
        lanes = self.lanes

        def may_beat(v: str) -> str:
            """Return the expression that is true of lanes that beat the worst, and of NaN."""
            if not self.floats:
                return self.beats(v, "worst")
            return f"logical_not({'le' if self.largest else 'ge'}({v}, worst))"

        return [
            "count = 0",
            "c = 0",
            # Free places hold a value that beats nothing.
            "while c < k:",
            f"    store(best, c, {self.worst})",
            f"    c += {lanes}",
            "c = first",
            "while c < last:",
            f"    worst = load_splat(best, k - 1, {lanes})",
            "    if count == k:",
            *indent([*self.skip(SKIPPED, may_beat), *self.skip(1, may_beat)], 2),
            f"    left = imin({lanes}, last - c)",
            f"    mask = lane_mask(left, {lanes})",
            f"    v = {self.loaded('c', 'left')}",
            "    if count == k:",
            f"        mask = logical_and(mask, {may_beat('v')})",
            "    found = store_where(candidates, 0, v, mask)",
            f"    store_where(candidates_at, 0, add(iota_int32({lanes}), c), mask)",
            "    for e in range(found):",
            *indent(self._insert_one(), 2),
            "    c += left",
            "for e in range(k):",
            *indent(self.put("e", "e")),
        ]

    def _insert_one(self) -> list[str]:
        """Return lines that insert candidate ``e`` if it beats the worst."""
        lanes = self.lanes
        found = [
            f"spread = splat(a, {lanes})",
            f"before = const_int32(0, {lanes})",
            "p = 0",
            "while p < count:",
            f"    before = add(before, cast_int32(logical_not({self.beats('spread', f'load(best, p, {lanes})')})))",
            f"    p += {lanes}",
            "p = imin(count, cast_int64(reduce_add(before)))",
            "i = imin(count, k - 1)",
            f"while i - p >= {lanes}:",
            f"    i -= {lanes}",
            f"    store(best, i + 1, load(best, i, {lanes}))",
            f"    store(at, i + 1, load(at, i, {lanes}))",
            f"store_tail(best, p + 1, load_tail(best, p, i - p, 0, {lanes}), i - p)",
            f"store_tail(at, p + 1, load_tail(at, p, i - p, 0, {lanes}), i - p)",
            "store_scalar(best, p, a)",
            "store_scalar(at, p, load_scalar(candidates_at, e))",
            "count = imin(count + 1, k)",
        ]
        return [
            "a = load_scalar(candidates, e)",
            f"if count < k or {self.beats('a', 'load_scalar(best, k - 1)')}:",
            *indent(found),
        ]
