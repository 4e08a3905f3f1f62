"""Repair of Python code in guides whose lines were broken or lost their indentation.

A block that parses is left as it is. In another one, lines are joined that a statement or a comment goes on in, names
that a space parts are closed up, and what stands at the margin goes back into the function or the ``if`` before it.
"""

from __future__ import annotations

import re
import types
from typing import Any

import numpy as np

__all__ = ["restored", "small_network", "stand_in_for_opencv", "stand_in_for_torchvision"]

_PARTED = re.compile(r"(?<=\w\.)((?:\w+_)+\w+) (\w+)(?=\()")
"""A method's name that the end of a line has parted, after the lines were joined again."""
_FUNCTION = re.compile(r"def \w+\(.*\):\s*(?:#.*)?$")
_PROGRAM = re.compile(r"if __name__ == .*:\s*(?:#.*)?$")
_OPENS = re.compile(r".*:\s*(?:#.*)?$")
_STEP = 4


def restored(text: str) -> tuple[str, int]:
    """The text with its lines and their indentation put right, and how many lines that changed."""
    joined, count = _joined(text.splitlines())
    indented, moved = _indented(joined)
    return "\n".join(indented) + "\n", count + moved


def _joined(lines: list[str]) -> tuple[list[str], int]:
    kept: list[str] = []
    count = 0
    for line in lines:
        goes_on = bool(kept) and (
            (kept[-1].rstrip().endswith("=") and "#" not in kept[-1])
            or ("#" in kept[-1] and line.strip() != "" and not line.strip()[0].isascii())
        )
        if goes_on:
            kept[-1] = f"{kept[-1].rstrip()} {line.strip()}"
        else:
            kept.append(line)
        kept[-1], parted = _PARTED.subn(r"\1\2", kept[-1])
        count += goes_on + parted
    return kept, count


def _indented(lines: list[str]) -> tuple[list[str], int]:
    kept: list[str] = []
    count, base, before = 0, 0, ""
    for line in lines:
        own = len(line) - len(line.lstrip())
        if not line.strip():
            kept.append(line)
            continue
        opens_block = bool(_FUNCTION.match(line) or _PROGRAM.match(line))
        if opens_block:
            base = 0
        indent = base + own
        if _FUNCTION.match(before) or _PROGRAM.match(before):
            indent = base = _STEP
        elif _OPENS.match(before) and own == len(before) - len(before.lstrip()):
            indent += _STEP
        kept.append(" " * indent + line.lstrip())
        count += indent != own
        if line.startswith("return"):
            base = 0
        before = line
    return kept, count


def stand_in_for_opencv() -> types.ModuleType:
    """Return a module ``cv2`` with the functions that guides use, on one synthetic image of 320x240 pixels."""

    def imread(path: str, flag: int = 1) -> np.ndarray:
        return np.arange(240 * 320 * 3, dtype=np.uint32).reshape(240, 320, 3).astype(np.uint8)

    def resize(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        width, height = size
        rows = np.arange(height) * picture.shape[0] // height
        return picture[rows[:, None], np.arange(width) * picture.shape[1] // width]

    module = types.ModuleType("cv2")
    module.__dict__.update(IMREAD_COLOR=1, imread=imread, resize=resize)
    return module


def small_network() -> Any:
    """Return a small PyTorch network for images of any size."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 7, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )


def stand_in_for_torchvision() -> types.ModuleType:
    """Return a module ``torchvision`` whose models are each `small_network`: the true ones download weights."""
    module, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    for name in ("inception_v3", "resnet50"):
        setattr(models, name, lambda pretrained=False: small_network())
    module.models = models  # type: ignore[attr-defined]
    return module
