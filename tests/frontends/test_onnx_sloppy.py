"""Files that violate ONNX slightly, but have an unambiguous meaning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mgx_numba.errors import ParseError
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .support import FLOAT, INT64, assert_like_onnxruntime, ints, make_model, run, single

X = normal(2, 3)
IMAGE = normal(1, 4, 3, 3)


class Sloppy(NamedTuple):
    """A sloppy file; ``proper`` says the same as ONNX wants it (``None`` if ONNX Runtime takes this one)."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    message: str
    proper: onnx.ModelProto | None = None


def not_imported() -> Sloppy:
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", name="act")
    model = make_model([node], {"x": X}, {"y": FLOAT})
    return Sloppy(model, {"x": X}, "node 'act' .*: its domain 'com.microsoft' is not imported")


def ml_not_imported() -> Sloppy:
    model, feeds = single("Scaler", [X], domain="ai.onnx.ml", offset=[1.0], scale=[2.0], name="scale")
    return Sloppy(model, feeds, "node 'scale' .*: its domain 'ai.onnx.ml' is not imported")


def in_the_default_domain() -> Sloppy:
    model, feeds = single("FastGelu", [X], name="act")
    proper, _ = single("FastGelu", [X], name="act", domain="com.microsoft")
    return Sloppy(model, feeds, "node 'act' .*: its domain 'com.microsoft' is not given", proper)


def of_a_later_operator_set() -> Sloppy:
    model, feeds = single("Gelu", [X], opset=18, name="act")
    message = "'act' .*: the operator exists from operator set 20 on"
    return Sloppy(model, feeds, message, single("Gelu", [X], opset=20)[0])


def of_a_type_that_later_operator_sets_allow() -> Sloppy:
    x = np.arange(-3, 3, dtype=np.int32).reshape(2, 3)
    model, feeds = single("Relu", [x], opset=13, outputs=(TensorProto.INT32,), name="act")
    message = r"'act' .*: input 0 \(X\) is of type tensor\(int32\), which operator set 13 does not allow"
    return Sloppy(model, feeds, message, single("Relu", [x], opset=14, outputs=(TensorProto.INT32,))[0])


def an_integer_for_a_float() -> Sloppy:
    model, feeds = single("LeakyRelu", [X], alpha=2, name="act")
    message = "node 'act' .*attribute 'alpha' is of kind int, taken for float"
    return Sloppy(model, feeds, message, single("LeakyRelu", [X], alpha=2.0)[0])


def integer_limits_of_clip() -> Sloppy:
    model, feeds = single("Clip", [X], opset=6, min=0, max=1, name="clip")
    message = "node 'clip' .*attribute 'min' is of kind int, taken for float"
    return Sloppy(model, feeds, message, single("Clip", [X], opset=6, min=0.0, max=1.0)[0])


def integers_for_floats() -> Sloppy:
    model, feeds = single("Upsample", [IMAGE], opset=7, scales=[1, 1, 2, 2], name="up")
    message = "node 'up' .*attribute 'scales' is of kind ints, taken for floats"
    return Sloppy(model, feeds, message, single("Upsample", [IMAGE], opset=7, scales=[1.0, 1.0, 2.0, 2.0])[0])


def another_result_type_than_declared() -> Sloppy:
    model, feeds = single("Relu", [X], outputs=(INT64,))
    message = r"output 'y0' is declared as tensor\(int64\), its node gives tensor\(float\)"
    return Sloppy(model, feeds, message, single("Relu", [X])[0])


def _pad(type: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return single("Pad", [X, np.array([0, 1, 2, 0], type)], constant=[1], name="pad")


def int32_pads() -> Sloppy:
    model, feeds = _pad(np.int32)
    message = r"'pad' .*: input 1 \(pads\) is of type tensor\(int32\), taken for tensor\(int64\)"
    return Sloppy(model, feeds, message, _pad(np.int64)[0])


def an_int32_shape_that_a_run_gives() -> Sloppy:
    model, feeds = single("Reshape", [X, np.array([3, -1], np.int32)], name="r")
    message = r"'r' .*: input 1 \(shape\) is of type tensor\(int32\), taken for tensor\(int64\)"
    proper, _ = single("Reshape", [X, ints(3, -1)])
    return Sloppy(model, feeds, message, proper)


def _groups(opset: int) -> onnx.ModelProto:
    inputs = [IMAGE, *(np.linspace(1, 2, 4, dtype=np.float32) for _ in range(2))]
    return single("GroupNormalization", inputs, opset=opset, constant=[1, 2], num_groups=2, name="norm")[0]


def scales_of_each_channel() -> Sloppy:
    return Sloppy(_groups(18), {"x0": IMAGE}, "'norm' .*: scale and bias are given per channel", _groups(21))


def an_undefined_type_of_statistics() -> Sloppy:
    model, feeds = single("LayerNormalization", [X, np.ones(3, np.float32)], stash_type=0, name="norm")
    return Sloppy(model, feeds, r"'norm' .*: stash_type is 0 \(undefined\), taken for 1 \(float32\)")


def _of_lengths(*dims: int) -> onnx.ModelProto:
    model, _ = single("Relu", [X])
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, dims):
        dim.dim_value = length
    return model


def a_negative_length() -> Sloppy:
    return Sloppy(_of_lengths(-1, 3), {"x0": X}, "input 'x0': axis 0 has length -1, taken for an unknown one")


def a_length_of_zero() -> Sloppy:
    message = "input 'x0': axis 0 has length 0, taken for an unknown one"
    return Sloppy(_of_lengths(0, 3), {"x0": X}, message, single("Relu", [X])[0])


def _resize(opset: int, roi: np.ndarray | None) -> onnx.ModelProto:
    inputs = [IMAGE, roi, np.array([1, 1, 2, 2], np.float32)]
    return single("Resize", inputs, opset=opset, constant=[2] if roi is None else [1, 2], name="resize")[0]


def an_absent_roi() -> Sloppy:
    message = r"'resize' .*: input 1 \(roi\) is missing, which may be from operator set \d+ on"
    return Sloppy(_resize(11, None), {"x0": IMAGE}, message, _resize(11, np.zeros(0, np.float32)))


def unsorted_nodes() -> Sloppy:
    nodes = [helper.make_node("Neg", ["r"], ["y"]), helper.make_node("Relu", ["x"], ["r"])]
    return Sloppy(make_model(nodes, {"x": X}, {"y": FLOAT}), {"x": X}, "graph 'graph' lists its nodes unsorted")


RULES = [
    not_imported, ml_not_imported, in_the_default_domain, of_a_later_operator_set,
    of_a_type_that_later_operator_sets_allow, an_integer_for_a_float, integer_limits_of_clip, integers_for_floats,
    another_result_type_than_declared, int32_pads, an_int32_shape_that_a_run_gives, scales_of_each_channel,
    an_undefined_type_of_statistics,
    a_negative_length, a_length_of_zero, an_absent_roi, unsorted_nodes,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_is_accepted_with_one_warning(rule: Callable[[], Sloppy]) -> None:
    sloppy = rule()
    with pytest.warns(UserWarning, match=sloppy.message) as told:
        parse_onnx(sloppy.model)
    texts = [str(w.message) for w in told]
    assert len(texts) == len(set(texts)) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_means_what_onnxruntime_makes_of_it(rule: Callable[[], Sloppy]) -> None:
    """Compare with ONNX Runtime on the file itself, or, if it refuses the file, on an equivalent valid file."""
    sloppy = rule()
    if sloppy.proper is None:
        assert_like_onnxruntime(sloppy.model, sloppy.feeds)
        return
    types = {i.name: i.type.tensor_type.elem_type for i in sloppy.proper.graph.input}
    feeds = {n: a.astype(helper.tensor_dtype_to_np_dtype(types[n])) for n, a in sloppy.feeds.items()}
    assert_like_onnxruntime(sloppy.proper, feeds)
    for a, b in zip(run(sloppy.model, sloppy.feeds), run(sloppy.proper, feeds), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rule", [r for r in RULES if r is not a_length_of_zero], ids=lambda rule: rule.__name__)
def test_is_refused_if_everything_is_to_be_as_onnx_wants_it(rule: Callable[[], Sloppy]) -> None:
    sloppy = rule()
    with pytest.raises(ParseError, match=sloppy.message), warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_onnx(sloppy.model, strict=True)


def test_proper_files_are_read_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for proper in (rule().proper for rule in RULES):
            if proper is not None:
                parse_onnx(proper, strict=True)


def test_nodes_of_unknown_lengths_are_refused_at_once_and_warned_of_once() -> None:
    """A node that waits for lengths is read again for each set of them."""
    model, _ = single("LeakyRelu", [X], alpha=2, name="act")
    reshape = helper.make_node("Reshape", ["y0", "lens"], ["z"], name="r")
    model.graph.node.append(reshape)
    model.graph.input.append(helper.make_tensor_value_info("lens", TensorProto.INT32, ["n"]))
    model.graph.output[0].name = "z"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    with pytest.raises(ParseError, match="attribute 'alpha' is of kind int"):
        parse_onnx(model, strict=True)
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("alpha", 2.0))
    with pytest.raises(ParseError, match=r"'r' .*is of type tensor\(int32\)"):
        parse_onnx(model, strict=True)
    with pytest.warns(UserWarning, match=r"tensor\(int32\)") as told:
        program = parse_onnx(model)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "the program is not compiled")
        from .onnx_cases import run_program

        for rows in (2, 4):
            (z,) = run_program(program, {"x0": normal(rows, 3), "lens": np.array([3, rows], np.int32)})
            assert z.shape == (3, rows)


def test_an_operator_of_another_domain_needs_its_import() -> None:
    model = make_model([helper.make_node("QuickGelu", ["x"], ["y"], domain="com.example")], {"x": X}, {"y": FLOAT})
    with pytest.raises(ParseError, match="its domain 'com.example' is not imported"):
        run(model, {"x": X})


def test_a_float_where_an_integer_is_meant() -> None:
    model = make_model([helper.make_node("Softmax", ["x"], ["y"], axis=1.0)], {"x": X}, {"y": FLOAT})
    with pytest.raises(ParseError, match="attribute 'axis' is of kind float, expected int"):
        run(model, {"x": X})


@pytest.mark.parametrize("rows", [2, "rows"])
def test_an_unknown_operator_is_refused_whatever_is_known_of_lengths(rows: int | str) -> None:
    model, _ = single("Mystery", [X])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x0", FLOAT, [rows, 3]))
    with pytest.raises(ParseError, match="unknown operator 'Mystery'"):
        parse_onnx(model)
