"""``verify --precision`` and the driver's messages on quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.api.functions import parse_onnx
from mgx_numba.driver.precision import PrecisionCheck, in_float32
from mgx_numba.errors import OptionError
from mgx_numba.graph.program import Program
from mgx_numba.targets.registry import compile_for
from tests.driver.support import drive, small_model


def coarse(path: Path) -> Path:
    """Three products, of which the second one's input has far fewer steps than it needs: a QDQ file."""
    rng = np.random.default_rng(2)
    nodes, arrays = [], {"zero": np.asarray(0, np.int8)}
    value = "x"
    for k, scale in enumerate((0.02, 1.5, 0.05)):
        arrays |= {f"w{k}": rng.standard_normal((8, 8)).astype(np.float32) / 3, f"s{k}": np.asarray(scale, np.float32)}
        parts = [f"s{k}", "zero"]
        nodes += [
            helper.make_node("QuantizeLinear", [value, *parts], [f"q{k}"], f"quantize{k}"),
            helper.make_node("DequantizeLinear", [f"q{k}", *parts], [f"d{k}"], f"dequantize{k}"),
            helper.make_node("MatMul", [f"d{k}", f"w{k}"], [f"m{k}"], f"product{k}"),
        ]
        value = f"m{k}"
    graph = helper.make_graph(
        nodes,
        "coarse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_the_layer_that_loses_precision_is_found(target: str, tmp_path: Path, capsys: Any) -> None:
    path = coarse(tmp_path / "coarse.onnx")
    assert drive("verify", path, "--precision", "--batch", "4", f"--{target}") == 1
    out = capsys.readouterr().out
    lines = [line.strip() for line in out.splitlines()]
    largest = next(line for line in lines if line.startswith("with "))
    assert largest.startswith("with dequantize1 exact: 0.0")
    assert "Half of it comes from layers up to dequantize1" in lines
    assert "FAILED: results" in out and "more than 0.1" in out
    assert drive("verify", path, "--precision", "--batch", "4", "--rms-tol", "3", f"--{target}") == 0


@pytest.mark.parametrize("kind", ["int8", "fp16", "bf16"])
def test_a_model_is_compared_with_itself_without_the_flags(kind: str, tmp_path: Path, capsys: Any) -> None:
    path = small_model(tmp_path / "small.onnx")
    flags = ["--quantization-report", "--accuracy", "50%"] if kind == "int8" else []
    assert drive("verify", path, "--precision", "--batch", "3", f"--{kind}", *flags) == 0
    out = capsys.readouterr().out
    assert "softmax [" in out and "Results differ by" in out
    differs = float(out.split("Results differ by ")[1].split()[0])
    assert 0 < differs < (0.1 if kind == "int8" else 0.02)
    if kind == "int8":
        assert "gemm: int8, error 0.0" in out and "clipped" in out


def test_errors_of_layers_are_their_own() -> None:
    program = parse_onnx_file()
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}

    def compiler(part: Program) -> Any:
        return compile_for("ref", part)

    check = PrecisionCheck(in_float32(program), program, compiler, inputs)
    errors = {e.layer: e for e in check.errors()}
    assert errors["product1"].own < 1e-6 < errors["product1"].total
    assert errors["dequantize1"].own > 0.2 > errors["dequantize0"].own > 0
    assert check.error_with(check.layers) < 1e-6 < check.error_with(["dequantize1"]) < check.result_error / 2
    exact = in_float32(program)
    assert PrecisionCheck(exact, exact, compiler, inputs).result_error == 0


def parse_onnx_file() -> Program:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = coarse(Path(folder) / "coarse.onnx")
        return parse_onnx(str(path), map_input_dims={"x": [4, 8]}, use_debug_symbols=True).portable


def test_what_a_pair_limits_stays_limited() -> None:
    """A ReLU that a quantiser has left out, since its zero point is the smallest value."""
    program = parse_onnx_file()
    values = np.full((4, 8), 100.0, np.float32)
    found = compile_for("ref", in_float32(program)).run({"x": values})[0]
    assert np.array_equal(found, compile_for("ref", in_float32(program)).run({"x": np.full_like(values, 2.54)})[0])


def test_without_names_of_nodes() -> None:
    program = parse_onnx_file()
    for ins in program.main:
        ins.debug_symbols = ()
    with pytest.raises(OptionError, match="no names of nodes"):
        PrecisionCheck(program, program, lambda part: compile_for("ref", part), {"x": np.ones((4, 8), np.float32)})


def test_flags_that_have_no_effect_are_refused(tmp_path: Path) -> None:
    path = small_model(tmp_path / "small.onnx")
    for flags in (["--accuracy", "1%"], ["--quantization-report", "--fp16"]):
        assert drive("verify", path, "--batch", "3", *flags) == 2
    assert drive("verify", path, "--batch", "3", "--int8", "--accuracy", "lots") == 2
