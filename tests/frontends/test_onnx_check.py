"""`check` reports all faults of a model at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba
from mgx_numba.errors import MgxError, OptionError

from ..values import normal
from .support import FLOAT, make_model, single

X = normal(2, 3)


def declared(name: str, type: int = FLOAT, dims: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type, dims)


def broken_model(rows: int | str = 2) -> onnx.ModelProto:
    """Return a model with many faults, some after other faults and some inside branches."""
    branch = [
        helper.make_node("Nothing", ["x"], ["t"], name="inner"),
        helper.make_node("Relu", ["t"], ["u"], name="behind", gain=2),
    ]
    then = helper.make_graph(branch, "then", [], [declared("u")])
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["v"])], "else", [], [declared("v")])
    nodes = [
        helper.make_node("Mystery", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second", gain=1),
        helper.make_node("Softmax", ["b"], ["c"], name="third", axis=1.0),
        helper.make_node("Rleu", ["c", "x"], ["d"]),
        helper.make_node("Fourier", ["x"], ["e"], domain="com.example"),
        helper.make_node("Relu", ["x", "x"], ["f"]),
        helper.make_node("If", ["yes"], ["g"], name="choice", then_branch=then, else_branch=other),
        helper.make_node("Add", ["g", "x"], ["h"]),
        helper.make_node("Add", ["x", "n"], ["i"], name="mixed"),
        helper.make_node("FastGelu", ["x"], ["j"], name="gelu"),
        helper.make_node("LeakyRelu", ["x"], ["k"], name="leaky", alpha=2),
    ]
    inputs = [declared("x", FLOAT, [rows, 3]), declared("n", TensorProto.STRING, [rows, 3])]
    inputs.append(declared("yes", TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, "graph", inputs, [declared(n) for n in "defhijk"])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("rows", [2, "rows"])
def test_everything_is_found_at_once(rows: int | str) -> None:
    found = mgx_numba.check_onnx(broken_model(rows))
    errors = {f.node: f for f in found if not f.accepted}
    assert {n: (f.operator, f.domain, f.opset) for n, f in errors.items()} == {
        "first": ("Mystery", "ai.onnx", 18),
        "second": ("Relu", "ai.onnx", 18),
        "third": ("Softmax", "ai.onnx", 18),
        "#3": ("Rleu", "ai.onnx", 18),
        "#4": ("Fourier", "com.example", 0),
        "#5": ("Relu", "ai.onnx", 18),
        "inner": ("Nothing", "ai.onnx", 18),
        "behind": ("Relu", "ai.onnx", 18),
        "mixed": ("Add", "ai.onnx", 18),
    }
    assert len(found) == len(errors) + 2
    assert (errors["inner"].graph, errors["mixed"].graph) == ("then", "graph")
    assert "attribute 'gain' is unknown" in errors["second"].message
    assert errors["second"].supported == "Relu of ai.onnx is supported from operator set 1 on"
    assert errors["#3"].supported == "no operator is called Rleu; did you mean Relu, PRelu?"
    assert errors["#4"].supported == "imported operator sets: ai.onnx 18"
    assert errors["#5"].message == "got 2 inputs, expected 1"
    accepted = {f.node: f.message for f in found if f.accepted}
    assert list(accepted) == ["gelu", "leaky"]
    assert "domain 'com.microsoft' is not given" in accepted["gelu"]


def test_what_would_be_accepted_is_wrong_too_if_strict() -> None:
    found = mgx_numba.check_onnx(broken_model(), strict=True)
    assert not any(f.accepted for f in found)
    assert {"gelu", "leaky"} <= {f.node for f in found}


def test_a_finding_reads_as_one_line() -> None:
    first = next(f for f in mgx_numba.check_onnx(broken_model()) if f.node == "second")
    assert str(first) == (
        "error: graph 'graph': node second (Relu, domain ai.onnx, opset 18): attribute 'gain' is unknown; the operator"
        " has: none [Relu of ai.onnx is supported from operator set 1 on]"
    )


def test_nothing_is_wrong_with_a_proper_model() -> None:
    assert mgx_numba.check_onnx(single("Relu", [X])[0]) == []


def test_whatever_parse_onnx_refuses_is_found() -> None:
    """Also of the model itself: its inputs, initializers, results, and the order of its nodes."""
    models = [make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": X}, {"y": FLOAT}) for _ in range(7)]
    models[0].graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    models[1].graph.initializer.add(name="w", data_type=FLOAT, dims=[5])
    models[2].graph.output[0].name = "nowhere"
    models[3].graph.node[0].input[0] = "nothing"
    models[4].opset_import[0].version = 1000
    models[5].graph.node[0].input[0] = "y"
    models[6].ClearField("graph")
    for model in models:
        with pytest.raises(MgxError) as refused:
            mgx_numba.parse_onnx(model)
        found = mgx_numba.check_onnx(model)
        assert str(refused.value) in [f.message for f in found]
        assert not any(f.accepted for f in found)


def test_nodes_are_looked_at_even_if_their_order_is_wrong() -> None:
    nodes = [helper.make_node("Relu", ["nothing"], ["y"]), helper.make_node("Mystery", ["x"], ["z"], name="m")]
    found = mgx_numba.check_onnx(make_model(nodes, {"x": X}, {"y": FLOAT}))
    assert ["uses value 'nothing'" in f.message for f in found] == [True, False]
    assert found[1].node == "m"


def test_functions_of_the_model_are_looked_into() -> None:
    imports = [helper.make_opsetid("", 18)]
    body = [helper.make_node("Mystery", ["a"], ["b"], name="deep"), helper.make_node("Relu", ["b"], ["c"])]
    function = helper.make_function("local", "Two", ["a"], ["c"], body, imports)
    for first in ("Relu", "Unheard"):
        nodes = [helper.make_node(first, ["x"], ["m"]), helper.make_node("Two", ["m"], ["y"], domain="local")]
        graph = helper.make_graph(nodes, "graph", [declared("x", FLOAT, [2, 3])], [declared("y")])
        model = helper.make_model(graph, opset_imports=[*imports, helper.make_opsetid("local", 1)], ir_version=9)
        model.functions.append(function)
        assert ("Two", "deep") in [(f.graph, f.node) for f in mgx_numba.check_onnx(model)]


def test_options_that_cannot_be_are_no_fault_of_the_model() -> None:
    with pytest.raises(OptionError, match="names 'z', which is no input"):
        mgx_numba.check_onnx(single("Relu", [X])[0], map_input_dims={"z": [1]})


def test_operators_of_other_domains_are_said_to_be_registered() -> None:
    model = make_model([helper.make_node("Fourier", ["x"], ["y"], domain="com.example")], {"x": X}, {"y": FLOAT})
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    (found,) = mgx_numba.check_onnx(model)
    custom = "register_custom_op('com.example', 'Fourier', ...) adds a custom one"
    assert (found.opset, found.message) == (1, f"unknown operator 'Fourier'; {custom}")
    assert found.supported == "operators of domain com.example are to be registered (register_custom_op)"


def test_a_file_and_its_bytes(tmp_path: Path) -> None:
    onnx.save(broken_model(), tmp_path / "m.onnx")
    found = mgx_numba.check_onnx(broken_model())
    for source in (tmp_path / "m.onnx", (tmp_path / "m.onnx").read_bytes()):
        assert mgx_numba.check_onnx(source) == found
    assert "no such file" in mgx_numba.check_onnx(tmp_path / "absent.onnx")[0].message
