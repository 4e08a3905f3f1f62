"""Mistakes of users in the Python interface and the driver, each with its error message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.errors import MgxError
from mgx_numba.session import InferenceSession, SessionOptions
from tests.driver.support import drive, small_model

X = np.zeros((1, 6), np.float32)
IN_X = "{float_type, {1, 6}, {6, 1}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Good and bad files."""
    here: Path = tmp_path_factory.mktemp("mistakes")
    small_model(here / "m.onnx")
    program = mgx.parse_onnx(here / "m.onnx", default_dim_value=1)
    program.save(here / "p.mxr")
    program.compile("ref").save(here / "c.mxr")
    whole = (here / "p.mxr").read_bytes()
    files = {
        "cut.mxr": whole[: len(whole) // 2],
        "cut.onnx": (here / "m.onnx").read_bytes()[:150],
        "empty.onnx": b"",
        "empty.mxr": b"",
        "text.onnx": b"hello world, this is no model",
        "page.onnx": b"<!DOCTYPE html><html>not found</html>",
        "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "net.pt": b"PK\x03\x04" + bytes(40),
        "bad.npy": b"numbers",
        "net.so": b"\x7fELF\x02\x01\x01" + bytes(57),
    }
    for name, data in files.items():
        (here / name).write_bytes(data)
    np.save(here / "double.npy", np.zeros((1, 6)))
    np.save(here / "five.npy", np.zeros((1, 5), np.float32))
    (here / "folder").mkdir()
    return here


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _read(**options: Any) -> mgx.program:
    return mgx.parse_onnx("m.onnx", **{"default_dim_value": 1, **options})


def _twice(x: Any) -> Any:
    return x + x


def _custom(**functions: Any) -> None:
    mgx.register_custom_op("com.m", "Op", **functions)


def _session(feed: Any, names: Any = None) -> Any:
    return InferenceSession("m.onnx").run(names, feed)


def _run(value: Any) -> Any:
    return _read().compile("ref").run(value)


def _add(name: str, *kinds: str, lens: tuple[int, ...] = (2, 3)) -> Any:
    m = mgx.program().get_main_module()
    values = [m.add_parameter(f"p{k}", mgx.shape(type=kind, lens=lens)) for k, kind in enumerate(kinds)]
    return m.add_instruction(mgx.op(name), values)


def _calibrate(batches: Any, *names: str) -> Any:
    return mgx.quantize_int8(_read(), mgx.get_target("ref"), batches, list(names) or ["dot"])


def _range(low: int, high: int) -> Any:
    return mgx.shape.dynamic_dimension(low, high)


API: dict[str, tuple[Callable[[], Any], str]] = {
    "a wrong type": (
        lambda: _run({"x": X.astype(np.float64)}),
        f"Incorrect type {{double_type, {{1, 6}}, {{6, 1}}}} for parameter: x should be: {IN_X}; convert it, for "
        "instance by .astype('float32')",
    ),
    "a list of integers": (lambda: _run({"x": [[1] * 6]}), "Incorrect type {int64_type"),
    "no batch axis": (lambda: _run({"x": X[0]}), f"should be: {IN_X}; it lacks the leading axis: give x[None]"),
    "a wrong length": (lambda: _run({"x": X[:, :5]}), "Incorrect shape {float_type, {1, 5}, {5, 1}} for parameter: x"),
    "another batch": (
        lambda: _run({"x": np.zeros((4, 6), np.float32)}),
        "the model leaves it open: dimension 0 ('N') was read as 1; give parse_onnx dim_params={'N': 4}, ",
    ),
    "a wrong name": (lambda: _run({"X": X}), "Parameter not found: x (given: X; expected: x)"),
    "no inputs": (lambda: _run(None), "Parameter not found: x (given: none; expected: x)"),
    "an array alone": (lambda: _run(X), "run needs a mapping of parameter names to arrays, got ndarray"),
    "a list of arrays": (lambda: _run([X]), "run needs a mapping of parameter names to arrays, got list"),
    "None": (lambda: _run({"x": None}), "parameter x: None is given; expected an array of float_type, {1, 6}, {6, 1}"),
    "text": (
        lambda: _run({"x": "abc"}),
        f"Incorrect type and shape {{string_type, {{1}}, {{0}}}} for parameter: x should be: {IN_X}",
    ),
    "beyond a range": (
        lambda: (
            _read(default_dim_value=0, map_dyn_input_dims={"x": [_range(1, 4), 6]})
            .compile("ref")
            .run({"x": np.zeros((5, 6), np.float32)})
        ),
        "should be: {dynamic, float_type, {[1..4], 6}}",
    ),
    "no such file": (lambda: mgx.parse_onnx("nope.onnx"), "no such file: 'nope.onnx'"),
    "a folder": (lambda: mgx.parse_onnx("folder"), "'folder' is a folder, expected an ONNX file"),
    "a text file": (lambda: mgx.parse_onnx("text.onnx"), "'text.onnx': not an ONNX model"),
    "a web page": (lambda: mgx.parse_onnx("page.onnx"), "it looks like HTML or XML, such as a web page that was saved"),
    "Git LFS": (
        lambda: mgx.parse_onnx("lfs.onnx"),
        "a pointer of Git LFS in place of the file: git lfs pull brings it",
    ),
    "PyTorch's file": (lambda: mgx.parse_onnx("net.pt"), "PyTorch's .pt: export the model to ONNX"),
    "a cut ONNX file": (
        lambda: mgx.parse_onnx("cut.onnx"),
        "'cut.onnx': not an ONNX model, or a truncated one: field 7",
    ),
    "an empty file": (lambda: mgx.parse_onnx("empty.onnx"), "'empty.onnx' is empty"),
    "an .mxr file as ONNX": (lambda: mgx.parse_onnx("c.mxr"), "(it looks like an .mxr file: load reads it)"),
    "an ONNX file as .mxr": (lambda: mgx.load("m.onnx"), "(it looks like an ONNX model: parse_onnx reads it)"),
    "an ONNX file as TensorFlow's": (
        lambda: mgx.parse_tf("m.onnx"),
        "(it looks like an ONNX model: parse_onnx reads it)",
    ),
    "a cut .mxr file": (lambda: mgx.load("cut.mxr"), "cut.mxr: at byte "),
    "an empty .mxr file": (lambda: mgx.load("empty.mxr"), "empty.mxr: the file is empty"),
    "no such .mxr file": (lambda: mgx.load("nope.mxr"), "nope.mxr: cannot be read: No such file or directory"),
    "no path": (lambda: mgx.load(12), "load needs the path of an .mxr file, got int"),  # type: ignore[arg-type]
    "a device before the first": (
        lambda: mgx.load("c.mxr", device_id=-1),
        "device_id must be the number of a device, from 0 on, got -1",
    ),
    "an unknown format": (lambda: mgx.load("c.mxr", format="yaml"), "Unknown format: yaml; known: msgpack, json"),
    "bytes of nothing": (lambda: mgx.load_buffer(b"123"), "at byte 0: the file must be a map"),
    "saving into no folder": (lambda: _read().save("no/o.mxr"), "no/o.mxr: cannot be written: there is no folder"),
    "an unknown target": (lambda: mgx.get_target("cuda"), "unknown target 'cuda'; available: ref, cpu"),
    "a number for a target": (lambda: _read().compile(3), "compile needs a target (get_target('cpu')), got int"),
    "a misspelt option": (
        lambda: _read().compile("cpu", fastmath=True),
        "unknown compile option 'fastmath'; did you mean fast_math? known: offload_copy, ",
    ),
    "a yes for True": (lambda: _read().compile("cpu", fast_math="no"), "fast_math must be True or False, got 'no'"),
    "threads below zero": (
        lambda: _read().compile("cpu", num_threads=-2),
        "num_threads must be an integer from 0 on, got -2",
    ),
    "no such cache": (lambda: _read().compile("cpu", problem_cache="n.json"), "problem_cache: there is no file n.json"),
    "an unknown input": (
        lambda: _read(map_input_dims={"y": [1, 6]}),
        "map_input_dims names 'y', which is no input; inputs are: x",
    ),
    "too many dimensions": (
        lambda: _read(map_input_dims={"x": [1, 6, 1]}),
        "input 'x' has 2 dimensions, but 3 are given for it",
    ),
    "a length that does not fit": (
        lambda: _read(map_input_dims={"x": [1, 7]}),
        "node 'gemm' (Gemm, domain ai.onnx, opset 17): dot: inner lengths of [1, 7] x [6, 4] differ: 7 and 6",
    ),
    "a negative length": (
        lambda: _read(default_dim_value=-1),
        "default_dim_value must be an integer that is not negative, got -1",
    ),
    "two defaults": (
        lambda: _read(default_dim_value=2, default_dyn_dim_value=_range(1, 4)),
        "default_dim_value=2 and default_dyn_dim_value=[1..4] are both set: give one",
    ),
    "a range backwards": (lambda: _range(4, 1), "dynamic dimension needs 0 <= min <= max, got min=4, max=1"),
    "kernels before compiling": (
        lambda: _read().kernels(),
        "the program is not compiled; kernels exist after compile()",
    ),
    "explaining before compiling": (lambda: _read().explain("relu"), "the program is not compiled; explain() tells of"),
    "an unknown layer": (lambda: mgx.quantize_fp16(_read(), ["dott"]), "did you mean dot?"),
    "a name for a target": (
        lambda: mgx.quantize_int8(_read(), "cpu", [{"x": X}]),  # type: ignore[arg-type]
        "calibration needs a target (get_target('cpu')), got 'cpu'",
    ),
    "calibration by one batch": (
        lambda: _calibrate({"x": X}),
        "calibration must be a list of mappings, one a batch, of inputs by name: got one mapping",
    ),
    "calibration of another input": (lambda: _calibrate([{"y": X}]), "Parameter not found: x (given: y; expected: x)"),
    "a misspelt operator": (lambda: mgx.op("relua"), "unknown operator 'relua'; did you mean relu"),
    "a misspelt attribute": (lambda: mgx.op("softmax", axes=1), "softmax has no attribute 'axes'; it has: axis"),
    "an attribute's type": (lambda: mgx.op("softmax", axis="one"), "softmax: attribute axis must be int, got 'one'"),
    "an unknown type": (
        lambda: mgx.shape(type="float33", lens=[1]),
        "unknown element type 'float33'; known: bool_type",
    ),
    "a negative dimension": (lambda: mgx.shape(type="float", lens=[1, -2]), "shape has a negative length: [1, -2]"),
    "too few values": (
        lambda: mgx.create_argument(mgx.shape(type="float", lens=[3]), [1.0]),
        "Values and shape elements do not match: 1 values, 3 elements",
    ),
    "shapes that do not fit": (lambda: _add("dot", "float", "float"), "dot: inner lengths of [2, 3] x [2, 3] differ"),
    "mixed types": (lambda: _add("add", "float", "int32"), "add: inputs have different types: float_type, int32_type"),
    "a stream's name": (
        lambda: _read().compile("ref").run_async({"x": X}, "s", "t"),  # type: ignore[arg-type]
        "run_async: stream must be an integer from 0 on, got 's'",
    ),
}


API |= {
    "a custom operator without a function": (lambda: _custom(), "com.m::Op: give scalar, or compute and compute_shape"),
    "a number for a function": (lambda: _custom(scalar=3), "com.m::Op: a function is needed, got 3"),
    "a custom kernel of no tasks": (
        lambda: mgx.custom_kernel("text", "4"),  # type: ignore[arg-type]
        "custom_kernel: tasks is '4', expected an integer from 0 on",
    ),
    "arguments of a custom kernel": (
        lambda: mgx.custom_kernel("text", 4, (1.5,)),  # type: ignore[arg-type]
        "custom_kernel: arguments is (1.5,), expected a tuple of 64-bit integers",
    ),
    "a number for a rule": (lambda: _custom(compute=abs, compute_shape=3), "com.m::Op: a function is needed, got 3"),
    "a custom operator without a domain": (
        lambda: mgx.register_custom_op("", "Relu", scalar=_twice),
        "a custom operator needs a domain and a name without colons",
    ),
    "an attribute without a default": (
        lambda: _custom(scalar=lambda x, *, a: x * a),
        "attribute 'a' has the default none, expected a bool, an int, a float, a str, or a tuple",
    ),
    "inputs by a star": (lambda: _custom(scalar=lambda *x: x[0]), "takes a fixed number of inputs, at least one"),
    "forgetting what nobody knows": (lambda: mgx.unregister_custom_op("com.m", "No"), "unknown operator 'com.m::No'"),
    "a dictionary for session options": (
        lambda: InferenceSession("m.onnx", {"intra_op_num_threads": 1}),  # type: ignore[arg-type]
        "sess_options must be SessionOptions, got dict",
    ),
    "a session's feed in a list": (lambda: _session([X]), "then a mapping of inputs to arrays, got list"),
    "a session without a feed": (lambda: _session(None), "then a mapping of inputs to arrays, got NoneType"),
    "a session's result by a string": (
        lambda: _session({"x": X}, "y"),
        "output_names must be a list of names, got 'y'",
    ),
    "a session's unknown input": (lambda: _session({"X": X}), "no input 'X'; the model's are: x"),
    "reshaping to nothing": (
        lambda: _read().reshape(None),  # type: ignore[arg-type]
        "reshape needs a mapping of inputs to dimensions, got NoneType",
    ),
    "calibration by NaN": (
        lambda: _calibrate([{"x": X * np.nan}]),
        "is infinite or NaN in all batches",
    ),
    "a library without a name": (
        lambda: _read().compile("cpu").export_library("o", None),  # type: ignore[arg-type]
        "export_library: name must be text, got NoneType",
    ),
    "a library without a folder": (
        lambda: _read().compile("cpu").export_library(None),  # type: ignore[arg-type]
        "export_library: folder must be text, got NoneType",
    ),
    "a library of ref": (
        lambda: _read().compile("ref").save("o.mxr", embed_library=True),
        "only the target cpu writes libraries; compile for it",
    ),
    "a library for a program": (lambda: mgx.load("net.so"), "(it looks like a shared library, which C and C++ load)"),
    "iterations below zero": (
        lambda: _read().compile("cpu").explain("relu", {"x": X}, -1),
        "explain needs a name and iterations from 0 on, got 'relu', -1",
    ),
    "explaining a number": (
        lambda: _read().compile("cpu").explain(3),  # type: ignore[arg-type]
        "explain needs a name and iterations from 0 on, got 3, 0",
    ),
}


@pytest.mark.parametrize("mistake", API)
def test_python_interface(mistake: str) -> None:
    call, message = API[mistake]
    with pytest.raises(MgxError) as caught:
        call()
    assert message in str(caught.value)


def test_misspelt_names_are_those_that_are_near() -> None:
    with pytest.raises(AttributeError, match="'program' object has no attribute 'runn'; did you mean run"):
        _read().runn({})
    with pytest.raises(AttributeError, match="no attribute 'parse_onx'; did you mean parse_onnx"):
        mgx.parse_onx("m.onnx")
    with pytest.raises(AttributeError, match="has no 'intra_op_num_thread'; did you mean intra_op_num_threads"):
        SessionOptions().intra_op_num_thread = 2


DRIVER: dict[str, str] = {
    "run": "error: a model file is needed: give its name after the command",
    "rum m.onnx": "unknown command 'rum'; did you mean run?",
    "run nope.onnx": "error: no such file: 'nope.onnx'",
    "run cut.mxr": "error: cut.mxr: at byte ",
    "run double.npy": "(it looks like a NumPy array, such as an input)",
    "run m.onnx c.mxr": "unrecognized argument: c.mxr",
    "run m.onnx --cpu --ref": "argument --ref: not allowed with argument --cpu",
    "run m.onnx --disable-fastmath": "unrecognized argument: --disable-fastmath; did you mean --disable-fast-math",
    "run m.onnx --batch x": "argument --batch: invalid int value: 'x'",
    "run m.onnx --batch -1": "error: --batch is -1, expected a length from 1 on",
    "run m.onnx --fill0 y": "error: --fill0: no parameter is called 'y'; the parameters are: x",
    "run m.onnx --ref --load-arg @x double.npy": "convert it, for instance by .astype('float32')",
    "run m.onnx --ref --load-arg @x five.npy": "Incorrect shape {float_type, {1, 5}, {5, 1}} for parameter: x",
    "run m.onnx --load-arg @x bad.npy": "error: bad.npy: not a NumPy file of numbers (.npy or .npz)",
    "run m.onnx --load-arg @x no.npy": "error: no.npy: cannot be read: No such file or directory",
    "run m.onnx --load-arg x five.npy": "error: --load-arg: expected @name first, got 'x'",
    "run m.onnx --input-dim @y 1 6": "error: --input-dim names 'y', which is no input; inputs are: x",
    "run m.onnx --input-dim @x 1x6": "'1x6' is no length; expected integers, as in @x 1 3 224 224",
    "run m.onnx --dyn-input-dim @x [1-4,6]": "'[1-4,6]' is neither a length nor {min:a,max:b}",
    "run m.onnx --default-dyn-dim {min:4,max:1}": "error: --default-dyn-dim: dynamic dimension needs 0 <= min <= max",
    "perf m.onnx -n 0": "error: --iterations is 0, expected at least 1",
    "perf m.onnx --batch-sizes 1,a": "error: --batch-sizes is '1,a', expected positive integers separated by commas",
    "perf m.onnx --plot a.png": "error: --plot needs --batch-sizes",
    "perf m.onnx --html folder": "error: folder: cannot be written: it is a folder",
    "compile m.onnx --binary -o no/x.mxr": "error: no/x.mxr: cannot be written: there is no folder",
    "compile m.onnx --fp16 --bf16": "error: fp16 and bf16 exclude each other",
    "compile m.onnx --int8 --calibration no.npz": "error: no.npz: cannot be read: No such file or directory",
    "compile m.onnx --num-threads -1": "error: --num-threads must be an integer from 0 on, got -1",
    "compile m.onnx --tune-budget -5": "error: --tune-budget must be a number of seconds from 0 on",
    "compile m.onnx --problem-cache n.json": "error: --problem-cache: there is no file n.json",
    "read m.onnx -p fuse_everything": "error: unknown pass 'fuse_everything'; known: autocast_fp8",
    "read m.onnx -t 100": "error: --trim 100 --trim-size 0 leaves nothing of 9 instructions",
    "read m.onnx --output-names q": "error: --output-names: the model has no value q",
    "compile m.onnx --embed-library": "error: --embed-library needs a binary file: give --output FILE",
    "compile m.onnx --ref --embed-library -o o.mxr": "error: export_library: only the target cpu writes libraries",
    "read m.onnx --embed-library -o o.mxr": "error: the program is not compiled; export_library writes what compile()",
    "cpp --flag": "unrecognized argument: --flag; did you mean --flags",
    "run net.so": "error: net.so: ",
    "read m.onnx --embed-objects": "error: --embed-objects needs a binary file: give --output FILE",
    "read --test extra": "error: --test takes no file, got extra",
    "verify c.mxr --onnxruntime": "error: --onnxruntime needs an ONNX file, got c.mxr",
    "verify m.onnx -i -b": "argument -b/--bisect: not allowed with argument -i/--per-instruction",
    "verify m.onnx --ref -b": "error: --reduce and --bisect compare a target with ref: give another target",
    "verify m.onnx -c p.mxr": "error: --compiled-model p.mxr: it was not saved compiled",
    "op": "error: op needs the name of an operator, or --list",
    "op relua": "error: unknown operator 'relua'; did you mean relu",
    "tune --list m.onnx": "error: m.onnx: not a file of tuning records: expected .mxr, JSON or an SQLite database",
    "explain m.onnx": "error: explain needs a model file and the name of a node, an instruction or an operator",
    "explain m.onnx zz --ref": "error: explain: no node, instruction or operator is called 'zz'",
    "roctx m.onnx --trace no/t.json": "error: no/t.json: cannot be written: there is no folder",
    "run m.onnx --log-level loud": "error: --log-level is 'loud', expected none, error, warn, info, debug, trace",
}


@pytest.mark.parametrize("words", DRIVER)
def test_driver(words: str, capsys: Any) -> None:
    assert drive(*words.split()) == 2
    out, err = capsys.readouterr()
    assert DRIVER[words] in err and not out and "Traceback" not in err
