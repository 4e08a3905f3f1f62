"""Indices out of range are errors of `run`, on cpu as on ref, and disturb nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mgx_numba.targets.cpu.options import CpuOptions
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import HostStep, Step
from mgx_numba.targets.lowering.lowering import lower

from .programs import Build, check, program_of


def compiled(inputs: Sequence[np.ndarray], build: Build, target: str = "cpu", **options: Any) -> migraphx.program:
    return migraphx.program.wrap(program_of(inputs, build)).compile(migraphx.get_target(target), **options)


def feeds(*inputs: np.ndarray) -> dict[str, np.ndarray]:
    return {f"p{k}": a for k, a in enumerate(inputs)}


def numbers(*lens: int) -> np.ndarray:
    return np.arange(np.prod(lens), dtype=np.float32).reshape(lens)


OPERATORS: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], tuple[int, ...], str]] = {
    "gather": ({"axis": 1}, (3, 5, 8), (4, 2), (), "axis 1 of length 5"),
    "gather_elements": ({"axis": 1}, (4, 5), (4, 7), (), "axis 1 of length 5"),
    "gathernd": ({}, (5, 5, 3), (6, 2), (), "axis 0 of length 5"),
    "scatter_none": ({"axis": 0}, (5, 3), (4, 3), (4, 3), "axis 0 of length 5"),
    "scatter_add": ({"axis": 1}, (3, 5), (3, 4), (3, 4), "axis 1 of length 5"),
    "scatternd_none": ({}, (5, 5, 3), (6, 2), (6, 3), "axis 0 of length 5"),
    "scatternd_max": ({}, (5, 4), (6, 1), (6, 4), "axis 0 of length 5"),
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_index_out_of_range_had_a_value_on_cpu(name: str, dtype: Any) -> None:
    attributes, lens, index_lens, update_lens, fits = OPERATORS[name]
    indices = np.random.default_rng(0).integers(0, 5, index_lens).astype(dtype)
    inputs = [numbers(*lens), indices, *([numbers(*update_lens)] if update_lens else [])]

    def build(m: Module, p: list[Instruction]) -> Instruction:
        return m.add_instruction(name, p, **attributes)

    programs = [compiled(inputs, build, target) for target in ("ref", "cpu")]
    expected = programs[0].run(feeds(*inputs))[0]
    np.testing.assert_array_equal(programs[1].run(feeds(*inputs))[0], expected)
    for wrong in [5, 2**31 - 1, *([-6, -(2**31)] if np.dtype(dtype).kind == "i" else [])]:
        bad = indices.copy()
        bad.reshape(-1)[0] = wrong
        given = feeds(inputs[0], bad, *inputs[2:])
        for program in programs:
            with pytest.raises(ShapeError, match=f"^{name}: index {wrong} is out of range for {fits}$"):
                program.run(given)
            np.testing.assert_array_equal(program.run(feeds(*inputs))[0], expected)
    if np.dtype(dtype).kind == "u":
        bad.reshape(-1)[0] = 2**64 - 1
        for program in programs:
            with pytest.raises(ShapeError, match="is out of range"):
                program.run(feeds(inputs[0], bad, *inputs[2:]))


def test_the_first_step_that_meets_one_is_named() -> None:
    x, first, second = numbers(4, 3), np.array([0, 9]), np.array([7, 0, 1])

    def build(m: Module, p: list[Instruction]) -> Instruction:
        picked = m.add_instruction("gather", [p[0], p[1]], axis=0)
        return m.add_instruction("gather", [picked, p[2]], axis=1)

    program = compiled([x, first, second], build)
    with pytest.raises(ShapeError, match="^gather: index 9 is out of range for axis 0 of length 4$"):
        program.run(feeds(x, first, second))
    with pytest.raises(ShapeError, match="^gather: index 7 is out of range for axis 1 of length 3$"):
        program.run(feeds(x, np.array([0, -4]), second))


def test_host_steps_do_not_run_on_what_a_wrong_index_gave() -> None:
    x, indices = np.ones((4, 3), np.float32), np.array([0, 4])

    def build(m: Module, p: list[Instruction]) -> Instruction:
        picked = m.add_instruction("gather", [p[0], p[1]], axis=0)
        return m.add_instruction("nonzero", [picked])

    program = compiled([x, indices], build)
    assert any(isinstance(s, HostStep) for s in lower(program_of([x, indices], build), CpuOptions()).steps)
    with pytest.raises(ShapeError, match="index 4 is out of range"):
        program.run(feeds(x, indices))
    assert program.run(feeds(x, np.array([0, 3])))[0].tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 2, 0, 1, 2]


def test_calls_at_the_same_time_are_not_disturbed() -> None:
    x, indices = numbers(1000, 16), np.random.default_rng(1).integers(-1000, 1000, 3000)
    program = compiled([x, indices], lambda m, p: m.add_instruction("gather", p, axis=0))
    bad = indices.copy()
    bad[2500] = 1000
    failures: list[str] = []

    def work(given: np.ndarray, good: bool) -> None:
        for _ in range(50):
            try:
                result = program.run(feeds(x, given))[0]
                if not good or not np.array_equal(result, x[given]):
                    failures.append(f"a value for {good=}")
            except ShapeError as error:
                if good or "index 1000 is out of range" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(given, good)) for given, good in [(indices, True), (bad, False)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_saved_plan_names_it_too(tmp_path: Any) -> None:
    x, indices = numbers(4, 3), np.array([0, 4])
    program = compiled([x, indices], lambda m, p: m.add_instruction("gather", p, axis=0))
    for _ in range(2):
        migraphx.save(program, str(tmp_path / "p.mxr"))
        program = migraphx.load(str(tmp_path / "p.mxr"))
        with pytest.raises(ShapeError, match="^gather: index 4 is out of range for axis 0 of length 4$"):
            program.run(feeds(x, indices))


def test_dynamic_lengths_and_debug_symbols() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="words")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    given = migraphx.shape.dynamic_dimension(1, 8)
    for target in ("ref", "cpu"):
        program = migraphx.parse_onnx_buffer(
            model.SerializeToString(), map_dyn_input_dims={"x": [given, 3]}, use_debug_symbols=True
        )
        program.compile(migraphx.get_target(target))
        for length in (4, 6, 4, 4):
            inputs = {"x": numbers(length, 3), "i": np.array([0, length])}
            with pytest.raises(ShapeError, match=f"^node words: gather: index {length} .* axis 0 of length {length}$"):
                program.run(inputs)
            assert program.run({**inputs, "i": np.array([0, -length])})[0].tolist() == [0, 1, 2] * 2


def checks(inputs: Sequence[np.ndarray], build: Build) -> list[tuple[str, str]]:
    """What the plan's steps check, after the target's passes."""
    check(inputs, build)
    executable = compiled(inputs, build)._compiled.executable
    steps = [s for s in executable.plan.steps if isinstance(s, Step)]
    return [c for s in steps for c in s.checks if any(getattr(a, "region", None) == 5 for a in s.args)]


def literal(m: Module, value: Any, dtype: Any = np.int64) -> Instruction:
    return m.add_literal(np.asarray(value, dtype))


def spread(m: Module, value: Any, like: Instruction) -> Instruction:
    return m.add_instruction("multibroadcast", [literal(m, value)], out_lens=like.shape.lens)


def gathered(m: Module, x: Instruction, index: Instruction) -> Instruction:
    return m.add_instruction("gather", [x, index], axis=0)


PROVEN: dict[str, Any] = {
    "literal": lambda m, x, i: gathered(m, x, literal(m, [4, -5, 0, 2])),
    "mod": lambda m, x, i: gathered(m, x, m.add_instruction("mod", [i, spread(m, 5, i)])),
    "fmod": lambda m, x, i: gathered(m, x, m.add_instruction("fmod", [i, spread(m, 5, i)])),
    "clip": lambda m, x, i: gathered(m, x, m.add_instruction("clip", [i, spread(m, -5, i), spread(m, 4, i)])),
    "comparison": lambda m, x, i: gathered(
        m, x, m.add_instruction("convert", [m.add_instruction("less", [i, spread(m, 2, i)])], target_type="int64_type")
    ),
    "arithmetic": lambda m, x, i: gathered(
        m,
        x,
        m.add_instruction(
            "sub",
            [spread(m, 3, i), m.add_instruction("div", [m.add_instruction("mod", [i, spread(m, 9, i)]), spread(m, 2, i)])],
        ),
    ),
    "argmax": lambda m, x, i: gathered(m, x, m.add_instruction("argmax", [x], axis=0)),
    "topk": lambda m, x, i: gathered(
        m, x, m.add_instruction("get_tuple_elem", [m.add_instruction("topk", [x], axis=0, k=3)], index=1)
    ),
    "nonzero": lambda m, x, i: m.add_instruction(
        "gathernd", [x, m.add_instruction("transpose", [m.add_instruction("nonzero", [x])], permutation=(1, 0))]
    ),
    "scatter": lambda m, x, i: m.add_instruction(
        "scatter_none",
        [x, m.add_instruction("multibroadcast", [m.add_instruction("argmax", [x], axis=0)], out_lens=(2, 7)),
         m.add_instruction("slice", [x], axes=(0,), starts=(0,), ends=(2,))],
        axis=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROVEN)
def test_what_is_in_range_for_sure_is_not_checked(case: str) -> None:
    x, indices = np.random.default_rng(5).standard_normal((5, 7)).astype(np.float32), np.arange(-9, 9).reshape(3, 6)
    assert checks([x, indices], lambda m, p: PROVEN[case](m, *p)) == []


FAR = 2**63 - 1


def wrapped_back(m: Module, x: Instruction) -> Instruction:
    return m.add_instruction("sub", [x, spread(m, FAR, x)])


DOUBTFUL: dict[str, Any] = {
    "parameter": lambda m, x, i: gathered(m, x, i),
    "mod of a larger number": lambda m, x, i: gathered(m, x, m.add_instruction("mod", [i, spread(m, 6, i)])),
    "overflow": lambda m, x, i: gathered(
        m, x, wrapped_back(m, m.add_instruction("add", [m.add_instruction("max", [i, spread(m, 0, i)]), spread(m, FAR, i)]))
    ),
    "float": lambda m, x, i: gathered(
        m, x, m.add_instruction("convert", [m.add_instruction("convert", [i], target_type="float_type")], target_type="int64_type")
    ),
    "positions of another axis": lambda m, x, i: gathered(m, x, m.add_instruction("argmax", [x], axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("case", DOUBTFUL)
def test_what_may_be_out_of_range_is_checked(case: str) -> None:
    x, indices = np.zeros((5, 7), np.float32), np.arange(-4, 4).reshape(2, 4) % 5
    assert checks([x, indices], lambda m, p: DOUBTFUL[case](m, *p)) == [("gather", "axis 0 of length 5")]


def test_literals_out_of_range_are_errors_of_the_run() -> None:
    x = numbers(5, 2)
    for values in ([0, 5], [-6], [0, 1, 2, 3, 4, 5]):
        for target in ("ref", "cpu"):
            program = compiled([x], lambda m, p, v=values: gathered(m, p[0], literal(m, v)), target)
            with pytest.raises(ShapeError, match="is out of range for axis 0 of length 5"):
                program.run(feeds(x))


def test_scatter_that_skips_is_not_an_error() -> None:
    x, indices, updates = numbers(5), np.array([5, -6, 1]), numbers(3)
    program = compiled(
        [x, indices, updates], lambda m, p: m.add_instruction("scatter_none", p, axis=0, skip_out_of_bounds=True)
    )
    assert program.run(feeds(x, indices, updates))[0].tolist() == [0, 2, 2, 3, 4]


def test_onehot_out_of_range_stays_off() -> None:
    indices, levels = np.array([3, -4, 1, -1]), np.array([0.5, 2], np.float32)
    build: Build = lambda m, p: m.add_instruction("onehot", p, axis=-1, depth=3)  # noqa: E731
    assert Shape(Type.float_type, (4, 3)) == program_of([indices, levels], build).main.results()[0].shape
    check([indices, levels], build)
