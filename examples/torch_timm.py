"""Compile a network of timm: `python examples/torch_timm.py [NAME]` (needs the extra `torch`, and timm).

The weights are random; `timm.create_model(NAME, pretrained=True)` would fetch trained ones. It prints how far the
classes' scores are from PyTorch's own, and the time of a call of each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import timm
import torch

import mgx_numba.torch  # noqa: F401  (registers the backend where the package is not installed)


def milliseconds(function: Callable[[], object]) -> float:
    """The least time of some calls."""
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main() -> None:
    torch.manual_seed(0)
    name = sys.argv[1] if len(sys.argv) > 1 else "resnet18"
    model = timm.create_model(name, pretrained=False).eval()
    compiled = torch.compile(model, backend="mgx_numba")
    images = torch.randn(1, *model.default_cfg["input_size"])
    with torch.inference_mode():
        expected, found = model(images), compiled(images)
        own, eager = milliseconds(lambda: compiled(images)), milliseconds(lambda: model(images))
    difference = (found - expected).abs().max() / expected.abs().max()
    print(f"{name}: scores of {found.shape[1]} classes, relative difference from PyTorch's {difference:.0e}")
    print(f"{own:.1f} ms, PyTorch {eager:.1f} ms")


if __name__ == "__main__":
    main()
