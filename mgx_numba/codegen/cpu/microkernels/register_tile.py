"""The declaration of a register tile: element types, size in registers, packing, required CPU features, and thread
state.

Needs neither llvmlite nor Numba.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ....core.dim import Length
from ....dataclass import dataclass
from ...lang.target import itemsize
from ...problems.element_types import ElementTypes
from .. import host

FMA_CHAINS = 8
"""Independent multiply-add chains that hide the latency of the FMA units (4 cycles on two units, or better)."""


@dataclass(frozen=True)
class TileTypes:
    """Dtypes of the left operand, the right operand and the accumulators; an epilogue converts to other result
    types."""

    a: str
    b: str
    accumulator: str

    @classmethod
    def of(cls, types: ElementTypes) -> TileTypes:
        """Return the tile types for a contraction's element types."""
        return cls(types.a, types.b, types.accumulator)

    @property
    def uniform(self) -> str | None:
        """Return the dtype that all three share, or None if they differ."""
        return self.a if self.a == self.b == self.accumulator else None

    def __str__(self) -> str:
        return self.uniform or f"{self.a} times {self.b} in {self.accumulator}"


@dataclass(frozen=True)
class Packing:
    """The memory format of a tile's operands.

    A panel of the right-hand side is ``[k / k_interleave, columns, k_interleave]``: ``k_interleave`` successive k of a
    column, and of a left-hand row, are contiguous and multiplied at once. The last such group of a column is padded
    with zeros.

    Attributes:
        a, b: dtypes of the elements in memory, where they differ from the tile's types.
        column_sums: each panel starts with another row: the sums of its columns over k, as accumulators.
        residuals: the tile adds products of two k in 16 bits. A panel ends with the residuals of weights that are too
            large for that (`contraction.int8_residual`).
        parts: 2 if elements are split into a high and a low part, which together approximate the element. A left-hand
            side in parts is two matrices; in a panel each step is followed by its low parts.
    """

    a: str = ""
    b: str = ""
    k_interleave: int = 1
    column_sums: bool = False
    residuals: bool = False
    parts: int = 1


@dataclass(frozen=True)
class TileState:
    """The state that a thread sets before it runs a tile and resets after it (such as AMX's tile configuration).

    Both are statements of the kernel language; they surround all tasks of a kernel's call.
    """

    enter: tuple[str, ...]
    leave: tuple[str, ...]


@dataclass(frozen=True)
class RegisterTile:
    """One declared tile.

    Attributes:
        heights: row counts of its variants, the most rows first.
        vectors: vectors of accumulators of a row.
        bits: width of its vector registers.
        isa: returns whether a CPU has its instructions.
        tall: rows of a variant that also takes one row of the remainder where a matrix has several blocks of rows (0:
            none).
        packing: memory format. Constant right-hand sides are packed in panels of ``columns`` columns, each panel
            K-major.
        intrinsic: name of the variants in the kernel language (by default ``tile_<dtype>``).
        finishes: whether there is also an intrinsic, `finishing`, with an epilogue in registers.
        step: words of k multiplied at once. With more than one it is a matrix tile: rows are evenly spaced, and k is
            padded to whole steps, with zeros on the right.
        near_depth: best number of words to run it over at a time (0: no preference).
        cycles: cycles of a vector of accumulators for one word.
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
        """Return the name of the intrinsic with an epilogue in registers, for a tile that ``finishes``."""
        return self.intrinsic.replace("tile_", "tile_finish_", 1)

    @property
    def dtype(self) -> str:
        """Return the dtype of a tile whose types are all the same.

        Raises:
            ValueError: the types differ.
        """
        if self.types.uniform is None:
            raise ValueError(f"tile {self.name} multiplies {self.types}")
        return self.types.uniform

    @property
    def pairs_rows(self) -> bool:
        """Return whether a product takes two rows at once (`matrix_rows`), so that rows cannot share a vector."""
        return self.intrinsic.startswith("tile_mmla_")

    @functools.cached_property
    def rows(self) -> int:
        """Return the rows of a block."""
        return self.heights[0]

    @functools.cached_property
    def lanes(self) -> int:
        """Return the accumulators of a vector."""
        return self.bits // (8 * itemsize(self.types.accumulator))

    @functools.cached_property
    def columns(self) -> int:
        """Return the columns of a packed panel."""
        return self.vectors * self.lanes

    @functools.cached_property
    def left_word(self) -> str:
        """Return the dtype as which a left-hand row is read: the elements multiplied at once, the unit of strides."""
        return self._word(self.packing.a or self.types.a)

    @functools.cached_property
    def right_word(self) -> str:
        """Return the dtype as which a panel's column is read."""
        return self._word(self.packing.b or self.types.b)

    def _word(self, dtype: str) -> str:
        together = self.packing.k_interleave
        return dtype if together == 1 else f"int{8 * together * itemsize(dtype)}"

    def depth(self, k: Length) -> Any:
        """Return the words of a row of k elements, in whole steps."""
        return -(-k // (self.packing.k_interleave * self.step)) * self.step

    @property
    def step_bytes(self) -> int:
        """Return the bytes of a panel's step."""
        return self.packing.parts * self.step * self.columns * itemsize(self.right_word)

    def variants(self) -> tuple[int, ...]:
        """Return the row counts of all variants, the most used first."""
        return (*self.heights, self.tall) if self.tall else self.heights

    def split(self, rows: int, vectors: int) -> int:
        """Return the accumulator sets, each over its own share of K, that a variant needs to keep the FMA units
        busy."""
        sets = 1
        while sets * rows * vectors < FMA_CHAINS and sets < 4:
            sets *= 2
        return sets

    def widths(self) -> tuple[int, ...]:
        """Return the vectors of a row in the variants: those of a full panel, then fewer, for a last panel."""
        return tuple(range(self.vectors, 0, -1))

    def in_state(self, statements: Sequence[str]) -> list[str]:
        """Return statements that run the tile, in the state that it needs."""
        return [*self.state.enter, *statements, *self.state.leave] if self.state else list(statements)


def avx512(cpu: host.Host) -> bool:
    """Return whether the CPU has 512-bit vectors and the AVX-512 extensions of its first server CPUs."""
    return cpu.vector_bits >= 512


def avx2(cpu: host.Host) -> bool:
    return {"avx2", "fma"} <= cpu.features


def neon(cpu: host.Host) -> bool:
    return "neon" in cpu.features


def any_cpu(cpu: host.Host) -> bool:
    """Return True: LLVM can compile the tile for every CPU."""
    return True
