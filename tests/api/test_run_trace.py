"""``program.run_trace``: a callback for each instruction, with its results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.errors import MgxError, ParameterError

from ..values import normal

FLOAT = "float"


def _program(**dims: Any) -> migraphx.program:
    """``topk(dot(abs(x) - 1, w))``, with its values and indices."""
    p = migraphx.program()
    m = p.get_main_module()
    w = m.add_literal(normal(4, 5, seed=1))
    x = m.add_parameter("x", migraphx.shape(type=FLOAT, **(dims or {"lens": [3, 4]})))
    one = m.add_instruction(migraphx.op("multibroadcast", out_lens=[3, 4]), [m.add_literal(np.ones(1, np.float32))])
    shifted = x if dims else m.add_instruction(migraphx.op("sub"), [x, one])
    product = m.add_instruction(migraphx.op("dot"), [m.add_instruction(migraphx.op("abs"), [shifted]), w])
    top = m.add_instruction(migraphx.op("topk", k=2, axis=1), [product])
    m.add_return([m.add_instruction(migraphx.op("get_tuple_elem", index=k), [top]) for k in (0, 1)])
    return p


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_each_instruction_is_told_with_its_number_and_results(target: str) -> None:
    p, x = _program().compile(target), normal(3, 4)
    told: list[migraphx.trace_info] = []

    def note(info: migraphx.trace_info) -> None:
        assert info.name.split("::")[0] in ("ref", "cpu") and info.seconds >= 0
        assert info.instruction in str(p) and info.instruction.startswith(f"@{info.index} = ")
        assert info.result is info.results[0]
        told.append(info)

    results = p.run_trace({"x": x, "unused": x}, note)
    for result, wanted in zip(results, p.run({"x": x})):
        np.testing.assert_array_equal(result, wanted)
    assert [info.index for info in told] == sorted({info.index for info in told})
    by_operator = {re.split(r"[(\[]", info.instruction.split(" = ")[1])[0]: info.results for info in told}
    np.testing.assert_allclose(by_operator["dot"][0], np.abs(x - 1) @ normal(4, 5, seed=1), rtol=1e-5)
    assert len(by_operator["topk"]) == 2 and by_operator["topk"][1].dtype == np.int64


def test_lengths_of_a_run_and_uncompiled_programs() -> None:
    p, x = (
        _program(dyn_dims=[migraphx.shape.dynamic_dimension(1, 9), migraphx.shape.dynamic_dimension(4, 4)]),
        normal(7, 4),
    )
    shapes: list[tuple[int, ...]] = []
    with pytest.warns(RuntimeWarning, match="not compiled"):
        p.run_trace({"x": x}, lambda info: shapes.append(info.result.shape))
    assert (7, 5) in shapes
    del shapes[:]
    p.compile("cpu").run_trace({"x": x}, lambda info: shapes.append(info.result.shape))
    assert (7, 5) in shapes and (7, 2) in shapes


def test_what_is_refused() -> None:
    p, x = _program().compile("cpu"), normal(3, 4)
    told: list[migraphx.trace_info] = []
    p.run_trace({"x": x}, told.append)
    with pytest.raises(MgxError, match="were not read in the callback"):
        told[0].result  # noqa: B018
    with pytest.raises(ParameterError, match="callback must be a function"):
        p.run_trace({"x": x}, None)
    with pytest.raises(ParameterError, match="Parameter not found: x"):
        p.run_trace({}, told.append)

    def stop(info: migraphx.trace_info) -> None:
        raise KeyError(info.name)

    with pytest.raises(KeyError):
        p.run_trace({"x": x}, stop)
    np.testing.assert_array_equal(p.run_trace({"x": x}, told.append)[0], p.run({"x": x})[0])
