"""LLVM vector IR for the products of a few columns: several rows share a vector register.

With `width` remaining columns, one vector holds the columns of ``lanes / width`` rows. Its left factors are made from
contiguous terms of these rows: one load for `STEPS` terms, then a permutation for each. Beside a whole vector, whose
left factors are in registers anyway, two of them are blended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from .register_tile import FMA_CHAINS
from .tile_writer import ProductWriter, Values, constant

STEPS = 4
"""Terms of a row that are loaded at once."""

_I32 = ir.IntType(32)


class ThinWriter(ProductWriter):
    """Adds a panel of ``width`` columns, less than a vector, whose left-hand side has contiguous terms."""

    def multiply_thin(self, w: ir.Value, sums: Values, width: int) -> Values:
        """Emit `_multiply` for accumulators in the format of `load_thin`."""
        size = len(sums)
        sets = 1
        while sets * size < FMA_CHAINS and sets < STEPS:
            sets *= 2
        zeros = [ir.Constant(self.vector, None)] * (size * (sets - 1))

        def one_tap(tap: ir.Value, state: Values) -> Values:
            rows, depth = self._rows_of_vectors(self.row_pointers(tap), width), self.terms(tap)
            whole = self.ir.and_(depth, constant(-STEPS))

            def step(count: int) -> Callable[[ir.Value, Values], Values]:
                return lambda _, inner: self._thin_step(rows, count, width, inner)

            state = self.loop("k", constant(0), whole, STEPS, [constant(0), *state], step(STEPS))
            return self.loop("last_k", whole, depth, 1, state, step(1))[1:]

        _, *state = self.loop("tap", constant(0), self.slot["taps"], 1, [w, *sums, *zeros], one_tap)
        for k in range(size, len(state)):
            state[k % size] = self.ir.fadd(state[k % size], state[k])
        return state[:size]

    def multiply_halved(self, w: ir.Value, sums: Values) -> Values:
        """Emit `_multiply` for rows of two vectors, the second at most half full: two rows share one second vector."""
        half = self.lanes // 2
        lower = range(half)
        seconds = [*sums[1::2], *sums[-1:]]
        shared = [
            self._joined([self._shuffle(one, lower), self._shuffle(two, lower)])
            for one, two in zip(seconds[: self.rows : 2], seconds[1::2])
        ]
        # Half a vector as a number that LLVM does not know: it would make a permutation of the blend.
        first_row = self._column_masks(self.ir.udiv(self.slot["acc_panel"], constant(2 * self.panel_vectors)))[0]

        def one_tap(tap: ir.Value, state: Values) -> Values:
            rows = self.row_pointers(tap)

            def step(_: ir.Value, inner: Values) -> Values:
                index, w, *sums = inner
                self._prefetch(w, index)
                wide = self.load_columns(w, 0)
                few = self._load_few(self.at(w, constant(self.lanes)), half)
                few = self._shuffle(few, [lane % half for lane in range(self.lanes)])
                lefts = [self.splat(self.ir.load(self.at(row, index), align=self.left_align)) for row in rows]
                for i, left in enumerate(lefts):
                    sums[i] = self._multiply_add(left, wide, sums[i])
                for place, i in enumerate(range(0, self.rows, 2), self.rows):
                    left = self.ir.select(first_row, lefts[i], lefts[min(i + 1, self.rows - 1)])
                    sums[place] = self._multiply_add(left, few, sums[place])
                return [self.ir.add(index, self.slot["x_step"]), self.at(w, self.slot["w_step"]), *sums]

            return self.loop("k", constant(0), self.terms(tap), 1, [constant(0), *state], step)[1:]

        _, *state = self.loop("tap", constant(0), self.slot["taps"], 1, [w, *sums[::2], *shared], one_tap)
        pairs = zip(state[: self.rows], self.thin_rows(state[self.rows :], half))
        return [value for pair in pairs for value in pair]

    def _thin_step(self, rows: Sequence[Values], count: int, width: int, state: Values) -> Values:
        """Emit ``count`` successive k, 1 or `STEPS`, each into the next set of accumulators."""
        index, w, *sums = state
        size = len(rows)
        lefts = []
        for pointers in rows:
            terms = [self._load_few(self.at(row, index), count, self.left_align) for row in pointers]
            lefts.append(self._joined(terms))
        for k in range(count):
            right = self._load_few(w, width)
            right = self._shuffle(right, [lane % width for lane in range(self.lanes)])
            for g, left in enumerate(lefts):
                factors = self._shuffle(left, [lane // width * count + k for lane in range(self.lanes)])
                place = (k * size + g) % len(sums)
                sums[place] = self._multiply_add(factors, right, sums[place])
            w = self.at(w, self.slot["w_step"])
        return [self.ir.add(index, constant(count)), w, *sums]

    def load_thin(self, acc: ir.Value, width: int) -> Values:
        """Load accumulators as `_load` does, in vectors of ``lanes / width`` rows; the last row fills the last
        vector."""

        def loaded() -> Values:
            rows = self._rows_of_vectors(self._thin_places(acc), width)
            return [self._joined([self._load_few(place, width) for place in places]) for places in rows]

        return self._sums_or_zeros(loaded)

    def store_thin(self, acc: ir.Value, sums: Values, width: int) -> None:
        for place, value in zip(self._thin_places(acc), self.thin_rows(sums, width)):
            few = self._shuffle(value, range(width))
            self.ir.store(few, self.ir.bitcast(place, few.type.as_pointer()), align=self.align)

    def thin_rows(self, sums: Values, width: int) -> Values:
        """Return for each row a vector that starts with its accumulators."""
        rows = []
        for i in range(self.rows):
            first = i * width % self.lanes
            rotated = [(first + lane) % self.lanes for lane in range(self.lanes)]
            rows.append(self._shuffle(sums[i * width // self.lanes], rotated))
        return rows

    def _thin_places(self, acc: ir.Value) -> Values:
        places = [acc]
        while len(places) < self.rows:
            places.append(self.at(places[-1], self.slot["acc_row"]))
        return places

    def _rows_of_vectors(self, rows: Values, width: int) -> list[Values]:
        """Return the groups of rows that share a vector."""
        count = self.lanes // width
        rows = [*rows, *[rows[-1]] * (-len(rows) % count)]
        return [rows[first : first + count] for first in range(0, len(rows), count)]

    def _load_few(self, pointer: ir.Value, count: int, align: int = 0) -> ir.Value:
        few = ir.VectorType(self.element, count)
        return self.ir.load(self.ir.bitcast(pointer, few.as_pointer()), align=align or self.align)

    def _joined(self, parts: Values) -> ir.Value:
        """Concatenate vectors; their number is a power of two."""
        while len(parts) > 1:
            size = parts[0].type.count
            parts = [
                self.ir.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, 2 * size), list(range(2 * size))))
                for x, y in zip(parts[::2], parts[1::2])
            ]
        return parts[0]

    def _shuffle(self, value: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Return a vector's lanes in permuted order."""
        undefined = ir.Constant(value.type, ir.Undefined)
        order = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
        return self.ir.shuffle_vector(value, undefined, order)
