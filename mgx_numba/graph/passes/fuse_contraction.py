"""Fuse a dot or convolution with the pointwise operations around it: its prologue and epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...core.dim import known_in, known_less, known_same
from ...core.types import Type
from ...ops.base import make_op
from ...ops.scalar_functions import COSTLY
from ..constants import CONSTANT_VIEWS, is_constant
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .capabilities import Capabilities
from .eliminate_data_type import is_stored_weight
from .fuse_reduce import REDUCTIONS
from .prologue import pointwise_over, prologue_of
from .regions import Refuses, extract, grow, order_of, unfusable
from .rules.quantized import EIGHT_BITS
from .sink_conversions import sink_behind_views
from .storage_types import widens

LONGEST = 4
"""Most operations of a dequantisation: to int32, zero point, to float32, scale."""


def widening(value: Instruction, refuses: Refuses) -> list[Instruction]:
    """Return the operations that compute a value from an 8-bit value and constants, in program order; empty if it is
    not such a value."""
    chain: list[Instruction] = []
    while len(chain) < LONGEST and refuses(value) is None:
        computed = [i for i in value.inputs if not is_constant(i)]
        if len(computed) != 1 or value.shape.type in EIGHT_BITS:
            return []
        chain.append(value)
        value = computed[0]
        if value.shape.type in EIGHT_BITS:
            return chain[::-1]
    return []


def take_narrow_operands(
    module: Module, region: Sequence[Instruction], order: dict[Instruction, int], refuses: Refuses
) -> list[Instruction]:
    """Return a region extended by the dequantisations of its operands, in program order; shared ones are duplicated.

    A dequantisation costs less than reading four times the bytes, and than a separate kernel.
    """
    members = set(region)
    taken: list[Instruction] = []
    for ins in region:
        for place, value in enumerate(ins.inputs):
            if not ins.op.pointwise or value in members or value not in order:
                continue
            chain = widening(value, refuses)
            if not chain:
                continue
            if not all(user in members for one in chain for user in one.users if user not in chain):
                chain = _again(module, ins, chain, order)
                module.set_input(ins, place, chain[-1])
            taken += [one for one in chain if one not in members]
            members.update(chain)
    return sorted([*taken, *region], key=order.__getitem__)


def _again(
    module: Module, before: Instruction, chain: Sequence[Instruction], order: dict[Instruction, int]
) -> list[Instruction]:
    """Insert copies of operations before an instruction."""
    made: dict[Instruction, Instruction] = {}
    for ins in chain:
        made[ins] = module.insert_instruction(before, ins.op, [made.get(i, i) for i in ins.inputs])
        made[ins].debug_symbols = ins.debug_symbols
        order[made[ins]] = order[before]
    return list(made.values())


CONTRACTIONS = frozenset(
    "dot quant_dot matmul_nbits convolution convolution_backwards quant_convolution quant_convolution_backwards".split()
)
INT8 = (Type.int8_type, Type.uint8_type)
LONG = COSTLY - {"div"}  # every quantisation divides, and a lookup takes longer than a division


class FuseContraction(Pass):
    """``pointwise(...pointwise(dot(a, b), c)...)`` -> ``fused_contraction(a, b, c)`` with the operations inside.

    Only operations of the contraction's own shape join, and only while a single value leaves the region. Before a 1x1
    convolution, operations that `prologue_of` can compute on the fly join, too. Conversions of 16-bit weights and of
    8-bit operands join. Where kernels have 16-bit epilogues, 16-bit values are read and written as they are: a widening
    joins where it is read, and stays outside where its result would be stored; it moves behind views to its readers. An
    operand read by contraction and epilogue is converted for each.
    """

    name = "fuse_contraction"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if Type.half_type in options.epilogue_types:
            for ins in [i for i in module if widens(i) and _is_product(i.inputs[0])]:
                sink_behind_views(module, ins)
        order = order_of(module)
        can = options.capabilities
        narrow = can is not None and can.multiplies_bfloat16 is not None
        for ins in module.named(CONTRACTIONS):
            if ins.module is not module:
                continue
            if ins.name == "matmul_nbits" and not options.reads_blocks:
                continue
            reason = unfusable(ins) or _refused_types(ins, options.epilogue_types)
            if reason is not None:
                self.note(ins, reason)
                continue
            stored = _stored_operands(module, ins, order, can)
            leading = prologue_of(ins, order, self.note) if can is None or can.prologues else []
            before = stored + [i for i in leading if i not in stored]
            refuses = pointwise_over(ins.shape.lens)
            if narrow:
                refuses = _keeping_narrow(refuses)
            grown = [i for i in grow([ins], order, refuses, note=self.note) if i is not ins]
            if can is not None and can.byte_tables and known_less(can.byte_tables, prod(ins.shape.lens)):
                grown = _before_table(grown)
            following = take_narrow_operands(module, grown, order, refuses)
            region = sorted([*before, ins, *following], key=order.__getitem__)
            if Type.half_type in options.epilogue_types:
                region = _without_widened_result(region, ins)
            if narrow or Type.half_type in options.epilogue_types:
                after = [i for i in region if i is not ins and i not in before]
                region = sorted(region + _widened(module, ins, after, order), key=order.__getitem__)
            if len(region) > 1:
                self.log.apply(self.name, ins)
                position = order[region[-1]]
                for result in extract(program, module, region, make_op("fused_contraction"), "contraction"):
                    order[result] = position


def _is_product(ins: Instruction) -> bool:
    """Return whether a value is a contraction's, or is computed from one by operations that join its kernel."""
    while ins.op.pointwise and not ins.module_args and len(ins.users) == 1:
        computed = [i for i in ins.inputs if not is_constant(i) and i.name not in CONSTANT_VIEWS]
        if len(computed) != 1:
            return False
        (ins,) = computed
    return ins.name in CONTRACTIONS and len(ins.users) == 1


def _before_table(after: list[Instruction]) -> list[Instruction]:
    """Return the operations after a contraction, without a tail that is a long function of one 8-bit value.

    The tail becomes a pointwise cluster, whose kernel looks up the function's 256 results.
    """
    for k, byte in enumerate(after):
        rest = after[k + 1 :]
        if byte.shape.type in INT8 and any(i.name in LONG for i in rest):
            inside = {byte, *rest}
            read = [i for member in rest for i in member.inputs if i not in inside]
            if all(known_in(s, 0) for i in read for s in i.shape.strides):
                return after[: k + 1]
    return after


def _refused_types(ins: Instruction, wide: Sequence[Type]) -> str | None:
    """Return the reason why no kernel of these types has an epilogue; None if one has."""
    kind = ins.shape.type
    if kind in wide:
        return None
    a, b, *_ = ins.inputs
    if kind is not Type.int32_type or a.shape.type not in INT8 or b.shape.type is not Type.int8_type:
        return f"epilogues are computed in {', '.join(t.name for t in wide)} and of 8-bit integers, not in {kind.name}"
    return None if is_constant(b) else "the right-hand side of a product of integers is not constant"


def _stored_operands(
    module: Module, ins: Instruction, order: dict[Instruction, int], can: Capabilities | None
) -> list[Instruction]:
    """Return the conversions of operands for this contraction alone: of a 16-bit constant right operand, then of a
    bfloat16 left operand."""
    left, weights = ins.inputs[:2]
    if not is_stored_weight(weights):
        return []
    found = [_own(module, weights, [ins], order)]
    if can is not None and can.multiplies_bfloat16 is not None and widens(left):
        narrow = left.inputs[0].shape.type is Type.bf16_type is weights.inputs[0].shape.type
        if narrow and not is_constant(left) and can.multiplies_bfloat16(ins):
            found.append(_own(module, left, [ins], order))
    return found


def _keeping_narrow(refuses: Refuses) -> Refuses:
    """Return ``refuses`` extended to refuse widening of 16 bits; readers widen themselves."""
    return lambda ins: "it widens what is stored in 16 bits" if widens(ins) else refuses(ins)


def _own(
    module: Module, shared: Instruction, readers: Sequence[Instruction], order: dict[Instruction, int]
) -> Instruction:
    """Return the instruction if only ``readers`` read it, else a copy for them."""
    if all(user in readers for user in shared.users):
        return shared
    made = module.insert_instruction(shared, shared.op, shared.inputs)
    order[made] = order[shared]
    for reader in readers:
        module.set_inputs(reader, {k: made for k, i in enumerate(reader.inputs) if i is shared})
    return made


def _without_widened_result(region: list[Instruction], contraction: Instruction) -> list[Instruction]:
    """Return the region without a last widening whose users are other pointwise operations."""
    last = region[-1]
    beside = last.users and all(user.op.pointwise or user.name in REDUCTIONS for user in last.users)
    return region[:-1] if last is not contraction and widens(last) and beside else region


def _widened(
    module: Module, contraction: Instruction, after: Sequence[Instruction], order: dict[Instruction, int]
) -> list[Instruction]:
    """Return the conversions of 16-bit values to float32 that operations after a contraction read.

    Only these operations read a conversion that is returned: other readers keep a conversion of their own.
    """
    members = {contraction, *after}
    lens = contraction.shape.lens
    found = dict.fromkeys(
        i
        for member in after
        for i in member.inputs
        if i not in members and i in order and widens(i) and known_same(i.shape.lens, lens) and not is_constant(i)
    )
    return [_own(module, i, [u for u in i.users if u in after], order) for i in found]
