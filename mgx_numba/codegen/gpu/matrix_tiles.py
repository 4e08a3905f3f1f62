"""MMA instructions of AMD matrix cores, and the layout of their fragments over the lanes of a wave.

Sources: AMD matrix instruction calculator; instruction set manuals of CDNA 2 and 3 ("Matrix arithmetic instructions")
and RDNA 3 and 4 ("Wave matrix multiply accumulate"). 16-bit instructions of gfx90a flush denormals to 0.
"""

from __future__ import annotations

from ...dataclass import dataclass
from ..problems.element_types import ElementTypes
from .architecture import Architecture
from .products import result_type, types_name


@dataclass(frozen=True)
class MatrixTile:
    """An MMA instruction: ``side`` rows by ``side`` columns over ``depth`` K elements.

    Lane l holds ``held`` elements of the left operand's row ``l % side`` and of the right operand's column ``l %
    side``, from K position ``l // side * held % depth``. Its accumulators belong to that column: with b = lanes //
    side, number e is of row ``e % group + group * (l // side + b * (e // group))``.

    Attributes:
        family: instruction prefix, ``mfma`` or ``wmma``.
        a, b, accumulator: dtypes of operands and accumulators.
        side, depth, lanes, held, group: see above.
        intrinsic: LLVM intrinsic without ``llvm.amdgcn.`` and the family (LLVM's IntrinsicsAMDGPU.td).
        architectures: architectures that have it.
        rate: multiplications per compute unit and cycle on the slowest of them: AMD's descriptions of CDNA 2 and 3 and
            of RDNA 3 and 4. Not measured.
    """

    family: str
    a: str
    b: str
    accumulator: str
    side: int
    depth: int
    lanes: int
    held: int
    group: int
    intrinsic: str
    architectures: tuple[str, ...]
    rate: int

    @property
    def types(self) -> str:
        """Return the operand dtypes as in names of the kernel language."""
        return types_name(self.a, self.b)

    @property
    def name(self) -> str:
        """Return its name in the kernel language; ``_both``: each half of the wave holds whole operands."""
        both = "_both" * (self.held == self.depth)
        return f"{self.family}_{self.side}x{self.side}x{self.depth}_{self.types}{both}"

    @property
    def sums(self) -> int:
        """Return the accumulators per lane."""
        return self.side**2 // self.lanes

    @property
    def rounds(self) -> bool:
        """Return whether float32 operands are rounded to TF32."""
        return self.intrinsic.endswith("xf32")

    def place(self, lane: int) -> tuple[int, int]:
        """Return the row (or column) of a lane's fragment, and the K position of its first element."""
        return lane % self.side, lane // self.side * self.held % self.depth

    def row(self, lane: int, number: int) -> int:
        """Return the row of a lane's accumulator ``number``."""
        block, inside = divmod(number, self.group)
        return inside + self.group * (lane // self.side + block * (self.lanes // self.side))


_GFX9 = ("gfx90a", "gfx942")
_INTEGERS = ("int8", "uint8")
_FLOATS = {"float8_e4m3fn": "fp8", "float8_e5m2": "bf8"}


def _mfma(
    a: str, accumulator: str, depth: int, intrinsics: tuple[str, str], architectures: tuple[str, ...], rate: int
) -> list[MatrixTile]:
    """Return the MFMA tiles of 32 rows with ``depth`` K elements, and of 16 rows with twice as many."""
    return [
        MatrixTile("mfma", a, a, accumulator, side, n, 64, n * side // 64, 4, intrinsic, architectures, rate)
        for side, n, intrinsic in zip((32, 16), (depth, 2 * depth), intrinsics)
    ]


def _wmma(a: str, b: str, accumulator: str, kind: str, both: bool, rate: int) -> MatrixTile:
    """Return the WMMA tile of 16 rows: of gfx11, where each half of a wave holds ``both`` halves of the operands, or of
    gfx12."""
    held, group, where = (16, 1, "gfx1100") if both else (8, 8, "gfx1201")
    intrinsic = f"{'i32' if accumulator == 'int32' else 'f32'}.16x16x16.{kind}"
    return MatrixTile("wmma", a, b, accumulator, 16, 16, 32, held, group, intrinsic, (where,), rate)


TILES: tuple[MatrixTile, ...] = (
    *_mfma("float16", "float32", 8, ("f32.32x32x8f16", "f32.16x16x16f16"), _GFX9, 512),
    *_mfma("bfloat16", "float32", 8, ("f32.32x32x8bf16.1k", "f32.16x16x16bf16.1k"), _GFX9, 512),
    *_mfma("int8", "int32", 16, ("i32.32x32x16.i8", "i32.16x16x32.i8"), ("gfx942",), 2048),
    *_mfma("int8", "int32", 8, ("i32.32x32x8i8", "i32.16x16x16i8"), ("gfx90a",), 512),
    *_mfma("float32", "float32", 4, ("f32.32x32x4.xf32", "f32.16x16x8.xf32"), ("gfx942",), 512),
    *_mfma("float32", "float32", 2, ("f32.32x32x2f32", "f32.16x16x4f32"), _GFX9, 128),
    MatrixTile("mfma", "float64", "float64", "float64", 16, 4, 64, 1, 1, "f64.16x16x4f64", _GFX9, 128),
    *(_wmma(a, a, "float32", kind, True, 256) for a, kind in (("float16", "f16"), ("bfloat16", "bf16"))),
    *(_wmma(a, a, "float32", kind, False, 512) for a, kind in (("float16", "f16"), ("bfloat16", "bf16"))),
    *(_wmma(a, b, "int32", "iu8", True, 256) for a in _INTEGERS for b in _INTEGERS),
    *(_wmma(a, b, "int32", "iu8", False, 1024) for a in _INTEGERS for b in _INTEGERS),
    *(_wmma(a, a, "float32", f"{kind}.{kind}", False, 1024) for a, kind in _FLOATS.items()),
)
"""All declared tiles; of each kind the larger one first."""


def matrix_tiles(arch: Architecture, types: ElementTypes, precision: str) -> tuple[MatrixTile, ...]:
    """Return an architecture's tiles for element types, the larger one first; empty if it has none.

    Args:
        precision: of float32 products, as in `PlacedRequest`; only ``medium`` allows TF32.
    """
    found = [t for t in TILES if arch.name in t.architectures and (t.a, t.b) == (types.a, types.b)]
    rounding = precision == "medium" and any(t.rounds for t in found)
    return tuple(t for t in found if t.rounds == rounding and types.out == result_type(t.a, t.accumulator))
