"""Ten PyTorch models of other kinds than classifiers and language models, for `bench.torch_sweep`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["OTHERS"]

Case = tuple[nn.Module, dict[str, Any]]


def _unet() -> Case:
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(64, 128),
        layers_per_block=1,
        cross_attention_dim=64,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    given = {"sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor(7)}
    return module, {**given, "encoder_hidden_states": torch.randn(2, 16, 64), "return_dict": False}


def _vae() -> Case:
    from diffusers import AutoencoderKL

    module = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=16,
        latent_channels=4,
    )
    return module.decoder, {"0": torch.randn(1, 4, 16, 16)}


def _dit() -> Case:
    from diffusers import DiTTransformer2DModel

    module = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=2, sample_size=16
    )
    given = {"hidden_states": torch.randn(1, 4, 16, 16), "timestep": torch.tensor([7])}
    return module, {**given, "class_labels": torch.tensor([3]), "return_dict": False}


def _speech(kind: str, **fields: Any) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **fields)
    return transformers.AutoModel.from_config(config)


def _wav2vec2() -> Case:
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return _speech("wav2vec2", **sizes, conv_dim=[64] * 7), {"input_values": torch.randn(1, 16000)}


def _whisper() -> Case:
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "vocab_size": 1000}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    module = _speech("whisper", **sizes, **special)
    ids = torch.randint(3, 1000, (1, 8))
    return module, {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": ids, "use_cache": False}


class Recommender(nn.Module):
    """A recommendation model of embeddings, their products and perceptrons, after DLRM (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32 + 36, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], 1)
        rows, columns = torch.tril_indices(9, 9, -1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([bottom, products], 1))


def _recommender() -> Case:
    return Recommender(), {"dense": torch.randn(128, 13), "sparse": torch.randint(0, 1000, (128, 8))}


class GraphNetwork(nn.Module):
    """Two layers that add the neighbours' values at each node, after GCN (Kipf and Welling, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(64, 128), nn.Linear(128, 16)))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype)) + 1
        scale = degree.rsqrt()
        for number, layer in enumerate(self.layers):
            y = layer(x) * scale[:, None]
            y = (y + torch.zeros_like(y).index_add(0, target, y[source])) * scale[:, None]
            x = y if number else y.relu()
        return x


def _graph() -> Case:
    edges = torch.randint(0, 500, (2, 3000))
    return GraphNetwork(), {"x": torch.randn(500, 64), "source": edges[0], "target": edges[1]}


class Recurrent(nn.Module):
    """A speech recogniser: two convolutions, a bidirectional LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(40, 64, 3, 2, 1), nn.ReLU(), nn.Conv1d(64, 64, 3, 1, 1), nn.ReLU())
        self.lstm = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.front(x).transpose(1, 2))[0]).log_softmax(-1)


def _recurrent() -> Case:
    return Recurrent(), {"0": torch.randn(1, 40, 200)}


def _translator() -> Case:
    module = nn.Transformer(128, 4, 2, 2, 256, batch_first=True)
    return module, {"src": torch.randn(1, 64, 128), "tgt": torch.randn(1, 16, 128)}


class Forecaster(nn.Module):
    """Dilated causal convolutions with residual sums, as forecasters of time series have them (Bai et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**k) for k in range(5))
        self.enter, self.leave = nn.Conv1d(8, 32, 1), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for convolution in self.convolutions:
            padded = nn.functional.pad(x, (2 * convolution.dilation[0], 0))
            x = x + nn.functional.gelu(convolution(padded))
        return self.leave(x[:, :, -1])


def _forecaster() -> Case:
    return Forecaster(), {"0": torch.randn(16, 8, 256)}


OTHERS: dict[str, Callable[[], Case]] = {
    "diffusers-unet": _unet,
    "diffusers-vae": _vae,
    "diffusers-dit": _dit,
    "wav2vec2": _wav2vec2,
    "whisper": _whisper,
    "dlrm": _recommender,
    "gcn": _graph,
    "lstm-speech": _recurrent,
    "transformer": _translator,
    "tcn": _forecaster,
}
