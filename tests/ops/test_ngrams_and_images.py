"""Counts of n-grams against ONNX Runtime, and images against what was encoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from onnx import helper

import mgx_numba.backend as backend
from mgx_numba.errors import MgxError, ShapeError

from ..frontends.support import assert_like_onnxruntime, ints, run, single

POOL: dict[str, Any] = {
    "ngram_counts": [0, 4],
    "ngram_indexes": [0, 1, 2, 3, 4, 5, 6, 7],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 3, 5],
    "weights": [0.5, 1.0, 2.0, 4.0, 0.25, 3.0, 1.5, 2.5],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("lengths", "skip"), [((1, 1), 0), ((2, 2), 0), ((2, 2), 3), ((1, 2), 5)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ngrams_agree_with_onnxruntime(mode: str, lengths: tuple[int, int], skip: int, dtype: type) -> None:
    x = np.random.default_rng(0).integers(2, 9, (3, 12)).astype(dtype)
    low, high = lengths
    options = {"mode": mode, "min_gram_length": low, "max_gram_length": high, "max_skip_count": skip}
    for value in (x, x[0], x[:, :1]):
        assert_like_onnxruntime(*single("TfIdfVectorizer", [value], opset=9, **options, **POOL))


def test_ngrams_that_do_not_fit() -> None:
    options = {"mode": "IDF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    with pytest.raises(ShapeError, match="2 weights for 8 columns"):
        run(*single("TfIdfVectorizer", [ints(1)], opset=9, **options, **{**POOL, "weights": [1.0, 2.0]}))
    with pytest.raises(ShapeError, match="1 indexes for at least 8 n-grams"):
        run(*single("TfIdfVectorizer", [ints(1)], opset=9, **options, **{**POOL, "ngram_indexes": [0]}))
    with pytest.raises(ShapeError, match="1 or 2 dimensions"):
        run(*single("TfIdfVectorizer", [np.zeros((1, 1, 1), np.int64)], opset=9, **options, **POOL))


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_images_are_what_was_encoded(mode: str, pixel_format: str, target: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    channels = {"RGB": (3,), "L": (), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, *channels)).astype(np.uint8)
    image = image_module.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "PNG")
    node = helper.make_node("ImageDecoder", ["x"], ["y"], pixel_format=pixel_format)
    (y,) = backend.run_node(node, [np.frombuffer(file.getvalue(), np.uint8)], target=target)
    if pixel_format == "Grayscale":
        wanted = np.asarray(image.convert("L"))[:, :, None]
    else:
        wanted = np.asarray(image.convert("RGB"))[:, :, :: -1 if pixel_format == "BGR" else 1]
    np.testing.assert_array_equal(y, wanted)


def test_bytes_that_are_no_image() -> None:
    pytest.importorskip("PIL")
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    with pytest.raises(MgxError, match="no image"):
        backend.run_node(node, [np.arange(9, dtype=np.uint8)], target="ref")
    wrong = helper.make_node("ImageDecoder", ["x"], ["y"], pixel_format="CMYK")
    with pytest.raises(ShapeError, match="expected one of RGB, BGR, Grayscale"):
        backend.run_node(wrong, [np.arange(9, dtype=np.uint8)], target="ref")
