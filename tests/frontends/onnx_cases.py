"""ONNX's node tests: read by the frontend, run on the target ``ref`` (the operators' NumPy meaning) and compiled for
``cpu``, compared with the expected outputs, ranks included.

`python -m tests.frontends.onnx_cases` writes the manifest of all of them. A line of it is the test's name, then the
inputs that stand in the file as initializers because the IR needs them constant (axes, shapes); the names after
`FAILING` are of those that do not pass.
"""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
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

MANIFEST = Path(__file__).parent / "onnx_node_tests.txt"
FAILING = "# Not read, not evaluated or random:"

RELATIVE = {"bfloat16": 2e-2, "float16": 2e-3}
ABSOLUTE = {"bfloat16": 1e-2, "float16": 1e-3}


@functools.cache
def node_cases() -> dict[str, Any]:
    """All node tests of the installed onnx package, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def manifest() -> dict[str, list[str]]:
    """Names of the tests that pass, and the inputs that are made constant for each."""
    lines = MANIFEST.read_text().partition(FAILING)[0].splitlines()
    return {name: frozen for name, *frozen in (line.split() for line in lines if not line.startswith("#"))}


def failing() -> list[str]:
    """Names of the other tests."""
    return MANIFEST.read_text().partition(FAILING)[2].split()


def manifest_version() -> str:
    """The version of onnx whose node tests the manifest has."""
    found = re.match(r"# Node tests of onnx (\S+)", MANIFEST.read_text())
    return found[1] if found else ""


def as_array(value: Any) -> np.ndarray:
    """A test's input or output in the element types of the IR."""
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
    """As `run_program`, compiled for ``cpu`` without licence to change values."""
    compiled = public_program.wrap(program.clone()).compile("cpu", fast_math=False, num_threads=1)
    return [np.asarray(result) for result in compiled.run(feeds)]


def run_case(case: Any, frozen: Sequence[str], compiled: bool = False) -> None:
    """Parse, evaluate (on ``cpu``, too, if it is to be ``compiled``) and compare one test.

    Raises:
        AssertionError: results differ from the expected ones.
        MgxError: it cannot be read or evaluated.
    """
    names = [i.name for i in case.model.graph.input]
    inputs, outputs = case.data_sets[0]
    given = dict(zip(names, inputs, strict=False))
    feeds = {name: as_array(value) for name, value in given.items() if name not in frozen}
    model = with_constants(case.model, {name: given[name] for name in frozen})
    program = parse_onnx(model, map_input_dims={name: a.shape for name, a in feeds.items()})
    for run in (run_compiled, run_program) if compiled else (run_program,):
        results = run(program, feeds)
        assert len(results) == len(outputs)
        for result, output in zip(results, outputs, strict=True):
            compare(result, as_array(output), case.rtol, case.atol)


def compare(result: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Equal types, ranks and lengths, and values equal or (floats) within tolerances."""
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
        return
    name = expected.dtype.name
    tolerance = {"rtol": max(rtol, RELATIVE.get(name, 0)), "atol": max(atol, ABSOLUTE.get(name, 1e-6))}
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), **tolerance)


def passes(case: Any) -> list[str] | None:
    """Inputs that must be constant for the test to pass, ``None`` if it does not."""
    frozen: list[str] = []
    while True:
        try:
            run_case(case, frozen)
        except UnsupportedError as error:
            needed = re.search("must be constant, but it depends on input '(.*)'", str(error))
            name = needed[1] if needed else _integer_input(case, frozen) if "dynamic" in str(error) else None
            if name is None or name in frozen:
                return None
            frozen.append(name)
        except (MgxError, AssertionError, ValueError):
            return None
        else:
            return frozen


def _integer_input(case: Any, frozen: Sequence[str]) -> str | None:
    """A small integer input that may be what makes lengths dynamic."""
    for info, value in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        small = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= 8
        if small and info.name not in frozen:
            return info.name
    return None


def is_random(name: str) -> bool:
    """Whether the expected outputs come from a generator that only ONNX's own evaluator has."""
    return "bernoulli" in name


def main() -> None:
    """Write the manifest."""
    found = {name: None if is_random(name) else passes(case) for name, case in sorted(node_cases().items())}
    lines = [" ".join([name, *frozen]) for name, frozen in found.items() if frozen is not None]
    head = [
        f"# Node tests of onnx {onnx.__version__} that pass: {len(lines)} of {len(node_cases())}.",
        "# Written by: python -m tests.frontends.onnx_cases",
    ]
    others = [name for name, frozen in found.items() if frozen is None]
    MANIFEST.write_text("\n".join([*head, *lines, FAILING, *others]) + "\n")
    print(f"{len(lines)} of {len(node_cases())} pass")


if __name__ == "__main__":
    sys.exit(main())
