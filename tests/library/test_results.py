"""A library's results are bit-identical to the program's in Python, for models of all kinds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.microkernels.tile_table import matrix_tile
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.runtime.cpu.library.linking import compilers, link_library

from ..frontends.support import make_model
from ..values import normal
from .support import build, exported, finished, needs_compiler, run_library

pytestmark = needs_compiler

FLOAT, INT64, BOOL, HALF = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16
Case = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def convolutions() -> Case:
    feeds = {"image": normal(2, 3, 17, 19)}
    constants = {"w1": normal(8, 3, 3, 3, seed=1), "b1": normal(8, seed=2), "w2": normal(8, 1, 3, 3, seed=3)}
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=8),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
    ]
    return make_model(nodes, feeds, {"c": FLOAT, "d": FLOAT}, constants=constants), feeds


def attention() -> Case:
    feeds = {name: normal(2, 4, 33, 16, seed=k) for k, name in enumerate("qkv")}
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return make_model(nodes, feeds, {"y": FLOAT}, constants={"scale": np.float32(0.25)}), feeds


def types() -> Case:
    """Integers, bool, half, a tensor without axes, one without elements, a name of all kinds of characters."""
    odd = 'a "name"\\ß%d??/'
    feeds = {
        odd: normal(5, 7),
        "n": np.arange(-3, 4, dtype=np.int64),
        "h": normal(7, seed=1, dtype=np.float16),
        "one": np.array(2.5, np.float32),
        "row": np.array([4, 0, -1], np.int64),
    }
    nodes = [
        helper.make_node("Greater", [odd, "one"], ["positive"]),
        helper.make_node("Mul", ["n", "n"], ["squares"]),
        helper.make_node("Sqrt", ["h"], ["roots"]),
        helper.make_node("Add", ["one", "one"], ["two"]),
        helper.make_node("Slice", [odd, "none", "none"], ["empty"]),
        helper.make_node("Exp", ["empty"], ["nothing"]),
        helper.make_node("Gather", [odd, "row"], ["rows"]),
        helper.make_node("TopK", [odd, "three"], ["best", "places"]),
    ]
    outputs = {"positive": BOOL, "squares": INT64, "roots": HALF, "two": FLOAT, "nothing": FLOAT, "rows": FLOAT}
    constants = {"three": np.array([3], np.int64), "none": np.array([0], np.int64)}
    return make_model(nodes, feeds, {**outputs, "best": FLOAT, "places": INT64}, constants=constants), feeds


def passed_on() -> Case:
    """A parameter and a constant as results."""
    feeds = {"x": normal(3, 4)}
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"])]
    return make_model(nodes, feeds, {"y": FLOAT, "z": FLOAT}, constants={"c": normal(4, seed=2)}), feeds


def products() -> Case:
    """A product large enough for AMX's tiles, where the CPU has them: the library then asks the system for them."""
    feeds = {"x": normal(64, 512)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return make_model(nodes, feeds, {"y": FLOAT}, constants={"w": normal(512, 512, seed=3)}), feeds


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example that comes with a library; it runs any."""
    folder = tmp_path_factory.mktemp("example")
    model, _ = passed_on()
    exported(model.SerializeToString(), folder, link=False)
    return build(folder / "example" / "model" / "example.cpp", folder / "include", folder / "example.exe")


@pytest.mark.parametrize("case", [convolutions, attention, products, types, passed_on])
def test_results_are_those_of_python(case: Callable[[], Case], example: Path, tmp_path: Path) -> None:
    model, feeds = case()
    program, library = exported(model.SerializeToString(), tmp_path, embed_weights=case is attention)
    if case is products and matrix_tile(element_types("float32")) is not None:
        assert any(kernel.name.startswith("gemm_tiles") for kernel in program.kernels())
    wanted = [np.asarray(result) for result in program.run(feeds)]
    for found, expected in zip(run_library(example, library, program, feeds, tmp_path), wanted, strict=True):
        assert found.shape == expected.shape and found.tobytes() == expected.tobytes()


def test_narrowed_features_are_those_that_are_asked_for(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host.ENVIRONMENT, "x86-64-v2")
    feeds = {"x": normal(37)}
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], feeds, {"y": FLOAT})
    program, objects = exported(model.SerializeToString(), tmp_path, link=False)
    assert '{"sse2", ' in (text := (objects / "plan.c").read_text()) and '{"avx' not in text
    registers = finished(["objdump", "-d", "--no-show-raw-insn", *objects.glob("mgx_*.o")])
    assert "%xmm" in registers and "%ymm" not in registers and "%zmm" not in registers
    library = link_library(compilers("test", "CC"), objects, tmp_path / "include", "model")
    library = library.rename(tmp_path / "lib" / library.name)
    for found, expected in zip(run_library(example, library, program, feeds, tmp_path), [np.maximum(feeds["x"], 0)]):
        np.testing.assert_array_equal(found, expected)


def test_weights_inside_of_the_library_leave_no_file_beside_it(example: Path, tmp_path: Path) -> None:
    model, feeds = convolutions()
    wanted = None
    for embed in (False, True, False):
        program, library = exported(model.SerializeToString(), tmp_path, embed_weights=embed)
        assert library.with_name("model.weights").exists() != embed
        wanted = wanted or [np.asarray(result) for result in program.run(feeds)]
        for found, expected in zip(run_library(example, library, program, feeds, tmp_path), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_library_needs_no_python(tmp_path: Path) -> None:
    model, _ = attention()
    _, library = exported(model.SerializeToString(), tmp_path, "small")
    symbols = finished(["nm", "-D", library])
    assert {line.split()[-1] for line in symbols.splitlines() if " T " in line} == {"small_library", "mgx_get_library"}
    assert not any(word in symbols for word in ("Py", "numba", "NRT", "LLVM"))
    needed = {line.split()[0].split(".")[0] for line in finished(["ldd", library]).splitlines()}
    assert needed <= {"linux-vdso", "libc", "libm", "libdl", "libpthread", "/lib64/ld-linux-x86-64"}
    assert "python" not in library.read_bytes().decode("latin-1").lower()


def test_index_out_of_range_is_an_error_of_the_call(example: Path, tmp_path: Path) -> None:
    model, feeds = types()
    program, library = exported(model.SerializeToString(), tmp_path)
    feeds["row"] = np.array([0, 5, 1], np.int64)
    with pytest.raises(AssertionError, match="index 5 is out of range for"):
        run_library(example, library, program, feeds, tmp_path)


def test_cmake_finds_links_and_runs_a_library(tmp_path: Path) -> None:
    model, feeds = convolutions()
    program, objects = exported(model.SerializeToString(), tmp_path, "net", link=False)
    assert objects == tmp_path / "lib" / "net-objects" and not (tmp_path / "lib" / "libnet.so").exists()
    if shutil.which("cmake") is None:
        pytest.skip("no CMake")
    finished(["cmake", "-S", objects, "-B", tmp_path / "b1"])
    finished(["cmake", "--build", tmp_path / "b1"])
    finished(["cmake", "-S", tmp_path / "example" / "net", "-B", tmp_path / "b2"])
    finished(["cmake", "--build", tmp_path / "b2"])
    assert finished([tmp_path / "b2" / "example_c"]) == "output 0: 3584 bytes\noutput 1: 64 bytes\n"
    library = tmp_path / "lib" / "libnet.so"
    wanted = [np.asarray(result) for result in program.run(feeds)]
    for found, expected in zip(run_library(tmp_path / "b2" / "example", library, program, feeds, tmp_path), wanted):
        np.testing.assert_array_equal(found, expected)


def test_members_of_a_tuple_are_outputs_of_their_own(tmp_path: Path) -> None:
    program = migraphx.program()
    main = program.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[3, 5]))
    main.add_return([x, main.add_instruction(migraphx.op("topk", k=2, axis=1, largest=1), [x])])
    objects = program.compile("cpu").export_library(tmp_path, link=False)
    text = (objects / "plan.c").read_text()
    assert re.findall(r'\{"(output_[\d.]+)", \(mgx_type\)(\d+)', text) == [
        ("output_0", "2"),
        ("output_1.0", "2"),
        ("output_1.1", "9"),
    ]
