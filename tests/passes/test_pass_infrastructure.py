"""Running passes by name, disabling, tracing, timing, failing, and the rule engine."""

from __future__ import annotations

import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import CompileError, OptionError, ValidationError
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import base
from mgx_numba.graph.passes.base import Options, Pass, known_passes, make_pass, run_passes
from mgx_numba.graph.passes.build import RewriteBuilder
from mgx_numba.graph.passes.match import Match, op, rule, scalar, some
from mgx_numba.graph.passes.rewriter import RulePass
from mgx_numba.graph.passes.simplify_algebra import SimplifyAlgebra
from mgx_numba.graph.program import Program

from .support import FAST, STRICT, Graph, find, names


def chain() -> Program:
    g = Graph()
    x = g.param("x", [2, 3])
    return g.ret(g.op("identity", g.op("relu", x)))


def test_a_replacement_of_another_rank_turned_a_vector_into_a_scalar() -> None:
    """`unsqueeze` gave {1} for {1, 1}: it takes a value of stride 0 for one without axes."""
    g = Graph()
    scalar, vector = g.param("s", []), g.param("v", [1])
    readers = [g.op("unsqueeze", g.op("neg", x), axes=[0]) for x in (vector, scalar)]
    program = g.ret(*readers)
    lens = [r.shape.lens for r in readers]
    first, second = (r.inputs[0] for r in readers)
    assert g.module.replace_instruction(first, scalar).shape == vector.shape
    assert g.module.replace_instruction(second, vector).shape == scalar.shape
    g.module.set_input(readers[0], 0, g.op("abs", scalar))
    assert [r.shape.lens for r in program.main.results()] == lens == [(1, 1), (1,)]


class Recorder(Pass):
    """Notes the modules that it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.seen.append(module.name)


class Failing(Pass):
    name = "test_failing"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        raise ValueError("out of luck")


class Breaking(Pass):
    name = "test_breaking"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        find(program, "relu").shape = Shape(Type.float_type, [7])


def test_passes_run_by_name_in_order() -> None:
    program = chain()
    order: list[str] = []
    run_passes(program, ["eliminate_identity", "normalize_ops"], trace=lambda name, _: order.append(name))
    assert order == ["eliminate_identity", "normalize_ops"]
    assert names(program) == ["relu"]


def test_a_pass_is_imported_only_for_an_operator_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(base, "make_pass", lambda name: imported.append(name) or make_pass(name))  # type: ignore[func-returns-value]
    run_passes(chain(), ["rewrite_softmax", "rewrite_gelu", "eliminate_identity"])
    assert imported == ["eliminate_identity"]
    g, timings = Graph(), dict[str, float]()
    program = g.ret(g.op("softmax", g.param("x", [2, 3]), axis=1))
    run_passes(program, ["rewrite_softmax", "rewrite_resize"], timings=timings)
    assert imported == ["eliminate_identity", "rewrite_softmax"] and [*timings] == ["rewrite_softmax", "rewrite_resize"]


def test_an_unknown_pass_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match="eliminate_identity"):
        run_passes(chain(), ["fuse_everything"])
    assert "simplify_algebra" in known_passes()
    assert make_pass("simplify_algebra").name == "simplify_algebra"


def test_a_pass_is_found_in_the_file_of_its_name() -> None:
    for name in known_passes():
        home = base.KNOWN[name].__module__
        assert home.startswith("tests.") or home == f"mgx_numba.graph.passes.{name}"


def test_passes_are_disabled_by_argument_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    program = chain()
    run_passes(program, ["eliminate_identity"], disabled=["eliminate_identity"])
    assert "identity" in names(program)
    monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", "normalize_ops, eliminate_identity")
    run_passes(program, ["eliminate_identity"])
    assert "identity" in names(program)
    monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", "mlir, eliminate_identity")
    with pytest.warns(UserWarning, match=r"unknown pass mlir; known: .*dead_code_elimination"):
        run_passes(program, ["eliminate_identity"])
    assert "identity" in names(program)
    with pytest.raises(OptionError, match=r"no_such_pass.*known: .*dead_code_elimination"):
        run_passes(program, ["eliminate_identity"], disabled=["no_such_pass"])


def test_timing_and_tracing_print(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_PASSES", "1")
    monkeypatch.setenv("MIGRAPHX_TIME_PASSES", "1")
    timings: dict[str, float] = {}
    run_passes(chain(), ["eliminate_identity"], timings=timings)
    printed = capsys.readouterr().out
    assert "eliminate_identity: " in printed and 'module: "main"' in printed
    assert set(timings) == {"eliminate_identity"} and timings["eliminate_identity"] > 0


def test_a_failing_pass_is_named() -> None:
    with pytest.raises(CompileError, match=r"test_failing.*out of luck"):
        run_passes(chain(), [Failing()])


def test_validation_names_the_pass_that_broke_the_program() -> None:
    with pytest.raises(ValidationError, match="test_breaking"):
        run_passes(chain(), [Breaking()], validate=True)


def test_inner_modules_come_first_and_bodies_of_kernels_are_skipped() -> None:
    g = Graph()
    x = g.param("x", [2])
    condition = g.param("c", [1], "bool")
    branches = [g.program.create_module(n) for n in ("yes", "no")]
    for branch in branches:
        branch.add_return([branch.add_instruction("relu", [x])])
    body = g.program.create_module("main:pointwise0")
    body.add_return([body.add_instruction("relu", [body.add_parameter("x0", Shape(Type.float_type))])])
    chosen = g.module.add_instruction("if", [condition], branches)
    first = g.op("get_tuple_elem", chosen, index=0)
    g.ret(g.module.add_instruction("pointwise", [first], [body]))
    recorder = Recorder()
    run_passes(g.program, [recorder], validate=True)
    assert sorted(recorder.seen) == ["main", "no", "yes"] and recorder.seen[-1] == "main"


@rule("drop_relu", op("relu", some("x")), exact=True)
def drop_relu(m: Match, b: RewriteBuilder) -> object:
    return b.op("reshape", m.x, dims=(6,))


class ChangesLengths(RulePass):
    name = "test_changes_lengths"
    rules = (drop_relu,)


def test_a_rewrite_must_keep_type_and_lengths() -> None:
    g = Graph()
    program = g.ret(g.op("relu", g.param("x", [2, 3])))
    with pytest.raises(CompileError, match=r"drop_relu.*type or lengths changed"):
        run_passes(program, [ChangesLengths()])


@rule("swap", op("add", some("x"), some("y")), exact=True)
def swap(m: Match, b: RewriteBuilder) -> object:
    return b.op("add", m.ins.inputs[1], m.ins.inputs[0])


class NeverDone(RulePass):
    name = "test_never_done"
    rules = (swap,)


@rule("halve", op("div", some("x"), some("y")), exact=False)
def halve(m: Match, b: RewriteBuilder) -> object:
    return b.op("mul", m.x, m.y)


@rule("look", op("sub", some("x"), some("y")), exact=True)
def look(m: Match, b: RewriteBuilder) -> object:
    return m.x if m.options.fast_math else "an exact rule sees no fast_math"


class Rounds(RulePass):
    name = "test_rounds"
    rules = (halve, look)


@pytest.mark.parametrize("type, fast, done", [
    ("float", False, False), ("float", True, True), ("int32_t", False, True), ("half", False, False),
])  # fmt: skip
def test_rules_that_are_not_exact_need_fast_math_or_integers(type: str, fast: bool, done: bool) -> None:
    g = Graph()
    x, y = g.param("x", [2], type), g.param("y", [2], type)
    program = g.ret(g.op("div", x, y), g.op("sub", x, y))
    run_passes(program, [Rounds()], FAST if fast else STRICT)
    assert names(program) == (["mul", "sub"] if done else ["div", "sub"])


def test_a_rule_must_say_whether_it_is_exact() -> None:
    with pytest.raises(TypeError, match="exact"):
        rule("silent", op("relu", some("x")))  # type: ignore[call-arg]


def test_rules_that_never_end_are_stopped() -> None:
    g = Graph()
    program = g.ret(g.op("add", g.param("x", [2]), g.param("y", [2])))
    endless = NeverDone()
    run_passes(program, [endless], validate=True)
    assert endless.log.exhausted and names(program) == ["add"]


def test_refusals_have_reasons() -> None:
    g = Graph()
    x = g.param("x", [2, 3])
    double = g.op("mul", x, g.scalar(3.0, x))
    program = g.ret(g.op("mul", double, g.scalar(2.0, x)), double)
    algebra = SimplifyAlgebra()
    run_passes(program, [algebra], FAST)
    (refusal,) = algebra.refusals("double_add_lit")
    assert "the inner value is used elsewhere too" in str(refusal)
    product = next(i for i in program.main if i.name == "mul" and i.inputs[0].name == "mul")
    reasons = algebra.explain(product, FAST)
    assert reasons["double_add_lit"] == "the inner value is used elsewhere too"
    assert algebra.explain(product)["double_add_lit"] == "it changes rounding, and fast_math is off"
    assert "is not convolution" in reasons["mul_conv"]


def test_explain_says_when_a_rule_applies_and_changes_nothing() -> None:
    g = Graph()
    x = g.param("x", [2, 3])
    product = g.op("mul", x, g.scalar(1.0, x))
    program = g.ret(product)
    before = str(program)
    assert SimplifyAlgebra().explain(product)["unit_ops"] == "applies"
    assert str(program) == before


def test_a_pattern_binds_one_name_to_one_value() -> None:
    g = Graph()
    x, y = g.param("x", [2]), g.param("y", [2])
    pattern = op("mul", some("a"), op("add", some("a"), scalar(1.0)))
    same = g.op("mul", g.op("add", g.scalar(1.0, x), x), x)
    other = g.op("mul", g.op("add", x, g.scalar(1.0, x)), y)
    assert pattern.match(same, {}) is None
    assert pattern.match(other, {}) is not None


def test_traced_matches_name_the_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_MATCHES", "1")
    g = Graph()
    x = g.param("x", [2])
    run_passes(g.ret(g.op("mul", x, g.scalar(1.0, x))), [SimplifyAlgebra()])
    assert "unit_ops" in capsys.readouterr().out


def test_new_instructions_inherit_debug_symbols() -> None:
    g = Graph()
    x = g.param("x", [2])
    root = g.op("div", x, g.scalar(4.0, x))
    root.debug_symbols = ("node_7",)
    program = g.ret(root)
    run_passes(program, [SimplifyAlgebra()], STRICT)
    assert find(program, "mul").debug_symbols == ("node_7",)


def test_dynamic_shapes_are_left_alone() -> None:
    from mgx_numba.core.shape import DynamicDimension

    program = Program()
    shape = Shape.dynamic(Type.float_type, [DynamicDimension(1, 4), 3])
    x = program.main.add_parameter("x", shape)
    program.main.add_return([program.main.add_instruction("pow", [x, x])])
    before = str(program)
    run_passes(program, ["normalize_ops", "optimize_module", "rewrite_softmax", "layout_convolution"], validate=True)
    assert str(program) == before
