"""Generate programs that match the pattern of a rewrite rule.

`FORMS` says how operators of patterns take their operands. A rule with an operator that has no form fails its test.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, parse_type
from mgx_numba.errors import MgxError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes import match
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import known_operators, make_op
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, random_inputs

__all__ = ["LENS", "matching_program", "values_of"]

Lens = tuple[int, ...]
LENS: tuple[Lens, ...] = (
    *((), (1,), (1, 1, 1)),
    *((0,), (0, 3), (3, 0), (2, 0, 3), (2, 0, 0), (0, 2, 1, 4), (1, 2, 0, 4), (4, 0, 1, 0)),
    (2, 3, 4, 5),
)
"""Lengths of scalars, of one element, with axes of length 0, and of an ordinary tensor."""


@dataclass
class Form:
    """Operands and attributes of an operator, for a given first operand.

    Attributes:
        attributes: the operator's attributes.
        others: lengths and type of each operand after the first; "float" means the first operand's type.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    others: list[tuple[Lens, str]] = field(default_factory=list)


def _axes(lens: Lens) -> Iterator[Form]:
    yield from (Form({"axes": axes}) for count in (1, 2) for axes in itertools.combinations(range(len(lens)), count))


def _axis(lens: Lens) -> Iterator[Form]:
    yield from (Form({"axis": axis}) for axis in range(len(lens)))


def _reshapes(lens: Lens) -> Iterator[Form]:
    count = prod(lens)
    yield from (Form({"dims": dims}) for dims in ((count,), (1, *lens), (*lens, 1), lens[::-1], lens or (1,)) if dims)
    if len(lens) > 1:
        yield Form({"dims": (lens[0] * lens[1], *lens[2:])})


def _broadcasts(lens: Lens) -> Iterator[Form]:
    yield from (Form({"out_lens": wide}) for wide in ((2, *lens), (0, *lens), tuple(3 if n == 1 else n for n in lens)))


def _slices(lens: Lens) -> Iterator[Form]:
    for axis, n in enumerate(lens):
        for start, end in ((0, n), (0, 0), (0, 1), (n // 2, n)):
            yield Form({"axes": (axis,), "starts": (start,), "ends": (end,)})


def _pads(lens: Lens) -> Iterator[Form]:
    yield from (Form({"pads": (a,) * len(lens) + (b,) * len(lens)}) for a, b in ((0, 0), (1, 0), (1, 2)))
    if len(lens) == 4:
        yield Form({"pads": (0, 0, 1, 1) * 2})


def _dots(lens: Lens) -> Iterator[Form]:
    if len(lens) > 1:
        yield from (Form({}, [((*lens[:-2], lens[-1], n), "float")]) for n in (3, 0, 1, lens[-2]))


def _filters(lens: Lens) -> Iterator[Form]:
    if len(lens) > 2:
        space = len(lens) - 2
        for size in (1, 2):
            attributes = {"padding": (size - 1,) * 2 * space, "stride": (1,) * space, "dilation": (1,) * space}
            yield Form(attributes, [((3, lens[1], *[size] * space), "float")])
        yield Form({**attributes, "group": lens[1] or 1}, [((lens[1], 1, *[2] * space), "float")])


def _with_zeros(forms: Callable[[Lens], Iterator[Form]]) -> Callable[[Lens], Iterator[Form]]:
    """Return forms of 8-bit operands, each with a zero point."""

    def both(lens: Lens) -> Iterator[Form]:
        for form, type in itertools.product(forms(lens), ("int8", "uint8")):
            yield Form(form.attributes, [(form.others[0][0], type), ((), "float"), ((), type)])

    return both


def _turned_filters(lens: Lens) -> Iterator[Form]:
    if len(lens) > 2:
        space = len(lens) - 2
        attributes = {"padding": (0,) * 2 * space, "stride": (1,) * space, "dilation": (1,) * space}
        yield Form(attributes, [((lens[1], 3, *[2] * space), "float")])


def _windows(lens: Lens) -> Iterator[Form]:
    if len(lens) > 2:
        space = len(lens) - 2
        for mode, size in itertools.product(("max", "average"), (tuple(lens[2:]), (1,) * space, (2,) * space)):
            if 0 not in size:
                pads = tuple(n // 2 for n in size) if size == (2,) * space else (0,) * space
                yield Form({"mode": mode, "lengths": size, "stride": (1,) * space, "padding": pads})


def _resizes(lens: Lens) -> Iterator[Form]:
    modes = ("nearest", "linear")
    yield from (Form({"scales": (1.0,) * (len(lens) - 1) + (s,), "mode": m}) for s in (1.0, 2.0) for m in modes if lens)


def _steps(lens: Lens) -> Iterator[Form]:
    for type in ("int8", "uint8"):
        yield Form({}, [(lens, "float"), (lens, type)])
        yield Form({}, [(lens, "float")])


FORMS: dict[str, Callable[[Lens], Iterator[Form]]] = {
    **dict.fromkeys(("reshape", "reshape_lazy"), _reshapes),
    **dict.fromkeys((n for n in known_operators() if n.startswith("reduce_")), _axes),
    **dict.fromkeys(("softmax", "logsoftmax", "argmax", "argmin"), _axis),
    **dict.fromkeys(("convolution", "quant_convolution"), _filters),
    "convolution_backwards": _turned_filters,
    "integer_convolution": _with_zeros(_filters),
    "integer_dot": _with_zeros(_dots),
    **dict.fromkeys(("quantizelinear", "dequantizelinear"), _steps),
    "multibroadcast": _broadcasts,
    "broadcast": lambda lens: iter(
        [Form({"axis": 1, "out_lens": (2, *lens)}), Form({"axis": 0, "out_lens": (*lens, 2)})]
    ),
    "scalar": lambda lens: iter([Form({"scalar_bcst_dims": (2, 3)}), Form({"scalar_bcst_dims": (0, 3)})]),
    "flatten": lambda lens: (Form({"axis": k}) for k in range(len(lens) + 1)),
    "squeeze": lambda lens: (Form({"axes": (k,)}) for k, n in enumerate(lens) if n == 1),
    "unsqueeze": lambda lens: (Form({"axes": (k,)}) for k in range(len(lens) + 1)),
    "transpose": lambda lens: (Form({"permutation": p}) for p in itertools.permutations(range(len(lens)))),
    "layout": lambda lens: (Form({"permutation": p}) for p in itertools.permutations(range(len(lens)))),
    "contiguous": lambda lens: iter([Form()]),
    "slice": _slices,
    "step": lambda lens: (Form({"axes": (k,), "steps": (2,)}) for k in range(len(lens))),
    "pad": _pads,
    "dot": _dots,
    "quant_dot": _dots,
    "pooling": _windows,
    "resize": _resizes,
    "concat": lambda lens: (
        Form({"axis": k}, [((*lens[:k], n, *lens[k + 1 :]), "float")]) for k in range(len(lens)) for n in (2, 0)
    ),
    "gather": lambda lens: (
        Form({"axis": k}, [(n, "int64")]) for k in range(len(lens)) for n in ((2,), (0,), ()) if lens[k] or n == (0,)
    ),
    "gathernd": lambda lens: (
        Form({}, [((*n, depth), "int64")])
        for depth in range(1, len(lens) + 1)
        for n in ((2,), (1, 2), (0,))
        if all(lens)
    ),
    "scatter_none": lambda lens: (
        Form({"axis": k}, [((*lens[:k], n, *lens[k + 1 :]), "int64"), ((*lens[:k], n, *lens[k + 1 :]), "float")])
        for k in range(len(lens))
        for n in (1, 0)
        if lens[k] or n == 0
    ),
    "scatternd_none": lambda lens: (
        Form({}, [((n, 1), "int64"), ((n, *lens[1:]), "float")]) for n in (1, 0) if lens and (lens[0] or n == 0)
    ),
    "convert": lambda lens: (Form({"target_type": t}) for t in (Type.float_type, Type.half_type, Type.int32_type)),
    "attention": lambda lens: (
        Form({}, [((*lens[:2], n, lens[3]), "float"), ((*lens[:2], n, 2), "float")]) for n in (3, 0) if len(lens) == 4
    ),
    "cached_attention": lambda lens: (
        Form({}, [((*lens[:2], n, lens[3]), "float"), ((*lens[:2], n, 2), "float"), ((lens[0], 2), "int64")])
        for n in (3, 0)
        if len(lens) == 4
    ),
    "unpack_int4": lambda lens: iter([Form()]),
    "unpack_fp4": lambda lens: iter([Form()]),
}
TYPES = ("float", "int32", "bool", "half", "uint8", "int8")


class _Maker:
    """One random attempt to generate a program.

    Raises:
        MgxError: the choices do not fit each other.
    """

    def __init__(self, lens: Lens, type: str, seed: str) -> None:
        self.graph, self.lens, self.type = Graph(), lens, type
        self.random = random.Random(seed)
        self.bound: dict[str, Instruction] = {}
        self.count = 0

    def make(self, pattern: match.Pattern, lens: Lens, type: str) -> Instruction:
        """Return a value that a pattern matches, of these lengths if the pattern leaves a choice."""
        if pattern.bind is not None and pattern.bind in self.bound:
            return self.bound[pattern.bind]
        made = self._made(pattern, lens, type)
        if pattern.bind is not None:
            self.bound[pattern.bind] = made
        return made

    def _made(self, pattern: match.Pattern, lens: Lens, type: str) -> Instruction:
        if isinstance(pattern, match.Operation):
            return self._operation(pattern, lens, type)
        if isinstance(pattern, match.Either):
            return self.make(self.random.choice(pattern.choices), lens, type)
        if isinstance(pattern, match.Loose):
            return self.make(pattern.inner, lens, type)
        if isinstance(pattern, match.Spread):
            inner = self.make(pattern.inner, lens, type)
            return inner if inner.shape.lens == (lens or (1,)) else self.graph.spread(inner, *lens)
        if isinstance(pattern, match.ScalarValue):
            value = self.random.choice((0.0, 1.0, 2.0, 6.0)) if pattern.value is None else pattern.value
            return self._constant(np.full(lens, value), type)
        if isinstance(pattern, match.Constant):
            return self._constant(np.random.default_rng(self.count).integers(0, 2, lens) + 0.5, type)
        return self._parameter(lens, type)

    def _parameter(self, lens: Lens, type: str) -> Instruction:
        self.count += 1
        return self.graph.module.add_parameter(f"p{self.count}", _shape(lens, type))

    def _constant(self, values: np.ndarray, type: str) -> Instruction:
        return self.graph.module.add_literal(values.astype(_shape((), type).type.numpy))

    def _operation(self, pattern: match.Operation, lens: Lens, type: str) -> Instruction:
        name = self.random.choice(sorted(pattern.names))
        pointwise = make_op(name).pointwise
        if not pointwise and name not in FORMS:
            raise LookupError(f"tests/passes/pattern_programs.py has no form for {name}")
        first = self.make(pattern.inputs[0] if pattern.inputs else match.some(), lens, type)
        own = () if first.shape.without_axes else first.shape.lens
        if pointwise and name not in FORMS:
            return self._pointwise(name, pattern.inputs[1:], first, own)
        form = self.random.choice(list(FORMS[name](own)))
        wanted = pattern.inputs[1:] or [match.some()] * len(form.others)
        typed = [self._type_of(first) if t == "float" else t for _, t in form.others]
        others = [self.make(p, n, t) for p, (n, _), t in zip(wanted, form.others, typed)]
        return self.graph.op(name, first, *others, **form.attributes)

    def _pointwise(self, name: str, rest: Sequence[match.Pattern], first: Instruction, own: Lens) -> Instruction:
        counts = [len(rest)] if rest else [0, 1, 2]
        for count in counts:
            wanted = rest or [match.some()] * count
            operands = [first, *(self.make(p, own, self._type_of(first)) for p in wanted)]
            try:
                return self.graph.op(name, *operands)
            except MgxError:
                if count == counts[-1]:
                    raise
        raise AssertionError

    def _type_of(self, ins: Instruction) -> str:
        return ins.shape.type.name.removesuffix("_type")


def _shape(lens: Lens, type: str) -> Shape:
    return Shape(parse_type(type), lens or None)


def matching_program(rule: match.RewriteRule, lens: Lens, seed: int) -> Program | None:
    """Return a program that a rule's pattern matches at its result, None if the choices of ``seed`` make none."""
    for type in TYPES:
        maker = _Maker(lens, type, f"{rule.name} {lens} {seed}")
        try:
            root = maker.make(rule.pattern, lens, type)
        except (MgxError, IndexError):  # IndexError: no form fits the lengths
            continue
        program = maker.graph.ret(root)
        if rule.pattern.match(root, {}) is None and _has_values(program):
            return program
    return None


def values_of(program: Program) -> dict[str, np.ndarray]:
    """Return a value for every parameter; int64 are indices, and 0."""
    return {name: x * 0 if x.dtype == np.int64 else x for name, x in random_inputs(program).items()}


def _has_values(program: Program) -> bool:
    """Return whether the operators also accept the values."""
    try:
        with np.errstate(all="ignore"):
            evaluate(program, values_of(program))
    except MgxError:
        return False
    return True
