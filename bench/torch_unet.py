"""The UNet of Stable Diffusion 1.5 (Rombach et al., 2022) as a PyTorch module, with random weights.

Blocks, lengths and constants are those of the published configuration: channels 320, 640, 1280 and 1280, two residual
blocks a level, attention with 8 heads on all levels but the deepest, text of 768 features; 860 million weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Unet", "unet_inputs"]

CHANNELS = (320, 640, 1280, 1280)
BLOCKS, HEADS, GROUPS = 2, 8, 32
"""Residual blocks of a level on the way down (one more on the way up); attention heads; groups of norms."""
TEXT, TOKENS = 768, 77
"""Features of a token, and number of tokens, of CLIP's text model."""
LATENTS, SIDE = 4, 64
"""Channels and side of the latents of an image of 512 by 512."""
PERIOD = 10000
"""The longest period of the sinusoidal step embedding (Vaswani et al., 2017)."""


class Residual(nn.Module):
    """Two convolutions with preceding norms, and the step's features added between them."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(GROUPS, inputs), nn.GroupNorm(GROUPS, outputs)
        self.into = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.step = nn.Linear(step, outputs)
        self.out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.aside = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = self.into(F.silu(self.first(x))) + self.step(F.silu(step))[:, :, None, None]
        return self.aside(x) + self.out(F.silu(self.second(y)))


class Attention(nn.Module):
    """Cross attention, or self attention without a context."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(n, width, bias=False) for n in (width, other, other))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        parts = (self.q(x), self.k(other), self.v(other))
        q, k, v = (t.view(*t.shape[:2], HEADS, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Transformer(nn.Module):
    """A layer over all positions of an image: self-attention, attention to the text, then GEGLU (Shazeer, 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.places, self.text = Attention(width, width), Attention(width, TEXT)
        self.inner, self.outer = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.into(self.norm(image)).permute(0, 2, 3, 1).flatten(1, 2)
        first, second, third = self.norms
        y = first(x)
        x = x + self.places(y, y)
        x = x + self.text(second(x), text)
        y, gate = self.inner(third(x)).chunk(2, -1)
        x = x + self.outer(y * F.gelu(gate))
        x = x.view(image.shape[0], *image.shape[2:], -1).permute(0, 3, 1, 2)
        return image + self.out(x)


class Level(nn.Module):
    """Residual blocks of a level, each followed by a transformer if the level has ``attention``."""

    def __init__(self, widths: list[tuple[int, int]], step: int, attention: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(*width, step) for width in widths)
        self.layers = nn.ModuleList(Transformer(outputs) for _, outputs in widths if attention)


class Unet(nn.Module):
    """The UNet of Stable Diffusion 1.5."""

    def __init__(self) -> None:
        super().__init__()
        first, last = CHANNELS[0], CHANNELS[-1]
        step = 4 * first
        self.time = nn.Sequential(nn.Linear(first, step), nn.SiLU(), nn.Linear(step, step))
        self.into = nn.Conv2d(LATENTS, first, 3, padding=1)
        skips, width = [first], first
        self.down, self.downsample = nn.ModuleList(), nn.ModuleList()
        for k, outputs in enumerate(CHANNELS):
            deepest = k == len(CHANNELS) - 1
            self.down.append(Level([(width, outputs), *[(outputs, outputs)] * (BLOCKS - 1)], step, not deepest))
            skips += [outputs] * BLOCKS
            width = outputs
            if not deepest:
                self.downsample.append(nn.Conv2d(width, width, 3, 2, 1))
                skips.append(width)
        self.middle = Level([(last, last)] * 2, step, False)
        self.between = Transformer(last)
        self.up, self.upsample = nn.ModuleList(), nn.ModuleList()
        for k, outputs in reversed(list(enumerate(CHANNELS))):
            widths = []
            for _ in range(BLOCKS + 1):
                widths.append((width + skips.pop(), outputs))
                width = outputs
            self.up.append(Level(widths, step, k < len(CHANNELS) - 1))
            if k:
                self.upsample.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(GROUPS, first), nn.Conv2d(first, LATENTS, 3, padding=1)
        half = first // 2
        for part in self.modules():
            if isinstance(part, (nn.GroupNorm, nn.LayerNorm)):  # initial weights of 1 and 0 would be simplified away
                nn.init.uniform_(part.weight, 0.8, 1.2)
                nn.init.normal_(part.bias, std=0.1)
        self.register_buffer("rates", torch.exp(-math.log(PERIOD) * torch.arange(half) / half), persistent=False)

    def forward(self, latents: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        angles = steps[:, None] * self.rates
        step = self.time(torch.cat((torch.cos(angles), torch.sin(angles)), 1))
        x = self.into(latents)
        skips = [x]
        for k, level in enumerate(self.down):
            for j, block in enumerate(level.blocks):
                x = block(x, step)
                if level.layers:
                    x = level.layers[j](x, text)
                skips.append(x)
            if k < len(self.downsample):
                x = self.downsample[k](x)
                skips.append(x)
        x = self.middle.blocks[0](x, step)
        x = self.middle.blocks[1](self.between(x, text), step)
        for k, level in enumerate(self.up):
            for j, block in enumerate(level.blocks):
                x = block(torch.cat((x, skips.pop()), 1), step)
                if level.layers:
                    x = level.layers[j](x, text)
            if k < len(self.upsample):
                x = self.upsample[k](F.interpolate(x, scale_factor=2.0))
        return self.out(F.silu(self.norm(x)))


def unet_inputs(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [batch, 4, 64, 64], steps [batch], and text [batch, 77, 768], all float32."""
    steps = torch.linspace(1.0, 999.0, batch).round()
    return torch.randn(batch, LATENTS, SIDE, SIDE), steps, torch.randn(batch, TOKENS, TEXT)
