"""Pointwise clusters that are functions of one byte: a table has every result bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.cluster.pointwise import pointwise_launch
from mgx_numba.codegen.launch import Launch
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.module import Module

from .launching import run_launch, tensor_of

STEPS = ("mul", "erf", "add", "tanh", "mul", "exp", "sub", "sigmoid", "mul", "add") * 3


def chain(source: np.dtype, target: np.dtype) -> Module:
    """A long function of a byte ``x0`` and a scalar ``x1``, which is not finite for some bytes."""
    module = Module("chain")
    byte = module.add_parameter("x0", Shape(from_numpy(source)))
    scale = module.add_parameter("x1", Shape(Type.float_type))
    value = module.add_instruction(
        "mul", [module.add_instruction("convert", [byte], target_type=Type.float_type), scale]
    )
    for name in STEPS:
        operands = [value] if name in ("erf", "tanh", "exp", "sigmoid") else [value, scale]
        value = module.add_instruction(name, operands)
    value = module.add_instruction("log", [value])
    module.add_return([module.add_instruction("convert", [value], target_type=from_numpy(target))])
    return module


def run(module: Module, x: np.ndarray, out: np.ndarray, scale: Any) -> Launch:
    scales = np.broadcast_to(scale, x.shape)
    launch = pointwise_launch(module, [tensor_of(x), tensor_of(scales)], [tensor_of(out)])
    run_launch(launch, {"x0": x, "x1": scales, "out0": out}, pieces=3)
    return launch


@pytest.mark.parametrize("target", [np.uint8, np.float32])
@pytest.mark.parametrize("source", [np.uint8, np.int8])
@pytest.mark.parametrize("lens, gap", [((9000,), 0), ((5, 3, 1201), 0), ((7, 1003), 5)])
def test_a_table_has_the_results_of_the_operations(source: Any, target: Any, lens: Any, gap: int) -> None:
    module, scale = chain(np.dtype(source), np.dtype(target)), np.float32(0.37)
    every = np.arange(np.iinfo(source).min, np.iinfo(source).max + 1).astype(source)
    each = np.zeros(256, target)
    assert "table" not in run(module, every, each, scale).kernel.text
    room = np.random.default_rng(0).integers(0, 256, (*lens[:-1], lens[-1] + gap)).astype(np.uint8).view(source)
    x, out = room[..., : lens[-1]], np.zeros(lens, target)
    text = run(module, x, out, scale).kernel.text
    assert "table" in text
    assert ("lookup(table" in text) == (host.has("avx2") and np.dtype(target).itemsize == 1)
    expected = each[x.astype(np.int64) - int(every[0])]
    np.testing.assert_array_equal(out.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


def test_functions_of_more_than_a_byte_have_no_table() -> None:
    module, x, out = (
        chain(np.dtype(np.uint8), np.dtype(np.uint8)),
        np.zeros((4, 3000), np.uint8),
        np.zeros((4, 3000), np.uint8),
    )
    scales = np.full((4, 1), 0.5, np.float32)
    assert "table" not in run(module, x, out, scales).kernel.text
    assert "table" not in run(module, x[:, ::3], out[:, ::3], np.float32(1)).kernel.text
