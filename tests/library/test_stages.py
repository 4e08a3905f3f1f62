"""Libraries of programs with several plans: by guards, and in stages whose lengths depend on data; bit-identical to
Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

import mgx_numba as migraphx
from mgx_numba.errors import UnsupportedError

from ..dynamic.models import Case, Feeds, Graph, detector_head, single_shot, two_stages
from ..dynamic.test_sizes import RESULTS, STEPS, looped
from ..values import normal
from .loaded import NEEDS_VALUES, Loaded, Size, Tensor, tensor
from .support import CC, build, finished, needs_compiler
from .test_robustness import SANITIZE

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")

FLOAT = TensorProto.FLOAT
Load = Callable[[Any], Loaded]


def compiled(model: onnx.ModelProto, threads: int = 2) -> Any:
    ranges = {"default_dyn_dim_value": migraphx.shape.dynamic_dimension(0, 512)}
    program = migraphx.parse_onnx_buffer(model.SerializeToString(), **ranges)
    return program.compile("cpu", num_threads=threads, plan_cache=False)


def check(program: Any, library: Loaded, feeds: Feeds) -> list[np.ndarray]:
    wanted = [np.array(result) for result in program.run(dict(feeds))]
    found = library.run({name: np.ascontiguousarray(array) for name, array in feeds.items()})
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    return found


def sum_of_two() -> onnx.ModelProto:
    g = Graph()
    return g.model({"x": (FLOAT, ["n", 4]), "z": (FLOAT, ["m", 4])}, [g.op("Add", "x", "z")])


def pairs(*rows: tuple[int, int]) -> list[Feeds]:
    return [{"x": normal(n, 4), "z": normal(m, 4, seed=7)} for n, m in rows]


def test_the_plan_runs_whose_guards_hold(loaded: Load) -> None:
    """A program with several symbolic plans was refused."""
    program = compiled(sum_of_two())
    seen = pairs((3, 3), (1, 3), (5, 1))
    for feeds in seen:
        program.run(feeds)
    assert len(program.compiled.symbolic_plans) >= 2
    library = loaded(program)
    for feeds in [*seen, *pairs((7, 7), (1, 9), (2, 2), (4, 1))]:
        np.testing.assert_array_equal(check(program, library, feeds)[0], feeds["x"] + feeds["z"])
    with pytest.raises(ValueError, match="does not serve these lengths of the inputs"):
        library.run(pairs((2, 3))[0])
    with pytest.raises(ValueError, match=r"parameter z has the shape double \{3, 4\}, expected float \{"):
        library.run({"x": normal(3, 4), "z": normal(3, 4).astype(np.float64)})


def test_plans_for_fixed_lengths_serve_these_lengths(loaded: Load) -> None:
    program = compiled(sum_of_two())
    program.compiled.symbolic_plans = []
    for n in (2, 3):
        program.compiled.fixed_plan_for({"x": (n, 4), "z": (n, 4)})
    library = loaded(program)
    for feeds in pairs((2, 2), (3, 3)):
        (found,) = library.run(feeds)
        np.testing.assert_array_equal(found, feeds["x"] + feeds["z"])
    with pytest.raises(ValueError, match="does not serve these lengths of the inputs"):
        library.run(pairs((4, 4))[0])


def test_a_program_whose_first_run_makes_its_plan_is_refused(tmp_path: Path) -> None:
    program = compiled(sum_of_two())
    program.compiled.symbolic_plans = []
    with pytest.raises(UnsupportedError, match="made in its first run: run the program, then export it"):
        program.export_library(tmp_path)


@pytest.mark.parametrize("make", [detector_head, single_shot, two_stages])
def test_detectors_of_open_lengths_run_in_stages(make: Callable[[], Case], loaded: Load) -> None:
    case, rng = make(), np.random.default_rng(3)
    program = compiled(case.model)
    library = loaded(program)
    for _ in range(6):
        check(program, library, case.draw(rng))


def chosen_rows(lens: Sequence[int | str] = (6, 4)) -> onnx.ModelProto:
    """Rows of x where y is positive, times weights; x doubled; the rows' positions, twice; the weighted rows again."""
    g = Graph()
    where = g.op("Squeeze", g.op("NonZero", g.op("Greater", "y", g.const(np.float32(0)))), g.ints(0))
    product = g.op("MatMul", g.op("Gather", "x", where), g.weights(4, 3))
    outputs = [product, g.op("Add", "x", "x"), where]
    model = g.model({"x": (FLOAT, lens), "y": (FLOAT, lens[:1])}, outputs)
    model.graph.output.extend([onnx.ValueInfoProto(name=name) for name in (where, product)])
    return model


@pytest.mark.parametrize("lens", [(6, 4), ("n", 4)])
def test_rows_that_the_data_choose(lens: Sequence[int | str], loaded: Load) -> None:
    program = compiled(chosen_rows(lens))
    library = loaded(program)
    for n in (6,) if lens[0] == 6 else (6, 1, 70, 6):
        for shift in (0, 9, -9):
            feeds = {"x": normal(n, 4), "y": normal(n, seed=3) + np.float32(shift)}
            product, twice, where, same, again = check(program, library, feeds)
            np.testing.assert_array_equal(where, np.flatnonzero(feeds["y"] > 0))
            np.testing.assert_array_equal(same, where)
            np.testing.assert_array_equal(again, product)
            np.testing.assert_array_equal(twice, 2 * feeds["x"])


def test_positions_alone_need_no_second_stage(loaded: Load) -> None:
    g = Graph()
    program = compiled(g.model({"x": (FLOAT, [4, 5])}, [g.op("NonZero", "x")]))
    library = loaded(program)
    for x in (normal(4, 5), np.zeros((4, 5), np.float32), np.eye(4, 5, dtype=np.float32)):
        (found,) = check(program, library, {"x": x})
        np.testing.assert_array_equal(found, np.nonzero(x))


def test_outputs_of_other_lengths_than_the_data_give_are_refused(loaded: Load) -> None:
    g = Graph()
    library = loaded(compiled(g.model({"x": (FLOAT, [6])}, [g.op("NonZero", "x")])))
    x, y = np.float32([0, 1, 0, 2, 0, 0]), np.zeros((1, 3), np.int64)
    inputs, outputs = (Tensor * 1)(tensor(x, "x")), (Tensor * 1)(tensor(y))
    assert library.library.output_lens(library.program, inputs, 1, (Size * 2)()) == NEEDS_VALUES
    assert library.library.run(library.program, inputs, 1, outputs, 1) == 1
    assert b"has the shape int64 {1, 3}, expected int64 {1, 2}" in library.library.error()
    assert library.library.outputs[0].lens[:2] == [1, Size(-1).value]


RANGES = [
    (np.int64, (0, 9, 2)),
    (np.int64, (9, -3, -4)),
    (np.int64, (5, 5, 1)),
    (np.int32, (-3, 4, 3)),
    (np.int16, (7, -7, -5)),
    (np.float32, (0.5, 3.1, 0.3)),
    (np.float64, (1, -1, -0.1)),
    (np.float32, (0, -2, 1)),
]


@pytest.mark.parametrize(("dtype", "numbers"), RANGES)
def test_ranges_of_computed_numbers(dtype: type, numbers: tuple[float, ...], loaded: Load) -> None:
    g = Graph()
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = g.model({name: (element, []) for name in "abc"}, [g.op("Range", "a", "b", "c")])
    program = compiled(model)
    feeds = {name: np.array(number, dtype) for name, number in zip("abc", numbers)}
    library = loaded(program)
    (found,) = check(program, library, feeds)
    wanted = np.arange(*numbers, dtype=np.float64)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    with pytest.raises(ValueError, match="delta is 0"):
        library.run({**feeds, "c": np.array(0, dtype)})


@pytest.mark.parametrize("kind", ["split", "slice", "pad", "topk"])
def test_sizes_that_are_inputs(kind: str, loaded: Load) -> None:
    inputs, results, text = RESULTS[kind]
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    sized (float[6,7] x, {inputs}) => ({results}) {{ {text} }}""")
    sizes = {
        "split": [[3, 4], [1, 6], [7, 0]],
        "slice": [[0, 2], [1, 0], [2, 2]],
        "pad": [[0, 1, 2, 3], [1, 0, 0, 2]],
        "topk": [[3], [1], [7]],
    }[kind]
    program = compiled(model)
    names = program.get_parameter_names()
    given = {"x": normal(6, 7), "l": np.array([6, 5]), "v": np.array(-1.5, np.float32)}
    every = [{name: {**given, "k": np.array(k)}[name] for name in names} for k in sizes]
    for feeds in every:
        program.run(feeds)
    library = loaded(program)
    for feeds in every:
        check(program, library, feeds)


def test_a_program_read_from_a_file_exports_its_stages(tmp_path: Path, loaded: Load) -> None:
    compiled(chosen_rows(("n", 4))).save(tmp_path / "a.mxr")
    program = migraphx.load(str(tmp_path / "a.mxr"))
    library = loaded(program)
    for n in (5, 1, 12):
        check(program, library, {"x": normal(n, 4), "y": normal(n, seed=3)})


def test_a_loop_whose_body_has_lengths_from_data_is_named(tmp_path: Path) -> None:
    program = compiled(parser.parse_model(looped(STEPS["slice"])))
    with pytest.raises(UnsupportedError, match=r"(?s)run in Python.*: 1\n.*loop\[.*values say which submodules run"):
        program.export_library(tmp_path)


SOURCE = """
#include <cstdio>
#include <migraphx/migraphx.hpp>
int main(int, char** arguments)
{
    migraphx::program p = migraphx::load(arguments[1]);
    if(!p.get_output_shapes()[0].dynamic())
        return 1;
    for(float shift : {0.0f, 2.0f, -9.0f}) {
        std::vector<float> x(24, 1), y = {-1, 1, 2, -3, 4, -5};
        for(float& value : y)
            value += shift;
        migraphx::program_parameters given;
        given.add("x", migraphx::argument(migraphx::shape(migraphx_shape_float_type, {6, 4}), x.data()));
        given.add("y", migraphx::argument(migraphx::shape(migraphx_shape_float_type, {6}), y.data()));
        migraphx::arguments results = p.eval(given);
        std::printf("%zu:", results[0].get_shape().lengths()[0]);
        for(std::int64_t row : results[2].as_vector<std::int64_t>())
            std::printf("%d", int(row));
        std::printf(" ");
    }
}
"""


@needs_compiler
@pytest.mark.parametrize("flags", ["", SANITIZE], ids=["plain", "sanitized"])
def test_programs_in_cpp_run_them(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", f"-Wall -Wextra -Werror {flags}")
    path = compiled(chosen_rows()).export_library(tmp_path, "model")
    (tmp_path / "a.cpp").write_text(SOURCE)
    program = build(tmp_path / "a.cpp", tmp_path / "include", tmp_path / "a", *flags.split())
    assert finished([program, path]) == "3:124 4:0124 0: "


def test_the_example_in_c_runs_programs_of_open_lengths(tmp_path: Path) -> None:
    """It took the mark of an open length for a length."""
    library = compiled(chosen_rows(("n", 4))).export_library(tmp_path, "net")
    source, program = tmp_path / "example" / "net" / "example.c", tmp_path / "example_c"
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    finished(
        [CC, *warnings, f"-I{tmp_path / 'include'}", f"-Wl,-rpath,{library.parent}", source, library, "-o", program]
    )
    sizes = [0, 16, 0, 0, 0]  # bytes of one row of x doubled, and of no chosen row
    assert finished([program]).splitlines() == [f"output {k}: {size} bytes" for k, size in enumerate(sizes)]
