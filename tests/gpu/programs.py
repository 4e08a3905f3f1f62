"""Programs on the interpreter and on the device, compared with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.targets.gpu.program import GpuProgram, compile_program
from mgx_numba.targets.options import TargetOptions

from ..cpu.agreement import assert_agrees, reference
from ..cpu.random_programs import Builder, seeded
from ..interpreter.engine import InterpreterQueue, interpreted

STEPS = 12


def interpreter() -> Engine:
    with interpreted():
        return engine()


def downloads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the bytes of each copy from the interpreter's memory to the host from now on."""
    read: list[int] = []
    original = InterpreterQueue.download

    def download(self: InterpreterQueue, target: np.ndarray, address: int) -> None:
        read.append(target.nbytes)
        original(self, target, address)

    monkeypatch.setattr(InterpreterQueue, "download", download)
    return read


def compiled(program: Program, on: Engine, **options: object) -> Any:
    return compile_program(program, TargetOptions(**{"fast_math": False, **options}), on=on)  # type: ignore[arg-type]


def labels(made: GpuProgram) -> list[str]:
    """Return the labels of the plan's steps."""
    assert made.executable is not None
    return [step.label for step in made.executable.plan.steps]


def inputs_of(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Normally distributed numbers for its parameters."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s.lens).astype(s.type.numpy) for n, s in program.parameter_shapes().items()}


def random_program(seed: int) -> Builder:
    return seeded(seed, STEPS)


def check(builder: Builder, on: Engine) -> GpuProgram:
    """The values of ref for two sets of inputs, and the same again."""
    program = compiled(builder.program, on)
    for seed in (1, 2):
        inputs = builder.inputs(seed)
        assert_agrees(program.run(inputs), reference(builder.program, inputs))
    return program
