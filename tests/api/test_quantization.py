"""``quantize_*`` and the equivalent options: in place, types kept, results near float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.errors import OptionError, ParameterError

from .test_guides import small_model

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
REF = mgx_numba.get_target("ref")


def model() -> mgx_numba.program:
    return mgx_numba.parse_onnx(small_model(), use_debug_symbols=True)


def result(p: mgx_numba.program, target: str = "ref") -> np.ndarray:
    return np.asarray((p if p.is_compiled() else p.clone().compile(target)).run({"input": X})[0])


EXPECTED = result(model())


def near(p: mgx_numba.program, bound: float, target: str = "ref") -> None:
    found = result(p, target)
    assert found.dtype == np.float32 and np.abs(found - EXPECTED).max() <= bound * np.abs(EXPECTED).max()
    assert not np.array_equal(found, EXPECTED) or target != "ref"


CASES: dict[str, tuple[Any, float]] = {
    "fp16": (mgx_numba.quantize_fp16, 2e-3),
    "bf16": (mgx_numba.quantize_bf16, 1e-2),
    "int8": (lambda p: mgx_numba.quantize_int8(p, REF, [{"input": X}]), 2e-2),
    "fp8": (lambda p: mgx_numba.quantize_fp8(p, REF, [{"input": X}]), 1e-1),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_in_place_and_near(kind: str, target: str) -> None:
    function, bound = CASES[kind]
    p = model()
    shapes = p.get_parameter_shapes(), p.get_output_shapes()
    function(p)
    assert (p.get_parameter_shapes(), p.get_output_shapes()) == shapes
    near(p, bound, target)


@pytest.mark.parametrize("kind", CASES)
def test_options_do_the_same(kind: str) -> None:
    function, _ = CASES[kind]
    p, compiled, optimized = model(), model(), model()
    function(p)
    options = {f"use_{kind}": True, "calibration": [{"input": X}]}
    compiled.compile(REF, options)
    optimized = mgx_numba.optimize(optimized, {"level": 0, **options})
    for other in (compiled, optimized):
        np.testing.assert_allclose(result(other), result(p), rtol=1e-6, atol=1e-6)  # optimize calibrates on the CPU
    assert compiled.clone() == p and model().compile(REF, {f"use_{kind}": False}) != p


def test_a_compiled_program_is_compiled_again() -> None:
    p = model().compile(REF, fast_math=False)
    mgx_numba.quantize_bf16(p)
    near(p, 1e-2)
    assert p.compile_options is not None and not p.compile_options.fast_math


def test_four_bit_weights() -> None:
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(1)
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[3, 64]))
    w = rng.standard_normal((64, 32)).astype(np.float32)
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [x, main.add_literal(w)])])
    values = {"x": rng.standard_normal((3, 64)).astype(np.float32)}
    mgx_numba.quantize_int4_weights(p)
    assert "unpack_int4" in str(p)
    expected = values["x"] @ w
    for target in ("ref", "cpu"):
        found = np.asarray(p.clone().compile(target).run(values)[0])
        assert np.linalg.norm(found - expected) < 0.15 * np.linalg.norm(expected)


def test_what_became_of_each_layer_is_told() -> None:
    p = model()
    assert p.quantization_choices() == []
    assert mgx_numba.quantize_int8(p, REF, [{"input": X}], ins_names=["*"], observer="entropy") is p
    choices = p.quantization_choices()
    assert [c.choice for c in choices] == ["int8", "int8"]
    assert all("scale" in str(c) for c in choices)


def test_without_calibration_ranges_are_made_up_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="no calibration data"):
        mgx_numba.quantize_int8(model(), REF)


def test_batches_of_programs_without_layers_to_quantise_are_checked_too() -> None:
    p = mgx_numba.program()
    module = p.get_main_module()
    x = module.add_parameter("x", mgx_numba.shape(lens=[2, 3]))
    module.add_return([module.add_instruction(mgx_numba.op("relu"), [x])])
    for run in (mgx_numba.calibrate, mgx_numba.quantize_int8):
        with pytest.raises(ParameterError, match="images"):
            run(p, REF, [{"images": np.zeros((2, 3), np.float32)}])
    assert mgx_numba.calibrate(p, REF, [{"x": np.zeros((2, 3), np.float32)}] * 2).batches == 2


def test_guides_give_the_calibration_first_and_take_what_is_returned() -> None:
    calibration = [{"input": mgx_numba.argument(X)}]
    for quantize in (mgx_numba.quantize_int8, mgx_numba.quantize_fp8):
        given, named = model(), model()
        found = quantize(given, calibration)
        assert found is given and str(found) == str(quantize(named, mgx_numba.get_target("cpu"), calibration))
    for quantize in (mgx_numba.quantize_fp16, mgx_numba.quantize_bf16, mgx_numba.quantize_int4_weights):
        p = model()
        assert quantize(p) is p
        p = model().compile(REF)
        assert quantize(p) is p and p.is_compiled()


def test_wrong_arguments() -> None:
    with pytest.raises(OptionError, match="ins_names: 'cnvolution' names no operator"):
        mgx_numba.quantize_fp16(model(), ["cnvolution"])
    with pytest.raises(OptionError, match="unknown observer 'best'"):
        mgx_numba.quantize_int8(model(), REF, observer="best")
    with pytest.raises(OptionError, match="calibration needs a target"):
        mgx_numba.quantize_int8(model(), "ref")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="Parameter not found: input"):
        mgx_numba.quantize_int8(model(), REF, [{"inptu": X}])
    for given, told in ((None, "None"), ({"input": X}, "one mapping"), (3, "3"), ("input", "'input'")):
        with pytest.raises(OptionError, match=f"calibration must be a list of mappings, .*: got {told}"):
            mgx_numba.quantize_int8(model(), REF, given)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="fp16 and bf16 exclude each other"):
        model().compile(REF, use_fp16=True, use_bf16=True)
    with pytest.raises(OptionError, match="use_fp16 must be True or False"):
        model().compile(REF, use_fp16="yes")
    with pytest.raises(OptionError, match="a program is needed, got str"):
        mgx_numba.quantize_bf16("model.onnx")  # type: ignore[arg-type]


def open_program(text: str) -> mgx_numba.program:
    """Return a program of a graph whose symbols are lengths without upper bound."""
    return mgx_numba.parse_onnx(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()
    )


def test_lengths_without_bound_need_calibration_data() -> None:
    """The error named neither the input nor what was missing: a shape of 2**64 - 1 rows exceeded 2**62 bytes."""
    p = open_program("g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1., 2., 3., 4.}> { y = MatMul(x, w) }")
    for quantize in (mgx_numba.quantize_int8, mgx_numba.quantize_fp8):
        with pytest.raises(
            OptionError, match="no calibration data is given, .* length of input 'x', .* no upper bound"
        ):
            quantize(p, REF)
    with pytest.raises(OptionError, match="no calibration data is given, .* length of input 'x'"):
        mgx_numba.quantize_fp16(p, t=REF, accuracy=0.1)


def test_a_rule_matched_values_two_steps_back_whose_lengths_are_open() -> None:
    """Rules saw a value of open lengths as one without axes where only the values between had fixed lengths."""
    text = """g (int64[N] n, float[2, 2] x) => (int64[1, 1] y, float[2, 2] z) <int64[1] one = {1}>
        { r = Reshape(n, one) y = Flatten(r) z = MatMul(x, x) }"""
    found = (
        mgx_numba.quantize_fp16(open_program(text))
        .compile("ref")
        .run({"n": np.array([7]), "x": np.eye(2, dtype=np.float32)})
    )
    np.testing.assert_array_equal(np.asarray(found[0]), [[7]])


@pytest.mark.parametrize("scale", [1e-6, 3e-10])
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_weights_that_a_layer_scale_makes_subnormal_are_multiplied_in_float16(target: str, scale: float) -> None:
    """ConvNeXt's scales of 1e-6, which simplification multiplies into weights, kept these products in float32."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((24, 16)) * scale).astype(np.float32)
    filters = (rng.standard_normal((8, 4, 3, 3)) * scale).astype(np.float32)

    def made() -> mgx_numba.program:
        p = mgx_numba.program()
        main = p.get_main_module()
        x = main.add_parameter("x", mgx_numba.shape(type="float", lens=(6, 24)))
        image = main.add_parameter("image", mgx_numba.shape(type="float", lens=(1, 4, 5, 5)))
        dot = main.add_instruction(mgx_numba.op("dot"), [x, main.add_literal(weights)])
        conv = main.add_instruction(mgx_numba.op("convolution", padding=[1, 1]), [image, main.add_literal(filters)])
        main.add_return([dot, conv])
        return p

    inputs = {
        "x": rng.standard_normal((6, 24)).astype(np.float32),
        "image": rng.standard_normal((1, 4, 5, 5)).astype(np.float32),
    }
    exact, p = made(), made()
    mgx_numba.quantize_fp16(p)
    text = str(p)
    assert "half_type" in next(line for line in text.splitlines() if "= dot(" in line)
    assert "half_type" in next(line for line in text.splitlines() if "convolution" in line)
    exact.compile("ref")
    p.compile(target)
    for got, wanted in zip(p.run(inputs), exact.run(inputs)):
        got, wanted = np.asarray(got), np.asarray(wanted)
        assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()


def test_weights_that_are_alike_for_all_channels_are_quantised() -> None:
    """The mean shift of results had one channel, and ShuffleNet was not quantised."""
    p, rng = mgx_numba.program(), np.random.default_rng(0)
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=(3, 8)))
    image = main.add_parameter("image", mgx_numba.shape(type="float", lens=(1, 4, 5, 5)))

    def repeated(given: tuple[int, ...], *lens: int) -> Any:
        one = main.add_literal(rng.standard_normal(given).astype(np.float32))
        return main.add_instruction(mgx_numba.op("multibroadcast", out_lens=lens), [one])

    dot = main.add_instruction(mgx_numba.op("dot"), [x, repeated((8, 1), 8, 6)])
    conv = main.add_instruction(
        mgx_numba.op("convolution", padding=[1, 1]), [image, repeated((1, 4, 3, 3), 7, 4, 3, 3)]
    )
    main.add_return([dot, conv])
    inputs = {"x": rng.standard_normal((3, 8)), "image": rng.standard_normal((1, 4, 5, 5))}
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    exact = p.clone().compile("ref").run(inputs)
    mgx_numba.quantize_int8(p, REF, [inputs])
    for target in ("ref", "cpu"):
        for got, wanted in zip(p.clone().compile(target).run(inputs), exact):
            assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 0.02 * np.abs(np.asarray(wanted)).max()
