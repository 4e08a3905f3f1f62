"""Register tiles of Strassen's product as intrinsics.

One variant of ``strassen_tile_<dtype>(args, begin, end, ROWS, VECTORS, LANES)`` computes products ``begin`` to ``end``
of the seven of Winograd's form, each of ROWS rows with one panel. It adds the four quadrants of the result to, or
subtracts them from, up to two targets:

    P0, P0 + P1 and P0 + P1 + P2 are parked;  quadrant (1, 0) is P0 + P1 + P2 + P3, which ends the first chain
    P4 + (P0 + P1 + P2) is quadrant (1, 1);  P4 + P5 + (P0 + P1) is (0, 1);  P6 + (P0) is (0, 0)

The accumulators of a chain stay in registers. On the side, products make sums of two panels, operands of later
products: the add units are idle otherwise, and the loads have time to arrive. The more evenly this work is spread, the
less it delays. The operands are in a block of int64 words, `STRASSEN_BLOCK`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from llvmlite import ir

from ....lang.vector import Definition, literal_function
from ....toolchain.numba_core import types
from ... import host
from ...microkernels.tile import literal_shape, written_function
from ...microkernels.tile_writer import ProductWriter, Values, constant
from ...records import Record
from .tile_table import CHAIN_ENDS, LEFT_PITCH, PARKED_PRODUCTS, SIDE_STEPS, SIDE_SUM, STRASSEN_BLOCK, SUM_PLACES

_LINES = 4
"""Cache lines of the targets that are prefetched in one step."""
_AHEAD = 32
"""Prefetch distance (k) of the right-hand side."""
_I64 = ir.IntType(64)
_CONSTANTS = ("ROWS", "VECTORS", "LANES")


class StrassenWriter(ProductWriter):
    """Writes one variant. Its inner loops carry the left-hand pointer, the panel pointer, and the accumulators."""

    BLOCK: ClassVar[Record] = STRASSEN_BLOCK

    def __init__(self, function: ir.Function, dtype: str, rows: int, vectors: int, lanes: int) -> None:
        super().__init__(function, dtype, rows, vectors, lanes, 1, False)

    def write(self) -> None:
        self.loop("chain", constant(0), constant(len(CHAIN_ENDS)), 1, [], self._chain)
        self.ir.ret_void()

    def _chain(self, chain: ir.Value, _: Values) -> Values:
        """Emit the requested products of a chain, in a loop of its own so that accumulators start from constants."""
        first, end = constant(0), constant(CHAIN_ENDS[-1])
        for index, chain_end in enumerate(CHAIN_ENDS[:-1]):
            first = self.ir.select(self.ir.icmp_signed(">", chain, constant(index)), constant(chain_end), first)
        for index, chain_end in reversed(list(enumerate(CHAIN_ENDS[:-1]))):
            end = self.ir.select(self.ir.icmp_signed("<=", chain, constant(index)), constant(chain_end), end)
        first = self.ir.select(self.ir.icmp_signed(">", self.begin, first), self.begin, first)
        end = self.ir.select(self.ir.icmp_signed("<", self.end, end), self.end, end)
        zeros = [ir.Constant(self.vector, None)] * (self.rows * self.vectors)
        self.loop("product", first, end, 1, zeros, self._product)
        return []

    def _product(self, u: ir.Value, sums: Values) -> Values:
        early = self.ir.icmp_signed("<", u, constant(PARKED_PRODUCTS))
        zero = constant(0)
        own = self._word("left", u)
        state = [zero, self.at(self.slot["x"], own), self._pointer("w", u), *sums]
        state = self._sum_beside(u, self.ir.icmp_signed("<", u, self.slot["jobs"]), state)
        targets = self.ir.select(early, zero, self.slot["targets"])
        state = self._ask_for_targets(u, targets, state)
        state = self._ask_for_results(u, early, state)
        state = self._last_steps(u, state)
        sums = state[3:]
        with self.ir.if_else(early) as (parking, finishing):
            with parking:
                self._combine(self._parked(u), sums, None)
            with finishing:
                self._finish(u, targets, sums)
        return sums

    def _last_steps(self, u: ir.Value, state: Values) -> Values:
        """Emit the remaining k; the last of them prefetch the start of the next product's panel."""
        depth = self.slot["depth"]
        turn = self.ir.sub(depth, constant(_AHEAD))
        turn = self.ir.select(self.ir.icmp_signed(">", turn, state[0]), turn, state[0])
        state = self.loop("k", state[0], turn, 1, state, lambda _, inner: self._one(inner))
        last = self.ir.icmp_signed("==", u, constant(CHAIN_ENDS[-1] - 1))
        following = self._pointer("w", self.ir.select(last, constant(0), self.ir.add(u, constant(1))))
        gap = self.ir.sub(self.ir.ptrtoint(following, _I64), self.ir.ptrtoint(state[2], _I64))
        gap = self.ir.sdiv(gap, constant(self.align))
        return self.loop("last_k", turn, depth, 1, state, lambda _, inner: self._one(inner, gap))

    def _one(self, state: Values, ahead: ir.Value | None = None) -> Values:
        """Emit one k, and prefetch the right-hand side ``ahead`` elements on."""
        k, x, w, *sums = state
        near = constant(_AHEAD * self.vectors * self.lanes) if ahead is None else ahead
        self._prefetch_columns(self.at(w, near), write=False)
        right = [self.load_columns(w, j) for j in range(self.vectors)]
        for i in range(self.rows):
            left = self.splat(self.ir.load(self.at(x, constant(i * LEFT_PITCH)), align=self.align))
            for j in range(self.vectors):
                place = i * self.vectors + j
                sums[place] = self.b.muladd(left, right[j], sums[place])
        one = constant(1)
        return [self.ir.add(k, one), self.at(x, one), self.at(w, constant(self.vectors * self.lanes)), *sums]

    def _sum_beside(self, u: ir.Value, busy: ir.Value, state: Values) -> Values:
        """Emit `SIDE_STEPS` k for each vector of the sum on the side."""
        job = self.ir.mul(u, constant(SIDE_SUM.size))

        def place(name: str) -> ir.Value:
            return self.at(self.slot["side"], self.ir.add(job, constant(SIDE_SUM.number(name))))

        def word(name: str) -> ir.Value:
            return self.ir.load(place(name))

        pointer = self.element.as_pointer().as_pointer()
        places = [self.ir.load(self.ir.bitcast(place(name), pointer)) for name in SUM_PLACES]
        bits = ir.IntType(8 * self.align)
        sign = self.ir.shl(self.ir.trunc(word("sign"), bits), ir.Constant(bits, 8 * self.align - 1))
        sign = self.splat(sign)
        pitches = [word(f"{name}_pitch") for name in SUM_PLACES]
        vectors, runs = word("vectors"), self.ir.select(busy, word("runs"), constant(0))

        def one_run(_: ir.Value, outer: Values) -> Values:
            places, state = outer[:3], outer[3:]

            def one_vector(v: ir.Value, inner: Values) -> Values:
                at = self.ir.mul(v, constant(self.lanes))
                made, *terms = (self.at(start, at) for start in places)
                for term, pitch in zip(terms, pitches[1:], strict=True):
                    self.prefetch_line(self.at(term, pitch), write=False)
                one, other = (self.ir.load(self._vector(term, 0), align=self.align) for term in terms)
                turned = self.ir.bitcast(self.ir.xor(self.ir.bitcast(other, sign.type), sign), self.vector)
                self.ir.store(self.ir.fadd(one, turned), self._vector(made, 0), align=self.align)
                for _ in range(SIDE_STEPS):
                    inner = self._one(inner)
                return inner

            state = self.loop("v", constant(0), vectors, 1, state, one_vector)
            return [*(self.at(start, pitch) for start, pitch in zip(places, pitches, strict=True)), *state]

        return self.loop("run", constant(0), runs, 1, [*places, *state], one_run)[3:]

    def _ask_for_targets(self, u: ir.Value, targets: ir.Value, state: Values) -> Values:
        """Emit further k, each with prefetches of some cache lines of the targets."""
        per_line = host.CACHE_LINE // self.align
        steps = -(-self.rows * self.vectors * self.lanes // (per_line * _LINES))

        def one_target(t: ir.Value, outer: Values) -> Values:
            left = self.ir.sub(self.slot["depth"], outer[0])
            count = self.ir.select(self.ir.icmp_signed("<", left, constant(steps)), left, constant(steps))

            def one(_: ir.Value, inner: Values) -> Values:
                target, *rest = inner
                for line in range(_LINES):
                    self.prefetch_line(self.at(target, constant(line * per_line)), write=True)
                return [self.at(target, constant(_LINES * per_line)), *self._one(rest)]

            return self.loop("ask", constant(0), count, 1, [self._target(t, u), *outer], one)[1:]

        return self.loop("targets", constant(0), targets, 1, state, one_target)

    def _ask_for_results(self, u: ir.Value, early: ir.Value, state: Values) -> Values:
        """Emit further k, each with prefetches of a row of the memory that the quadrant's epilogue will use."""
        index = self.ir.select(early, constant(0), self.ir.sub(u, constant(PARKED_PRODUCTS)))
        for count, name in enumerate(("written", "read"), 1):
            wanted = self.ir.and_(self.ir.icmp_signed(">=", self.slot["touched"], constant(count)), self.ir.not_(early))
            left = self.ir.sub(self.slot["depth"], state[0])
            rows = self.ir.select(self.ir.icmp_signed("<", left, constant(self.rows)), left, constant(self.rows))
            rows = self.ir.select(wanted, rows, constant(0))

            def one_row(_: ir.Value, inner: Values, name: str = name) -> Values:
                place, *rest = inner
                self._prefetch_columns(place, write=name == "written")
                return [self.at(place, self.slot[f"{name}_row"]), *self._one(rest)]

            place = self._pointer(name, index)
            state = self.loop(name, constant(0), rows, 1, [place, *state], one_row)[1:]
        return state

    def _word(self, name: str, index: ir.Value) -> ir.Value:
        """Load word ``index`` of a field."""
        return self.ir.load(self.word_place(name, index))

    def _pointer(self, name: str, index: ir.Value) -> ir.Value:
        """Load pointer ``index`` of a field."""
        place = self.word_place(name, index)
        return self.ir.load(self.ir.bitcast(place, self.element.as_pointer().as_pointer()))

    def _target(self, t: ir.Value, u: ir.Value) -> ir.Value:
        shift = self._word("quadrant", self.ir.sub(u, constant(PARKED_PRODUCTS)))
        return self.at(self._pointer("target", t), shift)

    def _parked(self, u: ir.Value) -> ir.Value:
        return self.at(self.slot["parked"], self.ir.mul(u, constant(self.rows * self.vectors * self.lanes)))

    def _finish(self, u: ir.Value, targets: ir.Value, sums: Values) -> None:
        """Emit the addition of the parked sums, and the update of the targets."""
        plain = self.ir.icmp_signed("==", u, constant(PARKED_PRODUCTS))
        parked = self._parked(self.ir.sub(constant(CHAIN_ENDS[-1] - 1), u))

        def all_targets(parked: ir.Value | None) -> None:
            def one_target(t: ir.Value, _: Values) -> Values:
                target, mode = self._target(t, u), self._word("mode", t)
                with self.ir.if_else(self.ir.icmp_signed("==", mode, constant(0))) as (first, further):
                    with first:
                        self._combine(target, sums, parked)
                    with further, self.ir.if_else(self.ir.icmp_signed("==", mode, constant(1))) as (added, taken):
                        for inside, combine in ((added, self.ir.fadd), (taken, self.ir.fsub)):
                            with inside:
                                self._combine(target, sums, parked, combine)
                return []

            self.loop("target", constant(0), targets, 1, [], one_target)

        with self.ir.if_else(plain) as (alone, together):
            with alone:
                all_targets(None)
            with together:
                all_targets(parked)

    def _combine(
        self, target: ir.Value, sums: Values, parked: ir.Value | None, combine: Callable[..., ir.Value] | None = None
    ) -> None:
        for p, value in enumerate(sums):
            if parked is not None:
                value = self.ir.fadd(value, self.ir.load(self._vector(parked, p), align=self.align))
            place = self._vector(target, p)
            if combine is not None:
                value = combine(self.ir.load(place, align=self.align), value)
            self.ir.store(value, place, align=self.align)


@literal_function
def strassen_tile_float32(
    args: types.Type, begin: types.Type, end: types.Type, rows: types.Type, vectors: types.Type, lanes: types.Type
) -> Definition:
    literals = (rows, vectors, lanes)
    shape = literal_shape(_CONSTANTS, literals)
    name = "_".join(["strassen_tile_float32", *map(str, shape)])

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        function = written_function(builder.module, name, lambda f: StrassenWriter(f, "float32", *shape).write())
        builder.call(function, values[:3])

    words: Any = types.CPointer(types.int64)
    return types.void(words, types.int64, types.int64, *literals), emit
