"""Counts of n-grams against ONNX Runtime, and decoded images against their source."""

from __future__ import annotations

import io
import weakref
from typing import Any

import numpy as np
import pytest
from onnx import helper

import mgx_numba.backend as backend
from mgx_numba.errors import MgxError, ParseError, ShapeError
from mgx_numba.ops.constant_tables import kept_for_constants

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


@pytest.mark.parametrize("seed", range(6))
def test_ngrams_are_those_of_a_search_for_each_window(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers, most = [int(random.integers(0, 40)) for _ in range(3)], 3
    grams = [[tuple(random.integers(-2, 4, n).tolist()) for _ in range(g)] for n, g in enumerate(numbers, 1)]
    first: dict[tuple[int, ...], int] = {}
    for place, gram in enumerate(g for group in grams for g in group):
        first.setdefault(gram, place)
    indexes, skip = random.integers(0, 50, sum(numbers)), int(random.integers(3))
    x = random.integers(-3, 5, (4, 9))
    wanted = np.zeros((4, int(indexes.max(initial=-1)) + 1), np.float32)
    for row, values in enumerate(x.tolist()):
        for n in range(1, most + 1):
            for step in range(1, 2 if n == 1 else skip + 2):
                for begin in range(9 - (n - 1) * step):
                    place = first.get(tuple(values[begin : begin + (n - 1) * step + 1 : step]), -1)
                    if place >= 0:
                        wanted[row, indexes[place]] += 1
    given = {
        "ngram_counts": np.cumsum([0, *(n * g for n, g in enumerate(numbers[:-1], 1))]).tolist(),
        "ngram_indexes": indexes.tolist(),
        "pool_int64s": [value for group in grams for gram in group for value in gram],
    }
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": most, "max_skip_count": skip}
    (y,) = run(*single("TfIdfVectorizer", [x], opset=9, **options, **given))
    np.testing.assert_array_equal(y, wanted)


def test_tables_of_constants_are_made_once_and_not_kept_longer() -> None:
    made = []

    @kept_for_constants
    def table(array: np.ndarray, *, scale: int) -> list[int]:
        made.append(array.size)
        return (array * scale).tolist()

    constant, changing = np.arange(3), np.arange(4)
    constant.flags.writeable = False
    assert table(constant, scale=2) is table(constant, scale=2)
    assert table(constant, scale=3) == [0, 3, 6]
    assert made == [3, 3]
    for value in range(2):
        changing[0] = value
        assert table(changing, scale=1)[0] == value
    found = weakref.ref(constant)
    del constant
    assert found() is None
    for _ in range(20):  # an array at the same address is another one
        other = np.random.default_rng(len(made)).integers(0, 9, 3)
        other.flags.writeable = False
        assert table(other, scale=2) == (other * 2).tolist()


def test_ngrams_that_do_not_fit() -> None:
    options = {"mode": "IDF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    with pytest.raises(ShapeError, match="2 weights for 8 columns"):
        run(*single("TfIdfVectorizer", [ints(1)], opset=9, **options, **{**POOL, "weights": [1.0, 2.0]}))
    with pytest.raises(ShapeError, match="1 indexes for at least 8 n-grams"):
        run(*single("TfIdfVectorizer", [ints(1)], opset=9, **options, **{**POOL, "ngram_indexes": [0]}))
    with pytest.raises(ParseError, match="'ngram_indexes' has -1"):
        run(*single("TfIdfVectorizer", [ints(1)], opset=9, **options, **{**POOL, "ngram_indexes": [-1] * 8}))
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
