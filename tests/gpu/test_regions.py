"""Pooling of image regions to bins: both modes, given and adaptive sample counts, regions outside, other strides."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.pooling import PoolingMode
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import assert_agrees, reference
from .operators import check_compiles, check_operator, hosted, operator_program
from .programs import compiled, interpreter


def operands(type: Type = Type.float_type) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    rois = np.array([[0, 0, 5, 4], [-3, 1, 2.5, 9], [4, 4, 4, 4], [1.25, 0.5, 6.75, 3], [7, 6, 3, 2]], np.float32)
    images = rng.standard_normal((2, 3, 5, 7))
    return [images.astype(type.numpy), rois.astype(type.numpy), np.array([0, 1, 1, 0, 1])]


@pytest.mark.parametrize("mode", [PoolingMode.average, PoolingMode.max])
@pytest.mark.parametrize("places", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_values(mode: PoolingMode, places: str, ratio: int, on: Engine) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": places, "sampling_ratio": ratio, "spatial_scale": 0.75}
    check_operator(on, "roialign", operands(), output_height=2, output_width=3, **how)


@pytest.mark.parametrize("type", [Type.half_type, Type.bf16_type, Type.double_type])
def test_types(type: Type, on: Engine) -> None:
    check_operator(on, "roialign", operands(type), output_height=2, output_width=2)


def test_infinities_nan_and_no_regions(on: Engine) -> None:
    images, rois, batch = operands()
    images[0, 0, 1, 2], images[1, 2, 3, 3] = np.nan, np.inf
    for given in ([images, rois, batch], [images, rois[:0], batch[:0]]):
        program = operator_program("roialign", given, output_height=3, output_width=3, sampling_ratio=2)
        made = compiled(program, on)
        assert not hosted(made)
        feeds = {f"p{k}": array for k, array in enumerate(given)}
        assert_agrees(made.run(feeds), reference(program, feeds))


def test_regions_that_are_not_finite_have_no_samples(on: Engine) -> None:
    images, rois, batch = operands()
    rois[0, 2], rois[1, 1], rois[2, 0], rois[3] = np.inf, -np.inf, np.nan, np.inf
    for ratio in (0, 2):
        check_operator(on, "roialign", [images, rois, batch], output_height=2, output_width=2, sampling_ratio=ratio)


def test_an_image_that_there_is_not_is_an_error(on: Engine) -> None:
    images, rois, batch = operands()
    made = compiled(operator_program("roialign", [images, rois, batch]), on)
    for wrong in (2, -1):
        batch[3] = wrong
        with pytest.raises(ShapeError, match=f"^roialign: index {wrong} is out of range for 2 images"):
            made.run({"p0": images, "p1": rois, "p2": batch})


@pytest.mark.parametrize("type", [Type.half_type, Type.float_type])
def test_kernels_compile(type: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    check_compiles("roialign", operands(type), interpreter(), mode=PoolingMode.max)
