"""Non-maximum suppression: ties, missing limits, and a number of rows that the host reads."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.gpu.data import detection
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.targets.registry import compile_for

from ..cpu.agreement import assert_agrees, reference
from .operators import check_compiles, hosted, operator_program
from .programs import compiled, downloads, interpreter


def operands(count: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    scores = np.round(rng.random((2, 2, count)), 1).astype(np.float32)
    scores[0, 1, :3] = [np.nan, -np.inf, np.inf]
    limits = [np.array([5]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    return [rng.random((2, count, 4)).astype(np.float32), scores, *limits]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two warps a block: the interpreter takes time for each thread."""
    monkeypatch.setattr(detection, "THREADS", 64)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("given", [3, 4, 5])
def test_boxes_that_are_kept(center: bool, given: int, on: Engine) -> None:
    arrays = operands()[:given]
    if given < 5:
        arrays[1] = np.where(np.isfinite(arrays[1]), arrays[1], np.float32(0.5))  # ref keeps NaN if nothing is lowest
    for dynamic in (False, True):
        program = operator_program("nonmaxsuppression", arrays, center_point_box=center, use_dyn_output=dynamic)
        made = compiled(program, on)
        assert hosted(made) == (["gpu::nonmaxsuppression_rows"] if dynamic else [])
        feed = {f"p{k}": a for k, a in enumerate(arrays)}
        assert_agrees(made.run(feed), reference(program, feed))


@pytest.mark.parametrize("dynamic", [False, True])
def test_more_classes_than_a_warp_has_threads(dynamic: bool, on: Engine) -> None:
    rng = np.random.default_rng(5)
    scores = np.round(rng.random((2, 17, 4)), 1).astype(np.float32)
    scores[:, ::3] = 0
    limits = [np.array([2]), np.array([0.5], np.float32), np.array([0.3], np.float32)]
    arrays = [rng.random((2, 4, 4)).astype(np.float32), scores, *limits]
    program = operator_program("nonmaxsuppression", arrays, use_dyn_output=dynamic)
    feed = {f"p{k}": a for k, a in enumerate(arrays)}
    assert_agrees(compiled(program, on).run(feed), reference(program, feed))


def test_of_rows_on_a_device_their_number_alone_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, engine = operands(), interpreter()
    program = operator_program("nonmaxsuppression", arrays, use_dyn_output=True)
    net = compiled(program, engine, offload_copy=False)
    feed = {f"p{k}": a for k, a in enumerate(arrays)}
    contraction = {name: to_device(engine, array, name) for name, array in feed.items()}
    read = downloads(monkeypatch)
    (result,) = net.run(contraction)
    assert [size for size in read if size] == [8]
    assert_agrees([to_host(engine, result).reshape(result.shape.lens)], reference(program, feed))


def test_rows_that_are_results_twice_and_read_by_another_step(on: Engine) -> None:
    arrays = operands()
    program = operator_program("nonmaxsuppression", arrays, use_dyn_output=True)
    (rows,) = program.main.results()
    program.main.replace_return([rows, rows, program.main.add_instruction("neg", [rows])])
    feed = {f"p{k}": a for k, a in enumerate(arrays)}
    wanted = compile_for("ref", program).run(feed)
    for made in (compiled(program, on), compile_for("cpu", program)):
        for _ in range(2):
            for found, expected in zip(made.run(feed), wanted, strict=True):
                np.testing.assert_array_equal(found, expected)


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    check_compiles("nonmaxsuppression", operands(), interpreter(), center_point_box=True)
