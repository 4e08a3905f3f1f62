"""Register tiles with a fused epilogue: it works on the accumulators while they are in registers.

One variant of an intrinsic that `finish_intrinsic` makes computes ``tiles`` blocks of ROWS rows below each other. It
covers the panels ``begin`` to ``end`` of the right-hand side and, if ``last`` is set, one more panel with missing
columns: LAST vectors, the last of which is partial with MISSING. Each accumulator goes through the statements of the
epilogue, and only the result is stored. Accumulators whose epilogue calls long functions are parked in the accumulator
memory of panel 0 of the first block of rows. The operands are in a block of int64 words, `finish_block`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....dataclass import dataclass
from ...lang import vecmath
from ...lang.builder import VectorBuilder
from ...lang.memory import memory_element
from ...lang.vector import Definition, KernelFunction, Vec, kernel_functions, make_intrinsic, pointer_type
from ...toolchain.ir_builder import KernelBuilder
from ...toolchain.numba_core import types
from .. import host
from ..records import Record, Word
from .inline import Typed, inline
from .tile import literal_shape, written_function
from .tile_table import MOST_RUNS, RUNS, finish_block
from .tile_thin import ThinWriter
from .tile_writer import Values, constant

_FLAGS = ("ROWS", "VECTORS", "LANES", "EVEN", "LAST", "MISSING", "THIN")


@dataclass(frozen=True)
class _Finish:
    """An epilogue: dtype and access of each operand, statements, and the name and dtype of the stored value."""

    operands: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    result: str
    dtype: str

    def called(self) -> set[str]:
        """Return the names of the called intrinsics."""
        return {line.split(" = ", 1)[1].split("(")[0] for line in self.lines}


class FinishWriter(ThinWriter):
    """Writes one variant.

    The last panel has ``last`` vectors, the last of which is partial with ``missing``; if it has at most ``thin``
    columns, several rows share a vector.

    With ``even`` the rows of the left-hand side are ``x_row`` elements apart, and there is one tap. If ``even`` is
    `RUNS`, taps are ``runs``, with offsets and lengths of their own.
    """

    def __init__(self, function: ir.Function, dtype: str, shape: Sequence[int], finish: _Finish) -> None:
        rows, vectors, lanes, even, self.last, self.missing, self.thin = shape
        self.line = host.CACHE_LINE // (int(dtype.removeprefix("float")) // 8)
        self.dtype, self.even, self.finish = dtype, even, finish
        self.dtypes = {"out": finish.dtype, **{f"e{k}": own for k, (own, _) in enumerate(finish.operands)}}
        super().__init__(function, dtype, rows, vectors, lanes, split=1, masked=False)
        self.walking = [
            "out",
            *(f"e{k}" for k, (_, access) in enumerate(finish.operands) if access in ("full", "per_m")),
        ]
        long = not finish.called().isdisjoint(kernel_functions(vecmath))
        # What panel 0 of the first tile has to add to was read before anything waits there. (Memory of this function's
        # own takes a register for its frame; in tiles of 6x2 LLVM then keeps operands of the products on the stack.)
        self.parked = self.slot["acc"] if long else None

    def block(self) -> Record:
        return finish_block(len(self.finish.operands))

    def pointer_to(self, word: Word) -> ir.Type:
        if word.name in self.dtypes:
            return memory_element(self.dtypes[word.name]).as_pointer()
        return super().pointer_to(word)

    def write(self) -> None:
        places = ["x", "acc", *self.walking]

        def one_tile(tile: ir.Value, state: Values) -> Values:
            self.slot |= dict(zip(places, state))
            self._panels(tile)
            steps = [self.slot[f"{name}_row"] for name in places]
            return [self.at(p, self.ir.mul(step, constant(self.rows))) for p, step in zip(state, steps)]

        self.loop("tile", constant(0), self.slot["tiles"], 1, [self.slot[name] for name in places], one_tile)
        self.ir.ret_void()

    def _panels(self, tile: ir.Value) -> None:
        """Emit all panels of one block of rows.

        The products of the first panel prefetch left-hand rows: the next block's rows if rows are evenly spaced, else
        the memory that follows each tap's last row, where the next pixels of an image lie. In a simulation of Zen 3's
        caches, a 3x3 convolution of 64 channels by 224x224 waits for the L3 cache 17 times a block without this
        prefetch, and never with it.
        """
        skipped = self.ir.add(self.begin, constant(1))
        streams = self.ir.add(self.slot["stream"], self.ir.mul(tile, self.ir.sub(self.end, skipped)))
        next_rows = self.at(self.slot["x"], self.ir.mul(self.slot["x_row"], constant(self.rows)))

        def one_panel(panel: ir.Value, state: Values) -> Values:
            self.part = self._far_part(self.ir.add(streams, self.ir.sub(panel, skipped)), state[0])
            self.first = self.ir.icmp_signed("==", panel, self.begin)
            if self.even:
                self.part = self.ir.select(self.first, next_rows, self.part)
            self._panel(panel, *state)
            return [self.at(state[0], self.slot["w_panel"])]

        w = self.at(self.slot["w"], self.ir.mul(self.begin, self.slot["w_panel"]))
        (w,) = self.loop("panel", self.begin, self.end, 1, [w], one_panel)
        if self.last:
            with self.ir.if_then(self.ir.icmp_signed("!=", self.slot["last"], constant(0))):
                self.part, self.first = w, ir.Constant(ir.IntType(1), 0)
                self._last_panel(w)

    def _last_panel(self, w: ir.Value) -> None:
        vectors, self.vectors = self.vectors, self.last
        if self.thin == self.lanes // 2:
            column = self.ir.mul(self.end, self.slot["acc_panel"])
            self._columns(column, w, self.slot["columns"], self.thin)
        elif self.thin:
            self.vectors -= 1
            if self.vectors:
                self._panel(self.end, w)
            first, self.vectors = constant(self.vectors * self.lanes), 1
            column = self.ir.add(self.ir.mul(self.end, self.slot["acc_panel"]), first)
            self._columns(column, self.at(w, first), self.slot["columns"], self.thin)
        else:
            self._panel(self.end, w, self.slot["columns"] if self.missing else None)
        self.vectors = vectors

    def _far_part(self, stream: ir.Value, w: ir.Value) -> ir.Value:
        """Return the start of the part of the next right-hand side that is prefetched beside this panel's products.

        Successive panels prefetch successive rows of cache lines; when all are prefetched, an address that is cached
        already.
        """
        lines = constant(-(-self.vectors * self.lanes // self.line))
        panel, part = self.ir.sdiv(stream, lines), self.ir.srem(stream, lines)
        length = self.ir.mul(self.ir.mul(self.slot["taps"], self.slot["depth"]), constant(self.line))
        place = self.ir.add(self.ir.mul(panel, self.slot["w_panel"]), self.ir.mul(part, length))
        more = self.ir.icmp_signed("<", panel, self.slot["far_panels"])
        return self.ir.select(more, self.at(self.slot["far"], place), w)

    def _panel(self, panel: ir.Value, w: ir.Value, columns: ir.Value | None = None) -> None:
        """Emit the products and the epilogue of one panel; ``columns`` is its number of columns if some are missing."""
        self._columns(self.ir.mul(panel, self.slot["acc_panel"]), w, columns)

    def _columns(self, column: ir.Value, w: ir.Value, columns: ir.Value | None, thin: int = 0) -> None:
        """Emit the products and the epilogue of one panel from column ``column``."""
        steps = {
            "out": 1,
            **{f"e{k}": int(access in ("full", "per_n")) for k, (_, access) in enumerate(self.finish.operands)},
        }
        at = {name: self.at(self.slot[name], column) if step else self.slot[name] for name, step in steps.items()}
        finish = self.ir.icmp_signed("!=", self.slot["finish"], constant(0))
        with self.ir.if_then(finish):
            self._touch_rows(at)
        acc = self.at(self.slot["acc"], column)
        halved, thin = (thin, 0) if self.vectors > 1 else (0, thin)
        if halved:
            sums = self.multiply_halved(w, self._load(acc))
        elif thin:
            sums = self.multiply_thin(w, self.load_thin(acc, thin), thin)
        else:
            sums = self._multiply(column, w, self._load(acc))
        with self.ir.if_else(finish) as (finished, parked):
            with finished:
                self._finish_sums(at, self.thin_rows(sums, thin) if thin else sums, column, columns)
            with parked:
                if thin:
                    self.store_thin(acc, sums, thin)
                else:
                    self._store(acc, sums)

    def _finish_sums(self, at: dict[str, ir.Value], sums: Values, column: ir.Value, columns: ir.Value | None) -> None:
        """Emit the epilogue of one panel."""
        rest = None
        if columns is not None:
            rest = self.ir.sub(self.ir.sub(columns, column), constant((self.vectors - 1) * self.lanes))
        if self.parked is None:
            fixed = self._column_operands(at, rest)
            for i in range(self.rows):
                self._row(at, fixed, sums[i * self.vectors : (i + 1) * self.vectors], rest)
                at |= self._next_row(at)
            return
        self._store(self.parked, sums)
        self._call_rows(at, rest)

    def _call_rows(self, at: dict[str, ir.Value], rest: ir.Value | None) -> None:
        """Emit the epilogue of one panel with parked accumulators as a separate function.

        It has more constants than there are registers, and inside the loop over panels LLVM places them worse (rounding
        to float8 after silu, AVX2: 1 to 1.5% of EfficientNet-B0 and of YOLO).
        """
        steps = {f"{name}_row": self.slot[f"{name}_row"] for name in ["acc", *self.walking]}
        given = {"parked": self.parked, **at, **steps} | ({} if rest is None else {"rest": rest})
        outside = self.ir, self.b, self.slot, self.parked
        name = "_".join([self.ir.function.name, "rows", str(self.vectors), *(["missing"] if rest is not None else [])])

        def write(function: ir.Function) -> None:
            self.ir = KernelBuilder(function.append_basic_block("entry"))
            self.b = VectorBuilder(self.ir)
            inside = dict(zip(given, function.args))
            self.slot, self.parked = {name: inside[name] for name in steps}, inside["parked"]
            self._rows({name: inside[name] for name in at}, inside.get("rest"))
            self.ir.ret_void()
            self.ir, self.b, self.slot, self.parked = outside

        function = written_function(self.ir.module, name, write, [value.type for value in given.values()])
        self.ir.call(function, list(given.values()))

    def _rows(self, at: dict[str, ir.Value], rest: ir.Value | None) -> None:
        """Emit the epilogue of rows with parked accumulators."""
        fixed = self._column_operands(at, rest)

        def one_row(_: ir.Value, state: Values) -> Values:
            acc, *walking = state
            here = at | dict(zip(self.walking, walking))
            sums = [self.ir.load(self._vector(acc, j), align=self.align) for j in range(self.vectors)]
            self._row(here, fixed, sums, rest)
            return [self.at(acc, self.slot["acc_row"]), *(self._next_row(here)[name] for name in self.walking)]

        places = [self.parked, *(at[name] for name in self.walking)]
        self.loop("row", constant(0), constant(self.rows), 1, places, one_row)

    def _next_row(self, at: dict[str, ir.Value]) -> dict[str, ir.Value]:
        return {name: self.at(at[name], self.slot[f"{name}_row"]) for name in self.walking}

    def _column_operands(self, at: dict[str, ir.Value], rest: ir.Value | None) -> list[dict[str, Typed]]:
        """Load the operands that are the same in all rows, for each vector of a row."""
        fixed: list[dict[str, Typed]] = [{} for _ in range(self.vectors)]
        for k, (_, access) in enumerate(self.finish.operands):
            for j, names in enumerate(fixed):
                if access == "scalar":
                    names[f"e{k}"] = self._call(f"load_splat(p, 0, {self.lanes})", p=self._pointer(at, f"e{k}"))
                elif access == "per_n":
                    names[f"e{k}"] = self._load_columns(at, f"e{k}", j, rest)
        return fixed

    def _row(self, at: dict[str, ir.Value], fixed: list[dict[str, Typed]], sums: Values, rest: ir.Value | None) -> None:
        """Emit the epilogue and the stores of the vectors of one row."""
        every = {}
        for k, (_, access) in enumerate(self.finish.operands):
            if access == "per_m":
                every[f"e{k}"] = self._call(f"load_splat(p, 0, {self.lanes})", p=self._pointer(at, f"e{k}"))
        for j, value in enumerate(sums):
            names = every | fixed[j] | {"acc": (Vec(self.dtype, self.lanes), value)}
            for k, (_, access) in enumerate(self.finish.operands):
                if access == "full":
                    names[f"e{k}"] = self._load_columns(at, f"e{k}", j, rest)
            done = inline(self.ir, self.finish.lines, names)[self.finish.result]
            if rest is not None and j == self.vectors - 1:
                self._call("store_tail(p, 0, v, rest)", p=self._pointer(at, "out", j), v=done, rest=(types.int64, rest))
            else:
                self._call("store(p, 0, v)", p=self._pointer(at, "out", j), v=done)

    def _load_columns(self, at: dict[str, ir.Value], name: str, j: int, rest: ir.Value | None) -> Typed:
        place = self._pointer(at, name, j)
        if rest is not None and j == self.vectors - 1:
            return self._call(f"load_tail(p, 0, rest, 1, {self.lanes})", p=place, rest=(types.int64, rest))
        return self._call(f"load(p, 0, {self.lanes})", p=place)

    def _pointer(self, at: dict[str, ir.Value], name: str, j: int = 0) -> Typed:
        return pointer_type(self.dtypes[name]), self.at(at[name], constant(j * self.lanes))

    def _call(self, text: str, **names: Typed) -> Typed:
        return inline(self.ir, [f"value = {text}"], names)["value"]

    def _touch_rows(self, at: dict[str, ir.Value]) -> None:
        """Prefetch the rows of the result, and of the first operand with the same shape."""
        reads = [
            f"e{k}" for k, (own, access) in enumerate(self.finish.operands) if (own, access) == (self.dtype, "full")
        ]
        for name in ["out"] * (self.finish.dtype == self.dtype) + reads[:1]:
            place = at[name]
            for _ in range(self.rows):
                self._prefetch_columns(place, write=name == "out")
                place = self.at(place, self.slot[f"{name}_row"])

    def _prefetched(self, w: ir.Value, index: ir.Value) -> list[tuple[ir.Value, int, int]]:
        far = self.at(self.ahead, self.ir.mul(index, constant(self.line))), host.CACHE_LINE, 2
        return [far] if self.in_assembly and self.unrolled > 1 else [*super()._prefetched(w, index), far]

    def row_pointers(self, tap: ir.Value, start: ir.Value | None = None) -> Values:
        self.ahead = self.part
        if self.even != 1:
            self.ahead = self.at(self.part, self.ir.mul(tap, self.ir.mul(self.slot["depth"], constant(self.line))))
        if not self.even:
            pointers = super().row_pointers(tap, start)
            self.ahead = self.ir.select(self.first, pointers[-1], self.ahead)
            return pointers
        pointers = [self.slot["x"]]
        if self.even == RUNS:
            pointers = [self.at(self.slot["x"], self.ir.load(self.at(self.slot["runs"], tap)))]
        while len(pointers) < self.rows:
            pointers.append(self.at(pointers[-1], self.slot["x_row"]))
        return pointers

    def terms(self, tap: ir.Value) -> ir.Value:
        if self.even != RUNS:
            return super().terms(tap)
        return self.ir.load(self.at(self.slot["runs"], self.ir.add(tap, constant(MOST_RUNS))))


def finish_intrinsic(called: str, dtype: str, writer: type[FinishWriter]) -> KernelFunction:
    """Return the intrinsic ``called(args, begin, end, *shape, OPERANDS, LINES, RESULT)`` over words of ``dtype``; the
    shape is `_FLAGS`.

    ``OPERANDS`` names dtype and access of each operand (``"float32 per_n, float32 full"``), ``LINES`` has the
    statements of the epilogue, one a line, and ``RESULT`` is the dtype and name of the stored value.
    """

    def define(*operands: types.Type) -> Definition:
        literals = operands[3:]
        shape = literal_shape(_FLAGS, literals[: len(_FLAGS)])
        texts = [getattr(text, "literal_value", "") for text in literals[len(_FLAGS) :]]
        own, name = texts[2].split()
        pairs = tuple(tuple(operand.split()) for operand in texts[0].split(",") if operand)
        finish = _Finish(pairs, tuple(texts[1].splitlines()), name, own)

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            symbol = "_".join([called, *map(str, shape)])
            function = written_function(builder.module, symbol, lambda f: writer(f, dtype, shape, finish).write())
            builder.call(function, values[:3])

        return types.void(types.CPointer(types.int64), types.int64, types.int64, *literals), emit

    return make_intrinsic(called, define, 6 + len(_FLAGS), literal=True)


tile_finish_float32 = finish_intrinsic("tile_finish_float32", "float32", FinishWriter)
tile_finish_float64 = finish_intrinsic("tile_finish_float64", "float64", FinishWriter)
