"""PagedAttention against attention to each sequence alone; ONNX Runtime computes it on GPUs only."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba

from ..interpreter.engine import interpreted

HEADS, SHARED, HEAD, BLOCK, BLOCKS = 4, 2, 16, 4, 12
TABLE = np.array([[3, 7, 1], [0, 5, -1], [9, 2, 11]], np.int32)


def paged(
    fresh: list[int], past: list[int], dtype: Any = np.float32, cache_type: Any = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a program, and inputs for sequences of ``past`` tokens that get ``fresh`` more."""
    rng = np.random.default_rng(sum(past))
    count = sum(fresh)
    caches = {
        n: np.full((BLOCKS, BLOCK, SHARED, HEAD), np.nan, cache_type or dtype) for n in ("key_cache", "value_cache")
    }
    for row, length in enumerate(past):
        for position in range(length):
            for cache in caches.values():
                values = rng.standard_normal((SHARED, HEAD)).astype(dtype)
                cache[TABLE[row, position // BLOCK], position % BLOCK] = values
    feeds: dict[str, np.ndarray] = {
        "q": rng.standard_normal((count, HEADS * HEAD)).astype(dtype),
        "k": rng.standard_normal((count, SHARED * HEAD)).astype(dtype),
        "v": rng.standard_normal((count, SHARED * HEAD)).astype(dtype),
        **caches,
        "starts": np.cumsum([0, *fresh]).astype(np.int32),
        "past": np.array(past, np.int32),
        "table": TABLE[: len(past)],
    }
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), ["tokens", a.shape[1]] if n in "qkv" else a.shape
        )
        for n, a in feeds.items()
    ]
    held = helper.np_dtype_to_tensor_dtype(feeds["key_cache"].dtype)
    outputs = [helper.make_tensor_value_info(n, k, None) for n, k in (("y", kind), ("keys", held), ("values", held))]
    node = helper.make_node(
        "PagedAttention", list(feeds), ["y", "keys", "values"], domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=SHARED, **options,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)
    return mgx_numba.parse_onnx_buffer(model.SerializeToString()), feeds


def expected(feeds: dict[str, Any], window: int = -1, causal: bool = True) -> tuple[np.ndarray, ...]:
    """Return attention and both caches, computed token by token in float64."""
    caches = [feeds[n].copy() for n in ("key_cache", "value_cache")]
    owner = np.repeat(np.arange(len(feeds["past"])), np.diff(feeds["starts"]))
    place = [feeds["past"][b] + i - feeds["starts"][b] for i, b in enumerate(owner)]
    for i, b in enumerate(owner):
        for cache, name in zip(caches, "kv", strict=True):
            block = feeds["table"][b, place[i] // BLOCK]
            cache[block, place[i] % BLOCK] = feeds[name][i].reshape(SHARED, HEAD)
    y = np.zeros(feeds["q"].shape)
    for i, b in enumerate(owner):
        last = place[i] if causal else feeds["past"][b] + np.diff(feeds["starts"])[b] - 1
        seen = [j for j in range(last + 1) if window < 0 or j > place[i] - window]
        keys, values = ([c[feeds["table"][b, j // BLOCK], j % BLOCK].astype(float) for j in seen] for c in caches)
        for h in range(HEADS):
            own = slice(h * HEAD, (h + 1) * HEAD)
            scores = np.array([feeds["q"][i, own].astype(float) @ k[h // 2] for k in keys]) / HEAD**0.5
            weights = np.exp(scores - scores.max())
            y[i, own] = sum(w * v[h // 2] for w, v in zip(weights / weights.sum(), values, strict=True))
    return y, *caches


CASES = [([1, 1, 1], [4, 7, 11]), ([5, 1], [0, 3]), ([3, 0, 2], [2, 5, 9]), ([1], [0])]


def compared(fresh: list[int], past: list[int], target: str, dtype: Any, window: int = -1, causal: bool = True) -> None:
    """Compare the program on a target with the reference."""
    program, feeds = paged(fresh, past, dtype, local_window_size=window, is_causal=int(causal))
    wanted = expected(feeds, window, causal)
    with interpreted():
        found = program.compile(target).run(feeds)
    np.testing.assert_allclose(found[0], wanted[0], atol=2e-5 if dtype is np.float32 else 4e-3)
    for a, b in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("window", "causal"), [(-1, True), (3, True), (-1, False)])
@pytest.mark.parametrize(("fresh", "past"), CASES)
def test_paged_attention_is_attention_to_each_sequence(
    fresh: list[int], past: list[int], window: int, causal: bool
) -> None:
    compared(fresh, past, "cpu", np.float32 if causal else np.float16, window, causal)


def test_paged_caches_of_float8_hold_rounded_rows() -> None:
    program, feeds = paged([3, 0, 2], [2, 5, 9], cache_type=ml_dtypes.float8_e4m3fn)
    wanted = expected(feeds)
    program.compile(mgx_numba.get_target("cpu"))
    for found, value in zip(program.run(feeds), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(found).astype(float), value.astype(float), atol=1e-5)


def test_paged_attention_is_written_out_for_a_gpu() -> None:
    compared(*CASES[1], "gpu", np.float32)


def test_blocks_are_updated_in_place() -> None:
    program, feeds = paged([1, 1], [4, 6])
    program.compile("cpu")
    wanted = expected(feeds)
    y, keys, values = program.run(feeds, {"keys": feeds["key_cache"], "values": feeds["value_cache"]})
    assert keys.ctypes.data == feeds["key_cache"].ctypes.data
    for a, b in zip((y, keys, values), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
