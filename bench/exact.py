"""Exact results of a network, and verdicts on results of a program in some precision.

A 16-bit precision rounds the operands of products. The error of this rounding alone, with all else in float32, is
computed. If it exceeds the general tolerance, no kernel can do better, and a program is judged by it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import mgx_numba
from bench.agreement import Agreement, agreement, choices_of
from mgx_numba.api.program import program as Compiling
from mgx_numba.core.types import Type
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for

__all__ = ["FARTHEST", "QUANTIZE", "Exact", "Verdict", "rounded_operands"]

FARTHEST = {"exact": 1e-4, "float32": 1e-3, "fp16": 1e-2, "bf16": 1e-2}
"""Largest accepted error by kind (``exact`` and ``float32``: without and with ``fast_math``)."""
QUANTIZE: dict[str, Callable[[Compiling], Compiling]] = {
    "fp16": mgx_numba.quantize_fp16,
    "bf16": mgx_numba.quantize_bf16,
}
TAKES = frozenset({"dot", "convolution", "convolution_backwards", "attention"})
"""Operators whose operands are rounded."""
TYPES = {"fp16": Type.half_type, "bf16": Type.bf16_type}
MOST_OF_ROUNDING = 2
MOST_OF_RMS = 1.25
"""Largest accepted ratio of differences to the differences that operand rounding alone causes, for maximum and root
mean square. Measured on YOLO, BERT, EfficientNet-B0 and MobileNetV2 with four inputs each: 0.7 to 1.5 (maximum) and
0.84 to 1.13 (root mean square). EfficientNet-B0 with its gates rounded as well has 1.5 times the root mean square."""


@dataclass(frozen=True)
class Verdict:
    """An agreement, its tolerance, and, if that is exceeded, the error of rounding operands alone."""

    found: Agreement
    farthest: float
    rounding: Agreement | None = None

    @property
    def right(self) -> bool:
        """Whether errors are within the precision's tolerance, and choices follow from their inputs."""
        found, alone = self.found, self.rounding
        within = found.error <= self.farthest
        if not within and alone is not None:
            within = found.error <= MOST_OF_ROUNDING * alone.error and found.rms <= MOST_OF_RMS * alone.rms
        return within and not found.problem

    def __str__(self) -> str:
        if self.rounding is None:
            far = "" if self.found.error <= self.farthest else f" (at most {self.farthest:.0e} is right)"
            return f"{self.found}{far}"
        alone = f"at most {self.farthest:.0e} is asked, rounding operands alone gives {self.rounding.error:.1e}"
        return f"{self.found} ({alone}{'' if self.right else ': wrong'})"


class Exact:
    """A network on given inputs, in float32 on ``cpu`` without ``fast_math``."""

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
        """Compute the results of ``model``, which is a model from `exposed`."""
        self._feeds = feeds
        self._portable = mgx_numba.parse_onnx_buffer(model.SerializeToString()).portable
        self._choices = choices_of(model)
        self.results = self._run(self._portable)
        self.rounding = functools.cache(self._rounding)

    def judge(self, found: Sequence[Any], kind: str) -> Verdict:
        """Return the verdict on the results of a program of a kind in `FARTHEST`."""
        compared = agreement(found, self.results, self._choices)
        beyond = compared.error > FARTHEST[kind] and kind in TYPES
        return Verdict(compared, FARTHEST[kind], self.rounding(kind) if beyond else None)

    def _rounding(self, kind: str) -> Agreement:
        return agreement(self._run(rounded_operands(self._portable, TYPES[kind])), self.results, self._choices)

    def _run(self, program: Program) -> list[np.ndarray]:
        compiled = compile_for("cpu", program, TargetOptions(fast_math=False))
        return [np.asarray(r) for r in compiled.run(self._feeds)]


def rounded_operands(program: Program, type: Type) -> Program:
    """Return a copy whose products round their operands to ``type``; everything is computed in float32."""
    copy = program.clone()
    run_passes(copy, ["normalize_ops", "optimize_module"])
    for module in copy.reachable_modules():
        for ins in list(module):
            for k, operand in enumerate(ins.inputs[:2] if ins.name in TAKES else ()):
                if operand.shape.type is Type.float_type:
                    narrow = module.insert_instruction(ins, "convert", [operand], target_type=type)
                    wide = module.insert_instruction(ins, "convert", [narrow], target_type=Type.float_type)
                    module.set_inputs(ins, {k: wide})
    return copy
