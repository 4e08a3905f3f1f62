"""Every model is restored unchanged from its text, JSON and msgpack, with bit-equal results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bench.models import MODELS, build, inputs, light_models
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.export import to_py
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.mxr import load_buffer, load_program, save_buffer, save_program
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for

LIGHT = sorted(light_models())


def assert_equal(loaded: Program, saved: Program) -> None:
    assert loaded == saved
    for a, b in pairs(loaded, saved):
        if b.literal is not None and b.literal.array is not None:
            assert a.literal is not None
            assert a.literal.shape == b.literal.shape
            assert a.literal.numpy().tobytes() == b.literal.numpy().tobytes()


def pairs(first: Program, second: Program) -> Iterator[tuple[Instruction, Instruction]]:
    for mine, theirs in zip(first.reachable_modules(), second.reachable_modules()):
        yield from zip(mine, theirs)


def results(program: Program, target: str, feeds: dict[str, np.ndarray]) -> list[bytes]:
    return [part for value in compile_for(target, program).run(feeds) for part in _bytes(value)]


def _bytes(value: Any) -> list[bytes]:
    return [part for v in value for part in _bytes(v)] if isinstance(value, (list, tuple)) else [value.tobytes()]


def from_file(program: Program, folder: Path, format: str) -> Program:
    """The program as a file of msgpack or JSON gives it back."""
    save_program(program, folder / f"model.{format}", format)
    return load_program(folder / f"model.{format}", format)[0]


def from_text(program: Program) -> Program:
    """The program as its Python source builds it, in which large literals are made up: those are put back."""
    names: dict[str, Any] = {}
    source = to_py(program)
    exec(compile(source, "<model>", "exec"), names)
    built: Program = names["p"].portable
    assert to_py(built) == source
    for a, b in pairs(built, program):
        if b.literal is not None:
            assert a.literal is not None
            if b.literal.shape.elements < 1024:
                assert a.literal.numpy().tobytes() == b.literal.numpy().tobytes()
            a.literal = b.literal
    return built


@pytest.mark.parametrize("name", [*sorted(MODELS), *LIGHT])
def test_model_round_trips(name: str, tmp_path: Path) -> None:
    """Large models are not run, but for the smallest one: the others show that equal programs have equal results."""
    large = name in LIGHT
    model = onnx.load(light_models()[name]) if large else build(name, scale="tiny")
    feeds = inputs(name, model)
    program = parse_onnx(model, use_debug_symbols=not large)
    targets = ["cpu", "ref"] if not large else ["cpu"] if name == "light_squeezenet" else []
    wanted = {target: results(program, target, feeds) for target in targets}
    for format in ("msgpack", "json"):
        loaded = from_file(program, tmp_path, format)
        assert_equal(loaded, program)
        for target in targets if format == "msgpack" or not large else ():
            assert results(loaded, target, feeds) == wanted[target]
    built = from_text(program)
    for instruction in program.main:
        instruction.debug_symbols = ()  # the text has none
    assert built == program
    assert large or results(built, "cpu", feeds) == wanted["cpu"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_optimised_model_round_trips(name: str) -> None:
    program = optimize(parse_onnx(build(name, scale="tiny")), TargetOptions())
    assert_equal(load_buffer(save_buffer(program))[0], program)
