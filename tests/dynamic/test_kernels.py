"""Kernels of programs with dynamic inputs: `compile` makes all of them, and lengths are arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu import lower
from mgx_numba.targets.cpu import program as cpu_program
from mgx_numba.targets.options import TargetOptions

from ..running import said
from .models import MODELS

SCRIPT = """
import sys
import numpy as np
import mgx_numba as migraphx
from mgx_numba.codegen.workers import batch
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from onnx import TensorProto, helper, numpy_helper

weights = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
nodes = [
    helper.make_node("MatMul", ["x", "w"], ["m"]),
    helper.make_node("Softmax", ["m"], ["s"]),
    helper.make_node("Concat", ["s", "m"], ["y"], axis=0),
]
graph = helper.make_graph(
    nodes,
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    [numpy_helper.from_array(weights, "w")],
)
program = migraphx.program.wrap(
    parse_onnx(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        default_dyn_dim_value=DynamicDimension(1, int(sys.argv[1])),
    )
).compile()
count = len(program.kernels())

def refused(*args):
    raise AssertionError("compiled in a run")

batch.compile_objects = refused
for n in (5, 1, 2, 1000, 17, 3, 64, 999):
    x = np.arange(3 * n, dtype=np.float32).reshape(n, 3) % 7
    m = x @ weights
    e = np.exp(m - m.max(1, keepdims=True))
    wanted = np.concatenate([e / e.sum(1, keepdims=True), m])
    np.testing.assert_allclose(np.asarray(program.run({"x": x})[0]), wanted, rtol=1e-4, atol=1e-5)
assert count
"""


@pytest.mark.parametrize("most", [5_000_000])
def test_nothing_is_compiled_in_a_run(tmp_path: Path, most: int) -> None:
    said(SCRIPT, most, seconds=300, MGX_CACHE_DIR=tmp_path)


def test_a_program_that_fits_one_length_of_a_range_runs_at_it_and_says_so_elsewhere() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(2, 50)]))
    nineteen = program.main.add_literal(np.arange(19, dtype=np.float32))
    wide = program.main.add_instruction("multibroadcast", [nineteen, x])
    program.main.add_return([program.main.add_instruction("add", [x, wide])])
    compiled = public_program.wrap(program).compile("cpu")
    values = np.ones(19, np.float32)
    np.testing.assert_array_equal(np.asarray(compiled.run({"x": values})[0]), np.arange(1, 20, dtype=np.float32))
    with pytest.raises(ShapeError, match=r"where inputs have lengths x \[7\]"):
        compiled.run({"x": np.ones(7, np.float32)})


def test_means_of_any_lengths_have_the_same_kernels() -> None:
    """Numbers of elements are arguments, also where rows are divided."""
    source = parse_onnx(MODELS["shuffle_net"]().model, default_dyn_dim_value=DynamicDimension(1, 1024))
    options = TargetOptions()
    found = []
    for lens in ((64, 4, 16, 16), (37, 4, 41, 43), (67, 4, 71, 73)):
        optimized = cpu_program.optimize(specialize(source, {"x": lens}), options)
        assert optimized.log.applied["split_reduce"] == 1
        plan = lower.lower(optimized, options)
        assert not any(isinstance(step, FallbackStep) for step in plan.steps)
        found.append({kernel.text for kernel in plan.kernels() if "reduce" in kernel.name})
    assert found[0] == found[1] == found[2] and found[0]
