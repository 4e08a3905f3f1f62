"""Libraries of programs with open lengths: one plan for all lengths, bit-identical to Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx

from ..dynamic.models import Case, decoder, encoder
from ..frontends.support import make_model
from ..values import normal
from .loaded import Loaded, Size
from .support import CC, CXX, build, finished, needs_compiler

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def compiled(case: Case) -> Any:
    ranges = {"default_dyn_dim_value": migraphx.shape.dynamic_dimension(0, 4096)}
    program = migraphx.parse_onnx_buffer(case.model.SerializeToString(), **ranges)
    return program.compile(migraphx.get_target("cpu"), num_threads=2)


@pytest.mark.parametrize("make", [encoder, decoder])
def test_a_library_gives_what_the_program_gives_at_lengths_in_any_order(
    make: Callable[[], Case], loaded: Callable[[Any], Loaded]
) -> None:
    case = make()
    program, rng = compiled(case), np.random.default_rng(4)
    libraries = [loaded(program) for _ in range(2)]
    for _ in range(8):
        feeds = {name: np.ascontiguousarray(array) for name, array in case.draw(rng).items()}
        wanted = list(map(np.asarray, program.run(feeds)))
        for library in libraries:
            for mine, theirs in zip(library.run(feeds), wanted, strict=True):
                np.testing.assert_array_equal(mine, theirs, strict=True)


def products() -> Any:
    """Rows times weights; the second input has as many rows."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "z"], ["y"])]
    model = make_model(
        nodes, {"x": normal(3, 4), "z": normal(3, 5)}, {"y": TensorProto.FLOAT}, constants={"w": normal(4, 5)}
    )
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[0].dim_param = "n"
    ranges = {"default_dyn_dim_value": migraphx.shape.dynamic_dimension(1, 64)}
    return migraphx.parse_onnx_buffer(model.SerializeToString(), **ranges).compile("cpu", num_threads=1)


def test_lengths_that_do_not_fit_are_told(loaded: Callable[[Any], Loaded]) -> None:
    library = loaded(products())
    assert library.library.parameters[0].lens[0] == Size(-1).value and library.library.parameters[0].lens[1] == 4
    wrong = [
        ({"x": normal(3, 4), "z": normal(2, 5)}, r"parameter z has the shape float \{2, 5\}, expected float \{3, 5\}"),
        ({"x": normal(3, 7), "z": normal(3, 5)}, r"parameter x has the shape float \{3, 7\}, expected float \{3, 4\}"),
        ({"x": normal(65, 4), "z": normal(65, 5)}, "does not serve these lengths"),
        ({"x": normal(3), "z": normal(3, 5)}, r"parameter x has the shape float \{3\}, expected float \{\?, 4\}"),
        ({"z": normal(3, 5)}, r"Parameter not found: x"),
    ]
    for feeds, message in wrong:
        with pytest.raises(ValueError, match=message):
            library.run(feeds)
    x, z = normal(64, 4), normal(64, 5)
    np.testing.assert_allclose(library.run({"x": x, "z": z})[0].sum(), library.run({"z": z, "x": x})[0].sum())


SOURCE = """
#include <cstdio>
#include <migraphx/migraphx.hpp>
int main(int, char** arguments)
{
    migraphx::program p = migraphx::load(arguments[1]);
    if(!p.get_parameter_shapes()["x"].dynamic())
        return 1;
    for(std::size_t n : {3, 1, 64}) {
        std::vector<float> x(n * 4, 1), z(n * 5, 2);
        migraphx::program_parameters given;
        given.add("x", migraphx::argument(migraphx::shape(migraphx_shape_float_type, {n, 4}), x.data()));
        given.add("z", migraphx::argument(migraphx::shape(migraphx_shape_float_type, {n, 5}), z.data()));
        std::printf("%zu ", p.eval(given)[0].get_shape().lengths()[0]);
    }
}
"""


@needs_compiler
def test_programs_in_cpp_run_them(tmp_path: Path) -> None:
    assert CXX is not None
    path = products().export_library(tmp_path, "model")
    (tmp_path / "a.cpp").write_text(SOURCE)
    program = build(tmp_path / "a.cpp", tmp_path / "include", tmp_path / "a")
    assert finished([program, path]) == "3 1 64 "
