"""Environment variables: their page in the docs, and the effect that each row states."""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.api.quantizing import quantize_8bits
from mgx_numba.codegen import traces
from mgx_numba.codegen.cpu.toolchain import loader
from mgx_numba.codegen.workers import batch
from mgx_numba.driver.compare import Tolerance, compare
from mgx_numba.driver.variables import GROUPS, OWN, VARIABLES
from mgx_numba.environment import environment_flag, environment_number
from mgx_numba.errors import OptionError, ValidationError
from mgx_numba.graph.passes import run_passes
from tests.driver.support import drive, small_model
from tests.project.environment import PAGE, page

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def test_page_is_made_of_the_table() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.project.environment"


def test_table_has_all_variables_once_and_those_that_work_are_read() -> None:
    assert sum(len(group) for group in GROUPS.values()) == 83
    assert len(VARIABLES) == 83 + len(OWN)
    package = ROOT / "mgx_numba"
    others = (
        package / "driver" / "variables.py",
        *(package / "runtime" / "cpu" / "library").glob("*.py"),
    )  # C's macros
    text = "\n".join(p.read_text() for kind in ("py", "hpp") for p in package.rglob(f"*.{kind}") if p not in others)
    read = set(re.findall(r'"((?:MIGRAPHX|MGX)_\w+)"', text)) - {"MIGRAPHX_", "MGX_"}
    assert read == {name for name, v in VARIABLES.items() if v.works}


def test_switches_and_numbers(monkeypatch: Any) -> None:
    for text, expected in (("", False), ("0", False), ("off", False), ("No", False), ("1", True), ("x", True)):
        monkeypatch.setenv("MIGRAPHX_X", text)
        assert environment_flag("MIGRAPHX_X", default=True) is expected
    monkeypatch.delenv("MIGRAPHX_X")
    assert environment_flag("MIGRAPHX_X", default=True)
    for text, least in (("many", 0), ("-1", 0), ("-2", -1), ("1.5", -1)):
        monkeypatch.setenv("MIGRAPHX_X", text)
        message = f"environment variable MIGRAPHX_X: expected an integer from {least} on, got '{text}'"
        with pytest.raises(OptionError, match=message):
            environment_number("MIGRAPHX_X", least=least)
    monkeypatch.setenv("MIGRAPHX_X", "-1")
    assert environment_number("MIGRAPHX_X", least=-1) == -1


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("TRACE_PASSES", "1", "Pass: normalize_ops"),
        ("TIME_PASSES", "1", r"normalize_ops: [\d.]+ms"),
        ("TRACE_MATCHES", "1", r"\w+ matched "),
        ("TRACE_MATCHES_FOR", "fuse_reduce,nothing", "fuse_reduce matched reduce_"),
        ("TIME_MATCHERS", "1", r"Matcher \w+ at main: [\d.e-]+ms"),
        ("TRACE_FINALIZE", "1", r"Finalize: .*contraction.* \[cpu::"),
        ("TRACE_COMPILE", "1", r"(?s)Compile for cpu:.*Pass: .*Kernel \w+ mgx_\w+: from the store|to be compiled"),
        ("TRACE_ONNX_PARSER", "1", "gemm"),
        ("TRACE_SCHEDULE", "1", r"schedule: .*, needs \d+ bytes"),
        ("DEBUG_MEMORY_COLORING", "1", r"(?s)Allocation: \[0, \d+\), steps 0 to 1\n.*Arena: \d+ bytes"),
        ("GPU_DUMP_SRC", "1", "def kernel"),
    ],
)
def test_traces_are_printed(name: str, value: str, expected: str, model: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setenv(f"MIGRAPHX_{name}", value)
    monkeypatch.setattr(loader, "_addresses", {})
    assert drive("compile", model, "--batch", 7, "--log-level", "warn") == 0
    out = capfd.readouterr().out
    assert re.search(expected, out), out
    if name == "TRACE_MATCHES_FOR":
        assert all("fuse_reduce" in line for line in out.splitlines() if " matched " in line)


def test_tuning_variables(model: Path, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_PROBLEM_CACHE", str(tmp_path / "cache.json"))
    monkeypatch.setenv("MIGRAPHX_TRACE_BENCHMARKING", "3")
    monkeypatch.setenv("MIGRAPHX_MLIR_TUNE_EXHAUSTIVE", "1")
    monkeypatch.setenv("MIGRAPHX_SKIP_BENCHMARKING", "1")
    assert drive("compile", model) == 0
    assert "Benchmark" not in capfd.readouterr().out
    monkeypatch.delenv("MIGRAPHX_SKIP_BENCHMARKING")
    monkeypatch.setenv("MIGRAPHX_MLIR_TUNE_LIMIT", "1")
    assert drive("compile", model) == 0
    out = capfd.readouterr().out
    assert "Fastest solution: " in out and "Benchmark: " in out
    listed = re.findall(r"^Benchmarking .*?: (\S+)$", out, re.MULTILINE)
    assert listed and all("," not in re.sub(r"\[.*?\]", "", words) for words in listed)


def test_workers_are_as_many_as_the_variable_says(monkeypatch: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_GPU_COMPILE_PARALLEL", "2")
    assert batch.worker_count(100, cpus=8) == 2
    monkeypatch.setenv("MIGRAPHX_GPU_COMPILE_PARALLEL", "1")
    assert batch.worker_count(100, cpus=8) == 0


def _parsed() -> mgx_numba.program:
    """Return a program with a cluster of two results, and a reduction among pointwise operations."""
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[4, 64]))
    a = m.add_instruction(mgx_numba.op("exp"), [x])
    b, c = (m.add_instruction(mgx_numba.op(name), [a]) for name in ("tanh", "neg"))
    s = m.add_instruction(mgx_numba.op("reduce_sum", axes=[1]), [m.add_instruction(mgx_numba.op("abs"), [x])])
    m.add_return([b, c, s])
    return p


@pytest.mark.parametrize(
    "name, value",
    [
        ("DISABLE_POINTWISE_FUSION", "1"),
        ("DISABLE_REDUCE_FUSION", "1"),
        ("DISABLE_MULTI_OUTPUT_FUSION", "1"),
        ("DISABLE_SCHEDULE_PASS", "1"),
        ("ENABLE_NHWC", "0"),
        ("ENABLE_LAYERNORM_FUSION", "0"),
        ("SPLIT_REDUCE_SIZE", "-1"),
        ("VALIDATE_MATCHES", "1"),
    ],
)
def test_switches_keep_results(name: str, value: str, monkeypatch: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    expected = [np.tanh(np.exp(x)), -np.exp(x), np.abs(x).sum(1, keepdims=True)]
    monkeypatch.setenv(f"MIGRAPHX_{name}", value)
    for found, wanted in zip(_parsed().compile("cpu").run({"x": x}), expected):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


@pytest.mark.parametrize("value", ["-2", "many"])
def test_numbers_that_passes_read_are_options(value: str, monkeypatch: Any) -> None:
    """The error message said that the pass had failed."""
    monkeypatch.setenv("MIGRAPHX_SPLIT_REDUCE_SIZE", value)
    with pytest.raises(OptionError, match=f"^environment variable MIGRAPHX_SPLIT_REDUCE_SIZE: .*from -1 on.*{value}"):
        _parsed().compile("cpu")


def _pointwise(program: mgx_numba.program) -> list[int]:
    """Operations of each cluster."""
    bodies = [i.module_args[0] for i in program.shown.main if i.name in ("pointwise", "fused_reduce")]
    return sorted(sum(not i.name.startswith("@") for i in body) for body in bodies)


def test_fusion_is_switched_off(monkeypatch: Any) -> None:
    usual = _pointwise(_parsed().compile("cpu"))
    assert max(usual) > 1
    monkeypatch.setenv("MIGRAPHX_DISABLE_REDUCE_FUSION", "1")
    monkeypatch.setenv("MIGRAPHX_DISABLE_POINTWISE_FUSION", "1")
    alone = _parsed().compile("cpu")
    assert max(_pointwise(alone)) == 1
    assert any("MIGRAPHX_DISABLE_POINTWISE_FUSION" in r.reason for r in alone.rewrite_log().refusals())


def test_clusters_have_one_result(monkeypatch: Any) -> None:
    def tuples(program: mgx_numba.program) -> int:
        run_passes(program.portable, ["fuse_pointwise"])
        return sum(ins.name == "get_tuple_elem" for ins in program.portable.main)

    assert tuples(_parsed()) > 0
    monkeypatch.setenv("MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION", "1")
    assert tuples(_parsed()) == 0


def test_broken_rewrites_are_found(monkeypatch: Any) -> None:
    from mgx_numba.graph import validate

    def broken(module: Any) -> None:
        raise ValidationError("shape rule gives another")

    monkeypatch.setattr(validate, "validate_module", broken)
    monkeypatch.setenv("MIGRAPHX_VALIDATE_MATCHES", "1")
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[2]))
    m.add_return([m.add_instruction(mgx_numba.op("neg"), [m.add_instruction(mgx_numba.op("neg"), [x])])])
    with pytest.raises(mgx_numba.errors.MgxError, match="after rule '.*': shape rule gives another"):
        run_passes(p.portable, ["simplify_algebra"])


def test_quantisation_is_traced(model: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_8BITS_QUANTIZATION_PARAMS", "1")
    monkeypatch.setenv("MIGRAPHX_TRACE_QUANTIZATION", "1")
    program = mgx_numba.parse_onnx(model, default_dim_value=1).portable
    quantize_8bits(program, "ref", [{"x": np.ones((1, 6), np.float32)}])
    out = capsys.readouterr().out
    assert "Pass: quantize_8bits" in out and "int8, error 0, range" in out and ", scale " in out


def test_rewrites_without_a_log_are_traced(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_PROPAGATE_CONSTANT", "1")
    monkeypatch.setenv("MIGRAPHX_TRACE_ELIMINATE_CONTIGUOUS", "1")
    p = mgx_numba.program()
    m = p.get_main_module()
    a = m.add_literal(np.arange(6, dtype=np.float32).reshape(2, 3))
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[2, 3]))
    x = m.add_instruction(
        mgx_numba.op("contiguous"), [m.add_instruction(mgx_numba.op("transpose", permutation=[1, 0]), [x])]
    )
    m.add_return([m.add_instruction(mgx_numba.op("dot"), [m.add_instruction(mgx_numba.op("exp"), [a]), x])])
    run_passes(p.portable, ["propagate_constant", "eliminate_contiguous"])
    out = capsys.readouterr().out
    assert "Constant replace: exp -> float_type, {2, 3}" in out
    assert "eliminate_contiguous: dot takes inputs [1] as they lie" in out


def test_kernels_commands_and_pointwise_plans_are_printed(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_NARY", "1")
    program = _parsed().compile("cpu")
    assert re.search(r"^nary: exp_\w+ -> float_type, \{4, 64\}", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setenv("MIGRAPHX_GPU_DUMP_ASM", "1")
    traces.dump_kernels(program.kernels()[:1], lambda kernel: "vfmadd231ps")
    out = capsys.readouterr().out
    assert "vfmadd231ps" in out and "def kernel" not in out
    monkeypatch.setenv("MIGRAPHX_TRACE_CMD_EXECUTE", "1")
    monkeypatch.setattr(batch.subprocess, "Popen", lambda command, **options: command)
    assert batch.start_worker() == batch.WORKER_COMMAND
    assert capsys.readouterr().out == shlex.join(batch.WORKER_COMMAND) + "\n"


def test_differing_elements_are_printed(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_VERIFY_DUMP_DIFF", "1")
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    compare(a, b, Tolerance())
    assert not capsys.readouterr().out
    b[1, 2] = 4
    assert compare(a, b, Tolerance()).problem
    assert capsys.readouterr().out == "[1, 2]: 0.0, expected 4.0\n"


def test_driver_tells_of_variables(model: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", "0")
    monkeypatch.setenv("MIGRAPHX_ENABLE_CK", "1")
    monkeypatch.setenv("MIGRAPHX_NO_SUCH", "1")
    monkeypatch.setenv("MIOPEN_FIND_ENFORCE", "4")
    monkeypatch.setenv("ROCMLIR_ANY", "1")
    assert drive("params", model) == 0
    err = capsys.readouterr().err
    assert "MIGRAPHX_TRACE_EVAL=0\n" in err
    assert "warning: environment variable MIGRAPHX_ENABLE_CK has no effect here: There is no Composable Kernel" in err
    assert "warning: environment variable MIGRAPHX_NO_SUCH has no effect here: nobody reads it\n" in err
    assert "variable MIOPEN_FIND_ENFORCE has no effect here: There is no MIOpen here: convolutions" in err
    assert "variable ROCMLIR_ANY has no effect here: There is no MLIR here" in err


@pytest.mark.parametrize("level, running, warned", [("0", 0, 0), ("error", 0, 0), ("warn", 0, 1), ("3", 1, 1)])
def test_log_levels(level: str, running: int, warned: int, model: Path, capsys: Any) -> None:
    assert drive("params", model, "--nhwc", "--log-level", level) == 0
    err = capsys.readouterr().err
    assert ("Running [" in err, "warning: --nhwc has no effect" in err) == (bool(running), bool(warned))


def test_log_files_and_the_variable(model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_LOG_LEVEL", "trace")
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    assert drive("compile", "--log-file", first, "--log-file", second, model) == 0
    assert first.read_text() == second.read_text()
    for expected in ("INFO mgx_numba.driver: Running", "DEBUG mgx_numba.passes: pass ", "TRACE mgx_numba.graph: "):
        assert expected in first.read_text()
    assert logging.getLogger("mgx_numba").handlers == []
    capsys.readouterr()
    assert drive("params", model, "--log-level", "loud") == 2
    assert "error: --log-level is 'loud', expected none, error, warn, info, debug, trace, or 0 to 5" in (
        capsys.readouterr().err
    )
    assert drive("params", model, "--log-file", tmp_path / "no" / "x.log") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_library_logs_to_whoever_listens(model: Path, caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG, logger="mgx_numba"):
        mgx_numba.parse_onnx(model).compile("cpu")
    assert any(r.name == "mgx_numba.passes" for r in caplog.records)


def test_variables_about_runs_leave_kept_plans_in_use(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("MGX_PLAN_CACHE")
    mgx_numba.parse_onnx(model, default_dim_value=1).compile("cpu").save(tmp_path / "p.mxr")
    mgx_numba.load(tmp_path / "p.mxr")  # its plan is kept from here on

    def compile(self: Any, *args: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(mgx_numba.program, "compile", compile)
    monkeypatch.setenv("MIGRAPHX_LOG_LEVEL", "debug")
    mgx_numba.load(tmp_path / "p.mxr")
    monkeypatch.setenv("MIGRAPHX_TRACE_PASSES", "1")
    with pytest.raises(AssertionError, match="compiled again"):
        mgx_numba.load(tmp_path / "p.mxr")
