"""Models with branches and loops, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "GO",
    "branches",
    "decoding_feeds",
    "decoding_loop",
    "info",
    "loop",
    "model_of",
    "nested_loops",
    "scan",
    "swapping_loop",
]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, lens: Sequence[int] | None, type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type, lens)


def model_of(
    nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[str], **constants: np.ndarray
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in feeds.items()],
        [info(n, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = min(model.ir_version, 10)
    return model.SerializeToString()


def scan(axes: Sequence[int] = (0, 0), ways: Sequence[int] = (0, 0), out_way: int = 0) -> onnx.NodeProto:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["m"]),
            helper.make_node("Add", ["m", "a"], ["t"]),
            helper.make_node("Add", ["t", "bias"], ["u"]),
            helper.make_node("Tanh", ["u"], ["s_out"]),
            helper.make_node("Mul", ["s_out", "b"], ["row"]),
        ],
        "body",
        [info(n, [2, 4]) for n in ("s", "a", "b")],
        [info(n, [2, 4]) for n in ("s_out", "row")],
    )
    return helper.make_node(
        "Scan",
        ["start", "p", "q"],
        ["last", "rows"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=list(axes),
        scan_input_directions=list(ways),
        scan_output_directions=[out_way],
    )


def loop(nodes: list[onnx.NodeProto], carried: Sequence[int] | None, outputs: list[str], scans: int) -> onnx.NodeProto:
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("v", carried)],
        [info("go_out", [], BOOL), info("v_out", None), *(info(f"scan{k}", None) for k in range(scans))],
    )
    return helper.make_node("Loop", ["n", "", "x"], outputs, body=body)


GO = helper.make_node("Identity", ["go"], ["go_out"])


def swapping_loop(rows: int, trips: int | None) -> bytes:
    """Carried: a and b, which change places, and c, which stays; collected: the number, and a sum of all three."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Add", ["sum", "c"], ["all"]),
            helper.make_node("Mul", ["all", "outer"], ["b_out"]),
            helper.make_node("Identity", ["b"], ["a_out"]),
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("ReduceMax", ["all"], ["largest"], keepdims=0),
            helper.make_node("Less", ["largest", "limit"], ["go_out"]),
            helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        ],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), *(info(n, [rows, 4]) for n in ("a", "b", "c"))],
        [info("go_out", [], BOOL), *(info(n, None) for n in ("a_out", "b_out", "c_out", "all", "number"))],
    )
    outputs = ["ra", "rb", "rc", "alls", "numbers"]
    node = helper.make_node("Loop", ["" if trips is None else "n", "", "a0", "b0", "c0"], outputs, body=body)
    feeds = {n: np.ones((rows, 4), np.float32) for n in ("a0", "b0", "c0", "outer")}
    limit = {"limit": np.array(500, np.float32)}
    return model_of([node], feeds, outputs, **limit, **({} if trips is None else {"n": np.array(trips)}))


def branches(rows: int, feeds: dict[str, np.ndarray]) -> bytes:
    """``y``: the first 3 rows of ``exp(x)`` if ``c`` is true, else the first so many."""
    graphs = [
        helper.make_graph(
            [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Slice", ["e", "zero", end, "zero"], [name])],
            name,
            [],
            [info(name, None)],
        )
        for name, end in (("then", "three"), ("otherwise", "end"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    constants = {"zero": np.array([0]), "three": np.array([3]), "end": np.array([rows])}
    return model_of([node], feeds, ["y"], **constants)


def nested_loops(feeds: dict[str, np.ndarray]) -> bytes:
    """A loop in a loop, which takes ``k`` from outside of both and a value of the outer one; ``x`` is carried."""
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["go2"], ["go2_out"]),
            helper.make_node("Mul", ["v2", "k"], ["scaled"]),
            helper.make_node("Add", ["scaled", "doubled"], ["v2_out"]),
        ],
        "inner",
        [info("i2", [], INT64), info("go2", [], BOOL), info("v2", [3])],
        [info("go2_out", [], BOOL), info("v2_out", [3])],
    )
    nodes = [
        GO,
        helper.make_node("Add", ["v", "v"], ["doubled"]),
        helper.make_node("Loop", ["two", "", "v"], ["v_out"], body=inner),
        helper.make_node("Identity", ["v_out"], ["scan0"]),
    ]
    return model_of([loop(nodes, [3], ["y", "ys"], 1)], feeds, ["y", "ys"], n=np.array(3), two=np.array(2))


def decoding_loop(trips: int | None, width: int = 4, seen: bool = True, past: int | None = 2) -> bytes:
    """Attention over a cache that each iteration adds a row to, as decoders are exported; collected: the rows.

    Inputs are ``x0`` [1, width], ``keys0`` and ``values0`` [past, width], and the number of iterations if it is not
    given. With ``seen`` the result of an iteration also depends on how many rows there are, which the body asks for.
    """
    nodes = [
        GO,
        helper.make_node("MatMul", ["x", "w"], ["new"]),
        helper.make_node("Concat", ["keys", "new"], ["keys_out"], axis=0),
        helper.make_node("Concat", ["values", "x"], ["values_out"], axis=0),
        helper.make_node("Transpose", ["keys_out"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "values_out"], ["read"]),
        helper.make_node("Shape", ["keys_out"], ["lens"]),
        helper.make_node("ReduceMax", ["lens"], ["rows"], keepdims=0),
        helper.make_node("Cast", ["rows"], ["count"], to=FLOAT),
        helper.make_node("Div", ["read", "count" if seen else "outer"], ["scaled"]),
        helper.make_node("Add", ["scaled", "outer"], ["x_out"]),
        helper.make_node("Mul", ["x_out", "x"], ["row"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("x", [1, width])]
        + [helper.make_tensor_value_info(n, FLOAT, ["past", width]) for n in ("keys", "values")],
        [info("go_out", [], BOOL), *(info(n, None) for n in ("x_out", "keys_out", "values_out", "row"))],
    )
    results = ["x", "all_keys", "all_values", "rows_of_all"]
    node = helper.make_node("Loop", ["n", "", "x0", "keys0", "values0"], results, body=body)
    rng = np.random.default_rng(width)
    feeds = decoding_feeds(2, width) | ({} if trips is not None else {"n": np.array(1)})
    constants = {"w": rng.standard_normal((width, width)).astype(np.float32), "outer": np.full(1, 2, np.float32)}
    model = onnx.load_from_string(
        model_of([node], feeds, results, **constants, **({} if trips is None else {"n": np.array(trips)}))
    )
    for given in model.graph.input[1:3]:
        dim = given.type.tensor_type.shape.dim[0]
        if past is None:
            dim.dim_param = "first"
        else:
            dim.dim_value = past
    return model.SerializeToString()


def decoding_feeds(past: int, width: int = 4) -> dict[str, np.ndarray]:
    """Inputs for `decoding_loop` with so many rows in the cache at first."""
    rng = np.random.default_rng([past, width])
    lens = {"x0": 1, "keys0": past, "values0": past}
    return {name: rng.standard_normal((n, width)).astype(np.float32) for name, n in lens.items()}
