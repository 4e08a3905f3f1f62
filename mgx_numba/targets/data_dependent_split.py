"""Cut programs in which lengths depend on data into two stages.

The first stage computes the tensors whose lengths are known before the run. The second stage is a program of its own,
whose inputs' lengths are known once the first has run. Where a kernel can count what it finds, the first stage has no
fallback step (`Operator.counted`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice

import numpy as np

from ..core.dim import known_less_equal
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.passes.dead_code_elimination import SIDE_EFFECTS
from ..graph.program import Program
from ..ops.base import Operator
from ..ops.deferred import LENGTH_SCALARS, Deferred, is_length
from ..ops.fused import GetTupleElem
from ..ops.lengths import Lengths
from ..ops.sampling import RandomSeed
from ..ops.selection import DynamicRange
from ..runtime.completed import Counted, Spaced
from .split_point import LARGEST_SIZE, SplitPoint

WORTHWHILE = frozenset(
    "dot quant_dot matmul_nbits convolution convolution_backwards quant_convolution quant_convolution_backwards"
    " deformable_convolution roialign"
    " lstm gru rnn attention GroupQueryAttention".split()
)
"""Operators, of deferred nodes the model's, that justify a second stage, with a plan of its own. Without such an
operator, or `FEWEST_LIGHT` others, instructions after a data-dependent length run in fallback steps, which handle any
length."""
LIGHT = frozenset("gather gather_elements gathernd softmax logsoftmax concat argmax argmin topk".split())
"""Operators, beside those on elements and reductions, of which several justify a second stage."""
FEWEST_LIGHT = 4
"""Fewest light operators that justify a second stage behind a fallback step. Such a step takes 50 to 90 us, the second
stage about 100 us in all (Zen 3, 1,000 elements). Where kernels count the lengths, it takes about 7 us, and there is no
such limit (`ProgramSplit.optional`)."""
SIZED = {
    **dict.fromkeys("AffineGrid Expand OneHot Reshape Split Tile TopK broadcast_with_dims".split(), (1,)),
    **dict.fromkeys("Resize Slice slice".split(), (1, 2, 3, 4)),
    "ConstantOfShape": (0,),
    "if": (0,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
}
"""Inputs that hold sizes or are constant, by operator or, for a deferred node, by its model's operator."""
JOINED = frozenset("concat reshape squeeze unsqueeze identity".split())
"""Operators that put tensors of sizes together: constants among them are no lengths of the second stage."""
MOST_SIZES = 15
"""Most elements of a tensor of sizes: each is an input of the second stage."""


@dataclass(frozen=True)
class ProgramSplit:
    """A program cut in two.

    Attributes:
        head: computes all tensors with lengths known before a run, and those that determine the other lengths.
        tail: computes the rest.
        split_point: the values passed from head to tail, and the origin of each result.
        optional: whether the two are worthwhile only if one plan of the tail serves all lengths.
        condition: the tail's input that holds the condition of its ``if``, as a size; "" if none decides a branch.
    """

    head: Program
    tail: Program
    split_point: SplitPoint
    optional: bool = False
    condition: str = ""


def split(program: Program, on_host: bool = False, by_sizes: bool = False) -> ProgramSplit | None:
    """Return the two stages of a program; None if no length depends on data, or if a second stage is not worthwhile.

    Args:
        program: the program, which is not changed.
        on_host: whether the target computes on the host. Then kernels count what they find, and the second stage takes
            the program's inputs as they are.
        by_sizes: whether the second stage may take sizes, such as those of a resized image, as lengths
            (`SplitPoint.sizes`), and computes what has these sizes.
    """
    sizes: dict[Instruction, None] = {}
    late = _late(program.main, sizes if by_sizes else None)
    if by_sizes and not _has_few_branches(program.main, late):
        sizes.clear()
        late = _late(program.main, sizes, False)
    results = program.main.results()
    kept = [ins for ins in dict.fromkeys(results) if ins not in late]
    passed = list(_passed(late, sizes))
    light = len(list(islice(filter(_is_light, late), FEWEST_LIGHT)))
    optional = not any(map(_is_worthwhile, late)) and light < FEWEST_LIGHT
    if optional and not (on_host and _is_native(late, [*kept, *passed], bool(sizes))):
        return None
    shared = [ins for ins in passed if on_host and ins.is_param and ins not in sizes]
    passed = [ins for ins in passed if ins not in shared and ins not in sizes]
    count = sum(one.shape.elements for one in sizes)
    head = _part(program, [*kept, *passed, *sizes], program.main.parameters())
    _spread(head.main, list(sizes))
    completed = _completed(head.main, len(passed) + count) if on_host else ()
    ending = [ins for ins in dict.fromkeys(results) if ins in late]
    tail = _part(program, ending, shared, passed, list(sizes))
    names = tuple(ins.op.parameter for ins in shared)  # type: ignore[attr-defined]
    inputs = tuple(name for name in tail.parameter_shapes() if name not in names)
    places = tuple((r not in late, (ending if r in late else kept).index(r)) for r in results)
    point = SplitPoint(inputs, places, completed, names, count)
    return ProgramSplit(head, tail, point, optional, _condition(late, sizes, inputs[len(inputs) - count :]))


def _condition(late: dict[Instruction, None], sizes: dict[Instruction, None], names: Sequence[str]) -> str:
    """Return `ProgramSplit.condition`; ``names`` has the name of each element of the tensors of sizes."""
    place = 0
    for one in sizes:
        if any(ins.name == "if" and ins.inputs[0] is one for ins in late):
            return names[place]
        place += one.shape.elements
    return ""


def _spread(head: Module, sizes: Sequence[Instruction]) -> None:
    """Spread the last results of the first stage, tensors of sizes: each element becomes a result."""
    results = head.results()
    kept, tensors = results[: len(results) - len(sizes)], results[len(results) - len(sizes) :]
    for one, tensor in zip(sizes, tensors, strict=True):
        count = one.shape.elements
        flat = head.add_instruction("reshape", [tensor], dims=[count])
        flat = head.add_instruction("convert", [flat], target_type=Type.int64_type)
        for k in range(count):
            kept.append(
                flat if count == 1 else head.add_instruction("slice", [flat], axes=[0], starts=[k], ends=[k + 1])
            )
    if sizes:
        head.replace_return(kept)


def _is_native(late: dict[Instruction, None], early: list[Instruction], by_sizes: bool) -> bool:
    """Return whether kernels compute all sizes, if ``by_sizes``, and count all lengths that are known before ``late``
    and unknown before a run, and all of ``late`` are tensors that kernels may compute."""
    unknown = [ins for ins in early if ins.shape.is_dynamic]
    return (bool(unknown) or by_sizes) and all(map(_is_completed, unknown)) and all(_is_tensor(ins) for ins in late)


def _is_completed(ins: Instruction) -> bool:
    """Return whether the host makes the value of an instruction from results of kernels (`SplitPoint.completed`)."""
    return isinstance(ins.op, DynamicRange) or _counted(ins) is not None


def _counted(ins: Instruction) -> tuple[Instruction, int, Operator, list[tuple[int, ...]]] | None:
    """Return the instruction of which ``ins`` is a result, the result's number, and what `Operator.counted` returns for
    it; None if it has no such form."""
    source, index = (ins.inputs[0], ins.op.index) if isinstance(ins.op, GetTupleElem) else (ins, 0)
    found = source.op.counted([i.shape for i in source.inputs])
    return None if found is None else (source, index, *found)


def _completed(head: Module, passed: int) -> tuple[Counted | Spaced, ...]:
    """Replace results of the first stage that `_is_completed`; return how the host makes them.

    The numbers that determine their lengths become results before the last ``passed`` ones.
    """
    results, added = head.results(), list[Instruction]()
    kept, made = len(results) - passed, dict[Instruction, tuple[Instruction, Callable[[int], Counted | Spaced]]]()
    forms: dict[Instruction, tuple[Instruction, int]] = {}  # the counted form, and the place of its length
    for ins in dict.fromkeys(results):
        if not ins.shape.is_dynamic or not _is_completed(ins):
            continue
        counted = _counted(ins)
        if counted is None:
            place = kept + len(added)
            made[ins] = ins.inputs[0], partial(Spaced, limit=place, delta=place + 1)
            added += ins.inputs[1:]
            continue
        source, index, form, lens = counted
        if source not in forms:
            forms[source] = head.insert_instruction(source, form, source.inputs), kept + len(added)
            added.append(head.add_instruction("get_tuple_elem", [forms[source][0]], index=len(lens)))
        every, place = forms[source]
        value = head.add_instruction("get_tuple_elem", [every], index=index)
        made[ins] = value, partial(Counted, count=place, lens=lens[index])
    replaced = [made[ins][0] if ins in made else ins for ins in results]
    head.replace_return([*replaced[:kept], *added, *replaced[kept:]])
    for source, (every, _) in forms.items():  # results of known lengths
        for ins in [user for user in source.users if isinstance(user.op, GetTupleElem) and user not in made]:
            index = ins.operator(GetTupleElem).index
            head.replace_instruction(ins, head.insert_instruction(ins, "get_tuple_elem", [every], index=index))
    head.remove_unused()
    numbers = [*range(kept), *range(kept + len(added), len(results) + len(added))]
    return tuple(made[ins][1](number) for number, ins in zip(numbers, results, strict=True) if ins in made)


def _has_few_branches(main: Module, late: dict[Instruction, None]) -> bool:
    """Return whether the second stage may have a plan for each branch of an ``if``: one condition decides, and the
    first stage is light, since it runs once more where another plan than in the last run is needed."""
    conditions = {ins.inputs[0] for ins in late if ins.name == "if" and ins.inputs[0] not in late}
    return not conditions or (len(conditions) == 1 and not any(_is_worthwhile(ins) for ins in main if ins not in late))


def _late(main: Module, sizes: dict[Instruction, None] | None, by_branches: bool = True) -> dict[Instruction, None]:
    """Return the instructions that depend, directly or not, on a tensor with data-dependent lengths.

    Args:
        main: the main module.
        sizes: receives the tensors of sizes of these instructions. An instruction whose result has such sizes is one of
            them. None: sizes are not looked for.
        by_branches: whether conditions of ``if`` are sizes, too.
    """
    found: dict[Instruction, None] = {}
    if not any(ins.shape.is_dynamic for ins in main):
        return found
    constants: dict[Instruction, bool] = {}
    for ins in main:
        if ins.name == "@return":
            break
        needed = ins.dependencies
        late = not found.keys().isdisjoint(needed) or (ins.name != "get_tuple_elem" and any(map(_is_open, needed)))
        sized = sizes is not None and _is_open(ins) and (by_branches or ins.name != "if")
        own = _sizes(ins, found, constants) if sized else None
        if late or own:
            found[ins] = None
        if sizes is not None:
            sizes.update(own or {})
    return found


def _is_open(ins: Instruction) -> bool:
    return ins.shape.is_dynamic and ins.shape.element is None


def _sizes(
    ins: Instruction, late: dict[Instruction, None], constants: dict[Instruction, bool]
) -> dict[Instruction, None] | None:
    """Return the tensors, known before the instructions ``late``, whose elements determine the sizes of an
    instruction's result; None if a size may follow from anything else."""
    kind = _kind(ins)
    places = (
        [k for k, one in enumerate(ins.inputs) if is_length(one.shape)] if kind in LENGTH_SCALARS else SIZED.get(kind)
    )
    if places is None:
        return None
    is_slice = isinstance(ins.op, Deferred) and ins.op.operator == "Slice"
    axes = ins.inputs[3:4] if is_slice else []  # no size stands for an axis
    if not all(_is_constant(one, constants, of_lengths=False) for one in axes):
        return None
    found: dict[Instruction, None] = {}
    pending = [one for k, one in enumerate(ins.inputs) if k in places]
    while pending:
        one = pending.pop()
        if one.name in ("dimensions_of", "lengths") or one in found or _is_constant(one, constants, of_lengths=False):
            continue
        if (
            one.shape.is_dynamic
            or one.shape.type not in (Type.int64_type, Type.int32_type, Type.bool_type)
            or not known_less_equal(one.shape.elements, MOST_SIZES)
        ):
            return None
        if one.inputs and (one in late or one.name in JOINED):
            pending += one.inputs
        elif one in late:
            return None
        else:
            found[one] = None
    return found


def _kind(ins: Instruction) -> str:
    """Return an instruction's operator, for a deferred node the model's."""
    return ins.op.operator if isinstance(ins.op, Deferred) else ins.name


def _joins(ins: Instruction) -> bool:
    """Return whether an instruction only puts tensors of sizes together."""
    s = ins.shape
    return (
        ins.name in JOINED
        and not s.is_dynamic
        and s.type is Type.int64_type
        and known_less_equal(s.elements, MOST_SIZES)
    )


def _is_worthwhile(ins: Instruction) -> bool:
    if _kind(ins) in WORTHWHILE:
        return True
    return any(map(is_worthwhile, ins.module_args))


def _is_tensor(ins: Instruction) -> bool:
    """Return whether an instruction's results are tensors of known rank that kernels compute."""
    parts = ins.shape.flatten()
    return all(s.ranked and s.element is None and not s.type.hosted for s in parts)


def _is_light(ins: Instruction) -> bool:
    kind = _kind(ins)
    return _is_tensor(ins) and (ins.op.pointwise or kind in LIGHT or kind in SIZED or ins.name.startswith("reduce_"))


def has_data_dependent_lengths(ins: Instruction, on_host: bool = False) -> bool:
    """Return whether the branches or loop body of an instruction have data-dependent lengths and justify plans of their
    own: also by several light operators, where the target computes on the host."""
    values: dict[Instruction, None] = {}
    for body in ins.module_args:
        outer = (i for i in body.captured() if i.literal is None)
        values |= dict.fromkeys((*body.parameters(), *outer, *body.results()))
    if any(v.shape.sub_shapes or v.shape.type.hosted or not v.shape.ranked for v in values):
        return False
    inside = [i for body in ins.module_args for i in body] if on_host else []
    if not any(v.shape.is_dynamic for v in (*values, *inside)):
        return False
    return any(map(is_worthwhile, ins.module_args)) or sum(map(_is_light, inside)) >= FEWEST_LIGHT


def is_worthwhile(module: Module) -> bool:
    """Return whether a module holds an operator that justifies a plan of its own."""
    return any(_is_worthwhile(ins) for ins in module)


def _passed(late: dict[Instruction, None], sizes: dict[Instruction, None]) -> dict[Instruction, None]:
    """Return the values that the first stage passes to the second, tensors of ``sizes`` included. The second stage
    computes views of these values itself, and has constants of its own."""
    found: dict[Instruction, None] = {}
    constants: dict[Instruction, bool] = {}
    pending = [i for ins in late for i in ins.dependencies if i not in late]
    seen = set(pending)
    while pending:
        ins = pending.pop(0)
        seen_through = (ins.op.view and not ins.shape.is_dynamic) or (bool(sizes) and _joins(ins))
        if _is_constant(ins, constants):
            continue
        if ins in sizes or not seen_through or ins.name == "get_tuple_elem":
            found[ins] = None
            continue
        pending += [i for i in ins.inputs if i not in seen]
        seen.update(ins.inputs)
    return found


def _is_constant(ins: Instruction, known: dict[Instruction, bool], of_lengths: bool = True) -> bool:
    """Return whether a value is computed from literals alone, or, if ``of_lengths``, from symbolic lengths, too.

    A random seed is not constant: two stages would draw different ones.

    Args:
        ins: computes the value.
        known: keeps the answers.
        of_lengths: whether symbolic lengths count as literals.
    """
    if ins not in known:
        varies = ins.is_param or bool(ins.module_args) or isinstance(ins.op, RandomSeed)
        varies = varies or (not of_lengths and (isinstance(ins.op, Lengths) or ins.shape.symbolic))
        known[ins] = not varies and all(_is_constant(i, known, of_lengths) for i in ins.inputs)
    return known[ins]


def _part(
    program: Program,
    results: list[Instruction],
    shared: list[Instruction],
    given: Sequence[Instruction] = (),
    sizes: Sequence[Instruction] = (),
) -> Program:
    """Return a program that computes ``results`` of the main module; only what they depend on is copied.

    Args:
        program: the whole program.
        results: instructions that become the part's results.
        shared: the program's inputs that the part has, too.
        given: instructions that become further inputs of the part.
        sizes: tensors of sizes that the part takes as further inputs, an element in each; see `SplitPoint.sizes`.
    """
    part = Program()
    part.copy_metadata(program)
    main, mark = part.main, "#"
    main._parameters = program.main._parameters
    while any(p.op.parameter.startswith(mark) for p in program.main.parameters()):  # type: ignore[attr-defined]
        mark += "#"
    mapped = {ins: main.add_parameter(f"{mark}{k}", ins.shape) for k, ins in enumerate(given)}
    first = len(mapped)
    for ins in sizes:
        names = [f"{mark}{k}" for k in range(first, first + ins.shape.elements)]
        mapped[ins] = _taken_sizes(main, names, ins.shape)
        first += len(names)
    part.append_copies(program, mapped, _needed(program.main, results, mapped) | dict.fromkeys(shared))
    main.replace_return([mapped[ins] for ins in results])
    return part


def _needed(main: Module, results: Sequence[Instruction], known: Collection[Instruction]) -> dict[Instruction, None]:
    """Return ``results``, instructions with side effects, and the instructions that both depend on. The search stops at
    ``known`` values."""
    found: dict[Instruction, None] = {}
    pending = [*results, *(ins for ins in main if ins.op.name in SIDE_EFFECTS)]
    while pending:
        ins = pending.pop()
        if ins not in found and ins not in known:
            found[ins] = None
            pending += ins.dependencies
    return found


def _taken_sizes(main: Module, names: Sequence[str], shape: Shape) -> Instruction:
    """Append a tensor of sizes made of lengths of new parameters, one for each element, which `size_array` returns in a
    run."""
    elements = []
    most = LARGEST_SIZE
    lens = DynamicDimension(1, most + 1), DynamicDimension(0, most, frozenset({0})), DynamicDimension(0, 0)
    for name in names:
        array = main.add_parameter(name, Shape.dynamic(Type.bool_type, lens))
        above, below = (main.add_instruction("dimensions_of", [array], start=k, end=k + 1) for k in (0, 1))
        above = main.add_instruction("sub", [above, main.add_literal(np.ones(1, np.int64))])
        elements.append(main.add_instruction("sub", [above, below]))
    if not elements:
        own = main.add_literal(np.zeros(0, np.int64))
    else:
        own = elements[0] if len(elements) == 1 else main.add_instruction("concat", elements, axis=0)
    if shape.type is not own.shape.type:
        own = main.add_instruction("convert", [own], target_type=shape.type)
    if shape.without_axes:
        own = main.add_instruction("squeeze", [own], axes=[0])
    elif shape.lens != own.shape.lens:
        own = main.add_instruction("reshape", [own], dims=shape.lens)
    return own
