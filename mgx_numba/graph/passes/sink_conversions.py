"""Convert narrow values where they are used: conversions to a wider type move behind views, into the pointwise
operations that read them.

Rotary positions (Su et al., 2021) read halves of queries and keys in float32. A kernel of its own would convert these
values if they are slices of one product, whose kernel cannot.
"""

from __future__ import annotations

from ..constants import CONSTANT_VIEWS, is_constant
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead


class SinkConversions(Pass):
    """``f(view(convert(x)))`` -> ``f(convert(view(x)))`` for all readers ``f`` of a conversion to a wider type, if they
    are pointwise operations and ``x`` is computed by none."""

    name = "sink_conversions"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in [i for i in module if i.name == "convert"]:
            readers: list[Instruction] = []
            views: list[Instruction] = []
            reason = _refused(ins, readers, views)
            if reason:
                self.log.refuse(self.name, ins, reason)
                continue
            self.log.apply(self.name, ins)
            _sink(module, ins, readers, views)


def _refused(convert: Instruction, readers: list[Instruction], views: list[Instruction]) -> str:
    """Return the reason to keep a conversion, "" for none; add its readers, and the views between."""
    (source,) = convert.inputs
    if convert.shape.is_dynamic or source.shape.type.size >= convert.shape.type.size or is_constant(source):
        return "it is no conversion of computed values to a wider type"
    while source.name in CONSTANT_VIEWS and len(source.inputs) == 1:
        (source,) = source.inputs
    if source.op.pointwise or source.module_args:
        return "the kernel that computes the values converts them"
    reason = _found_readers(convert, readers, views)
    return reason or ("" if views or len(readers) > 1 else "its only reader converts the values itself")


def _found_readers(convert: Instruction, readers: list[Instruction], views: list[Instruction]) -> str:
    """Collect a conversion's readers and the views before them; return why a reader is not pointwise, or ""."""
    pending = [convert]
    while pending:
        for user in pending.pop().users:
            if isinstance(user.op, Return) or user.module is not convert.module:
                return "the converted values are needed"
            if user.name in CONSTANT_VIEWS and len(user.inputs) == 1:
                views.append(user)
                pending.append(user)
            elif user.op.pointwise and not user.module_args and user.name != "convert":
                readers.append(user)
            else:
                return "an operation reads the converted values that is not pointwise"
    return ""


def sink_behind_views(module: Module, convert: Instruction) -> bool:
    """Move a conversion to a wider type behind views, to its readers, if all are pointwise; return whether it is."""
    readers: list[Instruction] = []
    views: list[Instruction] = []
    if convert.shape.is_dynamic or _found_readers(convert, readers, views) or not views:
        return False
    _sink(module, convert, readers, views)
    return True


def _sink(module: Module, convert: Instruction, readers: list[Instruction], views: list[Instruction]) -> None:
    """Give each reader a conversion of its own, of the views of the narrow values."""
    narrow = {convert: convert.inputs[0]}
    for view in views:
        narrow[view] = module.insert_instruction(view, view.op, [narrow[view.inputs[0]]])
        narrow[view].debug_symbols = view.debug_symbols
    for reader in dict.fromkeys(readers):
        made: dict[Instruction, Instruction] = {}
        for value in reader.inputs:
            if value in narrow and value not in made:
                made[value] = module.insert_instruction(reader, convert.op, [narrow[value]])
                made[value].debug_symbols = convert.debug_symbols
        module.set_inputs(reader, {k: made[value] for k, value in enumerate(reader.inputs) if value in made})
    remove_dead(module, [*views, convert])
