"""Option ``accuracy`` for 16 bits: products with the largest errors stay in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.api.sensitivity import In16Bits, largest_difference, largest_error, relative_error
from mgx_numba.errors import OptionError
from tests.driver.support import drive, small_model

REF = mgx_numba.get_target("ref")
QUANTIZE = {"fp16": mgx_numba.quantize_fp16, "bf16": mgx_numba.quantize_bf16}
both = pytest.mark.parametrize("kind", list(QUANTIZE))


def network(lens: Any = (6, 24), count: int = 4) -> mgx_numba.program:
    """Return a chain of products of which the second has large results, whose sines magnify rounding errors."""
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(1)
    shape = lens if isinstance(lens, mgx_numba.shape) else mgx_numba.shape(type="float", lens=lens)
    value = main.add_parameter("x", shape)
    for number in range(count):
        weights = rng.standard_normal((24, 24)).astype(np.float32) / 5
        if number == 1:
            weights *= 12
        value = main.add_instruction(mgx_numba.op("dot"), [value, main.add_literal(weights)])
        value = main.add_instruction(mgx_numba.op("sin" if number == 1 else "tanh"), [value])
    main.add_return([value])
    return p


def batches(count: int = 4, seed: int = 0, lens: Any = (6, 24)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(lens).astype(np.float32)} for _ in range(count)]


def lost(p: mgx_numba.program, exact: mgx_numba.program, given: Any, target: str = "ref") -> float:
    a, b = p.clone().compile(target), exact.clone().compile("ref")
    results = ([[np.asarray(r) for r in q.run(inputs)] for q in (a, b)] for inputs in given)
    return max(largest_error(*pair) for pair in results)


@both
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_products_that_lose_most_stay_in_float32(kind: str, target: str) -> None:
    quantize, exact = QUANTIZE[kind], network()
    free = lost(quantize(network()), exact, batches())
    asked = free / 2
    p = quantize(network(), t=mgx_numba.get_target(target), calibration=batches(), accuracy=asked)
    choices = p.quantization_choices()
    assert [c.choice for c in choices].count(kind) in (1, 2, 3) and "alone it loses" in choices[1].choice
    assert all(0 < c.error < 0.01 for c in choices)
    assert lost(p, exact, batches(), target) <= asked
    same = quantize(network(), t=mgx_numba.get_target(target), calibration=batches(), accuracy=asked)
    assert str(same) == str(p)
    enough = quantize(network(), t=REF, calibration=batches(), accuracy=min(0.99, 3 * free))
    assert [c.choice for c in enough.quantization_choices()] == [kind] * 4
    assert str(enough) == str(quantize(network()))
    none = quantize(network(), t=REF, calibration=batches(), accuracy=1e-9)
    assert not any(c.choice == kind for c in none.quantization_choices())
    assert lost(none, exact, batches()) <= 1e-9


def test_what_a_target_rounds_besides_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the products alone met the accuracy but the compiled program did not, all products stayed in float32."""
    monkeypatch.setattr(In16Bits, "lost_as_compiled", lambda self, budget, kept: 1.0 if len(list(kept)) < 3 else 0.0)
    p = mgx_numba.quantize_bf16(network(), t=REF, calibration=batches(), accuracy=0.9)
    assert [c.choice for c in p.quantization_choices()].count("bf16") == 1


@both
def test_what_cannot_be_reached_is_said(kind: str) -> None:
    """A product of two inputs that no layer leads to, and which has 16 bits."""
    p = mgx_numba.program()
    main = p.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[6, 24]))
    weights = main.add_literal(np.random.default_rng(2).standard_normal((24, 3)).astype(np.float32))
    square = main.add_instruction(mgx_numba.op("mul"), [x, x])
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [x, weights]), square])
    before = str(p)
    with pytest.warns(UserWarning, match=rf"1 products in float32 {kind} still loses .*more than 0.01%"):
        QUANTIZE[kind](p, ["dot", "mul"], t=REF, calibration=batches(), accuracy="0.01%")
    assert str(p) == before and "as it is" in p.quantization_choices()[0].choice


@both
def test_what_is_compiled_or_saved_keeps_the_choice(kind: str, tmp_path: Path) -> None:
    quantize, exact = QUANTIZE[kind], network()
    asked = lost(quantize(network()), exact, batches()) / 2
    p = quantize(network().compile("cpu"), t=REF, calibration=batches(), accuracy=asked)
    assert p.is_compiled() and len(p.quantization_choices()) == 4
    portable = quantize(network(), t=REF, calibration=batches(), accuracy=asked)
    mgx_numba.save(portable, tmp_path / "p.mxr")
    assert str(mgx_numba.load(tmp_path / "p.mxr")) == str(portable)
    mgx_numba.save(p, tmp_path / "c.mxr")
    given = batches(1)[0]
    results = [np.asarray(q.run(given)[0]) for q in (p, mgx_numba.load(tmp_path / "c.mxr"))]
    assert np.array_equal(*results)


def test_errors_of_results_whose_squares_are_infinite_are_not_known(recwarn: pytest.WarningsRecorder) -> None:
    given = [{"x": np.full((6, 24), 1e36, np.float32)}]
    choices = mgx_numba.quantize_bf16(network(), t=REF, calibration=given, accuracy=0.9).quantization_choices()
    assert np.isnan(choices[0].error) and choices[0].choice == "bf16" and "error" not in str(choices[0])
    assert choices[3].error < 0.01
    assert not recwarn.list


def recurrent(operator: str) -> mgx_numba.program:
    p = mgx_numba.program()
    main = p.get_main_module()
    rng = np.random.default_rng(3)
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[operator]
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[5, 2, 6]))
    weights = [
        main.add_literal(rng.standard_normal(lens).astype(np.float32))
        for lens in ((1, gates * 8, 6), (1, gates * 8, 8))
    ]
    layer = main.add_instruction(mgx_numba.op(operator, hidden_size=8), [x, *weights])
    last = main.add_instruction(mgx_numba.op("rnn_last_hs_output"), [layer])
    main.add_return([layer, last])
    return p


@both
@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
def test_recurrent_layers(operator: str, kind: str) -> None:
    """Last states of a layer in float32 were taken of float16."""
    given = batches(lens=(5, 2, 6))
    free = lost(QUANTIZE[kind](recurrent(operator)), recurrent(operator), given)
    assert free > 1e-4
    p = QUANTIZE[kind](recurrent(operator), t=REF, calibration=given, accuracy=free / 10)
    assert [c.layer.split()[0] for c in p.quantization_choices()] == [operator]
    assert lost(p, recurrent(operator), given) == 0


def test_open_lengths() -> None:
    dims = [mgx_numba.dynamic_dimension(1, 6), mgx_numba.dynamic_dimension(24, 24)]
    open_rows = mgx_numba.shape(type="float", dyn_dims=dims)
    given = batches(2) + batches(2, lens=(3, 24))
    asked = lost(mgx_numba.quantize_bf16(network()), network(), given[:2]) / 2
    p = mgx_numba.quantize_bf16(network(open_rows), t=REF, calibration=given, accuracy=asked)
    assert 0 < [c.choice for c in p.quantization_choices()].count("bf16") < 4
    assert lost(p, network(open_rows), given) <= asked


def test_a_loss_of_ones_own_and_batches_that_are_run() -> None:
    asked = []

    def loss(found: Any, right: Any) -> float:
        asked.append(len(found))
        return 0.0

    mgx_numba.quantize_bf16(network(), t=REF, calibration=batches(6), accuracy="1%", loss=loss)
    assert set(asked) == {1} and len(asked) % 4 == 0


@pytest.mark.parametrize("strange", range(4))
def test_a_loss_that_is_no_number_is_too_much(strange: int) -> None:
    """NaN was ignored except in the first batch."""
    given = batches()

    def loss(found: Any, right: Any) -> float:
        wrong = not np.array_equal(found[0], right[0])
        return float("nan") if wrong and right[0].sum() == sums[strange] else 0.0

    sums = [np.asarray(network().compile("ref").run(inputs)[0]).sum() for inputs in given]
    p = mgx_numba.quantize_bf16(network(), t=REF, calibration=given, accuracy="1%", loss=loss)
    assert not any(c.choice == "bf16" for c in p.quantization_choices())


def test_wrong_arguments() -> None:
    with pytest.raises(OptionError, match="no effect without accuracy"):
        mgx_numba.quantize_bf16(network(), calibration=batches())
    with pytest.raises(OptionError, match="expected a share"):
        mgx_numba.quantize_fp16(network(), calibration=batches(), accuracy="lots")
    with pytest.raises(OptionError, match="which a calibration does not hold"):
        mgx_numba.quantize_fp16(network(), calibration=mgx_numba.calibrate(network(), REF, batches()), accuracy=0.1)
    with pytest.raises(OptionError, match="names no operator"):
        mgx_numba.quantize_fp16(network(), ["dott"], calibration=batches(), accuracy=0.1)
    with pytest.warns(UserWarning, match="no calibration data is given: errors are"):
        mgx_numba.quantize_fp16(network(), t=REF, accuracy=0.1)


@both
def test_the_driver(kind: str, tmp_path: Path, capsys: Any) -> None:
    path = small_model(tmp_path / "small.onnx")
    shapes = mgx_numba.parse_onnx(str(path), default_dim_value=3).get_parameter_shapes()
    rng = np.random.default_rng(4)
    np.savez(tmp_path / "batch.npz", **{k: rng.standard_normal(s.lens()).astype(np.float32) for k, s in shapes.items()})
    flags = ["--calibration", tmp_path / "batch.npz", "--accuracy", "0.00001%", "--quantization-report"]
    assert drive("verify", path, "--batch", "3", f"--{kind}", *flags) == 0
    assert "as it is: alone it loses" in capsys.readouterr().out
    assert drive("verify", path, "--batch", "3", f"--{kind}", *flags[:2]) == 2
    assert "--accuracy with --fp16 or --bf16" in capsys.readouterr().err


def test_errors_of_results() -> None:
    one, two = np.array([1.0, -4.0]), np.array([1.5, -4.0])
    assert largest_difference(two, one) == 0.125 and largest_error([two, np.array([3])], [one, np.array([9])]) == 0.125
    assert largest_difference(two[:1], one) == relative_error([two[:1]], [one]) == np.inf
    strange = np.array([np.nan, np.inf, 2.0], np.float32)
    assert largest_difference(strange, strange) == relative_error([strange], [strange]) == 0
    for other in ([np.nan, np.inf, np.nan], [1, np.inf, 2], [np.nan, -np.inf, 2]):
        assert largest_difference(np.array(other, np.float32), strange) == np.inf
        assert relative_error([np.array(other, np.float32)], [strange]) == np.inf
    empty = np.zeros((0, 3), np.float32)
    assert largest_difference(empty, empty) == 0 and largest_difference(one, 0 * one) == np.inf
