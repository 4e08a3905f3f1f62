"""Rewritings that are replayed for programs which differ in their lengths alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from mgx_numba.core.argument import Argument
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.copies import CopyPattern, Numbered, copy_with
from mgx_numba.graph.folds import kind_of
from mgx_numba.graph.numbers import numbers_of
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.replay import Replay
from mgx_numba.graph.structure import structure
from mgx_numba.graph.validate import validate
from mgx_numba.ops.base import make_op
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

WEIGHTS = np.random.default_rng(0).standard_normal((6, 4), np.float32)


def layer(rows: int, columns: int = 6, table: float | None = None) -> Program:
    """A product with a bias and a ReLU, and a constant that has as many rows."""
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(Type.float_type, (rows, columns)))
    dot = main.add_instruction("dot", [x, main.add_literal(WEIGHTS[:columns])])
    bias = main.add_instruction("multibroadcast", [main.add_literal(WEIGHTS[0])], out_lens=(rows, 4))
    y = main.add_instruction("relu", [main.add_instruction("add", [dot, bias])])
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) if table is None else np.full((rows, 4), table)
    y = main.add_instruction("mul", [y, main.add_literal(values.astype(np.float32))])
    main.add_return([main.add_instruction("reshape", [y], dims=(rows * 2, 2))])
    return program


def full(program: Program) -> None:
    run_passes(program, PASSES, Options(fast_math=True))
    program.remove_unused_modules()


def test_a_program_is_its_form_its_integers_and_its_literals() -> None:
    program = layer(5)
    full(program)
    numbers = numbers_of(program)
    copy = copy_with(program, numbers, numbers.values, numbers.literals)
    validate(copy)
    assert copy == program
    other = numbers_of(layer(7))
    assert numbers_of(layer(9)).form == other.form != numbers.form
    assert copy_with(layer(9), numbers_of(layer(9)), other.values, other.literals) == layer(7)
    with pytest.raises(ShapeError, match="a literal float_type, {7, 4}, {4, 1} was given float_type, {9, 4}, {4, 1}"):
        copy_with(layer(8), numbers_of(layer(8)), other.values, numbers_of(layer(9)).literals)


def test_a_pattern_is_copied_with_values_that_its_integers_are_some_of() -> None:
    program, other = layer(5), layer(7)
    full(program)
    full(other)
    own, wanted = numbers_of(program), numbers_of(other)
    pairs = list(zip(own.values, wanted.values))
    known = list(dict.fromkeys(pairs))
    pattern = CopyPattern(program, [known.index(pair) for pair in pairs])
    for side, numbers, whole in ((0, own, program), (1, wanted, other)):
        values, literals = [pair[side] for pair in known], numbers.literals
        assert pattern.numbers(values, literals).values == numbers.values
        assert pattern.takes(values, literals, range(len(literals)))
        copy = pattern.copy(values, literals)
        validate(copy)
        assert copy == whole
    assert not pattern.takes([pair[0] for pair in known], wanted.literals, range(len(wanted.literals)))
    with pytest.raises(ShapeError, match="a literal .* was given"):
        pattern.copy([pair[0] for pair in known], wanted.literals)
    assert CopyPattern(program).copy(own.values, own.literals) == program


def test_a_copy_that_is_released_is_the_next_one() -> None:
    """With other integers and literals, a log of its own, and the order of the first, whatever it was put in; one that
    was changed is made anew, and so is one while others are in use."""
    program = layer(5)
    own = numbers_of(program)
    pattern = CopyPattern(program)

    def copied(rows: int) -> Program:
        wanted = layer(rows)
        numbers = numbers_of(wanted)
        copy = pattern.copy(numbers.values, numbers.literals)
        validate(copy)
        assert copy == wanted and not copy.log.applied
        return copy

    first = copied(5)
    first.log.apply("schedule", first.main.results()[0])
    literals = [ins for ins in first.main if ins.literal is not None]
    order = list(first.main)
    first.main.reorder([*reversed(literals), *(ins for ins in first.main if ins not in literals)])
    assert list(first.main) == list(reversed(list(reversed(first.main)))) != order
    first.release()
    assert all(ins.literal is None for ins in literals)
    second = pattern.copy(own.values, own.literals)
    assert second is first and list(second.main) == order
    third, fourth = copied(7), copied(9)
    assert third is not first and fourth is not third
    third.release()
    again = copied(8)
    assert again is third
    again.main.replace_return([again.main.results()[0].inputs[0]])
    again.release()
    assert copied(6) is not again and not again.modules
    second.release()
    second.release()  # once more, of what is the pattern's by now
    fourth.release()
    last = [pattern.copy(own.values, own.literals) for _ in range(3)]
    assert {id(copy) for copy in last[:2]} == {id(second), id(fourth)} and last[2] == program


def test_copies_know_which_bodies_compute_the_same() -> None:
    """As their instructions tell, also of a copy that was released before; not of a body that was changed since."""
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (3, 4)))
    for name, scale in (("relu", 2.0), ("relu", 2.0), ("relu", 3.0), ("exp", 2.0), ("relu", 2.0)):
        body = program.unique_module("main:pointwise")
        own_x = body.add_parameter("x0", Shape(Type.float_type, (1,), (0,)))
        scaled = body.add_instruction("mul", [own_x, body.add_literal(np.float32(scale))])
        body.add_return([body.add_instruction(name, [scaled])])
        x = program.main.add_instruction("pointwise", [x], [body])
    program.main.add_return([x])
    own = numbers_of(program)
    values = list(dict.fromkeys(own.values))
    equal_ops_once = copy_with(program, own, own.values, own.literals)
    pattern = CopyPattern(equal_ops_once, [values.index(value) for value in own.values])

    def alike(copy: Program) -> set[frozenset[int]]:
        found: dict[Hashable, set[int]] = {}
        for k, body in enumerate(copy.modules[1:]):
            found.setdefault(structure(body), set()).add(k)
        return set(map(frozenset, found.values()))

    for _ in range(2):
        copy = pattern.copy(values, own.literals)
        known = alike(copy)
        assert known == {frozenset({0, 1, 4}), frozenset({2}), frozenset({3})}
        for body in copy.modules:
            body.structure = -1, None
        assert alike(copy) == known
        copy.release()
    copy = pattern.copy(values, own.literals)
    first = copy.modules[1]
    before = structure(first)
    first.replace_instruction(first.results()[0], make_op("tanh"))
    assert structure(first) != before
    second = copy.modules[2]
    second.replace_return([second.parameters()[0]])
    assert structure(second) != before
    copy.release()
    again = pattern.copy(values, own.literals)
    assert again is not copy and again == program
    again.modules[1].replace_instruction(again.modules[1].results()[0], make_op("tanh"))
    again.release()
    last = pattern.copy(values, own.literals)
    assert last is again and last == program and alike(last) == known


def test_replayed_programs_are_those_that_rewriting_gives() -> None:
    replay = Replay(full)
    rng = np.random.default_rng(1)
    for count, rows in enumerate((5, 7, 9, 1, 12, 2, 30, 1, 200, 3)):
        found, wanted = replay.run(Numbered.of(layer(rows))), layer(rows)
        full(wanted)
        validate(found)
        assert found == wanted
        x = rng.standard_normal((rows, 6), np.float32)
        for a, b in zip(evaluate(found, {"x": x}), evaluate(layer(rows), {"x": x}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        assert count < 3 or replay.replayed
    assert replay.replayed >= 4


def test_a_copy_that_was_put_in_another_order_refutes_no_trace() -> None:
    """As scheduling does it with what a plan is made of, which then is released and filled again."""

    def batches(count: int, rows: int) -> Program:
        program = Program()
        x = program.main.add_parameter("x", Shape(Type.float_type, (count, rows)))
        one, other = (program.main.add_instruction(name, [x]) for name in ("relu", "exp"))
        program.main.add_return([program.main.add_instruction("add", [one, other])])
        return program

    def asking(program: Program) -> None:
        x = program.main.parameters()[0]
        if x.shape.lens[0] == 1:
            program.main.replace_return([program.main.add_instruction("neg", [program.main.results()[0]])])

    replay = Replay(asking)
    for count, rows in ((37, 41), (17, 19), (1, 43), (1, 23), (1, 29)):
        made = replay.run(Numbered.of(batches(count, rows)))
        x, one, other, *others = made.main
        made.main.reorder([x, other, one, *others])
        made.release()
    assert replay.replayed == 1


def test_other_forms_and_other_constants_are_rewritten_by_themselves() -> None:
    replay = Replay(full)
    for rows in (5, 7, 9):
        replay.run(Numbered.of(layer(rows)))
    before = replay.replayed
    for program in (layer(9, 5), layer(8, table=1), layer(0)):
        wanted = program.clone()
        full(wanted)
        assert replay.run(Numbered.of(program)) == wanted
    assert replay.replayed == before


def test_a_rewriting_whose_numbers_are_not_traced_is_never_replayed() -> None:
    def lost(program: Program) -> None:
        x = program.main.parameters()[0]
        rows = int(np.asarray(x.shape.lens)[0])  # a plain integer
        results = program.main.results()
        wide = program.main.add_instruction("reshape", results, dims=(rows, 4))
        program.main.replace_return([wide])

    replay = Replay(lost)
    for rows in (5, 7, 9, 11, 5):
        assert [s.lens for s in replay.run(Numbered.of(layer(rows))).output_shapes()] == [(rows, 4)]
    assert not replay.replayed


def test_a_constant_that_is_computed_with_is_not_replayed() -> None:
    def scaled(program: Program) -> None:
        for ins in list(program.main):
            if ins.literal is not None and ins.shape.lens[-1] == 4 and ins.shape.lens[0] != 6:
                twice = program.main.add_literal(2 * ins.literal.numpy())
                program.main.replace_instruction(ins, twice)
        run_passes(program, ["dead_code_elimination"])

    replay = Replay(scaled)
    for rows in (5, 7, 9, 11):
        found, wanted = replay.run(Numbered.of(layer(rows))), layer(rows)
        scaled(wanted)
        x = np.ones((rows, 6), np.float32)
        np.testing.assert_array_equal(*(evaluate(p, {"x": x})[0] for p in (found, wanted)))


def mean(rows: int, divisor: float, type: Type = Type.float_type) -> Program:
    """Sums of columns, divided by a constant."""
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(type, (rows, 6)))
    total = main.add_instruction("reduce_sum", [main.add_instruction("relu", [x])], axes=(0,))
    wide = main.add_instruction(
        "multibroadcast", [main.add_literal(np.array([divisor], type.numpy))], out_lens=total.shape.lens
    )
    main.add_return([main.add_instruction("div", [total, wide])])
    return program


def rewritten(program: Program) -> Program:
    copy = program.clone()
    full(copy)
    return copy


def same(found: Program, wanted: Program) -> bool:
    """Whether two programs are equal, with the same bits in their literals."""
    a, b = numbers_of(found), numbers_of(wanted)
    pairs = zip(a.literals, b.literals, strict=True)
    return (
        a.form == b.form and a.values == b.values and all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in pairs)
    )


def test_constants_that_are_computed_of_a_length_were_rewritten_at_each() -> None:
    replay = Replay(full)
    for rows in (37, 67, 5, 9, 11, 300, 7, 13):
        program = mean(rows, rows)
        assert same(replay.run(Numbered.of(program)), rewritten(program))
    assert replay.replayed >= 5


@pytest.mark.parametrize("divisor", [8.0, 1.0, 2.0, 3.0, 0.5, 0.0, -7.0, np.nan, np.inf, 1e-42, 2.0**127, 1.0001])
def test_numbers_that_rewriting_tells_from_others_have_no_trace_of_these(divisor: float) -> None:
    """Such as 1, by which nothing is divided, those whose reciprocal is short, and those that have none."""
    replay = Replay(full)
    for rows in (37, 67, 5, 9):
        replay.run(Numbered.of(mean(rows, rows)))
    before = replay.replayed
    assert before
    for rows in (11, 13, 17):
        program = mean(rows, divisor)
        assert same(replay.run(Numbered.of(program)), rewritten(program))


def test_reciprocals_that_a_narrow_type_has_not_are_not_taken_from_a_trace() -> None:
    replay = Replay(full)
    for number in (37, 67, 5, 9, 40000, 60000, 70):
        program = mean(5, number, Type.half_type)
        assert same(replay.run(Numbered.of(program)), rewritten(program))
    assert replay.replayed >= 2


def test_a_constant_that_stayed_for_some_lengths_kept_all_others_from_being_replayed() -> None:
    """As the larger one of a length and a width does."""
    replay = Replay(full)
    for count, rows in enumerate((67, 2, 3, 5, 6, 7, 9, 10, 11)):
        program = mean(rows, max(64, rows))
        assert same(replay.run(Numbered.of(program)), rewritten(program))
        assert count < 4 or replay.replayed
    assert replay.replayed >= 4


def held(rows: int, number: float, steps: Sequence[str]) -> Program:
    """A value times a constant, with what a chain of operators on that constant and itself leaves."""
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(Type.float_type, (rows, 6)))
    literal = made = main.add_literal(np.array([number], np.float32))
    for step in steps:
        made = main.add_instruction(step, [made, literal])
    spread, other = (main.add_instruction("multibroadcast", [i], out_lens=(rows, 6)) for i in (literal, made))
    scaled = main.add_instruction("mul", [main.add_instruction("max", [x, spread]), spread])
    main.add_return([main.add_instruction("div", [scaled, other])])
    return program


def check_values(replay: Replay, program: Program) -> None:
    """Check a program after a rewriting on itself."""
    made = replay.run(Numbered.of(program))
    x = np.random.default_rng(3).standard_normal(program.main.parameters()[0].shape.lens).astype(np.float32)
    for a, b in zip(evaluate(made, {"x": x}), evaluate(program, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [0.0, -0.0, np.nan, np.inf, -9.1, 0.3, 16.0])
def test_a_constant_by_which_rewriting_decided_was_replayed_for_others(number: float) -> None:
    """Of a number divided by itself nothing is left, but of zero, whose trace was that of others."""
    replay = Replay(full)
    for rows in (37, 67, 5, 9):
        check_values(replay, held(rows, rows + 0.1, ["div"]))
    before = replay.replayed
    assert before
    check_values(replay, held(11, number, ["div"]))
    assert replay.replayed == before


def test_a_program_that_came_twice_confirmed_its_own_trace() -> None:
    """In which a literal of it was a constant."""

    def copied(program: Program) -> None:
        main = program.main
        if main.parameters()[0].shape.lens[0] > 250:
            (literal,) = (ins for ins in main if ins.literal is not None)
            copy = main.add_literal(literal.literal.numpy().copy())
            main.replace_return([*main.results(), copy])

    replay = Replay(copied)
    for rows in (37, 67, 257, 257, 300, 301):
        program = mean(rows, rows)
        wanted = program.clone()
        copied(wanted)
        assert same(replay.run(Numbered.of(program)), wanted)


def masked(rows: int, columns: int, keep: np.ndarray) -> Program:
    """A value where a constant of one row is true, else zero."""
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(Type.float_type, (rows, columns)))
    lens = {"out_lens": (rows, columns)}
    wide = main.add_instruction("multibroadcast", [main.add_literal(keep.reshape(1, columns))], **lens)
    zero = main.add_instruction("multibroadcast", [main.add_literal(np.zeros(1, np.float32))], **lens)
    main.add_return([main.add_instruction("relu", [main.add_instruction("where", [wide, x, zero])])])
    return program


def test_masks_that_hide_nothing_were_rewritten_at_each_length() -> None:
    """Such as those of one new token behind a cache; they are known by the value that all their elements have."""
    replay = Replay(full)
    for columns in (37, 67, 5, 9, 300):
        program = masked(3, columns, np.ones(columns, bool))
        assert same(replay.run(Numbered.of(program)), rewritten(program))
    assert replay.replayed >= 2
    for columns in (7, 300, 1, 0, 11):
        for keep in (np.zeros(columns, bool), np.arange(columns) < 4, np.ones(columns, bool)):
            program = masked(3, columns, keep)
            assert same(replay.run(Numbered.of(program)), rewritten(program))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1.0])
def test_constants_of_one_value_are_told_apart_by_it(value: float) -> None:
    replay = Replay(full)
    for rows in (37, 67, 5, 9):
        replay.run(Numbered.of(layer(rows, table=3)))
    assert replay.replayed
    for number in (value, 3.0, value, -value):
        for rows in (11, 13, 17):
            program = layer(rows, table=number)
            assert same(replay.run(Numbered.of(program)), rewritten(program))


def test_constants_that_stay_at_one_length_of_some_kept_traces_waiting() -> None:
    """As the first row of a table of positions, for any batch: no other one could confirm the trace."""

    def embedded(batch: int, rows: int) -> Program:
        program = Program()
        main = program.main
        x = main.add_parameter("x", Shape(Type.float_type, (batch, rows, 4)))
        table = main.add_literal(WEIGHTS.repeat(12, 0)[:rows])
        wide = main.add_instruction("multibroadcast", [table], out_lens=(batch, rows, 4))
        main.add_return([main.add_instruction("relu", [main.add_instruction("add", [x, wide])])])
        return program

    replay = Replay(full)
    for batch, rows in ((37, 41), (67, 43), (37, 1), (67, 1)):
        replay.run(Numbered.of(embedded(batch, rows)))
    before = replay.replayed
    for count, (batch, rows) in enumerate(((5, 1), (9, 1), (11, 1), (5, 2), (2, 2), (9, 30), (1, 1))):
        program = embedded(batch, rows)
        assert same(replay.run(Numbered.of(program)), rewritten(program))
        assert replay.replayed - before >= min(count + 1, 3)


def test_constants_that_others_are_made_of_twice_were_computed_twice_each() -> None:
    """So that a chain of them took time beyond all measure."""

    def chain(rows: int) -> Program:
        program = Program()
        main = program.main
        x = main.add_parameter("x", Shape(Type.float_type, (rows, 6)))
        made = main.add_literal(np.array([1 + rows / 1000], np.float32))
        for _ in range(40):
            made = main.add_instruction("add", [main.add_instruction(name, [made]) for name in ("sigmoid", "tanh")])
        spread = main.add_instruction("multibroadcast", [made], out_lens=(rows, 6))
        main.add_return([main.add_instruction("mul", [x, spread])])
        return program

    replay = Replay(full)
    for rows in (37, 67, 5, 9):
        assert same(replay.run(Numbered.of(chain(rows))), rewritten(chain(rows)))
    assert replay.replayed


def test_values_of_large_constants_that_depend_on_lengths_are_not_kept() -> None:
    replay = Replay(full)
    tables = []
    for rows in (500, 700, 900, 1100, 1300, 500):
        program = layer(rows)
        found = replay.run(Numbered.of(program))
        tables += [weakref.ref(i.literal.array) for i in program.main if i.literal and i.shape.lens == (rows, 4)]
        wanted = layer(rows)
        full(wanted)
        assert found == wanted
    del program, found, wanted
    gc.collect()
    assert replay.replayed >= 2
    assert len(tables) == 6 and not any(table() is not None for table in tables)


def test_what_a_replayed_rewriting_refused_has_plain_numbers() -> None:
    def refusing(program: Program) -> None:
        full(program)
        for ins in program.main:
            program.log.refuse("some rule", ins, "a reason")

    replay = Replay(refusing)
    for rows in (5, 7, 9, 11):
        log = replay.run(Numbered.of(layer(rows))).log
    assert replay.replayed and log.refusals("some rule")
    assert {type(n) for r in log.refusals() for n in (*r.shape.lens, *r.shape.strides)} == {int}


def test_what_rules_ask_of_constants_is_their_kind() -> None:
    """Powers of two, offsets that are large, and factors whose products are no normal numbers have other rewrites."""
    alike = [(9.0, 11.0), (0.1, 0.3), (3.7, 900.1)]
    apart = [(8.0, 9.0), (0.25, 0.3), (900.1, 1025.3), (0.0, -0.0), (1e-30, 1.1e-30), (1e30, 1.1e30), (3.0, -3.0)]
    kind = lambda value: kind_of(Argument.from_array(np.float32([value])))  # noqa: E731
    assert all(kind(a) == kind(b) for a, b in alike)
    assert all(kind(a) != kind(b) for a, b in apart)
