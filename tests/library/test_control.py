"""Libraries of programs with loops and branches, whose steps the library repeats or leaves out as Python does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx

from ..cpu.test_inlined_control import body, info, inlined
from .loaded import Loaded
from .support import CC

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Load = Callable[[Any], Loaded]
node = helper.make_node


def program_of(
    nodes: Sequence[Any], feeds: Mapping[str, np.ndarray], lens: Mapping[str, Any] | None = None, **constants: Any
) -> Any:
    """Compile nodes whose result is ``y``; ``lens`` has lengths of inputs that are not those of ``feeds``."""
    inputs = [info(n, (lens or {}).get(n, a.shape), helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in feeds.items()]
    made = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, [info("y")], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    ranges = {"default_dyn_dim_value": migraphx.shape.dynamic_dimension(0, 512)}
    return migraphx.parse_onnx_buffer(model.SerializeToString(), **ranges).compile("cpu", num_threads=2)


def check(program: Any, library: Loaded, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    (wanted,) = map(np.asarray, program.run(dict(feeds)))
    (found,) = library.run(feeds)
    np.testing.assert_array_equal(found, wanted, strict=True)
    return found


def branch(condition: str, result: str, yes: list, no: list) -> Any:
    """An If whose branches give their last node's result."""
    graphs = [helper.make_graph(own, name, [], [info(own[-1].output[0])]) for own, name in ((yes, "a"), (no, "b"))]
    return node("If", [condition], [result], then_branch=graphs[0], else_branch=graphs[1])


def x_of(*lens: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(lens).astype(np.float32)


def until(nodes: list, limit: str = "limit") -> Any:
    """Return a body that makes ``v_out`` of ``v``, and goes on while its number is below a limit of a run."""
    ends = [node("Add", ["i", "one"], ["done"]), node("Less", ["done", limit], ["go_out"])]
    inputs = [info("i", [], INT64), info("go", [], BOOL), info("v")]
    return helper.make_graph([*nodes, *ends], "body", inputs, [info("go_out", [], BOOL), info("v_out")])


def test_a_loop_that_ends_by_a_condition(loaded: Load) -> None:
    own = until([node("MatMul", ["v", "w"], ["p"]), node("Tanh", ["p"], ["v_out"])])
    loop = node("Loop", ["n", "start", "x"], ["y"], body=own)
    feeds = {"x": x_of(3, 8), "start": np.array(True), "limit": np.array(5)}
    program = program_of([loop], feeds, w=x_of(8, 8) * 0.3, n=np.array(20), one=np.array(1))
    assert inlined(program, 2)
    library = loaded(program)
    results = [check(program, library, {**feeds, "limit": np.array(trips)}) for trips in (5, 1, 17, 30, 5)]
    np.testing.assert_array_equal(results[0], results[-1])
    assert len({result.tobytes() for result in results}) == 4
    never = check(program, library, {**feeds, "start": np.array(False)})
    np.testing.assert_array_equal(never, feeds["x"])


def test_branches_and_loops_inside_of_each_other(loaded: Load) -> None:
    """A loop takes one of two branches by its number; one of these has a loop."""
    inner = helper.make_graph(
        [node("Identity", ["c2"], ["c2_out"]), node("Add", ["u", "x"], ["u_out"])],
        "inner",
        [info("j", [], INT64), info("c2", [], BOOL), info("u")],
        [info("c2_out", [], BOOL), info("u_out")],
    )
    yes = [node("Loop", ["two", "", "v"], ["a"], body=inner)]
    nodes = [
        node("Mod", ["i", "two"], ["odd"]),
        node("Cast", ["odd"], ["is_odd"], to=BOOL),
        branch("is_odd", "v_out", yes, [node("Mul", ["v", "x"], ["b"])]),
    ]
    loop = node("Loop", ["n", "", "x"], ["z"], body=until(nodes))
    feeds = {"x": x_of(4, 5), "limit": np.array(4)}
    program = program_of([loop, node("Neg", ["z"], ["y"])], feeds, two=np.array(2), n=np.array(9), one=np.array(1))
    assert inlined(program, 6)
    library = loaded(program)
    for trips in (4, 1, 2, 7):
        value = feeds["x"]
        for k in range(trips):
            value = value + feeds["x"] + feeds["x"] if k % 2 else value * feeds["x"]
        np.testing.assert_allclose(check(program, library, {**feeds, "limit": np.array(trips)}), -value, rtol=1e-5)


def test_a_branch_and_a_loop_over_open_lengths(loaded: Load) -> None:
    own = body([node("Gather", ["x", "i"], ["row"]), node("Add", ["v", "row"], ["v_out"])], ["v"], ["v_out"])
    nodes = [
        node("Shape", ["x"], ["lens"], start=0, end=1),
        node("Loop", ["lens", "", "v0"], ["sum"], body=own),
        branch("c", "s", [node("MatMul", ["x", "w"], ["a"])], [node("Neg", ["x"], ["b"])]),
        node("Add", ["s", "sum"], ["y"]),
    ]
    feeds = {"x": x_of(3, 8), "c": np.array(True), "v0": x_of(8)}
    program = program_of(nodes, feeds, {"x": ["rows", 8]}, w=x_of(8, 8))
    assert inlined(program, 4)
    library = loaded(program)
    for rows in (3, 0, 1, 70, 3):
        for yes in (True, False):
            x = x_of(rows, 8)
            found = check(program, library, {**feeds, "x": x, "c": np.array(yes)})
            if not yes:
                np.testing.assert_allclose(found, feeds["v0"] + x.sum(0) - x, rtol=1e-4, atol=1e-4)


def test_an_index_out_of_range_in_a_loop_ends_the_run(loaded: Load) -> None:
    nodes = [node("Gather", ["x", "i"], ["row"]), node("Add", ["v", "row"], ["v_out"])]
    feeds = {"x": x_of(3, 8), "v0": x_of(8), "limit": np.array(3)}
    program = program_of(
        [node("Loop", ["n", "", "v0"], ["y"], body=until(nodes))], feeds, n=np.array(9), one=np.array(1)
    )
    library = loaded(program)
    check(program, library, feeds)
    with pytest.raises(ValueError, match="index 3 is out of range"):
        library.run({**feeds, "limit": np.array(5)})
    check(program, library, feeds)


@pytest.mark.parametrize("going", [True, False])
def test_a_loop_whose_trips_come_from_data(going: bool, loaded: Load) -> None:
    """Such a loop was a fallback step, which no library runs."""
    own = until([node("MatMul", ["v", "w"], ["p"]), node("Tanh", ["p"], ["v_out"])])
    if not going:
        own.node[-1].CopyFrom(node("Identity", ["go"], ["go_out"]))
    loop = node("Loop", ["n", "", "x"], ["y"], body=own)
    feeds = {"x": x_of(3, 8), "n": np.array(5)} | ({"limit": np.array(1 << 40)} if going else {})
    w = x_of(8, 8) * 0.3
    program = program_of([loop], feeds, w=w, one=np.array(1))
    assert inlined(program, 2)
    library = loaded(program)
    for trips in (5, 0, 1, 40, -3, 5):
        value = feeds["x"]
        for _ in range(trips):
            value = np.tanh(value @ w)
        found = check(program, library, {**feeds, "n": np.array(trips)})
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trips", [None, 1 << 62])
def test_a_loop_that_its_condition_ends_too_late_is_an_error(trips: int | None, loaded: Load) -> None:
    own = until([node("Neg", ["v"], ["v_out"])])
    known = {} if trips is None else {"n": np.array(trips)}
    loop = node("Loop", ["n", "", "x"], ["y"], body=own)
    feeds = {"x": x_of(8), "limit": np.array(7)} | ({"n": np.array(1 << 62)} if trips is None else {})
    program = program_of([loop], feeds, one=np.array(1), **known)
    assert inlined(program, 2)
    library = loaded(program)
    np.testing.assert_array_equal(check(program, library, feeds), -feeds["x"])
    late = {**feeds, "limit": np.array(65536)}
    message = rf"loop: runs longer than 65535 iterations \(trip count {1 << 62}\); parse with a larger"
    for run in (program.run, library.run):
        with pytest.raises(ValueError, match=message):
            run(late)
    np.testing.assert_array_equal(check(program, library, {**late, "limit": np.array(65535)}), -feeds["x"])
