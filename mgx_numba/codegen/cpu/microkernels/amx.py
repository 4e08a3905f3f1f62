"""The intrinsics of the AMX register tiles (`amx_table`), and the tile configuration of a thread.

They work like `tile_float32` over int32 words, but with matrix registers (`MATRIX_BLOCK`): every product takes one step
of k.

    tile_amx_bfloat16        two bfloat16 in a word of either operand, accumulators in float32
    tile_amx_parts           the same for numbers in two parts
    tile_amx_uint8           four unsigned bytes on the left, four signed bytes on the right, accumulators in int32
    tile_amx_int8            four signed bytes on either side
    tile_emulated_...        the same in vector code, on any CPU with AVX-512
    configure_tiles(ROWS)    configure the registers for blocks of ROWS rows, an integer literal
    release_tiles()          release the registers

A thread that has configured its tiles must release them before it runs code that does not expect them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from llvmlite import ir

from ...lang.vector import Definition, KernelFunction, Values, emits, literal_function
from ...toolchain.numba_core import types
from ..records import Record
from .amx_table import TILE_STEP
from .tile import literal_shape, tile_intrinsic
from .tile_table import MATRIX_BLOCK, TILE_TABLE_ROWS, panel_block
from .tile_writer import TileWriter, VectorWriter, constant

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_FLOAT = ir.FloatType()
_BYTES = 4
"""Bytes of a word, and of an accumulator."""
_LINE = TILE_STEP * _BYTES
"""Bytes of a row of a register."""
_PANEL_LINE = 2 * _LINE
"""Bytes of a row of a panel: two registers side by side."""
_TILE_WORDS = TILE_STEP * _PANEL_LINE // _BYTES
"""Words of a step of a panel."""
_LEFT, _RIGHT, _REGISTERS = 4, 5, 6
"""The registers of the operands, and the number of registers; registers before them are accumulators, two for each 16
rows.

Each of the eight registers in use leaves one less for renaming. Beside the core's other hyperthread every product and
every register load takes 40 cycles with all eight in use, 22 with six and 18 with five (alone 16 and 8 with any;
Emerald Rapids). There UNet takes 0.88 of the time with six instead of eight (in bfloat16 0.86), and as long with four,
which computes the accumulators of 16 columns one after the other. ResNet-50 and BERT take 1.0 alone with six, and 1.2
with four.
"""
_PALETTE, _WIDTHS, _HEIGHTS = 1, 16, 48
"""The first byte of a configuration, and the offsets of the registers' widths in bytes (two each) and heights (Intel
SDM, LDTILECFG)."""
_AHEAD = 2
"""Prefetch distance (steps) of the right-hand side: 4 to 8 KiB, as for the other tiles.

On Emerald Rapids that gains 20% where the right-hand side comes from beyond the L2 cache (1024 x 1024 x 1024 in parts),
and costs up to 5% elsewhere.
"""
_LEFT_AHEAD = 1
"""Prefetch distance (steps) of a left-hand side in parts, which comes from the L2 cache for each panel: BERT, ViT and
UNet take 0.97 to 0.98 of the time, ResNet-50 1.0. In bfloat16 the additional instructions would cost more (in a loop
5%)."""


_L1, _L2 = 3, 2
"""Locality arguments of LLVM's prefetch for the L1 and L2 cache."""


def _write_configuration(writer: VectorWriter, rows: ir.Value, room: ir.Value) -> None:
    """Emit the configuration of the registers for blocks of ``rows`` rows, 1 to 16; ``room`` is a pointer to 64
    bytes."""
    b = writer.ir
    words = b.bitcast(room, _I64.as_pointer())
    for k in range(_LINE // 8):
        b.store(ir.Constant(_I64, _PALETTE if k == 0 else 0), b.gep(words, [constant(k)]))

    def put(place: int, value: ir.Value) -> None:
        b.store(b.trunc(value, _I8), b.gep(room, [constant(place)]))

    for register in range(_REGISTERS):
        put(_WIDTHS + 2 * register, constant(_LINE))
        put(_HEIGHTS + register, constant(TILE_STEP) if register == _RIGHT else rows)
    writer.call("llvm.x86.ldtilecfg", ir.VoidType(), [room])


class MatrixWriter(TileWriter):
    """Writes one variant of an AMX tile: 16 or 32 rows by one or two vectors of 16 accumulators."""

    BLOCK: ClassVar[Record] = MATRIX_BLOCK
    product: ClassVar[str]
    parts: ClassVar[int] = 1

    def write(self) -> None:
        self.down, self.across = self.rows // TILE_STEP, self.vectors
        self._begin()
        stride = self.ir.mul(self.slot["acc_row"], constant(_BYTES))

        def one_panel(number: ir.Value, state: Values) -> Values:
            w, acc, far = state
            places = self._sums_places(acc, self.slot["acc_row"])
            registers = [self._sums(r, c) for r in range(self.down) for c in range(self.across)]
            old = self.ir.icmp_signed("!=", self.slot["accumulate"], constant(0))
            with self.ir.if_else(old) as (more, first):
                with more:
                    for register, place in zip(registers, places):
                        self._read(register, place, stride)
                with first:
                    for register in registers:
                        self._zero(register)

            def one_tap(tap: ir.Value, inner: Values) -> Values:
                offset = self.ir.load(self.at(self.slot["offsets"], self.ir.mul(tap, constant(TILE_TABLE_ROWS))))
                x = self.at(self.slot["x"], offset)

                def one_step(k: ir.Value, right: Values) -> Values:
                    self._step(self.at(x, k), right[0])
                    self._finish_rows(self.slot["pace"])
                    return [self.at(right[0], constant(self.parts * _TILE_WORDS)), self._bring_near(right[1])]

                return self.loop("k", constant(0), self.slot["depth"], TILE_STEP, inner, one_step)

            self.loop("tap", constant(0), self.slot["taps"], 1, [w, far], one_tap)
            finish = self.ir.icmp_signed(">", self.slot["finish"], constant(0))
            with self.ir.if_then(finish):
                self._finish_rows()
            goal, apart = (
                self.ir.select(finish, *pair)
                for pair in ((self._word("spare"), acc), (constant(_PANEL_LINE // _BYTES), self.slot["acc_row"]))
            )
            for register, place in zip(registers, self._sums_places(goal, apart)):
                self._put(register, place, self.ir.mul(apart, constant(_BYTES)))
            with self.ir.if_then(finish):
                self._wait(number, goal)
            panel = self.slot["w_panel"]
            return [self.at(w, panel), self.at(acc, self.slot["acc_panel"]), self.at(far, panel)]

        w, far = (self.at(self.slot[name], self.ir.mul(self.begin, self.slot["w_panel"])) for name in ("w", "far"))
        acc = self.at(self.slot["acc"], self.ir.mul(self.begin, self.slot["acc_panel"]))
        self.loop("panel", self.begin, self.end, 1, [w, acc, far], one_panel)
        self._finish()
        self.ir.ret_void()

    def _step(self, x: ir.Value, w: ir.Value) -> None:
        """Emit the products of one step of k; for parts: high by low, high by high, low by high.

        Each product shares an operand with the product before, so that one register is loaded between two products.
        """
        around = [(0, 0), (0, 1), (1, 1), (1, 0)]
        order = [(r, c) for r, c in around if r < self.down and c < self.across]
        lefts = [[self._left(x, r) for r in range(self.down)]]
        if self.parts > 1:
            lefts.append([self.at(left, self.slot["x_low"]) for left in lefts[0]])
        held: dict[int, tuple[int, int]] = {}
        asked: set[tuple[int, int, int]] = set()

        def hold(register: int, operand: tuple[int, int], place: ir.Value, apart: ir.Value, ahead: int) -> None:
            """Load an operand into ``register`` unless it is there; the first time prefetch the operand ``ahead`` words
            on.

            Args:
                apart: words between its rows.
            """
            if held.get(register) == operand:
                return
            held[register] = operand
            self._read(register, place, self.ir.mul(apart, constant(_BYTES)))
            if ahead and (register, *operand) not in asked:
                asked.add((register, *operand))
                self._ask(self.at(place, constant(ahead)), apart)

        line, row = constant(_PANEL_LINE // _BYTES), self.slot["x_row"]
        right_ahead = _AHEAD * self.parts * _TILE_WORDS
        left_ahead = _LEFT_AHEAD * TILE_STEP if self.parts > 1 else 0
        for left_part, right_part in [(0, 0)] if self.parts == 1 else [(0, 1), (0, 0), (1, 0)]:
            for r, c in order:
                right = self.at(w, constant(right_part * _TILE_WORDS + c * TILE_STEP))
                hold(_RIGHT, (right_part, c), right, line, right_ahead)
                hold(_LEFT, (left_part, r), lefts[left_part][r], row, left_ahead)
                self._multiply_tiles(r, c)
            order = [order[-1], *order[:-1]]

    def _word(self, name: str) -> ir.Value:
        """Load a field that changes during a call."""
        return self.read_word(self.block().word(name))

    def _finish_rows(self, most: ir.Value | None = None) -> None:
        """Emit the epilogue call for rows of the waiting panel: at most ``most`` rows, or all remaining rows."""
        done, waiting = self._word("done"), self._word("waiting")
        with self.ir.if_then(self.ir.icmp_signed("<", done, waiting)):
            stop = waiting
            if most is not None:
                stop = self.ir.add(done, most)
                stop = self.ir.select(self.ir.icmp_signed("<", stop, waiting), stop, waiting)
            kernel = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64]).as_pointer()
            code = self.ir.load(self.ir.bitcast(self.word_place("finisher"), kernel.as_pointer()))
            self.ir.call(code, [self.slot["panel"], done, stop])
            self.ir.store(stop, self.word_place("done"))

    def _wait(self, number: ir.Value, sums: ir.Value) -> None:
        """Make a panel's accumulators the waiting panel."""
        first = self.ir.mul(number, self.slot["acc_panel"])
        self._panel_word("sums", sums, "spare")
        self._panel_word("places", self.slot["places"])
        self._panel_word("column", self.ir.add(self.slot["column"], first))
        self._panel_word("first", first)
        self._panel_word("columns", self.ir.sub(self.slot["columns"], first))
        self.ir.store(constant(0), self.word_place("done"))
        self.ir.store(self.slot["finish"], self.word_place("waiting"))

    def _panel_word(self, name: str, value: ir.Value, old: str = "") -> None:
        """Set a word of the waiting panel, and store its old value in the field ``old`` of the argument block."""
        place = self.at(self.slot["panel"], constant(panel_block(0).number(name)))
        place = self.ir.bitcast(place, value.type.as_pointer())
        if old:
            self.ir.store(self.ir.load(place), self.ir.bitcast(self.word_place(old), value.type.as_pointer()))
        self.ir.store(value, place)

    def _left(self, x: ir.Value, r: int) -> ir.Value:
        return self._rows_on(x, self.slot["x_row"], r)

    def _sums_places(self, acc: ir.Value, apart: ir.Value) -> Values:
        """Return the addresses of the accumulator registers in memory; rows are ``apart`` words apart."""
        rows = [self._rows_on(acc, apart, r) for r in range(self.down)]
        return [self.at(row, constant(c * TILE_STEP)) for row in rows for c in range(self.across)]

    def _rows_on(self, place: ir.Value, apart: ir.Value, r: int) -> ir.Value:
        """Return the address of the first row of register ``r``."""
        return self.at(place, self.ir.mul(apart, self.second)) if r else place

    def _sums(self, r: int, c: int) -> int:
        """Return the accumulator register of 16 rows and 16 columns."""
        return 2 * r + c

    def _ask(self, place: ir.Value, apart: ir.Value) -> None:
        """Prefetch the lines of a register; they are ``apart`` words apart."""
        for _ in range(TILE_STEP):
            self._ask_line(place, _L1)
            place = self.at(place, apart)

    def _ask_line(self, line: ir.Value, near: int) -> None:
        hints = [ir.Constant(_I32, hint) for hint in (0, near, 1)]  # read, near, data
        self.call("llvm.prefetch.p0", ir.VoidType(), [line, *hints])

    def _bring_near(self, far: ir.Value) -> ir.Value:
        """Prefetch ``far_lines`` cache lines into the L2 cache, and return the address after them."""

        def one_line(_: ir.Value, state: Values) -> Values:
            self._ask_line(state[0], _L2)
            return [self.at(state[0], constant(_LINE // _BYTES))]

        return self.loop("line", constant(0), self.slot["far_lines"], 1, [far], one_line)[0]

    def _begin(self) -> None:
        """Configure the registers for the existing rows, if some are missing."""
        height = self._share_rows()
        self.part = self.ir.icmp_signed("<", self.slot["exist"], constant(self.rows))
        self.room = self.ir.bitcast(self.ir.alloca(ir.ArrayType(_I64, _LINE // 8)), _I8.as_pointer())
        with self.ir.if_then(self.part):
            _write_configuration(self, height, self.room)

    def _share_rows(self) -> ir.Value:
        """Return the rows of a register.

        Two registers share the existing rows; of an odd number the middle row is in both. One call then reads each
        panel once for all rows, where full registers would take further calls.
        """
        exist = self.slot["exist"]
        if self.down == 1:
            return exist
        height = self.ir.lshr(self.ir.add(exist, constant(1)), constant(1))
        self.second = self.ir.sub(exist, height)
        return height

    def _finish(self) -> None:
        with self.ir.if_then(self.part):
            _write_configuration(self, constant(TILE_STEP), self.room)

    def _zero(self, register: int) -> None:
        self.call("llvm.x86.tilezero", ir.VoidType(), [ir.Constant(_I8, register)])

    def _read(self, register: int, place: ir.Value, stride: ir.Value) -> None:
        self.call("llvm.x86.tileloadd64", ir.VoidType(), [*self._tile_place(register, place), stride])

    def _put(self, register: int, place: ir.Value, stride: ir.Value) -> None:
        self.call("llvm.x86.tilestored64", ir.VoidType(), [*self._tile_place(register, place), stride])

    def _tile_place(self, register: int, place: ir.Value) -> Values:
        return [ir.Constant(_I8, register), self.ir.bitcast(place, _I8.as_pointer())]

    def _multiply_tiles(self, r: int, c: int) -> None:
        registers = [ir.Constant(_I8, k) for k in (self._sums(r, c), _LEFT, _RIGHT)]
        self.call(f"llvm.x86.{self.product}", ir.VoidType(), registers)


class EmulatedWriter(MatrixWriter):
    """The same registers in memory. Denormal operands count as zero, as in AMX."""

    def _begin(self) -> None:
        register = ir.ArrayType(_I32, TILE_STEP * TILE_STEP)
        self.registers = [self.ir.bitcast(self.ir.alloca(register), _I32.as_pointer()) for _ in range(_REGISTERS)]
        self.height = self._share_rows()

    def _finish(self) -> None:
        pass

    def _height(self, register: int) -> ir.Value:
        return constant(TILE_STEP) if register == _RIGHT else self.height

    def _each_row(self, register: int, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """Emit ``body(row, place in the register)`` for the existing rows."""

        def one(row: ir.Value, state: Values) -> Values:
            body(row, self._vector(self.at(self.registers[register], self.ir.mul(row, constant(TILE_STEP))), 0))
            return state

        self.loop("row", constant(0), self._height(register), 1, [], one)

    def _outside(self, place: ir.Value, stride: ir.Value, row: ir.Value) -> ir.Value:
        start = self.ir.gep(self.ir.bitcast(place, _I8.as_pointer()), [self.ir.mul(row, stride)])
        return self.ir.bitcast(start, self.vector.as_pointer())

    def _zero(self, register: int) -> None:
        self._each_row(register, lambda _, place: self.ir.store(ir.Constant(self.vector, None), place, align=4))

    def _read(self, register: int, place: ir.Value, stride: ir.Value) -> None:
        def one(row: ir.Value, goal: ir.Value) -> None:
            self.ir.store(self.ir.load(self._outside(place, stride, row), align=1), goal, align=4)

        self._each_row(register, one)

    def _put(self, register: int, place: ir.Value, stride: ir.Value) -> None:
        def one(row: ir.Value, source: ir.Value) -> None:
            self.ir.store(self.ir.load(source, align=4), self._outside(place, stride, row), align=1)

        self._each_row(register, one)

    def _multiply_tiles(self, r: int, c: int) -> None:
        left, right = self.registers[_LEFT], self.registers[_RIGHT]

        def one(row: ir.Value, place: ir.Value) -> None:
            first = self.ir.mul(row, constant(TILE_STEP))

            def one_word(k: ir.Value, state: Values) -> Values:
                word = self.splat(self.ir.load(self.at(left, self.ir.add(first, k)), align=4))
                columns = self.at(right, self.ir.mul(k, constant(TILE_STEP)))
                return [self._add_products(word, self.ir.load(self._vector(columns, 0), align=4), state[0])]

            sums = self.ir.load(place, align=4)
            (sums,) = self.loop("word", constant(0), constant(TILE_STEP), 1, [sums], one_word)
            self.ir.store(sums, place, align=4)

        self._each_row(self._sums(r, c), one)

    def _add_products(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        """Add the products of the elements of two vectors of words to a vector of accumulators, in the bits of
        int32."""
        if self.product == "tdpbf16ps":
            floats = ir.VectorType(_FLOAT, self.lanes)
            total = self.ir.bitcast(sums, floats)
            for half in range(2):
                product = self.ir.fmul(*(self._half(x, half) for x in (left, right)))
                total = self.ir.fadd(total, product)
            return self.ir.bitcast(total, self.vector)
        beside = _BYTES - 1  # bytes of the word that the shifts drop
        for k in range(_BYTES):
            up, down = (self.b.constant(self.vector, 8 * count) for count in (beside - k, beside))
            bytes_left, bytes_right = (self.ir.shl(x, up) for x in (left, right))
            signed = self.product == "tdpbssd"
            one = self.ir.ashr(bytes_left, down) if signed else self.ir.lshr(bytes_left, down)
            sums = self.ir.add(sums, self.ir.mul(one, self.ir.ashr(bytes_right, down)))
        return sums

    def _half(self, words: ir.Value, half: int) -> ir.Value:
        """Return the bfloat16 number in each 32-bit word as float32."""
        sixteen = self.b.constant(self.vector, 16)
        upper = self.ir.lshr(words, sixteen) if half else words
        bits = self.ir.shl(upper, sixteen)
        exponent = self.ir.and_(bits, self.b.constant(self.vector, 0x7F800000))
        normal = self.ir.icmp_unsigned("!=", exponent, ir.Constant(self.vector, None))
        kept = self.ir.select(normal, bits, ir.Constant(self.vector, None))
        return self.ir.bitcast(kept, ir.VectorType(_FLOAT, self.lanes))


def _tile(how: str, name: str, product: str, parts: int = 1) -> KernelFunction:
    """Return the intrinsic ``tile_<how>_<name>``."""
    base = {"amx": MatrixWriter, "emulated": EmulatedWriter}[how]
    writer = type(f"_{how.title()}{name.title()}Writer", (base,), {"product": product, "parts": parts})
    return tile_intrinsic(f"tile_{how}_{name}", "int32", writer)


tile_amx_bfloat16, tile_emulated_bfloat16 = (_tile(how, "bfloat16", "tdpbf16ps") for how in ("amx", "emulated"))
tile_amx_parts, tile_emulated_parts = (_tile(how, "parts", "tdpbf16ps", 2) for how in ("amx", "emulated"))
tile_amx_uint8, tile_emulated_uint8 = (_tile(how, "uint8", "tdpbusd") for how in ("amx", "emulated"))
tile_amx_int8, tile_emulated_int8 = (_tile(how, "int8", "tdpbssd") for how in ("amx", "emulated"))


@literal_function
def configure_tiles(rows: types.Type) -> Definition:
    (count,) = literal_shape(("ROWS",), (rows,))

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        writer = VectorWriter(builder, "int32", TILE_STEP)
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(_I64, _LINE // 8))
        _write_configuration(writer, constant(count), builder.bitcast(room, _I8.as_pointer()))

    return types.void(rows), emit


@emits(types.void())
def release_tiles(builder: ir.IRBuilder) -> None:
    VectorWriter(builder, "int32", TILE_STEP).call("llvm.x86.tilerelease", ir.VoidType(), [])
