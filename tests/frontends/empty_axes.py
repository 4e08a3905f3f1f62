"""Compare ONNX's operators with ONNX Runtime on axes of length 0: node tests with lengths of inputs set to 0.

    python -m tests.frontends.empty_axes [--each N] [--only TEXT] [--first NAME]

Each axis of each input becomes empty alone, then all axes of the same length together. So lengths that must be equal
(as in a product) stay equal. The model's lengths are fixed, or open. A case that ONNX Runtime refuses is not compared.
Each case runs in its own process, because ONNX Runtime crashes on some cases.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx

from .onnx_cases import as_array, node_cases, run_compiled, run_program

__all__ = ["differences", "emptied"]

NEWEST = 23
"""Newest operator set that ONNX Runtime implements in full; models of newer sets are declared to be of this set."""
REFUSED = "refused"
Feeds = dict[str, np.ndarray]


def emptied(feeds: Feeds) -> Iterator[tuple[str, Feeds]]:
    """Yield a name, and the inputs with some axes of length 0, for each choice of axes."""
    lengths = sorted({n for x in feeds.values() for n in x.shape if n > 0})
    for length in lengths:
        yield f"all {length}", {name: _without(x, [n == length for n in x.shape]) for name, x in feeds.items()}
    for name, x in feeds.items():
        for axis, n in enumerate(x.shape):
            if n and (sum(y.shape.count(n) for y in feeds.values()) > 1):
                yield f"{name} {axis}", {**feeds, name: _without(x, [k == axis for k in range(x.ndim)])}


def _without(x: np.ndarray, empty: list[bool]) -> np.ndarray:
    return x[tuple(slice(0) if own else slice(None) for own in empty)]


def _shaped(model: onnx.ModelProto, feeds: Feeds, opened: bool) -> onnx.ModelProto:
    """Return the model with the lengths of ``feeds``, or with open lengths, and with undeclared lengths of results."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, NEWEST)
    copy.ir_version = min(copy.ir_version, 10)
    for value in copy.graph.input:
        shape = value.type.tensor_type.shape
        for axis, dim in enumerate(shape.dim):
            dim.Clear()
            if opened:
                dim.dim_param = f"{value.name}_{axis}"
            else:
                dim.dim_value = feeds[value.name].shape[axis]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def differences(case: Any, choices: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield a label and a description of the difference, "" if there is none, for each variant of a node test."""
    import onnxruntime

    names = [i.name for i in case.model.graph.input]
    feeds = {n: as_array(x) for n, x in zip(names, case.data_sets[0][0], strict=False) if x is not None}
    if len(feeds) != len(names) or not all(isinstance(x, np.ndarray) for x in feeds.values()):
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for choice, given in emptied(feeds):
        if choices is not None and choice not in choices:
            continue
        for opened in (False, True):
            model = _shaped(case.model, given, opened)
            label = f"{choice} {'open' if opened else 'fixed'}"
            try:
                wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, given)
            except Exception:  # ONNX Runtime refuses with various classes
                yield label, REFUSED
                continue
            yield label, _compared(model, given, wanted)


def _compared(model: onnx.ModelProto, feeds: Feeds, wanted: list[Any]) -> str:
    for run in (run_program, run_compiled):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = run(parse_onnx(model), feeds)
        except MgxError as error:
            return f"{run.__name__}: {type(error).__name__}: {error}"
        for result, other in zip(results, wanted, strict=True):
            other = np.asarray(other)
            if result.shape != other.shape:
                return f"{run.__name__}: lengths {result.shape}, ONNX Runtime has {other.shape}"
            if result.dtype.kind in "iufb" and not np.allclose(result, other, 1e-3, 1e-3, equal_nan=True):
                return f"{run.__name__}: {result.ravel()[:4]}, ONNX Runtime has {other.ravel()[:4]}"
    return ""


def _run_case(name: str) -> int:
    """Print the differences of a node test in a child process; return the exit status of that process."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 0
    for label, difference in differences(node_cases()[name]):
        if difference not in ("", REFUSED):
            print(f"{name} {label}: {difference}")
            status = 1
    sys.stdout.flush()
    os._exit(status)


def main() -> int:
    """Run the node tests and print all differences; return 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=2, help="node tests of each operator (default: 2)")
    parser.add_argument("--only", default="", help="a part of the names of node tests")
    parser.add_argument("--first", default="", help="the name to begin with, in alphabetical order")
    given = parser.parse_args()
    operators: Counter[str] = Counter()
    differ = tried = 0
    for name, case in sorted(node_cases().items()):
        operator = case.model.graph.node[0].op_type
        if given.only not in name or name < given.first or "_expanded" in name or operators[operator] >= given.each:
            continue
        operators[operator] += 1
        tried += 1
        status = _run_case(name)
        differ += bool(status)
        if os.WIFSIGNALED(status):
            print(f"{name}: ended by signal {os.WTERMSIG(status)}, which ONNX Runtime does on some")
    print(f"{tried} node tests of {len(operators)} operators, {differ} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
