"""Faults that fuzzing found in CPU plans with symbols."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.targets import dynamic

from ..values import normal
from .models import FLOAT, INT64, MODELS, Graph


@pytest.mark.parametrize(
    ("build", "heights"),
    [
        *[
            (lambda g, m=mode: g.op("Pad", "x", g.ints(0, 0, 1, 0, 0, 0, 2, 0), mode=m), 4)
            for mode in ("edge", "reflect")
        ],
        *[
            (lambda g, m=mode, s=scale: g.op("Resize", "x", "", g.const([1, 1, s, 1], np.float32), mode=m), height)
            for mode in ("nearest", "linear")
            for scale, height in ((2.0, 4), (1.5, 1))
        ],
    ],
)
def test_a_table_of_positions_on_an_axis_of_fixed_length_has_no_symbolic_steps(
    build: Callable[[Graph], str], heights: int
) -> None:
    """Positions times the open length of an inner axis were a constant, whose memory a kernel read as numbers."""
    g = Graph()
    model = g.model({"x": (FLOAT, ["n", 3, heights, "w"])}, [build(g)])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    for lens in ((2, 3, heights, 5), (1, 3, heights, 1), (3, 3, heights, 40)):
        x = normal(*lens)
        wanted = public_program.wrap(parse_onnx(model, map_input_dims={"x": list(lens)})).compile("ref").run({"x": x})
        np.testing.assert_allclose(np.asarray(compiled.run({"x": x})[0]), np.asarray(wanted[0]), rtol=1e-5, atol=1e-6)
    assert len(compiled.open_plans()) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda g, first: g.op("Sub", "x", first),
        lambda g, first: g.op("Expand", first, g.op("Shape", "x")),
        lambda g, first: g.op("Where", g.op("Greater", first, "x"), "x", first),
        lambda g, first: g.op("MatMul", "x", g.op("Transpose", first, perm=[0, 2, 1])),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_row_of_an_open_length_broadcasts_without_a_guard(build: Callable[..., str], axis: int) -> None:
    """Its length min(1, n) was compared with n: a length of 1 was planned in its run."""
    g = Graph()
    model = g.model({"x": (FLOAT, ["n", "m", 4])}, [build(g, g.op("Slice", "x", g.ints(0), g.ints(1), g.ints(axis)))])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, m in ((3, 5), (1, 5), (3, 1), (1, 1), (0, 5), (2, 0)):
        x = normal(n, m, 4)
        (wanted,) = session.run(None, {"x": x})
        found = np.asarray(compiled.run({"x": x})[0])
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(compiled.open_plans()) == 1


@pytest.mark.parametrize(("size", "hop"), [(16, 4), (400, 160), (37, 5), (1, 1)])
def test_frames_of_a_signal_of_open_length_have_one_plan(size: int, hop: int) -> None:
    """Positions of frames were constants, and 64 or 300 samples, at which kernels are compared, have no frame."""
    g = Graph()
    window = g.const(np.hanning(size + 2)[1:-1].astype(np.float32))
    model = g.model({"x": (FLOAT, ["b", "n", 1])}, [g.op("STFT", "x", g.const(hop, np.int64), window)])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, n in ((2, size), (1, size + 1), (3, 5 * size + 3), (1, 1600), (0, 1601)):
        x = normal(b, n, 1)
        (wanted,) = session.run(None, {"x": x})
        found = np.asarray(compiled.run({"x": x})[0])
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert len(compiled.open_plans()) == 1


@pytest.mark.parametrize("scale", [1.3, 0.7, 1 / 3, 2.6, 1.1])
def test_a_length_times_a_scale_that_float32_rounds_has_one_plan(scale: float) -> None:
    """Each size of an image had a plan of its own."""
    g = Graph()
    scales = g.const([1, 1, scale, scale], np.float32)
    model = g.model({"x": (FLOAT, [1, 2, "h", "w"])}, [g.op("Resize", "x", "", scales, mode="linear")])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for h, w in ((10, 190), (30, 14), (20, 13), (100, 17)):  # 190 * 1.3 is below 247 in float32
        x = normal(1, 2, h, w)
        (wanted,) = session.run(None, {"x": x})
        found = np.asarray(compiled.run({"x": x})[0])
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(compiled.open_plans()) == 1


def test_an_image_pyramid_has_its_plan_before_it_runs() -> None:
    """Half an image equals the doubled quarter only for some lengths, of which primes are none."""
    g = Graph()
    half = g.op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    quarter = g.op("MaxPool", half, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    wide = g.op("Resize", quarter, "", g.const([1, 1, 2, 2], np.float32), mode="nearest")
    model = g.model({"x": (FLOAT, ["n", 1, "h", "w"])}, [g.op("Add", half, wide)])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    assert len(compiled.open_plans()) == 1
    for lens in ((1, 1, 8, 12), (2, 1, 64, 32), (1, 1, 4, 36)):
        x = normal(*lens)
        wanted = public_program.wrap(parse_onnx(model, map_input_dims={"x": list(lens)})).compile("ref").run({"x": x})
        np.testing.assert_array_equal(np.asarray(compiled.run({"x": x})[0]), np.asarray(wanted[0]))
    assert len(compiled.open_plans()) == 1


def test_a_loop_whose_body_alone_reads_an_open_length_is_bound_to_it() -> None:
    """No shape in the body is symbolic, only that of the captured table."""
    picked = helper.make_node("GatherElements", ["x", "where"], ["row"], axis=0)
    kept = helper.make_node("Identity", ["goes"], ["still"])
    scalar = [helper.make_tensor_value_info(n, t, []) for n, t in (("k", INT64), ("goes", TensorProto.BOOL))]
    where = numpy_helper.from_array(np.array([[1], [0]]), "where")
    still = helper.make_tensor_value_info("still", TensorProto.BOOL, [])
    row = helper.make_tensor_value_info("row", FLOAT, None)
    body = helper.make_graph([kept, picked], "body", scalar, [still, row], [where])
    g = Graph()
    model = g.model({"x": (FLOAT, ["n", 3])}, [g.op("Loop", g.const(2), "", body=body)])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    for n in (3, 2, 40):
        x = normal(n, 3)
        result = np.asarray(compiled.run({"x": x})[0])
        np.testing.assert_array_equal(result, np.stack([x[[1, 0], :1]] * 2))


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_result_of_a_host_step_that_no_memory_holds_is_an_error_of_its_own(target: str) -> None:
    """A MemoryError of NumPy passed through, or the copy was begun, where the system promises more than it has."""
    g = Graph()
    model = g.model({"lens": (INT64, ["rank"])}, [g.op("ConstantOfShape", "lens")])
    compiled = public_program.wrap(parse_onnx(model)).compile(target)
    for lens in ([4] * 25, [1 << 18, 1 << 18]):
        with pytest.raises(MgxError, match="not enough memory"):
            compiled.run({"lens": np.array(lens)})
    assert np.asarray(compiled.run({"lens": np.array([2, 3])})[0]).shape == (2, 3)


def test_plans_with_symbols_are_not_tried_for_ever_where_none_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt took time, and left expressions behind in the caches of its scope."""
    g = Graph()
    y = g.op("ConvTranspose", "x", g.weights(1, 1, 3), auto_pad="SAME_LOWER", strides=[2])
    compiled = public_program.wrap(parse_onnx(g.model({"x": (FLOAT, [1, 1, "n"])}, [y]))).compile("cpu")
    tried = 0
    planned = dynamic.OpenPlans.make_plan

    def counted(self: dynamic.OpenPlans[Any], *arguments: object) -> object:
        nonlocal tried
        tried += 1
        return planned(self, *arguments)

    monkeypatch.setattr(dynamic.OpenPlans, "make_plan", counted)
    for n in range(1, dynamic.MOST_FAILED + 9):
        assert np.asarray(compiled.run({"x": normal(1, 1, n)})[0]).shape == (1, 1, 2 * n)
    assert tried == dynamic.MOST_FAILED


@pytest.mark.parametrize(("batch", "gathers"), [("b", False), ("other", True)])
def test_masks_of_exporters_are_read_in_place(batch: str, gathers: bool) -> None:
    """transformers indexes the mask by positions, ``mask[arange(b)[:, None, None, None], arange(s)]``, and begins masks
    of encoders with ``arange >= 0``. A batch that may be longer than the mask's has indices out of range."""
    g = Graph()
    zero, one = g.const(0, np.int64), g.const(1, np.int64)
    length, rows = (g.op("Squeeze", g.dim(x, k)) for x, k in (("mask", 1), ("x", 0)))
    keys = g.op("Unsqueeze", g.op("Range", zero, length, one), g.ints(0, 1, 2))
    batches = g.op("Unsqueeze", g.op("Range", zero, rows, one), g.ints(1, 2, 3))
    common = g.op("Shape", g.op("Max", keys, batches))
    pairs = [g.op("Unsqueeze", g.op("Expand", index, common), g.ints(-1)) for index in (batches, keys)]
    kept = g.op("GatherND", "mask", g.op("Concat", *pairs, axis=-1))
    queries = g.op("Unsqueeze", g.op("Range", zero, length, one), g.ints(0, 1, 3))
    kept = g.op("And", g.op("GreaterOrEqual", queries, zero), kept)
    y = g.op("Where", kept, "x", g.const(-1.0, np.float32))
    model = g.model({"x": (FLOAT, ["b", 2, "s", "s"]), "mask": (TensorProto.BOOL, [batch, "s"])}, [y])
    compiled = public_program.wrap(parse_onnx(model)).compile("cpu")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for b, s in ((2, 5), (1, 1), (3, 1), (1, 8), (4, 4), (2, 16)):
        feeds = {"x": normal(b, 2, s, s), "mask": rng.random((b, s)) < 0.6}
        np.testing.assert_array_equal(np.asarray(compiled.run(feeds)[0]), session.run(None, feeds)[0])
    assert len(compiled.open_plans()) == 1
    assert ("gathernd_range" in compiled.rewrite_log().applied) is not gathers


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", ["decoder", "fully_convolutional"])
def test_ever_new_lengths_take_no_memory(name: str) -> None:
    case = MODELS[name]()
    program = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096))
    compiled = public_program.wrap(program).compile("cpu")
    rng = np.random.default_rng(0)
    warm, more = 300, 2000
    for _ in range(warm):
        compiled.run(case.draw(rng))
    gc.collect()
    before = _resident()
    for _ in range(more):
        compiled.run(case.draw(rng))
    gc.collect()
    assert _resident() - before < 2 << 20
    assert len(compiled.open_plans()) == 1
