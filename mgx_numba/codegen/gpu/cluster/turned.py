"""Pointwise clusters of operands that lie in different orders: tiles are turned in a block's memory.

Reading along the innermost dimension of the results would take a line of memory for each element of an operand that
lies along another one. Such operands are read along their own, kept as a tile, and taken from there across, four bytes
of a thread at once if elements are smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph.module import Module
from ...arguments import Arguments
from ...body import cluster_name, evaluate_scalar_module, scalar_flops
from ...launch import Launch
from ...printer import CodeBuffer, VectorValue
from ...problems.cluster import Tensor
from ...space import Space
from ..kernel import gpu_grid, gpu_kernel
from ..printer import ThreadPrinter, dtype_name
from .indexing import Axes

__all__ = ["turned_launch"]

TILE = 32
"""Rows and columns of a tile, in words of a thread: a warp reads one row of it, and writes one column."""
WORD = 4
"""Bytes that a thread moves at once where elements are smaller."""
ROWS = 8
"""Rows of a tile that a block's threads take at once."""
LEAST = 16
"""Lengths of both dimensions from which on tiles pay."""
MOST_STAGED = 40 << 10
"""Bytes of tiles that a block can hold."""


def turned_launch(
    module: Module,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    space: Space,
    names: Sequence[str],
    fast_math: bool,
    origin: str,
) -> Launch | None:
    """The launch of a cluster over ``space``, whose last dimension is the results'; None if no operand needs turning,
    or operands need turning about different dimensions.

    Raises:
        UnsupportedError: the language lacks an operation for its element type.
    """
    about = {_lies_along(s) for s in space.strides[: len(inputs)] if s[-1] not in (0, 1)} - {None}
    if len(about) != 1:
        return None
    (other,) = about
    assert other is not None
    if min(space.lens[other], space.lens[-1]) < LEAST or any(s[-1] != 1 for s in space.strides[len(inputs) :]):
        return None
    turned = [k for k in range(len(inputs)) if space.strides[k][other] == 1 and space.strides[k][-1] not in (0, 1)]
    lanes = _lanes((*inputs, *outputs), space, other, turned)
    side = TILE * lanes
    if sum(inputs[k].type.size for k in turned) * side * (side + 1) > MOST_STAGED:
        return None
    text = _TurnedText(module, (*inputs, *outputs), len(inputs), space, names, other, turned, lanes, fast_math)
    lines = text.lines()
    return Launch(
        kernel=gpu_kernel(cluster_name(module, "transpose"), lines, TILE * ROWS, len(text.arguments.values), origin),
        args=text.arguments.values,
        geometry=gpu_grid(text.blocks, TILE * ROWS),
        flops=scalar_flops(module) * prod(space.lens),
        bytes=sum(t.footprint for t in (*inputs, *outputs)),
    )


def _lanes(tensors: Sequence[Tensor], space: Space, other: int, turned: Sequence[int]) -> int:
    """Elements that a thread moves at once: those of a word, if all operands have whole words of them."""
    lanes = max(1, WORD // max(t.type.size for t in tensors))
    last = space.rank - 1
    if space.lens[other] % lanes or space.lens[last] % lanes:
        return 1
    for k, (tensor, strides) in enumerate(zip(tensors, space.strides)):
        along = other if k in turned else last
        apart = [s for d, s in enumerate(strides) if d != along]
        if strides[along] not in (0, 1) or (strides[along] and tensor.offset % lanes):
            return 1
        if strides[along] and any(s % lanes for s in apart):
            return 1
    return lanes


def _lies_along(strides: Sequence[int]) -> int | None:
    """The dimension along which an operand's elements follow one another."""
    return next((d for d, s in enumerate(strides) if s == 1), None)


class _TurnedText:
    """The text of one cluster; a block makes one tile of the last dimension and the ``other`` one."""

    def __init__(
        self,
        module: Module,
        tensors: Sequence[Tensor],
        inputs: int,
        space: Space,
        names: Sequence[str],
        other: int,
        turned: Sequence[int],
        lanes: int,
        fast_math: bool,
    ) -> None:
        self.module, self.tensors, self.inputs, self.names = module, tensors, inputs, names
        self.turned, self.lanes, self.fast_math = turned, lanes, fast_math
        self.side = side = TILE * lanes
        self.splat = [s[-1] == 0 for s in space.strides]
        self.arguments = Arguments()
        for name, tensor in zip(names, tensors):
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        last = space.rank - 1
        rest = [d for d in range(space.rank) if d not in (other, last)]
        high, wide = space.lens[other], space.lens[last]
        self.arguments.integer("high", high)
        self.arguments.integer("wide", wide)
        self.arguments.integer("down", -(-high // side))
        self.arguments.integer("across", -(-wide // side))
        self.outer = Axes(
            self.arguments, "o", [space.lens[d] for d in rest], [[s[d] for d in rest] for s in space.strides]
        )
        self.inner = Axes(self.arguments, "i", (high, wide), [(s[other], s[last]) for s in space.strides])
        self.blocks = -(-high // side) * -(-wide // side) * prod(space.lens[d] for d in rest)

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer = CodeBuffer()
        for line in self.arguments.bind():
            buffer.line(line)
        lanes, pitch = self.lanes, self.side + 1
        for k in self.turned:
            dtype = dtype_name(self.tensors[k].type)
            buffer.line(f"tile_{self.names[k]} = shared_{dtype}({self.side * pitch})")
        for line in (
            "number = idiv(block_index(0), across)",
            f"first_wide = (block_index(0) - number * across) * {self.side}",
            "plane = idiv(number, down)",
            f"first_high = (number - plane * down) * {self.side}",
            f"lead = idiv(thread_index(0), {TILE})",
            f"side = (thread_index(0) - lead * {TILE}) * {lanes}",
        ):
            buffer.line(line)
        places = self.outer.split(buffer, "plane") if self.outer.lens else []
        for k, name in enumerate(self.names):
            buffer.line(f"r_{name} = offset(p_{name}, {self.outer.offset(k, places)})")
        steps = range(0, self.side, ROWS)
        load = "load_aligned" if lanes > 1 else "load"
        buffer.line("own_high = first_high + side")
        for step in steps:
            at = buffer.emit(f"first_wide + lead + {step}")
            with buffer.block(f"if (own_high < high) & ({at} < wide):"):
                for k in self.turned:
                    found = f"{load}(r_{self.names[k]}, {self.inner.offset(k, ['own_high', at])}, {lanes})"
                    buffer.line(f"store(tile_{self.names[k]}, (lead + {step}) * {pitch} + side, {found})")
        buffer.line("barrier()")
        buffer.line("own_wide = first_wide + side")
        for step in steps:
            at = buffer.emit(f"first_high + lead + {step}")
            with buffer.block(f"if (own_wide < wide) & ({at} < high):"):
                self._compute(buffer, at, step)
        return buffer.lines

    def _compute(self, buffer: CodeBuffer, high: str, step: int) -> None:
        """Evaluate the module at a thread's elements and store the results."""
        lanes = self.lanes
        aligned = "_aligned" if lanes > 1 else ""
        printer = ThreadPrinter(buffer, lanes, self.fast_math)
        values: list[VectorValue] = []
        for k in range(self.inputs):
            place = self.inner.offset(k, [high, "own_wide"])
            if k in self.turned:
                slots = [f"(side + {j}) * {self.side + 1} + lead + {step}" for j in range(lanes)]
                own = [f"load(tile_{self.names[k]}, {slot}, 1)" for slot in slots]
                text = f"join{lanes}({', '.join(own)})" if lanes > 1 else own[0]
            elif self.splat[k]:
                text = f"load_splat(r_{self.names[k]}, {place}, {lanes})"
            else:
                text = f"load{aligned}(r_{self.names[k]}, {place}, {lanes})"
            values.append(printer.loaded(text, self.tensors[k].type))
        for k, value in enumerate(evaluate_scalar_module(self.module, printer, values), self.inputs):
            place = self.inner.offset(k, [high, "own_wide"])
            buffer.line(f"store{aligned}(r_{self.names[k]}, {place}, {printer.stored(value)})")
