"""A server with Ray Serve: `python examples/serve.py [MODEL.onnx]` (needs the extra `ray`).

Prepares the model once (tuning records, machine code, the best batch sizes), serves it on this machine, sends requests
of the Open Inference Protocol at once, as clients would, and stops. `--stay` leaves it running until it is interrupted.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import ray
from onnx import TensorProto, helper, numpy_helper
from ray import serve

import mgx_numba as migraphx
from mgx_numba.ray import deployment, prepare


def small_model() -> onnx.ModelProto:
    """``x`` [n, 64] to ``probabilities`` [n, 10]."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((64, 128)) / 8, "w2": rng.standard_normal((128, 10)) / 11}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"]),
        helper.make_node("Softmax", ["m"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def ask(address: str, name: str, row: np.ndarray) -> Any:
    """Answer a request of one row."""
    entry = {"name": name, "shape": [1, *row.shape], "datatype": "FP32", "data": row.ravel().tolist()}
    request = urllib.request.Request(address, json.dumps({"inputs": [entry]}).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["outputs"][0]["data"]


def main() -> None:
    paths = [word for word in sys.argv[1:] if not word.startswith("--")]
    program = migraphx.parse_onnx(paths[0] if paths else small_model())
    prepared = prepare(program, batch_sizes=[1, 2, 4, 8], num_threads=1)
    name, lens = next((n, s.dyn_dims()) for n, s in program.get_parameter_shapes().items())
    shape = [d.min for d in lens[1:]]

    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    application = deployment(ray.put(prepared), trust_objects=True, ray_actor_options={"num_cpus": 1})
    serve.run(application, route_prefix="/model")
    address = f"http://127.0.0.1:{port}/model"
    sizes = migraphx.load_buffer(prepared).get_parameter_shapes()[name].dyn_dims()[0].optimals
    print(f"serving {address}, batches of {sorted(sizes)} rows")

    rows = np.random.default_rng(1).random((32, *shape)).astype(np.float32)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda row: ask(address, name, row), rows))
    expected = np.asarray(program.compile("cpu").run({name: rows})[0])
    worst = float(np.abs(np.asarray(answers).reshape(expected.shape) - expected).max())
    print(f"{len(answers)} answers, which differ from one run of them all by {worst:.1e} at most")
    if "--stay" in sys.argv:
        print("Ctrl-C ends it")
        signal.pause()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
