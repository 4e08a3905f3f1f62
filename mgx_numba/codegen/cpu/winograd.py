"""Winograd's minimal filtering: the transforms of input and output tiles as intrinsics, vectorised over channels.

``F(m x m, 3 x 3)`` computes m x m outputs of a 3 x 3 convolution from n x n inputs, n = m + 2, with n * n
multiplications a channel (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). The
interpolation points are 0, 1, -1 (m = 2) and 0, 1, -1, 2, -2 (m = 4), and infinity. The filter's transform is in
:mod:`mgx_numba.codegen.contraction.winograd`.

    winograd_input_<dtype>(x, places, zero, target, plane, channels, OUT, LANES)
        target[p * plane + c] = transformed inputs x[places[p] + c] for the points p < n * n, channels c < channels;
        a negative place stands for zeros, of which ``zero`` has as many as channels. They are a multiple of LANES.
    winograd_output_<dtype>(source, plane, target, row, channels, OUT, LANES)
        target[q * row + c] = outputs q < m * m from the transformed source[p * plane + c]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .builder import VectorBuilder, element_type
from .vector import pointer_type

__all__ = ["winograd_input_float32", "winograd_input_float64", "winograd_output_float32", "winograd_output_float64"]

_I64 = ir.IntType(64)
_INT = types.int64
_WORDS = types.CPointer(types.int64)

Values = list[ir.Value]
Line = Callable[[VectorBuilder, Values], Values]


def _input2(b: VectorBuilder, d: Values) -> Values:
    return [b.sub(d[0], d[2]), b.add(d[1], d[2]), b.sub(d[2], d[1]), b.sub(d[1], d[3])]


def _output2(b: VectorBuilder, m: Values) -> Values:
    return [b.add(b.add(m[0], m[1]), m[2]), b.sub(b.sub(m[1], m[2]), m[3])]


def _input4(b: VectorBuilder, d: Values) -> Values:
    odd, even = b.muladd(d[1], -4.0, d[3]), b.muladd(d[2], -4.0, d[4])
    twice, outer = b.sub(d[3], d[1]), b.sub(d[4], d[2])
    return [
        b.muladd(d[0], 4.0, b.muladd(d[2], -5.0, d[4])),
        b.add(even, odd),
        b.sub(even, odd),
        b.muladd(twice, 2.0, outer),
        b.muladd(twice, -2.0, outer),
        b.muladd(d[1], 4.0, b.muladd(d[3], -5.0, d[5])),
    ]


def _output4(b: VectorBuilder, m: Values) -> Values:
    near, near_difference = b.add(m[1], m[2]), b.sub(m[1], m[2])
    far, far_difference = b.add(m[3], m[4]), b.sub(m[3], m[4])
    return [
        b.add(b.add(m[0], near), far),
        b.muladd(far_difference, 2.0, near_difference),
        b.muladd(far, 4.0, near),
        b.add(b.muladd(far_difference, 8.0, near_difference), m[5]),
    ]


_INPUT: dict[int, Line] = {2: _input2, 4: _input4}
_OUTPUT: dict[int, Line] = {2: _output2, 4: _output4}


def _both_sides(b: VectorBuilder, value: Callable[[int], ir.Value], side: int, line: Line) -> Values:
    """``T X T^t`` in row-major order for the transform ``line`` of one line and a square block X of that side.

    ``value`` loads an element of X by its row-major number; each is loaded just before it is needed.
    """
    columns = [line(b, [value(i * side + j) for i in range(side)]) for j in range(side)]
    rows = [line(b, [column[i] for column in columns]) for i in range(len(columns[0]))]
    return [value for row in rows for value in row]


def _literals(name: str, out: types.Type, lanes: types.Type) -> tuple[int, int]:
    size, count = getattr(out, "literal_value", None), getattr(lanes, "literal_value", None)
    if size not in _INPUT or not isinstance(count, int):
        raise TypingError(f"{name}: OUT must be the literal 2 or 4 and LANES a literal, got {out} and {lanes}")
    return size, count


class _Channels:
    """A function of the module that runs a body for each vector of channels; its last argument is their number."""

    def __init__(self, module: ir.Module, name: str, arguments: list[ir.Type], vector: ir.VectorType) -> None:
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*arguments, _I64]), name=name)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        self.function.attributes.alignstack = 64
        self.vector = vector
        self.align = 4 if isinstance(vector.element, ir.FloatType) else 8
        self.ir = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.b = VectorBuilder(self.ir)

    def at(self, pointer: ir.Value, *terms: ir.Value) -> ir.Value:
        """Vector at ``pointer[sum of terms]``."""
        for term in terms:
            pointer = self.ir.gep(pointer, [term])
        return self.ir.bitcast(pointer, self.vector.as_pointer())

    def load(self, place: ir.Value) -> ir.Value:
        return self.ir.load(place, align=self.align)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        self.ir.store(value, place, align=self.align)

    def run(self, body: Callable[[ir.Value], None]) -> None:
        """``for channel in range(0, channels, lanes): body(channel)``, then return; there is at least one."""
        entry = self.ir.block
        head, after = self.ir.append_basic_block("channels"), self.ir.append_basic_block("end")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        channel = self.ir.phi(_I64)
        body(channel)
        following = self.ir.add(channel, ir.Constant(_I64, self.vector.count))
        channel.add_incoming(ir.Constant(_I64, 0), entry)
        channel.add_incoming(following, self.ir.block)
        self.ir.cbranch(self.ir.icmp_signed("<", following, self.function.args[-1]), head, after)
        self.ir.position_at_end(after)
        self.ir.ret_void()


def _input_function(module: ir.Module, name: str, dtype: str, out: int, lanes: int) -> ir.Function:
    element = element_type(dtype)
    pointer, side = element.as_pointer(), out + 2
    loop = _Channels(module, name, [pointer, _I64.as_pointer(), pointer, pointer, _I64], ir.VectorType(element, lanes))
    x, places, zero, target, plane, _ = loop.function.args
    nowhere = ir.Constant(_I64, 0)
    sources = []
    for point in range(side * side):
        place = loop.ir.load(loop.ir.gep(places, [ir.Constant(_I64, point)]))
        inside = loop.ir.icmp_signed(">=", place, nowhere)
        sources.append(loop.ir.select(inside, loop.ir.gep(x, [place]), zero))

    def body(channel: ir.Value) -> None:
        def load(point: int) -> ir.Value:
            return loop.load(loop.at(sources[point], channel))

        for point, value in enumerate(_both_sides(loop.b, load, side, _INPUT[out])):
            loop.store(value, loop.at(target, loop.ir.mul(plane, ir.Constant(_I64, point)), channel))

    loop.run(body)
    return loop.function


def _output_function(module: ir.Module, name: str, dtype: str, out: int, lanes: int) -> ir.Function:
    element = element_type(dtype)
    pointer, side = element.as_pointer(), out + 2
    loop = _Channels(module, name, [pointer, _I64, pointer, _I64], ir.VectorType(element, lanes))
    source, plane, target, row, _ = loop.function.args

    def body(channel: ir.Value) -> None:
        def load(point: int) -> ir.Value:
            return loop.load(loop.at(source, loop.ir.mul(plane, ir.Constant(_I64, point)), channel))

        for pixel, value in enumerate(_both_sides(loop.b, load, side, _OUTPUT[out])):
            loop.store(value, loop.at(target, loop.ir.mul(row, ir.Constant(_I64, pixel)), channel))

    loop.run(body)
    return loop.function


def _define_input(dtype: str) -> Any:
    def winograd_input(typingctx, x, places, zero, target, plane, channels, out, lanes):
        size, count = _literals("winograd_input", out, lanes)
        name = f"winograd_input_{dtype}_{size}_{count}"

        def lower(context, builder, signature, args):
            module = builder.module
            function = module.globals.get(name) or _input_function(module, name, dtype, size, count)
            builder.call(function, args[:6])
            return context.get_dummy_value()

        floats = pointer_type(dtype)
        return types.void(floats, _WORDS, floats, floats, _INT, _INT, out, lanes), lower

    winograd_input.__name__ = winograd_input.__qualname__ = f"winograd_input_{dtype}"
    return intrinsic(prefer_literal=True)(winograd_input)


def _define_output(dtype: str) -> Any:
    def winograd_output(typingctx, source, plane, target, row, channels, out, lanes):
        size, count = _literals("winograd_output", out, lanes)
        name = f"winograd_output_{dtype}_{size}_{count}"

        def lower(context, builder, signature, args):
            module = builder.module
            function = module.globals.get(name) or _output_function(module, name, dtype, size, count)
            builder.call(function, args[:5])
            return context.get_dummy_value()

        floats = pointer_type(dtype)
        return types.void(floats, _INT, floats, _INT, _INT, out, lanes), lower

    winograd_output.__name__ = winograd_output.__qualname__ = f"winograd_output_{dtype}"
    return intrinsic(prefer_literal=True)(winograd_output)


winograd_input_float32 = _define_input("float32")
winograd_input_float64 = _define_input("float64")
winograd_output_float32 = _define_output("float32")
winograd_output_float64 = _define_output("float64")
