"""torch_migraphx's interface: ``lower_to_mgx`` and ``MGXModule``, as its examples use them."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mgx_numba as migraphx
import mgx_numba.torch as torch_migraphx
from mgx_numba.errors import MgxError, ParameterError, UnsupportedError
from mgx_numba.torch.fx import LowerPrecision

from .models import Block, Counting, Images, Odd, agree


def again(value: Any, **options: Any) -> Any:
    """Return a copy of ``value``, by way of `torch.save` and `torch.load`."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def test_a_lowered_module_is_one_program_and_can_be_saved() -> None:
    model, x = Images(), torch.randn(2, 3, 8, 8)
    lowered = torch_migraphx.fx.lower_to_mgx(model, [x])
    (part,) = lowered.compiled_parts()
    assert not model.training and isinstance(part, torch_migraphx.MGXModule)
    with torch.no_grad():
        expected = model(x)
    agree(lowered(x), expected)
    assert not list(lowered.parameters()) and not list(lowered.buffers())
    agree(again(lowered, weights_only=False)(x), expected)
    empty = torch_migraphx.MGXModule()
    with pytest.raises(MgxError, match="no program"):
        empty(x)
    empty.load_state_dict(again(part.state_dict()))
    agree(empty(x), expected)


def test_what_cannot_be_compiled_runs_between_the_parts(caplog: Any) -> None:
    model, x = Odd().eval(), torch.randn(3, 8)
    with torch.no_grad():
        expected = model(x)
    lowered = torch_migraphx.fx.lower_to_mgx(model, [x], min_acc_module_size=2)
    assert len(lowered.compiled_parts()) == 2
    agree(lowered(x), expected)
    agree(again(lowered, weights_only=False)(x), expected)
    alone = torch_migraphx.fx.lower_to_mgx(model, [x], min_acc_module_size=100)
    assert not alone.compiled_parts()
    agree(alone(x), expected)


def test_arguments_and_results_keep_their_structure() -> None:
    class Pairs(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], scale: dict[str, Tensor]) -> dict[str, Any]:
            return {"sum": (pair[0] + pair[1]) * scale["by"], "same": pair}

    pair, scale = (torch.randn(3), torch.randn(3)), {"by": torch.randn(3)}
    lowered = torch_migraphx.fx.lower_to_mgx(Pairs(), [pair, scale], min_acc_module_size=1)
    agree(list(lowered(pair, scale).values()), list(Pairs()(pair, scale).values()))
    with pytest.raises(ParameterError, match="structure"):
        lowered(pair[0], scale)


@pytest.mark.parametrize(
    "how", [{"fp16": True}, {"bf16": True}, {"int8": True}, {"lower_precision": LowerPrecision.FP16}]
)
def test_lower_precisions_are_near(how: dict[str, Any]) -> None:
    model, x = nn.Sequential(Block(), Block()).eval(), torch.randn(4, 16)
    lowered = torch_migraphx.fx.lower_to_mgx(model, [x], **how)
    with torch.no_grad():
        assert 0 < (lowered(x) - model(x)).abs().max() < 0.1


def test_programs_of_the_parts_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(4, 16)
    torch_migraphx.fx.lower_to_mgx(Block(), [x], save_subgraph_programs=True)
    (path,) = tmp_path.iterdir()
    assert migraphx.load(path).is_compiled()


def test_a_module_that_changes_its_buffers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="calls in place"):
        torch_migraphx.fx.lower_to_mgx(Counting(), [torch.randn(3, 4)])


def test_a_module_of_a_program() -> None:
    program = migraphx.program()
    module = program.get_main_module()
    shape = migraphx.shape(type="float_type", lens=[2, 3])
    x, y = module.add_parameter("x", shape), module.add_parameter("y", shape)
    module.add_return([module.add_instruction(migraphx.op("sub"), [x, y])])
    one, other = torch.randn(2, 3), torch.randn(2, 3)
    with pytest.raises(ParameterError, match="input_names are x; the program has x, y"):
        torch_migraphx.MGXModule(program, ["x"])
    agree(torch_migraphx.MGXModule(program, ["y", "x"])(one, other), other - one)
    with pytest.raises(ParameterError, match="2 inputs are expected, got 1"):
        torch_migraphx.MGXModule(program)(one)


def test_the_backend_has_their_name() -> None:
    assert "migraphx" in torch._dynamo.list_backends()
    logging.getLogger("mgx_numba.torch").setLevel(logging.NOTSET)
    model, x = Block().eval(), torch.randn(2, 16)
    with torch.no_grad():
        agree(torch.compile(model, backend="migraphx")(x), model(x))


@pytest.mark.parametrize("kind", ["plain", "dynamic", "symmetric"])
def test_exported_graphs_with_quantised_parts_are_lowered(kind: str) -> None:
    """Modules as PT2E makes them: exported ones, which cannot be switched to evaluation."""
    import torch.ao.quantization.fx._decomposed  # defines the operators

    ops = torch.ops.quantized_decomposed

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(5))
            self.register_buffer("weight", torch.randint(-128, 128, (5, 8), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(5) / 50 + 0.01)
            self.register_buffer("zeros", torch.zeros(5, dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            limits = (-128, 127)
            if kind == "plain":
                scale, zero = 0.03, 4
            else:
                choose = ops.choose_qparams.tensor if kind == "dynamic" else ops.choose_qparams_symmetric.tensor
                scale, zero = choose(x, *limits, 1e-6, torch.int8)
            q = ops.quantize_per_tensor(x, scale, zero, *limits, torch.int8)
            x = ops.dequantize_per_tensor(q, scale, zero, *limits, torch.int8)
            weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *limits, torch.int8)
            return torch.nn.functional.linear(x, weight, self.bias)

    x = torch.randn(2, 3, 8)
    module = torch.export.export(Layer().eval(), (x,)).module()
    lowered = torch_migraphx.fx.lower_to_mgx(module, [x], min_acc_module_size=1)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), module(x), atol=1e-5, rtol=1e-5)
    (part,) = lowered.compiled_parts()
    assert "quant_dot" in str(part.program)


def test_complex_values_become_real_ones() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turn", torch.polar(torch.ones(4, 4), torch.randn(4, 4)))

        def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            turned = torch.view_as_complex(x.reshape(4, 4, 2)) * self.turn
            return torch.view_as_real(turned).flatten(1), z * z.conj() + 1j

    model, x, z = Turned(), torch.randn(4, 8), torch.randn(3, dtype=torch.complex64)
    lowered = torch_migraphx.fx.lower_to_mgx(model, [x, z], min_acc_module_size=1, target="ref")
    assert len(lowered.compiled_parts()) == 1
    agree(list(lowered(x, z)), list(model(x, z)))


def test_a_division_of_integers_by_zero_is_an_error() -> None:
    class Divided(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a // b + 1

    a, b = torch.arange(4), torch.arange(1, 5)
    lowered = torch_migraphx.fx.lower_to_mgx(Divided(), [a, b], min_acc_module_size=1, target="ref")
    agree(lowered(a, b), a // b + 1)
    for divided in (lowered, again(lowered, weights_only=False)):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divided(a, b - 1)
