"""Operators that users register: in ONNX models, in programs built by hand, in files and in worker processes."""

from __future__ import annotations

import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba
from mgx_numba.codegen.workers.batch import compile_objects
from mgx_numba.errors import FormatError, MgxError, OperatorError, ParseError, ShapeError

from ..running import ROOT, ended
from ..values import normal

DOMAIN = "test.custom"
SUMS = """
def kernel(args, begin, end):
    x = pointer_float32(args, 0)
    y = pointer_float32(args, 1)
    columns = args[2]
    for row in range(begin, end):
        total = const_float32(0, 0)
        for k in range(columns):
            total = add(total, load_scalar(x, row * columns + k))
            store_scalar(y, row * columns + k, total)
"""


def sums_kernel(inputs: list[Any], outputs: list[Any]) -> Any:
    (x,) = inputs
    if x.type_string() != "float_type" or not x.elements():
        return None
    columns = x.lens()[-1]
    return mgx_numba.custom_kernel(SUMS, x.elements() // columns, (columns,))


def bent(x: Any, slope: Any, *, shift: float = 0.5, power: int = 1) -> Any:
    return np.where(x > shift, x, (x - shift) * slope**power)


def halves(x: np.ndarray, *, axis: int = 0) -> Any:
    return tuple(np.split(x, 2, axis))


def shapes_of_halves(x: Any, *, axis: int = 0) -> Any:
    lens = x.lens()
    if lens[axis] % 2:
        raise ValueError(f"axis {axis} has length {lens[axis]}")
    lens[axis] //= 2
    return [mgx_numba.shape(type=x.type(), lens=lens)] * 2


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    mgx_numba.register_custom_op(DOMAIN, "Bent", scalar=bent)
    mgx_numba.register_custom_op(DOMAIN, "Halves", compute=halves, compute_shape=shapes_of_halves)
    mgx_numba.register_custom_op(
        DOMAIN,
        "Total",
        compute=lambda x: x.sum(dtype=x.dtype),
        compute_shape=lambda x: mgx_numba.shape(type=x.type(), lens=[1], strides=[0]),
    )
    mgx_numba.register_custom_op(
        DOMAIN,
        "Sums",
        compute=lambda x: np.cumsum(x, -1, dtype=x.dtype),
        compute_shape=lambda x: x,
        cpu_kernel=sums_kernel,
    )
    yield
    for name in ("Bent", "Halves", "Total", "Sums"):
        mgx_numba.unregister_custom_op(DOMAIN, name)


def custom(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, domain=DOMAIN, name=name.lower(), **attributes)


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: str, type: int = TensorProto.FLOAT) -> Any:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, type, lens) for n, lens in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def between_neighbours() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        custom("Bent", ["a", "s"], ["b"], shift=0.25),
        helper.make_node("Mul", ["b", "x"], ["y"]),
    ]
    return model_of(nodes, {"x": ["n", 7], "s": [7]}, "y")


def results(program: Any, feeds: dict[str, np.ndarray], target: str, **options: Any) -> list[np.ndarray]:
    return [np.asarray(r) for r in program.clone().compile(target, **options).run(feeds)]


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_a_scalar_expression_is_fused_with_its_neighbours(rows: int, fast_math: bool) -> None:
    program = mgx_numba.parse_onnx(between_neighbours(), dim_params={"n": rows})
    feeds = {"x": normal(rows, 7, special=not fast_math), "s": normal(7, seed=1)}
    with np.errstate(all="ignore"):
        wanted = bent(2 * feeds["x"], feeds["s"], shift=np.float32(0.25)) * feeds["x"]
    np.testing.assert_array_equal(results(program, feeds, "ref")[0], wanted)
    (found,) = results(program, feeds, "cpu", fast_math=fast_math)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    text = str(program.compile("cpu", fast_math=fast_math))
    if rows:
        assert re.search(r"pointwise\(.*\), \[main:pointwise0\]", text)
        assert "test.custom::Bent[shift=0.25,power=1]" in text and "on the host" not in text
        assert [k.name for k in program.kernels()] == ["add_test.custom__Bent_mul_kernel"]


def test_a_scalar_expression_of_open_lengths_is_no_deferred_node() -> None:
    program = mgx_numba.parse_onnx(between_neighbours())
    assert "deferred" not in str(program)
    program.compile("cpu", fast_math=False)
    for rows in (3, 1, 8):
        feeds = {"x": normal(rows, 7), "s": normal(7, seed=1)}
        wanted = bent(2 * feeds["x"], feeds["s"], shift=np.float32(0.25)) * feeds["x"]
        np.testing.assert_allclose(program.run(feeds)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("type", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_a_scalar_expression_takes_other_float_types(type: int) -> None:
    model = model_of([custom("Bent", ["x", "s"], ["y"])], {"x": [3, 5], "s": [1]}, "y", type)
    dtype = helper.tensor_dtype_to_np_dtype(type)
    feeds = {"x": normal(3, 5, dtype=dtype), "s": normal(1, dtype=dtype)}
    for target in ("ref", "cpu"):
        (y,) = results(mgx_numba.parse_onnx(model), feeds, target, **({"fast_math": False} if target == "cpu" else {}))
        assert y.dtype == dtype
        np.testing.assert_allclose(y, bent(feeds["x"], feeds["s"]), rtol=2 * np.finfo(dtype).eps)


def test_a_function_of_numba_is_taken_for_the_function_in_it() -> None:
    from numba import njit

    mgx_numba.register_custom_op(DOMAIN, "Cube", scalar=njit(lambda x: x * x * x))
    try:
        program = mgx_numba.parse_onnx(model_of([custom("Cube", ["x"], ["y"])], {"x": [3]}, "y"))
        x = normal(3)
        np.testing.assert_allclose(results(program, {"x": x}, "cpu")[0], x**3, rtol=1e-6)
    finally:
        mgx_numba.unregister_custom_op(DOMAIN, "Cube")


@pytest.mark.parametrize("rows", [4, "n"])
def test_functions_and_kernels_between_other_operators(rows: int | str) -> None:
    """Fixed and open lengths; transposed inputs, several results, a result without axes."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        custom("Sums", ["t"], ["a"]),
        custom("Halves", ["a"], ["b", "c"], axis=1),
        helper.make_node("Mul", ["b", "c"], ["y"]),
        custom("Total", ["y"], ["z"]),
        helper.make_node("Neg", ["z"], ["w"]),
    ]
    program = mgx_numba.parse_onnx(model_of(nodes, {"x": [rows, 6]}, "yw"))
    compiled = program.clone().compile("cpu")
    for n in (4,) if rows == 4 else (4, 2, 0, 8):
        x = normal(n, 6, seed=n)
        a = np.cumsum(x.T, -1, dtype=np.float32)
        y = a[:, : n // 2] * a[:, n // 2 :]
        for run in (compiled, program.clone().compile("ref")):
            found = [np.asarray(r) for r in run.run({"x": x})]
            np.testing.assert_allclose(found[0], y, rtol=1e-5)
            np.testing.assert_allclose(found[1], -y.sum(dtype=np.float32), rtol=1e-5, atol=1e-6)
            assert found[1].shape == ()
    if rows == 4:
        assert "test.custom__Sums_kernel" in [k.name for k in compiled.kernels()]
        assert "the custom operator has no kernel" in str(compiled)


def test_a_kernel_that_declines_leaves_it_to_the_function() -> None:
    program = mgx_numba.parse_onnx(model_of([custom("Sums", ["x"], ["y"])], {"x": [3, 5]}, "y", TensorProto.DOUBLE))
    x = normal(3, 5, dtype=np.float64)
    np.testing.assert_allclose(results(program, {"x": x}, "cpu")[0], np.cumsum(x, -1))


def test_worker_processes_compile_what_this_one_has_registered() -> None:
    program = mgx_numba.parse_onnx(between_neighbours(), dim_params={"n": 3}).compile("cpu")
    sums = mgx_numba.parse_onnx(model_of([custom("Sums", ["x"], ["y"])], {"x": [3, 5]}, "y")).compile("cpu")
    sources = [*program.compiled.kernels(), *sums.compiled.kernels()]
    assert {s.name for s in sources} == {"add_test.custom__Bent_mul_kernel", "test.custom__Sums_kernel"}
    assert all(compile_objects(sources, workers=2))


def test_a_program_built_by_hand() -> None:
    built = mgx_numba.program()
    main = built.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[2, 3]))
    s = main.add_parameter("s", mgx_numba.shape(type="float", lens=[2, 3]))
    main.add_return([main.add_instruction(mgx_numba.op("test.custom::Bent", shift=1), [x, s])])
    feeds = {"x": normal(2, 3), "s": normal(2, 3, seed=1)}
    np.testing.assert_allclose(results(built, feeds, "cpu")[0], bent(feeds["x"], feeds["s"], shift=1), rtol=1e-6)
    with pytest.raises(OperatorError, match="has no attribute 'slope'; it has: shift, power"):
        mgx_numba.op("test.custom::Bent", slope=1)
    with pytest.raises(ShapeError, match="test.custom::Bent: got 1 inputs, expected 2"):
        main.add_instruction(mgx_numba.op("test.custom::Bent"), [x])


LOADING = """
import sys
import numpy as np
import mgx_numba
def bent(x, slope, *, shift=0.5, power=1):
    return x * float(sys.argv[3])
if sys.argv[2] == "registered":
    mgx_numba.register_custom_op("test.custom", "Bent", scalar=bent)
x = np.ones((3, 7), np.float32)
print(np.asarray(mgx_numba.load(sys.argv[1]).run({"x": x, "s": x[0]})[0])[0, 0])
"""


def loaded(*arguments: object) -> subprocess.CompletedProcess[str]:
    return ended(LOADING, *arguments)


def test_a_file_is_loaded_by_processes_that_have_registered_the_operator(tmp_path: Path) -> None:
    """The operator's meaning is that process's: no plan of another one is used."""
    program = mgx_numba.parse_onnx(between_neighbours(), dim_params={"n": 3}).compile("cpu")
    program.save(tmp_path / "p.mxr")
    assert [loaded(tmp_path / "p.mxr", "registered", factor).stdout for factor in (3, 5)] == ["6.0\n", "10.0\n"]
    refused = loaded(tmp_path / "p.mxr", "not")
    assert refused.returncode == 1
    assert "FormatError" in refused.stderr
    assert "unknown operator 'test.custom::Bent'; a custom operator is to be registered" in refused.stderr


def test_a_file_with_open_lengths_is_refused_without_its_operator(tmp_path: Path) -> None:
    """The operator is inside a deferred node; loading went well, and a run failed."""
    mgx_numba.register_custom_op(DOMAIN, "Doubled", compute=lambda x: 2 * x, compute_shape=lambda s: s)
    try:
        program = mgx_numba.parse_onnx(model_of([custom("Doubled", ["x"], ["y"])], {"x": ["n", 7]}, "y"))
        assert any(ins.name == "deferred" for ins in program.portable.main)
        data = mgx_numba.save_buffer(program)
        found = mgx_numba.load_buffer(data).compile("cpu").run({"x": normal(3, 7)})
        np.testing.assert_array_equal(found[0], 2 * normal(3, 7))
    finally:
        mgx_numba.unregister_custom_op(DOMAIN, "Doubled")
    with pytest.raises(FormatError, match="unknown operator 'test.custom::Doubled'"):
        mgx_numba.load_buffer(data)


def test_a_buffer_has_the_operator_and_its_attributes() -> None:
    program = mgx_numba.parse_onnx(between_neighbours(), dim_params={"n": 3}).compile("cpu", fast_math=False)
    feeds = {"x": normal(3, 7), "s": normal(7)}
    data = mgx_numba.save_buffer(program)
    np.testing.assert_array_equal(mgx_numba.load_buffer(data).run(feeds)[0], program.run(feeds)[0])
    mgx_numba.unregister_custom_op(DOMAIN, "Bent")
    try:
        with pytest.raises(FormatError, match="unknown operator 'test.custom::Bent'"):
            mgx_numba.load_buffer(data)
    finally:
        mgx_numba.register_custom_op(DOMAIN, "Bent", scalar=bent)


def test_quantisation_leaves_them_as_they_are() -> None:
    nodes = [custom("Sums", ["x"], ["a"]), helper.make_node("MatMul", ["a", "a"], ["b"]), custom("Total", ["b"], ["y"])]
    program = mgx_numba.parse_onnx(model_of(nodes, {"x": [6, 6]}, "y"))
    x = normal(6, 6)
    mgx_numba.quantize_fp16(program)
    assert "test.custom::Sums(x) -> float_type" in str(program)
    (wanted,) = results(program, {"x": x}, "ref")
    np.testing.assert_allclose(results(program, {"x": x}, "cpu")[0], wanted, rtol=1e-2)


@pytest.mark.parametrize(
    ("nodes", "lens", "kind", "message"),
    [
        (
            [custom("Halves", ["x"], ["y", "z"], axis=1)],
            [2, 3],
            ShapeError,
            "shape rule: ValueError: axis 1 has length 3",
        ),
        ([custom("Halves", ["x"], ["y", "z"], axis=7)], [2, 4], ShapeError, "shape rule: IndexError"),
        ([custom("Halves", ["x", "x"], ["y", "z"])], [2, 4], ShapeError, "got 2 inputs, expected 1"),
        ([custom("Halves", ["x"], ["y", "z"], side=1)], [2, 4], ParseError, "attribute 'side' is unknown.*axis"),
        ([custom("Halves", ["x"], ["y", "z"], axis=1.0)], [2, 4], ParseError, "'axis' is of kind float, expected int"),
        ([custom("Bent", ["x", ""], ["y"]), custom("Bent", ["", "x"], ["z"])], [2], MgxError, "expected 2|is missing"),
    ],
)
def test_errors_name_the_node_and_the_operator(nodes: Any, lens: Any, kind: type[MgxError], message: str) -> None:
    with pytest.raises(kind, match=f"node '(halves|bent)' .*test.custom.*{message}"):
        mgx_numba.parse_onnx(model_of(nodes, {"x": lens}, "yz"))


def test_types_that_do_not_fit_name_the_operator() -> None:
    model = model_of([custom("Bent", ["x", "x"], ["y"])], {"x": [2]}, "y", TensorProto.INT32)
    with pytest.raises(ShapeError, match="'bent' .*test.custom::Bent: 0.5 is no constant of int32_type"):
        mgx_numba.parse_onnx(model)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:1], r"its function gives float32 \[1\] as result 0, its shape rule says float32 \[2\]"),
        (lambda x: x.astype(np.float64), "its function gives float64"),
        (lambda x: (x, x), r"its function gives float32 \[2, 2\]"),
        (lambda x: x.nothing, "its function: AttributeError"),
    ],
)
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_function_is_held_to_its_rule(function: Any, message: str, target: str) -> None:
    mgx_numba.register_custom_op(DOMAIN, "Wrong", compute=function, compute_shape=lambda x: x)
    try:
        program = mgx_numba.parse_onnx(model_of([custom("Wrong", ["x"], ["y"])], {"x": [2]}, "y"))
        with pytest.raises(MgxError, match=f"test.custom::Wrong: {message}"):
            results(program, {"x": normal(2)}, target)
    finally:
        mgx_numba.unregister_custom_op(DOMAIN, "Wrong")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give scalar, or compute and compute_shape"),
        ({"scalar": bent, "compute": halves}, "give scalar, or compute"),
        ({"compute": halves}, "compute comes with compute_shape"),
        ({"scalar": bent, "cpu_kernel": sums_kernel}, "scalar with nothing else"),
        ({"scalar": lambda x, y=1: x}, "parameter 'y' is no input; attributes come after"),
        ({"scalar": lambda x, *, mode=None: x}, "attribute 'mode' has the default None, expected a bool"),
        ({"scalar": lambda x, *, mode: x}, "attribute 'mode' has the default none"),
        ({"scalar": lambda *x: x[0]}, "a fixed number of inputs"),
        ({"scalar": lambda: 1}, "at least one"),
    ],
)
def test_registrations_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        mgx_numba.register_custom_op(DOMAIN, "New", **given)
    with pytest.raises(OperatorError, match="unknown operator 'test.custom::New'"):
        mgx_numba.op("test.custom::New")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(OperatorError, match="'test.custom::Bent' is registered already"):
        mgx_numba.register_custom_op(DOMAIN, "Bent", scalar=bent)
    with pytest.raises(OperatorError, match="needs a domain and a name"):
        mgx_numba.register_custom_op("", "Bent", scalar=bent)
    with pytest.raises(OperatorError, match="unknown operator 'test.custom::Nothing'"):
        mgx_numba.unregister_custom_op(DOMAIN, "Nothing")


def test_its_domain_need_not_be_imported() -> None:
    model = between_neighbours()
    del model.opset_import[1:]
    with pytest.warns(UserWarning, match="'bent' .*: its domain 'test.custom' is not imported"):
        mgx_numba.parse_onnx(model)


def test_the_page_of_the_documentation_runs() -> None:
    page = (ROOT / "docs" / "custom-operators.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec("\n".join(blocks), {})
