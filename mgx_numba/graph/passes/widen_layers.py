"""Layers of float16, bfloat16 and double in float32, which is the type that is quantised to 8 bits, and back again."""

from __future__ import annotations

from ...core.types import Type
from ...dataclass import dataclass
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .quantization_plan import quantizable, quantizable_steps
from .selection import Selection

__all__ = ["WIDENED", "WidenLayers"]

WIDENED = frozenset({Type.half_type, Type.bf16_type, Type.double_type})


@dataclass
class _Widened:
    """The inputs of a layer, and its float32 form with the inputs that were converted for it."""

    inputs: tuple[Instruction, ...]
    wide: Instruction
    wide_inputs: tuple[Instruction, ...]
    results: list[tuple[Instruction, Instruction]]
    """Results in the layer's own type, and the same of the float32 form."""


class WidenLayers(Pass):
    """``layer(x: half, w: half) -> convert[half](layer(convert[float](x), convert[float](w)))`` in the main module.

    `restore` takes back the layers whose inputs have not been quantised since, before dead code is removed: their
    constants have no other readers.
    """

    name = "widen_layers"

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._known: list[_Widened] = []

    def run(self, program: Program, options: Options) -> None:
        """The main module: what submodules compute is not quantised."""
        self.apply(program, program.main, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        floats: dict[Instruction, Instruction] = {}
        for ins in list(module):
            if ins in self.selection and (quantizable(ins, WIDENED) or quantizable_steps(ins, WIDENED)):
                self._known.append(_widened(module, ins, floats))

    def restore(self, module: Module) -> None:
        """Give the layers their own type again whose inputs are those that widening gave them."""
        narrowed: dict[Instruction, Instruction] = {}
        for one in self._known:
            wide = one.wide
            if wide.module is not module or any(a is not b for a, b in zip(wide.inputs, one.wide_inputs, strict=True)):
                continue
            layer = module.insert_instruction(wide, wide.op, [narrowed.get(i, i) for i in one.inputs])
            layer.debug_symbols = wide.debug_symbols
            for own, result in one.results:
                new = layer if result is wide else module.insert_instruction(result, result.op, [layer])
                narrowed[own] = module.replace_instruction(own, new)


def _widened(module: Module, ins: Instruction, floats: dict[Instruction, Instruction]) -> _Widened:
    """Replace a layer by its float32 form; ``floats`` has values of the module as float32."""
    kind, b = ins.inputs[0].shape.type, RewriteBuilder(module, ins)
    for i in ins.inputs:
        if i.shape.type is kind and i not in floats:
            floats[i] = _spread_last(b, i)
    inputs = [floats.get(i, i) if i.shape.type is kind else i for i in ins.inputs]
    wide = module.insert_instruction(ins, ins.op, inputs)
    wide.debug_symbols, wide.normalized = ins.debug_symbols, ins.normalized
    known = _Widened(tuple(ins.inputs), wide, tuple(inputs), [])
    back = make_op("convert", target_type=kind, elidable=True)
    if not ins.shape.sub_shapes:
        known.results.append((module.insert_instruction(ins, back, [wide]), wide))
        module.replace_instruction(ins, known.results[0][0])
    for element in list(ins.users):  # tuples are used by their elements alone
        member = module.insert_instruction(element, element.op, [wide])
        known.results.append((module.insert_instruction(element, back, [member]), member))
        module.replace_instruction(element, known.results[-1][0])
        module.remove_instruction(element)
    module.remove_instruction(ins)
    return known


def _spread_last(b: RewriteBuilder, value: Instruction) -> Instruction:
    """Convert a value to float32: before it is repeated, if its lengths are open, so that constants stay constants."""
    if value.name == "multibroadcast" and value.shape.is_dynamic:
        return b.op(value.op, b.convert(value.inputs[0], Type.float_type), *value.inputs[1:])
    return b.convert(value, Type.float_type)
