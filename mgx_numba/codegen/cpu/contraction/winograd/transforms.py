"""Winograd's minimal filtering: the transforms of inputs, filters and outputs as intrinsics, vectorised over channels.

``F(m x m, r x r)`` computes m x m outputs of an r x r convolution from n x n inputs, n = m + r - 1, with n * n
multiplications a channel (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). The
interpolation points are 0, 1, -1 (n = 4) and 0, 1, -1, 2, -2 (n = 6), and infinity. Literals: SIDE is n, TAPS is r,
OUT is m, LANES a divisor of the number of channels.

    winograd_input(x, place, zero, target, plane, channels, SIDE, LANES)
        target[p * plane + c] = transformed inputs x[start + i * x_h + j * x_w + c], i, j < SIDE, for the points
        p < SIDE * SIDE and channels c. Inputs outside top <= i < bottom, left <= j < right are zeros, of which ``zero``
        has as many as channels. ``place`` is an `INPUT_PLACE`.
    winograd_input_parts(x, place, zero, target, plane, low, channels, SIDE, SCALED, LANES)
        the same in two parts of bfloat16, as tiles of whole matrices read them. Channels c and c + 16 of every 32 are
        a word: target[p * plane + c] has the high parts, and what is ``low`` behind it the low ones; ``channels`` are
        a multiple of LANES, 32. The high part is rounded, the low one the rest without its last bits. With SCALED
        inputs are multiplied by 2**64. ``bits`` of ``place`` is set.
    winograd_filter(w, target, plane, channels, SIDE, TAPS, LANES)
        target[p * plane + c] = transformed filters w[(v * TAPS * TAPS + i * TAPS + j) * LANES + l], i, j < TAPS,
        c = v * LANES + l
    winograd_output(source, plane, target, row, channels, SIDE, OUT, LANES)
        target[q * row + c] = outputs q < OUT * OUT from the transformed source[p * plane + c]

Filters are to be multiplied by 1/4 (n = 4) or 1/36 (n = 6) beforehand: the usual scales of the points, less what is
common to all, are in the transform of outputs, where they cost nothing.

Of 8-bit integers (n = 4) inputs and filters are transformed as int16, two channels in a word of int32: what ``target``
and ``w`` point to, and what ``plane`` and the ``channels`` of filters count. Filters are not multiplied by anything;
outputs are int32, exact if their fourfold is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from llvmlite import ir

from ....lang.builder import VectorBuilder, element_type, is_signed
from ....lang.target import itemsize
from ....lang.vector import Definition, KernelFunction, constant_int, make_intrinsic, pointer_dtype
from ....toolchain.ir_builder import KernelBuilder
from ....toolchain.numba_core import TypingError, types
from .transform_table import INPUT_PLACE, SCALE

_I64 = ir.IntType(64)
_INT = types.int64

_BYTES, _HALF, _WORD = ("uint8", "int8"), "int16", "int32"
"""For integers: dtypes of inputs, dtype in which inputs and filters are transformed, and dtype that holds two
transformed values."""
_HALVINGS = 2
"""Halvings of integer outputs in place of the filter scale 1/4."""

_AT_0 = -1.5  # what the point 0 is scaled by, less the 1/36 of the filters and the factor that they have in common

Values = list[ir.Value]


class _LineArithmetic(Protocol):
    """The arithmetic operations in which transforms are written."""

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value: ...

    def sub(self, x: ir.Value, y: ir.Value) -> ir.Value: ...

    def muladd(self, x: ir.Value, y: float, z: ir.Value) -> ir.Value: ...


class _LineIntegers:
    """`_LineArithmetic` for integers, modulo their range, with integer factors."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir, self.b = builder, VectorBuilder(builder)

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ir.add(x, y)

    def sub(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ir.sub(x, y)

    def muladd(self, x: ir.Value, y: float, z: ir.Value) -> ir.Value:
        return self.ir.add(self.ir.mul(x, self.b.constant(x.type, int(y))), z)


Line = Callable[[_LineArithmetic, Values], Values]


def _input4(b: _LineArithmetic, d: Values) -> Values:
    return [b.sub(d[0], d[2]), b.add(d[1], d[2]), b.sub(d[2], d[1]), b.sub(d[1], d[3])]


def _input6(b: _LineArithmetic, d: Values) -> Values:
    odd, even = b.muladd(d[1], -4.0, d[3]), b.muladd(d[2], -4.0, d[4])
    twice, outer = b.sub(d[3], d[1]), b.sub(d[4], d[2])
    return [
        b.muladd(b.sub(d[0], d[2]), 4.0, outer),
        b.add(even, odd),
        b.sub(even, odd),
        b.muladd(twice, 2.0, outer),
        b.muladd(twice, -2.0, outer),
        b.muladd(twice, -4.0, b.sub(d[5], d[3])),
    ]


def _at_pair(b: _LineArithmetic, g: Values, point: float) -> Values:
    """Return the values of the polynomial with coefficients ``g`` at ``point`` and at ``-point``."""
    even, odd = g[0], g[1]
    for k in range(2, len(g)):
        factor = point ** (k - k % 2)
        if k % 2:
            odd = b.muladd(g[k], factor, odd)
        else:
            even = b.muladd(g[k], factor, even)
    return [b.muladd(odd, point, even), b.muladd(odd, -point, even)]


def _filter4(b: _LineArithmetic, g: Values) -> Values:
    return [g[0], *_at_pair(b, g, 1.0), g[-1]]


def _filter6(b: _LineArithmetic, g: Values) -> Values:
    return [g[0], *_at_pair(b, g, 1.0), *_at_pair(b, g, 2.0), g[-1]]


def _output4(b: _LineArithmetic, m: Values) -> Values:
    return [b.muladd(m[0], 2.0, b.add(m[1], m[2])), b.muladd(m[3], -2.0, b.sub(m[1], m[2]))]


def _output6(count: int) -> Line:
    """Return the transform of 6 products to ``count`` outputs (2 to 4)."""

    def line(b: _LineArithmetic, m: Values) -> Values:
        near, near_difference = b.add(m[1], m[2]), b.sub(m[1], m[2])
        far, far_difference = b.add(m[3], m[4]), b.sub(m[3], m[4])
        result = [b.muladd(m[0], _AT_0, b.muladd(far, -0.25, near)), b.muladd(far_difference, -0.5, near_difference)]
        if count > 2:
            result.append(b.sub(near, far))
        if count > 3:
            result.append(b.muladd(far_difference, -2.0, near_difference))
        return [*result[:-1], b.muladd(m[5], -6.0, result[-1])]

    return line


_INPUT: dict[int, Line] = {4: _input4, 6: _input6}
_FILTER: dict[int, Line] = {4: _filter4, 6: _filter6}
_OUTPUT: dict[tuple[int, int], Line] = {(4, 2): _output4} | {(6, count): _output6(count) for count in (2, 3, 4)}


def _both_sides(b: _LineArithmetic, value: Callable[[int, int], ir.Value], side: int, line: Line) -> Iterator[Values]:
    """Yield the rows of ``T X T^t`` for the transform ``line`` of one line and a square block X of side ``side``.

    ``value`` loads an element of X by row and column just before it is needed. A row that is stored before the next row
    is requested needs no more registers.
    """
    columns = [line(b, [value(i, j) for i in range(side)]) for j in range(side)]
    for i in range(len(columns[0])):
        yield line(b, [column[i] for column in columns])


class _Channels:
    """A function of the module that runs a body for each vector of ``channels``, its last argument.

    Vectors hold ``lanes`` values of the type in which the transform is computed.
    """

    def __init__(self, module: ir.Module, name: str, arguments: list[ir.Type], dtype: str, lanes: int) -> None:
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*arguments, _I64]), name=name)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        self.function.attributes.alignstack = 64
        self.vector = ir.VectorType(element_type(dtype), lanes)
        self.align = itemsize(dtype)
        self.ir = KernelBuilder(self.function.append_basic_block("entry"))
        self.channels = self.function.args[-1]
        self.b: _LineArithmetic = _LineIntegers(self.ir) if is_signed(dtype) else VectorBuilder(self.ir)

    def at(self, pointer: ir.Value, *terms: ir.Value) -> ir.Value:
        """Return the pointer to ``pointer[sum of terms]``."""
        for term in terms:
            pointer = self.ir.gep(pointer, [term])
        return pointer

    def times(self, value: ir.Value, count: int) -> ir.Value:
        return self.ir.mul(value, ir.Constant(_I64, count))

    def halves(self, pointer: ir.Value) -> ir.Value:
        """Return a pointer to words as a pointer to the values in the words."""
        return self.ir.bitcast(pointer, self.vector.element.as_pointer())

    def load(self, pointer: ir.Value, dtype: str = "") -> ir.Value:
        """Load a vector of values, stored in memory as ``dtype``."""
        if not dtype:
            return self.ir.load(self.ir.bitcast(pointer, self.vector.as_pointer()), align=self.align)
        held = ir.VectorType(element_type(dtype), self.vector.count)
        value = self.ir.load(self.ir.bitcast(pointer, held.as_pointer()), align=itemsize(dtype))
        return (self.ir.sext if is_signed(dtype) else self.ir.zext)(value, self.vector)

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        self.ir.store(value, self.ir.bitcast(pointer, self.vector.as_pointer()), align=self.align)

    def run(self, body: Callable[[ir.Value], None]) -> None:
        """Emit ``for channel in range(0, channels, lanes): body(channel)``; there is at least one iteration."""
        entry = self.ir.block
        head, after = self.ir.append_basic_block("channels"), self.ir.append_basic_block("end")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        channel = self.ir.phi(_I64)
        body(channel)
        following = self.ir.add(channel, ir.Constant(_I64, self.vector.count))
        channel.add_incoming(ir.Constant(_I64, 0), entry)
        channel.add_incoming(following, self.ir.block)
        self.ir.cbranch(self.ir.icmp_signed("<", following, self.channels), head, after)
        self.ir.position_at_end(after)

    def transform(
        self,
        source: Callable[[int, int, ir.Value], ir.Value],
        side: int,
        line: Line,
        target: ir.Value,
        step: ir.Value,
        held: str = "",
        halvings: int = 0,
    ) -> None:
        """Emit the transform of a block to ``target``, with ``step`` elements between points.

        Args:
            source: returns the pointer to an element of a channel.
            held: dtype of the elements in memory, as for `load`.
            halvings: number of halvings of integer results.
        """

        def body(channel: ir.Value) -> None:
            def load(i: int, j: int) -> ir.Value:
                return self.load(source(i, j, channel), held)

            for i, row in enumerate(_both_sides(self.b, load, side, line)):
                first = self.at(target, self.times(step, i * len(row)), channel)
                for j, value in enumerate(row):
                    if halvings:
                        value = self.ir.ashr(value, ir.Constant(self.vector, [halvings] * self.vector.count))
                    self.store(value, self.at(first, self.times(step, j)))

        self.run(body)


def _input_function(module: ir.Module, name: str, dtype: str, lanes: int, side: int) -> ir.Function:
    pointer, whole_numbers = element_type(dtype).as_pointer(), dtype in _BYTES
    words = element_type(_WORD).as_pointer() if whole_numbers else pointer
    arguments = [pointer, _I64.as_pointer(), pointer, words, _I64]
    loop = _Channels(module, name, arguments, _HALF if whole_numbers else dtype, lanes)
    x, place, zero, target, plane, _ = loop.function.args
    held = ""
    if whole_numbers:
        held, target, plane = dtype, loop.halves(target), loop.times(plane, 2)
    _at_place(loop, x, place, zero, side, lambda at: loop.transform(at, side, _INPUT[side], target, plane, held))
    loop.ir.ret_void()
    return loop.function


def _place_word(build: ir.IRBuilder, place: ir.Value, name: str) -> ir.Value:
    return build.gep(place, [ir.Constant(_I64, INPUT_PLACE.number(name))])


Source = Callable[[int, int, ir.Value], ir.Value]
"""Returns the pointer to an element of a block by row, column and channel."""


def _at_place(
    loop: _Channels, x: ir.Value, place: ir.Value, zero: ir.Value, side: int, each: Callable[[Source], None]
) -> None:
    """Emit ``each`` with the pixels of a tile at ``place``, once for tiles that are all inside and once for others."""
    build = loop.ir

    def word(name: str) -> ir.Value:
        return build.load(_place_word(build, place, name))

    corner = loop.at(x, word("start"))
    x_h, x_w = word("x_h"), word("x_w")
    y0, y1, z0, z1 = (word(name) for name in ("top", "bottom", "left", "right"))
    rows = [loop.at(corner, loop.times(x_h, i)) for i in range(side)]
    steps = [loop.times(x_w, j) for j in range(side)]

    def inside(index: int, low: ir.Value, high: ir.Value) -> ir.Value:
        number = ir.Constant(_I64, index)
        return build.and_(build.icmp_signed("<=", low, number), build.icmp_signed("<", number, high))

    nothing, end = ir.Constant(_I64, 0), ir.Constant(_I64, side)
    whole = build.and_(build.icmp_signed("<=", y0, nothing), build.icmp_signed(">=", y1, end))
    whole = build.and_(whole, build.icmp_signed("<=", z0, nothing))
    whole = build.and_(whole, build.icmp_signed(">=", z1, end))
    with build.if_else(whole) as (all_inside, some_outside):
        with all_inside:
            each(lambda i, j, c: loop.at(rows[i], steps[j], c))
        with some_outside:
            in_rows = [inside(i, y0, y1) for i in range(side)]
            in_columns = [inside(j, z0, z1) for j in range(side)]
            places = [
                [
                    build.select(build.and_(row, column), loop.at(first, step), zero)
                    for column, step in zip(in_columns, steps)
                ]
                for row, first in zip(in_rows, rows)
            ]
            each(lambda i, j, c: loop.at(places[i][j], c))


def _parts_function(module: ir.Module, name: str, dtype: str, lanes: int, side: int, scaled: int) -> ir.Function:
    pointer = element_type(dtype).as_pointer()
    loop = _Channels(module, name, [pointer, _I64.as_pointer(), pointer, pointer, _I64, _I64], dtype, lanes)
    x, place, zero, target, plane, low, _ = loop.function.args
    build, b = loop.ir, VectorBuilder(loop.ir)
    integers = ir.VectorType(element_type(_WORD), lanes)
    word = ir.VectorType(element_type(_WORD), lanes // 2)
    seen = build.alloca(word)
    build.store(ir.Constant(word, None), seen)

    def both(bits: ir.Value) -> list[ir.Value]:
        return [b.shuffle(bits, range(k, k + lanes // 2)) for k in (0, lanes // 2)]

    def words(bits: ir.Value) -> ir.Value:
        """Return the upper halves of the elements of both halves of a vector, side by side."""
        first, second = both(bits)
        return build.or_(build.lshr(first, b.constant(word, 16)), build.and_(second, b.constant(word, 0xFFFF0000)))

    def each(source: Source) -> None:
        def body(channel: ir.Value) -> None:
            def load(i: int, j: int) -> ir.Value:
                value = loop.load(source(i, j, channel))
                return build.fmul(value, b.constant(loop.vector, SCALE)) if scaled else value

            half = build.lshr(channel, ir.Constant(_I64, 1))
            for i, row in enumerate(_both_sides(loop.b, load, side, _INPUT[side])):
                for j, value in enumerate(row):
                    goal = loop.at(target, loop.times(plane, i * side + j), half)
                    bits = build.bitcast(value, integers)
                    first, second = both(bits)
                    build.store(build.or_(build.or_(build.load(seen), first), second), seen)
                    nearest = build.add(bits, b.constant(integers, 0x8000))
                    high = build.and_(nearest, b.constant(integers, 0xFFFF0000))
                    rest = build.fsub(value, build.bitcast(high, loop.vector))
                    for part, at in ((high, goal), (build.bitcast(rest, integers), loop.at(goal, low))):
                        build.store(words(part), build.bitcast(at, word.as_pointer()), align=loop.align)

        loop.run(body)

    _at_place(loop, x, place, zero, side, each)
    reduce = b.function(f"llvm.vector.reduce.or.v{lanes // 2}i32", element_type(_WORD), [word])
    bits = build.and_(build.call(reduce, [build.load(seen)]), ir.Constant(element_type(_WORD), 0x7FFFFFFF))
    build.store(build.zext(bits, _I64), _place_word(build, place, "bits"))
    build.ret_void()
    return loop.function


def _filter_function(module: ir.Module, name: str, dtype: str, lanes: int, side: int, taps: int) -> ir.Function:
    pointer = element_type(dtype).as_pointer()
    if dtype == _WORD:
        loop = _Channels(module, name, [pointer, pointer, _I64], _HALF, 2 * lanes)
        w, target = (loop.halves(argument) for argument in loop.function.args[:2])
        plane, channels = (loop.times(argument, 2) for argument in loop.function.args[2:])
    else:
        loop = _Channels(module, name, [pointer, pointer, _I64], dtype, lanes)
        w, target, plane, channels = loop.function.args

    def place(i: int, j: int, channel: ir.Value) -> ir.Value:
        return loop.at(w, loop.times(channel, taps**2), ir.Constant(_I64, (i * taps + j) * loop.vector.count))

    loop.channels = channels
    loop.transform(place, taps, _FILTER[side], target, plane)
    loop.ir.ret_void()
    return loop.function


def _output_function(module: ir.Module, name: str, dtype: str, lanes: int, side: int, out: int) -> ir.Function:
    pointer = element_type(dtype).as_pointer()
    loop = _Channels(module, name, [pointer, _I64, pointer, _I64], dtype, lanes)
    source, plane, target, row, _ = loop.function.args
    rows = [loop.at(source, loop.times(plane, i * side)) for i in range(side)]
    steps = [loop.times(plane, j) for j in range(side)]
    halvings = _HALVINGS if dtype == _WORD else 0
    loop.transform(
        lambda i, j, c: loop.at(rows[i], steps[j], c), side, _OUTPUT[side, out], target, row, halvings=halvings
    )
    loop.ir.ret_void()
    return loop.function


def _define(
    name: str, write: Callable[..., ir.Function], operands: tuple[types.Type, ...], literals: int
) -> Definition:
    """Return the signature and lowering of an intrinsic; the last ``literals`` operands are numbers, with LANES last.

    Raises:
        TypingError: an operand is not a literal, or there is no such transform.
    """
    dtype = pointer_dtype(name, operands[0])
    least = 0 if write is _parts_function else 1
    *shape, lanes = (constant_int(name, "LITERAL", operand, low=least) for operand in operands[-literals:])
    if shape[0] not in _INPUT or (write is _output_function and tuple(shape) not in _OUTPUT):
        raise TypingError(f"{name}: no transform for {', '.join(map(str, shape))}")
    symbol = "_".join([name, dtype, str(lanes), *map(str, shape)])

    def emit(builder: ir.IRBuilder, args: Values) -> None:
        function = builder.module.globals.get(symbol) or write(builder.module, symbol, dtype, lanes, *shape)
        builder.call(function, args[: len(operands) - literals])

    numbers = (_INT if isinstance(operand, types.Integer) else operand for operand in operands[:-literals])
    return types.void(*numbers, *operands[-literals:]), emit


def _transform(name: str, write: Callable[..., ir.Function], operands: int, literals: int) -> KernelFunction:
    """Return the kernel function that calls a function of the module; the last ``literals`` operands are numbers."""

    def define(*own: types.Type) -> Definition:
        return _define(name, write, own, literals)

    return make_intrinsic(name, define, operands, literal=True)


winograd_input = _transform("winograd_input", _input_function, 8, 2)
winograd_input_parts = _transform("winograd_input_parts", _parts_function, 10, 3)
winograd_filter = _transform("winograd_filter", _filter_function, 7, 3)
winograd_output = _transform("winograd_output", _output_function, 9, 3)
