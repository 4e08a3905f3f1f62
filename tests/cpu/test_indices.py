"""Indices out of range are errors of `run`, on cpu as on ref, and corrupt nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.runtime.plan import FallbackStep, Step
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions

from ..running import at_once
from ..values import counting
from .programs import Build, check, program_of


def compiled(inputs: Sequence[np.ndarray], build: Build, target: str = "cpu", **options: Any) -> migraphx.program:
    return migraphx.program.wrap(program_of(inputs, build)).compile(migraphx.get_target(target), **options)


def feeds(*inputs: np.ndarray) -> dict[str, np.ndarray]:
    return {f"p{k}": a for k, a in enumerate(inputs)}


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
    inputs = [counting(*lens), indices, *([counting(*update_lens)] if update_lens else [])]

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
            with pytest.raises(ShapeError, match="index -1 is out of range"):
                program.run(feeds(inputs[0], bad, *inputs[2:]))


def test_the_first_step_that_meets_one_is_named() -> None:
    x, first, second = counting(4, 3), np.array([0, 9]), np.array([7, 0, 1])

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
        return m.add_instruction("nonzero", [picked], use_dyn_output=True)

    program = compiled([x, indices], build)
    assert any(isinstance(s, FallbackStep) for s in lower(program_of([x, indices], build), TargetOptions()).steps)
    with pytest.raises(ShapeError, match="index 4 is out of range"):
        program.run(feeds(x, indices))
    assert program.run(feeds(x, np.array([0, 3])))[0].tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


def test_calls_at_the_same_time_are_not_disturbed() -> None:
    x, indices = counting(1000, 16), np.random.default_rng(1).integers(-1000, 1000, 3000)
    program = compiled([x, indices], lambda m, p: m.add_instruction("gather", p, axis=0))
    bad = indices.copy()
    bad[2500] = 1000

    def work(given: np.ndarray) -> None:
        for _ in range(50):
            if given is bad:
                with pytest.raises(ShapeError, match="index 1000 is out of range"):
                    program.run(feeds(x, given))
            else:
                assert np.array_equal(program.run(feeds(x, given))[0], x[given])

    at_once(work, [indices, bad] * 2)


def test_a_saved_plan_names_it_too(tmp_path: Any) -> None:
    x, indices = counting(4, 3), np.array([0, 4])
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
            inputs = {"x": counting(length, 3), "i": np.array([0, length])}
            with pytest.raises(ShapeError, match=f"^node words: gather: index {length} .* axis 0 of length {length}$"):
                program.run(inputs)
            assert program.run({**inputs, "i": np.array([0, -length])})[0].tolist() == [0, 1, 2] * 2


def checks(inputs: Sequence[np.ndarray], build: Build) -> list[tuple[str, str]]:
    """Return the index checks of the plan's steps, after the target's passes."""
    check(inputs, build)
    executable = compiled(inputs, build).compiled.executable
    steps = [s for s in executable.plan.steps if isinstance(s, Step)]
    return [c for s in steps for c in s.checks if any(getattr(a, "region", None) == 5 for a in s.args)]


def op(name: str, *inputs: Instruction, **attributes: Any) -> Instruction:
    module = inputs[0].module
    assert module is not None
    return module.add_instruction(name, inputs, **attributes)


def spread(value: Any, like: Instruction, dtype: Any = np.int64) -> Instruction:
    assert like.module is not None
    return op("multibroadcast", like.module.add_literal(np.asarray(value, dtype)), out_lens=like.shape.lens)


def whole(x: Instruction) -> Instruction:
    return op("convert", x, target_type="int64_type")


def real(x: Instruction) -> Instruction:
    return op("convert", x, target_type="float_type")


def first_rows(x: Instruction) -> Instruction:
    return op("slice", x, axes=(0,), starts=(0,), ends=(2,))


PROVEN: dict[str, Callable[[Instruction, Instruction], Instruction]] = {
    "literal": lambda x, i: x.module.add_literal(np.array([4, -5, 0, 2])),
    "mod": lambda x, i: op("mod", i, spread(5, i)),
    "fmod": lambda x, i: op("fmod", i, spread(5, i)),
    "clip": lambda x, i: op("clip", i, spread(-5, i), spread(4, i)),
    "comparison": lambda x, i: whole(op("less", i, spread(2, i))),
    "arithmetic": lambda x, i: op("sub", spread(3, i), op("div", op("mod", i, spread(9, i)), spread(2, i))),
    "clipped float": lambda x, i: whole(op("clip", real(i), *(spread(v, i, np.float32) for v in (0, 4)))),
    "one of two": lambda x, i: op("where", op("less", i, spread(0, i)), *(op("mod", i, spread(k, i)) for k in (3, 5))),
    "parts": lambda x, i: op("concat", op("mod", i, spread(3, i)), op("mod", i, spread(5, i)), axis=1),
    "argmax": lambda x, i: op("argmax", x, axis=0),
    "topk": lambda x, i: op("get_tuple_elem", op("topk", x, axis=0, k=3), index=1),
}


@pytest.mark.parametrize("case", PROVEN)
def test_what_is_in_range_for_sure_is_not_checked(case: str) -> None:
    x, indices = np.random.default_rng(5).standard_normal((5, 7)).astype(np.float32), np.arange(-9, 9).reshape(3, 6)
    assert checks([x, indices], lambda m, p: op("gather", p[0], PROVEN[case](*p), axis=0)) == []


def test_tuples_and_updates_in_range_for_sure_are_not_checked() -> None:
    x = np.random.default_rng(5).standard_normal((5, 7)).astype(np.float32)

    def tuples(m: Module, p: list[Instruction]) -> Instruction:
        return op("gathernd", p[0], op("transpose", op("nonzero", p[0]), permutation=(1, 0)))

    def updates(m: Module, p: list[Instruction]) -> Instruction:
        rows = op("multibroadcast", op("argmax", p[0], axis=0), out_lens=(2, 7))
        return op("scatter_none", p[0], rows, first_rows(p[0]), axis=0)

    assert checks([x], tuples) == checks([x], updates) == []


FAR = 2**63 - 1
DOUBTFUL: dict[str, Callable[[Instruction, Instruction], Instruction]] = {
    "parameter": lambda x, i: i,
    "mod of a larger number": lambda x, i: op("mod", i, spread(6, i)),
    "overflow": lambda x, i: op("sub", op("add", op("max", i, spread(0, i)), spread(FAR, i)), spread(FAR, i)),
    "float": lambda x, i: whole(real(i)),
    "float with one bound": lambda x, i: whole(op("min", real(i), spread(4, i, np.float32))),
    "positions of another axis": lambda x, i: op("argmax", x, axis=1),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_what_may_be_out_of_range_is_checked(case: str) -> None:
    x, indices = np.zeros((5, 7), np.float32), np.arange(-4, 4).reshape(2, 4) % 5
    found = checks([x, indices], lambda m, p: op("gather", p[0], DOUBTFUL[case](*p), axis=0))
    assert found == [("gather", "axis 0 of length 5")]


def test_literals_out_of_range_are_errors_of_the_run() -> None:
    x = counting(5, 2)
    for values in ([0, 5], [-6], [0, 1, 2, 3, 4, 5]):
        for target in ("ref", "cpu"):
            program = compiled(
                [x], lambda m, p, v=values: op("gather", p[0], m.add_literal(np.array(v)), axis=0), target
            )
            with pytest.raises(ShapeError, match="is out of range for axis 0 of length 5"):
                program.run(feeds(x))


def test_scatter_that_skips_is_not_an_error() -> None:
    x, indices, updates = counting(5), np.array([5, -6, 1]), counting(3)
    program = compiled(
        [x, indices, updates], lambda m, p: m.add_instruction("scatter_none", p, axis=0, skip_out_of_bounds=True)
    )
    assert program.run(feeds(x, indices, updates))[0].tolist() == [0, 2, 2, 3, 4]


def test_onehot_out_of_range_stays_off() -> None:
    indices, levels = np.array([3, -4, 1, -1]), np.array([0.5, 2], np.float32)
    build: Build = lambda m, p: m.add_instruction("onehot", p, axis=-1, depth=3)  # noqa: E731
    assert Shape(Type.float_type, (4, 3)) == program_of([indices, levels], build).main.results()[0].shape
    check([indices, levels], build)


def test_bits_read_as_another_type_are_no_copy() -> None:
    x = np.arange(-12, 12, dtype=np.int32).reshape(4, 6)

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        turned = m.add_instruction("transpose", [p[0]], permutation=(1, 0))
        bits = m.add_instruction("bit_cast", [turned], target_type="uint32_type")
        three = m.add_instruction("multibroadcast", [m.add_literal(np.array(3, np.uint32))], out_lens=(6, 4))
        return [bits, m.add_instruction("div", [bits, three])]

    check([x], build)
    assert not any(isinstance(s, FallbackStep) for s in lower(program_of([x], build), TargetOptions()).steps)
