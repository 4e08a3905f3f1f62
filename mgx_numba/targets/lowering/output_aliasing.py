"""Choose destinations: lend the memory of results, concatenations and paddings to the instructions that compute their
contents.

In-place results: place a result in the memory of an operand that no later step reads, such as the sum with a
residual.

This halves the memory traffic, and the written cache lines are in the cache already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...codegen.launch import Launch
from ...core.dim import known_equal, known_less_equal
from ...core.shape import Shape, invert_permutation
from ...graph.instruction import Instruction, Parameter
from ...graph.module import Module
from ...ops.dims import view_strides
from ...ops.integer import PadWith
from ...ops.pad import Pad, PadMode
from ...runtime.plan import Region
from .buffers import ALIGNMENT, Buffer, View
from .fallback_values import is_on_host
from .rules import RuleTable

PADS = ("pad", "pad_with")
WALKS = ("concat", *PADS, "pointwise", "pooling")
"""Operators whose kernels read strided memory at full speed, besides single pointwise operations."""
STRIDED_TUPLES = ("pointwise", "fused_reduce", "if", "if_short")
"""Operators with tuples as results whose rules write into lent memory of any strides."""
FLAT_TUPLES = ("nonzero", "nonmaxsuppression", "topk", "unique")
"""Those whose rules write into lent memory that is row-major."""
RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze", "reshape_lazy")


def output_aliases(
    module: Module, rules: RuleTable, allocate: Callable[..., View], results: Sequence[View] | None = None
) -> dict[Instruction, View]:
    """Return the views lent to instructions of a module, into which they write their results.

    Args:
        rules: the target's rules, which say which destinations an instruction's lowering accepts.
        allocate: makes a buffer for a shape with a number of extra bytes after it, for concatenations and paddings that
            are lent no memory themselves.
        results: memory for the first results of the module; None: all results are the plan's.
    """
    donor = _Donor(module, rules, allocate)
    for k, ins in enumerate(module.results()):
        if results is not None and k < len(results):
            donor.donate(ins, results[k])
        elif results is None and not is_on_host(ins.shape):
            standard = ins.shape.to_standard()
            donor.donate(ins, View(Buffer(Region.OUTPUT, k, standard.bytes), standard))
    for ins in reversed(module):
        if ins.name in PADS:
            donor.donate_middle(ins)
        elif ins.name == "concat":
            donor.donate_to_pieces(ins)
    return donor.donated


class _Donor:
    """The destinations of one module while they are chosen.

    Attributes:
        donated: view that each instruction is to write.
    """

    def __init__(self, module: Module, rules: RuleTable, allocate: Callable[..., View]) -> None:
        self.donated: dict[Instruction, View] = {}
        self._module, self._rules, self._allocate = module, rules, allocate
        self._inside: set[Instruction] = set()  # instructions that write inside a padded value

    def donate_to_pieces(self, ins: Instruction) -> None:
        """Lend the parts of a concatenation's memory to its inputs."""
        if ins not in self.donated:
            if is_on_host(ins.shape):
                return
            self.donated[ins] = self._allocate(ins.shape)
        start = 0
        whole, axis = self.donated[ins], ins.op.axis  # type: ignore[attr-defined]
        axis %= len(ins.shape.lens)
        for source in ins.inputs:
            shape = Shape(source.shape.type, source.shape.lens, whole.strides)
            if ins not in self._inside or read_with_gaps(source, ins):
                self.donate(source, whole.with_shape(shape, start * whole.strides[axis]))
            start += source.shape.lens[axis]

    def donate_middle(self, ins: Instruction) -> None:
        """Lend the interior of a padded value to the padding's input, if its rule can write there and all its users
        read with gaps.

        The padded value's buffer ends with an extra cache line that kernels may read.
        """
        rule, source = self._rules.get(ins.name), ins.inputs[0]
        if rule is None or not rule.surrounds or is_on_host(ins.shape):
            return
        whole = self.donated.setdefault(ins, self._allocate(ins.shape, ALIGNMENT))
        inside = inside_of(ins, whole)
        if inside is None or source in self.donated or not read_with_gaps(source, ins):
            return
        if self._may_donate(source, inside.shape):
            self.donated[source] = inside
            self._inside.add(source)

    def donate(self, ins: Instruction, view: View) -> None:
        """Lend memory to the instruction, or to the instruction of which it is a transpose, reshape or bit cast.

        Reshapes in between are lent the memory too: any of them may turn out to be a copy.
        """
        first = plain = ins  # plain: behind views that insert axes alone
        while (seen := seen_before(ins, view.shape)) is not None:
            if plain is ins and ins.name == "unsqueeze":
                plain = ins.inputs[0]
            if ins.name in RESHAPES and ins.module is self._module:
                self.donated.setdefault(ins, view)
            ins, view = ins.inputs[0], view.with_shape(seen)
        suits = ins in (first, plain) or keeps_inner_axis(ins, view.shape)
        if suits and ins not in self.donated and self._may_donate(ins, view.shape):
            self.donated[ins] = view

    def _may_donate(self, ins: Instruction, shape: Shape) -> bool:
        """Return whether an instruction's lowering can write into memory of this shape."""
        if ins.module is not self._module or ins.literal is not None or isinstance(ins.op, Parameter):
            return False
        if is_on_host(ins.shape) or (ins.op.view and ins.name != "get_tuple_elem"):
            return False
        if ins.name == "get_tuple_elem":
            producer = ins.inputs[0]
            once = sum(u.op == ins.op for u in producer.users) == 1
            whole = producer.name in FLAT_TUPLES and shape.standard
            return (whole or producer.name in STRIDED_TUPLES) and once
        rule = self._rules.get(ins.op.rule_name)
        return rule is not None and rule.accepts(ins, shape)


def inside_of(ins: Instruction, whole: View) -> View | None:
    """Return the window of a constant padding's result that holds its input; None for other operators."""
    if not isinstance(ins.op, (Pad, PadWith)) or not all(known_less_equal(0, n) for n in ins.op.pads):
        return None
    if isinstance(ins.op, Pad) and ins.op.mode is not PadMode.constant:
        return None
    source = ins.inputs[0].shape
    shape = Shape(source.type, source.lens, whole.strides)
    return whole.with_shape(shape, sum(n * s for n, s in zip(ins.op.pads, whole.strides)))


def read_with_gaps(ins: Instruction, reader: Instruction) -> bool:
    """Return whether all users of ``ins`` other than ``reader`` read pixels at any strides.

    A submodule that reads the value counts as a user that needs contiguous pixels.
    """
    others = [user for user in ins.users if user is not reader]
    return all(user.module is ins.module and (user.op.pointwise or user.name in WALKS) for user in others)


def keeps_inner_axis(ins: Instruction, shape: Shape) -> bool:
    """Return whether the axis along which the result's own layout is contiguous is also contiguous in ``shape``.

    Kernels write any strides, but a separate transposing step is faster than scattered stores.
    """
    axes = enumerate(zip(ins.shape.lens, ins.shape.strides))
    own = [a for a, (n, s) in axes if known_equal(s, 1) and not known_equal(n, 1)]
    return not own or any(known_equal(shape.strides[a], 1) for a in own)


def seen_before(ins: Instruction, shape: Shape) -> Shape | None:
    """Return the shape (strides) of the input of a transpose, reshape or bit cast whose result has ``shape`` in memory.

    None for other operators, and if no strides express the input.
    """
    if len(ins.inputs) != 1 or ins.inputs[0].shape.is_dynamic or ins.shape.is_dynamic:
        return None
    lens = ins.inputs[0].shape.lens
    if ins.name == "bit_cast":
        return Shape(ins.inputs[0].shape.type, lens, shape.strides)
    if ins.name == "transpose":
        order = invert_permutation(ins.op.attributes()["permutation"])
        return Shape(shape.type, lens, [shape.strides[axis] for axis in order])
    strides = view_strides(shape, lens) if ins.name in RESHAPES else None
    return None if strides is None else Shape(shape.type, lens, strides)


def replaced(steps: Sequence[tuple[Launch | None, Mapping[str, View]]]) -> dict[Buffer, Buffer]:
    """Return, for each buffer that replaces an operand in place, the first buffer at that place, whose life is
    extended.

    Args:
        steps: launch and operands of each step, in order; all arena buffers have their first and last steps.
    """
    first: dict[Buffer, Buffer] = {}
    for number, (launch, operands) in enumerate(steps):
        if launch is None or "out" not in operands:
            continue
        name = replaced_operand(launch.replaceable, operands, number, number, first)
        if name:
            out, operand = operands["out"].buffer, operands[name].buffer
            before = first[out] = first.get(operand, operand)
            before.last = out.last
    return first


def replaced_operand(
    names: Sequence[str], operands: Mapping[str, View], start: int, last: int, first: Mapping[Buffer, Buffer]
) -> str:
    """Return the name of the first operand that ``out`` may overwrite, or an empty string.

    Args:
        names: operands of which each element is read before the same element of the result is written.
        operands: all views that the steps from ``start`` to ``last`` read and write.
        start: first step.
        last: last step.
        first: the first buffer at the place of each buffer that earlier steps placed in place of another.
    """
    out = operands["out"]
    for name in names:
        before = first.get(operands[name].buffer, operands[name].buffer)
        others = (view.buffer for other, view in operands.items() if other not in (name, "out"))
        if (
            _alike(operands[name], out)
            and (before.last, out.buffer.first) == (last, start)
            and all(first.get(other, other) is not before for other in others)
        ):
            return name
    return ""


def _alike(a: View, b: View) -> bool:
    """Return whether two views have the same layout in arena buffers of the same size."""
    regions = {a.buffer.region, b.buffer.region}
    sizes = {(v.buffer.bytes, v.offset, v.type, v.lens, v.strides) for v in (a, b)}
    return regions == {Region.ARENA} and len(sizes) == 1
