"""The commands that read, write, list and run."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import mgx_numba
from mgx_numba import __version__
from mgx_numba.core.argument import Argument
from mgx_numba.driver.arguments import in_words
from mgx_numba.driver.main import _parser
from mgx_numba.graph.export import to_cpp
from mgx_numba.graph.mxr import load_program, save_argument
from tests.driver.support import drive, small_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def test_version_is_that_of_the_package(capsys: Any) -> None:
    assert drive("--version") == 0
    assert capsys.readouterr().out == f"mgx_numba Version: {__version__}\n"


def test_no_command_prints_help(capsys: Any) -> None:
    assert drive() == 2
    assert "perf" in capsys.readouterr().out


def test_module_is_the_driver_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mgx_numba", "read", "--test"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0
    assert "@2 = dot(a,b) -> float_type, {4, 3}, {3, 1}" in done.stdout


def test_header_and_footer_go_to_standard_error(model: Path, capsys: Any) -> None:
    assert drive("params", model) == 0
    out, err = capsys.readouterr()
    assert out == "x: float_type, {1, 6}, {6, 1}\n"
    assert err.startswith(f"Running [ mgx_numba Version: {__version__} ]: mgx-numba-driver params ")
    assert "Complete(" in err


@pytest.mark.parametrize(
    "flags, shape",
    [
        (["--batch", "3"], "{3, 6}, {6, 1}"),
        (["--input-dim", "@x", "5", "6"], "{5, 6}, {6, 1}"),
        (["--dim-param", "@N", "7"], "{7, 6}, {6, 1}"),
        (["--dim-param", "@N", "{min:1,max:4}"], "{[1..4], 6}"),
        (["--dyn-input-dim", "@x", "[{min:1, max:8, optimals:[2,4]},6]"], "{[1..8, {2, 4}], 6}"),
        (["--default-dyn-dim", "{min:2,max:4}"], "{[2..4], 6}"),
        (["--onnx"], "{1, 6}, {6, 1}"),
    ],
)
def test_dimensions(model: Path, flags: list[str], shape: str, capsys: Any) -> None:
    assert drive("params", model, *flags) == 0
    out = capsys.readouterr().out
    assert out.startswith("x: ")
    assert out.endswith(f"float_type, {shape}\n")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--input-dim", "5", "6"], "--input-dim: expected @name first, got '5'"),
        (["--input-dim", "@x", "a"], "--input-dim: 'a' is no length"),
        (["--dim-param", "@N", "1", "2"], "--dim-param: @N needs one dimension, got 2"),
        (["--dim-param", "@N", "{min:1}"], "neither a length nor {min:a,max:b,optimals:[...]}"),
        (["--dim-param", "@N", "{min:4,max:1}"], "0 <= min <= max"),
        (["--default-dyn-dim", "{"], "'{' is neither a length nor {min:a,max:b}"),
        (["--apply-pass", "no_such_pass"], "unknown pass 'no_such_pass'; known: "),
        (["--output-names", "z"], "--output-names: the model has no value z"),
        (["--trim", "100"], "--trim 100 --trim-size 0 leaves nothing"),
        (["--batch", "-1"], "--batch is -1, expected a length from 1 on"),
        (["--input-dim", "@z", "1"], "--input-dim names 'z', which is no input; inputs are: x"),
        (["--input-dim", "@x", "1"], "input 'x' has 2 dimensions, but 1 are given for it"),
        (["--input-dim", "@x", "1", "6", "--dyn-input-dim", "@x", "[1,6]"], "--input-dim and --dyn-input-dim are both"),
    ],
)
def test_wrong_flags_are_told_in_one_line(model: Path, flags: list[str], message: str, capsys: Any) -> None:
    assert drive("params", model, *flags) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]


def test_unknown_flag_and_command(model: Path, capsys: Any) -> None:
    for arguments, message in (
        (["read", model, "--no-such-flag"], "read: error: unrecognized argument: --no-such-flag; see "),
        (
            ["perf", model, "--iteration", "3"],
            "perf: error: unrecognized argument: --iteration; did you mean --iterations",
        ),
        (["perf", model, "-n", "many"], "perf: error: argument -n/--iterations: invalid int value: 'many'; see "),
        (["frobnicate"], "unknown command 'frobnicate'; known: read, params, "),
    ):
        assert drive(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line and line.endswith("--help")


def test_errors_of_a_model_name_its_file(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    (tmp_path / "junk").write_text("junk")
    copy = onnx.load(model)
    copy.graph.node[0].op_type = "Frobnicate"
    onnx.save(copy, tmp_path / "unknown.onnx")
    for arguments, message in (
        ([tmp_path / "unknown.onnx"], "unknown.onnx: node 'gemm' (Frobnicate, "),
        ([model, "--input-dim", "@x", "1", "7"], "small.onnx: node 'gemm' (Gemm, "),
        ([tmp_path], f"{tmp_path}: cannot be read: Is a directory\n"),
        ([tmp_path / "junk"], "junk: at byte 0: the file must be a map (taken for an .mxr file; "),
        ([model, "--migraphx"], "small.onnx: at byte 0: the file must be a map (it looks like an ONNX model"),
    ):
        assert drive("read", *arguments) == 2
        assert message in capsys.readouterr().err


def test_flags_without_effect_are_told(model: Path, tmp_path: Path, capsys: Any) -> None:
    drive("read", model, "-o", tmp_path / "small.mxr")
    for arguments, message in (
        (
            [model, "--batch", "3", "--input-dim", "@x", "1", "6"],
            "--batch 3 has no effect: no length is left open (inputs",
        ),
        ([tmp_path / "small.mxr", "--batch", "3"], "--batch 3 has no effect: "),
        ([tmp_path / "small.mxr", "--input-dim", "@x", "1", "6"], "--input-dim has no effect: "),
        ([tmp_path / "small.mxr", "--debug-symbols"], "--debug-symbols has no effect: "),
        ([model, "--dim-param", "@M", "3"], "--dim-param names 'M', which no input has"),
    ):
        capsys.readouterr()
        assert drive("params", *arguments) == 0
        out, err = capsys.readouterr()
        assert f"warning: {message}" in err
        assert out == "x: float_type, {1, 6}, {6, 1}\n"
    assert drive("params", model, "--batch", "3") == 0
    assert "warning" not in capsys.readouterr().err


def test_output_has_the_form_of_its_name(model: Path, tmp_path: Path, capsys: Any) -> None:
    drive("read", model)
    text = capsys.readouterr().out
    for name, start in (
        ("a.json", b"{"),
        ("a.py", b"import"),
        ("a.mxr", b"\x87"),
        ("a.dot", b"digraph"),
        ("a", b"\x87"),
    ):
        assert drive("compile", model, "--ref", "-o", tmp_path / name) == 0
        assert (tmp_path / name).read_bytes().lstrip().startswith(start), name
    capsys.readouterr()
    assert drive("read", tmp_path / "a.py") == drive("read", tmp_path / "a.json") == 0
    assert capsys.readouterr().out == text + text
    assert drive("compile", model, "-o", tmp_path / "b.json", "--embed-objects") == 2
    assert "--embed-objects needs a binary file: give --output FILE (the form is json)" in capsys.readouterr().err


def test_wrong_inputs_are_told_before_compiling(model: Path, tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 6)))
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04")
    for arguments, message in (
        (["--fill0", "z"], "no parameter is called 'z'"),
        (["--fill0", "x", "--fill1", "x"], "'x' is given to more than one of --fill0, --fill1 and --load-arg"),
        (["--load-arg", "@x", tmp_path / "no.npy"], "no.npy: cannot be read: No such file or directory\n"),
        (["--load-arg", "@x", tmp_path / "two.npz"], "two.npz has no array 'x'; it has: a, b\n"),
        (["--load-arg", "@x", tmp_path / "bad.npz"], "bad.npz: not a NumPy file of numbers (.npy or .npz)\n"),
        (["--batch", "0"], "error: --batch is 0, expected a length from 1 on\n"),
        (["--load-arg", "@x", tmp_path / "x.npy"], "Incorrect type {double_type, {1, 6}, {6, 1}} for parameter: x"),
    ):
        for command in ("compile", "run", "time", "perf", "verify"):
            assert drive(command, model, *arguments) == 2
            err = capsys.readouterr().err
            assert message in err and "Compilation time" not in err
    assert drive("verify", "--test", "--onnxruntime") == 2
    assert "error: --onnxruntime needs an ONNX file, got --test" in capsys.readouterr().err


def test_counts_of_runs_and_days_must_make_sense(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("time", model, "-n", "0") == 2
    assert "--iterations is 0, expected at least 1" in capsys.readouterr().err
    assert drive("tune", "--prune", "-1", "--database", tmp_path / "records.sqlite") == 2
    assert "-1 days" in capsys.readouterr().err
    assert drive("tune", "--list", "--database", tmp_path / "records.sqlite") == 0
    assert capsys.readouterr().out == f"no tuning records: {tmp_path / 'records.sqlite'}\n"


@pytest.mark.parametrize("name", ["absent.onnx", "absent.mxr", "absent.json", "absent.pb", "absent.py"])
def test_absent_file(name: str, capsys: Any) -> None:
    assert drive("read", name) == 2
    assert re.search(f"error: .*{name}", capsys.readouterr().err)


def test_file_is_needed(capsys: Any) -> None:
    assert drive("read") == 2
    assert "error: a model file is needed" in capsys.readouterr().err


def test_read_prints_the_text_form(model: Path, capsys: Any) -> None:
    assert drive("read", model, "--text") == 0
    assert capsys.readouterr().out.rstrip("\n") == str(mgx_numba.parse_onnx(str(model), default_dim_value=1)).rstrip(
        "\n"
    )


def test_binary_and_json_files_round_trip(model: Path, tmp_path: Path, capsys: Any) -> None:
    drive("read", model)
    text = capsys.readouterr().out
    for flags, name in ((["--binary"], "a.mxr"), ([], "b.mxr"), (["--json"], "c.json")):
        path = tmp_path / name
        assert drive("read", model, *flags, "--output", path) == 0
        assert capsys.readouterr().out == ""
        assert drive("read", path) == 0
        assert capsys.readouterr().out == text
    assert drive("read", "--migraphx", tmp_path / "a.mxr") == 0
    assert drive("read", "--migraphx-json", tmp_path / "c.json") == 0


def test_python_output_is_a_model_file(model: Path, tmp_path: Path, capsys: Any) -> None:
    drive("read", model)
    text = capsys.readouterr().out
    assert drive("read", model, "--py", "-o", tmp_path / "model.py") == 0
    assert drive("read", tmp_path / "model.py") == 0
    assert capsys.readouterr().out == text


def test_cpp_output_builds_the_program(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("read", model, "--cpp", "-o", tmp_path / "model.cpp") == 0
    assert capsys.readouterr().out == ""
    text = (tmp_path / "model.cpp").read_text()
    assert text.startswith("migraphx::program p;") and text == to_cpp(
        mgx_numba.parse_onnx(str(model), default_dim_value=1).portable
    )
    assert drive("read", model, "--cpp") == 0
    assert capsys.readouterr().out == text


def test_python_file_without_a_program(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.py").write_text("q = 1\n")
    (tmp_path / "b.py").write_text("1 / 0\n")
    assert drive("read", tmp_path / "a.py") == 2
    assert "leaves no program in a variable p" in capsys.readouterr().err
    assert drive("read", tmp_path / "b.py") == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_json_and_graph_on_standard_output(model: Path, capsys: Any) -> None:
    assert drive("read", model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["version"] == 8
    assert drive("read", model, "--graphviz", "--brief") == 0
    assert capsys.readouterr().out.startswith("digraph {")


def test_unwritable_output(model: Path, tmp_path: Path, capsys: Any) -> None:
    for flags in (["--text"], ["--binary"]):
        assert drive("read", model, *flags, "-o", tmp_path / "no" / "folder") == 2
        assert "cannot be written" in capsys.readouterr().err


def test_debug_symbols(model: Path, capsys: Any) -> None:
    assert drive("read", model, "--debug-symbols") == 0
    assert "# relu" in capsys.readouterr().out


def test_other_results(model: Path, capsys: Any) -> None:
    assert drive("read", model, "--output-names", "h") == 0
    out = capsys.readouterr().out
    assert "softmax" not in out
    assert "relu" in out


def test_trim_keeps_the_beginning(model: Path, capsys: Any) -> None:
    assert drive("read", model, "--trim", "2") == 0
    out = capsys.readouterr().out
    assert "relu" in out
    assert "softmax" not in out
    assert drive("read", model, "--trim", "1", "--trim-size", "1") == 0
    out = capsys.readouterr().out
    assert "softmax" in out
    assert "relu" not in out
    assert "@param:x0" in out


def test_passes_are_applied(model: Path, capsys: Any) -> None:
    assert drive("read", model, "-p", "fuse_pointwise", "dead_code_elimination") == 0
    assert "pointwise(" in capsys.readouterr().out
    assert drive("read", model, "--optimize") == 0


def test_operators_are_listed(capsys: Any) -> None:
    assert drive("op", "--list") == 0
    names = capsys.readouterr().out.split()
    assert names == sorted(names)
    assert {"add", "convolution", "dot"} <= set(names)
    assert drive("op", "convolution") == 0
    assert json.loads(capsys.readouterr().out)["padding"] == [0, 0]
    assert drive("op", "convolutoin") == 2
    assert "did you mean convolution" in capsys.readouterr().err
    assert drive("op") == 2


def test_every_operator_prints_its_defaults(capsys: Any) -> None:
    drive("op", "-l")
    for name in capsys.readouterr().out.split():
        assert drive("op", name) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_arguments_are_added_to_the_named_command_alone() -> None:
    """Those of all commands took a third of the time of a short command."""
    (commands,) = (a for a in _parser(["op", "-l"])._actions if isinstance(a, argparse._SubParsersAction))
    flags = {name: set(sub._option_string_actions) for name, sub in commands.choices.items()}
    assert {"-l", "--list"} <= flags.pop("op")
    assert len(flags) > 5 and all(own == {"-h", "--help"} for own in flags.values())


def test_onnx_operators_are_listed(capsys: Any) -> None:
    assert drive("onnx", "-l") == 0
    assert capsys.readouterr().out.split() == mgx_numba.get_onnx_operators()
    assert drive("onnx") == 2


@pytest.mark.parametrize("target", ["--cpu", "--ref"])
def test_compile_saves_how_it_was_compiled(model: Path, target: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "model.mxr"
    flags = ("--disable-fast-math", "--float32-matmul-precision", "highest")
    assert drive("compile", model, target, *flags, "--binary", "-o", path) == 0
    assert "Compilation time: " in capsys.readouterr().err
    compiled = load_program(path)[1]["compiled"]
    assert compiled["target"] == target[2:]
    assert compiled["fast_math"] is False and compiled["float32_matmul_precision"] == "highest"
    assert mgx_numba.load(str(path)).is_compiled()


def test_compile_shows_kernels(model: Path, capsys: Any) -> None:
    assert drive("compile", model, "--kernels") == 0
    out = capsys.readouterr().out
    assert "def kernel(args, begin, end):" in out
    assert "# @" in out


@pytest.mark.parametrize("flag", ["--fp16", "--bf16", "--int8", "--fp8", "--int4-weights"])
def test_quantisation(model: Path, capsys: Any, flag: str) -> None:
    assert drive("verify", model, flag) == 0
    assert f"Quantised: {flag[2:].replace('-', '_')}" in capsys.readouterr().err


def test_calibration_files(model: Path, tmp_path: Path, capsys: Any) -> None:
    shapes = {
        n: s._value for n, s in mgx_numba.parse_onnx(str(model), default_dim_value=1).get_parameter_shapes().items()
    }
    inputs = {name: np.full(s.lens, 0.5, s.type.numpy) for name, s in shapes.items()}
    np.savez(tmp_path / "one.npz", **inputs)
    np.save(tmp_path / "two.npy", np.zeros(3))
    (tmp_path / "three.npz").write_bytes(b"PK no archive")
    assert drive("run", model, "--ref", "--int8", "--calibration", tmp_path / "one.npz") == 0
    assert "no calibration data" not in capsys.readouterr().err
    for name, said in (("two.npy", "one array without a name"), ("three.npz", "cannot be read"), ("four", "No such")):
        assert drive("run", model, "--ref", "--int8", "--calibration", tmp_path / name) == 2
        assert said in capsys.readouterr().err
    assert drive("run", model, "--ref", "--calibration", tmp_path / "one.npz") == 2
    assert "--calibration has no effect without --int8" in capsys.readouterr().err
    assert drive("run", model, "--ref", "--fp16", "--bf16") == 2
    assert "fp16 and bf16 exclude each other" in capsys.readouterr().err


@pytest.mark.usefixtures("no_driver")
def test_gpu_is_refused(model: Path, capsys: Any) -> None:
    assert drive("compile", model, "--gpu") == 2
    assert "error: target 'gpu' is not available" in capsys.readouterr().err


def test_run_prints_the_program(model: Path, capsys: Any) -> None:
    assert drive("run", model, "--ref") == 0
    assert "softmax" in capsys.readouterr().out


def test_inputs_come_from_files_and_fills(model: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    seen = []

    def note(self: Any, params: Any) -> list[Any]:
        seen.append(np.array(params["x"]))
        return []

    monkeypatch.setattr(mgx_numba.program, "run", note)
    wanted = np.arange(6, dtype=np.float32).reshape(1, 6)
    save_argument(Argument.from_array(wanted), tmp_path / "x.mxr")
    np.save(tmp_path / "x.npy", wanted)
    flags = [["--fill0", "x"], ["--fill1", "x"], ["--load-arg", "@x", tmp_path / "x.mxr"]]
    flags += [["--load-arg", "@x", tmp_path / "x.npy"], [], []]
    for flag in flags:
        assert drive("run", model, "--ref", *flag) == 0
    assert not seen[0].any()
    assert (seen[1] == 1).all()
    assert (seen[2] == wanted).all()
    assert (seen[3] == wanted).all()
    assert (seen[4] == seen[5]).all()
    assert seen[4].std() > 0
    assert drive("run", model, "--ref", "--fill0", "z") == 2
    assert "no parameter is called 'z'; the parameters are: x" in capsys.readouterr().err


def test_dynamic_lengths_take_the_batch(model: Path, capsys: Any) -> None:
    flags = ["--dyn-input-dim", "@x", "[{min:1,max:8},6]"]
    for batch in ("1", "3", "99"):
        assert drive("run", model, "--cpu", *flags, "--batch", batch) == 0


def test_wrong_input_is_told(model: Path, tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 6), np.float32))
    assert drive("run", model, "--ref", "--load-arg", "@x", tmp_path / "x.npy") == 2
    assert "Incorrect shape" in capsys.readouterr().err


def test_advice_on_lengths_named_options_that_the_driver_does_not_have(tmp_path: Path, capsys: Any) -> None:
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[n, m, 2] x) => (float[n, m, 2] y) { y = Relu(x) }'
    path = tmp_path / "open.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    np.save(tmp_path / "x.npy", np.zeros((3, 4, 2), np.float32))
    words = ("run", path, "--ref", "--load-arg", "@x", tmp_path / "x.npy")
    assert drive(*words) == 2
    told = capsys.readouterr().err
    ranges = "[{min:1,max:3},{min:1,max:4},2]"
    assert f"give --dim-param @n 3 @m 4, --input-dim @x 3 4 2, or --dyn-input-dim @x '{ranges}' for all" in told
    for given in (("--dim-param", "@n", 3, "@m", 4), ("--input-dim", "@x", 3, 4, 2), ("--dyn-input-dim", "@x", ranges)):
        assert drive(*words, *given) == 0


@pytest.mark.parametrize(
    ("name", "word"), [("input.1", "@input.1"), ("two words", "'@two words'"), ("it's", "'@it'\"'\"'s'"), ("}", "'@}'")]
)
def test_advice_on_lengths_quotes_names_as_shells_want_them(name: str, word: str) -> None:
    ranges = f"map_dyn_input_dims={{{name!r}: [dynamic_dimension(1, 4), 2]}}"
    told = (
        f"wrong; give parse_onnx dim_params={{{name!r}: 3}}, map_input_dims={{{name!r}: [3, 2]}}, or {ranges} for all"
    )
    wanted = f"--dim-param {word} 3, --input-dim {word} 3 2, or --dyn-input-dim {word} '[{{min:1,max:4}},2]' for all"
    assert in_words(told) == f"wrong; give {wanted}"


def test_time_prints_one_line(model: Path, capsys: Any) -> None:
    assert drive("time", model, "-n", "4") == 0
    assert re.fullmatch(r"Total time: [\d.e-]+ms\n", capsys.readouterr().out)


def test_environment_is_reported(model: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MIGRAPHX_NO_SUCH_THING", "1")
    monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", "1")
    assert drive("run", model, "--ref") == 0
    out, err = capsys.readouterr()
    assert "warning: environment variable MIGRAPHX_NO_SUCH_THING has no effect here" in err
    assert "MIGRAPHX_TRACE_EVAL=1\n" in err
    assert "Run instruction: " in out


def test_option_without_effect_is_a_plain_warning(model: Path, capsys: Any, monkeypatch: Any) -> None:
    from mgx_numba.api import options

    monkeypatch.setattr(options, "warned", set())
    assert drive("compile", model, "--ref", "--exhaustive-tune") == 0
    assert "warning: compile option exhaustive_tune=True has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, status, message",
    [(KeyboardInterrupt(), 130, "interrupted"), (MemoryError("4 TiB"), 2, "error: not enough memory: 4 TiB")],
)
def test_interrupt_and_lack_of_memory_end_without_a_traceback(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, error: BaseException, status: int, message: str
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(mgx_numba.program, "compile", fail)
    assert drive("compile", model) == status
    assert capsys.readouterr().err.splitlines()[-1] == message
