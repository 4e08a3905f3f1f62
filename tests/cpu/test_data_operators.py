"""Operators that move, select or window data, lowered for the CPU, against ref: no fallback steps, any destination."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..values import normal
from .programs import check, program_of

values = functools.partial(normal, scale=10)

NHWC = (0, 2, 3, 1)


def native(inputs: Sequence[np.ndarray], build: Any) -> None:
    """Results agree with ref, and every step is a kernel."""
    check(inputs, build)
    plan = lower(program_of(inputs, build), TargetOptions())
    assert not [s.label for s in plan.steps if isinstance(s, FallbackStep)]


def in_layout(m: Module, x: Instruction) -> Instruction:
    return m.add_instruction("layout", [x], permutation=NHWC)


OPERATORS: dict[str, dict[str, Any]] = {
    "max pooling": {"name": "pooling", "mode": "max", "lengths": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    "large max pooling": {"name": "pooling", "mode": "max", "lengths": (5, 5), "padding": (2, 2)},
    "mean": {"name": "pooling", "mode": "average", "lengths": (2, 3), "stride": (2, 1)},
    "lrn": {"name": "lrn", "size": 5, "alpha": 0.1},
    "pad": {"name": "pad", "pads": (0, 0, 1, 2, 0, 0, 1, 0), "value": 2.0},
    "reflect": {"name": "pad", "pads": (0, 0, 1, 2, 0, 0, 1, 0), "mode": "reflect"},
    "fixed pad": {"name": "fixed_pad", "output_lens": (2, 20, 12, 13)},
    "nearest": {"name": "resize", "scales": (1, 1, 2.5, 2)},
    "linear": {"name": "resize", "scales": (1, 1, 2, 2), "mode": "linear"},
    "reverse": {"name": "reverse", "axes": (1, 3)},
    "scan": {"name": "prefix_scan_sum", "axis": 1, "exclusive": True},
    "argmax": {"name": "argmax", "axis": 1},
}


@pytest.mark.parametrize("case", OPERATORS)
@pytest.mark.parametrize("order", ["nchw", "nhwc"])
def test_alone_and_inside_of_a_concatenation(case: str, order: str) -> None:
    attributes = dict(OPERATORS[case])
    name = attributes.pop("name")

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        place = in_layout if order == "nhwc" else (lambda m, x: x)
        first = m.add_instruction(name, [place(m, p[0])], **attributes)
        second = m.add_instruction(name, [place(m, p[1])], **attributes)
        joined = m.add_instruction("concat", [first, second], axis=1)
        return [m.add_instruction(name, [place(m, p[0])], **attributes), joined]

    native([values(2, 20, 9, 11), values(2, 20, 9, 11, seed=1)], build)


@pytest.mark.parametrize("value", [0.0, -1.5, float("inf"), float("nan")])
def test_padding_of_many_small_images(value: float) -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        every = m.add_instruction("pad", [p[0]], pads=(0, 2, 1, 0, 1, 0, 2, 1), value=value)
        alone = m.add_instruction("pad", [p[0]], pads=(0, 0, 1, 1, 0, 0, 1, 1), value=value)
        return [every, alone, m.add_instruction("concat", [alone, alone], axis=1)]

    x = values(2, 300, 7, 5)
    x[0, 0] = np.nan
    native([x], build)


def test_embedding_of_tokens_and_positions() -> None:
    table, tokens = values(50, 40), np.random.default_rng(1).integers(0, 50, (2, 9))

    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("gather", p, axis=0)

    native([table, tokens], build)


def test_gathers_and_one_hot() -> None:
    x, indices = values(6, 7, 8), np.random.default_rng(1).integers(0, 6, (6, 4, 8))

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        return [
            m.add_instruction("gather_elements", p[:2], axis=1),
            m.add_instruction("gathernd", [p[0], p[2]]),
            m.add_instruction("onehot", [p[2], p[3]], axis=1, depth=6),
        ]

    pairs = np.random.default_rng(1).integers(0, 6, (5, 2))
    native([x, indices, pairs, np.array([0.0, 1.0], np.float32)], build)


@pytest.mark.parametrize("combine", ["none", "add", "max"])
def test_scatters(combine: str) -> None:
    rng = np.random.default_rng(1)
    inputs = [values(6, 7, 8), rng.integers(0, 7, (6, 3, 8)), values(6, 3, 8), rng.permutation(6)[:4, None]]

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        return [
            m.add_instruction(f"scatter_{combine}", p[:3], axis=1),
            m.add_instruction(f"scatternd_{combine}", [p[0], p[3], p[4]]),
        ]

    unique = np.stack([np.stack([rng.permutation(7)[:3] for _ in range(8)], -1) for _ in range(6)])
    native([inputs[0], unique if combine == "none" else inputs[1], inputs[2], inputs[3], values(4, 7, 8)], build)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_topk_members(axis: int) -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        both = m.add_instruction("topk", p, k=4, axis=axis)
        return [m.add_instruction("get_tuple_elem", [both], index=k) for k in (0, 1)]

    native([values(5, 30, 7)], build)
    native([values(37, 4, 40)], build)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
@pytest.mark.parametrize(("lens", "axis"), [((3000,), 0), ((2, 1500), 1), ((1, 3, 999), 2), ((1100, 2), 0)])
@pytest.mark.parametrize("k", [1, 70])
def test_long_rows_in_parts(k: int, lens: tuple[int, ...], axis: int, dtype: Any, given_machine: Any) -> None:
    """A few rows that several tasks share: top-k, positions of extremes and running sums, with ties and NaN."""
    given_machine(row_part_elements=90)
    x = np.round(values(*lens)).astype(dtype)
    if dtype is np.float32:
        x.reshape(-1)[[5, 400, 401]] = [np.inf, np.nan, -np.inf]

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        both = [m.add_instruction("topk", p, k=k, axis=axis, largest=largest) for largest in (0, 1)]
        found = [m.add_instruction("get_tuple_elem", [b], index=e) for b in both for e in (0, 1)]
        found += [m.add_instruction(name, p, axis=axis) for name in ("argmax", "argmin")]
        return [*found, m.add_instruction("prefix_scan_sum", p, axis=axis, exclusive=1, reverse=0)]

    native([x], build)
    plan = lower(program_of([x], build), TargetOptions())
    sorts = sum("topk_sort" in step.label for step in plan.steps)  # of bytes: one step, not two
    assert len(plan.steps) + sorts >= 9


def test_copies_between_layouts() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        turned = in_layout(m, p[0])
        return m.add_instruction("contiguous", [m.add_instruction("relu", [turned])])

    native([values(2, 3, 30, 20)], build)
    native([values(1, 40, 9, 7)], build)


def test_fill() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction("fill", p)

    native([np.array([2.5], np.float32), values(3, 4, 50)], build)


def test_what_no_kernel_does_runs_on_the_host() -> None:
    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        return [
            m.add_instruction("resize", [p[0]], scales=(1, 1.5), mode="linear"),
            m.add_instruction("scatter_add", [p[1], p[2], p[3]], axis=0),
        ]

    half = values(4, 3, dtype=np.float16)
    check([values(3, 8, dtype=np.int32), half, np.zeros((2, 3), np.int64), half[:2]], build, rtol=1e-3)


@pytest.mark.parametrize("k", [40, 500, 1024, 1025, 2000])
@pytest.mark.parametrize("axis", [0, 1])
def test_topk_of_many_elements(k: int, axis: int) -> None:
    """Large k took a host step."""
    x = values(9, 2000) if axis else values(2000, 9)

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        both = m.add_instruction("topk", p, k=k, axis=axis)
        return [m.add_instruction("get_tuple_elem", [both], index=j) for j in range(2)]

    native([x], build)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("given", [1, 2, 3])
def test_suppression_of_overlapping_boxes(given: int, dynamic: bool, center: bool) -> None:
    rng = np.random.default_rng(4)
    boxes = rng.uniform(0, 4, (2, 60, 4)).astype(np.float32)
    scores = rng.integers(0, 12, (2, 3, 60)).astype(np.float32)
    scores[0, 1] = -np.inf
    scores[1, :, ::7] = np.nan
    limits = [np.array([9]), np.array([0.3], np.float32), np.array([2.0], np.float32)]

    def build(m: Module, p: list[Instruction]) -> Instruction:
        rest = p[2:] if center else [m.add_literal(v) for v in limits[:given]]
        return m.add_instruction("nonmaxsuppression", [*p[:2], *rest], center_point_box=center, use_dyn_output=dynamic)

    check([boxes, scores, *(limits[:given] if center else [])], build)


@pytest.mark.parametrize(
    "types", [("half_type", "half_type"), ("float_type", "double_type"), ("double_type", "half_type")]
)
@pytest.mark.parametrize("keep", [1, 7, 1000])
def test_suppression_of_many_boxes_that_overlap(types: tuple[str, str], keep: int) -> None:
    rng = np.random.default_rng(6)
    boxes = rng.uniform(0, 9, (1, 701, 4)).astype(np.float32)
    scores = rng.standard_normal((1, 3, 701)).astype(np.float32)
    scores[0, 1, ::3], scores[0, 2, 5], scores[0, 2, 6] = scores[0, 1, 1], np.inf, np.nan

    def build(m: Module, p: list[Instruction]) -> Instruction:
        limits = [m.add_literal(v) for v in (np.array([keep]), np.array([0.2], np.float32))]
        typed = [m.add_instruction("convert", [x], target_type=Type[t]) for x, t in zip(p, types)]
        return m.add_instruction("nonmaxsuppression", [*typed, *limits], use_dyn_output=True)

    check([boxes, scores], build)


def test_suppression_of_scores_by_box() -> None:
    """A detector's scores come as a transpose's view, boxes outermost."""
    rng = np.random.default_rng(5)
    boxes = rng.uniform(0, 4, (2, 71, 4)).astype(np.float32)
    scores = rng.uniform(-1, 1, (2, 71, 5)).astype(np.float32)
    scores[0, :9, 1] = np.nan

    def build(m: Module, p: list[Instruction]) -> Instruction:
        limits = [m.add_literal(v) for v in (np.array([20]), np.array([0.4], np.float32), np.array([0.1], np.float32))]
        by_class = m.add_instruction("transpose", [p[1]], permutation=(0, 2, 1))
        return m.add_instruction("nonmaxsuppression", [p[0], by_class, *limits], use_dyn_output=True)

    check([boxes, scores], build)


def test_constants_read_as_another_type_need_no_host() -> None:
    """Constant indices of an embedding, spread over a batch, were reinterpreted by NumPy in every call."""
    table = np.arange(-6, 6, dtype=np.int64).reshape(3, 4)

    def build(m: Module, x: Sequence[Instruction]) -> Instruction:
        spread = m.add_instruction("multibroadcast", [m.add_literal(table[1:, 1:2])], out_lens=(2, 5))
        read = [m.add_instruction("bit_cast", [y], target_type="uint64_type") for y in (spread, m.add_literal(table.T))]
        cut = m.add_instruction("slice", [read[1]], axes=(0,), starts=(1,), ends=(3,))
        sums = [m.add_instruction("reduce_max", [y], axes=(0, 1)) for y in (read[0], cut)]
        return m.add_instruction("add", [*x, m.add_instruction("add", sums)])

    native([np.ones((1, 1), np.uint64)], build)


@pytest.mark.parametrize("classes", [2, 3, 5, 11, 64, 65])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_of_pairs_of_classes(classes, dtype):
    """A fallback step took 60 us a row: a support vector machine of 3 classes was 60 times as slow as ONNX Runtime."""
    pairs = classes * (classes - 1) // 2
    x = np.random.default_rng(classes).random((7, pairs)).astype(dtype)
    x[1, : pairs // 2], x[2], x[3, -1], x[4] = 1e-7, 1 - 1e-7, np.nan, 0.5
    for some in (x, x[:1], x[:0], np.asfortranarray(x)):
        check([some], lambda m, p: m.add_instruction("pairwise_coupling", [p[0]], classes=classes), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize("lens", [(1,), (7,), (312,), (313,), (1000, 3), (0,), (2, 0, 5)])
def test_random_numbers_are_those_of_the_mersenne_twister(dtype, lens):
    """They were made in a fallback step: 0.2 of ONNX Runtime's speed."""
    for seed in (np.array([5489], np.uint64), np.array([-7], np.int64), np.array([2**32 - 1], np.uint32)):
        check([seed, np.zeros(lens, dtype)], lambda m, p: m.add_instruction("random_uniform", [p[0], p[1]]), rtol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("order", [None, NHWC])
def test_largest_pixels_of_regions(dtype, order):
    """A fallback step took ten times as long as ONNX Runtime."""
    x = values(2, 19, 9, 8).astype(dtype)
    x[0, 3, 4, 4], x[1, :5, 2], x[1, 7] = np.nan, -np.inf, np.inf
    rois = [[0, 0, 0, 7, 8], [1, 2.5, 1, 5.2, 3], [1, 6, 6, 3, 2], [0, -4.5, 5, 30, 40]]
    rois += [[1, 3, 3, 3, 3], [1, 9, 9, 12, 12]]
    for scale, cells in ((1.0, (2, 3)), (0.3, (7, 7)), (0.5, (1, 1))):

        def build(m: Module, p: Sequence[Instruction], scale: float = scale, cells: Any = cells) -> Instruction:
            images = in_layout(m, p[0]) if order else p[0]
            return m.add_instruction("max_roi_pool", [images, p[1]], spatial_scale=scale, pooled_shape=cells)

        native([x, np.array(rois, dtype)], build)
        check([x[:, :0], np.array(rois, dtype)], build)
        check([x, np.array(rois, dtype)[:0]], build)


@pytest.mark.parametrize("keep", [1, 20, 200])
@pytest.mark.parametrize("spread", [0.05, 3.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_suppression_that_sorts_the_best_of_many_boxes_first(keep, spread, dtype):
    """All of 4,960 boxes were sorted to keep 20: 40 us, ONNX Runtime 21. Boxes that overlap take a second attempt."""
    rng = np.random.default_rng(keep)
    corners = rng.random((1, 3000, 2)) * spread
    boxes = np.concatenate([corners, corners + 0.5], 2).astype(dtype)
    scores = rng.random((1, 3, 3000)).astype(dtype)
    scores[0, 1] = np.round(scores[0, 1] * 4)  # ties
    scores[0, 2, ::3] = np.nan

    def build(m, p):
        limits = [m.add_literal(np.array([v], t)) for v, t in ((keep, np.int64), (0.5, np.float32), (0.1, np.float32))]
        return m.add_instruction("nonmaxsuppression", [*p, *limits], use_dyn_output=True)

    check([boxes, scores], build)
