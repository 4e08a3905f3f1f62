"""Split reductions of few long rows into several instructions, so that all threads of a target have work.

The first reductions are computed in parts; a second ``fused_reduce`` combines the parts and continues with row values;
the rest takes those as inputs, and may be split again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod

from ...core.dim import ceil_div, hint, known_equal, known_same
from ...core.shape import Shape
from ...dataclass import dataclass
from ...environment import environment_number
from ...ops.base import Operator, make_op
from ...ops.reduce_parts import ReduceParts
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from ..structure import structure
from .base import Options, Pass
from .capabilities import Capabilities, ReductionWalk
from .reduction_pieces import (
    Pieces,
    add_combined,
    add_counts,
    add_partial,
    add_rest,
    associative,
    full_lens,
    pieces_of,
    reductions_of,
)


@dataclass(frozen=True)
class Division:
    """How the first reductions of a cluster are split.

    Attributes:
        parts: parts of a row.
        fold: columns that iterations of a part are separated into, by their index modulo ``fold``.
        permutation: that of `ReduceParts`.
        axes: axes that the parts reduce; the combination reduces the others of the cluster's axes.
    """

    parts: int
    fold: int
    permutation: tuple[int, ...]
    axes: tuple[int, ...]


class SplitReduce(Pass):
    """``fused_reduce`` -> partial reductions (`ReduceParts`), their combination, and the rest, if any.

    The decision uses the target's `Capabilities`. Where operands are read once it is independent of the number of
    threads, and so are results. Rows shorter than ``MIGRAPHX_SPLIT_REDUCE_SIZE`` are not split; none is if it is
    negative.
    """

    name = "split_reduce"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        reasons: dict[Hashable, str] = {}
        parts: dict[Hashable, tuple[bool, Module]] = {}
        for ins in [ins for ins in module if ins.module_args]:
            rest: Instruction | None = ins
            while rest is not None and rest.name == "fused_reduce" and not _has_parts(rest, parts):
                rest = self._split(program, module, rest, options.capabilities, reasons)

    def _split(
        self,
        program: Program,
        module: Module,
        ins: Instruction,
        capabilities: Capabilities | None,
        reasons: dict[Hashable, str],
    ) -> Instruction | None:
        """Split one cluster; return its rest. ``reasons`` caches refusals by structure, and by whether operands may be
        lent memory where that was asked."""
        shapes = tuple([i.shape for i in (ins, *ins.inputs)])
        like: Hashable = ins.op, shapes, structure(ins.module_args[0]), _is_tuple(ins)
        asked: list[bool] = []

        def donated() -> bool:
            asked.append(any(map(_is_donated, ins.inputs)))
            return asked[-1]

        known = reasons.get(like) or (reasons.get((like, donated())) if like in reasons else None)
        found = known or _division(ins, capabilities, donated)
        if isinstance(found, str):
            reasons[like] = "" if asked else found
            if asked:
                reasons[like, asked[-1]] = found
            self.log.refuse(self.name, ins, found)
            return None
        assert capabilities is not None
        pieces, division = found
        self.log.apply(self.name, ins)
        return _divide(program, module, ins, pieces, division, capabilities)


def _has_parts(ins: Instruction, known: dict[Hashable, tuple[bool, Module]]) -> bool:
    """Return whether a cluster computes or combines parts; ``known`` caches the answer by body structure."""
    sources = [i.inputs[0] if i.name == "get_tuple_elem" else i for i in ins.inputs]
    for body in [i.module_args[0] for i in (ins, *sources) if i.name == "fused_reduce"]:
        computed = structure(body)
        if computed not in known:
            known[computed] = any(isinstance(i.op, ReduceParts) for i in body), body
        if known[computed][0]:
            return True
    return False


def _is_tuple(ins: Instruction) -> bool:
    """Return whether an instruction uses the results of a cluster as a tuple."""
    return bool(ins.shape.sub_shapes) and any(user.name != "get_tuple_elem" for user in ins.users)


def _axes(ins: Instruction) -> tuple[int, ...]:
    return ins.op.axes  # type: ignore[attr-defined,no-any-return]


def _division(
    ins: Instruction, capabilities: Capabilities | None, donated: Callable[[], bool]
) -> tuple[Pieces, Division] | str:
    """Return how to split a cluster, or the reason not to; ``donated`` tells whether an operand may be lent memory."""
    body, shapes = ins.module_args[0], [i.shape for i in ins.inputs]
    if capabilities is None:
        return "what the target can do is not known"
    if _is_tuple(ins):
        return "its results are used as a tuple"
    if not reductions_of(body) or any(s.is_dynamic for s in shapes):
        return "it reduces nothing, or lengths that are known at run time only"
    full, axes = full_lens(body), _axes(ins)
    elements = hint(prod(full))
    if not elements:
        return "there are no elements"
    least_row, row = environment_number("MIGRAPHX_SPLIT_REDUCE_SIZE", least=-1), hint(prod(full[a] for a in axes))
    if least_row < 0 or row < least_row:
        return f"MIGRAPHX_SPLIT_REDUCE_SIZE is {least_row}, and rows have {row} elements"
    walk, pieces = capabilities.walk(body, axes, shapes, [r.shape for r in body.results()]), pieces_of(body)
    if walk.short_run:
        axes = tuple(a for a in axes if a not in walk.short_run)
    if pieces.repeats:
        reason = whole_rows(walk, elements, capabilities)
        if reason:
            return f"operands are read again, and {reason}"
        if pieces.later and not any(known_same(v.shape.lens, full) for v in (*pieces.taken, *pieces.later)):
            return "nothing of the full lengths would be left to walk over"
    if walk.short_run:
        walk = capabilities.walk(body, axes, shapes, [r.shape for r in body.results()])
    few = pieces.repeats or elements < capabilities.part_elements
    folds = walk.fold > 1 and known_equal(prod(full[a] for a in walk.loops[-1]) % walk.fold, 0)
    fold = walk.fold if not few and folds and not donated() else 1
    parts = 1
    if walk.tasks < capabilities.tasks and (fold == 1 or walk.tasks == 1):
        kept = hint(prod(n for a, n in enumerate(full) if a not in axes))
        least = max(capabilities.part_elements, capabilities.part_share * kept * fold)
        parts = max(1, min(-(-capabilities.parts // walk.tasks), elements // least))
    if max(parts, fold) == 1:
        return f"{walk.tasks} tasks of {elements} elements in all are best left whole"
    return pieces, Division(parts, fold, _permutation(walk, full, axes, parts, fold), axes)


def whole_rows(walk: ReductionWalk, elements: int, capabilities: Capabilities) -> str:
    """Return the reason not to split rows that are read again after the first reductions; "" for none."""
    if walk.tasks >= capabilities.threads and not walk.short_run:
        return f"{walk.tasks} tasks are enough for {capabilities.threads} threads"
    return f"{elements} elements are few" if elements < capabilities.repeated_elements else ""


def _is_donated(value: Instruction) -> bool:
    """Return whether lowering may place a value in memory with other strides than its shape: in a concatenation, or in
    a result of the program, directly or through views."""
    pending, standard = list(value.users), value.shape.standard
    while pending:
        user = pending.pop()
        if user.name == "concat" or (isinstance(user.op, Return) and not standard):
            return True
        if user.op.view or user.name in ("reshape", "flatten"):
            pending.extend(user.users)
    return False


def _permutation(
    walk: ReductionWalk, full: Sequence[int], axes: Sequence[int], parts: int, fold: int
) -> tuple[int, ...]:
    """Return the axis order: parts are outermost; the iterations of a part stand between the columns and the axes
    outside the columns."""
    others = [a for a in walk.order if a != axes[0]]
    if parts > 1 or fold == 1:
        return (axes[0], *others)
    inside = len(others)
    elements = 1
    while elements < walk.columns:
        inside -= 1
        elements *= 1 if others[inside] in axes else hint(full[others[inside]])
    return (*others[:inside], axes[0], *others[inside:])


def _divide(
    program: Program,
    module: Module,
    ins: Instruction,
    pieces: Pieces,
    division: Division,
    capabilities: Capabilities,
) -> Instruction | None:
    """Replace a cluster by its pieces."""
    body, axes = ins.module_args[0], _axes(ins)
    values = dict(zip(body.parameters(), ins.inputs))

    def body_of(op: str) -> Module:
        return program.unique_module(f"{module.name}:{op}")

    def run(op: Operator, inputs: Sequence[Instruction], inner: Module) -> list[Instruction]:
        result = module.insert_instruction(ins, op, inputs, [inner])
        result.debug_symbols = ins.debug_symbols
        if not result.shape.sub_shapes:
            return [result]
        count = len(result.shape.sub_shapes)
        return [module.insert_instruction(ins, "get_tuple_elem", [result], index=k) for k in range(count)]

    partial = body_of("fused_reduce")
    cut = _cut(ins, pieces, division, capabilities)
    taken = add_partial(partial, body, pieces, lambda i: cut.with_attributes(operation=associative(i)))
    sums = run(make_op("fused_reduce", axes=division.axes), [values[v] for v in taken], partial)
    combined = body_of("fused_reduce")
    left = tuple(sorted({division.axes[0], *axes} - {*division.axes[1:]}))
    taken = add_combined(combined, body, pieces, [s.shape for s in sums], left)
    counts = add_counts(module, ins, pieces)
    rows = pieces.first[0].shape.lens
    inputs = [*sums, *(values[v] for v in taken), *(_spread(module, ins, count, rows) for count in counts)]
    values |= zip(pieces.given, run(make_op("fused_reduce", axes=left), inputs, combined))
    rest: Instruction | None = None
    if pieces.later:
        reduces = bool(pieces.needed.intersection(reductions_of(body)))
        remaining = body_of("fused_reduce" if reduces else "pointwise")
        add_rest(remaining, body, pieces, scalar=not reduces)
        inputs, lens = [values[v] for v in pieces.taken], pieces.later[0].shape.lens
        if not reduces:
            inputs = [i if known_same(i.shape.lens, lens) else _spread(module, ins, i, lens) for i in inputs]
        results = run(make_op("fused_reduce", axes=axes) if reduces else make_op("pointwise"), inputs, remaining)
        values |= zip(pieces.later, results)
        rest = results[0].inputs[0] if results[0].name == "get_tuple_elem" else results[0]
    _replace(module, ins, [values[r] for r in body.results()])
    return rest


def _cut(ins: Instruction, pieces: Pieces, division: Division, capabilities: Capabilities) -> ReduceParts:
    """Return the operator of partial reductions; parts are cut from the outermost loop that is long enough."""
    body, axes, full = ins.module_args[0], division.axes, full_lens(ins.module_args[0])
    own = Module(body.name)
    taken = add_partial(own, body, pieces, lambda i: make_op(associative(i), axes=axes))
    places = dict(zip(body.parameters(), ins.inputs))
    parts, fold = division.parts, division.fold
    lens = [1 if a in axes else n for a, n in enumerate(full)]
    pitch = [parts * fold if a == axes[0] else n for a, n in enumerate(lens)]
    outputs = []
    for result in own.results():
        whole = Shape.from_permutation(result.shape.type, pitch, division.permutation)
        outputs.append(Shape(whole.type, lens, whole.strides))
    walk = capabilities.walk(own, axes, [places[p].shape for p in taken], outputs)
    steps = [prod(full[a] for a in loop) for loop in walk.loops]
    steps[-1] //= fold
    usual = [hint(n) for n in steps]
    chosen = next((d for d, n in enumerate(usual) if n >= parts), usual.index(max(usual)))
    last = chosen == len(steps) - 1
    unit = walk.unit if last else 1
    share = ceil_div(steps[chosen], parts * unit) * unit
    return ReduceParts(
        axes=axes,
        cut=walk.loops[chosen],
        share=share * (fold if last else 1),
        parts=parts,
        folded=walk.loops[-1],
        fold=fold,
        permutation=division.permutation,
    )


def _spread(module: Module, before: Instruction, value: Instruction, lens: Sequence[int]) -> Instruction:
    return module.insert_instruction(before, "multibroadcast", [value], out_lens=tuple(lens))


def _replace(module: Module, ins: Instruction, results: Sequence[Instruction]) -> None:
    """Replace a cluster's results for its users, and remove it."""
    if not ins.shape.sub_shapes:
        module.replace_instruction(ins, results[0])
    for user in list(ins.users):
        module.replace_instruction(user, results[user.op.index])  # type: ignore[attr-defined]
        module.remove_instruction(user)
    module.remove_instruction(ins)
