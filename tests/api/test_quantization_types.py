"""Quantisation of float16, bfloat16 and double models to 8 bits, and calls that quantise nothing."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mgx_numba as migraphx

REF = migraphx.get_target("ref")
TYPES = {"half": np.float16, "bf16": ml_dtypes.bfloat16, "double": np.float64}
X = np.random.default_rng(0).standard_normal((2, 8, 6, 6))


def network(type: str) -> migraphx.program:
    """Return a model with a convolution, an activation and a product, all in the same type."""
    rng = np.random.default_rng(1)
    p = migraphx.program()
    main = p.get_main_module()

    def constant(*lens: int) -> Any:
        shape = migraphx.shape(type=type, lens=lens)
        return main.add_literal(migraphx.create_argument(shape, rng.normal(0, 0.2, lens).ravel()))

    x = main.add_parameter("x", migraphx.shape(type=type, lens=list(X.shape)))
    y = main.add_instruction(migraphx.op("convolution", padding=[1, 1]), [x, constant(16, 8, 3, 3)])
    y = main.add_instruction(migraphx.op("relu"), [y])
    y = main.add_instruction(migraphx.op("reshape", dims=[2, 16 * 36]), [y])
    main.add_return([main.add_instruction(migraphx.op("dot"), [y, constant(16 * 36, 6)])])
    return p


def results(p: migraphx.program, x: np.ndarray, target: str) -> np.ndarray:
    return np.asarray(p.clone().compile(target).run({"x": x})[0])


@pytest.mark.parametrize("quantise", [migraphx.quantize_int8, migraphx.quantize_fp8])
@pytest.mark.parametrize("type", TYPES)
def test_layers_of_other_types_than_float32_are_quantised(type: str, quantise: Any) -> None:
    """Such layers used to stay unquantised without a warning."""
    p, x = network(type), X.astype(TYPES[type])
    quantise(p, REF, [{"x": x}])
    left = [c.choice for c in p.quantization_choices() if c.choice.startswith("as it is")]
    few = ["as it is: fewer than 16 inputs for each channel"] if quantise is migraphx.quantize_fp8 else []
    assert left == few
    assert str(p).count("dequantizelinear") == 4 - 2 * len(few)
    exact = results(network(type), x, "ref").astype(np.float64)
    for target in ("ref", "cpu"):
        found = results(p, x, target)
        assert found.dtype == x.dtype
        assert np.linalg.norm(found.astype(np.float64) - exact) < 0.1 * np.linalg.norm(exact)
    if quantise is migraphx.quantize_int8:
        text = str(p.clone().compile("cpu"))
        assert "quant_convolution" in text
        assert "quant_dot" in text


@pytest.mark.parametrize("truncate", [migraphx.quantize_fp16, migraphx.quantize_bf16])
def test_8_bits_after_16(truncate: Any) -> None:
    """The same order as in MIGraphX's driver."""
    p, rng = network("float"), np.random.default_rng(2)
    truncate(p)
    x = rng.standard_normal(X.shape).astype(np.float32)
    migraphx.quantize_int8(p, REF, [{"x": x}])
    assert [c.choice for c in p.quantization_choices()] == ["int8", "int8"]
    exact = results(network("float"), x, "ref")
    for target in ("ref", "cpu"):
        found = results(p, x, target)
        assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.parametrize("type", TYPES)
def test_layers_that_stay_keep_their_type(type: str) -> None:
    p, x = network(type), X.astype(TYPES[type])
    before = results(p, x, "ref")
    migraphx.quantize_int8(p, REF, [{"x": x}], ins_names=["convolution"])
    dot = next(line for line in str(p).splitlines() if " dot(" in line)
    assert f"{type}_type" in dot
    p = network(type)
    with pytest.warns(UserWarning, match="quantize_int8: nothing is quantised: as it is: alone it loses"):
        migraphx.quantize_int8(p, REF, [{"x": x}], accuracy=1e-6)
    assert "float_type" not in str(p)
    np.testing.assert_array_equal(results(p, x, "ref"), before)


def test_float16_layers_are_chosen_by_an_accuracy_and_take_weights_of_4_bits() -> None:
    x = X.astype(np.float16)
    exact = results(network("half"), x, "ref").astype(np.float64)
    p = network("half")
    migraphx.quantize_int8(p, REF, [{"x": x}], accuracy="3%")
    assert [c.choice for c in p.quantization_choices()] == ["int8", "int8"]
    assert np.linalg.norm(results(p, x, "ref") - exact) < 0.03 * np.linalg.norm(exact)
    p = network("half")
    migraphx.quantize_int4_weights(p)
    assert "uint8_type" in str(p)
    found = results(p, x, "cpu")
    assert found.dtype == np.float16
    assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact)


def test_a_calibration_of_the_same_program_serves() -> None:
    p, x = network("half"), X.astype(np.float16)
    found = migraphx.calibrate(p, REF, [{"x": x}])
    migraphx.quantize_int8(p, found)
    assert [c.choice for c in p.quantization_choices()] == ["int8", "int8"]


def test_steps_of_recurrent_layers() -> None:
    rng, hidden = np.random.default_rng(0), 64
    p = migraphx.program()
    main = p.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="double", lens=[5, 2, 16]))
    w, r = (main.add_literal(rng.normal(0, 0.2, (1, 4 * hidden, n))) for n in (16, hidden))
    y = main.add_instruction(migraphx.op("lstm", hidden_size=hidden), [x, w, r])
    main.add_return([y, main.add_instruction(migraphx.op("rnn_last_hs_output"), [y])])
    feeds = {"x": rng.standard_normal((5, 2, 16))}
    exact = [np.asarray(e) for e in p.clone().compile(REF).run(feeds)]
    with pytest.warns(UserWarning, match="nothing is quantised"):
        kept = migraphx.quantize_int8(p.clone(), REF, [feeds], accuracy=1e-6)
    for found, right in zip(kept.compile(REF).run(feeds), exact, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-14)
    migraphx.quantize_int8(p, REF, [feeds])
    assert [c.choice for c in p.quantization_choices()] == ["int8", "int8"]
    for found, right in zip(p.compile("cpu").run(feeds), exact, strict=True):
        assert found.dtype == np.float64
        assert np.linalg.norm(np.asarray(found) - right) < 0.03 * np.linalg.norm(right)


def of_nothing() -> migraphx.program:
    p = migraphx.program()
    main = p.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="half", lens=[2, 3]))
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    return p


@pytest.mark.parametrize(
    ("quantise", "reason"),
    [
        (lambda p: migraphx.quantize_int8(p, REF, [{"x": np.zeros((2, 3), np.float16)}]), "int8.*has no contraction"),
        (lambda p: migraphx.quantize_fp8(p, REF, [{"x": np.zeros((2, 3), np.float16)}]), "fp8.*has no contraction"),
        (migraphx.quantize_fp16, "fp16: nothing is quantised: the program has no value of float32 or double"),
        (migraphx.quantize_bf16, "bf16: nothing is quantised: the program has no value of float32 or double"),
        (migraphx.quantize_int4_weights, "int4_weights: nothing is quantised: no contraction that is chosen has"),
        (lambda p: p.compile(REF, use_fp16=True), "fp16: nothing is quantised"),
    ],
)
def test_a_call_that_quantises_nothing_says_so_and_why(quantise: Any, reason: str) -> None:
    with pytest.warns(UserWarning, match=reason):
        quantise(of_nothing())


def test_a_call_that_quantises_something_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for quantise in (migraphx.quantize_fp16, migraphx.quantize_int4_weights):
            quantise(network("float"))
