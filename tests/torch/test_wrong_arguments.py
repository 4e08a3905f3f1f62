"""Arguments that the functions for PyTorch cannot use: each error says which were expected."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import AdditionalInputs, Dim, ShapesCollection

from mgx_numba import from_torch
from mgx_numba.errors import FormatError, OptionError, ParameterError, UnsupportedError
from mgx_numba.torch import MGXModule
from mgx_numba.torch.fx import lower_to_mgx
from mgx_numba.torch.options import parse_options
from mgx_numba.torch.region import Lowered, runner

from .exported import module_of
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


@pytest.mark.parametrize("function", [from_torch, lower_to_mgx])
@pytest.mark.filterwarnings("ignore")  # PyTorch calls all of them deprecated
def test_kinds_of_tensors_and_modules_that_pytorch_gives_up(function: Callable[..., Any]) -> None:
    with pytest.raises(OptionError, match="must be a dense tensor, got one of type nested"):
        function(Block(), torch.nested.nested_tensor([X, X]))
    with pytest.raises(OptionError, match="must be a dense tensor, got one of type torch.qint8"):
        function(Block(), torch.quantize_per_tensor(X, 0.1, 0, torch.qint8))
    with pytest.raises(OptionError, match="must be an nn.Module or an ExportedProgram, got TopLevelTracedModule"):
        function(torch.jit.trace(Block(), X), X)


@pytest.mark.parametrize("given", [X, (X,), [X], {"x": X}])
def test_example_inputs_of_all_kinds(given: Any) -> None:
    model = Block().eval()
    named = given if isinstance(given, dict) else {}
    lowered = lower_to_mgx(model, given, min_acc_module_size=1)
    with torch.no_grad():
        agree(lowered(**named) if named else lowered(X), model(X))
    assert from_torch(model, given).get_parameter_names() == ["x"]


@dataclasses.dataclass
class Pair:
    """Two tensors."""

    a: Tensor
    b: Tensor


@pytest.mark.parametrize("function", [from_torch, lower_to_mgx])
@pytest.mark.parametrize(
    ("called", "given", "message"),
    [
        (lambda p: p.a, (Pair(X, X),), r"input \[0\] is of .*Pair.*see torch.export.register_dataclass"),
        (lambda d: d["k"][1].a, ({"k": [X, Pair(X, X)]},), r"input \[0\]\['k'\]\[1\] is of .*Pair"),
        (
            lambda x, t: x.to(t),
            (X, torch.float64),
            r"input \[1\] is of .*dtype.*see torch.utils._pytree.register_const",
        ),
        (lambda x: Pair(x, x + 1), (X,), r"the module returns .*Pair.*see torch.export.register_dataclass"),
    ],
)
def test_types_that_pytorch_cannot_export(
    function: Callable[..., Any], called: Callable[..., Any], given: Any, message: str
) -> None:
    """PyTorch's ValueError named no argument."""
    with pytest.raises(OptionError, match=message):
        function(module_of(called), given)


@pytest.mark.parametrize(("example", "other"), [(2, 3), (2, 2.0), (2.5, 2), (True, 1), ("a", "b"), (None, X), (2, X)])
def test_a_number_that_the_module_was_lowered_for_may_not_change(example: Any, other: Any) -> None:
    """The module computed with the example's number."""
    model = module_of(lambda x, n: x * n if isinstance(n, (int, float)) else x + 1)
    lowered = lower_to_mgx(model, (X, example), min_acc_module_size=1)
    agree(lowered(X, example), model(X, example))
    with pytest.raises(ParameterError, match="argument '.*' is .*; the module was lowered for"):
        lowered(X, other)


def test_shapes_of_registered_classes_are_lists() -> None:
    model = module_of(lambda given: given.a + 1)
    torch.export.register_dataclass(_Registered)
    given = (_Registered(X),)
    with pytest.raises(OptionError, match=r"dynamic_shapes\[0\]\[0\] must be a list .* of .*_Registered'>, got dict"):
        from_torch(model, given, (({"a": {0: Dim("b")}},),))
    program = from_torch(model, given, (([{0: Dim("b")}],),))
    assert next(iter(program.get_parameter_shapes().values())).dynamic()


@dataclasses.dataclass
class _Registered:
    a: Tensor


def test_open_lengths_of_arguments_without_names() -> None:
    """PyTorch's error was 'Must provide a tree_name when there might be a mismatch'."""

    class Named(nn.Module):
        def forward(self, x: Tensor, **more: Tensor) -> Tensor:
            return x + more["y"]

    with pytest.raises(OptionError, match=r"exports \*\*more with fixed lengths alone"):
        from_torch(Named(), {"x": X, "y": X}, {"x": {0: Dim("b")}, "more": {"y": {0: Dim("b")}}})
    assert from_torch(Named(), {"x": X, "y": X}).get_parameter_names() == ["x", "y"]


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
        ({"verbose_log": 1}, "verbose_log must be True or False, got 1"),
        ({"save_subgraph_programs": "a"}, "save_subgraph_programs must be True or False, got 'a'"),
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
        ({"decompositions": {torch.ops.aten.relu: torch.relu}}, "a function for each overload of an operator, such as"),
        ({"decompositions": {torch.ops.aten.relu.default: 3}}, "a function for each overload .* got 3 for"),
        ({"weights": 3}, "weights must be the path of a safetensors file or a folder, got int"),
    ],
)
def test_options_of_from_torch_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        from_torch(Block(), X, **options)


def _collected(x: Tensor, shapes: Any) -> ShapesCollection:
    made = ShapesCollection()
    made[x] = shapes
    return made


def _added(*args: Any) -> AdditionalInputs:
    made = AdditionalInputs()
    made.add(args)
    return made


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (({2: Dim("b")},), r"dynamic_shapes\[0\] has axis 2; the tensor has 2 axes"),
        (({-1: Dim("b")},), r"dynamic_shapes\[0\] has axis -1"),
        (({"0": Dim("b")},), r"dynamic_shapes\[0\] has axis '0'"),
        ({"x": {5: Dim("b")}}, r"dynamic_shapes\['x'\] has axis 5"),
        (_collected(X, {2: Dim("b")}), r"dynamic_shapes\['x'\] has axis 2"),
        (_collected(X.clone(), {0: Dim("b")}), "do not fit: Some tensors .* were not found"),
        (_added(torch.randn(3, 16, 1)), "do not fit: Node arity mismatch"),
        (({0: "b"},), "do not fit: Unexpected dimension mapped to index 0"),
        (([Dim("b")],), "do not fit: Expected dynamic shape spec"),
        (Dim("b"), "must be a dict or a sequence, got Dim"),
        ((Dim("b"),), "do not fit: Unexpected input tensor shape"),
        ({"y": {0: Dim("b")}}, "do not fit: .* must be the arg names"),
        ((None, None), "do not fit: .* `inputs` has 1 elements, but `dynamic_shapes` has 2"),
        (({0: 5},), "do not fit: Static shape constraint of 5 does not match"),
        (({0: Dim("b", min=8, max=16)},), r"do not fit: 4 not in range \[8, 16\]"),
        (({1: Dim("b")},), r"do not fit: Constraints violated \(b\)"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dynamic_shapes_that_do_not_fit(shapes: Any, message: str) -> None:
    """An axis that is missing was a raw IndexError."""
    with pytest.raises(OptionError, match=message):
        from_torch(Block(), X, shapes)


def test_shapes_in_structures() -> None:
    class Pair(nn.Module):
        def forward(self, pair: dict[str, Tensor], *more: Tensor) -> Tensor:
            return pair["a"] + pair["b"] + more[0]

    call, length = ({"a": X, "b": X}, X), Dim("n")
    program = from_torch(Pair(), call, {"pair": {key: {0: length} for key in "ab"}, "more": ({0: length},)})
    assert all(shape.dynamic() for shape in program.get_parameter_shapes().values())
    with pytest.raises(OptionError, match=r"dynamic_shapes\['pair'\]\['b'\] has axis 3"):
        from_torch(Pair(), call, {"pair": {"a": None, "b": {3: length}}, "more": (None,)})
    with pytest.raises(OptionError, match=r"dynamic_shapes\[1\]\[0\] has axis 2"):
        from_torch(Pair(), call, ({"a": None, "b": None}, ({2: length},)))


def test_an_error_of_the_module_is_passed_on() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        from_torch(Failing(), X, ({0: Dim("b")},))


def test_shapes_of_an_exported_program_are_its_own() -> None:
    with pytest.raises(OptionError, match="of no use for an ExportedProgram"):
        from_torch(torch.export.export(Block(), (X,)), dynamic_shapes=({0: Dim("b")},))


def test_a_file_whose_header_would_be_longer_than_the_file(tmp_path: Path) -> None:
    """Reading such a header took memory of its claimed length."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"no safetensors file")
    with pytest.raises(FormatError, match="does not fit a file of 19 bytes"):
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
        ({"input_orders": 3}, "input_orders must have a permutation"),
        ({"input_orders": [3]}, "input_orders must have a permutation"),
        ({"input_orders": [(0, "1")]}, "input_orders must have a permutation"),
        ({"output_orders": [(0,)]}, "output_orders must have a permutation"),
        ({"input_names": [3]}, r"input_names must be a sequence of names, got \[3\]"),
        ({"output_names": ["a", "b"]}, "output_names are a, b; the number of results is 1"),
        ({"quantize_fp16": 3}, "quantize_fp16 must be True or False, got 3"),
        ({"on_device": "cpu"}, "on_device must be True or False, got 'cpu'"),
    ],
)
def test_arguments_of_a_module_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises((OptionError, ParameterError), match=message):
        MGXModule(**{"program": from_torch(Block().eval(), X), **options})


@pytest.mark.parametrize("state", [3, {}, {"program": torch.zeros(4, dtype=torch.uint8)}])
def test_states_of_other_modules(state: Any) -> None:
    with pytest.raises(ParameterError, match="the state of an MGXModule is expected; it lacks .*input_names"):
        MGXModule().load_state_dict({"_extra_state": state})


def test_values_that_are_not_dense() -> None:
    exported = torch.export.export(nn.Linear(16, 2), (X.to_sparse(),))
    with pytest.raises(UnsupportedError, match="layout torch.sparse_coo"):
        from_torch(exported)


def test_a_graph_for_a_device_refuses_tensors_in_host_memory_alone() -> None:
    program = from_torch(Block(), X)
    with pytest.raises(ParameterError, match="all inputs lie in host memory; the graph was compiled for tensors on a"):
        runner(Lowered(program, [("x", 0, None)], [None], "gpu", on_device=True), [X])
