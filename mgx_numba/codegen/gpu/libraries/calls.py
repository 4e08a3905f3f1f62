"""Library calls in a plan: serialised as text without addresses, and bound to a device for execution.

In a plan a call takes the place of a kernel; its argument block holds operand addresses. NVIDIA engines load it like a
kernel, and capture it into graphs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ....errors import DeviceError
from ...kernel import KernelSource
from ...launch import Launch, OneCall, Operand
from ..kernel import NAME


class LibraryCall(Protocol):
    """A library call on one device, prepared except for addresses."""

    def enqueue(self, addresses: Mapping[str, int], stream: int) -> None:
        """Enqueue the call on a stream of the current context; thread-safe.

        Raises:
            DeviceError: the library reports an error.
        """


class BoundCall:
    """A library call whose operand addresses come in an argument block."""

    def __init__(self, call: LibraryCall, operands: Sequence[str]) -> None:
        self._call, self._operands = call, tuple(operands)

    def enqueue(self, words: np.ndarray, stream: int) -> None:
        """See `LibraryCall.enqueue`; ``words`` are the operands' addresses (int64) in order."""
        self._call.enqueue(dict(zip(self._operands, words.tolist())), stream)


def call_launch(
    library: str,
    name: str,
    unit: str,
    fields: Mapping[str, object],
    operands: Mapping[str, Operand],
    flops: int,
    bytes: int,
) -> Launch:
    """Return the launch of a library call.

    Args:
        library: ``cublaslt`` or ``cudnn``.
        name: display name.
        unit: functional unit, see `Backend.unit`.
        fields: JSON values from which `bound_call` restores the call.
        operands: by their names in the call.
    """
    text = json.dumps({"library": library, "unit": unit, "operands": list(operands), **fields}, sort_keys=True)
    return Launch(KernelSource(NAME, name, text), tuple(operands.values()), OneCall(), flops, bytes)


def described(kernel: KernelSource) -> dict[str, Any] | None:
    """Return the fields of a kernel that is a library call; None for a kernel in Python."""
    return json.loads(kernel.text) if kernel.text.startswith("{") else None


@functools.lru_cache(maxsize=1024)
def bound_call(kernel: KernelSource, number: int) -> BoundCall:
    """Return the call of a kernel on device ``number``, which is the current device; cached.

    Raises:
        DeviceError: the library is missing, has another version, or reports an error.
    """
    from .convolutions import ConvolutionCall
    from .cublaslt import MatmulCall

    fields = described(kernel)
    kinds: dict[str, Any] = {"cublaslt": MatmulCall, "cudnn": ConvolutionCall}
    if fields is None or fields["library"] not in kinds:
        raise DeviceError(f"{kernel.name} is no call of a library that is known ({', '.join(kinds)})")
    return BoundCall(kinds[fields["library"]].described(fields, number), fields["operands"])
