"""Channels-last layout: convolutions, and poolings of narrow images, read data with contiguous channels.

Shape rules propagate the memory order of inputs to outputs, so everything between convolutions follows.
"""

from __future__ import annotations

from ...core.dim import hint, known_equal, known_less_equal
from ...core.shape import Shape, find_permutation
from ...ops.base import make_op
from ...ops.dims import view_strides
from ..constants import constant_array, laid_out
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .eliminate_data_type import is_stored_weight
from .rewriter import remove_dead

RESHAPES = frozenset({"reshape", "flatten"})
CONVOLUTIONS = frozenset("convolution convolution_backwards quant_convolution quant_convolution_backwards".split())


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the channels-last order of axes, slowest first: N, spatial..., C."""
    return (0, *range(2, rank), 1)


class LayoutConvolution(Pass):
    """Insert ``layout[permutation={0, 2, 3, 1}]`` on inputs of convolutions, and of poolings that the target prefers
    so, that are not channels-last.

    Literal weights are stored in that order. Results of the program, which are returned in row-major order, are made
    contiguous; results of other modules keep their layout: where it changed, ``contiguous`` (or ``layout``) restores
    it. Reshapes that need no copy become views.
    """

    name = "layout_convolution"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        self._pools_channels = None if can is None else can.pools_channels
        if not any(self._reads_channels(ins) for ins in module.named(CONVOLUTIONS | {"pooling"})):
            return
        results = [(r, r.shape.to_standard() if module is program.main else r.shape) for r in module.results()]
        self._arrange(module)
        self._restore(module, results)

    def _arrange(self, module: Module) -> None:
        arranged: dict[Instruction, Instruction] = {}
        reshaped: set[Instruction] = set()
        for ins in list(module):
            if ins.name.startswith("@") or ins.module is not module:
                continue
            for body in ins.module_args:
                body.recompute_shapes()
            op, given = ins.op, ins.inputs
            if self._reads_channels(ins):
                inputs = [self._in_order(module, ins, i, arranged) for i in given]
                if inputs != given:
                    module.rewire(ins, inputs)
                    remove_dead(module, given)
            elif ins.name in RESHAPES and len(ins.inputs) == 1:
                self._as_view(module, ins)
            if ins.module_args or ins.op is not op or ins.inputs is not given or not reshaped.isdisjoint(given):
                shape = ins.op.result_shape([i.shape for i in ins.inputs], ins.module_args)
                if shape != ins.shape:
                    ins.shape = shape
                    reshaped.add(ins)
        if module.return_instruction is not None:
            module.replace_return(module.results())

    def _reads_channels(self, ins: Instruction) -> bool:
        """Return whether an instruction is to read channels-last data."""
        if ins.shape.is_dynamic or ins.name != "pooling" or self._pools_channels is None:
            return ins.name in CONVOLUTIONS and not ins.shape.is_dynamic
        return ins.inputs[0].shape.standard and self._pools_channels(ins)

    @staticmethod
    def _as_view(module: Module, ins: Instruction) -> None:
        """``reshape(x) -> reshape_lazy(x)`` for a non-standard x, which keeps the memory order.

        Where that is impossible because parts of an axis are not contiguous (a channel shuffle), the necessary copy
        uses x's own memory order: ``reshape_lazy(layout(x))``.
        """
        source, lens = ins.inputs[0].shape, ins.shape.lens
        if source.is_dynamic or source.standard or source.broadcasted or known_less_equal(source.elements, 1):
            return
        if view_strides(source, lens) is None:
            order = _merging_order(source, lens)
            if order is None:
                return
            copied = module.insert_instruction(ins, make_op("layout", permutation=order), ins.inputs)
            copied.debug_symbols = ins.debug_symbols
            module.rewire(ins, [copied])
        ins.op = make_op("reshape_lazy", dims=lens)

    @staticmethod
    def _in_order(
        module: Module, user: Instruction, value: Instruction, arranged: dict[Instruction, Instruction]
    ) -> Instruction:
        permutation = channels_last(value.shape.ndim)
        if not value.shape.broadcasted and find_permutation([value.shape]) == permutation:
            return value
        if value not in arranged:
            builder = RewriteBuilder(module, user)
            shape = Shape.from_permutation(value.shape.type, value.shape.lens, permutation)
            array = constant_array(value)
            if known_less_equal(value.shape.elements, 1) or value.shape == shape:
                arranged[value] = value
            elif array is not None:
                arranged[value] = builder.argument(laid_out(array, shape))
            elif is_stored_weight(value):
                stored = LayoutConvolution._in_order(module, user, value.inputs[0], arranged)
                arranged[value] = module.insert_instruction(user, value.op, [stored])
            else:
                arranged[value] = builder.op("layout", value, permutation=permutation)
            for new in builder.created:
                new.debug_symbols = user.debug_symbols
        return arranged[value]

    @staticmethod
    def _restore(module: Module, results: list[tuple[Instruction, Shape]]) -> None:
        last = module.return_instruction
        if last is None:
            return
        restored = {}
        for index, (value, shape) in enumerate(results):
            if value.shape != shape and not shape.sub_shapes:
                op = (
                    make_op("contiguous")
                    if shape.standard
                    else make_op("layout", permutation=find_permutation([shape]))
                )
                restored[index] = module.insert_instruction(last, op, [value])
        module.set_inputs(last, restored)


def _merging_order(shape: Shape, lens: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a memory order in which axes that ``lens`` merges are adjacent, close to the current one. Return None if
    ``lens`` does more than merge axes, or if the order is row-major."""
    groups: list[list[int]] = []
    axis = 0
    for n in lens:
        group: list[int] = []
        product = 1
        while axis < shape.ndim and (not known_less_equal(n, product) or known_equal(shape.lens[axis], 1)):
            product *= shape.lens[axis]
            group.append(axis)
            axis += 1
        if not known_equal(product, n):
            return None
        groups.append(group)
    if axis != shape.ndim:
        return None

    def nearness(group: list[int]) -> int:
        own = (hint(shape.strides[a]) for a in group if hint(shape.lens[a]) > 1)
        return min(own, default=hint(shape.element_space))

    order = tuple(a for group in sorted(groups, key=nearness, reverse=True) for a in group)
    return None if order == tuple(range(shape.ndim)) else order
