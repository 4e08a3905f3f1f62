"""Verification: correct results pass, wrong results are located by step, by pass and by instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.driver.compare import Tolerance, compare, default_tolerance
from mgx_numba.driver.trim import computing_instructions, keep_until, trim
from mgx_numba.driver.verifying import check_passes, check_prefixes, check_steps, first_wrong_prefix
from mgx_numba.errors import CompileError, OptionError
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import Options
from mgx_numba.graph.passes.base import Pass
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.ops.base import make_op
from mgx_numba.ops.unary import Relu
from mgx_numba.targets.base import Compiled
from mgx_numba.targets.ref.program import RefProgram
from mgx_numba.targets.registry import compile_for
from tests.driver.support import drive, held_model, scalar_model, small_model

TOLERANCE = Tolerance()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


@pytest.mark.parametrize("flags", [[], ["--onnxruntime"], ["-i"], ["-r"], ["-b"], ["--disable-fast-math"], ["--ref"]])
def test_right_results_pass(model: Path, flags: list[str], capsys: Any) -> None:
    if "--onnxruntime" in flags:
        pytest.importorskip("onnxruntime")
    assert drive("verify", model, *flags) == 0
    out = capsys.readouterr().out
    assert "MIGraphX verification passed successfully" in out
    assert "FAILED" not in out


@pytest.mark.parametrize("flags", [[], ["--onnxruntime"], ["-i"], ["-r"], ["--fill1", "s"]])
def test_inputs_and_results_without_axes(flags: list[str], tmp_path: Path, capsys: Any) -> None:
    if "--onnxruntime" in flags:
        pytest.importorskip("onnxruntime")
    path = scalar_model(tmp_path / "scalars.onnx")
    assert drive("verify", path, *flags) == 0, capsys.readouterr().out
    assert "-r" in flags or "-i" in flags or "output 0 []" in capsys.readouterr().out


def test_dynamic_program(model: Path, capsys: Any) -> None:
    flags = ["--dyn-input-dim", "@x", "[{min:1,max:8},6]", "--batch", "3"]
    assert drive("verify", model, *flags) == 0
    assert "output 0 [3, 4]" in capsys.readouterr().out
    assert drive("verify", model, *flags, "-i") == 0


@pytest.fixture
def wrong_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference takes relu for something else than the generated code."""
    monkeypatch.setattr(Relu, "compute", lambda self, output, args: np.abs(args[0]) + 1)


@pytest.mark.usefixtures("wrong_relu")
def test_wrong_results_fail(model: Path, capsys: Any) -> None:
    assert drive("verify", model) == 1
    out = capsys.readouterr().out
    assert "FAILED: output 0 [1, 4]: RMS error" in out
    assert "exceeds 0.001; element [0, " in out


@pytest.mark.usefixtures("wrong_relu")
@pytest.mark.parametrize("flag", ["-r", "-b"])
def test_first_wrong_instruction_is_named(model: Path, flag: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("mgx_numba.driver.commands.verify.check_passes", lambda *args: [])
    assert drive("verify", model, flag) == 1
    out = capsys.readouterr().out
    failed = [line for line in out.splitlines() if line.startswith("FAILED: ") and "= " in line]
    assert len(failed) == 1
    assert " = relu(" in failed[0]


def test_loose_tolerance_passes(model: Path, capsys: Any) -> None:
    assert drive("verify", model, "--rms-tol", "1e-12", "--atol", "1") in (0, 1)
    assert drive("verify", model, "--rms-tol", "10", "--atol", "10") == 0


@pytest.mark.parametrize(
    "flags, message",
    [(["--ref", "-b"], "give another target"), (["--test", "--onnxruntime"], "--onnxruntime needs an ONNX file")],
)
def test_what_cannot_be_verified(model: Path, flags: list[str], message: str, capsys: Any) -> None:
    files = [] if "--test" in flags else [model]
    assert drive("verify", *files, *flags) == 2
    assert message in capsys.readouterr().err


def test_comparison() -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    assert compare(x, x, TOLERANCE).passed
    assert compare(x + np.float32(1e-4), x, TOLERANCE).passed
    far = x.copy()
    far[37] += 1
    found = compare(far.reshape(10, 10), x.reshape(10, 10), TOLERANCE)
    assert "element [3, 7] is" in found.problem
    assert found.largest == pytest.approx(1, abs=1e-3)
    assert "lengths are [99], expected [100]" in compare(x[1:], x, TOLERANCE).problem
    assert "type is float64" in compare(x.astype(np.float64), x, TOLERANCE).problem
    assert compare(x[:0], x[:0], TOLERANCE).passed


def test_comparison_of_special_numbers() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf])
    assert compare(x, x + 0, TOLERANCE).passed
    for position, value in ((0, np.nan), (1, 1), (2, -np.inf), (3, 5)):
        y = x.copy()
        y[position] = value
        assert f"element [{position}]" in compare(y, x, TOLERANCE).problem
    assert compare(np.float32([np.nan, 2]), np.float32([np.nan, 2.0001]), TOLERANCE).passed


def test_elementwise_comparison_is_stricter() -> None:
    x = np.full(10000, 100.0)
    y = x.copy()
    y[5] += 2
    assert compare(y, x, TOLERANCE).passed
    found = compare(y, x, Tolerance(elementwise=True))
    assert found.problem.startswith("1 elements exceed atol 0.001, rtol 0.001; element [5] is 102, expected 100")


def test_default_tolerance_follows_the_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(type: Type) -> Program:
        result = Program()
        result.main.add_return([result.main.add_parameter("x", Shape(type, (2,)))])
        return result

    assert default_tolerance([program(Type.float_type)]) == Tolerance(1e-3, 1e-3, 1e-3)
    assert default_tolerance([program(Type.half_type)]) == Tolerance(0.08, 0.04, 0.04)
    assert default_tolerance([program(Type.fp4x2_type)]).rms == 0.8
    assert default_tolerance([program(Type.float_type)], rms=0.5, atol=0.1) == Tolerance(0.5, 0.1, 1e-3, True)
    monkeypatch.setenv("MIGRAPHX_VERIFY_ENABLE_ALLCLOSE", "1")
    assert default_tolerance([program(Type.float_type)]).elementwise


def chain() -> Program:
    """x -> relu -> mul -> sqrt -> add, with a literal."""
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (4,)))
    two = program.main.add_literal(np.full(4, 2, np.float32))
    a = program.main.add_instruction("relu", [x])
    b = program.main.add_instruction("mul", [a, two])
    c = program.main.add_instruction("sqrt", [b])
    program.main.add_return([program.main.add_instruction("add", [c, a])])
    return program


INPUTS = {"x": np.float32([1, 2, 3, 4])}


class WrongFrom:
    """Compiles by reference, but every program that holds an operator of this name gives other values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiled = 0

    def __call__(self, program: Program) -> Compiled:
        self.compiled += 1
        found = RefProgram(program.clone())
        if any(ins.name == self.name for ins in program.main):
            run = found.run
            found.run = lambda inputs: [r + 1 for r in run(inputs)]  # type: ignore[method-assign]
        return found


def test_bisection_finds_the_first_wrong_instruction() -> None:
    for name in ("relu", "mul", "sqrt", "add"):
        found = first_wrong_prefix(chain(), WrongFrom(name), INPUTS, TOLERANCE)
        assert found is not None
        assert f" = {name}(" in found.what
        checks = check_prefixes(chain(), WrongFrom(name), INPUTS, TOLERANCE)
        assert f" = {name}(" in checks[-1].what
        assert [c.difference.passed for c in checks] == [True] * (len(checks) - 1) + [False]
    assert first_wrong_prefix(chain(), WrongFrom("no"), INPUTS, TOLERANCE) is None


def test_failure_to_compile_counts_as_wrong() -> None:
    def compiler(program: Program) -> Compiled:
        raise CompileError("no kernel")

    (check,) = check_prefixes(chain(), compiler, INPUTS, TOLERANCE)
    assert check.difference.problem == "no kernel"


class _BreakSqrt(Pass):
    """A pass that is wrong: it replaces sqrt by relu."""

    name = "break_sqrt_for_test"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module:
            if ins.name == "sqrt":
                module.replace_instruction(ins, make_op("relu"), ins.inputs)


def test_first_wrong_pass_is_found() -> None:
    passes = ["dead_code_elimination", "fuse_pointwise", "dead_code_elimination"]
    assert all(c.difference.passed for c in check_passes(chain(), passes, Options(), INPUTS, TOLERANCE))
    checks = check_passes(chain(), ["dead_code_elimination", _BreakSqrt.name, *passes], Options(), INPUTS, TOLERANCE)
    assert checks[-1].what == "pass 1 break_sqrt_for_test"
    assert not checks[-1].difference.passed


def test_step_check_compares_what_steps_wrote() -> None:
    compiled = compile_for("cpu", chain())
    checks = check_steps(compiled, INPUTS, TOLERANCE)
    assert checks
    assert all(c.difference.passed for c in checks)
    assert all("[cpu::" in c.what for c in checks)


def test_step_check_finds_a_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (4, 4)))
    program.main.add_return([program.main.add_instruction("softmax", [program.main.add_instruction("dot", [x, x])])])
    compiled = compile_for("cpu", program)
    inputs = {"x": np.ones((4, 4), np.float32)}
    assert all(c.difference.passed for c in check_steps(compiled, inputs, TOLERANCE))
    from mgx_numba.ops.dot import Dot

    right = Dot.compute
    monkeypatch.setattr(Dot, "compute", lambda self, output, args: right(self, output, args) * 2)
    wrong = [c for c in check_steps(compiled, inputs, TOLERANCE) if not c.difference.passed]
    assert len(wrong) == 1
    assert "dot" in wrong[0].what or "contraction" in wrong[0].what


def test_parts_of_programs_are_valid() -> None:
    program = chain()
    program.main.insert_instruction(program.main.first, "undefined")
    names = [list(program.main)[k].name for k in computing_instructions(program)]
    assert names == ["relu", "mul", "sqrt", "add"]
    program = chain()
    for position in computing_instructions(program):
        part = keep_until(program, position)
        validate(part)
        assert list(part.parameter_shapes()) == ["x"]
    assert str(program) == str(chain())
    for count in range(5):
        for size in range(4):
            validate(trim(program, count, size))
    with pytest.raises(OptionError, match="leaves nothing"):
        trim(program, 7)


@pytest.mark.parametrize("flags", [[], ["-i"], ["-r"]])
def test_strings_sequences_and_optionals_are_compared(flags: list[str], tmp_path: Path, capsys: Any) -> None:
    assert drive("verify", held_model(tmp_path / "held.onnx"), *flags) == 0
    assert "verification passed successfully" in capsys.readouterr().out


def test_strings_that_differ() -> None:
    a, b = np.array([["x", "y"]], object), np.array([["x", "z"]], object)
    assert compare(a, a.copy(), TOLERANCE).passed
    assert compare(a, b, TOLERANCE).problem == "element [0, 1] is 'y', expected 'z'"
