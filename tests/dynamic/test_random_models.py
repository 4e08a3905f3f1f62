"""Random models with open dimensions, or with lengths, axes and counts as inputs, against fixed lengths and
constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import UNBOUNDED, DynamicDimension
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.validate import validate

from ..random_models.generate import generate

OPEN = DynamicDimension(0, UNBOUNDED)
SMALL = 8
"""Elements of a constant of integers that becomes an input."""


def with_inputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A copy in which small constants of integers are inputs, and their values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    feeds, kept = {}, []
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.name in ("int32", "int64") and array.size <= SMALL:
            feeds[tensor.name] = array
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, array.shape))
        else:
            kept.append(tensor)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy, feeds


def assert_same(model: onnx.ModelProto, feeds: dict[str, np.ndarray], wanted: list[np.ndarray], target: str) -> None:
    """Results on a target with every dimension of the inputs that are not constants open."""
    program = parse_onnx(model, map_dyn_input_dims={n: [OPEN] * a.ndim for n, a in feeds.items() if a.ndim})
    validate(program)
    options = {"fast_math": False, "num_threads": 1} if target == "cpu" else {}
    results = public_program.wrap(program).compile(target, **options).run(feeds)
    for result, expected in zip(map(np.asarray, results), wanted, strict=True):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        a, b = result.astype(np.float64), expected.astype(np.float64)
        tolerance = 0 if expected.dtype.kind in "biu" else 3e-2 if expected.dtype.itemsize < 4 else 1e-3
        largest = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results on ``ref`` with fixed lengths."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in public_program.wrap(parse_onnx(model)).compile("ref").run(feeds)]


@pytest.mark.parametrize("seed", range(24))
def test_random_models_with_open_dimensions_on_ref(seed: int) -> None:
    case = generate(seed)
    assert_same(case.model, case.feeds, expected(case.model, case.feeds), "ref")


@pytest.mark.parametrize("seed", range(100, 124))
def test_random_models_with_lengths_and_axes_as_inputs_on_ref(seed: int) -> None:
    case = generate(seed)
    model, given = with_inputs(case.model)
    program = parse_onnx(model)
    validate(program)
    results = public_program.wrap(program).compile("ref").run({**case.feeds, **given})
    for result, wanted in zip(map(np.asarray, results), expected(case.model, case.feeds), strict=True):
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("seed", [203, 222])
def test_random_models_of_three_stages_on_cpu(seed: int) -> None:
    case = generate(seed)
    model, given = with_inputs(case.model)
    assert_same(model, {**case.feeds, **given}, expected(case.model, case.feeds), "cpu")


@pytest.mark.parametrize("seed", [0, 11, 26, 37, 371, 422])
def test_random_models_with_open_dimensions_on_cpu(seed: int) -> None:
    case = generate(seed)
    assert_same(case.model, case.feeds, expected(case.model, case.feeds), "cpu")
