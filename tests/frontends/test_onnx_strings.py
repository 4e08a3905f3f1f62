"""Strings as inputs, outputs and constants, against ONNX Runtime; their form in programs and files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx
from mgx_numba.errors import ParameterError, ParseError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.ops.text import full_match

from ..values import normal
from .support import make_model, single

STRING, INT64, FLOAT, BOOL = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
ML = "ai.onnx.ml"


def texts(*lens: int, seed: int = 0, words: Sequence[str] = ("", "a", "B", "Mon day", "ärger", "x,y,,z")) -> np.ndarray:
    """Random words."""
    chosen = np.random.default_rng(seed).integers(0, len(words), lens)
    return np.array(words, object)[chosen] if lens else np.array(words[int(chosen)], object)


def results(model: onnx.ModelProto, feeds: dict[str, np.ndarray], target: str) -> list[np.ndarray]:
    """Results of a compiled program, as plain arrays."""
    program = migraphx.parse_onnx(model).compile(target, **({"num_threads": 1} if target == "cpu" else {}))
    return [np.asarray(r) for r in program.run(feeds)]


def same_as_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Both targets give ONNX Runtime's results, lengths and types included."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model.ir_version = min(model.ir_version, 10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    for target in ("ref", "cpu"):
        for found, right in zip(results(model, feeds, target), wanted, strict=True):
            assert (found.shape, found.dtype) == (right.shape, right.dtype)
            np.testing.assert_array_equal(found, right)


def ml_single(op_type: str, x: np.ndarray, output: int, version: int = 4, **attributes: Any) -> Any:
    model, feeds = single(op_type, [x], outputs=(output,), domain=ML, **attributes)
    model.opset_import.append(helper.make_opsetid(ML, version))
    return model, feeds


@pytest.mark.parametrize(
    "lens", [((3, 2), (3, 2)), ((3, 1), (4,)), ((), (2,)), ((), (1,)), ((1,), ()), ((), ()), ((0, 2), (2,))]
)
def test_concat_broadcasts(lens: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    model, feeds = single("StringConcat", [texts(*lens[0]), texts(*lens[1], seed=1)], opset=20, outputs=(STRING,))
    same_as_onnxruntime(model, feeds)


@pytest.mark.parametrize("lens", [(4, 3), (5,)])
@pytest.mark.parametrize("attributes", [{}, {"delimiter": ","}, {"delimiter": ",", "maxsplit": 1}])
def test_split(lens: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x = texts(*lens, words=("a", "B", " Mon  day", "x,y,,z"))  # of "" ONNX Runtime says that it has no part
    same_as_onnxruntime(*single("StringSplit", [x], opset=20, outputs=(STRING, INT64), **attributes))


@pytest.mark.parametrize("axis", [0, -1])
def test_one_hot(axis: int) -> None:
    inputs = [np.array([[1, 0, 2], [-1, 5, 1]]), np.array([3]), np.array(["no", "certainly"], object)]
    same_as_onnxruntime(*single("OneHot", inputs, outputs=(STRING,), constant=(1,), axis=axis))


def test_split_of_a_string_without_axes() -> None:
    model, feeds = single("StringSplit", [np.array("a b c", object)], opset=20, outputs=(STRING, INT64))
    for target in ("ref", "cpu"):
        parts, count = results(model, feeds, target)
        assert parts.tolist() == ["a", "b", "c"] and count.shape == () and count == 3


@pytest.fixture(params=["re2", "re"])
def expressions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Match regular expressions by RE2, or by Python's ``re`` as where ``google-re2`` is not installed."""
    if request.param == "re2":
        pytest.importorskip("re2")
    else:
        monkeypatch.setitem(sys.modules, "re2", None)
    full_match.cache_clear()
    yield str(request.param)
    full_match.cache_clear()


PATTERNS = ["a|B", "[a-z]*", ".*day", "", r"\w+", r"(\W|^)[\w.\-]{0,25}(a|b)\b", "(?:[a-z]{2,3}){1,2}"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_expressions(pattern: str, expressions: str) -> None:
    model, feeds = single("RegexFullMatch", [texts(7)], opset=20, outputs=(BOOL,), pattern=pattern)
    same_as_onnxruntime(model, feeds)


EXPONENTIAL = ["(a+)+b", "(a|a)*b", "a*a*b", "(a?){30}a{30}", "(|a)+b", "((a{0,99}){0,99}){0,99}b"]


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_expressions_that_python_matches_in_more_than_linear_time(pattern: str, expressions: str) -> None:
    """The time of ``(a+)+b`` doubled with each character, so that 40 took a day."""
    model, feeds = single(
        "RegexFullMatch", [np.array(["a" * 5000, "ab"], object)], opset=20, outputs=(BOOL,), pattern=pattern
    )
    if expressions == "re":
        with pytest.raises(ShapeError, match="install google-re2"):
            parse_onnx(model)
    elif pattern.count("99") < 3:  # RE2 refuses so many repetitions, too
        same_as_onnxruntime(model, feeds)


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(?<!a)b", "("])
def test_expressions_that_re2_does_not_know_are_refused(pattern: str, expressions: str) -> None:
    model, _ = single("RegexFullMatch", [texts(7)], opset=20, outputs=(BOOL,), pattern=pattern)
    with pytest.raises(ShapeError, match="pattern"):
        parse_onnx(model)


@pytest.mark.parametrize("lens", [(6,), (1, 6)])
@pytest.mark.parametrize("action", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalizer(lens: tuple[int, ...], action: str, sensitive: int) -> None:
    words = ("Monday", "monday", "TUESDAY", "x", "é")
    given = {"case_change_action": action, "is_case_sensitive": sensitive, "locale": "C.UTF-8"}
    x = texts(*lens, words=words)
    model, feeds = single("StringNormalizer", [x], opset=10, outputs=(STRING,), stopwords=["monday", "X"], **given)
    same_as_onnxruntime(model, feeds)


def test_normalizer_leaves_one_empty_string() -> None:
    x, given = np.array([["a", "a"]], object), {"stopwords": ["a"], "locale": "C.UTF-8"}
    same_as_onnxruntime(*single("StringNormalizer", [x], opset=10, outputs=(STRING,), **given))


@pytest.mark.parametrize(
    ("op_type", "others", "attributes"),
    [
        ("Identity", [], {}),
        ("Transpose", [], {"perm": [1, 0]}),
        ("Reshape", [np.array([3, -1])], {}),
        ("Gather", [np.array([[1, 0], [-1, 1]])], {"axis": 1}),
        ("Slice", [np.array([2]), np.array([-9]), np.array([0]), np.array([-1])], {}),
        ("Concat", [texts(2, 3, seed=5)], {"axis": 0}),
        ("Expand", [np.array([2, 2, 3])], {}),
        ("Tile", [np.array([2, 2])], {}),
        ("Flatten", [], {}),
        ("Unsqueeze", [np.array([1])], {}),
        ("GatherND", [np.array([[1], [0]])], {}),
        ("GatherElements", [np.array([[1, 0, 1]])], {}),
        ("ScatterElements", [np.array([[1, 0, 1]]), texts(1, 3, seed=3)], {}),
        ("Pad", [np.array([0, 1, 1, 0]), np.array("pad", object)], {}),
        ("Compress", [np.array([False, True])], {"axis": 0}),
        ("DepthToSpace", [], {}),
        ("ReverseSequence", [np.array([2, 1, 2])], {}),
    ],
)  # fmt: skip
def test_operators_that_move_strings(op_type: str, others: list[np.ndarray], attributes: dict[str, Any]) -> None:
    x = texts(2, 3)
    if op_type == "DepthToSpace":
        x, attributes = texts(1, 4, 1, 2), {"blocksize": 2}
    model, feeds = single(op_type, [x, *others], outputs=(STRING,), **attributes)
    reference = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    for target in ("ref", "cpu"):
        (found,) = results(model, feeds, target)
        np.testing.assert_array_equal(found, reference[0])
        assert found.shape == reference[0].shape


def test_equal_and_where() -> None:
    a, b = texts(3, 4), texts(4, seed=2)
    nodes = [helper.make_node("Equal", ["a", "b"], ["c"]), helper.make_node("Where", ["c", "a", "b"], ["y"])]
    same_as_onnxruntime(make_model(nodes, {"a": a, "b": b}, {"c": BOOL, "y": STRING}, opset=19), {"a": a, "b": b})


def test_numbers_as_strings_and_back() -> None:
    x = np.array([1.5, -0.0, 1e20, 1e-7, 123456789.0, np.nan, np.inf, -np.inf, 1 / 3], np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["s"], to=STRING),
        helper.make_node("Cast", ["s"], ["y"], to=FLOAT),
        helper.make_node("Cast", ["i"], ["t"], to=STRING),
        helper.make_node("Cast", ["t"], ["j"], to=INT64),
        helper.make_node("Cast", ["d"], ["u"], to=STRING),
    ]
    feeds = {"x": x, "i": np.array([[0, -7, 2**62]]), "d": np.array([1 / 3, 1e300])}
    model = make_model(nodes, feeds, {"s": STRING, "y": FLOAT, "t": STRING, "j": INT64, "u": STRING}, opset=19)
    same_as_onnxruntime(model, feeds)


def test_what_is_no_number_is_an_error() -> None:
    model, feeds = single("Cast", [np.array(["1", "one"], object)], outputs=(FLOAT,), to=FLOAT)
    with pytest.raises(ShapeError, match="a string is no number of float_type.*'one'"):
        results(model, feeds, "ref")


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_constants_and_lengths_known_at_run_time(target: str) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value_strings=["p", "q"]),
        helper.make_node("Constant", [], ["d"], value_string="-"),
        helper.make_node("StringConcat", ["x", "d"], ["xd"]),
        helper.make_node("StringConcat", ["xd", "c"], ["y"]),
    ]
    info = [helper.make_tensor_value_info("x", STRING, ["n", 1])]
    out = [helper.make_tensor_value_info("y", STRING, None)]
    model = helper.make_model(helper.make_graph(nodes, "g", info, out), opset_imports=[helper.make_opsetid("", 20)])
    program = migraphx.parse_onnx(model).compile(target)
    for n in (3, 0, 1):
        (y,) = program.run({"x": texts(n, 1)})
        assert y.shape == (n, 2) and y.tolist() == [f"{t}-{e}" for t in texts(n, 1).ravel() for e in "pq"]


@pytest.mark.parametrize(
    ("op_type", "x", "output", "attributes"),
    [
        ("LabelEncoder", texts(5), INT64, {"keys_strings": ["a", "B"], "values_int64s": [4, 5], "default_int64": 9}),
        ("LabelEncoder", texts(2, 5), FLOAT, {"keys_strings": ["a", "B"], "values_floats": [4.0, 5.0]}),
        ("LabelEncoder", np.arange(5), STRING, {"keys_int64s": [3, 1], "values_strings": ["x", "y"]}),
        ("LabelEncoder", normal(3), STRING, {"keys_floats": [3.0], "values_strings": ["x"], "default_string": "no"}),
        ("LabelEncoder", texts(5), STRING, {"keys_strings": ["a", "B"], "values_strings": ["B", "a"]}),
        ("OneHotEncoder", texts(5), FLOAT, {"cats_strings": ["a", "", "B"], "zeros": 1}),
        ("CategoryMapper", texts(5), INT64, {"cats_strings": ["a", "B"], "cats_int64s": [7, 8], "default_int64": -3}),
        ("CategoryMapper", np.arange(9), STRING, {"cats_strings": ["a", "B"], "cats_int64s": [7, 8]}),
    ],
)  # fmt: skip
def test_encoders(op_type: str, x: np.ndarray, output: int, attributes: dict[str, Any]) -> None:
    same_as_onnxruntime(*ml_single(op_type, x, output, **attributes))


def test_encoders_with_tensors_as_attributes() -> None:
    keys, values = np.array(["a", "B"], object), np.array([1.5, 2.5])
    tensors = {"keys_tensor": keys, "values_tensor": values, "default_tensor": np.array([0.5])}
    given = {name: numpy_helper.from_array(value, name) for name, value in tensors.items()}
    model, feeds = ml_single("LabelEncoder", texts(5), TensorProto.DOUBLE, **given)
    for target in ("ref", "cpu"):
        (y,) = results(model, feeds, target)
        np.testing.assert_array_equal(y, [{"a": 1.5, "B": 2.5}.get(t, 0.5) for t in texts(5)])


def test_class_labels() -> None:
    given = {
        "classlabels_strings": ["low", "mid", "high"],
        "coefficients": normal(12).tolist(),
        "intercepts": [0.0] * 3,
    }
    node = helper.make_node("LinearClassifier", ["x"], ["label", "score"], domain=ML, **given)
    x = normal(5, 4, seed=1)
    model = make_model([node], {"x": x}, {"label": STRING, "score": FLOAT})
    model.opset_import.append(helper.make_opsetid(ML, 1))
    label, score = results(model, {"x": x}, "cpu")
    assert label.tolist() == [given["classlabels_strings"][k] for k in score.argmax(1)]


def test_tf_idf_of_strings() -> None:
    given = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 2, 3, 4], "pool_strings": ["a", "B", "", "a", "B", "B", "B"],
    }  # fmt: skip
    model, feeds = single("TfIdfVectorizer", [texts(3, 12)], opset=9, **given)
    same_as_onnxruntime(model, feeds)


def test_inputs_may_be_bytes_and_fixed_width_and_lists() -> None:
    model, _ = single("Identity", [texts(2)], outputs=(STRING,))
    program = migraphx.parse_onnx(model).compile("ref")
    for given in (
        ["ä", "b"],
        np.array(["ä", "b"]),
        np.array(["ä".encode(), b"b"]),
        np.array(["ä".encode(), "b"], object),
    ):
        assert program.run({"x0": given})[0].tolist() == ["ä", "b"]
    with pytest.raises(ParameterError, match=r"element \[1\] is no UTF-8 text"):
        program.run({"x0": np.array([b"a", b"\xff"], object)})
    with pytest.raises(ParameterError, match="Incorrect shape .*string_type, .3.,"):
        program.run({"x0": ["a", "b", "c"]})
    with pytest.raises(ParameterError, match="Incorrect type .*float_type.*string_type"):
        program.run({"x0": np.zeros(2, np.float32)})


def test_constants_are_checked() -> None:
    model, _ = single("Identity", [texts(2)], constant=[0], outputs=(STRING,))
    model.graph.initializer[0].string_data[0] = b"\xff"
    with pytest.raises(ParseError, match=r"'x0'.*element \[0\] is no UTF-8 text"):
        parse_onnx(model)
    del model.graph.initializer[0].string_data[1]
    with pytest.raises(ParseError, match="has 1 values in string_data, expected 2"):
        parse_onnx(model)


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_files_and_text(format: str, tmp_path: Path) -> None:
    model, feeds = single(
        "StringConcat", [texts(2, 1), np.array(["é\n", '"'], object)], constant=[1], opset=20, outputs=(STRING,)
    )
    program = migraphx.parse_onnx(model)
    assert r'@literal{"é\n", "\""}' in str(program) and "string_type, {2, 1}" in str(program)
    program.compile("cpu")
    assert "no target has kernels for string_type" in str(program)
    program.save(tmp_path / "text.mxr", format=format)
    loaded = migraphx.load(tmp_path / "text.mxr", format=format)
    for found, wanted in zip(loaded.run(feeds), program.run(feeds), strict=True):
        assert found.tolist() == wanted.tolist()
    assert loaded.get_parameter_shapes()["x0"].type_string() == "string_type"


def test_arguments_of_strings(tmp_path: Path) -> None:
    given = migraphx.argument(np.array([["a", "b"]]))
    assert given.get_shape().type_string() == "string_type" and given.tolist() == ["a", "b"]
    migraphx.argument.save(given, tmp_path / "text")
    assert migraphx.argument.load(tmp_path / "text") == given
    made = migraphx.generate_argument(migraphx.shape(type="string_type", lens=[2, 3]), 1)
    assert made.shape == (2, 3) and all(type(t) is str for t in made.tolist())
    assert migraphx.argument(migraphx.shape(type="string_type", lens=[2])).tolist() == ["", ""]


def test_a_string_with_a_fraction_is_truncated_to_an_integer() -> None:
    """It was an error; ONNX's text says that "100.5" may yield 100."""
    model, feeds = single(
        "Cast", [np.array(["1.5", "-7.9", " 3 ", str(2**53 + 1)], object)], outputs=(INT64,), to=INT64
    )
    same_as_onnxruntime(model, feeds)
