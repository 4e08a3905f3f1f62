"""What a register tile declares: the types that it multiplies, its size in registers, where its operands lie, what
the CPU must have, and what it must be told before. Needs neither llvmlite nor Numba."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ....core.dim import Length
from ....dataclass import dataclass
from ...lang.target import itemsize
from ...problems.element_types import ElementTypes
from .. import host

__all__ = ["FMA_CHAINS", "Packing", "RegisterTile", "TileState", "TileTypes", "any_cpu", "avx2", "avx512", "neon"]

FMA_CHAINS = 8
"""Independent multiply-add chains that hide the latency of the FMA units (4 cycles on two units, or better)."""


@dataclass(frozen=True)
class TileTypes:
    """Dtypes of the left and of the right operand and of the sums; a result of another type is an epilogue's work."""

    a: str
    b: str
    accumulator: str

    @classmethod
    def of(cls, types: ElementTypes) -> TileTypes:
        """What a contraction of these types asks of a tile."""
        return cls(types.a, types.b, types.accumulator)

    @property
    def uniform(self) -> str | None:
        """The one dtype of all three, None if they differ."""
        return self.a if self.a == self.b == self.accumulator else None

    def __str__(self) -> str:
        return self.uniform or f"{self.a} times {self.b} in {self.accumulator}"


@dataclass(frozen=True)
class Packing:
    """How a tile finds its operands in memory.

    ``a`` and ``b`` are the dtypes of their elements there, where these are not their own. A panel of the right-hand
    side is ``[k / k_interleave, columns, k_interleave]``: so many successive k of a column lie side by side, and as
    many of a row on the left; they are multiplied at once. Where k ends before such a group does, the rest of it is
    zero on the right. With ``column_sums`` each panel starts with one more row: the sums of its columns over k, as
    accumulators.

    Where elements are in two ``parts`` (their high and their low half, which together are nearly the element), those
    of the left-hand side are two matrices, and each step of a panel is followed by its low halves.
    """

    a: str = ""
    b: str = ""
    k_interleave: int = 1
    column_sums: bool = False
    parts: int = 1


@dataclass(frozen=True)
class TileState:
    """What a thread has to set before it runs a tile and to undo behind it (the configuration of AMX's tiles, say).

    Both are statements of the kernel language; they surround all tasks of a call of a kernel.
    """

    enter: tuple[str, ...]
    leave: tuple[str, ...]


@dataclass(frozen=True)
class RegisterTile:
    """One declared tile: the most rows and vectors of accumulators that it holds, and the row counts of its variants.

    ``bits`` is the width of its vector registers, ``isa`` says whether a CPU has its instructions. A variant of
    ``tall`` rows (0: there is none) takes a row of the remainder along where a matrix has several blocks of ``rows``.
    Constant right-hand sides are packed for it in panels of ``columns`` columns, each panel K-major. ``intrinsic``
    names the variants in the kernel language (by default ``tile_<dtype>``); ``finishes`` says that there is also an
    intrinsic, `finishing`, which works on the sums before they leave the registers.

    A tile whose ``step``, the words of k that it multiplies at once, is more than one reads whole matrices: rows lie
    evenly, and k ends with a step, what is too much of it being zero on the right. It is best run over ``near_depth``
    words at a time (0: as many as any other). ``cycles`` are those of a vector of sums for one word.
    """

    name: str
    types: TileTypes
    heights: tuple[int, ...]
    vectors: int
    bits: int
    isa: Callable[[host.Host], bool]
    tall: int = 0
    packing: Packing = Packing()
    state: TileState | None = None
    intrinsic: str = ""
    finishes: bool = True
    step: int = 1
    near_depth: int = 0
    cycles: float = 0.5

    def __post_init__(self) -> None:
        if not self.intrinsic:
            object.__setattr__(self, "intrinsic", f"tile_{self.dtype}")

    @property
    def finishing(self) -> str:
        """Name of the intrinsic that finishes its sums, of a tile that ``finishes``."""
        return self.intrinsic.replace("tile_", "tile_finish_", 1)

    @property
    def dtype(self) -> str:
        """The dtype of a tile that has the same on all sides.

        Raises:
            ValueError: it has several.
        """
        if self.types.uniform is None:
            raise ValueError(f"tile {self.name} multiplies {self.types}")
        return self.types.uniform

    @functools.cached_property
    def rows(self) -> int:
        """Rows of a block."""
        return self.heights[0]

    @functools.cached_property
    def lanes(self) -> int:
        """Accumulators of a vector."""
        return self.bits // (8 * itemsize(self.types.accumulator))

    @functools.cached_property
    def columns(self) -> int:
        """Columns of one packed panel."""
        return self.vectors * self.lanes

    @functools.cached_property
    def left_word(self) -> str:
        """Dtype as which a row of the left-hand side is read: what of it is multiplied at once, the unit of strides."""
        return self._word(self.packing.a or self.types.a)

    @functools.cached_property
    def right_word(self) -> str:
        """The same of a panel's column."""
        return self._word(self.packing.b or self.types.b)

    def _word(self, dtype: str) -> str:
        together = self.packing.k_interleave
        return dtype if together == 1 else f"int{8 * together * itemsize(dtype)}"

    def depth(self, k: Length) -> Any:
        """Words of a row of k elements, in whole steps."""
        return -(-k // (self.packing.k_interleave * self.step)) * self.step

    @property
    def step_bytes(self) -> int:
        """Bytes of a panel's step."""
        return self.packing.parts * self.step * self.columns * itemsize(self.right_word)

    def variants(self) -> tuple[int, ...]:
        """Row counts of all variants, those taken most first."""
        return (*self.heights, self.tall) if self.tall else self.heights

    def split(self, rows: int, vectors: int) -> int:
        """Accumulator sets, each over its own share of K, that a variant needs to keep the FMA units busy."""
        sets = 1
        while sets * rows * vectors < FMA_CHAINS and sets < 4:
            sets *= 2
        return sets

    def widths(self) -> tuple[int, ...]:
        """Vectors of a row in the variants: a full panel, and one for a last panel of few columns."""
        return (self.vectors, 1) if self.vectors > 1 else (1,)

    def in_state(self, statements: Sequence[str]) -> list[str]:
        """Statements that run the tile, in the state that it needs."""
        return [*self.state.enter, *statements, *self.state.leave] if self.state else list(statements)


def avx512(cpu: host.Host) -> bool:
    """Vectors of 512 bits with all that AVX-512 has had since its servers' first version."""
    return cpu.vector_bits >= 512


def avx2(cpu: host.Host) -> bool:
    return {"avx2", "fma"} <= cpu.features


def neon(cpu: host.Host) -> bool:
    return "neon" in cpu.features


def any_cpu(cpu: host.Host) -> bool:
    """LLVM has code for the tile on every CPU."""
    return True
