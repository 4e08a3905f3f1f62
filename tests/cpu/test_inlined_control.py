"""Loops and branches inlined as steps of the enclosing plan, with jumps between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.codegen.cpu.data.loop_flags import ROW_TASK_BYTES
from mgx_numba.runtime.plan import FallbackStep

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, lens: Any = None, type: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type, lens)


def program_of(
    nodes: list, feeds: dict, outputs: list[str], threads: int = 1, lens: dict | None = None, **constants: Any
) -> mgx_numba.program:
    inputs = [info(n, (lens or {}).get(n, a.shape), helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in feeds.items()]
    made = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [info(n) for n in outputs], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    parsed = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    return parsed.compile(mgx_numba.get_target("cpu"), fast_math=False, num_threads=threads)


def plans(program: mgx_numba.program) -> list:
    compiled = program.compiled
    return [part.executable.plan for part in getattr(compiled, "symbolic_plans", [compiled])]


def inlined(program: mgx_numba.program, jumps: int) -> bool:
    (plan,) = plans(program)
    return len(plan.jumps) == jumps and not any(isinstance(step, FallbackStep) for step in plan.steps)


def body(nodes: list, carried: list[str], results: list[str], name: str = "body") -> Any:
    """Body of a loop: its number is ``i``, its condition stays true."""
    nodes = [helper.make_node("Identity", ["go"], ["go_out"]), *nodes]
    inputs = [info("i", [], INT64), info("go", [], BOOL), *map(info, carried)]
    return helper.make_graph(nodes, name, inputs, [info("go_out", [], BOOL), *map(info, results)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_values_change_places_and_outer_ones_stay(trips: int, threads: int) -> None:
    """A carried result may be another carried value, an outer value, or a constant.

    ``x`` is read by each iteration, for the last time in the order of steps.
    """
    nodes = [
        helper.make_node("Add", ["x", "a"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["t"]),
        helper.make_node("Sub", ["t", "x"], ["u"]),
        helper.make_node("Tanh", ["u"], ["next"]),
    ]
    own = body(nodes, ["a", "b", "c", "d"], ["b", "next", "x", "k"])
    loop = helper.make_node("Loop", ["n", "", "x0", "x1", "x2", "x2"], ["ra", "rb", "rc", "rd"], body=own)
    rng = np.random.default_rng(trips)
    feeds = {f"x{k}": rng.standard_normal((700, 70)).astype(np.float32) for k in range(4)}
    k = rng.standard_normal((700, 70)).astype(np.float32)
    nodes = [helper.make_node("Exp", ["x3"], ["x"]), loop, helper.make_node("Neg", ["rb"], ["y"])]
    program = program_of(nodes, feeds, ["ra", "y", "rc", "rd"], threads, n=np.array(trips), k=k)
    assert inlined(program, 2)
    x, a, b, c, d = np.exp(feeds["x3"]), feeds["x0"], feeds["x1"], feeds["x2"], feeds["x2"]
    for _ in range(trips):
        a, b, c, d = b, np.tanh((x + a) ** 2 - x), x, k
    for _ in range(2):
        for result, wanted in zip(program.run(feeds), (a, -b, c, d), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 7, ROW_TASK_BYTES // 4 + 3])
def test_rows_of_all_sizes_are_kept(columns: int, dtype: Any, backwards: bool) -> None:
    step = helper.make_graph(
        [helper.make_node("Add", ["s", "row"], ["s_out"]), helper.make_node("Identity", ["x"], ["kept"])],
        "body", [info("s"), info("row"), info("x", None, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))],
        [info("s_out"), info("kept", None, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), info("s_out")],
    )  # fmt: skip
    scan = helper.make_node(
        "Scan", ["start", "p", "q"], ["last", "kept", "sums"], body=step, num_scan_inputs=2,
        scan_output_directions=[int(backwards), 0],
    )  # fmt: skip
    rng = np.random.default_rng(columns)
    feeds = {"start": rng.random((3,), np.float32), "p": rng.random((4, 3), np.float32)}
    feeds["q"] = (rng.random((4, columns)) * 3 - 1).astype(dtype)
    program = program_of([scan], feeds, ["last", "kept", "sums"])
    assert inlined(program, 2)
    last, kept, sums = map(np.asarray, program.run(feeds))
    np.testing.assert_allclose(sums, feeds["start"] + np.cumsum(feeds["p"], 0), rtol=1e-5)
    np.testing.assert_array_equal(last, sums[-1])
    np.testing.assert_array_equal(kept, feeds["q"][::-1] if backwards else feeds["q"])


def choice(condition: str, first: list, second: list, result: str) -> Any:
    graphs = [helper.make_graph(own, name, [], [info(own[-1].output[0])]) for name, own in zip("ab", (first, second))]
    return helper.make_node("If", [condition], [result], then_branch=graphs[0], else_branch=graphs[1])


@pytest.mark.parametrize("go", [True, False])
def test_choices_in_loops_in_choices(go: bool) -> None:
    inner = choice(
        "odd", [helper.make_node("Mul", ["v", "x"], ["p"])], [helper.make_node("Identity", ["v"], ["q"])], "w"
    )
    nodes = [
        helper.make_node("Mod", ["i", "two"], ["rest"]),
        helper.make_node("Cast", ["rest"], ["odd"], to=BOOL),
        inner,
        helper.make_node("Add", ["w", "e"], ["v_out"]),
    ]
    loop = helper.make_node("Loop", ["n", "", "x"], ["looped"], body=body(nodes, ["v"], ["v_out"]))
    outer = choice("c", [loop], [helper.make_node("Sub", ["x", "e"], ["o"])], "r")
    rng = np.random.default_rng(0)
    feeds = {"c": np.array(go), "x": rng.random((5, 6), np.float32)}
    ends = [helper.make_node("Exp", ["x"], ["e"]), outer, helper.make_node("Add", ["r", "e"], ["y"])]
    program = program_of(ends, feeds, ["y"], n=np.array(5), two=np.array(2))
    assert inlined(program, 6)
    x, e = feeds["x"], np.exp(feeds["x"])
    v = x
    for i in range(5):
        v = (v * x if i % 2 else v) + e
    for _ in range(2):
        np.testing.assert_allclose(program.run(feeds)[0], (v if go else x - e) + e, rtol=1e-5)


def test_a_loop_over_a_symbolic_length_is_one_native_call() -> None:
    """The state-space model's loop took 70 us of Python."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["row"], axis=1), helper.make_node("MatMul", ["row", "w"], ["m"])]
    nodes += [helper.make_node("Add", ["m", "s"], ["t"]), helper.make_node("Tanh", ["t"], ["s_out"])]
    nodes += [helper.make_node("Identity", ["s_out"], ["kept"])]
    loop = helper.make_node(
        "Loop", ["trips", "true", "start"], ["last", "all"], body=body(nodes, ["s"], ["s_out", "kept"])
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["trips"]),
        loop,
    ]
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((8, 8)) / 3).astype(np.float32)
    feeds = {"x": np.zeros((1, 1, 8), np.float32), "start": np.zeros((1, 8), np.float32)}
    lens = {"x": ["batch", "seq", 8], "start": ["batch", 8]}
    program = program_of(nodes, feeds, ["last", "all"], 2, lens, w=w, one=np.array(1), true=np.array(True))
    assert inlined(program, 2)
    entry = program.compiled.direct(np.ndarray)
    for batch, seq in ((1, 1), (3, 7), (1, 40), (2, 0), (5, 2), (1, 1)):
        x, s = (rng.standard_normal(n).astype(np.float32) for n in ((batch, seq, 8), (batch, 8)))
        wanted = []
        last = s
        for k in range(seq):
            last = np.tanh(x[:, k] @ w + last)
            wanted.append(last)
        results = program.run({"x": x, "start": s})
        again = entry({"x": x, "start": s})
        assert again is not None or seq == 0
        for found in (results, again or results):
            np.testing.assert_allclose(found[0], last, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[1], np.reshape(wanted, (seq, batch, 8)), rtol=1e-4, atol=1e-5)


def test_what_watches_steps_sees_those_of_each_iteration() -> None:
    own = body(
        [helper.make_node("Add", ["v", "x"], ["s"]), helper.make_node("Tanh", ["s"], ["v_out"])], ["v"], ["v_out"]
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=own)
    feeds = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    program = program_of([loop], feeds, ["y"], 2, n=np.array(6))
    executable = program.compiled.executable
    (first, _) = executable.plan.jumps
    seen: list[int] = []
    (traced,) = executable.run_traced([feeds["x"]], lambda index, *_: seen.append(index))
    inside = [index for index in seen if first.at <= index < first.to]
    assert inside == list(range(first.at, first.to)) * 6
    timed, spans = executable.run_timed([feeds["x"]])
    assert [span.step for span in spans] == seen
    (wanted,) = program.run(feeds)
    for result in (traced, timed[0]):
        np.testing.assert_array_equal(result, wanted)
