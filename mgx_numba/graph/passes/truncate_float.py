"""Mixed precision: instructions compute in float16 or bfloat16, between conversions (MIGraphX's ``truncate_float``).

Inputs and results of the program keep their types. With ``all``, values unsuited to 16 bits stay in float32, as in
other frameworks' autocasting: sums, norms and softmax with adjacent pointwise operations; functions that amplify
rounding errors of their operands; sums of two computed values (a residual stream may exceed 65504); operations with
constants that 16 bits cannot hold; in float16, operations on a value and its own mean or another reduction
(`float16_range.py`). bfloat16 rounds eight times as coarsely: operations after the last products stay in float32, and
so do values that are broadcast (the gates of squeeze-and-excitation: Hu et al., "Squeeze-and-Excitation Networks",
2018), whose error would be common to many elements. Biases and scales keep all bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ...core.types import Type
from ...errors import OptionError
from ..constants import compact, constant_array, is_constant, is_given, uniform
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import CONTRACTIONS, Options, Pass
from .build import RewriteBuilder
from .expected_means import expected_means
from .float16_range import (
    VIEWS,
    combine_with_reductions,
    lift_weights,
    loses_constants,
    origin,
    scale_first,
    scaled_product,
)
from .merge_rnn_outputs import LAST, last_states
from .rounded_weights import narrow_weights
from .selection import Selection
from .storage_types import STORAGE, handles_sequences, widens

WIDE = frozenset({Type.float_type, Type.double_type})

SENSITIVE = frozenset(
    "softmax logsoftmax reduce_sum reduce_mean reduce_prod prefix_scan_sum lrn exp log log2 pow sin cos tan fmod mod"
    " floor ceil nearbyint argmax argmin topk equal greater less nonmaxsuppression roialign".split()
)
"""Operators that stay in float32 with ``all``: they sum, overflow, amplify rounding errors, or decide by their
operands."""
UNTOUCHED = frozenset(
    "convert quantizelinear dequantizelinear unpack_int4 pack_int4 unpack_fp4 pack_fp4 if if_short loop"
    " run_on_target select_module random_uniform random_seed multinomial unknown deferred".split()
).union(LAST)
"""Operators with types of their own, with submodules that are converted instead, or that belong to their layer."""
PRODUCTS = frozenset("dot convolution convolution_backwards rnn gru lstm".split())
"""Operators that are faster in 16 bits, whatever converting their inputs costs."""
ONE_OPERAND = VIEWS | {"matmul_nbits"}
"""Operators of which only the first input is converted; scales of block weights are float32 for rows of any type."""
MOVES = frozenset("concat gather pad pooling resize".split())
"""Operators that stay in float32, with their producers, for a product that must."""


class TruncateFloat(Pass):
    """``op(x: float) -> convert[float](op(convert[half](x)))`` for selected instructions; constants are folded
    later."""

    name = "truncate_float"

    def __init__(
        self,
        ins_names: Iterable[str] = ("all",),
        float_type: Type = Type.half_type,
        kept: Collection[Instruction] = (),
    ) -> None:
        """Store the settings.

        Args:
            ins_names: see `Selection`; named instructions are converted even where ``all`` would keep float32.
            float_type: half_type or bf16_type.
            kept: stay in float32 whatever is named; with ``all`` so do pointwise operations, concatenations and pools
                that lead to them.

        Raises:
            OptionError: the type is not supported, or there are no names.
        """
        if float_type not in STORAGE:
            raise OptionError(f"float_type is {float_type.name}, expected one of {', '.join(t.name for t in STORAGE)}")
        self.selection = Selection(ins_names, whole_layers=True)
        self.float_type = float_type
        self.kept = set(kept)
        self._weights: dict[Instruction, Instruction] = {}
        """Constants in 16 bits, of one module: another one does not see them."""
        self._means: dict[Instruction, np.ndarray] = {}
        self._lowered: set[Instruction] = set()
        """Multiplications behind products whose weights were lifted."""
        self.converted = 0
        """Instructions that have been converted."""

    def layers(self, program: Program) -> list[Instruction]:
        """Return the selected products of the main module that are not in 8 bits, in program order."""
        return [
            ins
            for ins in program.main
            if ins.name in PRODUCTS and ins in self.selection and _has_wide_inputs(ins) and not _is_quantized(ins)
        ]

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self._weights.clear()
        if self.selection.everything and self.float_type is Type.half_type:
            self._scale_first(module)
            self._lift_weights(module)
        wide = self._islands(module) if self.selection.everything else set()
        if self.selection.everything and self.float_type is Type.bf16_type and module is program.main:
            wide |= _ends(module)
        order = list(module)
        chosen = [ins for ins in order if ins in self.selection and ins not in self.kept and _has_wide_inputs(ins)]
        self._means = means_of_inputs(module, chosen)
        taken = set(chosen)
        for k, ins in enumerate(order):
            if ins not in taken or ins.op.custom:
                continue
            if _is_quantized(ins):
                self._round(module, ins, next(i for i in order[k + 1 :] if i.module is module))
            elif self.selection.named(ins) or not (ins in wide or self._would_round(ins)):
                self._truncate(module, ins)
        if self.selection.everything:
            self._share_with_sums(module)

    def _share_with_sums(self, module: Module) -> None:
        """Let float32 residual sums read an addend in 16 bits if a product does, so that it is stored once.

        An addend beyond float16's range makes the product infinite, too. Other readers keep all bits, and so do sums
        whose addend others read in float32.
        """
        order = {ins: k for k, ins in enumerate(module)}
        for source in list(order):
            if source.module is not module or source.shape.type not in WIDE or is_given(source) or widens(source):
                continue
            users = list(source.users)
            same = [u for u in users if self._is_own(u)]
            others = [u for u in users if u not in same]
            if not others or not all(u in order and _is_residual(u) and u not in self.kept for u in others):
                continue
            if not any(_leads_to_product(u) for u in same):
                continue
            first = min(users, key=order.__getitem__)
            narrow = _converted(module, first, source, self.float_type)
            wide = _converted(module, first, narrow, source.shape.type)
            for user in same:
                module.replace_instruction(user, narrow)
                module.remove_instruction(user)
            for user in others:
                module.set_inputs(user, {k: wide for k, i in enumerate(user.inputs) if i is source})

    def _is_own(self, ins: Instruction) -> bool:
        """Return whether the compiler added a conversion to 16 bits."""
        return ins.name == "convert" and ins.shape.type is self.float_type and ins.op.elidable  # type: ignore[attr-defined]

    def _would_round(self, ins: Instruction) -> bool:
        """Return whether an instruction is a view of a value that is not 16-bit already."""
        source = ins.inputs[0]
        return ins.name in VIEWS and not (source.name == "convert" and source.inputs[0].shape.type is self.float_type)

    def _scale_first(self, module: Module) -> None:
        """Scale operands of attention products first; unscaled products may exceed 65504."""
        for ins in list(module):
            found = scaled_product(ins) if ins.module is module else None
            if found is not None and found[0] in self.selection and found[0] not in self.kept:
                scale_first(module, ins, *found)

    def _lift_weights(self, module: Module) -> None:
        """Multiply weights that would be subnormal by a power of two, and results by its reciprocal in float32."""
        for ins in list(module):
            if ins.name not in ("dot", "convolution") or ins not in self.selection or ins in self.kept:
                continue
            lowered = lift_weights(module, ins, self.float_type) if is_constant(ins.inputs[1]) else None
            if lowered is not None:
                self._lowered.add(lowered)

    def _islands(self, module: Module) -> set[Instruction]:
        """Return the instructions that stay in float32 with ``all``."""
        order = list(module)
        found = {ins for ins in order if ins in self.kept or ins in self._lowered or self._stays(ins)}
        quotients: set[Instruction] = set()
        if self.float_type is Type.half_type:
            own, reductions = combine_with_reductions(order)
            quotients = {ins for ins in own - found if ins.name in ("mul", "div")}
            found |= own | reductions
        spread = [ins for ins in order if _spreads(ins)] if self.float_type is Type.bf16_type else []
        found.update(i for i in map(origin, spread) if i.op.pointwise and i.name not in UNTOUCHED)
        exact = set(self.kept)
        for ins in reversed(order):  # what leads to them
            if ins in found:
                leading = {i for i in map(origin, ins.inputs) if i.op.pointwise and i.name not in UNTOUCHED}
                if ins in exact:
                    leading.update(i for i in map(origin, ins.inputs) if i.name in MOVES)
                    exact |= leading
                found |= leading
        found.update(u for ins in spread for u in [ins, *ins.users] if u.op.pointwise or u is ins)
        found -= quotients  # small again: what follows is not kept for them, unless all that they take is
        for ins in order:  # what is made of their results alone
            given = ins.inputs[:1] if ins.name in VIEWS else ins.inputs
            varying = [i for i in given if not is_constant(origin(i)) and i.shape.type in WIDE]
            if varying and (ins.op.pointwise or ins.name in VIEWS) and all(i in found for i in varying):
                found.add(ins)
        found |= quotients
        return found.union(i for ins in found for i in ins.inputs if i.name == "broadcast_for_dot")

    def _stays(self, ins: Instruction) -> bool:
        if ins.name in SENSITIVE or _is_residual(ins):
            return True
        return ins.name not in UNTOUCHED and loses_constants(ins, self.float_type)

    def _kept_constants(self, ins: Instruction) -> set[Instruction]:
        """Return the constants that a pointwise operation reads in float32 with ``all``, although its other operands
        are rounded."""
        if self.float_type is not Type.bf16_type or not ins.op.pointwise or ins.shape.type not in WIDE:
            return set()
        if not self.selection.everything or self.selection.named(ins) or ins.shape.is_dynamic:
            return set()
        return {i for i in ins.inputs if i.shape.type in WIDE and is_constant(i) and self._rounds_spread(i)}

    def _rounds_spread(self, constant: Instruction) -> bool:
        """Return whether a constant repeats several numbers, as biases do, and rounding changes some."""
        array = constant_array(constant)
        if array is None or (few := compact(array)).size == array.size or uniform(few):
            return False
        with np.errstate(all="ignore"):
            return not np.array_equal(few, few.astype(self.float_type.numpy).astype(few.dtype), equal_nan=True)

    def _round(self, module: Module, ins: Instruction, following: Instruction) -> None:
        """Make users read a value rounded; its producer stays as it is."""
        self.converted += 1
        users = {user: [k for k, i in enumerate(user.inputs) if i is ins] for user in ins.users}
        narrow = _converted(module, following, ins, self.float_type)
        wide = self._as(module, following, narrow, ins.shape.type)
        for user, places in users.items():
            (user.module or module).set_inputs(user, dict.fromkeys(places, wide))

    def _truncate(self, module: Module, ins: Instruction) -> None:
        leaves = ins.shape.sub_shapes
        elements = list(ins.users)
        if leaves and any(user.name != "get_tuple_elem" for user in elements):
            return
        self.converted += 1
        kept = self._kept_constants(ins)
        narrow: dict[Instruction, Instruction] = {}
        for i in ins.inputs[:1] if ins.name in ONE_OPERAND else ins.inputs:
            if i.shape.type in WIDE and i.name != "undefined" and i not in narrow and i not in kept:
                narrow[i] = self._narrow(module, ins, i)
        inputs = [narrow.get(i, i) for i in ins.inputs]
        if kept:
            inputs = [self._as(module, ins, n, i.shape.type) for n, i in zip(inputs, ins.inputs)]
        truncated = module.insert_instruction(ins, ins.op, inputs, ins.module_args)
        truncated.debug_symbols, truncated.normalized = ins.debug_symbols, ins.normalized
        if kept:
            truncated = _converted(module, ins, truncated, self.float_type)
        if leaves:
            for element in elements:
                taken = module.insert_instruction(ins, element.op, [truncated])
                module.replace_instruction(element, self._as(module, ins, taken, element.shape.type))
                module.remove_instruction(element)
        else:
            for user in last_states(ins):  # they take their layer itself
                home = user.module or module
                state = home.insert_instruction(user, user.op, [truncated])
                home.replace_instruction(user, self._as(home, user, state, user.shape.type))
                home.remove_instruction(user)
            module.replace_instruction(ins, self._as(module, ins, truncated, ins.shape.type))
        module.remove_instruction(ins)

    def _narrow(self, module: Module, ins: Instruction, value: Instruction) -> Instruction:
        """Return an operand in 16 bits; shared weights become one constant."""
        if value in self._weights:
            return self._weights[value]
        narrow = _narrow(module, ins, value, self.float_type, self._means.get(ins))
        if is_constant(narrow):
            self._weights[value] = narrow
        return narrow

    @staticmethod
    def _as(module: Module, before: Instruction, value: Instruction, type: Type) -> Instruction:
        if value.shape.type is type:
            return value
        return _converted(module, before, value, type)


def means_of_inputs(module: Module, instructions: Collection[Instruction]) -> dict[Instruction, np.ndarray]:
    """Return `expected_means` of the products with constant weights among ``instructions``."""
    return expected_means(module, [i for i in instructions if i.name in CONTRACTIONS and is_constant(i.inputs[1])])


def round_operands(module: Module, ins: Instruction, type: Type, means: np.ndarray | None) -> None:
    """Round a product's floating-point operands to 16 bits; the product itself stays in float32.

    Args:
        means: its entry of `means_of_inputs`.
    """
    for value in dict.fromkeys(i for i in ins.inputs if i.shape.type in WIDE and i.name != "undefined"):
        narrow = _narrow(module, ins, value, type, means)
        wide = _converted(module, ins, narrow, value.shape.type)
        module.set_inputs(ins, {k: wide for k, i in enumerate(ins.inputs) if i is value})


def _narrow(module: Module, ins: Instruction, value: Instruction, type: Type, means: np.ndarray | None) -> Instruction:
    weights = narrow_weights(ins, type, means) if value is ins.inputs[-1] else None
    if weights is None:
        return _converted(module, ins, value, type)
    return RewriteBuilder(module, ins).constant(weights, value.shape.with_type(type))


def _converted(module: Module, before: Instruction, value: Instruction, type: Type) -> Instruction:
    return module.insert_instruction(before, "convert", [value], target_type=type, elidable=True)


def _is_quantized(ins: Instruction) -> bool:
    """Return whether an instruction multiplies dequantised values, which targets do in 8 bits."""
    if ins.name not in ("dot", "convolution"):
        return False
    return all(i.name == "dequantizelinear" for i in map(origin, ins.inputs))


def _has_wide_inputs(ins: Instruction) -> bool:
    if ins.name.startswith("@") or ins.name in UNTOUCHED or ins.module_args or ins.name == "get_tuple_elem":
        return False
    return any(i.shape.type in WIDE for i in ins.inputs) and not handles_sequences(ins)


def _spreads(ins: Instruction) -> bool:
    """Return whether an instruction broadcasts computed values to pointwise operations only."""
    if ins.name not in ("broadcast", "multibroadcast") or ins.shape.type not in WIDE or ins.shape.is_dynamic:
        return False
    given = ins.inputs[0]  # another one gives lengths alone
    source = origin(given)
    if is_constant(source) or given.shape.is_dynamic or ins.shape.elements <= given.shape.elements:
        return False
    return all(u.op.pointwise and u.name not in UNTOUCHED for u in ins.users)


def _ends(module: Module) -> set[Instruction]:
    """Return the instructions that depend on products and lead to results but to no product."""
    order = list(module)
    after: set[Instruction] = set()
    before: set[Instruction] = set()
    for ins in order:
        if ins.name in PRODUCTS or any(i in after for i in ins.inputs):
            after.add(ins)
    for ins in reversed(order):
        inside = all(u.module is module and not u.module_args for u in ins.users)
        if ins.name in PRODUCTS or not inside or any(u in before for u in ins.users):
            before.add(ins)
    return after - before


def _leads_to_product(ins: Instruction) -> bool:
    return any(u.name in PRODUCTS or (u.name in VIEWS and _leads_to_product(u)) for u in ins.users)


def _is_residual(ins: Instruction) -> bool:
    """Return whether an instruction adds two computed values."""
    if ins.name != "add" or ins.shape.type not in WIDE:
        return False
    return not any(is_constant(i) for i in map(origin, ins.inputs))
