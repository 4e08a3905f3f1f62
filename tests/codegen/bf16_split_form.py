"""Float32 in two 16-bit parts, split by NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mgx_numba.codegen.cpu.contraction.bf16_split_rows import parts_pitch
from mgx_numba.codegen.cpu.part_form import LARGEST, TINY

__all__ = ["joined_parts", "room_for_parts", "split_parts"]


def split_parts(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low parts."""
    bits = numbers.view(np.uint32)
    with np.errstate(all="ignore"):
        high = np.clip(numbers, np.float32(-LARGEST), np.float32(LARGEST)).astype(ml_dtypes.bfloat16)
        low = (numbers - high.astype(np.float32)).astype(ml_dtypes.bfloat16)
        tiny = np.abs(numbers) < TINY
    upper, lower = (bits >> 16).astype(np.uint16), (bits & 0x8000 | bits >> 2 & 0x1FFF).astype(np.uint16)
    bfloat16 = ml_dtypes.bfloat16
    return np.where(tiny, upper.view(bfloat16), high), np.where(tiny, lower.view(bfloat16), low)


def joined_parts(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the float32 numbers that high and low parts represent; tiny numbers have their own encoding."""
    upper, lower = (np.ascontiguousarray(part).view(np.uint16).astype(np.uint32) for part in (high, low))
    tiny = (upper << 16 | lower & 0x8000 | (lower & 0x1FFF) << 2).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(high.astype(np.float32)) < TINY, tiny, high.astype(np.float32) + low.astype(np.float32))


def room_for_parts(lens: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Memory for both parts of rows, and the two parts, with what ends rows up to whole lines: NaN."""
    *rows, columns = lens
    room = np.full((2, *rows, parts_pitch(columns)), np.nan, ml_dtypes.bfloat16)
    end = -(-columns // 32) * 32
    return room, room[0, ..., :end], room[1, ..., :end]
