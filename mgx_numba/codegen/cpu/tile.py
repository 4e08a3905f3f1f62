"""Register tiles as LLVM vector IR: the inner loops of every contraction.

One variant computes, for the panels ``begin`` to ``end`` of the right-hand side,

    acc[i, panel * acc_panel + j] (+)= sum over taps t, k of  x[offsets[t, i] + k * x_step] * w[panel, t * depth + k, j]

for ROWS rows i and ``VECTORS * LANES`` columns j. A row whose offset is negative reads from ``zero`` instead, which is
how padding is done. The sums stay in registers over all taps and all k. A variant whose tile is too small to hide the
latency of the FMA units keeps SPLIT sums of each element, over interleaved k.

The operands are in a block of int64 words (`TILE_SLOTS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .builder import VectorBuilder, element_type

__all__ = ["TILE_SLOTS", "TILE_TABLE_ROWS", "put_pointer", "tile_float32", "tile_float64"]

TILE_SLOTS = (
    "x",  # pointer: left-hand side
    "offsets",  # pointer to int64 [taps][TILE_TABLE_ROWS]: element offset of each row from x, negative for zero
    "zero",  # pointer to depth zeros
    "w",  # pointer: first panel
    "acc",  # pointer: first row of accumulators
    "taps",
    "depth",  # k of one tap
    "x_step",  # elements from one k to the next on the left
    "w_step",  # elements from one k to the next on the right
    "w_panel",  # elements from one panel to the next
    "acc_row",  # elements from one row of accumulators to the next
    "acc_panel",  # elements from one panel's accumulators to the next's
    "accumulate",  # whether acc holds sums to add to
    "rows",  # selects the variant
    "vectors",  # selects the variant
    "w_columns",  # (masked variants) columns that exist from panel 0 on; none is read past them
)
TILE_TABLE_ROWS = 16
"""Row length of the offsets table, at least the rows of the tallest tile."""

PREFETCH_STEPS = 32
"""How many k ahead the right-hand side is prefetched: about 4 KiB of a packed panel."""
CACHE_LINE = 64

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = types.CPointer(types.int64)
_Body = Callable[[ir.Value, list[ir.Value]], list[ir.Value]]


def _literal(name: str, numba_type: types.Type) -> int:
    value = getattr(numba_type, "literal_value", None)
    if not isinstance(value, int) or value < 0:
        raise TypingError(f"{name} must be an integer literal, got {numba_type}")
    return value


def _tile(dtype: str) -> Any:
    """The intrinsic ``tile_<dtype>(args, begin, end, ROWS, VECTORS, LANES, SPLIT, MASKED)``."""

    def tile(typingctx, args, begin, end, rows, vectors, lanes, split, masked):
        names = ("ROWS", "VECTORS", "LANES", "SPLIT", "MASKED")
        shape = [_literal(*item) for item in zip(names, (rows, vectors, lanes, split, masked))]

        def lower(context, builder, signature, values):
            builder.call(_function(builder.module, dtype, *shape), values[:3])
            return context.get_dummy_value()

        return types.void(_WORDS, types.int64, types.int64, rows, vectors, lanes, split, masked), lower

    tile.__name__ = tile.__qualname__ = f"tile_{dtype}"
    return intrinsic(prefer_literal=True)(tile)


tile_float32 = _tile("float32")
tile_float64 = _tile("float64")


@intrinsic
def put_pointer(typingctx, block, slot, pointer):
    """Store a pointer in word ``slot`` of ``block``."""

    def lower(context, builder, signature, values):
        place = builder.gep(values[0], [values[1]])
        builder.store(values[2], builder.bitcast(place, values[2].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(_WORDS, types.int64, pointer), lower


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _function(
    module: ir.Module, dtype: str, rows: int, vectors: int, lanes: int, split: int, masked: int
) -> ir.Function:
    """The variant as a function of the module, written on first use."""
    name = f"tile_{dtype}_{rows}x{vectors}x{lanes}_{split}_{masked}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64]), name=name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _TileWriter(function, dtype, rows, vectors, lanes, split, masked).write()
    return function


class _TileWriter:
    """Writes one variant: panels, taps and k as nested loops around a straight-line update of the sums."""

    def __init__(
        self, function: ir.Function, dtype: str, rows: int, vectors: int, lanes: int, split: int, masked: int
    ) -> None:
        self.rows, self.vectors, self.lanes, self.split = rows, vectors, lanes, split
        self.masks: list[ir.Value] | None = [] if masked else None
        self.element = element_type(dtype)
        self.vector = ir.VectorType(self.element, lanes)
        self.align = int(dtype.removeprefix("float")) // 8
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))
        self.b = VectorBuilder(self.ir)
        self.args, self.begin, self.end = function.args
        self.slot = {name: self._read_slot(k, name) for k, name in enumerate(TILE_SLOTS)}

    def _read_slot(self, index: int, name: str) -> ir.Value:
        place = self.ir.gep(self.args, [_constant(index)])
        if name in ("x", "zero", "w", "acc"):
            place = self.ir.bitcast(place, self.element.as_pointer().as_pointer())
        elif name == "offsets":
            place = self.ir.bitcast(place, _I64.as_pointer().as_pointer())
        return self.ir.load(place, name=name)

    def write(self) -> None:
        def one_panel(panel: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            w, acc = state
            if self.masks is not None:
                first = self.ir.mul(panel, self.slot["acc_panel"])
                self.masks = self._column_masks(self.ir.sub(self.slot["w_columns"], first))
            self._store(acc, self._multiply(w, self._load(acc)))
            return [self._at(w, self.slot["w_panel"]), self._at(acc, self.slot["acc_panel"])]

        w = self._at(self.slot["w"], self.ir.mul(self.begin, self.slot["w_panel"]))
        acc = self._at(self.slot["acc"], self.ir.mul(self.begin, self.slot["acc_panel"]))
        self._loop("panel", self.begin, self.end, 1, [w, acc], one_panel)
        self.ir.ret_void()

    def _multiply(self, w: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Add the products of all taps with one panel to `sums`; they hold `split` sets until the last step."""
        zeros = [ir.Constant(self.vector, None)] * (len(sums) * (self.split - 1))
        depth = self.slot["depth"]
        whole = self.ir.and_(depth, _constant(-self.split))

        def one_tap(tap: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            rows = self._row_pointers(tap)

            def step(count: int) -> Any:
                def several_k(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
                    return self._step(rows, count, state)

                return several_k

            state = self._loop("k", _constant(0), whole, self.split, [_constant(0), *state], step(self.split))
            if self.split > 1:
                state = self._loop("last_k", whole, depth, 1, state, step(1))
            return state[1:]

        state = self._loop("tap", _constant(0), self.slot["taps"], 1, [w, *sums, *zeros], one_tap)
        sets = [state[1 + k * len(sums) : 1 + (k + 1) * len(sums)] for k in range(self.split)]
        while len(sets) > 1:
            half = len(sets) // 2
            sets = [[self.ir.fadd(x, y) for x, y in zip(*pair)] for pair in zip(sets[:half], sets[half:])]
        return sets[0]

    def _row_pointers(self, tap: ir.Value) -> list[ir.Value]:
        table = self._at(self.slot["offsets"], self.ir.mul(tap, _constant(TILE_TABLE_ROWS)))
        pointers = []
        for i in range(self.rows):
            offset = self.ir.load(self._at(table, _constant(i)))
            outside = self.ir.icmp_signed("<", offset, _constant(0))
            pointers.append(self.ir.select(outside, self.slot["zero"], self._at(self.slot["x"], offset)))
        return pointers

    def _step(self, rows: list[ir.Value], count: int, state: list[ir.Value]) -> list[ir.Value]:
        """`count` successive k, the k-th into the k-th set of sums."""
        index, w, *sums = state
        size = self.rows * self.vectors
        for k in range(count):
            self._prefetch(w)
            right = [self._load_right(w, j) for j in range(self.vectors)]
            for i, row in enumerate(rows):
                left = self._splat(self.ir.load(self._at(row, index), align=self.align))
                for j in range(self.vectors):
                    place = k * size + i * self.vectors + j
                    sums[place] = self.b.muladd(left, right[j], sums[place])
            index = self.ir.add(index, self.slot["x_step"])
            w = self._at(w, self.slot["w_step"])
        return [index, w, *sums]

    def _prefetch(self, w: ir.Value) -> None:
        """Ask for the right-hand side `PREFETCH_STEPS` ahead, which may be in the next panel."""
        ahead = self._at(w, self.ir.mul(self.slot["w_step"], _constant(PREFETCH_STEPS)))
        signature = ir.FunctionType(ir.VoidType(), [ahead.type, _I32, _I32, _I32])
        prefetch = cgutils.get_or_insert_function(self.ir.module, signature, "llvm.prefetch.p0")
        line = CACHE_LINE // self.align
        for start in range(0, self.vectors * self.lanes, line):
            hints = [ir.Constant(_I32, hint) for hint in (0, 3, 1)]  # read, keep in all caches, data
            self.ir.call(prefetch, [self._at(ahead, _constant(start)), *hints])

    def _column_masks(self, count: ir.Value) -> list[ir.Value]:
        """For each vector of a row, which of its lanes lie among the first `count` columns."""
        wide = ir.VectorType(_I64, self.lanes)
        undefined = ir.Constant(wide, ir.Undefined)
        single = self.ir.insert_element(undefined, count, ir.Constant(_I32, 0))
        counts = self.ir.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, self.lanes), None))
        masks = []
        for j in range(self.vectors):
            columns = ir.Constant(wide, [j * self.lanes + lane for lane in range(self.lanes)])
            masks.append(self.ir.icmp_signed("<", columns, counts))
        return masks

    def _load_right(self, w: ir.Value, j: int) -> ir.Value:
        place = self._vector(w, j)
        if self.masks is None:
            return self.ir.load(place, align=self.align)
        arguments = [place, ir.Constant(_I32, self.align), self.masks[j], ir.Constant(self.vector, None)]
        signature = ir.FunctionType(self.vector, [argument.type for argument in arguments])
        name = f"llvm.masked.load.{self.b.mangled(self.vector)}.p0"
        return self.ir.call(cgutils.get_or_insert_function(self.ir.module, signature, name), arguments)

    def _load(self, acc: ir.Value) -> list[ir.Value]:
        """What the accumulators hold if they are to be added to, else zeros."""
        zeros = [ir.Constant(self.vector, None)] * (self.rows * self.vectors)
        entry = self.ir.block
        with self.ir.if_then(self.ir.icmp_signed("!=", self.slot["accumulate"], _constant(0))):
            loaded = [self.ir.load(place, align=self.align) for place in self._places(acc)]
            inside = self.ir.block
        sums = []
        for zero, value in zip(zeros, loaded):
            phi = self.ir.phi(self.vector)
            phi.add_incoming(zero, entry)
            phi.add_incoming(value, inside)
            sums.append(phi)
        return sums

    def _store(self, acc: ir.Value, sums: list[ir.Value]) -> None:
        for place, value in zip(self._places(acc), sums):
            self.ir.store(value, place, align=self.align)

    def _places(self, acc: ir.Value) -> list[ir.Value]:
        places = []
        for _ in range(self.rows):
            places += [self._vector(acc, j) for j in range(self.vectors)]
            acc = self._at(acc, self.slot["acc_row"])
        return places

    def _splat(self, value: ir.Value) -> ir.Value:
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.ir.insert_element(undefined, value, ir.Constant(_I32, 0))
        return self.ir.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, self.lanes), None))

    def _at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.ir.gep(pointer, [index])

    def _vector(self, pointer: ir.Value, index: int) -> ir.Value:
        """Pointer to the index-th vector from `pointer`."""
        return self.ir.bitcast(self._at(pointer, _constant(index * self.lanes)), self.vector.as_pointer())

    def _loop(
        self, name: str, start: ir.Value, stop: ir.Value, step: int, state: list[ir.Value], body: _Body
    ) -> list[ir.Value]:
        """`for index in range(start, stop, step): state = body(index, state)`; the state after it."""
        before = self.ir.block
        head, inside, after = (self.ir.append_basic_block(name + part) for part in ("", "_body", "_end"))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.phi(_I64)
        phis = [self.ir.phi(value.type) for value in state]
        self.ir.cbranch(self.ir.icmp_signed("<", index, stop), inside, after)
        self.ir.position_at_end(inside)
        new = body(index, list(phis))
        following = self.ir.add(index, _constant(step))
        last = self.ir.block
        self.ir.branch(head)
        for phi, first, value in zip([index, *phis], [start, *state], [following, *new]):
            phi.add_incoming(first, before)
            phi.add_incoming(value, last)
        self.ir.position_at_end(after)
        return list(phis)
