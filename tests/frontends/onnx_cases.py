"""ONNX's node tests, with some inputs as initializers, on the targets ``ref`` and ``cpu``, ranks included."""

from __future__ import annotations

import functools
import platform
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from mgx_numba.api.program import program as public_program
from mgx_numba.errors import MgxError, UnsupportedError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate

from ..caches import stored

RELATIVE = {"bfloat16": 2e-2, "float16": 2e-3}
ABSOLUTE = {"bfloat16": 1e-2, "float16": 1e-3}


@functools.cache
def node_cases() -> dict[str, Any]:
    """All node tests of the installed onnx package, by name; their outputs are computed once for all runs."""
    versions = (onnx.__version__, np.__version__, platform.python_version())
    return stored("onnx_{}_numpy_{}_python_{}".format(*versions), _node_cases)


def _node_cases() -> dict[str, Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def as_array(value: Any) -> Any:
    """A test's input or output in the element types of the IR; sequences and optionals as they are."""
    if value is None or isinstance(value, list):
        return value
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    name = array.dtype.name
    if name in ("int4", "int2", "uint4", "uint2"):
        return array.astype(np.uint8 if name.startswith("u") else np.int8)
    if name == "float4_e2m1fn":
        import ml_dtypes

        return array.astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    return array


def with_constants(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """A copy in which some inputs have a value."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for name, value in values.items():
        tensor = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value))
        copy.graph.initializer.add().CopyFrom(tensor)
        copy.graph.initializer[-1].name = name
    return copy


def run_program(program: Program, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results of a program on the ``ref`` target, with the ranks that a user gets."""
    validate(program)
    if any(ins.name.startswith("rnn_last") for ins in program.main):
        run_passes(program, ["rewrite_rnn"], validate=True)
    return [np.asarray(result) for result in public_program.wrap(program).run(feeds)]


def run_compiled(program: Program, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a program compiled for ``cpu`` without fast math; see `run_program`."""
    compiled = public_program.wrap(program.clone()).compile("cpu", fast_math=False, num_threads=1)
    return [np.asarray(result) for result in compiled.run(feeds)]


def run_frozen(case: Any, frozen: Sequence[str]) -> None:
    """Run one node test on ``ref`` and ``cpu`` with some inputs as initializers, and compare.

    Raises:
        AssertionError: results differ from the expected ones.
        MgxError: it cannot be read or evaluated.
    """
    program, feeds = parse_frozen(case, frozen)
    outputs = case.data_sets[0][1]
    for run in (run_compiled, run_program):
        results = run(program, feeds)
        assert len(results) == len(outputs)
        for result, output in zip(results, outputs, strict=True):
            compare(result, as_array(output), case.rtol, case.atol)


def parse_frozen(case: Any, frozen: Sequence[str]) -> tuple[Program, dict[str, np.ndarray]]:
    """A node test's program with some inputs as initializers, and the values of the others."""
    given = dict(zip([i.name for i in case.model.graph.input], case.data_sets[0][0], strict=False))
    feeds = {name: as_array(value) for name, value in given.items() if name not in frozen}
    model = with_constants(case.model, {name: given[name] for name in frozen})
    lens = {name: a.shape for name, a in feeds.items() if isinstance(a, np.ndarray)}
    return parse_onnx(model, map_input_dims=lens), feeds


def compare(result: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Equal types, ranks and lengths, and values equal or (floats) within tolerances."""
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
        return
    name = expected.dtype.name
    tolerance = {"rtol": max(rtol, RELATIVE.get(name, 0)), "atol": max(atol, ABSOLUTE.get(name, 1e-6))}
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), **tolerance)


def freezing(name: str) -> list[str] | None:
    """Inputs that must be initializers for a node test to be read and evaluated, ``None`` if that is of no use."""
    case = node_cases().get(name)
    frozen: list[str] = []
    while case is not None:
        try:
            run_frozen(case, frozen)
        except UnsupportedError as error:
            needed = re.search("must be constant, but it depends on input '(.*)'", str(error))
            found = needed[1] if needed else _integer_input(case, frozen) if "dynamic" in str(error) else None
            if found is None or found in frozen:
                return None
            frozen.append(found)
        except (MgxError, AssertionError, ValueError):
            return None
        else:
            return frozen
    return None


def _integer_input(case: Any, frozen: Sequence[str]) -> str | None:
    """Return a small integer input on which lengths may depend, or None."""
    for info, value in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        small = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= 8
        if small and info.name not in frozen:
            return info.name
    return None
