"""Limits on how often a program uses methods with larger errors than direct products, on emulated tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.fingerprint import device_fingerprint
from mgx_numba.codegen.tuning.files import write_records
from mgx_numba.codegen.tuning.record import TuningRecord

pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")

SIDE = 56
CHANNELS = (64, 128, *[64] * 9)
"""Channels of the image and of the results; of the three sizes of layers, two occur once."""
LAYERS = len(CHANNELS) - 1
RNG = np.random.default_rng(3)
NAME = "conv_winograd_2x2_tiles"


def network(*behind: onnx.NodeProto, last: str, side: int = SIDE) -> onnx.ModelProto:
    """Return a chain of 3x3 convolutions, followed by ``behind``, a list of nodes."""
    nodes, weights = [], []
    for k in range(LAYERS):
        values = RNG.standard_normal((CHANNELS[k + 1], CHANNELS[k], 3, 3)).astype(np.float32) / 24
        weights.append(numpy_helper.from_array(values, f"w{k}"))
        nodes += [
            helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"y{k}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"y{k}"], [f"x{k + 1}"]),
        ]
    graph = helper.make_graph(
        [*nodes, *behind], "network",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, CHANNELS[0], side, side])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def coarse_layers(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of convolutions that use Winograd's method over tiles."""
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    program = mgx_numba.parse_onnx(model)
    program.compile(mgx_numba.get_target("cpu"), num_threads=1)
    return sum(choice.solver == NAME for choice in program.tuning_choices() for _ in choice.instructions)


X = f"x{LAYERS}"
SOFTMAX = helper.make_node("Softmax", [X], ["y"], axis=1)
POOLED = (helper.make_node("GlobalAveragePool", [X], ["p"]), helper.make_node("Softmax", ["p"], ["y"], axis=1))
SIGMOID = helper.make_node("Sigmoid", [X], ["y"])


def test_before_a_softmax_few_layers_have_larger_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        coarse_layers(network(SOFTMAX, last="y"), monkeypatch) == 1
    )  # of 10 layers 1.5 may have three times the error


@pytest.mark.filterwarnings("ignore:.*used as hints:RuntimeWarning")
def test_records_of_such_a_method_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images are so small that the estimates do not choose the method."""
    monkeypatch.setenv("MGX_CPU_FEATURES", host.EMULATED_TILES)
    target, path, taken = mgx_numba.get_target("cpu"), tmp_path / "records.json", {}
    for behind, last in (((SOFTMAX,), "y"), ((), X)):
        program = mgx_numba.parse_onnx(network(*behind, last=last, side=7))
        program.compile(target, num_threads=1)
        choices = program.tuning_choices()
        assert not any(choice.solver == NAME for choice in choices)
        write_records(path, [TuningRecord(c.problem, device_fingerprint(), NAME, {}, 1e-9) for c in choices])
        program = mgx_numba.parse_onnx(network(*behind, last=last, side=7))
        program.compile(target, num_threads=1, problem_cache=[str(path)])
        choices = program.tuning_choices()
        taken[last] = sum(choice.solver == NAME for choice in choices for _ in choice.instructions)
    assert taken == {"y": 1, X: LAYERS}


TOP = (helper.make_node("ReduceMax", [X], ["p"], axes=[2, 3]), helper.make_node("Softmax", ["p"], ["y"], axis=1))


@pytest.mark.parametrize(
    "behind", [(helper.make_node("Softmax", [X], ["y"], axis=3),), TOP], ids=["softmax over pixels", "their maximum"]
)
def test_only_sums_over_pixels_are_means_of_them(
    behind: tuple[onnx.NodeProto, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coarse_layers(network(*behind, last="y"), monkeypatch) == 1


@pytest.mark.parametrize("softmax", [True, False])
def test_layers_of_a_branch_are_before_what_reads_it(softmax: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(last=X)
    whole, other = model.graph, helper.make_node("Identity", ["x0"], ["z"])
    branches = {
        "then_branch": helper.make_graph([*whole.node], "then", [], [helper.make_tensor_value_info(X, 1, None)]),
        "else_branch": helper.make_graph([other], "else", [], [helper.make_tensor_value_info("z", 1, None)]),
    }
    del whole.node[:]
    last = helper.make_node("Softmax" if softmax else "Sigmoid", ["r"], ["y"])
    whole.node.extend([helper.make_node("If", ["c"], ["r"], **branches), last])
    whole.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    whole.output[0].name = "y"
    assert coarse_layers(model, monkeypatch) == (1 if softmax else LAYERS)


@pytest.mark.parametrize(
    "behind, last", [((), X), ((SIGMOID,), "y"), (POOLED, "y")], ids=["nothing", "sigmoid", "mean over pixels"]
)
def test_elsewhere_all_may(behind: tuple[onnx.NodeProto, ...], last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert coarse_layers(network(*behind, last=last), monkeypatch) == LAYERS
