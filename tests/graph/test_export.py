"""Programs as Python source, as graphs and as JSON."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

from mgx_numba.api.argument import argument
from mgx_numba.core.argument import Argument
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import UnsupportedError
from mgx_numba.graph.export import to_cpp, to_dot, to_py
from mgx_numba.graph.instruction import Instruction, Outline
from mgx_numba.graph.program import Program
from tests.graph.test_mxr import branching_program, convolution_program, dynamic_program


def run_source(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(source, "<exported>", "exec"), names)
    return names["p"]


def small_literals() -> Program:
    program = Program()
    rng = np.random.default_rng(3)
    kinds = [t for t in Type if not t.hosted and t not in (Type.tuple_type, Type.fp4x2_type)]
    values = [np.array([[0, 1, 1]]).astype(t.numpy) for t in kinds]
    values += [np.float32([np.inf, -np.inf, 1e-30]), rng.standard_normal((3, 4)), np.uint64([2**63 + 1])]
    literals = [program.main.add_literal(v) for v in values]
    repeated = Argument.from_array(np.broadcast_to(np.float32([1, 2]), (4, 2)))
    literals.append(program.main.add_literal(repeated))
    literals.append(program.main.add_literal(np.float32(0.1)))
    program.main.add_return(literals)
    return program


def awkward_names() -> Program:
    """Names that are no Python names, that coincide once they are, and that need quoting."""
    program = Program()
    shape = Shape(Type.float_type, (2,))
    values = [program.main.add_parameter(name, shape) for name in ("x.1", "x-1", 'a"b\\', "class", "<&>")]
    program.main.add_return(values)
    return program


@pytest.mark.parametrize(
    "build", [convolution_program, branching_program, dynamic_program, small_literals, awkward_names]
)
def test_python_source_builds_the_same_program(build: Any) -> None:
    program = build()
    for ins in program.main:
        ins.debug_symbols = ()
    built = run_source(to_py(program))
    assert str(built) == str(program)
    assert built.get_parameter_names() == list(program.parameter_shapes())
    for mine, theirs in zip(built.get_main_module(), program.main):
        if theirs.literal is not None:
            values = (np.asarray(v).astype(np.float64) for v in (mine.get_literal(), argument.wrap(theirs.literal)))
            assert np.array_equal(*values, equal_nan=True)


def test_python_source_has_migraphx_style() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2, 3)))
    y = program.main.add_instruction("softmax", [x], axis=0)
    program.main.add_return([program.main.add_instruction("softmax", [y])])
    assert to_py(program).splitlines()[2:] == [
        "p = migraphx.program()",
        "mmain = p.get_main_module()",
        "p_x = mmain.add_parameter('x', migraphx.shape(type='float_type', lens=[2, 3]))",
        "x_1 = mmain.add_instruction(migraphx.op('softmax', axis=0), [p_x])",
        "x_2 = mmain.add_instruction(migraphx.op('softmax'), [x_1])",
        "mmain.add_return([x_2])",
    ]


def test_large_literals_are_generated() -> None:
    program = Program()
    program.main.add_return([program.main.add_literal(np.zeros(n, np.float32)) for n in (1023, 1024, 1025)])
    source = to_py(program)
    assert source.count("generate_argument") == 2
    assert "lens=[1024]), 0)" in source
    assert str(run_source(source)) == str(program)


def test_what_the_api_cannot_make_is_refused() -> None:
    program = Program()
    outline = program.main._link(Instruction(Outline(), (), Shape(Type.float_type, (2,))), None)
    program.main.add_return([outline])
    for write in (to_py, to_cpp):
        with pytest.raises(UnsupportedError, match="outline"):
            write(program)


def test_cpp_source_has_migraphx_style() -> None:
    program = Program()
    x = program.main.add_parameter('x "?"', Shape(Type.float_type, (2, 3), (1, 2)))
    n = program.main.add_parameter("n", Shape.dynamic(Type.int64_type, [DynamicDimension(1, 4, {2, 4}), 3]))
    values = [np.float32([np.inf, -np.inf, np.nan, 1e-30]), np.array([True, False]), np.uint64([2**63])]
    literals = [program.main.add_literal(v) for v in (*values, np.float32(0.5), np.zeros(1024, np.int8))]
    y = program.main.add_instruction("relu", [program.main.add_instruction("softmax", [x], axis=0)])
    program.main.add_return([y, n, *literals])
    lines = to_cpp(program).splitlines()
    assert lines[:2] == ["migraphx::program p;", "migraphx::module_ref mmain = p.get_main_module();"]
    limits = "std::numeric_limits<double>::"
    expected = [
        'mmain->add_parameter("x \\"\\077\\"", migraphx::shape{migraphx::shape::float_type, {2, 3}, {1, 2}});',
        'mmain->add_parameter("n", migraphx::shape{migraphx::shape::int64_type,'
        " {migraphx::shape::dynamic_dimension{1, 4, {2, 4}}, migraphx::shape::dynamic_dimension{3, 3}}});",
        "mmain->add_literal(migraphx::literal{migraphx::shape{migraphx::shape::float_type, {4}},"
        f" {{{limits}infinity(), -{limits}infinity(), {limits}quiet_NaN(), 1.0000000031710769e-30}}}});",
        "mmain->add_literal(migraphx::literal{migraphx::shape{migraphx::shape::bool_type, {2}}, {true, false}});",
        "mmain->add_literal(migraphx::literal{migraphx::shape{migraphx::shape::uint64_type, {1}},"
        " {9223372036854775808ull}});",
        "mmain->add_literal(migraphx::literal{migraphx::shape{migraphx::shape::float_type, {1}, {0}}, {0.5}});",
        "mmain->add_literal(migraphx::generate_literal(migraphx::shape{migraphx::shape::int8_type, {1024}}, 0));",
    ]
    assert {line.split(" = ", 1)[1] for line in lines if "add_literal" in line or "add_param" in line} == {*expected}
    assert 'auto x_7 = mmain->add_instruction(migraphx::make_json_op("softmax", "{\\"axis\\": 0}"), p_x____);' in lines
    assert 'auto x_8 = mmain->add_instruction(migraphx::make_op("relu"), x_7);' in lines
    assert lines[-1].startswith("mmain->add_return({x_8, p_n, ")


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (np.int64([1, 3 << 40]), "1ll, 3298534883328ll"),
        (np.int64([-(1 << 63), 0]), "-9223372036854775807ll - 1, 0ll"),
        (np.int32([-(1 << 31), 1]), "-2147483648ll, 1ll"),
        (np.int32([1 - (1 << 31), (1 << 31) - 1]), "-2147483647, 2147483647"),
        (np.uint32([1, 1 << 31]), "1ll, 2147483648ll"),
        (np.uint64([1, (1 << 64) - 1]), "1ull, 18446744073709551615ull"),
    ],
)
def test_cpp_source_had_integers_of_two_types_in_one_literal(values: np.ndarray, written: str) -> None:
    """C++ deduces the type of a list of numbers only if they have one."""
    program = Program()
    program.main.add_return([program.main.add_literal(values)])
    assert f"{{{written}}}}}" in to_cpp(program)


def test_cpp_source_had_infinite_attributes_as_json_which_has_none() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2, 3)))
    program.main.add_return([program.main.add_instruction("pad", [x], pads=[0, 1, 0, 1], value=-np.inf)])
    written = [line for line in to_cpp(program).splitlines() if '"pad"' in line]
    infinity = '{"value", -std::numeric_limits<double>::infinity()}'
    assert len(written) == 1 and infinity in written[0] and '{"pads", {0, 1, 0, 1}}' in written[0]
    assert 'migraphx::make_op("pad", {{"' in written[0] and written[0].endswith("}}), p_x);")


def test_cpp_source_of_submodules() -> None:
    lines = to_cpp(branching_program()).splitlines()
    names = [line.split()[1] for line in lines if " = p.create_module(" in line]
    assert len(names) == 3 and sum("->add_return({" in line for line in lines) == 4
    assert f'mmain->add_instruction(migraphx::make_op("if"), {{p_cond}}, {{{names[0]}, {names[1]}}});' in "".join(lines)
    assert sum(line.endswith(f"}}, {{{names[2]}}});") for line in lines) == 2


def test_graph_names_all_instructions_and_edges() -> None:
    program = branching_program()
    text = to_dot(program)
    assert text.startswith("digraph {")
    assert text.count(" -> ") == sum(len(i.inputs) for m in program.reachable_modules() for i in m) + sum(
        len(m.results()) for module in program.reachable_modules() for i in module for m in i.module_args
    )
    assert text.count("subgraph") == 3
    assert "float_type, {2, 3}, {3, 1}" in text


def test_brief_graph_leaves_out_literals_and_shapes() -> None:
    brief = to_dot(convolution_program(), brief=True)
    assert "float_type" not in brief
    assert "@literal" not in brief
    assert "padding" not in brief
    assert "padding" in to_dot(convolution_program())


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("build", [branching_program, awkward_names, small_literals])
def test_graphviz_accepts_the_graph(build: Any) -> None:
    for brief in (False, True):
        text = to_dot(build(), brief).encode()
        subprocess.run(["dot", "-Tcanon"], input=text, check=True, capture_output=True)


def test_dynamic_dimensions_keep_their_optimals() -> None:
    program = Program()
    dims = [DynamicDimension(1, 4, frozenset({2, 4})), DynamicDimension(3, 3)]
    program.main.add_return([program.main.add_parameter("x", Shape.dynamic(Type.float_type, dims))])
    built = run_source(to_py(program))
    assert [d.optimals for d in built.get_parameter_shapes()["x"].dyn_dims()] == [{2, 4}, set()]
