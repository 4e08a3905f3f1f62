"""Exchange of tensors with programs: host memory as NumPy arrays, device memory as device arrays, without a copy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

_BY_BITS: dict[torch.dtype, tuple[torch.dtype, np.dtype]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e4m3fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
    torch.float8_e5m2fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2fnuz)),
}
"""Types without a NumPy type of PyTorch's own: a type of equal size, and NumPy's type."""
_OF_ARRAY = {mine: (theirs, bits) for theirs, (bits, mine) in _BY_BITS.items()}


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements as a row-major array in host memory; copies where the tensor's memory is not that."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    bits, dtype = _BY_BITS.get(plain.dtype, (None, None))
    return plain.numpy() if bits is None else plain.view(bits).numpy().view(dtype)


def quick_array(tensor: torch.Tensor) -> Callable[[torch.Tensor], np.ndarray]:
    """Return a function that gives the elements of tensors like ``tensor`` as an array, without a copy where it can."""
    bits, dtype = _BY_BITS.get(tensor.dtype, (None, None))
    if bits is None:
        return _detached if tensor.requires_grad else torch.Tensor.numpy
    return lambda value: value.detach().view(bits).numpy().view(dtype)


def _detached(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def from_array(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over an array's memory."""
    theirs, bits = _OF_ARRAY.get(array.dtype, (None, None))
    if not array.size:  # NumPy's strides of empty arrays are not PyTorch's
        return torch.empty(array.shape, dtype=theirs or torch.from_numpy(array).dtype)
    if theirs is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16 if bits is torch.int16 else np.uint8)).view(theirs)


def from_device(value: object) -> torch.Tensor:
    """Return a `device_argument` as a tensor over its memory, complete for PyTorch's current stream."""
    found: torch.Tensor = torch.from_dlpack(value)
    return found
