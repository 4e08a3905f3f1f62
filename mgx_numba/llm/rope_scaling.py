"""Rotary embeddings for contexts longer than a model was first trained for: divisors of frequencies, and a factor."""

from __future__ import annotations

import math

import numpy as np

from ..errors import UnsupportedError
from ..json_types import JsonObject
from .config import Rope


def scaled_rope(theta: float, size: int, given: JsonObject, context: int, original: int) -> Rope:
    """Return the embedding for ``rope_scaling`` of a configuration, as transformers computes it.

    Args:
        theta: base of the frequencies.
        size: features of a head that rotate.
        given: the configuration's map; empty for no scaling.
        context: positions that the program will have.
        original: positions of the first training, if ``given`` does not say.

    Raises:
        UnsupportedError: the kind of scaling is not known.
    """
    kind = given.get("rope_type", given.get("type", "default"))
    original = int(given.get("original_max_position_embeddings") or original)
    half = size // 2
    if kind in ("default", "mrope", None):
        return Rope(theta, size)
    if kind == "linear":
        return Rope(theta, size, (float(given["factor"]),) * half)
    if kind == "llama3":
        return Rope(theta, size, _llama3(theta, size, given, original))
    if kind in ("longrope", "su"):
        long = context > original
        factors = tuple(map(float, given["long_factor" if long else "short_factor"]))
        ratio = float(given.get("factor") or context / original)
        usual = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
        return Rope(theta, size, factors, float(given.get("attention_factor") or usual))
    if kind == "yarn":
        return _yarn(theta, size, given, original)
    raise UnsupportedError(f"rope_scaling of type {kind!r} is not supported")


def _frequencies(theta: float, size: int) -> np.ndarray:
    return theta ** (-np.arange(0, size, 2) / size)


def _llama3(theta: float, size: int, given: JsonObject, original: int) -> tuple[float, ...]:
    """Return 1 for short waves, the factor for long waves, and a smooth transition between them."""
    factor, low, high = (float(given[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = original * _frequencies(theta, size) / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


def _yarn(theta: float, size: int, given: JsonObject, original: int) -> Rope:
    factor = float(given["factor"])

    def place(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(float(given.get("beta_fast") or 32)), place(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / (max(high - low, 0.001)), 0, 1)
    kept = 1 - ramp
    scale = given.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return Rope(theta, size, tuple((1 / ((1 - kept) / factor + kept)).tolist()), float(scale))
