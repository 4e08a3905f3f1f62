"""Convert layers of float16, bfloat16 and double to float32, the type that quantisation to 8 bits reads."""

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

WIDENED = frozenset({Type.half_type, Type.bf16_type, Type.double_type})


@dataclass
class _Widened:
    """A layer's original inputs, and its float32 form with the converted inputs."""

    inputs: tuple[Instruction, ...]
    wide: Instruction
    wide_inputs: tuple[Instruction, ...]
    results: list[tuple[Instruction, Instruction]]
    """Pairs: a result in the layer's own type, and the float32 result that it is converted from."""


class WidenLayers(Pass):
    """``layer(x: half, w: half) -> convert[half](layer(convert[float](x), convert[float](w)))`` in the main module.

    After quantisation `restore` undoes this for layers whose inputs were not quantised. `restore` must run before dead
    code is removed, because only the float32 form still refers to the constants of the original layer.
    """

    name = "widen_layers"

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._known: list[_Widened] = []

    def run(self, program: Program, options: Options) -> None:
        """Widen the layers of the main module; submodules are not quantised."""
        self.apply(program, program.main, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        floats: dict[Instruction, Instruction] = {}
        for ins in list(module):
            if ins in self.selection and (quantizable(ins, WIDENED) or quantizable_steps(ins, WIDENED)):
                self._known.append(_widened(module, ins, floats))

    def restore(self, module: Module) -> None:
        """Restore the original type of each layer whose inputs have not changed since widening."""
        narrowed: dict[Instruction, Instruction] = {}
        for widened in self._known:
            wide = widened.wide
            unchanged = all(a is b for a, b in zip(wide.inputs, widened.wide_inputs, strict=True))
            if wide.module is not module or not unchanged:
                continue
            layer = module.insert_instruction(wide, wide.op, [narrowed.get(i, i) for i in widened.inputs])
            layer.debug_symbols = wide.debug_symbols
            for own, result in widened.results:
                new = layer if result is wide else module.insert_instruction(result, result.op, [layer])
                narrowed[own] = module.replace_instruction(own, new)


def _widened(module: Module, ins: Instruction, floats: dict[Instruction, Instruction]) -> _Widened:
    """Replace a layer by its float32 form; ``floats`` caches the float32 form of each value."""
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
    for element in list(ins.users):  # a tuple's only readers are get_tuple_elem
        member = module.insert_instruction(element, element.op, [wide])
        known.results.append((module.insert_instruction(element, back, [member]), member))
        module.replace_instruction(element, known.results[-1][0])
        module.remove_instruction(element)
    module.remove_instruction(ins)
    return known


def _spread_last(b: RewriteBuilder, value: Instruction) -> Instruction:
    """Convert a value to float32; before a broadcast to open lengths, so that constants stay constants."""
    if value.name in ("multibroadcast", "broadcast_for_dot") and value.shape.is_dynamic:
        return b.op(value.op, b.convert(value.inputs[0], Type.float_type), *value.inputs[1:])
    return b.convert(value, Type.float_type)
