"""Key and value caches in memory that is input and result of a run: the step writes its rows, and copies nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mgx_numba
from mgx_numba.errors import IndexRangeError, ParameterError
from mgx_numba.session import InferenceSession, OrtValue

from ..caches import with_kernels

HEADS, SHARED, HEAD = 4, 2, 8
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


def decoder(
    layers: int = 2, dtype: Any = np.float32, total_is_input: bool = False, grows: bool | None = None
) -> onnx.ModelProto:
    """Return layers of projection and GroupQueryAttention with open lengths, named as onnxruntime-genai names them.

    Args:
        layers: number of layers.
        dtype: element type.
        total_is_input: whether the total length is an input, not the length of a mask.
        grows: whether caches after the step have another declared length; None: if the total length is no input.
    """
    grows = not total_is_input if grows is None else grows
    kind, width = TYPES[np.dtype(dtype)], HEADS * HEAD
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    inputs = [
        helper.make_tensor_value_info("x", kind, ["batch", "sequence", width]),
        helper.make_tensor_value_info("last", TensorProto.INT32, ["batch"]),
    ]
    if total_is_input:
        inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    else:
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total_length"]))
        index = helper.make_tensor("one", TensorProto.INT64, [], [1])
        weights.append(index)
        nodes += [
            helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
            helper.make_node("Gather", ["mask_shape", "one"], ["total_64"]),
            helper.make_node("Cast", ["total_64"], ["total"], to=TensorProto.INT32),
        ]
    outputs = [helper.make_tensor_value_info("y", kind, ["batch", "sequence", width])]
    last = "x"
    for i in range(layers):
        packed = rng.standard_normal((width, (HEADS + 2 * SHARED) * HEAD)).astype(dtype) / 8
        weights.append(onnx.numpy_helper.from_array(packed, f"w{i}"))
        names = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        results = [f"present.{i}.{part}" for part in ("key", "value")]
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"qkv{i}"]))
        nodes.append(
            helper.make_node(
                "GroupQueryAttention", [f"qkv{i}", "", "", *names, "last", "total"],
                ["y" if i == layers - 1 else f"y{i}", *results], domain="com.microsoft",
                num_heads=HEADS, kv_num_heads=SHARED,
            )
        )  # fmt: skip
        last = f"y{i}"
        lens = ["batch", SHARED, "past_length", HEAD]
        inputs += [helper.make_tensor_value_info(name, kind, lens) for name in names]
        grown = ["batch", SHARED, "total_length" if grows else "past_length", HEAD]
        outputs += [helper.make_tensor_value_info(name, kind, grown) for name in results]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def step(ends: list[int], s: int, total: int, total_is_input: bool, seed: int, dtype: Any) -> dict[str, np.ndarray]:
    """Return the inputs of a step of ``s`` tokens after which the sequences have ``ends`` tokens."""
    x = np.random.default_rng(seed).standard_normal((len(ends), s, HEADS * HEAD)).astype(dtype)
    feeds = {"x": x, "last": np.array(ends, np.int32) - 1}
    if total_is_input:
        return feeds | {"total": np.array(total, np.int32)}
    return feeds | {"attention_mask": np.ones((len(ends), total), np.int64)}


def caches(batch: int, length: int, layers: int, dtype: Any, fill: float = 0.0) -> dict[str, np.ndarray]:
    """Return empty caches by the names that follow ``past_key_values.`` and ``present.``."""
    lens = (batch, SHARED, length, HEAD)
    return {f"{i}.{part}": np.full(lens, fill, dtype) for i in range(layers) for part in ("key", "value")}


STEPS = ([5, 3], 5, 5), ([6, 4], 1, 6), ([7, 5], 1, 7)
"""Ends of both sequences, new tokens, and the total length of three steps: a padded prompt, and two tokens."""


@pytest.mark.parametrize(("total_is_input", "grows"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bound_caches_are_updated_in_place(dtype: Any, total_is_input: bool, grows: bool) -> None:
    model = decoder(2, dtype, total_is_input, grows).SerializeToString()
    session, peer = InferenceSession(model), onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    own, other = (caches(2, 12, 2, dtype) for _ in range(2))
    binding = session.io_binding()
    tolerance = 2e-5 if dtype is np.float32 else 4e-3
    for number, (ends, s, total) in enumerate(STEPS):
        feeds = step(ends, s, total, total_is_input, number, dtype)
        past = {f"past_key_values.{name}": array for name, array in other.items()}
        wanted = dict(zip([o.name for o in peer.get_outputs()], peer.run(None, {**feeds, **past}), strict=True))
        other = {name: wanted[f"present.{name}"] for name in other}
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        for name, array in own.items():
            value = OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        before = {name: array.copy() for name, array in own.items()}
        session.run_with_iobinding(binding)
        y = binding.get_outputs()[0].numpy()
        for row, end in enumerate(ends):
            valid = min(s, end)
            np.testing.assert_allclose(y[row, :valid], wanted["y"][row, :valid], rtol=tolerance, atol=tolerance)
            for name, array in own.items():
                np.testing.assert_allclose(
                    array[row, :, :end], other[name][row, :, :end], rtol=tolerance, atol=tolerance
                )
                np.testing.assert_array_equal(array[row, :, total:], before[name][row, :, total:])


def test_caches_of_which_a_run_gives_the_total_grow() -> None:
    """They kept the length of the past, without the new rows, when nothing but a run knew the total length."""
    source = decoder(1, total_is_input=True, grows=True).SerializeToString()
    session, peer = (
        s(source, providers=["CPUExecutionProvider"]) for s in (InferenceSession, onnxruntime.InferenceSession)
    )
    own = other = list(caches(1, 0, 1, np.float32).values())
    for number, (ends, s, total) in enumerate((([4], 4, 4), ([5], 1, 5), ([6], 1, 6))):
        feeds = step(ends, s, total, True, number, np.float32)
        names = [i.name for i in session.get_inputs()[-2:]]
        (y, *own), (right, *other) = (
            x.run(None, {**feeds, **dict(zip(names, c))}) for x, c in ((session, own), (peer, other))
        )
        for found, wanted in zip((y, *own), (right, *other), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_total_beyond_a_shared_cache_is_an_error() -> None:
    """New rows were dropped."""
    session = InferenceSession(decoder(1, total_is_input=True).SerializeToString())
    past = {f"past_key_values.{name}": array for name, array in caches(1, 4, 1, np.float32).items()}
    session.run(None, {**step([4], 1, 4, True, 0, np.float32), **past})
    with pytest.raises(IndexRangeError, match="index 5 is out of range"):
        session.run(None, {**step([5], 1, 5, True, 0, np.float32), **past})


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("room", [0, 40])
def test_a_total_length_that_a_run_gives_is_a_symbol(batch: int, room: int) -> None:
    """Each attention was a fallback step, which parsed its node anew in each run: 1 ms."""
    layers = 2
    source = decoder(layers, total_is_input=True, grows=True).SerializeToString()
    program = mgx_numba.parse_onnx_buffer(source).compile("cpu", plan_cache=False)
    peer = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    assert len(program.open_plans()) == 2
    names = [f"past_key_values.{name}" for name in caches(batch, 0, layers, np.float32)]
    own = other = list(caches(batch, room, layers, np.float32).values())
    total = 0
    for number, s in enumerate((5, 1, 1, 1, 1, 3 if batch == 1 else 1, 1, 1)):
        total += s
        feeds = step([total] * batch, s, total, True, number, np.float32)
        y, *own = program.run({**feeds, **dict(zip(names, own))})
        right, *other = peer.run(None, {**feeds, **dict(zip(names, other))})
        np.testing.assert_allclose(y, right, rtol=2e-5, atol=2e-5)
        for found, wanted in zip(own, other, strict=True):
            assert np.asarray(found).shape == wanted.shape
            np.testing.assert_allclose(found[:, :, :total], wanted[:, :, :total], rtol=2e-5, atol=2e-5)
    assert len(program.open_plans()) == 2


@pytest.mark.parametrize("total_is_input", [False, True])
def test_nothing_but_new_rows_is_written(total_is_input: bool) -> None:
    """Rows that are not the step's may hold anything, and keep it."""
    program = mgx_numba.parse_onnx_buffer(decoder(1, np.float32, total_is_input, True).SerializeToString())
    program.compile("cpu")
    own = caches(1, 9, 1, np.float32, np.nan)
    feeds = step([4], 4, 4, total_is_input, 0, np.float32)
    outputs = {f"present.{name}": array for name, array in own.items()}
    y, *present = program.run({**feeds, **{f"past_key_values.{n}": a for n, a in own.items()}}, outputs)
    assert np.isfinite(y).all()
    for made, array in zip(present, own.values(), strict=True):
        assert made.ctypes.data == array.ctypes.data
        assert np.isfinite(array[:, :, :4]).all() and np.isnan(array[:, :, 4:]).all()


def test_a_plan_from_the_cache_folder_updates_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(with_kernels(tmp_path / "cache")))
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder(1).SerializeToString())
    feeds = step([4], 4, 4, False, 0, np.float32)
    for _ in range(2):  # the second program has the plan that the first has kept
        own = caches(1, 9, 1, np.float32, np.nan)
        program = mgx_numba.parse_onnx(str(path)).compile("cpu")
        past = {f"past_key_values.{name}": array for name, array in own.items()}
        y, key, _ = program.run({**feeds, **past}, {f"present.{name}": array for name, array in own.items()})
        assert np.isfinite(y).all() and key.ctypes.data == own["0.key"].ctypes.data
        assert np.isnan(own["0.key"][:, :, 4:]).all()


def test_results_in_other_memory_leave_the_inputs_alone() -> None:
    program = mgx_numba.parse_onnx_buffer(decoder(1).SerializeToString())
    program.compile("cpu")
    feeds = step([4], 4, 4, False, 0, np.float32)
    own, places = caches(1, 9, 1, np.float32, 2.0), caches(1, 9, 1, np.float32, 3.0)
    past = {f"past_key_values.{name}": array for name, array in own.items()}
    wanted = [np.array(result) for result in program.run({**feeds, **past})]
    found = program.run({**feeds, **past}, {f"present.{name}": array for name, array in places.items()})
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all((array == 2).all() for array in own.values())
    np.testing.assert_array_equal(places["0.key"], wanted[1])


def test_memory_of_another_input_is_not_overwritten_before_it_is_read() -> None:
    """The key's result in the value's memory, the other way round, and in memory that overlaps an input by a part."""
    program = mgx_numba.parse_onnx_buffer(decoder(1).SerializeToString())
    program.compile("cpu")
    feeds = step([4], 1, 4, False, 0, np.float32)
    rng = np.random.default_rng(1)
    base = rng.standard_normal(3 * SHARED * 9 * HEAD).astype(np.float32)
    size, lens = SHARED * 9 * HEAD, (1, SHARED, 9, HEAD)
    for k_from, v_from, k_to, v_to in (
        (0, size, size, 0),
        (0, size, 5, size + 5),
        (0, size, 0, 0),
        (3, size + 3, 3, 3),
    ):
        memory = base.copy()
        k, v, to_k, to_v = (memory[at : at + size].reshape(lens) for at in (k_from, v_from, k_to, v_to))
        past = {"past_key_values.0.key": k, "past_key_values.0.value": v}
        wanted = [np.array(result) for result in program.run({**feeds, **past})]
        y, *_ = program.run({**feeds, **past}, {"present.0.key": to_k, "present.0.value": to_v})
        np.testing.assert_array_equal(y, wanted[0])
        if abs(k_to - v_to) >= size:
            np.testing.assert_array_equal(to_k, wanted[1])
        np.testing.assert_array_equal(to_v, wanted[2])


def test_memory_that_does_not_fit_is_named() -> None:
    program = mgx_numba.parse_onnx_buffer(decoder(1).SerializeToString())
    program.compile("cpu")
    feeds = step([4], 1, 4, False, 0, np.float32)
    past = {f"past_key_values.{name}": array for name, array in caches(1, 9, 1, np.float32).items()}
    for memory, words in (
        ({"presents": np.zeros(1)}, "no result 'presents'"),
        ({"y": np.zeros((1, 2, 32), np.float32)}, "result 'y' is float32 .1, 1, 32.*float32 .1, 2, 32"),
        ({"y": np.zeros((1, 1, 32), np.float64)}, "result 'y' is float32"),
    ):
        with pytest.raises(ParameterError, match=words):
            program.run({**feeds, **past}, memory)
    locked = np.zeros((1, 1, 32), np.float32)
    locked.flags.writeable = False
    with pytest.raises(ParameterError, match="read-only"):
        program.run({**feeds, **past}, {"y": locked})


def test_a_reader_of_the_old_cache_after_its_update_gets_the_old_cache() -> None:
    x, rows = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, lens) for n, lens in (("x", [2, 6]), ("rows", [2, 1]))
    )
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [2, 1])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 6]) for n in ("new", "sum")]
    nodes = [
        helper.make_node("ScatterElements", ["x", "index", "rows"], ["new"], axis=1),
        helper.make_node("MatMul", ["new", "square"], ["product"]),
        helper.make_node("Add", ["product", "x"], ["sum"]),
    ]
    square = onnx.numpy_helper.from_array(np.ones((6, 6), np.float32), "square")
    graph = helper.make_graph(nodes, "g", [x, index, rows], outputs, [square])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    program.compile("cpu")
    memory = np.arange(12, dtype=np.float32).reshape(2, 6)
    feeds = {"x": memory, "index": np.array([[1], [4]]), "rows": np.full((2, 1), 50, np.float32)}
    wanted = [np.array(result) for result in program.run(feeds)]
    found = program.run(feeds, {"new": memory})
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
