"""Networks beyond those of `bench.torch_models`: kinds that the GPU's kernels were not tuned on.

Images come from torchvision; language, speech, recommendation and image-generation networks are written here in their
published sizes. Weights are random. Weights of norms are drawn, because those of 1 and 0 would be simplified away.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.torch_models import NETWORKS, Network

__all__ = ["ALL_NETWORKS", "MORE_NETWORKS"]


def _drawn(module: nn.Module) -> Any:
    """Draw the weights of a module's norms; return the module in evaluation mode."""
    for part in module.modules():
        if isinstance(part, (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm2d)) and part.weight is not None:
            nn.init.uniform_(part.weight, 0.8, 1.2)
            nn.init.normal_(part.bias, std=0.1)
    return module.eval()


def _vision(name: str, batch: int) -> tuple[Any, tuple[Tensor, ...]]:
    import torchvision.models

    return _drawn(getattr(torchvision.models, name)()), (torch.randn(batch, 3, 224, 224),)


class RmsNorm(nn.Module):
    """Root mean square norm over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) / 2 + 0.75)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Transformer block with the norms before: attention with an optional bias of scores, and two linear layers."""

    def __init__(self, width: int, heads: int, inner: int, quick: bool = False, rms: bool = False) -> None:
        super().__init__()
        self.heads, self.quick, self.rms = heads, quick, rms
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=not rms), nn.Linear(width, width, bias=not rms)
        self.up, self.down = nn.Linear(width, inner, bias=not rms), nn.Linear(inner, width, bias=not rms)
        self.first, self.second = (RmsNorm(width) if rms else nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) * (1.0 if self.rms else (c // self.heads) ** -0.5)
        if bias is not None:
            scores = scores + bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)
        x = x + self.out(y)
        h = self.up(self.second(x))
        h = h * torch.sigmoid(1.702 * h) if self.quick else F.relu(h) if self.rms else F.gelu(h)
        return x + self.down(h)


class ClipVision(nn.Module):
    """Image tower of CLIP ViT-L/14 (Radford et al., 2021): 257 tokens of 1024."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 14, 14, bias=False)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 1024)), nn.Parameter(torch.randn(1, 257, 1024))
        self.before, self.after = nn.LayerNorm(1024), nn.LayerNorm(1024)
        self.blocks = nn.ModuleList(Block(1024, 16, 4096, quick=True) for _ in range(24))

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = self.before(torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places)
        for block in self.blocks:
            x = block(x)
        return self.after(x[:, 0])


class WhisperEncoder(nn.Module):
    """Encoder of Whisper base (Radford et al., 2022): 3000 frames of 80 bins to 1500 states of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(80, 512, 3, padding=1), nn.Conv1d(512, 512, 3, 2, 1)
        self.places = nn.Parameter(torch.randn(1, 1500, 512) / 4)
        self.blocks, self.norm = nn.ModuleList(Block(512, 8, 2048) for _ in range(6)), nn.LayerNorm(512)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.gelu(self.two(F.gelu(self.one(frames)))).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class T5Encoder(nn.Module):
    """Encoder of T5 base (Raffel et al., 2019): relative positions from a table, no scale of scores."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(32128, 768), nn.Embedding(32, 12)
        far = torch.arange(length)[None] - torch.arange(length)[:, None]
        near = far.abs().clamp(min=1)
        large = 8 + (torch.log(near / 8) / 2.772588722 * 8).long()
        self.register_buffer("buckets", 16 * (far > 0) + torch.where(near < 8, far.abs(), large.clamp(max=15)))
        self.blocks, self.norm = nn.ModuleList(Block(768, 12, 3072, rms=True) for _ in range(12)), RmsNorm(768)

    def forward(self, words: Tensor) -> Tensor:
        bias = self.table(self.buckets).permute(2, 0, 1)[None]
        x = self.words(words) * 0.2
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x)


class LlamaLayer(nn.Module):
    """Layer of a Llama (Touvron et al., 2023): 32 heads over 8 key heads of 64, rotary positions, gated SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = (nn.Linear(2048, n, bias=False) for n in (2048, 1024, 2048))
        self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((2048, 8192), (2048, 8192), (8192, 2048)))
        self.first, self.second = RmsNorm(2048), RmsNorm(2048)

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None) -> Any:
        b, n, _ = x.shape
        h = self.first(x)
        q = self.turned(self.q(h).view(b, n, 32, 64).transpose(1, 2), cos, sin)
        k, v = self.kv(h).view(b, n, 2, 8, 64).permute(2, 0, 3, 1, 4)
        k = self.turned(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        wide = [t[:, :, None].expand(-1, -1, 4, -1, -1).reshape(b, 32, -1, 64) for t in (k, v)]
        scores = (q @ wide[0].transpose(2, 3)) * 0.125 + mask
        x = x + self.out((scores.softmax(-1) @ wide[1]).transpose(1, 2).reshape(b, n, 2048))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), k, v


class Llama(nn.Module):
    """Four layers of a Llama of 1B parameters, with a head of 32,000 words for the last position."""

    def __init__(self, start: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(32000, 2048)
        self.layers, self.norm = nn.ModuleList(LlamaLayer() for _ in range(4)), RmsNorm(2048)
        angles = torch.arange(start, start + length)[:, None] * 1e4 ** (-torch.arange(32) / 32)
        self.register_buffer("cos", torch.cos(angles).repeat(1, 2))
        self.register_buffer("sin", torch.sin(angles).repeat(1, 2))
        self.register_buffer("mask", torch.full((length, start + length), -1e4).triu(start + 1))

    def forward(self, words: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, kept = self.words(words), []
        for k, layer in enumerate(self.layers):
            held = (past[2 * k], past[2 * k + 1]) if past else None
            x, *new = layer(x, self.cos, self.sin, self.mask, held)
            kept += new
        return (F.linear(self.norm(x[:, -1]), self.words.weight), *kept)


class Dlrm(nn.Module):
    """Recommendation network (Naumov et al., 2019): 13 numbers, 26 tables of 64 columns, products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20000, 64) for _ in range(26))
        self.bottom = nn.Sequential(*self._layers([13, 512, 256, 64]))
        self.top = nn.Sequential(*self._layers([64 + 27 * 27, 1024, 1024, 512, 256]), nn.Linear(256, 1))

    @staticmethod
    def _layers(widths: list[int]) -> list[nn.Module]:
        return [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(table(kinds[:, k]) for k, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat((dense, pairs), 1)))


class ResidualImage(nn.Module):
    """Two 3 by 3 convolutions behind group norms and SiLU, as in the decoder of Stable Diffusion's autoencoder."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, inputs, 1e-6), nn.GroupNorm(32, outputs, 1e-6)
        self.one, self.two = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.past: nn.Module = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.past(x) + self.two(F.silu(self.second(self.one(F.silu(self.first(x))))))


class VaeDecoder(nn.Module):
    """Decoder of Stable Diffusion's autoencoder (Rombach et al., 2021), 64 by 64 latents to 512 by 512 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv2d(4, 512, 3, padding=1)
        self.middle = nn.Sequential(ResidualImage(512, 512), ResidualImage(512, 512))
        self.levels = nn.ModuleList()
        width = 512
        for outputs in (512, 512, 256, 128):
            blocks = [ResidualImage(width if k == 0 else outputs, outputs) for k in range(3)]
            self.levels.append(nn.Sequential(*blocks))
            width = outputs
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in (512, 512, 256))
        self.norm, self.out = nn.GroupNorm(32, 128, 1e-6), nn.Conv2d(128, 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.middle(self.into(latents))
        for k, level in enumerate(self.levels):
            x = level(x)
            if k < len(self.grow):
                x = self.grow[k](F.interpolate(x, scale_factor=2.0))
        return self.out(F.silu(self.norm(x)))


def _llama(batch: int, start: int, length: int) -> tuple[Any, tuple[Tensor, ...]]:
    past = [torch.randn(batch, 8, start, 64) for _ in range(8 if start else 0)]
    return Llama(start, length).eval(), (torch.randint(0, 32000, (batch, length)), *past)


MORE_NETWORKS: dict[str, Network] = {
    "convnext b8": lambda: _vision("convnext_tiny", 8),
    "clip b8": lambda: (_drawn(ClipVision()), (torch.randn(8, 3, 224, 224),)),
    "dlrm": lambda: (Dlrm().eval(), (torch.randn(2048, 13), torch.randint(0, 20000, (2048, 26)))),
    "swin b8": lambda: _vision("swin_t", 8),
    "vae decoder": lambda: (_drawn(VaeDecoder()), (torch.randn(1, 4, 64, 64),)),
    "llama prefill": lambda: _llama(1, 0, 512),
    "llama decode": lambda: _llama(8, 512, 1),
    "vgg16 b8": lambda: _vision("vgg16", 8),
    "t5 encoder": lambda: (T5Encoder(256).eval(), (torch.randint(0, 32128, (4, 256)),)),
    "efficientnet b32": lambda: _vision("efficientnet_b0", 32),
    "efficientnet b1": lambda: _vision("efficientnet_b0", 1),
    "mobilenet b32": lambda: _vision("mobilenet_v3_large", 32),
    "regnet b8": lambda: _vision("regnet_y_3_2gf", 8),
    "shufflenet b8": lambda: _vision("shufflenet_v2_x1_0", 8),
    "whisper": lambda: (_drawn(WhisperEncoder()), (torch.randn(1, 80, 3000),)),
    "densenet b8": lambda: _vision("densenet121", 8),
    "maxvit b4": lambda: _vision("maxvit_t", 4),
}
"""Networks by name."""
ALL_NETWORKS = NETWORKS | MORE_NETWORKS
"""Networks of `bench.torch_models`, too."""
