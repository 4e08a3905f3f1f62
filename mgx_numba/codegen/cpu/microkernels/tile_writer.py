"""LLVM vector IR of register tiles, which `mgx_numba.codegen.cpu.microkernels.tile` exports as intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from llvmlite import ir

from ...lang.builder import VectorBuilder, element_type
from ...toolchain.ir_builder import KernelBuilder
from ...toolchain.numba_core import cgutils
from .. import host
from ..host import itemsize
from ..records import Holds, Record, Word
from .multiply_add_steps import FLOATS, VECTOR_BYTES, Products, multiply_add_steps
from .register_tile import FMA_CHAINS
from .tile_table import PREFETCH_STEPS, TILE_BLOCK, TILE_TABLE_ROWS

UNROLLED, UNROLLED_ASSEMBLY = 4, 8
"""How many k of contiguous operands the loop of a tile of AVX2's vectors takes at once, as LLVM's instructions and in
assembly.

A k of 12 multiply-adds takes 28 instructions alone, 24 with four at once, 21.5 in assembly without prefetching of the
packed right-hand side, which the CPU does itself. Where another hardware thread of the core takes its turns (virtual
machines), 24 are 1.15 to 1.3 times as fast as 28, and 21.5 are 1.13 times as fast as 24 (Zen 3, 88 and 78 GFLOP/s);
alone, as fast. NEON's tiles fill the registers: several k keep some on the stack."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)
Values = list[ir.Value]


def constant(value: int) -> ir.Constant:
    """Return an int64 constant."""
    return ir.Constant(_I64, value)


class VectorWriter:
    """Writes loops over vectors of ``lanes`` elements at the position of ``builder``."""

    def __init__(self, builder: ir.IRBuilder, dtype: str, lanes: int) -> None:
        self.ir, self.b, self.lanes = builder, VectorBuilder(builder), lanes
        self.element = element_type(dtype)
        self.vector = ir.VectorType(self.element, lanes)
        self.align = itemsize(dtype)

    def call(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """Call an LLVM intrinsic by its full name."""
        signature = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.ir.call(cgutils.get_or_insert_function(self.ir.module, signature, name), arguments)

    def splat(self, value: ir.Value) -> ir.Value:
        """Return a vector with a scalar in every lane."""
        return self.b.splat(value, self.lanes)

    def at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """Return the pointer to ``pointer[index]``."""
        return self.ir.gep(pointer, [index])

    def _vector(self, pointer: ir.Value, index: int) -> ir.Value:
        """Return the pointer to the index-th vector from `pointer`."""
        return self.ir.bitcast(self.at(pointer, constant(index * self.lanes)), self.vector.as_pointer())

    def loop(
        self,
        name: str,
        start: ir.Value,
        stop: ir.Value,
        step: int,
        state: Values,
        body: Callable[[ir.Value, Values], Values],
    ) -> Values:
        """Emit ``for index in range(start, stop, step): state = body(index, state)`` and return the final state."""
        before = self.ir.block
        head, inside, after = (self.ir.append_basic_block(name + part) for part in ("", "_body", "_end"))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.phi(_I64)
        phis = [self.ir.phi(value.type) for value in state]
        self.ir.cbranch(self.ir.icmp_signed("<", index, stop), inside, after)
        self.ir.position_at_end(inside)
        new = body(index, list(phis))
        following = self.ir.add(index, constant(step))
        last = self.ir.block
        self.ir.branch(head)
        for phi, first, value in zip([index, *phis], [start, *state], [following, *new]):
            phi.add_incoming(first, before)
            phi.add_incoming(value, last)
        self.ir.position_at_end(after)
        return list(phis)


class TileWriter(VectorWriter):
    """Writes one variant of a tile into an empty function ``void(i64 *block, i64 begin, i64 end)``.

    For each panel the accumulators are loaded or cleared, `_multiply` adds the products, and the accumulators are
    stored. With ``masked`` a separate path handles the panel with missing columns and reads none of them.
    """

    BLOCK: ClassVar[Record] = TILE_BLOCK

    def __init__(
        self, function: ir.Function, dtype: str, rows: int, vectors: int, lanes: int, split: int, masked: bool
    ) -> None:
        super().__init__(KernelBuilder(function.append_basic_block("entry")), dtype, lanes)
        self.rows, self.vectors, self.split = rows, vectors, split
        self.panel_vectors, self.left_align, self.right_bytes = vectors, self.align, self.align
        self.masked = masked
        self.masks: Values = []
        self.args, self.begin, self.end = function.args
        self.slot = {word.name: self.read_word(word) for word in self.block().words if word.count == 1}

    def block(self) -> Record:
        """Return the layout of the argument block."""
        return self.BLOCK

    def read_word(self, word: Word) -> ir.Value:
        """Load a field of the argument block: an int64, or a pointer of its type."""
        place = self.word_place(word.name)
        if word.holds is not Holds.INTEGER:
            place = self.ir.bitcast(place, self.pointer_to(word).as_pointer())
        return self.ir.load(place, name=word.name)

    def word_place(self, name: str, index: ir.Value | None = None) -> ir.Value:
        """Return the address of a field in the argument block, or of its word ``index``."""
        first = constant(self.block().number(name))
        return self.at(self.args, first if index is None else self.ir.add(first, index))

    def pointer_to(self, word: Word) -> ir.Type:
        """Return the type of the pointer in a field."""
        return (_I64 if word.holds is Holds.WORDS else self.element).as_pointer()

    def write(self) -> None:
        """Emit the whole function."""

        def one_panel(panel: ir.Value, state: Values) -> Values:
            w, acc = state
            self._touch(panel)
            if self.masked:
                count = self.ir.sub(self.slot["columns"], self.ir.mul(panel, self.slot["acc_panel"]))
                whole = self.ir.icmp_signed(">=", count, constant(self.vectors * self.lanes))
                with self.ir.if_else(whole) as (all_columns, some_columns):
                    with all_columns:
                        self._store(acc, self._multiply(panel, w, self._load(acc)))
                    with some_columns:
                        self.masks = self._column_masks(count)
                        self._store(acc, self._multiply(panel, w, self._load(acc)))
                        self.masks = []
            else:
                self._store(acc, self._multiply(panel, w, self._load(acc)))
            return [self.at(w, self.slot["w_panel"]), self.at(acc, self.slot["acc_panel"])]

        w = self.at(self.slot["w"], self.ir.mul(self.begin, self.slot["w_panel"]))
        acc = self.at(self.slot["acc"], self.ir.mul(self.begin, self.slot["acc_panel"]))
        self.loop("panel", self.begin, self.end, 1, [w, acc], one_panel)
        self.ir.ret_void()

    def _touch(self, panel: ir.Value) -> None:
        """Prefetch the memory that the epilogue of this panel will use."""

    def _multiply(self, panel: ir.Value, w: ir.Value, sums: Values) -> Values:
        """Return the accumulators after all products of a panel."""
        raise NotImplementedError

    def row_pointers(self, tap: ir.Value, start: ir.Value | None = None) -> Values:
        """Return the address that each row reads for one tap, ``start`` elements on."""
        table = self.at(self.slot["offsets"], self.ir.mul(tap, constant(TILE_TABLE_ROWS)))
        x = self.slot["x"] if start is None else self.at(self.slot["x"], start)
        pointers = []
        for i in range(self.rows):
            offset = self.ir.load(self.at(table, constant(i)))
            outside = self.ir.icmp_signed("<", offset, constant(0))
            pointers.append(self.ir.select(outside, self.slot["zero"], self.at(x, offset)))
        return pointers

    def terms(self, tap: ir.Value) -> ir.Value:
        """Return the number of k of a tap."""
        return self.slot["depth"]

    def _load(self, acc: ir.Value) -> Values:
        """Return the stored accumulators if products are added to them, else zeros."""

        def loaded() -> Values:
            return [self.ir.load(place, align=self.align) for place in self._places(acc)]

        return self._sums_or_zeros(loaded)

    def _sums_or_zeros(self, load: Callable[[], Values]) -> Values:
        """Return the result of ``load`` if products are added to it, else zeros."""
        zero = ir.Constant(self.vector, None)
        entry = self.ir.block
        with self.ir.if_then(self.ir.icmp_signed("!=", self.slot["accumulate"], constant(0))):
            loaded = load()
            inside = self.ir.block
        sums = []
        for value in loaded:
            phi = self.ir.phi(self.vector)
            phi.add_incoming(zero, entry)
            phi.add_incoming(value, inside)
            sums.append(phi)
        return sums

    def _store(self, acc: ir.Value, sums: Values) -> None:
        for place, value in zip(self._places(acc), sums):
            self.ir.store(value, place, align=self.align)

    def _places(self, acc: ir.Value) -> Values:
        places = []
        for _ in range(self.rows):
            places += [self._vector(acc, j) for j in range(self.vectors)]
            acc = self.at(acc, self.slot["acc_row"])
        return places

    def _column_masks(self, count: ir.Value) -> Values:
        """Return for each vector of a row the mask of its lanes among the first ``count`` columns."""
        counts = self.splat(count)
        masks = []
        for j in range(self.vectors):
            columns = ir.Constant(counts.type, [j * self.lanes + lane for lane in range(self.lanes)])
            masks.append(self.ir.icmp_signed("<", columns, counts))
        return masks

    def load_columns(self, pointer: ir.Value, j: int) -> ir.Value:
        """Load the j-th vector from ``pointer``, without the lanes of missing columns."""
        place = self._vector(pointer, j)
        if not self.masks:
            return self.ir.load(place, align=self.align)
        arguments = [place, ir.Constant(_I32, self.align), self.masks[j], ir.Constant(self.vector, None)]
        return self.call(f"llvm.masked.load.{self.b.mangled(self.vector)}.p0", self.vector, arguments)


class ProductWriter(TileWriter):
    """Writes matrix products: every k multiplies one element of each row by one row of the panel."""

    def _multiply(self, panel: ir.Value, w: ir.Value, sums: Values) -> Values:
        size = len(sums)
        zeros = [ir.Constant(self.vector, None)] * (size * (self.split - 1))

        def one_tap(tap: ir.Value, state: Values) -> Values:
            rows, depth = self.row_pointers(tap), self.terms(tap)
            whole = self.ir.and_(depth, constant(-self.split))

            def step(count: int, packed: bool = False) -> Callable[[ir.Value, Values], Values]:
                emit = self._assembly_steps if packed and self.in_assembly else self._step
                return lambda _, inner: emit(rows, count, inner, packed)

            state = [constant(0), *state]
            if self.split == 1 and self.unrolled > 1:
                several = self.ir.select(self._packed(), self.ir.and_(depth, constant(-self.unrolled)), constant(0))
                body = step(self.unrolled, packed=True)
                state = self.loop("some_k", constant(0), several, self.unrolled, state, body)
                return self.loop("k", several, depth, 1, state, step(1))[1:]
            state = self.loop("k", constant(0), whole, self.split, state, step(self.split))
            if self.split > 1:
                state = self.loop("last_k", whole, depth, 1, state, step(1))
            return state[1:]

        state = self.loop("tap", constant(0), self.slot["taps"], 1, [w, *sums, *zeros], one_tap)
        sets = [state[1 + k * size : 1 + (k + 1) * size] for k in range(self.split)]
        while len(sets) > 1:
            half = len(sets) // 2
            sets = [[self._sum(x, y) for x, y in zip(*pair)] for pair in zip(sets[:half], sets[half:])]
        return sets[0]

    def _step(self, rows: Values, count: int, state: Values, packed: bool = False) -> Values:
        """Emit ``count`` successive k, each into the next set of accumulators.

        Args:
            packed: k are contiguous in both operands, so that their addresses are constants apart.
        """
        index, w, *sums = state
        size = self.rows * self.vectors
        x_step, w_step = self.slot["x_step"], self.slot["w_step"]
        if packed:
            x_step, w_step = constant(1), constant(self.panel_vectors * self.lanes)
        for k in range(count):
            self._prefetch(w, index)
            right = [self.load_columns(w, j) for j in range(self.vectors)]
            for i, row in enumerate(rows):
                left = self.splat(self.ir.load(self.at(row, index), align=self.left_align))
                for j in range(self.vectors):
                    place = k % self.split * size + i * self.vectors + j
                    sums[place] = self._multiply_add(left, right[j], sums[place])
            if packed:
                sums = [self._in_order(value) for value in sums]
            index = self.ir.add(index, x_step)
            w = self.at(w, w_step)
        return [index, w, *sums]

    def _assembly_steps(self, rows: Values, count: int, state: Values, packed: bool) -> Values:
        """Emit ``count`` successive k of `_step` in assembly."""
        assert self.assembly is not None and packed  # by `in_assembly`
        index, w, *sums = state
        following = self.at(w, constant(count * self.panel_vectors * self.lanes))
        sums = multiply_add_steps(self.ir, self.assembly, count, sums, rows, index, w, self._prefetched(w, index))
        return [self.ir.add(index, constant(count)), following, *sums]

    @property
    def assembly(self) -> Products | None:
        """Return the instructions of this tile's products for `multiply_add_steps`; None if it has none."""
        own = type(self)
        plain = own._multiply_add is ProductWriter._multiply_add and own.load_columns is TileWriter.load_columns
        return FLOATS[self.align] if plain else None

    @property
    def in_assembly(self) -> bool:
        """Return whether a loop over several k is in assembly."""
        able = {"avx2", "fma"} <= host.features() and host.has_assembler()
        return able and self.assembly is not None and self.panel_vectors == self.vectors

    @property
    def unrolled(self) -> int:
        """Return how many k of contiguous operands a loop takes at once: several for whole blocks with AVX2."""
        if self.lanes * self.align != VECTOR_BYTES or self.masks or self.rows * self.vectors <= FMA_CHAINS:
            return 1
        return UNROLLED_ASSEMBLY if self.in_assembly else UNROLLED

    def _packed(self) -> ir.Value:
        """Return whether successive k are contiguous in both operands."""
        steps = (("x_step", 1), ("w_step", self.panel_vectors * self.lanes))
        left, right = (self.ir.icmp_signed("==", self.slot[name], constant(step)) for name, step in steps)
        return self.ir.and_(left, right)

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        """Add the products of one word of a row, in every lane, and the columns to a vector of accumulators."""
        return self.b.muladd(left, right, sums)

    def _in_order(self, value: ir.Value) -> ir.Value:
        """Return an accumulator whose further sums LLVM does not rearrange; sums of floats it never does."""
        return value

    def _sum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Add two vectors of accumulators."""
        return self.ir.fadd(x, y)

    def _prefetch(self, w: ir.Value, index: ir.Value) -> None:
        for line, _, near in self._prefetched(w, index):
            self.prefetch_line(line, write=False, near=near)

    def _prefetched(self, w: ir.Value, index: ir.Value) -> list[tuple[ir.Value, int, int]]:
        """Return the lines to prefetch with a k: address, bytes from there to the next k's if operands are packed, and
        how near (`prefetch_line`).

        These are the right-hand side `PREFETCH_STEPS` ahead, which may be in the next panel, or other memory that the
        caller names.
        """
        ahead = self.at(w, self.ir.mul(self.slot["w_step"], constant(PREFETCH_STEPS)))
        ahead = self.at(ahead, self.slot["elsewhere"])
        step = self.panel_vectors * self.lanes * self.right_bytes
        starts = range(0, self.vectors * self.lanes, host.CACHE_LINE // self.right_bytes)
        return [(self.at(ahead, constant(start)), step, 3) for start in starts]

    def _prefetch_columns(self, pointer: ir.Value, write: bool) -> None:
        for start in range(0, self.vectors * self.lanes, host.CACHE_LINE // self.align):
            self.prefetch_line(self.at(pointer, constant(start)), write)

    def prefetch_line(self, pointer: ir.Value, write: bool, near: int = 3) -> None:
        """Prefetch one cache line, by default into the L1 cache; ``near`` is LLVM's locality argument."""
        hints = [ir.Constant(_I32, hint) for hint in (int(write), near, 1)]  # data
        line = self.ir.bitcast(pointer, self.element.as_pointer())  # all prefetches of a module have one signature
        self.call("llvm.prefetch.p0", ir.VoidType(), [line, *hints])

    def _touch(self, panel: ir.Value) -> None:
        column = self.ir.mul(panel, self.slot["acc_panel"])
        for count, name in enumerate(("written", "read"), 1):
            with self.ir.if_then(self.ir.icmp_signed(">=", self.slot["touched"], constant(count))):
                place = self.at(self.slot[name], column)
                for _ in range(self.rows):
                    self._prefetch_columns(place, write=name == "written")
                    place = self.at(place, self.slot[f"{name}_row"])


class IntegerWriter(ProductWriter):
    """Writes products of integers, which wrap around."""

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        return self.ir.add(sums, self.ir.mul(left, right))

    def _sum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ir.add(x, y)

    def _in_order(self, value: ir.Value) -> ir.Value:
        """Pass an accumulator through an empty instruction: LLVM would first add the products of several k, whose sums
        do not fit the registers."""
        opaque = ir.FunctionType(value.type, [value.type])
        return self.ir.call(ir.InlineAsm(opaque, "", "=x,0"), [value])
