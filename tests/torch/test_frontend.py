"""PyTorch's frontend: whole modules, open lengths, parameters, files and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx

torch = pytest.importorskip("torch", reason="PyTorch is not installed: tests of its frontend do not run")
from torch import nn  # noqa: E402

from .exported import array, check, module_of, results_of  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    """An encoder layer as models have it."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(x)))


def test_encoder_layer_keeps_its_patterns() -> None:
    program = check(Block(), [torch.randn(2, 5, 16)], target="cpu")
    names = {i.name for i in mgx.from_torch(Block(), torch.randn(2, 5, 16)).portable.main}
    assert {"attention", "gelu_erf", "rsqrt", "dot"} <= names
    assert program.is_compiled()


def test_convolutions_with_batch_norm_and_pooling() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=(1, 2), groups=4, dilation=(1, 2)),
        nn.Hardswish(),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.Flatten(),
        nn.Linear(24, 5),
    )
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    check(model, [torch.randn(2, 3, 17, 19)])


def test_recurrent_layers() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
            self.gru, self.rnn = nn.GRU(12, 5), nn.RNN(5, 3, nonlinearity="relu", bias=False)

        def forward(self, x: Any) -> Any:
            y, (h, c) = self.lstm(x)
            return (*self.rnn(self.gru(y)[0]), h, c)

    check(Stack(), [torch.randn(2, 5, 4)])


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("batched", [True, False])
def test_recurrent_layers_over_open_lengths(target: str, batched: bool) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=3)
            self.gru, self.relu, self.rnn = nn.GRU(6, 5), nn.RNN(5, 3, nonlinearity="relu"), nn.RNN(3, 3)

        def forward(self, x: Any) -> Any:
            y, (h, c) = self.lstm(x)
            y, last = self.gru(y.transpose(0, 1) if x.dim() == 3 else y)
            return (*self.rnn(self.relu(y)[0]), h, c, last)

    steps, lengths = torch.export.Dim("steps", max=64), ((2, 5), (3, 1), (1, 17))
    given = [torch.randn(b, s, 4) if batched else torch.randn(s, 4) for b, s in lengths]
    shapes = {0: torch.export.Dim("batch", max=8), 1: steps} if batched else {0: steps}
    check(Stack(), *([x] for x in given), dynamic=(shapes,), target=target)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_recurrent_layers_with_projections(target: str) -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.LSTM(4, 6, 2, proj_size=3, batch_first=True, bidirectional=True)
            self.plain = nn.LSTM(6, 5, bias=False, proj_size=2)

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            y, ends = self.both(x, (h, c))
            return y, *ends, *self.plain(y)[1], *self.plain(y[0])[1]

    given = [torch.randn(2, 5, 4), torch.randn(4, 2, 3), torch.randn(4, 2, 6)]
    check(Projected(), given, target=target)


def test_open_lengths_are_symbols_with_their_ranges() -> None:
    batch, steps = torch.export.Dim("batch", max=32), torch.export.Dim("steps", min=2, max=128)
    shapes = ({0: batch, 1: steps},)
    more = [[torch.randn(b, s, 16)] for b, s in ((1, 2), (5, 9), (3, 33))]
    program = check(Block(), [torch.randn(2, 5, 16)], *more, dynamic=shapes, target="cpu")
    (plan,) = program.open_plans()
    assert len(plan.symbols) == 2
    (shape,) = mgx.from_torch(Block(), (torch.randn(2, 5, 16),), shapes).get_parameter_shapes().values()
    assert [(d.min, d.max) for d in shape.dyn_dims()][:2] == [(0, 32), (2, 128)]


def test_arithmetic_on_open_lengths() -> None:
    def windows(x: Any) -> Any:
        b, s = x.shape
        left = x[:, : s // 2]
        grid = torch.arange(s, device=x.device)[None] + torch.arange(b)[:, None]
        return left, x.reshape(b * s), grid, x.new_zeros(b, s + 1), x / s, torch.cat([x, x], 1).view(2 * b, s)

    s = torch.export.Dim("s", min=4, max=64)
    check(windows, [torch.randn(3, 8)], [torch.randn(3, 12)], dynamic=({1: 2 * s},))


def test_saved_dynamic_program_is_read_without_pytorch(tmp_path: Path) -> None:
    import subprocess
    import sys

    shapes = ({0: torch.export.Dim("n", max=16)},)
    function = module_of(lambda x: x.view(x.shape[0] * 2, -1).flip(0))
    mgx.save(mgx.from_torch(function, (torch.zeros(2, 6),), (shapes,)), str(tmp_path / "m.mxr"))
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import mgx_numba as mgx, numpy as np\n"
        "p = mgx.load('m.mxr'); p.compile(mgx.get_target('ref'))\n"
        "np.save('y.npy', np.asarray(p.run({p.get_parameter_names()[0]: np.load('x.npy')})[0]))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), x.reshape(6, 3)[::-1])


def test_parameters_are_used_where_they_lie_and_tied_ones_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    model = Tied()
    portable = mgx.from_torch(model.eval(), torch.tensor([[1, 2]]))
    literals = [i for i in portable.portable.main if i.literal is not None and i.literal.shape.lens == (11, 8)]
    assert len(literals) == 1
    assert literals[0].literal.numpy().ctypes.data == model.embed.weight.data_ptr()


def test_weights_of_a_model_without_memory_come_from_safetensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, dtype=torch.float32)).eval()
    _write_safetensors(tmp_path / "model.safetensors", model.state_dict())
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).eval()
        exported = torch.export.export(empty, (torch.zeros(5, 4),))
    with pytest.raises(mgx.MgxError, match=r"'0.weight' has no elements: give weights"):
        mgx.from_torch(exported)
    program = mgx.from_torch(exported, weights=tmp_path)
    program.compile(mgx.get_target("ref"))
    x = torch.randn(5, 4)
    np.testing.assert_allclose(results_of(program, [x])[0], array(model(x)), atol=1e-6)


def _write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    header, data = {}, b""
    for name, tensor in tensors.items():
        own = array(tensor).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_unknown_operator_is_named_with_node_and_source_line() -> None:
    class Eigenvalues(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvalsh(x)

    with pytest.raises(
        mgx.MgxError, match=r"node '_linalg_eigh' \(aten::_linalg_eigh, from \".*frontend.py\", line \d+"
    ):
        mgx.from_torch(Eigenvalues(), torch.eye(3))


def test_state_that_a_model_changes_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x + self.count

    with pytest.raises(mgx.MgxError, match="changes count in place"):
        mgx.from_torch(Counter(), torch.zeros(2))


def test_quantised_graph_has_pairs_of_quantizelinear_and_dequantizelinear() -> None:
    import torch.ao.quantization.fx._decomposed

    ops = torch.ops.quantized_decomposed

    def layer(x: Any, w: Any, scales: Any) -> Any:
        zeros = torch.zeros(3, dtype=torch.int64)
        w8 = ops.quantize_per_channel(w, scales, zeros, 0, -127, 127, torch.int8)
        wide = ops.dequantize_per_channel(w8, scales, zeros, 0, -127, 127, torch.int8)
        x8 = ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        return nn.functional.linear(ops.dequantize_per_tensor(x8, 0.05, 3, -128, 127, torch.int8), wide)

    args = [torch.randn(4, 5), torch.randn(3, 5), torch.tensor([0.01, 0.02, 0.03])]
    program = check(layer, args)
    text = str(mgx.from_torch(module_of(layer), tuple(args)))
    assert program is not None and text.count("= quantizelinear") == 2 == text.count("= dequantizelinear")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_element_types(name: str) -> None:
    dtype = getattr(torch, name)
    model = Block().to(dtype)
    check(model, [torch.randn(2, 3, 16, dtype=dtype)], tolerance={"float16": 3e-3, "bfloat16": 3e-2}.get(name, 1e-12))


def test_quantised_products_become_products_of_integers() -> None:
    """PT2E gives zero points as int64, which must be constants of the pairs, not computed."""
    import torch.ao.quantization.fx._decomposed

    ops = torch.ops.quantized_decomposed

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randint(-127, 128, (7, 40), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(7) * 0.01)
            self.register_buffer("zeros", torch.zeros(7, dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            w = ops.dequantize_per_channel(self.w, self.scales, self.zeros, 0, -127, 127, torch.int8)
            x8 = ops.quantize_per_tensor(x, 0.05, 3, 0, 255, torch.uint8)
            return nn.functional.linear(ops.dequantize_per_tensor(x8, 0.05, 3, 0, 255, torch.uint8), w)

    program = check(Layer(), [torch.randn(9, 40)], target="cpu", tolerance=1e-4)
    kernels = [step.kernel.name for step in program.compiled.executable.plan.steps if step.kernel]
    assert any("int8" in name for name in kernels)
