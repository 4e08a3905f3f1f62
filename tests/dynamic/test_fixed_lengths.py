"""Plans for one set of lengths equal the plans of a model that is static from the start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.runtime.plan import Pointer, Region, Step
from mgx_numba.targets.cpu import program as cpu_program
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.data_dependent_split import split
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import SOURCE_PASSES

from .models import MODELS
from .symbolic_runs import SETTLED

OPTIONS = TargetOptions(num_threads=2)
SAMPLES, LENGTHS = 12, 12


def head(program: Program) -> Program:
    """Return the stage whose lengths are known before a run."""
    arrays = without_tuples(program)[0]
    stages = split(arrays)
    return arrays if stages is None else stages.head


def settled_by_rules(source: Program, lens: Mapping[str, tuple[int, ...]]) -> Program:
    """Return the program specialised for lengths, by shape rules only."""
    settled = specialize(source, lens)
    run_passes(settled, SETTLED)
    return settled


@pytest.mark.parametrize("name", MODELS)
def test_plans_are_those_of_a_program_that_was_static_from_the_start(name: str) -> None:
    """Kernels and numbers are equal, so both plans take the same time."""
    case = MODELS[name]()
    source = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096))
    run_passes(source, SOURCE_PASSES)
    rng = np.random.default_rng(5)
    for _ in range(3):
        lens = {name: array.shape for name, array in case.draw(rng).items()}
        static = parse_onnx(case.model, map_input_dims=lens)
        settled = settled_by_rules(source, lens)
        plans = [lower(cpu_program.optimize(head(program), OPTIONS), OPTIONS) for program in (settled, static)]
        ours, theirs = (
            [(s.kernel.text, s.geometry, _numbers(s)) for s in plan.all_steps() if isinstance(s, Step)]
            for plan in plans
        )
        assert ours == theirs, lens
        assert plans[0].arena_bytes == plans[1].arena_bytes


def _numbers(step: Step) -> list[object]:
    """Return a step's arguments without the numbers of constants, which depend on the order of instructions."""
    constants = {a: (a.region, a.offset) for a in step.args if isinstance(a, Pointer) and a.region is Region.CONSTANT}
    return [constants.get(a, a) if isinstance(a, Pointer) else a for a in step.args]
