"""Random small programs of every kind of operator, drawn choice by choice so that hypothesis can shrink them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.program import Program

from ..random_models.choices import LENGTHS, Choices
from ..values import small

__all__ = ["Builder", "random_values", "seeded"]

MAX_ELEMENTS = 3000
FLOATS = (Type.float_type,) * 6 + (Type.double_type, Type.half_type, Type.bf16_type)
INTEGERS = (
    Type.int32_type, Type.int64_type, Type.int8_type, Type.uint8_type, Type.int16_type, Type.uint16_type,
    Type.uint32_type, Type.uint64_type,
)  # fmt: skip
RARE = (Type.fp8e4m3fn_type, Type.fp8e5m2_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2fnuz_type)
UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log log2 nearbyint neg recip rsqrt sigmoid sign"
    " sin sinh sqrt tan tanh gelu_erf gelu_tanh silu softplus mish relu leaky_relu elu softsign hard_sigmoid"
    " scaled_tanh thresholded_relu affine identity"
).split()
SAFE = "abs neg relu tanh sigmoid erf floor nearbyint silu exp identity".split()
INTEGER_UNARY = "abs neg relu sign bitwise_not identity".split()
BINARY = "add sub mul max min".split()
FLOAT_BINARY = [*BINARY, "add", "mul", "div", "fmod", "mod", "pow", "sqdiff", "prelu"]
INTEGER_BINARY = [*BINARY, "div", "fmod", "mod", "sqdiff", "bitwise_and", "bitwise_or", "bitwise_xor"]
COMPARE = "equal greater less greater_or_equal less_or_equal".split()
LOGICAL = "logical_and logical_or logical_xor".split()
REDUCTIONS = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_any reduce_all".split()


def random_values(
    type: Type, lens: Sequence[int], seed: int, special: bool = False, below: int | None = None
) -> np.ndarray:
    """Small values, halves and quarters half of the time; ``special`` adds NaN, infinity; ``below`` makes indices."""
    rng = np.random.default_rng([seed, *lens])
    if below is not None:
        return rng.integers(-below, below, lens).astype(type.numpy)
    return small(type.numpy, lens, rng, quarters=seed % 2 == 0, special=special and prod(lens) > 2)


class Builder(Choices):
    """A program under construction.

    Args:
        integer: gives an integer between two bounds, both included; every choice is made by it.
    """

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        super().__init__(integer)
        self.program = Program()
        self.module = self.program.main
        self.pool: list[Instruction] = []
        self.indices: dict[str, int] = {}
        self.special = self.chance(5)

    def build(self, steps: int) -> Program:
        """A program of about so many steps, with one to five results."""
        for _ in range(self.integer(1, 3)):
            self.parameter(self.lens(), self.pick(FLOATS) if not self.chance(4) else self.pick((*INTEGERS, *RARE)))
        for _ in range(self.integer(1, steps)):
            step = self.pick(self.steps())
            found = step()
            if found is not None and (not found.shape.sub_shapes):
                self.pool.append(found)
        self.module.add_return([self.value() for _ in range(self.integer(1, 5))])
        return self.program

    def inputs(self, seed: int) -> dict[str, np.ndarray]:
        """A value for every parameter."""
        return {
            name: random_values(shape.type, shape.lens, seed + 7 * k, self.special, self.indices.get(name))
            for k, (name, shape) in enumerate(self.program.parameter_shapes().items())
        }

    # Choices

    def value(self, accept: Callable[[Instruction], bool] = lambda i: True) -> Instruction:
        """A value of the pool, the newer the likelier."""
        found = [i for i in self.pool if accept(i)]
        if not found:
            return self.parameter(self.lens(), self.pick(FLOATS))
        return found[-1 - min(self.integer(0, len(found) - 1), self.integer(0, len(found) - 1))]

    def parameter(self, lens: Sequence[int], type: Type, below: int | None = None) -> Instruction:
        name = f"p{len(self.module.parameters())}"
        made = self.module.add_parameter(name, Shape(type, lens))
        if below is None:
            self.pool.append(made)
        else:
            self.indices[name] = below
        return made

    def literal(self, lens: Sequence[int], type: Type) -> Instruction:
        seed = self.integer(0, 9)
        if seed == 0:
            return self.module.add_literal(np.full(lens, self.pick((0, 1, 2)), type.numpy))
        array = random_values(type, lens, seed)
        if seed < 4 and len(lens) > 1:  # another memory order
            array = np.asfortranarray(array)
        return self.module.add_literal(array)

    def op(self, op: str, *inputs: Instruction, **attributes: Any) -> Instruction:
        return self.module.add_instruction(op, inputs, **attributes)

    def like(self, x: Instruction, type: Type | None = None) -> Instruction:
        """A value with the lengths of ``x``: one of the pool, or something broadcast, converted, transposed or new."""
        type = type or x.shape.type
        lens = x.shape.lens
        same = [i for i in self.pool if i.shape.lens == lens]
        kind = self.integer(0, 9)
        if kind < 4 and same:
            found = same[-1 - self.integer(0, len(same) - 1)]
            return found if found.shape.type is type else self.op("convert", found, target_type=type)
        if kind == 4:
            return self.spread(self.literal((1,), type) if self.chance(2) else self.scalar(type), lens)
        if kind < 8:
            small = [n if self.chance(2) else 1 for n in lens]
            return self.spread(self.new(small, type), lens)
        if kind == 8 and len(lens) > 1:
            order = self.permutation(len(lens))
            return self.op(
                "transpose", self.new([lens[order.index(a)] for a in range(len(lens))], type), permutation=order
            )
        return self.new(lens, type)

    def scalar(self, type: Type) -> Instruction:
        return self.module.add_literal(
            np.array(self.pick((0, 1, 2, 0.5, -1)) if type.is_floating else self.pick((0, 1, 3)), type.numpy)
        )

    def new(self, lens: Sequence[int], type: Type) -> Instruction:
        return self.literal(lens, type) if self.chance(2) else self.parameter(lens, type)

    def spread(self, x: Instruction, lens: Sequence[int]) -> Instruction:
        return self.op("multibroadcast", x, out_lens=lens)

    # Steps

    def steps(self) -> list[Callable[[], Instruction | None]]:
        pointwise = [self.unary, self.binary, self.compare, self.choose, self.convert, self.clip]
        views = [self.transpose, self.slice, self.stride, self.reshape, self.squeeze, self.unsqueeze, self.broadcast]
        rows = [self.reduce, self.normalise, self.softmax, self.layer_norm]
        products = [self.dot, self.convolution, self.pool2d]
        moves = [
            self.concat,
            self.copy,
            self.gather,
            self.pad,
            self.reverse,
            self.scan,
            self.arg,
            self.topk,
            self.scatter,
        ]
        return [
            *pointwise,
            *pointwise,
            *pointwise[:2],
            *views,
            *rows,
            *rows,
            *products,
            *products,
            *moves,
            self.concat,
            self.concat,
        ]

    def unary(self) -> Instruction:
        x = self.value()
        if x.shape.type is Type.bool_type:
            return self.op("not", x)
        if not x.shape.type.is_floating:
            return self.op(
                self.pick([n for n in INTEGER_UNARY if x.shape.type.is_signed or n not in ("abs", "neg", "sign")]), x
            )
        return self.op(self.pick(UNARY if self.chance(2) else SAFE), x)

    def binary(self) -> Instruction:
        x = self.value()
        y = self.like(x)
        if x.shape.type is Type.bool_type:
            return self.op(self.pick(LOGICAL), x, y)
        if self.chance(2):
            x, y = y, x
        return self.op(self.pick(FLOAT_BINARY if x.shape.type.is_floating else INTEGER_BINARY), x, y)

    def compare(self) -> Instruction:
        x = self.value()
        if x.shape.type.is_floating and self.chance(4):
            return self.op(self.pick(("isnan", "isinf")), x)
        return self.op(self.pick(COMPARE), x, self.like(x))

    def choose(self) -> Instruction:
        x = self.value()
        condition = self.like(x, Type.bool_type)
        return self.op("where", condition, x, self.like(x))

    def convert(self) -> Instruction:
        types = (*FLOATS, *INTEGERS, Type.bool_type, *RARE[:2])
        return self.op("convert", self.value(), target_type=self.pick(types))

    def clip(self) -> Instruction:
        x = self.value(lambda i: i.shape.type is not Type.bool_type)
        low, high = (self.spread(self.scalar(x.shape.type), x.shape.lens) for _ in range(2))
        return self.op("clip", x, low, high)

    def transpose(self) -> Instruction:
        x = self.value()
        return self.op("transpose", x, permutation=self.permutation(x.shape.ndim))

    def slice(self) -> Instruction:
        x = self.value()
        axes = [a for a in range(x.shape.ndim) if self.chance(2)] or [0]
        starts = [self.integer(0, max(0, x.shape.lens[a] - 1)) for a in axes]
        ends = [
            self.integer(s if self.chance(20) else min(s + 1, x.shape.lens[a]), x.shape.lens[a])
            for s, a in zip(starts, axes)
        ]
        return self.op("slice", x, axes=axes, starts=starts, ends=ends)

    def stride(self) -> Instruction:
        x = self.value()
        return self.op("step", x, axes=[self.integer(0, x.shape.ndim - 1)], steps=[self.integer(1, 3)])

    def reshape(self) -> Instruction:
        x = self.value()
        lens = list(x.shape.lens)
        for _ in range(self.integer(1, 2)):
            a = self.integer(0, len(lens) - 1)
            if self.chance(2) and a + 1 < len(lens):
                lens[a : a + 2] = [lens[a] * lens[a + 1]]
            elif len(lens) < 5:
                factors = [f for f in (1, 2, 3, 4, 5, 8, 11) if lens[a] and lens[a] % f == 0]
                if factors:
                    f = self.pick(factors)
                    lens[a : a + 1] = [f, lens[a] // f]
        if 0 in lens:
            lens = list(x.shape.lens)
        return self.op("reshape", x, dims=lens)

    def squeeze(self) -> Instruction | None:
        x = self.value(lambda i: 1 in i.shape.lens)
        axes = [a for a, n in enumerate(x.shape.lens) if n == 1 and self.chance(2)]
        return self.op("squeeze", x, axes=axes) if axes else None

    def unsqueeze(self) -> Instruction | None:
        x = self.value(lambda i: i.shape.ndim < 5)
        return self.op("unsqueeze", x, axes=[self.integer(0, x.shape.ndim)])

    def broadcast(self) -> Instruction | None:
        if self.chance(2):
            x = self.value(lambda i: i.shape.ndim == 1 and i.shape.elements)
            before, after = self.lens((0, 1)), self.lens((1, 2))
            lens = (*before, *x.shape.lens, *after)
            if x.shape.ndim != 1 or 0 in lens or prod(lens) > 2 * MAX_ELEMENTS:
                return None
            return self.op("broadcast", x, axis=len(before), out_lens=lens)
        x = self.value(lambda i: 1 in i.shape.lens)
        lens = [self.integer(1, 5) if n == 1 else n for n in x.shape.lens]
        lens = [self.integer(1, 3)] * self.integer(0, 1) + lens
        if prod(lens) > 2 * MAX_ELEMENTS:
            return None
        return self.spread(x, lens)

    def axes(self, x: Instruction) -> list[int]:
        return [a for a in range(x.shape.ndim) if self.chance(2)] or [self.integer(0, x.shape.ndim - 1)]

    def reduce(self) -> Instruction:
        x = self.value()
        names = REDUCTIONS if x.shape.type is not Type.bool_type else REDUCTIONS[-2:]
        axes = [] if self.chance(8) else self.axes(x)
        return self.op(self.pick(names), x, axes=axes)

    def normalise(self) -> Instruction:
        """A reduction, something done to it, and its broadcast combined with the input."""
        x = self.value(lambda i: i.shape.type is not Type.bool_type)
        r = self.op(self.pick(REDUCTIONS[:4]), x, axes=self.axes(x))
        if self.chance(2):
            r = self.op(self.pick(("abs", "relu")), r)
        if self.chance(2):
            self.pool.append(r)
        wide = self.spread(r, x.shape.lens)
        if self.chance(3):
            self.pool.append(wide)
        return self.op(self.pick(BINARY), x, wide)

    def softmax(self) -> Instruction:
        x = self.value(lambda i: i.shape.type.is_floating)
        axis = self.integer(0, x.shape.ndim - 1)
        if self.chance(2) or not x.shape.elements:
            return self.op(self.pick(("softmax", "logsoftmax")), x, axis=axis)
        lens = x.shape.lens
        e = self.op("exp", self.op("sub", x, self.spread(self.op("reduce_max", x, axes=[axis]), lens)))
        return self.op("div", e, self.spread(self.op("reduce_sum", e, axes=[axis]), lens))

    def layer_norm(self) -> Instruction:
        x = self.value(lambda i: i.shape.type.is_floating)
        axes, lens, type = self.axes(x), x.shape.lens, x.shape.type
        centered = self.op("sub", x, self.spread(self.op("reduce_mean", x, axes=axes), lens))
        variance = self.op("reduce_mean", self.op("mul", centered, centered), axes=axes)
        small = self.spread(self.module.add_literal(np.array([0.25], type.numpy)), variance.shape.lens)
        scale = self.spread(self.op("rsqrt", self.op("add", variance, small)), lens)
        normal = self.op("mul", centered, scale)
        if self.chance(2):
            normal = self.op("mul", normal, self.like(x))
        return self.op("add", normal, self.like(x)) if self.chance(2) else normal

    def chain(self, x: Instruction) -> Instruction:
        """A few pointwise operations after a contraction."""
        for _ in range(self.integer(0, 3)):
            kind = self.integer(0, 3)
            if kind == 0:
                x = self.op(self.pick(SAFE), x)
            elif kind == 1 and x.shape.ndim > 1 and x.shape.elements:
                axis = self.integer(0, x.shape.ndim - 1)
                bias = self.new([x.shape.lens[axis]], x.shape.type)
                x = self.op(self.pick(("add", "mul")), x, self.op("broadcast", bias, axis=axis, out_lens=x.shape.lens))
            else:
                x = self.op(self.pick(BINARY), x, self.like(x))
            if self.chance(4):
                self.pool.append(x)
        return x

    def dot(self) -> Instruction | None:
        x = self.value(lambda i: i.shape.ndim > 1 and (i.shape.type.is_floating or i.shape.type is Type.int32_type))
        if x.shape.ndim < 2:
            return None
        *batch, m, k = x.shape.lens
        kind = self.integer(0, 3)
        turned = [*range(len(batch)), len(batch) + 1, len(batch)]
        if kind == 0:
            y = self.op("transpose", x, permutation=turned)
        elif kind == 1:
            y = self.op("transpose", self.new([*batch, self.pick(LENGTHS), k], x.shape.type), permutation=turned)
        elif kind == 2 and batch:
            y = self.new([k, self.pick(LENGTHS)], x.shape.type)
            y = self.spread(y, [*batch, *y.shape.lens])
        else:
            y = self.new([*batch, k, self.pick(LENGTHS)], x.shape.type)
        if prod(batch) * m * y.shape.lens[-1] > 2 * MAX_ELEMENTS:
            return None
        return self.chain(self.op("dot", x, y))

    def convolution(self) -> Instruction | None:
        x = self.value(lambda i: 3 <= i.shape.ndim <= 4 and i.shape.type.is_floating and i.shape.elements)
        if not 3 <= x.shape.ndim <= 4 or not x.shape.elements or not x.shape.type.is_floating:
            return None
        n, c, *space = x.shape.lens
        rank = len(space)
        kernel = [self.integer(1, 3) for _ in space] if self.chance(2) else [self.pick((1, 3))] * rank
        padding = [self.integer(0, 1) for _ in range(2 * rank)] if self.chance(3) else [k // 2 for k in kernel] * 2
        stride, dilation = ([self.pick((1, 1, 2))] * rank for _ in range(2))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
        if any(length + padding[a] + padding[rank + a] < r for a, (length, r) in enumerate(zip(space, reach))):
            return None
        group = self.pick([g for g in (1, 1, 2, c) if c % g == 0])
        out = group * self.integer(1, 3) if group > 1 else self.pick((1, 2, 5, 8, 16, 20))
        weights = [out, c // group, *kernel]
        if out * prod(space) * n > 4 * MAX_ELEMENTS or prod(weights) > MAX_ELEMENTS:
            return None
        w = self.literal(weights, x.shape.type) if not self.chance(5) else self.parameter(weights, x.shape.type)
        y = self.op("convolution", x, w, padding=padding, stride=stride, dilation=dilation, group=group)
        return self.chain(y)

    def pool2d(self) -> Instruction | None:
        x = self.value(lambda i: i.shape.ndim == 4 and i.shape.elements and i.shape.type.is_floating)
        if x.shape.ndim != 4 or not x.shape.elements:
            return None
        lengths = [min(self.integer(1, 3), n) for n in x.shape.lens[2:]]
        padding = [self.integer(0, k - 1) for k in lengths] * 2
        return self.op(
            "pooling", x, mode=self.pick(("max", "average", "average", "lpnorm")), lengths=lengths, padding=padding,
            stride=[self.integer(1, 2)] * 2, ceil_mode=self.chance(2), count_include_pad=self.chance(2),
        )  # fmt: skip

    def concat(self) -> Instruction:
        x = self.value()
        lens = list(x.shape.lens)
        axis = self.integer(0, len(lens) - 1)
        parts = [x]
        for _ in range(self.integer(0, 3)):
            fits = [
                i for i in self.pool
                if i.shape.type is x.shape.type and len(i.shape.lens) == len(lens)
                and all(a == b or k == axis for k, (a, b) in enumerate(zip(i.shape.lens, lens)))
            ]  # fmt: skip
            kind = self.integer(0, 5)
            if kind < 3 and fits:
                parts.append(self.pick(fits))
            elif kind == 3 and lens[axis]:
                end = self.integer(0 if self.chance(9) else 1, lens[axis])
                parts.append(self.op("slice", x, axes=[axis], starts=[0], ends=[end]))
            elif kind == 4:
                parts.append(self.like(x))
            else:
                lens[axis] = self.integer(0 if self.chance(9) else 1, 5)
                parts.append(self.new(lens, x.shape.type))
                lens = list(x.shape.lens)
        if self.chance(2):
            parts.reverse()
        return self.op("concat", *parts, axis=axis)

    def copy(self) -> Instruction:
        x = self.value()
        if self.chance(2):
            return self.op("contiguous", x)
        return self.op("layout", x, permutation=self.permutation(x.shape.ndim))

    def gather(self) -> Instruction | None:
        x = self.value(lambda i: bool(i.shape.elements))
        axis = self.integer(0, x.shape.ndim - 1)
        length = x.shape.lens[axis]
        if not length:
            return None
        lens = self.lens((0, 2)) if self.chance(2) else (self.integer(1, 6),)
        type = self.pick((Type.int32_type, Type.int64_type))
        if prod(x.shape.lens) // length * prod(lens) > 2 * MAX_ELEMENTS:
            return None
        if self.chance(3):
            indices = self.module.add_literal(random_values(type, lens, 3, below=length))
        else:
            indices = self.parameter(lens, type, below=length)
        return self.op("gather", x, indices, axis=axis)

    def pad(self) -> Instruction:
        x = self.value(lambda i: bool(i.shape.elements) and i.shape.type is not Type.bool_type)
        if not x.shape.elements:
            return x
        pads = [self.integer(0, 2) if self.chance(2) else 0 for _ in range(2 * x.shape.ndim)]
        mode = self.pick(("constant", "constant", "reflect", "edge", "wrap"))
        return self.op("pad", x, pads=pads, mode=mode, value=float(self.integer(0, 1)))

    def reverse(self) -> Instruction:
        x = self.value()
        return self.op("reverse", x, axes=self.axes(x))

    def scan(self) -> Instruction:
        x = self.value(lambda i: i.shape.type is not Type.bool_type)
        axis = self.integer(0, x.shape.ndim - 1)
        return self.op("prefix_scan_sum", x, axis=axis, exclusive=self.chance(2), reverse=self.chance(2))

    def arg(self) -> Instruction | None:
        x = self.value(lambda i: bool(i.shape.elements))
        axis = self.integer(0, x.shape.ndim - 1)
        if not x.shape.lens[axis]:
            return None
        return self.op(self.pick(("argmax", "argmin")), x, axis=axis, select_last_index=self.chance(2))

    def topk(self) -> Instruction | None:
        x = self.value(lambda i: bool(i.shape.elements) and i.shape.type is not Type.bool_type)
        axis = self.integer(0, x.shape.ndim - 1)
        if not x.shape.lens[axis]:
            return None
        both = self.op("topk", x, axis=axis, k=self.integer(1, min(5, x.shape.lens[axis])), largest=self.chance(2))
        members = [self.op("get_tuple_elem", both, index=k) for k in (0, 1)]
        self.pool.append(members[1])
        return members[0]

    def scatter(self) -> Instruction | None:
        x = self.value(lambda i: bool(i.shape.elements) and i.shape.type is not Type.bool_type)
        axis = self.integer(0, x.shape.ndim - 1)
        if not x.shape.lens[axis] or not x.shape.elements:
            return None
        lens = [1 if a == axis else n for a, n in enumerate(x.shape.lens)]
        indices = self.parameter(lens, Type.int64_type, below=x.shape.lens[axis])
        updates = self.like(self.op("slice", x, axes=[axis], starts=[0], ends=[1]))
        return self.op(self.pick(("scatter_none", "scatter_add", "scatter_max")), x, indices, updates, axis=axis)


def seeded(seed: int, steps: int) -> Builder:
    """Return a program of ``steps`` steps, determined by seed and number of steps."""
    rng = np.random.default_rng([seed, steps])
    builder = Builder(lambda low, high: int(rng.integers(low, high, endpoint=True)))
    builder.build(steps)
    return builder
