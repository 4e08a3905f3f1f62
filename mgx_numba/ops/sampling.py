"""Random numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register

_source: random.Random = random.SystemRandom()
"""Source of the integers of `RandomSeed`."""


def draw_seeds_from(seed: int) -> None:
    """Make the integers of `RandomSeed` follow from this seed in all later runs of the process."""
    global _source
    _source = random.Random(seed)


@register
@dataclass(frozen=True)
class RandomSeed(Operator):
    """One integer that differs from run to run."""

    name: ClassVar[str] = "random_seed"
    dtype: Type = Type.uint64_type

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0)
        if not self.dtype.is_integral:
            raise self.fail(f"dtype must be an integer type, got {self.dtype.name}")
        return Shape(self.dtype, (1,))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        bits = 8 * self.dtype.size - (1 if self.dtype.is_signed else 0)
        return np.array([_source.getrandbits(bits)], self.dtype.numpy)


@register
@dataclass(frozen=True)
class RandomUniform(Operator):
    """Numbers of [0, 1) of the second input's type and lengths, from the seed that the first input holds.

    They are those of C++'s ``std::mt19937`` and ``std::uniform_real_distribution<double>``, so a seed gives
    the same numbers as in MIGraphX. Integer types get the whole part: zeros.
    """

    name: ClassVar[str] = "random_uniform"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        if not inputs[0].type.is_integral or inputs[0].is_dynamic or inputs[0].elements != 1:
            raise self.fail(f"the seed must be one integer, got {inputs[0]}")
        return inputs[1].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        seed, like = args
        words = np.random.RandomState(int(seed.reshape(-1)[0]) & 0xFFFFFFFF).randint(
            0, 1 << 32, 2 * like.size, np.uint32
        )
        pairs = words.astype(np.float64).reshape(-1, 2)
        uniform = (pairs[:, 0] + pairs[:, 1] * 2.0**32) / 2.0**64
        return np.minimum(uniform, np.nextafter(1.0, 0.0)).reshape(like.shape).astype(like.dtype)


@register
@dataclass(frozen=True)
class Multinomial(Operator):
    """Categories drawn from distributions: [batch, samples].

    Inputs are running sums of weights [batch, categories] and numbers of [0, 1) [batch, samples]; a number's
    category is the first one whose running sum exceeds the number times the total.
    """

    name: ClassVar[str] = "multinomial"
    dtype: Type = Type.int32_type

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        weights, numbers = self.expect_inputs(inputs, 2)
        if weights.ndim != 2 or numbers.ndim != 2:
            raise self.fail(
                f"expected weights [batch, categories] and numbers [batch, samples], got {weights}, {numbers}"
            )
        if self.dtype not in (Type.int32_type, Type.int64_type):
            raise self.fail(f"dtype must be int32_type or int64_type, got {self.dtype.name}")
        dims: list[DynamicDimension] = [weights.dims[0], numbers.dims[1]]
        return Shape.dynamic(self.dtype, dims)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        weights, numbers = (a.astype(np.float64) for a in args)
        if weights.shape[0] != numbers.shape[0]:
            raise self.fail(f"{weights.shape[0]} distributions, but numbers for {numbers.shape[0]}")
        rows = [np.searchsorted(w, n * w[-1], "right") for w, n in zip(weights, numbers)]
        return np.stack(rows).astype(self.dtype.numpy) if rows else np.zeros(numbers.shape, self.dtype.numpy)
