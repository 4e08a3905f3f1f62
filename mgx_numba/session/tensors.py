"""Operations on tensors in host or device memory: element type and lengths, and copies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..api.device import device_argument, from_gpu
from ..core.copying import row_major


class Described(NamedTuple):
    """Element type and lengths of a tensor."""

    dtype: np.dtype
    lens: tuple[int, ...]


def described(value: np.ndarray | device_argument) -> Described:
    """Return element type and lengths of a host or device tensor."""
    if isinstance(value, np.ndarray):
        return Described(value.dtype, value.shape)
    shape = value._value.shape
    return Described(np.dtype(shape.type.numpy), tuple(shape.array_lens))


def copy_into(target: np.ndarray | device_argument, source: np.ndarray | device_argument) -> None:
    """Copy a tensor into another of equal element type and lengths; the copy is complete on return."""
    if isinstance(target, np.ndarray):
        target[...] = source if isinstance(source, np.ndarray) else np.asarray(from_gpu(source)).reshape(target.shape)
        return
    from ..runtime.gpu.choice import engine  # late: rarely needed
    from ..runtime.gpu.transfers import copy_within, fill, to_host

    on, place = engine(target._value.device), target._value
    if isinstance(source, np.ndarray):
        fill(on, place, row_major(source))
    elif source._value.device == place.device:
        copy_within(on, place, source._value)
    else:
        fill(on, place, to_host(engine(source._value.device), source._value))
