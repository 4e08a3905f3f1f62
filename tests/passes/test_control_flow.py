"""Values captured by submodules: fusion, copies and shapes across a module's border."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import make_pass, run_passes
from mgx_numba.graph.passes.regions import order_of
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, check, find, random_inputs
from .test_all_passes import assert_close_where_stable, random_step

FUSIONS = ["fuse_contraction", "fuse_reduce", "fuse_pointwise", "schedule"]


def inner(g: Graph) -> Graph:
    """A submodule under construction."""
    body = Graph()
    body.program, body.module = g.program, g.program.unique_module("body")
    return body


def choose(g: Graph, *branches: Graph) -> Instruction:
    """The first result of an ``if`` whose condition is known when it is run."""
    main = g.program.main
    condition = main.parameter("c") or main.add_parameter("c", Shape(Type.bool_type, [1]))
    chosen = g.module.add_instruction("if", [condition], [b.module for b in branches])
    return g.op("get_tuple_elem", chosen, index=0)


def either(g: Graph, value: Instruction) -> Instruction:
    """``if (c) sin(value) else value``, the value being that of the enclosing module."""
    yes, no = inner(g), inner(g)
    yes.ret(yes.op("sin", value))
    no.ret(no.op("identity", value))
    return choose(g, yes, no)


def repeat(g: Graph, value: Instruction) -> Instruction:
    """Twice ``v = v + value`` from ``x`` on, the value being that of the enclosing module."""
    start = g.program.main.parameter("x")
    assert start is not None
    body = inner(g)
    body.param("i", [1], "int64")
    go, carried = body.param("go", [1], "bool"), body.param("v", value.shape.lens)
    body.ret(go, body.op("add", carried, value))
    inputs = [g.lit([2], np.int64), g.lit([True], bool), start]
    loop = g.module.add_instruction("loop", inputs, [body.module], max_iterations=2)
    return g.op("get_tuple_elem", loop, index=0)


@pytest.mark.parametrize("run", [either, repeat])
@pytest.mark.parametrize("nested", [False, True])
def test_a_value_that_a_branch_or_a_loop_captures_is_not_computed_after_it(
    run: Callable[[Graph, Instruction], Instruction], nested: bool
) -> None:
    g = Graph()
    x = g.param("x", [3, 4])
    a = g.op("add", x, x)
    if nested:
        yes, no = inner(g), inner(g)
        yes.ret(run(yes, yes.op("exp", a)))
        no.ret(a)
        value = choose(g, yes, no)
    else:
        value = run(g, a)
    check(g.ret(g.op("mul", value, a)), *map(make_pass, FUSIONS), idempotent=False)


@pytest.mark.parametrize("kind", ["reduce", "dot"])
def test_other_fusions_keep_captured_values_before_their_use(kind: str) -> None:
    g = Graph()
    x = g.param("x", [4, 4])
    if kind == "reduce":
        a = g.op("exp", g.op("sub", x, g.spread(g.op("reduce_max", x, axes=(1,)), 4, 4)))
    else:
        a = g.op("relu", g.op("dot", x, g.random(4, 4)))
    check(g.ret(g.op("mul", g.op("add", a, either(g, a)), a)), *map(make_pass, FUSIONS), idempotent=False)


def test_a_submodule_stands_where_it_is_run_first() -> None:
    g = Graph()
    x = g.param("x", [3])
    a = g.op("exp", x)
    yes, no = inner(g), inner(g)
    used = yes.op("neg", a)
    yes.ret(used)
    no.ret(a)
    first = choose(g, yes, no)
    choose(g, yes, no)
    order = order_of(g.module)
    assert order[used] == order[first.inputs[0]]


def test_an_operation_in_a_branch_on_constants_of_the_module_around_it_has_an_operand() -> None:
    g = Graph()
    g.program.main.add_parameter("c", Shape(Type.bool_type, [1]))
    flag = g.lit(False, bool)
    yes, no = inner(g), inner(g)
    either_flag = yes.op("logical_or", flag, flag)
    yes.ret(either_flag)
    no.ret(no.op("not", flag))
    g.ret(choose(g, yes, no))
    run_passes(g.program, [make_pass("fuse_pointwise")])
    validate(g.program)
    for condition, expected in ((True, False), (False, True)):
        (got,) = evaluate(g.program, {"c": np.array([condition])})
        assert got == expected


def test_shapes_of_an_if_follow_those_of_what_it_captures() -> None:
    g = Graph()
    x = g.param("x", [3, 4])
    copied = g.op("contiguous", g.op("transpose", x, permutation=(1, 0)))
    yes, no = inner(g), inner(g)
    yes.ret(yes.op("relu", copied))
    no.ret(no.op("neg", copied))
    after = check(g.ret(g.op("contiguous", choose(g, yes, no))), make_pass("eliminate_contiguous"))
    assert find(after, "if").shape.sub_shapes[0].strides == (1, 4)


def test_a_bias_inside_of_a_branch_stays_there() -> None:
    g = Graph()
    x = g.param("x", [2, 3])
    left, right = g.op("dot", x, g.random(3, 4, seed=1)), g.op("dot", x, g.random(3, 4, seed=2))
    yes, no = inner(g), inner(g)
    yes.ret(yes.op("add", left, yes.spread(yes.random(4), 2, 4)))
    no.ret(no.lit(np.zeros((2, 4))))
    after = check(g.ret(choose(g, yes, no), right), make_pass("simplify_algebra"))
    (inside,) = [i for m in after.modules for i in m if i.name == "add"]
    assert inside.module is not after.main


def branches(g: Graph, pool: list[Instruction], rng: np.random.Generator, m: int, n: int, depth: int = 0) -> None:
    """Append random steps to a module, some of them ``if`` and ``loop`` whose bodies use any earlier value."""
    for _ in range(int(rng.integers(2, 7))):
        kind = rng.integers(8)
        if kind == 0 and depth < 2:
            bodies = [inner(g) for _ in range(2)]
            for body in bodies:
                values = list(pool)
                branches(body, values, rng, m, n, depth + 1)
                body.ret(values[int(rng.integers(len(values) - 2, len(values)))])
            pool.append(choose_by(g, pool[0], bodies))
        elif kind == 1:
            turned = g.op("contiguous", g.op("transpose", pool[-1], permutation=(1, 0)))
            pool.append(g.op("transpose", turned, permutation=(1, 0)))
        elif kind == 2 and depth < 2:
            pool.append(repeat(g, pool[-1]))
        else:
            pool.append(random_step(g, pool, rng, m, n))


def choose_by(g: Graph, x: Instruction, bodies: list[Graph]) -> Instruction:
    first = g.op("slice", x, axes=(0, 1), starts=(0, 0), ends=(1, 1))
    condition = g.op("greater", first, g.scalar(0.5, first))
    chosen = g.module.add_instruction("if", [condition], [b.module for b in bodies])
    return g.op("get_tuple_elem", chosen, index=0)


def random_control_flow(rng: np.random.Generator) -> Program:
    g = Graph()
    m, n = (int(v) for v in rng.integers(1, 5, 2))
    pool = [g.param("x", [m, n]), g.param("y", [m, n])]
    branches(g, pool, rng, m, n)
    return g.ret(*pool[-2:])


@pytest.mark.parametrize("seed", range(6))
def test_random_control_flow_keeps_its_values_through_all_passes(seed: int) -> None:
    rng = np.random.default_rng([5, seed])
    for _ in range(8):
        program = random_control_flow(rng)
        validate(program)
        after = program.clone()
        run_passes(after, PASSES, validate=True)
        values = random_inputs(program, seed, low=0.1)
        with np.errstate(all="ignore"):
            assert_close_where_stable(evaluate(program, values), evaluate(after, values))
