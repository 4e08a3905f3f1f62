"""Producers write inside the padded memory, from which convolutions over tiles read their taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.codegen.cpu import host
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import FUSION, Build, check

needs_tiles = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")


def kernels(inputs: Sequence[np.ndarray], build: Build, **how: Any) -> list[str]:
    """Names of the kernels of a program that agrees with ref."""
    steps = lower(check(inputs, build, **how), TargetOptions()).steps
    return [step.label.removeprefix("cpu::") for step in steps]


PADS = [
    ((3, 4), (0, 1, 0, 2)),
    ((2, 3, 5, 7), (0, 0, 1, 2, 0, 0, 3, 0)),
    ((2, 3, 5, 7), (1, 0, 0, 0, 0, 2, 0, 1)),
    ((2, 0, 5), (0, 1, 1, 0, 1, 1)),
    ((1, 1), (2, 0, 0, 3)),
    ((70000,), (1, 5)),
    ((3, 4), (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("lens", "pads"), PADS)
@pytest.mark.parametrize("value", [0.0, -np.inf, 2.5])
def test_a_padded_value_is_written_in_place(lens: tuple[int, ...], pads: tuple[int, ...], value: float) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("pad", [m.add_instruction("exp", [p[0]])], pads=pads, value=value)

    names = kernels([normal(*lens, special=0 not in lens)], build)
    assert names == [*(["exp_kernel"] if 0 not in lens else []), *(["border_kernel"] if any(pads) else [])]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64", "bfloat16"])
def test_padded_values_of_other_types(dtype: str) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = m.add_instruction("max", [p[0], p[1]])
        turned = m.add_instruction("transpose", [x], permutation=(0, 2, 1))
        return m.add_instruction("pad", [turned], pads=(0, 1, 2, 0, 0, 1), value=113.0)

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    check([(normal(2, 5, 33, seed=k) * 50 % 200).astype(kind) for k in range(2)], build)


def test_what_lies_inside_is_read_by_others() -> None:
    """Two paddings, of which one is padded again, a maximum, a sum and a product of the same value, and a result."""

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = m.add_instruction("exp", [p[0]])
        first = m.add_instruction("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1))
        again = m.add_instruction("pad", [m.add_instruction("neg", [first])], pads=(0, 0, 0, 2, 0, 0, 0, 0), value=1.0)
        other = m.add_instruction("pad", [x], pads=(0, 1, 0, 0, 0, 0, 0, 2), value=3.0)
        pool = m.add_instruction("pooling", [x], lengths=(2, 2), stride=(2, 2), padding=(0, 0), mode=1)
        return [again, other, pool, m.add_instruction("add", [x, p[0]]), first]

    x = normal(2, 3, 6, 8)
    check([x], build)

    def result(m: Module, p: list[Instruction]) -> list[Instruction]:
        y = m.add_instruction("exp", [p[0]])
        return [y, m.add_instruction("pad", [y], pads=(1, 0, 0, 0, 0, 0, 0, 1))]

    assert "pad_kernel" in kernels([x], result)


def test_a_concatenation_inside_of_padding() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        made = [m.add_instruction(name, [x]) for name, x in zip(("exp", "neg"), p)]
        both = m.add_instruction("concat", made, axis=1)
        return [m.add_instruction("pad", [both], pads=(0, 0, 1, 0, 0, 0, 1, 2)), m.add_instruction("abs", [made[1]])]

    names = kernels([normal(2, 3, 4, 5), normal(2, 4, 4, 5, seed=1)], build)
    assert sorted(names) == ["abs_kernel", "border_kernel", "exp_kernel", "neg_kernel"]


def test_a_padded_value_that_a_product_reads_too_is_copied() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        x = m.add_instruction("exp", [p[0]])
        return [m.add_instruction("pad", [x], pads=(0, 1, 0, 1)), m.add_instruction("dot", [x, p[1]])]

    assert "pad_kernel" in kernels([normal(5, 7), normal(7, 3)], build)


def test_cut_and_reflected_values_are_copied() -> None:
    for how in ({"pads": (0, -1, 0, 1)}, {"pads": (0, 1, 0, 1), "mode": 1}):

        def build(m: Module, p: list[Instruction], how: dict[str, Any] = how) -> Instruction:
            return m.add_instruction("pad", [m.add_instruction("exp", [p[0]])], **how)

        assert "border_kernel" not in kernels([normal(5, 7)], build)


@pytest.mark.usefixtures("vector_code")
@needs_tiles
@pytest.mark.parametrize("channels", [64, 48])
@pytest.mark.parametrize("point", [0.0, 113.0])
def test_convolutions_of_8_bits_read_padded_memory(
    point: float, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The padding value is a nonzero zero point; the producer writes the image inside the padding."""
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    monkeypatch.setenv("MGX_NUM_THREADS", "2")  # what is written where depends on how many threads share the work
    rng = np.random.default_rng(3)
    weights = rng.integers(-127, 128, (channels, 3, 2, channels)).astype(np.int8).transpose(0, 3, 1, 2)
    pads = (1, 0, 2, 1)

    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = m.add_instruction("layout", [p[0]], permutation=(0, 2, 3, 1))
        for k in range(2):
            w = m.add_literal(weights)
            x = m.add_instruction("convert", [x], target_type=Type.uint8_type)
            if point:
                x = m.add_instruction("pad", [x], pads=(0, 0, *pads[:2], 0, 0, *pads[2:]), value=point)
            padding = (0, 0, 0, 0) if point else pads
            x = m.add_instruction("quant_convolution", [x, w], padding=padding, stride=(1, 1 + k), dilation=(1 + k, 1))
            x = m.add_instruction("convert", [x], target_type=Type.float_type)
            scale = m.add_instruction("multibroadcast", [m.add_literal(np.float32([1e-3]))], out_lens=x.shape.lens)
            x = m.add_instruction("nearbyint", [m.add_instruction("mul", [x, scale])])
        return x

    passes = ("pad_convolutions", *FUSION)
    names = kernels(
        [rng.integers(0, 256, (2, channels, 39, 43)).astype(np.float32)], build, passes=passes, fast_math=True
    )
    assert [name.split("_kernel")[0].split("_nearbyint")[0] for name in names].count("border") == 2
    assert not any("lines" in name or name.startswith("pad") for name in names)


def network(channels: int = 32) -> onnx.ModelProto:
    """Convolutions, some strided, dilated or padded unevenly, behind what makes images: a convolution over pixels, a
    transposed one, a maximum, a sum with what was there before, and a concatenation that something else reads, too."""
    rng = np.random.default_rng(4)
    c = channels
    shapes = {
        "w0": (c, 3, 3, 3), "w1": (c, c, 3, 3), "w2": (2 * c, c, 1, 1), "w3": (c, 2 * c, 3, 2), "w4": (c, c, 2, 2),
        "w5": (c, 2 * c, 3, 3), "w6": (c, c, 3, 3), "w7": (c, c, 3, 3), "w8": (8, c, 1, 1),
    }  # fmt: skip
    weights = {name: rng.normal(0, np.prod(lens[1:]) ** -0.5, lens) for name, lens in shapes.items()}
    weights["w4"] = weights["w4"].swapaxes(0, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w1"], ["c1"], pads=[1, 0, 1, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], pads=[2, 1, 0, 1], dilations=[1, 2]),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("ConvTranspose", ["r3", "w4"], ["t"], strides=[2, 2]),
        helper.make_node("Concat", ["t", "r0"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "w5"], ["c5"], pads=[1] * 4),
        helper.make_node("Relu", ["c5"], ["r5"]),
        helper.make_node("Conv", ["r5", "w6"], ["c6"], pads=[1] * 4),
        helper.make_node("Add", ["c6", "r5"], ["s"]),
        helper.make_node("Relu", ["s"], ["r6"]),
        helper.make_node("Conv", ["r6", "w7"], ["c7"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["c7", "w8"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", 14])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def images(batch: int, height: int, special: bool = False) -> np.ndarray:
    x = np.random.default_rng(batch).standard_normal((batch, 3, height, 14)).astype(np.float32)
    if special:
        x[-1, 0, 3, 5], x[0, 1, 0, 0], x[0, 2, -1, -1] = np.nan, np.inf, -np.inf
    return x


@needs_tiles
def test_images_in_bfloat16_are_written_into_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results equal those of images copied onto a padded grid, also for values that are not finite."""
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    found, filled = [], []
    for disabled in ("", "pad_convolutions"):
        monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", disabled)
        p = mgx_numba.parse_onnx_buffer(network().SerializeToString(), map_input_dims={"x": [2, 3, 10, 14]})
        mgx_numba.quantize_bf16(p)
        p.compile("cpu", num_threads=2)
        labels = [step.label for step in p.compiled.executable.plan.steps]  # type: ignore[union-attr]
        filled.append(
            [sum(word in label for label in labels) for word in ("as_bfloat16_lines", "border", "pad_kernel")]
        )
        found.append([np.asarray(p.run({"x": images(2, 10, special)})[0]) for special in (False, True)])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isfinite(found[0][0]).all() and not np.isfinite(found[0][1]).all()
    assert filled[0][1] >= 3 and filled[0][0] <= filled[1][0] - 4 and not filled[1][1]


@needs_tiles
def test_lengths_that_are_known_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    monkeypatch.setenv("MGX_NUM_THREADS", "2")
    given = {"n": mgx_numba.shape.dynamic_dimension(1, 3), "h": mgx_numba.shape.dynamic_dimension(8, 16)}
    x = {(n, h): images(n, h) for n, h in ((1, 8), (3, 10), (2, 16))}
    found: list[list[np.ndarray]] = []
    for disabled in ("", "pad_convolutions"):
        monkeypatch.setenv("MIGRAPHX_DISABLE_PASSES", disabled)
        p = mgx_numba.parse_onnx_buffer(network().SerializeToString(), dim_params=given)
        mgx_numba.quantize_bf16(p)
        p.compile("cpu", num_threads=2)
        found.append([np.asarray(p.run({"x": value})[0]) for value in x.values()])
    for own, other in zip(*found):
        np.testing.assert_array_equal(own, other)
