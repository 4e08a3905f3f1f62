"""Flags of MIGraphX's driver that change what is read, written or verified."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.driver.compare import Tolerance
from mgx_numba.driver.verifying import check_layers, in_double, reference
from mgx_numba.targets.registry import compile_for
from tests.driver.support import drive, small_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def test_lists_of_one_word_and_the_file(tmp_path: Path, capsys: Any) -> None:
    """``run --fill0 a --fill1 b add.onnx``."""
    p = mgx_numba.program()
    m = p.get_main_module()
    a, b = (m.add_parameter(n, mgx_numba.shape(type="float", lens=[2])) for n in "ab")
    m.add_return([m.add_instruction(mgx_numba.op("add"), [a, b])])
    p.save(tmp_path / "add.mxr")
    assert drive("run", "--fill0", "a", "--fill1", "b", tmp_path / "add.mxr") == 0


@pytest.mark.parametrize("command", ["params", "time", "perf", "verify"])
def test_flags_of_writing_have_no_effect_elsewhere(command: str, model: Path, capsys: Any) -> None:
    """MIGraphX's driver takes them in every command that reads a model."""
    assert drive(command, "--binary", "-o", "unwritten.mxr", model) == 0
    told = capsys.readouterr().err
    assert all(f"{flag} has no effect: read and compile write programs" in told for flag in ("--binary", "-o"))
    assert not Path("unwritten.mxr").exists()


@pytest.mark.parametrize("command", [["read"], ["compile"]])
def test_netron_is_a_model_that_onnx_reads(command: list[str], model: Path, tmp_path: Path) -> None:
    assert drive(*command, model, "--netron", "--debug-symbols", "-o", tmp_path / "net.onnx") == 0
    proto = onnx.load(tmp_path / "net.onnx")
    assert proto.producer_name == "mgx_numba"
    assert [i.name for i in proto.graph.input] == ["x"]
    nodes = list(proto.graph.node)
    given = {"x", *(t.name for t in proto.graph.initializer)}
    for node in nodes:
        assert set(node.input) <= given
        given.update(node.output)
    assert {o.name for o in proto.graph.output} <= given
    if command == ["compile"]:
        bodies = [a.g for node in nodes for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        assert any(n.op_type == "dot" for body in bodies for n in body.node)
    else:
        dot = next(n for n in nodes if n.op_type == "dot")
        assert dot.name == "gemm"
        softmax = next(n for n in nodes if n.op_type == "softmax")
        assert {a.name: a.i for a in softmax.attribute}["axis"] == 1


def test_netron_shows_open_lengths_tuples_and_large_literals(capfdbinary: Any, tmp_path: Path) -> None:
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", dyn_dims=[mgx_numba.shape.dynamic_dimension(1, 4)] * 2))
    y = m.add_parameter("y", mgx_numba.shape(type="bf16", lens=[4, 9]))
    w = m.add_literal(np.ones((64, 64), np.float32))
    t = m.add_instruction(mgx_numba.op("topk", k=2, axis=1), [y])
    m.add_return([x, w, m.add_instruction(mgx_numba.op("get_tuple_elem", index=0), [t])])
    p.save(tmp_path / "p.mxr")
    assert drive("read", tmp_path / "p.mxr", "--netron") == 0
    graph = onnx.load_model_from_string(capfdbinary.readouterr().out).graph
    assert [d.dim_param for d in graph.input[0].type.tensor_type.shape.dim] == ["[1..4]"] * 2
    assert graph.initializer[0].dims == [64, 64] and not graph.initializer[0].raw_data


def test_flags_and_passes_of_migraphx_that_do_nothing_say_why(model: Path, tmp_path: Path, capsys: Any) -> None:
    names = "auto_contiguous eliminate_allocation eliminate_concat insert_pad promote_literals rewrite_dot"
    names += " memory_coloring fuse_horizontal propagate_precision rewrite_low_precision write_literals fp8_ocp_to_fnuz"
    words = [*names.split(), "simplify_dyn_ops", "eliminate_dead_code"]
    assert drive("read", model, "--mlir", "-p", *words, "-o", tmp_path / "p.mxr") == 0
    said = capsys.readouterr().err
    assert "--mlir has no effect: there is no MLIR here" in said
    assert re.findall(r"pass (\w+) has no effect: \w+", said) == words[:-1]
    assert drive("read", model, "-p", "dead_code_elimination", "-o", tmp_path / "q.mxr") == 0
    assert mgx_numba.load(tmp_path / "p.mxr") == mgx_numba.load(tmp_path / "q.mxr")
    assert drive("--ort-sha") == 0 and "no commit of ONNX Runtime" in capsys.readouterr().out


def test_literals_become_parameters(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("read", model, "--replace-literals", "--batch", "3", "-o", tmp_path / "p.mxr") == 0
    changed, plain = mgx_numba.load(tmp_path / "p.mxr"), mgx_numba.parse_onnx(model, default_dim_value=3)
    weights = [i.literal.numpy() for i in plain.portable.main if i.literal is not None]
    names = [n for n in changed.get_parameter_names() if n != "x"]
    assert len(names) == len(weights) and not any(i.is_literal for i in changed.portable.main)
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    by_shape = {w.shape: w for w in weights}
    shapes = changed.get_parameter_shapes()
    given = {name: by_shape[tuple(shapes[name].lens())] for name in names}
    for a, b in zip(changed.compile("ref").run({"x": x, **given}), plain.compile("ref").run({"x": x})):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_transposed_literals_keep_their_layout(tmp_path: Path) -> None:
    p = mgx_numba.program()
    m = p.get_main_module()
    w = np.arange(6, dtype=np.float32).reshape(3, 2).T
    m.add_return([m.add_literal(w)])
    p.save(tmp_path / "a.mxr")
    assert drive("read", tmp_path / "a.mxr", "--replace-literals", "-o", tmp_path / "b.mxr") == 0
    changed = mgx_numba.load(tmp_path / "b.mxr")
    (name,) = changed.get_parameter_names()
    assert changed.get_output_shapes()[0].strides() == p.get_output_shapes()[0].strides()
    np.testing.assert_array_equal(np.asarray(changed.compile("ref").run({name: np.ascontiguousarray(w)})[0]), w)


def test_context_is_stripped(model: Path, tmp_path: Path) -> None:
    mgx_numba.parse_onnx(model).compile("ref").save(tmp_path / "saved.mxr")
    assert mgx_numba.load(tmp_path / "saved.mxr").is_compiled()
    assert drive("read", tmp_path / "saved.mxr", "--strip-context", "-o", tmp_path / "plain.mxr") == 0
    assert not mgx_numba.load(tmp_path / "plain.mxr").is_compiled()


def test_compiled_model_is_verified(model: Path, tmp_path: Path, capsys: Any) -> None:
    program = mgx_numba.parse_onnx(model)
    program.save(tmp_path / "plain.mxr")
    program.compile("cpu").save(tmp_path / "saved.mxr")
    assert drive("verify", model, "-c", tmp_path / "saved.mxr") == 0
    assert "passed successfully (cpu" in capsys.readouterr().out
    assert drive("verify", model, "-c", tmp_path / "plain.mxr") == 2
    assert "it was not saved compiled" in capsys.readouterr().err
    mgx_numba.parse_onnx(model, map_input_dims={"x": [5, 6]}).compile("cpu").save(tmp_path / "other.mxr")
    assert drive("verify", model, "-c", tmp_path / "other.mxr") == 2
    assert f"--compiled-model {tmp_path / 'other.mxr'}: Incorrect shape" in capsys.readouterr().err


def test_reference_in_double(model: Path, capsys: Any) -> None:
    program = mgx_numba.parse_onnx(model, default_dim_value=2).portable
    x = {"x": np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)}
    wide = in_double(program)
    assert {i.shape.type.name for i in wide.main if i.name in ("dot", "add", "relu", "softmax")} == {"double_type"}
    assert str(wide.output_shapes()) == str(program.output_shapes())
    w, b = (
        i.literal.numpy().astype(np.float64)
        for i in sorted(
            (i for i in program.main if i.literal is not None and i.shape.elements > 1), key=lambda i: -i.shape.elements
        )
    )
    h = np.maximum(x["x"].astype(np.float64) @ w + b, 0)
    expected = (np.exp(h) / np.exp(h).sum(1, keepdims=True)).astype(np.float32)
    np.testing.assert_array_equal(reference(program, x, double=True)[0], expected)
    assert drive("verify", model, "--ref-use-double") == 0
    assert drive("verify", model, "--ref-use-double", "-i") == 2
    assert "--ref-use-double is for results" in capsys.readouterr().err


def test_layers_are_compared(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("verify", model, "--layerwise", "--batch", "4") == 0
    out = capsys.readouterr().out
    assert "ok: relu [cpu::" in out and "ok: softmax [cpu::" in out and "nodes of the model" in out
    assert drive("verify", model, "-l", "--dyn-input-dim", "@x", "[{min:1,max:8},6]") == 0
    mgx_numba.parse_onnx(model).save(tmp_path / "p.mxr")
    assert drive("verify", tmp_path / "p.mxr", "-l") == 2
    assert "--layerwise: the program has no names of nodes" in capsys.readouterr().err


def test_a_wrong_layer_is_found(model: Path) -> None:
    program = mgx_numba.parse_onnx(model, default_dim_value=2, use_debug_symbols=True).portable
    x = {"x": np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)}
    wrong = program.clone()
    relu = next(i for i in wrong.main if i.name == "relu")
    other = wrong.main.insert_instruction(relu, "tanh", [relu.inputs[0]])
    other.debug_symbols = relu.debug_symbols
    wrong.main.replace_instruction(relu, other)
    wrong.main.remove_instruction(relu)
    checks = check_layers(program, compile_for("cpu", wrong), x, Tolerance())
    assert [c.what.split()[0] for c in checks if not c.difference.passed] == ["relu", "softmax"]
