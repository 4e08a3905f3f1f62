"""GroupQueryAttention of random forms, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mgx_numba
from mgx_numba.session import InferenceSession

SEEDS = 25
KINDS = {
    "float": (np.float32, TensorProto.FLOAT), "int8": (np.int8, TensorProto.INT8),
    "int4": (np.uint8, TensorProto.UINT8),
}  # fmt: skip
TOLERANCE = {"float": 2e-5, "int8": 2e-2, "int4": 5e-2}
"""Largest difference of results: ONNX Runtime quantises queries of int8 caches, too."""


def random_case(seed: int) -> tuple[bytes, dict[str, np.ndarray], str, np.ndarray, int]:
    """Return a model, its inputs, the kind of its caches, the ends of its sequences and the total length."""
    rng = np.random.default_rng(seed)
    shared, group, b, capacity = (int(rng.integers(1, n)) for n in (4, 4, 4, 40))
    heads, d, capacity = shared * group, int(rng.choice([8, 16, 24, 64])), capacity + 4
    mode = rng.choice(["prompt", "token", "chunk"])
    if mode == "prompt":
        s = int(rng.integers(1, capacity + 1))
        ends = rng.integers(1, s + 1, b)
        ends[0] = total = s
    elif mode == "token":
        s, ends = 1, rng.integers(1, capacity + 1, b)
        total = int(ends.max())
    else:
        b, s = 1, int(rng.integers(1, capacity))
        ends = rng.integers(s + 1, capacity + 1, 1)
        total = int(ends[0])
    options: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    if rng.random() < 0.3:
        options["softcap"] = float(rng.uniform(1, 5))
    if rng.random() < 0.3:
        options["local_window_size"] = int(rng.integers(1, capacity + 3))
    elif rng.random() < 0.2:
        options["causal"] = 0
    if rng.random() < 0.3:
        options["scale"] = float(rng.uniform(0.05, 0.5))
    smooth, rotates = rng.random() < 0.2, rng.random() < 0.4 and d % 16 == 0
    options |= {"smooth_softmax": int(smooth), "do_rotary": int(rotates)}
    options["rotary_interleaved"] = int(rotates and rng.random() < 0.5)
    kind = str(rng.choice(list(KINDS), p=[0.6, 0.2, 0.2]))

    def normal(*lens: int) -> np.ndarray:
        return rng.standard_normal(lens).astype(np.float32)

    lens = (b, shared, capacity, d // 2 if kind == "int4" else d)
    if kind == "float":
        past, scales = [normal(*lens) for _ in range(2)], [None, None]
    else:
        per = str(rng.choice(["PER_TENSOR", "PER_CHANNEL"]))
        options |= {"k_quant_type": per, "v_quant_type": per, "kv_cache_bit_width": int(kind[3:])}
        bounds = (-128, 128) if kind == "int8" else (0, 256)
        past = [rng.integers(*bounds, lens).astype(KINDS[kind][0]) for _ in range(2)]
        form = (1,) if per == "PER_TENSOR" else (1, shared, 1, d)
        scales = [rng.uniform(1, 3, form).astype(np.float32) / (127 if kind == "int8" else 7) for _ in range(2)]
    packed, biased = rng.random() < 0.2, rng.random() < 0.25 and kind == "float"
    arrays = {
        "q": normal(b, s, (heads + 2 * shared * packed) * d),
        "k": None if packed else normal(b, s, shared * d), "v": None if packed else normal(b, s, shared * d),
        "past_key": past[0], "past_value": past[1],
        "last": (ends - 1).astype(np.int32), "total": np.array([total], np.int32),
        "cosine": normal(capacity, d // 2) if rotates else None, "sine": normal(capacity, d // 2) if rotates else None,
        "places": None, "bias": normal(1, heads, s, total) if biased else None,
        "sink": normal(heads) if rng.random() < 0.25 and not smooth else None,
        "k_scale": scales[0], "v_scale": scales[1],
    }  # fmt: skip
    feeds = {name: array for name, array in arrays.items() if array is not None}
    names = [name if name in feeds else "" for name in arrays]
    node = helper.make_node("GroupQueryAttention", names, ["y", "keys", "values"], domain="com.microsoft", **options)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    types = {"y": TensorProto.FLOAT, "keys": KINDS[kind][1], "values": KINDS[kind][1]}
    outputs = [helper.make_tensor_value_info(name, type_, None) for name, type_ in types.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString(), feeds, kind, ends, total


@pytest.mark.parametrize("seed", range(SEEDS))
def test_group_query_attention_agrees_with_onnxruntime(seed: int) -> None:
    model, feeds, kind, ends, total = random_case(seed)
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    found = InferenceSession(model).run(None, feeds)
    s = feeds["q"].shape[1]
    for row, end in enumerate(ends.tolist()):
        valid = min(s, end - (0 if total == s else end - s))
        np.testing.assert_allclose(found[0][row, :valid], wanted[0][row, :valid], atol=TOLERANCE[kind])
        for own, other in zip(found[1:], wanted[1:], strict=True):
            assert own.shape == other.shape and own.dtype == other.dtype
            a, b = own[row, :, :end], other[row, :, :end]
            if kind == "float":
                np.testing.assert_allclose(a, b, atol=1e-5)
            for shift in () if kind == "float" else (0,) if kind == "int8" else (0, 4):
                codes = [(c.astype(int) >> shift) & 15 if kind == "int4" else c.astype(int) for c in (a, b)]
                assert np.abs(codes[0] - codes[1]).max() <= 1, "codes differ by more than a rounding"


@pytest.mark.parametrize(
    "name, per",
    [
        ("float8e4m3fn", "NONE"), ("float8e4m3fn", "PER_TENSOR"), ("float8e4m3fn", "PER_CHANNEL"),
        ("float16", "NONE"), ("bfloat16", "NONE"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("s", [1, 5])
def test_caches_of_narrow_floats_hold_rounded_rows(name: str, per: str, s: int) -> None:
    """Attention is that over the rounded rows; values beyond float8 are its largest, NaN stays NaN."""
    narrow = {"float8e4m3fn": ml_dtypes.float8_e4m3fn, "bfloat16": ml_dtypes.bfloat16}.get(name, np.float16)
    rng = np.random.default_rng(0)
    b, heads, shared, d, before, capacity = 2, 4, 2, 16, 6, 12
    scale = {
        "NONE": np.ones((1, 1, 1, 1)), "PER_TENSOR": np.full((1, 1, 1, 1), 0.25),
        "PER_CHANNEL": rng.uniform(0.1, 1, (1, shared, 1, d)),
    }[per].astype(np.float32)  # fmt: skip
    q, k, v = (rng.standard_normal((b, s, n * d)).astype(np.float32) for n in (heads, shared, shared))
    v[1, 0, 3] = 1e4
    v[1, 0, 4] = np.nan if s > 1 else 1
    past = [rng.standard_normal((b, shared, capacity, d)).astype(narrow) for _ in range(2)]
    rows = [x.reshape(b, s, shared, d).transpose(0, 2, 1, 3) / scale for x in (k, v)]
    if name == "float8e4m3fn":
        rows = [np.clip(x, -448, 448) for x in rows]
    caches = [x.copy() for x in past]
    for cache, new in zip(caches, rows, strict=True):
        cache[:, :, before : before + s] = new.astype(narrow)
    used = [(c.astype(np.float32) * scale)[:, :, : before + s] for c in caches]
    seen = np.arange(before + s) <= before + np.arange(s)[:, None]
    keys, values = (np.repeat(x, heads // shared, 1).astype(np.float64) for x in used)
    scores = q.reshape(b, s, heads, d).transpose(0, 2, 1, 3) @ keys.swapaxes(2, 3) / np.sqrt(d)
    weights = np.where(seen, np.exp(scores - scores.max(3, keepdims=True)), 0)
    y = (weights / weights.sum(3, keepdims=True)) @ values
    feeds = {
        "q": q, "k": k, "v": v, "past_key": past[0], "past_value": past[1],
        "last": np.full(b, before + s - 1, np.int32), "total": np.array([before + s], np.int32),
    }  # fmt: skip
    options: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    names = list(feeds)
    if per != "NONE":
        options |= {"k_quant_type": per, "v_quant_type": per}
        feeds["scale"] = scale.reshape(-1) if per == "PER_TENSOR" else scale
        names += [""] * 5 + ["scale", "scale"]
    node = helper.make_node("GroupQueryAttention", names, ["y", "keys", "values"], domain="com.microsoft", **options)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(narrow))
    inputs = [
        helper.make_tensor_value_info(n, kind if "past" in n else helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(n, t, None) for n, t in (("y", 1), ("keys", kind), ("values", kind))]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)
    for target in ("cpu", "ref"):
        program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
        program.compile(mgx_numba.get_target(target))
        found = [np.asarray(x) for x in program.run(feeds)]
        expected = y.transpose(0, 2, 1, 3).reshape(b, s, heads * d)
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)
        for own, cache in zip(found[1:], caches, strict=True):
            np.testing.assert_array_equal(own.astype(np.float32), cache.astype(np.float32))
