"""Output of `program.explain` and the driver's `explain` for nodes, instructions and operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.api.explaining import ARITHMETIC, MEMORY, StepReport, advice
from mgx_numba.codegen.tuning.record import Problem
from mgx_numba.codegen.tuning.request import Estimate
from mgx_numba.codegen.tuning.session import Choice
from mgx_numba.errors import MgxError, OptionError
from tests.driver.support import drive, small_model
from tests.dynamic.models import two_stages


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def _compiled(model: Path, **options: Any) -> mgx_numba.program:
    return mgx_numba.parse_onnx(model, map_input_dims={"x": [64, 6]}, use_debug_symbols=True).compile("cpu", **options)


def test_a_node_is_explained(model: Path) -> None:
    program = _compiled(model)
    (found,) = program.explain("relu")
    assert found.nodes == ("gemm", "relu")
    assert any("relu" in line for line in found.members) and any("dot" in line for line in found.members)
    (step,) = found.steps
    assert step.label.startswith("cpu::") and step.symbol in {k.symbol for k in program.kernels()}
    assert step.flops >= 2 * 64 * 6 * 4 and step.seconds is None and step.fraction is None
    assert found.choice is not None and found.choice.origin == "cost model" and found.choice.miss
    assert found.instruction in found.choice.instructions
    able = [e for e in found.estimates if e.seconds is not None]
    assert found.choice.solver in {e.solver for e in able}
    assert [e.seconds for e in able] == sorted(e.seconds for e in able)  # type: ignore[type-var]
    assert all(e.refusal for e in found.estimates if e.seconds is None)
    text = str(found)
    for part in ("nodes of the model:", "fused in it:", "runs as:", "solver:", "the cost model says:"):
        assert part in text
    assert {e.instruction for e in program.explain("gemm")} == {found.instruction}


def test_instructions_and_operators_have_names_too(model: Path) -> None:
    program = _compiled(model)
    (relu,) = program.explain("relu")
    line = relu.instruction
    assert program.explain(line.split(" = ")[0]) == program.explain(line) == [relu]
    assert program.explain("dot") == [relu]
    (softmax,) = program.explain("reduce_sum")
    assert softmax.nodes == ("softmax",) and softmax.choice is None


def test_refused_fusions_are_told(model: Path) -> None:
    (found,) = _compiled(model).explain("relu")
    assert any(r.startswith("fuse_contraction at ") for r in found.refusals), found.refusals
    plain = mgx_numba.parse_onnx(model, map_input_dims={"x": [64, 6]}).compile("cpu")
    (unnamed,) = plain.explain("dot")
    assert any(r.startswith("fuse_contraction at ") for r in unnamed.refusals)


def test_steps_are_measured_when_asked(model: Path) -> None:
    program = _compiled(model)
    x = np.zeros((64, 6), np.float32)
    (found,) = program.explain("relu", {"x": x}, iterations=3)
    (step,) = found.steps
    assert step.seconds is not None and step.seconds > 0 and step.fraction is not None and step.fraction > 0
    assert step.limit in (MEMORY, ARITHMETIC) and "ms" in str(step)
    with pytest.raises(OptionError, match="explain needs params for x: iterations are measured"):
        program.explain("relu", iterations=3)


def test_host_steps_say_why() -> None:
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[4, 2]))
    n = m.add_instruction(mgx_numba.op("nonzero"), [x])
    m.add_return([m.add_instruction(mgx_numba.op("unique", axis=0), [x]), n])
    for found in p.compile("cpu").explain("unique", {"x": np.ones((4, 2), np.float32)}):
        assert found.steps[0].label == "ref::unique" and found.steps[0].reason and not found.steps[0].symbol
        assert "on the host: " in str(found.steps[0]) and found.advice


def test_open_lengths_need_inputs(model: Path) -> None:
    program = mgx_numba.parse_onnx(model, use_debug_symbols=True).compile("cpu")
    with pytest.raises(OptionError, match="explain needs params for x: their lengths are open"):
        program.explain("relu")
    (found,) = program.explain("relu", {"x": np.zeros((3, 6), np.float32)})
    assert "{3, 4}" in found.instruction and found.steps


def test_ref_tells_of_operators(model: Path) -> None:
    program = mgx_numba.parse_onnx(model, default_dim_value=1).compile("ref")
    (found,) = program.explain("softmax")
    assert [step.label for step in found.steps] == ["ref::softmax"] and found.steps[0].seconds is None
    (timed,) = program.explain("softmax", {"x": np.zeros((1, 6), np.float32)}, iterations=2)
    assert timed.steps[0].seconds


def test_stages_are_explained(tmp_path: Path) -> None:
    onnx.save(two_stages().model, tmp_path / "p.onnx")
    dims = {"x": [1, 3, 8, 9], "proposals": [5, 4], "confidence": [5]}
    program = mgx_numba.parse_onnx(tmp_path / "p.onnx", map_input_dims=dims).compile("cpu")
    with pytest.raises(OptionError, match="explain needs params: lengths inside of the program depend on the values"):
        program.explain("roialign")
    rng = np.random.default_rng(0)
    feeds = {name: rng.random(lens).astype(np.float32) for name, lens in dims.items()}
    (late,) = program.explain("roialign", feeds, iterations=2)
    assert late.instruction.endswith(", in stage 2") and all(step.seconds for step in late.steps)
    early = program.explain("convolution", feeds)
    assert early and not any("in stage" in found.instruction for found in early) and early[0].steps


def test_unknown_names_are_told(model: Path) -> None:
    program = _compiled(model)
    with pytest.raises(OptionError, match=r"called 'gem'; did you mean gemm\? \(nodes: gemm, relu, softmax\)"):
        program.explain("gem")
    with pytest.raises(MgxError, match="the program is not compiled"):
        mgx_numba.parse_onnx(model).explain("gemm")
    folded = mgx_numba.program()
    m = folded.get_main_module()
    m.add_return([m.add_instruction(mgx_numba.op("exp"), [m.add_literal(np.ones(3, np.float32))])])
    with pytest.raises(OptionError, match="nothing of 'exp' is left in the compiled program"):
        folded.compile("cpu").explain("exp")


def _choice(record: Any, miss: str) -> Choice:
    return Choice(Problem.of("dot", 1, {}), "gemm", {}, record, "model" if record else "cost model", miss)


def test_advice_follows_from_what_is_known() -> None:
    quick, slow = Estimate("a", 1e-3), Estimate("b", 1.1e-3)
    barred = Estimate("c", None, "fast_math is off")
    assert any("measure: estimates of a, b" in a for a in advice([], _choice(None, "none"), [quick, slow]))
    assert not advice([], _choice(None, "none"), [quick, Estimate("b", 2e-3)])
    assert any("the record is of another" in a for a in advice([], _choice(object(), "cpu"), [quick, slow]))
    assert not advice([], _choice(object(), ""), [quick, slow])
    assert any("fast_math=True would allow c" in a for a in advice([], _choice(object(), ""), [quick, barred]))

    def timed(limit: str, fraction: float, seconds: float = 1e-3) -> list[str]:
        return advice([StepReport("k", "s", "", 1, 1, "", seconds, limit, fraction)], None, [])

    assert "fewer bytes" in timed(MEMORY, 0.9)[0] and "integers" in timed(ARITHMETIC, 0.9)[0]
    assert timed(MEMORY, 0.5) == timed(MEMORY, 4.0) == []
    assert "larger batches" in timed(MEMORY, 0.1, 1e-6)[0]
    host = StepReport("ref::x", "", "", 0, 0, "lower_x: lengths of an input are known at run time only")
    assert "--input-dim" in advice([host], None, [])[0]


def test_driver_explains(model: Path, capsys: Any) -> None:
    assert drive("explain", model, "relu", "--batch", "8", "-n", "2", "--source") == 0
    out = capsys.readouterr().out
    assert "fused in it:" in out and " ms; " in out and "def kernel(" in out and "\nmachine record: " in out
    assert drive("explain", model) == 2
    assert "explain needs a model file and the name" in capsys.readouterr().err
    assert drive("explain", "--test", "dot") == 0
    assert drive("explain", model, "nothing") == 2
    assert "no node, instruction or operator is called 'nothing'" in capsys.readouterr().err
