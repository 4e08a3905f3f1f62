"""Networks as PyTorch modules, of the usual sizes with random weights, for `bench.gpu_inductor`.

Each is a function that returns the module in float32 and example inputs. Both go to the exporter and to PyTorch's own
compiler, so that all compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.torch_unet import Unet, unet_inputs

__all__ = ["NETWORKS", "Network"]

Network = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
"""Function that returns a module in evaluation mode and its inputs."""
WIDTH, HEADS, LAYERS = 768, 12, 12
"""Width, heads and layers of BERT-base, ViT-B and GPT-2 small."""


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al., 2015), its stride on the 3 by 3 convolution."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * inner
        self.first = _normed(nn.Conv2d(inputs, inner, 1, bias=False))
        self.second = _normed(nn.Conv2d(inner, inner, 3, stride, 1, bias=False))
        self.third = _normed(nn.Conv2d(inner, outputs, 1, bias=False))
        same = stride == 1 and inputs == outputs
        self.aside = nn.Identity() if same else _normed(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.first(x))))
        return F.relu(self.third(y) + self.aside(x))


def _normed(convolution: nn.Conv2d) -> nn.Sequential:
    norm = nn.BatchNorm2d(convolution.out_channels)
    nn.init.uniform_(norm.running_var, 0.8, 1.2)
    nn.init.normal_(norm.running_mean, std=0.1)
    nn.init.uniform_(norm.weight, 0.5, 0.9)
    return nn.Sequential(convolution, norm)


class ResNet50(nn.Module):
    """ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _normed(nn.Conv2d(3, 64, 7, 2, 3, bias=False))
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for k in range(count):
                blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage and not k else 1))
                inputs = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention with one projection to queries, keys and values, and an optional cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        parts = self.qkv(x).split(WIDTH, 2)
        q, k, v = (t.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for t in parts)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH)), k, v


class Layer(nn.Module):
    """A transformer layer with norms before (ViT, GPT-2) or after (BERT) each part."""

    def __init__(self, before: bool, tanh: bool = False) -> None:
        super().__init__()
        self.before, self.tanh = before, "tanh" if tanh else "none"
        self.attention = Attention()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def feed(self, x: Tensor) -> Tensor:
        return self.outer(F.gelu(self.inner(x), approximate=self.tanh))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if self.before:
            y, k, v = self.attention(self.first(x), past)
            x = x + y
            return x + self.feed(self.second(x)), k, v
        y, k, v = self.attention(x, past)
        x = self.first(x + y)
        return self.second(x + self.feed(x)), k, v


class Bert(nn.Module):
    """BERT-base's encoder with its embeddings (Devlin et al., 2018), all positions seen."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(30522, WIDTH), nn.Embedding(2, WIDTH)
        self.places = nn.Parameter(torch.randn(1, length, WIDTH) / 2)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer(before=False) for _ in range(LAYERS))

    def forward(self, words: Tensor, kinds: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.kinds(kinds) + self.places)
        for layer in self.layers:
            x, _, _ = layer(x)
        return x


class Vit(nn.Module):
    """ViT-B/16 (Dosovitskiy et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) / 2)
        self.places = nn.Parameter(torch.randn(1, 197, WIDTH) / 2)
        self.layers = nn.ModuleList(Layer(before=True) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        for layer in self.layers:
            x, _, _ = layer(x)
        return self.head(self.norm(x)[:, 0])


class Gpt2(nn.Module):
    """A step of GPT-2 small (Radford et al., 2019): one token after a cache; it returns the extended cache."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50257, WIDTH), nn.Embedding(1024, WIDTH)
        nn.init.normal_(self.words.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(before=True, tanh=True) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, word: Tensor, place: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x = self.words(word) + self.places(place)
        kept: list[Tensor] = []
        for k, layer in enumerate(self.layers):
            x, *new = layer(x, (past[2 * k], past[2 * k + 1]))
            kept += new
        return (F.linear(self.norm(x), self.words.weight), *kept)


def _of(module: nn.Module, *inputs: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    return module.eval(), inputs


def _image(batch: int) -> Tensor:
    return torch.randn(batch, 3, 224, 224)


def _bert(batch: int, length: int) -> tuple[Any, tuple[Tensor, ...]]:
    words, kinds = (torch.randint(0, high, (batch, length)) for high in (30522, 2))
    return _of(Bert(length), words, kinds)


def _gpt2(cache: int) -> tuple[Any, tuple[Tensor, ...]]:
    past = [torch.randn(1, HEADS, cache, WIDTH // HEADS) for _ in range(2 * LAYERS)]
    return _of(Gpt2(), torch.randint(0, 50257, (1, 1)), torch.full((1, 1), cache), *past)


NETWORKS: dict[str, Network] = {
    "resnet50 b1": lambda: _of(ResNet50(), _image(1)),
    "resnet50 b32": lambda: _of(ResNet50(), _image(32)),
    "bert 1x128": lambda: _bert(1, 128),
    "bert 8x384": lambda: _bert(8, 384),
    "vit b1": lambda: _of(Vit(), _image(1)),
    "gpt2 step 512": lambda: _gpt2(512),
    "unet": lambda: _of(Unet(), *unet_inputs(2)),
}
"""Networks by name."""
