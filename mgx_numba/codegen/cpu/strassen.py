"""Register tiles of Strassen's product as intrinsics.

One variant of ``strassen_tile_<dtype>(args, begin, end, ROWS, VECTORS, LANES, TERMS)`` multiplies ROWS rows with panel
``begin`` and adds the product to, or subtracts it from, up to four blocks of results. While it multiplies it makes a
sum of TERMS matrices on the side, an operand of products to come: the units that add are idle otherwise, and the
caches answer before anybody waits. The operands are in a block of int64 words, `STRASSEN_SLOTS`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .strassen_table import LEFT_PITCH, MOST_TERMS, STRASSEN_SLOTS
from .tile import literal_shape, written_function
from .tile_writer import CACHE_LINE, ProductWriter, Values, constant

__all__ = ["strassen_tile_float32"]

_LINES = 4
"""Cache lines of the targets that are asked for in one step."""
_I64 = ir.IntType(64)
_CONSTANTS = ("ROWS", "VECTORS", "LANES", "TERMS")


class StrassenWriter(ProductWriter):
    """Writes one variant. Its loops carry the left-hand side's pointer, the panel's, and the sums."""

    SLOTS: ClassVar[tuple[str, ...]] = STRASSEN_SLOTS
    POINTERS: ClassVar[frozenset[str]] = frozenset(
        {"x", "w", "sum", "written", "read", *(f"source{t}" for t in range(MOST_TERMS))}
    )
    TABLE: ClassVar[str] = ""

    def __init__(self, function: ir.Function, dtype: str, rows: int, vectors: int, lanes: int, terms: int) -> None:
        super().__init__(function, dtype, rows, vectors, lanes, 1, False)
        self.terms = terms

    def write(self) -> None:
        self._touch(self.begin)
        zeros = [ir.Constant(self.vector, None)] * (self.rows * self.vectors)
        state = [constant(0), self.slot["x"], self.slot["w"], *zeros]
        if self.terms:
            state = self._sum_beside(state)
        state = self._ask_for_targets(state)
        state = self.loop("k", state[0], self.slot["depth"], 1, state, lambda _, inner: self._one(inner))

        def one_target(t: ir.Value, _: Values) -> Values:
            self._finish(self._target(t), self._word("mode0", t), state[3:])
            return []

        self.loop("target", constant(0), self.slot["targets"], 1, [], one_target)
        self.ir.ret_void()

    def _one(self, state: Values) -> Values:
        """One k."""
        k, x, w, *sums = state
        self._prefetch_columns(self.at(w, constant(32 * self.vectors * self.lanes)), write=False)
        right = [self.load_columns(w, j) for j in range(self.vectors)]
        for i in range(self.rows):
            left = self.splat(self.ir.load(self.at(x, constant(i * LEFT_PITCH)), align=self.align))
            for j in range(self.vectors):
                place = i * self.vectors + j
                sums[place] = self.b.muladd(left, right[j], sums[place])
        one = constant(1)
        return [self.ir.add(k, one), self.at(x, one), self.at(w, constant(self.vectors * self.lanes)), *sums]

    def _sum_beside(self, state: Values) -> Values:
        """The first k, each with one vector of the sum."""
        bits = ir.IntType(8 * self.align)
        signs = []
        for t in range(self.terms):
            sign = self.ir.shl(self.ir.trunc(self.slot[f"sign{t}"], bits), ir.Constant(bits, 8 * self.align - 1))
            signs.append(self.splat(sign))

        def one_row(_: ir.Value, outer: Values) -> Values:
            pointers, rest = outer[: self.terms + 1], outer[self.terms + 1 :]

            def one_vector(v: ir.Value, inner: Values) -> Values:
                at = self.ir.mul(v, constant(self.lanes))
                total = None
                for pointer, sign in zip(pointers[1:], signs):
                    place = self.at(pointer, at)
                    self.prefetch_line(self.at(place, self.slot["ahead"]), write=False)
                    term = self.ir.load(self._vector(place, 0), align=self.align)
                    turned = self.ir.xor(self.ir.bitcast(term, sign.type), sign)
                    term = self.ir.bitcast(turned, self.vector)
                    total = term if total is None else self.ir.fadd(total, term)
                self.ir.store(total, self._vector(self.at(pointers[0], at), 0), align=self.align)
                return self._one(inner)

            rest = self.loop("v", constant(0), self.slot["sum_vectors"], 1, rest, one_vector)
            steps = [self.slot["sum_row"], *[self.slot["source_row"]] * self.terms]
            return [*(self.at(p, step) for p, step in zip(pointers, steps)), *rest]

        pointers = [self.slot["sum"], *(self.slot[f"source{t}"] for t in range(self.terms))]
        state = self.loop("row", constant(0), self.slot["sum_rows"], 1, [*pointers, *state], one_row)
        return state[self.terms + 1 :]

    def _ask_for_targets(self, state: Values) -> Values:
        """Further k, each with some cache lines of the targets."""
        per_line = CACHE_LINE // self.align
        steps = -(-self.rows * self.vectors * self.lanes // (per_line * _LINES))

        def one_target(t: ir.Value, outer: Values) -> Values:
            left = self.ir.sub(self.slot["depth"], outer[0])
            count = self.ir.select(self.ir.icmp_signed("<", left, constant(steps)), left, constant(steps))

            def one(_: ir.Value, inner: Values) -> Values:
                target, *rest = inner
                for line in range(_LINES):
                    self.prefetch_line(self.at(target, constant(line * per_line)), write=True)
                return [self.at(target, constant(_LINES * per_line)), *self._one(rest)]

            return self.loop("ask", constant(0), count, 1, [self._target(t), *outer], one)[1:]

        return self.loop("targets", constant(0), self.slot["targets"], 1, state, one_target)

    def _word(self, first: str, index: ir.Value) -> ir.Value:
        """The word ``index`` words after that of the name ``first``."""
        return self.ir.load(self.at(self.args, self.ir.add(constant(self.SLOTS.index(first)), index)))

    def _target(self, t: ir.Value) -> ir.Value:
        return self.ir.inttoptr(self._word("target0", t), self.element.as_pointer())

    def _finish(self, target: ir.Value, mode: ir.Value, sums: Values) -> None:
        places = [self._vector(target, p) for p in range(self.rows * self.vectors)]
        with self.ir.if_else(self.ir.icmp_signed("==", mode, constant(0))) as (first, further):
            with first:
                for place, value in zip(places, sums):
                    self.ir.store(value, place, align=self.align)
            with further, self.ir.if_else(self.ir.icmp_signed("==", mode, constant(1))) as (added, taken):
                for inside, combine in ((added, self.ir.fadd), (taken, self.ir.fsub)):
                    with inside:
                        for place, value in zip(places, sums):
                            before = self.ir.load(place, align=self.align)
                            self.ir.store(combine(before, value), place, align=self.align)


@intrinsic(prefer_literal=True)
def strassen_tile_float32(typingctx, args, begin, end, rows, vectors, lanes, terms):
    literals = (rows, vectors, lanes, terms)
    shape = literal_shape(_CONSTANTS, literals)
    name = "_".join(["strassen_tile_float32", *map(str, shape)])

    def lower(context, builder, signature, values):
        function = written_function(builder.module, name, lambda f: StrassenWriter(f, "float32", *shape).write())
        builder.call(function, values[:3])
        return context.get_dummy_value()

    words: Any = types.CPointer(types.int64)
    return types.void(words, types.int64, types.int64, *literals), lower
