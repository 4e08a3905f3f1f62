"""Arguments that the functions for PyTorch cannot use: each error says which were expected."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mgx_numba import from_torch
from mgx_numba.errors import FormatError, OptionError, ParameterError, UnsupportedError
from mgx_numba.torch import MGXModule
from mgx_numba.torch.fx import lower_to_mgx
from mgx_numba.torch.options import parse_options

from .models import Block, agree

X = torch.randn(4, 16)
INPUTS: dict[str, tuple[Any, str]] = {
    "array": (X.numpy(), "got a NumPy array"),
    "list of arrays": ([X.numpy()], "must be a tensor or a number, got a NumPy array"),
    "number": (3, "a tensor, a sequence of arguments, or a dict of arguments by name, got int"),
    "string": ("x", "got str"),
    "too many": ((X, X), r"do not fit Block.forward\(x.*too many positional arguments"),
    "too few": ((), "missing a required argument: 'x'"),
    "unknown name": ({"y": X}, "missing a required argument: 'x'"),
    "sparse": (X.to_sparse(), "must be a dense tensor, got one of layout torch.sparse_coo"),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("function", [from_torch, lower_to_mgx])
def test_example_inputs_of_other_kinds(function: Callable[..., Any], name: str) -> None:
    given, message = INPUTS[name]
    with pytest.raises(OptionError, match=message):
        function(Block(), given)


@pytest.mark.parametrize("function", [from_torch, lower_to_mgx])
def test_models_of_other_kinds(function: Callable[..., Any]) -> None:
    for model in (lambda x: x, nn.Linear, X.numpy(), "model.pt2"):
        with pytest.raises(OptionError, match="must be an nn.Module or an ExportedProgram, got "):
            function(model, X)
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(OptionError, match="'0.weight' of Sequential has no shape yet: call the module once"):
        function(lazy, X)
    lazy(X)
    function(lazy, X)


@pytest.mark.parametrize("given", [X, (X,), [X], {"x": X}])
def test_example_inputs_of_all_kinds(given: Any) -> None:
    model = Block().eval()
    named = given if isinstance(given, dict) else {}
    lowered = lower_to_mgx(model, given, min_acc_module_size=1)
    with torch.no_grad():
        agree(lowered(**named) if named else lowered(X), model(X))
    assert from_torch(model, given).get_parameter_names() == ["x"]


def test_an_exported_module_is_lowered() -> None:
    model = Block().eval()
    lowered = lower_to_mgx(torch.export.export(model, (X,)), X, lower_precision="fp32", min_acc_module_size=1)
    assert len(lowered.compiled_parts()) == 1
    with torch.no_grad():
        agree(lowered(X), model(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lower_precision": "fp64"}, "of fp32, fp16, bf16, int8, got 'fp64'"),
        ({"lower_precision": 3}, "of fp32, fp16, bf16, int8, got 3"),
        ({"fp16": "yes"}, "fp16 must be True or False, got 'yes'"),
    ],
)
def test_precisions_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lower_to_mgx(Block(), X, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic_shapes": 3}, "dynamic_shapes must be a dict or a sequence, got int"),
        ({"decompositions": [3]}, "decompositions must be a dict by operator, got list"),
        ({"weights": 3}, "weights must be the path of a safetensors file or a folder, got int"),
    ],
)
def test_options_of_from_torch_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        from_torch(Block(), X, **options)


def test_a_file_whose_header_would_be_longer_than_the_file(tmp_path: Path) -> None:
    """Reading such a header took memory of its claimed length."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"no safetensors file")
    with pytest.raises(FormatError, match="its header would have"):
        from_torch(copy.deepcopy(Block()).to("meta"), X.to("meta"), weights=file)


@pytest.mark.parametrize(
    ("options", "message"),
    [({3: True}, "must be strings, got 3"), ({"quantize": [["fp16"]]}, r"a list of these, got \[\['fp16'\]\]")],
)
def test_options_of_the_backend_of_other_kinds(options: dict[Any, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X.numpy(), "'x' must be a tensor or a number, got ndarray"),
        (X.tolist(), "'x' must be a tensor or a number, got list"),
        ("x", "'x' must be a tensor or a number, got str"),
        (None, "'x' must be a tensor or a number, got NoneType"),
        (3, "for parameter: x should be"),
        (X.to("meta"), "with elements in memory, got one of .*device meta"),
        (X.to_sparse(), "with elements in memory, got one of layout torch.sparse_coo"),
    ],
)
def test_inputs_of_compiled_modules_of_other_kinds(given: Any, message: str) -> None:
    module = MGXModule(from_torch(Block().eval(), X))
    for _ in range(2):  # the first call learns about inputs, the second of tensors takes them without a test
        with pytest.raises(ParameterError, match=message):
            module(given)
        module(X)
        module(X.clone().requires_grad_())


def test_a_compiled_module_cannot_be_compiled_again() -> None:
    lowered = lower_to_mgx(Block(), X, min_acc_module_size=1)
    with pytest.raises(ParameterError, match="class FakeTensor"):
        lower_to_mgx(lowered, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"program": 3}, "takes a program, got int"),
        ({"input_names": "x"}, "input_names must be a sequence of names, got 'x'"),
        ({"output_names": 3}, "output_names must be a sequence of names, got 3"),
        ({"input_orders": [(0, 2)]}, r"input_orders must have a permutation of axes, or None, for each of \['x'\]"),
        ({"output_orders": []}, "output_orders must have a permutation"),
    ],
)
def test_arguments_of_a_module_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        MGXModule(**{"program": from_torch(Block().eval(), X), **options})


@pytest.mark.parametrize("state", [3, {}, {"program": torch.zeros(4, dtype=torch.uint8)}])
def test_states_of_other_modules(state: Any) -> None:
    with pytest.raises(ParameterError, match="the state of an MGXModule is expected; it lacks .*input_names"):
        MGXModule().load_state_dict({"_extra_state": state})


def test_values_that_are_not_dense() -> None:
    exported = torch.export.export(nn.Linear(16, 2), (X.to_sparse(),))
    with pytest.raises(UnsupportedError, match="layout torch.sparse_coo"):
        from_torch(exported)
