"""Tensors as NumPy arrays over the same memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_BY_BITS: dict[torch.dtype, tuple[torch.dtype, object]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
"""Types without a NumPy type of PyTorch's own: a type of equal size, and NumPy's type."""


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return an array over a tensor's memory; tensors on a device are copied to the host."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.dtype not in _BY_BITS:
        return plain.numpy()
    bits, dtype = _BY_BITS[plain.dtype]
    return plain.view(bits).numpy().view(dtype)
