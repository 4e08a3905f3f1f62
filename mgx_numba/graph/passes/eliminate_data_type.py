"""Compute 16-bit and 8-bit floats in float32 (MIGraphX's ``eliminate_data_type``), for targets whose arithmetic is
float32.

Values stay narrow at a program's inputs and results, where they are only moved, as weights, and at conversions by the
model's author. With ``fast_math`` no other 16-bit value is rounded: conversions added by the compiler are ``elidable``.
Without it, each result is rounded as the program says. Values rounded to float8 are always rounded, as a quantised
program means it, but moved and stored in float32, since rounding is cheaper than encoding and decoding. Products of two
bfloat16 values are marked, so that a target may round their operands.
"""

from __future__ import annotations

from collections.abc import Collection

from ...core.dim import known_less
from ...core.types import Type
from ...ops.base import Operator, make_op
from ...ops.pad import PadMode
from ...ops.pooling import PoolingMode
from ..constants import CONSTANT_VIEWS, is_constant, uniform_value
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .autocast_fp8 import FLOAT8
from .base import Options, Pass
from .build import RewriteBuilder
from .eliminate_convert import is_elidable
from .storage_types import STORAGE, element_types, handles_sequences

NARROW = frozenset(STORAGE) | FLOAT8
WIDE = Type.float_type
UNTOUCHED = frozenset(
    "if if_short loop run_on_target select_module get_tuple_elem bit_cast unpack_int4 unpack_fp4 pack_int4 pack_fp4"
    " allocate load undefined random_uniform random_seed multinomial nonzero unique dimensions_of dynamic_range unknown"
    " deferred".split()
)
"""Operators that pass values through, or have types of their own."""
MOVES = frozenset(
    "contiguous layout concat pad fixed_pad gather gather_elements gathernd scatter_none scatternd_none fill reverse"
    " step scan_slice onehot rnn_var_sl_shift_sequence rnn_var_sl_shift_output rnn_var_sl_last_output"
    " concat_past_present update_cache".split()
)
"""Operators that only move values: 16-bit values stay 16-bit, unless all operands exist in float32."""
COPIES = MOVES | {"reshape", "relu"}
"""Operators whose results are elements of their inputs, or zero, of the same type."""
PRODUCTS = frozenset({"dot", "convolution", "convolution_backwards"})
KEPT_INPUTS = {"cached_attention": (1, 2)}
"""Inputs that stay narrow: the operator converts their elements itself."""
QUANTIZED = {f"quant_{name}": name for name in ("dot", "convolution", "convolution_backwards")}


def is_stored_weight(ins: Instruction) -> bool:
    """Return whether an instruction converts a 16-bit constant to float32."""
    return ins.name == "convert" and ins.inputs[0].shape.type in STORAGE and is_constant(ins.inputs[0])


def copies(ins: Instruction) -> bool:
    """Return whether results need no rounding if the inputs needed none. Maxima qualify if no window lies in padding
    alone (minus infinity); a padding value may not be representable."""
    given = ins.op.attributes()
    if ins.name == "pooling":
        within = all(known_less(p, n) for p in given["padding"] for n in given["lengths"])
        padded = not within or max(given["dilations"]) > 1
        return given["mode"] is PoolingMode.max and (given["dyn_global"] or not padded)
    if ins.name == "pad":
        return given["mode"] is not PadMode.constant or given["value"] == 0
    return ins.name in COPIES


def moves_rounded(ins: Instruction) -> bool:
    """Return whether an operator moves, compares or averages elements in a kernel that reads and stores rounded
    values."""
    if ins.name == "pooling":
        return ins.op.attributes()["mode"] is not PoolingMode.lpnorm
    return ins.name == "concat" or (ins.name in CONSTANT_VIEWS and len(ins.inputs) == 1)


def _all_ask(value: Instruction, seen: set[Instruction]) -> bool:
    """Return whether all readers of a computed value, also through moves of elements, read it rounded to 16 bits."""
    if value in seen or isinstance(value.op, Parameter) or is_constant(value):
        return True
    seen.add(value)
    for user in value.users:
        if not (is_elidable(user) and user.shape.type in STORAGE) and not (
            moves_rounded(user) and _all_ask(user, seen)
        ):
            return False
    return not moves_rounded(value) or all(_all_ask(i, seen) for i in value.inputs)


def _is_untouched(ins: Instruction) -> bool:
    """Return whether an operator keeps its types; custom functions follow their shape rules."""
    return ins.name in UNTOUCHED or (ins.op.custom and not ins.op.pointwise) or handles_sequences(ins)


class EliminateDataType(Pass):
    """``op(x: half) -> convert[half](op(convert[float](x)))``, reusing the float32 form of each value."""

    name = "eliminate_data_type"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if not NARROW.isdisjoint(element_types(list(module))):
            can = options.capabilities
            bfloat16 = can is not None and can.multiplies_bfloat16 is not None
            Widening(module, options.fast_math, kept=(Type.bf16_type,) if bfloat16 else ()).run()


class Widening:
    """Rewrites one module: operations on ``narrow`` types compute in type ``to``; ``wide`` maps values to their wide
    form.

    With ``fast_math``, values of types in ``storage`` are rounded only for readers that do not compute, and values of
    types in ``kept`` exist beside their wide form: a target may round for all readers whatever it finds unconverted.
    """

    def __init__(
        self,
        module: Module,
        fast_math: bool,
        narrow: Collection[Type] = NARROW,
        storage: Collection[Type] = STORAGE,
        to: Type = WIDE,
        kept: Collection[Type] = (),
    ) -> None:
        self.module = module
        self.fast_math = fast_math
        self.narrow, self.storage, self.to, self.kept = narrow, storage, to, kept
        self.wide: dict[Instruction, Instruction] = {}
        self.rounded: set[Instruction] = set()
        """Values of types that are not in ``storage``, and how these are seen, which are made of wide ones."""
        self.unasked: set[Instruction] = set()
        """Values that are rounded to types in ``kept`` for some readers alone."""
        self.excess: set[Instruction] = set()
        """Values whose wide form may have more bits than their type; the author's conversions drop these bits."""

    def run(self) -> None:
        rounded = [i.inputs[0] for i in self.module if is_elidable(i) and i.shape.type in self.kept]
        self.unasked = {value for value in rounded if not _all_ask(value, set())}
        for ins in list(self.module):
            if ins.literal is not None or isinstance(ins.op, (Parameter, Return)) or ins.module is not self.module:
                continue
            narrow = [i for i in ins.inputs if i.shape.type in self.narrow]
            makes = any(leaf.type in self.narrow for leaf in ins.shape.flatten())
            if ins.name == "convert":
                self._convert(ins)
            elif not (narrow or makes) or ins.module_args or _is_untouched(ins):
                continue
            elif ins.op.view:
                self._view(ins)
            elif ins.name not in MOVES or (narrow and all(i in self.wide or i in self.rounded for i in narrow)):
                self._compute(ins)

    def _convert(self, ins: Instruction) -> None:
        source, kind = ins.inputs[0], ins.shape.type
        elidable = is_elidable(ins)
        if source in self.wide and kind not in self.narrow and (elidable or source not in self.excess):
            value = self.wide[source]
            if kind is not self.to:
                value = self.module.insert_instruction(ins, ins.op, [value])
            self.module.replace_instruction(ins, value)
        elif self.fast_math and elidable and kind in self.storage and source.shape.type is self.to:
            if source in self.unasked and kind in self.kept:
                return
            self.wide[ins] = source
            self.excess.add(ins)
        elif self.fast_math and elidable and kind in self.storage and source in self.wide:
            self.wide[ins] = self.wide[source]
            self.excess.add(ins)
        elif kind in self.narrow and kind not in self.storage and (source.shape.type is self.to or source in self.wide):
            self.rounded.add(ins)
        elif kind is self.to and source.shape.type in self.narrow:
            self.wide.setdefault(source, ins)

    def _view(self, ins: Instruction) -> None:
        """Make a view of a value that has a wide form wide, too."""
        if ins.inputs[0] in self.rounded:
            self._widened(ins, 0)
        if ins.inputs[0] in self.wide:
            inputs = [self.wide.get(i, i) for i in ins.inputs]
            self.wide[ins] = self._insert(ins, ins.op, inputs)
            if ins.inputs[0] in self.excess:
                self.excess.add(ins)

    def _compute(self, ins: Instruction) -> None:
        module = self.module
        kept = KEPT_INPUTS.get(ins.name, ())
        inputs = [
            self._widened(ins, k) if i.shape.type in self.narrow and k not in kept else i
            for k, i in enumerate(ins.inputs)
        ]
        op = ins.op
        if ins.name in QUANTIZED:  # float8: sums are float32
            op = make_op(QUANTIZED[ins.name], **op.attributes())
        if self.fast_math and "bfloat16_products" in op.UNLESS_SET and ins.shape.type is Type.bf16_type:
            op = op.with_attributes(bfloat16_products=not any(is_constant(i) for i in ins.inputs[:2]))
        computed = self._insert(ins, op, inputs)
        if ins.shape.sub_shapes:
            for user in list(ins.users):  # tuples are used by their elements alone
                element = module.insert_instruction(user, user.op, [computed])
                module.replace_instruction(user, self._narrowed(user, element))
            return
        module.replace_instruction(ins, self._narrowed(ins, computed))

    def _narrowed(self, ins: Instruction, computed: Instruction) -> Instruction:
        """Return a computed value in the type that its users expect."""
        kind = ins.shape.type
        if computed.shape.type is kind:
            return computed
        narrow = self._insert(ins, make_op("convert", target_type=kind, elidable=True), [computed])
        if (self.fast_math and kind in self.storage) or (copies(ins) and kind not in self.storage):
            self.wide[narrow] = computed
            if kind in self.storage:
                self.excess.add(narrow)
        elif kind not in self.storage:
            self.rounded.add(narrow)
        return narrow

    def _widened(self, user: Instruction, place: int) -> Instruction:
        """Return the wide form of an input. Weights of 16-bit products stay narrow, unless all elements are equal."""
        value = user.inputs[place]
        if value not in self.wide:
            right = user.name in PRODUCTS and place == 1
            if right and value.shape.type in self.storage and is_constant(value) and uniform_value(value) is None:
                return self._insert(user, make_op("convert", target_type=self.to, elidable=True), [value])
            self.wide[value] = RewriteBuilder(self.module, user).convert(value, self.to)
        return self.wide[value]

    def _insert(self, before: Instruction, op: Operator, inputs: list[Instruction]) -> Instruction:
        new = self.module.insert_instruction(before, op, inputs)
        new.debug_symbols, new.normalized = before.debug_symbols, before.normalized
        return new
