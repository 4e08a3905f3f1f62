"""MIGraphX's C++ interface over the compiler's process (``compiler.cpp``, built with sanitizers)."""

from __future__ import annotations

import io
import re
import struct
from contextlib import closing
from pathlib import Path

import ml_dtypes
import msgpack
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.driver.serving.channel import receive
from mgx_numba.driver.serving.service import Service, attributes_of
from mgx_numba.errors import FormatError, OperatorError, OptionError
from mgx_numba.graph.export import to_cpp
from mgx_numba.runtime.cpu.library import CPP_PREFIX

from ..frontends.support import make_model
from ..frontends.tf_support import Graph
from ..values import normal
from .support import build, finished, needs_compiler, with_driver

SOURCE = Path(__file__).with_name("compiler.cpp")
FLOAT = TensorProto.FLOAT
EXPECTED = {
    "operator": r"8 .*nothing.*",
    "attribute": r"8 .*flatten.*axes.*",
    "json": r"8 attributes '{axis:}' are no JSON: .*",
    "foreign": r"1 an instruction is of another program",
    "elements": r"1 literal: 2 elements are given, its shape has 3",
    "missing": r"8 Parameter not found: x \(given: y; expected: x\)",
    "shape": r"8 Incorrect shape {float_type, {2, 3}, .* for parameter: x should be: {float_type, {2, 2}, {2, 1}}",
    "batch": r"1 program: parameter x has the shape float {5, 6}, expected .*; program::reshape .*map_input_dims",
    "not compiled": r"8 the program is not compiled.*",
    "file": r"8 .*net.onnx: .*it looks like an ONNX model: parse_onnx reads it\)",
    "no file": r"8 .*nowhere.onnx.*",
    "no target": r"8 .*fpga.*",
    "empty": r"1 the program is empty: load, parse or build one",
    "custom shape": r"8 scaled_op: .*compute_shape of scaled_op: two inputs are needed",
    "custom result": r"8 wrong_op: .*compute of wrong_op: the result has another type or other lengths.*",
    "custom name": r"8 a custom operator cannot be called 'add': an operator is",
    "trace": r"8 trace of cpu::abs_kernel: an exception that is no std::exception",
    "no tensor": r"7 .*net.mxr: it has no tensor of a type that C\+\+ has",
    "overflow": r"1 shape: no memory can have as many elements",
    "forked": r"8 the program belongs to the process that this one was forked from",
    "killed": r"8 the compiler's process has ended by signal 9",
    "gone": r"8 the compiler's process has ended, and with it the programs that it had",
}


def network(lens: list[object]) -> onnx.ModelProto:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["y"])],
        {"x": normal(4, 6)},
        {"y": FLOAT},
        constants={"w": normal(6, 5, seed=1)},
    )
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, lens):
        if isinstance(length, str):
            dim.dim_param = length
    return model


def write_models(folder: Path) -> None:
    """A network, also with weights in the folder ``weights``, a loop of three iterations, and a graph of TensorFlow."""
    model = network(["n", 6])
    onnx.save(model, folder / "net.onnx")
    (folder / "weights").mkdir()
    onnx.save(model, folder / "weights" / "net.onnx", save_as_external_data=True, location="w", size_threshold=0)
    (folder / "weights" / "net.onnx").rename(folder / "outside.onnx")
    carried = {"i": TensorProto.INT64, "go": TensorProto.BOOL}
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in carried.items()),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    loop = make_model(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)],
        {"x": np.ones(1, np.float32)},
        {"y": TensorProto.FLOAT},
        constants={"count": np.array(3)},
    )
    onnx.save(loop, folder / "loop.onnx")
    graph = Graph()
    graph.input("x", (-1, 3))
    graph.add("AddV2", "twice", ["x", "x"])
    graph.add("Neg", "other", ["x"])
    (folder / "graph.pb").write_bytes(graph.proto.SerializeToString())


def built() -> migraphx.program:
    """With submodules, literals of several types, attributes of all kinds."""
    p = migraphx.program()
    main = p.get_main_module()
    numbers = main.add_literal(np.arange(6, dtype=np.int64).reshape(2, 3))
    x = main.add_parameter("x", migraphx.shape(type="float", lens=[2, 3]))
    odd = [0.5, -65504, 65520, 6e-8, 3e-5, 1 / 3, np.inf, np.nan, 1 + 2**-11, 1 + 3 * 2**-11]
    for dtype in (np.float16, ml_dtypes.bfloat16):
        with np.errstate(over="ignore"):
            main.add_literal(np.array(odd, np.float32).astype(dtype))
    condition = main.add_parameter("c", migraphx.shape(type="bool", lens=[1]))
    floats = main.add_instruction(migraphx.op("convert", target_type=2), [numbers])
    then, other = p.create_module("then"), p.create_module("other")
    then.add_return([then.add_instruction(migraphx.op("add"), [x, floats])])
    half = other.add_literal(np.array([[0.5, np.inf, -1], [2, 3, 4]], np.float32))
    other.add_return([other.add_instruction(migraphx.op("pow"), [x, half])])
    chosen = main.add_instruction(migraphx.op("if"), [condition], [then, other])
    (taken,) = (main.add_instruction(migraphx.op("get_tuple_elem", index=0), [chosen]),)
    main.add_return([taken, main.add_instruction(migraphx.op("reduce_sum", axes=[1]), [floats])])
    return p


@needs_compiler
def test_every_class_of_the_interface_is_used(tmp_path: Path) -> None:
    write_models(tmp_path)
    source = SOURCE.with_name("surface.cpp")
    program = build(source, CPP_PREFIX / "include", tmp_path / "surface", "-O0")
    told = finished([program, tmp_path], env=with_driver())
    assert told.endswith("all hold\n") and "marking(" in told


@needs_compiler
def test_programs_are_read_built_compiled_and_run(tmp_path: Path) -> None:
    onnx.save(network([4, 6]), tmp_path / "net.onnx")
    onnx.save(network(["n", 6]), tmp_path / "open.onnx")
    rows = make_model([helper.make_node("Unique", ["x"], ["y"], axis=0)], {"x": normal(2, 2)}, {"y": FLOAT})
    onnx.save(rows, tmp_path / "rows.onnx")
    (tmp_path / "generated.inc").write_text(to_cpp(built().portable))
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0", f"-I{tmp_path}")
    program = build(SOURCE, CPP_PREFIX / "include", tmp_path / "compiler", *flags)
    lines = finished([program, tmp_path], env=with_driver()).splitlines()
    assert lines.pop() == "all hold"
    told = dict(line.split(": ", 1) for line in lines)
    assert told.keys() == EXPECTED.keys()
    for title, pattern in EXPECTED.items():
        assert re.fullmatch(pattern, told[title]), f"{title}: {told[title]}"
    assert (tmp_path / "generated.txt").read_text() == str(built())

    x = np.fromfile(tmp_path / "x.bin", np.float32).reshape(4, 6)
    for name, change in (
        ("fp16", migraphx.quantize_fp16),
        ("int8", lambda p: migraphx.quantize_int8(p, migraphx.get_target("cpu"), [{"x": x}])),
        ("open", lambda p: p),
        ("reshaped", lambda p: p),
    ):
        wanted = migraphx.parse_onnx(tmp_path / "open.onnx", map_input_dims={"x": [4, 6]})
        change(wanted)
        (result,) = wanted.compile("cpu").run({"x": x})
        assert (tmp_path / f"{name}.bin").read_bytes() == np.asarray(result).tobytes(), name


def test_traced_runs_are_the_process_s(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    data = network([4, 6]).SerializeToString()
    options = {"external_data_path": "", "max_loop_iterations": 10, "limit_max_iterations": 9, "default_dim_value": 0}
    with closing(Service()) as service:
        made = service.answer({"do": "parse_onnx_buffer", "data": data, **options})
        compiling = {"do": "compile", "program": made["program"], "target": "cpu"}
        monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", "1")
        assert service.answer(compiling) == {"library": None}
        x = {"type": 2, "lens": [4, 6], "data": normal(4, 6).tobytes()}
        (result,) = service.answer({"do": "run", "program": made["program"], "inputs": {"x": x}})["results"]
        assert result["lens"] == [4, 5] and "Run instruction" in capfd.readouterr().out
        for wrong, message in (
            ({"do": "dance"}, "does not know the request 'dance'"),
            ({"do": "text", "program": 99}, "does not know the program"),
        ):
            with pytest.raises(OptionError, match=message):
                service.answer(wrong)


@needs_compiler
def test_what_was_loaded_compiled_stays_so_when_reshaped(tmp_path: Path) -> None:
    program = migraphx.parse_onnx_buffer(network(["n", 6]).SerializeToString()).compile("cpu", num_threads=1)
    program.save(tmp_path / "net.mxr")
    with closing(Service()) as service:
        made = service.answer({"do": "load", "file": tmp_path / "net.mxr", "format": "msgpack", "trust_objects": False})
        assert made["library"] is None  # its lengths are open
        changed = service.answer({"do": "reshape", "program": made["program"], "lengths": {"x": [3, 6]}})
        assert Path(changed["library"]).exists()
        described = service.answer({"do": "describe", "program": made["program"]})
        assert described["outputs"][0]["lens"] == [3, 5] and service.held_models[made["program"]].model.is_compiled()


def test_requests_that_are_malformed() -> None:
    body = msgpack.packb({"do": "create"})
    head = struct.pack("<Q", len(body))
    assert receive(io.BytesIO(head + body)) == {"do": "create"} and receive(io.BytesIO()) is None
    for text in (head[:5], head + body[:-1], head + b"\xc1" * len(body), struct.pack("<Q", 1) + b"\x80"):
        with pytest.raises(FormatError, match="a request"):
            receive(io.BytesIO(text))


def test_attributes_need_no_quotes() -> None:
    assert attributes_of("{padding:[0,0], mode : 1, b:true}") == {"padding": [0, 0], "mode": 1, "b": True}
    assert attributes_of('{"a b:c": "x:1, y:2", d_1: "\\"e: 3"}') == {"a b:c": "x:1, y:2", "d_1": '"e: 3'}
    assert attributes_of("") == {} and attributes_of({"value": {"float": "-inf"}}) == {"value": -np.inf}
    for text in ("{a:}", "[1]", "a: 1"):
        with pytest.raises(OperatorError, match="attributes"):
            attributes_of(text)
