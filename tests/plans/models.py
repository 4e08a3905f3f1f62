"""Programs to plan: ONNX's node tests, and the benchmark's models."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.cases import case_names, prepare
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions

from ..frontends.onnx_cases import node_cases, parse_frozen
from ..onnx_backend.runner import manifest
from .record import Record

__all__ = ["model_programs", "node_programs", "record_programs"]


def node_programs(every: int = 1) -> Iterator[tuple[str, Program]]:
    """The node tests over tensors that can be read, by name, some with inputs as initializers; one of ``every``."""
    excluded = manifest()
    for name, case in sorted(node_cases().items())[::every]:
        frozen = excluded[name].constants if name in excluded else []
        if any(i.type.WhichOneof("value") != "tensor_type" for i in case.model.graph.input):
            continue
        if frozen or name not in excluded:
            yield f"node {name}", parse_frozen(case, frozen)[0]


def model_programs(scale: str) -> Iterator[tuple[str, Program]]:
    """The benchmark's models at a scale, with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        for name in case_names(scale):
            case = prepare(name, Path(folder), scale)
            yield f"model {name}", parse_onnx(onnx.load(case.checked))
            for file in Path(folder).iterdir():
                os.remove(file)


def record_programs(record: Record, programs: Iterator[tuple[str, Program]], threads: int) -> None:
    """Lower programs as the target ``cpu`` does, with ``fast_math`` and without; one that fails leaves its error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, program in programs:
            for fast_math in (True, False):
                key = f"{name} {'fast' if fast_math else 'exact'}"
                record.plans[key] = _planned(record, program, TargetOptions(fast_math=fast_math, num_threads=threads))


def _planned(record: Record, program: Program, options: TargetOptions) -> dict[str, Any]:
    try:
        arrays_only, _ = without_tuples(program)
        return record.plan(lower(optimize(arrays_only, options), options))
    except MgxError as error:
        return {"error": f"{type(error).__name__}: {error}"}
