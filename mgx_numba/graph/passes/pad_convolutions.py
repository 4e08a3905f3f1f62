"""Put the padding of convolutions in memory, for kernels that read every tap without bounds checks.

The producer of the convolution's input writes into the padded buffer (`targets.lowering`), so no copy is needed.
"""

from __future__ import annotations

from ...ops.window import PaddingMode
from ..constants import is_constant
from ..instruction import Instruction, Parameter
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .storage_types import widens

CONVOLUTIONS = frozenset({"convolution", "quant_convolution"})


class PadConvolutions(Pass):
    """``conv[padding](x, w)`` -> ``conv(pad(x), w)`` where the target says it is faster. A bfloat16 ``x`` that is
    widened is padded in bfloat16."""

    name = "pad_convolutions"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.reads_padding is None:
            return
        padded: dict[tuple[Instruction, tuple[int, ...]], Instruction] = {}
        for ins in list(module):
            if ins.name not in CONVOLUTIONS or any(i.shape.is_dynamic for i in ins.inputs):
                continue
            attributes = ins.op.attributes()
            own = attributes["padding"]
            if not any(own) or min(own) < 0 or attributes["padding_mode"] is not PaddingMode.default_:
                continue
            if not can.reads_padding(ins):
                self.log.refuse(self.name, ins, "the target does not read its taps from padded memory")
                continue
            x = ins.inputs[0]
            stored = x.inputs[0] if widens(x) else x
            if stored.op.view or isinstance(stored.op, Parameter) or is_constant(stored):
                self.log.refuse(self.name, ins, f"no kernel writes its input into padded memory ({stored.name})")
                continue
            spatial = ins.shape.ndim - 2
            begin, end = (own, own) if len(own) == spatial else (own[:spatial], own[spatial:])
            pads = (0, 0, *begin, 0, 0, *end)
            if (x, pads) not in padded:
                value = module.insert_instruction(ins, "pad", [stored], pads=pads)
                if stored is not x:
                    value = module.insert_instruction(ins, x.op, [value])
                padded[x, pads] = value
            op = ins.op.with_attributes(padding=(0,) * (2 * spatial))
            self.log.apply(self.name, ins)
            module.replace_instruction(ins, op, [padded[x, pads], *ins.inputs[1:]])
            if widens(x) and not x.users:
                module.remove_instruction(x)
