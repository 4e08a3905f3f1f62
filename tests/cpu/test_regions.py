"""Pooling of image regions to bins by kernels: modes, sample counts, memory orders, types, regions outside."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen.cpu.data.detection import BLOCK
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from .programs import Build, check, program_of

ROIS = np.array([[0, 0, 5, 4], [-3, 1, 2.5, 9], [4, 4, 4, 4], [1.25, 0.5, 6.75, 3], [7, 6, 3, 2]], np.float32)
BATCH = np.array([0, 1, 1, 0, 1])


def images(*lens: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(lens).astype(np.float32)


def pooled(**how: object) -> Build:
    return lambda m, p: m.add_instruction("roialign", p, **how)


def native(inputs: list[np.ndarray], build: Build, rtol: float = 1e-5) -> None:
    check(inputs, build, rtol)
    plan = lower(program_of(inputs, build), TargetOptions())
    assert not [s.label for s in plan.steps if isinstance(s, FallbackStep)]


@pytest.mark.parametrize("mode", ["average", "max"])
@pytest.mark.parametrize("places", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_values(mode: str, places: str, ratio: int) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": places, "sampling_ratio": ratio, "spatial_scale": 0.75}
    native([images(2, 3, 5, 7), ROIS, BATCH], pooled(output_height=2, output_width=3, **how))


@pytest.mark.parametrize("channels", [1, 8, 13, BLOCK + 9])
@pytest.mark.parametrize("height", [4, 90], ids=["copied to channels-last", "read in place"])
def test_any_number_of_channels(channels: int, height: int) -> None:
    native([images(2, channels, height, 3), ROIS, BATCH], pooled(output_height=2, output_width=1, sampling_ratio=1))


def test_images_with_contiguous_channels() -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = m.add_instruction("transpose", [p[0]], permutation=(0, 3, 1, 2))
        return m.add_instruction("roialign", [x, *p[1:]], output_height=3, output_width=2, sampling_ratio=2)

    native([images(2, 5, 7, 19), ROIS, BATCH], build)


@pytest.mark.parametrize("type", [Type.half_type, Type.bf16_type, Type.double_type])
def test_types(type: Type) -> None:
    def build(m: Module, p: list[Instruction]) -> Instruction:
        x = m.add_instruction("convert", [p[0]], target_type=type)
        made = m.add_instruction("roialign", [x, *p[1:]], output_height=2, output_width=2, sampling_ratio=2)
        return m.add_instruction("convert", [made], target_type=Type.float_type)

    native([images(2, 9, 5, 7), ROIS, BATCH], build, 1e-2 if type.size == 2 else 1e-5)


def test_infinities_nan_no_regions_and_no_channels() -> None:
    x = images(2, 3, 5, 7)
    x[0, 0, 1, 2], x[1, 2, 3, 3] = np.nan, np.inf
    for count in (5, 0):
        native([x, ROIS[:count], BATCH[:count]], pooled(output_height=3, output_width=3, sampling_ratio=2))
    check([x[:, :0], ROIS, BATCH], pooled(output_height=3, output_width=3, sampling_ratio=2))


@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_that_are_not_finite_have_no_samples(ratio: int) -> None:
    """A region that ends at infinity took samples for ever."""
    rois = ROIS.copy()
    rois[0, 2], rois[1, 1], rois[2, 0], rois[3] = np.inf, -np.inf, np.nan, np.inf
    native([images(2, 3, 5, 7), rois, BATCH], pooled(output_height=2, output_width=2, sampling_ratio=ratio))


def test_an_image_that_there_is_not_is_an_error() -> None:
    inputs = [images(2, 3, 5, 7), ROIS, BATCH.copy()]
    made = migraphx.program.wrap(program_of(inputs, pooled())).compile(migraphx.get_target("cpu"))
    for wrong in (2, -1):
        inputs[2][3] = wrong
        with pytest.raises(ShapeError, match=f"^roialign: index {wrong} is out of range for 2 images"):
            made.run({f"p{k}": a for k, a in enumerate(inputs)})
